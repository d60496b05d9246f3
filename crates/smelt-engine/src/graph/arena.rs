//! Lends parts of one block of memory: several to read and one to write, which lie apart.
//!
//! That they do is checked at every loan.  Knows nothing of what the numbers are.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// The numbers of all buffers.
#[derive(Debug)]
pub(crate) struct Arena(Vec<f32>);

/// A part that is written, perhaps by several threads, each its own numbers.
pub(crate) struct ArenaSlice<'a> {
    start: *mut f32,
    len: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: `slice` leaves it to its callers that threads write numbers of their own.
unsafe impl Sync for ArenaSlice<'_> {}

impl Arena {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0.0; len])
    }

    /// Lends `reads`, and `write` to be written.  Panics where they overlap or end outside.
    pub(crate) fn open(
        &mut self,
        reads: Vec<Range<usize>>,
        write: Range<usize>,
    ) -> (Vec<&[f32]>, ArenaSlice<'_>) {
        let (len, start) = (self.0.len(), self.0.as_mut_ptr());
        let inside = |range: &Range<usize>| range.start <= range.end && range.end <= len;
        assert!(inside(&write) && reads.iter().all(inside), "parts lie in the arena");
        let apart = |read: &Range<usize>| {
            read.is_empty()
                || write.is_empty()
                || read.end <= write.start
                || write.end <= read.start
        };
        assert!(reads.iter().all(apart), "what is read is not written");
        // SAFETY: the ranges lie in the block, which is borrowed for as long as the slices live, and
        // none of them meets what is written.
        let slice = |read: Range<usize>| unsafe {
            std::slice::from_raw_parts(start.add(read.start), read.len())
        };
        let reads = reads.into_iter().map(slice).collect();
        // SAFETY: the range lies in the block.
        let part = unsafe { start.add(write.start) };
        (reads, ArenaSlice { start: part, len: write.len(), lifetime: PhantomData })
    }
}

impl<'a> ArenaSlice<'a> {
    /// All of it.
    pub(crate) fn whole(self) -> &'a mut [f32] {
        // SAFETY: the part is exclusively this one's, and it is given up.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// The numbers of `range`.  Panics where it ends outside.
    ///
    /// # Safety
    /// Nobody else holds numbers of that range.
    #[expect(clippy::mut_from_ref, reason = "threads write ranges of their own")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a range lies in its part");
        // SAFETY: the range lies in the part, and is the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_later() {
        let mut arena = Arena::new(10);
        let (_, part) = arena.open(vec![], 2..6);
        // SAFETY: nobody else holds a part.
        unsafe { part.slice(1..3) }.fill(7.0);
        let (reads, part) = arena.open(vec![0..4, 0..0, 4..6], 6..10);
        assert_eq!(
            (reads[0], reads[1], reads[2]),
            (&[0.0, 0.0, 0.0, 7.0][..], &[][..], &[7.0, 0.0][..])
        );
        part.whole().copy_from_slice(&[1.0; 4]);
        assert_eq!(arena.open(vec![8..10, 0..0], 0..1).0[0], [1.0; 2]);
    }

    #[test]
    #[should_panic(expected = "not written")]
    fn reading_what_is_written_is_a_bug() {
        Arena::new(10).open(vec![0..4, 0..0], 3..6);
    }

    #[test]
    #[should_panic(expected = "in the arena")]
    fn parts_outside_are_a_bug() {
        Arena::new(10).open(vec![8..11, 0..0], 3..6);
    }
}
