//! Chooses what a collection removes, and removes it.
//!
//! [`choose`] is a plain function over an [`Inventory`].  Removing takes `roots.lock` alone for each
//! output and looks once more whether anything leads to it by now; the output is renamed away, the
//! rename is made durable, and only then are its files deleted, so that a crash leaves it whole or
//! gone.  Knows nothing of stages: what is held, it learns from the lists in `roots/`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::actions::Entry;
use crate::digest::Digest;
use crate::disk::{DiskError, fault, present, remove_tree};
use crate::inventory::{Inventory, Links, OutputItem};
use crate::layout::names;
use crate::roots::Spare;
use crate::run::RunId;
use crate::store::{Store, StoreError};

/// Long enough for a person to look at what was damaged.
const QUARANTINE_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// An output without a record is what a crash left, unless somebody is about to use it; sealing the
/// same content again within this time still finds it.
const NAMELESS_KEPT: Duration = Duration::from_secs(3600);

/// How much may stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of everything together.
    pub bytes_max: Option<u64>,
    /// Since it was used last.
    pub age_max: Option<Duration>,
    /// What runs made that did not end well may go, too.
    pub takes_open: bool,
}

impl Limits {
    pub(crate) fn spare(&self) -> Spare {
        if self.takes_open { Spare::AllButOpen } else { Spare::All }
    }
}

/// What is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A sealed output.
    Output(Digest),
    /// A run's journal and logs.
    Run(RunId),
    /// Something in the quarantine.
    Quarantined(String),
}

/// Why it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No record leads to it.
    Nameless,
    /// It has not been used for longer than asked, or has been in the quarantine for a week.
    Old,
    /// The store is larger than asked, and somebody else has it too.
    Elsewhere,
    /// The store is larger than asked, and nothing else was unused for longer.
    Room,
}

/// One thing to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// What it is.
    pub what: What,
    /// How much that frees.
    pub bytes: u64,
    /// Why.
    pub why: Why,
}

/// What a collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// What was removed.
    pub removed: Vec<Victim>,
    /// What came into use meanwhile and stays.
    pub spared: Vec<Victim>,
    /// How large the store is now.
    pub bytes_left: u64,
    /// How much of that is held by runs.
    pub bytes_held: u64,
}

/// When a log is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// If it becomes shorter by it.
    IfShorter,
    Always,
}

/// Something that may be removed.
struct Candidate {
    what: What,
    bytes: u64,
    used_ns: i64,
    /// Whether somebody else has it, so that it can be had again.
    is_elsewhere: bool,
    /// What goes first if all else is equal.
    rank: u8,
}

/// Chooses what to remove: what is of no use, then what is older than asked, then, if the store is
/// larger than asked, outputs that are `elsewhere` too, and what has not been used for the longest
/// time.  Nothing that is held, and an output only after all that refer to it.
pub fn choose(inventory: &Inventory, limits: &Limits, elsewhere: &BTreeSet<Digest>) -> Vec<Victim> {
    let mut candidates = candidates(inventory, elsewhere);
    candidates.sort_by_key(|it| (!it.is_elsewhere, it.used_ns, it.rank));
    let mut bytes = inventory.bytes();
    let mut victims = Vec::new();
    let mut take = |candidate: &Candidate, why, bytes: &mut u64| {
        *bytes -= candidate.bytes;
        let Candidate { what, bytes, .. } = candidate;
        victims.push(Victim { what: what.clone(), bytes: *bytes, why });
    };
    let age = |candidate: &Candidate| {
        // A clock that went back makes everything new, and nothing older.
        Duration::from_nanos(inventory.now_ns.saturating_sub(candidate.used_ns).max(0) as u64)
    };
    candidates.retain(|candidate| {
        let why = of_no_use(inventory, candidate, age(candidate))
            .or_else(|| limits.age_max.is_some_and(|max| age(candidate) > max).then_some(Why::Old));
        why.inspect(|why| take(candidate, *why, &mut bytes)).is_none()
    });
    for candidate in &candidates {
        if limits.bytes_max.is_none_or(|max| bytes <= max) {
            break;
        }
        let why = if candidate.is_elsewhere { Why::Elsewhere } else { Why::Room };
        take(candidate, why, &mut bytes);
    }
    victims
}

