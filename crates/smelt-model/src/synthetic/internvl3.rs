//! Holds the dimensions of the synthetic InternVL models, and writes them as configuration files.
//!
//! [`InternVl`] goes out as the JSON texts a published checkpoint has.  Field order is fixed by the
//! structs, so the bytes are.  Knows nothing of tokens' text or weights.

use serde::Serialize;

use super::sizes::{VOCAB_3, VOCAB_PADDED};
use super::tokenizer::{END_OF_TEXT, TURN_END, Words};
use super::{Dimensions, Size, json, text_files};
use crate::decoder::DecoderFamily;
use crate::families::internvl3::ARCHITECTURE;
use crate::model::ModelPart;

/// Every synthetic model: of each generation a tiny one for tests, and those of published size.
pub(crate) const SIZES: [Size; 6] = [
    Size { name: "internvl3-tiny", max_positions: 1024, dimensions: &(Words::internvl(512), TINY) },
    Size {
        name: "internvl3-1b",
        max_positions: 32768,
        dimensions: &(Words::internvl(VOCAB_3), B1),
    },
    Size {
        name: "internvl3-2b",
        max_positions: 32768,
        dimensions: &(Words::internvl(VOCAB_3), B2),
    },
    Size {
        name: "internvl3_5-tiny",
        max_positions: 1024,
        dimensions: &(Words::internvl(512), TINY_3_5),
    },
    Size {
        name: "internvl3_5-1b",
        max_positions: 40960,
        dimensions: &(Words::internvl(VOCAB_PADDED), B1_3_5),
    },
    Size {
        name: "internvl3_5-2b",
        max_positions: 40960,
        dimensions: &(Words::internvl(VOCAB_PADDED), B2_3_5),
    },
];

impl Dimensions for (Words, InternVl) {
    fn config_json(&self, max_positions: usize) -> String {
        self.1.config_json(self.0, max_positions)
    }

    fn text_files(&self, max_positions: usize) -> Vec<(&'static str, String)> {
        text_files(self.0, max_positions)
    }

    fn preprocessor_json(&self) -> Option<String> {
        Some(self.1.preprocessor_json())
    }

    fn parts(&self) -> &'static [ModelPart] {
        &[ModelPart::Vision, ModelPart::Llm, ModelPart::Head]
    }
}

/// The dimensions of one synthetic model.
struct InternVl {
    vision: Tower,
    image_size: usize,
    max_tiles: usize,
    llm: Tower,
    kv_heads: usize,
    decoder: Own,
}

/// What both towers have.
struct Tower {
    hidden: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
}

/// What the families of decoders differ in.
enum Own {
    Qwen2,
    Qwen3 { head_dim: usize },
}

/// InternViT-300M, the vision tower of every small model of the family.
const INTERN_VIT_300M: Tower = Tower { hidden: 1024, layers: 24, heads: 16, intermediate: 4096 };

/// For tests, with a decoder of Qwen2.
const TINY: InternVl = InternVl {
    vision: Tower { hidden: 64, layers: 2, heads: 4, intermediate: 128 },
    image_size: 56,
    max_tiles: 4,
    llm: Tower { hidden: 64, layers: 3, heads: 4, intermediate: 160 },
    kv_heads: 2,
    decoder: Own::Qwen2,
};

/// InternVL3-1B.
const B1: InternVl = InternVl {
    vision: INTERN_VIT_300M,
    image_size: 448,
    max_tiles: 12,
    llm: Tower { hidden: 896, layers: 24, heads: 14, intermediate: 4864 },
    kv_heads: 2,
    decoder: Own::Qwen2,
};

/// InternVL3-2B.
const B2: InternVl = InternVl {
    vision: INTERN_VIT_300M,
    image_size: 448,
    max_tiles: 12,
    llm: Tower { hidden: 1536, layers: 28, heads: 12, intermediate: 8960 },
    kv_heads: 2,
    decoder: Own::Qwen2,
};

/// For tests, with a decoder of Qwen3.
const TINY_3_5: InternVl = InternVl {
    vision: Tower { hidden: 64, layers: 2, heads: 4, intermediate: 128 },
    image_size: 56,
    max_tiles: 4,
    llm: Tower { hidden: 64, layers: 3, heads: 4, intermediate: 160 },
    kv_heads: 2,
    decoder: Own::Qwen3 { head_dim: 32 },
};

/// InternVL3.5-1B.
const B1_3_5: InternVl = InternVl {
    vision: INTERN_VIT_300M,
    image_size: 448,
    max_tiles: 12,
    llm: Tower { hidden: 1024, layers: 28, heads: 16, intermediate: 3072 },
    kv_heads: 8,
    decoder: Own::Qwen3 { head_dim: 128 },
};

/// InternVL3.5-2B.
const B2_3_5: InternVl = InternVl {
    vision: INTERN_VIT_300M,
    image_size: 448,
    max_tiles: 12,
    llm: Tower { hidden: 2048, layers: 28, heads: 16, intermediate: 6144 },
    kv_heads: 8,
    decoder: Own::Qwen3 { head_dim: 128 },
};

