//! Takes memory of the device in pieces of at most 64 MiB, so that no single request is large.
//!
//! Boards whose memory is the host's refuse large pieces first.  Addresses are reserved, which takes nothing, and pieces are
//! put behind them as they are needed.  Knows nothing of what lies there.

use std::sync::Arc;

use crate::driver::{Driver, DriverError};
use crate::owned::Reservation;
use crate::DeviceAddress;

/// Bytes of one piece of memory.
pub(super) const CHUNK_BYTES: u64 = 64 << 20;
/// Most addresses that are reserved at once.
const AREA_BYTES_MAX: u64 = 8 << 30;
/// Where buffers begin: a line of every cache, and what tensor cores read at once.
const ALIGN: u64 = 256;

/// Memory that is taken once, buffer after buffer, and given back together.
#[derive(Debug)]
pub(super) struct Arena {
    driver: Arc<dyn Driver>,
    areas: Vec<Reservation>,
    /// Bytes of the last area that buffers have.
    used: u64,
    /// Bytes that buffers may still want, so that small arenas reserve little.
    expected: u64,
}

impl Arena {
    /// An empty one in which buffers of so many bytes are expected, each rounded up to [`Self::aligned`].
    pub(super) fn new(driver: &Arc<dyn Driver>, expected: u64) -> Self {
        Self { driver: Arc::clone(driver), areas: Vec::new(), used: 0, expected }
    }

    /// Bytes that a buffer takes.
    pub(super) fn aligned(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(ALIGN)
    }

    /// A buffer of so many bytes, which hold anything.
    ///
    /// # Errors
    /// [`DriverError`]; the buffers that were taken stay.
    pub(super) fn take(&mut self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        let bytes = Self::aligned(bytes);
        if self.areas.last().is_none_or(|area| area.bytes() - self.used < bytes) {
            let area = self.expected.clamp(bytes, AREA_BYTES_MAX.max(bytes));
            self.areas.push(Reservation::new(&self.driver, area)?);
            self.used = 0;
        }
        let last = self.areas.len() - 1;
        let (area, end) = (&mut self.areas[last], self.used + bytes);
        back(area, end)?;
        let address = area.address().offset(self.used);
        self.used = end;
        self.expected = self.expected.saturating_sub(bytes);
        Ok(address)
    }

    /// Bytes of the device that it holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.areas.iter().map(Reservation::mapped_bytes).sum()
    }
}

/// Puts memory behind the first `bytes` of an area, at least.
fn back(area: &mut Reservation, bytes: u64) -> Result<(), DriverError> {
    while area.mapped_bytes() < bytes {
        let left = area.bytes() - area.mapped_bytes();
        area.grow(left.min(CHUNK_BYTES))?;
    }
    Ok(())
}

/// Pages of keys and values, numbered; those of high numbers are given back first.
#[derive(Debug)]
pub(super) struct PagePool {
    driver: Arc<dyn Driver>,
    page_bytes: u64,
    pages_of_area: usize,
    areas: Vec<Reservation>,
}

impl PagePool {
    /// An empty one of pages of so many bytes, of which there will hardly be more than `pages`.
    pub(super) fn new(driver: &Arc<dyn Driver>, page_bytes: u64, pages: usize) -> Self {
        let most = (AREA_BYTES_MAX / page_bytes.max(1)).max(1);
        let pages_of_area = usize::try_from(most).unwrap_or(usize::MAX).min(pages.max(1));
        Self { driver: Arc::clone(driver), page_bytes, pages_of_area, areas: Vec::new() }
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Where a page begins that [`Self::back`] has put memory behind.
    pub(super) fn address(&self, page: u32) -> DeviceAddress {
        let (area, at) = (page as usize / self.pages_of_area, page as usize % self.pages_of_area);
        self.areas[area].address().offset(at as u64 * self.page_bytes)
    }

    /// Puts memory behind the first `pages` pages.
    ///
    /// # Errors
    /// [`DriverError`]; what has been taken by then stays, and [`Self::trim`] gives it back.
    pub(super) fn back(&mut self, pages: usize) -> Result<(), DriverError> {
        let areas = pages.div_ceil(self.pages_of_area);
        while self.areas.len() < areas {
            let bytes = self.pages_of_area as u64 * self.page_bytes;
            self.areas.push(Reservation::new(&self.driver, bytes)?);
        }
        for (index, area) in self.areas.iter_mut().enumerate() {
            let own = pages.saturating_sub(index * self.pages_of_area).min(self.pages_of_area);
            back(area, own as u64 * self.page_bytes)?;
        }
        Ok(())
    }

    /// Gives back pieces of memory in which none of the first `pages` pages lies.  No work that names them may be left.
    ///
    /// # Errors
    /// [`DriverError`]; the piece counts as given back.
    pub(super) fn trim(&mut self, pages: usize) -> Result<(), DriverError> {
        for (index, area) in self.areas.iter_mut().enumerate().rev() {
            let own = pages.saturating_sub(index * self.pages_of_area).min(self.pages_of_area);
            let keep = own as u64 * self.page_bytes;
            while area.mapped_bytes() > keep && last_piece_start(area) >= keep {
                area.shrink()?;
            }
        }
        Ok(())
    }

    /// Bytes of the device that it holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.areas.iter().map(Reservation::mapped_bytes).sum()
    }
}

/// Where the last piece of an area begins that was mapped by [`back`]: all but the last one are whole chunks.
fn last_piece_start(area: &Reservation) -> u64 {
    let chunk = CHUNK_BYTES.min(area.bytes());
    (area.mapped_bytes().saturating_sub(1)) / chunk * chunk
}
