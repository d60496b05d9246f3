//! Parses the tables of a GGUF file and finds every way in which they can lie.
//!
//! Magic, counts, metadata and tensor infos are read front to back; arrays are stepped over, unless a
//! tokenizer's are asked for.  Every length is held against what is left of the file
//! before anything is read or kept, so a lie costs no memory.  Knows nothing of models.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};

use super::blocks::{Kind, READ};
use crate::safetensors::{RANK_MAX, Tensor};

/// The first four bytes.
const MAGIC: [u8; 4] = *b"GGUF";

/// The versions read: 2 and 3 differ in byte order only, and 1 had shorter counts.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

/// The most metadata entries; published files have under 100.
const ENTRIES_MAX: u64 = 1 << 16;

/// The most tensors; the largest published models have under 2000.
const TENSORS_MAX: u64 = 1 << 16;

/// The longest name or text kept; chat templates reach 20 KiB.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The longest name of a tensor: ggml's own limit is 64.
const NAME_BYTES_MAX: u64 = 4096;

/// The most items of a tokenizer's array: the largest published vocabularies have 262,144 words and 514,906
/// merges.
const ITEMS_MAX: u64 = 1 << 21;

/// The most bytes of all texts of a tokenizer: the largest published ones have some 10 MB.
const WORD_BYTES_MAX: u64 = 128 << 20;

/// What the keys of a tokenizer's entries begin with.
const TOKENIZER: &str = "tokenizer.";

/// The data's alignment where the metadata names none.
const ALIGNMENT_DEFAULT: u64 = 32;

/// The largest alignment; a page of the largest pages in use.
const ALIGNMENT_MAX: u64 = 1 << 16;

/// One way in which a file contradicts the format or itself, or is beyond what is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufLie {
    /// Other first bytes.
    #[error("it does not begin with GGUF")]
    NoMagic,
    /// Stored for processors of the other byte order.
    #[error("it is big-endian; convert it on a machine of this byte order")]
    BigEndian,
    /// A version nobody here reads.
    #[error("its version is {found}, but only 2 and 3 are read")]
    Version {
        /// The version.
        found: u32,
    },
    /// The file ends inside its tables.
    #[error("it ends inside {place}; fetch it again")]
    CutOff {
        /// What was being read.
        place: String,
    },
    /// A count or length over its limit.
    #[error("{place} has {found}, more than the limit of {max}")]
    TooMany {
        /// What has too many.
        place: String,
        /// How many.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A name or text that is no UTF-8.
    #[error("{place} is not UTF-8")]
    NotText {
        /// Which text.
        place: String,
    },
    /// An unknown type of metadata.
    #[error("metadata {key} has the unknown type {found}")]
    UnknownType {
        /// The entry.
        key: String,
        /// The type's number.
        found: u32,
    },
    /// An array of arrays, which nothing writes.
    #[error("metadata {key} is an array of arrays")]
    NestedArray {
        /// The entry.
        key: String,
    },
    /// A name occurs twice.
    #[error("it names {name:?} twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A needed entry is absent, or has another type or value than is read.
    #[error("metadata {key} is {found}, but must be {expected}")]
    BadEntry {
        /// The entry.
        key: String,
        /// Its value, or `missing`.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A part of a split file that is not the first.
    #[error("it is part {number} of {count}; name the first, {first}")]
    NotFirst {
        /// Which one.
        number: u64,
        /// Of how many.
        count: u64,
        /// The name of the first.
        first: String,
    },
    /// A part whose name does not tell where the others are.
    #[error("it is part {number} of {count}, so its name must end in {suffix}")]
    PartName {
        /// Which one.
        number: u64,
        /// Of how many.
        count: u64,
        /// The end of its name.
        suffix: String,
    },
    /// A part is not there.
    #[error("its part {file} is missing; fetch it again")]
    MissingPart {
        /// The file.
        file: String,
    },
    /// A type of elements that is not read.
    #[error("tensor {tensor} is {found}, which is not read; {READ} are: use a file of these")]
    UnsupportedKind {
        /// The tensor.
        tensor: String,
        /// The type's name or number.
        found: String,
    },
    /// No, or too many, dimensions.
    #[error("tensor {tensor} has {found} dimensions, but 1 to {max} are read")]
    BadRank {
        /// The tensor.
        tensor: String,
        /// How many.
        found: u32,
        /// The limit.
        max: usize,
    },
    /// A row that is no whole number of blocks.
    #[error("tensor {tensor} has rows of {found} elements, but {kind} has blocks of {block}")]
    BrokenBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        found: u64,
        /// Its type.
        kind: &'static str,
        /// Elements of a block.
        block: u64,
    },
    /// The product of the dimensions is no 64-bit number of bytes.
    #[error("tensor {tensor} has the shape {shape:?}, whose size in bytes overflows")]
    ShapeOverflow {
        /// The tensor.
        tensor: String,
        /// Its shape, innermost last.
        shape: Vec<u64>,
    },
    /// A tensor that does not begin at a multiple of the alignment.
    #[error("tensor {tensor} begins at {offset}, which is no multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor reaches past the end of the file.
    #[error("tensor {tensor} ends at data byte {end}, but the file has {data}; fetch it again")]
    EndBeyondFile {
        /// The tensor.
        tensor: String,
        /// One past its last byte.
        end: u64,
        /// Data bytes of the file.
        data: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
}

/// A metadata value that is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    /// An array, of which the length alone is kept.
    Array(u64),
    /// An array of texts that was asked for.
    Texts(Vec<String>),
    /// An array of numbers that was asked for; all that a tokenizer has fit.
    Numbers(Vec<f64>),
}

