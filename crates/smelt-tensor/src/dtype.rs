//! Names the element types of stored tensors, and widens floating point bytes to f32.
//!
//! A dtype word or a block of little-endian bytes comes in, a [`Dtype`] or f32 values go out.
//! Knows nothing of files or models.

use half::{bf16, f16};
use pulp::Arch;

/// The type of one stored element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Float of 8 bits: 4 exponent bits, 3 mantissa bits.
    F8E4M3,
    /// Float of 8 bits: 5 exponent bits, 2 mantissa bits.
    F8E5M2,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// IEEE single precision.
    F32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// IEEE double precision.
    F64,
}

impl Dtype {
    /// Every dtype, in the order of the enum.
    pub const ALL: [Self; 15] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::U16,
        Self::I16,
        Self::F16,
        Self::BF16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The word safetensors headers use, for example `BF16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::U16 => "U16",
            Self::I16 => "I16",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::U32 => "U32",
            Self::I32 => "I32",
            Self::F32 => "F32",
            Self::U64 => "U64",
            Self::I64 => "I64",
            Self::F64 => "F64",
        }
    }

    /// The dtype of a safetensors word; pipeline words (`f32`, `bf16`) are the same in lower case.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(word))
    }

    /// Whether [`Dtype::widen`] can turn elements of this type into f32 without loss.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32)
    }

    /// The index of the first NaN or infinity among little-endian elements; nothing where all are
    /// finite, and for types that are no F16, BF16 or F32.
    ///
    /// Without its sign, a float's bits order as floats do, and everything that is not finite comes
    /// last: the common case is one pass of integer comparisons.
    pub fn first_not_finite(self, bytes: &[u8]) -> Option<usize> {
        let (pairs, quads) = (bytes.as_chunks::<2>().0, bytes.as_chunks::<4>().0);
        let half = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7FFF;
        let single = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & 0x7FFF_FFFF;
        match self {
            Self::F16 => first_from(pairs, half, 0x7C00),
            Self::BF16 => first_from(pairs, half, 0x7F80),
            Self::F32 => first_from(quads, single, 0x7F80_0000),
            _ => None,
        }
    }

    /// Appends the f32 values of little-endian `bytes` to `out`; returns false, adding nothing,
    /// if this is not F16, BF16 or F32 or the bytes do not hold whole elements.
    #[must_use]
    pub fn widen(self, bytes: &[u8], out: &mut Vec<f32>) -> bool {
        if !bytes.len().is_multiple_of(self.size_bytes()) {
            return false;
        }
        let (pairs, quads) = (bytes.as_chunks::<2>().0, bytes.as_chunks::<4>().0);
        match self {
            Self::BF16 => {
                Arch::new().dispatch(|| out.extend(pairs.iter().map(|&b| bf16_to_f32(b))))
            }
            Self::F16 => out.extend(pairs.iter().map(|&b| f16::from_le_bytes(b).to_f32())),
            Self::F32 => out.extend(quads.iter().map(|&b| f32::from_le_bytes(b))),
            _ => return false,
        }
        true
    }

    /// The little-endian bytes of `values`, rounded to nearest even, and the values they stand for;
    /// nothing if this is not F16, BF16 or F32.
    #[must_use]
    pub fn narrow(self, values: &[f32]) -> Option<(Vec<u8>, Vec<f32>)> {
        let bytes: Vec<u8> = match self {
            Self::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Self::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => return None,
        };
        let mut held = Vec::with_capacity(values.len());
        self.widen(&bytes, &mut held).then_some((bytes, held))
    }
}

/// The index of the first item whose magnitude is `limit` or more.
fn first_from<T, M: Ord + Copy>(
    items: &[T],
    magnitude: impl Fn(&T) -> M,
    limit: M,
) -> Option<usize> {
    // One pass without an exit is vectorised; the search for the culprit may be slow.
    let largest = Arch::new().dispatch(|| items.iter().map(&magnitude).max());
    largest.filter(|largest| *largest >= limit)?;
    items.iter().position(|item| magnitude(item) >= limit)
}

fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_in_both_cases() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::parse(dtype.name()), Some(dtype));
            assert_eq!(Dtype::parse(&dtype.name().to_lowercase()), Some(dtype));
        }
        assert_eq!(Dtype::parse("F12"), None);
    }

    #[test]
    fn widening_keeps_every_half_value() {
        for bits in 0..=u16::MAX {
            let mut out = Vec::new();
            assert!(Dtype::F16.widen(&bits.to_le_bytes(), &mut out));
            assert!(Dtype::BF16.widen(&bits.to_le_bytes(), &mut out));
            assert_eq!(out[0].to_bits(), f16::from_bits(bits).to_f32().to_bits());
            assert_eq!(out[1].to_bits(), u32::from(bits) << 16);
        }
    }

    #[test]
    fn narrowing_rounds_and_says_what_is_held() {
        let (bytes, held) = Dtype::BF16.narrow(&[1.0, 1.005]).unwrap();
        assert_eq!((bytes, held), (vec![0x80, 0x3F, 0x81, 0x3F], vec![1.0, 1.0078125]));
        assert_eq!(Dtype::F16.narrow(&[0.1]).unwrap().1, [0.099975586]);
        assert_eq!(Dtype::F32.narrow(&[0.1]).unwrap().1, [0.1]);
        assert!(Dtype::I8.narrow(&[0.1]).is_none());
    }

    #[test]
    fn every_value_that_is_not_finite_is_found() {
        let after_zero = |bytes: &[u8]| [&vec![0; bytes.len()], bytes].concat();
        for bits in 0..=u16::MAX {
            let bytes = after_zero(&bits.to_le_bytes());
            let found = |is_finite: bool| (!is_finite).then_some(1);
            let (half, brain) = (f16::from_bits(bits), half::bf16::from_bits(bits));
            assert_eq!(Dtype::F16.first_not_finite(&bytes), found(half.is_finite()), "{bits:x}");
            assert_eq!(Dtype::BF16.first_not_finite(&bytes), found(brain.is_finite()), "{bits:x}");
        }
        for value in [f32::MAX, -f32::MAX, 0.0, f32::NAN, -f32::NAN, f32::INFINITY, -f32::INFINITY]
        {
            let found = Dtype::F32.first_not_finite(&after_zero(&value.to_le_bytes()));
            assert_eq!(found, (!value.is_finite()).then_some(1), "{value}");
        }
        assert_eq!(Dtype::I32.first_not_finite(&[0xFF; 4]), None);
    }

    #[test]
    fn integers_and_split_elements_are_not_widened() {
        let mut out = Vec::new();
        assert!(!Dtype::I8.widen(&[1, 2], &mut out));
        assert!(!Dtype::F32.widen(&[0; 6], &mut out));
        assert!(out.is_empty());
    }
}
