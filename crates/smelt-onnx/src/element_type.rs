//! Names the element types of ONNX tensors and says how many bytes a shape of them takes.
//!
//! Knows nothing of where the bytes lie.

use std::fmt;

/// The type of one tensor element, as ONNX numbers them in `TensorProto.DataType`.
///
/// Strings, complex numbers and 8-bit floats are left out: no supported model holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer, the type of shapes and axes.
    I64,
    /// One byte, 0 or 1.
    Bool,
    /// IEEE half precision.
    F16,
    /// IEEE double precision.
    F64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// The upper half of a single.
    Bf16,
    /// Unsigned nibble, two to a byte, low nibble first (opset 21).
    U4,
    /// Signed nibble, two to a byte, low nibble first (opset 21).
    I4,
}

use ElementType::*;

/// One row per type: its ONNX number, bits per element, name in messages.
const TABLE: [(ElementType, i32, usize, &str); 15] = [
    (F32, 1, 32, "f32"),
    (U8, 2, 8, "u8"),
    (I8, 3, 8, "i8"),
    (U16, 4, 16, "u16"),
    (I16, 5, 16, "i16"),
    (I32, 6, 32, "i32"),
    (I64, 7, 64, "i64"),
    (Bool, 9, 8, "bool"),
    (F16, 10, 16, "f16"),
    (F64, 11, 64, "f64"),
    (U32, 12, 32, "u32"),
    (U64, 13, 64, "u64"),
    (Bf16, 16, 16, "bf16"),
    (U4, 21, 4, "u4"),
    (I4, 22, 4, "i4"),
];

impl ElementType {
    /// The type ONNX calls `number`, if this crate holds such tensors.
    pub fn from_number(number: i32) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    /// The ONNX number of this type.
    pub fn number(self) -> i32 {
        self.row().1
    }

    /// Bits of one element.
    pub fn bits(self) -> usize {
        self.row().2
    }

    /// Whether the elements are floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, F16 | Bf16 | F32 | F64)
    }

    /// Bytes of a tensor of shape `dims`, nibbles rounded up to a whole byte; `None` when the
    /// product overflows.
    pub fn byte_len(self, dims: &[usize]) -> Option<usize> {
        let elements = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
        elements.checked_mul(self.bits()).map(|bits| bits.div_ceil(8))
    }

    fn row(self) -> &'static (Self, i32, usize, &'static str) {
        TABLE.iter().find(|row| row.0 == self).expect("the table has a row for every type")
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_the_types_both_ways() {
        for (dtype, number, ..) in TABLE {
            assert_eq!(ElementType::from_number(number), Some(dtype));
            assert_eq!(dtype.number(), number);
        }
        assert_eq!(ElementType::from_number(8), None, "strings are not held");
    }

    #[test]
    fn shapes_take_bytes() {
        assert_eq!(F32.byte_len(&[2, 3]), Some(24));
        assert_eq!(Bf16.byte_len(&[]), Some(2));
        assert_eq!(I4.byte_len(&[3]), Some(2));
        assert_eq!(I64.byte_len(&[0, 9]), Some(0));
        assert_eq!(U8.byte_len(&[usize::MAX, 2]), None);
        assert_eq!(F64.byte_len(&[usize::MAX / 8]), None);
    }
}
