//! Says what a model of certain settings takes and does: disk, memory, time.

use serde::Serialize;

use crate::device::{DeviceProfile, RateBasis};
use crate::history::{MeasuredAnswer, of_decoder, of_tower};
use crate::model::{DecoderOption, ModelFacts};
use crate::settings::{FitSettings, Picked};

/// The program itself, its tokenizer and what a chunk of a prompt takes.
const PROGRAM_BYTES: u64 = 64 << 20;
/// What decoding gets of what memory gives.  With the next three it was found by decoders of 0.1B to 2B, on 2 cores and on 16.
const DECODING_SHARE: f64 = 0.9;
/// Seconds that the cores wait for each other in a layer, for each token, and how much longer for each core.
const LAYER_S: f64 = 40e-6;
const LAYER_CORE_S: f64 = 2.5e-6;
/// What attention does of products in the time of a hundred of a prompt's in f32: its numbers are read once.
const ATTENTION_SHARE: f64 = 0.9;
/// What a tower does of integer products in the time of a hundred of a prompt's, since its attention and norms are in f32.
const TOWER_SHARE: f64 = 0.48;
/// Words around a photograph.
const QUESTION_TOKENS: u64 = 40;

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
    /// All that it holds while it serves one full context.
    pub serving_bytes: u64,
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

/// What `picked` takes on `device`, where the model may hold `budget_bytes`, and answers were measured.
pub(crate) fn line(
    model: &ModelFacts,
    picked: &Picked<'_>,
    (device, history): (&DeviceProfile, &[MeasuredAnswer]),
    budget_bytes: u64,
) -> FitLine {
    let Picked { decoder, tower, context, photograph, kv } = *picked;
    let engines = [decoder.map(|it| it.weights_bytes), tower.map(|it| it.weights_bytes)];
    let engines_bytes = sum(engines.into_iter().flatten());
    let resident = [decoder.map(|it| it.step_bytes), tower.map(|it| it.weights_bytes)];
    let weights_bytes = sum(resident.into_iter().flatten());
    let made = [decoder.map(|it| it.checkpoint_bytes), tower.map(|it| it.graph_bytes)];
    let disk_bytes = sum(made.into_iter().flatten().chain([engines_bytes, model.fetch_bytes]));
    let working_bytes = tower.map_or(0, |tower| tower.working_bytes);
    let kv_bytes = kv.zip(context).map_or(0, |(kv, context)| kv.context_bytes(context));
    let pictures_bytes = photograph.map_or(0, |_| model.pictures_bytes);
    let serving_bytes =
        sum([weights_bytes, kv_bytes, working_bytes, pictures_bytes, PROGRAM_BYTES]);
    let building_bytes = building(picked);
    let room = device.memory_bytes.saturating_add(device.swap_bytes);
    FitLine {
        settings: picked.settings(),
        engines_bytes,
        disk_bytes,
        building_bytes,
        weights_bytes,
        kv_token_bytes: kv.map_or(0, |kv| kv.token_bytes()),
        kv_bytes,
        working_bytes,
        pictures_bytes,
        serving_bytes,
        fits: serving_bytes <= budget_bytes && building_bytes <= room,
        image_tokens: photograph.map(|photograph| photograph.tokens),
        speed: speed(picked, device, history),
    }
}

/// The most that a stage holds: one that makes an engine, or the one that opens all of them once.
fn building(picked: &Picked<'_>) -> u64 {
    let decoder = picked.decoder.map_or(0, |decoder| decoder.building_bytes);
    let tower = picked.tower.map_or(0, |tower| crate::building::executing(tower.working_bytes));
    decoder.max(tower)
}

/// How fast it is: as engines of the same sizes were here, else by the device's rates.
fn speed(picked: &Picked<'_>, device: &DeviceProfile, history: &[MeasuredAnswer]) -> Option<Speed> {
    by_history(picked, history).or_else(|| by_rates(picked, device))
}

fn by_history(picked: &Picked<'_>, history: &[MeasuredAnswer]) -> Option<Speed> {
    let decoder = picked.decoder?.weights_bytes;
    let tokens_per_s = of_decoder(history, decoder, |answer| answer.tokens_per_s)?;
    let read = of_decoder(history, decoder, |answer| answer.prompt_tokens_per_s);
    let seen = match picked.tower.zip(picked.photograph) {
        Some((tower, photograph)) => of_tower(history, tower.weights_bytes)
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
        // What follows from rates, measured though they are, was not seen.
        basis: [memory, floats, integers]
            .map(|rate| rate.basis)
            .into_iter()
            .fold(RateBasis::Estimated, Ord::max),
    })
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}
