//! Writes a checkpoint whose packed weights other servers load: AWQ, GPTQ, compressed-tensors.
//!
//! The canonical weights of one checkpoint and the layout, configuration and other parts of another
//! (or the same) become a directory.  `plan` lists the stored tensors and where their bytes come
//! from, `description` writes `quantization_config`; here the bytes are moved, a block of rows at a
//! time, turned ones straight to their places in the file.  Knows nothing of how quants were chosen.

mod description;
mod plan;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::f16;

use crate::checkpoint::{CONFIG_FILE, Checkpoint, CheckpointError, WEIGHTS_FILE};
use crate::dtype::Dtype;
use crate::packed::words::{self, Along, Runs, WordLayout};
use crate::quantize::{QuantizeError, copy_side_files, write_made_files};
use crate::safetensors::{SafetensorsError, TensorSpec, Writer};
use plan::{Item, Make, plan};

/// Canonical bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Rows are taken in multiples of this: what shares a word.
const ROWS_TOGETHER: usize = 8;

/// The form of a checkpoint that another tool loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// compressed-tensors, "pack-quantized".
    CompressedTensors,
    /// AutoAWQ, "gemm".
    Awq,
    /// GPTQ: version 1 where weights are symmetric, else version 2, which has no zero that wraps.
    Gptq,
}

impl Format {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 3] = [Self::CompressedTensors, Self::Awq, Self::Gptq];

    /// The word pipelines and flags use.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Awq => "awq",
            Self::Gptq => "gptq",
        }
    }

    /// The format of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == word)
    }
}

/// Why a checkpoint could not be written for another tool.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The weights could not be written.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Side files could not be copied.
    #[error(transparent)]
    SideFiles(#[from] QuantizeError),
    /// The system refused the configuration.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The format cannot hold a weight.
    #[error("the {format} format cannot hold tensor {tensor}: {why}")]
    CannotHold {
        /// The format's word.
        format: &'static str,
        /// The tensor.
        tensor: String,
        /// What is in the way, and what to do.
        why: String,
    },
    /// A weight that becomes floats has one that is too large for them, or none.
    #[error("{}: tensor {tensor} has a value in row {row} that F16 cannot hold", path.display())]
    BeyondF16 {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The row.
        row: usize,
    },
    /// A scale is NaN or infinite, so its weights are none.
    #[error(
        "{}: tensor {tensor} has a scale in row {row} that is not finite; the file is damaged, fetch it again",
        path.display()
    )]
    ScaleNotFinite {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor of scales.
        tensor: String,
        /// The row.
        row: usize,
    },
    /// No weight is packed.
    #[error("{} has no packed weights; quantise it to int4 or int8 first", path.display())]
    NothingPacked {
        /// The checkpoint.
        path: PathBuf,
    },
}

/// Writes the packed weights of `packed` in `format` into `out_dir`, which is created if absent,
/// with everything else of `whole`: its names, its configuration, its vision tower.
///
/// Both may be the same checkpoint.  Tensors that both have are taken from `packed`.  A packed
/// embedding, which no format holds, becomes f16.  `progress` hears one line per stored tensor.
///
/// # Errors
/// [`WriteError`] naming the tensor that the format cannot hold, or the file.
pub fn write(
    packed: &Checkpoint,
    whole: &Checkpoint,
    format: Format,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), WriteError> {
    if !packed.is_packed() {
        return Err(WriteError::NothingPacked { path: packed.path().into() });
    }
    let plan = plan(packed, whole, format)?;
    let config = description::config(&plan, whole, format);
    fs::create_dir_all(out_dir).map_err(failed(out_dir))?;
    copy_side_files(whole.dir(), out_dir)?;
    write_made_files(whole, out_dir)?;
    let path = out_dir.join(CONFIG_FILE);
    fs::write(&path, config).map_err(failed(&path))?;
    let specs: Vec<TensorSpec> = plan.items.iter().map(|item| item.spec.clone()).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = Writer::create(&out_dir.join(WEIGHTS_FILE), &specs, &metadata)?;
    for (at, item) in plan.items.iter().enumerate() {
        progress(&format!("[{at}/{}] {}", plan.items.len(), item.spec.name));
        put(item, if item.is_of_packed { packed } else { whole }, &mut writer)?;
    }
    Ok(writer.finish()?)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::Io { path: path.into(), source }
}

/// Writes the bytes of one stored tensor.
fn put(item: &Item, ckpt: &Checkpoint, writer: &mut Writer) -> Result<(), WriteError> {
    match &item.make {
        Make::Given(bytes) => Ok(writer.write(bytes)?),
        Make::Copy { name, range } => copy(ckpt, name, range.clone(), writer),
        Make::Words { name, grid, columns, places, shift } => {
            let quants =
                QuantizedRows { bits: grid.bits, columns: *columns, places: places.as_deref() };
            put_words(ckpt, name, *grid, &quants, *shift, writer)
        }
        Make::Zeros { name, grid, groups, shift } => {
            let zeros = QuantizedRows { bits: 8, columns: *groups, places: None };
            put_words(ckpt, name, *grid, &zeros, *shift, writer)
        }
        Make::Floats { name } => put_floats(ckpt, name, writer),
        Make::Scales { name, groups, dtype, is_turned } => {
            put_scales(ckpt, name, *groups, *dtype, *is_turned, writer)
        }
    }
}

