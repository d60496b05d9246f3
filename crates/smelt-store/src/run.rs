//! Gives a run its name, its private directories and its journal, and cleans up after dead ones.
//!
//! A run lives as long as it holds its lock file.  What a dead one left in `work/` is nobody's and
//! is deleted; its journal and logs stay.  Knows nothing of what a run does.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::digest::Digest;
use crate::disk::{
    Disk, DiskError, FileKind, LockGuard, LockKind, Open, Wait, fault, make_dir, present,
    remove_tree, write_all,
};
use crate::layout::names;
use crate::log::{Log, LogError, is_damaged};
use crate::store::{Store, StoreError};

/// A thousand attempts with a large record each; usual journals are some kilobytes.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// So many runs begun in one moment have a name each.
const NAME_TRIES: u64 = 64;
/// The last second of the year 9999, beyond which no name says a moment.
const SECOND_MAX: u64 = 253_402_300_799;
/// Leaves room for an ending within the system's 255.
const NAME_BYTES_MAX: usize = 200;

/// The name of a run: when it started (UTC), the last four digits being 65,536ths of the second, as
/// in `20261121-154233-1a2b`.  Sorts in the order in which runs began: where the clock went back, or was wrong
/// before, or shows a year beyond 9999, it is the next name behind the newest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

/// Whether all of a journal could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// All of it.
    Yes,
    /// Some of it is damaged or lost.
    No,
}

/// A text that names no run.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the name of a run: expected one like 20261121-154233-1a2b")]
pub struct NotARunId {
    text: String,
}

/// A run in progress.
pub struct Run {
    store: Store,
    id: RunId,
    journal: Journal,
    /// See [`Run::claim`].
    claimed: Mutex<HashSet<Digest>>,
    lock: LockGuard,
}

/// A run that is over without having ended in order.  As long as this is held nobody else takes it for dead, and no run
/// takes its name.
pub struct DeadRun {
    store: Store,
    id: RunId,
    lock: LockGuard,
}

/// The journal of a run in progress.
pub struct Journal {
    store: Store,
    log: Mutex<Log>,
}

impl Store {
    /// Starts a run at the time `now`.
    pub fn begin_run(&self, now: SystemTime) -> Result<Run, StoreError> {
        self.refuse_read_only("start a run")?;
        let (id, lock) = self.new_name(now)?;
        let journal = self.open_journal(&id)?;
        Ok(Run { store: self.clone(), id, journal, claimed: Mutex::default(), lock })
    }

    /// A name that no run has had and that sorts behind all that are known, and its lock.
    pub(crate) fn new_name(&self, now: SystemTime) -> Result<(RunId, LockGuard), StoreError> {
        let newest = self.newest_moment()?;
        // A clock that shows what no name can say is wrong, and the last name would leave none to others.
        let now = if is_beyond(now) { newest.unwrap_or(UNIX_EPOCH) } else { now };
        // Boards without a clock begin at the same time again and again.
        let (now, first) = if newest >= Some(now) { (newest.unwrap_or(now), 1) } else { (now, 0) };
        for attempt in first..first + NAME_TRIES {
            let id = RunId::new(now, attempt);
            if let Some(lock) = self.take_name(&id)? {
                return Ok((id, lock));
            }
        }
        let path = self.layout().runs();
        Err(fault("find a free name in", &path)(std::io::ErrorKind::AlreadyExists.into()).into())
    }

    /// The moment that the newest name says.
    fn newest_moment(&self) -> Result<Option<SystemTime>, StoreError> {
        let living = names(self.disk(), &self.layout().runs())?;
        let living = living.iter().filter_map(|name| name.rsplit_once('.')?.0.parse().ok());
        let all = self.journals()?.into_iter().chain(living);
        Ok(all.filter_map(|id: RunId| id.moment()).max())
    }

