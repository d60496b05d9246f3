//! Cuts the image tokens of a picture into windows of one size.
//!
//! Windows at the right and lower edge may be cut short; places they lack are filled with tokens
//! that nobody looks at, so that all windows have one shape.  Knows nothing of attention.

use super::Lattice;

/// The image tokens of a picture, window by window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Windows.
    pub(crate) count: usize,
    /// Places of one window.
    pub(crate) places: usize,
    /// For every place of every window its token, counted row by row; nothing where the window is
    /// cut short.
    pub(crate) tokens: Vec<Option<usize>>,
}

impl Windows {
    /// Windows of `side` by `side` tokens, row by row, as are the tokens inside
    /// (`get_vision_window_index` of transformers).  A picture smaller than a window is one window
    /// of its own size.
    pub(crate) fn new(lattice: &Lattice, side: usize) -> Self {
        let (rows, columns) = (lattice.token_rows(), lattice.token_columns());
        let (high, wide) = (side.min(rows), side.min(columns));
        let (down, across) = (rows.div_ceil(high), columns.div_ceil(wide));
        let token = |window: usize, place: usize| {
            let row = window / across * high + place / wide;
            let column = window % across * wide + place % wide;
            (row < rows && column < columns).then_some(row * columns + column)
        };
        let (count, places) = (down * across, high * wide);
        let tokens = (0..count * places).map(|at| token(at / places, at % places)).collect();
        Self { count, places, tokens }
    }

    /// Whether every place has a token.
    pub(crate) fn are_whole(&self) -> bool {
        self.tokens.iter().all(Option::is_some)
    }

    /// For every place the token to put there; the picture's first where there is none.
    pub(crate) fn order(&self) -> Vec<i64> {
        self.tokens.iter().map(|token| token.unwrap_or(0) as i64).collect()
    }

    /// For every token the place it was put.
    pub(crate) fn places_of_tokens(&self) -> Vec<i64> {
        let mut places: Vec<(usize, i64)> = self
            .tokens
            .iter()
            .zip(0..)
            .filter_map(|(token, place)| token.map(|token| (token, place)))
            .collect();
        places.sort_unstable();
        places.into_iter().map(|(_, place)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(rows: usize, columns: usize, side: usize) -> Windows {
        Windows::new(&Lattice { rows: 2 * rows, columns: 2 * columns, merge: 2 }, side)
    }

    #[test]
    fn whole_windows_only_change_the_order() {
        let windows = windows(2, 4, 2);
        assert_eq!((windows.count, windows.places), (2, 4));
        assert!(windows.are_whole());
        assert_eq!(windows.order(), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(windows.places_of_tokens(), [0, 1, 4, 5, 2, 3, 6, 7]);
    }

    #[test]
    fn windows_cut_short_are_filled() {
        let windows = windows(3, 3, 2);
        assert_eq!((windows.count, windows.places, windows.are_whole()), (4, 4, false));
        assert_eq!(windows.order(), [0, 1, 3, 4, 2, 0, 5, 0, 6, 7, 0, 0, 8, 0, 0, 0]);
        assert_eq!(windows.places_of_tokens(), [0, 1, 4, 2, 3, 6, 8, 9, 12]);
    }

    #[test]
    fn a_small_picture_is_one_window() {
        let windows = windows(2, 3, 4);
        assert_eq!((windows.count, windows.places, windows.are_whole()), (1, 6, true));
        assert_eq!(windows.order(), [0, 1, 2, 3, 4, 5]);
    }
}
