//! Holds the dimensions of the synthetic Qwen-VL models, and writes them as configuration files.
//!
//! Qwen2.5-VL's published `config.json` is flat, Qwen3-VL's has a `text_config`; both are written as they are
//! published.  Field order is fixed, so the bytes are.  Knows nothing of tokens' text or weights.

use serde_json::{Value, json};

use super::sizes::VOCAB_PADDED;
use super::tokenizer::{END_OF_TEXT, TURN_END, Words};
use super::{Dimensions, Size, json as text, text_files};
use crate::families::{qwen2_5_vl, qwen3_vl};
use crate::model::ModelPart;

/// Those of the second generation: a tiny one for tests, and one of published size.
pub(crate) const SIZES_2_5: [Size; 2] = [
    Size {
        name: "qwen2_5_vl-tiny",
        max_positions: 4096,
        dimensions: &(Words::qwen_vl(512), TINY_2_5),
    },
    Size {
        name: "qwen2_5_vl-3b",
        max_positions: 128_000,
        dimensions: &(Words::qwen_vl(VOCAB_PADDED), B3_2_5),
    },
];

/// The same of the third.
pub(crate) const SIZES_3: [Size; 2] = [
    Size { name: "qwen3_vl-tiny", max_positions: 4096, dimensions: &(Words::qwen_vl(512), TINY_3) },
    Size {
        name: "qwen3_vl-2b",
        max_positions: 262_144,
        dimensions: &(Words::qwen_vl(VOCAB_PADDED), B2_3),
    },
];

impl Dimensions for (Words, QwenVl) {
    fn config_json(&self, max_positions: usize) -> String {
        self.1.config_json(self.0, max_positions)
    }

    fn text_files(&self, max_positions: usize) -> Vec<(&'static str, String)> {
        text_files(self.0, max_positions)
    }

    fn preprocessor_json(&self) -> Option<String> {
        Some(self.1.preprocessor_json())
    }

    /// The heads of the published models are tied.
    fn parts(&self) -> &'static [ModelPart] {
        &[ModelPart::Vision, ModelPart::Llm]
    }
}

/// The dimensions of one synthetic model.
struct QwenVl {
    tower: Tower,
    llm: Llm,
    own: Own,
}

struct Tower {
    hidden: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
    patch: usize,
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

/// What the generations differ in.
enum Own {
    Qwen25 {
        /// Blocks whose attention sees the whole picture.
        full_attention: &'static [usize],
    },
    Qwen3 {
        head_dim: usize,
        /// Blocks whose features are given too.
        deepstack: &'static [usize],
        /// Learned positions.
        positions: usize,
    },
}

/// For tests, of the second generation.
const TINY_2_5: QwenVl = QwenVl {
    tower: Tower { hidden: 32, layers: 4, heads: 2, intermediate: 42, patch: 14 },
    llm: Llm {
        hidden: 64,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        intermediate: 104,
        sections: [2, 3, 3],
    },
    own: Own::Qwen25 { full_attention: &[1, 3] },
};

/// Qwen2.5-VL-3B.
const B3_2_5: QwenVl = QwenVl {
    tower: Tower { hidden: 1280, layers: 32, heads: 16, intermediate: 3420, patch: 14 },
    llm: Llm {
        hidden: 2048,
        layers: 36,
        heads: 16,
        kv_heads: 2,
        intermediate: 11008,
        sections: [16, 24, 24],
    },
    own: Own::Qwen25 { full_attention: &[7, 15, 23, 31] },
};

/// For tests, of the third generation.
const TINY_3: QwenVl = QwenVl {
    tower: Tower { hidden: 32, layers: 4, heads: 2, intermediate: 56, patch: 16 },
    llm: Llm {
        hidden: 64,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        intermediate: 104,
        sections: [6, 3, 3],
    },
    own: Own::Qwen3 { head_dim: 24, deepstack: &[0, 2], positions: 36 },
};

/// Qwen3-VL-2B, and so Cosmos-Reason2-2B.
const B2_3: QwenVl = QwenVl {
    tower: Tower { hidden: 1024, layers: 24, heads: 16, intermediate: 4096, patch: 16 },
    llm: Llm {
        hidden: 2048,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        intermediate: 6144,
        sections: [24, 20, 20],
    },
    own: Own::Qwen3 { head_dim: 128, deepstack: &[5, 11, 17], positions: 2304 },
};

/// Patches that become one image token, on a side.
const MERGE: usize = 2;

/// Pictures of a clip that one patch spans.
const FRAMES: usize = 2;

impl QwenVl {
    /// `config.json`.
    fn config_json(&self, words: Words, max_positions: usize) -> String {
        let llm = self.llm_config(words, max_positions);
        let mut config = match self.own {
            Own::Qwen25 { .. } => llm,
            Own::Qwen3 { .. } => json!({ "text_config": llm }),
        };
        let (architecture, model_type) = match self.own {
            Own::Qwen25 { .. } => (qwen2_5_vl::ARCHITECTURE, "qwen2_5_vl"),
            Own::Qwen3 { .. } => (qwen3_vl::ARCHITECTURE, "qwen3_vl"),
        };
        config["architectures"] = json!([architecture]);
        config["model_type"] = json!(model_type);
        config["tie_word_embeddings"] = json!(true);
        for (field, token) in [
            ("image_token_id", "<|image_pad|>"),
            ("video_token_id", "<|video_pad|>"),
            ("vision_start_token_id", "<|vision_start|>"),
            ("vision_end_token_id", "<|vision_end|>"),
        ] {
            config[field] = json!(words.id(token));
        }
        config["vision_config"] = self.vision_config();
        text(&config)
    }

