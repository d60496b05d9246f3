//! Pushes to and pulls from a server in memory that goes wrong when it is told to.

mod large;
mod packages;
mod worlds;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use serde_json::json;
use smelt_random::Random;
use smelt_store::{Digest, FileEntry, Manifest};

use crate::chunk::{FileChunks, Index};
use crate::dsse::Envelope;
use crate::held::{held, is_published};
use crate::keys::SigningKey;
use crate::local::LocalChunks;
use crate::peer::Sealed;
use crate::pull::{Fetched, Offer, PullError, offer};
use crate::push::{PushError, Pushed, push};
use crate::remote::{Blob, Contents, Entry, Key, Range, Ranges, Remote, RemoteError};
use crate::statement::{Provenance, Statement};
use crate::trust::{Trust, TrustedKey, usual_purposes};

const NOW: u64 = 1_800_000_000;

/// Keeps what it is given.
#[derive(Default)]
struct Server {
    blobs: RefCell<HashMap<Digest, Vec<u8>>>,
    entries: RefCell<BTreeMap<Key, Entry>>,
    calls: Cell<u64>,
    /// The call that fails, counted from 1.
    fails_at: Cell<u64>,
    /// Bytes that went either way.
    moved: Cell<u64>,
    /// It has removed blobs.
    has_forgotten: Cell<bool>,
    /// How it gives out parts of blobs.
    parts: Cell<Parts>,
}

/// How a server gives out parts of blobs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Parts {
    #[default]
    Not,
    AsTheyAre,
    /// Other bytes than those asked for.
    Wrong,
    /// None, though it says that it does.
    Missing,
}

impl Server {
    fn call(&self) -> Result<(), RemoteError> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() == self.fails_at.get() {
            let (server, problem) = (self.name().to_owned(), "it is gone".to_owned());
            return Err(RemoteError { server, problem, is_gone: true });
        }
        Ok(())
    }

    fn begin(&self, fails_at: u64) {
        self.calls.set(0);
        self.fails_at.set(fails_at);
        self.moved.set(0);
    }

    /// Whether all of an entry is there.
    fn has(&self, entry: &Entry) -> bool {
        entry.blobs().all(|blob| self.blobs.borrow().contains_key(&blob.digest))
    }

    /// Entries that lack something of theirs.
    fn dangling(&self) -> usize {
        self.entries.borrow().values().filter(|entry| !self.has(entry)).count()
    }

    /// Removes some of its blobs, as a server does that has too many.
    fn forget(&self, luck: &mut Random) {
        self.has_forgotten.set(true);
        // In an order that a seed gives again.
        let mut names: Vec<Digest> = self.blobs.borrow().keys().copied().collect();
        names.sort_unstable();
        for name in names.into_iter().filter(|_| luck.below(4) == 0) {
            self.blobs.borrow_mut().remove(&name);
        }
    }

    fn put(&self, content: Vec<u8>) -> Blob {
        let blob = Blob::of(&content);
        self.blobs.borrow_mut().insert(blob.digest, content);
        blob
    }
}

impl Remote for Server {
    fn name(&self) -> &str {
        "grpc://memory:1"
    }

    fn instance(&self) -> &str {
        "site"
    }

    fn missing(&self, blobs: &[Blob]) -> Result<Vec<Blob>, RemoteError> {
        self.call()?;
        let held = self.blobs.borrow();
        Ok(blobs.iter().filter(|blob| !held.contains_key(&blob.digest)).copied().collect())
    }

    fn read(&self, blobs: &[Blob]) -> Contents {
        self.call()?;
        let held = self.blobs.borrow();
        let found: Vec<_> = blobs.iter().map(|blob| held.get(&blob.digest).cloned()).collect();
        let bytes: usize = found.iter().flatten().map(Vec::len).sum();
        self.moved.set(self.moved.get() + bytes as u64);
        Ok(found)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        (self.parts.get() != Parts::Not).then_some(self)
    }

    fn write(&self, blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        for (blob, content) in blobs {
            self.call()?;
            assert_eq!(Blob::of(content), *blob);
            self.moved.set(self.moved.get() + content.len() as u64);
            self.blobs.borrow_mut().insert(blob.digest, content.clone());
        }
        Ok(())
    }

    fn entry(&self, key: &Key) -> Result<Option<Entry>, RemoteError> {
        self.call()?;
        Ok(self.entries.borrow().get(key).cloned())
    }

    fn publish(&self, key: &Key, entry: &Entry) -> Result<(), RemoteError> {
        self.call()?;
        self.entries.borrow_mut().insert(*key, entry.clone());
        Ok(())
    }
}

