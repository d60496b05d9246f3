//! Decides which pictures of a stream become a film, and when it is long enough.
//!
//! Knows nothing of connections and clocks.

use std::time::Duration;

use smelt_runtime::image::FILE_BYTES_MAX;

use super::matroska::{BLOCK_BYTES, Matroska};
use super::sets::Sets;
use super::units::{Codec, Unit};

/// How much is recorded: what somebody does before a camera is seen in it, and it comes within the time of all fetches.
pub(super) const LENGTH: Duration = Duration::from_secs(4);
/// The most pictures of a film: those of the fastest cameras, 240 a second.
const UNITS_MAX: usize = 1000;

/// A film that is recorded.
#[derive(Debug)]
pub(super) struct Clip {
    codec: Codec,
    /// Units of time in a second.
    clock: u32,
    film: Option<(Matroska, i64)>,
    units: usize,
    /// Nothing can be shown before a picture that needs no other.
    needs_key: bool,
}

impl Clip {
    pub(super) fn new(codec: Codec, clock: u32) -> Self {
        Self { codec, clock, film: None, units: 0, needs_key: true }
    }

    /// Whether there is something to see.
    pub(super) fn has_begun(&self) -> bool {
        self.film.is_some()
    }

    /// Takes a picture, or leaves it; whether the film is long enough.
    pub(super) fn take(&mut self, unit: &Unit, sets: &Sets) -> bool {
        self.needs_key = !unit.is_key && self.needs_key || unit.is_damaged;
        if self.needs_key || !self.begin(unit, sets) {
            return false;
        }
        let Some((film, first)) = &mut self.film else { return false };
        // What is shown before the first refers to what was not recorded.
        let Ok(behind) = u64::try_from(unit.time - *first) else { return false };
        let time_ms = behind.saturating_mul(1000) / u64::from(self.clock);
        if time_ms >= LENGTH.as_millis() as u64 {
            return true;
        }
        if film.len() + unit.bytes.len() + BLOCK_BYTES > FILE_BYTES_MAX as usize {
            return true;
        }
        film.add(time_ms, unit.is_key, &unit.bytes);
        self.units += 1;
        self.units == UNITS_MAX
    }

    /// Begins the film with this picture, if it has not begun; whether it has.
    fn begin(&mut self, unit: &Unit, sets: &Sets) -> bool {
        if self.film.is_none() {
            let film = sets.written().map(|sets| Matroska::new(self.codec, &sets));
            self.film = film.map(|film| (film, unit.time));
            self.needs_key = self.film.is_none();
        }
        self.film.is_some()
    }

    /// The film; `None` if it has no picture.
    pub(super) fn film(self) -> Option<Vec<u8>> {
        self.film.map(|(film, _)| film.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets() -> Sets {
        Sets::new(Codec::H264, vec![vec![0x67, 1, 2, 3], vec![0x68, 1]])
    }

    fn unit(time: i64, is_key: bool) -> Unit {
        Unit { time, is_key, bytes: vec![b'#', time as u8], ..Unit::default() }
    }

    /// The pictures that are taken of some, by the second byte of each, up to where the film is long enough.
    fn taken(units: &[Unit]) -> Vec<u8> {
        let (mut clip, sets) = (Clip::new(Codec::H264, 10), sets());
        for unit in units {
            if clip.take(unit, &sets) {
                break;
            }
        }
        let film = clip.film().unwrap_or_default();
        film.windows(2).filter(|two| two[0] == b'#').map(|two| two[1]).collect()
    }

    #[test]
    fn a_film_begins_with_a_whole_picture_and_ends_in_time() {
        let units = [
            unit(1, false),
            unit(2, true),
            unit(1, false),
            unit(41, false),
            unit(42, false),
            unit(3, false),
        ];
        assert_eq!(taken(&units), [2, 41]);
        assert!(taken(&units[..1]).is_empty());
        assert_eq!(taken(&[unit(2, true), unit(i64::MAX / 2, true), unit(3, true)]), [2]);
    }

    #[test]
    fn behind_damage_a_whole_picture_is_waited_for() {
        let damaged = |time, is_key| Unit { is_damaged: true, ..unit(time, is_key) };
        let units = [
            damaged(0, true),
            unit(1, false),
            unit(2, true),
            damaged(3, false),
            unit(4, false),
            unit(5, true),
        ];
        assert_eq!(taken(&units), [2, 5]);
    }

    #[test]
    fn nothing_is_shown_before_its_parameter_sets() {
        let mut clip = Clip::new(Codec::H264, 10);
        let mut sets = Sets::new(Codec::H264, Vec::new());
        assert!(!clip.take(&unit(0, true), &sets) && !clip.has_begun());
        sets.add(&[0x67, 1, 2, 3]);
        sets.add(&[0x68, 1]);
        assert!(!clip.take(&unit(1, false), &sets) && !clip.has_begun());
        assert!(!clip.take(&unit(2, true), &sets) && clip.has_begun());
    }

    #[test]
    fn a_film_is_no_longer_than_a_file() {
        let (mut clip, sets) = (Clip::new(Codec::H264, 10), sets());
        let large = || Unit { bytes: vec![0; 16 << 20], ..unit(0, true) };
        let last = (1..).find(|_| clip.take(&large(), &sets));
        assert_eq!(last, Some(4), "the fourth would be too much");
        assert!(clip.film().unwrap().len() as u64 <= FILE_BYTES_MAX);
    }

    #[test]
    fn pictures_are_counted() {
        let (mut clip, sets) = (Clip::new(Codec::H264, 10), sets());
        let last = (1..).find(|_| clip.take(&unit(0, true), &sets));
        assert_eq!(last, Some(UNITS_MAX));
    }
}
