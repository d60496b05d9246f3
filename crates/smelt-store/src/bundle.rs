//! Writes sealed outputs with their records as one file, and takes such a file apart.
//!
//! ```text
//! smelt-bundle 1\n
//! BYTES SHA256\n        of the index, as decimal and 64 hex digits
//! INDEX                 one JSON array of outputs, each behind those that it refers to
//! CONTENT…              of every file, in the order of the index, nothing between
//! ```
//!
//! The same outputs make the same bytes, so half a bundle is gone on with, here and by programs that copy it.  What is
//! taken apart is compared with its digest on the way.  Knows nothing of stores: who has the outputs gives their folders.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest as _, Sha256};

use crate::digest::{Digest, from_hasher};
use crate::manifest::{FileEntry, Manifest};
use crate::seal::sealed_mode;

const MAGIC: &str = "smelt-bundle 1\n";
/// The index is held in memory, and a hostile one must not take much of it: 64 MiB list 300,000 files.
const INDEX_BYTES_MAX: usize = 64 << 20;
/// Records are a few names; of a longer one the tree is not made.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// A number of at most 20 digits, a blank, a digest and the end of the line.
const HEADING_BYTES_MAX: usize = 86;
/// What is read, hashed and written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A sealed output, as a bundle has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledOutput {
    /// Its name in `out/`.
    pub tree: Digest,
    /// Its files.
    pub files: Manifest,
    /// Other outputs that it names, and is nothing without.
    pub refers: Vec<Digest>,
    /// What led to it.
    pub keys: Vec<BundledKey>,
}

/// A key that led to an output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledKey {
    /// The content key.
    pub key: Digest,
    /// Recipe keys that led to it.
    pub recipes: Vec<Digest>,
    /// What was kept with it, as text: trees of JSON take a hundred times what is written of them.
    record: Box<RawValue>,
}

impl BundledKey {
    /// A key of an output that is in a store.
    pub fn new(key: Digest, recipes: Vec<Digest>, record: &Value) -> Self {
        let record = to_raw_value(record).expect("JSON values are JSON");
        Self { key, recipes, record }
    }

    /// What was kept with it.
    pub fn record(&self) -> Value {
        serde_json::from_str(self.record.get()).expect("it was read as JSON")
    }
}

impl PartialEq for BundledKey {
    fn eq(&self, other: &Self) -> bool {
        let told = |key: &Self| (key.key, key.recipes.clone(), key.record.get().to_owned());
        told(self) == told(other)
    }
}

/// A bundle that cannot be written or taken apart.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of that name is there and is another one.
    #[error("{} is there already, with other content; remove it or name another file", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else writes it.
    #[error("{} is just being written by another smelt", path.display())]
    Held {
        /// The draft.
        path: PathBuf,
    },
    /// More outputs than one index takes.
    #[error(
        "the list of all files has {bytes} bytes, more than the {INDEX_BYTES_MAX} of a bundle: make several"
    )]
    TooMany {
        /// Of the index.
        bytes: usize,
    },
    /// An output changed while it was read.
    #[error("{} is not what was sealed any more: smelt cache fsck", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// It is none, or its index is wrong.
    #[error("{} is no bundle of this version: {problem}", path.display())]
    NotABundle {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It ends too soon.
    #[error(
        "{} has {found} of {expected} bytes: copy the rest, as by rsync --append or curl -C -",
        path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length that its index says.
        expected: u64,
    },
    /// A file in it has other content than its index says.
    #[error("{}: {file} of output {} is damaged; copy the bundle again", path.display(), tree.short())]
    Damaged {
        /// The bundle.
        path: PathBuf,
        /// The output.
        tree: Digest,
        /// Its file.
        file: String,
    },
}

impl BundleError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    /// Whether the bundle itself is wrong.
    pub fn is_of_bundle(&self) -> bool {
        matches!(self, Self::NotABundle { .. } | Self::Short { .. } | Self::Damaged { .. })
    }
}

fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> BundleError {
    move |source| BundleError::Io { verb, path: path.to_owned(), source }
}

/// What became of a bundle that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is there now; so many bytes of it an earlier call had written.
    Now {
        /// Bytes that were kept.
        kept: u64,
    },
    /// It was there.
    Before,
}

/// Writes a bundle of outputs, each with the folder that holds it and behind those that it refers to; `told` hears of bytes as
/// they are written.  It gets its name when it is whole and durable; what an earlier call wrote of it is kept.
///
/// # Errors
/// If it cannot be written, or an output is not what was sealed.
pub fn write(
    outputs: &[(BundledOutput, PathBuf)],
    path: &Path,
    told: &mut dyn FnMut(u64),
) -> Result<Written, BundleError> {
    let heading = heading(outputs.iter().map(|(output, _)| output))?;
    let bytes = outputs.iter().map(|(output, _)| output.files.bytes()).sum::<u64>();
    if let Some(same) = is_there(path, &heading, heading.len() as u64 + bytes)? {
        let other = BundleError::Exists { path: path.to_owned() };
        return if same { Ok(Written::Before) } else { Err(other) };
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!("{name}.part"));
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&draft);
    let file = open.map_err(failed("write", &draft))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(BundleError::Held { path: draft }),
        Err(TryLockError::Error(source)) => return Err(failed("lock", &draft)(source)),
    }
    let kept = fill(&file, &draft, &heading, outputs, told)?;
    file.sync_all().map_err(failed("sync", &draft))?;
    fs::rename(&draft, path).map_err(failed("rename to", path))?;
    // Some file systems cannot sync a folder; the rename itself has succeeded.
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    Ok(Written::Now { kept })
}

/// All that stands before the files' content.
fn heading<'a>(outputs: impl Iterator<Item = &'a BundledOutput>) -> Result<Vec<u8>, BundleError> {
    let index: Vec<&BundledOutput> = outputs.collect();
    let index = serde_json::to_string(&index).expect("digests, texts and JSON values are JSON");
    if index.len() > INDEX_BYTES_MAX {
        return Err(BundleError::TooMany { bytes: index.len() });
    }
    let digest = Digest::of(index.as_bytes());
    Ok(format!("{MAGIC}{} {digest}\n{index}", index.len()).into_bytes())
}

/// Whether a file of that name is this bundle; `None` where there is no such file.
fn is_there(path: &Path, heading: &[u8], bytes: u64) -> Result<Option<bool>, BundleError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let found = file.metadata().map_err(failed("look at", path))?.len();
    let mut begin = vec![0; heading.len()];
    let begins = found == bytes && file.read_exact_at(&mut begin, 0).is_ok();
    Ok(Some(begins && begin == heading))
}

/// Brings a draft to its end; how much of it was there.
fn fill(
    file: &File,
    draft: &Path,
    heading: &[u8],
    outputs: &[(BundledOutput, PathBuf)],
    told: &mut dyn FnMut(u64),
) -> Result<u64, BundleError> {
    let all = outputs
        .iter()
        .flat_map(|(output, folder)| output.files.files().iter().map(move |entry| (entry, folder)));
    let all: Vec<(&FileEntry, &PathBuf)> = all.collect();
    let (kept, whole) = whole(file, heading, &all);
    file.set_len(kept).map_err(failed("cut", draft))?;
    let mut writer = file;
    writer.seek(SeekFrom::Start(kept)).map_err(failed("write", draft))?;
    if kept == 0 {
        writer.write_all(heading).map_err(failed("write", draft))?;
    }
    told(kept.saturating_sub(heading.len() as u64));
    for (entry, folder) in &all[whole..] {
        let source = folder.join(&entry.path);
        let content = File::open(&source).map_err(failed("read", &source))?;
        let copied = copy(content.take(entry.size), writer, told);
        match copied.map_err(failed("write", draft))? {
            copied if copied == entry.size => {}
            _ => return Err(BundleError::Changed { path: source }),
        }
    }
    Ok(kept)
}

