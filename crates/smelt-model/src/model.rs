//! Says what a configuration describes: the parts a model has, their sizes, their tensors' names.
//!
//! The text of a `config.json` comes in; a [`Model`] comes out, from which every tensor name and
//! shape follows.  Which family reads which configuration is in [`crate::families`].  Knows
//! nothing of tensor files.

use std::path::Path;

use crate::config::{ConfigError, List};
use crate::decoder::Decoder;
use crate::families;
use crate::families::bert::Bert;
use crate::families::clip::ClipText;
pub use crate::families::{Tile, TowerInput, Vision};

/// A part of a model that has tensors of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// The vision tower and the projector into the language model's space.
    Vision,
    /// The language model without its head.
    Llm,
    /// The language model's head, present only where it is not tied to the embedding.
    Head,
    /// The encoder of texts.
    Encoder,
    /// The head that classifies what the encoder read.
    Classifier,
}

impl ModelPart {
    /// Every part, input to output.
    pub const ALL: [Self; 5] =
        [Self::Vision, Self::Llm, Self::Head, Self::Encoder, Self::Classifier];

    /// The part in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Vision => "vision tower",
            Self::Llm => "language model",
            Self::Head => "language model's head",
            Self::Encoder => "text encoder",
            Self::Classifier => "classification head",
        }
    }
}

/// An encoder of texts.
#[derive(Clone, Debug, PartialEq)]
pub enum Encoder {
    /// BERT, every place sees every other.
    Bert(Bert),
    /// CLIP's text tower, causal.
    ClipText(ClipText),
}

impl Encoder {
    fn list(&self, list: &mut List) {
        match self {
            Self::Bert(bert) => bert.list(list),
            Self::ClipText(tower) => tower.list(list),
        }
    }

    fn list_head(&self, list: &mut List) {
        if let Self::Bert(bert) = self {
            bert.list_head(list);
        }
    }

    /// Labels of its classification head, if it has one.
    pub fn labels(&self) -> Option<usize> {
        match self {
            Self::Bert(bert) => bert.labels,
            Self::ClipText(_) => None,
        }
    }
}

/// How the files of a checkpoint name the tensors of a model.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The stored tensors whose rows, one after another, are the tensor of that canonical name.
    pub(crate) sources: fn(&str) -> Vec<String>,
    /// Stored tensors that are no weights of the model, though real checkpoints have them.
    pub(crate) ignores: fn(&str) -> bool,
}

impl Layout {
    /// Every tensor under its canonical name, and no other but frequencies.
    pub(crate) const CANONICAL: Self =
        Self { sources: |name| vec![name.to_owned()], ignores: is_frequencies };
}

/// Whether a stored tensor is frequencies of rotary positions: older versions of transformers saved
/// them with the weights, in every layer, though they follow from the configuration.
fn is_frequencies(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".rotary_pos_emb.inv_freq")
}

/// What a configuration describes.
#[derive(Clone, Debug)]
pub struct Model {
    /// The word for the family, for example `internvl3`.
    pub family: &'static str,
    /// The vision tower, if there is one.
    pub vision: Option<Vision>,
    /// The language model, if there is one.
    pub llm: Option<Decoder>,
    /// The encoder of texts, if there is one.
    pub encoder: Option<Encoder>,
    /// The layouts its checkpoints come in, the usual one first.
    pub(crate) layouts: &'static [Layout],
}

impl Model {
    /// Reads the text of the `config.json` at `path`; the path is for messages only.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, its value and what would work.
    pub fn parse(json: &str, path: &Path) -> Result<Self, ConfigError> {
        families::read(json).map_err(|problem| ConfigError { path: path.into(), problem })
    }

    /// The parts a whole checkpoint may have.
    pub fn parts(&self) -> Vec<ModelPart> {
        let has = |part: &ModelPart| match part {
            ModelPart::Vision => self.vision.is_some(),
            ModelPart::Llm | ModelPart::Head => self.llm.is_some(),
            ModelPart::Encoder => self.encoder.is_some(),
            ModelPart::Classifier => self.encoder.as_ref().and_then(Encoder::labels).is_some(),
        };
        ModelPart::ALL.into_iter().filter(has).collect()
    }

    /// Every tensor of `parts` with its shape, in a fixed order: input to output, layer by layer.
    /// Parts the model lacks have none.
    pub fn tensors(&self, parts: &[ModelPart]) -> Vec<(String, Vec<usize>)> {
        let mut list = List::default();
        for part in parts {
            match part {
                ModelPart::Vision => self.vision.iter().for_each(|vision| vision.list(&mut list)),
                ModelPart::Llm => self.llm.iter().for_each(|llm| llm.list(&mut list)),
                ModelPart::Head => self.llm.iter().for_each(|llm| llm.list_head(&mut list)),
                ModelPart::Encoder => {
                    self.encoder.iter().for_each(|encoder| encoder.list(&mut list))
                }
                ModelPart::Classifier => self.encoder.iter().for_each(|e| e.list_head(&mut list)),
            }
        }
        list.0
    }
}

/// The block a tensor belongs to: `vision_model.encoder.layers.3`, or the first two words of a name
/// outside the layers.
pub(crate) fn block_of(name: &str) -> &str {
    let dots = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    let words: Vec<usize> = dots.collect();
    let is_number = |n: &usize| name[words[n - 1] + 1..words[*n]].parse::<u32>().is_ok();
    // A number in second place names a module of a sequence, not a layer.
    let last = (2..words.len()).find(is_number).unwrap_or(1);
    &name[..words[last.min(words.len() - 1)]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_layers_or_the_first_two_words() {
        for (name, block) in [
            ("vision_model.encoder.layers.3.attn.qkv.weight", "vision_model.encoder.layers.3"),
            ("language_model.model.layers.10.mlp.up_proj.weight", "language_model.model.layers.10"),
            ("visual.blocks.7.norm1.weight", "visual.blocks.7"),
            ("language_model.lm_head.weight", "language_model.lm_head"),
            ("mlp1.0.bias", "mlp1.0"),
            ("logit_scale", "logit_scale"),
        ] {
            assert_eq!(block_of(name), block);
        }
    }
}
