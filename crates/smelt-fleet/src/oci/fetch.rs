//! Fetches a delivery: first what is said and signed of it, then each layer to where it belongs in its file.
//!
//! No layer is kept beside that.  What an earlier call left in a file is compared and gone on with, within a layer too.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use smelt_store::bundle::BundledOutput;
use smelt_store::{Digest, FileEntry};

use super::artifact::{self, Slice, digest_of};
use super::delivery::{Vouched, newest};
use super::place::{Name, Place, PlaceError, failed};
use crate::judge::Refusal;
use crate::trust::Trust;

/// Tries in a row that brought nothing.
const TRIES_MAX: u32 = 5;
/// Before the second try; before each later one twice as long.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 300 });
const PIECE_BYTES: usize = 256 << 10;

/// A delivery is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Something is wrong with the place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Nothing has that tag.
    #[error("{place} has no {tag:?}: smelt deliver push puts one there")]
    NoTag {
        /// The place.
        place: String,
        /// The tag.
        tag: String,
    },
    /// Nobody vouches for it whose word counts.
    #[error("it is not taken from {place}: {refusal}")]
    Refused {
        /// The place.
        place: String,
        /// Why not.
        refusal: Refusal,
    },
    /// It is something else.
    #[error("{place}: {why}")]
    NotADelivery {
        /// The place.
        place: String,
        /// What is wrong.
        why: String,
    },
}

/// What a tag leads to, and who vouches for it.
#[derive(Debug)]
pub struct Found {
    /// The JSON of the manifest.
    pub manifest: Vec<u8>,
    /// What is signed of it.
    pub vouched: Vouched,
}

/// What a tag leads to, judged; `called` is the name that it must have, where one is known, and `now` in seconds of the Unix era.
///
/// # Errors
/// If nothing is there, or it is not to be taken.
pub fn look(
    place: &Place,
    (tag, called): (&str, Option<&str>),
    trust: &Trust,
    (least, now): (usize, u64),
) -> Result<Found, FetchError> {
    let none = || FetchError::NoTag { place: place.name(), tag: tag.to_owned() };
    let manifest = place.manifest(Name::Tag(tag))?.ok_or_else(none)?;
    artifact::config_of(&manifest).map_err(|error| not(place, error))?;
    let digest = Digest::of(&manifest);
    let statements = place.statements(digest)?;
    let vouched = newest(trust, statements, (digest, called), least, now);
    let refused = |refusal| FetchError::Refused { place: place.name(), refusal };
    Ok(Found { manifest, vouched: vouched.map_err(refused)? })
}

/// A delivery whose list of files was read.
#[derive(Debug)]
pub struct Offer {
    /// Its outputs, each behind those that it refers to.
    pub outputs: Vec<BundledOutput>,
    slices: Vec<Slice>,
}

/// Reads what is in a delivery that is to be taken.
///
/// # Errors
/// If the place does not have it, or it is not what was signed.
pub fn open(place: &Place, found: &Found) -> Result<Offer, FetchError> {
    let described = artifact::config_of(&found.manifest);
    let (manifest, config) = described.map_err(|error| not(place, error))?;
    let config = place.short(&config, "the config")?;
    let (outputs, slices) =
        artifact::read(&manifest, &config).map_err(|error| not(place, error))?;
    if !outputs.iter().map(|output| &output.tree).eq(&found.vouched.delivery.outputs) {
        let why = "it has other outputs than were signed".to_owned();
        return Err(FetchError::NotADelivery { place: place.name(), why });
    }
    Ok(Offer { outputs, slices })
}

fn not(place: &Place, error: artifact::ArtifactError) -> FetchError {
    FetchError::NotADelivery { place: place.name(), why: error.to_string() }
}

/// What moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// From the place.
    pub bytes: u64,
    /// Of an earlier call, or of what is here.
    pub kept: u64,
}

impl Offer {
    /// Writes the files of one of the outputs into a folder, each layer compared with its digest, and goes on with what an
    /// earlier call left there; `told` hears of bytes as they are there.
    ///
    /// # Errors
    /// If it cannot be written, or the place has other bytes than those that it lists.
    pub fn fetch(
        &self,
        place: &Place,
        number: usize,
        folder: &Path,
        told: &mut dyn FnMut(u64),
    ) -> Result<Fetched, PlaceError> {
        let files = self.outputs[number].files.files();
        remove_others(folder, Path::new(""), files)?;
        let mut fetched = Fetched::default();
        for (at, entry) in files.iter().enumerate() {
            let own = |slice: &&Slice| (slice.output, slice.file) == (number, at);
            let slices: Vec<&Slice> = self.slices.iter().filter(own).collect();
            let mut draft = Draft::begin(folder, entry)?;
            for slice in slices {
                draft.fill(place, slice, &mut fetched, told)?;
            }
            draft.finish(entry)?;
        }
        Ok(fetched)
    }
}

