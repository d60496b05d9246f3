//! Simulates a disk that loses everything that was not synced.
//!
//! Two states of the world are kept: the live one, which programs see, and the durable one, which
//! a crash leaves.  `sync` moves blocks of a file from one to the other, `sync_dir` the names of a
//! directory; a failed `sync` forgets which blocks were dirty, as kernels do.  On order the disk
//! fails its Nth operation, runs full, or dies after its Nth change.  Several actors may share it
//! in turns that a seed decides.  Knows nothing of the store but how to open one.

#![allow(unreachable_pub)] // Other crates' tests see it too, by the feature `sim`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc;
use smelt_random::Random;

use super::turns::TurnScheduler;
use super::{Disk, DiskFile, FileKind, LockGuard, LockKind, Moment, Open, Stat, Volume, Wait};
use crate::store::{Store, StoreError};

/// Small, so that even short records are torn.
const BLOCK_BYTES: usize = 64;
const ROOT: u64 = 1;
/// 2026-11-21 15:42:33 UTC.
const START_NS: i64 = 1_795_275_753_000_000_000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// All is well.
    Nothing,
    /// Every operation after the Nth change fails.
    CrashAfterChange(u64),
    /// The Nth operation fails, once.
    FailAt(u64, Failure),
    /// From the Nth operation on nothing that needs space succeeds.
    FullFrom(u64),
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The system says EIO.
    Eio,
    /// Only for operations that may need space; others succeed.
    Enospc,
    /// Half of the bytes are written and nothing is said; only for writes.
    ShortWrite,
    /// Half of the bytes are read, as the system may do at any time; only for reads.
    ShortRead,
}

/// Which un-synced things a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Neither names nor content.
    Nothing,
    /// All names and sizes, no content: what file systems with delayed allocation do.
    NamesOnly,
    /// All content, no names.
    ContentOnly,
    /// All of it.
    Everything,
    /// Each thing or not, by this seed.
    Random(u64),
}

impl Left {
    /// What a sweep tries.
    pub const EACH: [Self; 8] = [
        Self::Nothing,
        Self::NamesOnly,
        Self::ContentOnly,
        Self::Everything,
        Self::Random(1),
        Self::Random(2),
        Self::Random(3),
        Self::Random(4),
    ];
}

/// A broken disk (or a program that forgot to sync): for these paths, sync does nothing.
pub type Deaf = fn(&Path) -> bool;

/// A disk in memory; a clone is the same disk.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
    /// Who waits for its turn at every operation.
    actor: Option<(Arc<TurnScheduler>, usize)>,
}

#[derive(Clone)]
struct World {
    nodes: BTreeMap<u64, Node>,
    /// Changes of names that are not yet durable, oldest first.
    pending: Vec<Vec<NameEdit>>,
    locks: Vec<Lock>,
    next_id: u64,
    now_ns: i64,
    boot: u64,
    free_bytes: u64,
    trouble: Trouble,
    deaf_to_sync: Deaf,
    deaf_to_sync_dir: Deaf,
    operations: u64,
    changes: u64,
    is_down: bool,
    /// The operation that met trouble, for messages.
    met: String,
}

#[derive(Clone)]
enum Node {
    File(FileNode),
    Dir { live: Names, durable: Names, mode: u32, mtime_ns: i64 },
}

type Names = BTreeMap<OsString, u64>;

#[derive(Clone)]
struct FileNode {
    live: Content,
    durable: Content,
    dirty: BTreeSet<usize>,
    mtime_ns: i64,
    ctime_ns: i64,
}

#[derive(Clone)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
}

#[derive(Clone)]
struct NameEdit {
    dir: u64,
    name: OsString,
    to: Option<u64>,
}

