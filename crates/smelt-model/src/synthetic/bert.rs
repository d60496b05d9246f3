//! Holds the dimensions of the synthetic cross-encoders, and writes their configuration and tokenizer.
//!
//! The tokenizer is BERT's WordPiece with its special tokens under their published ids.  Letters, digits and marks
//! of ASCII are words, letters and digits go on words, and the rest are made-up words, so that any id is some text.
//! Knows nothing of weights.

use serde::Serialize;

use super::tokenizer::{Ordered, word};
use super::{Dimensions, Size, json};
use crate::model::ModelPart;

/// A tiny one for tests, and one of published size.
pub(crate) const SIZES: [Size; 2] = [
    Size { name: "ms-marco-minilm-tiny", max_positions: 64, dimensions: &TINY },
    Size { name: "ms-marco-minilm-l6", max_positions: 512, dimensions: &MINILM_L6 },
];

/// The dimensions of one synthetic cross-encoder.
struct CrossEncoder {
    vocab: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
}

/// For tests.
const TINY: CrossEncoder =
    CrossEncoder { vocab: 512, hidden: 48, layers: 2, heads: 4, intermediate: 96 };

/// ms-marco-MiniLM-L6-v2.
const MINILM_L6: CrossEncoder =
    CrossEncoder { vocab: 30_522, hidden: 384, layers: 6, heads: 12, intermediate: 1536 };

/// The special tokens of BERT, with their published ids.
const SPECIAL: [(&str, usize); 5] =
    [("[PAD]", 0), ("[UNK]", 100), ("[CLS]", 101), ("[SEP]", 102), ("[MASK]", 103)];