/// The tables of a file.
#[derive(Debug)]
pub(crate) struct Header {
    /// Metadata by key.
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Where the data begins in the file.
    pub(crate) data_start: u64,
    /// The tensors by position.
    pub(crate) tensors: Vec<Tensor>,
    /// How each is stored.
    pub(crate) kinds: BTreeMap<String, Kind>,
}

/// What reading can end in: the outer error is the system's, the inner one the file's.
type Checked<T> = Result<T, Stop>;

/// Why parsing stopped.
enum Stop {
    System(io::Error),
    Lie(GgufLie),
}

impl From<GgufLie> for Stop {
    fn from(lie: GgufLie) -> Self {
        Self::Lie(lie)
    }
}

impl Header {
    /// Reads the tables of `file`; the outer error is the system's, the inner one the file's.
    pub(crate) fn read(file: &File) -> io::Result<Result<Self, GgufLie>> {
        Self::read_with(file, false)
    }

    /// The same with the arrays of its tokenizer.
    pub(crate) fn read_with_words(file: &File) -> io::Result<Result<Self, GgufLie>> {
        Self::read_with(file, true)
    }

    /// Reads the tables of a file of so many bytes, of which `file` holds the first ones.
    pub(crate) fn read_beginning(file: &File, bytes: u64) -> io::Result<Result<Self, GgufLie>> {
        Self::read_within(file, bytes, false)
    }

    fn read_with(file: &File, keeps_words: bool) -> io::Result<Result<Self, GgufLie>> {
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Self::read_within(file, facts.len(), keeps_words)
    }

    fn read_within(file: &File, end: u64, keeps_words: bool) -> io::Result<Result<Self, GgufLie>> {
        // From its beginning, whoever read it before.
        let mut file = file;
        file.rewind()?;
        let (reader, left) = (BufReader::new(file), WORD_BYTES_MAX);
        let mut scan = Scan { reader, at: 0, end, keeps_words, word_bytes_left: left };
        match scan.header() {
            Ok(header) => Ok(Ok(header)),
            Err(Stop::Lie(lie)) => Ok(Err(lie)),
            Err(Stop::System(error)) => Err(error),
        }
    }

    /// The whole number of entry `key`.
    pub(crate) fn integer(&self, key: &str) -> Option<u64> {
        match self.entries.get(key) {
            Some(Entry::Integer(found)) => u64::try_from(*found).ok(),
            _ => None,
        }
    }