impl Ranges for Server {
    fn read_ranges(&self, ranges: &[Range]) -> Contents {
        self.call()?;
        let held = self.blobs.borrow();
        let part = |Range { blob, from, bytes }: &Range| {
            let mut part = held.get(&blob.digest)?.get(*from as usize..)?.to_vec();
            part.truncate(*bytes as usize);
            part[0] ^= u8::from(self.parts.get() == Parts::Wrong);
            Some(part)
        };
        Ok(ranges
            .iter()
            .map(|range| part(range).filter(|_| self.parts.get() != Parts::Missing))
            .collect())
    }
}

/// An output, who built it, and whom another board believes.
struct World {
    dir: tempfile::TempDir,
    statement: Statement,
    signer: SigningKey,
    trust: Trust,
    server: Server,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut chance = Random::new(7);
        let mut random =
            |count: usize| -> Vec<u8> { (0..count).map(|_| chance.below(256) as u8).collect() };
        let contents =
            [("deep/weights.bin", random(2_500_000)), ("empty", Vec::new()), ("run", random(900))];
        let entry = |(path, content): &(&str, Vec<u8>)| {
            let full = dir.path().join("out").join(path);
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(&full, content).unwrap();
            FileEntry {
                path: (*path).to_owned(),
                size: content.len() as u64,
                sha256: Digest::of(content),
                executable: *path == "run",
            }
        };
        let files = Manifest::new(contents.iter().map(entry).collect()).unwrap();
        let (signer, _) = SigningKey::generate().unwrap();
        let trust = trusting(&signer);
        Self { dir, statement: statement(files), signer, trust, server: Server::default() }
    }

    /// Its first file has another content.
    fn has_weights(&mut self, content: &[u8]) {
        fs::write(self.dir.path().join("out/deep/weights.bin"), content).unwrap();
        let mut files = self.statement.files.files().to_vec();
        (files[0].sha256, files[0].size) = (Digest::of(content), content.len() as u64);
        self.statement = statement(Manifest::new(files).unwrap());
    }

    fn push(&self) -> Result<Pushed, PushError> {
        let out = self.dir.path().join("out");
        push(&self.server, &self.statement, &out, &self.signer, &mut |_| true)
    }

    fn offer(&self, key: Key) -> Result<Option<Offer>, PullError> {
        offer(&self.server, key, &self.trust, NOW)
    }

    fn fetch(&self, into: &Path) -> Result<Fetched, PullError> {
        let found = self.offer(Key::Content(self.statement.key))?.expect("it was pushed");
        found.fetch(&self.server, &LocalChunks::default(), (into, None), &mut |_| true)
    }

    fn check(&self, folder: &Path) {
        use std::os::unix::fs::PermissionsExt as _;
        for entry in self.statement.files.files() {
            let path = folder.join(&entry.path);
            assert_eq!(Digest::of(&fs::read(&path).unwrap()), entry.sha256, "{}", entry.path);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o100 != 0, entry.executable, "{}", entry.path);
        }
    }

    /// What lies in a folder of the output's files.
    fn fetched(&self, folder: &Path) -> Manifest {
        let entry = |entry: &FileEntry| {
            let content = fs::read(folder.join(&entry.path)).unwrap_or_default();
            let (size, sha256) = (content.len() as u64, Digest::of(&content));
            FileEntry { size, sha256, ..entry.clone() }
        };
        Manifest::new(self.statement.files.files().iter().map(entry).collect()).unwrap()
    }

    /// Publishes other bytes as the list of chunks, the statement or both.
    fn forge(&self, change: impl FnOnce(&Server, &mut Entry)) {
        let key = Key::Content(self.statement.key);
        let mut entry = self.server.entries.borrow()[&key].clone();
        change(&self.server, &mut entry);
        self.server.entries.borrow_mut().insert(key, entry);
    }
}

fn trusting(signer: &SigningKey) -> Trust {
    let mut trust = Trust::default();
    let key = TrustedKey {
        name: "bench".to_owned(),
        key: signer.public(),
        purposes: usual_purposes(),
        facts: BTreeMap::new(),
        until: None,
        revoked: None,
    };
    trust.add(key).unwrap();
    trust
}