/// The published `tokenizer.json`, but for its tokens.
const TOKENIZER: &str = r###"{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": ADDED,
  "normalizer": {
    "type": "BertNormalizer",
    "clean_text": true,
    "handle_chinese_chars": true,
    "strip_accents": null,
    "lowercase": true
  },
  "pre_tokenizer": {
    "type": "BertPreTokenizer"
  },
  "post_processor": {
    "type": "TemplateProcessing",
    "single": [
      {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    ],
    "pair": [
      {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
      {"Sequence": {"id": "B", "type_id": 1}},
      {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    ],
    "special_tokens": {
      "[CLS]": {"id": "[CLS]", "ids": [101], "tokens": ["[CLS]"]},
      "[SEP]": {"id": "[SEP]", "ids": [102], "tokens": ["[SEP]"]}
    }
  },
  "decoder": {
    "type": "WordPiece",
    "prefix": "##",
    "cleanup": true
  },
  "model": {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": VOCAB
  }
}
"###;

impl Dimensions for CrossEncoder {
    fn config_json(&self, max_positions: usize) -> String {
        json(&Config {
            architectures: ["BertForSequenceClassification"],
            attention_probs_dropout_prob: 0.1,
            hidden_act: "gelu",
            hidden_dropout_prob: 0.1,
            hidden_size: self.hidden,
            id2label: Ordered(vec![("0", "LABEL_0")]),
            initializer_range: 0.02,
            intermediate_size: self.intermediate,
            label2id: Ordered(vec![("LABEL_0", 0)]),
            layer_norm_eps: 1e-12,
            max_position_embeddings: max_positions,
            model_type: "bert",
            num_attention_heads: self.heads,
            num_hidden_layers: self.layers,
            pad_token_id: 0,
            position_embedding_type: "absolute",
            sentence_transformers: Activation { activation_fn: "torch.nn.modules.linear.Identity" },
            torch_dtype: "bfloat16",
            type_vocab_size: 2,
            use_cache: true,
            vocab_size: self.vocab,
        })
    }

    fn text_files(&self, max_positions: usize) -> Vec<(&'static str, String)> {
        self.tokenizer_files(max_positions).to_vec()
    }

    fn preprocessor_json(&self) -> Option<String> {
        None
    }

    fn parts(&self) -> &'static [ModelPart] {
        &[ModelPart::Encoder, ModelPart::Classifier]
    }

    /// Names of the class with a head have a prefix.
    fn layout(&self) -> usize {
        1
    }
}

impl CrossEncoder {
    /// The files of its tokenizer.
    fn tokenizer_files(&self, max_positions: usize) -> [(&'static str, String); 3] {
        let special = SPECIAL.map(|(content, id)| Added { id, content, special: true, ..PLAIN });
        let vocab = Ordered(vocabulary(self.vocab).into_iter().zip(0..).collect::<Vec<_>>());
        let tokenizer = TOKENIZER.replace("ADDED", json(&special).trim_end());
        let tokenizer = tokenizer.replace("VOCAB", json(&vocab).trim_end());
        let names = || Names {
            cls_token: "[CLS]",
            mask_token: "[MASK]",
            pad_token: "[PAD]",
            sep_token: "[SEP]",
            unk_token: "[UNK]",
        };
        let config = TokenizerConfig {
            names: names(),
            clean_up_tokenization_spaces: true,
            do_lower_case: true,
            model_max_length: max_positions,
            strip_accents: None,
            tokenize_chinese_chars: true,
            tokenizer_class: "BertTokenizer",
        };
        [
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", json(&config)),
            ("special_tokens_map.json", json(&names())),
        ]
    }
}

/// The text of every id.
fn vocabulary(vocab: usize) -> Vec<String> {
    let special = |id: usize| SPECIAL.iter().find(|(_, of)| *of == id).map(|(name, _)| *name);
    let last = SPECIAL[SPECIAL.len() - 1].1;
    let mut unused = (0..).map(|at| format!("[unused{at}]"));
    let first = (0..=last).map(|id| {
        let unused = || unused.next().expect("there is no end of them");
        special(id).map_or_else(unused, str::to_owned)
    });
    // The normalizer leaves no capitals.
    let letters = ('!'..='~').filter(|letter| !letter.is_ascii_uppercase());
    let going_on = letters.clone().filter(char::is_ascii_alphanumeric);
    let first = first.collect::<Vec<_>>().into_iter();
    let all = first.chain(letters.map(String::from));
    let all = all.chain(going_on.map(|letter| format!("##{letter}")));
    let made_up = (0..).map(|n| word(n).chars().skip(1).collect());
    all.chain(made_up).take(vocab).collect()
}

const PLAIN: Added = Added {
    id: 0,
    content: "",
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: false,
};

#[derive(Clone, Copy, Serialize)]
struct Added {
    id: usize,
    content: &'static str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Names {
    cls_token: &'static str,
    mask_token: &'static str,
    pad_token: &'static str,
    sep_token: &'static str,
    unk_token: &'static str,
}

#[derive(Serialize)]
struct TokenizerConfig {
    #[serde(flatten)]
    names: Names,
    clean_up_tokenization_spaces: bool,
    do_lower_case: bool,
    model_max_length: usize,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: bool,
    tokenizer_class: &'static str,
}

#[derive(Serialize)]
struct Config {
    architectures: [&'static str; 1],
    attention_probs_dropout_prob: f64,
    hidden_act: &'static str,
    hidden_dropout_prob: f64,
    hidden_size: usize,
    id2label: Ordered<&'static str, &'static str>,
    initializer_range: f64,
    intermediate_size: usize,
    label2id: Ordered<&'static str, usize>,
    layer_norm_eps: f64,
    max_position_embeddings: usize,
    model_type: &'static str,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    pad_token_id: usize,
    position_embedding_type: &'static str,
    sentence_transformers: Activation,
    torch_dtype: &'static str,
    type_vocab_size: usize,
    use_cache: bool,
    vocab_size: usize,
}

#[derive(Serialize)]
struct Activation {
    activation_fn: &'static str,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_id_is_some_text_of_its_own_and_special_ones_are_where_bert_has_them() {
        for vocab in [TINY.vocab, MINILM_L6.vocab] {
            let texts = vocabulary(vocab);
            assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), vocab);
            assert!(SPECIAL.iter().all(|(name, id)| texts[*id] == *name));
            assert_eq!(
                (&texts[1][..], &texts[99][..], &texts[104][..]),
                ("[unused0]", "[unused98]", "!")
            );
            let words = ["a", "z", "0", "?", "##a", "##9", "baba"];
            assert!(words.iter().all(|word| texts.iter().any(|text| text == word)));
        }
    }
}