fn of_no_use(inventory: &Inventory, candidate: &Candidate, age: Duration) -> Option<Why> {
    match &candidate.what {
        What::Quarantined(_) if age > QUARANTINE_KEPT => Some(Why::Old),
        What::Output(tree) if age > NAMELESS_KEPT => {
            let found = inventory.outputs.binary_search_by_key(tree, |output| output.tree);
            let is_nameless = found.is_ok_and(|at| inventory.outputs[at].keys.is_empty());
            is_nameless.then_some(Why::Nameless)
        }
        What::Output(_) | What::Run(_) | What::Quarantined(_) => None,
    }
}

fn candidates(inventory: &Inventory, elsewhere: &BTreeSet<Digest>) -> Vec<Candidate> {
    let quarantined = inventory.quarantined.iter().map(|item| Candidate {
        what: What::Quarantined(item.name.clone()),
        bytes: item.bytes,
        used_ns: item.used_ns,
        is_elsewhere: false,
        rank: 0,
    });
    let runs = inventory.runs.iter().filter(|run| !run.is_held).map(|run| Candidate {
        what: What::Run(run.id.clone()),
        bytes: run.bytes,
        used_ns: run.used_ns,
        is_elsewhere: false,
        rank: 1,
    });
    let referred = used_by_referrers(&inventory.outputs);
    let elsewhere = with_referrers(&inventory.outputs, elsewhere);
    let outputs = inventory.outputs.iter().filter(|output| !output.is_held).map(|output| {
        let by_others = referred.get(&output.tree);
        Candidate {
            what: What::Output(output.tree),
            bytes: output.bytes,
            used_ns: by_others.map_or(output.used_ns, |used_ns| output.used_ns.max(*used_ns)),
            is_elsewhere: elsewhere.contains(&output.tree),
            rank: if by_others.is_some() { 3 } else { 2 },
        }
    });
    quarantined.chain(runs).chain(outputs).collect()
}

/// Of these outputs those of which all that refer to them are among them too: an output goes only after those.
fn with_referrers(outputs: &[OutputItem], among: &BTreeSet<Digest>) -> BTreeSet<Digest> {
    let mut all = among.clone();
    loop {
        let others = outputs.iter().filter(|output| !all.contains(&output.tree));
        let needed: BTreeSet<Digest> = others.flat_map(|output| output.refers.clone()).collect();
        let before = all.len();
        all.retain(|tree| !needed.contains(tree));
        if all.len() == before {
            return all;
        }
    }
}

/// When those that name an output were used last: it counts as used with them.
fn used_by_referrers(outputs: &[OutputItem]) -> HashMap<Digest, i64> {
    let mut used: HashMap<Digest, i64> = HashMap::new();
    for output in outputs {
        for refer in &output.refers {
            let latest = used.entry(*refer).or_insert(i64::MIN);
            *latest = output.used_ns.max(*latest);
        }
    }
    used
}

impl Store {
    /// Removes what [`choose`] says, beside running builds.
    ///
    /// What dead runs left in `work/` is for [`DeadRun::clear`](crate::DeadRun::clear), after their processes.
    pub fn collect(&self, limits: &Limits) -> Result<Collection, StoreError> {
        self.collect_beside(limits, &BTreeSet::new())
    }

    /// The same where some outputs are elsewhere too, and go first.
    pub fn collect_beside(
        &self,
        limits: &Limits,
        elsewhere: &BTreeSet<Digest>,
    ) -> Result<Collection, StoreError> {
        self.refuse_read_only("collect garbage")?;
        self.empty_trash()?;
        let mut links = {
            let _alone = self.lock_roots_alone()?;
            self.links(limits.spare())?
        };
        let inventory = self.inventory_by(&links)?;
        let mut done = Collection::default();
        let mut away = Vec::new();
        for victim in choose(&inventory, limits, elsewhere) {
            let gone = match &victim.what {
                What::Output(tree) => self.take_away(tree, &mut links, &mut away)?,
                What::Run(id) => self.remove_run(id, limits.spare())?,
                What::Quarantined(name) => {
                    remove_tree(self.disk(), &self.layout().quarantine().join(name))?;
                    true
                }
            };
            if gone { &mut done.removed } else { &mut done.spared }.push(victim);
        }
        self.bury(&away)?;
        self.remove_unheld_lists()?;
        self.compact_log()?;
        if limits.takes_open {
            self.forget_ended()?;
        }
        let left = self.inventory()?;
        done.bytes_left = left.bytes();
        let held = left.outputs.iter().filter(|output| output.is_held);
        done.bytes_held = held.map(|output| output.bytes).sum();
        Ok(done)
    }

