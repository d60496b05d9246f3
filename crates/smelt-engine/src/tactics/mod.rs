//! Holds how an engine is best run on one machine, and of which machines that is true.
//!
//! [`Tactics::tune`] times what there is to choose between; the choice is kept as `tactics.json`,
//! without the times, so that tuning again and choosing the same changes nothing.  An engine that was
//! built with tactics follows them on machines equal to the one they were found on.  They change how
//! fast numbers come, never the numbers.

mod measure;

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use serde::{Deserialize, Serialize};
use smelt_backend::tactics_file::{self, TacticsError};

use crate::kernels::isa::Isa;
use crate::kernels::threads::Threads;
pub use measure::ProductRates;

/// Version of that file.
const FORMAT: u32 = 1;
/// A longer file was not written by us.
const FILE_BYTES_MAX: usize = 64 << 10;
/// Threads and tokens beyond these are no choice that tuning makes.
const THREADS_MAX: usize = 64;
const CHUNK_TOKENS_MAX: usize = 1024;

/// What makes two machines equal here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineFacts {
    /// The processor's architecture.
    pub arch: String,
    /// Instruction sets it has kernels for, the widest last.
    pub paths: Vec<String>,
    /// Processors that a process is given.
    pub cores: usize,
    /// Sizes of one processor's caches, nearest first, as the kernel tells them.
    pub caches: Vec<String>,
}

impl MachineFacts {
    /// Those of this machine.
    pub fn here() -> Self {
        Self {
            arch: std::env::consts::ARCH.to_owned(),
            paths: Isa::all().into_iter().map(|isa| isa.name().to_owned()).collect(),
            cores: thread::available_parallelism().map_or(1, NonZero::get),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        }
    }
}

/// `level type size` of each cache in the kernel's folder; none where it does not tell.
fn caches(folder: &Path) -> Vec<String> {
    let read = |index: usize, name: &str| {
        let text = fs::read_to_string(folder.join(format!("index{index}/{name}"))).ok()?;
        Some(text.trim().to_owned())
    };
    let cache = |index| {
        let [level, kind, size] = ["level", "type", "size"].map(|name| read(index, name));
        Some(format!("L{} {} {}", level?, kind?, size?))
    };
    (0..).map_while(cache).collect()
}

/// How to run an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tactics {
    format: u32,
    /// Where they were found.
    pub machine: MachineFacts,
    /// The instruction set to use.
    pub path: String,
    /// Threads of an engine.
    pub threads: usize,
    /// Prompt tokens computed at a time.
    pub chunk_tokens: usize,
}

impl Tactics {
    /// Times the choices on this machine, which takes seconds; `progress` hears what each took, with the share
    /// that is timed.
    pub fn tune(progress: &mut dyn FnMut(&str)) -> Self {
        let timed = &mut measure::Timed::new(progress);
        let (isa, threads) = measure::step(timed);
        let chunk_tokens = measure::chunk(isa, threads, timed);
        let (machine, path) = (MachineFacts::here(), isa.name().to_owned());
        Self { format: FORMAT, machine, path, threads, chunk_tokens }
    }

    /// Writes them into `dir`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), TacticsError> {
        tactics_file::write(dir, self)
    }

    /// Reads those in `dir`.
    ///
    /// # Errors
    /// When there are none, or not of this version.
    pub fn read(dir: &Path) -> Result<Self, TacticsError> {
        tactics_file::read(dir, "this version", Self::parse)
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("it is longer than {FILE_BYTES_MAX} bytes"));
        }
        let tactics: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        tactics.check()?;
        Ok(tactics)
    }

    /// Whether they can be followed anywhere.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { format, threads, chunk_tokens, .. } = *self;
        if format != FORMAT {
            return Err(format!("tactics of format {format}, not {FORMAT}"));
        }
        if !(1..=THREADS_MAX).contains(&threads) || !(1..=CHUNK_TOKENS_MAX).contains(&chunk_tokens)
        {
            return Err(format!(
                "tactics of {threads} threads and {chunk_tokens} tokens at a time"
            ));
        }
        if !self.machine.paths.contains(&self.path) {
            return Err(format!("tactics of a path {:?} that their machine lacks", self.path));
        }
        Ok(())
    }

    /// The instruction set they name, if this machine is equal to theirs; else how it differs.
    pub(crate) fn here(&self, here: &MachineFacts) -> Result<Isa, String> {
        let their = &self.machine;
        let differs = |what: &str, their: String, here: String| {
            Err(format!(
                "the engine was tuned for a machine of {what} {their}, this one has {here}"
            ))
        };
        let list = |words: &[String]| words.join(", ");
        if their.arch != here.arch {
            return differs("architecture", their.arch.clone(), here.arch.clone());
        }
        if their.cores != here.cores {
            return differs("cores", their.cores.to_string(), here.cores.to_string());
        }
        if their.paths != here.paths {
            return differs("instruction sets", list(&their.paths), list(&here.paths));
        }
        if their.caches != here.caches {
            return differs("caches", list(&their.caches), list(&here.caches));
        }
        let isa = Isa::all().into_iter().find(|isa| isa.name() == self.path);
        isa.ok_or_else(|| format!("this processor has no path {:?}", self.path))
    }
}

