//! Checks a whole store, and repairs it.
//!
//! Every byte of every sealed output is read.  What is damaged goes to the quarantine; what the
//! action log has lost is found in it behind the damage, and in the copies of its records in
//! `seals/`.  Repairing needs the store alone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use crate::actions::Entry;
use crate::collect::When;
use crate::digest::Digest;
use crate::digester::{AndSync, DigestError};
use crate::disk::{DiskError, LockKind, Wait, fault, present, remove_tree};
use crate::layout::names;
use crate::log::is_damaged;
use crate::manifest::{FileEntry, Manifest};
use crate::output::Damage;
use crate::store::{Store, StoreError};
use crate::verify::{Memo, Verdict};
use crate::walk::{Links, walk};

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkup {
    /// Sealed outputs that are whole.
    pub trees: usize,
    /// Their bytes, all of which were read.
    pub bytes: u64,
    /// Outputs that are not what was sealed; they are in the quarantine now.
    pub damaged: Vec<Damage>,
    /// What was put into `out/` by somebody else; it is in the quarantine now.
    pub strays: usize,
    /// Whole outputs to which no key leads: a crash came before their record.
    pub nameless: usize,
    /// Keys whose output was removed: they are built again.
    pub gone: usize,
    /// Whether the action log has lines that are no records.
    pub log_is_damaged: bool,
    /// Keys that the action log has lost, though their outputs are whole.
    pub lost: usize,
    /// Files in `roots/` and `runs/` that cannot be read; until they are, nothing is collected.
    pub bad_roots: Vec<PathBuf>,
    /// Files and directories whose modes a repair has set back.
    pub mended: usize,
}

impl Checkup {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        let Self { damaged, log_is_damaged, lost, bad_roots, .. } = self;
        damaged.is_empty() && !log_is_damaged && *lost == 0 && bad_roots.is_empty()
    }
}

impl Store {
    /// Reads everything and moves damage to the quarantine; beside running builds.
    pub fn check(&self) -> Result<Checkup, StoreError> {
        self.refuse_read_only("check")?;
        Ok(self.examine()?.0)
    }

    /// Checks, makes the action log anew from what it still says and what lies beside the outputs,
    /// sets modes back, and clears away what cannot be read.  The store must be open for this process alone.
    pub fn repair(&self) -> Result<Checkup, StoreError> {
        self.refuse_shared("repair")?;
        let mended = self.mended() + self.mend_sealed()?;
        let (checkup, lost) = self.examine()?;
        let checkup = Checkup { mended, ..checkup };
        let is_damaged = checkup.log_is_damaged || !lost.is_empty();
        self.rewrite_log(&lost, if is_damaged { When::Always } else { When::IfShorter })?;
        for path in &checkup.bad_roots {
            remove_tree(self.disk(), path)?;
        }
        self.relay_seals()?;
        self.empty_trash()?;
        self.digester().save();
        Ok(checkup)
    }

    fn examine(&self) -> Result<(Checkup, Vec<Entry>), StoreError> {
        let mut checkup = Checkup { bad_roots: self.sure_bad_roots()?, ..Checkup::default() };
        let mut known: HashMap<Digest, Manifest> = HashMap::new();
        let mut keys: HashMap<Digest, Digest> = HashMap::new();
        let mut salvaged: BTreeMap<Digest, Entry> = BTreeMap::new();
        self.actions().each_output(&mut |entry| {
            if let Entry::Seal { key, tree, files, .. } = entry {
                keys.insert(key, tree);
                known.insert(tree, files);
            }
        })?;
        checkup.log_is_damaged = self.is_log_damaged()?;
        for name in names(self.disk(), &self.layout().seals())? {
            let Ok(key) = name.parse::<Digest>() else { continue };
            if let Some(entry) = self.read_seal(&key)?.filter(Entry::is_whole) {
                salvaged.insert(key, entry);
            }
        }
        // What the log says itself needs no saving.
        salvaged.retain(|key, _| !keys.contains_key(key));
        for entry in salvaged.values() {
            if let Entry::Seal { tree, files, .. } = entry {
                known.entry(*tree).or_insert_with(|| files.clone());
            }
        }
        let whole = self.examine_trees(&known, &mut checkup)?;
        salvaged.retain(|_, entry| entry.tree().is_some_and(|tree| whole.contains(tree)));
        self.leave_out_news(&mut salvaged)?;
        checkup.lost = salvaged.len();
        checkup.gone = keys.values().filter(|tree| !whole.contains(*tree)).count();
        Ok((checkup, salvaged.into_values().collect()))
    }

    /// Lists that cannot be read while nobody changes them.  What looks bad beside others may be one that
    /// is just replaced or removed.
    fn sure_bad_roots(&self) -> Result<Vec<PathBuf>, StoreError> {
        if self.bad_roots()?.is_empty() {
            return Ok(Vec::new());
        }
        let _alone = self.lock_roots_alone()?;
        self.bad_roots()
    }

    /// Whether the action log has lines that are no records, as it stands while nobody writes to it.
    fn is_log_damaged(&self) -> Result<bool, StoreError> {
        let path = self.layout().action_log();
        if !is_damaged(self.disk(), &path)? {
            return Ok(false);
        }
        // In the order in which whoever seals takes them.
        let _alone = self.lock_roots_alone()?;
        let lock = self.disk().lock(&path, LockKind::Exclusive, Wait::Briefly);
        let _held = lock.map_err(fault("lock", &path))?;
        Ok(is_damaged(self.disk(), &path)?)
    }

