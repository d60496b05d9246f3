//! Turns rows and columns of patches into rotary tables.
//!
//! Half of the frequencies turn by the row, half by the column.  Knows no tower.

use super::Lattice;

/// Base of the frequencies; no published configuration of these towers names another.
const THETA: f64 = 10_000.0;

/// Cosines and sines of every patch of `lattice`, `[patches, head_dim / 2]` each: the first half of
/// a row for the patch's row, the second for its column (`compute_axial_rope_parameters` of
/// transformers' Qwen2.5-VL and Qwen3-VL).
///
/// Frequencies and angles are rounded to f32, as the models were trained.
pub(crate) fn rotary(lattice: &Lattice, head_dim: usize) -> [Vec<f32>; 2] {
    let quarter = head_dim / 4;
    let frequency = |at: usize| THETA.powf(-(at as f64) / quarter as f64) as f32;
    let frequencies: Vec<f32> = (0..quarter).map(frequency).collect();
    let places = lattice.places();
    let angles = places.iter().flatten().flat_map(|place| {
        frequencies.iter().map(move |frequency| f64::from(*place as f32 * frequency))
    });
    let table = |turn: fn(f64) -> f64| angles.clone().map(|angle| turn(angle) as f32).collect();
    [table(f64::cos), table(f64::sin)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_turn_the_first_half_and_columns_the_second() {
        let [cos, sin] = rotary(&Lattice { rows: 2, columns: 4, merge: 2 }, 8);
        assert_eq!((cos.len(), &cos[..4], &sin[..4]), (8 * 4, &[1.0; 4][..], &[0.0; 4][..]));
        // The sixth patch is that of row 0, column 3; frequencies are 1 and 0.01.
        let expect = [0.0, 0.0, 3.0_f32.sin(), 0.03_f32.sin()];
        assert!(sin[20..24].iter().zip(expect).all(|(s, e)| (s - e).abs() < 1e-6), "{sin:?}");
    }
}
