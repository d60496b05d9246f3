//! The handle of another program's server, and the thread that keeps it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use smelt_runtime::upstream::Spec;
use tokio::sync::Semaphore;

use super::child::ServerChild;
use super::keeper::{Bounds, Keeper, Look, Verdict};

/// How often it is looked at: while it starts, and afterwards.
const STARTING_TICK: Duration = Duration::from_millis(50);
const TICK: Duration = Duration::from_millis(500);
/// How often it is asked how it is, once it is well, and what it holds.
const HEALTH_PERIOD: Duration = Duration::from_secs(5);

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What the deployment says.
    pub spec: Spec,
    /// The directory of what the server reads.
    pub engine: PathBuf,
    /// What leads it: a program, with words before the server's, that ends it all when its standard input ends.
    pub leader: Vec<OsString>,
    /// Requests that may wait beside those that it has.
    pub queue_max: usize,
}

/// Why a server does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server {program}: {why}")]
pub struct UpstreamError {
    /// Its program.
    pub program: String,
    /// What came of it.
    pub why: String,
}

/// How a server is.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    Starting,
    Ready(SocketAddr),
    /// Why, and when it is started again.
    Down(String, Instant),
}

/// Another program's server; it ends when the last handle is gone.
#[derive(Clone, Debug)]
pub struct Upstream(Arc<Owner>);

/// What all handles share, but not the thread.
#[derive(Debug)]
struct Owner(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) launch: Launch,
    standing: Mutex<Standing>,
    changed: Condvar,
    pub(super) seats: Arc<Semaphore>,
    /// Requests that were taken and have not ended.
    pub(super) live: AtomicUsize,
    pub(super) is_closed: AtomicBool,
    pub(super) counts: Counts,
    is_over: AtomicBool,
    begun: Instant,
    /// When the last byte of an answer came, in milliseconds since `begun`.
    heard_ms: AtomicU64,
    memory_bytes: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What is counted of a server.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    restarts: AtomicU64,
}

/// The same, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stats {
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) restarts: u64,
    pub(crate) memory_bytes: u64,
    /// Requests that it has, or that wait for it.
    pub(crate) live: u64,
    pub(crate) is_up: bool,
}

impl Upstream {
    /// Starts a server and waits until it is well; `say` hears what it does meanwhile.
    ///
    /// # Errors
    /// What came of it instead.
    pub fn start(launch: Launch, say: &mut dyn FnMut(&str)) -> Result<Self, UpstreamError> {
        let shared = Arc::new(Shared {
            seats: Arc::new(Semaphore::new(launch.spec.slots)),
            launch,
            standing: Mutex::new(Standing::Starting),
            changed: Condvar::new(),
            live: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            counts: Counts::default(),
            is_over: AtomicBool::new(false),
            begun: Instant::now(),
            heard_ms: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(0),
            thread: Mutex::new(None),
        });
        let own = Watched(Arc::clone(&shared));
        let thread = thread::Builder::new().name("upstream".to_owned()).spawn(move || own.run());
        let thread = thread.map_err(|error| shared.failed(format!("no thread for it: {error}")))?;
        *lock(&shared.thread) = Some(thread);
        let upstream = Self(Arc::new(Owner(Arc::clone(&shared))));
        shared.first_standing(say).map_err(|why| shared.failed(why))?;
        Ok(upstream)
    }

    /// What the deployment says.
    pub fn spec(&self) -> &Spec {
        &self.shared().launch.spec
    }