    /// Leaves out what was sealed or collected since the log was read: its copy or its record is there, or
    /// neither.  Each is looked at while nothing can be removed.
    fn leave_out_news(&self, lost: &mut BTreeMap<Digest, Entry>) -> Result<(), StoreError> {
        if lost.is_empty() {
            return Ok(());
        }
        let _alone = self.lock_roots_alone()?;
        self.actions().each_output(&mut |entry| {
            if let Entry::Seal { key, .. } = entry {
                lost.remove(&key);
            }
        })?;
        let mut left = BTreeMap::new();
        for (key, entry) in std::mem::take(lost) {
            let path = entry.tree().map(|tree| self.layout().tree(tree));
            let is_there = match &path {
                Some(path) => {
                    present(self.disk().lstat(path)).map_err(fault("look at", path))?.is_some()
                }
                None => false,
            };
            if is_there && self.read_seal(&key)?.is_some() {
                left.insert(key, entry);
            }
        }
        *lost = left;
        Ok(())
    }

    /// Verifies everything in `out/`; the trees that are whole.
    fn examine_trees(
        &self,
        known: &HashMap<Digest, Manifest>,
        checkup: &mut Checkup,
    ) -> Result<HashSet<Digest>, StoreError> {
        let mut whole = HashSet::new();
        for name in names(self.disk(), &self.layout().out())? {
            let Ok(tree) = name.parse::<Digest>() else {
                self.quarantine_stranger(&name)?;
                checkup.strays += 1;
                continue;
            };
            let verdict = match known.get(&tree) {
                Some(manifest) => self.verify_tree(&tree, manifest, Memo::Ignored)?,
                None => self.verify_nameless(&tree)?,
            };
            match verdict {
                Verdict::Missing => {}
                Verdict::Whole { strays, .. } => {
                    self.move_strays(&tree, &strays)?;
                    checkup.strays += strays.len();
                    checkup.trees += 1;
                    checkup.nameless += usize::from(!known.contains_key(&tree));
                    checkup.bytes += known.get(&tree).map_or(0, Manifest::bytes);
                    whole.insert(tree);
                }
                Verdict::Damaged(what) => {
                    let moved_to = match known.get(&tree) {
                        Some(manifest) => self.give_up(&tree, manifest, Memo::Ignored)?,
                        None => self.give_up_nameless(&tree)?,
                    };
                    // Else it was collected under our eyes, and perhaps sealed anew.
                    if moved_to.is_some() {
                        checkup.damaged.push(Damage { digest: tree, what, moved_to });
                    }
                }
            }
        }
        Ok(whole)
    }

    /// Moves a tree without a record away that is still damaged when nobody can be at it.
    fn give_up_nameless(&self, tree: &Digest) -> Result<Option<PathBuf>, StoreError> {
        let _alone = self.lock_roots_alone()?;
        match self.verify_nameless(tree)? {
            Verdict::Damaged(_) => Ok(Some(self.quarantine(tree)?)),
            Verdict::Missing | Verdict::Whole { .. } => Ok(None),
        }
    }

    /// A tree without a record is whole if it is what its name says.
    fn verify_nameless(&self, tree: &Digest) -> Result<Verdict, StoreError> {
        let dir = self.layout().tree(tree);
        let Some(stat) = present(self.disk().lstat(&dir)).map_err(fault("look at", &dir))? else {
            return Ok(Verdict::Missing);
        };
        match self.manifest_of(tree) {
            Ok(manifest) if manifest.digest() == *tree => {
                Ok(Verdict::Whole { strays: Vec::new(), used_ns: stat.mtime_ns })
            }
            Ok(_) => Ok(Verdict::Damaged("it is not what its name says".to_owned())),
            Err(DigestError::Disk(error)) if error.is_stopped() => Err(error.into()),
            Err(error) => Ok(Verdict::Damaged(error.to_string())),
        }
    }

    fn manifest_of(&self, tree: &Digest) -> Result<Manifest, DigestError> {
        let dir = self.layout().tree(tree);
        let found = walk(self.disk(), &dir, Links::Keep)?.files;
        let entry = |found: &crate::walk::WalkEntry| {
            let path = dir.join(&found.path);
            let sha256 = self.digester().hash(&path, &found.stat, AndSync::No)?;
            let Some(name) = found.path.to_str() else {
                return Err(DigestError::NotUtf8 { path });
            };
            let executable = found.stat.is_executable();
            Ok(FileEntry { path: name.to_owned(), size: found.stat.size, sha256, executable })
        };
        let entries = found.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        Manifest::new(entries).map_err(|source| DigestError::Manifest { path: dir, source })
    }

    fn quarantine_stranger(&self, name: &str) -> Result<(), DiskError> {
        let from = self.layout().out().join(name);
        let to = self.layout().quarantine().join(format!("{name}.stray"));
        remove_tree(self.disk(), &to)?;
        present(self.disk().rename(&from, &to)).map_err(fault("move away", &from))?;
        Ok(())
    }

    /// Makes the copies in `seals/` those of the records in the log.
    fn relay_seals(&self) -> Result<(), StoreError> {
        let mut live: HashMap<Digest, Entry> = HashMap::new();
        self.actions().each_output(&mut |entry| {
            if let Entry::Seal { key, .. } = &entry {
                live.insert(*key, entry);
            }
        })?;
        let seals = self.layout().seals();
        for name in names(self.disk(), &seals)? {
            let is_live = name.parse().is_ok_and(|key: Digest| live.contains_key(&key));
            if !is_live {
                remove_tree(self.disk(), &seals.join(name))?;
            }
        }
        for (key, entry) in &live {
            if self.read_seal(key)?.as_ref() != Some(entry) {
                self.lay_seal(key, entry);
            }
        }
        Ok(())
    }
}