/// What an engine runs on.
pub(crate) struct ExecutionConfig {
    pub(crate) isa: Isa,
    pub(crate) threads: Threads,
    /// Why tactics are not followed, if there are some and they are not.
    pub(crate) untuned: Option<String>,
}

impl ExecutionConfig {
    /// As `tactics` say, where this machine is equal to theirs; else all that it has.
    pub(crate) fn by(tactics: Option<&Tactics>) -> Self {
        match tactics.map(|tactics| (tactics, tactics.here(&MachineFacts::here()))) {
            Some((tactics, Ok(isa))) => {
                Self { isa, threads: Threads::new(tactics.threads), untuned: None }
            }
            other => {
                let untuned = other.and_then(|(_, here)| here.err());
                Self { isa: Isa::detect(), threads: Threads::available(), untuned }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tactics() -> Tactics {
        let machine = MachineFacts::here();
        let path = machine.paths[0].clone();
        Tactics { format: FORMAT, machine, path, threads: 1, chunk_tokens: 64 }
    }

    #[test]
    fn what_is_written_reads_back_and_holds_here() {
        let dir = tempfile::tempdir().unwrap();
        let tactics = tactics();
        tactics.write(dir.path()).unwrap();
        let read = Tactics::read(dir.path()).unwrap();
        assert_eq!(read, tactics);
        assert_eq!(read.here(&MachineFacts::here()).map(Isa::name), Ok(tactics.path.as_str()));
    }

    #[track_caller]
    fn check_bad(change: impl Fn(&mut Tactics), words: &str) {
        let mut tactics = tactics();
        change(&mut tactics);
        let text = serde_json::to_string(&tactics).unwrap();
        let error = Tactics::parse(&text).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn lies_are_found() {
        check_bad(|tactics| tactics.format = 2, "format 2");
        check_bad(|tactics| tactics.threads = 0, "0 threads");
        check_bad(|tactics| tactics.chunk_tokens = 1 << 20, "1048576 tokens");
        check_bad(|tactics| tactics.path = "mmx".to_owned(), "\"mmx\"");
        assert!(Tactics::parse("{}").is_err());
    }

    #[track_caller]
    fn check_other(change: impl Fn(&mut MachineFacts), words: &str) {
        let mut here = MachineFacts::here();
        change(&mut here);
        let why = tactics().here(&here).unwrap_err();
        assert!(why.contains(words) && !why.contains('\n'), "{why}");
    }

    #[test]
    fn another_machine_is_told_apart() {
        check_other(|here| here.arch = "riscv64".to_owned(), "architecture");
        check_other(|here| here.cores += 1, "cores");
        check_other(|here| here.paths.push("amx".to_owned()), "amx");
        check_other(|here| here.caches.push("L4 Unified 1G".to_owned()), "L4");
    }

    #[test]
    fn caches_are_read_from_the_kernels_folder() {
        let dir = tempfile::tempdir().unwrap();
        for (index, level, kind, size) in [(0, "1", "Data", "48K"), (1, "2", "Unified", "1M")] {
            let folder = dir.path().join(format!("index{index}"));
            fs::create_dir(&folder).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }
        assert_eq!(caches(dir.path()), ["L1 Data 48K", "L2 Unified 1M"]);
        assert!(caches(&dir.path().join("none")).is_empty());
    }
}
