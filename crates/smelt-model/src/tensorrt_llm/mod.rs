//! Writes a decoder as a checkpoint of TensorRT-LLM 0.12, from which `trtllm-build` makes an engine.
//!
//! A checkpoint in canonical form becomes `rank0.safetensors`, `config.json` and the side files.
//! `plan` says which tensors there are and of which ours each is made, `config` what describes them,
//! `tiles` how its kernels read quants; here the bytes are moved, a block of rows at a time.
//! Knows nothing of how quants were chosen, nor of engines.

mod config;
mod plan;
mod rows;
mod tiles;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use crate::checkpoint::{CONFIG_FILE, Checkpoint, CheckpointError, ZERO_SUFFIX, scale_name};
use crate::dtype::Dtype;
use crate::quantize::{QuantizeError, copy_side_files, write_made_files};
use crate::safetensors::{SafetensorsError, TensorSpec, Writer};

use plan::{Item, Make, plan};
use rows::{FusedRows, blocks};
use tiles::Tiles;

/// The word that pipelines and flags use.
pub const FORMAT: &str = "tensorrt-llm";

/// The file of the weights of a model that one GPU holds.
pub const RANK_FILE: &str = "rank0.safetensors";

/// The quant of 4 bits that TensorRT-LLM takes for 0.
const MIDDLE: f32 = 8.0;

/// What is lost of a decoder that knows three positions of a token.
const MROPE: &str = "TensorRT-LLM 0.12 gives a token one position, and this decoder takes three of what is seen (M-RoPE): \
                     what is built of it answers texts as it should, and pictures not";

/// Why a checkpoint could not be written for TensorRT-LLM.
#[derive(Debug, thiserror::Error)]
pub enum TensorRtLlmError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The weights could not be written.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Side files could not be copied.
    #[error(transparent)]
    SideFiles(#[from] QuantizeError),
    /// The system refused the directory or the configuration.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The decoder computes what TensorRT-LLM does not.
    #[error("{}: TensorRT-LLM 0.12 does not compute this decoder: {why}", path.display())]
    OtherDecoder {
        /// The checkpoint.
        path: PathBuf,
        /// What is in the way.
        why: String,
    },
    /// The format cannot hold a weight.
    #[error("the {FORMAT} format cannot hold tensor {tensor}: {why}")]
    CannotHold {
        /// The tensor.
        tensor: String,
        /// What is in the way, and what to do.
        why: String,
    },
    /// A number is NaN, infinite, or too large for its type.
    #[error("{}: tensor {tensor} has a value in row {row} that is not finite as {dtype}", path.display())]
    NotFinite {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The row.
        row: usize,
        /// The type that it becomes.
        dtype: Dtype,
    },
}

/// Whether the decoder of `ckpt` can be written, of which no weight need be here.
///
/// # Errors
/// [`TensorRtLlmError`] naming what TensorRT-LLM does not compute, or the tensor that the format cannot hold.
pub fn check(ckpt: &Checkpoint) -> Result<(), TensorRtLlmError> {
    plan(ckpt).map(drop)
}

/// What the user should know of the result, a line.
pub fn warning(ckpt: &Checkpoint) -> Option<&'static str> {
    let llm = ckpt.model().llm.as_ref()?;
    llm.rope.sections.map(|_| MROPE)
}