    /// The flag of entry `key`.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.entries.get(key) {
            Some(Entry::Bool(found)) => Some(*found),
            _ => None,
        }
    }

    /// The text of entry `key`.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.entries.get(key) {
            Some(Entry::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// A place in the file's tables.
struct Scan<R> {
    reader: R,
    at: u64,
    end: u64,
    /// Whether the arrays of a tokenizer are kept.
    keeps_words: bool,
    /// Bytes that their texts may still have.
    word_bytes_left: u64,
}

/// A tensor's row of the table.
struct Info {
    name: String,
    shape: Vec<u64>,
    kind: Kind,
    offset: u64,
}

impl<R: Read> Scan<R> {
    fn header(&mut self) -> Checked<Header> {
        if self.bytes::<4>("its first bytes")? != MAGIC {
            return Err(GgufLie::NoMagic.into());
        }
        let version = u32::from_le_bytes(self.bytes("its version")?);
        if VERSIONS.contains(&version.swap_bytes()) {
            return Err(GgufLie::BigEndian.into());
        }
        if !VERSIONS.contains(&version) {
            return Err(GgufLie::Version { found: version }.into());
        }
        let tensors = self.count("the table of tensors", TENSORS_MAX)?;
        let entries = self.count("the metadata", ENTRIES_MAX)?;
        let entries = self.entries(entries)?;
        let infos = (0..tensors).map(|_| self.info()).collect::<Checked<Vec<_>>>()?;
        let alignment = alignment(&entries)?;
        let data_start = self.at.next_multiple_of(alignment);
        let data = self.end.saturating_sub(data_start);
        let (tensors, kinds) = place(infos, alignment, data)?;
        Ok(Header { entries, data_start, tensors, kinds })
    }

    fn entries(&mut self, count: u64) -> Checked<BTreeMap<String, Entry>> {
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let key = self.text("a metadata key", NAME_BYTES_MAX)?;
            let kind = u32::from_le_bytes(self.bytes(&key)?);
            let value = self.value(&key, kind)?;
            if entries.insert(key.clone(), value).is_some() {
                return Err(GgufLie::DuplicateName { name: key }.into());
            }
        }
        Ok(entries)
    }

    /// A value of the type numbered `kind`.
    fn value(&mut self, key: &str, kind: u32) -> Checked<Entry> {
        Ok(match kind {
            0 => Entry::Integer(self.bytes::<1>(key)?[0].into()),
            1 => Entry::Integer(self.bytes::<1>(key)?[0].cast_signed().into()),
            2 => Entry::Integer(u16::from_le_bytes(self.bytes(key)?).into()),
            3 => Entry::Integer(i16::from_le_bytes(self.bytes(key)?).into()),
            4 => Entry::Integer(u32::from_le_bytes(self.bytes(key)?).into()),
            5 => Entry::Integer(i32::from_le_bytes(self.bytes(key)?).into()),
            6 => Entry::Float(shortest(f32::from_le_bytes(self.bytes(key)?))),
            7 => Entry::Bool(self.bytes::<1>(key)?[0] != 0),
            8 => Entry::Text(self.text(key, TEXT_BYTES_MAX)?),
            9 if self.keeps_words && key.starts_with(TOKENIZER) => self.array(key)?,
            9 => Entry::Array(self.skip_array(key)?),
            10 => Entry::Integer(u64::from_le_bytes(self.bytes(key)?).into()),
            11 => Entry::Integer(i64::from_le_bytes(self.bytes(key)?).into()),
            12 => Entry::Float(f64::from_le_bytes(self.bytes(key)?)),
            found => return Err(GgufLie::UnknownType { key: key.to_owned(), found }.into()),
        })
    }

    /// An array of texts or numbers.
    fn array(&mut self, key: &str) -> Checked<Entry> {
        let kind = u32::from_le_bytes(self.bytes(key)?);
        let count = self.count(key, ITEMS_MAX)?;
        if kind == 9 {
            return Err(GgufLie::NestedArray { key: key.to_owned() }.into());
        }
        if kind == 8 {
            self.room(count.saturating_mul(8), key)?;
            let texts = (0..count).map(|_| self.word(key)).collect::<Checked<Vec<_>>>()?;
            return Ok(Entry::Texts(texts));
        }
        self.room(count, key)?;
        let number = |_| match self.value(key, kind)? {
            Entry::Integer(number) => Ok(number as f64),
            Entry::Float(number) => Ok(number),
            Entry::Bool(is) => Ok(f64::from(u8::from(is))),
            Entry::Text(_) | Entry::Array(_) | Entry::Texts(_) | Entry::Numbers(_) => {
                unreachable!("other types were told apart before")
            }
        };
        Ok(Entry::Numbers((0..count).map(number).collect::<Checked<Vec<_>>>()?))
    }

    /// A text of a tokenizer's array.
    fn word(&mut self, key: &str) -> Checked<String> {
        let text = self.text(key, NAME_BYTES_MAX)?;
        let left = self.word_bytes_left.checked_sub(text.len() as u64);
        let found = WORD_BYTES_MAX + 1;
        let place = || format!("the texts of {key} together");
        self.word_bytes_left =
            left.ok_or_else(|| GgufLie::TooMany { place: place(), found, max: WORD_BYTES_MAX })?;
        Ok(text)
    }

    /// Steps over an array; gives its length.
    fn skip_array(&mut self, key: &str) -> Checked<u64> {
        let kind = u32::from_le_bytes(self.bytes(key)?);
        let count = u64::from_le_bytes(self.bytes(key)?);
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                // Each text takes 8 bytes at least, so a count that lies is found at once.
                self.room(count.saturating_mul(8), key)?;
                for _ in 0..count {
                    let length = u64::from_le_bytes(self.bytes(key)?);
                    self.skip(length, key)?;
                }
                return Ok(count);
            }
            9 => return Err(GgufLie::NestedArray { key: key.to_owned() }.into()),
            found => return Err(GgufLie::UnknownType { key: key.to_owned(), found }.into()),
        };
        self.skip(count.saturating_mul(width), key)?;
        Ok(count)
    }

    fn info(&mut self) -> Checked<Info> {
        let name = self.text("a tensor's name", NAME_BYTES_MAX)?;
        let rank = u32::from_le_bytes(self.bytes(&name)?);
        if rank == 0 || rank as usize > RANK_MAX {
            return Err(GgufLie::BadRank { tensor: name, found: rank, max: RANK_MAX }.into());
        }
        // The innermost dimension comes first in the file.
        let mut shape = (0..rank)
            .map(|_| self.bytes(&name).map(u64::from_le_bytes))
            .collect::<Checked<Vec<_>>>()?;
        shape.reverse();
        let number = u32::from_le_bytes(self.bytes(&name)?);
        let kind = Kind::of_number(number)
            .map_err(|found| GgufLie::UnsupportedKind { tensor: name.clone(), found })?;
        let offset = u64::from_le_bytes(self.bytes(&name)?);
        Ok(Info { name, shape, kind, offset })
    }

    fn count(&mut self, place: &str, max: u64) -> Checked<u64> {
        let found = u64::from_le_bytes(self.bytes(place)?);
        if found > max {
            return Err(GgufLie::TooMany { place: place.to_owned(), found, max }.into());
        }
        Ok(found)
    }

    fn text(&mut self, place: &str, max: u64) -> Checked<String> {
        let length = self.count(place, max)?;
        self.room(length, place)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, place)?;
        String::from_utf8(bytes).map_err(|_| GgufLie::NotText { place: place.to_owned() }.into())
    }

    fn bytes<const N: usize>(&mut self, place: &str) -> Checked<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, place)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8], place: &str) -> Checked<()> {
        self.room(bytes.len() as u64, place)?;
        self.reader.read_exact(bytes).map_err(|error| cut_off(error, place))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn skip(&mut self, count: u64, place: &str) -> Checked<()> {
        self.room(count, place)?;
        let skipped = io::copy(&mut self.reader.by_ref().take(count), &mut io::sink());
        let skipped = skipped.map_err(Stop::System)?;
        self.at += skipped;
        if skipped == count {
            return Ok(());
        }
        Err(GgufLie::CutOff { place: place.to_owned() }.into())
    }

    fn room(&self, count: u64, place: &str) -> Checked<()> {
        if self.at.checked_add(count).is_some_and(|end| end <= self.end) {
            return Ok(());
        }
        Err(GgufLie::CutOff { place: place.to_owned() }.into())
    }
}

