//! Computes the two inner kernels in portable Rust.
//!
//! Packed panels in, one tile out; two rows in, one sum out.  The compiler makes what vectors it
//! can of it.  Knows nothing of detection.

use half::f16;

use super::isa::{TILE_COLUMNS, TILE_ROWS, Tile};
use super::matrix::widen_bf16;

/// Rows and columns of a part of a tile that fits the sixteen 128-bit registers of any processor.
const PART_ROWS: usize = 4;
const PART_COLUMNS: usize = 8;

pub(super) fn tile(a: &[f32], b: &[f32], tile: &mut Tile) {
    for row in (0..TILE_ROWS).step_by(PART_ROWS) {
        for column in (0..TILE_COLUMNS).step_by(PART_COLUMNS) {
            part(a, b, row, column, tile);
        }
    }
}

fn part(a: &[f32], b: &[f32], row: usize, column: usize, tile: &mut Tile) {
    let mut sums = [[0.0f32; PART_COLUMNS]; PART_ROWS];
    for (a, b) in a.chunks_exact(TILE_ROWS).zip(b.chunks_exact(TILE_COLUMNS)) {
        let b = &b[column..column + PART_COLUMNS];
        for (sums, &a) in sums.iter_mut().zip(&a[row..row + PART_ROWS]) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let start = (row + i) * TILE_COLUMNS + column;
        tile[start..start + PART_COLUMNS].copy_from_slice(sums);
    }
}

/// Sums kept apart, so that rounding stays small and the compiler may use vectors.
const LANES: usize = 32;

fn dot<T: Copy>(w: &[T], x: &[f32], widen: impl Fn(T) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (w_chunks, x_chunks) = (w.chunks_exact(LANES), x.chunks_exact(LANES));
    let tail = w_chunks.remainder().iter().zip(x_chunks.remainder());
    let tail: f32 = tail.map(|(&w, &x)| widen(w) * x).sum();
    for (w, x) in w_chunks.zip(x_chunks) {
        for ((sum, &w), &x) in sums.iter_mut().zip(w).zip(x) {
            *sum += widen(w) * x;
        }
    }
    sums.iter().sum::<f32>() + tail
}

pub(super) fn dot_f32(w: &[f32], x: &[f32]) -> f32 {
    dot(w, x, |w| w)
}

pub(super) fn dot_f16(w: &[u16], x: &[f32]) -> f32 {
    dot(w, x, |w| f16::from_bits(w).to_f32())
}

pub(super) fn dot_bf16(w: &[u16], x: &[f32]) -> f32 {
    dot(w, x, widen_bf16)
}

pub(super) fn dot_i8(w: &[i8], x: &[f32]) -> f32 {
    dot(w, x, f32::from)
}
