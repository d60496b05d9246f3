//! Lends threads to work that blocks, so much of each kind at once.

use std::io::{self, Read, Write};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::pixels::{Pixels, Taken};
use crate::error::ApiError;

/// How long work waits for other work of its kind.
const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

/// Most pictures that are fetched at once: they wait for other hosts, not for the processor.
const FETCHES_MAX: usize = 8;

/// Most films that are read at once: each has two threads at work, for up to a minute.
const FILMS_MAX: usize = 2;

/// Most slots that are written, put back or looked at at once: each waits for the disk, and for the engine.
const MOVES_MAX: usize = 2;

/// Threads for all kinds of work.
pub(crate) const THREADS_MAX: usize = FETCHES_MAX + PREPARES_MAX + FILMS_MAX + MOVES_MAX + 4;

/// Most requests that are prepared at once: a picture takes up to a GB while it is decoded.
const PREPARES_MAX: usize = 4;

/// Who asked, as work sees it: gone with the future that waits for what is done.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    waits: Weak<()>,
    pixels: Pixels,
}

impl Asker {
    /// Waits for room to decode so many pixels.
    ///
    /// # Errors
    /// 429 if there is none for too long, and what nobody hears where who asked has left.
    pub(crate) fn room(&self, pixels: u64) -> Result<Taken, ApiError> {
        self.pixels.take(pixels, || self.check())
    }

    /// Ends work for who has left; asked between steps, each of which is bounded.
    ///
    /// # Errors
    /// What nobody hears.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.waits.strong_count() {
            0 => Err(ApiError::failed("the client has left")),
            _ => Ok(()),
        }
    }
}

impl From<Asker> for Weak<()> {
    fn from(asker: Asker) -> Self {
        asker.waits
    }
}

/// A file that is no more read or written where who asked has left.
pub(crate) struct Watched<'a, F> {
    pub(crate) asker: &'a Asker,
    pub(crate) file: &'a mut F,
}

impl<F> Watched<'_, F> {
    fn check(&self) -> io::Result<()> {
        self.asker.check().map_err(|error| io::Error::other(error.message))
    }
}

impl<F: Read> Read for Watched<'_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.file.read(bytes)
    }
}

impl<F: Write> Write for Watched<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A kind of work.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    places: Arc<Semaphore>,
    pixels: Pixels,
}

impl Work {
    /// Reading requests and cutting pictures: as much as there are cores, within bounds, with room for so many bytes of
    /// pixels.
    pub(crate) fn preparing(decoding_bytes: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let places = Arc::new(Semaphore::new(cores.min(PREPARES_MAX)));
        Self { places, pixels: Pixels::new(decoding_bytes) }
    }

    /// Reading films, in the same room for pixels.
    pub(crate) fn filming(&self) -> Self {
        Self { places: Arc::new(Semaphore::new(FILMS_MAX)), pixels: self.pixels.clone() }
    }

    /// Fetching pictures from other hosts.
    pub(crate) fn fetching() -> Self {
        Self { places: Arc::new(Semaphore::new(FETCHES_MAX)), pixels: Pixels::new(0) }
    }

    /// Moving what slots hold between memory and disk.
    pub(crate) fn moving() -> Self {
        Self { places: Arc::new(Semaphore::new(MOVES_MAX)), pixels: Pixels::new(0) }
    }

    /// Bytes that its pictures may take besides those that are being decoded.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.pixels.free_bytes()
    }

    /// Does `work` when there is a place for it.
    ///
    /// # Errors
    /// What it gives; 429 if there is no place for too long.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Asker) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = timeout(WAIT_TIME_MAX, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let why = "too many requests are being prepared; try again";
            return Err(ApiError::busy(why, WAIT_TIME_MAX));
        };
        // Goes with this future, which is dropped where who asked leaves.
        let waits = Arc::new(());
        let asker = Asker { waits: Arc::downgrade(&waits), pixels: self.pixels.clone() };
        // A step goes on where who asked has left, and its place is taken until it is done.
        let work = move || {
            let done = asker.check().and_then(|()| work(&asker));
            drop(place);
            done
        };
        let done = spawn_blocking(work).await;
        drop(waits);
        done.unwrap_or_else(|_| Err(ApiError::failed("smelt failed on this request")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_file_is_not_gone_on_with_for_who_has_left() {
        let waits = Arc::new(());
        let asker = Asker { waits: Arc::downgrade(&waits), pixels: Pixels::new(0) };
        let (mut file, mut told, mut byte) = (&b"ab"[..], Vec::new(), [0]);
        let mut from = Watched { asker: &asker, file: &mut file };
        let mut to = Watched { asker: &asker, file: &mut told };
        from.read_exact(&mut byte).unwrap();
        to.write_all(&byte).unwrap();
        drop(waits);
        assert!(from.read_exact(&mut byte).is_err());
        assert!(to.write_all(&byte).is_err());
        assert_eq!((file, &told[..]), (&b"b"[..], &b"a"[..]));
    }
}
