//! Streams checkpoint tensors into a model's external data, rounded to one element type.
//!
//! One block of elements is in memory at a time, in buffers that are used again for every
//! tensor.  Knows nothing of what a tensor is for.

use std::fs;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use smelt_onnx::{ElementType, ExternalData, Initializer};

use super::ExportError;
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;

/// Elements converted at a time: few system calls, and the buffers stay in the second-level
/// cache of small cores.
const BLOCK_ELEMENTS: usize = 64 << 10;

/// The largest f16, 65504.
const F16_MAX: f32 = f16::MAX.to_f32_const();

/// Copies tensors of one checkpoint to one external data file.
pub(super) struct WeightStream<'a> {
    checkpoint: &'a Checkpoint,
    element_type: ElementType,
    file: ExternalData,
    stored: Vec<u8>,
    floats: Vec<f32>,
    rounder: Rounder,
}

impl<'a> WeightStream<'a> {
    /// Creates the data file in `out_dir`, and the directory if need be.
    pub(super) fn create(
        checkpoint: &'a Checkpoint,
        dtype: Dtype,
        out_dir: &Path,
    ) -> Result<Self, ExportError> {
        let element_type = element_type(dtype).ok_or(ExportError::NotFloat { dtype })?;
        fs::create_dir_all(out_dir)
            .map_err(|source| ExportError::CreateDir { path: out_dir.to_owned(), source })?;
        let file = ExternalData::create(out_dir)?;
        let (stored, floats, rounder) = Default::default();
        Ok(Self { checkpoint, element_type, file, stored, floats, rounder })
    }

    /// The type every tensor is rounded to.
    pub(super) fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Copies tensor `name`, declared as `dims`, which may merge dimensions of the stored shape.
    pub(super) fn copy(&mut self, name: &str, dims: &[usize]) -> Result<Initializer, ExportError> {
        self.copy_as(name, dims, self.element_type)
    }

    /// [`Self::copy`], rounded to another type than the rest.
    pub(super) fn copy_as(
        &mut self,
        name: &str,
        dims: &[usize],
        wanted: ElementType,
    ) -> Result<Initializer, ExportError> {
        let dtype = self.checkpoint.dtype(name)?;
        if element_type(dtype).is_none() {
            return self.copy_quantised(name, dims);
        }
        let mut left: usize = self.checkpoint.shape(name)?.iter().product();
        let mut tensor = self.file.tensor(name, wanted, dims)?;
        let mut offset = 0;
        while left > 0 {
            let elements = left.min(BLOCK_ELEMENTS);
            self.stored.resize(elements * dtype.size_bytes(), 0);
            self.checkpoint.read_bytes(name, offset, &mut self.stored)?;
            check_finite(name, dtype, offset, &self.stored)?;
            if element_type(dtype) == Some(wanted) {
                tensor.write(&self.stored)?;
            } else {
                self.floats.clear();
                assert!(dtype.widen(&self.stored, &mut self.floats), "{name} is of floats");
                let rounded = self.rounder.round(&self.floats, wanted);
                tensor.write(rounded.map_err(|value| beyond_f16(name, value))?)?;
            }
            offset += self.stored.len() as u64;
            left -= elements;
        }
        Ok(tensor.finish()?)
    }

    /// Copies a tensor of integers with scales as the floats they stand for.
    fn copy_quantised(&mut self, name: &str, dims: &[usize]) -> Result<Initializer, ExportError> {
        let (rows, width) = (dims[0], dims[1..].iter().product::<usize>().max(1));
        let rows_at_once = (BLOCK_ELEMENTS / width).max(1);
        let mut tensor = self.file.tensor(name, self.element_type, dims)?;
        for first in (0..rows).step_by(rows_at_once) {
            let some = first..rows.min(first + rows_at_once);
            self.checkpoint.read_rows_f32(name, some, &mut self.floats)?;
            if let Some(at) = self.floats.iter().position(|value| !value.is_finite()) {
                let (tensor, element) = (name.to_owned(), (first * width + at) as u64);
                return Err(ExportError::NotFinite { tensor, value: self.floats[at], element });
            }
            let rounded = self.rounder.round(&self.floats, self.element_type);
            tensor.write(rounded.map_err(|value| beyond_f16(name, value))?)?;
        }
        Ok(tensor.finish()?)
    }
}

/// Tables that the exporter makes itself.
impl<'a> WeightStream<'a> {
    /// The checkpoint the weights come from.
    pub(super) fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// Stores a table of floats in the type of the graph.
    pub(super) fn constant(
        &mut self,
        name: &str,
        dims: &[usize],
        values: &[f32],
    ) -> Result<Initializer, ExportError> {
        let mut tensor = self.file.tensor(name, self.element_type, dims)?;
        for block in values.chunks(BLOCK_ELEMENTS) {
            let rounded = self.rounder.round(block, self.element_type);
            tensor.write(rounded.map_err(|value| beyond_f16(name, value))?)?;
        }
        Ok(tensor.finish()?)
    }

