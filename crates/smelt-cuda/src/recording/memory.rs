//! Keeps the memory of a device that is none: bytes of the host behind made-up addresses.

use std::collections::BTreeMap;
use std::fmt;

use super::work::Span;
use crate::DeviceAddress;
use crate::driver::{DriverError, HostBytes, MemoryInfo};

/// Where the first piece lies; every piece begins at a multiple of [`APART`], with a gap before the next.
const FIRST: u64 = 1 << 40;
const APART: u64 = 1 << 21;

/// What memory holds before anybody wrote it: numbers that are not finite, in any width of floats.
const NEVER_WRITTEN: u8 = 0xff;

/// A place that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Astray(pub String);

/// Whose memory a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Device,
    Host,
    Registered,
    Reserved,
}

/// The memory that a device sees.
#[derive(Debug)]
pub struct TwinMemory {
    /// By the address where they begin.
    pieces: BTreeMap<u64, Piece>,
    next: u64,
    total_bytes: u64,
}

struct Piece {
    place: Place,
    /// Bytes of its addresses.
    size: u64,
    held: Contents,
    /// Where memory is behind a reservation, from the byte to the byte.
    mapped: BTreeMap<u64, u64>,
}

enum Contents {
    Own(Vec<u8>),
    Registered(HostBytes),
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.place, self.size)
    }
}

impl Contents {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Registered(bytes) => (**bytes).as_ref(),
        }
    }
}

impl Piece {
    /// Bytes of the device's memory that it takes.
    fn device_bytes(&self) -> u64 {
        match self.place {
            Place::Device => self.size,
            Place::Reserved => self.mapped.iter().map(|(from, to)| to - from).sum(),
            Place::Host | Place::Registered => 0,
        }
    }

    /// Whether there is memory behind all of these bytes.
    fn has(&self, from: u64, to: u64) -> bool {
        if self.place != Place::Reserved {
            return to <= self.size;
        }
        let mut at = from;
        for (&begin, &end) in &self.mapped {
            if begin <= at && at < end {
                at = end;
            }
        }
        at >= to
    }
}

impl TwinMemory {
    pub(super) const fn new(total_bytes: u64) -> Self {
        Self { pieces: BTreeMap::new(), next: FIRST, total_bytes }
    }

    /// Pieces that nobody gave back, and bytes of the device in them.
    pub(super) fn held(&self) -> (usize, u64) {
        (self.pieces.len(), self.device_bytes())
    }

    pub(super) fn info(&self) -> MemoryInfo {
        let free_bytes = self.total_bytes - self.device_bytes();
        MemoryInfo { free_bytes, total_bytes: self.total_bytes }
    }

    fn device_bytes(&self) -> u64 {
        self.pieces.values().map(Piece::device_bytes).sum()
    }

    /// Takes `bytes` for a new piece.
    pub(super) fn take(&mut self, place: Place, bytes: u64) -> Result<DeviceAddress, DriverError> {
        if place == Place::Device && bytes > self.info().free_bytes {
            return Err(DriverError::NoMemory { bytes });
        }
        if bytes == 0 {
            let problem = "no bytes were asked for".to_owned();
            return Err(DriverError::Refused { call: "allocate", problem });
        }
        let len = if place == Place::Reserved { 0 } else { bytes as usize };
        Ok(self.add(place, bytes, Contents::Own(vec![NEVER_WRITTEN; len])))
    }

    pub(super) fn register(&mut self, bytes: HostBytes) -> DeviceAddress {
        let size = (*bytes).as_ref().len() as u64;
        self.add(Place::Registered, size, Contents::Registered(bytes))
    }

    fn add(&mut self, place: Place, size: u64, held: Contents) -> DeviceAddress {
        let at = self.next;
        self.next = (at + size + 1).next_multiple_of(APART);
        self.pieces.insert(at, Piece { place, size, held, mapped: BTreeMap::new() });
        DeviceAddress(at)
    }

    pub(super) fn give_back(&mut self, place: Place, address: DeviceAddress) -> Result<(), String> {
        match self.pieces.get(&address.0) {
            Some(piece) if piece.place == place && piece.mapped.is_empty() => {
                self.pieces.remove(&address.0);
                Ok(())
            }
            Some(piece) => Err(format!("{address} is {piece:?}, or has memory behind it")),
            None => Err(format!("{address} is nothing that was given, or was given back")),
        }
    }

    /// Puts memory behind a part of a reservation; whether there was enough.
    pub(super) fn map(&mut self, address: DeviceAddress, bytes: u64) -> Result<bool, String> {
        let is_enough = bytes <= self.info().free_bytes;
        let (piece, at) = self.reservation(address, bytes)?;
        let end = at + bytes;
        if piece.mapped.iter().any(|(&from, &to)| from < end && at < to) {
            return Err(format!("{address} has memory already"));
        }
        if !is_enough {
            return Ok(false);
        }
        piece.mapped.insert(at, end);
        if let Contents::Own(own) = &mut piece.held {
            let len = own.len().max(end as usize);
            own.resize(len, NEVER_WRITTEN);
            own[at as usize..end as usize].fill(NEVER_WRITTEN);
        }
        Ok(true)
    }

