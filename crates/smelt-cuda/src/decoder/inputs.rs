//! Lays out what a pass tells the device: whole numbers of four bytes, list behind list, in one piece.
//!
//! A pass and the pages of its slots in, bytes and the places of the lists in them out.  The places depend on the shape of a
//! pass alone, so launches that were captured for a shape serve every pass of it.  Knows no device.

use super::pages::{PAGE_TOKENS, Pages};
use super::plan::{PassPlan, Piece, Source};

/// Where lists begin.
const ALIGN: usize = 16;
/// Rows of queries that a warp holds: as many as a run may have that attends page by page.
pub(super) const FEW_ROWS_MAX: usize = 16;
/// Numbers of a run of tokens as kernels read it: its first row, its rows, the position of the first, its pages.
pub(super) const RUN_WORDS: usize = 4;

/// How much of everything a pass has, as launches see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Shape {
    /// Rows, those included that fill a bucket.
    pub(super) rows: usize,
    /// Runs of few rows, which attend page by page, those included that fill a bucket.
    pub(super) few: usize,
    /// Rows of queries of the largest of them.
    pub(super) few_rows: usize,
    /// Pages of the longest of them, or more.
    pub(super) few_pages: usize,
    /// Runs of many rows.
    pub(super) many: usize,
    /// Rows of queries of the largest of them.
    pub(super) many_rows: usize,
    /// Page numbers of all runs.
    pub(super) tables: usize,
    /// Rows of images.
    pub(super) images: usize,
    /// Rows behind which something is wanted.
    pub(super) wanted: usize,
}

/// Bytes from the beginning at which each list lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Tokens, `[rows]`.
    pub(super) ids: usize,
    /// Time, height and width, `[rows, 3]`.
    pub(super) places: usize,
    /// Where the pages of each row's slot begin in the tables, `[rows]`.
    pub(super) row_tables: usize,
    /// Positions, `[rows]`.
    pub(super) positions: usize,
    /// Runs of few rows, then those of many, [`RUN_WORDS`] each.
    pub(super) runs: usize,
    /// Page numbers.
    pub(super) tables: usize,
    /// Rows of images, and which of the features stands there, `[images]` each.
    pub(super) image_rows: usize,
    pub(super) image_sources: usize,
    /// Rows behind which something is wanted.
    pub(super) wanted: usize,
    /// Bytes of all.
    pub(super) bytes: usize,
}

impl Shape {
    /// Where lists lie in what a pass of this shape tells.
    pub(super) fn places(&self) -> Places {
        let mut at = 0;
        let mut list = |words: usize| {
            let begin = at;
            at = (at + words * size_of::<u32>()).next_multiple_of(ALIGN);
            begin
        };
        Places {
            ids: list(self.rows),
            places: list(3 * self.rows),
            row_tables: list(self.rows),
            positions: list(self.rows),
            runs: list(RUN_WORDS * (self.few + self.many)),
            tables: list(self.tables),
            image_rows: list(self.images),
            image_sources: list(self.images),
            wanted: list(self.wanted),
            bytes: list(0),
        }
    }
}

/// The runs of a pass, by how they attend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attending<'a> {
    /// Runs whose rows of queries a warp holds, and whose partial results have room.
    pub(super) few: Vec<&'a Piece>,
    pub(super) many: Vec<&'a Piece>,
}

/// Which runs attend page by page: those that `is_few` says so of.
pub(super) fn attending(pass: &PassPlan, is_few: impl Fn(&Piece) -> bool) -> Attending<'_> {
    let (few, many) = pass.pieces.iter().partition(|piece| is_few(piece));
    Attending { few, many }
}

/// Whether a run attends page by page: its rows of queries fit a warp, and partial results of one key head have room for
/// `parts` rows.  `group` query heads share a key head.  A single token always has room.
pub(super) fn is_few(piece: &Piece, pass: &PassPlan, group: usize, parts: usize) -> bool {
    let rows = piece.rows.len() * group;
    let pages = pass.longest().div_ceil(PAGE_TOKENS);
    rows <= FEW_ROWS_MAX && (piece.rows.len() == 1 || pages * FEW_ROWS_MAX <= parts)
}

/// The shape of a pass as it is, of a model whose key heads serve `group` query heads each.
pub(super) fn exact(pass: &PassPlan, attending: &Attending<'_>, group: usize) -> Shape {
    let rows =
        |pieces: &[&Piece]| pieces.iter().map(|piece| piece.rows.len() * group).max().unwrap_or(0);
    let pages = |piece: &Piece| piece.end().div_ceil(PAGE_TOKENS);
    Shape {
        rows: pass.rows.len(),
        few: attending.few.len(),
        few_rows: rows(&attending.few),
        few_pages: attending.few.iter().map(|piece| pages(piece)).max().unwrap_or(0),
        many: attending.many.len(),
        many_rows: rows(&attending.many),
        tables: 1 + pass.pieces.iter().map(pages).sum::<usize>(),
        images: pass.image_rows(),
        wanted: pass.wanted.len(),
    }
}

