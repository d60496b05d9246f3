//! Lends what stages share across the runs of a machine.
//!
//! A token is a lock on a file that all runs know, whoever starts them and whatever store they use: a file for
//! each device, and ranges of one for what is counted.  The kernel gives back what a process held, however
//! it ends; a device that was not given back in order is lent when nothing of that run is at it any more.  Who waits
//! has a file in a queue, locked as long as it does; who wants the same and comes later, or counts less, lets him go
//! first.  Knows nothing of what a token stands for.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde::{Deserialize, Serialize};
use smelt_plan::StageId;
use smelt_plan::tokens::{Capacity, Lease};
use smelt_store::RunId;
use smelt_watch::{began_ticks, is_stopped};

use crate::dead::end_left;
use crate::notes::{
    erase, fits, locks, locks_shared, locks_within, make_dir, note, noted, open_file, open_to_look,
    since_1970,
};

/// The lock of all tokens is held for a few system calls; a process that was stopped meanwhile keeps no run's loop
/// longer from its attempts.
const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// A priority is from minus this to this.
pub const PRIORITY_MAX: i32 = 100;

/// Who is to be told of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// The run.
    pub run: String,
    /// Its pipeline.
    pub pipeline: String,
    /// The stage.
    #[serde(default)]
    pub stage: String,
    /// The process that runs it.
    pub pid: u32,
    /// The higher, the sooner; from -100 to 100.
    pub priority: i32,
    /// What the stage takes.
    #[serde(default)]
    pub wants: BTreeMap<String, u64>,
    /// Of devices that it waits for, those that it may take; any, where that is not said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids: BTreeMap<String, Vec<String>>,
    /// Since when, in seconds of the Unix era.
    pub since_s: u64,
}

impl Party {
    /// Whether both may want one and the same thing.
    fn meets(&self, other: &Self) -> bool {
        let meets = |name: &String| match (self.ids.get(name), other.ids.get(name)) {
            (Some(ours), Some(theirs)) => ours.iter().any(|id| theirs.contains(id)),
            _ => true,
        };
        self.wants.keys().any(|name| other.wants.contains_key(name) && meets(name))
    }

    /// Whether he is next who has these before him.  Whoever is stopped takes nothing and lets others pass.
    fn is_next<'a>(
        &self,
        mut ahead: impl Iterator<Item = &'a Self>,
        is_stopped: impl Fn(u32) -> bool,
    ) -> bool {
        !ahead.any(|other| other.meets(self) && !is_stopped(other.pid))
    }
}

/// What is lent on this machine, and who waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lent {
    /// The devices that are held, as `gpu 0`, and by whom.
    pub held: Vec<(String, Party)>,
    /// Who waits, the next first.
    pub waiting: Vec<Party>,
}

/// The tokens of a run.
pub(crate) struct Lending {
    dir: PathBuf,
    who: Party,
    held: HashMap<StageId, Holding>,
    waiting: HashMap<StageId, QueueEntry>,
    /// The lock of all tokens was held for too long: until it is free it is only tried.
    is_locked_out: bool,
}

struct Holding {
    leases: Vec<Lease>,
    /// Their locks are the tokens.
    _held: Vec<HeldLock>,
}

/// A file whose lock is ours.
struct HeldLock {
    file: File,
    /// Whether it says that we have it.
    is_noted: bool,
}

impl Drop for HeldLock {
    /// The note goes before the lock does: one that is there with a lock that is free is of somebody who died.
    fn drop(&mut self) {
        if self.is_noted {
            erase(&self.file);
        }
    }
}

/// What the file of a device says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct DeviceNote {
    #[serde(flatten)]
    party: Party,
    /// When its process began, in clock ticks since the boot.  Who says so erases the note before he gives the device
    /// back; older versions of smelt do not.
    #[serde(default)]
    began_ticks: Option<u64>,
}

/// The run that had a device and died, by the note of one whose lock is free.  `began_ticks` says of a process when it
/// began, if it is there.
fn left_by(note: Option<DeviceNote>, began_ticks: impl Fn(u32) -> Option<u64>) -> Option<RunId> {
    let DeviceNote { party: Party { run, pid, .. }, began_ticks: then } = note?;
    // One that lives could not erase it.
    let is_there = began_ticks(pid) == Some(then?);
    if is_there { None } else { run.parse().ok() }
}