    /// Removes these outputs, in this order, although runs that have ended led to them: not what is pinned, or what
    /// a run or a server that lives has.  Gives those that are gone.
    pub fn remove(&self, trees: &[Digest]) -> Result<Vec<Digest>, StoreError> {
        self.refuse_read_only("remove outputs")?;
        let mut links = {
            let _alone = self.lock_roots_alone()?;
            self.links(Spare::InUse)?
        };
        let (mut gone, mut away) = (Vec::new(), Vec::new());
        for tree in trees {
            if self.take_away(tree, &mut links, &mut away)? {
                gone.push(*tree);
            }
        }
        self.bury(&away)?;
        self.compact_log()?;
        Ok(gone)
    }

    /// Deletes trees that were renamed into the trash.
    fn bury(&self, away: &[PathBuf]) -> Result<(), StoreError> {
        if away.is_empty() {
            return Ok(());
        }
        // Before the first file of a tree goes, the tree must have left `out/` for good.
        let out = self.layout().out();
        self.disk().sync_dir(&out).map_err(fault("sync the directory", &out))?;
        self.empty_trash()
    }

    /// Renames a tree into the trash, unless something has come to need it; says whether it did.
    fn take_away(
        &self,
        tree: &Digest,
        links: &mut Links,
        away: &mut Vec<PathBuf>,
    ) -> Result<bool, StoreError> {
        let (disk, layout) = (self.disk(), self.layout());
        let _alone = self.lock_roots_alone()?;
        if self.links_version(links.spare())? != links.version {
            *links = self.links(links.spare())?;
        }
        if links.is_held(tree) {
            return Ok(false);
        }
        let to = layout.trash().join(format!("{tree}.{}", disk.moment().now_ns));
        let from = layout.tree(tree);
        if present(disk.rename(&from, &to)).map_err(fault("move away", &from))?.is_some() {
            away.push(to);
        }
        Ok(true)
    }

    /// Removes a run's logs, then its journal, unless the run lives.
    fn remove_run(&self, id: &RunId, spare: Spare) -> Result<bool, StoreError> {
        let _alone = self.lock_roots_alone()?;
        if self.read_roots(spare)?.runs.binary_search(id).is_ok() {
            return Ok(false);
        }
        remove_tree(self.disk(), &self.layout().logs_of(id))?;
        remove_tree(self.disk(), &self.layout().journal(id))?;
        Ok(true)
    }

    /// Runs that go on keep what they say; of the others nothing waits any more.
    fn forget_ended(&self) -> Result<(), StoreError> {
        for run in self.open_runs()? {
            if !self.is_running(&run)? {
                self.forget_open(&run)?;
            }
        }
        self.remove_unheld_lists()
    }

    fn remove_unheld_lists(&self) -> Result<(), StoreError> {
        let _alone = self.lock_roots_alone()?;
        for path in self.unheld_lists(&self.read_roots(Spare::All)?)? {
            remove_tree(self.disk(), &path)?;
        }
        Ok(())
    }

