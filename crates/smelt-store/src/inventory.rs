//! Says what a store holds: outputs, runs, what was found damaged, and how large each is.
//!
//! The facts a collection decides by, and what `du` and `ls` print.  Changes nothing, and judges
//! nothing but what is held by a list in `roots/`.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use crate::actions::{Entry, Version};
use crate::collect::Limits;
use crate::digest::Digest;
use crate::disk::{Disk, DiskError, FileKind, fault, present};
use crate::layout::names;
use crate::roots::{Roots, Spare};
use crate::run::RunId;
use crate::store::{Store, StoreError};

/// Everything in a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The sealed outputs, by digest.
    pub outputs: Vec<OutputItem>,
    /// Runs with a journal or logs, oldest first.
    pub runs: Vec<RunItem>,
    /// What was moved to the quarantine.
    pub quarantined: Vec<QuarantinedItem>,
    /// Directories of running stages, and what dead runs left.
    pub work_bytes: u64,
    /// The action log, its copies, lists and caches.
    pub index_bytes: u64,
    /// The time of the facts, in nanoseconds of the Unix era.
    pub now_ns: i64,
}

/// One sealed output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputItem {
    /// Its name in `out/`.
    pub tree: Digest,
    /// The sum of its files' sizes.
    pub bytes: u64,
    /// When it was used last, in nanoseconds of the Unix era, to about a day.
    pub used_ns: i64,
    /// Whether a list in `roots/` leads to it.
    pub is_held: bool,
    /// The keys that lead to it; none if a crash came before its record.
    pub keys: Vec<Digest>,
    /// Other outputs that it names, and is nothing without.
    pub refers: Vec<Digest>,
    /// What was given when it was sealed last.
    pub record: Value,
}

/// The journal and the logs of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunItem {
    /// Which run.
    pub id: RunId,
    /// Journal and logs together.
    pub bytes: u64,
    /// When its journal was written last, in nanoseconds of the Unix era.
    pub used_ns: i64,
    /// Whether it lives, or is the last good run of a pipeline.
    pub is_held: bool,
}

/// One thing in the quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedItem {
    /// Its name there.
    pub name: String,
    /// The sum of its files' sizes.
    pub bytes: u64,
    /// Since when it has been what it is, in nanoseconds of the Unix era.
    pub used_ns: i64,
}

impl Inventory {
    /// Everything together.
    pub fn bytes(&self) -> u64 {
        let outputs = self.outputs.iter().map(|output| output.bytes);
        let runs = self.runs.iter().map(|run| run.bytes);
        let quarantined = self.quarantined.iter().map(|item| item.bytes);
        let listed: u64 = outputs.chain(runs).chain(quarantined).sum();
        listed + self.work_bytes + self.index_bytes
    }
}

/// What leads to the trees, as of one moment.
#[derive(Default)]
pub(crate) struct Links {
    /// When that was: where the log and the lists stood.
    pub(crate) version: (Version, Roots),
    /// Which lists count.
    spare: Spare,
    by_tree: HashMap<Digest, Link>,
    held: HashSet<Digest>,
}

#[derive(Default)]
struct Link {
    keys: Vec<Digest>,
    refers: Vec<Digest>,
    record: Value,
}

impl Links {
    /// Which lists count.
    pub(crate) fn spare(&self) -> Spare {
        self.spare
    }

    /// The keys that lead to a tree.
    pub(crate) fn keys(&self, tree: &Digest) -> &[Digest] {
        self.by_tree.get(tree).map_or(&[], |link| &link.keys)
    }

    /// Whether a list leads to a tree, or to one that refers to it.
    pub(crate) fn is_held(&self, tree: &Digest) -> bool {
        self.held.contains(tree)
    }

