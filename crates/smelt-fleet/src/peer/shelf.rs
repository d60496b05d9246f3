//! Knows which chunks lie where: those of sealed outputs, and of pulls as they come.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smelt_store::Digest;

use crate::chunk::{Chunk, cut};
use crate::places::{PlacesReader, Told};

/// Chunks of all outputs together, some 100 bytes of memory each: ten outputs of the largest kind.
const CHUNKS_MAX: usize = 300_000;
/// Pulls of one store at once.
const PULLS_MAX: usize = 64;
/// How long what was asked of the server counts as coming: whoever asked may have been killed.
const COMES_MAX: Duration = Duration::from_secs(60);

/// A sealed output that may be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its name.
    pub tree: Digest,
    /// Where its files are.
    pub folder: PathBuf,
    /// The paths and sizes of its files.
    pub files: Vec<(String, u64)>,
}

impl Sealed {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A pull under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coming {
    /// Where what has come is noted.
    pub log: PathBuf,
    /// Where its files are.
    pub folder: PathBuf,
    /// The folder in which outputs lie by their names once they are sealed.
    pub out: PathBuf,
}

/// What a peer has.
#[derive(Debug, Default)]
pub struct Shelf {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    outputs: HashMap<Digest, Output>,
    places: HashMap<Chunk, Place>,
    comes: HashMap<Chunk, Instant>,
    pulls: HashMap<Coming, PlacesReader>,
}

/// An output, sealed or coming.
#[derive(Debug, Default)]
struct Output {
    /// Where its files may be: a pull's move when they are sealed.
    folders: Vec<PathBuf>,
    files: Vec<String>,
    /// Of each file its number.
    numbers: HashMap<String, usize>,
    /// Bytes of it whose places are known.
    known: u64,
}

impl Output {
    fn file(&mut self, path: &str) -> usize {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.files.push(path.to_owned());
        self.numbers.insert(path.to_owned(), self.files.len() - 1);
        self.files.len() - 1
    }
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug)]
struct Place {
    tree: Digest,
    file: usize,
    at: u64,
}

impl Shelf {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves these outputs, those that matter most first, and no others but what comes.  Those that are new are read and cut,
    /// a second a gigabyte, until `stop` is set.
    pub fn set_sealed(&self, sealed: &[Sealed], stop: &AtomicBool) {
        self.state().forget_all_but(sealed);
        for output in sealed {
            let is_known = self.state().is_known(output);
            if !is_known && !stop.load(Ordering::Relaxed) {
                self.add(output, stop);
            }
        }
    }

    fn add(&self, output: &Sealed, stop: &AtomicBool) {
        self.state().begin(output.tree, &[&output.folder]);
        for (path, bytes) in &output.files {
            // What cannot be read is not served.
            let Ok(file) = File::open(output.folder.join(path)) else { continue };
            let mut at = 0;
            for (chunk, _) in cut(file, *bytes).map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                self.state().put(chunk, output.tree, path, at);
                at += u64::from(chunk.bytes);
            }
        }
        // What differs from its record is not read again and again.
        if let Some(known) = self.state().outputs.get_mut(&output.tree) {
            known.known = output.bytes();
        }
    }

    /// Serves what comes by these pulls, and what has come by those before.
    pub fn set_coming(&self, coming: &[Coming]) {
        let mut state = self.state();
        state.read_pulls();
        state.pulls.retain(|pull, reader| coming.contains(pull) && reader.is_current());
        for pull in coming {
            if state.pulls.len() >= PULLS_MAX || state.pulls.contains_key(pull) {
                continue;
            }
            if let Some(reader) = PlacesReader::open(&pull.log) {
                let sealed = pull.out.join(reader.tree.to_string());
                state.begin(reader.tree, &[&pull.folder, &sealed]);
                state.pulls.insert(pull.clone(), reader);
            }
        }
        state.read_pulls();
    }

    /// Of each chunk whether it is here, and whether it comes.
    pub fn look(&self, chunks: &[Chunk]) -> Vec<(bool, bool)> {
        let mut state = self.state();
        state.read_pulls();
        chunks
            .iter()
            .map(|chunk| (state.places.contains_key(chunk), state.is_coming(chunk)))
            .collect()
    }

    /// The content of a chunk, if it is here as it was.
    pub fn read(&self, chunk: &Chunk) -> Option<Vec<u8>> {
        let (place, files) = self.state().files_of(chunk)?;
        let read = |path: &PathBuf| {
            let mut content = vec![0; chunk.bytes as usize];
            File::open(path).ok()?.read_exact_at(&mut content, place.at).ok()?;
            (Chunk::of(&content) == *chunk).then_some(content)
        };
        let content = files.iter().find_map(read);
        if content.is_none() {
            // A disk that lost or changed it says so once; nobody is told again that it is here.
            self.state().places.remove(chunk);
        }
        content
    }

    /// How many chunks are here.
    pub fn count(&self) -> usize {
        self.state().places.len()
    }
}

impl State {
    fn is_known(&self, output: &Sealed) -> bool {
        let known = self.outputs.get(&output.tree);
        known.is_some_and(|known| known.known >= output.bytes())
    }

    fn begin(&mut self, tree: Digest, folders: &[&Path]) {
        let output = self.outputs.entry(tree).or_default();
        output.known = 0;
        for folder in folders {
            if !output.folders.iter().any(|known| known == folder) {
                output.folders.push((*folder).to_owned());
            }
        }
    }

    fn put(&mut self, chunk: Chunk, tree: Digest, path: &str, at: u64) {
        let Some(output) = self.outputs.get_mut(&tree) else { return };
        output.known += u64::from(chunk.bytes);
        self.comes.remove(&chunk);
        if self.places.len() < CHUNKS_MAX {
            let file = output.file(path);
            self.places.insert(chunk, Place { tree, file, at });
        }
    }

