//! Lists the synthetic models, and writes what is said of each in configuration files.
//!
//! Knows nothing of weights.

use std::path::Path;

use serde::Serialize;

use super::tokenizer::{self, END_OF_TEXT, TURN_END, Words};
use super::{bert, internvl3, json, qwen_vl};
use crate::checkpoint::CONFIG_FILE;
use crate::model::{Model, ModelPart};

/// The file that says how pictures are cut.
pub(super) const PREPROCESSOR_FILE: &str = "preprocessor_config.json";

/// One synthetic model.
pub(super) struct Size {
    pub(super) name: &'static str,
    max_positions: usize,
    dimensions: Dimensions,
}

/// What the families differ in.
enum Dimensions {
    InternVl(Words, internvl3::Dimensions),
    QwenVl(Words, qwen_vl::Dimensions),
    Bert(bert::Dimensions),
}

/// Rows of the embedding of InternVL3: 151,643 pieces of text and 31 special tokens.
const VOCAB_3: usize = 151_674;

/// Rows of the embedding of InternVL3.5 and of Qwen-VL, padded beyond their tokens.
const VOCAB_PADDED: usize = 151_936;

/// Every synthetic model: of each generation a tiny one for tests, and those of published size.
pub(super) const ALL: [Size; 12] = [
    internvl("internvl3-tiny", 512, 1024, internvl3::TINY),
    internvl("internvl3-1b", VOCAB_3, 32768, internvl3::B1),
    internvl("internvl3-2b", VOCAB_3, 32768, internvl3::B2),
    internvl("internvl3_5-tiny", 512, 1024, internvl3::TINY_3_5),
    internvl("internvl3_5-1b", VOCAB_PADDED, 40960, internvl3::B1_3_5),
    internvl("internvl3_5-2b", VOCAB_PADDED, 40960, internvl3::B2_3_5),
    qwen_vl("qwen2_5_vl-tiny", 512, 4096, qwen_vl::TINY_2_5),
    qwen_vl("qwen2_5_vl-3b", VOCAB_PADDED, 128_000, qwen_vl::B3_2_5),
    qwen_vl("qwen3_vl-tiny", 512, 4096, qwen_vl::TINY_3),
    qwen_vl("qwen3_vl-2b", VOCAB_PADDED, 262_144, qwen_vl::B2_3),
    cross_encoder("ms-marco-minilm-tiny", 64, bert::TINY),
    cross_encoder("ms-marco-minilm-l6", 512, bert::MINILM_L6),
];

const fn internvl(
    name: &'static str,
    vocab: usize,
    max_positions: usize,
    dimensions: internvl3::Dimensions,
) -> Size {
    let dimensions = Dimensions::InternVl(Words::internvl(vocab), dimensions);
    Size { name, max_positions, dimensions }
}

const fn qwen_vl(
    name: &'static str,
    vocab: usize,
    max_positions: usize,
    dimensions: qwen_vl::Dimensions,
) -> Size {
    let dimensions = Dimensions::QwenVl(Words::qwen_vl(vocab), dimensions);
    Size { name, max_positions, dimensions }
}

const fn cross_encoder(
    name: &'static str,
    max_positions: usize,
    dimensions: bert::Dimensions,
) -> Size {
    Size { name, max_positions, dimensions: Dimensions::Bert(dimensions) }
}

impl Size {
    /// The model, as anyone reads it from the written configuration.
    pub(super) fn model(&self) -> Model {
        Model::parse(&self.config_json(), Path::new(self.name))
            .expect("the configurations in this folder are ones this crate reads")
    }

    /// What is stored of it: the heads of the published Qwen-VL models are tied.
    pub(super) fn parts(&self) -> &'static [ModelPart] {
        match self.dimensions {
            Dimensions::InternVl(..) => &[ModelPart::Vision, ModelPart::Llm, ModelPart::Head],
            Dimensions::QwenVl(..) => &[ModelPart::Vision, ModelPart::Llm],
            Dimensions::Bert(_) => &[ModelPart::Encoder, ModelPart::Classifier],
        }
    }

    /// Which of its family's layouts it is published in.
    pub(super) fn layout(&self) -> usize {
        match self.dimensions {
            Dimensions::InternVl(..) | Dimensions::QwenVl(..) => 0,
            // Names of the class with a head have a prefix.
            Dimensions::Bert(_) => 1,
        }
    }

    /// Every file but the weights, by name.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        let mut files = vec![(CONFIG_FILE, self.config_json())];
        match &self.dimensions {
            Dimensions::InternVl(words, _) | Dimensions::QwenVl(words, _) => {
                files.extend([
                    ("generation_config.json", generation_json(*words)),
                    ("tokenizer.json", tokenizer::tokenizer_json(*words)),
                    ("tokenizer_config.json", tokenizer::config_json(*words, self.max_positions)),
                    ("special_tokens_map.json", tokenizer::special_tokens_json(*words)),
                ]);
            }
            Dimensions::Bert(sizes) => files.extend(sizes.tokenizer_files(self.max_positions)),
        }
        files.extend(self.preprocessor_json().map(|text| (PREPROCESSOR_FILE, text)));
        files
    }

    /// `config.json`.
    pub(super) fn config_json(&self) -> String {
        match &self.dimensions {
            Dimensions::InternVl(words, sizes) => sizes.config_json(*words, self.max_positions),
            Dimensions::QwenVl(words, sizes) => sizes.config_json(*words, self.max_positions),
            Dimensions::Bert(sizes) => sizes.config_json(self.max_positions),
        }
    }

    /// What [`PREPROCESSOR_FILE`] says, of a model that sees.
    pub(super) fn preprocessor_json(&self) -> Option<String> {
        match &self.dimensions {
            Dimensions::InternVl(_, sizes) => Some(sizes.preprocessor_json()),
            Dimensions::QwenVl(_, sizes) => Some(sizes.preprocessor_json()),
            Dimensions::Bert(_) => None,
        }
    }
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
    use super::*;

    #[track_caller]
    fn check(name: &str, tensors: usize, parameters: usize) {
        let size = ALL.iter().find(|size| size.name == name).unwrap();
        let list = size.model().tensors(size.parts());
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
        check("ms-marco-minilm-l6", 105, 22_713_601);
    }

    #[test]
    fn the_tiny_one_has_every_kind_of_tensor() {
        check("internvl3-tiny", 4 + 2 * 14 + 6 + 1 + 3 * 12 + 1 + 1, 322_560);
    }
}