/// The f64 that prints as the f32 does: 1e-6 stays 1e-6.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

fn cut_off(error: io::Error, place: &str) -> Stop {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return GgufLie::CutOff { place: place.to_owned() }.into();
    }
    Stop::System(error)
}

fn alignment(entries: &BTreeMap<String, Entry>) -> Result<u64, GgufLie> {
    const KEY: &str = "general.alignment";
    let refuse = |found: String| GgufLie::BadEntry {
        key: KEY.to_owned(),
        found,
        expected: format!("a power of two up to {ALIGNMENT_MAX}"),
    };
    match entries.get(KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(Entry::Integer(found)) => u64::try_from(*found)
            .ok()
            .filter(|found| found.is_power_of_two() && *found <= ALIGNMENT_MAX)
            .ok_or_else(|| refuse(found.to_string())),
        Some(other) => Err(refuse(format!("{other:?}"))),
    }
}

/// Gives every tensor its checked range.
fn place(
    infos: Vec<Info>,
    alignment: u64,
    data: u64,
) -> Result<(Vec<Tensor>, BTreeMap<String, Kind>), GgufLie> {
    let (mut tensors, mut kinds) = (Vec::new(), BTreeMap::new());
    for info in infos {
        let tensor = place_one(&info, alignment, data)?;
        if kinds.insert(info.name.clone(), info.kind).is_some() {
            return Err(GgufLie::DuplicateName { name: info.name });
        }
        tensors.push((info.offset, tensor));
    }
    tensors.sort_by_key(|(offset, _)| *offset);
    for pair in tensors.windows(2) {
        let [(start, first), (next, second)] = pair else { continue };
        if start + first.size_bytes() > *next {
            let (first, second) = (first.name.clone(), second.name.clone());
            return Err(GgufLie::Overlap { first, second });
        }
    }
    Ok((tensors.into_iter().map(|(_, tensor)| tensor).collect(), kinds))
}