/// A place in the queue; its lock says that somebody waits.
struct QueueEntry {
    path: PathBuf,
    _file: File,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Lending {
    /// For the stages of one run; `who` without stage.
    ///
    /// # Errors
    /// The folder is not there and cannot be made, or is not anybody's.
    pub(crate) fn open(dir: &Path, who: Party) -> io::Result<Self> {
        for dir in [dir, &dir.join("queue")] {
            make_dir(dir)?;
        }
        open_file(&dir.join("lock"))?;
        let (held, waiting) = (HashMap::new(), HashMap::new());
        Ok(Self { dir: dir.to_owned(), who, held, waiting, is_locked_out: false })
    }

    /// Whether somebody held the lock of all tokens for too long when it was asked for last.
    pub(crate) fn is_locked_out(&self) -> bool {
        self.is_locked_out
    }

    /// What a stage holds.
    pub(crate) fn leases(&self, stage: StageId) -> Option<&[Lease]> {
        Some(&self.held.get(&stage)?.leases)
    }

    /// Takes all of `wants`, or a place in the queue; whether it was taken.
    ///
    /// # Errors
    /// The kernel's, and `TimedOut` where somebody holds the lock of all tokens for too long.
    pub(crate) fn take(
        &mut self,
        stage: StageId,
        name: &str,
        wants: &BTreeMap<String, u64>,
        capacity: &BTreeMap<String, Capacity>,
    ) -> io::Result<bool> {
        if wants.is_empty() || self.held.contains_key(&stage) {
            return Ok(true);
        }
        let _short = self.lock()?;
        let ids = device_ids(wants, capacity);
        let (name, wants) = (name.to_owned(), wants.clone());
        let who = Party { stage: name, wants, ids, ..self.who.clone() };
        if !self.waiting.contains_key(&stage) {
            let place = self.stand_in_line(&who)?;
            self.waiting.insert(stage, place);
        }
        let own = &self.waiting[&stage].path;
        let queue = queue(&self.dir, Some(own))?;
        let ahead = queue.iter().take_while(|(path, _)| path != own).map(|(_, other)| other);
        if !who.is_next(ahead, is_stopped) {
            return Ok(false);
        }
        let Some(holding) = self.hold(&who, capacity)? else { return Ok(false) };
        self.waiting.remove(&stage);
        self.held.insert(stage, holding);
        Ok(true)
    }

    /// Nobody else asks for tokens as long as it lives.
    fn lock(&mut self) -> io::Result<File> {
        let path = self.dir.join("lock");
        let short = open_file(&path)?;
        let time_max = if self.is_locked_out { Duration::ZERO } else { LOCK_TIME_MAX };
        let locked = locks_within(&short, time_max);
        let is_late = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
        self.is_locked_out = locked.as_ref().is_err_and(is_late);
        let path = path.display();
        locked.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        Ok(short)
    }

    /// Gives back what stages held or waited for that do not any more.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(StageId) -> bool) {
        self.held.retain(|stage, _| is_wanted(*stage));
        self.waiting.retain(|stage, _| is_wanted(*stage));
    }

    /// Names sort as the queue does.
    fn stand_in_line(&self, who: &Party) -> io::Result<QueueEntry> {
        let now = since_1970();
        let rank = PRIORITY_MAX - who.priority;
        let name = format!("{rank:03}-{:020}-{}-{}", now.as_nanos(), who.pid, plain(&who.stage));
        let path = self.dir.join("queue").join(name);
        let file = open_file(&path)?;
        file.lock()?;
        let mut who = Party { since_s: now.as_secs(), ..who.clone() };
        if !fits(&who) {
            // Then it meets all that want such devices.
            who.ids.clear();
        }
        note(&file, &who);
        Ok(QueueEntry { path, _file: file })
    }

    /// All of it, or nothing.
    fn hold(
        &self,
        who: &Party,
        capacity: &BTreeMap<String, Capacity>,
    ) -> io::Result<Option<Holding>> {
        let (mut leases, mut held) = (Vec::new(), Vec::new());
        for (resource, &amount) in &who.wants {
            let (ids, taken) = match capacity.get(resource) {
                Some(Capacity::Devices(all)) => self.devices(who, resource, all, amount)?,
                Some(Capacity::Amount(all)) => (Vec::new(), self.amount(resource, *all, amount)?),
                None => (Vec::new(), None),
            };
            let Some(taken) = taken else { return Ok(None) };
            held.extend(taken);
            leases.push(Lease { resource: resource.clone(), amount, ids });
        }
        Ok(Some(Holding { leases, _held: held }))
    }