#[derive(Clone)]
struct Lock {
    id: u64,
    path: PathBuf,
    kind: LockKind,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        let root = Node::Dir {
            live: BTreeMap::new(),
            durable: BTreeMap::new(),
            mode: 0o755,
            mtime_ns: START_NS,
        };
        let world = World {
            nodes: BTreeMap::from([(ROOT, root)]),
            pending: Vec::new(),
            locks: Vec::new(),
            next_id: ROOT + 1,
            now_ns: START_NS,
            boot: 1,
            free_bytes: 32 << 20,
            trouble: Trouble::Nothing,
            deaf_to_sync: |_| false,
            deaf_to_sync_dir: |_| false,
            operations: 0,
            changes: 0,
            is_down: false,
            met: String::new(),
        };
        Self { world: Arc::new(Mutex::new(world)), actor: None }
    }

    /// The same disk as one actor sees it: each operation may let others go first.
    pub fn for_actor(&self, turns: &Arc<TurnScheduler>, actor: usize) -> Self {
        Self { world: Arc::clone(&self.world), actor: Some((Arc::clone(turns), actor)) }
    }

    /// Opens the store in `root`, beside others.
    pub fn open_store(&self, root: &Path) -> Result<Store, StoreError> {
        Store::open_on(Arc::new(self.clone()), root)
    }

    /// Sets the clock forward or back.
    pub fn jump(&self, ns: i64) {
        self.peek().now_ns += ns;
    }

    /// The time by its clock, in nanoseconds of the Unix era.
    pub fn now_ns(&self) -> i64 {
        self.peek().now_ns
    }

    /// Whether power is gone.
    pub fn is_down(&self) -> bool {
        self.peek().is_down
    }

    /// Makes a file as a program does: nothing is synced.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let file = Disk::open(self, path, Open::New)?;
        match file.write_at(0, bytes)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(os(libc::ENOSPC)),
        }
    }

    /// Reads a file as a program does.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = Disk::open(self, path, Open::Read)?;
        let mut bytes = vec![0; file.stat()?.size as usize];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// A disk of its own in the same state.
    pub fn copy(&self) -> Self {
        Self { world: Arc::new(Mutex::new(self.peek().clone())), actor: None }
    }

    /// Counts from here on, and goes wrong as told.
    pub fn plan(&self, trouble: Trouble) {
        let mut world = self.peek();
        (world.trouble, world.operations, world.changes) = (trouble, 0, 0);
        world.met = String::new();
    }

    /// Turns the disk deaf for some files and directories.
    pub fn ignore_syncs(&self, files: Deaf, dirs: Deaf) {
        let mut world = self.peek();
        (world.deaf_to_sync, world.deaf_to_sync_dir) = (files, dirs);
    }

    /// What `statfs` says; writing does not use it up.
    pub fn set_free_bytes(&self, free_bytes: u64) {
        self.peek().free_bytes = free_bytes;
    }

    /// Whether it has run full, for good.
    pub fn is_full(&self) -> bool {
        self.peek().is_full()
    }

    /// Operations since the last plan.
    pub fn operations(&self) -> u64 {
        self.peek().operations
    }

    /// Those that changed something.
    pub fn changes(&self) -> u64 {
        self.peek().changes
    }

    /// The operation at which the trouble came; empty if it did not.
    pub fn met(&self) -> String {
        self.peek().met.clone()
    }

    /// Writes a file durably, with its directories, an hour ago.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut world = self.peek();
        let mut dir = PathBuf::from("/");
        for part in path.parent().expect("not the root").components().skip(1) {
            dir.push(part);
            let _ = world.mkdir(&dir);
        }
        let id = match world.find(path) {
            Ok(id) => id,
            Err(_) => world.create(path).expect("its directory was made above"),
        };
        let file = world.file(id);
        file.live.bytes = bytes.to_vec();
        file.durable = file.live.clone();
        for edits in std::mem::take(&mut world.pending) {
            world.make_durable(&edits);
        }
        world.now_ns += 3_600_000_000_000;
    }

    /// Flips a bit of a file as a bad disk does: no time of the file changes.
    pub fn corrupt(&self, path: &Path) {
        let mut world = self.peek();
        let id = world.find(path).expect("there is such a file");
        let file = world.file(id);
        file.live.bytes[0] ^= 1;
        file.durable.bytes[0] ^= 1;
    }

    /// The content of a file, by no operation.
    pub fn get(&self, path: &Path) -> Option<Vec<u8>> {
        let mut world = self.peek();
        let id = world.find(path).ok()?;
        match world.nodes.get(&id)? {
            Node::File(file) => Some(file.live.bytes.clone()),
            Node::Dir { .. } => None,
        }
    }

    /// The disk after power was lost and came back.
    pub fn after_crash(&self, left: Left) -> Self {
        let mut world = self.peek().clone();
        world.lose(left);
        Self { world: Arc::new(Mutex::new(world)), actor: None }
    }

    /// For an operation: in the actor's turn.
    fn world(&self) -> MutexGuard<'_, World> {
        take_turn(self.actor.as_ref());
        self.peek()
    }

    /// For the test itself, which is no actor.
    fn peek(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take_turn(actor: Option<&(Arc<TurnScheduler>, usize)>) {
    if let Some((turns, actor)) = actor {
        turns.step(*actor);
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

fn os(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// What kind of operation it is, for the trouble that may befall it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// It only looks.
    Nothing,
    Change,
    ChangeAndSpace,
    Write,
}

impl World {
    /// Counts an operation; an error if it is its turn to fail, `true` if it is to be done half.
    fn step(&mut self, what: &str, path: &Path, needs: Needs) -> io::Result<bool> {
        if self.is_down {
            return Err(os(libc::EIO));
        }
        self.now_ns += 1_000_000;
        self.operations += 1;
        if needs != Needs::Nothing {
            if self.trouble == Trouble::CrashAfterChange(self.changes) {
                self.is_down = true;
                self.met = format!("before {what} {}", path.display());
                return Err(os(libc::EIO));
            }
            self.changes += 1;
        }
        let takes_space = matches!(needs, Needs::ChangeAndSpace | Needs::Write);
        let (at, failure) = match self.trouble {
            Trouble::FailAt(at, failure) if at == self.operations => (at, failure),
            // The first write is a short one.
            Trouble::FullFrom(at) if at <= self.operations && takes_space => {
                let is_first = self.met.is_empty() && needs == Needs::Write;
                (at, if is_first { Failure::ShortWrite } else { Failure::Enospc })
            }
            _ => return Ok(false),
        };
        debug_assert!(at <= self.operations);
        let meets = match failure {
            Failure::Eio => true,
            Failure::Enospc => takes_space,
            Failure::ShortWrite => needs == Needs::Write,
            Failure::ShortRead => what == "read",
        };
        if !meets {
            return Ok(false);
        }
        self.met = format!("{what} {}", path.display());
        match failure {
            Failure::Eio => Err(os(libc::EIO)),
            Failure::Enospc => Err(os(libc::ENOSPC)),
            Failure::ShortWrite | Failure::ShortRead => Ok(true),
        }
    }

    fn is_full(&self) -> bool {
        matches!(self.trouble, Trouble::FullFrom(at) if at <= self.operations)
    }

    fn find(&mut self, path: &Path) -> io::Result<u64> {
        let mut id = ROOT;
        for part in path.components() {
            let name = match part {
                Component::RootDir => continue,
                Component::Normal(name) => name,
                _ => panic!("a plain absolute path, not {}", path.display()),
            };
            id = *self.names(id)?.get(name).ok_or_else(|| os(libc::ENOENT))?;
        }
        Ok(id)
    }

    fn parent<'p>(&mut self, path: &'p Path) -> io::Result<(u64, &'p OsStr)> {
        let id = self.find(path.parent().expect("not the root"))?;
        self.names(id)?;
        Ok((id, path.file_name().expect("a name")))
    }

    fn names(&mut self, id: u64) -> io::Result<&mut Names> {
        match self.nodes.get_mut(&id) {
            Some(Node::Dir { live, .. }) => Ok(live),
            _ => Err(os(libc::ENOTDIR)),
        }
    }

    fn file(&mut self, id: u64) -> &mut FileNode {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => file,
            _ => panic!("a handle is for a file"),
        }
    }

    fn edit(&mut self, edits: Vec<NameEdit>) {
        for NameEdit { dir, name, to } in &edits {
            let names = self.names(*dir).expect("checked by the caller");
            match to {
                Some(id) => names.insert(name.clone(), *id),
                None => names.remove(name),
            };
        }
        self.pending.push(edits);
    }

    fn make_durable(&mut self, edits: &[NameEdit]) {
        for NameEdit { dir, name, to } in edits {
            let Some(Node::Dir { durable, .. }) = self.nodes.get_mut(dir) else { continue };
            match to {
                Some(id) => durable.insert(name.clone(), *id),
                None => durable.remove(name),
            };
        }
    }

    /// Makes the chosen pending changes durable, and with them the earlier ones of those names.
    fn commit(&mut self, mut chosen: Vec<bool>) {
        for later in (0..chosen.len()).rev() {
            for earlier in 0..later {
                let touch = self.pending[later].iter().any(|edit| {
                    let same = |other: &NameEdit| other.dir == edit.dir && other.name == edit.name;
                    self.pending[earlier].iter().any(same)
                });
                chosen[earlier] |= chosen[later] && touch;
            }
        }
        for (edits, chosen) in std::mem::take(&mut self.pending).into_iter().zip(chosen) {
            if chosen {
                self.make_durable(&edits);
            } else {
                self.pending.push(edits);
            }
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<u64> {
        let (dir, name) = self.parent(path)?;
        if self.names(dir)?.contains_key(name) {
            return Err(os(libc::EEXIST));
        }
        let id = self.next_id;
        self.next_id += 1;
        self.nodes.insert(id, node);
        self.edit(vec![NameEdit { dir, name: name.to_owned(), to: Some(id) }]);
        Ok(id)
    }

    fn create(&mut self, path: &Path) -> io::Result<u64> {
        let content = Content { bytes: Vec::new(), mode: 0o644 };
        let file = FileNode {
            live: content.clone(),
            durable: content,
            dirty: BTreeSet::new(),
            mtime_ns: self.now_ns,
            ctime_ns: self.now_ns,
        };
        self.add(path, Node::File(file))
    }

    fn mkdir(&mut self, path: &Path) -> io::Result<u64> {
        let (live, durable, mtime_ns) = (Names::new(), Names::new(), self.now_ns);
        self.add(path, Node::Dir { live, durable, mode: 0o755, mtime_ns })
    }

    fn stat(&self, id: u64) -> Stat {
        let common = Stat {
            kind: FileKind::Dir,
            size: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            inode: id,
            links: 1,
            mode: 0,
        };
        match &self.nodes[&id] {
            Node::Dir { mode, mtime_ns, .. } => Stat { mode: *mode, mtime_ns: *mtime_ns, ..common },
            Node::File(file) => Stat {
                kind: FileKind::File,
                size: file.live.bytes.len() as u64,
                mtime_ns: file.mtime_ns,
                ctime_ns: file.ctime_ns,
                mode: file.live.mode,
                ..common
            },
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.find(from)?;
        let ((from_dir, from_name), (to_dir, to_name)) = (self.parent(from)?, self.parent(to)?);
        if let Ok(there) = self.find(to) {
            match (&self.nodes[&id], &self.nodes[&there]) {
                (Node::Dir { .. }, Node::Dir { live, .. }) if live.is_empty() => {}
                (Node::Dir { .. }, Node::Dir { .. }) => return Err(os(libc::ENOTEMPTY)),
                (Node::File(_), Node::File(_)) => {}
                (Node::File(_), Node::Dir { .. }) => return Err(os(libc::EISDIR)),
                (Node::Dir { .. }, Node::File(_)) => return Err(os(libc::ENOTDIR)),
            }
        }
        self.edit(vec![
            NameEdit { dir: from_dir, name: from_name.to_owned(), to: None },
            NameEdit { dir: to_dir, name: to_name.to_owned(), to: Some(id) },
        ]);
        Ok(())
    }

    fn remove(&mut self, path: &Path, want_dir: bool) -> io::Result<()> {
        let id = self.find(path)?;
        match &self.nodes[&id] {
            Node::Dir { live, .. } if want_dir && live.is_empty() => {}
            Node::Dir { .. } if want_dir => return Err(os(libc::ENOTEMPTY)),
            Node::Dir { .. } => return Err(os(libc::EISDIR)),
            Node::File(_) if want_dir => return Err(os(libc::ENOTDIR)),
            Node::File(_) => {}
        }
        let (dir, name) = self.parent(path)?;
        self.edit(vec![NameEdit { dir, name: name.to_owned(), to: None }]);
        Ok(())
    }

    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.find(path)?;
        self.names(dir)?;
        if !(self.deaf_to_sync_dir)(path) {
            let touches = |edits: &Vec<NameEdit>| edits.iter().any(|edit| edit.dir == dir);
            let chosen = self.pending.iter().map(touches).collect();
            self.commit(chosen);
        }
        Ok(())
    }

    fn lose(&mut self, left: Left) {
        let mut chance = Random::new(if let Left::Random(seed) = left { seed } else { 0 });
        let names = |chance: &mut Random| match left {
            Left::Nothing | Left::ContentOnly => false,
            Left::NamesOnly | Left::Everything => true,
            Left::Random(_) => chance.coin(),
        };
        let chosen = self.pending.iter().map(|_| names(&mut chance)).collect();
        self.commit(chosen);
        self.pending.clear();
        for node in self.nodes.values_mut() {
            match node {
                Node::Dir { live, durable, .. } => live.clone_from(durable),
                Node::File(file) => file.lose(left, &mut chance),
            }
        }
        self.locks.clear();
        (self.trouble, self.is_down) = (Trouble::Nothing, false);
        self.now_ns += 60_000_000_000;
        self.boot += 1;
    }

    fn take_lock(&mut self, path: &Path, kind: LockKind) -> Option<u64> {
        let excludes = |other: LockKind| match (kind, other) {
            (LockKind::Shared, LockKind::Shared) => false,
            (LockKind::Byte(a), LockKind::Byte(b)) => a == b,
            _ => true,
        };
        if self.locks.iter().any(|lock| lock.path == path && excludes(lock.kind)) {
            return None;
        }
        self.next_id += 1;
        self.locks.push(Lock { id: self.next_id, path: path.to_owned(), kind });
        Some(self.next_id)
    }
}

impl FileNode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.live.bytes.len() < offset + bytes.len() {
            self.live.bytes.resize(offset + bytes.len(), 0);
        }
        self.live.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.touch(offset, offset + bytes.len());
    }

    fn truncate(&mut self, len: usize) {
        self.live.bytes.resize(len, 0);
        self.dirty.retain(|&block| block * BLOCK_BYTES < len);
        self.touch(len.saturating_sub(1), len);
    }

    fn touch(&mut self, start: usize, end: usize) {
        self.dirty.extend(start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES));
    }

    fn sync(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        self.durable = self.kept(self.live.bytes.len(), |block| dirty.contains(&block));
        self.durable.mode = self.live.mode;
    }

    /// The durable content, cut or filled with zeros to `len`, and over it the chosen blocks.
    fn kept(&self, len: usize, mut is_kept: impl FnMut(usize) -> bool) -> Content {
        let mut bytes = self.durable.bytes.clone();
        bytes.resize(len, 0);
        for block in 0..len.div_ceil(BLOCK_BYTES) {
            let start = block * BLOCK_BYTES;
            let end = (start + BLOCK_BYTES).min(len).min(self.live.bytes.len());
            if start < end && is_kept(block) {
                bytes[start..end].copy_from_slice(&self.live.bytes[start..end]);
            }
        }
        Content { bytes, mode: self.durable.mode }
    }

    fn lose(&mut self, left: Left, chance: &mut Random) {
        let (old, new) = (self.durable.bytes.len(), self.live.bytes.len());
        let dirty = std::mem::take(&mut self.dirty);
        let mut content = match left {
            Left::Nothing => self.durable.clone(),
            Left::NamesOnly => self.kept(new, |_| false),
            Left::ContentOnly | Left::Everything => self.kept(new, |block| dirty.contains(&block)),
            Left::Random(_) => {
                let len = if chance.coin() { new } else { old };
                self.kept(len, |block| dirty.contains(&block) && chance.coin())
            }
        };
        if matches!(left, Left::Everything) || matches!(left, Left::Random(_)) && chance.coin() {
            content.mode = self.live.mode;
        }
        self.durable = content.clone();
        self.live = content;
    }
}

