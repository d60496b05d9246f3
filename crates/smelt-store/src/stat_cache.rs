//! Remembers which digest a file had when it looked as it looks now.
//!
//! Facts about a file (size, times, inode) lead to its digest, if [`Remembered::is_proof`] says
//! they may.  The cache is one file, rewritten whole; it may be lost or torn at any time, so no
//! failure to read or write it is an error.  Never opens the files it speaks of.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::disk::{Disk, Moment, Open, Stat, read_small, write_all};

/// About 300 bytes each in memory and on disk, so 5 MiB at most.
const ENTRIES_MAX: usize = 65_536;
/// Paths longer than the system allows for one name chain are not worth remembering.
const LINE_BYTES_MAX: u64 = 8 << 10;
/// A file changed again within one tick of its clock keeps its times.  The coarsest clock of a
/// file system we may meet (FAT) ticks every 2 s.
pub(crate) const TICK_NS: i64 = 2_000_000_000;
/// Content that was in memory only may be lost in a power cut while size and times survive.  The
/// kernel writes back after 30 s; this leaves it four times as long.
const SETTLED_NS: i64 = 120_000_000_000;

/// Whose file it is, and so what its facts prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The user's: may be written at any moment.
    User,
    /// The store's: sealed and synced, written by nobody, and verified once in every boot.
    Store,
}

/// A digest and the circumstances in which it was computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    path: String,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    inode: u64,
    sha256: Digest,
    /// When hashing ended.
    seen_ns: i64,
    boot: String,
}

impl Remembered {
    fn new(path: String, stat: &Stat, sha256: Digest, moment: Moment) -> Self {
        let Stat { size, mtime_ns, ctime_ns, inode, .. } = *stat;
        let Moment { now_ns: seen_ns, boot, .. } = moment;
        Self { path, size, mtime_ns, ctime_ns, inode, sha256, seen_ns, boot }
    }

    /// Whether a file that looks like `stat` in the boot `boot` certainly has this digest.
    fn is_proof(&self, stat: &Stat, owner: Owner, boot: &str) -> bool {
        let looks_the_same = (self.size, self.mtime_ns, self.ctime_ns, self.inode)
            == (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode);
        let age_ns = self.seen_ns.saturating_sub(self.mtime_ns.max(self.ctime_ns));
        let same_boot = self.boot == boot;
        looks_the_same
            && match owner {
                Owner::Store => same_boot,
                Owner::User => age_ns > if same_boot { TICK_NS } else { SETTLED_NS },
            }
    }
}

/// The cache, in memory and on disk.
pub(crate) struct StatCache {
    path: PathBuf,
    /// `None` until somebody asks: a run may have nothing to hash.
    entries: Option<HashMap<String, Remembered>>,
    /// Whether there is something to save.
    is_dirty: bool,
}

impl StatCache {
    /// The cache in that file, which is read when it is first asked for.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, entries: None, is_dirty: false }
    }

    /// What is missing or damaged in the file is simply not remembered.
    fn entries(&mut self, disk: &dyn Disk) -> &mut HashMap<String, Remembered> {
        self.entries.get_or_insert_with(|| read_entries(disk, &self.path))
    }

    pub(crate) fn find(
        &mut self,
        disk: &dyn Disk,
        path: &Path,
        stat: &Stat,
        owner: Owner,
        boot: &str,
    ) -> Option<Digest> {
        let found = self.entries(disk).get(path.to_str()?)?;
        found.is_proof(stat, owner, boot).then_some(found.sha256)
    }

    pub(crate) fn remember(&mut self, disk: &dyn Disk, path: &Path, stat: &Stat, sha256: Digest) {
        let Some(path) = path.to_str() else { return };
        let entry = Remembered::new(path.to_owned(), stat, sha256, disk.moment());
        self.entries(disk).insert(path.to_owned(), entry);
        self.is_dirty = true;
    }

    /// Writes the cache if it has news, together with what other runs saved meanwhile.
    pub(crate) fn save(&mut self, disk: &dyn Disk) {
        if !self.is_dirty {
            return;
        }
        let theirs = read_entries(disk, &self.path);
        let all = self.entries(disk);
        for (path, theirs) in theirs {
            if all.get(&path).is_none_or(|ours| ours.seen_ns < theirs.seen_ns) {
                all.insert(path, theirs);
            }
        }
        forget_oldest(all);
        // A cache: neither synced nor missed.
        self.is_dirty = self.write(disk).is_none();
    }

    fn write(&self, disk: &dyn Disk) -> Option<()> {
        let mut text = String::new();
        let mut entries: Vec<&Remembered> = self.entries.iter().flat_map(HashMap::values).collect();
        // In one order for one content, so that a simulated run replays.
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        for entry in entries {
            let json = serde_json::to_string(entry).ok()?;
            text += &format!("{} {json}\n", Digest::of(json.as_bytes()).short());
        }
        let draft = self.path.with_extension("new");
        let file = disk.open(&draft, Open::Write).ok()?;
        file.truncate(0).ok()?;
        write_all(file.as_ref(), &draft, 0, text.as_bytes()).ok()?;
        disk.rename(&draft, &self.path).ok()
    }
}

