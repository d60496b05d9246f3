//! Starts shims and lends them to attempts, and kills what comes to us from one that was lost.
//!
//! The supervisor is a subreaper too: when a shim is killed from outside, its descendants become our
//! children, whatever session or environment they have.  Every child of ours that is no shim is such
//! an orphan.

use std::collections::BTreeSet;
use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use smelt_watch::{Group, Listener, Tree, is_zombie};

use crate::confine::{Space, VARIABLE, apart};
use crate::orphans::MARK;

/// SIGKILL is prompt; what is still there after this is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shims of a run: those that lead a stage, and those that wait for one.
pub(crate) struct Shims {
    /// What marks the processes of this run.
    mark: String,
    /// The process ids of those that have not been waited for.
    live: Mutex<BTreeSet<u32>>,
    /// Starting one costs more than many a stage, so they lead one stage after another of their space.
    idle: Mutex<Vec<Shim>>,
    /// Hears what the kernel tells of their trees; a run that starts nothing needs none.
    listener: OnceLock<Listener>,
    /// Whether the kernel does not let us map their user name spaces.
    is_refused_maps: AtomicBool,
}

/// A shim, with the pipes to it.
pub(crate) struct Shim {
    pub(crate) process: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: ChildStdout,
    /// The control group it is in, of the stage it led last.
    pub(crate) group: Option<Group>,
    /// What it leads is started there.
    pub(crate) space: Space,
}

impl Shims {
    /// From now on orphans come to this process.
    pub(crate) fn new(run: &str) -> io::Result<Self> {
        prctl::set_child_subreaper(true)?;
        let mark = format!("{run}/shim");
        let listener = OnceLock::new();
        Ok(Self {
            mark,
            live: Mutex::default(),
            idle: Mutex::default(),
            listener,
            is_refused_maps: AtomicBool::new(false),
        })
    }

    /// What hears of the trees below them.
    pub(crate) fn listener(&self) -> &Listener {
        self.listener.get_or_init(Listener::start)
    }

    /// A shim that leads nothing, for a stage of this space.
    pub(crate) fn take(&self, space: Space) -> io::Result<Shim> {
        loop {
            let Some(mut shim) = self.pop(space) else { return self.start(space) };
            match shim.process.try_wait() {
                Ok(None) => return Ok(shim),
                // Somebody has killed it while it waited.
                _ => {
                    self.forget(shim.process.id());
                    shim.group.into_iter().for_each(Group::remove);
                }
            }
        }
    }

    fn pop(&self, space: Space) -> Option<Shim> {
        let mut idle = self.idle();
        let place = idle.iter().rposition(|shim| shim.space == space)?;
        Some(idle.remove(place))
    }

    /// Starts a shim, apart from other users' processes where it is to be.
    fn start(&self, space: Space) -> io::Result<Shim> {
        if !apart::is_for(space) || self.is_refused_maps.load(Ordering::Relaxed) {
            return self.spawn(space, false);
        }
        let mut shim = self.spawn(space, true)?;
        if apart::map(shim.process.id(), &mut shim.input, &mut shim.output).is_ok() {
            return Ok(shim);
        }
        // It is nobody in its name space, and the next would be, too.
        self.is_refused_maps.store(true, Ordering::Relaxed);
        let _ = shim.process.kill();
        let _ = shim.process.wait();
        self.forget(shim.process.id());
        self.spawn(space, false)
    }

    /// Starts the process, in a process group of its own so that Ctrl-C reaches only us before it has left the terminal; the
    /// lock keeps `kill_adopted` from taking it for an orphan.
    fn spawn(&self, space: Space, is_mapped: bool) -> io::Result<Shim> {
        let mut live = self.live();
        let mut process = Command::new("/proc/self/exe")
            .arg0("smelt")
            .args(["stage", "shim", space.word()])
            .args(is_mapped.then_some("--mapped"))
            .env_clear()
            .env(MARK, &self.mark)
            .envs(env::var_os(VARIABLE).map(|way| (VARIABLE, way)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        live.insert(process.id());
        let input = process.stdin.take().expect("asked for a pipe five lines up");
        let output = process.stdout.take().expect("asked for a pipe five lines up");
        Ok(Shim { process, input, output, group: None, space })
    }

    /// Keeps a shim that has ended its stage in order for the next one.
    pub(crate) fn give_back(&self, shim: Shim) {
        self.idle().push(shim);
    }

    /// A shim that has been waited for.
    pub(crate) fn forget(&self, shim: u32) {
        self.live().remove(&shim);
    }

    /// Ends those that lead nothing: without its pipe a shim is done.
    pub(crate) fn close(&self) {
        for Shim { mut process, input, output, group, .. } in self.idle().drain(..) {
            drop((input, output));
            let _ = process.wait();
            self.forget(process.id());
            group.into_iter().for_each(Group::remove);
        }
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

    /// The living below us that we have not started ourselves.  The dead wait for us to end.
    fn orphans(&self) -> Vec<u32> {
        let live = self.live();
        let children = Tree::new(std::process::id()).children();
        let listens = self.listener.get().and_then(Listener::child);
        let is_ours = |pid: &u32| live.contains(pid) || listens == Some(*pid);
        let adopted = children.into_iter().filter(|pid| !is_ours(pid));
        adopted
            .flat_map(|pid| std::iter::once(pid).chain(Tree::new(pid).descendants()))
            .filter(|&pid| !is_zombie(pid))
            .collect()
    }

    fn live(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Shim>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
