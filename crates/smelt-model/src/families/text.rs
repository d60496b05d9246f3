//! Reads the configuration of a text-only decoder: Qwen2, Qwen2.5, Qwen3, Llama 2 and 3.
//!
//! The configuration is the decoder's own, and the tensors are `model.…` and `lm_head.weight`; the
//! head is there or not, whatever `tie_word_embeddings` says.  Knows nothing of files.

use super::Config;
use crate::config::{ConfigProblem, Scope};
use crate::decoder::{self, Family};
use crate::model::{Layout, Model};

/// The decoders by themselves.
pub(super) const TEXT: super::Family = super::Family {
    architectures: &["Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"],
    words: supported,
    read,
};

const TOP: Scope = Scope("");

/// Older Llama checkpoints repeat the rotary frequencies in every layer.
const LAYOUTS: &[Layout] =
    &[Layout { sources: stored, ignores: |name| name.ends_with(".rotary_emb.inv_freq") }];

/// Canonical names begin with the place a decoder has in a model that sees.
fn stored(name: &str) -> Vec<String> {
    vec![name.strip_prefix("language_model.").unwrap_or(name).to_owned()]
}

fn supported() -> String {
    format!("{} (text)", TEXT.architectures.join(" or "))
}

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let class = config.architecture().unwrap_or_default();
    let family = Family::of_architecture(class).expect("the table lists classes of decoders");
    let fields: decoder::Fields = config.fields()?;
    let llm = fields.decoder(family, TOP)?;
    Ok(Model { family: family.name, vision: None, llm: Some(llm), encoder: None, layouts: LAYOUTS })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::decoder::{EMBEDDING, LM_HEAD};
    use crate::golden::Golden;

    const LLAMA: &str = r#"{
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 80, "vocab_size": 160, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "mlp_bias": false,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}"#;

    #[track_caller]
    fn check(from: &str, to: &str, words: &str) {
        assert_eq!(LLAMA.matches(from).count(), 1, "{from:?} must be there once");
        let json = LLAMA.replace(from, to);
        let error = Model::parse(&json, Path::new("config.json")).unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} is not in {error:?}");
    }

    #[test]
    fn a_llama_has_scaled_frequencies_and_no_vision() {
        let model = Model::parse(LLAMA, Path::new("config.json")).unwrap();
        assert!(model.vision.is_none());
        let llm = model.llm.unwrap();
        assert_eq!((llm.family.name, llm.head_dim, llm.max_positions), ("llama", 16, 131_072));
        assert_eq!(llm.rope.scaling.unwrap().original_max_position_embeddings, 8192.0);
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        check("\"llama3\"", "\"yarn\"", "rope_scaling is {");
        check("\"llama3\"", "\"linear\"", "\"default\", \"dynamic\" or \"llama3\"");
        check("\"factor\": 8.0,", "", "rope_scaling of type llama3: missing field `factor`");
        check(
            "\"high_freq_factor\": 4.0",
            "\"high_freq_factor\": 1.0",
            "more than low_freq_factor",
        );
        check("\"factor\": 8.0", "\"factor\": -8.0", "must be positive");
        check("\"mlp_bias\": false", "\"mlp_bias\": true", "mlp_bias is true, but only false");
        check("\"silu\"", "\"gelu\"", "hidden_act is gelu");
        check("500000.0", "0.0", "rope_theta is 0");
    }

    /// Opens the golden `name` under the class of another family.
    #[track_caller]
    fn check_mismatch(name: &str, class: &str, words: &str) {
        let dir = tempfile::tempdir().unwrap();
        Golden::open(name).copy_checkpoint(dir.path());
        let path = dir.path().join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["architectures"][0] = class.into();
        std::fs::write(&path, config.to_string()).unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} is not in {error:?}");
    }

    #[test]
    fn weights_of_another_family_are_refused() {
        let llama = "LlamaForCausalLM";
        check_mismatch("qwen2-tiny", llama, "q_proj.bias is present, as in Qwen2ForCausalLM");
        check_mismatch("qwen3-tiny", llama, "q_norm.weight is present, as in Qwen3ForCausalLM");
        let qwen = "Qwen2ForCausalLM";
        check_mismatch("llama3-tied-tiny", qwen, "q_proj.bias is missing, as in LlamaForCausalLM");
    }

    #[test]
    fn canonical_names_lose_their_first_word() {
        assert_eq!(stored(EMBEDDING), ["model.embed_tokens.weight"]);
        assert_eq!(stored(LM_HEAD), ["lm_head.weight"]);
    }
}
