//! Looks for activations that f16 cannot hold, before a graph is exported in it.
//!
//! The f32 reference runs once over a built-in prompt or picture; the largest magnitude of each
//! block goes to `probe.json`.  Real inputs may reach further, and scores of attention are not
//! looked at: the probe finds models that cannot work in f16, it does not prove that one can.
//! Knows nothing of graphs.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::ExportError;
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::model::{ModelPart, Tile};
use crate::reference::{self, Peak};

/// What the probe writes beside the graph.
pub const PROBE_FILE: &str = "probe.json";

/// Tokens of the prompt: the first of a sequence, which carries the largest activations of
/// published models, and enough others for attention to be uneven.
const PROMPT_TOKENS: usize = 64;

/// The largest magnitude f16 holds.
const F16_MAX: f32 = half::f16::MAX.to_f32_const();

#[derive(Serialize)]
struct Record<'a> {
    format: u32,
    part: &'a str,
    /// What was run.
    input: String,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    name: String,
    /// `null` where an activation was infinite or no number.
    largest: f32,
}

/// Probes `part` and writes [`PROBE_FILE`] into `out_dir`, which is made if need be.
///
/// # Errors
/// When `dtype` is f16 and an activation is beyond it, by the name of its block; when the model has
/// no such part, the reference cannot run it, or the file cannot be written.
pub fn record(
    checkpoint: &Checkpoint,
    part: ModelPart,
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let (part, (input, peaks)) = match part {
        ModelPart::Vision => ("vision", of_vision(checkpoint, progress)?),
        ModelPart::Llm | ModelPart::Head => ("llm", of_llm(checkpoint, progress)?),
        ModelPart::Encoder | ModelPart::Classifier => return Err(ExportError::NoProbe),
    };
    if dtype == Dtype::F16
        && let Some(peak) = peaks.iter().find(|peak| peak.largest > F16_MAX)
    {
        return Err(ExportError::ActivationBeyondF16 {
            block: peak.block.clone(),
            value: peak.largest,
        });
    }
    let block = |peak: &Peak| Block { name: peak.block.clone(), largest: peak.largest };
    let blocks = peaks.iter().map(block).collect();
    let record = Record { format: 1, part, input, blocks };
    write(out_dir, &record)
        .map_err(|source| ExportError::CreateDir { path: out_dir.to_owned(), source })
}

fn write(out_dir: &Path, record: &Record<'_>) -> io::Result<()> {
    fs::create_dir_all(out_dir)?;
    let mut text = serde_json::to_string_pretty(record)?;
    text.push('\n');
    fs::write(out_dir.join(PROBE_FILE), text)
}

fn of_llm(
    checkpoint: &Checkpoint,
    progress: &mut dyn FnMut(&str),
) -> Result<(String, Vec<Peak>), ExportError> {
    let llm = checkpoint.decoder()?;
    let count = PROMPT_TOKENS.min(llm.max_positions);
    let token = |n: usize| ((n * n * 31 + n * 7 + 1) % llm.vocab) as u32;
    let tokens: Vec<u32> = (0..count).map(token).collect();
    let peaks = reference::llm_peaks(checkpoint, &tokens, progress)?;
    Ok((format!("{count} tokens from all over the vocabulary"), peaks))
}

fn of_vision(
    checkpoint: &Checkpoint,
    progress: &mut dyn FnMut(&str),
) -> Result<(String, Vec<Peak>), ExportError> {
    let Tile { channels, side, .. } = checkpoint.tile()?;
    if !checkpoint.has(ModelPart::Vision) {
        return Err(ExportError::NoVision { dir: checkpoint.dir().to_owned() });
    }
    progress("reference over a picture");
    // A wash of colours with a bright square, in the range that normalised pixels have.
    let pixel = |at: usize| {
        let (channel, y, x) = (at / side / side, at / side % side, at % side);
        let is_inside = [x, y].iter().all(|at| (side / 4..side / 2).contains(at));
        let wash = (x * (channel + 1) + y * 2) as f32 / (side * 4) as f32;
        if is_inside { 2.5 } else { wash * 4.0 - 2.0 }
    };
    let pixels: Vec<f32> = (0..channels * side * side).map(pixel).collect();
    let peaks = reference::vision_peaks(checkpoint, &pixels)?;
    Ok(("a picture of a colour wash with a bright square".to_owned(), peaks))
}
