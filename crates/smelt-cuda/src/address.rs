//! Names places in the memory that a device sees.

use std::fmt;

/// A place in the memory that a device sees: its own, page-locked memory of the host, or what was registered.
///
/// It is a number that only a driver follows, so it may be kept, sent and compared freely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// No place: what a kernel is given for something that is not there.
    pub const NULL: Self = Self(0);

    /// The place `bytes` behind this one.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Whether it is no place.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
