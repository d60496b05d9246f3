//! The words between supervisor and shim: one order in, one report out, each a line of JSON.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smelt_plan::plan::{Attempt, Stage};
use smelt_plan::tokens::Lease;
use smelt_plan::validity::Validity;
use smelt_plan::{StageId, StageName};
use smelt_watch::{Disks, Short};

use crate::confine::{Network, SHARED, Space, Strict, Way, Writes};
use crate::containers::Engines;

/// What the caller turns into a [`ProcessSpec`]: one attempt and where its inputs and output lie.
pub struct Task<'a> {
    /// The stage's place in its plan.
    pub id: StageId,
    /// The stage.
    pub stage: &'a Stage,
    /// Its params and caps on this attempt.
    pub attempt: &'a Attempt,
    /// The directory (or, for a `path:` file, the file) of each edge, in the order of the edges;
    /// of an `hf:`, where its files must be when the attempt has ended well.
    pub inputs: Vec<Input<'a>>,
    /// What it holds of what stages share.
    pub leases: &'a [Lease],
    /// The empty directory the attempt must fill.
    pub out: &'a Path,
    /// Where a stage whose kind keeps something finds what an earlier attempt has kept.
    pub kept: Option<&'a Path>,
}

/// One edge of a task.
pub struct Input<'a> {
    /// The field that names it.
    pub field: &'static str,
    /// The name a program knows it by; `None` for a `path:` and an `hf:`.
    pub name: Option<&'a StageName>,
    /// Where it lies.
    pub path: PathBuf,
}

/// The variable that names a file of a program's inputs.
pub(crate) const INPUTS_FILE: &str = "SMELT_INPUTS_FILE";

/// A program to run as a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The whole environment, besides what smelt adds.
    pub env: Vec<(String, String)>,
    /// Where it runs.
    pub dir: PathBuf,
    /// What it reads on its standard input.
    pub input: String,
    /// What the file that `SMELT_INPUTS_FILE` names lists, each with a NUL behind it; no such file for `None`.
    pub listed: Option<Vec<String>>,
    /// Paths under the output directory that must exist when it has ended well.
    pub outputs: Vec<String>,
    /// What some of them must be.
    pub validate: Vec<(String, Validity)>,
    /// Where it may write besides `dir` and a directory for temporary files: absolute, and there
    /// already.  `/` is everywhere.
    pub writes: Vec<PathBuf>,
    /// What it needs of root's rights besides those that builds use: names of
    /// [`smelt_plan::kind::CAPABILITIES`].
    pub capabilities: Vec<String>,
    /// What it may see, where it does not see everything.
    pub strict: Option<Strict>,
    /// Variables of `env` whose values are kept out of its log.
    pub secrets: Vec<String>,
}

impl ProcessSpec {
    /// What is not to be read by others.
    pub(crate) fn secret_values(&self) -> Vec<Vec<u8>> {
        let is_secret = |name: &String| self.secrets.contains(name);
        let values = self.env.iter().filter(|(name, _)| is_secret(name));
        values.map(|(_, value)| value.clone().into_bytes()).collect()
    }

    /// Everywhere it may write but devices; `scratch` is its directory for temporary files.
    pub(crate) fn places<'a>(&'a self, scratch: &'a Path) -> Vec<&'a Path> {
        let declared = self.writes.iter().map(PathBuf::as_path);
        [self.dir.as_path(), scratch].into_iter().chain(declared).collect()
    }

    /// Where it is started now: what lies in shared memory comes and goes.
    pub(crate) fn space(&self) -> Space {
        if self.writes.iter().any(|own| own == Path::new("/")) {
            return Space::Free;
        }
        match (self.capabilities.is_empty(), self.shares_memory()) {
            (true, false) if self.strict.is_some() => Space::Strict,
            (true, false) => Space::Own,
            (true, true) => Space::Shared,
            (false, false) => Space::OwnPrivileged,
            (false, true) => Space::SharedPrivileged,
        }
    }

    /// Whether it sees the machine's shared memory: where it declares that it writes there, or names what is there before it
    /// starts.  What it only makes there is its own.
    fn shares_memory(&self) -> bool {
        let mut places = self.writes.iter().chain([&self.dir]);
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        places.any(|place| place.starts_with(SHARED))
            || self.words().any(|word| shared_names(word).iter().any(is_there))
    }

    /// All that it is told.
    fn words(&self) -> impl Iterator<Item = &String> {
        let env = self.env.iter().map(|(_, value)| value);
        self.argv.iter().chain(env).chain(self.listed.iter().flatten())
    }

    /// Whether it names anything that lies beneath `folder`, as far as its words say.
    pub(crate) fn names_beneath(&self, folder: &str) -> bool {
        let folder = format!("{}/", folder.trim_end_matches('/'));
        let mut places = self.writes.iter().chain([&self.dir]);
        self.words().any(|word| word.contains(&folder))
            || places.any(|place| place.starts_with(&folder))
    }

    /// The disks that it may fill: of those places, and of another directory for temporary files
    /// where its environment names one.
    pub(crate) fn disks(&self, scratch: &Path) -> Disks {
        let named = self.env.iter().filter(|(name, _)| name == "TMPDIR");
        let temporary = named.map(|(_, path)| Path::new(path));
        Disks::of(self.places(scratch).into_iter().chain(temporary))
    }
}

