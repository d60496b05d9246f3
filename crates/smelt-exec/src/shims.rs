//! Knows the shims that live, and kills what comes to us from one that was lost.
//!
//! The supervisor is a subreaper too: when a shim is killed from outside, its descendants become our
//! children, whatever session or environment they have.  Every child of ours that is no shim is such
//! an orphan.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use smelt_watch::{Tree, is_zombie};

/// SIGKILL is prompt; what is still there after this is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process ids of the shims that have not been waited for.
pub(crate) struct Shims(Mutex<BTreeSet<u32>>);

impl Shims {
    /// From now on orphans come to this process.
    pub(crate) fn new() -> io::Result<Self> {
        prctl::set_child_subreaper(true)?;
        Ok(Self(Mutex::default()))
    }

    /// Starts a shim; the lock keeps `kill_adopted` from taking it for an orphan.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut live = self.live();
        let shim = command.spawn()?;
        live.insert(shim.id());
        Ok(shim)
    }

    /// A shim that has been waited for.
    pub(crate) fn forget(&self, shim: u32) {
        self.live().remove(&shim);
    }

    /// Kills every child of ours that is no shim, with all below it.  Returns how many there were.
    pub(crate) fn kill_adopted(&self) -> usize {
        let begin = Instant::now();
        let mut killed = BTreeSet::new();
        loop {
            let orphans = self.orphans();
            if orphans.is_empty() || begin.elapsed() > PATIENCE {
                return killed.len();
            }
            for pid in orphans {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                killed.insert(pid);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The living below us that belong to no live shim.  The dead wait for us to end.
    fn orphans(&self) -> Vec<u32> {
        let live = self.live();
        let children = Tree::new(std::process::id()).children();
        let adopted = children.into_iter().filter(|pid| !live.contains(pid));
        adopted
            .flat_map(|pid| std::iter::once(pid).chain(Tree::new(pid).descendants()))
            .filter(|&pid| !is_zombie(pid))
            .collect()
    }

    fn live(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
