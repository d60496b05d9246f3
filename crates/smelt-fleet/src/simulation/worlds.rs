//! Fleets of drawn luck: versions that are published and taken, calls that fail, are cut short or answered with lies, a
//! server that forgets, processes that stop anywhere.
//!
//! Whatever happens: what a board seals is what was signed; an honest server has no entry without its bytes; and as soon as
//! nothing goes wrong any more, everybody has what he wants, at the price of what he lacked.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;

use smelt_random::Random;
use smelt_store::{Digest, FileEntry, Manifest};

use super::{NOW, Server, sealed, statement, trusting};
use crate::keys::SigningKey;
use crate::pull::{Offer, PullError, offer};
use crate::push::push;
use crate::remote::{Blob, Entry, Key, Remote, RemoteError};
use crate::statement::Statement;
use crate::trust::Trust;

/// Worlds where `SMELT_SOAK` does not ask for more.
const WORLDS: u64 = 300;
const WORLDS_OF_SOAK: u64 = 20_000;
/// What happens in one.
const STEPS: usize = 8;
/// More than two chunks, mostly.
const FILE_BYTES_MAX: usize = 400_000;

/// A server as a board sees it by a bad line, or one that lies.
struct Line<'a> {
    server: &'a Server,
    luck: RefCell<Random>,
    /// One call in so many goes wrong; none where it is 0.
    one_in: Cell<usize>,
    /// The server is one that makes things up.
    lies: bool,
    is_gone: Cell<bool>,
}

impl Line<'_> {
    fn is_unlucky(&self) -> bool {
        let one_in = self.one_in.get();
        one_in > 0 && self.luck.borrow_mut().below(one_in) == 0
    }

    fn draw(&self, below: usize) -> usize {
        self.luck.borrow_mut().below(below)
    }

    /// Fails some calls; of those some for good.
    fn call(&self) -> Result<(), RemoteError> {
        if !self.is_gone.get() && !self.is_unlucky() {
            return Ok(());
        }
        let is_gone = self.is_gone.get() || self.draw(2) == 0;
        self.is_gone.set(is_gone);
        Err(RemoteError { server: self.name().to_owned(), problem: "no".to_owned(), is_gone })
    }

    /// Something else than what was asked for.
    fn other(&self, content: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let mut content = content?;
        match self.draw(4) {
            0 => return None,
            1 => content.truncate(self.draw(content.len() + 1)),
            2 => content.extend([0; 3]),
            _ => {
                let at = self.draw(content.len().max(1));
                content.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1);
            }
        }
        Some(content)
    }
}

impl Remote for Line<'_> {
    fn name(&self) -> &str {
        self.server.name()
    }

    fn instance(&self) -> &str {
        self.server.instance()
    }

    fn missing(&self, blobs: &[Blob]) -> Result<Vec<Blob>, RemoteError> {
        self.call()?;
        self.server.missing(blobs)
    }

    fn read(&self, blobs: &[Blob]) -> Result<Vec<Option<Vec<u8>>>, RemoteError> {
        self.call()?;
        let mut read = self.server.read(blobs)?;
        if self.lies && self.is_unlucky() && !read.is_empty() {
            let at = self.draw(read.len());
            read[at] = self.other(read[at].take());
        }
        Ok(read)
    }

    fn write(&self, blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        for blob in blobs {
            self.call()?;
            self.server.write(std::slice::from_ref(blob))?;
        }
        Ok(())
    }

    /// As servers do, it answers only while it has all that an entry names.
    fn entry(&self, key: &Key) -> Result<Option<Entry>, RemoteError> {
        self.call()?;
        let mut key = *key;
        if self.lies && self.is_unlucky() {
            // That of another key.
            let entries = self.server.entries.borrow();
            key = entries.keys().nth(self.draw(entries.len().max(1))).copied().unwrap_or(key);
        }
        let entry = self.server.entry(&key)?;
        Ok(entry.filter(|entry| self.server.has(entry)))
    }

    fn publish(&self, key: &Key, entry: &Entry) -> Result<(), RemoteError> {
        self.call()?;
        self.server.publish(key, entry)
    }
}