/// The paths in shared memory that a word may name: up to its end, and up to what ends a word in a shell's line.
fn shared_names(word: &str) -> Vec<PathBuf> {
    let ends = |c: char| c.is_whitespace() || "\"'`;&|<>()$*?[]{},:=\\".contains(c);
    let folder = format!("{SHARED}/");
    let rests = word.match_indices(&folder).map(|(at, _)| &word[at + folder.len()..]);
    let names = rests.flat_map(|rest| [rest, rest.split(ends).next().unwrap_or_default()]);
    names.filter(|name| !name.is_empty()).map(|name| Path::new(SHARED).join(name)).collect()
}

/// What the shim is told: the order, and where its log and its temporary files go.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ShimOrder {
    pub(crate) order: ProcessSpec,
    pub(crate) log: PathBuf,
    /// The shim's directory for temporary files: made if it is not there, and left empty.
    pub(crate) scratch: PathBuf,
    /// The store: it is nobody's to write, though a place may hold it.
    pub(crate) store: PathBuf,
    /// It is not to be started where the kernel cannot hold it to what it declares.
    pub(crate) must_hold: bool,
    /// How long it may run, for the case that the supervisor cannot look.
    pub(crate) time_max: Option<Duration>,
    /// By whom containers are ended that it starts, where it could start some.
    pub(crate) engines: Option<Engines>,
}

/// How the stage's leader ended, as the shim saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShimReport {
    /// Its exit code, where it exited.
    pub exit: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// CPU seconds, user and system, of every process of the tree that was reaped.
    pub cpu_s: f64,
    /// The largest resident memory of one process of the tree, by the kernel's own count, which
    /// sees stages too short to be sampled.  An upper bound: the count begins with what the shim held
    /// at the fork, and with what stages it led before have taken.
    pub rss_process_peak_bytes: u64,
    /// Up to where that tells of the shim and of stages before, and nothing of this one: little more than what the shim
    /// itself has held, which is the least that is ever counted.
    #[serde(default)]
    pub carried_bytes: u64,
    /// Page faults of those processes that had to read from a disk.
    pub major_faults: u64,
    /// Processes that outlived the leader and were killed.
    pub leftovers: u32,
    /// How its writes were held to what it declares, where it was started.
    pub writes: Option<Writes>,
    /// By what, where they were confined.
    #[serde(default)]
    pub confined_by: Option<Way>,
    /// How a strict one was held to no network.
    #[serde(default)]
    pub network: Option<Network>,
    /// A disk that was short when the leader had ended, before anything of the stage was removed.
    pub short: Option<Short>,
    /// The shim has ended it, since its time was over and the supervisor was stopped.
    #[serde(default)]
    pub late: bool,
    /// Why the leader could not be started at all.
    pub spawn_error: Option<String>,
    /// Why its output could not be kept; the stage itself never notices.
    pub log_error: Option<String>,
}

impl ShimReport {
    /// Whether the shim may lead another stage: the kernel keeps one high-water mark for all children, and that of a larger
    /// stage would be taken for the next one's.
    pub(crate) fn is_small(&self) -> bool {
        self.rss_process_peak_bytes <= self.carried_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_word_names_paths_in_shared_memory() {
        let check = |word: &str, names: &[&str]| {
            let found = shared_names(word);
            assert!(names.iter().all(|name| found.contains(&name.into())), "{word}: {found:?}");
            assert_eq!(found.is_empty(), names.is_empty(), "{word}: {found:?}");
        };
        check("/dev/shm/a b/c", &["/dev/shm/a b/c"]);
        check("cat </dev/shm/a>/dev/shm/b; ls", &["/dev/shm/a", "/dev/shm/b"]);
        check("x=\"/dev/shm/a\"", &["/dev/shm/a"]);
        check("cd /dev/shm; ls /dev/shm/", &[]);
    }

    /// What is only made there is nobody's business.
    #[test]
    fn what_lies_in_shared_memory_is_shared_and_what_will_is_not() {
        let name = format!("/dev/shm/smelt-order-{}", std::process::id());
        let mut spec = ProcessSpec {
            argv: vec!["sh".to_owned(), "-c".to_owned(), format!("echo x > {name}")],
            env: Vec::new(),
            dir: "/nowhere".into(),
            input: String::new(),
            listed: None,
            outputs: Vec::new(),
            validate: Vec::new(),
            writes: Vec::new(),
            capabilities: Vec::new(),
            strict: None,
            secrets: Vec::new(),
        };
        assert_eq!(spec.space(), Space::Own);
        fs::write(&name, "").unwrap();
        assert_eq!(spec.space(), Space::Shared);
        fs::remove_file(&name).unwrap();
        spec.writes = vec![SHARED.into()];
        assert_eq!(spec.space(), Space::Shared);
        spec.capabilities = vec!["sys-nice".to_owned()];
        assert_eq!(spec.space(), Space::SharedPrivileged);
        spec.writes = vec!["/".into()];
        assert_eq!(spec.space(), Space::Free);
    }
}