    fn forget_all_but(&mut self, sealed: &[Sealed]) {
        let mut kept: HashSet<Digest> = sealed.iter().map(|it| it.tree).collect();
        kept.extend(self.pulls.values().map(|reader| reader.tree));
        if self.outputs.keys().all(|tree| kept.contains(tree)) {
            return;
        }
        self.outputs.retain(|tree, _| kept.contains(tree));
        self.places.retain(|_, place| kept.contains(&place.tree));
    }

    fn read_pulls(&mut self) {
        let mut told = Vec::new();
        for reader in self.pulls.values_mut() {
            let tree = reader.tree;
            told.extend(reader.told().into_iter().map(|told| (tree, told)));
        }
        for (tree, told) in told {
            match told {
                Told::Has(chunk, at, path) => self.put(chunk, tree, &path, at),
                Told::Comes(chunk) => drop(self.comes.insert(chunk, Instant::now())),
            }
        }
        self.comes.retain(|_, since| since.elapsed() < COMES_MAX);
    }

    fn is_coming(&self, chunk: &Chunk) -> bool {
        self.comes.contains_key(chunk)
    }

    /// Where a chunk is, and the files in which that may be.
    fn files_of(&self, chunk: &Chunk) -> Option<(Place, Vec<PathBuf>)> {
        let place = *self.places.get(chunk)?;
        let output = self.outputs.get(&place.tree)?;
        let path = output.files.get(place.file)?;
        Some((place, output.folders.iter().map(|folder| folder.join(path)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use smelt_random::Random;

    use super::*;
    use crate::places::PlacesLog;

    struct World {
        dir: tempfile::TempDir,
        sealed: Sealed,
        chunks: Vec<Chunk>,
    }

    fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let mut chance = Random::new(1);
        let content: Vec<u8> = (0..700_000).map(|_| chance.below(256) as u8).collect();
        let (tree, folder) = (Digest::of(b"tree"), dir.path().join("out"));
        fs::create_dir_all(folder.join("deep")).unwrap();
        fs::write(folder.join("deep/file"), &content).unwrap();
        let chunks = cut(&content[..], 700_000).map(|it| it.unwrap().0).collect();
        let files = vec![("deep/file".to_owned(), 700_000)];
        World { dir, sealed: Sealed { tree, folder, files }, chunks }
    }

    static GOES_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn a_sealed_outputs_chunks_are_here_until_it_is_served_no_more() {
        let World { dir: _dir, sealed, chunks } = world();
        let shelf = Shelf::default();
        assert!(shelf.look(&chunks).iter().all(|it| *it == (false, false)));
        shelf.set_sealed(&[sealed], &GOES_ON);
        assert!(shelf.look(&chunks).iter().all(|it| *it == (true, false)));
        for chunk in &chunks {
            assert_eq!(Chunk::of(&shelf.read(chunk).unwrap()), *chunk);
        }
        assert_eq!(shelf.read(&Chunk::of(b"another")), None);
        shelf.set_sealed(&[], &GOES_ON);
        assert_eq!((shelf.count(), shelf.read(&chunks[0])), (0, None));
    }

    /// A damaged disk does not spread.
    #[test]
    fn what_has_changed_is_neither_sent_nor_said_to_be_here() {
        let World { dir: _dir, sealed, chunks } = world();
        let shelf = Shelf::default();
        let file = sealed.folder.join("deep/file");
        shelf.set_sealed(&[sealed], &GOES_ON);
        let mut content = fs::read(&file).unwrap();
        content[0] ^= 1;
        fs::write(&file, content).unwrap();
        assert_eq!(shelf.read(&chunks[0]), None);
        assert!(shelf.read(&chunks[1]).is_some());
        assert_eq!(shelf.look(&chunks[..2]), [(false, false), (true, false)]);
    }

    #[test]
    fn what_comes_is_here_piece_by_piece_and_stays_when_it_is_sealed() {
        let World { dir, sealed, chunks } = world();
        let [pulls, log] = ["pulls", "log"].map(|name| dir.path().join(name));
        fs::create_dir_all(pulls.join("deep")).unwrap();
        let whole = fs::read(sealed.folder.join("deep/file")).unwrap();
        let out = dir.path().join("sealed");
        let shelf = Shelf::default();
        let coming = [Coming { log: log.clone(), folder: pulls.clone(), out: out.clone() }];
        shelf.set_coming(&coming);
        let mut written = PlacesLog::create(&log, &sealed.tree).unwrap();
        shelf.set_coming(&coming);
        written.comes(chunks[..2].iter()).unwrap();
        assert_eq!(shelf.look(&chunks[..3]), [(false, true), (false, true), (false, false)]);
        fs::write(pulls.join("deep/file"), &whole).unwrap();
        let mut at = 0;
        for chunk in &chunks {
            written.has([(*chunk, at, "deep/file")].into_iter()).unwrap();
            at += u64::from(chunk.bytes);
            assert_eq!(shelf.look(&[*chunk]), [(true, false)]);
            assert!(shelf.read(chunk).is_some());
        }
        // It is sealed, and its log removed.
        fs::create_dir_all(&out).unwrap();
        fs::rename(&pulls, out.join(sealed.tree.to_string())).unwrap();
        fs::remove_file(&log).unwrap();
        shelf.set_coming(&[]);
        assert!(chunks.iter().all(|chunk| shelf.read(chunk).is_some()));
        // Whole as it is, it is not read again: the folder that is named has nothing.
        let elsewhere = Sealed { folder: dir.path().join("none"), ..sealed };
        shelf.set_sealed(&[elsewhere], &GOES_ON);
        assert_eq!(shelf.count(), chunks.len());
    }
}
