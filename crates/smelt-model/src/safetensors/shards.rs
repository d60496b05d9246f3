//! Opens the weights of a model that lie in one file or in several with an index.
//!
//! Every shard's own header is checked by [`Reader`]; here index and shards are held against each
//! other, so that afterwards each tensor has exactly one place.  Knows nothing of models.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::header::start_of;
use super::{Reader, SafetensorsError, Tensor};
use crate::foreign::{Expected, recognise};

/// The longest index read; that of a model of 100,000 tensors stays below it.
const INDEX_BYTES_MAX: u64 = 16 << 20;

/// The most shards opened at once: systems let a process hold 1024 files, and the largest
/// published models have under 200.
const SHARDS_MAX: usize = 512;

/// The most tensors an index may name: twice those of the largest published model.
const TENSORS_MAX: usize = 1 << 18;

/// Why sharded weights were refused.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A file of weights was refused.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The system refused the index.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The index.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The index and its shards do not belong together.
    #[error("{}: {lie}", path.display())]
    Lie {
        /// The index.
        path: PathBuf,
        /// What is wrong.
        lie: IndexLie,
    },
}

/// One way in which an index contradicts itself or its shards.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexLie {
    /// It is no index at all.
    #[error("it is no index of weights: {why}")]
    Unreadable {
        /// What is wrong with the text.
        why: String,
    },
    /// A name occurs twice.
    #[error("it names tensor {tensor} twice")]
    DuplicateName {
        /// The tensor.
        tensor: String,
    },
    /// A file that does not lie beside the index.
    #[error("it places tensor {tensor} in {file:?}, which is no name of a file beside it")]
    OutsideFolder {
        /// The tensor.
        tensor: String,
        /// The file as written.
        file: String,
    },
    /// More tensors than `TENSORS_MAX`.
    #[error("it names more than {TENSORS_MAX} tensors")]
    TooManyTensors,
    /// More files than `SHARDS_MAX`.
    #[error("it names {shards} files, more than the limit of {SHARDS_MAX}")]
    TooManyShards {
        /// Files it names.
        shards: usize,
    },
    /// A shard is not there.
    #[error("shard {file} is missing; fetch it again")]
    MissingShard {
        /// The shard.
        file: String,
    },
    /// A shard lacks a tensor that the index places in it.
    #[error("it places tensor {tensor} in {file}, which has no such tensor")]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        file: String,
    },
    /// A shard has a tensor that the index does not name.
    #[error("shard {file} has tensor {tensor}, which the index does not name")]
    NotInIndex {
        /// The tensor.
        tensor: String,
        /// The shard.
        file: String,
    },
    /// Two shards have the same tensor.
    #[error("tensor {tensor} is in both {first} and {second}")]
    InTwoShards {
        /// The tensor.
        tensor: String,
        /// The shard that the index names.
        first: String,
        /// The other one.
        second: String,
    },
}

/// Open weights: every tensor has one place.
#[derive(Debug)]
pub struct Shards {
    path: PathBuf,
    readers: Vec<Reader>,
}

impl Shards {
    /// Opens the only file of weights.
    ///
    /// # Errors
    /// [`SafetensorsError`], see [`Reader::open`].
    pub fn single(path: &Path) -> Result<Self, SafetensorsError> {
        Ok(Self { path: path.into(), readers: vec![Reader::open(path)?] })
    }

    /// Takes open files, the one at `path` the first of them, that share no tensor.
    pub(crate) fn of_readers(path: &Path, readers: Vec<Reader>) -> Self {
        Self { path: path.into(), readers }
    }

    /// Opens every file that the index at `path` names.
    ///
    /// # Errors
    /// [`ShardError`] naming the index or the shard and what is wrong with it.
    pub fn indexed(path: &Path) -> Result<Self, ShardError> {
        let lies = |lie| ShardError::Lie { path: path.into(), lie };
        let bytes =
            read_index(path).map_err(|source| ShardError::Io { path: path.into(), source })?;
        let places = bytes.and_then(|bytes| parse(&bytes)).map_err(lies)?;
        let files: BTreeSet<&String> = places.values().collect();
        if files.len() > SHARDS_MAX {
            return Err(lies(IndexLie::TooManyShards { shards: files.len() }));
        }
        // All at once first: which one is missing matters more than what the others hold.
        for file in &files {
            find_shard(path, file)?;
        }
        let mut shards = BTreeMap::new();
        for file in files {
            let reader = Reader::open(&path.with_file_name(file))?;
            // At once, so that no more tensors are ever held than the index may name.
            check_shard(path, file, &reader, &places)?;
            shards.insert(file.as_str(), reader);
        }
        check_places(&places, &shards).map_err(lies)?;
        let readers = shards.into_values().collect();
        Ok(Self { path: path.into(), readers })
    }

