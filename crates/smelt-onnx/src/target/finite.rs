//! Reads the float weights, a block at a time, for numbers that no engine survives.

use half::bf16;

use super::{Findings, Subject};
use crate::ElementType;
use crate::external::{DataError, read_initializer};
use crate::model::Initializer;
use crate::survey::tensors;

/// Bytes read at a time.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// The largest finite f16.
const F16_MAX: f32 = 65504.0;

/// NaN and infinity, which are errors; and numbers that an f16 engine makes infinite.
pub(super) fn weight_range(subject: &Subject<'_>, found: &mut Findings) -> Result<(), DataError> {
    let mut held = Vec::new();
    tensors(&subject.model.graph, &mut |tensor| held.push(tensor.clone()));
    for tensor in &held {
        let place = || format!("tensor {:?}", tensor.name);
        let range = range(subject, tensor)?;
        if !range.finite {
            found.error(place(), "it holds NaN or infinity", "export it again from its checkpoint");
        } else if range.largest > F16_MAX && tensor.dtype != ElementType::F64 {
            let what = format!("it holds {:e}, which is infinite in f16", range.largest);
            found.warning(place(), what, "build the engine in bf16 or f32");
        }
    }
    Ok(())
}

struct Range {
    finite: bool,
    largest: f32,
}

fn range(subject: &Subject<'_>, tensor: &Initializer) -> Result<Range, DataError> {
    let mut range = Range { finite: true, largest: 0.0 };
    if !tensor.dtype.is_float() {
        return Ok(range);
    }
    let length = tensor.byte_len().unwrap_or(0);
    let mut block = vec![0; length.min(BLOCK_BYTES)];
    for begin in (0..length).step_by(BLOCK_BYTES) {
        let block = &mut block[..(length - begin).min(BLOCK_BYTES)];
        read_initializer(subject.dir(), tensor, begin as u64, block)?;
        range.take(tensor.dtype, block);
    }
    Ok(range)
}

impl Range {
    fn take(&mut self, dtype: ElementType, block: &[u8]) {
        match dtype {
            ElementType::F16 => {
                let pairs = block.as_chunks::<2>().0.iter();
                // An f16 is finite if its exponent is not all ones.
                self.finite &=
                    pairs.clone().all(|pair| u16::from_le_bytes(*pair) & 0x7C00 != 0x7C00);
            }
            ElementType::Bf16 => {
                let pairs = block.as_chunks::<2>().0.iter();
                self.numbers(pairs.map(|pair| bf16::from_le_bytes(*pair).to_f32()));
            }
            ElementType::F32 => {
                self.numbers(block.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)));
            }
            _ => {
                let words = block.as_chunks::<8>().0.iter();
                self.finite &= words.clone().all(|word| f64::from_le_bytes(*word).is_finite());
            }
        }
    }

    fn numbers(&mut self, numbers: impl Iterator<Item = f32>) {
        for number in numbers {
            self.finite &= number.is_finite();
            self.largest = self.largest.max(number.abs());
        }
    }
}
