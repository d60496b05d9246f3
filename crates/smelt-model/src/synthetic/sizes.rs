//! Lists the synthetic models, and writes what is said of each in configuration files.
//!
//! Knows nothing of weights.

use std::path::Path;

use serde::Serialize;

use super::tokenizer::{END_OF_TEXT, TURN_END, Words};
use super::{internvl3, json, qwen_vl};
use crate::model::{Model, Part};

/// One synthetic model.
pub(super) struct Size {
    pub(super) name: &'static str,
    pub(super) words: Words,
    pub(super) max_positions: usize,
    dimensions: Dimensions,
}

/// What the families differ in.
enum Dimensions {
    InternVl(internvl3::Dimensions),
    QwenVl(qwen_vl::Dimensions),
}

/// Rows of the embedding of InternVL3: 151,643 pieces of text and 31 special tokens.
const VOCAB_3: usize = 151_674;

/// Rows of the embedding of InternVL3.5 and of Qwen-VL, padded beyond their tokens.
const VOCAB_PADDED: usize = 151_936;

/// Every synthetic model: of each generation a tiny one for tests, and those of published size.
pub(super) const ALL: [Size; 10] = [
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
];

const fn internvl(
    name: &'static str,
    vocab: usize,
    max_positions: usize,
    dimensions: internvl3::Dimensions,
) -> Size {
    let dimensions = Dimensions::InternVl(dimensions);
    Size { name, words: Words::internvl(vocab), max_positions, dimensions }
}

const fn qwen_vl(
    name: &'static str,
    vocab: usize,
    max_positions: usize,
    dimensions: qwen_vl::Dimensions,
) -> Size {
    let dimensions = Dimensions::QwenVl(dimensions);
    Size { name, words: Words::qwen_vl(vocab), max_positions, dimensions }
}

impl Size {
    /// The model, as anyone reads it from the written configuration.
    pub(super) fn model(&self) -> Model {
        Model::parse(&self.config_json(), Path::new(self.name))
            .expect("the configurations in this folder are ones this crate reads")
    }

    /// What is stored of it: the heads of the published Qwen-VL models are tied.
    pub(super) fn parts(&self) -> &'static [Part] {
        match self.dimensions {
            Dimensions::InternVl(_) => &[Part::Vision, Part::Llm, Part::Head],
            Dimensions::QwenVl(_) => &[Part::Vision, Part::Llm],
        }
    }

    /// `config.json`.
    pub(super) fn config_json(&self) -> String {
        match &self.dimensions {
            Dimensions::InternVl(sizes) => sizes.config_json(self.words, self.max_positions),
            Dimensions::QwenVl(sizes) => sizes.config_json(self.words, self.max_positions),
        }
    }

    /// `preprocessor_config.json`.
    pub(super) fn preprocessor_json(&self) -> String {
        match &self.dimensions {
            Dimensions::InternVl(sizes) => sizes.preprocessor_json(),
            Dimensions::QwenVl(sizes) => sizes.preprocessor_json(),
        }
    }

    /// `generation_config.json`.
    pub(super) fn generation_json(&self) -> String {
        let id = |token| self.words.id(token);
        json(&GenerationConfig {
            bos_token_id: id(END_OF_TEXT),
            do_sample: false,
            eos_token_id: [id(TURN_END), id(END_OF_TEXT)],
            pad_token_id: id(END_OF_TEXT),
        })
    }
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
    }

    #[test]
    fn the_tiny_one_has_every_kind_of_tensor() {
        check("internvl3-tiny", 4 + 2 * 14 + 6 + 1 + 3 * 12 + 1 + 1, 322_560);
    }
}
