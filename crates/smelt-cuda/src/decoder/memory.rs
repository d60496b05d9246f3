//! Takes memory of the device in pieces of at most 64 MiB, so that no single request is large.
//!
//! Boards whose memory is the host's refuse large pieces first.  Addresses are reserved, which takes nothing, and pieces are
//! put behind them as they are needed.  Knows nothing of what lies there.

use std::sync::Arc;

use super::inputs::PageNumbers;
use crate::DeviceAddress;
use crate::driver::{Driver, DriverError};
use crate::owned::Reservation;

/// Bytes of one piece of memory.
pub(super) const CHUNK_BYTES: u64 = 64 << 20;
/// Most addresses that are reserved at once.
const AREA_BYTES_MAX: u64 = 8 << 30;
/// Where buffers begin: a line of every cache, and what tensor cores read at once.
const ALIGN: u64 = 256;

/// Memory that is taken once, buffer after buffer, and given back together.
#[derive(Debug)]
pub(crate) struct Arena {
    driver: Arc<dyn Driver>,
    areas: Vec<Reservation>,
    /// Bytes of the last area that buffers have.
    used: u64,
    /// Bytes that buffers may still want, so that small arenas reserve little.
    expected: u64,
}

impl Arena {
    /// An empty one in which buffers of so many bytes are expected, each rounded up to [`Self::aligned`].
    pub(crate) fn new(driver: &Arc<dyn Driver>, expected: u64) -> Self {
        Self { driver: Arc::clone(driver), areas: Vec::new(), used: 0, expected }
    }

    /// Bytes that a buffer takes.
    pub(crate) fn aligned(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(ALIGN)
    }

    /// A buffer of so many bytes, which hold anything.
    ///
    /// # Errors
    /// [`DriverError`]; the buffers that were taken stay.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        let bytes = Self::aligned(bytes);
        if self.areas.last().is_none_or(|area| area.bytes() - self.used < bytes) {
            let area = self.expected.clamp(bytes, AREA_BYTES_MAX.max(bytes));
            self.areas.push(Reservation::new(&self.driver, area)?);
            self.used = 0;
        }
        let last = self.areas.len() - 1;
        let (area, end) = (&mut self.areas[last], self.used + bytes);
        back(area, end, &*self.driver)?;
        let address = area.address().offset(self.used);
        self.used = end;
        self.expected = self.expected.saturating_sub(bytes);
        Ok(address)
    }

    /// Bytes of the device that it holds.
    #[cfg(test)]
    fn held_bytes(&self) -> u64 {
        self.areas.iter().map(Reservation::mapped_bytes).sum()
    }
}

/// Puts memory behind the first `bytes` of an area, at least.
fn back(area: &mut Reservation, bytes: u64, driver: &dyn Driver) -> Result<(), DriverError> {
    let piece = piece_bytes(area, driver);
    while area.mapped_bytes() < bytes {
        let left = area.bytes() - area.mapped_bytes();
        if left == 0 {
            return Err(DriverError::NoMemory { bytes: bytes - area.mapped_bytes() });
        }
        area.grow(left.min(piece))?;
    }
    Ok(())
}

/// Bytes of the pieces of an area: [`CHUNK_BYTES`], but a sixteenth of small ones, so that those waste little.
fn piece_bytes(area: &Reservation, driver: &dyn Driver) -> u64 {
    (area.bytes() / 16).next_multiple_of(driver.chunk_bytes()).min(CHUNK_BYTES)
}

/// Pages of keys and values, numbered; those of high numbers are given back first.
///
/// Kernels know a page by its number.  The first, which slots never hold, is written by rows that only fill a bucket.
#[derive(Debug)]
pub(super) struct PagePool {
    driver: Arc<dyn Driver>,
    page_bytes: u64,
    /// Pages for which there are addresses.
    capacity: usize,
    area: Option<Reservation>,
}

impl PagePool {
    /// The numbers by which kernels know its pages.
    pub(super) const NUMBERS: PageNumbers = PageNumbers { waste: 0, first: 1 };

    /// An empty one of at most `pages` pages of so many bytes; never more than the card has memory for.
    pub(super) fn new(driver: &Arc<dyn Driver>, page_bytes: u64, pages: usize) -> Self {
        let fit = usize::try_from(driver.card().memory_bytes / page_bytes).unwrap_or(usize::MAX);
        Self { driver: Arc::clone(driver), page_bytes, capacity: pages.min(fit.max(1)), area: None }
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Bytes of the device behind it.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.area.as_ref().map_or(0, Reservation::mapped_bytes)
    }

    /// Most pages that slots may hold.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Where the pages lie; no place before the first was asked for.
    pub(super) fn base(&self) -> DeviceAddress {
        self.area.as_ref().map_or(DeviceAddress::NULL, Reservation::address)
    }

    /// Where a page of slots begins that [`Self::back`] has put memory behind.
    pub(super) fn address(&self, page: u32) -> DeviceAddress {
        self.base().offset(u64::from(page + Self::NUMBERS.first) * self.page_bytes)
    }