    fn llm_config(&self, words: Words, max_positions: usize) -> Value {
        let Llm { hidden, layers, heads, kv_heads, intermediate, sections } = self.llm;
        let mut config = json!({
            "attention_dropout": 0.0,
            "bos_token_id": words.id(END_OF_TEXT),
            "eos_token_id": words.id(TURN_END),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "max_position_embeddings": max_positions,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": kv_heads,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": words.vocab,
        });
        match self.own {
            Own::Qwen25 { .. } => {
                config["rope_theta"] = json!(1_000_000.0);
                config["rope_scaling"] = json!({ "type": "mrope", "mrope_section": sections });
            }
            Own::Qwen3 { head_dim, .. } => {
                config["attention_bias"] = json!(false);
                config["head_dim"] = json!(head_dim);
                config["model_type"] = json!("qwen3_vl_text");
                config["rope_theta"] = json!(5_000_000.0);
                config["rope_scaling"] = json!({
                    "mrope_interleaved": true,
                    "mrope_section": sections,
                    "rope_type": "default",
                });
            }
        }
        config
    }

    fn vision_config(&self) -> Value {
        let Tower { hidden, layers, heads, intermediate, patch } = self.tower;
        let mut config = json!({
            "depth": layers,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_heads": heads,
            "out_hidden_size": self.llm.hidden,
            "patch_size": patch,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES,
        });
        match self.own {
            Own::Qwen25 { full_attention } => {
                config["fullatt_block_indexes"] = json!(full_attention);
                config["hidden_act"] = json!("silu");
                config["in_chans"] = json!(3);
                config["spatial_patch_size"] = json!(patch);
                config["tokens_per_second"] = json!(2);
                config["window_size"] = json!(8 * patch);
            }
            Own::Qwen3 { deepstack, positions, .. } => {
                config["deepstack_visual_indexes"] = json!(deepstack);
                config["hidden_act"] = json!("gelu_pytorch_tanh");
                config["in_channels"] = json!(3);
                config["model_type"] = json!("qwen3_vl");
                config["num_position_embeddings"] = json!(positions);
            }
        }
        config
    }

    /// `preprocessor_config.json`: the published limits, mean and deviation.
    fn preprocessor_json(&self) -> String {
        let mut config = json!({
            "merge_size": MERGE,
            "patch_size": self.tower.patch,
            "temporal_patch_size": FRAMES,
        });
        match self.own {
            Own::Qwen25 { .. } => {
                config["image_mean"] = json!([0.481_454_66, 0.457_827_5, 0.408_210_73]);
                config["image_processor_type"] = json!("Qwen2VLImageProcessor");
                config["image_std"] = json!([0.268_629_54, 0.261_302_58, 0.275_777_11]);
                config["max_pixels"] = json!(12_845_056);
                config["min_pixels"] = json!(3136);
            }
            Own::Qwen3 { .. } => {
                config["image_mean"] = json!([0.5, 0.5, 0.5]);
                config["image_processor_type"] = json!("Qwen2VLImageProcessorFast");
                config["image_std"] = json!([0.5, 0.5, 0.5]);
                config["size"] = json!({ "longest_edge": 16_777_216, "shortest_edge": 65_536 });
            }
        }
        text(&config)
    }
}
