//! Says why a driver did not do what it was asked.

use crate::Function;

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// It has not so much memory.
    #[error("the device has no memory for {bytes} more bytes")]
    NoMemory {
        /// Bytes that were asked for; 0 where the driver took them for itself.
        bytes: u64,
    },
    /// It cannot run a kernel so.
    #[error("the device refuses to run {function}: {problem}")]
    LaunchRefused {
        /// The kernel.
        function: Function,
        /// What the driver said.
        problem: String,
    },
    /// An image of kernels is not for it.
    #[error("the device cannot load these kernels: {problem}")]
    NoImage {
        /// What the driver said.
        problem: String,
    },
    /// It does no more work for this process until it is opened anew: a kernel went astray, or it is gone.
    #[error("the device is lost ({call}: {problem})")]
    DeviceLost {
        /// The call that told it, which need not be the one that caused it.
        call: &'static str,
        /// What the driver said.
        problem: String,
    },
    /// Anything else.
    #[error("the device refuses {call}: {problem}")]
    Refused {
        /// The call.
        call: &'static str,
        /// What the driver said.
        problem: String,
    },
}

impl DriverError {
    /// Whether all further calls fail as well.
    pub const fn is_sticky(&self) -> bool {
        matches!(self, Self::DeviceLost { .. })
    }
}
