//! Rounds a matrix to 8 or 4 bits on its way into a new file, a block of rows at a time.
//!
//! Round to nearest, symmetric: the scale of a block is its largest magnitude over the largest
//! code.  Where blocks go down the columns the matrix is read twice, once for the scales.
//! Knows nothing of graphs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::ElementType;
use crate::external::{DataError, read_initializer};
use crate::model::{Data, Initializer};

/// Bytes of the matrix that are read at a time, if a row is not longer.
const BLOCK_BYTES: usize = 1 << 20;

/// Most bytes of a row of the matrix: a row is held whole, as f32 too.
pub(super) const ROW_BYTES_MAX: usize = 8 << 20;

/// A matrix that is to be rounded.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantisation {
    /// The matrix of f32, f16 or bf16, as it lies in the old model.
    pub from: Initializer,
    /// The codes, i8 or i4, of the same shape.
    pub codes: Initializer,
    /// A scale for every block, row major.
    pub scale: Initializer,
    /// Whether blocks go along rows; else down columns.
    pub along_rows: bool,
    /// Neighbours that share a scale; the last block may be short.
    pub block: usize,
}

/// A matrix that could not be rounded.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuantiseError {
    #[error(transparent)]
    Read(#[from] DataError),
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
    #[error("row {row} holds NaN or infinity")]
    NotFinite { row: usize },
}

impl Quantisation {
    /// Reads the matrix from the model in `dir` and writes codes and scales into `target`.
    pub(super) fn write(&self, dir: &Path, target: &File) -> Result<(), QuantiseError> {
        let mut pass = Pass {
            plan: self,
            dir,
            codes: Codes { target, at: offset(&self.codes), nibbles: self.is_4_bit(), half: None },
            scale_at: offset(&self.scale),
            bytes: Vec::new(),
            values: Vec::new(),
            packed: Vec::new(),
        };
        let rows = self.from.dims[0];
        if self.along_rows {
            pass.rows(rows)?;
        } else {
            let block = self.block.max(1);
            for first in (0..rows).step_by(block) {
                pass.band(first..rows.min(first + block))?;
            }
        }
        pass.codes.finish()?;
        Ok(())
    }

    fn is_4_bit(&self) -> bool {
        self.codes.dtype.bits() == 4
    }

    /// The smallest and largest code.
    fn limits(&self) -> (f32, f32) {
        if self.is_4_bit() { (-8.0, 7.0) } else { (-127.0, 127.0) }
    }

    fn scale(&self, largest: f32) -> f32 {
        scale(self.scale.dtype, largest, self.limits().1)
    }
}

/// The scale of type `dtype` by which the code `most` stands for a largest magnitude, as it will be read back; more than
/// nothing, since TensorRT takes no other.
pub(super) fn scale(dtype: ElementType, largest: f32, most: f32) -> f32 {
    let scale = largest / most;
    match dtype {
        ElementType::F16 => f16::from_f32(scale).clamp(f16::MIN_POSITIVE, f16::MAX).to_f32(),
        ElementType::Bf16 => bf16::from_f32(scale).max(bf16::MIN_POSITIVE).to_f32(),
        _ => scale.max(f32::MIN_POSITIVE),
    }
}

/// Scales of type `dtype` as they are stored.
pub(super) fn scale_bytes(dtype: ElementType, scales: &[f32]) -> Vec<u8> {
    match dtype {
        ElementType::F16 => scales.iter().flat_map(|s| f16::from_f32(*s).to_le_bytes()).collect(),
        ElementType::Bf16 => scales.iter().flat_map(|s| bf16::from_f32(*s).to_le_bytes()).collect(),
        _ => scales.iter().flat_map(|s| s.to_le_bytes()).collect(),
    }
}

/// The work under way, with buffers that are used again.
struct Pass<'a> {
    plan: &'a Quantisation,
    dir: &'a Path,
    codes: Codes<'a>,
    scale_at: u64,
    bytes: Vec<u8>,
    values: Vec<f32>,
    packed: Vec<i8>,
}

