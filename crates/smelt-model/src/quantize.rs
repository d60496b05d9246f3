//! Quantises the linear weights of a checkpoint's language model.
//!
//! A checkpoint becomes a directory that [`Checkpoint::open`] opens again: side files byte for
//! byte, a mark that names the scheme, and the language model's tensors.  Rows are read, rounded
//! and written a block at a time, so memory does not grow with the model, and every step is a
//! single correctly rounded operation per element, so the bytes are equal on every machine.
//! Knows nothing of engines: how a kernel packs the integers is not decided here.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::{
    CONFIG_FILE, Checkpoint, CheckpointError, WEIGHTS_FILE, is_linear, scale_name,
};
use crate::decoder::{EMBEDDING, LM_HEAD};
use crate::dtype::Dtype;
use crate::model::{Part, block_of};
use crate::safetensors::{SafetensorsError, TensorSpec, Writer};
use crate::scheme;

pub use crate::scheme::Scheme;

/// The f32 bytes of a block of rows: small enough for a core's cache, and one row always fits the
/// 8 MiB that a row of the largest dimension takes.
const BLOCK_BYTES: usize = 1 << 20;

/// The largest integer used; -128 is not, so that negation is exact.
const LEVEL_MAX: f32 = 127.0;

/// Added to a small f32 and taken away again, it leaves the nearest integer, ties to even:
/// 1.5 * 2^23, above which neighbouring floats are one apart.
const ROUNDER: f32 = 12_582_912.0;

/// The side files copied if they are there; the configuration always is.
const SIDE_FILES: [&str; 9] = [
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// Why a checkpoint could not be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The weights could not be written.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The system refused a side file or the directory.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The weights are integers already.
    #[error("{} is already quantised (scheme {scheme}); quantise the original", dir.display())]
    AlreadyQuantized {
        /// The checkpoint.
        dir: PathBuf,
        /// Its scheme.
        scheme: String,
    },
    /// The result would overwrite the checkpoint.
    #[error("cannot quantise {} into itself; name another directory", dir.display())]
    SameDirectory {
        /// The checkpoint.
        dir: PathBuf,
    },
    /// A weight is infinite or not a number.
    #[error("tensor {tensor} has a value in row {row} that is not finite; no scale can hold it")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The row.
        row: usize,
    },
}

/// Writes the language model of `ckpt` under `scheme` into `out_dir`, which is created if absent.
///
/// Under [`Scheme::Int8`] each linear weight `[out, in]` becomes I8 of the same shape and
/// `<name>_scale` F32 `[out]`: `scale = max|w| / 127` over the row, `q = round(w / scale)` with
/// ties to even.  A row of zeros has scale 0.  A tied head is written as a copy of the embedding,
/// which itself stays as it is, as do norms and biases.
///
/// `progress` hears one line per layer.
///
/// # Errors
/// [`QuantizeError`] naming the file or tensor; what was written until then stays.
pub fn quantize(
    ckpt: &Checkpoint,
    scheme: Scheme,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), QuantizeError> {
    if ckpt.is_quantized() || ckpt.is_packed() && scheme != Scheme::None {
        let (dir, scheme) = (ckpt.dir().into(), ckpt.scheme_words());
        return Err(QuantizeError::AlreadyQuantized { dir, scheme });
    }
    fs::create_dir_all(out_dir).map_err(failed(out_dir))?;
    refuse_same_directory(ckpt.dir(), out_dir)?;
    copy_side_files(ckpt.dir(), out_dir)?;
    let config = out_dir.join(CONFIG_FILE);
    fs::write(&config, ckpt.config()).map_err(failed(&config))?;
    let mark = out_dir.join(scheme::MARK_FILE);
    fs::write(&mark, scheme::mark(scheme)).map_err(failed(&mark))?;
    let moves = moves(ckpt, scheme)?;
    let specs: Vec<TensorSpec> = moves.iter().flat_map(Move::specs).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = Writer::create(&out_dir.join(WEIGHTS_FILE), &specs, &metadata)?;
    let mut block = "";
    for step in &moves {
        if block_of(&step.target) != block {
            block = block_of(&step.target);
            progress(block);
        }
        step.perform(ckpt, &mut writer)?;
    }
    Ok(writer.finish()?)
}

/// One tensor of the result: where it comes from and what happens to it.
struct Move {
    source: String,
    target: String,
    dtype: Dtype,
    shape: Vec<usize>,
    is_quantized: bool,
}