/// Writes the decoder of `ckpt` into `out_dir`, which is created if absent.
///
/// Floats stay bf16 where the embedding is, and else become f16.  Linear weights of the layers that are
/// packed must all be so in one way: 8 or 4 bits with one scale for each output (`W8A16`, `W4A16`), or 4
/// bits with a scale for 128 inputs (`W4A16_GPTQ`, whose floats are f16).  Integers do not change.  A
/// packed embedding or head is multiplied out; a tied head becomes a copy of the embedding.  The
/// configuration comes last, so that nothing opens half of a checkpoint.  `progress` hears one line per
/// tensor.
///
/// # Errors
/// [`TensorRtLlmError`]; what [`check`] refuses is refused before anything is made.
pub fn write(
    ckpt: &Checkpoint,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), TensorRtLlmError> {
    let plan = plan(ckpt)?;
    fs::create_dir_all(out_dir).map_err(failed(out_dir))?;
    copy_side_files(ckpt.dir(), out_dir)?;
    write_made_files(ckpt, out_dir)?;
    let specs: Vec<TensorSpec> = plan.items.iter().map(|item| item.spec.clone()).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = Writer::create(&out_dir.join(RANK_FILE), &specs, &metadata)?;
    for (at, item) in plan.items.iter().enumerate() {
        progress(&format!("[{at}/{}] {}", plan.items.len(), item.spec.name));
        put(ckpt, item, &mut writer)?;
    }
    writer.finish()?;
    let path = out_dir.join(CONFIG_FILE);
    fs::write(&path, config::text(ckpt.decoder()?, &plan)).map_err(failed(&path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> TensorRtLlmError {
    move |source| TensorRtLlmError::Io { path: path.into(), source }
}

/// Writes the bytes of one tensor.
fn put(ckpt: &Checkpoint, item: &Item, writer: &mut Writer) -> Result<(), TensorRtLlmError> {
    let dtype = item.spec.dtype;
    match item.make {
        Make::Floats => put_floats(&item.rows, ckpt, dtype, writer),
        Make::Tiles(tiles) => put_tiles(&item.rows, ckpt, tiles, writer),
        Make::RowScales => put_floats(&item.rows.renamed(scale_name), ckpt, dtype, writer),
        Make::GroupScales => put_groups(&item.rows, ckpt, &item.spec, false, writer),
        Make::GroupZeros => put_groups(&item.rows, ckpt, &item.spec, true, writer),
    }
}

/// Writes rows of floats as `dtype`, packed ones multiplied out.
fn put_floats(
    rows: &FusedRows,
    ckpt: &Checkpoint,
    dtype: Dtype,
    writer: &mut Writer,
) -> Result<(), TensorRtLlmError> {
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for part in &rows.parts {
        let width: usize = ckpt.shape(&part.name)?.iter().skip(1).product();
        for here in blocks(part.rows, width * size_of::<f32>(), 1) {
            let first = here.start;
            ckpt.read_rows_f32(&part.name, here, &mut values)?;
            bytes.clear();
            for (at, value) in values.iter().enumerate() {
                let row = first + at / width.max(1);
                push(*value, dtype, &mut bytes)
                    .ok_or_else(|| not_finite(ckpt, &part.name, row, dtype))?;
            }
            writer.write(&bytes)?;
        }
    }
    Ok(())
}

/// Writes rows of quants in tiles.
fn put_tiles(
    rows: &FusedRows,
    ckpt: &Checkpoint,
    tiles: Tiles,
    writer: &mut Writer,
) -> Result<(), TensorRtLlmError> {
    let row_bytes = tiles.row_bytes(rows.columns);
    let (mut quants, mut bytes) = (Vec::new(), Vec::new());
    for here in blocks(rows.count(), row_bytes, tiles.together) {
        quants.clear();
        for (name, rows) in rows.pieces(here) {
            let start = quants.len();
            quants.resize(start + rows.len() * row_bytes, 0);
            ckpt.read_bytes(name, (rows.start * row_bytes) as u64, &mut quants[start..])?;
        }
        bytes.clear();
        tiles.pack(&quants, rows.columns, &mut bytes);
        writer.write(&bytes)?;
    }
    Ok(())
}

/// Writes what belongs to groups, turned to `[groups, out]`: scales, or the number that makes a quant less
/// the middle one less its zero.
fn put_groups(
    rows: &FusedRows,
    ckpt: &Checkpoint,
    spec: &TensorSpec,
    of_zeros: bool,
    writer: &mut Writer,
) -> Result<(), TensorRtLlmError> {
    let (groups, height, size) = (spec.shape[0], spec.shape[1], spec.dtype.size_bytes());
    let mut region = writer.region((groups * height * size) as u64)?;
    let (mut scales, mut column) = (Vec::new(), Vec::new());
    for here in blocks(height, groups * size_of::<f32>(), 1) {
        let mut at = here.start;
        for (name, rows) in rows.pieces(here) {
            ckpt.read_rows_f32(&scale_name(name), rows.clone(), &mut scales)?;
            if of_zeros {
                shift_scales(ckpt, name, &rows, groups, &mut scales)?;
            }
            for group in 0..groups {
                column.clear();
                for (row, scale) in scales.iter().skip(group).step_by(groups).enumerate() {
                    let row = rows.start + row;
                    push(*scale, spec.dtype, &mut column)
                        .ok_or_else(|| not_finite(ckpt, &scale_name(name), row, spec.dtype))?;
                }
                region.write_at(((group * height + at) * size) as u64, &column)?;
            }
            at += rows.len();
        }
    }
    Ok(region.finish()?)
}

/// Makes of each scale what its zero adds: nothing where the zero is the middle.
fn shift_scales(
    ckpt: &Checkpoint,
    name: &str,
    rows: &Range<usize>,
    groups: usize,
    scales: &mut [f32],
) -> Result<(), TensorRtLlmError> {
    let zero_name = format!("{name}{ZERO_SUFFIX}");
    if ckpt.dtype(&zero_name).is_err() {
        scales.fill(0.0);
        return Ok(());
    }
    let mut zeros = vec![0; rows.len() * groups];
    ckpt.read_bytes(&zero_name, (rows.start * groups) as u64, &mut zeros)?;
    for (scale, zero) in scales.iter_mut().zip(zeros) {
        *scale = f16::from_f32(*scale).to_f32() * (MIDDLE - f32::from(zero));
    }
    Ok(())
}

/// Appends `value` as `dtype`, rounded to the nearest; nothing if it is not finite then.
fn push(value: f32, dtype: Dtype, bytes: &mut Vec<u8>) -> Option<()> {
    if dtype == Dtype::BF16 {
        let near = bf16::from_f32(value);
        bytes.extend(near.to_le_bytes());
        return near.is_finite().then_some(());
    }
    let near = f16::from_f32(value);
    bytes.extend(near.to_le_bytes());
    near.is_finite().then_some(())
}

fn not_finite(ckpt: &Checkpoint, name: &str, row: usize, dtype: Dtype) -> TensorRtLlmError {
    let (path, tensor) = (ckpt.path().into(), name.to_owned());
    TensorRtLlmError::NotFinite { path, tensor, row, dtype }
}