    /// So many devices that nobody holds, the first first.  What a run that died has left at one is ended before.
    fn devices(
        &self,
        who: &Party,
        resource: &str,
        all: &[String],
        amount: u64,
    ) -> io::Result<(Vec<String>, Option<Vec<HeldLock>>)> {
        let (mut ids, mut held) = (Vec::new(), Vec::new());
        for id in all {
            if ids.len() as u64 == amount {
                break;
            }
            let file = open_file(&self.dir.join(device(resource, id)))?;
            if locks(&file)? && left_by(noted(&file), began_ticks).is_none_or(|run| end_left(&run))
            {
                let since_s = since_1970().as_secs();
                let party = Party { ids: BTreeMap::new(), since_s, ..who.clone() };
                note(&file, &DeviceNote { party, began_ticks: began_ticks(who.pid) });
                ids.push(id.clone());
                held.push(HeldLock { file, is_noted: true });
            }
        }
        let is_all = ids.len() as u64 == amount;
        Ok((ids, is_all.then_some(held)))
    }

    /// Ranges that nobody holds, as many as it takes, of `0..all`.
    fn amount(&self, resource: &str, all: u64, amount: u64) -> io::Result<Option<Vec<HeldLock>>> {
        let file = open_file(&self.dir.join(format!("amount-{}", plain(resource))))?;
        let (mut at, mut lacks) = (0, amount);
        while lacks > 0 && at < all {
            let (gap, next) = gap(&file, at, all)?;
            let taken = gap.min(lacks);
            if taken > 0 {
                let set = range(libc::F_WRLCK, at, taken);
                fcntl(&file, FcntlArg::F_OFD_SETLK(&set))?;
            }
            (at, lacks) = (next, lacks - taken);
        }
        Ok((lacks == 0).then(|| vec![HeldLock { file, is_noted: false }]))
    }
}

/// What is lent by the locks below `dir`, and who waits.
pub fn lent(dir: &Path) -> Lent {
    let mut lent = Lent::default();
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in found.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"device-"))
    {
        let Ok(file) = open_to_look(&entry.path()) else { continue };
        if locks_shared(&file).is_ok_and(|free| !free)
            && let Some(party) = noted(&file)
        {
            let name = entry.file_name().to_string_lossy().trim_start_matches("device-").to_owned();
            lent.held.push((name.replacen('-', " ", 1), party));
        }
    }
    lent.held.sort_by(|one, other| one.0.cmp(&other.0));
    let waiting = queue(dir, None).unwrap_or_default();
    lent.waiting = waiting.into_iter().map(|(_, party)| party).collect();
    lent
}

/// Who waits, the next first.  Files of those that are dead are removed; `own` is ours.
fn queue(dir: &Path, own: Option<&Path>) -> io::Result<Vec<(PathBuf, Party)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir.join("queue"))? {
        let path = entry?.path();
        let Ok(file) = open_to_look(&path) else { continue };
        if own != Some(&path) && locks_shared(&file).unwrap_or(false) {
            // Whoever just makes it holds the short lock, as who asks for a place does.
            if own.is_some() {
                let _ = fs::remove_file(&path);
            }
            continue;
        }
        found.push((path, noted(&file).unwrap_or_default()));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// How much is free from `at` on, and where to look next.  The kernel names any one lock that is in the way,
/// not the first: what lies before it is asked for again.
fn gap(file: &File, at: u64, all: u64) -> io::Result<(u64, u64)> {
    let mut end = all;
    while at < end {
        let mut held = range(libc::F_WRLCK, at, end - at);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut held))?;
        if i32::from(held.l_type) == libc::F_UNLCK {
            break;
        }
        let from = u64::try_from(held.l_start).unwrap_or(0);
        if from <= at {
            let len = u64::try_from(held.l_len).unwrap_or(0);
            // A length of 0 is all that follows.
            return Ok((0, if len == 0 { all } else { from.saturating_add(len).min(all) }));
        }
        end = from;
    }
    Ok((end - at, end))
}

