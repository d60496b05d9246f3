//! Says which rows of a square table of learned positions mix into each patch's, and how much.
//!
//! Bilinear, corners aligned.  Knows nothing of the table's values.

use super::Lattice;

/// Two neighbouring entries of an axis and the share of each.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    low: usize,
    high: usize,
    shares: [f32; 2],
}

/// One row of the table and its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tap {
    pub(crate) row: usize,
    pub(crate) share: f32,
}

/// The four taps of every patch of `lattice` in a table of `side` by `side` rows
/// (`get_vision_interpolation_indices_and_weights` of transformers, bilinear, `align_corners`), in
/// the order of the patches.  Shares are in f32, as there.
pub(crate) fn taps(lattice: &Lattice, side: usize) -> Vec<[Tap; 4]> {
    let tap = |place: [usize; 2]| {
        let y = pair(place[0], lattice.rows, side);
        let x = pair(place[1], lattice.columns, side);
        let tap = |row: usize, column: usize, share: f32| Tap { row: row * side + column, share };
        [
            tap(y.low, x.low, y.shares[0] * x.shares[0]),
            tap(y.low, x.high, y.shares[0] * x.shares[1]),
            tap(y.high, x.low, y.shares[1] * x.shares[0]),
            tap(y.high, x.high, y.shares[1] * x.shares[1]),
        ]
    };
    lattice.places().into_iter().map(tap).collect()
}

/// Where entry `at` of `size` lies among `side` entries, first on first and last on last.
fn pair(at: usize, size: usize, side: usize) -> Pair {
    let source = at as f32 * (side - 1) as f32 / (size - 1).max(1) as f32;
    let low = source.floor();
    let share = source - low;
    let entry = |index: f32| (index as usize).min(side - 1);
    Pair { low: entry(low), high: entry(low + 1.0), shares: [1.0 - share, share] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_fall_on_corners() {
        assert_eq!(pair(0, 8, 6), Pair { low: 0, high: 1, shares: [1.0, 0.0] });
        assert_eq!(pair(7, 8, 6), Pair { low: 5, high: 5, shares: [1.0, 0.0] });
        assert_eq!(pair(0, 1, 6), Pair { low: 0, high: 1, shares: [1.0, 0.0] });
        let middle = pair(1, 3, 6);
        assert_eq!(middle, Pair { low: 2, high: 3, shares: [0.5, 0.5] });
    }

    #[test]
    fn a_grid_of_the_tables_size_takes_each_row_once() {
        let lattice = Lattice { rows: 6, columns: 6, merge: 2 };
        for (taps, place) in taps(&lattice, 6).iter().zip(lattice.places()) {
            let whole = Tap { row: place[0] * 6 + place[1], share: 1.0 };
            assert_eq!((taps[0], taps[1].share + taps[2].share + taps[3].share), (whole, 0.0));
        }
    }
}