/// A stage's output in several versions, on a builder and on a board that takes them.
struct World {
    dir: tempfile::TempDir,
    luck: Random,
    signer: SigningKey,
    trust: Trust,
    /// Each under a key of its own.
    versions: Vec<Statement>,
    contents: Vec<Vec<u8>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (signer, _) = SigningKey::generate().unwrap();
        let trust = trusting(&signer);
        let dir = tempfile::tempdir().unwrap();
        let mut luck = Random::new(seed);
        let contents = (0..=luck.below(2)).map(|_| bytes(&mut luck, FILE_BYTES_MAX)).collect();
        Self { dir, luck, signer, trust, versions: Vec::new(), contents }
    }

    fn built(&self, version: usize) -> PathBuf {
        self.dir.path().join(format!("built{version}"))
    }

    fn pulled(&self, version: usize) -> PathBuf {
        self.dir.path().join(format!("pulled{version}"))
    }

    /// Builds another version, of which most is as it was.
    fn build(&mut self) {
        let (version, count) = (self.versions.len(), self.contents.len());
        let file = self.luck.below(count);
        let at = self.luck.below(self.contents[file].len() + 1);
        let more = bytes(&mut self.luck, 200);
        self.contents[file].splice(at..at, more);
        fs::create_dir_all(self.built(version)).unwrap();
        let entry = |(name, content): (usize, &Vec<u8>)| {
            fs::write(self.built(version).join(name.to_string()), content).unwrap();
            FileEntry {
                path: name.to_string(),
                size: content.len() as u64,
                sha256: Digest::of(content),
                executable: false,
            }
        };
        let files = Manifest::new(self.contents.iter().enumerate().map(entry).collect()).unwrap();
        let digest = |what: &str| Digest::of(format!("{what} {version}").as_bytes());
        self.versions.push(Statement {
            key: digest("key"),
            recipes: vec![digest("recipe")],
            anywhere: None,
            ..statement(files)
        });
    }

    /// Publishes a version; whether that came to its end.
    fn push(&mut self, line: &Line<'_>, version: usize, patience: usize) -> bool {
        let mut left = patience;
        let mut told = |_| {
            left = left.saturating_sub(1);
            left > 0
        };
        push(line, &self.versions[version], &self.built(version), &self.signer, &mut told).is_ok()
    }

    /// Takes a version: whether it is there, and sealed.
    fn pull(&mut self, line: &Line<'_>, version: usize, patience: usize, seed: u64) -> bool {
        let wanted = &self.versions[version];
        let key = Key::Recipe(wanted.recipes[0]);
        let Ok(Some(found)) = offer(line, key, &self.trust, NOW) else { return false };
        assert_eq!(found.vouched.statement, *wanted, "world {seed}: of another version");
        let names: Vec<&str> = wanted.files.files().iter().map(|it| it.path.as_str()).collect();
        let older: Vec<_> = (0..version).map(|it| sealed(&self.pulled(it), &names)).collect();
        let (local, into, mut left) = (Offer::local(&older), self.pulled(version), patience);
        let fetched = found.fetch(line, &local, (&into, None), &mut |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        // As `Store::seal_fetched`: what is sealed is looked at whole.
        let is_it = digest_of(&into, wanted) == wanted.tree;
        match fetched {
            Ok(_) => assert!(is_it, "world {seed}: what was fetched is not what was signed"),
            Err(PullError::Write { .. }) => panic!("world {seed}: the disk is whole"),
            Err(_) => {}
        }
        is_it
    }
}

fn bytes(luck: &mut Random, max: usize) -> Vec<u8> {
    let count = luck.below(max + 1);
    (0..count).map(|_| luck.below(256) as u8).collect()
}

/// The digest of what lies there of a version's files.
fn digest_of(folder: &std::path::Path, wanted: &Statement) -> Digest {
    let entry = |entry: &FileEntry| {
        let content = fs::read(folder.join(&entry.path)).unwrap_or_default();
        let (size, sha256) = (content.len() as u64, Digest::of(&content));
        FileEntry { size, sha256, ..entry.clone() }
    };
    Manifest::new(wanted.files.files().iter().map(entry).collect()).unwrap().digest()
}

fn live(seed: u64) {
    let (server, mut world) = (Server::default(), World::new(seed));
    let mut line = Line {
        server: &server,
        luck: RefCell::new(Random::new(!seed)),
        one_in: Cell::new(0),
        lies: world.luck.below(2) == 0,
        is_gone: Cell::new(false),
    };
    world.build();
    for _ in 0..STEPS {
        line.one_in.set([0, 3, 12][world.luck.below(3)]);
        line.is_gone.set(false);
        let version = world.luck.below(world.versions.len());
        let patience = 1 + world.luck.below(20);
        match world.luck.below(5) {
            0 => world.build(),
            1 | 2 => drop(world.push(&line, version, patience)),
            3 => server.forget(&mut world.luck),
            _ => drop(world.pull(&line, version, patience, seed)),
        }
        let dangling = server.dangling();
        assert!(dangling == 0 || server.has_forgotten.get(), "world {seed}: {dangling} entries");
    }
    (line.lies, line.is_gone) = (false, Cell::new(false));
    line.one_in.set(0);
    for version in 0..world.versions.len() {
        assert!(world.push(&line, version, usize::MAX), "world {seed}: not published");
        server.begin(0);
        assert!(world.pull(&line, version, usize::MAX, seed), "world {seed}: not taken");
        server.begin(0);
        assert!(world.pull(&line, version, usize::MAX, seed));
        // Statement and list of chunks, and nothing of what is here.
        let moved = server.moved.get();
        assert!(moved < 8_000, "world {seed}: {moved} bytes again");
    }
}

#[test]
fn every_world_ends_well() {
    let worlds = if std::env::var_os("SMELT_SOAK").is_some() { WORLDS_OF_SOAK } else { WORLDS };
    match std::env::var("SMELT_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => live(seed),
        None => (0..worlds).for_each(live),
    }
}