    /// Puts memory behind the first `pages` pages.
    ///
    /// # Errors
    /// [`DriverError`]; what has been taken by then stays, and [`Self::trim`] gives it back.
    pub(super) fn back(&mut self, pages: usize) -> Result<(), DriverError> {
        let area = match &mut self.area {
            Some(area) => area,
            None => {
                let all = self.capacity as u64 + u64::from(Self::NUMBERS.first);
                self.area.insert(Reservation::new(&self.driver, all * self.page_bytes)?)
            }
        };
        let bytes = (pages as u64 + u64::from(Self::NUMBERS.first)) * self.page_bytes;
        back(area, bytes, &*self.driver)
    }

    /// Gives back pieces of memory in which none of the first `pages` pages lies.  No work that names them may be left.
    ///
    /// # Errors
    /// [`DriverError`]; the piece counts as given back.
    pub(super) fn trim(&mut self, pages: usize) -> Result<(), DriverError> {
        let Some(area) = &mut self.area else { return Ok(()) };
        let keep = (pages as u64 + u64::from(Self::NUMBERS.first)) * self.page_bytes;
        let piece = piece_bytes(area, &*self.driver);
        while area.mapped_bytes() > keep && (area.mapped_bytes() - 1) / piece * piece >= keep {
            area.shrink()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::Sm;
    use crate::recording::{Held, RecordingDriver, card};

    fn twin(memory_bytes: u64) -> (Arc<RecordingDriver>, Arc<dyn Driver>) {
        let twin = Arc::new(RecordingDriver::new(card(Sm(90), memory_bytes, false)));
        let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&twin);
        (twin, driver)
    }

    #[test]
    fn buffers_do_not_meet_and_are_given_back_together() {
        let (twin, driver) = twin(1 << 30);
        let sizes = [1, 255, 256, 70_000, 1 << 20, 0, 3];
        let all = sizes.iter().map(|bytes| Arena::aligned(*bytes)).sum();
        let mut arena = Arena::new(&driver, all);
        let mut ends = Vec::new();
        for bytes in sizes {
            let address = arena.take(bytes).unwrap();
            assert!(address.0.is_multiple_of(ALIGN));
            twin.peek(address, bytes.max(1)).expect("memory is behind it");
            ends.push((address.0, address.0 + bytes));
        }
        assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0), "{ends:?}");
        assert_eq!(arena.held_bytes(), twin.held().device_bytes);
        assert!(arena.held_bytes() < all + (64 << 10) + 1, "no more than the last piece rounds up");
        // More than was expected is had as well.
        arena.take(1 << 20).unwrap();
        drop(arena);
        assert_eq!((twin.held(), twin.violations()), (Held::default(), Vec::new()));
    }

    #[test]
    fn no_single_piece_is_large() {
        let (twin, driver) = twin(1 << 30);
        let mut arena = Arena::new(&driver, 4 << 30);
        arena.take(200 << 20).unwrap();
        let maps = twin.calls().iter().filter(|call| call.name == "map").count();
        assert_eq!(maps, 4, "200 MiB in pieces of 64 MiB");
    }

    /// Pages come and go at random, and other parts of the device take their memory.
    fn simulate(seed: u64) {
        const PAGE: u64 = 48 << 10;
        let mut random = Random::new(seed);
        let memory = 512 << 10;
        let (twin, driver) = twin(memory);
        let mut pool = PagePool::new(&driver, PAGE, 100);
        assert_eq!(pool.capacity(), 10, "more than the card has is never there");
        for _ in 0..60 {
            let pages = random.below(pool.capacity() + 1);
            match pool.back(pages) {
                Ok(()) => {
                    for page in 0..pages as u32 {
                        twin.peek(pool.address(page), PAGE).expect("memory is behind it");
                    }
                }
                Err(error) => assert!(matches!(error, DriverError::NoMemory { .. }), "{error}"),
            }
            let held = twin.held().device_bytes;
            let backed = (held / PAGE).saturating_sub(1) as usize;
            let keep = random.below(backed + 1);
            pool.trim(keep).unwrap();
            for page in 0..keep as u32 {
                twin.peek(pool.address(page), PAGE).expect("what is kept stays");
            }
            let piece = 64 << 10;
            assert!(twin.held().device_bytes < (keep as u64 + 1) * PAGE + piece, "seed {seed}");
        }
        drop(pool);
        assert_eq!((twin.held(), twin.violations()), (Held::default(), Vec::new()), "seed {seed}");
    }

    #[test]
    fn pages_have_memory_as_long_as_they_are_wanted() {
        (0..50).for_each(simulate);
    }

    #[test]
    fn large_pools_give_back_whole_pieces() {
        let (twin, driver) = twin(4 << 30);
        let page = 8 << 20;
        let mut pool = PagePool::new(&driver, page, 200);
        pool.back(20).unwrap();
        assert_eq!(twin.held().device_bytes, 192 << 20, "21 pages of 8 MiB");
        pool.trim(9).unwrap();
        assert_eq!(twin.held().device_bytes, 128 << 20);
        twin.peek(pool.address(8), page).expect("what is kept stays");
        pool.trim(0).unwrap();
        assert_eq!(twin.held().device_bytes, 64 << 20, "the page that nobody reads stays");
    }
}