fn place_one(info: &Info, alignment: u64, data: u64) -> Result<Tensor, GgufLie> {
    let Info { name, shape, kind, offset } = info;
    if !offset.is_multiple_of(alignment) {
        let (tensor, offset) = (name.clone(), *offset);
        return Err(GgufLie::Misaligned { tensor, offset, alignment });
    }
    let overflow = || GgufLie::ShapeOverflow { tensor: name.clone(), shape: shape.clone() };
    let (width, outer) = shape.split_last().ok_or_else(overflow)?;
    let block = kind.block_elements() as u64;
    if !width.is_multiple_of(block) {
        let (tensor, found, kind) = (name.clone(), *width, kind.name());
        return Err(GgufLie::BrokenBlock { tensor, found, kind, block });
    }
    let row = (width / block).checked_mul(kind.block_bytes() as u64).ok_or_else(overflow)?;
    let product = outer.iter().try_fold(row, |all, &size| all.checked_mul(size));
    let size = product.ok_or_else(overflow)?;
    let end = offset.checked_add(size).ok_or_else(overflow)?;
    if end > data {
        return Err(GgufLie::EndBeyondFile { tensor: name.clone(), end, data });
    }
    // Within the file, so every dimension of a tensor that holds something fits.
    let mut stored = shape.clone();
    if let (None, Some(last)) = (kind.float(), stored.last_mut()) {
        *last = row;
    }
    let sizes = stored.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
    let sizes = sizes.map_err(|_| overflow())?;
    Ok(Tensor::at(name.clone(), kind.stored_dtype(), sizes, *offset..end))
}
