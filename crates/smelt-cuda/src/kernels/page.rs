//! Says how keys and values of 64 positions lie in a page: the Rust side of what `rows.cu` writes and `attention.cu` reads.
//!
//! A page holds all layers' heads, `[layers][key heads]`, each with its keys and then its values: as halves in blocks of 64
//! positions by 8 numbers, as bytes by 16 with the scales of keys and values behind them.  Heads are filled up to
//! multiples of 16 numbers.

use smelt_backend::KvType;

/// Positions of a page.
pub const PAGE_TOKENS: usize = 64;

/// A head's numbers, and how they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Numbers of a head.
    pub dim: usize,
    /// F16 or int8.
    pub kind: KvType,
}

/// Whether the numbers are keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrValue {
    /// Keys.
    Key,
    /// Values.
    Value,
}

impl HeadShape {
    /// Most numbers of a head: a block that joins pages has 64 threads with two each, a warp that rotates a head four a lane.
    pub const DIM_MAX: usize = 128;

    /// Whether kernels take heads of so many numbers.
    ///
    /// # Errors
    /// One line that says what to do where they do not.
    pub fn check(dim: usize) -> Result<(), String> {
        let most = Self::DIM_MAX;
        if dim <= most {
            return Ok(());
        }
        Err(format!(
            "heads have {dim} numbers, and kernels for GPUs take {most} at most; build it with target = \"cpu\""
        ))
    }

    /// Numbers of a head as it is kept.
    pub const fn padded(self) -> usize {
        self.dim.next_multiple_of(16)
    }

    const fn number_bytes(self) -> usize {
        if matches!(self.kind, KvType::Int8) { 1 } else { 2 }
    }

    /// Bytes of the keys, or of the values.
    const fn part_bytes(self) -> usize {
        PAGE_TOKENS * self.padded() * self.number_bytes()
    }

    /// Bytes of a head in a page.
    pub const fn bytes(self) -> usize {
        let scales = if matches!(self.kind, KvType::Int8) { 2 * PAGE_TOKENS * 4 } else { 0 };
        2 * self.part_bytes() + scales
    }

    /// Bytes of a page of `layers` layers of `kv_heads` key heads.
    pub const fn page_bytes(self, layers: usize, kv_heads: usize) -> usize {
        layers * kv_heads * self.bytes()
    }

    /// Bytes before the heads of `layer` in a page.
    pub const fn layer_start(self, layer: usize, kv_heads: usize) -> usize {
        layer * kv_heads * self.bytes()
    }

    /// The byte of a head where number `d` of a position's key or value lies.
    pub const fn number_at(self, which: KeyOrValue, position: usize, d: usize) -> usize {
        let width = 16 / self.number_bytes();
        let first = if matches!(which, KeyOrValue::Key) { 0 } else { self.part_bytes() };
        first + ((d / width * PAGE_TOKENS + position) * width + d % width) * self.number_bytes()
    }

    /// The byte of a head where the scale of a position's key or value lies.
    pub const fn scale_at(self, which: KeyOrValue, position: usize) -> usize {
        let first = if matches!(which, KeyOrValue::Key) { 0 } else { PAGE_TOKENS };
        2 * self.part_bytes() + (first + position) * 4
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn heads_that_no_kernel_takes_are_refused_in_one_line() {
        assert_eq!(HeadShape::check(128), Ok(()));
        let told = HeadShape::check(130).unwrap_err();
        assert_eq!(told.lines().count(), 1);
        assert!(told.contains("130") && told.contains("target = \"cpu\""), "{told}");
    }

    #[test]
    fn every_number_of_a_page_has_a_place_of_its_own_and_nothing_is_left() {
        for (dim, kind) in
            [(8, KvType::F16), (24, KvType::Int8), (64, KvType::F16), (128, KvType::Int8)]
        {
            let shape = HeadShape { dim, kind };
            let mut bytes = BTreeSet::new();
            for which in [KeyOrValue::Key, KeyOrValue::Value] {
                for position in 0..PAGE_TOKENS {
                    for d in 0..shape.padded() {
                        let at = shape.number_at(which, position, d);
                        (at..at + shape.number_bytes())
                            .for_each(|byte| assert!(bytes.insert(byte)));
                    }
                    if kind == KvType::Int8 {
                        let at = shape.scale_at(which, position);
                        (at..at + 4).for_each(|byte| assert!(bytes.insert(byte)));
                    }
                }
            }
            assert_eq!(bytes, (0..shape.bytes()).collect());
            assert!(shape.bytes().is_multiple_of(256));
        }
    }
}
