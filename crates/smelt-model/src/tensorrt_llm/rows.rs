//! Makes one matrix of the rows of several, one after another.
//!
//! Knows nothing of bytes.

use std::ops::Range;

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// The rows of tensors of one width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FusedRows {
    pub(super) parts: Vec<Part>,
    /// Elements of a row.
    pub(super) columns: usize,
}

/// One of the tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The canonical name.
    pub(super) name: String,
    pub(super) rows: usize,
}

impl FusedRows {
    /// All rows.
    pub(super) fn count(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// The same rows of the tensors that belong to these.
    pub(super) fn renamed(&self, name: impl Fn(&str) -> String) -> Self {
        let part = |part: &Part| Part { name: name(&part.name), rows: part.rows };
        Self { parts: self.parts.iter().map(part).collect(), columns: self.columns }
    }

    /// Where rows `rows` lie: the tensors that hold some, each with its own.
    pub(super) fn pieces(&self, rows: Range<usize>) -> Vec<(&str, Range<usize>)> {
        let (mut pieces, mut first) = (Vec::new(), 0);
        for part in &self.parts {
            let begin = rows.start.clamp(first, first + part.rows) - first;
            let end = rows.end.clamp(first, first + part.rows) - first;
            if begin < end {
                pieces.push((part.name.as_str(), begin..end));
            }
            first += part.rows;
        }
        pieces
    }
}

/// Runs of rows of about [`BLOCK_BYTES`], a multiple of `together` each.
pub(super) fn blocks(
    rows: usize,
    row_bytes: usize,
    together: usize,
) -> impl Iterator<Item = Range<usize>> {
    let step = (BLOCK_BYTES / row_bytes.max(1) / together).max(1) * together;
    (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_where_their_tensors_do() {
        let part = |name: &str, rows| Part { name: name.to_owned(), rows };
        let rows = FusedRows { parts: vec![part("q", 4), part("k", 2), part("v", 2)], columns: 1 };
        assert_eq!(rows.count(), 8);
        assert_eq!(rows.pieces(0..8), [("q", 0..4), ("k", 0..2), ("v", 0..2)]);
        assert_eq!(rows.pieces(3..5), [("q", 3..4), ("k", 0..1)]);
        assert_eq!(rows.pieces(6..8), [("v", 0..2)]);
        assert_eq!(rows.pieces(4..4), []);
    }

    #[test]
    fn blocks_end_where_rows_that_lie_together_do() {
        let wide = 3 * BLOCK_BYTES / 8;
        assert!(blocks(9, wide, 4).eq([0..4, 4..8, 8..9]));
        assert!(blocks(9, wide, 1).eq([0..2, 2..4, 4..6, 6..8, 8..9]));
        assert!(blocks(2, 4 * BLOCK_BYTES, 1).eq([0..1, 1..2]));
        assert!(blocks(0, 1, 4).eq([]));
    }
}
