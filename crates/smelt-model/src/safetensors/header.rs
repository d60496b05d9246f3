//! Parses a safetensors header and finds every way in which it can lie.
//!
//! The JSON as a stream and the length of the data come in; tensors whose ranges tile the data
//! exactly come out, in file order.  What a header can make us hold is bounded by its limits, not
//! by its length.  Knows nothing of files: it never opens anything itself.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io::Read;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::dtype::Dtype;

/// The longest header accepted.  It is the limit of the reference implementation, so every file
/// that others can open opens here, and a file that lies about its length costs no more memory.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The most dimensions a tensor may have; real ones have five, and a bound keeps checks short.
pub const RANK_MAX: usize = 16;

/// The most tensors of one file.  The largest published models have under 140,000, spread over
/// more than fifty files.
pub const TENSORS_MAX: usize = 1 << 17;

/// The longest name of a tensor; real ones stay below 200 bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// The most bytes of a parser's words that are repeated: it quotes what it met, however long.
const WORDS_BYTES_MAX: usize = 200;

/// The most bytes of an unknown dtype word that are repeated.
const DTYPE_BYTES_MAX: usize = 32;

/// The key of a header that is no tensor: free text about the file.
pub(super) const METADATA: &str = "__metadata__";

/// One tensor of a file: its name, element type, shape and place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name in the header.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// First byte, counted from the end of the header.
    pub(super) start: u64,
    /// One past the last byte, counted from the end of the header.
    pub(super) end: u64,
}

impl Tensor {
    /// A tensor of another format's file, whose `range` of data bytes fits shape and type.
    pub(crate) fn at(name: String, dtype: Dtype, shape: Vec<usize>, range: Range<u64>) -> Self {
        Self { name, dtype, shape, start: range.start, end: range.end }
    }

    /// Its first byte, counted from where the data begins.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes the tensor takes in the file.
    pub fn size_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Number of elements; at most the bytes of the file, so it cannot overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One way in which a file contradicts the format or itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    /// The file is something else: a git-lfs pointer, a web page, an archive.
    #[error("it is {what}")]
    Foreign {
        /// What it is and what to do.
        what: &'static str,
    },
    /// Fewer than the eight bytes of the header length.
    #[error("it has {file} bytes, fewer than the 8 of the header length; fetch it again")]
    NoHeader {
        /// Bytes of the file.
        file: u64,
    },
    /// The header is longer than [`HEADER_BYTES_MAX`].
    #[error("its header claims {claimed} bytes, more than the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLong {
        /// Bytes the header claims.
        claimed: u64,
    },
    /// The file ends inside its header.
    #[error(
        "it ends inside its header: {claimed} bytes claimed, {present} present; fetch it again"
    )]
    HeaderCutOff {
        /// Bytes the header claims.
        claimed: u64,
        /// Bytes there are.
        present: u64,
    },
    /// The header is no JSON object of tensors.
    #[error("its header does not parse: {why}")]
    BadJson {
        /// The parser's words, with line and column.
        why: String,
    },
    /// A name occurs twice.
    #[error("its header names {name:?} twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// More tensors than [`TENSORS_MAX`].
    #[error("its header names more than {TENSORS_MAX} tensors")]
    TooManyTensors,
    /// A name longer than [`NAME_BYTES_MAX`].
    #[error("its header has a name of {bytes} bytes, more than the limit of {NAME_BYTES_MAX}")]
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A dtype word nobody knows.
    #[error("tensor {tensor} has the unknown dtype {dtype:?}")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// The word in the header.
        dtype: String,
    },
    /// Too many dimensions.
    #[error("tensor {tensor} has {rank} dimensions, more than the limit of {RANK_MAX}")]
    RankTooHigh {
        /// The tensor.
        tensor: String,
        /// Its number of dimensions.
        rank: usize,
    },
    /// The product of the dimensions is no 64-bit number of bytes.
    #[error("tensor {tensor} has the shape {shape:?}, whose size in bytes overflows")]
    ShapeOverflow {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A range that ends before it starts.
    #[error("tensor {tensor} ends at {end}, before its start {start}")]
    ReversedRange {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Shape and dtype need another number of bytes than the range has.
    #[error("tensor {tensor} is {dtype}{shape:?}, {needed} bytes, but its range has {range}")]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes that shape and dtype need.
        needed: u64,
        /// Bytes of the range.
        range: u64,
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
    /// Bytes before a tensor that belong to none.
    #[error("{bytes} bytes before tensor {tensor} belong to no tensor")]
    Gap {
        /// The tensor after the gap.
        tensor: String,
        /// Bytes of the gap.
        bytes: u64,
    },
    /// Bytes after the last tensor.
    #[error("{bytes} bytes after its last tensor belong to no tensor")]
    TrailingBytes {
        /// How many.
        bytes: u64,
    },
    /// The file got shorter while it was read.
    #[error("it ended inside tensor {tensor}; it changed while it was read")]
    Shrunk {
        /// The tensor being read.
        tensor: String,
    },
}

/// Parses the JSON of a header and checks it against `data_bytes`, the length of what follows it.
///
/// Returns the tensors by position in the file.
///
/// # Errors
/// The first [`Lie`] found; JSON that cannot be read on is [`Lie::BadJson`].
pub(super) fn parse(json: impl Read, data_bytes: u64) -> Result<Vec<Tensor>, Lie> {
    let mut json = serde_json::Deserializer::from_reader(json);
    let table = Table::deserialize(&mut json).and_then(|table| json.end().map(|()| table));
    let table = table.map_err(|error| Lie::BadJson { why: start_of(&error) })?;
    if let Some(lie) = table.lie {
        return Err(lie);
    }
    let mut tensors = Vec::with_capacity(table.entries.len());
    for (name, entry) in table.entries {
        tensors.push(tensor(name, entry)?);
    }
    tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
    check_tiling(&tensors, data_bytes)?;
    Ok(tensors)
}

/// The first words of an error, on one line.
pub(super) fn start_of(error: &serde_json::Error) -> String {
    let mut words = Words(String::new());
    // It fails when there are enough words: that is how the rest is left out.
    let _ = write!(words, "{error}");
    words.0
}

/// Text that takes no more than [`WORDS_BYTES_MAX`], and no control characters.
struct Words(String);

impl Write for Words {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.0.len() >= WORDS_BYTES_MAX {
                self.0.push('…');
                return Err(fmt::Error);
            }
            self.0.push(if character.is_control() { ' ' } else { character });
        }
        Ok(())
    }
}

