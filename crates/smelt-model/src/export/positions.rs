//! Resamples a table of learned positions to pictures of another size.
//!
//! The table has a class row, then the rows of a square grid of patches; the class row stays, the
//! grid is resampled as transformers' `interpolate_pos_encoding` does: PyTorch's bicubic
//! interpolation without aligned corners (Keys 1981 with a = -0.75, borders repeated).

/// Keys' parameter, as PyTorch has it.
const A: f64 = -0.75;

/// The table for a grid of `to` [rows, columns] patches, `[1 + rows · columns, width]`, from that of
/// a square grid of `from` patches a side, `[1 + from², width]`.
pub(super) fn resampled(table: &[f32], width: usize, from: usize, to: [usize; 2]) -> Vec<f32> {
    let (class, grid) = table.split_at(width);
    let mut out = class.to_vec();
    let [down, across] = to.map(|to| (0..to).map(|at| taps(at, to, from)).collect::<Vec<_>>());
    for y in &down {
        for x in &across {
            let mixed = (0..width).map(|channel| {
                let line = |row: usize| {
                    let at =
                        |column: usize| f64::from(grid[(row * from + column) * width + channel]);
                    x.iter().map(|(column, share)| at(*column) * share).sum::<f64>()
                };
                y.iter().map(|(row, share)| line(*row) * share).sum::<f64>() as f32
            });
            out.extend(mixed);
        }
    }
    out
}

/// The four entries of an axis of `from` that mix into entry `at` of `to`, and the share of each.
fn taps(at: usize, to: usize, from: usize) -> [(usize, f64); 4] {
    let place = (at as f64 + 0.5) * from as f64 / to as f64 - 0.5;
    let first = place.floor();
    let t = place - first;
    let shares = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
    std::array::from_fn(|index| {
        let entry = first as i64 - 1 + index as i64;
        (entry.clamp(0, from as i64 - 1) as usize, shares[index])
    })
}

/// The kernel at a distance of at most 1.
fn near(x: f64) -> f64 {
    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
}

/// The kernel at a distance between 1 and 2.
fn far(x: f64) -> f64 {
    ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_stay_inside() {
        for (to, from) in [(1, 4), (5, 4), (16, 7), (3, 24), (2, 1)] {
            for at in 0..to {
                let taps = taps(at, to, from);
                let total: f64 = taps.iter().map(|(_, share)| share).sum();
                assert!((total - 1.0).abs() < 1e-12, "{taps:?}");
                assert!(taps.iter().all(|(entry, _)| *entry < from), "{taps:?}");
            }
        }
    }

    #[test]
    fn the_same_size_is_the_same_table() {
        let table: Vec<f32> = (0..(1 + 9) * 2).map(|n| (n as f32 * 0.7).sin()).collect();
        assert_eq!(resampled(&table, 2, 3, [3, 3]), table);
    }
}