    /// Where it listens, while it is well.
    ///
    /// # Errors
    /// Why it is not.
    pub fn addr(&self) -> Result<SocketAddr, UpstreamError> {
        match self.shared().standing() {
            Standing::Ready(addr) => Ok(addr),
            Standing::Down(why, _) => Err(self.shared().failed(why)),
            Standing::Starting => Err(self.shared().failed("it starts".to_owned())),
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.shared().live.load(Ordering::Acquire)
    }

    /// Takes nothing new from now on; what was taken is answered.
    pub(crate) fn close(&self) {
        self.shared().is_closed.store(true, Ordering::Release);
    }

    /// Whether this is the only handle.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether somebody keeps the server.
    pub(crate) fn is_alive(&self) -> bool {
        lock(&self.shared().thread).as_ref().is_none_or(|thread| !thread.is_finished())
    }

    pub(crate) fn stats(&self) -> Stats {
        let Counts { requests, refused, failed, restarts } = &self.shared().counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            requests: read(requests),
            refused: read(refused),
            failed: read(failed),
            restarts: read(restarts),
            memory_bytes: read(&self.shared().memory_bytes),
            live: self.live() as u64,
            is_up: matches!(self.shared().standing(), Standing::Ready(_)),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl Drop for Owner {
    /// Ends the server, and waits for that.
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        self.0.changed.notify_all();
        let thread = lock(&self.0.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    pub(super) fn standing(&self) -> Standing {
        lock(&self.standing).clone()
    }

    fn stands(&self, standing: Standing) {
        *lock(&self.standing) = standing;
        self.changed.notify_all();
    }

    /// Waits until it is well or is not; says every tick what it does.
    fn first_standing(&self, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        let mut standing = lock(&self.standing);
        loop {
            match &*standing {
                Standing::Ready(_) => return Ok(()),
                Standing::Down(why, _) => return Err(why.clone()),
                Standing::Starting => {}
            }
            let waited = self.changed.wait_timeout(standing, TICK);
            (standing, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let program = self.program();
            say(&format!("starting {program}: {} s", self.begun.elapsed().as_secs()));
        }
    }

    pub(super) fn program(&self) -> String {
        let program = Path::new(&self.launch.spec.server[0]).file_name().unwrap_or_default();
        program.to_string_lossy().into_owned()
    }

    pub(super) fn failed(&self, why: String) -> UpstreamError {
        UpstreamError { program: self.program(), why }
    }

    /// A byte of an answer came.
    pub(super) fn hears(&self) {
        let ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(ms, Ordering::Relaxed);
    }
}

/// The thread's part of a server.
struct Watched(Arc<Shared>);

impl Watched {
    fn run(self) {
        let spec = &self.0.launch.spec;
        let bounds = Bounds {
            start_max: Duration::from_secs(spec.start_s),
            memory_bytes_max: spec.memory_bytes_max,
        };
        let mut keeper = Keeper::new(bounds, self.0.begun.elapsed());
        let mut child = self.start(&mut keeper);
        let mut asked_at: Option<Duration> = None;
        while !self.0.is_over.load(Ordering::Acquire) {
            let look = self.look(child.as_mut(), &mut asked_at);
            match keeper.judge(&look) {
                Verdict::Wait => {}
                Verdict::Ready => {
                    let addr = child.as_ref().map(ServerChild::addr);
                    addr.into_iter().for_each(|addr| self.0.stands(Standing::Ready(addr)));
                }
                Verdict::Down(why) => {
                    self.is_down(&keeper, look.at, why);
                    child = None;
                }
                Verdict::Start => {
                    self.0.counts.restarts.fetch_add(1, Ordering::Relaxed);
                    self.0.stands(Standing::Starting);
                    child = self.start(&mut keeper);
                    asked_at = None;
                }
            }
            self.rest();
        }
    }

    /// Starts the program; one that cannot be is as one that has ended.
    fn start(&self, keeper: &mut Keeper) -> Option<ServerChild> {
        let Launch { spec, engine, leader, .. } = &self.0.launch;
        tracing::info!("starting the server of {}: {}", spec.model, spec.server.join(" "));
        match ServerChild::start(leader, |port| spec.argv(engine, port)) {
            Ok(child) => Some(child),
            Err(error) => {
                let at = self.0.begun.elapsed();
                let ended = Some(format!("it cannot be started: {error}"));
                if let Verdict::Down(why) = keeper.judge(&Look { at, ended, ..Look::default() }) {
                    self.is_down(keeper, at, why);
                }
                None
            }
        }
    }

    fn look(&self, child: Option<&mut ServerChild>, asked_at: &mut Option<Duration>) -> Look {
        let at = self.0.begun.elapsed();
        let Some(child) = child else { return Look { at, ..Look::default() } };
        let ended = child.ended();
        let is_ready = matches!(self.0.standing(), Standing::Ready(_));
        let is_due = asked_at.is_none_or(|asked| !is_ready || at - asked >= HEALTH_PERIOD);
        let health = (ended.is_none() && is_due).then(|| {
            *asked_at = Some(at);
            child.health(&self.0.launch.spec.health)
        });
        // Where it is not held to a number it is only told of, and each look takes some of its time.
        if is_due || self.0.launch.spec.memory_bytes_max.is_some() {
            self.0.memory_bytes.store(child.memory_bytes(), Ordering::Relaxed);
        }
        Look {
            at: self.0.begun.elapsed(),
            ended,
            health,
            heard_at: Duration::from_millis(self.0.heard_ms.load(Ordering::Relaxed)),
            live: self.0.live.load(Ordering::Acquire),
            memory_bytes: self.0.memory_bytes.load(Ordering::Relaxed),
        }
    }

    fn is_down(&self, keeper: &Keeper, at: Duration, why: String) {
        let rest = keeper.rest(at);
        tracing::warn!(
            "the server {} of {}: {why}; it is started again in {} s",
            self.0.program(),
            self.0.launch.spec.model,
            rest.as_secs()
        );
        self.0.memory_bytes.store(0, Ordering::Relaxed);
        self.0.stands(Standing::Down(why, Instant::now() + rest));
    }

    /// Waits for the next look, or for the end.
    fn rest(&self) {
        let standing = lock(&self.0.standing);
        let tick = match &*standing {
            Standing::Starting => STARTING_TICK,
            Standing::Ready(_) | Standing::Down(..) => TICK,
        };
        if !self.0.is_over.load(Ordering::Acquire) {
            drop(self.0.changed.wait_timeout(standing, tick));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