fn statement(files: Manifest) -> Statement {
    let provenance = Provenance {
        stage: "llm".to_owned(),
        kind: "llm-engine-build".to_owned(),
        kind_version: 3,
        pipeline: "p".to_owned(),
        params: BTreeMap::new(),
        device: BTreeMap::new(),
        tools: Vec::new(),
        inputs: vec![("checkpoint".to_owned(), Digest::of(b"checkpoint"))],
        run: "20261128-000000-0000".to_owned(),
    };
    Statement {
        key: Digest::of(b"key"),
        recipes: vec![Digest::of(b"recipe")],
        anywhere: Some(Digest::of(b"anywhere")),
        instance: "site".to_owned(),
        tree: files.digest(),
        files,
        refers: Vec::new(),
        record: json!({ "stage": "llm" }),
        provenance,
        finished: NOW - 5,
        builder: "smelt 0.1.0".to_owned(),
    }
}

#[test]
fn what_was_pushed_is_pulled() {
    let world = World::new();
    let pushed = world.push().unwrap();
    assert_eq!((pushed.bytes, pushed.sent > 2_500_000), (2_500_900, true));
    let keys = [
        Key::Content(world.statement.key),
        Key::Recipe(world.statement.recipes[0]),
        Key::Tree(world.statement.tree),
        Key::Anywhere(world.statement.anywhere.unwrap()),
    ];
    for (number, key) in keys.into_iter().enumerate() {
        let into = world.dir.path().join(number.to_string());
        let found = world.offer(key).unwrap().unwrap();
        assert_eq!(
            (&found.vouched.statement, &*found.vouched.by),
            (&world.statement, &["bench".to_owned()][..])
        );
        let fetched = found
            .fetch(&world.server, &LocalChunks::default(), (&into, None), &mut |_| true)
            .unwrap();
        assert_eq!(fetched, Fetched { bytes: 2_500_900, ..Fetched::default() });
        world.check(&into);
    }
    assert!(world.offer(Key::Content(Digest::of(b"other"))).unwrap().is_none());
}

#[test]
fn a_push_that_is_cut_short_anywhere_leaves_no_entry_without_its_bytes_and_is_gone_on_with() {
    let mut sent_again = Vec::new();
    for call in 1.. {
        let world = World::new();
        world.server.begin(call);
        if world.push().is_ok() {
            assert!(call > 10, "{call}");
            break;
        }
        assert_eq!(world.server.dangling(), 0, "call {call}");
        world.server.begin(0);
        let pushed = world.push().unwrap();
        assert_eq!(world.server.dangling(), 0, "call {call}");
        sent_again.push(pushed.sent);
        world.check_pull();
    }
    assert!(sent_again[0] > 2_500_000 && *sent_again.last().unwrap() < 10_000, "{sent_again:?}");
}

#[test]
fn what_the_server_has_is_not_sent_again() {
    let mut world = World::new();
    world.push().unwrap();
    let path = world.dir.path().join("out/deep/weights.bin");
    let mut content = fs::read(&path).unwrap();
    content[1_000_000] ^= 1;
    world.has_weights(&content);
    let pushed = world.push().unwrap();
    assert!(pushed.sent < 600_000, "{}", pushed.sent);
    world.check_pull();
}

/// An output that is here.
fn sealed(folder: &Path, files: &[&str]) -> Sealed {
    let bytes = |path: &str| fs::metadata(folder.join(path)).map_or(0, |it| it.len());
    let files = files.iter().map(|path| ((*path).to_owned(), bytes(path))).collect();
    Sealed { tree: Digest::of(b"older"), folder: folder.to_owned(), files }
}

/// Another version costs what changed, also in a file of another name, and what is here but damaged is not believed.
#[test]
fn what_is_here_is_not_fetched() {
    let mut world = World::new();
    world.push().unwrap();
    let [old, new] = ["old", "new"].map(|name| world.dir.path().join(name));
    world.fetch(&old).unwrap();
    let path = world.dir.path().join("out/deep/weights.bin");
    let mut content = fs::read(&path).unwrap();
    content.splice(1_000_000..1_000_000, [7; 100]);
    world.has_weights(&content);
    world.push().unwrap();
    let found = world.offer(Key::Content(world.statement.key)).unwrap().unwrap();
    fs::rename(old.join("deep/weights.bin"), old.join("model.bin")).unwrap();
    let local = Offer::local(&[sealed(&old, &["model.bin", "none"])]);
    let fetched = found.fetch(&world.server, &local, (&new, None), &mut |_| true).unwrap();
    assert!(fetched.bytes < 600_000 && fetched.local > 1_900_000, "{fetched:?}");
    world.check(&new);
    // Changed since it was looked at.
    fs::remove_dir_all(&new).unwrap();
    fs::write(old.join("model.bin"), vec![0; 2_500_000]).unwrap();
    let fetched = found.fetch(&world.server, &local, (&new, None), &mut |_| true).unwrap();
    assert_eq!((fetched.bytes + fetched.local, fetched.local < 1000), (2_501_000, true));
    world.check(&new);
}

