//! Says what a model of certain settings takes and does: disk, memory, time.

use serde::Serialize;

use crate::device::DeviceProfile;
use crate::gpu::Gpu;
use crate::history::{MeasuredAnswer, of_decoder, of_tower, on};
use crate::model::{DecoderOption, ModelFacts};
use crate::rate::{Rate, RateBasis};
use crate::settings::{FitSettings, Picked};

/// The program itself, its tokenizer and what a chunk of a prompt takes.
const PROGRAM_BYTES: u64 = 64 << 20;
/// What decoding gets of what memory gives.  With the next three it was found by decoders of 0.1B to 2B, on 2 cores and on 16.
const DECODING_SHARE: f64 = 0.9;
/// Seconds that the cores wait for each other in a layer, for each token, and how much longer for each core.
const LAYER_S: f64 = 40e-6;
const LAYER_CORE_S: f64 = 2.5e-6;
/// What attention does of products in the time of one of a prompt's in f32, which has what it multiplies with brought anew.
const ATTENTION_SHARE: f64 = 1.4;
/// What a tower does of integer products in the time of a hundred of a prompt's, since its attention and norms are in f32.
const TOWER_SHARE: f64 = 0.48;
/// Words around a photograph.
const QUESTION_TOKENS: u64 = 40;
/// What a GPU's decoder holds beside weights, keys and values, as measured on an H200.
const GPU_DECODER_BYTES: u64 = 224 << 20;
/// What is left to a GPU's driver for a process: it does not say before it is there, and on boards nobody measured it.
const GPU_DRIVER_BYTES: u64 = 512 << 20;
/// What decoding on a GPU gets of what its memory gives, and the seconds of a layer beside that: within a tenth for weights
/// of 4 and of 16 bits on an H200 and on H100s.
const GPU_DECODING_SHARE: f64 = 0.9;
const GPU_LAYER_S: f64 = 26e-6;
/// What prompts and towers get of a GPU's products of halves: on an H200 a prompt of 2,048 has 0.24, one of 356 0.15, a tower
/// of twelve tiles 0.30 and of one 0.17.
const GPU_PRODUCTS_SHARE: f64 = 0.24;

/// What a model of certain settings takes and does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitLine {
    /// The settings.
    #[serde(flatten)]
    pub settings: FitSettings,
    /// Bytes of its engines.
    pub engines_bytes: u64,
    /// Bytes of all that a build leaves on disk: what is fetched, graphs, quantised weights, engines.
    pub disk_bytes: u64,
    /// The most that a stage holds while it is built.
    pub building_bytes: u64,
    /// Bytes of weights that stay in memory while it answers.
    pub weights_bytes: u64,
    /// Bytes of the keys and values of one token.
    pub kv_token_bytes: u64,
    /// Of one full context.
    pub kv_bytes: u64,
    /// What executing the engines holds besides.
    pub working_bytes: u64,
    /// What pictures may take that wait or are kept.
    pub pictures_bytes: u64,
    /// All that it holds of the host's memory while it serves one full context; a GPU without memory of its own has that.
    pub serving_bytes: u64,
    /// All that it holds of a GPU's own memory meanwhile: weights, keys and values, and what executing takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_bytes: Option<u64>,
    /// Whether the device holds that, and its build.
    pub fits: bool,
    /// Image tokens of a photograph of 4:3; nothing where it sees none.
    pub image_tokens: Option<usize>,
    /// How fast it is, where the device's rates are known.
    pub speed: Option<Speed>,
}

/// How fast a model answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speed {
    /// Tokens of an answer about a photograph in a second; nothing of an encoder.
    pub tokens_per_s: Option<f64>,
    /// Seconds to the first token of an answer about a photograph of 4:3, or about some words.
    pub first_token_s: Option<f64>,
    /// How that is known: as the weakest of the rates that it follows from.
    pub basis: RateBasis,
}

impl FitLine {
    /// All that it holds, wherever that is.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.serving_bytes.saturating_add(self.gpu_bytes.unwrap_or(0))
    }
}