/// What a pass of `shape`, or a smaller one, tells the device.  The first page number, `waste`, is that of a page which rows
/// that only fill a bucket write.
pub(super) fn bytes(
    pass: &PassPlan,
    attending: &Attending<'_>,
    shape: &Shape,
    pages: &Pages,
    numbers: PageNumbers,
) -> Vec<u8> {
    let places = shape.places();
    let mut out = Lists { bytes: vec![0; places.bytes] };
    let mut tables = vec![numbers.waste];
    let mut row_tables = vec![0; pass.rows.len()];
    let mut runs = Vec::new();
    for piece in attending.few.iter().chain(&attending.many) {
        let table = tables.len() as u32;
        let count = piece.end().div_ceil(PAGE_TOKENS);
        tables.extend(pages.of(piece.slot)[..count].iter().map(|page| page + numbers.first));
        row_tables[piece.rows.clone()].fill(table);
        runs.push([piece.rows.start as u32, piece.rows.len() as u32, piece.start as u32, table]);
    }
    // Runs that fill a bucket of few have no rows, and lie between few and many.
    let few = attending.few.len();
    let fill = vec![[0; RUN_WORDS]; shape.few - few];
    runs.splice(few..few, fill);
    let word = |source: Source| if let Source::Token(token) = source { token } else { 0 };
    out.put(places.ids, pass.rows.iter().map(|row| word(row.source)));
    out.put(places.places, pass.rows.iter().flat_map(|row| row.place));
    out.put(places.row_tables, row_tables);
    out.put(places.positions, pass.rows.iter().map(|row| row.position as u32));
    out.put(places.runs, runs.into_iter().flatten());
    out.put(places.tables, tables);
    let images = || (0_u32..).zip(&pass.rows).filter_map(|(at, row)| image(at, row.source));
    out.put(places.image_rows, images().map(|(row, _)| row));
    out.put(places.image_sources, images().map(|(_, source)| source));
    out.put(places.wanted, pass.wanted.iter().map(|wanted| wanted.row as u32));
    out.bytes
}

/// The row, and which of the features stands there.
fn image(row: u32, source: Source) -> Option<(u32, u32)> {
    match source {
        Source::Image(at) => Some((row, at as u32)),
        Source::Token(_) => None,
    }
}

/// The numbers by which kernels know pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageNumbers {
    /// That of the page that nobody reads.
    pub(super) waste: u32,
    /// That of the first page of slots.
    pub(super) first: u32,
}

struct Lists {
    bytes: Vec<u8>,
}

impl Lists {
    fn put(&mut self, at: usize, words: impl IntoIterator<Item = u32>) {
        let (places, _) = self.bytes[at..].as_chunks_mut::<4>();
        places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use smelt_backend::{LogitRows, SlotInput};

    use super::super::plan::{Held, plan};
    use super::*;

    const NUMBERS: PageNumbers = PageNumbers { waste: 0, first: 1 };

    fn words(bytes: &[u8], at: usize, count: usize) -> Vec<u32> {
        let (words, _) = bytes[at..].as_chunks::<4>();
        words[..count].iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    fn held(pages: &Pages, slot: usize) -> Held {
        Held { tokens: pages.len(slot), next_place: pages.next_place(slot) }
    }

    #[test]
    fn lists_say_where_each_token_is_and_what_it_sees() {
        let mut pages = Pages::new(3, 20);
        for (slot, count) in [(0, 70), (2, 3)] {
            pages.take(&[(slot, count)]).unwrap();
            pages.advance(slot, &(0..count as u32).map(|at| [at; 3]).collect::<Vec<_>>());
        }
        let prompt: Vec<u32> = (10..30).collect();
        let runs = [
            SlotInput::new(1, &prompt),
            SlotInput::new(0, &[7]).showing(LogitRows::Last),
            SlotInput::new(2, &[8, 9]),
        ];
        let before = [held(&pages, 1), held(&pages, 0), held(&pages, 2)];
        let pass = plan(&runs, &before, false, 64).passes.remove(0);
        pages.take(&[(1, 20), (0, 1), (2, 2)]).unwrap();
        let attending = attending(&pass, |piece| piece.rows.len() <= 4);
        let exact = exact(&pass, &attending, 3);
        assert_eq!((exact.few, exact.few_rows, exact.few_pages), (2, 6, 2));
        assert_eq!((exact.many, exact.many_rows, exact.rows, exact.tables), (1, 60, 23, 5));
        // A bucket is larger than what is in it.
        let shape = Shape { rows: 32, few: 4, few_pages: 4, tables: 9, wanted: 8, ..exact };
        let (bytes, at) = (bytes(&pass, &attending, &shape, &pages, NUMBERS), shape.places());
        assert_eq!(bytes.len(), at.bytes);
        assert_eq!(words(&bytes, at.ids, 32)[18..24], [28, 29, 7, 8, 9, 0]);
        assert_eq!(words(&bytes, at.positions, 24)[19..], [19, 70, 3, 4, 0]);
        assert_eq!(words(&bytes, at.places, 72)[60..66], [70, 70, 70, 3, 3, 3]);
        // Pages 0 and 1 are slot 0's, 2 slot 2's, 3 slot 1's; kernels count from 1, and 0 is wasted.
        assert_eq!(words(&bytes, at.tables, 9), [0, 1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(words(&bytes, at.row_tables, 32)[19..], [4, 1, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let runs = words(&bytes, at.runs, 20);
        assert_eq!(runs[..8], [20, 1, 70, 1, 21, 2, 3, 3]);
        assert_eq!(runs[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 4]);
        assert_eq!(words(&bytes, at.wanted, 2), [20, 0]);
    }

    #[test]
    fn lists_do_not_meet() {
        let one = Shape {
            rows: 3,
            few: 1,
            few_rows: 2,
            few_pages: 1,
            many: 2,
            many_rows: 9,
            tables: 7,
            images: 5,
            wanted: 1,
        };
        let at = one.places();
        let begins = [
            at.ids,
            at.places,
            at.row_tables,
            at.positions,
            at.runs,
            at.tables,
            at.image_rows,
            at.image_sources,
            at.wanted,
            at.bytes,
        ];
        let words = [3, 9, 3, 3, 12, 7, 5, 5, 1];
        for (two, words) in begins.windows(2).zip(words) {
            assert!(two[1] - two[0] >= words * 4 && two[0].is_multiple_of(16), "{begins:?}");
        }
    }
}
