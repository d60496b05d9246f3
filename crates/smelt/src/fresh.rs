//! Makes an output directory appear whole or not at all: work goes into a sibling, renamed last.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failed};

/// A directory under construction; dropped without [`FreshDir::finish`], it is gone.
pub(crate) struct FreshDir {
    work: PathBuf,
    target: PathBuf,
}

impl FreshDir {
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
        fs::create_dir(&work).map_err(|error| cannot("make", &work, &error))?;
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
        sync(&self.work).map_err(|error| cannot("sync", &self.work, &error))?;
        fs::rename(&self.work, &self.target)
            .map_err(|error| cannot("put in place", &self.target, &error))?;
        // Some file systems cannot sync a folder; the rename itself has succeeded.
        let _ =
            self.target.parent().map(File::open).map(|folder| folder.and_then(|f| f.sync_all()));
        Ok(())
    }
}

impl Drop for FreshDir {
    fn drop(&mut self) {
        // After `finish` there is nothing under this name any more.
        let _ = fs::remove_dir_all(&self.work);
    }
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
        let fresh = FreshDir::begin(&target).unwrap();
        fs::write(fresh.path().join("f"), "half").unwrap();
        assert!(!target.exists());
        drop(fresh);
        assert_eq!(names(), 0, "what was not finished is gone");
        let fresh = FreshDir::begin(&target).unwrap();
        fs::write(fresh.path().join("f"), "whole").unwrap();
        fresh.finish().unwrap();
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "whole");
        assert_eq!(names(), 1);
        assert!(FreshDir::begin(&target).is_err(), "nothing is overwritten");
    }
}