    /// Stores a table of floats whose rows are made one at a time, the same way.
    pub(super) fn rows(
        &mut self,
        name: &str,
        dims: &[usize; 2],
        mut row: impl FnMut(usize, &mut Vec<f32>) -> Result<(), ExportError>,
    ) -> Result<Initializer, ExportError> {
        let mut tensor = self.file.tensor(name, self.element_type, dims)?;
        for index in 0..dims[0] {
            row(index, &mut self.floats)?;
            let rounded = self.rounder.round(&self.floats, self.element_type);
            tensor.write(rounded.map_err(|value| beyond_f16(name, value))?)?;
        }
        Ok(tensor.finish()?)
    }

    /// Stores a list of integers.
    pub(super) fn integers(
        &mut self,
        name: &str,
        values: &[i64],
    ) -> Result<Initializer, ExportError> {
        let mut tensor = self.file.tensor(name, ElementType::I64, &[values.len()])?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensor.write(&bytes)?;
        Ok(tensor.finish()?)
    }
}

fn beyond_f16(name: &str, value: f32) -> ExportError {
    ExportError::BeyondF16 { tensor: name.to_owned(), value }
}

/// Refuses NaN and infinities among `bytes`, which lie at `offset` of `tensor`.
fn check_finite(tensor: &str, dtype: Dtype, offset: u64, bytes: &[u8]) -> Result<(), ExportError> {
    let Some(at) = dtype.first_not_finite(bytes) else { return Ok(()) };
    let size = dtype.size_bytes();
    let mut value = Vec::new();
    assert!(dtype.widen(&bytes[at * size..][..size], &mut value), "only floats are not finite");
    let (tensor, element) = (tensor.to_owned(), offset / size as u64 + at as u64);
    Err(ExportError::NotFinite { tensor, value: value[0], element })
}

/// The graph's name for a dtype that graphs compute in.
fn element_type(dtype: Dtype) -> Option<ElementType> {
    match dtype {
        Dtype::F32 => Some(ElementType::F32),
        Dtype::F16 => Some(ElementType::F16),
        Dtype::BF16 => Some(ElementType::Bf16),
        _ => None,
    }
}

/// Rounds floats to nearest, ties to even.
#[derive(Default)]
struct Rounder {
    halves: Vec<f16>,
    bytes: Vec<u8>,
}

impl Rounder {
    /// The little-endian bytes of `floats` as `element_type`; fails with the first value that
    /// f16 cannot hold.
    fn round(&mut self, floats: &[f32], element_type: ElementType) -> Result<&[u8], f32> {
        self.bytes.resize(floats.len() * element_type.bits() / 8, 0);
        let pairs = self.bytes.as_chunks_mut::<2>().0.iter_mut();
        match element_type {
            ElementType::F16 => {
                check_f16(floats)?;
                self.halves.resize(floats.len(), f16::ZERO);
                self.halves.convert_from_f32_slice(floats);
                pairs.zip(&self.halves).for_each(|(out, v)| *out = v.to_le_bytes());
            }
            ElementType::Bf16 => {
                pairs.zip(floats).for_each(|(out, v)| *out = bf16::from_f32(*v).to_le_bytes());
            }
            _ => {
                let out = self.bytes.as_chunks_mut::<4>().0;
                out.iter_mut().zip(floats).for_each(|(out, v)| *out = v.to_le_bytes());
            }
        }
        Ok(&self.bytes)
    }
}

/// Fails with the first value beyond the largest f16.
fn check_f16(floats: &[f32]) -> Result<(), f32> {
    let fits = |value: &f32| value.abs() <= F16_MAX;
    // One pass without an exit is vectorised; the search for the culprit may be slow.
    if floats.iter().fold(true, |all, value| all & fits(value)) {
        return Ok(());
    }
    floats.iter().find(|value| !fits(value)).map_or(Ok(()), |value| Err(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(element_type: ElementType, value: f32, expect: &[u8]) {
        let mut rounder = Rounder::default();
        let bytes = rounder.round(&[0.0, value], element_type).unwrap();
        assert_eq!(bytes[expect.len()..], *expect);
    }

    #[test]
    fn halves_round_to_even() {
        check(ElementType::F16, 1.0 + 1.0 / 2048.0, &0x3C00u16.to_le_bytes());
        check(ElementType::F16, 1.0 + 3.0 / 2048.0, &0x3C02u16.to_le_bytes());
        check(ElementType::F16, -65504.0, &0xFBFFu16.to_le_bytes());
        check(ElementType::F16, 2f32.powi(-25), &[0, 0]);
        check(ElementType::F16, 3.0 * 2f32.powi(-25), &[2, 0]);
        check(ElementType::Bf16, 1.0 + 1.0 / 256.0, &0x3F80u16.to_le_bytes());
        check(ElementType::Bf16, 1.0 + 3.0 / 256.0, &0x3F82u16.to_le_bytes());
        check(ElementType::F32, -0.1, &(-0.1f32).to_le_bytes());
    }

    #[test]
    fn what_f16_cannot_hold_is_named() {
        let round = |value| {
            let mut rounder = Rounder::default();
            rounder.round(&[1.0, value, 2.0], ElementType::F16).map(<[u8]>::len)
        };
        assert_eq!(round(65504.0), Ok(6));
        assert_eq!(round(65505.0), Err(65505.0));
        assert_eq!(round(f32::NEG_INFINITY), Err(f32::NEG_INFINITY));
        assert!(round(f32::NAN).unwrap_err().is_nan());
    }
}
