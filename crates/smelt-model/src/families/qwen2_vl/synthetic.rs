//! Holds the dimensions of the synthetic Qwen2-VL models, and writes them as configuration files.
//!
//! The published `config.json` is flat.  Field order is fixed, so the bytes are.  Knows nothing of weights.

use serde_json::json;

use super::ARCHITECTURE;
use crate::model::ModelPart;
use crate::synthetic::tokenizer::{END_OF_TEXT, TURN_END, Words};
use crate::synthetic::{Dimensions, Size, json as text, text_files};

/// A tiny one for tests, and one of published size.
pub(super) const SIZES: [Size; 2] = [
    Size { name: "qwen2_vl-tiny", max_positions: 4096, dimensions: &TINY },
    Size { name: "qwen2_vl-2b", max_positions: 32768, dimensions: &B2 },
];

/// The dimensions of one synthetic model.
struct Qwen2Vl {
    words: Words,
    tower: Tower,
    llm: Llm,
}

struct Tower {
    hidden: usize,
    layers: usize,
    heads: usize,
    mlp_ratio: usize,
}

struct Llm {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    intermediate: usize,
    /// How many pairs of a head's numbers turn with time, height and width.
    sections: [usize; 3],
}

const TINY: Qwen2Vl = Qwen2Vl {
    words: Words::qwen_vl(512),
    tower: Tower { hidden: 32, layers: 4, heads: 2, mlp_ratio: 2 },
    llm: Llm {
        hidden: 64,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        intermediate: 104,
        sections: [2, 3, 3],
    },
};

/// Qwen2-VL-2B.
const B2: Qwen2Vl = Qwen2Vl {
    words: Words::qwen_vl(151_936),
    tower: Tower { hidden: 1280, layers: 32, heads: 16, mlp_ratio: 4 },
    llm: Llm {
        hidden: 1536,
        layers: 28,
        heads: 12,
        kv_heads: 2,
        intermediate: 8960,
        sections: [16, 24, 24],
    },
};

/// Pixels on a side of a patch.
const PATCH: usize = 14;

/// Patches that become one image token, on a side.
const MERGE: usize = 2;

/// Pictures of a clip that one patch spans.
const FRAMES: usize = 2;

impl Dimensions for Qwen2Vl {
    fn config_json(&self, max_positions: usize) -> String {
        let Llm { hidden, layers, heads, kv_heads, intermediate, sections } = self.llm;
        let id = |word| self.words.id(word);
        text(&json!({
            "architectures": [ARCHITECTURE],
            "attention_dropout": 0.0,
            "bos_token_id": id(END_OF_TEXT),
            "eos_token_id": id(TURN_END),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "image_token_id": id("<|image_pad|>"),
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "max_position_embeddings": max_positions,
            "model_type": "qwen2_vl",
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_scaling": { "type": "mrope", "mrope_section": sections },
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
            "use_cache": true,
            "use_sliding_window": false,
            "video_token_id": id("<|video_pad|>"),
            "vision_config": {
                "depth": self.tower.layers,
                "embed_dim": self.tower.hidden,
                "hidden_size": hidden,
                "in_chans": 3,
                "mlp_ratio": self.tower.mlp_ratio,
                "num_heads": self.tower.heads,
                "patch_size": PATCH,
                "spatial_merge_size": MERGE,
                "spatial_patch_size": PATCH,
                "temporal_patch_size": FRAMES,
            },
            "vision_end_token_id": id("<|vision_end|>"),
            "vision_start_token_id": id("<|vision_start|>"),
            "vocab_size": self.words.vocab,
        }))
    }

    fn text_files(&self, max_positions: usize) -> Vec<(&'static str, String)> {
        text_files(self.words, max_positions)
    }

    fn preprocessor_json(&self) -> Option<String> {
        Some(text(&json!({
            "image_mean": [0.481_454_66, 0.457_827_5, 0.408_210_73],
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_std": [0.268_629_54, 0.261_302_58, 0.275_777_11],
            "max_pixels": 12_845_056,
            "merge_size": MERGE,
            "min_pixels": 3136,
            "patch_size": PATCH,
            "temporal_patch_size": FRAMES,
        })))
    }

    /// The heads of the published models are tied.
    fn parts(&self) -> &'static [ModelPart] {
        &[ModelPart::Vision, ModelPart::Llm]
    }
}