impl Own {
    fn family(&self) -> &'static DecoderFamily {
        let name = match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 { .. } => "qwen3",
        };
        DecoderFamily::named(name).expect("the families of this file are ones this crate knows")
    }

    /// The fields only configurations of this family have.
    fn head_dim(&self) -> Option<usize> {
        match *self {
            Self::Qwen2 => None,
            Self::Qwen3 { head_dim } => Some(head_dim),
        }
    }
}

impl InternVl {
    /// `config.json`.
    fn config_json(&self, words: Words, max_positions: usize) -> String {
        json(&Config {
            architectures: [ARCHITECTURE],
            downsample_ratio: 0.5,
            dynamic_image_size: true,
            force_image_size: self.image_size,
            llm_config: self.llm_config(words, max_positions),
            max_dynamic_patch: self.max_tiles,
            min_dynamic_patch: 1,
            model_type: "internvl_chat",
            ps_version: "v2",
            select_layer: -1,
            template: "internvl2_5",
            tie_word_embeddings: false,
            torch_dtype: "bfloat16",
            use_thumbnail: true,
            vision_config: self.vision_config(),
        })
    }

    fn llm_config(&self, words: Words, max_positions: usize) -> LlmConfig {
        LlmConfig {
            architectures: [self.decoder.family().architecture],
            attention_bias: self.decoder.head_dim().map(|_| false),
            attention_dropout: 0.0,
            bos_token_id: words.id(END_OF_TEXT),
            eos_token_id: words.id(TURN_END),
            head_dim: self.decoder.head_dim(),
            hidden_act: "silu",
            hidden_size: self.llm.hidden,
            intermediate_size: self.llm.intermediate,
            max_position_embeddings: max_positions,
            model_type: self.decoder.family().name,
            num_attention_heads: self.llm.heads,
            num_hidden_layers: self.llm.layers,
            num_key_value_heads: self.kv_heads,
            rms_norm_eps: 1e-6,
            rope_theta: 1_000_000.0,
            tie_word_embeddings: false,
            torch_dtype: "bfloat16",
            use_cache: true,
            use_sliding_window: false,
            vocab_size: words.vocab,
        }
    }

    fn vision_config(&self) -> VisionConfig {
        VisionConfig {
            architectures: ["InternVisionModel"],
            attention_dropout: 0.0,
            drop_path_rate: 0.0,
            dropout: 0.0,
            hidden_act: "gelu",
            hidden_size: self.vision.hidden,
            image_size: self.image_size,
            intermediate_size: self.vision.intermediate,
            layer_norm_eps: 1e-6,
            model_type: "intern_vit_6b",
            norm_type: "layer_norm",
            num_attention_heads: self.vision.heads,
            num_channels: 3,
            num_hidden_layers: self.vision.layers,
            patch_size: 14,
            qk_normalization: false,
            qkv_bias: true,
            torch_dtype: "bfloat16",
        }
    }

    /// `preprocessor_config.json`, as published: bicubic to a square tile, ImageNet mean and deviation.
    fn preprocessor_json(&self) -> String {
        json(&Preprocessor {
            crop_size: self.image_size,
            do_center_crop: true,
            do_normalize: true,
            do_resize: true,
            feature_extractor_type: "CLIPFeatureExtractor",
            image_mean: [0.485, 0.456, 0.406],
            image_std: [0.229, 0.224, 0.225],
            resample: 3,
            size: self.image_size,
        })
    }
}

#[derive(Serialize)]
struct Config {
    architectures: [&'static str; 1],
    downsample_ratio: f64,
    dynamic_image_size: bool,
    force_image_size: usize,
    llm_config: LlmConfig,
    max_dynamic_patch: usize,
    min_dynamic_patch: usize,
    model_type: &'static str,
    ps_version: &'static str,
    select_layer: i64,
    template: &'static str,
    tie_word_embeddings: bool,
    torch_dtype: &'static str,
    use_thumbnail: bool,
    vision_config: VisionConfig,
}

#[derive(Serialize)]
struct LlmConfig {
    architectures: [&'static str; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    attention_bias: Option<bool>,
    attention_dropout: f64,
    bos_token_id: usize,
    eos_token_id: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    head_dim: Option<usize>,
    hidden_act: &'static str,
    hidden_size: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    model_type: &'static str,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    rms_norm_eps: f64,
    rope_theta: f64,
    tie_word_embeddings: bool,
    torch_dtype: &'static str,
    use_cache: bool,
    use_sliding_window: bool,
    vocab_size: usize,
}

#[derive(Serialize)]
struct VisionConfig {
    architectures: [&'static str; 1],
    attention_dropout: f64,
    drop_path_rate: f64,
    dropout: f64,
    hidden_act: &'static str,
    hidden_size: usize,
    image_size: usize,
    intermediate_size: usize,
    layer_norm_eps: f64,
    model_type: &'static str,
    norm_type: &'static str,
    num_attention_heads: usize,
    num_channels: usize,
    num_hidden_layers: usize,
    patch_size: usize,
    qk_normalization: bool,
    qkv_bias: bool,
    torch_dtype: &'static str,
}

#[derive(Serialize)]
struct Preprocessor {
    crop_size: usize,
    do_center_crop: bool,
    do_normalize: bool,
    do_resize: bool,
    feature_extractor_type: &'static str,
    image_mean: [f64; 3],
    image_std: [f64; 3],
    resample: u32,
    size: usize,
}
