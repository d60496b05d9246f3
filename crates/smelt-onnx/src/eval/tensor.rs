//! Holds one tensor of the evaluator: numbers in the widest type, rounded to their own.
//!
//! Floats are kept as f64 and integers as i64; every tensor that is made is first rounded,
//! or wrapped, to its element type, so a graph computes what its types say.  Knows nothing
//! of nodes.

use half::{bf16, f16};

use crate::ElementType;

/// A tensor: type, shape, numbers in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    dtype: ElementType,
    dims: Vec<usize>,
    numbers: Numbers,
}

#[derive(Debug, Clone, PartialEq)]
enum Numbers {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
}

impl Tensor {
    /// A tensor of floats, each rounded to `dtype`.
    ///
    /// # Panics
    /// When `dtype` is no float, or the shape has another number of elements.
    pub fn floats(dtype: ElementType, dims: &[usize], mut values: Vec<f64>) -> Self {
        assert!(dtype.is_float(), "{dtype} is no float");
        assert_eq!(values.len(), dims.iter().product::<usize>(), "shape {dims:?}");
        for value in &mut values {
            *value = round(dtype, *value);
        }
        Self { dtype, dims: dims.to_vec(), numbers: Numbers::Floats(values) }
    }

    /// A tensor of integers or flags, each wrapped to `dtype`.
    ///
    /// # Panics
    /// When `dtype` is a float, or the shape has another number of elements.
    pub fn ints(dtype: ElementType, dims: &[usize], mut values: Vec<i64>) -> Self {
        assert!(!dtype.is_float(), "{dtype} is a float");
        assert_eq!(values.len(), dims.iter().product::<usize>(), "shape {dims:?}");
        for value in &mut values {
            *value = wrap(dtype, *value);
        }
        Self { dtype, dims: dims.to_vec(), numbers: Numbers::Ints(values) }
    }

    /// Reads a tensor's bytes, little endian, row major; `None` when they are too few or many.
    pub fn from_bytes(dtype: ElementType, dims: &[usize], bytes: &[u8]) -> Option<Self> {
        if dtype.byte_len(dims)? != bytes.len() {
            return None;
        }
        let count = dims.iter().product();
        Some(match dtype {
            ElementType::F32 => Self::floats(dtype, dims, wide(bytes, f32::from_le_bytes)),
            ElementType::F64 => Self::floats(dtype, dims, wide(bytes, f64::from_le_bytes)),
            ElementType::F16 => Self::floats(dtype, dims, wide(bytes, f16::from_le_bytes)),
            ElementType::Bf16 => Self::floats(dtype, dims, wide(bytes, bf16::from_le_bytes)),
            ElementType::I4 | ElementType::U4 => {
                Self::ints(dtype, dims, (0..count).map(|at| nibble(bytes, at)).collect())
            }
            _ => {
                let word = |bytes: &[u8]| {
                    bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte)) as i64
                };
                Self::ints(dtype, dims, bytes.chunks(dtype.bits() / 8).map(word).collect())
            }
        })
    }

    /// The tensor's bytes, little endian, row major.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.numbers {
            Numbers::Floats(values) => {
                let bytes = values.iter().flat_map(|value| match self.dtype {
                    ElementType::F32 => (*value as f32).to_le_bytes().to_vec(),
                    ElementType::F16 => f16::from_f64(*value).to_le_bytes().to_vec(),
                    ElementType::Bf16 => bf16::from_f64(*value).to_le_bytes().to_vec(),
                    _ => value.to_le_bytes().to_vec(),
                });
                bytes.collect()
            }
            Numbers::Ints(values) if self.dtype.bits() == 4 => {
                let pair = |pair: &[i64]| {
                    (pair[0] & 15 | (pair.get(1).copied().unwrap_or(0) & 15) << 4) as u8
                };
                values.chunks(2).map(pair).collect()
            }
            Numbers::Ints(values) => {
                let width = self.dtype.bits() / 8;
                values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
            }
        }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> ElementType {
        self.dtype
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The floats, or `None` for integers and flags.
    pub fn as_floats(&self) -> Option<&[f64]> {
        match &self.numbers {
            Numbers::Floats(values) => Some(values),
            Numbers::Ints(_) => None,
        }
    }

    /// The integers or flags, or `None` for floats.
    pub fn as_ints(&self) -> Option<&[i64]> {
        match &self.numbers {
            Numbers::Ints(values) => Some(values),
            Numbers::Floats(_) => None,
        }
    }

    /// A tensor without numbers that has only a shape, for `Shape` to read.
    pub(crate) fn hollow(dims: Vec<usize>) -> Self {
        Self { dtype: ElementType::Bool, dims, numbers: Numbers::Ints(Vec::new()) }
    }

    /// The same numbers under another shape of as many elements.
    pub(super) fn shaped(&self, dims: Vec<usize>) -> Self {
        debug_assert_eq!(dims.iter().product::<usize>(), self.elements());
        Self { dims, ..self.clone() }
    }

    /// A tensor of shape `dims` made of the elements at `sources`; `None` takes the first
    /// element of `fill`, or zero.
    pub(super) fn pick(
        &self,
        dims: Vec<usize>,
        fill: Option<&Tensor>,
        sources: impl Iterator<Item = Option<usize>>,
    ) -> Self {
        let numbers = match &self.numbers {
            Numbers::Floats(values) => {
                let fill = fill
                    .and_then(Tensor::as_floats)
                    .and_then(|fill| fill.first().copied())
                    .unwrap_or(0.0);
                Numbers::Floats(sources.map(|at| at.map_or(fill, |at| values[at])).collect())
            }
            Numbers::Ints(values) => {
                let fill = fill
                    .and_then(Tensor::as_ints)
                    .and_then(|fill| fill.first().copied())
                    .unwrap_or(0);
                Numbers::Ints(sources.map(|at| at.map_or(fill, |at| values[at])).collect())
            }
        };
        Self { dtype: self.dtype, dims, numbers }
    }

    /// All elements of `parts`, one part after the other, as a list; `None` where types differ.
    pub(super) fn chain(parts: &[&Tensor]) -> Option<Self> {
        let dtype = parts.first()?.dtype;
        if parts.iter().any(|part| part.dtype != dtype) {
            return None;
        }
        let numbers = if dtype.is_float() {
            Numbers::Floats(parts.iter().filter_map(|p| p.as_floats()).flatten().copied().collect())
        } else {
            Numbers::Ints(parts.iter().filter_map(|p| p.as_ints()).flatten().copied().collect())
        };
        let dims = vec![parts.iter().map(|part| part.elements()).sum()];
        Some(Self { dtype, dims, numbers })
    }

    /// The numbers in type `to`: floats to integers toward zero, anything but zero to true.
    pub fn cast(&self, to: ElementType) -> Self {
        match (&self.numbers, to) {
            (Numbers::Floats(values), ElementType::Bool) => {
                Self::ints(to, &self.dims, values.iter().map(|v| i64::from(*v != 0.0)).collect())
            }
            (Numbers::Ints(values), ElementType::Bool) => {
                Self::ints(to, &self.dims, values.iter().map(|v| i64::from(*v != 0)).collect())
            }
            (Numbers::Floats(values), to) if to.is_float() => {
                Self::floats(to, &self.dims, values.clone())
            }
            (Numbers::Floats(values), to) => {
                Self::ints(to, &self.dims, values.iter().map(|v| *v as i64).collect())
            }
            (Numbers::Ints(values), to) if to.is_float() => {
                Self::floats(to, &self.dims, values.iter().map(|v| *v as f64).collect())
            }
            (Numbers::Ints(values), to) => Self::ints(to, &self.dims, values.clone()),
        }
    }
}