impl Disk for SimDisk {
    fn make_mutable(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.world();
        let there = world.find(path);
        let needs = match (how, &there) {
            (Open::Write | Open::New, Err(_)) => Needs::ChangeAndSpace,
            _ => Needs::Nothing,
        };
        world.step("open", path, needs)?;
        let id = match (how, there) {
            (Open::New, Ok(_)) => return Err(os(libc::EEXIST)),
            (Open::Write | Open::New, Err(_)) => world.create(path)?,
            (_, there) => there?,
        };
        if matches!(world.nodes[&id], Node::Dir { .. }) {
            return Err(os(libc::EISDIR));
        }
        let (world, actor) = (Arc::clone(&self.world), self.actor.clone());
        Ok(Box::new(SimFile { world, actor, id, path: path.to_owned() }))
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        let mut world = self.world();
        world.step("stat", path, Needs::Nothing)?;
        let id = world.find(path)?;
        Ok(world.stat(id))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.lstat(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let mut world = self.world();
        world.step("list", dir, Needs::Nothing)?;
        let id = world.find(dir)?;
        Ok(world.names(id)?.keys().cloned().collect())
    }

    fn mkdir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let needs = if world.find(path).is_ok() { Needs::Nothing } else { Needs::ChangeAndSpace };
        world.step("mkdir", path, needs)?;
        world.mkdir(path).map(drop)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.step("rename to", to, Needs::ChangeAndSpace)?;
        world.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.step("unlink", path, Needs::Change)?;
        world.remove(path, false)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.step("rmdir", path, Needs::Change)?;
        world.remove(path, true)
    }

