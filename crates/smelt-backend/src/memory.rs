//! Says where an engine's memory is, and which engines share processors.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Where an engine's weights, keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// In the memory of the processors that run this program.
    Host,
    /// In a device's own.
    Device,
    /// In the host's, which the device uses as its own (Jetson).
    Unified,
}

/// What an engine says of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Where it is.
    pub place: MemoryPlace,
    /// Bytes of all of it; nothing where that is the host's, which others measure.
    pub total_bytes: Option<u64>,
    /// Bytes that nobody holds.
    pub free_bytes: Option<u64>,
    /// Bytes of the largest piece that can be had at once, where that is less than what is free: keys and values are
    /// given no more.
    pub largest_bytes: Option<u64>,
    /// Bytes that this program's engines hold there, beside keys and values, and that no page of its own is: those of a
    /// device's own memory, and of the host's those that the device was given.
    pub own_bytes: u64,
    /// Bytes of the host's memory that this program's engines hold page-locked: the kernel shows them as shared pages, which are
    /// no anonymous ones.
    pub locked_bytes: u64,
}

impl MemoryReport {
    /// Of an engine that lives in the host's memory alone.
    pub const HOST: Self = Self {
        place: MemoryPlace::Host,
        total_bytes: None,
        free_bytes: None,
        largest_bytes: None,
        own_bytes: 0,
        locked_bytes: 0,
    };

    /// Bytes that can be had, as far as is said: what is free, but no more than the largest piece.
    pub fn room_bytes(&self) -> Option<u64> {
        [self.free_bytes, self.largest_bytes].into_iter().flatten().min()
    }

    /// Bytes that somebody holds, as far as is said.
    pub fn held_bytes(&self) -> Option<u64> {
        Some(self.total_bytes?.saturating_sub(self.free_bytes?))
    }
}

/// What engines know of each other that run on the same processors.  Only the back end that made it sees into
/// it: a decoder hands it out, and a graph of the same back end takes it.
#[derive(Clone, Default)]
pub struct Processors(Option<Arc<dyn Any + Send + Sync>>);

impl Processors {
    /// What is shared.
    pub fn new(shared: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Some(shared))
    }

    /// What is shared, if it is a `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.as_ref()?).downcast().ok()
    }
}

impl fmt::Debug for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Processors(shared)" } else { "Processors(own)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_is_free_in_one_piece() {
        let report = |free_bytes, largest_bytes| MemoryReport {
            place: MemoryPlace::Device,
            total_bytes: Some(10),
            free_bytes,
            largest_bytes,
            own_bytes: 0,
            locked_bytes: 0,
        };
        assert_eq!(report(Some(7), None).room_bytes(), Some(7));
        assert_eq!(report(Some(7), Some(3)).room_bytes(), Some(3));
        assert_eq!(report(Some(7), Some(9)).held_bytes(), Some(3));
        assert_eq!(
            (MemoryReport::HOST.room_bytes(), MemoryReport::HOST.held_bytes()),
            (None, None)
        );
    }
}
