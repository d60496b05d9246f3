//! Turns the coefficients of a block into samples.
//!
//! This is the "accurate integer" transform of libjpeg (Loeffler, Ligtenberg and Moschytz, ICASSP 1989, with 11
//! multiplications) with all its roundings: columns first, to two bits below the point, then rows.  Where coefficients are
//! larger than any picture's, results wrap and saturate at 16 bits, as they do in libjpeg-turbo's wide instructions.

use super::frame::{Block, SIDE};

/// Bits below the point of the factors.
const FACTOR_BITS: u32 = 13;

/// Bits below the point between columns and rows.
const BETWEEN_BITS: u32 = 2;

/// A factor with its bits below the point.
const fn factor(value: f64) -> i32 {
    (value * (1 << FACTOR_BITS) as f64 + 0.5) as i32
}

const F0_298: i32 = factor(0.298631336);
const F0_390: i32 = factor(0.390180644);
const F0_541: i32 = factor(0.541196100);
const F0_765: i32 = factor(0.765366865);
const F0_899: i32 = factor(0.899976223);
const F1_175: i32 = factor(1.175875602);
const F1_501: i32 = factor(1.501321110);
const F1_847: i32 = factor(1.847759065);
const F1_961: i32 = factor(1.961570560);
const F2_053: i32 = factor(2.053119869);
const F2_562: i32 = factor(2.562915447);
const F3_072: i32 = factor(3.072711026);

type Rows = [[i16; SIDE]; SIDE];

/// Writes the samples of a block, whose coefficients are to be multiplied with `scales`, to the rows of `out` that are
/// `stride` apart.
pub(super) fn samples(block: &Block, scales: &[u16; 64], out: &mut [u8], stride: usize) {
    if block[1..].iter().all(|coefficient| *coefficient == 0) {
        return flat(block[0].wrapping_mul(scales[0] as i16), out, stride);
    }
    let mut rows: Rows = [[0; SIDE]; SIDE];
    for (row, (block, scales)) in
        rows.iter_mut().zip(block.as_chunks::<SIDE>().0.iter().zip(scales.as_chunks::<SIDE>().0))
    {
        for ((to, value), scale) in row.iter_mut().zip(block).zip(scales) {
            *to = value.wrapping_mul(*scale as i16);
        }
    }
    let between = match block[SIDE..].iter().all(|coefficient| *coefficient == 0) {
        // Columns of one value alone only gain the bits below the point; what is too large wraps here.
        true => rows[0].map(|value| [value << BETWEEN_BITS; SIDE]),
        false => turned(&transformed::<{ FACTOR_BITS - BETWEEN_BITS }>(&rows)),
    };
    let done = turned(&transformed::<{ FACTOR_BITS + BETWEEN_BITS + 3 }>(&between));
    for (row, out) in done.iter().zip(out.chunks_mut(stride)) {
        for (value, out) in row.iter().zip(&mut out[..SIDE]) {
            *out = (value.clamp(&-128, &127) + 128) as u8;
        }
    }
}

/// A block whose first coefficient alone is not zero.
fn flat(first: i16, out: &mut [u8], stride: usize) {
    let between = i32::from(first << BETWEEN_BITS);
    let value = (between + (1 << (BETWEEN_BITS + 2))) >> (BETWEEN_BITS + 3);
    let sample = (value.clamp(-128, 127) + 128) as u8;
    for row in out.chunks_mut(stride).take(SIDE) {
        row[..SIDE].fill(sample);
    }
}

/// Transforms each column, and leaves out as many bits below the point.
#[inline]
fn transformed<const SHIFT: u32>(rows: &Rows) -> Rows {
    let mut out = [[0; SIDE]; SIDE];
    for column in 0..SIDE {
        let at = |row: usize| i32::from(rows[row][column]);
        let sum = |one: usize, other: usize| {
            i32::from(rows[one][column].wrapping_add(rows[other][column]))
        };
        let difference = |one: usize, other: usize| {
            i32::from(rows[one][column].wrapping_sub(rows[other][column]))
        };

        // Even rows.
        let two = at(2) * F0_541 + at(6) * (F0_541 - F1_847);
        let three = at(2) * (F0_541 + F0_765) + at(6) * F0_541;
        let (zero, one) = (sum(0, 4) << FACTOR_BITS, difference(0, 4) << FACTOR_BITS);
        let even = [zero + three, one + two, one - two, zero - three];

        // Odd rows.
        let (left, right) = (sum(7, 3), sum(5, 1));
        let third = left * (F1_175 - F1_961) + right * F1_175;
        let fourth = left * F1_175 + right * (F1_175 - F0_390);
        let odd = [
            at(1) * (F1_501 - F0_899) - at(7) * F0_899 + fourth,
            at(3) * (F3_072 - F2_562) - at(5) * F2_562 + third,
            at(5) * (F2_053 - F2_562) - at(3) * F2_562 + fourth,
            at(7) * (F0_298 - F0_899) - at(1) * F0_899 + third,
        ];

        for row in 0..SIDE / 2 {
            let narrow = |value: i32| {
                let value = value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
                value.clamp(i16::MIN.into(), i16::MAX.into()) as i16
            };
            out[row][column] = narrow(even[row].wrapping_add(odd[row]));
            out[SIDE - 1 - row][column] = narrow(even[row].wrapping_sub(odd[row]));
        }
    }
    out
}

/// Columns as rows.
#[inline]
fn turned(rows: &Rows) -> Rows {
    std::array::from_fn(|row| std::array::from_fn(|column| rows[column][row]))
}
