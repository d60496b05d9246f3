//! Keeps threads that wait for numbered parts of a job.
//!
//! Whoever brings a job takes parts of it too, and waits only for parts that are being done: a worker
//! that the system took away costs the part it holds, never the job.  Workers that find nothing look
//! out for [`SPIN`], the time between two layers of a decoder, and then sleep, so that an engine that
//! waits for its next request costs nothing.  Knows nothing of the work.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker looks out for its next job before it sleeps.  Waking a sleeper costs the bringer
/// some 5 us and the worker 50; between two products of a decode step there are 5 to 30.
const SPIN: Duration = Duration::from_micros(60);
/// Looks between two readings of the clock, which costs as much as ten looks.
const LOOKS: usize = 64;

/// A task that outlives the call that brought it only in name: see [`Pool::run`].
type Task = *const (dyn Fn(usize) + Sync);

/// The job that workers may take part in while [`Shared::open`] says so.
#[derive(Clone, Copy)]
struct Job {
    task: Task,
    parts: usize,
}

/// What bringer and workers share.
struct Shared {
    /// Twice the number of jobs so far, plus 1 while the last of them may be joined.
    open: AtomicU64,
    /// Workers that may be looking at `job`.
    inside: AtomicUsize,
    /// The next part nobody has taken.
    next: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    sleepers: AtomicUsize,
    /// What a worker's part panicked with, first come.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    ended: AtomicBool,
}

// SAFETY: `job` is written by the one bringer (it holds `Pool::busy`) while `open` is even and nobody
// is inside, and read only by workers that are counted in `inside` and saw `open` odd afterwards.
// Its pointer is to a `Sync` task.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Threads that share jobs.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by whoever brings a job; others do theirs alone.
    busy: Mutex<()>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads`, the one who brings a job among them.  Threads that the system does not
    /// give are done without.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            open: AtomicU64::new(0),
            inside: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            sleepers: AtomicUsize::new(0),
            panic: Mutex::new(None),
            ended: AtomicBool::new(false),
        });
        let start = |_| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("smelt-kernel".to_owned()).spawn(move || shared.work()).ok()
        };
        let workers = (1..threads).map_while(start).collect();
        Self { shared, workers, busy: Mutex::new(()) }
    }

    /// The right to bring a job, unless another is running.
    fn claim(&self) -> Option<MutexGuard<'_, ()>> {
        match self.busy.try_lock() {
            Ok(busy) => Some(busy),
            // A bringer that panicked has ended its job.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Threads that a job is shared by.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task` for every part `0..parts`, each once, and returns when all are done.  A job that
    /// comes while another runs, from inside of it too, is done by its own thread alone.
    ///
    /// Panics with what a part panicked with, after the parts under way have ended.
    pub(crate) fn run(&self, parts: usize, task: &(dyn Fn(usize) + Sync)) {
        let alone = parts < 2 || self.workers.is_empty();
        let Some(busy) = (!alone).then(|| self.claim()).flatten() else {
            return (0..parts).for_each(task);
        };
        // SAFETY: only the lifetime is changed.  `Open::drop` below returns, panic or not, only after
        // no worker can look at the job any more.
        let task: Task = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Task>(task) };
        let open = Open::new(self, Job { task, parts });
        self.shared.take_parts(Job { task, parts });
        drop(open);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(busy);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its parts panic with, so it ends well.
            let _ = worker.join();
        }
    }
}

