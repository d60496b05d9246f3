//! A control group in which smelt runs as on a small machine.

use std::fs;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{World, until};

/// What the harness does not swallow.
pub(crate) fn say(what: &str) {
    let _ = writeln!(stderr(), "{what}; this proves nothing");
}

/// How much a machine's processes may swap.
#[derive(Clone, Copy, PartialEq)]
enum Swap {
    AsMachine,
    None,
}

/// A control group that is a small machine to whoever runs in it.
pub(crate) struct Machine {
    /// Where its processes are: of each hierarchy a directory.
    join: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Machine {
    /// One that swaps as the machine around it does.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        Self::made(bytes, Swap::AsMachine)
    }

    /// One without swap, whatever the machine around it has.
    pub(crate) fn without_swap(bytes: usize) -> Option<Self> {
        Self::made(bytes, Swap::None)
    }

    fn made(bytes: usize, swap: Swap) -> Option<Self> {
        static MACHINES: AtomicUsize = AtomicUsize::new(0);
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let name = format!("smelt-machine-{}-{number}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let found = if v1.join("memory.limit_in_bytes").exists() {
            Self::of_version_1(
                &v1.join(&name),
                Path::new("/sys/fs/cgroup/unified"),
                &name,
                bytes,
                swap,
            )
        } else {
            Self::of_version_2(&Path::new("/sys/fs/cgroup").join(&name), bytes, swap)
        };
        if found.is_none() {
            say("no control group can be made here");
        }
        found
    }

    fn of_version_1(
        memory: &Path,
        unified: &Path,
        name: &str,
        bytes: usize,
        swap: Swap,
    ) -> Option<Self> {
        fs::create_dir(memory).ok()?;
        fs::write(memory.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        if swap == Swap::None {
            // Of both together, and of a group below it that has a limit of its own, which inherits this.
            fs::write(memory.join("memory.memsw.limit_in_bytes"), bytes.to_string()).ok()?;
            fs::write(memory.join("memory.swappiness"), "0").ok()?;
        }
        let mut dirs = vec![memory.to_owned()];
        let unified = unified.join(name);
        if fs::create_dir(&unified).is_ok() {
            dirs.push(unified);
        }
        Some(Self { join: dirs.clone(), dirs })
    }

    /// Its processes are in a group below it, since one that hands out memory has none.
    fn of_version_2(top: &Path, bytes: usize, swap: Swap) -> Option<Self> {
        fs::create_dir(top).ok()?;
        fs::write(top.join("memory.max"), bytes.to_string()).ok()?;
        if swap == Swap::None {
            fs::write(top.join("memory.swap.max"), "0").ok()?;
        }
        fs::write(top.join("cgroup.subtree_control"), "+memory").ok()?;
        let inside = top.join("inside");
        fs::create_dir(&inside).ok()?;
        Some(Self { join: vec![inside.clone()], dirs: vec![inside, top.to_owned()] })
    }

    /// smelt, run on it.
    pub(crate) fn smelt(&self, world: &World, arguments: &[&str]) -> Command {
        let joins =
            self.join.iter().map(|dir| format!("echo $$ > {}/cgroup.procs; ", dir.display()));
        let script = joins.collect::<String>() + "exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        world.prepare(&mut command);
        command.args(["-ec", &script, env!("CARGO_BIN_EXE_smelt")]).args(arguments);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // A run that was killed leaves its own groups.
            until(|| {
                let inside = fs::read_dir(dir).into_iter().flatten().flatten();
                inside.for_each(|entry| drop(fs::remove_dir(entry.path())));
                fs::remove_dir(dir).is_ok()
            });
        }
    }
}
