//! Counts what a fleet has given a board, since its store began to count.

use serde::{Deserialize, Serialize};

/// What came of asking a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Counts {
    /// Outputs that were taken.
    pub hits: u64,
    /// Stages that nobody had published.
    pub misses: u64,
    /// Outputs that were there and not taken: nobody who is believed vouches for them, or they are not what was signed.
    pub refused: u64,
    /// Fetched from the server, in bytes.
    pub server_bytes: u64,
    /// Fetched from neighbours, in bytes.
    pub peer_bytes: u64,
    /// Found on the board's own disk, in bytes.
    pub disk_bytes: u64,
    /// What building the outputs that were taken had cost their builders, in milliseconds.
    pub saved_ms: u64,
}

/// A text that is no counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotCounts(String);

impl Counts {
    /// Reads what [`Self::to_json`] writes; nothing is counted yet where there is no text.
    ///
    /// # Errors
    /// If it is none.
    pub fn from_json(json: &[u8]) -> Result<Self, NotCounts> {
        if json.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(json).map_err(|error| NotCounts(error.to_string()))
    }

    /// Writes them, in a line.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec(self).expect("numbers are JSON");
        json.push(b'\n');
        json
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        Self {
            hits: self.hits.saturating_add(more.hits),
            misses: self.misses.saturating_add(more.misses),
            refused: self.refused.saturating_add(more.refused),
            server_bytes: self.server_bytes.saturating_add(more.server_bytes),
            peer_bytes: self.peer_bytes.saturating_add(more.peer_bytes),
            disk_bytes: self.disk_bytes.saturating_add(more.disk_bytes),
            saved_ms: self.saved_ms.saturating_add(more.saved_ms),
        }
    }

    /// The same after the same questions were asked once more: what is not there is still one miss.
    #[must_use]
    pub fn then(&self, again: &Self) -> Self {
        Self { misses: 0, refused: 0, ..*self }.and(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Counts = Counts {
        hits: 1,
        misses: 2,
        refused: 3,
        server_bytes: 4,
        peer_bytes: 5,
        disk_bytes: 6,
        saved_ms: 7,
    };

    #[test]
    fn counts_are_read_as_they_were_written() {
        assert_eq!(Counts::from_json(&SOME.to_json()), Ok(SOME));
        assert_eq!(Counts::from_json(b""), Ok(Counts::default()));
        // What was not counted then begins now.
        assert_eq!(Counts::from_json(br#"{"hits":1}"#).unwrap().hits, 1);
        for damaged in [&b"{"[..], b"\0", br#"{"hits":-1}"#, br#"{"hit":1}"#, b"[]1"] {
            assert!(Counts::from_json(damaged).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn sums_have_an_end_and_what_is_asked_again_counts_once() {
        let twice = SOME.and(&SOME);
        assert_eq!((twice.hits, twice.misses, twice.saved_ms), (2, 4, 14));
        assert_eq!(Counts { hits: u64::MAX, ..SOME }.and(&SOME).hits, u64::MAX);
        let again = SOME.then(&Counts { hits: 1, misses: 1, ..Counts::default() });
        assert_eq!((again.hits, again.misses, again.refused, again.disk_bytes), (2, 1, 0, 6));
    }
}
