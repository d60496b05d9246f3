//! Makes an output directory appear whole or not at all: work goes into a sibling, renamed last.
//!
//! A command that is interrupted takes its siblings with it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::console::tell;
use crate::exit::{Exit, Failed};

/// The directories under construction; whoever holds the lock may make or remove one.
static UNDER_WORK: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// How often a directory is removed that a worker still writes into.
const REMOVALS_MAX: usize = 100;

/// A directory under construction; dropped without [`AtomicDir::finish`], it is gone.
pub(crate) struct AtomicDir {
    work: PathBuf,
    target: PathBuf,
}

impl AtomicDir {
    /// Begins the directory `target`, which must not exist.
    pub(crate) fn begin(target: &Path) -> Result<Self, Failed> {
        let name = target.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Failed::usage(format!("--out {}: name a directory to make", target.display()))
        })?;
        if target.symlink_metadata().is_ok() {
            return Err(Failed::usage(format!(
                "--out {} exists already; remove it or name another",
                target.display()
            )));
        }
        let work = target.with_file_name(format!(".{name}.smelt-{}", std::process::id()));
        clean_up_when_interrupted();
        let mut all = under_work();
        fs::create_dir(&work).map_err(|error| cannot("make", &work, &error))?;
        all.push(work.clone());
        Ok(Self { work, target: target.to_owned() })
    }

    /// Begins a directory beside `out` that is never finished: it is gone when it is dropped.
    pub(crate) fn scratch(out: &Path) -> Result<Self, Failed> {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        Self::begin(&out.with_file_name(format!("{name}.checkpoint-{}", std::process::id())))
    }

    /// Where to write.
    pub(crate) fn path(&self) -> &Path {
        &self.work
    }

    /// Makes what was written durable, and visible under its name.
    pub(crate) fn finish(self) -> Result<(), Failed> {
        let made = self.work.clone();
        self.finish_with(&made)
    }

    /// [`AtomicDir::finish`] with `made`, a directory inside, alone.
    pub(crate) fn finish_with(self, made: &Path) -> Result<(), Failed> {
        sync(made).map_err(|error| cannot("sync", made, &error))?;
        let mut all = under_work();
        fs::rename(made, &self.target)
            .map_err(|error| cannot("put in place", &self.target, &error))?;
        all.retain(|work| *work != self.work);
        drop(all);
        // Some file systems cannot sync a folder; the rename itself has succeeded.
        let _ =
            self.target.parent().map(File::open).map(|folder| folder.and_then(|f| f.sync_all()));
        Ok(())
    }
}

impl Drop for AtomicDir {
    fn drop(&mut self) {
        // After `finish` there is nothing under this name any more.
        let _ = fs::remove_dir_all(&self.work);
        under_work().retain(|work| *work != self.work);
    }
}

fn under_work() -> MutexGuard<'static, Vec<PathBuf>> {
    // A panic elsewhere leaves whole paths.
    UNDER_WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on no interrupt ends the process: what it does has no way but forward, and is short.
pub(crate) fn go_through() {
    for signal in [SIGINT, SIGTERM] {
        // Where signals cannot be listened for, nothing is lost but this.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// From now on an interrupt removes what is under work and ends the process.  A machine that cannot
/// listen for signals is left to its ways.
fn clean_up_when_interrupted() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) {
            thread::spawn(move || {
                if signals.forever().next().is_some() {
                    interrupted();
                }
            });
        }
    });
}

/// Never gives the lock back: nothing may be put in place after this.
fn interrupted() -> ! {
    let all = under_work();
    for work in all.iter() {
        let gone = |_: &usize| fs::remove_dir_all(work).is_ok() || !work.exists();
        let _ = (0..REMOVALS_MAX).find(gone);
    }
    tell("smelt: stopped; nothing was made");
    std::process::exit(Exit::Interrupted as i32)
}

fn sync(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failed {
    Failed::new(Exit::StageFailed, format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(&folder).unwrap().count();
        let target = folder.path().join("out");
        let fresh = AtomicDir::begin(&target).unwrap();
        fs::write(fresh.path().join("f"), "half").unwrap();
        assert!(!target.exists());
        drop(fresh);
        assert_eq!(names(), 0, "what was not finished is gone");
        let fresh = AtomicDir::begin(&target).unwrap();
        fs::write(fresh.path().join("f"), "whole").unwrap();
        fresh.finish().unwrap();
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "whole");
        assert_eq!(names(), 1);
        assert!(AtomicDir::begin(&target).is_err(), "nothing is overwritten");
    }
}