/// How much of a draft is what it is to be, and how many of the files that is.
fn whole(file: &File, heading: &[u8], all: &[(&FileEntry, &PathBuf)]) -> (u64, usize) {
    let mut begin = vec![0; heading.len()];
    if file.read_exact_at(&mut begin, 0).is_err() || begin != heading {
        return (0, 0);
    }
    let mut at = heading.len() as u64;
    let is_whole = |(entry, _): &&(&FileEntry, &PathBuf)| {
        let mut hasher = Sha256::new();
        let read = each_piece(file, at, entry.size, &mut |piece| {
            hasher.update(piece);
            Ok(())
        });
        let is_same = read.is_ok() && from_hasher(hasher) == entry.sha256;
        at += if is_same { entry.size } else { 0 };
        is_same
    };
    let count = all.iter().take_while(is_whole).count();
    (at, count)
}

/// Copies to the end, in the kernel where that can.
fn copy(mut from: io::Take<File>, mut to: &File, told: &mut dyn FnMut(u64)) -> io::Result<u64> {
    let all = from.limit();
    let mut copied = 0;
    while copied < all {
        from.set_limit((all - copied).min(64 * PIECE_BYTES as u64));
        let some = io::copy(&mut from, &mut to)?;
        if some == 0 {
            break;
        }
        copied += some;
        told(some);
    }
    Ok(copied)
}

/// Reads so many bytes from a place on, piece by piece.
fn each_piece(
    file: &File,
    at: u64,
    bytes: u64,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let piece = &mut buffer[..(bytes - done).min(PIECE_BYTES as u64) as usize];
        file.read_exact_at(piece, at + done)?;
        take(piece)?;
        done += piece.len() as u64;
    }
    Ok(())
}

/// A bundle whose index was read, and that is as long as that says.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    file: File,
    outputs: Vec<BundledOutput>,
    /// Where the content of each output begins.
    places: Vec<u64>,
}

impl Bundle {
    /// Opens one.
    ///
    /// # Errors
    /// If it cannot be read, is none, or ends too soon.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        let file = File::open(path).map_err(failed("read", path))?;
        let found = file.metadata().map_err(failed("look at", path))?.len();
        let not = |problem: String| BundleError::NotABundle { path: path.to_owned(), problem };
        let (index, content) = index(&file).map_err(failed("read", path))?.map_err(not)?;
        let (places, expected) = places(&index, content).map_err(not)?;
        if found < expected {
            return Err(BundleError::Short { path: path.to_owned(), found, expected });
        }
        if found > expected {
            return Err(not(format!("{} bytes follow its end", found - expected)));
        }
        Ok(Self { path: path.to_owned(), file, outputs: index, places })
    }

    /// Its outputs, each behind those that it refers to.
    pub fn outputs(&self) -> &[BundledOutput] {
        &self.outputs
    }

    /// Writes the files of one of [`Self::outputs`] into a folder that has none of them, and compares each with its digest;
    /// `told` hears of bytes as they are written.
    ///
    /// # Errors
    /// If it cannot be written, or the bundle is damaged; what is in the folder then is to be dropped.
    pub fn extract(
        &self,
        number: usize,
        folder: &Path,
        told: &mut dyn FnMut(u64),
    ) -> Result<(), BundleError> {
        let (output, mut at) = (&self.outputs[number], self.places[number]);
        for entry in output.files.files() {
            let path = folder.join(&entry.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed("make", parent))?;
            }
            if self.put(entry, at, &path, told)? != entry.sha256 {
                let (path, tree) = (self.path.clone(), output.tree);
                return Err(BundleError::Damaged { path, tree, file: entry.path.clone() });
            }
            at += entry.size;
        }
        Ok(())
    }

    /// Writes one file; the digest of what was written.
    fn put(
        &self,
        entry: &FileEntry,
        at: u64,
        path: &Path,
        told: &mut dyn FnMut(u64),
    ) -> Result<Digest, BundleError> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let mut file = created.map_err(failed("create", path))?;
        let (mut hasher, mut refused) = (Sha256::new(), None);
        let read = each_piece(&self.file, at, entry.size, &mut |piece| {
            hasher.update(piece);
            file.write_all(piece).inspect_err(|error| refused = Some(error.kind()))?;
            told(piece.len() as u64);
            Ok(())
        });
        let place = if refused.is_some() { path } else { &self.path };
        read.map_err(failed(if refused.is_some() { "write" } else { "read" }, place))?;
        let mode = Permissions::from_mode(sealed_mode(entry.executable));
        file.set_permissions(mode).map_err(failed("set the mode of", path))?;
        Ok(from_hasher(hasher))
    }
}