impl Pass<'_> {
    fn columns(&self) -> usize {
        self.plan.from.dims[1]
    }

    /// Rows that are read at a time.
    fn rows_per_read(&self) -> usize {
        let row = self.columns() * self.plan.from.dtype.bits() / 8;
        (BLOCK_BYTES / row.max(1)).max(1)
    }

    /// Fills `values` with these rows.
    fn read(&mut self, rows: std::ops::Range<usize>) -> Result<(), QuantiseError> {
        let columns = self.columns();
        let width = self.plan.from.dtype.bits() / 8;
        self.bytes.resize(rows.len() * columns * width, 0);
        let begin = (rows.start * columns * width) as u64;
        read_initializer(self.dir, &self.plan.from, begin, &mut self.bytes)?;
        widen(self.plan.from.dtype, &self.bytes, &mut self.values);
        match self.values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(at) => Err(QuantiseError::NotFinite { row: rows.start + at / columns.max(1) }),
        }
    }

    fn rows(&mut self, rows: usize) -> Result<(), QuantiseError> {
        let (columns, step) = (self.columns(), self.rows_per_read());
        let (low, high) = self.plan.limits();
        let mut scales = Vec::new();
        for first in (0..rows).step_by(step) {
            self.read(first..rows.min(first + step))?;
            scales.clear();
            self.packed.clear();
            for row in self.values.chunks(columns.max(1)) {
                for block in row.chunks(self.plan.block.max(1)) {
                    let scale = self.plan.scale(largest(block));
                    scales.push(scale);
                    self.packed.extend(block.iter().map(|value| code(*value, scale, low, high)));
                }
            }
            self.codes.write(&self.packed)?;
            self.write_scales(&scales)?;
        }
        Ok(())
    }

    /// Rounds rows of which each column shares a scale.
    fn band(&mut self, rows: std::ops::Range<usize>) -> Result<(), QuantiseError> {
        let (columns, step) = (self.columns(), self.rows_per_read());
        let (low, high) = self.plan.limits();
        let mut scales = vec![0.0f32; columns];
        for first in rows.clone().step_by(step) {
            self.read(first..rows.end.min(first + step))?;
            for row in self.values.chunks(columns.max(1)) {
                for (most, value) in scales.iter_mut().zip(row) {
                    *most = most.max(value.abs());
                }
            }
        }
        scales.iter_mut().for_each(|most| *most = self.plan.scale(*most));
        for first in rows.clone().step_by(step) {
            self.read(first..rows.end.min(first + step))?;
            self.packed.clear();
            for row in self.values.chunks(columns.max(1)) {
                let codes = row.iter().zip(&scales).map(|(value, s)| code(*value, *s, low, high));
                self.packed.extend(codes);
            }
            self.codes.write(&self.packed)?;
        }
        self.write_scales(&scales)
    }

    fn write_scales(&mut self, scales: &[f32]) -> Result<(), QuantiseError> {
        let bytes = scale_bytes(self.plan.scale.dtype, scales);
        self.codes.target.write_all_at(&bytes, self.scale_at)?;
        self.scale_at += bytes.len() as u64;
        Ok(())
    }
}

/// Codes on their way into the file.
struct Codes<'a> {
    target: &'a File,
    at: u64,
    /// Whether two codes share a byte, the first in its low half.
    nibbles: bool,
    /// A code that waits for its neighbour.
    half: Option<i8>,
}

impl Codes<'_> {
    fn write(&mut self, codes: &[i8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(codes.len());
        if self.nibbles {
            for code in codes {
                match self.half.take() {
                    None => self.half = Some(*code),
                    Some(low) => bytes.push((low & 15) as u8 | (*code as u8) << 4),
                }
            }
        } else {
            bytes.extend(codes.iter().map(|code| *code as u8));
        }
        self.put(&bytes)
    }

    fn finish(&mut self) -> io::Result<()> {
        let last: Vec<u8> = self.half.take().map(|low| (low & 15) as u8).into_iter().collect();
        self.put(&last)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.target.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, value| most.max(value.abs()))
}

/// The code nearest to `value`.
fn code(value: f32, scale: f32, low: f32, high: f32) -> i8 {
    (value / scale).round_ties_even().clamp(low, high) as i8
}

fn widen(dtype: ElementType, bytes: &[u8], values: &mut Vec<f32>) {
    values.clear();
    match dtype {
        ElementType::F16 => {
            let halves = bytes.as_chunks::<2>().0.iter().map(|pair| f16::from_le_bytes(*pair));
            let halves: Vec<f16> = halves.collect();
            values.resize(halves.len(), 0.0);
            halves.convert_to_f32_slice(values);
        }
        ElementType::Bf16 => {
            let pairs = bytes.as_chunks::<2>().0.iter();
            values.extend(pairs.map(|pair| bf16::from_le_bytes(*pair).to_f32()));
        }
        _ => values.extend(bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word))),
    }
}

fn offset(tensor: &Initializer) -> u64 {
    match &tensor.data {
        Data::External { offset, .. } => *offset,
        Data::Inline(_) => 0,
    }
}
