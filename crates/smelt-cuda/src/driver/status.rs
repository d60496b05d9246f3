//! Says what a number means by which CUDA's driver answers a call.
//!
//! Numbers are those of `CUresult` in `cuda.h`; they never change their meaning.

use super::DriverError;
use crate::Function;

/// It did what it was asked.
pub(super) const SUCCESS: u32 = 0;
/// Work before a mark is not done.
pub(super) const NOT_READY: u32 = 600;
/// There is no card.
pub(super) const NO_DEVICE: u32 = 100;
/// What was to be registered is so already, or cannot be so.
pub(super) const NOT_SUPPORTED: u32 = 801;

/// There is no memory.
const OUT_OF_MEMORY: u32 = 2;
/// An image is not for this card, or none: invalid, no binary for the GPU, invalid PTX, PTX of a newer version.
const IMAGES: [u32; 5] = [200, 209, 218, 221, 222];
/// After these the context works no more: deinitialised, unavailable, context gone, ECC, NVLink or contained errors; then a
/// kernel's illegal address, timeout, assertion, stack, instruction, misaligned address, address space, program counter,
/// other failure; and what the driver has no name for.
const STICKY: [u32; 17] =
    [4, 46, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999];
/// A kernel cannot be launched so: wrong values, not found, too many resources, too many blocks at once.
const LAUNCHES: [u32; 4] = [1, 500, 701, 720];

/// What was tried.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tried {
    /// A call.
    Call(&'static str),
    /// One that takes memory.
    Memory(&'static str, u64),
    /// A launch of a kernel.
    Launch(Function),
}

/// The error that `status`, with what the driver says of it, is of what was tried.
pub(super) fn error(status: u32, problem: String, tried: Tried) -> DriverError {
    let (call, bytes) = match tried {
        Tried::Call(call) => (call, 0),
        Tried::Memory(call, bytes) => (call, bytes),
        Tried::Launch(function) if LAUNCHES.contains(&status) => {
            return DriverError::LaunchRefused { function, problem };
        }
        Tried::Launch(_) => ("launch", 0),
    };
    match status {
        OUT_OF_MEMORY => DriverError::NoMemory { bytes },
        status if IMAGES.contains(&status) => DriverError::NoImage { problem },
        status if STICKY.contains(&status) => DriverError::DeviceLost { call, problem },
        _ => DriverError::Refused { call, problem },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u32, tried: Tried, expect: &str) {
        assert_eq!(error(status, "it said".to_owned(), tried).to_string(), expect);
    }

    #[test]
    fn a_number_means_what_was_tried_with_it() {
        let add = Tried::Launch(Function("add"));
        check(2, Tried::Memory("allocate", 7), "the device has no memory for 7 more bytes");
        check(2, add, "the device has no memory for 0 more bytes");
        check(209, Tried::Call("load_module"), "the device cannot load these kernels: it said");
        check(701, add, "the device refuses to run add: it said");
        check(701, Tried::Call("record"), "the device refuses record: it said");
        check(700, Tried::Call("synchronize"), "the device is lost (synchronize: it said)");
        check(719, add, "the device is lost (launch: it said)");
        check(900, Tried::Call("allocate"), "the device refuses allocate: it said");
    }

    #[test]
    fn only_a_lost_device_is_sticky() {
        let sticky = (0..1000)
            .filter(|&status| error(status, String::new(), Tried::Call("any")).is_sticky());
        assert!(sticky.eq(STICKY));
    }
}