/// What `picked` takes on `device`, where the model may hold `budget_bytes` of the host's memory, and answers were measured.
pub(crate) fn line(
    model: &ModelFacts,
    picked: &Picked<'_>,
    (device, history): (&DeviceProfile, &[MeasuredAnswer]),
    budget_bytes: u64,
) -> FitLine {
    let Picked { decoder, tower, context, photograph, kv, gpu } = *picked;
    let engines = [decoder.map(|it| it.weights_bytes), tower.map(|it| it.weights_bytes)];
    let engines_bytes = sum(engines.into_iter().flatten());
    let made = [decoder.map(|it| it.checkpoint_bytes), tower.map(|it| it.graph_bytes)];
    let disk_bytes = sum(made.into_iter().flatten().chain([engines_bytes, model.fetch_bytes]));
    let weights_bytes = resident(picked, engines_bytes);
    let working_bytes = working(picked);
    let kv_bytes = kv.zip(context).map_or(0, |(kv, context)| kv.context_bytes(context));
    let pictures_bytes = photograph.map_or(0, |_| model.pictures_bytes);
    let executing = sum([weights_bytes, kv_bytes, working_bytes]);
    let own_budget = gpu.and_then(Gpu::budget_bytes);
    let gpu_bytes = own_budget.map(|_| executing);
    let on_host = if gpu_bytes.is_some() { 0 } else { executing };
    let serving_bytes = sum([on_host, pictures_bytes, PROGRAM_BYTES]);
    let building_bytes = building(picked, device.cores);
    let room = device.memory_bytes.saturating_add(device.swap_bytes);
    FitLine {
        settings: picked.settings(device),
        engines_bytes,
        disk_bytes,
        building_bytes,
        weights_bytes,
        kv_token_bytes: kv.map_or(0, |kv| kv.token_bytes()),
        kv_bytes,
        working_bytes,
        pictures_bytes,
        serving_bytes,
        gpu_bytes,
        fits: serving_bytes <= budget_bytes && building_bytes <= room && gpu_bytes <= own_budget,
        image_tokens: photograph.map(|photograph| photograph.tokens),
        speed: speed(picked, device, history),
    }
}

/// Bytes of weights that stay in memory: what every token reads of mapped files, and all that a GPU has.
fn resident(picked: &Picked<'_>, engines_bytes: u64) -> u64 {
    if picked.gpu.is_some() {
        return engines_bytes;
    }
    let read = [picked.decoder.map(|it| it.step_bytes), picked.tower.map(|it| it.weights_bytes)];
    sum(read.into_iter().flatten())
}

/// What executing holds beside weights, keys and values.
fn working(picked: &Picked<'_>) -> u64 {
    let tower = picked.tower.map_or(0, |tower| tower.working_bytes);
    if picked.gpu.is_none() {
        return tower;
    }
    // Processors see one tile after the other, a card all of a picture at once: a smaller picture of the whole beside several.
    let tiles = picked.photograph.and_then(|photograph| photograph.tiles).unwrap_or(1) as u64;
    let parts = if tiles > 1 { tiles + 1 } else { 1 };
    let decoder = picked.decoder.map_or(0, |_| GPU_DECODER_BYTES);
    sum([tower.saturating_mul(parts), decoder, GPU_DRIVER_BYTES])
}

/// The most that a stage holds: one that makes an engine, the one that opens all of them once, or the one that holds them against
/// the reference by all of the device's cores.
fn building(picked: &Picked<'_>, cores: usize) -> u64 {
    let decoder = picked.decoder.map_or(0, |decoder| decoder.building_bytes);
    let working = picked.tower.map_or(0, |tower| tower.working_bytes);
    let executing = crate::building::executing(working);
    let tower = picked.tower.map_or(0, |_| executing);
    let verifying = executing.saturating_add(crate::building::referring(cores));
    let verifying = picked.decoder.map_or(0, |_| verifying);
    let compiling = picked.gpu.map_or(0, |_| crate::building::COMPILING_BYTES);
    decoder.max(tower).max(verifying).saturating_add(compiling)
}

/// How fast it is: as engines of the same sizes were here, else by the device's rates.
fn speed(picked: &Picked<'_>, device: &DeviceProfile, history: &[MeasuredAnswer]) -> Option<Speed> {
    by_history(picked, history).or_else(|| match picked.gpu {
        Some(gpu) => by_rates_of_gpu(picked, gpu),
        None => by_rates(picked, device),
    })
}