#[test]
fn a_pull_that_is_cut_short_anywhere_is_gone_on_with() {
    let world = World::new();
    world.push().unwrap();
    let into = world.dir.path().join("in");
    for call in 1.. {
        let _ = fs::remove_dir_all(&into);
        world.server.begin(call);
        if world.fetch(&into).is_ok() {
            assert!(call > 3, "{call}");
            break;
        }
        world.server.begin(0);
        let fetched = world.fetch(&into).unwrap();
        assert_eq!(fetched.bytes + fetched.kept, 2_500_900);
        world.check(&into);
    }
    world.server.begin(0);
    // A process that was killed leaves any beginning of a file.
    let mut chance = Random::new(3);
    for _ in 0..20 {
        let length = chance.below(2_500_000);
        let file = fs::OpenOptions::new().write(true).open(into.join("deep/weights.bin")).unwrap();
        file.set_len(length as u64).unwrap();
        let fetched = world.fetch(&into).unwrap();
        let lacked = 2_500_000 - length as u64;
        assert!(fetched.bytes < lacked + (1 << 20), "{lacked}: {fetched:?}");
        world.check(&into);
    }
    assert_eq!(world.fetch(&into).unwrap().bytes, 0, "all of it is there");
    // What lies there and is none of it is written over.
    fs::write(into.join("deep/weights.bin"), vec![7; 4_000_000]).unwrap();
    world.fetch(&into).unwrap();
    world.check(&into);
}

#[test]
fn whoever_wants_no_more_is_obeyed_and_goes_on_later() {
    let world = World::new();
    world.push().unwrap();
    let into = world.dir.path().join("in");
    let found = world.offer(Key::Content(world.statement.key)).unwrap().unwrap();
    let mut calls = 0;
    let stopped = found.fetch(&world.server, &LocalChunks::default(), (&into, None), &mut |_| {
        calls += 1;
        calls < 8
    });
    assert!(matches!(stopped, Err(PullError::Stopped)), "{stopped:?}");
    let fetched = world.fetch(&into).unwrap();
    assert!(fetched.kept > 0, "{fetched:?}");
    world.check(&into);
}

