//! Keeps an answer together with what proves that it still holds: how files looked.
//!
//! An answer is recalled if the action log and every file it is based on look as they did, in the
//! same boot.  Then nothing that was looked up would be found otherwise, and nothing need be looked
//! up.  A memo may be lost at any time; what the answer says is for the caller to know.

use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::disk::{
    DiskError, FileKind, Open, Stat, fault, make_dir, present, read_small, write_all,
};
use crate::layout::names;
use crate::manifest::Manifest;
use crate::stat_cache::{Owner, TICK_NS};
use crate::store::{Store, StoreError};
use crate::walk::{Links, inside, walk};

/// About 150 bytes a file: a graph of a hundred thousand stages.
const MEMO_BYTES_MAX: usize = 32 << 20;
/// A key has some 600 bytes of parts: again a graph of a hundred thousand stages.
const NOTE_BYTES_MAX: usize = 64 << 20;
/// Each pipeline, with each of its `--set`, has one; those not written for the longest go first.
const MEMOS_MAX: usize = 32;
/// Followed by the SHA-256 of the rest.
const MAGIC: &[u8] = b"smelt memo 1\n";

/// What an answer is based on.
pub enum Basis<'a> {
    /// A tree in the store.
    Sealed(&'a Digest, &'a Manifest),
    /// A file or a tree outside of it, with the files it had.
    Outside(&'a Path, &'a Manifest),
}

/// How the action log looked before anything was looked up in it.
pub struct Before(Looks);

impl Store {
    /// Begins a memo: what is looked up from now on may be its basis.
    pub fn before(&self) -> Result<Before, StoreError> {
        let log = self.layout().action_log();
        let stat = self.disk().stat(&log).map_err(fault("look at", &log))?;
        Ok(Before(Looks::of(&stat)))
    }

