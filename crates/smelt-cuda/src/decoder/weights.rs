//! Brings the weights of an engine into memory of the device, some MiB at a time.
//!
//! The host holds one piece at once; where its memory is the card's, pages that were read leave the system's cache behind it.
//! Knows nothing of layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use smelt_backend::OpenError;

use super::file::{DecoderDir, TensorEntry};
use super::memory::Arena;
use crate::DeviceAddress;
use crate::driver::{Driver, DriverError, Stream};

/// The weights, where the device reads them.
#[derive(Debug)]
pub(super) struct Weights {
    /// What all the addresses are in.
    arena: Arena,
    addresses: BTreeMap<String, DeviceAddress>,
}

impl Weights {
    /// Uploads every tensor of `dir`.
    ///
    /// # Errors
    /// When a file cannot be read, or the device has no room for them.
    pub(super) fn upload(
        dir: &DecoderDir,
        driver: &Arc<dyn Driver>,
        stream: Stream,
    ) -> Result<Self, OpenError> {
        let all: u64 = dir.tensors().map(|tensor| Arena::aligned(tensor.bytes)).sum();
        let mut weights = Self { arena: Arena::new(driver, all), addresses: BTreeMap::new() };
        let (mut buffer, is_unified) = (Vec::new(), driver.card().unified);
        for tensor in in_file_order(dir) {
            let refused = |error| refused(dir, &error);
            let address = weights.arena.take(tensor.bytes).map_err(refused)?;
            dir.read(tensor, &mut buffer, is_unified, |at, bytes| {
                driver.copy_to_device(stream, address.offset(at), bytes).map_err(refused)
            })?;
            weights.addresses.insert(tensor.name.clone(), address);
        }
        Ok(weights)
    }

    /// Where a tensor of the engine lies.
    pub(super) fn address(&self, name: &str) -> Option<DeviceAddress> {
        self.addresses.get(name).copied()
    }
}

/// What the disk reads without seeking.
fn in_file_order(dir: &DecoderDir) -> Vec<&TensorEntry> {
    let mut tensors: Vec<&TensorEntry> = dir.tensors().collect();
    tensors.sort_by_key(|tensor| tensor.offset);
    tensors
}

/// Why an engine cannot be opened on this device.
pub(super) fn refused(dir: &DecoderDir, error: &DriverError) -> OpenError {
    dir.unfit("this device", error.to_string())
}
