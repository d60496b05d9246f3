//! Keeps the work of passes that come again captured: one graph for each shape of a small batch.
//!
//! A shape is rounded up to a bucket, so that few graphs serve all batches; what fills a bucket is computed and read by
//! nobody.  Knows the shapes, not what is launched.

use std::collections::BTreeMap;

use super::inputs::{FEW_ROWS_MAX, Shape};
use crate::driver::{DriverError, Stream};
use crate::owned::{OwnedGraph, OwnedStream};

/// Rows of the largest batch that is captured.
const ROWS_MAX: usize = 64;
/// Graphs that are kept; each takes some hundred KiB of the driver.
const GRAPHS_MAX: usize = 64;
/// Rows of each bucket.
const BUCKETS: [usize; 9] = [1, 2, 4, 8, 16, 24, 32, 48, ROWS_MAX];
/// Fewest pages that a bucket is for.
const PAGES_MIN: usize = 4;

/// The bucket of a pass; none where it is too large, reads a prompt, or shows images.  `group` query heads share a key
/// head, and partial results of one key head have room for `parts_max` rows, one for each page and row of queries.
pub(super) fn bucket(exact: &Shape, group: usize, parts_max: usize) -> Option<Shape> {
    if exact.many > 0 || exact.images > 0 {
        return None;
    }
    let rows = BUCKETS.into_iter().find(|rows| *rows >= exact.rows)?;
    let few_pages = exact.few_pages.next_power_of_two().max(PAGES_MIN);
    let few_rows = if exact.few_rows <= group { group } else { FEW_ROWS_MAX };
    if few_pages * few_rows > parts_max {
        return None;
    }
    let tables = 1 + rows * few_pages;
    Some(Shape {
        rows,
        few: rows,
        few_rows,
        few_pages,
        many_rows: 0,
        tables,
        wanted: rows,
        ..*exact
    })
}

/// The graphs that were captured.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    graphs: BTreeMap<Shape, OwnedGraph>,
    /// Shapes in the order in which they were captured.
    order: Vec<Shape>,
}

impl Graphs {
    /// Puts the work of a shape on the stream: what was captured of it, or what `put` puts, which is captured then.
    ///
    /// # Errors
    /// [`DriverError`] where the work itself cannot be put there.  That it cannot be captured costs time alone.
    pub(super) fn launch(
        &mut self,
        shape: &Shape,
        stream: &OwnedStream,
        put: impl Fn(Stream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        if let Some(graph) = self.graphs.get(shape) {
            return graph.launch(stream.id());
        }
        match stream.capture(&put) {
            Ok(graph) => {
                graph.launch(stream.id())?;
                self.keep(*shape, graph);
                Ok(())
            }
            Err(error) if error.is_sticky() => Err(error),
            Err(_) => put(stream.id()),
        }
    }

    /// Keeps a graph that may be on its way; the oldest of too many goes when its work is done: see [`Self::settle`].
    fn keep(&mut self, shape: Shape, graph: OwnedGraph) {
        self.graphs.insert(shape, graph);
        self.order.push(shape);
    }

    /// Forgets the oldest of too many graphs.  None may be on a stream.
    pub(super) fn settle(&mut self) {
        let many = self.order.len().saturating_sub(GRAPHS_MAX);
        for shape in self.order.drain(..many) {
            self.graphs.remove(&shape);
        }
    }

    /// Forgets all, since what they name moved.  None may be on a stream.
    pub(super) fn clear(&mut self) {
        self.graphs.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: usize, few_rows: usize, few_pages: usize) -> Shape {
        let (tables, wanted) = (1 + rows * few_pages, rows);
        let (many, many_rows, images) = (0, 0, 0);
        Shape { rows, few: rows, few_rows, few_pages, many, many_rows, tables, images, wanted }
    }

    #[test]
    fn small_batches_share_few_buckets() {
        let found = |rows, few_rows, pages| bucket(&shape(rows, few_rows, pages), 2, 1 << 20);
        assert_eq!(found(3, 2, 5), found(4, 2, 8));
        assert_eq!(found(1, 1, 1), Some(shape(1, 2, 4)));
        assert_eq!(found(5, 6, 9).map(|shape| (shape.rows, shape.few_rows)), Some((8, 16)));
        assert_eq!(found(65, 2, 1), None);
        let prompt = Shape { many: 1, ..shape(4, 2, 4) };
        let image = Shape { images: 1, ..shape(4, 2, 4) };
        assert_eq!((bucket(&prompt, 2, 99), bucket(&image, 2, 99)), (None, None));
        assert_eq!(bucket(&shape(4, 2, 9), 2, 31), None, "partial results have no room");
        assert!(bucket(&shape(4, 2, 9), 2, 32).is_some());
    }

    #[test]
    fn a_bucket_holds_what_is_put_into_it() {
        for rows in 1..=ROWS_MAX {
            for pages in [1, 3, 4, 5, 100] {
                let exact = shape(rows, 4, pages);
                let bucket = bucket(&exact, 4, 1 << 20).unwrap();
                assert!(bucket.rows >= rows && bucket.few >= rows && bucket.few_pages >= pages);
                assert!(bucket.tables >= exact.tables && bucket.wanted >= exact.wanted);
            }
        }
    }
}