fn by_history(picked: &Picked<'_>, history: &[MeasuredAnswer]) -> Option<Speed> {
    let history = on(history, picked.gpu.and_then(|gpu| gpu.target.as_deref()));
    let decoder = picked.decoder?.weights_bytes;
    let tokens_per_s = of_decoder(&history, decoder, |answer| answer.tokens_per_s)?;
    let read = of_decoder(&history, decoder, |answer| answer.prompt_tokens_per_s);
    let seen = match picked.tower.zip(picked.photograph) {
        Some((tower, photograph)) => of_tower(&history, tower.weights_bytes)
            .map(|image_tokens_per_s| photograph.tokens as f64 / image_tokens_per_s),
        None => Some(0.0),
    };
    let first_token_s =
        read.zip(seen).map(|(read, seen)| prompt_tokens(picked) as f64 / read + seen);
    Some(Speed { tokens_per_s: Some(tokens_per_s), first_token_s, basis: RateBasis::Measured })
}

/// Tokens of a question about a photograph, or about nothing.
fn prompt_tokens(picked: &Picked<'_>) -> u64 {
    picked.photograph.map_or(0, |photograph| photograph.tokens as u64) + QUESTION_TOKENS
}

fn by_rates(picked: &Picked<'_>, device: &DeviceProfile) -> Option<Speed> {
    let memory = device.memory_rate?;
    let (floats, integers) = (device.core_rate?, device.integer_rate?);
    let kv_bytes = picked.kv.map_or(0, |kv| kv.token_bytes() * prompt_tokens(picked));
    let cores = device.cores.max(1) as f64;
    let decoding = |decoder: &DecoderOption| {
        let bytes = (decoder.step_bytes + kv_bytes) as f64;
        let waiting = decoder.layers as f64 * (LAYER_S + cores * LAYER_CORE_S);
        let products = decoder.attention_products as f64 * prompt_tokens(picked) as f64;
        let sharing = cores.min(decoder.kv_heads.max(1) as f64);
        let attending = products / (sharing * floats.per_second * ATTENTION_SHARE);
        1.0 / (bytes / (memory.per_second * DECODING_SHARE) + waiting + attending)
    };
    let rate = |is_integer: bool| cores * if is_integer { integers } else { floats }.per_second;
    let seen = picked.tower.zip(picked.photograph).map(|(tower, photograph)| {
        let products = tower.patch_products as f64 * photograph.patches as f64;
        let is_integer = tower.precision == "int8";
        products / rate(is_integer) / if is_integer { TOWER_SHARE } else { 1.0 }
    });
    let read = picked.decoder.map(|decoder| {
        decoder.prompt_products as f64 * prompt_tokens(picked) as f64 / rate(decoder.is_integer)
    });
    Some(Speed {
        tokens_per_s: picked.decoder.map(decoding),
        first_token_s: read.map(|read| read + seen.unwrap_or_default()),
        basis: weakest([memory, floats, integers]),
    })
}

/// The speed on a GPU: a token reads its weights and the keys and values before it, prompts and towers multiply.
fn by_rates_of_gpu(picked: &Picked<'_>, gpu: &Gpu) -> Option<Speed> {
    let (memory, products) = (gpu.memory_rate?, gpu.product_rate?);
    let kv_bytes = picked.kv.map_or(0, |kv| kv.token_bytes() * prompt_tokens(picked));
    let step = picked.decoder.map(|decoder| {
        let bytes = (decoder.step_bytes + kv_bytes) as f64;
        bytes / (memory.per_second * GPU_DECODING_SHARE) + decoder.layers as f64 * GPU_LAYER_S
    });
    let multiplying = |count: f64| count / (products.per_second * GPU_PRODUCTS_SHARE);
    let seen = picked.tower.zip(picked.photograph).map_or(0.0, |(tower, photograph)| {
        multiplying(tower.patch_products as f64 * photograph.patches as f64)
    });
    let read = picked.decoder.zip(step).map(|(decoder, step)| {
        // However short it is, a prompt reads all weights once.
        multiplying(decoder.prompt_products as f64 * prompt_tokens(picked) as f64).max(step)
    });
    Some(Speed {
        tokens_per_s: step.map(|step| 1.0 / step),
        first_token_s: read.map(|read| read + seen),
        basis: weakest([memory, products]),
    })
}

/// What follows from rates, measured though they are, was not seen.
fn weakest(rates: impl IntoIterator<Item = Rate>) -> RateBasis {
    rates.into_iter().map(|rate| rate.basis).fold(RateBasis::Estimated, Ord::max)
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}