/// The index and where it ends, or what is wrong with it.
fn index(file: &File) -> io::Result<Result<(Vec<BundledOutput>, u64), String>> {
    let mut begin = Vec::new();
    file.take((MAGIC.len() + HEADING_BYTES_MAX) as u64).read_to_end(&mut begin)?;
    let Some(rest) = begin.strip_prefix(MAGIC.as_bytes()) else {
        return Ok(Err(format!("it does not begin with \"{}\"", MAGIC.trim_end())));
    };
    let Some((bytes, digest, length)) = said(rest) else {
        return Ok(Err("its second line is no length and no digest".to_owned()));
    };
    if bytes > INDEX_BYTES_MAX {
        return Ok(Err(format!("an index of {bytes} bytes, at most {INDEX_BYTES_MAX} are read")));
    }
    let place = (MAGIC.len() + length) as u64;
    let mut text = vec![0; bytes];
    match file.read_exact_at(&mut text, place) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Err("it ends within its index".to_owned()));
        }
        read => read?,
    }
    if Digest::of(&text) != digest {
        return Ok(Err("its index is damaged".to_owned()));
    }
    let index = serde_json::from_slice(&text).map_err(|error| format!("its index: {error}"));
    Ok(index.map(|index| (index, place + bytes as u64)))
}

/// The length and the digest of the index, and the length of the line that says them.
fn said(line: &[u8]) -> Option<(usize, Digest, usize)> {
    let end = line.iter().position(|&byte| byte == b'\n')?;
    let (bytes, digest) = str::from_utf8(&line[..end]).ok()?.split_once(' ')?;
    Some((bytes.parse().ok()?, digest.parse().ok()?, end + 1))
}

/// Checks a list of outputs that somebody else wrote: each has a name, keys and records as it should, and is behind those
/// that it refers to.
///
/// # Errors
/// What is wrong with it, as a sentence.
pub fn check(outputs: &[BundledOutput]) -> Result<(), String> {
    let mut before = HashSet::new();
    for BundledOutput { tree, files, refers, keys } in outputs {
        let name = tree.short();
        if files.digest() != *tree || files.files().is_empty() {
            return Err(format!("output {name} has other files than its name says"));
        }
        if keys.is_empty() {
            return Err(format!("nothing led to output {name}"));
        }
        if keys.iter().any(|key| key.record.get().len() > RECORD_BYTES_MAX) {
            return Err(format!(
                "a record of output {name} is longer than {RECORD_BYTES_MAX} bytes"
            ));
        }
        if refers.iter().any(|other| !before.contains(other)) {
            return Err(format!("output {name} refers to one that is not before it"));
        }
        if !before.insert(*tree) {
            return Err(format!("output {name} is in it twice"));
        }
    }
    Ok(())
}

