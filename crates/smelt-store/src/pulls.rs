//! Keeps what was fetched of an output until all of it is there, and what a stage has found out, whoever was killed meanwhile.

use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::digest::Digest;
use crate::disk::{fault, make_dir, present, remove_tree};
use crate::layout::{Layout, names};
use crate::store::{Store, StoreError};

/// Ends the name of what [`Store::pull_log`] gives.
const PLACES: &str = ".places";

impl Store {
    /// Beside the directory of [`Store::pull_dir`], where whoever fetches notes what has come, for those who serve it.
    pub fn pull_log(&self, key: &Digest) -> PathBuf {
        self.layout().pulls().join(format!("{key}{PLACES}"))
    }

    /// The pulls of the store in `root` that are noted so: their logs, and their directories.  Nobody has to open it for that.
    pub fn pull_logs(root: &Path) -> Vec<(PathBuf, PathBuf)> {
        let pulls = Layout::new(root.to_owned()).pulls();
        let one = |entry: DirEntry| {
            let name = entry.file_name();
            let key: Digest = name.to_str()?.strip_suffix(PLACES)?.parse().ok()?;
            Some((entry.path(), pulls.join(key.to_string())))
        };
        // Without the folder there is none.
        let entries = fs::read_dir(&pulls).into_iter().flatten().flatten();
        entries.filter_map(one).collect()
    }

    /// Where the output of a key is fetched to; what an earlier call left there stays.  Whoever writes there holds the key's
    /// lock ([`Store::try_lock_key`]), and seals the directory in the end.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn pull_dir(&self, key: &Digest) -> Result<PathBuf, StoreError> {
        self.begin_pulls()?;
        let dir = self.layout().pulls().join(key.to_string());
        make_dir(self.disk(), &dir)?;
        // Whoever goes on writes into files that are there, which leaves no mark on the directory.
        let _ = File::open(&dir).and_then(|dir| dir.set_modified(SystemTime::now()));
        Ok(dir)
    }

    /// Where a stage of this key keeps what it has found out, whatever ends it; what an earlier attempt left there stays.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn kept_dir(&self, key: &Digest) -> Result<PathBuf, StoreError> {
        self.refuse_read_only("keep")?;
        make_dir(self.disk(), &self.layout().kept())?;
        let dir = self.layout().kept().join(key.to_string());
        make_dir(self.disk(), &dir)?;
        let _ = File::open(&dir).and_then(|dir| dir.set_modified(SystemTime::now()));
        Ok(dir)
    }

    /// Removes that, once the stage is sealed.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove_kept(&self, key: &Digest) -> Result<(), StoreError> {
        let dir = self.layout().kept().join(key.to_string());
        if self.disk().lstat(&dir).is_ok() {
            remove_tree(self.disk(), &dir)?;
        }
        Ok(())
    }

    /// Notes that outputs of others are to be sealed: see [`Store::has_pulls`].
    ///
    /// # Errors
    /// If that cannot be noted.
    pub fn begin_pulls(&self) -> Result<(), StoreError> {
        self.refuse_read_only("fetch")?;
        make_dir(self.disk(), &self.layout().pulls())?;
        Ok(())
    }

    /// Whether an output of this store may have come from elsewhere; whoever asks on the way to each run has to ask nothing more.
    pub fn has_pulls(&self) -> bool {
        self.disk().lstat(&self.layout().pulls()).is_ok()
    }

    /// Removes what nobody has gone on with for so long, and what stages have kept for so long.
    ///
    /// # Errors
    /// If it cannot be listed or removed.
    pub fn clear_pulls(&self, age: Duration, now: SystemTime) -> Result<(), StoreError> {
        self.refuse_read_only("clear")?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = i64::try_from(now.saturating_sub(age).as_nanos()).unwrap_or(i64::MAX);
        for folder in [self.layout().pulls(), self.layout().kept()] {
            self.clear_old(&folder, since)?;
        }
        Ok(())
    }

    fn clear_old(&self, folder: &Path, since_ns: i64) -> Result<(), StoreError> {
        let disk = self.disk();
        if disk.lstat(folder).is_err() {
            return Ok(());
        }
        for name in names(disk, folder)? {
            let Ok(key) = name.trim_end_matches(PLACES).parse::<Digest>() else { continue };
            let Some(_lock) = self.try_lock_key(&key)? else { continue };
            let path = folder.join(&name);
            let Some(stat) = present(disk.lstat(&path)).map_err(fault("look at", &path))? else {
                continue;
            };
            if stat.mtime_ns < since_ns {
                remove_tree(disk, &path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Wait;

    #[test]
    fn what_a_stage_keeps_is_none_of_its_output_and_goes_when_that_is_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        let key = Digest::of(b"a stage");
        store.remove_kept(&key).unwrap();
        fs::write(store.kept_dir(&key).unwrap().join("found"), "half").unwrap();
        assert!(!store.has_pulls(), "nothing came from elsewhere");
        let (day, now) = (Duration::from_secs(86_400), SystemTime::now());
        store.clear_pulls(day, now).unwrap();
        assert!(store.kept_dir(&key).unwrap().join("found").exists());
        store.remove_kept(&key).unwrap();
        assert!(!store.kept_dir(&key).unwrap().join("found").exists());
        fs::write(store.kept_dir(&key).unwrap().join("found"), "half").unwrap();
        store.clear_pulls(day, now + 2 * day).unwrap();
        assert!(!store.kept_dir(&key).unwrap().join("found").exists());
    }

    #[test]
    fn what_was_fetched_stays_until_nobody_goes_on_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        let (day, now) = (Duration::from_secs(86_400), SystemTime::now());
        store.clear_pulls(day, now).unwrap();
        let [held, left] = [b"held", b"left"].map(|name| Digest::of(name));
        for tree in [held, left] {
            fs::write(store.pull_dir(&tree).unwrap().join("file"), "half").unwrap();
            fs::write(store.pull_log(&tree), "a log").unwrap();
        }
        assert_eq!(Store::pull_logs(dir.path()).len(), 2);
        store.clear_pulls(day, now).unwrap();
        assert!(store.pull_dir(&left).unwrap().join("file").exists());
        let lock = store.try_lock_key(&held).unwrap();
        store.clear_pulls(day, now + 2 * day).unwrap();
        assert!(store.pull_dir(&held).unwrap().join("file").exists());
        assert!(!store.pull_dir(&left).unwrap().join("file").exists());
        let held = (store.pull_log(&held), store.pull_dir(&held).unwrap());
        assert_eq!(Store::pull_logs(dir.path()), [held]);
        drop(lock);
    }
}