    /// Trees that are held because one that is held names them.
    fn spread(&mut self) {
        let mut waiting: Vec<Digest> = self.held.iter().copied().collect();
        while let Some(tree) = waiting.pop() {
            let refers = self.by_tree.get(&tree).map_or(&[][..], |link| &link.refers);
            let new = refers.iter().filter(|refer| self.held.insert(**refer));
            waiting.extend(new.copied());
        }
    }
}

impl Store {
    /// Lists what the store holds.
    pub fn inventory(&self) -> Result<Inventory, StoreError> {
        self.inventory_for(&Limits::default())
    }

    /// The same as a collection within `limits` sees it: what it may take is not held.
    pub fn inventory_for(&self, limits: &Limits) -> Result<Inventory, StoreError> {
        let links = self.links(limits.spare())?;
        self.inventory_by(&links)
    }

    /// An output and all that it names, each with the record that was kept with it last; nothing where no record leads to one
    /// of them.  No file of theirs is looked at.
    ///
    /// # Errors
    /// If the action log cannot be read.
    pub fn records_of(&self, tree: &Digest) -> Result<Vec<(Digest, Option<Value>)>, StoreError> {
        let links = self.links(Spare::All)?;
        let (mut all, mut waiting) = (Vec::new(), vec![*tree]);
        while let Some(tree) = waiting.pop() {
            if all.iter().any(|(known, _)| *known == tree) {
                continue;
            }
            let link = links.by_tree.get(&tree);
            waiting.extend(link.iter().flat_map(|link| &link.refers));
            all.push((tree, link.map(|link| link.record.clone())));
        }
        Ok(all)
    }

    /// Where log and lists stand now; equal answers mean that nothing was recorded or held between.
    pub(crate) fn links_version(&self, spare: Spare) -> Result<(Version, Roots), StoreError> {
        let roots = self.read_roots(spare)?;
        Ok((self.actions().version()?, roots))
    }

    /// What lists say, and where they stood then.  A list that cannot be read may be gone with who held
    /// it, since others collect as well: it is damage only where it is still held.
    fn held(&self, spare: Spare) -> Result<((Version, Roots), Vec<Digest>), StoreError> {
        let mut version = self.links_version(spare)?;
        loop {
            match self.held_keys(&version.1) {
                Err(error @ StoreError::BadRoots { .. }) => {
                    let now = self.links_version(spare)?;
                    if now.1 == version.1 {
                        return Err(error);
                    }
                    version = now;
                }
                keys => return Ok((version, keys?)),
            }
        }
    }

    /// Reads the whole action log, and what the lists lead to.
    pub(crate) fn links(&self, spare: Spare) -> Result<Links, StoreError> {
        // The version is taken first: what comes after it is seen as news.
        let (version, keys) = self.held(spare)?;
        let mut links = Links { version, spare, ..Links::default() };
        let mut actions = self.actions();
        let mut tree_of: HashMap<Digest, Digest> = HashMap::new();
        // A power cut may have taken the last aliases, by which their recipes would lead here.
        let open = if spare == Spare::All { self.open_runs()? } else { Vec::new() };
        let is_of_open = |record: &Value| {
            let run = record["run"].as_str().and_then(|run| run.parse().ok());
            run.is_some_and(|run: RunId| open.binary_search(&run).is_ok())
        };
        actions.each_output(&mut |entry| {
            let Entry::Seal { key, tree, record, refers, .. } = entry else { return };
            tree_of.insert(key, tree);
            if is_of_open(&record) {
                links.held.insert(tree);
            }
            let link = links.by_tree.entry(tree).or_default();
            link.keys.push(key);
            link.refers.extend(refers);
            link.record = record;
        })?;
        for key in keys {
            let content = actions.known_alias(&key).unwrap_or(key);
            links.held.extend([key, content].iter().filter_map(|key| tree_of.get(key)));
            if links.by_tree.contains_key(&key) {
                links.held.insert(key);
            }
        }
        links.spread();
        Ok(links)
    }