    pub(super) fn unmap(&mut self, address: DeviceAddress, bytes: u64) -> Result<(), String> {
        let (piece, at) = self.reservation(address, bytes)?;
        if piece.mapped.get(&at) != Some(&(at + bytes)) {
            return Err(format!("{bytes} bytes at {address} were not mapped as one"));
        }
        piece.mapped.remove(&at);
        Ok(())
    }

    /// The reservation around a place, and where it is in it.
    fn reservation(
        &mut self,
        address: DeviceAddress,
        bytes: u64,
    ) -> Result<(&mut Piece, u64), String> {
        let found = self.pieces.range_mut(..=address.0).next_back();
        let found = found.map(|(base, piece)| (address.0 - base, piece));
        match found {
            Some((at, piece)) if piece.place == Place::Reserved && at + bytes <= piece.size => {
                Ok((piece, at))
            }
            _ => Err(format!("{bytes} bytes at {address} are in no reservation")),
        }
    }

    /// All of the piece that a place is in.
    pub(super) fn piece(&self, address: DeviceAddress) -> Option<Span> {
        let (base, piece) = self.pieces.range(..=address.0).next_back()?;
        let whole = Span::new(DeviceAddress(*base), piece.size);
        (address.0 < whole.to).then_some(whole)
    }

    /// Some bytes of the piece that they are in.
    pub(super) fn span(&self, at: DeviceAddress, bytes: u64) -> Span {
        let span = Span::new(at, bytes);
        Span { piece: self.piece(at).map_or(at.0, |whole| whole.from), ..span }
    }

    /// Page-locked memory, as the host uses it.
    pub(super) fn host(&mut self, at: DeviceAddress, bytes: u64) -> Result<&mut [u8], Astray> {
        let base = self.base(at, bytes)?;
        if self.pieces[&base].place != Place::Host {
            return Err(Astray(format!("{at} is no page-locked memory")));
        }
        self.write(at, bytes)
    }

    /// `bytes` bytes that a kernel reads.
    ///
    /// # Errors
    /// Where they are not all taken.
    pub fn read(&self, at: DeviceAddress, bytes: u64) -> Result<&[u8], Astray> {
        let base = self.base(at, bytes)?;
        let from = (at.0 - base) as usize;
        Ok(&self.pieces[&base].held.bytes()[from..from + bytes as usize])
    }

    /// `bytes` bytes that a kernel writes.
    ///
    /// # Errors
    /// Where they are not all taken, or may only be read.
    pub fn write(&mut self, at: DeviceAddress, bytes: u64) -> Result<&mut [u8], Astray> {
        let base = self.base(at, bytes)?;
        let from = (at.0 - base) as usize;
        let only_read = || Astray(format!("{at} may only be read"));
        match self.pieces.get_mut(&base).map(|piece| &mut piece.held) {
            Some(Contents::Own(own)) => Ok(&mut own[from..from + bytes as usize]),
            _ => Err(only_read()),
        }
    }

    /// Copies within what the device sees.
    pub(super) fn copy(
        &mut self,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), Astray> {
        let copied = self.read(from, bytes)?.to_vec();
        self.write(to, bytes)?.copy_from_slice(&copied);
        Ok(())
    }

    /// Where the piece begins that holds all of these bytes.
    fn base(&self, at: DeviceAddress, bytes: u64) -> Result<u64, Astray> {
        let found = self.pieces.range(..=at.0).next_back();
        let found = found.filter(|(base, piece)| piece.has(at.0 - **base, at.0 - **base + bytes));
        let lacking = || Astray(format!("{bytes} bytes at {at} are not all there"));
        found.map(|(base, _)| *base).ok_or_else(lacking)
    }

    /// `count` numbers of four bytes that a kernel reads.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn u32s(&self, at: DeviceAddress, count: usize) -> Result<Vec<u32>, Astray> {
        let (numbers, _) = self.read(at, count as u64 * 4)?.as_chunks::<4>();
        Ok(numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }

    /// `count` floats of four bytes that a kernel reads.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn f32s(&self, at: DeviceAddress, count: usize) -> Result<Vec<f32>, Astray> {
        Ok(self.u32s(at, count)?.into_iter().map(f32::from_bits).collect())
    }

    /// `count` numbers of two bytes that a kernel reads.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn u16s(&self, at: DeviceAddress, count: usize) -> Result<Vec<u16>, Astray> {
        let (numbers, _) = self.read(at, count as u64 * 2)?.as_chunks::<2>();
        Ok(numbers.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect())
    }

    /// Writes numbers of four bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn set_u32s(&mut self, at: DeviceAddress, numbers: &[u32]) -> Result<(), Astray> {
        let (places, _) = self.write(at, numbers.len() as u64 * 4)?.as_chunks_mut::<4>();
        places.iter_mut().zip(numbers).for_each(|(place, number)| *place = number.to_le_bytes());
        Ok(())
    }

    /// Writes floats of four bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn set_f32s(&mut self, at: DeviceAddress, numbers: &[f32]) -> Result<(), Astray> {
        let bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
        self.set_u32s(at, &bits)
    }

    /// Writes numbers of two bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn set_u16s(&mut self, at: DeviceAddress, numbers: &[u16]) -> Result<(), Astray> {
        let (places, _) = self.write(at, numbers.len() as u64 * 2)?.as_chunks_mut::<2>();
        places.iter_mut().zip(numbers).for_each(|(place, number)| *place = number.to_le_bytes());
        Ok(())
    }
}
