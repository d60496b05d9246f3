//! Says what a synthetic model is, and writes what is said of it in configuration files.
//!
//! The sizes of each family's models are in a file of its own.  Knows nothing of weights.

use std::path::Path;

use serde::Serialize;

use super::json;
use super::tokenizer::{self, END_OF_TEXT, TURN_END, Words};
use crate::checkpoint::CONFIG_FILE;
use crate::model::{Model, ModelPart};

/// The file that says how pictures are cut.
pub(super) const PREPROCESSOR_FILE: &str = "preprocessor_config.json";

/// One synthetic model.
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) max_positions: usize,
    pub(crate) dimensions: &'static dyn Dimensions,
}

/// What the files of a synthetic model say, for so many positions.
pub(crate) trait Dimensions: Sync {
    /// `config.json`.
    fn config_json(&self, max_positions: usize) -> String;

    /// What reads and writes its text, and how answers end: files by name.
    fn text_files(&self, max_positions: usize) -> Vec<(&'static str, String)>;

    /// What [`PREPROCESSOR_FILE`] says, of a model that sees.
    fn preprocessor_json(&self) -> Option<String>;

    /// What is stored of it.
    fn parts(&self) -> &'static [ModelPart];

    /// Which of its family's layouts it is published in.
    fn layout(&self) -> usize {
        0
    }
}

/// Rows of the embedding of InternVL3: 151,643 pieces of text and 31 special tokens.
pub(super) const VOCAB_3: usize = 151_674;

/// Rows of the embedding of InternVL3.5 and of Qwen-VL, padded beyond their tokens.
pub(super) const VOCAB_PADDED: usize = 151_936;

impl Size {
    /// The model, as anyone reads it from the written configuration.
    pub(super) fn model(&self) -> Model {
        Model::parse(&self.config_json(), Path::new(self.name))
            .expect("the configurations of families are ones this crate reads")
    }

    /// Every file but the weights, by name.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        let mut files = vec![(CONFIG_FILE, self.config_json())];
        files.extend(self.dimensions.text_files(self.max_positions));
        let preprocessor = self.dimensions.preprocessor_json();
        files.extend(preprocessor.map(|text| (PREPROCESSOR_FILE, text)));
        files
    }

    /// `config.json`.
    pub(super) fn config_json(&self) -> String {
        self.dimensions.config_json(self.max_positions)
    }
}

/// The files of a model whose tokenizer has these words.
pub(crate) fn text_files(words: Words, max_positions: usize) -> Vec<(&'static str, String)> {
    vec![
        ("generation_config.json", generation_json(words)),
        ("tokenizer.json", tokenizer::tokenizer_json(words)),
        ("tokenizer_config.json", tokenizer::config_json(words, max_positions)),
        ("special_tokens_map.json", tokenizer::special_tokens_json(words)),
    ]
}

/// `generation_config.json`.
fn generation_json(words: Words) -> String {
    let id = |token| words.id(token);
    json(&GenerationConfig {
        bos_token_id: id(END_OF_TEXT),
        do_sample: false,
        eos_token_id: [id(TURN_END), id(END_OF_TEXT)],
        pad_token_id: id(END_OF_TEXT),
    })
}

#[derive(Serialize)]
struct GenerationConfig {
    bos_token_id: usize,
    do_sample: bool,
    eos_token_id: [usize; 2],
    pad_token_id: usize,
}

#[cfg(test)]
mod tests {
    use crate::families;

    #[track_caller]
    fn check(name: &str, tensors: usize, parameters: usize) {
        let size = families::synthetic().find(|size| size.name == name).unwrap();
        let list = size.model().tensors(size.dimensions.parts());
        assert_eq!(list.len(), tensors);
        let count = |(_, shape): &(String, Vec<usize>)| shape.iter().product::<usize>();
        assert_eq!(list.iter().map(count).sum::<usize>(), parameters);
    }

    // The counts of the published checkpoints.
    #[test]
    fn models_have_their_published_sizes() {
        check("internvl3-1b", 637, 938_193_024);
        check("internvl3-2b", 685, 2_088_957_440);
        check("internvl3_5-1b", 657, 1_060_897_792);
        check("internvl3_5-2b", 657, 2_348_347_392);
        check("qwen2_5_vl-3b", 824, 3_754_622_976);
        check("qwen3_vl-2b", 625, 2_127_532_032);
        check("qwen2_vl-2b", 729, 2_208_985_600);
        check("smolvlm-256m", 471, 256_484_928);
        check("smolvlm-500m", 489, 507_482_304);
        check("ms-marco-minilm-l6", 105, 22_713_601);
    }

    #[test]
    fn the_tiny_one_has_every_kind_of_tensor() {
        check("internvl3-tiny", 4 + 2 * 14 + 6 + 1 + 3 * 12 + 1 + 1, 322_560);
    }
}
