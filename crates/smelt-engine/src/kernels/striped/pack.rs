//! Lays rows out in stripes, sixteen at a time.
//!
//! Rows as checkpoints store them in, the bytes of one stripe out.  The last stripe of a weight may be
//! given fewer rows; what is missing is zero.

use super::{Bits, MIDDLE_BYTE, STRIPE};

/// Elements of `width` bytes each: rows `[up to 16, columns]` to `[columns, 16]`.
pub fn stripe_elements(rows: &[u8], columns: usize, width: usize) -> Vec<u8> {
    let mut out = vec![0; columns * STRIPE * width];
    for (lane, row) in rows.chunks_exact((columns * width).max(1)).enumerate() {
        for (column, element) in row.chunks_exact(width).enumerate() {
            out[(column * STRIPE + lane) * width..][..width].copy_from_slice(element);
        }
    }
    out
}

/// Signed bytes: rows `[up to 16, columns]` to quants.
pub fn stripe_bytes(rows: &[u8], columns: usize) -> Vec<u8> {
    let mut out = vec![MIDDLE_BYTE; Bits::Eight.stripe_bytes(columns)];
    for (lane, row) in rows.chunks_exact(columns.max(1)).enumerate() {
        for (column, &byte) in row.iter().enumerate() {
            out[(column / 4 * STRIPE + lane) * 4 + column % 4] = byte ^ MIDDLE_BYTE;
        }
    }
    out
}

/// Nibbles, two columns a byte and the even one low: rows `[up to 16, ⌈columns / 2⌉]` to quants.
pub fn stripe_nibbles(rows: &[u8], columns: usize) -> Vec<u8> {
    let mut out = vec![0; Bits::Four.stripe_bytes(columns)];
    for (lane, row) in rows.chunks_exact(columns.div_ceil(2).max(1)).enumerate() {
        let whole = columns / 8;
        let words = out.as_chunks_mut::<4>().0.iter_mut().skip(lane).step_by(STRIPE);
        for (word, out) in row.as_chunks::<4>().0[..whole].iter().zip(words) {
            *out = halves(u32::from_le_bytes(*word)).to_le_bytes();
        }
        for column in whole * 8..columns {
            let nibble = (row[column / 2] >> (column % 2 * 4)) & 15;
            let high = if column % 8 < 4 { 0 } else { 4 };
            out[(column / 8 * STRIPE + lane) * 4 + column % 4] |= nibble << high;
        }
    }
    out
}

/// Eight nibbles in order, the first lowest, to a byte a column: columns 0 to 3 in the low nibbles, 4 to 7 in the high ones.
fn halves(word: u32) -> u32 {
    // Pairs of bytes, bytes and nibbles move apart, each to twice its distance.
    let pairs = (u64::from(word) | u64::from(word) << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (pairs | pairs << 8) & 0x00ff_00ff_00ff_00ff;
    let nibbles = (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    (nibbles | nibbles >> 28) as u32
}
