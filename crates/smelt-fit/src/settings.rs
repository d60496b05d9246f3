//! Lists the settings of a build and of serving it, and which of them a person has fixed.

use serde::Serialize;

use crate::model::{DecoderOption, KvSize, ModelFacts, PhotographCost, TowerOption};

/// The context that is meant where nobody says otherwise, if the model has it.
pub(crate) const CONTEXT_USUAL: usize = 4096;
/// Contexts that are weighed.
const CONTEXTS: [usize; 5] = [2048, CONTEXT_USUAL, 8192, 16_384, 32_768];
/// What an answer and the words around a photograph take of a context.
const WORDS_TOKENS: usize = 512;

/// One way to build and serve a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FitSettings {
    /// How the decoder is quantised; nothing of an encoder of texts.
    pub scheme: Option<String>,
    /// How its integers are chosen.
    pub method: Option<&'static str>,
    /// How the tower is kept; nothing where it reads text alone.
    pub vision: Option<&'static str>,
    /// Tokens of a prompt with its answer; nothing of an encoder.
    pub context: Option<usize>,
    /// The most tiles of a picture, of a tower that takes tiles.
    pub tiles: Option<usize>,
    /// The form of keys and values.
    pub kv: Option<&'static str>,
}

/// What a person has fixed of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The scheme of the decoder.
    pub scheme: Option<String>,
    /// Tokens of a context.
    pub context: Option<usize>,
    /// The most tiles.
    pub tiles: Option<usize>,
    /// The form of keys and values.
    pub kv: Option<String>,
    /// Bytes that the model may hold.
    pub memory_bytes: Option<u64>,
}

/// One choice of each, by what it takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picked<'a> {
    pub(crate) decoder: Option<&'a DecoderOption>,
    pub(crate) tower: Option<&'a TowerOption>,
    pub(crate) context: Option<usize>,
    pub(crate) photograph: Option<&'a PhotographCost>,
    pub(crate) kv: Option<&'a KvSize>,
}

impl Picked<'_> {
    pub(crate) fn settings(&self) -> FitSettings {
        FitSettings {
            scheme: self.decoder.map(|decoder| decoder.scheme.clone()),
            method: self.decoder.and_then(|decoder| decoder.method),
            vision: self.tower.map(|tower| tower.precision),
            context: self.context,
            tiles: self.photograph.and_then(|photograph| photograph.tiles),
            kv: self.kv.map(|kv| kv.kind),
        }
    }
}

/// What may be chosen of a model, the most preferred of each first, as far as it is not fixed.
#[derive(Debug)]
pub(crate) struct Choices<'a> {
    pub(crate) decoders: Vec<&'a DecoderOption>,
    pub(crate) towers: Vec<&'a TowerOption>,
    pub(crate) contexts: Vec<usize>,
    pub(crate) kv: Vec<&'a KvSize>,
    photographs: Vec<&'a PhotographCost>,
    tiles: Option<usize>,
    tiles_usual: usize,
}

impl<'a> Choices<'a> {
    /// All of `model` that `wanted` allows.
    pub(crate) fn of(model: &'a ModelFacts, wanted: &Wanted) -> Self {
        let is_scheme = |decoder: &&DecoderOption| {
            wanted.scheme.as_ref().is_none_or(|scheme| *scheme == decoder.scheme)
        };
        let is_kv = |kv: &&KvSize| wanted.kv.as_ref().is_none_or(|kind| *kind == kv.kind);
        Self {
            decoders: model.decoders.iter().filter(is_scheme).collect(),
            towers: model.towers.iter().collect(),
            contexts: contexts(model, wanted.context),
            kv: model.kv.iter().filter(is_kv).collect(),
            photographs: model.photographs.iter().collect(),
            tiles: wanted.tiles,
            tiles_usual: model.tiles_usual,
        }
    }

    /// The photograph in a context of so many tokens: in as many tiles as are wanted, else in the most of the usual ones
    /// that leave room for words.
    pub(crate) fn photograph(&self, context: Option<usize>) -> Option<&'a PhotographCost> {
        let tiles = |cost: &PhotographCost| cost.tiles.unwrap_or(0);
        if let Some(wanted) = self.tiles {
            let within = self.photographs.iter().rev().find(|cost| tiles(cost) <= wanted);
            return within.or(self.photographs.first()).copied();
        }
        let room = context.unwrap_or(usize::MAX).saturating_sub(WORDS_TOKENS);
        let usual = self.photographs.iter().filter(|cost| tiles(cost) <= self.tiles_usual);
        usual.rev().find(|cost| cost.tokens <= room).or(self.photographs.first()).copied()
    }

    /// The photographs of other numbers of tiles.
    pub(crate) fn photographs(&self) -> impl Iterator<Item = &'a PhotographCost> + '_ {
        let all = self.photographs.iter().copied();
        all.filter(|cost| cost.tiles.is_some() && self.tiles.is_none())
    }
}

/// The contexts that are weighed, the usual one first, then the smaller, then the larger ones.
fn contexts(model: &ModelFacts, wanted: Option<usize>) -> Vec<usize> {
    if model.decoders.is_empty() {
        return Vec::new();
    }
    if let Some(wanted) = wanted {
        return vec![wanted];
    }
    let usual = CONTEXT_USUAL.min(model.positions);
    let smaller = CONTEXTS.into_iter().rev().filter(|context| *context < usual);
    let larger =
        CONTEXTS.into_iter().filter(|context| (usual + 1..=model.positions).contains(context));
    std::iter::once(usual).chain(smaller).chain(larger).collect()
}