/// Where the content of each output begins and the bundle ends, or what is wrong with the index.
fn places(outputs: &[BundledOutput], content: u64) -> Result<(Vec<u64>, u64), String> {
    check(outputs)?;
    let (mut places, mut at) = (Vec::new(), content);
    for BundledOutput { tree, files, .. } in outputs {
        places.push(at);
        let end = files.files().iter().try_fold(at, |at, file| at.checked_add(file.size));
        at = end.ok_or_else(|| format!("output {} is larger than any disk", tree.short()))?;
    }
    Ok((places, at))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// Two outputs, the second of which refers to the first, and their folders.
    fn outputs(root: &Path) -> Vec<(BundledOutput, PathBuf)> {
        let output = |name: &str, files: &[(&str, &str)], refers: Vec<Digest>| {
            let folder = root.join(name);
            let entries = files.iter().map(|&(path, text)| {
                let file = folder.join(path);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, text).unwrap();
                let sha256 = Digest::of(text.as_bytes());
                let executable = path.ends_with(".sh");
                FileEntry { path: path.to_owned(), size: text.len() as u64, sha256, executable }
            });
            let files = Manifest::new(entries.collect()).unwrap();
            let key = Digest::of(name.as_bytes());
            let keys = vec![BundledKey::new(key, vec![], &json!({ "name": name }))];
            (BundledOutput { tree: files.digest(), files, refers, keys }, folder)
        };
        let first = output("first", &[("a/b", "content"), ("run.sh", "#!"), ("empty", "")], vec![]);
        let tree = first.0.tree;
        vec![first, output("second", &[("c", "more")], vec![tree])]
    }

    fn made(root: &Path) -> PathBuf {
        let path = root.join("x.smelt");
        write(&outputs(root), &path, &mut |_| {}).unwrap();
        path
    }

    #[test]
    fn what_was_bundled_comes_out_again() {
        let root = TempDir::new().unwrap();
        let (all, path) = (outputs(root.path()), made(root.path()));
        let bundle = Bundle::open(&path).unwrap();
        let told = |(output, _): &(BundledOutput, PathBuf)| output.clone();
        assert_eq!(bundle.outputs(), all.iter().map(told).collect::<Vec<_>>());
        let mut bytes = 0;
        for (number, (output, source)) in all.iter().enumerate() {
            let folder = root.path().join(format!("out-{number}"));
            fs::create_dir(&folder).unwrap();
            bundle.extract(number, &folder, &mut |some| bytes += some).unwrap();
            for entry in output.files.files() {
                let [own, other] = [&folder, source].map(|root| root.join(&entry.path));
                assert_eq!(fs::read(&own).unwrap(), fs::read(other).unwrap());
                let mode = fs::metadata(own).unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, if entry.executable { 0o555 } else { 0o444 });
            }
        }
        assert_eq!(bytes, 13);
        assert_eq!(write(&all, &path, &mut |_| {}).unwrap(), Written::Before);
        let other = write(&all[..1], &path, &mut |_| {}).unwrap_err();
        assert!(matches!(other, BundleError::Exists { .. }), "{other}");
    }

    /// Wherever writing was cut off, and whatever a power cut left behind the last whole file, the same call ends in the
    /// same bytes.
    #[test]
    fn half_a_bundle_is_gone_on_with() {
        let root = TempDir::new().unwrap();
        let (all, path) = (outputs(root.path()), made(root.path()));
        let whole = fs::read(&path).unwrap();
        let draft = root.path().join("x.smelt.part");
        let content = whole.len() - 13;
        for cut in 0..=whole.len() {
            fs::remove_file(&path).unwrap();
            let mut left = whole[..cut].to_vec();
            left.extend(vec![0; cut % 3]);
            fs::write(&draft, left).unwrap();
            let written = write(&all, &path, &mut |_| {}).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "{cut}");
            assert!(!draft.exists());
            let Written::Now { kept } = written else { panic!("{written:?}") };
            assert_eq!(kept > 0, cut >= content, "{cut}: {kept}");
        }
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_found() {
        let root = TempDir::new().unwrap();
        let path = made(root.path());
        let whole = fs::read(&path).unwrap();
        let take_apart = || -> Result<(), BundleError> {
            let bundle = Bundle::open(&path)?;
            for number in 0..bundle.outputs().len() {
                let folder = TempDir::new().unwrap();
                bundle.extract(number, folder.path(), &mut |_| {})?;
            }
            Ok(())
        };
        take_apart().unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let error = take_apart().unwrap_err();
            assert!(error.is_of_bundle() && !error.to_string().contains('\n'), "{length}: {error}");
        }
        fs::write(&path, &whole).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (at, byte) in whole.iter().enumerate() {
            file.write_all_at(&[byte ^ 1], at as u64).unwrap();
            let error = take_apart().unwrap_err();
            assert!(error.is_of_bundle(), "{at}: {error}");
            file.write_all_at(&[*byte], at as u64).unwrap();
        }
        let longer = [&whole[..], b"x"].concat();
        fs::write(&path, longer).unwrap();
        assert!(take_apart().unwrap_err().to_string().contains("1 bytes follow its end"));
    }

    /// An index that fits its digest and lies.
    #[test]
    fn a_hostile_index_is_refused_in_a_line() {
        let root = TempDir::new().unwrap();
        let all: Vec<BundledOutput> = outputs(root.path()).into_iter().map(|(it, _)| it).collect();
        let path = root.path().join("hostile");
        let check = |change: &dyn Fn(&mut Value), words: &str| {
            let mut index = serde_json::to_value(&all).unwrap();
            change(&mut index);
            let text = index.to_string();
            let digest = Digest::of(text.as_bytes());
            fs::write(&path, format!("{MAGIC}{} {digest}\n{text}contentmore#!", text.len()))
                .unwrap();
            let error = Bundle::open(&path).unwrap_err();
            assert!(error.is_of_bundle(), "{error}");
            assert!(error.to_string().contains(words), "{words}: {error}");
        };
        let first = |name: &'static str| {
            move |index: &mut Value| index[0]["files"][0]["path"] = name.into()
        };
        check(&first("../../etc/passwd"), "is not a path inside a tree");
        check(&first("/etc/passwd"), "is not a path inside a tree");
        check(&first("other"), "other files than its name says");
        check(&|index| index[0]["files"][0]["size"] = u64::MAX.into(), "other files than");
        check(
            &|index| index[1]["refers"][0] = "0".repeat(64).into(),
            "refers to one that is not before",
        );
        check(
            &|index| index.as_array_mut().unwrap().swap(0, 1),
            "refers to one that is not before",
        );
        check(&|index| index[1] = index[0].clone(), "is in it twice");
        check(&|index| index[0]["keys"] = json!([]), "nothing led to output");
        let nested = json!(vec![json!({ "": 0 }); 1 << 14]);
        check(
            &|index| index[0]["keys"][0]["record"] = nested.clone(),
            "is longer than 65536 bytes",
        );
        check(&|index| index[0]["more"] = 1.into(), "unknown field");
        check(&|index| *index = json!({}), "its index: ");
        for (text, words) in [
            ("", "does not begin"),
            ("smelt-bundle 2\n", "does not begin"),
            ("smelt-bundle 1\n", "its second line"),
            ("smelt-bundle 1\nx y\n", "its second line"),
        ] {
            fs::write(&path, text).unwrap();
            assert!(Bundle::open(&path).unwrap_err().to_string().contains(words), "{text:?}");
        }
        let huge = format!("{MAGIC}{} {}\n", u64::MAX, Digest::of(b""));
        fs::write(&path, huge).unwrap();
        assert!(Bundle::open(&path).unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn an_output_that_shrank_makes_no_bundle() {
        let root = TempDir::new().unwrap();
        let all = outputs(root.path());
        fs::write(all[1].1.join("c"), "x").unwrap();
        let path = root.path().join("x.smelt");
        let error = write(&all, &path, &mut |_| {}).unwrap_err();
        assert!(matches!(error, BundleError::Changed { .. }), "{error}");
        assert!(!path.exists());
    }
}
