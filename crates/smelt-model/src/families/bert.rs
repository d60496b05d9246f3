//! Reads the configuration of a BERT encoder, and lists the tensors it calls for.
//!
//! Token, position and type embeddings, normed; then layers in which every place sees every other:
//! attention and MLP, each added to what came in and normed after (Devlin et al. 2018).  Heads and
//! pooler of the classes built on it are nothing of the encoder's.  Knows nothing of tensor files.

use serde::Deserialize;

use super::{Config, Family};
use crate::config::{ConfigProblem, List, Scope};
use crate::model::{Encoder, Layout, Model};

/// A BERT encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Bert {
    /// Tokens.
    pub vocab: usize,
    /// Places a text may have.
    pub positions: usize,
    /// Kinds of tokens; only the first is used.
    pub types: usize,
    /// Channels of a place.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Epsilon of the LayerNorms; the usual 1e-12 is 0 in f16.
    pub eps: f32,
}

impl Bert {
    /// Every tensor, input to output.
    pub(crate) fn list(&self, list: &mut List) {
        let Self { hidden, intermediate, .. } = *self;
        list.put("embeddings.word_embeddings.weight", &[self.vocab, hidden]);
        list.put("embeddings.position_embeddings.weight", &[self.positions, hidden]);
        list.put("embeddings.token_type_embeddings.weight", &[self.types, hidden]);
        list.norm("embeddings.LayerNorm", hidden);
        for layer in 0..self.layers {
            let layer = format!("encoder.layer.{layer}");
            for part in ["query", "key", "value"] {
                list.linear(&format!("{layer}.attention.self.{part}"), hidden, hidden);
            }
            list.linear(&format!("{layer}.attention.output.dense"), hidden, hidden);
            list.norm(&format!("{layer}.attention.output.LayerNorm"), hidden);
            list.linear(&format!("{layer}.intermediate.dense"), intermediate, hidden);
            list.linear(&format!("{layer}.output.dense"), hidden, intermediate);
            list.norm(&format!("{layer}.output.LayerNorm"), hidden);
        }
    }
}

/// The fields of `config.json` that matter here; what transformers leaves out is its default.
#[derive(Deserialize)]
struct File {
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    hidden_act: String,
    layer_norm_eps: f64,
    #[serde(default = "absolute")]
    position_embedding_type: String,
    #[serde(default)]
    is_decoder: bool,
    #[serde(default)]
    add_cross_attention: bool,
}

fn absolute() -> String {
    "absolute".to_owned()
}

/// The encoder alone, and every class of transformers that puts a head on it.
pub(super) const BERT: Family = Family {
    architectures: &[
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForMultipleChoice",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ],
    words: || "BertModel and BertFor… (the encoder)".to_owned(),
    read,
};

/// With and without the prefix of the classes with heads, and with the names that norms had in the
/// first checkpoints.
const LAYOUTS: &[Layout] = &[
    Layout { sources: |name| vec![name.to_owned()], ignores },
    Layout { sources: |name| vec![prefixed(name)], ignores },
    Layout { sources: |name| vec![prefixed(&with_greek(name))], ignores },
    Layout { sources: |name| vec![with_greek(name)], ignores },
];

const PREFIX: &str = "bert.";

fn prefixed(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn with_greek(name: &str) -> String {
    name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
}

/// A buffer that old versions saved, and what stands on the encoder.
fn ignores(name: &str) -> bool {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name == "embeddings.position_ids"
        || ["pooler.", "cls.", "classifier.", "qa_outputs."].iter().any(|top| name.starts_with(top))
}

const TOP: Scope = Scope("");

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let file: File = config.fields()?;
    TOP.only("hidden_act", &file.hidden_act, "gelu", file.hidden_act == "gelu")?;
    let kind = &file.position_embedding_type;
    TOP.only("position_embedding_type", kind, "absolute", kind == "absolute")?;
    TOP.only("is_decoder", file.is_decoder, "false", !file.is_decoder)?;
    TOP.only("add_cross_attention", file.add_cross_attention, "false", !file.add_cross_attention)?;
    let bert = Bert {
        vocab: TOP.size("vocab_size", file.vocab_size)?,
        positions: TOP.size("max_position_embeddings", file.max_position_embeddings)?,
        types: TOP.size("type_vocab_size", file.type_vocab_size)?,
        hidden: TOP.size("hidden_size", file.hidden_size)?,
        layers: TOP.layers("num_hidden_layers", file.num_hidden_layers)?,
        heads: TOP.size("num_attention_heads", file.num_attention_heads)?,
        intermediate: TOP.size("intermediate_size", file.intermediate_size)?,
        eps: TOP.epsilon("layer_norm_eps", file.layer_norm_eps)?,
    };
    if !bert.hidden.is_multiple_of(bert.heads) {
        return TOP.bad("hidden_size", bert.hidden, "the heads do not divide it");
    }
    let encoder = Some(Encoder::Bert(bert));
    Ok(Model { family: "bert", vision: None, llm: None, encoder, layouts: LAYOUTS })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::ConfigError;
    use crate::model::Part;

    /// As MiniLM's, fields that do not matter left out.
    const MINILM: &str = r#"{"architectures": ["BertModel"], "hidden_act": "gelu",
        "hidden_size": 384, "intermediate_size": 1536, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 6,
        "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522}"#;

    fn parse(json: &str) -> Result<Model, ConfigError> {
        Model::parse(json, Path::new("dir/config.json"))
    }

    /// Replaces `from` by `to` in a good configuration; the refusal must hold all `words`.
    #[track_caller]
    fn check(from: &str, to: &str, words: &[&str]) {
        assert_eq!(MINILM.matches(from).count(), 1, "{from:?} must be there once");
        let error = parse(&MINILM.replace(from, to)).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
    }

    #[test]
    fn minilm_has_the_published_number_of_weights() {
        let model = parse(MINILM).unwrap();
        assert_eq!(model.parts(), [Part::Encoder]);
        let tensors = model.tensors(&[Part::Encoder]);
        let total: usize = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        // 22,713,216 with the pooler, whose 384 x 384 and 384 are not the encoder's.
        assert_eq!((tensors.len(), total), (101, 22_713_216 - 384 * 385));
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        check("\"gelu\"", "\"relu\"", &["hidden_act is relu", "only gelu"]);
        check("\"absolute\"", "\"relative_key\"", &["position_embedding_type is relative_key"]);
        check("\"vocab_size\"", "\"is_decoder\": true, \"vocab_size\"", &["is_decoder is true"]);
        let cross = "\"add_cross_attention\": true, \"vocab_size\"";
        check("\"vocab_size\"", cross, &["add_cross_attention is true"]);
        check(": 12,", ": 10,", &["hidden_size is 384", "divide"]);
        check("1e-12", "0", &["layer_norm_eps is 0"]);
        check("\"hidden_size\": 384,", "", &["missing field `hidden_size`"]);
        check("BertModel", "RobertaModel", &["\"RobertaModel\"", "BertModel and BertFor"]);
    }

    #[test]
    fn what_stands_on_the_encoder_is_ignored_and_nothing_else() {
        for name in ["embeddings.position_ids", "bert.pooler.dense.weight", "cls.predictions.bias"]
        {
            assert!(ignores(name), "{name}");
        }
        for name in ["embeddings.word_embeddings.weight", "bert.encoder.layer.0.x", "lm_head.bias"]
        {
            assert!(!ignores(name), "{name}");
        }
    }
}