    /// Takes the lock of a run that has never been; `None` if it has.
    fn take_name(&self, id: &RunId) -> Result<Option<LockGuard>, DiskError> {
        let (disk, path) = (self.disk(), self.layout().run_lock(id));
        for used in [&path, &self.layout().journal(id), &self.layout().work_of(id)] {
            if present(disk.lstat(used)).map_err(fault("look at", used))?.is_some() {
                return Ok(None);
            }
        }
        // Held means that another process draws the same name just now, or looks whether it is
        // dead; the next name is as good.
        let lock = disk.lock(&path, LockKind::Exclusive, Wait::No).map_err(fault("lock", &path))?;
        if lock.is_some() {
            // On a full disk a person looks in vain.
            match note_pid(disk, &path) {
                Err(error) if !error.is_disk_full() => return Err(error),
                _ => {}
            }
        }
        Ok(lock)
    }

    fn open_journal(&self, id: &RunId) -> Result<Journal, StoreError> {
        let (disk, path) = (self.shared_disk(), self.layout().journal(id));
        let log = Log::open(disk, path, self.layout().quarantine(), JOURNAL_BYTES_MAX)?;
        Ok(Journal { store: self.clone(), log: Mutex::new(log) })
    }

    /// Runs that left something behind and hold their lock no more, one after another: a run that is just beginning
    /// looks like them until it has its lock, and takes another name where somebody else has it.
    pub fn dead_runs(
        &self,
    ) -> Result<impl Iterator<Item = Result<DeadRun, StoreError>>, StoreError> {
        self.refuse_read_only("look for dead runs")?;
        let locks = names(self.disk(), &self.layout().runs())?;
        let name_of = |name: &'_ str| name.rsplit_once('.').map_or("", |(run, _)| run).to_owned();
        let locked = locks.iter().map(|name| name_of(name));
        // A power cut may have kept a working directory and lost the lock file.
        let work = names(self.disk(), &self.layout().work())?;
        let mut ids: Vec<RunId> = locked.chain(work).filter_map(|name| name.parse().ok()).collect();
        ids.sort();
        ids.dedup();
        Ok(ids.into_iter().filter_map(|id| self.dead_run(&id).transpose()))
    }

    /// The run, if nobody holds its lock: from now on we do.
    pub fn dead_run(&self, id: &RunId) -> Result<Option<DeadRun>, StoreError> {
        self.refuse_read_only("take hold of a dead run")?;
        let path = self.layout().run_lock(id);
        let lock =
            self.disk().lock(&path, LockKind::Exclusive, Wait::No).map_err(fault("lock", &path))?;
        Ok(lock.map(|lock| DeadRun { store: self.clone(), id: id.clone(), lock }))
    }

    /// The lock file goes last, while it is held: until then the run counts as dead.
    pub(crate) fn clear(&self, id: &RunId, lock: LockGuard) -> Result<(), DiskError> {
        remove_tree(self.disk(), &self.layout().work_of(id))?;
        let layout = self.layout();
        for path in [layout.run_roots(id), layout.run_claims(id), layout.run_lock(id)] {
            present(self.disk().unlink(&path)).map_err(fault("remove", &path))?;
        }
        drop(lock);
        Ok(())
    }

    /// Whether the run goes on, in some process of this machine: it holds its lock.
    pub fn is_running(&self, id: &RunId) -> Result<bool, StoreError> {
        let (disk, path) = (self.disk(), self.layout().run_lock(id));
        if present(disk.lstat(&path)).map_err(fault("look at", &path))?.is_none() {
            return Ok(false);
        }
        let lock = disk.lock(&path, LockKind::Shared, Wait::No).map_err(fault("lock", &path))?;
        Ok(lock.is_none())
    }