/// What is said of it, and the lie.
type Lie = (&'static str, fn(&World));

/// Each lie is told of the same entry that is taken without it.
#[test]
fn what_a_server_makes_up_is_refused() {
    let lies: [Lie; 6] = [
        ("no longer its chunks", |world| world.lose_a_chunk()),
        ("no longer its statement", |world| {
            world.forge(|_, entry| entry.statement = Blob::of(b"no"))
        }),
        ("other bytes than those asked for: a chunk of deep/weights.bin", |world| {
            world.change_a_chunk(|content| content[0] ^= 1);
        }),
        ("other bytes than those asked for: a chunk of deep/weights.bin", |world| {
            world.change_a_chunk(|content| content.truncate(9));
        }),
        ("the list of chunks is not that of the signed files", |world| {
            world.forge(|server, entry| {
                let file = FileChunks { path: "../x".to_owned(), chunks: Vec::new() };
                entry.index = server.put(Index::new(vec![file]).to_json().unwrap());
            });
        }),
        ("a statement of 4294967295 bytes", |world| {
            world.forge(|_, entry| entry.statement.bytes = u32::MAX);
        }),
    ];
    for (expect, lie) in lies {
        let world = World::new();
        world.push().unwrap();
        world.check_pull();
        lie(&world);
        let into = world.dir.path().join("in");
        let error = world.fetch(&into).unwrap_err().to_string();
        assert!(error.contains(expect) && error.contains("grpc://memory:1"), "{error}");
        assert_ne!(world.fetched(&into).digest(), world.statement.tree, "{expect}");
    }
}

/// The right bytes in another order: whoever takes the files finds out.
#[test]
fn what_is_made_of_a_forged_list_is_not_what_was_signed() {
    let world = World::new();
    world.push().unwrap();
    let [good, forged] = ["good", "forged"].map(|name| world.dir.path().join(name));
    world.fetch(&good).unwrap();
    assert_eq!(world.fetched(&good).digest(), world.statement.tree);
    world.swap_chunks();
    world.fetch(&forged).unwrap();
    assert_ne!(world.fetched(&forged).digest(), world.statement.tree);
}

#[test]
fn a_statement_counts_only_for_its_own_key_by_whom_one_believes() {
    let mut world = World::new();
    world.push().unwrap();
    world.check_pull();
    // Copied to another key.
    let entry = world.server.entries.borrow()[&Key::Content(world.statement.key)].clone();
    let other = Key::Content(Digest::of(b"other key"));
    world.server.entries.borrow_mut().insert(other, entry.clone());
    assert!(matches!(world.offer(other), Err(PullError::Refused { .. })));
    // Signed by nobody.
    let unsigned =
        Envelope::sign(world.statement.to_json().unwrap(), &[]).unwrap().to_json().unwrap();
    world.forge(|server, entry| entry.statement = server.put(unsigned));
    assert!(matches!(
        world.offer(Key::Content(world.statement.key)),
        Err(PullError::Refused { .. })
    ));
    // By a stranger.
    world.signer = SigningKey::generate().unwrap().0;
    world.push().unwrap();
    assert!(matches!(
        world.offer(Key::Content(world.statement.key)),
        Err(PullError::Refused { .. })
    ));
    world.trust = trusting(&world.signer);
    world.check_pull();
}

impl World {
    fn check_pull(&self) {
        let into = tempfile::tempdir().unwrap();
        self.server.begin(0);
        self.fetch(into.path()).unwrap();
        self.check(into.path());
    }

    fn a_chunk(&self) -> Blob {
        self.server.entries.borrow()[&Key::Content(self.statement.key)].chunks[2]
    }

    fn lose_a_chunk(&self) {
        self.server.blobs.borrow_mut().remove(&self.a_chunk().digest);
    }

    fn change_a_chunk(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.server.blobs.borrow_mut().get_mut(&self.a_chunk().digest).unwrap());
    }

    /// The right bytes in another order: each chunk is what it is called, and the file is not.
    fn swap_chunks(&self) {
        self.forge(|server, entry| {
            let json = server.blobs.borrow()[&entry.index.digest].clone();
            let mut index = Index::read(&json, &self.statement.files).unwrap();
            index.files[0].chunks.swap(0, 1);
            entry.index = server.put(index.to_json().unwrap());
        });
    }
}

/// Nothing is asked for twice at once, and each window only what memory takes.
#[test]
fn many_small_files_come_in_few_calls() {
    let mut world = World::new();
    let folder = world.dir.path().join("out/many");
    fs::create_dir_all(&folder).unwrap();
    let mut files = world.statement.files.files().to_vec();
    for number in 0..600 {
        let content = format!("file {number}");
        fs::write(folder.join(number.to_string()), &content).unwrap();
        files.push(FileEntry {
            path: format!("many/{number}"),
            size: content.len() as u64,
            sha256: Digest::of(content.as_bytes()),
            executable: false,
        });
    }
    world.statement = statement(Manifest::new(files).unwrap());
    world.push().unwrap();
    let into = world.dir.path().join("in");
    world.server.begin(0);
    world.fetch(&into).unwrap();
    world.check(&into);
    assert!(world.server.calls.get() < 12, "{}", world.server.calls.get());
    let distinct: HashSet<_> = world.statement.files.files().iter().map(|it| it.sha256).collect();
    assert!(distinct.len() > 600);
}

/// A server that has removed some of what an entry needs, and gives that entry all the same.
#[test]
fn what_a_server_has_removed_counts_as_not_there_and_is_sent_by_the_next_push() {
    let world = World::new();
    let is_there = || is_published(&world.server, &world.statement, &world.trust, NOW).unwrap();
    let holds =
        |trust: &Trust| held(&world.server, &[world.statement.tree], trust, NOW).unwrap().len();
    assert!(!is_there() && holds(&world.trust) == 0);
    world.push().unwrap();
    assert!(is_there());
    assert_eq!((holds(&world.trust), holds(&Trust::default())), (1, 0));
    world.lose_a_chunk();
    assert!(world.offer(Key::Tree(world.statement.tree)).unwrap().is_some());
    assert!(!is_there() && holds(&world.trust) == 0);
    assert_eq!(world.push().unwrap().sent, u64::from(world.a_chunk().bytes));
    assert!(is_there());
    world.check_pull();
    // A list of chunks of something else leads nowhere, either.
    let other = world.server.put(b"{}".to_vec());
    let key = Key::Content(world.statement.key);
    world.server.entries.borrow_mut().get_mut(&key).unwrap().index = other;
    assert!(!is_there() && holds(&world.trust) == 1);
}
