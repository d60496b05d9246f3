//! What a server of results is asked, and what it answers: blobs by their digests, and an entry for each key.

use std::error::Error;

use smelt_store::Digest;

use crate::chunk::Chunk;

/// Characters of what a server said that are told.
const TOLD_MAX: usize = 300;

/// A blob by its content.
pub type Blob = Chunk;

/// What an entry is published under and asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Covers the digests of the inputs.
    Content(Digest),
    /// Covers the recipes of the inputs, so that it is known before anything is built.
    Recipe(Digest),
    /// The digest of the output's files, by which other outputs name it.
    Tree(Digest),
    /// Covers the recipes of the inputs, and nothing of a device: the result may be another device's.
    Anywhere(Digest),
}

impl Entry {
    /// Every blob that it needs.
    pub fn blobs(&self) -> impl Iterator<Item = Blob> {
        let lists = [self.statement, self.index].into_iter().chain(self.pieces);
        lists.chain(self.chunks.iter().copied())
    }
}

impl Key {
    /// Which of the two, as a word.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Content(_) => "content-key",
            Self::Recipe(_) => "recipe-key",
            Self::Tree(_) => "tree",
            Self::Anywhere(_) => "recipe-key-of-any-device",
        }
    }

    /// The key.
    pub const fn digest(&self) -> &Digest {
        match self {
            Self::Content(digest)
            | Self::Recipe(digest)
            | Self::Tree(digest)
            | Self::Anywhere(digest) => digest,
        }
    }
}

/// An entry of a server: every blob that the output needs, by which the server knows what it must keep together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The envelope of the signed statement.
    pub statement: Blob,
    /// The list of chunks.
    pub index: Blob,
    /// The [pieces](crate::pieces) of large files, where there are any.
    pub pieces: Option<Blob>,
    /// The chunks, each once.
    pub chunks: Vec<Blob>,
}

/// A server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{server}: {problem}")]
pub struct RemoteError {
    /// Its address.
    pub server: String,
    /// What it said, or that it said nothing.
    pub problem: String,
    /// Whether it does not answer, so that other questions are no use either.
    pub is_gone: bool,
}

/// What strangers wrote, as part of a line for a person: no control characters, and not more than fits.
pub fn plain(text: &str) -> String {
    // Neither what moves a cursor nor what turns the direction of reading.
    let is_odd = |one: char| {
        one.is_control() || matches!(one, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
    };
    let plain = text.chars().map(|one| if is_odd(one) { '\u{FFFD}' } else { one });
    plain.take(TOLD_MAX).collect()
}

/// An error and what is behind it.
pub(crate) fn told(error: &(dyn Error + 'static)) -> String {
    let (mut words, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        words.push(error.to_string());
        next = error.source();
    }
    // Many say what is behind them themselves.
    words.dedup_by(|inner, outer| outer.contains(inner.as_str()));
    words.join(": ")
}

/// One of several blobs that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number among them.
    pub number: usize,
    /// `None` where the server has none.
    pub content: Option<Vec<u8>>,
    /// Whether a neighbour sent it; then its digest has been compared.
    pub is_neighbours: bool,
}

/// How many of these, from the first on, have no more than so many bytes together; at least one.
pub(crate) fn first_within<T>(blobs: &[T], bytes_max: u64, bytes: impl Fn(&T) -> u32) -> usize {
    let mut sum = 0;
    let fits = |blob: &&T| {
        sum += u64::from(bytes(blob));
        sum <= bytes_max
    };
    blobs.iter().take_while(fits).count().max(1).min(blobs.len())
}

/// What came of each of some things that were asked for, in their order; `None` of what is not there.
pub type Contents = Result<Vec<Option<Vec<u8>>>, RemoteError>;

/// Some of a blob's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Of which.
    pub blob: Blob,
    /// How many are before them.
    pub from: u32,
    /// How many.
    pub bytes: u32,
}

/// Of a server that gives out parts of blobs.
pub trait Ranges {
    /// The content of each, in order, as the server has it.  `None` where it has none, or another count of bytes.
    ///
    /// # Errors
    /// If it does not answer, or gives out none.
    fn read_ranges(&self, ranges: &[Range]) -> Contents;
}

/// What is published under a key, if anything is.
pub type Found = Result<Option<Entry>, RemoteError>;

/// A server of results.
pub trait Remote {
    /// Where it is, for a person.
    fn name(&self) -> &str;

    /// Which of its results are meant; one server may keep several fleets apart.
    fn instance(&self) -> &str;

    /// Those that it does not have.
    ///
    /// # Errors
    /// If it does not answer.
    fn missing(&self, blobs: &[Blob]) -> Result<Vec<Blob>, RemoteError>;

    /// The content of each, in order, as the server has it: whoever asks compares digests.  `None` where it has none.
    ///
    /// # Errors
    /// If it does not answer.
    fn read(&self, blobs: &[Blob]) -> Contents;

    /// The content of some of these blobs, which differ: those that are had best, of about so many bytes together.  None of
    /// them where it is better to ask again.  `comes` hears of which the server itself is asked for, before it is.
    ///
    /// # Errors
    /// If it does not answer.
    fn read_some(
        &self,
        blobs: &[Blob],
        bytes_max: u64,
        comes: &mut dyn FnMut(&[Blob]),
    ) -> Result<Vec<Part>, RemoteError> {
        let first = &blobs[..first_within(blobs, bytes_max, |blob| blob.bytes)];
        comes(first);
        let part = |(number, content)| Part { number, content, is_neighbours: false };
        Ok(self.read(first)?.into_iter().enumerate().map(part).collect())
    }

    /// By which parts of blobs are read, where that is worth it: what neighbours have costs the server nothing.
    fn ranges(&self) -> Option<&dyn Ranges> {
        None
    }

    /// Keeps blobs.
    ///
    /// # Errors
    /// If one of them is refused.
    fn write(&self, blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError>;

    /// What is published under a key.
    ///
    /// # Errors
    /// If it does not answer, or no entry of ours.
    fn entry(&self, key: &Key) -> Result<Option<Entry>, RemoteError>;

    /// What is published under each of some keys, in their order; of one that is no entry of ours, what is wrong with it.
    ///
    /// # Errors
    /// If it does not answer.
    fn entries(&self, keys: &[Key]) -> Result<Vec<Found>, RemoteError> {
        let found = keys.iter().map(|key| match self.entry(key) {
            Err(error) if error.is_gone => Err(error),
            found => Ok(found),
        });
        found.collect()
    }

    /// Publishes what has been written.
    ///
    /// # Errors
    /// If it is refused.
    fn publish(&self, key: &Key, entry: &Entry) -> Result<(), RemoteError>;
}
