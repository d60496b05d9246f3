//! Reads the configuration of a text-only decoder: Qwen2, Qwen2.5, Qwen3, Llama 2 and 3.
//!
//! The configuration is the decoder's own, and the tensors are `model.…` and `lm_head.weight`; the
//! head is there or not, whatever `tie_word_embeddings` says.  Knows nothing of files.

use super::Config;
use crate::config::{ConfigProblem, Scope};
use crate::decoder::{self, DecoderFamily};
use crate::model::{Layout, Model};

/// The decoders by themselves.
pub(super) const TEXT: super::FamilyEntry = super::FamilyEntry {
    architectures: &["Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"],
    words: supported,
    read,
    synthetic: &[],
};

const TOP: Scope = Scope("");

const LAYOUTS: &[Layout] = &[Layout { sources: stored, ..Layout::CANONICAL }];

/// Canonical names begin with the place a decoder has in a model that sees.
fn stored(name: &str) -> Vec<String> {
    vec![name.strip_prefix("language_model.").unwrap_or(name).to_owned()]
}

fn supported() -> String {
    format!("{} (text)", TEXT.architectures.join(" or "))
}

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let class = config.architecture().unwrap_or_default();
    let family =
        DecoderFamily::of_architecture(class).expect("the table lists classes of decoders");
    let fields: decoder::Fields = config.fields()?;
    let llm = fields.decoder(family, TOP)?;
    Ok(Model { family: family.name, vision: None, llm: Some(llm), encoder: None, layouts: LAYOUTS })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::decoder::{EMBEDDING, LM_HEAD, Scaling};
    use crate::golden::Golden;
    use crate::model::ModelPart;

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
        let Some(Scaling::Llama3(scaling)) = llm.rope.scaling else { panic!("{:?}", llm.rope) };
        assert_eq!(scaling.original_max_position_embeddings, 8192.0);
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        check("\"llama3\"", "\"longrope\"", "rope_scaling is {");
        check(
            "\"llama3\"",
            "\"su\"",
            "\"default\", \"dynamic\", \"linear\", \"llama3\" or \"yarn\"",
        );
        check("\"factor\": 8.0", "\"partial_rotary_factor\": 0.5, \"factor\": 8.0", "is 0.5");
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

    #[test]
    fn stretched_frequencies_are_read_in_every_form() {
        let read = |object: &str| {
            let at = LLAMA.find("\"rope_scaling\"").unwrap();
            let json = format!("{}\"rope_scaling\": {object} }}", &LLAMA[..at]);
            Model::parse(&json, Path::new("config.json")).map(|model| model.llm.unwrap())
        };
        let linear = read(r#"{"type": "linear", "factor": 2.0}"#).unwrap();
        assert_eq!(linear.rope.scaling, Some(Scaling::Linear(2.0)));
        assert_eq!(linear.max_positions, 131_072);
        let yarn = read(
            r#"{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 65536,
                "beta_fast": null, "beta_slow": 0}"#,
        );
        let yarn = yarn.unwrap();
        let Some(Scaling::Yarn(scaling)) = yarn.rope.scaling else { panic!("{:?}", yarn.rope) };
        assert_eq!((scaling.beta_fast, scaling.beta_slow, scaling.truncate), (32.0, 1.0, true));
        assert!((scaling.attention_factor - 1.138_629_436).abs() < 1e-9);
        assert_eq!(yarn.max_positions, 4 * 65536);
        let ratio =
            read(r#"{"type": "yarn", "factor": null, "original_max_position_embeddings": 1024}"#);
        let ratio = ratio.unwrap();
        let Some(Scaling::Yarn(scaling)) = ratio.rope.scaling else { panic!("{:?}", ratio.rope) };
        assert_eq!((scaling.factor, ratio.max_positions), (128.0, 131_072));
        for (object, words) in [
            (r#"{"type": "linear"}"#, "rope_scaling of type linear: missing field `factor`"),
            (r#"{"type": "linear", "factor": 0}"#, "rope_scaling.factor is 0"),
            (r#"{"type": "yarn", "factor": -4.0}"#, "must be positive"),
            (r#"{"type": "yarn", "factor": 4.0, "beta_fast": 0.5}"#, "beta_fast is 0.5"),
            (r#"{"type": "yarn", "factor": "4"}"#, "rope_scaling of type yarn: "),
            (r#"{"type": "yarn"}"#, "rope_scaling of type yarn: missing field `factor`"),
        ] {
            let error = read(object).unwrap_err().to_string();
            assert!(error.contains(words), "{words:?} is not in {error:?}");
        }
    }

    #[test]
    fn biases_of_attention_are_read_where_the_configuration_says_so() {
        let json = LLAMA.replace("\"mlp_bias\"", "\"attention_bias\": true, \"mlp_bias\"");
        let model = Model::parse(&json, Path::new("config.json")).unwrap();
        let list = model.tensors(&[ModelPart::Llm]);
        let biases: Vec<&str> = list
            .iter()
            .filter_map(|(name, _)| name.strip_prefix("language_model.model.layers.1.self_attn."))
            .filter(|name| name.ends_with("bias"))
            .collect();
        assert_eq!(biases, ["q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"]);
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
        check_mismatch(
            "qwen3-yarn-tiny",
            llama,
            "q_norm.weight is present, as in Qwen3ForCausalLM",
        );
        check_mismatch("llama-linear-tiny", "Qwen3ForCausalLM", "q_norm.weight is missing");
    }

    #[test]
    fn canonical_names_lose_their_first_word() {
        assert_eq!(stored(EMBEDDING), ["model.embed_tokens.weight"]);
        assert_eq!(stored(LM_HEAD), ["lm_head.weight"]);
    }
}
