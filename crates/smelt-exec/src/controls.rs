//! The supervisor's hold on a running attempt: asks it to end, ends it, halts it, lets it go on.
//!
//! Shared by the run's loop, which decides, and the thread that attends the attempt, which says what
//! it sees.

use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use smelt_watch::meter::Strain;
use smelt_watch::{Freezer, Group, Sample};

use crate::classify::Stopped;
use crate::shim::GRACE;

/// How long a shim that has been told may take: it only kills.
const KILL_PATIENCE: Duration = Duration::from_secs(3);
/// How long one that has been asked may take: the grace period, and then to kill.
const STOP_PATIENCE: Duration = Duration::from_secs(GRACE.as_secs() + KILL_PATIENCE.as_secs());

#[derive(Default)]
pub(crate) struct Controls {
    pipe: Mutex<Option<ChildStdin>>,
    /// Why it is ended, from the moment that it is.
    why: OnceLock<Stopped>,
    /// When it was first asked to end, and when it was told.
    asked: OnceLock<Instant>,
    told: OnceLock<Instant>,
    halt: Mutex<Halt>,
    seen: Mutex<Option<LastSample>>,
}

/// Whether and how it is halted.
#[derive(Default)]
struct Halt {
    /// Without one the shim halts the tree by signals.
    freezer: Option<Freezer>,
    since: Option<Instant>,
    /// In all, until it last went on.
    time: Duration,
    /// What it holds is still to be written to swap.
    is_to_page_out: bool,
    /// Of containers that it has started.  Where they are not ours to halt they go on.
    containers: Vec<Group>,
}

impl Halt {
    fn halt_containers(&self, is_halted: bool) {
        for group in &self.containers {
            let _ = group.halt(is_halted);
        }
    }
}

/// What its watch saw last.
#[derive(Clone, Copy)]
pub(crate) struct LastSample {
    pub(crate) sample: Sample,
    pub(crate) strain: Strain,
}

impl LastSample {
    /// What its processes hold, in memory and in swap, that the kernel cannot drop.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.sample.rss_anon_bytes.saturating_add(self.sample.swap_bytes)
    }
}

impl Controls {
    /// Takes hold of an attempt that begins; what was asked before is asked now.
    pub(crate) fn attach(&self, pipe: ChildStdin, freezer: Option<Freezer>) {
        lock(&self.halt).freezer = freezer;
        {
            let mut own = lock(&self.pipe);
            // One that was told before sees the end of its pipe at once.
            *own = self.told.get().is_none().then_some(pipe);
        }
        if self.asked.get().is_some() {
            self.say("stop");
        }
    }

    /// Lets go of what is needed no longer.
    pub(crate) fn detach(&self) -> Option<ChildStdin> {
        self.resume();
        lock(&self.halt).freezer = None;
        lock(&self.pipe).take()
    }

    /// Asks the attempt to end, since the user wants it; the shim kills it when it takes too long.
    pub(crate) fn stop(&self) {
        self.ask(Stopped::ByUser);
    }

    /// Asks the attempt to end.
    pub(crate) fn ask(&self, why: Stopped) {
        self.why.get_or_init(|| why);
        self.asked.get_or_init(Instant::now);
        // Nobody ends in order who is halted.
        self.resume();
        self.say("stop");
    }

    /// Ends the attempt now: the shim sees the end of its pipe, and kills, halted or not.
    pub(crate) fn kill(&self) {
        self.told.get_or_init(Instant::now);
        drop(lock(&self.pipe).take());
    }

    /// Ends the attempt now for having broken its budget.
    pub(crate) fn kill_for(&self, why: Stopped) {
        self.why.get_or_init(|| why);
        self.kill();
    }

    /// Why it was ended, if it was.
    pub(crate) fn why(&self) -> Option<Stopped> {
        self.why.get().copied()
    }

    pub(crate) fn is_stopped_by_user(&self) -> bool {
        self.why() == Some(Stopped::ByUser)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.asked.get().is_some() || self.told.get().is_some()
    }

    pub(crate) fn is_out_of_patience(&self) -> bool {
        let over =
            |since: &OnceLock<Instant>, max| since.get().is_some_and(|at| at.elapsed() > max);
        over(&self.told, KILL_PATIENCE) || over(&self.asked, STOP_PATIENCE)
    }

    /// Halts the attempt; false where that cannot be.
    pub(crate) fn park(&self) -> bool {
        if self.is_ending() {
            return false;
        }
        let mut halt = lock(&self.halt);
        let halted = match &mut halt.freezer {
            Some(freezer) => freezer.freeze().is_ok(),
            None => self.say("halt"),
        };
        if halted {
            halt.halt_containers(true);
            halt.since.get_or_insert_with(Instant::now);
            halt.is_to_page_out = true;
        }
        halted
    }

    /// Lets a halted attempt go on.
    pub(crate) fn resume(&self) {
        let mut halt = lock(&self.halt);
        let Some(since) = halt.since.take() else { return };
        halt.time += since.elapsed();
        halt.is_to_page_out = false;
        halt.halt_containers(false);
        let thawed = halt.freezer.as_mut().map(Freezer::thaw);
        if !matches!(thawed, Some(Ok(()))) {
            self.say("go on");
        }
    }

    /// Halts and lets go a container with it from now on.
    pub(crate) fn adopt(&self, container: Group) {
        let mut halt = lock(&self.halt);
        if halt.since.is_some() {
            let _ = container.halt(true);
        }
        halt.containers.push(container);
    }

    pub(crate) fn is_parked(&self) -> bool {
        lock(&self.halt).since.is_some()
    }

    /// How long it has been halted in all.
    pub(crate) fn parked(&self) -> Duration {
        let halt = lock(&self.halt);
        halt.time + halt.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether what it holds should be written to swap now; said once.
    pub(crate) fn take_page_out(&self) -> bool {
        std::mem::take(&mut lock(&self.halt).is_to_page_out)
    }

    /// What the attempt's watch sees now.
    pub(crate) fn see(&self, seen: LastSample) {
        *lock(&self.seen) = Some(seen);
    }

    /// What it saw last.
    pub(crate) fn seen(&self) -> Option<LastSample> {
        *lock(&self.seen)
    }

    /// A shim that is gone needs no telling.
    fn say(&self, what: &str) -> bool {
        let mut pipe = lock(&self.pipe);
        pipe.as_mut().is_some_and(|pipe| pipe.write_all(format!("{what}\n").as_bytes()).is_ok())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