    /// Every run that has a journal, oldest first.
    pub fn journals(&self) -> Result<Vec<RunId>, StoreError> {
        let names = names(self.disk(), &self.layout().journals())?;
        let ids = names.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok());
        let mut ids: Vec<RunId> = ids.collect();
        ids.sort();
        Ok(ids)
    }

    /// Visits the records of a run, in order, as many as are whole; says whether that is all there were.
    /// Of a torn one at its end nothing is known.  What is no file holds none.
    pub fn read_journal(
        &self,
        id: &RunId,
        mut visit: impl FnMut(Value),
    ) -> Result<Whole, StoreError> {
        let path = self.layout().journal(id);
        let found = present(self.disk().stat(&path)).map_err(fault("look at", &path))?;
        if found.is_some_and(|found| found.kind != FileKind::File) {
            return Ok(Whole::No);
        }
        let opened = Log::open_to_read(self.shared_disk(), path.clone())?;
        let Some(mut log) = opened else { return Ok(Whole::Yes) };
        let (mut last, mut is_whole) = (0, true);
        log.read_new(&mut |place, text| {
            // One that was cut while it was read is read again.
            let is_new = place.seq() > last;
            is_whole &= place.seq() <= last + 1;
            match serde_json::from_str(text) {
                Ok(value) if is_new => visit(value),
                Ok(_) => {}
                Err(_) => is_whole = false,
            }
            last = last.max(place.seq());
        })?;
        let is_whole = is_whole && !is_damaged(self.disk(), &path)?;
        Ok(if is_whole { Whole::Yes } else { Whole::No })
    }

    /// An empty directory of that name for `id` alone.
    pub(crate) fn work_dir_of(&self, id: &RunId, name: &str) -> Result<PathBuf, StoreError> {
        let (disk, base) = (self.disk(), self.layout().work_of(id));
        let dir = base.join(check_name(name)?);
        make_dir(disk, &base)?;
        remove_tree(disk, &dir)?;
        make_dir(disk, &dir)?;
        Ok(dir)
    }

    /// Where the logs of a run are, whether or not there are any.
    pub fn logs_dir(&self, id: &RunId) -> PathBuf {
        self.layout().logs_of(id)
    }
}

impl Run {
    /// The run's name.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn claimed(&self) -> MutexGuard<'_, HashSet<Digest>> {
        // A panic elsewhere leaves a set that lacks a key at worst, which is then claimed again.
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Creates an empty directory for this run alone, removing one of that name.
    pub fn work_dir(&self, name: &str) -> Result<PathBuf, StoreError> {
        self.store.work_dir_of(&self.id, name)
    }

    /// The path for a log of this run.  The directory is made, the file is the caller's.
    pub fn log_path(&self, name: &str) -> Result<PathBuf, StoreError> {
        let base = self.store.logs_dir(&self.id);
        let path = base.join(check_name(name)?);
        make_dir(self.store.disk(), &base)?;
        Ok(path)
    }

    /// Removes its working directories, so that there is room for its last words; nothing of it may
    /// run any more.
    pub fn empty(&self) -> Result<(), StoreError> {
        Ok(remove_tree(self.store.disk(), &self.store.layout().work_of(&self.id))?)
    }

    /// Ends the run in order: its working directories are removed, its journal and logs stay.
    /// A run that is only dropped is cleared as a dead one later.
    pub fn finish(self) -> Result<(), StoreError> {
        Ok(self.store.clear(&self.id, self.lock)?)
    }
}

impl DeadRun {
    /// The run's name.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Removes its working directories and no more, so that there is room to say how it died.
    pub fn empty(&self) -> Result<(), StoreError> {
        Ok(remove_tree(self.store.disk(), &self.store.layout().work_of(&self.id))?)
    }

    /// Adds a last record to its journal; says whether it had one.
    pub fn close_journal(&self, record: &Value) -> Result<bool, StoreError> {
        let path = self.store.layout().journal(&self.id);
        if present(self.store.disk().lstat(&path)).map_err(fault("look at", &path))?.is_none() {
            return Ok(false);
        }
        let journal = self.store.open_journal(&self.id)?;
        // What is no record at its end is cut off.
        journal.append(record)?;
        Ok(true)
    }