    /// The only file, or the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors, shard by shard, by position in each.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.readers.iter().flat_map(Reader::tensors)
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.readers.iter().find_map(|reader| reader.get(name))
    }

    /// Fills `out` with the bytes of `tensor` from `byte_offset` on.
    ///
    /// # Errors
    /// See [`Reader::read_at`].
    pub fn read_at(
        &self,
        tensor: &Tensor,
        byte_offset: u64,
        out: &mut [u8],
    ) -> Result<(), SafetensorsError> {
        let mut readers = self.readers.iter();
        let holder = readers.find(|reader| reader.get(&tensor.name) == Some(tensor));
        holder.expect("a tensor of these weights").read_at(tensor, byte_offset, out)
    }
}

/// The bytes of the index; the outer error is the system's.
fn read_index(path: &Path) -> io::Result<Result<Vec<u8>, IndexLie>> {
    let facts = fs::metadata(path)?;
    if !facts.is_file() || facts.len() > INDEX_BYTES_MAX {
        let why = format!("it is no file of at most {INDEX_BYTES_MAX} bytes");
        return Ok(Err(IndexLie::Unreadable { why }));
    }
    fs::read(path).map(Ok)
}

/// Parses an index: the file of each tensor, a plain name.
///
/// # Errors
/// The first [`IndexLie`] found.
fn parse(json: &[u8]) -> Result<BTreeMap<String, String>, IndexLie> {
    if let Some(what) = recognise(json, Expected::Json) {
        return Err(IndexLie::Unreadable { why: format!("it is {what}") });
    }
    let unreadable = |error| IndexLie::Unreadable { why: start_of(&error) };
    let index: Index = serde_json::from_slice(json).map_err(unreadable)?;
    if index.weight_map.0.len() > TENSORS_MAX {
        return Err(IndexLie::TooManyTensors);
    }
    let mut places = BTreeMap::new();
    for (tensor, file) in index.weight_map.0 {
        if !is_plain_name(&file) {
            return Err(IndexLie::OutsideFolder { tensor, file });
        }
        if places.insert(tensor.clone(), file).is_some() {
            return Err(IndexLie::DuplicateName { tensor });
        }
    }
    if places.is_empty() {
        return Err(IndexLie::Unreadable { why: "it names no tensor".to_owned() });
    }
    Ok(places)
}

/// Whether `file` is a name and nothing else: no folder, no way up, no root.
fn is_plain_name(file: &str) -> bool {
    let mut parts = Path::new(file).components();
    let only = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    only && !file.contains(['/', '\0'])
}

fn find_shard(index: &Path, file: &str) -> Result<(), ShardError> {
    match fs::metadata(index.with_file_name(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let lie = IndexLie::MissingShard { file: file.to_owned() };
            Err(ShardError::Lie { path: index.into(), lie })
        }
        // Whatever else keeps it from being read, the reader says.
        _ => Ok(()),
    }
}