fn copy(
    ckpt: &Checkpoint,
    name: &str,
    range: Range<u64>,
    writer: &mut Writer,
) -> Result<(), WriteError> {
    let mut at = range.start;
    let mut block = vec![0; BLOCK_BYTES];
    while at < range.end {
        let bytes = &mut block[..BLOCK_BYTES.min((range.end - at) as usize)];
        ckpt.read_finite(name, at, bytes)?;
        writer.write(bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// How canonical rows hold quants.
struct QuantizedRows<'a> {
    /// 4: nibbles; 8: bytes.
    bits: u32,
    columns: usize,
    /// The canonical column of each input channel, if columns were sorted.
    places: Option<&'a [u32]>,
}

impl QuantizedRows<'_> {
    fn row_bytes(&self) -> usize {
        if self.bits == 4 { self.columns.div_ceil(2) } else { self.columns }
    }

    fn get(&self, rows: &[u8], row: usize, channel: usize) -> u8 {
        let place = self.places.map_or(channel, |places| places[channel] as usize);
        let line = &rows[row * self.row_bytes()..];
        if self.bits == 4 { (line[place / 2] >> (4 * (place % 2))) & 15 } else { line[place] }
    }
}

/// Packs the canonical tensor `name` into words, `shift` added to each quant.
fn put_words(
    ckpt: &Checkpoint,
    name: &str,
    grid: WordLayout,
    quants: &QuantizedRows<'_>,
    shift: u8,
    writer: &mut Writer,
) -> Result<(), WriteError> {
    let (height, row_bytes) = (ckpt.shape(name)?[0], quants.row_bytes());
    let shape = [height, quants.columns];
    let mask = if grid.bits == 4 { 15 } else { 255 };
    let total = grid.stored_shape(shape).iter().product::<usize>() * words::WORD_BYTES;
    let mut rows = Vec::new();
    let mut region = writer.region(total as u64)?;
    for here in blocks(height, row_bytes) {
        rows.resize(here.len() * row_bytes, 0);
        ckpt.read_bytes(name, (here.start * row_bytes) as u64, &mut rows)?;
        let stripe = grid.pack(&here, quants.columns, |row, channel| {
            quants.get(&rows, row, channel).wrapping_add(shift) & mask
        });
        let mut rest = stripe.as_slice();
        for (at, len) in grid.runs(&here, shape).stretches() {
            let (now, later) = rest.split_at(len);
            region.write_at(at, now)?;
            rest = later;
        }
    }
    Ok(region.finish()?)
}

/// Writes the packed weight `name` as the f16 values nearest to what it stands for.
fn put_floats(ckpt: &Checkpoint, name: &str, writer: &mut Writer) -> Result<(), WriteError> {
    let &[rows, columns] = ckpt.shape(name)? else { return Ok(()) };
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for here in blocks(rows, columns * size_of::<f32>()) {
        let first = here.start;
        ckpt.read_rows_f32(name, here, &mut values)?;
        if let Some(at) = values.iter().position(|value| !f16::from_f32(*value).is_finite()) {
            let (path, tensor) = (ckpt.path().into(), name.to_owned());
            return Err(WriteError::BeyondF16 { path, tensor, row: first + at / columns });
        }
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()));
        writer.write(&bytes)?;
    }
    Ok(())
}

/// Writes scales as `dtype`, `[groups, out]` if they are turned.
fn put_scales(
    ckpt: &Checkpoint,
    name: &str,
    groups: usize,
    dtype: Dtype,
    is_turned: bool,
    writer: &mut Writer,
) -> Result<(), WriteError> {
    let height = ckpt.shape(name)?[0];
    let size = dtype.size_bytes();
    let mut region = writer.region((height * groups * size) as u64)?;
    let mut scales = Vec::new();
    for here in blocks(height, groups * size_of::<f32>()) {
        ckpt.read_rows_f32(name, here.clone(), &mut scales)?;
        if let Some(at) = scales.iter().position(|scale| !scale.is_finite()) {
            let (path, tensor) = (ckpt.path().into(), name.to_owned());
            return Err(WriteError::ScaleNotFinite { path, tensor, row: here.start + at / groups });
        }
        if !is_turned {
            let bytes: Vec<u8> = scales.iter().flat_map(|&scale| narrow(scale, dtype)).collect();
            region.write_at((here.start * groups * size) as u64, &bytes)?;
            continue;
        }
        let runs = Runs::of_columns(here, [groups, height], size);
        for group in 0..groups {
            let column = scales.iter().skip(group).step_by(groups);
            let bytes: Vec<u8> = column.flat_map(|&scale| narrow(scale, dtype)).collect();
            region.write_at(runs.start + group as u64 * runs.step, &bytes)?;
        }
    }
    Ok(region.finish()?)
}

/// The bytes of `value` as `dtype`, rounded to the nearest.
fn narrow(value: f32, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        Dtype::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

/// Runs of rows of at most [`BLOCK_BYTES`], cut where words end.
fn blocks(rows: usize, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (BLOCK_BYTES / row_bytes.max(1) / ROWS_TOGETHER).max(1) * ROWS_TOGETHER;
    (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
}

/// Whether words of `grid` pad rows or columns of a matrix of `shape`.
fn pads(grid: WordLayout, [rows, columns]: [usize; 2]) -> bool {
    let along = if grid.along == Along::Rows { rows } else { columns };
    !along.is_multiple_of(grid.per_word())
}
