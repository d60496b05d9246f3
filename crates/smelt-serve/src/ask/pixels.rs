//! Counts the pixels that requests have decoded at once: a file of some KB may become 50 million of them.
//!
//! A request takes room for all that it shows before the first is decoded, so none waits with room in its hands.  One that
//! needs more than there is has all of it to itself.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use smelt_runtime::image::PIXELS_MAX;

use crate::error::ApiError;

/// What a pixel takes while it is decoded: red, green and blue, and what decoders hold beside.
const BYTES_PER_PIXEL: u64 = 8;

/// What it takes from then on.
const BYTES_PER_DECODED: u64 = 3;

/// The most bytes that one request's pictures take: what the largest takes while it is decoded.
const BYTES_MAX: u64 = PIXELS_MAX * BYTES_PER_PIXEL;

/// How long pictures wait for others: three times what the largest take.
const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

/// How often who waits looks whether anybody still wants to know.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// Bytes that pictures take while they are decoded, where memory is not capped: four requests of the most.
pub const DECODING_BYTES: u64 = 4 * BYTES_MAX;

/// The pixels that take so many bytes.
pub(crate) fn of_bytes(bytes: u64) -> u64 {
    bytes / BYTES_PER_PIXEL
}

/// Pictures that are decoded one after another, and kept.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Decoded {
    /// Pixels of all of them.
    all: u64,
    /// Pixels of the largest.
    largest: u64,
}

impl Decoded {
    /// With one more of so many pixels.
    pub(super) fn with(self, pixels: u64) -> Self {
        Self { all: self.all.saturating_add(pixels), largest: self.largest.max(pixels) }
    }

    /// Bytes that they take at most: the largest may be the last.
    fn bytes(self) -> u64 {
        let beside = self.largest.saturating_mul(BYTES_PER_PIXEL - BYTES_PER_DECODED);
        self.all.saturating_mul(BYTES_PER_DECODED).saturating_add(beside)
    }

    /// Whether a request may show them.
    ///
    /// # Errors
    /// The limit, in words.
    pub(super) fn check(self) -> Result<(), String> {
        match self.bytes() > BYTES_MAX {
            true => Err(format!(
                "all pictures and frames together take more than {} MB; send fewer or smaller ones",
                BYTES_MAX / 1_000_000
            )),
            false => Ok(()),
        }
    }

    /// Pixels that may be decoded beside them, whatever they belong to.
    pub(super) fn left(self) -> u64 {
        of_bytes(BYTES_MAX.saturating_sub(self.bytes()))
    }

    /// The room that they need, in pixels that are being decoded; no more than a request may have.
    pub(super) fn room(self) -> u64 {
        of_bytes(self.bytes().min(BYTES_MAX))
    }
}

/// Room for pixels.
#[derive(Clone, Debug)]
pub(crate) struct Pixels {
    max: u64,
    free: Arc<(Mutex<u64>, Condvar)>,
}

/// A part of the room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    pixels: u64,
    of: Pixels,
}

impl Pixels {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let max = (bytes / BYTES_PER_PIXEL).max(1);
        Self { max, free: Arc::new((Mutex::new(max), Condvar::new())) }
    }

    /// Bytes that pictures may take besides those that are being decoded.
    pub(crate) fn free_bytes(&self) -> u64 {
        *self.free.0.lock().unwrap_or_else(PoisonError::into_inner) * BYTES_PER_PIXEL
    }

    /// Waits for room for so many, or for all there is, as long as `check` finds nothing against it.
    ///
    /// # Errors
    /// 429 if there is none for too long, and what `check` says.
    pub(crate) fn take(
        &self,
        pixels: u64,
        check: impl Fn() -> Result<(), ApiError>,
    ) -> Result<Taken, ApiError> {
        let pixels = pixels.min(self.max);
        let (free, freed) = &*self.free;
        let deadline = Instant::now() + WAIT_TIME_MAX;
        let mut left = free.lock().unwrap_or_else(PoisonError::into_inner);
        while *left < pixels {
            check()?;
            if Instant::now() >= deadline {
                let why = "too many large pictures are being decoded; try again";
                return Err(ApiError::busy(why, WAIT_TIME_MAX));
            }
            left = freed.wait_timeout(left, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        *left -= pixels;
        Ok(Taken { pixels, of: self.clone() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let (free, freed) = &*self.of.free;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += self.pixels;
        freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// What cameras of phones take.
    const PHOTOGRAPH: u64 = 4032 * 3024;

    #[test]
    fn only_the_picture_that_is_decoded_takes_more_than_its_colours() {
        let of = |count: usize, pixels| {
            std::iter::repeat_n(pixels, count).fold(Decoded::default(), Decoded::with)
        };
        assert_eq!(of(9, PHOTOGRAPH).check(), Ok(()));
        assert!(of(10, PHOTOGRAPH).check().unwrap_err().contains("400 MB"));
        assert_eq!((of(1, PIXELS_MAX).check(), of(1, PIXELS_MAX).left()), (Ok(()), 0));
        assert!(of(1, PIXELS_MAX).with(1).check().is_err());
        assert_eq!((of(0, 1).left(), of(0, 1).room()), (PIXELS_MAX, 0));
        assert_eq!((of(1, 1000).left(), of(1, 1000).room()), (PIXELS_MAX - 1000, 1000));
        assert!(of(6, PHOTOGRAPH).with(of(6, PHOTOGRAPH).left()).check().is_ok());
        assert_eq!((of(9, u64::MAX).left(), of(9, u64::MAX).room()), (0, PIXELS_MAX));
    }

    #[test]
    fn who_needs_more_than_there_is_waits_for_all_of_it() {
        let stays = || Ok(());
        let pixels = Pixels::new(100 * BYTES_PER_PIXEL);
        let few = pixels.take(40, stays).unwrap();
        let other = pixels.take(60, stays).unwrap();
        thread::scope(|scope| {
            let many = scope.spawn(|| pixels.take(1000, stays).map(|taken| taken.pixels));
            thread::sleep(LOOKS_EVERY / 2);
            assert!(!many.is_finished());
            assert_eq!(pixels.free_bytes(), 0);
            drop((few, other));
            assert_eq!(many.join().unwrap().unwrap(), 100);
        });
        assert_eq!(pixels.free_bytes(), 100 * BYTES_PER_PIXEL);
    }

    #[test]
    fn who_has_left_waits_no_longer() {
        let pixels = Pixels::new(100 * BYTES_PER_PIXEL);
        let _all = pixels.take(100, || Ok(())).unwrap();
        assert!(pixels.take(1, || Err(ApiError::failed("left"))).is_err());
    }
}