/// Removes what an earlier call left of another output of the same key.
fn remove_others(root: &Path, inner: &Path, files: &[FileEntry]) -> Result<(), PlaceError> {
    let dir = root.join(inner);
    for inside in fs::read_dir(&dir).map_err(failed("list", &dir))? {
        let inside = inside.map_err(failed("list", &dir))?;
        let (path, inner) = (inside.path(), inner.join(inside.file_name()));
        let kind = inside.file_type().map_err(failed("look at", &path))?;
        let begins = |entry: &FileEntry| Path::new(&entry.path).starts_with(&inner);
        let is_file = |entry: &FileEntry| Path::new(&entry.path) == inner;
        if kind.is_dir() && files.iter().any(|entry| begins(entry) && !is_file(entry)) {
            remove_others(root, &inner, files)?;
        } else if kind.is_dir() {
            fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        } else if !(kind.is_file() && files.iter().any(is_file)) {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// A file that is being written.
struct Draft<'a> {
    entry: &'a FileEntry,
    path: std::path::PathBuf,
    file: File,
    /// How long it was.
    length: u64,
}

impl<'a> Draft<'a> {
    fn begin(folder: &Path, entry: &'a FileEntry) -> Result<Self, PlaceError> {
        let path = folder.join(&entry.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
        }
        // One that was about to be sealed may be written by nobody.
        if path.exists() {
            let writable = fs::set_permissions(&path, Permissions::from_mode(0o644));
            writable.map_err(failed("set the mode of", &path))?;
        }
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        let file = open.open(&path).map_err(failed("write", &path))?;
        let length = file.metadata().map_err(failed("look at", &path))?.len().min(entry.size);
        Ok(Self { entry, path, file, length })
    }

    /// Sees to it that a slice is there.
    fn fill(
        &mut self,
        place: &Place,
        slice: &Slice,
        fetched: &mut Fetched,
        told: &mut dyn FnMut(u64),
    ) -> Result<(), PlaceError> {
        let there = self.length.saturating_sub(slice.at).min(slice.bytes);
        if there == slice.bytes {
            let digest = digest_of(&self.file, slice.at, slice.bytes);
            if digest.map_err(failed("read", &self.path))? == slice.digest {
                fetched.kept += slice.bytes;
                told(slice.bytes);
                return Ok(());
            }
        }
        // A whole one that is another one is fetched from its beginning.
        let there = if there == slice.bytes { 0 } else { there };
        match self.fetch(place, slice, there, fetched, told)? {
            true => {
                fetched.kept += there;
                told(there);
                Ok(())
            }
            // What was left of it was of something else, or the power went.
            false if there > 0 && self.fetch(place, slice, 0, fetched, told)? => Ok(()),
            false => {
                self.cut(slice.at)?;
                let what = format!("a layer of {}", self.entry.path);
                Err(place.wrong(what, "it has other bytes than were signed: push it again"))
            }
        }
    }

    fn cut(&mut self, length: u64) -> Result<(), PlaceError> {
        self.length = length;
        self.file.set_len(length).map_err(failed("cut", &self.path))
    }

    /// Fetches a slice behind what is there of it; whether it is the one that is wanted then.
    fn fetch(
        &mut self,
        place: &Place,
        slice: &Slice,
        there: u64,
        fetched: &mut Fetched,
        told: &mut dyn FnMut(u64),
    ) -> Result<bool, PlaceError> {
        self.cut(slice.at + there)?;
        let (mut tries, mut pause) = (0, PAUSE);
        let mut have = there;
        while have < slice.bytes {
            let before = have;
            let error = match self.some(place, slice, &mut have, fetched, told) {
                Ok(Ended::Longer) => return Ok(false),
                Ok(Ended::Cut) => {
                    PlaceError::Gone { place: place.name(), why: "it ends too soon".to_owned() }
                }
                Err(error @ PlaceError::Gone { .. }) => error,
                Err(error) => return Err(error),
            };
            if have >= slice.bytes {
                break;
            }
            tries = if have > before { 1 } else { tries + 1 };
            pause = if have > before { PAUSE } else { pause * 2 };
            if tries >= TRIES_MAX {
                return Err(error);
            }
            thread::sleep(pause);
        }
        let digest = digest_of(&self.file, slice.at, slice.bytes);
        Ok(digest.map_err(failed("read", &self.path))? == slice.digest)
    }

    /// Reads as much as comes.
    fn some(
        &mut self,
        place: &Place,
        slice: &Slice,
        have: &mut u64,
        fetched: &mut Fetched,
        told: &mut dyn FnMut(u64),
    ) -> Result<Ended, PlaceError> {
        let (begins, mut reader) = place.read(slice.digest, *have, slice.bytes)?;
        *have = begins;
        self.cut(slice.at + begins)?;
        let mut to = &self.file;
        to.seek(SeekFrom::Start(slice.at + begins)).map_err(failed("write", &self.path))?;
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let some = match reader.read(&mut buffer) {
                Ok(0) => return Ok(Ended::Cut),
                Ok(some) => some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(PlaceError::Gone { place: place.name(), why: error.to_string() });
                }
            };
            if *have + some as u64 > slice.bytes {
                return Ok(Ended::Longer);
            }
            to.write_all(&buffer[..some]).map_err(failed("write", &self.path))?;
            *have += some as u64;
            fetched.bytes += some as u64;
            told(some as u64);
            if *have == slice.bytes {
                return Ok(Ended::Cut);
            }
        }
    }

    /// Ends a file that has all of its slices.
    fn finish(self, entry: &FileEntry) -> Result<(), PlaceError> {
        self.file.set_len(entry.size).map_err(failed("cut", &self.path))?;
        let mode = if entry.executable { 0o755 } else { 0o644 };
        let set = self.file.set_permissions(Permissions::from_mode(mode));
        set.map_err(failed("set the mode of", &self.path))
    }
}

/// How an answer ended.
enum Ended {
    /// At the slice's end, or before.
    Cut,
    /// It has more.
    Longer,
}

/// Copies an output that is here under another key, as it was sealed.
///
/// # Errors
/// If it cannot be read or written.
pub fn copy(output: &BundledOutput, from: &Path, folder: &Path) -> Result<(), PlaceError> {
    for entry in output.files.files() {
        let (source, path) = (from.join(&entry.path), folder.join(&entry.path));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
        }
        let _ = fs::remove_file(&path);
        fs::copy(&source, &path).map_err(failed("copy", &source))?;
    }
    Ok(())
}