fn tensor(name: String, entry: Entry) -> Result<Tensor, Lie> {
    let Entry { dtype: Word(dtype), shape, data_offsets: (start, end) } = entry;
    let dtype = match dtype {
        Ok(dtype) => dtype,
        Err(dtype) => return Err(Lie::UnknownDtype { tensor: name, dtype }),
    };
    let Shape { dims: shape, rank } = shape;
    if rank > RANK_MAX {
        return Err(Lie::RankTooHigh { tensor: name, rank });
    }
    let Some(range) = end.checked_sub(start) else {
        return Err(Lie::ReversedRange { tensor: name, start, end });
    };
    let Some(needed) = size_bytes(dtype, &shape) else {
        return Err(Lie::ShapeOverflow { tensor: name, shape });
    };
    if needed != range {
        return Err(Lie::SizeMismatch { tensor: name, dtype, shape, needed, range });
    }
    Ok(Tensor { name, dtype, shape, start, end })
}

/// Bytes of a tensor, or nothing if a partial product overflows.
///
/// Every partial product must fit, even if a later dimension is zero: no real file has such a shape.
pub(super) fn size_bytes(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let start = u64::try_from(dtype.size_bytes()).ok()?;
    shape.iter().try_fold(start, |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))
}

/// Checks that the sorted ranges cover the data from its first byte to its last, once each.
fn check_tiling(tensors: &[Tensor], data_bytes: u64) -> Result<(), Lie> {
    if let Some(past) = tensors.iter().find(|tensor| tensor.end > data_bytes) {
        let (tensor, end) = (past.name.clone(), past.end);
        return Err(Lie::EndBeyondFile { tensor, end, data: data_bytes });
    }
    let mut previous: Option<&Tensor> = None;
    for tensor in tensors {
        check_neighbours(previous, tensor)?;
        previous = Some(tensor);
    }
    let covered = previous.map_or(0, |tensor| tensor.end);
    if covered < data_bytes {
        return Err(Lie::TrailingBytes { bytes: data_bytes - covered });
    }
    Ok(())
}

fn check_neighbours(previous: Option<&Tensor>, tensor: &Tensor) -> Result<(), Lie> {
    let covered = previous.map_or(0, |tensor| tensor.end);
    if let Some(previous) = previous
        && tensor.start < covered
    {
        let (first, second) = (previous.name.clone(), tensor.name.clone());
        return Err(Lie::Overlap { first, second });
    }
    if tensor.start > covered {
        let (tensor, bytes) = (tensor.name.clone(), tensor.start - covered);
        return Err(Lie::Gap { tensor, bytes });
    }
    Ok(())
}