    pub(crate) fn inventory_by(&self, links: &Links) -> Result<Inventory, StoreError> {
        let (disk, layout) = (self.disk(), self.layout());
        let mut inventory = Inventory { now_ns: disk.moment().now_ns, ..Inventory::default() };
        for name in sorted(names(disk, &layout.out())?) {
            if let Ok(tree) = name.parse::<Digest>() {
                inventory.outputs.extend(self.output_item(tree, links)?);
            }
        }
        inventory.runs = self.run_items(&links.version.1)?;
        for name in sorted(names(disk, &layout.quarantine())?) {
            let path = layout.quarantine().join(&name);
            let Some(used_ns) = changed_ns(disk, &path)? else { continue };
            let bytes = bytes_below(disk, &path)?;
            inventory.quarantined.push(QuarantinedItem { name, bytes, used_ns });
        }
        for dir in [layout.work(), layout.trash(), layout.pulls(), layout.kept()] {
            inventory.work_bytes += bytes_below(disk, &dir)?;
        }
        let parts = [layout.seals(), layout.roots(), layout.runs()];
        let files = [layout.action_log(), layout.stat_cache(), layout.ballast()];
        for path in parts.iter().chain(&files) {
            inventory.index_bytes += bytes_below(disk, path)?;
        }
        Ok(inventory)
    }

    fn output_item(&self, tree: Digest, links: &Links) -> Result<Option<OutputItem>, DiskError> {
        let path = self.layout().tree(&tree);
        let stat = present(self.disk().lstat(&path)).map_err(fault("look at", &path))?;
        let Some(stat) = stat else { return Ok(None) };
        let bytes = bytes_below(self.disk(), &path)?;
        let (refers, record) = match links.by_tree.get(&tree) {
            Some(link) => (link.refers.clone(), link.record.clone()),
            None => (Vec::new(), Value::Null),
        };
        Ok(Some(OutputItem {
            tree,
            bytes,
            used_ns: stat.mtime_ns,
            is_held: links.is_held(&tree),
            keys: links.keys(&tree).to_vec(),
            refers,
            record,
        }))
    }

    fn run_items(&self, roots: &Roots) -> Result<Vec<RunItem>, StoreError> {
        let (disk, layout) = (self.disk(), self.layout());
        let mut ids = self.journals()?;
        let logs = names(disk, &layout.logs())?;
        ids.extend(logs.iter().filter_map(|name| name.parse::<RunId>().ok()));
        ids.sort();
        ids.dedup();
        let mut items = Vec::new();
        for id in ids {
            let (journal, logs) = (layout.journal(&id), layout.logs_of(&id));
            let used_ns = match changed_ns(disk, &journal)? {
                Some(at) => Some(at),
                None => changed_ns(disk, &logs)?,
            };
            let Some(used_ns) = used_ns else { continue };
            let bytes = bytes_below(disk, &journal)? + bytes_below(disk, &logs)?;
            let is_held = roots.runs.binary_search(&id).is_ok();
            items.push(RunItem { id, bytes, used_ns, is_held });
        }
        Ok(items)
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

fn changed_ns(disk: &dyn Disk, path: &Path) -> Result<Option<i64>, DiskError> {
    let stat = present(disk.lstat(path)).map_err(fault("look at", path))?;
    Ok(stat.map(|stat| stat.mtime_ns))
}

/// The sizes of all files in a tree that others may be removing meanwhile.
pub(crate) fn bytes_below(disk: &dyn Disk, path: &Path) -> Result<u64, DiskError> {
    let Some(stat) = present(disk.lstat(path)).map_err(fault("look at", path))? else {
        return Ok(0);
    };
    if stat.kind != FileKind::Dir {
        return Ok(stat.size);
    }
    // What may not be looked into has no size that we could free.
    let names = disk.list(path).unwrap_or_default();
    names.iter().try_fold(0, |sum: u64, name| Ok(sum + bytes_below(disk, &path.join(name))?))
}
