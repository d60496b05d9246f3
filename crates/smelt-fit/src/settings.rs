//! Lists the settings of a build and of serving it, and which of them a person has fixed.

use serde::Serialize;

use crate::device::DeviceProfile;
use crate::gpu::Gpu;
use crate::model::{DecoderOption, GpuWays, KvSize, ModelFacts, PhotographCost, TowerOption};

/// The context that is meant where nobody says otherwise, if the model has it.
pub(crate) const CONTEXT_USUAL: usize = 4096;
/// Contexts that are weighed.
const CONTEXTS: [usize; 5] = [2048, CONTEXT_USUAL, 8192, 16_384, 32_768];
/// What an answer and the words around a photograph take of a context.
const WORDS_TOKENS: usize = 512;
/// What engines for processors call their target.
const PROCESSORS: &str = "cpu";

/// One way to build and serve a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FitSettings {
    /// What its engines are built for; nothing of a device whose processors alone run such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
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

/// What a person wants a model to run on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WantedDevice {
    /// Whatever is advised.
    #[default]
    Auto,
    /// The processors.
    Processors,
    /// The GPU.
    Gpu,
}

/// What a person has fixed of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What it runs on.
    pub device: WantedDevice,
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
    /// The GPU that runs it; nothing where the processors do.
    pub(crate) gpu: Option<&'a Gpu>,
}

impl Picked<'_> {
    pub(crate) fn settings(&self, device: &DeviceProfile) -> FitSettings {
        let target = device.gpu.as_ref().and_then(|gpu| gpu.target.as_deref());
        FitSettings {
            target: target
                .map(|word| if self.gpu.is_some() { word } else { PROCESSORS }.to_owned()),
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
    /// The GPU that these are for; nothing where they are for processors.
    pub(crate) gpu: Option<&'a Gpu>,
}

impl<'a> Choices<'a> {
    /// All of `model` on processors that `wanted` allows.
    pub(crate) fn of(model: &'a ModelFacts, wanted: &Wanted) -> Self {
        Self::among(model, (&model.decoders, &model.towers, &model.kv), wanted)
    }

    /// The same on a GPU.
    ///
    /// # Errors
    /// Where its engines do not have what is wanted, in one line.
    pub(crate) fn on_gpu(
        model: &'a ModelFacts,
        gpu: &'a Gpu,
        wanted: &Wanted,
    ) -> Result<Self, String> {
        let GpuWays { decoders, towers, kv } = model.on_gpu.as_ref().map_err(Clone::clone)?;
        let choices = Self::among(model, (decoders, towers, kv), wanted);
        match &wanted.kv {
            Some(kind) if choices.kv.is_empty() && !kv.is_empty() => {
                Err(format!("engines for GPUs keep no keys and values in {kind}"))
            }
            _ => Ok(Self { gpu: Some(gpu), ..choices }),
        }
    }

    fn among(
        model: &'a ModelFacts,
        (decoders, towers, kv): (&'a [DecoderOption], &'a [TowerOption], &'a [KvSize]),
        wanted: &Wanted,
    ) -> Self {
        let is_scheme = |decoder: &&DecoderOption| {
            wanted.scheme.as_ref().is_none_or(|scheme| *scheme == decoder.scheme)
        };
        let is_kv = |kv: &&KvSize| wanted.kv.as_ref().is_none_or(|kind| *kind == kv.kind);
        Self {
            decoders: decoders.iter().filter(is_scheme).collect(),
            towers: towers.iter().collect(),
            contexts: contexts(model, wanted.context),
            kv: kv.iter().filter(is_kv).collect(),
            photographs: model.photographs.iter().collect(),
            tiles: wanted.tiles,
            tiles_usual: model.tiles_usual,
            gpu: None,
        }
    }

    /// The choice that differs from `picked` in the place where it runs, and in what that asks for.
    pub(crate) fn counterpart(&self, picked: &Picked<'_>) -> Picked<'a> {
        let is_scheme =
            |it: &&&DecoderOption| Some(&it.scheme) == picked.decoder.map(|it| &it.scheme);
        let is_kind = |it: &&&KvSize| Some(it.kind) == picked.kv.map(|it| it.kind);
        Picked {
            decoder: self.decoders.iter().find(is_scheme).or(self.decoders.first()).copied(),
            tower: self.towers.first().copied(),
            context: picked.context,
            photograph: self.photographs.iter().find(|it| Some(**it) == picked.photograph).copied(),
            kv: self.kv.iter().find(is_kind).or(self.kv.first()).copied(),
            gpu: self.gpu,
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
