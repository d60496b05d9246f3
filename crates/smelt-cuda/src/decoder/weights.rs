//! Brings the weights of an engine where the device reads them: into its memory some MiB at a time, or where they lie.
//!
//! Of those that are copied the host holds one piece at once; where its memory is the card's, pages that were read leave the system's cache behind it.
//! Knows nothing of layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use smelt_backend::OpenError;

use super::file::{DecoderDir, TensorEntry};
use super::memory::Arena;
use crate::DeviceAddress;
use crate::driver::{Driver, DriverError, Stream};
use crate::owned::RegisteredBytes;

/// Where the weights lie.  A board whose memory is the host's has them once either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightsPlace {
    /// In memory of the device, to which they are copied.
    #[default]
    Uploaded,
    /// In their file, which the device reads through the host's memory.
    Registered,
}

/// The weights, where the device reads them.
#[derive(Debug)]
pub(super) struct Weights {
    addresses: BTreeMap<String, DeviceAddress>,
    /// What all the addresses are in.
    _held: Holder,
}

#[derive(Debug)]
enum Holder {
    Uploaded { _arena: Arena },
    Registered { _bytes: RegisteredBytes },
}

impl Weights {
    /// Brings every tensor of `dir` where the device reads it.
    ///
    /// # Errors
    /// When a file cannot be read, or the device has no room for them.
    pub(super) fn bring(
        place: WeightsPlace,
        dir: &DecoderDir,
        driver: &Arc<dyn Driver>,
        stream: Stream,
    ) -> Result<Self, OpenError> {
        match place {
            WeightsPlace::Uploaded => Self::upload(dir, driver, stream),
            WeightsPlace::Registered => Self::register(dir, driver),
        }
    }

    fn upload(
        dir: &DecoderDir,
        driver: &Arc<dyn Driver>,
        stream: Stream,
    ) -> Result<Self, OpenError> {
        let all: u64 = dir.tensors().map(|tensor| Arena::aligned(tensor.bytes)).sum();
        let (mut arena, mut addresses) = (Arena::new(driver, all), BTreeMap::new());
        let (mut buffer, is_unified) = (Vec::new(), driver.card().unified);
        for tensor in in_file_order(dir) {
            let refused = |error| refused(dir, &error);
            let address = arena.take(tensor.bytes).map_err(refused)?;
            dir.read(tensor, &mut buffer, is_unified, |at, bytes| {
                driver.copy_to_device(stream, address.offset(at), bytes).map_err(refused)
            })?;
            addresses.insert(tensor.name.clone(), address);
        }
        Ok(Self { addresses, _held: Holder::Uploaded { _arena: arena } })
    }

    fn register(dir: &DecoderDir, driver: &Arc<dyn Driver>) -> Result<Self, OpenError> {
        let bytes = RegisteredBytes::new(driver, dir.map()?);
        let bytes = bytes.map_err(|error| refused(dir, &error))?;
        let place =
            |tensor: &TensorEntry| (tensor.name.clone(), bytes.address().offset(tensor.offset));
        let addresses = dir.tensors().map(place).collect();
        Ok(Self { addresses, _held: Holder::Registered { _bytes: bytes } })
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