    fn chmod(&self, path: &Path, mode: u32) -> io::Result<()> {
        let mut world = self.world();
        world.step("chmod", path, Needs::Change)?;
        let (id, now_ns) = (world.find(path)?, world.now_ns);
        match world.nodes.get_mut(&id) {
            Some(Node::Dir { mode: old, .. }) => *old = mode,
            Some(Node::File(file)) => (file.live.mode, file.ctime_ns) = (mode, now_ns),
            None => unreachable!("found above"),
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.step("sync dir", dir, Needs::ChangeAndSpace)?;
        world.sync_dir(dir)
    }

    fn lock(&self, path: &Path, kind: LockKind, wait: Wait) -> io::Result<Option<LockGuard>> {
        loop {
            let mut world = self.world();
            let there = world.find(path);
            let needs = if there.is_ok() { Needs::Nothing } else { Needs::ChangeAndSpace };
            world.step("lock", path, needs)?;
            if there.is_err() {
                world.create(path)?;
            }
            let taken = world.take_lock(path, kind);
            drop(world);
            if taken.is_some() || wait == Wait::No {
                let held =
                    |id| Box::new(SimLock { world: Arc::clone(&self.world), id }) as LockGuard;
                return Ok(taken.map(held));
            }
            let (turns, actor) = self.actor.as_ref().expect("an actor alone waits for itself");
            turns.give_way(*actor);
        }
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.step("touch", path, Needs::Change)?;
        let (id, now_ns) = (world.find(path)?, world.now_ns);
        match world.nodes.get_mut(&id) {
            Some(Node::Dir { mtime_ns, .. }) => *mtime_ns = now_ns,
            Some(Node::File(file)) => (file.mtime_ns, file.ctime_ns) = (now_ns, now_ns),
            None => unreachable!("found above"),
        }
        Ok(())
    }

    fn volume(&self, path: &Path) -> io::Result<Volume> {
        let mut world = self.world();
        world.step("statfs", path, Needs::Nothing)?;
        let free_bytes = if world.is_full() { 0 } else { world.free_bytes };
        Ok(Volume { free_bytes, is_memory: false })
    }

    fn unfit(&self, path: &Path) -> io::Result<Option<(&'static str, &'static str)>> {
        self.world().step("statfs", path, Needs::Nothing)?;
        Ok(None)
    }

    fn moment(&self) -> Moment {
        let world = self.world();
        Moment { now_ns: world.now_ns, boot: world.boot.to_string() }
    }
}

struct SimFile {
    world: Arc<Mutex<World>>,
    actor: Option<(Arc<TurnScheduler>, usize)>,
    id: u64,
    path: PathBuf,
}

impl SimFile {
    fn world(&self) -> MutexGuard<'_, World> {
        take_turn(self.actor.as_ref());
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut FileNode)) {
        let mut world = self.world();
        let now_ns = world.now_ns;
        let file = world.file(self.id);
        (file.mtime_ns, file.ctime_ns) = (now_ns, now_ns);
        change(file);
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut world = self.world();
        let is_short = world.step("read", &self.path, Needs::Nothing)?;
        let bytes = &world.file(self.id).live.bytes;
        let start = (offset as usize).min(bytes.len());
        let whole = buffer.len().min(bytes.len() - start);
        // Nothing would be the end of the file.
        let count = if is_short { whole.div_ceil(2) } else { whole };
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let is_short = self.world().step("write", &self.path, Needs::Write)?;
        let count = if is_short { bytes.len() / 2 } else { bytes.len() };
        self.change(|file| file.write(offset as usize, &bytes[..count]));
        Ok(count)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.world().step("truncate", &self.path, Needs::Change)?;
        self.change(|file| file.truncate(len as usize));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world();
        if let Err(error) = world.step("sync", &self.path, Needs::ChangeAndSpace) {
            if !world.is_down {
                // The pages count as clean from now on, though nothing was written.
                world.file(self.id).dirty.clear();
            }
            return Err(error);
        }
        if !(world.deaf_to_sync)(&self.path) {
            world.file(self.id).sync();
        }
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let mut world = self.world();
        world.step("stat of", &self.path, Needs::Nothing)?;
        Ok(world.stat(self.id))
    }
}

struct SimLock {
    world: Arc<Mutex<World>>,
    id: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.locks.retain(|lock| lock.id != self.id);
    }
}