/// Every tensor of a shard is where the index places it.
fn check_shard(
    index: &Path,
    file: &str,
    shard: &Reader,
    places: &BTreeMap<String, String>,
) -> Result<(), ShardError> {
    let lies = |lie| ShardError::Lie { path: index.into(), lie };
    for tensor in shard.tensors() {
        let (tensor, file) = (tensor.name.clone(), file.to_owned());
        match places.get(&tensor) {
            None => return Err(lies(IndexLie::NotInIndex { tensor, file })),
            Some(place) if *place != file => {
                let (first, second) = (place.clone(), file);
                let placed = Reader::open(&index.with_file_name(&first))?;
                return Err(lies(match placed.get(&tensor) {
                    Some(_) => IndexLie::InTwoShards { tensor, first, second },
                    None => IndexLie::NotInShard { tensor, file: first },
                }));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Every tensor that the index names is there.
fn check_places(
    places: &BTreeMap<String, String>,
    shards: &BTreeMap<&str, Reader>,
) -> Result<(), IndexLie> {
    for (tensor, file) in places {
        if shards[file.as_str()].get(tensor).is_none() {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(IndexLie::NotInShard { tensor, file });
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The entries as written, repeated names included.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors and files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut entries = Vec::new();
        // One more than may be says that there are too many.
        while entries.len() <= TENSORS_MAX
            && let Some(entry) = map.next_entry()?
        {
            entries.push(entry);
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(WeightMap(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::safetensors::{TensorSpec, Writer};

    const INDEX: &str = "model.safetensors.index.json";

    /// Two shards, `a` and `b` in the first and `c` in the second, under the index `text`.
    fn open(text: &str) -> (tempfile::TempDir, Result<Shards, ShardError>) {
        let dir = tempfile::tempdir().unwrap();
        shard(dir.path(), "1.safetensors", &[("a", 1), ("b", 2)]);
        shard(dir.path(), "2.safetensors", &[("c", 3)]);
        fs::write(dir.path().join(INDEX), text).unwrap();
        let opened = Shards::indexed(&dir.path().join(INDEX));
        (dir, opened)
    }

    fn shard(dir: &Path, file: &str, tensors: &[(&str, u8)]) {
        let spec = |name: &str| TensorSpec { name: name.into(), dtype: Dtype::I8, shape: vec![1] };
        let specs: Vec<_> = tensors.iter().map(|(name, _)| spec(name)).collect();
        let mut writer = Writer::create(&dir.join(file), &specs, &BTreeMap::new()).unwrap();
        tensors.iter().for_each(|(_, byte)| writer.write(&[*byte]).unwrap());
        writer.finish().unwrap();
    }

    fn index(entries: &str) -> String {
        format!("{{\"metadata\":{{\"total_size\":3}},\"weight_map\":{{{entries}}}}}")
    }

    const A: &str = "\"a\":\"1.safetensors\"";
    const B: &str = "\"b\":\"1.safetensors\"";
    const C: &str = "\"c\":\"2.safetensors\"";

    #[track_caller]
    fn check(text: &str, words: &str) {
        let error = open(text).1.unwrap_err().to_string();
        assert!(error.contains(INDEX) && !error.contains('\n'), "{error}");
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn tensors_of_all_shards_are_read_by_name() {
        let (_dir, shards) = open(&index(&[A, B, C].join(",")));
        let shards = shards.unwrap();
        assert_eq!(shards.tensors().count(), 3);
        for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            let mut out = [0];
            shards.read_at(shards.get(name).unwrap(), 0, &mut out).unwrap();
            assert_eq!(out, [byte], "{name}");
        }
        assert!(shards.get("d").is_none());
    }

    #[test]
    fn an_index_that_lies_is_refused_by_what_it_says() {
        let all = [A, B, C].join(",");
        check("{", "it is no index of weights: EOF");
        check("{}", "missing field `weight_map`");
        check(&index(""), "it names no tensor");
        check(&index(&format!("{all},{A}")), "it names tensor a twice");
        for outside in ["../2.safetensors", "/2.safetensors", "x/2.safetensors", "..", "", "./2"] {
            let words = format!("places tensor c in {outside:?}, which is no name of a file");
            check(&index(&format!("{A},{B},\"c\":\"{outside}\"")), &words);
        }
        check(&index(&format!("{all},\"d\":\"3.safetensors\"")), "shard 3.safetensors is missing");
        let elsewhere = format!("{A},{B},\"c\":\"1.safetensors\"");
        check(&index(&elsewhere), "places tensor c in 1.safetensors, which has no such tensor");
        let swapped = "\"a\":\"2.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\"";
        check(&index(swapped), "places tensor a in 2.safetensors, which has no such tensor");
        let unnamed = format!("{A},{C}");
        check(&index(&unnamed), "shard 1.safetensors has tensor b, which the index does not name");
        let more: Vec<_> = (0..=TENSORS_MAX).map(|n| format!("\"{n}\":\"a\"")).collect();
        check(&index(&more.join(",")), "it names more than 262144 tensors");
        check("version https://git-lfs.github.com/spec/v1\n", "it is a git-lfs pointer");
        let many: Vec<_> = (0..=SHARDS_MAX).map(|n| format!("\"t{n}\":\"{n}\"")).collect();
        check(&index(&many.join(",")), "it names 513 files, more than the limit of 512");
    }

    #[test]
    fn a_tensor_in_two_shards_is_refused() {
        let (dir, _) = open(&index(&[A, B, C].join(",")));
        shard(dir.path(), "2.safetensors", &[("c", 3), ("a", 4)]);
        let error = Shards::indexed(&dir.path().join(INDEX)).unwrap_err().to_string();
        let words = "tensor a is in both 1.safetensors and 2.safetensors";
        assert!(error.ends_with(words), "{error}");
    }

    #[test]
    fn a_damaged_shard_is_named_itself() {
        let (dir, _) = open(&index(&[A, B, C].join(",")));
        fs::write(dir.path().join("2.safetensors"), b"short").unwrap();
        let error = Shards::indexed(&dir.path().join(INDEX)).unwrap_err().to_string();
        assert!(error.contains("2.safetensors is no valid safetensors file"), "{error}");
    }

    #[test]
    fn an_index_that_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = Shards::indexed(dir.path()).unwrap_err().to_string();
        assert!(error.contains("it is no file of at most"), "{error}");
        let error = Shards::indexed(&dir.path().join(INDEX)).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }
}