fn forget_oldest(entries: &mut HashMap<String, Remembered>) {
    if entries.len() <= ENTRIES_MAX {
        return;
    }
    let mut seen: Vec<i64> = entries.values().map(|entry| entry.seen_ns).collect();
    // Down to three quarters, so that this is not done again at once.
    let surplus = seen.len() - ENTRIES_MAX / 4 * 3;
    let (_, &mut newest_forgotten, _) = seen.select_nth_unstable(surplus - 1);
    entries.retain(|_, entry| entry.seen_ns > newest_forgotten);
}

fn read_entries(disk: &dyn Disk, path: &Path) -> HashMap<String, Remembered> {
    let bytes = read_small(disk, path, ENTRIES_MAX as u64 * LINE_BYTES_MAX).ok().flatten();
    let text = bytes.unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n').take(2 * ENTRIES_MAX);
    lines.filter_map(parse).map(|entry| (entry.path.clone(), entry)).collect()
}

fn parse(line: &[u8]) -> Option<Remembered> {
    let (check, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (Digest::of(json.as_bytes()).short() == check).then(|| serde_json::from_str(json).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FileKind;

    const SECOND_NS: i64 = 1_000_000_000;

    fn stat(ctime_s: i64) -> Stat {
        Stat {
            kind: FileKind::File,
            size: 5,
            mtime_ns: 0,
            ctime_ns: ctime_s * SECOND_NS,
            inode: 7,
            links: 1,
            mode: 0o644,
        }
    }

    /// A file last changed at second 1000, hashed `age_s` later, looked up in the boot `boot`.
    #[track_caller]
    fn check(age_s: i64, owner: Owner, boot: &str, expect: bool) {
        let moment = Moment { now_ns: (1000 + age_s) * SECOND_NS, boot: "this".to_owned() };
        let entry = Remembered::new("/f".to_owned(), &stat(1000), Digest::of(b""), moment);
        assert_eq!(entry.is_proof(&stat(1000), owner, boot), expect);
    }

    #[test]
    fn a_fresh_file_of_the_user_may_change_within_a_tick() {
        check(1, Owner::User, "this", false);
    }

    #[test]
    fn an_older_file_of_the_user_is_known() {
        check(3, Owner::User, "this", true);
    }

    #[test]
    fn a_file_not_yet_written_back_may_be_lost_in_a_reboot() {
        check(3, Owner::User, "next", false);
    }

    #[test]
    fn a_settled_file_is_known_for_ever() {
        check(121, Owner::User, "next", true);
    }

    #[test]
    fn a_clock_that_went_backwards_proves_nothing() {
        check(-500, Owner::User, "this", false);
    }

    #[test]
    fn a_sealed_file_is_verified_once_in_every_boot() {
        check(0, Owner::Store, "this", true);
        check(1000, Owner::Store, "next", false);
    }

    #[test]
    fn every_fact_counts() {
        let moment = Moment { now_ns: 5000 * SECOND_NS, boot: "this".to_owned() };
        let entry = Remembered::new("/f".to_owned(), &stat(1000), Digest::of(b""), moment);
        for other in [
            Stat { size: 6, ..stat(1000) },
            Stat { mtime_ns: 1, ..stat(1000) },
            stat(1001),
            Stat { inode: 8, ..stat(1000) },
        ] {
            assert!(!entry.is_proof(&other, Owner::User, "this"), "{other:?}");
        }
    }

    #[test]
    fn the_cache_is_bounded() {
        let entry = |n: usize| {
            let moment = Moment { now_ns: n as i64, boot: String::new() };
            (format!("/{n}"), Remembered::new(format!("/{n}"), &stat(0), Digest::of(b""), moment))
        };
        let mut entries: HashMap<_, _> = (0..=ENTRIES_MAX).map(entry).collect();
        forget_oldest(&mut entries);
        assert_eq!(entries.len(), ENTRIES_MAX / 4 * 3);
        assert!(entries.contains_key(&format!("/{ENTRIES_MAX}")));
    }
}