fn range(kind: i32, at: u64, len: u64) -> libc::flock {
    let whole = |number: u64| libc::off_t::try_from(number).unwrap_or(libc::off_t::MAX);
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: whole(at),
        l_len: whole(len),
        l_pid: 0,
    }
}

/// The devices of what is wanted.
fn device_ids(
    wants: &BTreeMap<String, u64>,
    capacity: &BTreeMap<String, Capacity>,
) -> BTreeMap<String, Vec<String>> {
    let ids = |name: &String| match capacity.get(name)? {
        Capacity::Devices(ids) => Some((name.clone(), ids.clone())),
        Capacity::Amount(_) => None,
    };
    wants.keys().filter_map(ids).collect()
}

fn device(resource: &str, id: &str) -> String {
    format!("device-{}-{}", plain(resource), plain(id))
}

/// A name that is a file's, whatever is in it.
fn plain(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let plain = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02x}"),
    };
    name.bytes().take(64).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smelt_plan::Plan;
    use smelt_plan::{Pins, Pipeline};

    /// Three stages, to have their ids.
    fn ids() -> Vec<StageId> {
        let stage = |name| {
            format!("[stage.{name}]\nkind = \"command\"\nargv = [\"x\"]\noutputs = [\"o\"]\n")
        };
        let text = format!("smelt = 1\nname = \"t\"\n{}{}{}", stage("a"), stage("b"), stage("c"));
        let pipeline = Pipeline::parse("p.toml", &text, &Default::default()).unwrap();
        let plan = Plan::build(&pipeline, &Pins::default()).unwrap();
        plan.stages().map(|(id, _)| id).collect()
    }

    fn lending(dir: &Path, run: &str, priority: i32) -> Lending {
        let (run, pipeline) = (run.to_owned(), "p".to_owned());
        let who = Party { run, pipeline, priority, pid: std::process::id(), ..Party::default() };
        Lending::open(&dir.join("tokens"), who).unwrap()
    }

    fn capacity() -> BTreeMap<String, Capacity> {
        let gpus = Capacity::Devices(["0", "1"].map(str::to_owned).into());
        BTreeMap::from([("gpu".to_owned(), gpus), ("memory".to_owned(), Capacity::Amount(100))])
    }

    /// What other tests start holds our locks until it is another program.
    fn soon(mut is: impl FnMut() -> bool) -> bool {
        for _ in 0..1000 {
            if is() {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        false
    }

    fn want(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn no_device_is_lent_twice_whoever_asks() {
        let folder = tempfile::tempdir().unwrap();
        let ids = ids();
        let [mut one, mut other] = ["one", "other"].map(|run| lending(folder.path(), run, 0));
        let take = |lending: &mut Lending, stage: StageId, count| {
            lending.take(stage, "s", &want(&[("gpu", count)]), &capacity()).unwrap()
        };
        assert!(take(&mut one, ids[0], 1) && take(&mut other, ids[0], 1));
        assert_eq!(one.leases(ids[0]).unwrap()[0].ids, ["0"]);
        assert_eq!(other.leases(ids[0]).unwrap()[0].ids, ["1"]);
        assert!(take(&mut one, ids[0], 1), "it has it already");
        assert!(!take(&mut one, ids[1], 1));
        let seen = lent(&folder.path().join("tokens"));
        let held: Vec<_> =
            seen.held.iter().map(|(what, who)| (what.as_str(), who.run.as_str())).collect();
        assert_eq!(held, [("gpu 0", "one"), ("gpu 1", "other")]);
        assert_eq!(seen.waiting.len(), 1);
        // As if it had been killed.
        drop(other);
        assert!(soon(|| take(&mut one, ids[1], 1)));
        one.retain(|_| false);
        assert!(soon(|| lent(&folder.path().join("tokens")) == Lent::default()));
    }

    fn of_a_run(run: &str, pid: u32, began_ticks: Option<u64>) -> DeviceNote {
        let party = Party { run: run.to_owned(), pid, ..Party::default() };
        DeviceNote { party, began_ticks }
    }

    #[test]
    fn who_had_a_device_and_died_is_told_by_its_note() {
        let run = "20261121-154233-1a2b";
        // Process 7 began at 70 ticks, and 8 is not there.
        let began = |pid| (pid == 7).then_some(70);
        let left = |note| left_by(note, began).map(|run| run.to_string());
        assert_eq!(left(None), None, "it was given back");
        assert_eq!(left(Some(of_a_run(run, 7, Some(70)))), None, "it lives");
        assert_eq!(left(Some(of_a_run(run, 8, Some(70)))).as_deref(), Some(run));
        assert_eq!(left(Some(of_a_run(run, 7, Some(69)))).as_deref(), Some(run), "another process");
        assert_eq!(left(Some(of_a_run(run, 8, None))), None, "an older smelt's");
        for odd in ["", "/", "1", "20261121-154233-1a2b.a"] {
            assert_eq!(left(Some(of_a_run(odd, 8, Some(70)))), None, "{odd}");
        }
    }

    /// Versions of smelt that know one form read the other.
    #[test]
    fn notes_of_devices_are_read_by_all_versions() {
        let file = tempfile::tempfile().unwrap();
        let DeviceNote { party, .. } = of_a_run("r", 7, None);
        note(&file, &of_a_run("r", 7, Some(70)));
        assert_eq!(noted::<Party>(&file), Some(party.clone()));
        assert_eq!(noted::<DeviceNote>(&file).unwrap().began_ticks, Some(70));
        note(&file, &party);
        let read = noted::<DeviceNote>(&file).unwrap();
        assert_eq!((read.party, read.began_ticks), (party, None));
        erase(&file);
        assert_eq!(noted::<Party>(&file), None);
    }

    #[test]
    fn what_a_dead_run_left_at_a_device_is_ended_before_that_is_lent() {
        let folder = tempfile::tempdir().unwrap();
        let run = format!("20261121-154233-{:04x}", std::process::id() & 0xffff);
        let marked = |mark: &str| {
            let mut cat = std::process::Command::new("cat");
            cat.env(crate::orphans::MARK, format!("{run}/{mark}"));
            cat.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
            cat.spawn().unwrap()
        };
        let (mut shim, mut orphan) = (marked("shim"), marked("a.1"));
        let mut next = lending(folder.path(), "next", 0);
        let gpu = open_file(&folder.path().join("tokens/device-gpu-0")).unwrap();
        note(&gpu, &of_a_run(&run, std::process::id(), Some(0)));
        let only = Capacity::Devices(vec!["0".to_owned()]);
        let only = BTreeMap::from([("gpu".to_owned(), only)]);
        let id = ids()[0];
        let mut take = || next.take(id, "s", &want(&[("gpu", 1)]), &only).unwrap();
        assert!(!take(), "its shim is about to end it");
        assert!(orphan.try_wait().unwrap().is_none());
        shim.kill().unwrap();
        shim.wait().unwrap();
        assert!(soon(take));
        assert!(!orphan.wait().unwrap().success());
        assert_eq!(noted::<Party>(&gpu).unwrap().run, "next");
        next.retain(|_| false);
        assert_eq!(noted::<Party>(&gpu), None, "it was given back");
    }

    #[test]
    fn amounts_are_lent_in_as_many_ranges_as_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let ids = ids();
        let [mut one, mut other] = ["one", "other"].map(|run| lending(folder.path(), run, 0));
        let take = |lending: &mut Lending, stage: StageId, amount| {
            lending.take(stage, "s", &want(&[("memory", amount)]), &capacity()).unwrap()
        };
        assert!(
            take(&mut one, ids[0], 30)
                && take(&mut other, ids[0], 30)
                && take(&mut one, ids[1], 30)
        );
        other.retain(|_| false);
        assert!(take(&mut other, ids[1], 40), "of what was given back, and the rest");
        assert!(!take(&mut other, ids[2], 1));
        one.retain(|stage| stage == ids[0]);
        assert!(take(&mut other, ids[2], 30));
        assert!(!take(&mut one, ids[2], 1));
    }

    #[test]
    fn who_counts_more_is_next_then_who_came_first() {
        let folder = tempfile::tempdir().unwrap();
        let ids = ids();
        let [mut holder, mut first, mut second] =
            ["holder", "first", "second"].map(|run| lending(folder.path(), run, 0));
        let mut urgent = lending(folder.path(), "urgent", 5);
        let two = want(&[("gpu", 2)]);
        let take = |lending: &mut Lending| lending.take(ids[0], "s", &two, &capacity()).unwrap();
        assert!(take(&mut holder));
        for waits in [&mut first, &mut second, &mut urgent] {
            assert!(!take(waits));
        }
        let runs = || lent(&folder.path().join("tokens")).waiting.into_iter().map(|who| who.run);
        assert_eq!(runs().collect::<Vec<_>>(), ["urgent", "first", "second"]);
        holder.retain(|_| false);
        assert!(!take(&mut second) && !take(&mut first));
        // What nobody waits for is anybody's.
        assert!(first.take(ids[1], "s", &want(&[("memory", 1)]), &capacity()).unwrap());
        assert!(take(&mut urgent));
        drop(urgent);
        assert!(!take(&mut second) && take(&mut first));
        drop((first, holder));
        assert!(take(&mut second));
    }

    fn wanting(pid: u32, name: &str, ids: &[&str]) -> Party {
        let all: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let ids = BTreeMap::from([(name.to_owned(), all)]);
        let ids = if ids[name].is_empty() { BTreeMap::new() } else { ids };
        Party { pid, wants: want(&[(name, 1)]), ids, ..Party::default() }
    }

    #[test]
    fn who_is_next_is_kept_by_who_may_want_the_same_and_takes_it() {
        let is_stopped = |pid| pid == 13;
        let first = wanting(1, "gpu", &["1"]);
        let check = |ahead: &[Party], expect: bool| {
            assert_eq!(first.is_next(ahead.iter(), is_stopped), expect, "{ahead:?}");
        };
        check(&[], true);
        check(&[wanting(2, "gpu", &["1"])], false);
        check(&[wanting(2, "gpu", &["0", "1"])], false);
        check(&[wanting(2, "gpu", &["0"]), wanting(3, "dla", &["1"])], true);
        check(&[wanting(2, "gpu", &[])], false);
        check(&[wanting(13, "gpu", &["1"])], true);
        check(&[wanting(13, "gpu", &["1"]), wanting(2, "gpu", &["1"])], false);
    }

    /// An older smelt says no ids, and more ids than a note holds are not said.
    #[test]
    fn who_waits_for_one_device_keeps_nobody_from_another() {
        let folder = tempfile::tempdir().unwrap();
        let ids = ids();
        let [mut holder, mut zero, mut one] =
            ["holder", "zero", "one"].map(|run| lending(folder.path(), run, 0));
        let take = |lending: &mut Lending, devices: &[String]| {
            let all = Capacity::Devices(devices.to_vec());
            let capacity = BTreeMap::from([("gpu".to_owned(), all)]);
            lending.take(ids[0], "s", &want(&[("gpu", 1)]), &capacity).unwrap()
        };
        let [gpu_0, gpu_1] = ["0", "1"].map(|id| vec![id.to_owned()]);
        assert!(take(&mut holder, &gpu_0) && !take(&mut zero, &gpu_0) && take(&mut one, &gpu_1));
        let seen = lent(&folder.path().join("tokens"));
        assert_eq!(seen.waiting[0].ids["gpu"], gpu_0);
        assert!(seen.held[0].1.ids.is_empty(), "it has one of them");
        let many: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let mut late = lending(folder.path(), "late", 0);
        assert!(!take(&mut late, &many), "zero may want the same");
        let seen = lent(&folder.path().join("tokens")).waiting.pop().unwrap();
        assert!(seen.wants["gpu"] == 1 && seen.ids.is_empty(), "{seen:?}");
    }

    #[test]
    fn a_stopped_process_keeps_nobody_waiting_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut lending = lending(folder.path(), "late", 0);
        let wants = want(&[("gpu", 1)]);
        let lock = open_file(&folder.path().join("tokens/lock")).unwrap();
        lock.lock().unwrap();
        let mut take = || lending.take(ids()[0], "s", &wants, &capacity());
        let late = take().unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(late.to_string().contains(&std::process::id().to_string()), "{late}");
        let begun = std::time::Instant::now();
        assert!(take().is_err() && begun.elapsed() < LOCK_TIME_MAX, "it is only tried now");
        drop(lock);
        assert!(soon(|| take().is_ok_and(|taken| taken)));
        assert!(!lending.is_locked_out());
    }
}
