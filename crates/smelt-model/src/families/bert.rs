//! Reads the configuration of a BERT encoder, and lists the tensors it calls for.
//!
//! Token, position and type embeddings, normed; then layers in which every place sees every other:
//! attention and MLP, each added to what came in and normed after (Devlin et al. 2018).  A model that
//! classifies has a head on the first place; heads of other classes are passed over.  Knows nothing of
//! tensor files.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Config, FamilyEntry};
use crate::config::{ConfigProblem, List, Scope};
use crate::model::{Encoder, Layout, Model};
use crate::synthetic;

/// A BERT encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Bert {
    /// Tokens.
    pub vocab: usize,
    /// Places a text may have.
    pub positions: usize,
    /// Kinds of tokens: of a first text and, where pairs are read, of a second one.
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
    /// Labels of the classification head, of a model that has one.
    pub labels: Option<usize>,
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

    /// The tensors of the classification head, if there is one: the pooler, then the labels' weights.
    pub(crate) fn list_head(&self, list: &mut List) {
        let Some(labels) = self.labels else { return };
        list.linear(POOLER, self.hidden, self.hidden);
        list.linear(CLASSIFIER, labels, self.hidden);
    }
}

/// The layer that the first place goes through before its labels.
pub(crate) const POOLER: &str = "pooler.dense";

/// The layer that gives a number for each label.
pub(crate) const CLASSIFIER: &str = "classifier";

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

/// The class with a classification head.
const WITH_HEAD: &str = "BertForSequenceClassification";

/// What the configuration of that class says of its labels.
#[derive(Deserialize)]
struct Labels {
    id2label: Option<BTreeMap<String, IgnoredAny>>,
    num_labels: Option<usize>,
}

impl Labels {
    /// Labels where the configuration says nothing of them, as in transformers.
    const USUAL: usize = 2;

    fn count(&self) -> usize {
        let named = self.id2label.as_ref().map(BTreeMap::len);
        named.or(self.num_labels).unwrap_or(Self::USUAL)
    }
}

/// The encoder alone, and every class of transformers that puts a head on it.
pub(super) const BERT: FamilyEntry = FamilyEntry {
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
    words: || {
        "BertModel and BertFor… (the encoder; of BertForSequenceClassification the head, too)"
            .to_owned()
    },
    read,
    synthetic: &synthetic::bert::SIZES,
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

/// Under the prefix lies all but the head of the class.
fn prefixed(name: &str) -> String {
    match name.starts_with(CLASSIFIER) {
        true => name.to_owned(),
        false => format!("{PREFIX}{name}"),
    }
}

fn with_greek(name: &str) -> String {
    name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
}

/// A buffer that old versions saved, and what stands on the encoder where it is no head that is read.
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
    let labels = match config.architecture() {
        Some(WITH_HEAD) => Some(TOP.size("num_labels", config.fields::<Labels>()?.count())?),
        _ => None,
    };
    let bert = Bert {
        vocab: TOP.size("vocab_size", file.vocab_size)?,
        positions: TOP.size("max_position_embeddings", file.max_position_embeddings)?,
        types: TOP.size("type_vocab_size", file.type_vocab_size)?,
        hidden: TOP.size("hidden_size", file.hidden_size)?,
        layers: TOP.layers("num_hidden_layers", file.num_hidden_layers)?,
        heads: TOP.size("num_attention_heads", file.num_attention_heads)?,
        intermediate: TOP.size("intermediate_size", file.intermediate_size)?,
        eps: TOP.epsilon("layer_norm_eps", file.layer_norm_eps)?,
        labels,
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
    use crate::model::ModelPart;

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
        assert_eq!(model.parts(), [ModelPart::Encoder]);
        let tensors = model.tensors(&[ModelPart::Encoder]);
        let total: usize = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        // 22,713,216 with the pooler, whose 384 x 384 and 384 are not the encoder's.
        assert_eq!((tensors.len(), total), (101, 22_713_216 - 384 * 385));
    }

    #[test]
    fn a_model_that_classifies_has_a_head_of_so_many_labels() {
        let of = |fields: &str| {
            let class = format!("\"{WITH_HEAD}\"], {fields} \"hidden_act\"");
            parse(&MINILM.replace("\"BertModel\"], \"hidden_act\"", &class)).unwrap()
        };
        let one = of(r#""id2label": {"0": "LABEL_0"}, "num_labels": 5,"#);
        assert_eq!(one.parts(), [ModelPart::Encoder, ModelPart::Classifier]);
        let head = one.tensors(&[ModelPart::Classifier]);
        let named = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        assert_eq!(head[0], named("pooler.dense.weight", &[384, 384]));
        assert_eq!(
            head[2..],
            [named("classifier.weight", &[1, 384]), named("classifier.bias", &[1])]
        );
        // The published count of ms-marco-MiniLM-L6-v2, its buffer of 512 positions left out.
        let all = one.tensors(&one.parts());
        let weights = all.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum::<usize>();
        assert_eq!(weights, 22_713_216 + 384 + 1);
        for (fields, labels) in [("", 2), (r#""num_labels": 3,"#, 3)] {
            assert_eq!(of(fields).tensors(&[ModelPart::Classifier])[3].1, [labels]);
        }
        let none = parse(&MINILM.replace("BertModel", "BertForTokenClassification")).unwrap();
        assert_eq!(none.parts(), [ModelPart::Encoder]);
        assert_eq!(
            prefixed("classifier.bias") + &prefixed("pooler.x"),
            "classifier.biasbert.pooler.x"
        );
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