    /// Removes its working directories and its lock file.
    pub fn clear(self) -> Result<(), StoreError> {
        Ok(self.store.clear(&self.id, self.lock)?)
    }
}

impl Journal {
    /// Adds a record; when this returns, it survives a power cut.
    pub fn append(&self, record: &Value) -> Result<(), LogError> {
        // A panic elsewhere leaves a log that finds its end again.
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let text = record.to_string();
        self.store.with_ballast(|| log.append(&text, &mut |_, _| {}))?;
        Ok(())
    }

    /// Adds a record that a power cut may take until the next one is added, or [`Journal::sync`]
    /// called: what happens in less than the time that syncing takes.
    pub fn append_later(&self, record: &Value) -> Result<(), LogError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let text = record.to_string();
        self.store.with_ballast(|| log.append_later(&text, &mut |_, _| {}))?;
        Ok(())
    }

    /// Makes every record durable.
    pub fn sync(&self) -> Result<(), LogError> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).sync()
    }
}

impl RunId {
    /// The `attempt`th name from that moment on; the last name for what is later than it.
    pub(crate) fn new(now: SystemTime, attempt: u64) -> Self {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ticks = (u64::from(since.subsec_nanos()) << 16) / 1_000_000_000 + attempt;
        let (second, tick) = (since.as_secs().saturating_add(ticks >> 16), ticks & 0xffff);
        let (second, tick) = (second, tick).min((SECOND_MAX, 0xffff));
        Self(format!("{}-{tick:04x}", utc(second)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The moment that the name says; `None` for digits that are no date.
    fn moment(&self) -> Option<SystemTime> {
        let number = |range: std::ops::Range<usize>| self.0[range].parse::<u64>().ok();
        let days = days(number(0..4)?, number(4..6)?, number(6..8)?)?;
        let second = (number(9..11)? * 60 + number(11..13)?) * 60 + number(13..15)?;
        let tick = u64::from_str_radix(&self.0[16..20], 16).ok()?;
        // Rounded up, so that its ticks are these again.
        let nanos = (tick * 1_000_000_000).div_ceil(1 << 16);
        let since = Duration::from_secs(days * 86_400 + second) + Duration::from_nanos(nanos);
        let moment = UNIX_EPOCH + since;
        (Self::new(moment, 0) == *self).then_some(moment)
    }

    /// A moment (UTC) as [`RunId::began`] writes it; `seconds` of the Unix era.
    pub fn clock(seconds: u64) -> String {
        Self::new(UNIX_EPOCH + Duration::from_secs(seconds.min(SECOND_MAX)), 0).began()
    }

    /// When it began (UTC), as in `2026-11-21 15:42:33`, as far as the name says.
    pub fn began(&self) -> String {
        let digits = &self.0;
        let date = [&digits[..4], &digits[4..6], &digits[6..8]].join("-");
        let time = [&digits[9..11], &digits[11..13], &digits[13..15]].join(":");
        format!("{date} {time}")
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunId {
    type Err = NotARunId;

    fn from_str(text: &str) -> Result<Self, NotARunId> {
        let is_digits =
            |part: &str, len| part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit());
        let is_hex = |part: &str| {
            part.len() == 4 && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let parts: Vec<&str> = text.split('-').collect();
        match parts[..] {
            [day, time, chance] if is_digits(day, 8) && is_digits(time, 6) && is_hex(chance) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(NotARunId { text: text.chars().take(80).collect() }),
        }
    }
}

/// Whether no name says that moment.
fn is_beyond(moment: SystemTime) -> bool {
    moment.duration_since(UNIX_EPOCH).is_ok_and(|since| since.as_secs() > SECOND_MAX)
}

/// Writes a second of the Unix era as `YYYYMMDD-HHMMSS` in UTC.
///
/// The date is Howard Hinnant's `civil_from_days`, with years that start in March.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Days of the Unix era of a date; the other way round, by `days_from_civil`.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = if month > 2 { month.checked_sub(3)? } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

/// Leaves the process number for a person to look at; nothing relies on it.
fn note_pid(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    let file = disk.open(path, Open::Write).map_err(fault("open", path))?;
    write_all(file.as_ref(), path, 0, format!("{}\n", std::process::id()).as_bytes())
}

fn check_name(name: &str) -> Result<&str, StoreError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty()
        || name.starts_with('.')
        || name.len() > NAME_BYTES_MAX
        || !name.chars().all(is_plain)
    {
        return Err(StoreError::BadName { name: name.chars().take(NAME_BYTES_MAX).collect() });
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_utc(seconds: u64, expect: &str) {
        assert_eq!(utc(seconds), expect);
    }

    #[test]
    fn times_are_utc() {
        // From `date -u -d @N +%Y%m%d-%H%M%S`.
        check_utc(0, "19700101-000000");
        check_utc(951_782_400, "20000229-000000");
        check_utc(1_795_275_753, "20261121-154233");
        check_utc(4_107_542_399, "21000228-235959");
        check_utc(4_107_542_400, "21000301-000000");
        check_utc(SECOND_MAX, "99991231-235959");
    }

    #[test]
    fn names_of_runs_sort_by_time() {
        let at = |second, ns| RunId::new(UNIX_EPOCH + std::time::Duration::new(second, ns), 0);
        assert_eq!(at(1_795_275_753, 0).as_str(), "20261121-154233-0000");
        assert_eq!(at(1_795_275_753, 500_000_000).as_str(), "20261121-154233-8000");
        assert_eq!(at(1_795_275_753, 999_999_999).as_str(), "20261121-154233-ffff");
        let late = UNIX_EPOCH + std::time::Duration::new(1_795_275_753, 999_999_999);
        assert_eq!(RunId::new(late, 1).as_str(), "20261121-154234-0000");
    }

    #[test]
    fn years_beyond_9999_have_no_names_of_their_own() {
        let last: RunId = "99991231-235959-ffff".parse().unwrap();
        for second in [SECOND_MAX + 1, 3_188_570_520_000] {
            let late = UNIX_EPOCH + Duration::from_secs(second);
            assert_eq!(RunId::new(late, 7), last);
            assert!(is_beyond(late));
        }
        assert!(!is_beyond(UNIX_EPOCH + Duration::from_secs(SECOND_MAX)) && !is_beyond(UNIX_EPOCH));
        assert_eq!(RunId::new(last.moment().unwrap(), 1), last);
        assert_eq!(RunId::clock(u64::MAX), "9999-12-31 23:59:59");
    }

    #[test]
    fn names_say_moments() {
        for second in [0, 951_782_400, 1_795_275_753, 4_107_542_399, 4_107_542_400] {
            for ns in [0, 1, 15_258, 15_259, 500_000_000, 999_999_999] {
                let id = RunId::new(UNIX_EPOCH + Duration::new(second, ns), 0);
                let moment = id.moment().unwrap();
                assert_eq!(RunId::new(moment, 0), id);
                assert!(RunId::new(moment, 1) > id);
            }
        }
        for odd in ["20261399-990099-0000", "99999999-999999-ffff", "00000000-000000-0000"] {
            assert_eq!(odd.parse::<RunId>().unwrap().moment(), None, "{odd}");
        }
    }

    #[test]
    fn names_of_runs_are_checked() {
        let id: RunId = "20261121-154233-1a2b".parse().unwrap();
        assert_eq!(id.began(), "2026-11-21 15:42:33");
        for bad in ["", "x", "20261121-154233", "20261121-154233-1A2B", "../../../../etc/passwd-1"]
        {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_files_stay_in_their_directory() {
        assert!(check_name("vision-engine.1.log").is_ok());
        for bad in ["", ".", "..", ".x", "a/b", "a\0", "é", &"x".repeat(201)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