/// The header as written: entries in order, and the first lie found among them.
struct Table {
    entries: BTreeMap<String, Entry>,
    lie: Option<Lie>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: Word,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = Table;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
        let mut table = Table { entries: BTreeMap::new(), lie: None };
        let mut metadata_seen = false;
        while table.lie.is_none()
            && let Some(Name(name)) = map.next_key()?
        {
            table.lie = match name {
                Err(bytes) => Some(Lie::NameTooLong { bytes }),
                Ok(name) if name == METADATA => {
                    map.next_value::<Metadata>()?;
                    let again = std::mem::replace(&mut metadata_seen, true);
                    again.then_some(Lie::DuplicateName { name })
                }
                Ok(_) if table.entries.len() == TENSORS_MAX => Some(Lie::TooManyTensors),
                Ok(name) if table.entries.contains_key(&name) => Some(Lie::DuplicateName { name }),
                Ok(name) => {
                    table.entries.insert(name, map.next_value()?);
                    None
                }
            };
        }
        skip_rest(&table, &mut map)?;
        Ok(table)
    }
}

/// After a lie only the form of the rest matters.
fn skip_rest<'de, A: MapAccess<'de>>(table: &Table, map: &mut A) -> Result<(), A::Error> {
    if let Some(lie) = &table.lie {
        // Metadata that comes twice has had its value read; every other key has not.
        let value_read = matches!(lie, Lie::DuplicateName { name } if name == METADATA);
        if !value_read {
            map.next_value::<IgnoredAny>()?;
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    }
    Ok(())
}

/// Implements a visitor of text that keeps of it only what `from` makes.
macro_rules! from_text {
    ($type:ident, $expecting:literal, $from:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E>(self, text: &str) -> Result<$type, E> {
                        Ok($from(text))
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

/// A name, or the length of one that is too long.
struct Name(Result<String, usize>);

from_text!(Name, "a name", |text: &str| {
    Name(if text.len() > NAME_BYTES_MAX { Err(text.len()) } else { Ok(text.to_owned()) })
});

/// A dtype, or the start of a word that is none.
struct Word(Result<Dtype, String>);

from_text!(Word, "a dtype", |text: &str| {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == text);
    Word(known.ok_or_else(|| text.chars().take(DTYPE_BYTES_MAX).collect()))
});

/// Text that is checked to be some, then dropped.
struct Dropped;

from_text!(Dropped, "a string", |_: &str| Dropped);

/// The dimensions, as many as may be, and how many there are.
struct Shape {
    dims: Vec<usize>,
    rank: usize,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut shape = Shape { dims: Vec::new(), rank: 0 };
        while let Some(dim) = seq.next_element()? {
            if shape.rank < RANK_MAX {
                shape.dims.push(dim);
            }
            shape.rank += 1;
        }
        Ok(shape)
    }
}

/// The free text of a header: checked to be text, then dropped.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        while map.next_entry::<Dropped, Dropped>()?.is_some() {}
        Ok(Metadata)
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    /// Two tensors, `a` of 4 bytes and `b` of 12, listed out of order.
    const GOOD: &str = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;

    fn lie(json: &str, data_bytes: u64) -> String {
        parse(json.as_bytes(), data_bytes).unwrap_err().to_string()
    }

    /// Replaces `from` by `to` in a good header; the lie's message must start with `words`.
    #[track_caller]
    fn check(from: &str, to: &str, words: &str) {
        assert_eq!(GOOD.matches(from).count(), 1, "{from:?} must be there once");
        let found = lie(&GOOD.replace(from, to), 16);
        assert!(found.starts_with(words), "{found}");
    }

    #[test]
    fn a_good_header_gives_the_tensors_in_file_order() {
        let tensors = parse(GOOD.as_bytes(), 16).unwrap();
        let facts: Vec<_> =
            tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.elements(), t.start)).collect();
        assert_eq!(facts, [("a", Dtype::F32, 1, 0), ("b", Dtype::BF16, 6, 4)]);
        assert_eq!(parse(&b"{}   "[..], 0).unwrap(), []);
    }

    #[test]
    fn empty_tensors_may_share_a_place() {
        let entry = |name, from, to| {
            format!(
                r#""{name}":{{"dtype":"I8","shape":[{}],"data_offsets":[{from},{to}]}}"#,
                to - from
            )
        };
        let json = format!("{{{},{},{}}}", entry("x", 0, 3), entry("y", 3, 3), entry("z", 3, 5));
        assert_eq!(parse(json.as_bytes(), 5).unwrap().len(), 3);
    }

    #[test]
    fn names_that_repeat_are_found() {
        check("\"a\":", "\"b\":", "its header names \"b\" twice");
        check("\"a\":", "\"\\u0062\":", "its header names \"b\" twice");
        check("{\"__m", "{\"__metadata__\":{},\"__m", "its header names \"__metadata__\" twice");
        check("\"shape\":[],", "\"shape\":[],\"shape\":[],", "its header does not parse: dup");
    }

    #[test]
    fn ranges_that_do_not_tile_the_data_are_found() {
        check("[0,4]", "[1,5]", "1 bytes before tensor a belong to no tensor");
        check("[4,16]", "[3,15]", "tensors a and b overlap");
        check("[4,16]", "[0,12]", "tensors a and b overlap");
        check("[4,16]", "[5,17]", "tensor b ends at data byte 17, but the file has 16");
        check("[0,4]", "[4,0]", "tensor a ends at 0, before its start 4");
        check("[0,4]", "[18446744073709551611,18446744073709551615]", "tensor a ends at data byte");
        assert!(lie(GOOD, 15).starts_with("tensor b ends at data byte 16, but the file has 15"));
        assert!(lie(GOOD, 19).starts_with("3 bytes after its last tensor"));
        assert!(lie("{}", 1).starts_with("1 bytes after its last tensor"));
    }

    #[test]
    fn shapes_that_do_not_fit_their_range_are_found() {
        check("[2,3]", "[2,4]", "tensor b is BF16[2, 4], 16 bytes, but its range has 12");
        check("[2,3]", "[]", "tensor b is BF16[], 2 bytes, but its range has 12");
        check("[2,3]", "[4294967296,4294967296,2]", "tensor b has the shape [4294967296, 4294967");
        check("[2,3]", "[9223372036854775808]", "tensor b has the shape [9223372036854775808], w");
        check("[2,3]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2,3]", "tensor b has 17 dimensions");
    }

    #[test]
    fn dtypes_nobody_knows_are_found() {
        check("BF16", "BF15", "tensor b has the unknown dtype \"BF15\"");
        check("F32", "f32", "tensor a has the unknown dtype \"f32\"");
    }

    #[test]
    fn headers_of_another_form_are_found() {
        let unparsable = "its header does not parse: ";
        for to in
            ["[0]", "[0,4,5]", "[0,-1]", "[0,4.5]", "[0,\"4\"]", "null", "[0,18446744073709551616]"]
        {
            check("[0,4]", to, unparsable);
        }
        check("\"pt\"", "1", unparsable);
        check("\"dtype\":\"F32\",", "", unparsable);
        check("\"dtype\":\"F32\"", "\"dtype\":\"F32\",\"more\":1", unparsable);
        for json in ["", "[]", "null", "{", "{} x", "\u{feff}{}"] {
            assert!(lie(json, 0).starts_with(unparsable), "{json:?}");
        }
        assert!(parse(&b"{\"\xff\":1}"[..], 0).is_err());
    }

    #[test]
    fn what_a_header_can_make_us_hold_is_bounded() {
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        let long = lie(&GOOD.replace("\"a\":", &format!("\"{name}\":")), 16);
        assert_eq!(long, "its header has a name of 1025 bytes, more than the limit of 1024");
        let entry = |n| format!(r#""{n}":{{"dtype":"I8","shape":[0],"data_offsets":[0,0]}}"#);
        let entries: Vec<String> = (0..=TENSORS_MAX).map(entry).collect();
        let many = format!("{{{}}}", entries[..TENSORS_MAX].join(","));
        assert_eq!(parse(many.as_bytes(), 0).unwrap().len(), TENSORS_MAX);
        let more = format!("{{{}}}", entries.join(","));
        assert_eq!(lie(&more, 0), "its header names more than 131072 tensors");
        assert!(lie(&more[..more.len() - 1], 0).starts_with("its header does not parse: EOF"));
        let quoted = lie(&GOOD.replace("\"F32\"", &format!("\"F32\",\"{name}\\n\":1")), 16);
        assert!(quoted.len() < 300 && !quoted.contains('\n'), "{quoted}");
        let quoted = lie(&GOOD.replace("F32", &name), 16);
        assert!(quoted.len() < 100, "{quoted}");
        check("[2,3]", &format!("[{}1]", "1,".repeat(100_000)), "tensor b has 100001 dimensions");
    }

    /// Changes up to four bytes of a good header at random places; no outcome may be a panic, and
    /// what still parses must still tile the data.
    #[test]
    fn no_mutation_panics() {
        let mut random = Random::new(1);
        let bytes = *b"0123456789{}[]\",:-.eE\\u ab";
        let mut good = 0;
        for _ in 0..2000 {
            let mut json = GOOD.as_bytes().to_vec();
            for _ in 0..=random.below(4) {
                let at = random.below(json.len());
                match random.below(3) {
                    0 => json[at] = random.pick(&bytes),
                    1 => json.insert(at, random.pick(&bytes)),
                    _ => drop(json.remove(at)),
                }
            }
            if let Ok(tensors) = parse(&json[..], 16) {
                good += 1;
                assert_eq!(tensors.iter().map(Tensor::size_bytes).sum::<u64>(), 16);
            }
        }
        assert!((1..1000).contains(&good), "{good} of 2000 mutations were harmless");
    }
}