/// A job that may be joined until this is dropped.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    fn new(pool: &'a Pool, job: Job) -> Self {
        let shared = &*pool.shared;
        // SAFETY: the caller holds `busy`, `open` is even, and the drop of the last `Open` waited
        // until nobody was inside.
        unsafe { *shared.job.get() = Some(job) };
        shared.next.store(0, SeqCst);
        shared.open.fetch_add(1, SeqCst);
        if shared.sleepers.load(SeqCst) > 0 {
            pool.workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        }
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        // After a panic of the bringer, parts that nobody took are left.
        shared.next.store(usize::MAX / 2, SeqCst);
        shared.open.fetch_add(1, SeqCst);
        let mut looks = 0;
        while shared.inside.load(SeqCst) > 0 {
            // On a loaded machine the worker may need this very processor to end its part.
            if looks < LOOKS * 16 {
                spin_loop()
            } else {
                thread::yield_now()
            }
            looks += 1;
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn work(&self) {
        let mut done = 0;
        while let Some(open) = self.wait(done) {
            self.inside.fetch_add(1, SeqCst);
            if self.open.load(SeqCst) == open {
                // SAFETY: we are counted inside and the job is open, so nobody writes to it before we
                // have left.
                let job = unsafe { *self.job.get() };
                let joined = catch_unwind(AssertUnwindSafe(|| {
                    self.take_parts(job.expect("an open job is there"));
                }));
                if let Err(panic) = joined {
                    let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(panic);
                }
            }
            self.inside.fetch_sub(1, SeqCst);
            done = open;
        }
    }

    /// Waits for an open job other than `done`; `None` when the pool ends.
    fn wait(&self, done: u64) -> Option<u64> {
        let is_new = |open: u64| open % 2 == 1 && open != done;
        loop {
            let since = Instant::now();
            while since.elapsed() < SPIN {
                for _ in 0..LOOKS {
                    let open = self.open.load(SeqCst);
                    if is_new(open) {
                        return Some(open);
                    }
                    spin_loop();
                }
            }
            self.sleepers.fetch_add(1, SeqCst);
            // Whoever opens a job after this line sees a sleeper and wakes it; `unpark` is remembered.
            let idle = !is_new(self.open.load(SeqCst)) && !self.ended.load(SeqCst);
            if idle {
                thread::park();
            }
            self.sleepers.fetch_sub(1, SeqCst);
            if self.ended.load(SeqCst) {
                return None;
            }
        }
    }

    /// Does parts until none is left.
    fn take_parts(&self, job: Job) {
        loop {
            let part = self.next.fetch_add(1, SeqCst);
            if part >= job.parts {
                return;
            }
            // SAFETY: the caller is the bringer, or counted inside an open job: the task is alive.
            unsafe { (*job.task)(part) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::rounds;

    #[test]
    fn every_part_is_done_once_job_after_job() {
        let pool = Pool::new(4);
        for parts in (0..40).chain([1000]).cycle().take(rounds(2000)) {
            let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            pool.run(parts, &|part| {
                counts[part].fetch_add(1, SeqCst);
            });
            assert!(counts.iter().all(|count| count.load(SeqCst) == 1), "{parts} parts");
        }
    }

    #[test]
    fn workers_that_slept_are_woken() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            thread::sleep(SPIN * 20);
            let sum = AtomicUsize::new(0);
            pool.run(64, &|part| {
                sum.fetch_add(part, SeqCst);
            });
            assert_eq!(sum.load(SeqCst), 64 * 63 / 2);
        }
    }

    #[test]
    fn jobs_inside_and_beside_a_job_are_done_too() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        let add = |_| {
            sum.fetch_add(1, SeqCst);
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| pool.run(8, &|_| pool.run(3, &add))));
            }
        });
        assert_eq!(sum.load(SeqCst), 4 * 50 * 8 * 3);
    }

    #[test]
    fn a_panic_of_any_part_reaches_the_bringer_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        for round in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(16, &|part| {
                    thread::sleep(Duration::from_micros(50));
                    assert!(part != round % 16, "part {part}");
                });
            }));
            let panic = result.expect_err("one part panics");
            let text = panic.downcast_ref::<String>().expect("a message");
            assert!(text.contains(&format!("part {}", round % 16)), "{text}");
            let sum = AtomicUsize::new(0);
            pool.run(10, &|_| {
                sum.fetch_add(1, SeqCst);
            });
            assert_eq!(sum.load(SeqCst), 10);
        }
    }
}