    /// Deletes what collections have taken away.
    pub(crate) fn empty_trash(&self) -> Result<(), StoreError> {
        let trash = self.layout().trash();
        for name in names(self.disk(), &trash)? {
            let path = trash.join(name);
            if let Err(error) = remove_tree(self.disk(), &path)
                // Another collection may be at it as well.
                && present(self.disk().lstat(&path)).map_err(fault("look at", &path))?.is_some()
            {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Rewrites the action log without what leads nowhere, if there is such.
    fn compact_log(&self) -> Result<(), StoreError> {
        let _alone = self.lock_roots_alone()?;
        self.rewrite_log(&[], When::IfShorter)
    }

    /// Rewrites the action log without what leads nowhere; `added` comes last.  Called while nobody
    /// can seal.
    pub(crate) fn rewrite_log(&self, added: &[Entry], when: When) -> Result<(), StoreError> {
        let mut actions = self.actions();
        let gone = |tree: &Digest| {
            let path = self.layout().tree(tree);
            present(self.disk().lstat(&path)).is_ok_and(|stat| stat.is_none())
        };
        let mut dead = HashSet::new();
        actions.each_output(&mut |entry| match &entry {
            Entry::Seal { key, tree, .. } if gone(tree) => drop(dead.insert(*key)),
            _ => {}
        })?;
        if when == When::IfShorter && dead.is_empty() && !actions.has_superseded() {
            return Ok(());
        }
        self.remove_seals(&dead)?;
        let mut is_live = |entry: &Entry| match entry {
            Entry::Seal { key, .. } => !dead.contains(key),
            // A living run may rely on an alias whose key it is just building anew.
            Entry::Alias { .. } | Entry::Reference { .. } => true,
        };
        Ok(actions.compact(&mut is_live, added)?)
    }

    /// Removes the copies of records for good, so that none is taken for one that the log has lost.
    fn remove_seals(&self, keys: &HashSet<Digest>) -> Result<(), DiskError> {
        for key in keys {
            let path = self.layout().seal(key);
            present(self.disk().unlink(&path)).map_err(fault("remove", &path))?;
        }
        if keys.is_empty() {
            return Ok(());
        }
        let seals = self.layout().seals();
        self.disk().sync_dir(&seals).map_err(fault("sync the directory", &seals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{QuarantinedItem, RunItem};

    const HOUR_NS: i64 = 3_600_000_000_000;
    const NOW_NS: i64 = 1000 * HOUR_NS;

    fn tree(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    /// An output of 100 bytes with a key, used so many hours ago.
    fn output(name: &str, hours: i64) -> OutputItem {
        OutputItem {
            tree: tree(name),
            bytes: 100,
            used_ns: NOW_NS - hours * HOUR_NS,
            is_held: false,
            keys: vec![Digest::of(b"key")],
            refers: Vec::new(),
            record: serde_json::Value::Null,
        }
    }

    fn of(mut outputs: Vec<OutputItem>) -> Inventory {
        outputs.sort_by_key(|output| output.tree);
        Inventory { outputs, now_ns: NOW_NS, ..Inventory::default() }
    }

    /// The names of the outputs chosen, in order, by why they go.
    #[track_caller]
    fn check(inventory: &Inventory, limits: Limits, expect: &[(&str, Why)]) {
        let name = |victim: &Victim| match &victim.what {
            What::Output(tree) => *tree,
            other => panic!("{other:?}"),
        };
        let chosen = choose(inventory, &limits, &BTreeSet::new());
        let found: Vec<_> = chosen.iter().map(|v| (name(v), v.why)).collect();
        let expect: Vec<_> = expect.iter().map(|(name, why)| (tree(name), *why)).collect();
        assert_eq!(found, expect);
    }

    /// In which order outputs go where all must, and some of them are elsewhere.
    #[track_caller]
    fn check_order(outputs: &[OutputItem], elsewhere: &[&str], expect: &[&str]) {
        let elsewhere = elsewhere.iter().map(|name| tree(name)).collect();
        let chosen = choose(&of(outputs.to_vec()), &size(0), &elsewhere);
        let found: Vec<What> = chosen.into_iter().map(|victim| victim.what).collect();
        let expect: Vec<What> = expect.iter().map(|name| What::Output(tree(name))).collect();
        assert_eq!(found, expect);
    }

    fn age(hours: u64) -> Limits {
        Limits {
            age_max: Some(Duration::from_secs(hours * 3600)),
            bytes_max: None,
            takes_open: false,
        }
    }

    fn size(bytes: u64) -> Limits {
        Limits { bytes_max: Some(bytes), age_max: None, takes_open: false }
    }

    #[test]
    fn without_limits_only_what_is_of_no_use_goes() {
        let nameless = |name, hours| OutputItem { keys: Vec::new(), ..output(name, hours) };
        let inventory = of(vec![output("a", 999), nameless("b", 2), nameless("c", 0)]);
        check(&inventory, Limits::default(), &[("b", Why::Nameless)]);
    }

    #[test]
    fn what_is_older_goes() {
        let inventory = of(vec![output("a", 5), output("b", 3), output("c", 9)]);
        check(&inventory, age(4), &[("c", Why::Old), ("a", Why::Old)]);
    }

    #[test]
    fn what_was_unused_longest_goes_until_the_rest_fits() {
        let inventory = of(vec![output("a", 5), output("b", 3), output("c", 9)]);
        check(&inventory, size(300), &[]);
        check(&inventory, size(299), &[("c", Why::Room)]);
        check(&inventory, size(100), &[("c", Why::Room), ("a", Why::Room)]);
        check(&inventory, size(0), &[("c", Why::Room), ("a", Why::Room), ("b", Why::Room)]);
    }

    #[test]
    fn what_is_held_stays_and_counts() {
        let held = OutputItem { is_held: true, ..output("a", 999) };
        let inventory = of(vec![held, output("b", 3)]);
        check(&inventory, size(100), &[("b", Why::Room)]);
        check(&inventory, age(1), &[("b", Why::Old)]);
    }

    #[test]
    fn what_another_names_goes_after_it() {
        let deployment = OutputItem { refers: vec![tree("engine")], ..output("d", 2) };
        let inventory = of(vec![output("engine", 9), deployment, output("other", 3)]);
        let all = [("other", Why::Room), ("d", Why::Room), ("engine", Why::Room)];
        check(&inventory, size(0), &all);
        check(&inventory, age(5), &[]);
    }

    #[test]
    fn what_is_elsewhere_goes_first_and_never_before_what_names_it() {
        let deployment = OutputItem { refers: vec![tree("engine")], ..output("d", 2) };
        let all = [output("engine", 9), deployment, output("old", 8), output("new", 1)];
        check_order(&all, &[], &["old", "d", "engine", "new"]);
        check_order(&all, &["new"], &["new", "old", "d", "engine"]);
        check_order(&all, &["new", "d"], &["d", "new", "old", "engine"]);
        check_order(&all, &["d", "engine"], &["d", "engine", "old", "new"]);
        // The deployment is nowhere else, so its engine waits for it.
        check_order(&all, &["engine"], &["old", "d", "engine", "new"]);
        // What is held names nothing that may go, and what is not here is nobody's.
        check_order(&all, &["gone", "old"], &["old", "d", "engine", "new"]);
        let limits = age(5);
        let chosen = choose(&of(all.to_vec()), &limits, &BTreeSet::from([tree("new")]));
        // Where it is elsewhere is no reason to go.
        assert_eq!(chosen.len(), 1);
    }

    #[test]
    fn a_clock_that_went_back_makes_nothing_old() {
        check(&of(vec![output("a", -500)]), age(1), &[]);
    }

    #[test]
    fn logs_and_damaged_outputs_go_before_outputs_of_that_age() {
        let at = |hours: i64| NOW_NS - hours * HOUR_NS;
        let run = |text: &str, hours, is_held| RunItem {
            id: text.parse().unwrap(),
            bytes: 10,
            used_ns: at(hours),
            is_held,
        };
        let bad = |name: &str, hours| QuarantinedItem {
            name: name.to_owned(),
            bytes: 10,
            used_ns: at(hours),
        };
        let inventory = Inventory {
            runs: vec![run("20261121-154233-0001", 4, false), run("20261121-154233-0002", 4, true)],
            quarantined: vec![bad("x", 4), bad("y", 169)],
            ..of(vec![output("a", 4)])
        };
        let whats = |limits| {
            choose(&inventory, &limits, &BTreeSet::new())
                .into_iter()
                .map(|v| v.what)
                .collect::<Vec<_>>()
        };
        let y = What::Quarantined("y".to_owned());
        assert_eq!(whats(Limits::default()), std::slice::from_ref(&y));
        let x = What::Quarantined("x".to_owned());
        let one = What::Run("20261121-154233-0001".parse().unwrap());
        assert_eq!(whats(size(1)), [y, x, one, What::Output(tree("a"))]);
    }
}