/// The tensors of the result, in the order of the file.
fn moves(ckpt: &Checkpoint, scheme: Scheme) -> Result<Vec<Move>, CheckpointError> {
    let mut parts = vec![Part::Llm];
    if ckpt.has_lm_head() || scheme == Scheme::Int8 {
        parts.push(Part::Head);
    }
    let mut moves = Vec::new();
    for (target, shape) in ckpt.model().tensors(&parts) {
        let is_tied = target == LM_HEAD && !ckpt.has_lm_head();
        let source = if is_tied { EMBEDDING.to_owned() } else { target.clone() };
        if scheme == Scheme::Int8 && is_linear(&target) {
            let dtype = ckpt.dtype(&source)?;
            moves.push(Move { source, target, dtype, shape, is_quantized: true });
            continue;
        }
        // What another tool packed goes as it is, with its scales, zeros and order.
        for part in ckpt.parts(&source)? {
            let target = format!("{target}{}", &part.name[source.len()..]);
            let (source, dtype, shape) = (part.name.clone(), part.dtype, part.shape.clone());
            moves.push(Move { source, target, dtype, shape, is_quantized: false });
        }
    }
    Ok(moves)
}

impl Move {
    /// The entries this tensor makes in the table: itself, and its scales if it gets any.
    fn specs(&self) -> Vec<TensorSpec> {
        let spec = |name, dtype, shape| TensorSpec { name, dtype, shape };
        if !self.is_quantized {
            return vec![spec(self.target.clone(), self.dtype, self.shape.clone())];
        }
        let weight = spec(self.target.clone(), Dtype::I8, self.shape.clone());
        let scales = spec(scale_name(&self.target), Dtype::F32, vec![self.shape[0]]);
        vec![weight, scales]
    }

    fn perform(&self, ckpt: &Checkpoint, writer: &mut Writer) -> Result<(), QuantizeError> {
        if self.is_quantized { self.round(ckpt, writer) } else { self.copy(ckpt, writer) }
    }

    fn copy(&self, ckpt: &Checkpoint, writer: &mut Writer) -> Result<(), QuantizeError> {
        let size = self.shape.iter().product::<usize>() * self.dtype.size_bytes();
        let mut block = vec![0; BLOCK_BYTES.min(size)];
        let mut at = 0;
        while at < size {
            let part = block.len().min(size - at);
            let bytes = &mut block[..part];
            ckpt.read_bytes(&self.source, at as u64, bytes)?;
            writer.write(bytes)?;
            at += part;
        }
        Ok(())
    }

    /// Writes the integers block by block, then the scales, which are the only thing kept.
    fn round(&self, ckpt: &Checkpoint, writer: &mut Writer) -> Result<(), QuantizeError> {
        let (rows, width) = (self.shape[0], self.shape[1]);
        let step = (BLOCK_BYTES / size_of::<f32>() / width).max(1);
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let mut scales = Vec::with_capacity(rows * size_of::<f32>());
        for first in (0..rows).step_by(step) {
            ckpt.read_rows_f32(&self.source, first..rows.min(first + step), &mut values)?;
            levels.resize(values.len(), 0);
            let pairs = values.chunks_exact(width).zip(levels.chunks_exact_mut(width));
            for (row, (values, levels)) in (first..).zip(pairs) {
                let scale = round_row(values, levels)
                    .ok_or_else(|| QuantizeError::NotFinite { tensor: self.source.clone(), row })?;
                scales.extend_from_slice(&scale.to_le_bytes());
            }
            writer.write(&levels)?;
        }
        Ok(writer.write(&scales)?)
    }
}

/// Fills `levels` with the two's complement integers of `values` and returns their scale, or
/// nothing if a value is not finite.
///
/// A row whose scale would not be a normal f32 counts as zeros: no product with it would be one.
fn round_row(values: &[f32], levels: &mut [u8]) -> Option<f32> {
    let largest = largest_magnitude(values)?;
    let scale = largest / LEVEL_MAX;
    if scale < f32::MIN_POSITIVE {
        levels.fill(0);
        return Some(0.0);
    }
    for (level, &value) in levels.iter_mut().zip(values) {
        let nearest = (value / scale + ROUNDER) - ROUNDER;
        *level = (nearest.clamp(-LEVEL_MAX, LEVEL_MAX) as i8).cast_unsigned();
    }
    Some(scale)
}

/// The largest |value|, or nothing if one is not finite.
///
/// Without their sign, the bits of floats order as the floats do, and everything that is not
/// finite comes last.
fn largest_magnitude(values: &[f32]) -> Option<f32> {
    let bits = values.iter().map(|value| value.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0);
    Some(f32::from_bits(bits)).filter(|largest| largest.is_finite())
}

