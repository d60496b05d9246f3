//! Brings to the device what passes tell it, and back what they give, through page-locked memory of the host.
//!
//! What a step tells lies there pass behind pass until the step is done, since the device copies it when it comes to it.

use std::sync::Arc;

use crate::DeviceAddress;
use crate::driver::{Driver, DriverError, Stream};
use crate::owned::{DeviceBuffer, HostBuffer};

/// Buffers grow to whole multiples of this, so that they rarely do.
const STEP_BYTES: u64 = 64 << 10;
/// Where pieces begin.
const ALIGN: u64 = 256;

/// What all passes of a step tell, on the host, and room for the largest on the device.
#[derive(Debug)]
pub(super) struct Staging {
    driver: Arc<dyn Driver>,
    host: Option<HostBuffer>,
    device: Option<DeviceBuffer>,
    /// Where each piece lies on the host, and its bytes.
    pieces: Vec<(u64, u64)>,
}

impl Staging {
    /// With room for nothing yet.
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Self {
        Self { driver: Arc::clone(driver), host: None, device: None, pieces: Vec::new() }
    }

    /// Takes the pieces of a step in place of those of the last; no work that names those may be left.  Says whether the
    /// room on the device moved.
    ///
    /// # Errors
    /// [`DriverError`]; then no piece is there.
    pub(super) fn fill(&mut self, pieces: &[Vec<u8>]) -> Result<bool, DriverError> {
        self.pieces.clear();
        let (mut at, mut places) = (0, Vec::new());
        for piece in pieces {
            places.push((at, piece.len() as u64));
            at = (at + piece.len() as u64).next_multiple_of(ALIGN);
        }
        let largest = pieces.iter().map(|piece| piece.len() as u64).max().unwrap_or(0);
        let moved = largest > 0 && self.make_room(at, largest)?;
        for (piece, (at, _)) in pieces.iter().zip(&places) {
            self.host.as_ref().map_or(Ok(()), |host| host.write(*at, piece))?;
        }
        self.pieces = places;
        Ok(moved)
    }

    /// Whether the room on the device moved.
    fn make_room(&mut self, host: u64, device: u64) -> Result<bool, DriverError> {
        if self.host.as_ref().is_none_or(|buffer| buffer.bytes() < host) {
            self.host = None;
            self.host = Some(HostBuffer::new(&self.driver, rounded(host))?);
        }
        if self.device.as_ref().is_some_and(|buffer| buffer.bytes() >= device) {
            return Ok(false);
        }
        self.device = None;
        self.device = Some(DeviceBuffer::new(&self.driver, rounded(device))?);
        Ok(true)
    }

    /// Where the device finds a piece that was copied.
    pub(super) fn address(&self) -> DeviceAddress {
        self.device.as_ref().map_or(DeviceAddress::NULL, DeviceBuffer::address)
    }

    /// Puts the copy of a piece to [`Self::address`] on the stream.
    ///
    /// # Errors
    /// [`DriverError`].
    pub(super) fn put(&self, stream: Stream, piece: usize) -> Result<(), DriverError> {
        let refused = || {
            let problem = format!("there is no piece {piece}");
            DriverError::Refused { call: "copy", problem }
        };
        let &(at, bytes) = self.pieces.get(piece).ok_or_else(refused)?;
        if bytes == 0 {
            return Ok(());
        }
        let host = self.host.as_ref().ok_or_else(refused)?;
        self.driver.copy(stream, self.address(), host.address().offset(at), bytes)
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sm;
    use crate::driver::Priority;
    use crate::owned::OwnedStream;
    use crate::recording::{RecordingDriver, card};

    #[test]
    fn pieces_reach_the_device_one_after_another() {
        let twin = Arc::new(RecordingDriver::new(card(Sm(90), 1 << 30, false)));
        let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&twin);
        let stream = OwnedStream::new(&driver, Priority::High).unwrap();
        let mut staging = Staging::new(&driver);
        let pieces = [vec![1; 300], vec![2; 70_000], Vec::new()];
        assert_eq!(staging.fill(&pieces), Ok(true));
        for (at, piece) in pieces.iter().enumerate() {
            staging.put(stream.id(), at).unwrap();
            stream.synchronize().unwrap();
            let found = twin.peek(staging.address(), piece.len() as u64).unwrap();
            assert_eq!(found, *piece);
        }
        assert!(staging.put(stream.id(), 3).is_err());
        assert_eq!(staging.fill(&[vec![3; 9]]), Ok(false), "there is room");
        staging.put(stream.id(), 0).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(twin.peek(staging.address(), 9).unwrap(), [3; 9]);
        drop((staging, stream));
        assert_eq!((twin.violations(), twin.held().pieces), (Vec::new(), 0));
    }
}
