//! Seals outputs that come from elsewhere, by a bundle or a delivery: judged, with room for them, under their keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
#[cfg(feature = "build")]
use std::thread;
use std::time::SystemTime;
#[cfg(feature = "build")]
use std::time::{Duration, Instant};

use serde_json::Value;
use smelt_fleet::trust::Trust;
use smelt_store::bundle::{BundledKey, BundledOutput};
use smelt_store::{Digest, Holder, KeyLock, Lookup, SealError, Store, Wait};

use super::vouched::{self, doubt};
use crate::config;
use crate::exit::{Exit, Failed};
use crate::leftovers::clear_dead;
use crate::load;
use crate::table::bytes;

/// What is left free beside what comes: records and the journals of others.
const RESERVE_BYTES: u64 = 64 << 20;

/// How long another one may take that writes the same: gigabytes over a slow line.
#[cfg(feature = "build")]
const PATIENCE: Duration = Duration::from_secs(600);
#[cfg(feature = "build")]
const TICK: Duration = Duration::from_millis(200);

/// Where files are written before they are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draft {
    /// In a new folder each time.
    New,
    /// In the folder of the key, where an earlier call may have left some.
    Kept,
}

/// Writes the files of one of the outputs into a folder; of one that is there it hears without a folder.
type Fill<'a> = dyn FnMut(usize, Option<&Path>) -> Result<(), Failed> + 'a;

/// The store that outputs come into.
pub(crate) fn store() -> Result<Store, Failed> {
    let store = Store::open(&load::root()?, Wait::Yes)?;
    clear_dead(&store)?;
    Ok(store)
}

/// Outputs that come.
pub(crate) struct Incoming<'a> {
    store: &'a Store,
    holder: Holder,
    outputs: &'a [BundledOutput],
    /// What is written into every record.
    mark: &'a dyn Fn(&mut Value),
    trust: &'a Trust,
    /// Of keys whose drafts are being written.
    locks: RefCell<BTreeMap<Digest, KeyLock>>,
}

impl<'a> Incoming<'a> {
    /// Outputs, each behind those that it refers to, if they are vouched for as far as they say who does.
    pub(crate) fn begin(
        store: &'a Store,
        outputs: &'a [BundledOutput],
        mark: &'a dyn Fn(&mut Value),
        trust: &'a Trust,
    ) -> Result<Self, Failed> {
        check_vouched(outputs, mark, trust)?;
        let holder = store.begin_hold(SystemTime::now())?;
        let keys = outputs.iter().flat_map(|output| &output.keys);
        holder.hold(&keys.map(|key| key.key).collect::<Vec<_>>())?;
        Ok(Self { store, holder, outputs, mark, trust, locks: RefCell::default() })
    }

    /// Refuses outputs for which the disk has no room: `verb` says what is to be done with them, and so many bytes are there.
    pub(crate) fn has_room(&self, verb: &str, there: u64) -> Result<(), Failed> {
        let missing = self.outputs.iter().filter(|output| !self.is_sealed(output));
        let needed = missing.map(|output| output.files.bytes()).fold(0, u64::saturating_add);
        let needed = needed.saturating_sub(there);
        let free = self.store.free_bytes()?;
        if needed == 0 || needed.saturating_add(RESERVE_BYTES) <= free {
            return Ok(());
        }
        let message = format!(
            "{} are to be {verb} and the store's disk has {} free: smelt cache gc, or SMELT_CACHE on a larger disk",
            bytes(needed),
            bytes(free)
        );
        Err(Failed::new(Exit::DoesNotFit, message))
    }

    /// What an earlier call has left of those that are missing.
    pub(crate) fn kept_bytes(&self) -> Result<u64, Failed> {
        let missing = self.outputs.iter().filter(|output| !self.is_sealed(output));
        let left = missing.flat_map(|output| output.keys.first()).map(|key| {
            let folder = self.store.pull_dir(&key.key)?;
            Ok(self.store.bytes_below(&folder)?)
        });
        left.sum()
    }