fn refuse_same_directory(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(failed(path));
    if real(from)? == real(to)? {
        return Err(QuantizeError::SameDirectory { dir: from.into() });
    }
    Ok(())
}

/// Copies the side files of a checkpoint that are there, its configuration left out.
pub(crate) fn copy_side_files(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    for name in SIDE_FILES {
        let source = from.join(name);
        if source.exists() {
            copy_file(&source, &to.join(name))?;
        }
    }
    Ok(())
}

/// Copies the bytes alone: a sealed file's read-only mode must not come along.
fn copy_file(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    let mut source =
        fs::File::open(from).map_err(|source| CheckpointError::Io { path: from.into(), source })?;
    let mut target = fs::File::create(to).map_err(failed(to))?;
    io::copy(&mut source, &mut target).map_err(failed(to))?;
    Ok(())
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> QuantizeError {
    move |source| QuantizeError::Io { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{self, Sample, named};

    const DOWN: &str = "language_model.model.layers.2.mlp.down_proj.weight";

    /// Quantises the checkpoint of `sample` into a directory beside it, and opens the result.
    fn quantized(sample: &Sample, scheme: Scheme) -> Checkpoint {
        let out = sample.dir().join(scheme.name());
        quantize(&Checkpoint::open(sample.dir()).unwrap(), scheme, &out, &mut |_| {}).unwrap();
        Checkpoint::open(&out).unwrap()
    }

    fn refusal(sample: &Sample) -> String {
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let out = sample.dir().join("out");
        quantize(&ckpt, Scheme::Int8, &out, &mut |_| {}).unwrap_err().to_string()
    }

    #[test]
    fn every_int8_weight_lies_within_half_a_step() {
        let sample = Sample::tiny();
        let original = Checkpoint::open(sample.dir()).unwrap();
        let result = quantized(&sample, Scheme::Int8);
        assert_eq!((result.scheme(), result.has(Part::Vision)), (Scheme::Int8, false));
        let names: Vec<_> = result.tensors().filter(|t| t.dtype == Dtype::I8).collect();
        assert_eq!(names.len(), 3 * 7 + 1);
        for tensor in names {
            let width = tensor.shape[1];
            let scales = result.read_f32(&scale_name(&tensor.name)).unwrap();
            let exact = original.read_f32(&tensor.name).unwrap();
            let rounded = result.read_f32(&tensor.name).unwrap();
            for (at, (w, r)) in exact.iter().zip(&rounded).enumerate() {
                let bound = scales[at / width] * 0.5001;
                assert!((w - r).abs() <= bound, "{} {at}: {w} {r}", tensor.name);
            }
            for (row, scale) in exact.chunks_exact(width).zip(scales) {
                let largest = row.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
                assert_eq!(scale, largest / 127.0);
            }
        }
    }

    #[test]
    fn everything_else_keeps_its_bytes() {
        for scheme in Scheme::ALL {
            let sample = Sample::tiny();
            let mut original = sample::load(&sample.weights());
            let result = sample::load(&quantized(&sample, scheme).dir().join(WEIGHTS_FILE));
            for kept in result.iter().filter(|(spec, _)| spec.dtype == Dtype::BF16) {
                assert_eq!(named(&mut original, &kept.0.name), kept);
            }
            let kept = result.iter().filter(|(spec, _)| spec.dtype == Dtype::BF16).count();
            let linears = if scheme == Scheme::None { 0 } else { 3 * 7 + 1 };
            assert_eq!(kept, 1 + 3 * 12 + 1 + 1 - linears);
        }
    }

    #[test]
    fn side_files_are_copied_byte_for_byte() {
        let sample = Sample::tiny();
        let result = quantized(&sample, Scheme::Int8);
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            let read = |dir: &Path| fs::read(dir.join(name)).unwrap();
            assert_eq!(read(sample.dir()), read(result.dir()));
        }
        let mark = fs::read_to_string(result.dir().join("smelt-quantize.json")).unwrap();
        assert!(mark.contains("\"scheme\": \"int8\""), "{mark}");
    }

    #[test]
    fn a_tied_head_becomes_an_int8_copy_of_the_embedding() {
        let sample = Sample::tied();
        let result = quantized(&sample, Scheme::Int8);
        assert_eq!(result.dtype(LM_HEAD).unwrap(), Dtype::I8);
        assert_eq!(result.dtype(EMBEDDING).unwrap(), Dtype::BF16);
        let (head, embedding) =
            (result.read_f32(LM_HEAD).unwrap(), result.read_f32(EMBEDDING).unwrap());
        let worst = head.iter().zip(&embedding).map(|(h, e)| (h - e).abs()).fold(0.0, f32::max);
        assert!(worst > 0.0 && worst < 0.01, "{worst}");
        assert!(!quantized(&sample, Scheme::None).has_lm_head());
    }

    #[test]
    fn the_bytes_are_the_same_every_time() {
        let (a, b) = (Sample::tiny(), Sample::tiny());
        let bytes = |sample: &Sample| {
            fs::read(quantized(sample, Scheme::Int8).dir().join(WEIGHTS_FILE)).unwrap()
        };
        assert!(bytes(&a) == bytes(&b));
    }

    #[test]
    fn a_row_of_zeros_stays_zeros() {
        let sample = Sample::changed(|all| named(all, DOWN).1[..160 * 2].fill(0));
        let result = quantized(&sample, Scheme::Int8);
        assert_eq!(result.read_f32(&scale_name(DOWN)).unwrap()[0], 0.0);
        let rows = result.read_f32(DOWN).unwrap();
        assert!(rows[..160].iter().all(|&value| value == 0.0));
        assert!(rows[160..320].iter().any(|&value| value != 0.0));
    }

    #[test]
    fn rows_round_to_even_and_use_every_level() {
        // Powers of two make the scale exact, so ties are real ties.
        let values: Vec<f32> = (-254..=254).map(|half| half as f32 / 2.0 * 0.25).collect();
        let mut levels = vec![0; values.len()];
        assert_eq!(round_row(&values, &mut levels), Some(0.25));
        for (value, level) in values.iter().zip(levels) {
            assert_eq!(f32::from(level.cast_signed()), (value / 0.25).round_ties_even());
        }
    }

    #[test]
    fn rows_at_the_ends_of_f32_stay_finite() {
        let row = |values: &[f32]| {
            let mut levels = vec![1; values.len()];
            round_row(values, &mut levels).map(|scale| (scale, levels))
        };
        let tiny = f32::from_bits(1);
        assert_eq!(row(&[tiny, -tiny, 0.0]), Some((0.0, vec![0, 0, 0])));
        assert_eq!(row(&[f32::MAX, -f32::MAX]), Some((f32::MAX / 127.0, vec![127, 129])));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(row(&[1.0, bad]), None);
        }
    }

    #[test]
    fn a_weight_that_is_not_finite_is_named() {
        let nan = half::bf16::NAN.to_le_bytes();
        let sample =
            Sample::changed(|all| named(all, DOWN).1[2 * 160 * 3..][..2].copy_from_slice(&nan));
        let error = refusal(&sample);
        assert!(error.contains(DOWN) && error.contains("row 3"), "{error}");
    }

    #[test]
    fn a_result_is_not_quantised_again() {
        let sample = Sample::tiny();
        let result = quantized(&sample, Scheme::Int8);
        let again = quantize(&result, Scheme::Int8, &sample.dir().join("again"), &mut |_| {});
        let error = again.unwrap_err().to_string();
        assert!(error.contains("already quantised (scheme int8)"), "{error}");
        assert!(!sample.dir().join("again").exists());
    }

    #[test]
    fn a_checkpoint_is_not_quantised_into_itself() {
        let sample = Sample::tiny();
        let before = fs::read(sample.weights()).unwrap();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let error = quantize(&ckpt, Scheme::Int8, sample.dir(), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("into itself"), "{error}");
        assert!(fs::read(sample.weights()).unwrap() == before);
    }

    #[test]
    fn an_input_cut_off_while_it_is_read_is_called_changed() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let file = fs::File::options().write(true).open(sample.weights()).unwrap();
        file.set_len(file.metadata().unwrap().len() - 10).unwrap();
        let out = sample.dir().join("out");
        let error = quantize(&ckpt, Scheme::Int8, &out, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("it ended inside tensor language_model.lm_head.weight"), "{error}");
        assert!(Checkpoint::open(&out).is_err());
    }

    #[test]
    fn progress_is_heard_once_per_block() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let mut lines = Vec::new();
        let out = sample.dir().join("out");
        quantize(&ckpt, Scheme::Int8, &out, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines.len(), 1 + 3 + 1 + 1);
        assert_eq!(lines[1], "language_model.model.layers.0");
    }
}
