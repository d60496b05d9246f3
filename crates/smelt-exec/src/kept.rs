//! Files that a shim writes for every stage, and keeps open.
//!
//! Of each that is opened to be written the kernel asks a thread of the shim first (`confine::names`), which takes longer than
//! writing does.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::confine::{self, AppliedConfinement, Bounds};
use crate::order::{INPUTS_FILE, ProcessSpec};

/// Stages are killed before the supervisor when the machine runs out of memory.  Raising needs no
/// capability; lowering the supervisor's would.
const OOM_SCORE_ADJ: &str = "500";
/// A sign, digits and the end of the line.
const SCORE_BYTES_MAX: usize = 8;

pub(crate) struct KeptFiles {
    /// How soon this process is killed; none where the kernel refuses.
    score: Option<File>,
    /// The list of inputs of the stage before, and where it is.
    inputs: Option<(PathBuf, File)>,
}

impl KeptFiles {
    /// Before the kernel asks about any file.
    pub(crate) fn open() -> Self {
        let score = File::options().read(true).write(true).open("/proc/self/oom_score_adj").ok();
        Self { score, inputs: None }
    }

    /// Writes the list of inputs beside the directory for temporary files, where a program does not clear
    /// it away; the variable that names it.
    pub(crate) fn list(
        &mut self,
        order: &ProcessSpec,
        scratch: &Path,
    ) -> io::Result<Option<(&'static str, PathBuf)>> {
        let Some(inputs) = &order.listed else { return Ok(None) };
        if inputs.is_empty() {
            return Ok(Some((INPUTS_FILE, "/dev/null".into())));
        }
        let path = listed(scratch);
        let text: String = inputs.iter().flat_map(|input| [input.as_str(), "\0"]).collect();
        self.rewrite(&path, text.as_bytes()).map_err(|error| {
            let what = format!("cannot write the list of inputs {}: {error}", path.display());
            io::Error::new(error.kind(), what)
        })?;
        Ok(Some((INPUTS_FILE, path)))
    }

    /// Writes a file that may be there from the stage before.  Cut to nothing first, as `fs::write` does, ext4 would write it out
    /// when it is closed, which costs more than many a stage.
    fn rewrite(&mut self, path: &Path, text: &[u8]) -> io::Result<()> {
        // A stage that is confined by nothing could have put another there.
        let file_id = |meta: Metadata| (meta.dev(), meta.ino());
        let is_there = |file: &File| {
            let kept = file.metadata().ok().map(file_id);
            kept.is_some() && kept == fs::symlink_metadata(path).ok().map(file_id)
        };
        let last = self.inputs.take().filter(|(at, file)| at == path && is_there(file));
        let file = match last {
            Some((_, file)) => file,
            None => File::options().write(true).create(true).truncate(false).open(path)?,
        };
        file.write_all_at(text, 0)?;
        file.set_len(text.len() as u64)?;
        self.inputs = Some((path.to_owned(), file));
        Ok(())
    }

    /// A child inherits how soon it is killed when memory runs out.  Raising the score needs no right,
    /// nor does taking back what was raised; where the kernel refuses, the stage runs with ours.
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        bounds: Bounds<'_>,
    ) -> io::Result<(Child, AppliedConfinement)> {
        let own = self.raise_score();
        let child = confine::spawn(command, bounds);
        if let (Some(score), Some(own)) = (&self.score, own) {
            let _ = score.write_all_at(&own, 0);
        }
        child
    }

    /// What the score was, where it was raised.
    fn raise_score(&self) -> Option<Vec<u8>> {
        let score = self.score.as_ref()?;
        let mut own = [0; SCORE_BYTES_MAX];
        let length = score.read_at(&mut own, 0).ok()?;
        score.write_all_at(OOM_SCORE_ADJ.as_bytes(), 0).ok()?;
        Some(own[..length].to_vec())
    }
}

/// The file that lists an attempt's inputs.
pub(crate) fn listed(scratch: &Path) -> PathBuf {
    scratch.with_extension("inputs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_there_whatever_became_of_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let mut kept = KeptFiles::open();
        for (path, text) in [(&one, "a long list"), (&one, "short"), (&other, "x"), (&one, "y")] {
            kept.rewrite(path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), text);
        }
        fs::remove_file(&one).unwrap();
        kept.rewrite(&one, b"anew").unwrap();
        assert_eq!(fs::read_to_string(&one).unwrap(), "anew");
        fs::rename(&one, &other).unwrap();
        kept.rewrite(&one, b"own").unwrap();
        let texts = [&one, &other].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(texts, ["own", "anew"], "what was moved away is somebody else's");
    }

    #[test]
    fn a_child_alone_is_killed_sooner() {
        let score = |process: &str| fs::read_to_string(format!("/proc/{process}/oom_score_adj"));
        let before = score("self").unwrap();
        if before.trim().parse::<i32>().unwrap() > 500 {
            return println!("not run: this process is killed sooner already");
        }
        let anywhere = Bounds { places: &[Path::new("/")], ..Bounds::default() };
        let (mut child, _) =
            KeptFiles::open().spawn(Command::new("sleep").arg("9"), anywhere).unwrap();
        let of_child = score(&child.id().to_string()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((of_child.trim(), score("self").unwrap()), (OOM_SCORE_ADJ, before));
    }
}