fn wide<const N: usize, T: Into<f64>>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<f64> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk).into()).collect()
}

fn nibble(bytes: &[u8], at: usize) -> i64 {
    i64::from(bytes[at / 2] >> (at % 2 * 4) & 15)
}

fn round(dtype: ElementType, value: f64) -> f64 {
    match dtype {
        ElementType::F32 => f64::from(value as f32),
        ElementType::F16 => f16::from_f64(value).to_f64(),
        ElementType::Bf16 => bf16::from_f64(value).to_f64(),
        _ => value,
    }
}

fn wrap(dtype: ElementType, value: i64) -> i64 {
    match dtype {
        ElementType::Bool => i64::from(value != 0),
        ElementType::I8 => i64::from(value as i8),
        ElementType::U8 => i64::from(value as u8),
        ElementType::I16 => i64::from(value as i16),
        ElementType::U16 => i64::from(value as u16),
        ElementType::I32 => i64::from(value as i32),
        ElementType::U32 => i64::from(value as u32),
        ElementType::U4 => value & 15,
        ElementType::I4 => (value & 15 ^ 8) - 8,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ElementType::*;

    #[test]
    fn bytes_and_numbers_are_inverse() {
        for dtype in [F32, F16, Bf16, F64, I8, U8, I16, U16, I32, U32, I64, Bool, I4, U4] {
            let bytes: Vec<u8> = match dtype {
                Bool => vec![1, 0, 1],
                I4 | U4 => vec![0x8F, 0x07],
                _ => (0..3 * dtype.bits() / 8).map(|at| (at * 29 % 120) as u8).collect(),
            };
            let tensor = Tensor::from_bytes(dtype, &[3], &bytes).unwrap();
            assert_eq!(tensor.to_bytes(), bytes, "{dtype}");
            assert_eq!(Tensor::from_bytes(dtype, &[9], &bytes), None, "{dtype}");
        }
    }

    #[test]
    fn numbers_take_the_type_they_are_given() {
        assert_eq!(Tensor::floats(F16, &[1], vec![1e-8]).as_floats().unwrap(), [0.0]);
        assert_eq!(Tensor::floats(Bf16, &[1], vec![1.001]).as_floats().unwrap(), [1.0]);
        assert_eq!(Tensor::ints(I8, &[2], vec![200, -129]).as_ints().unwrap(), [-56, 127]);
        assert_eq!(Tensor::ints(I4, &[2], vec![8, -8]).as_ints().unwrap(), [-8, -8]);
        let cast = Tensor::floats(F32, &[3], vec![-1.9, 0.0, 2.5]).cast(I64);
        assert_eq!(cast.as_ints().unwrap(), [-1, 0, 2]);
        assert_eq!(cast.cast(Bool).as_ints().unwrap(), [1, 0, 1]);
    }
}