    /// Keeps `answer` under `name` until one of `basis` changes.  Says whether it did: a file that
    /// was written just now could change again without looking otherwise, and is no basis.
    pub fn keep_answer(
        &self,
        name: &Digest,
        before: &Before,
        basis: &[Basis<'_>],
        answer: &[u8],
    ) -> Result<bool, StoreError> {
        self.refuse_read_only("keep a memo")?;
        let Some(Writer(mut text)) = self.proof(basis)? else { return Ok(false) };
        text.extend_from_slice(&before.0.0);
        text.extend_from_slice(answer);
        self.keep(&self.layout().memos(), name, MEMO_BYTES_MAX, &text)
    }

    /// Keeps a note until the next one of that name.  It may be lost at any time: notes not written
    /// for the longest go first.  Says whether it was small enough.
    pub fn keep_note(&self, name: &Digest, text: &[u8]) -> Result<bool, StoreError> {
        self.refuse_read_only("keep a note")?;
        self.keep(&self.layout().notes(), name, NOTE_BYTES_MAX, text)
    }

    /// The note of that name, if there is one.
    pub fn note(&self, name: &Digest) -> Option<Vec<u8>> {
        self.kept(&self.layout().notes(), name, NOTE_BYTES_MAX)
    }

    fn keep(
        &self,
        dir: &Path,
        name: &Digest,
        bytes_max: usize,
        text: &[u8],
    ) -> Result<bool, StoreError> {
        if text.len() > bytes_max {
            return Ok(false);
        }
        make_dir(self.disk(), dir)?;
        self.make_room(dir, name)?;
        let (path, draft) = (dir.join(name.to_string()), dir.join(format!("{name}.new")));
        let file = self.disk().open(&draft, Open::Write).map_err(fault("open", &draft))?;
        file.truncate(0).map_err(fault("empty", &draft))?;
        let head = [MAGIC, Digest::of(text).as_bytes()].concat();
        write_all(file.as_ref(), &draft, 0, &head)?;
        write_all(file.as_ref(), &draft, head.len() as u64, text)?;
        self.disk().rename(&draft, &path).map_err(fault("put in place", &path))?;
        Ok(true)
    }

    /// What [`Store::keep`] has kept, whole or not at all.
    fn kept(&self, dir: &Path, name: &Digest, bytes_max: usize) -> Option<Vec<u8>> {
        let path = dir.join(name.to_string());
        let mut bytes = read_small(self.disk(), &path, bytes_max as u64 + 64).ok()??;
        let (digest, text) = bytes.strip_prefix(MAGIC)?.split_at_checked(32)?;
        let is_whole = Digest::of(text).as_bytes() == digest;
        bytes.drain(..MAGIC.len() + 32);
        is_whole.then_some(bytes)
    }

    /// The answer kept under `name`, if all it is based on looks as it did.
    pub fn recall(&self, name: &Digest) -> Option<Vec<u8>> {
        let text = self.kept(&self.layout().memos(), name, MEMO_BYTES_MAX)?;
        let mut reader = Reader(&text);
        let boot = reader.bytes()?;
        let holds = boot == self.disk().moment().boot.as_bytes()
            && self.facts_hold(&mut reader)?
            && reader.looks()? == Looks::of(&self.disk().stat(&self.layout().action_log()).ok()?);
        holds.then(|| reader.0.to_vec())
    }

    /// Whether every file looks as it did; `None` where the memo makes no sense.
    fn facts_hold(&self, reader: &mut Reader<'_>) -> Option<bool> {
        let out = self.layout().out();
        for _ in 0..reader.number()? {
            let tree = out.join(Digest::from_bytes(*reader.take()?).to_string());
            for _ in 0..reader.number()? {
                let file = tree.join(reader.path()?);
                let looks = reader.looks()?;
                if self.disk().lstat(&file).ok().map(|stat| Looks::of(&stat)) != Some(looks) {
                    return Some(false);
                }
            }
        }
        for _ in 0..reader.number()? {
            let path = PathBuf::from(reader.path()?);
            let looks = reader.looks()?;
            if self.disk().stat(&path).ok().map(|stat| Looks::of(&stat)) != Some(looks) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// How all of `basis` looks; `None` if that proves nothing.
    fn proof(&self, basis: &[Basis<'_>]) -> Result<Option<Writer>, StoreError> {
        let sealed = basis.iter().filter_map(|basis| match basis {
            Basis::Sealed(tree, files) => Some((*tree, *files)),
            Basis::Outside(..) => None,
        });
        let sealed: Vec<_> = sealed.collect();
        let mut writer = Writer(Vec::new());
        writer.bytes(self.disk().moment().boot.as_bytes());
        writer.number(sealed.len());
        for (tree, files) in sealed {
            writer.0.extend_from_slice(tree.as_bytes());
            writer.number(files.files().len());
            for file in files.files() {
                let path = self.layout().tree(tree).join(&file.path);
                let stat = self.disk().lstat(&path).map_err(fault("look at", &path))?;
                if self.digester().known(&path, &stat, Owner::Store) != Some(file.sha256) {
                    return Ok(None);
                }
                writer.bytes(file.path.as_bytes());
                writer.looks(&stat);
            }
        }
        let mut outside = Vec::new();
        for basis in basis {
            let Basis::Outside(root, files) = basis else { continue };
            let Some(found) = self.looks_outside(root, files)? else { return Ok(None) };
            outside.extend(found);
        }
        writer.number(outside.len());
        for (path, stat) in outside {
            let Some(text) = path.to_str() else { return Ok(None) };
            writer.bytes(text.as_bytes());
            writer.looks(&stat);
        }
        Ok(Some(writer))
    }

    /// Every file of a tree, and every directory, whose time says whether names came or went.
    fn looks_outside(
        &self,
        root: &Path,
        files: &Manifest,
    ) -> Result<Option<Vec<(PathBuf, Stat)>>, StoreError> {
        let now_ns = self.disk().moment().now_ns;
        let is_settled =
            |stat: &Stat| now_ns.saturating_sub(stat.mtime_ns.max(stat.ctime_ns)) > TICK_NS;
        let own = self.disk().stat(root).map_err(fault("look at", root))?;
        let is_dir = own.kind == FileKind::Dir;
        let mut found = vec![(root.to_owned(), own)];
        if is_dir {
            let Ok(tree) = walk(self.disk(), root, Links::FollowToFiles) else { return Ok(None) };
            for dir in tree.dirs.iter().filter(|dir| !dir.as_os_str().is_empty()) {
                let path = inside(root, dir);
                let stat = self.disk().stat(&path).map_err(fault("look at", &path))?;
                found.push((path, stat));
            }
            if tree.files.len() != files.files().len() {
                return Ok(None);
            }
            found.extend(tree.files.into_iter().map(|file| (root.join(file.path), file.stat)));
        }
        let digest_of = |path: &Path| {
            let inner =
                if is_dir { path.strip_prefix(root).ok()? } else { Path::new(path.file_name()?) };
            let inner = inner.to_str()?;
            let at = files.files().binary_search_by(|file| file.path.as_str().cmp(inner)).ok()?;
            Some(files.files()[at].sha256)
        };
        let is_proof = |(path, stat): &(PathBuf, Stat)| match stat.kind {
            FileKind::Dir => is_settled(stat),
            _ => {
                let known = self.digester().known(path, stat, Owner::User);
                known.is_some() && known == digest_of(path)
            }
        };
        Ok(found.iter().all(is_proof).then_some(found))
    }

    /// Removes the memos that were not written for the longest, and drafts.
    fn make_room(&self, dir: &Path, name: &Digest) -> Result<(), DiskError> {
        let own = name.to_string();
        let mut others = Vec::new();
        for other in names(self.disk(), dir)?.into_iter().filter(|other| *other != own) {
            let path = dir.join(&other);
            let stat = present(self.disk().lstat(&path)).map_err(fault("look at", &path))?;
            others.extend(stat.map(|stat| (stat.mtime_ns, path)));
        }
        others.sort();
        let surplus = (others.len() + 1).saturating_sub(MEMOS_MAX);
        for (_, path) in others.into_iter().take(surplus) {
            present(self.disk().unlink(&path)).map_err(fault("remove", &path))?;
        }
        Ok(())
    }
}

/// How a file looks: what changes with its content, and cannot be set.
#[derive(PartialEq, Eq)]
struct Looks([u8; 33]);

impl Looks {
    fn of(stat: &Stat) -> Self {
        let mut bytes = [0; 33];
        bytes[0] = match stat.kind {
            FileKind::File => 0,
            FileKind::Dir => 1,
            FileKind::Link => 2,
            FileKind::Other => 3,
        };
        // A directory's size says nothing that its times do not.
        let size = if stat.kind == FileKind::Dir { 0 } else { stat.size };
        bytes[1..9].copy_from_slice(&size.to_le_bytes());
        bytes[9..17].copy_from_slice(&stat.mtime_ns.to_le_bytes());
        bytes[17..25].copy_from_slice(&stat.ctime_ns.to_le_bytes());
        bytes[25..33].copy_from_slice(&stat.inode.to_le_bytes());
        Self(bytes)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&(number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn looks(&mut self, stat: &Stat) {
        self.0.extend_from_slice(&Looks::of(stat).0);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    fn path(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    fn looks(&mut self) -> Option<Looks> {
        self.take().map(|bytes| Looks(*bytes))
    }
}
