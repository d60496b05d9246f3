//! Lets threads write different parts of one output.  Knows nothing of what they write.

#![allow(unsafe_code)]

use std::marker::PhantomData;

/// Rows of an output.  Threads hold copies and write different columns.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    out: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a `&mut [f32]`, which may go to other threads; whoever writes through a copy
// promises that nobody else writes there.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// Rows of `stride` numbers from the start of `out`.
    pub(crate) fn new(out: &'a mut [f32], stride: usize) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), stride, out: PhantomData }
    }

    /// The `len` elements from `(row, column)` on.  Panics where they end outside the output.
    ///
    /// # Safety
    /// Nobody else holds or touches any of them.
    #[inline(always)]
    pub(crate) unsafe fn line(self, row: usize, column: usize, len: usize) -> &'a mut [f32] {
        let start = row * self.stride + column;
        assert!(start + len <= self.len, "a line ends outside the output");
        // SAFETY: the line lies in the output, which is borrowed for 'a, and the caller promises that
        // nobody else has any of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
