//! Says in the words of the contract what a driver did not do.

use smelt_backend::RunError;

use crate::driver::DriverError;

/// Why a step could not be done.
pub(super) fn run_error(error: DriverError) -> RunError {
    match error {
        DriverError::NoMemory { bytes } => {
            RunError::NoMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
        }
        error @ (DriverError::LaunchRefused { .. }
        | DriverError::NoImage { .. }
        | DriverError::DeviceLost { .. }
        | DriverError::Refused { .. }) => RunError::Device(error.to_string()),
    }
}
