//! Puts chunks of large files together of what older outputs have of them and of what alone is new in them.

use crate::chunk::Chunk;
use crate::local::LocalChunks;
use crate::pieces::{Hashes, PIECE_BYTES};
use crate::remote::{Range, first_within};

use super::{Fetch, Place, PullError, WINDOW_BYTES};

/// Where some of a chunk's bytes come from.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// A file that is here, by its number, and how many bytes are before them.
    Here(usize, u64),
    /// The server.
    There,
}

/// A chunk and what it is put together of.
#[derive(Debug, PartialEq, Eq)]
struct Mosaic {
    chunk: Chunk,
    /// One after the other, each with its bytes.
    parts: Vec<(Source, u32)>,
}

impl Mosaic {
    /// Of a chunk that lies `at` so many bytes of a file with these pieces; `find` knows where one is here.
    fn of(
        chunk: Chunk,
        at: u64,
        pieces: &[u64],
        find: impl Fn(u64) -> Option<(usize, u64)>,
    ) -> Self {
        let (piece_bytes, end) = (PIECE_BYTES as u64, at + u64::from(chunk.bytes));
        let mut parts: Vec<(Source, u32)> = Vec::new();
        let mut from = at;
        while from < end {
            let (piece, before) = (from / piece_bytes, from % piece_bytes);
            let until = end.min((piece + 1) * piece_bytes);
            let bytes = (until - from) as u32;
            let found = pieces.get(piece as usize).and_then(|hash| find(*hash));
            match (found, parts.last_mut()) {
                (Some((file, place)), _) => parts.push((Source::Here(file, place + before), bytes)),
                (None, Some((Source::There, held))) => *held += bytes,
                (None, _) => parts.push((Source::There, bytes)),
            }
            from = until;
        }
        Self { chunk, parts }
    }

    /// What must come.
    fn missing(&self) -> Vec<Range> {
        let mut from = 0;
        let mut ranges = Vec::new();
        for (source, bytes) in &self.parts {
            if *source == Source::There {
                ranges.push(Range { blob: self.chunk, from, bytes: *bytes });
            }
            from += bytes;
        }
        ranges
    }

    fn missing_bytes(&self) -> u32 {
        self.missing().iter().map(|range| range.bytes).sum()
    }

    /// Whether so much is here that asking for the rest by itself is worth it.
    fn is_worth_it(&self) -> bool {
        self.missing_bytes() <= self.chunk.bytes / 4 * 3
    }

    /// The chunk, of what came; nothing where it is another one.
    fn content(
        &self,
        local: &LocalChunks,
        came: &mut impl Iterator<Item = Option<Vec<u8>>>,
    ) -> Option<Vec<u8>> {
        let mut content = Vec::with_capacity(self.chunk.bytes as usize);
        let mut is_whole = true;
        for (source, bytes) in &self.parts {
            match source {
                Source::Here(file, at) => {
                    let begin = content.len();
                    content.resize(begin + *bytes as usize, 0);
                    is_whole &= local.read_at((*file, *at), &mut content[begin..]).is_ok();
                }
                // Each is taken, so that the next chunk finds its own.
                Source::There => match came.next().flatten() {
                    Some(part) => content.extend(part),
                    None => is_whole = false,
                },
            }
        }
        (is_whole
            && content.len() == self.chunk.bytes as usize
            && Chunk::of(&content) == self.chunk)
            .then_some(content)
    }
}

impl Fetch<'_> {
    /// Puts those together of which much is here; `pieces` are those of each file.  Others, and all where the server gives
    /// out no parts, are left to be fetched whole.
    pub(super) fn mend(&mut self, pieces: &[Hashes], local: &LocalChunks) -> Result<(), PullError> {
        let Some(server) = self.remote.ranges() else { return Ok(()) };
        let all = self.mosaics(pieces, local);
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (some, later) =
                rest.split_at(first_within(rest, WINDOW_BYTES, Mosaic::missing_bytes));
            let ranges: Vec<Range> = some.iter().flat_map(Mosaic::missing).collect();
            // Whoever is asked for whole chunks next says what is wrong.
            let Ok(came) = server.read_ranges(&ranges) else { break };
            let mut came = came.into_iter();
            for mosaic in some {
                if let Some(content) = mosaic.content(local, &mut came) {
                    let bytes = self.put(mosaic.chunk, &content)?;
                    let fetched = u64::from(mosaic.missing_bytes());
                    self.fetched.bytes += fetched;
                    self.fetched.local += bytes - fetched;
                }
            }
            rest = later;
        }
        self.wanted.retain(|chunk| self.places.contains_key(chunk));
        Ok(())
    }

    /// Of what is wanted what is worth it.
    fn mosaics(&self, pieces: &[Hashes], local: &LocalChunks) -> Vec<Mosaic> {
        let mosaic = |chunk: &Chunk| {
            let mut places = self.places.get(chunk)?.iter();
            let Place { file, at } = places.find(|place| !pieces[place.file].is_empty())?;
            Some(Mosaic::of(*chunk, *at, &pieces[*file], |hash| local.piece(hash)))
        };
        self.wanted.iter().filter_map(mosaic).filter(Mosaic::is_worth_it).collect()
    }
}
