//! Notes which chunks of an output have come, and where they lie, so that another process of the board serves them while the
//! rest comes.
//!
//! A text, written at its end alone: the output's tree, then a line for each place of a chunk, behind the bytes that it tells
//! of, and one for each chunk that the server has been asked for.  Nobody trusts it: who serves a chunk compares its digest.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use smelt_store::Digest;

use crate::chunk::{CHUNKS_MAX, Chunk};

/// The first word of the file.
const FORMAT: &str = "smelt-places-1";
/// A line has a digest, two numbers and a path of a few hundred bytes at most; there are two for each chunk.
const LOG_BYTES_MAX: u64 = 2 * CHUNKS_MAX as u64 * 500;
/// What is read of it in one go.
const READ_BYTES: u64 = 8 << 20;

/// Writes down what comes.
#[derive(Debug)]
pub struct PlacesLog {
    file: File,
}

impl PlacesLog {
    /// Begins anew at `path`, whatever was there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, tree: &Digest) -> io::Result<Self> {
        // Another file, so that whoever reads the one before notices.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
        file.write_all(format!("{FORMAT} {tree}\n").as_bytes())?;
        Ok(Self { file })
    }

    /// These chunks lie at so many bytes of files of these paths.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn has<'a>(
        &mut self,
        places: impl Iterator<Item = (Chunk, u64, &'a str)>,
    ) -> io::Result<()> {
        let line = |(chunk, at, path): (Chunk, u64, &str)| {
            let path = serde_json::to_string(path).expect("a text is JSON");
            format!("has {} {} {at} {path}\n", chunk.digest, chunk.bytes)
        };
        self.add(places.map(line))
    }

    /// These chunks are asked of the server now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn comes<'a>(&mut self, chunks: impl Iterator<Item = &'a Chunk>) -> io::Result<()> {
        self.add(chunks.map(|chunk| format!("comes {} {}\n", chunk.digest, chunk.bytes)))
    }

    fn add(&mut self, lines: impl Iterator<Item = String>) -> io::Result<()> {
        self.file.write_all(lines.collect::<String>().as_bytes())
    }
}

/// What a line tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A chunk lies at so many bytes of a file.
    Has(Chunk, u64, String),
    /// A chunk is on its way.
    Comes(Chunk),
}

/// Reads a log as it grows.
#[derive(Debug)]
pub(crate) struct PlacesReader {
    path: PathBuf,
    file: File,
    /// Which file that is.
    inode: u64,
    read: u64,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
    /// Of which output.
    pub(crate) tree: Digest,
}

impl PlacesReader {
    /// Opens a log; nothing where none is, or not yet.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let inode = file.metadata().ok()?.ino();
        let mut head = Vec::new();
        let length = FORMAT.len() + 1 + Digest::of(b"").to_string().len() + 1;
        (&file).take(length as u64).read_to_end(&mut head).ok()?;
        let head = std::str::from_utf8(&head).ok()?.strip_suffix('\n')?;
        let tree = head.strip_prefix(FORMAT)?.strip_prefix(' ')?.parse().ok()?;
        let (read, rest) = (length as u64, Vec::new());
        Some(Self { path: path.to_owned(), file, inode, read, rest, tree })
    }

    /// Whether the log is still there, and no other one.
    pub(crate) fn is_current(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|it| it.ino() == self.inode)
    }

    /// What has been told since; a line that is none is left out.
    pub(crate) fn told(&mut self) -> Vec<Told> {
        let most = READ_BYTES.min(LOG_BYTES_MAX.saturating_sub(self.read));
        let mut text = std::mem::take(&mut self.rest);
        if let Ok(count) = (&self.file).take(most).read_to_end(&mut text) {
            self.read += count as u64;
        }
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.rest = text.split_off(whole);
        let text = String::from_utf8_lossy(&text);
        text.lines().filter_map(told).collect()
    }
}

fn told(line: &str) -> Option<Told> {
    let mut words = line.splitn(5, ' ');
    let mut word = || words.next();
    let (verb, digest, bytes) = (word()?, word()?.parse().ok()?, word()?.parse().ok()?);
    let chunk = Chunk { digest, bytes };
    match verb {
        "has" => {
            let at = word()?.parse().ok()?;
            Some(Told::Has(chunk, at, serde_json::from_str(word()?).ok()?))
        }
        "comes" => Some(Told::Comes(chunk)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, tree) = (dir.path().join("log"), Digest::of(b"tree"));
        assert!(PlacesReader::open(&path).is_none());
        let mut log = PlacesLog::create(&path, &tree).unwrap();
        let mut reader = PlacesReader::open(&path).unwrap();
        assert_eq!((reader.tree, reader.told()), (tree, Vec::new()));
        let (one, two) = (Chunk::of(b"1"), Chunk::of(b"22"));
        log.comes([one, two].iter()).unwrap();
        log.has([(one, 7, "a b/\n\"x\"")].into_iter()).unwrap();
        let has = Told::Has(one, 7, "a b/\n\"x\"".to_owned());
        assert_eq!(reader.told(), [Told::Comes(one), Told::Comes(two), has]);
        assert!(reader.told().is_empty());
    }

    /// A process may be killed, or read, at any byte.
    #[test]
    fn half_a_line_waits_for_its_end_and_nonsense_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = PlacesLog::create(&path, &Digest::of(b"tree")).unwrap();
        let mut reader = PlacesReader::open(&path).unwrap();
        let one = Chunk::of(b"1");
        log.file.write_all(format!("comes {} ", one.digest).as_bytes()).unwrap();
        assert!(reader.told().is_empty());
        log.file.write_all(b"1\nhas x\n\xff\ncomes 12 12\n").unwrap();
        assert_eq!(reader.told(), [Told::Comes(one)]);
    }

    #[test]
    fn another_fetch_is_another_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _first = PlacesLog::create(&path, &Digest::of(b"1")).unwrap();
        let reader = PlacesReader::open(&path).unwrap();
        assert!(reader.is_current());
        let _second = PlacesLog::create(&path, &Digest::of(b"2")).unwrap();
        assert!(!reader.is_current());
        assert_eq!(PlacesReader::open(&path).unwrap().tree, Digest::of(b"2"));
        fs::write(
            &path,
            "something else of some length, which is no log of any output at all, is it",
        )
        .unwrap();
        assert!(PlacesReader::open(&path).is_none());
    }
}
