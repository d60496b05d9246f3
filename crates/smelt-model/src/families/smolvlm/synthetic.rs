//! Holds the dimensions of the synthetic SmolVLM2 models, and writes them as configuration files.
//!
//! Fields are those of the published files.  Field order is fixed, so the bytes are.  Knows nothing of weights.

use serde_json::json;

use super::ARCHITECTURE;
use crate::model::ModelPart;
use crate::synthetic::tokenizer::{END_OF_TEXT, TURN_END, Words};
use crate::synthetic::{Dimensions, Size, json as text, text_files};

/// A tiny one for tests, and those of published size.
pub(super) const SIZES: [Size; 3] = [
    Size { name: "smolvlm-tiny", max_positions: 4096, dimensions: &TINY },
    Size { name: "smolvlm-256m", max_positions: 8192, dimensions: &M256 },
    Size { name: "smolvlm-500m", max_positions: 8192, dimensions: &M500 },
];

/// The dimensions of one synthetic model.
struct SmolVlm {
    words: Words,
    tower: Tower,
    /// Patches on a side of an image token.
    shuffle: usize,
    llm: Llm,
}

struct Tower {
    hidden: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
    image: usize,
    patch: usize,
}

struct Llm {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    intermediate: usize,
}

/// SigLIP's base tower behind pictures of 512 pixels.
const BASE: Tower =
    Tower { hidden: 768, layers: 12, heads: 12, intermediate: 3072, image: 512, patch: 16 };

/// Rows of the published embeddings.
const VOCAB: usize = 49_280;

const TINY: SmolVlm = SmolVlm {
    words: Words::of(512, &SPECIAL, TEMPLATE),
    tower: Tower { hidden: 32, layers: 2, heads: 2, intermediate: 56, image: 56, patch: 14 },
    shuffle: 2,
    llm: Llm { hidden: 64, layers: 3, heads: 4, kv_heads: 2, intermediate: 104 },
};

/// SmolVLM2-256M, and so SmolVLM-256M.
const M256: SmolVlm = SmolVlm {
    words: Words::of(VOCAB, &SPECIAL, TEMPLATE),
    tower: BASE,
    shuffle: 4,
    llm: Llm { hidden: 576, layers: 30, heads: 9, kv_heads: 3, intermediate: 1536 },
};

/// SmolVLM2-500M, and so SmolVLM-500M.
const M500: SmolVlm = SmolVlm {
    words: Words::of(VOCAB, &SPECIAL, TEMPLATE),
    tower: BASE,
    shuffle: 4,
    llm: Llm { hidden: 960, layers: 32, heads: 15, kv_heads: 5, intermediate: 2560 },
};

/// Words of the last ids; the flag says whether decoding for people leaves the token out.
const SPECIAL: [(&str, bool); 43] = [
    (END_OF_TEXT, true),
    ("<|im_start|>", true),
    (TURN_END, true),
    ("<fake_token_around_image>", true),
    ("<image>", true),
    ("<end_of_utterance>", true),
    ("<global-img>", true),
    ("<row_1_col_1>", true),
    ("<row_1_col_2>", true),
    ("<row_1_col_3>", true),
    ("<row_1_col_4>", true),
    ("<row_1_col_5>", true),
    ("<row_1_col_6>", true),
    ("<row_2_col_1>", true),
    ("<row_2_col_2>", true),
    ("<row_2_col_3>", true),
    ("<row_2_col_4>", true),
    ("<row_2_col_5>", true),
    ("<row_2_col_6>", true),
    ("<row_3_col_1>", true),
    ("<row_3_col_2>", true),
    ("<row_3_col_3>", true),
    ("<row_3_col_4>", true),
    ("<row_3_col_5>", true),
    ("<row_3_col_6>", true),
    ("<row_4_col_1>", true),
    ("<row_4_col_2>", true),
    ("<row_4_col_3>", true),
    ("<row_4_col_4>", true),
    ("<row_4_col_5>", true),
    ("<row_4_col_6>", true),
    ("<row_5_col_1>", true),
    ("<row_5_col_2>", true),
    ("<row_5_col_3>", true),
    ("<row_5_col_4>", true),
    ("<row_5_col_5>", true),
    ("<row_5_col_6>", true),
    ("<row_6_col_1>", true),
    ("<row_6_col_2>", true),
    ("<row_6_col_3>", true),
    ("<row_6_col_4>", true),
    ("<row_6_col_5>", true),
    ("<row_6_col_6>", true),
];

/// The published one, but that turns end as those of the other synthetic models: roles in capitals, pictures and
/// clips as their words.
const TEMPLATE: &str = "\
<|im_start|>\
{% for message in messages %}\
{{ message['role'] | capitalize }}\
{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% for line in message['content'] %}\
{% if line['type'] == 'text' %}{{ line['text'] }}\
{% elif line['type'] == 'image' %}{{ '<image>' }}\
{% elif line['type'] == 'video' %}{{ '<video>' }}\
{% endif %}\
{% endfor %}\
<|im_end|>\n\
{% endfor %}\
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

impl Dimensions for SmolVlm {
    fn config_json(&self, max_positions: usize) -> String {
        let Llm { hidden, layers, heads, kv_heads, intermediate } = self.llm;
        let Tower { image, .. } = self.tower;
        text(&json!({
            "architectures": [ARCHITECTURE],
            "image_token_id": self.words.id("<image>"),
            "model_type": "smolvlm",
            "scale_factor": self.shuffle,
            "text_config": {
                "architectures": ["VLlama3ForCausalLM"],
                "bos_token_id": self.words.id(END_OF_TEXT),
                "eos_token_id": self.words.id(TURN_END),
                "head_dim": hidden / heads,
                "hidden_size": hidden,
                "intermediate_size": intermediate,
                "max_position_embeddings": max_positions,
                "model_type": "llama",
                "num_attention_heads": heads,
                "num_hidden_layers": layers,
                "num_key_value_heads": kv_heads,
                "rms_norm_eps": 1e-5,
                "rope_theta": 100_000,
                "torch_dtype": "bfloat16",
                "vocab_size": self.words.vocab,
            },
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "vision_config": {
                "hidden_size": self.tower.hidden,
                "image_size": image,
                "intermediate_size": self.tower.intermediate,
                "max_image_size": { "longest_edge": image },
                "model_type": "smolvlm_vision",
                "num_attention_heads": self.tower.heads,
                "num_hidden_layers": self.tower.layers,
                "patch_size": self.tower.patch,
                "size": { "longest_edge": 4 * image },
            },
        }))
    }

    fn text_files(&self, max_positions: usize) -> Vec<(&'static str, String)> {
        text_files(self.words, max_positions)
    }

    fn preprocessor_json(&self) -> Option<String> {
        Some(text(&json!({
            "do_image_splitting": true,
            "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "SmolVLMImageProcessor",
            "image_std": [0.5, 0.5, 0.5],
            "max_image_size": { "longest_edge": self.tower.image },
            "resample": 1,
            "size": { "longest_edge": 4 * self.tower.image },
        })))
    }

    fn parts(&self) -> &'static [ModelPart] {
        &[ModelPart::Vision, ModelPart::Llm, ModelPart::Head]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_has_its_word() {
        for (row, column) in (1..=6).flat_map(|row| (1..=6).map(move |column| (row, column))) {
            let word = format!("<row_{row}_col_{column}>");
            assert!(SPECIAL.contains(&(word.as_str(), true)), "{word}");
        }
    }
}