    /// The outputs.
    #[cfg(feature = "build")]
    pub(crate) fn outputs(&self) -> &'a [BundledOutput] {
        self.outputs
    }

    /// The number of each that is missing, and the folder of its key, where an earlier call may have left some of it.
    #[cfg(feature = "build")]
    pub(crate) fn drafts(&self) -> Result<Vec<(usize, PathBuf)>, Failed> {
        let missing = self.outputs.iter().enumerate().filter(|(_, it)| !self.is_sealed(it));
        let draft = |(number, output): (usize, &BundledOutput)| {
            let key = output.keys.first().expect("it was checked that each has one");
            self.lock_with_patience(&key.key, output)?;
            Ok((number, self.store.pull_dir(&key.key)?))
        };
        // Another one may have sealed it while it was waited for.
        let drafts: Result<Vec<_>, Failed> = missing.map(draft).collect();
        let is_missing = |(number, _): &(usize, PathBuf)| !self.is_sealed(&self.outputs[*number]);
        Ok(drafts?.into_iter().filter(is_missing).collect())
    }

    /// Locks a key that somebody else may be writing under, as when two hosts send the same.
    #[cfg(feature = "build")]
    fn lock_with_patience(&self, key: &Digest, output: &BundledOutput) -> Result<(), Failed> {
        let begin = Instant::now();
        loop {
            match self.lock(key, output) {
                Err(failed) if failed.exit == Exit::Held && begin.elapsed() < PATIENCE => {
                    thread::sleep(TICK);
                }
                locked => return locked,
            }
        }
    }

    /// Where the very same files are, if another key leads to them.
    #[cfg(feature = "build")]
    pub(crate) fn known_by_another_key(&self, number: usize) -> Option<PathBuf> {
        let tree = self.outputs[number].tree;
        let inventory = self.store.inventory().ok()?;
        let item = inventory.outputs.iter().find(|item| item.tree == tree)?;
        let found = item.keys.iter().find_map(|key| self.store.lookup(key).ok()?.hit())?;
        (found.digest == tree).then(|| self.store.root().join("out").join(tree.to_string()))
    }

    /// Seals every output under its keys.
    pub(crate) fn seal(&self, draft: Draft, fill: &mut Fill<'_>) -> Result<Vec<PathBuf>, Failed> {
        let seal = |number| self.seal_one(number, draft, fill);
        let places = (0..self.outputs.len()).map(seal).collect::<Result<_, _>>()?;
        self.store.sync()?;
        self.locks.borrow_mut().clear();
        Ok(places)
    }

    /// Whether every key of an output leads to it.
    fn is_sealed(&self, output: &BundledOutput) -> bool {
        output.keys.iter().all(|key| self.leads(key, output))
    }

    /// Whether a key leads to an output, and what is known of that here does not speak against it.
    fn leads(&self, key: &BundledKey, output: &BundledOutput) -> bool {
        let found = self.store.lookup(&key.key).ok().and_then(Lookup::hit);
        found.is_some_and(|found| {
            found.digest == output.tree && doubt(&found.digest, &found.record, self.trust).is_none()
        })
    }

    /// Locks a key until all are sealed, unless that was done.
    fn lock(&self, key: &Digest, output: &BundledOutput) -> Result<(), Failed> {
        let mut locks = self.locks.borrow_mut();
        if !locks.contains_key(key) {
            let held = || {
                let name = output.tree.short();
                Failed::new(Exit::Held, format!("another run builds output {name} just now"))
            };
            locks.insert(*key, self.store.try_lock_key(key)?.ok_or_else(held)?);
        }
        Ok(())
    }

    fn seal_one(
        &self,
        number: usize,
        draft: Draft,
        fill: &mut Fill<'_>,
    ) -> Result<PathBuf, Failed> {
        let (store, output) = (self.store, &self.outputs[number]);
        for key in &output.keys {
            if self.leads(key, output) {
                fill(number, None)?;
            } else {
                self.lock(&key.key, output)?;
                let folder = match draft {
                    Draft::New => self.holder.work_dir(&output.tree.short())?,
                    Draft::Kept => store.pull_dir(&key.key)?,
                };
                fill(number, Some(&folder))?;
                let mut record = key.record();
                (self.mark)(&mut record);
                if vouched::is_of_others(&record) {
                    store.begin_pulls()?;
                }
                let kept = (record, output.refers.as_slice());
                let sealed = store.seal_fetched(&key.key, &folder, kept, &output.tree);
                sealed.map_err(|error| {
                    if let SealError::Other { .. } = error {
                        // Else it would be gone on with.
                        let _ = std::fs::remove_dir_all(&folder);
                    }
                    Failed::new(Exit::StageFailed, error)
                })?;
            }
            key.recipes.iter().try_for_each(|recipe| store.alias_later(recipe, &key.key))?;
        }
        Ok(store.root().join("out").join(output.tree.to_string()))
    }
}

/// Refuses outputs that say who vouches for them where nobody does who is believed here.
pub(crate) fn check_vouched(
    outputs: &[BundledOutput],
    mark: &dyn Fn(&mut Value),
    trust: &Trust,
) -> Result<(), Failed> {
    for output in outputs {
        for key in &output.keys {
            let mut record = key.record();
            mark(&mut record);
            if let Some(why) = doubt(&output.tree, &record, trust) {
                let stage = record["stage"].as_str().unwrap_or("-");
                let file = super::trust_file(config::trust().as_deref())?;
                let message = format!(
                    "output {} of stage {stage} is not taken: {why} ({})",
                    output.tree.short(),
                    file.display()
                );
                return Err(Failed::new(Exit::StageFailed, message));
            }
        }
    }
    Ok(())
}
