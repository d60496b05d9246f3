//! Runs a server: binds, loads the model beside, answers, and ends in order.
//!
//! Everything that waits does so here; callers are threads.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use prometheus_client::collector::Collector;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::ask::resolved_message::Limits;
use crate::ask::work::{self, Work};
use crate::body::{Bodies, LARGEST_AT_ONCE};
use crate::collect::{OfMemory, OfModels};
use crate::current::{self, Current};
use crate::films::Films;
use crate::hosts::Hosts;
use crate::images::{Reach, Remote};
use crate::keys::{Keys, KeysError};
use crate::listen::Listening;
use crate::metrics::Metrics;
use crate::models::{Growth, Loader, Models, Source};
use crate::protocols::responses::kept::Kept;
use crate::routes::slots::Slots;
use crate::routes::{self, Doors, Shared};
use crate::slot_files::SlotFiles;
use crate::traces::{TraceOptions, Tracer};

/// Threads for connections: what they do takes microseconds, and cores are for the engines.
const THREADS: usize = 2;

/// The stack of each thread for connections and pictures.
const STACK_BYTES: usize = 1 << 20;

/// The part of what bodies may take that is for answers which are kept, to be gone on from.
const KEPT_PART: usize = 8;

/// What bodies of at most `body_bytes_max` take at once, where memory is not capped.
pub fn bodies_bytes(body_bytes_max: usize) -> usize {
    body_bytes_max.saturating_mul(LARGEST_AT_ONCE)
}

/// How a server is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen.
    pub addr: SocketAddr,
    /// Who may ask, by keys that stay.
    pub keys: Keys,
    /// A file of others, read again when it changes.
    pub key_file: Option<PathBuf>,
    /// Whether what was read for one key is of use to others, and so may tell them of it.
    pub is_cache_shared: bool,
    /// Names under which a server that needs no key may be asked, beside localhost and addresses, in small letters.
    pub hosts: Vec<String>,
    /// Origins whose pages may ask; `*` is any.
    pub cors_origins: Vec<HeaderValue>,
    /// Certificate and key, read again when they change; without, connections are open to whoever listens.
    pub tls: Option<TlsFiles>,
    /// Where pictures may be fetched from, if anywhere.
    pub remote_images: Option<Reach>,
    /// The program that confines `ffmpeg`, with its first arguments; those of `ffmpeg` stand behind them.
    pub films: Vec<OsString>,
    /// Most pictures and clips of a request.
    pub images_max: usize,
    /// Most frames of a clip that are looked at.
    pub frames_max: usize,
    /// Most bytes of a request.
    pub body_bytes_max: usize,
    /// Most bytes of all requests that are read and prepared at once.
    pub bodies_bytes_max: usize,
    /// Most bytes that pictures of all requests take while they are decoded, the largest of one request apart.
    pub decoding_bytes_max: u64,
    /// Has the allocator keep nothing that is free; called behind large requests.
    pub free_memory: fn(),
    /// Most connections at once.
    pub connections_max: u32,
    /// How long answers may take when the server is told to end.
    pub drain_time_max: Duration,
    /// Requests that take longer are warned of.
    pub slow: Duration,
    /// How often newer deployments are looked for; SIGHUP asks for it at any time.
    pub watch: Option<Duration>,
    /// Whether slots are listed.
    pub are_slots_listed: bool,
    /// Where slots are saved, if anywhere, and bytes of all that is saved.
    pub slot_files: Option<(PathBuf, u64)>,
    /// Where traces of requests go, if anywhere.
    pub traces: Option<TraceOptions>,
}

/// Where certificate and key are, as PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificates, the server's own first.
    pub certificates: PathBuf,
    /// The key of the first one.
    pub key: PathBuf,
}

impl Options {
    /// All keys, as the file is now.
    ///
    /// # Errors
    /// [`KeysError`] naming what is wrong with one.
    pub fn all_keys(&self) -> Result<Keys, KeysError> {
        match &self.key_file {
            Some(path) => self.keys.clone().and(Keys::read(path)?),
            None => Ok(self.keys.clone()),
        }
    }
}

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError<E> {
    /// The address is not to be had.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no threads, timers or signals.
    #[error("cannot start the server: {0}")]
    System(#[from] io::Error),
    /// The keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Certificate and key are of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Slots cannot be saved.
    #[error("cannot save slots in {}: {source}", dir.display())]
    SlotFiles {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The model cannot be loaded.
    #[error("{0}")]
    Load(E),
}

/// Why a server has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not to be read, or holds something else.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key are not of each other.
    #[error("cannot use certificate and key: {0}")]
    Pair(#[from] rustls::Error),
}

impl TlsFiles {
    /// TLS with what the files hold now.
    ///
    /// # Errors
    /// [`TlsError`] naming the file and what is wrong with it.
    pub fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        tls(&self.certificates, &self.key)
    }
}

fn tls(certificates: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let bad = |path: &Path, why: String| TlsError::File { path: path.into(), why };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(certificates, error.to_string()))?;
    if chain.is_empty() {
        return Err(bad(certificates, "holds no certificate; it must be a PEM file".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config?.with_no_client_auth().with_single_cert(chain, private)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every answer was given.
    Drained,
    /// Answers that took too long, or that its user would not wait for, were broken off.
    BrokenOff,
}

/// Listens, loads the first of `sources` beside and the others when they are asked for, tells `listening`
/// the address, and what that gives how the models grow, and answers until a signal asks to end.
///
/// Blocks.  SIGTERM and SIGINT end it in order: nothing new is taken and what was taken is answered; a second
/// one breaks off.  SIGHUP has newer deployments looked for.
///
/// # Errors
/// [`ServeError`], also when the first model cannot be loaded.
pub fn serve<E: Display + Send + 'static>(
    mut options: Options,
    sources: Vec<Source<E>>,
    listening: impl FnOnce(SocketAddr) -> Growth,
) -> Result<Ended, ServeError<E>> {
    // What sends is dropped last, and so sends what became of the last requests.
    let (tracer, _sending) = options.traces.take().map(Tracer::start).transpose()?.unzip();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(work::THREADS_MAX)
        .thread_stack_size(STACK_BYTES)
        .thread_name("http")
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run(options, sources, listening, tracer));
    // Pictures that are still being fetched are of no use to anybody.
    runtime.shutdown_background();
    ended
}

async fn run<E: Display + Send + 'static>(
    options: Options,
    sources: Vec<Source<E>>,
    listening: impl FnOnce(SocketAddr) -> Growth,
    tracer: Option<Tracer>,
) -> Result<Ended, ServeError<E>> {
    let addr = options.addr;
    let keys = Current::new(Arc::new(options.all_keys()?));
    let tls = options.tls.as_ref().map(TlsFiles::read).transpose()?.map(Current::new);
    let slots = slots(&options)?;
    let bound = TcpListener::bind(addr).await;
    let listener = bound.map_err(|source| ServeError::Bind { addr, source })?;
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let addr = listener.local_addr()?;
    let mut growth = listening(addr);
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let told = format!("{scheme}://{addr}");
    let (models, orders) =
        Models::new(sources.iter().map(|source| source.known.name.clone()).collect());
    if sources.iter().any(|source| source.known.is_upstream) {
        models.expect_upstream();
    }
    let models = Arc::new(models);
    let kept_bytes_max = options.bodies_bytes_max / KEPT_PART;
    let bodies = Bodies::new(options.body_bytes_max, options.bodies_bytes_max);
    let bodies = bodies.beside(kept_bytes_max);
    let kept = Arc::new(Kept::new(kept_bytes_max));
    let preparing = Work::preparing(options.decoding_bytes_max);
    let held = (bodies.clone(), Arc::clone(&kept), preparing.clone());
    let growth: Growth = Box::new(move |models| {
        let (bodies, kept, preparing) = &held;
        let requests = bodies.free_bytes() + kept.free_bytes() + preparing.free_bytes();
        growth(models.map(|bytes| bytes.saturating_add(requests)));
    });
    let loader = Loader::new(sources, Arc::clone(&models), orders, told, options.watch, growth);
    let loaded = loading(loader)?;
    let again = [(); 2].map(|()| Arc::new(Notify::new()));
    following(&options, &keys, tls.as_ref(), &again);
    tokio::spawn(refreshing(signal(SignalKind::hangup())?, Arc::clone(&models), again));
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(bodies.clone().give_back(options.free_memory));
    let rooms = (bodies, kept, preparing, slots);
    let router = router(&options, Arc::clone(&models), rooms, (keys, tracer));
    let listening = Listening { listener, tls, connections_max: options.connections_max };
    let mut running = tokio::spawn(listening.run(router, stopped, options.drain_time_max));
    tokio::select! {
        failed = loaded => if let Some(failed) = failed { return Err(ServeError::Load(failed)) },
        () = asked(&mut signals) => {}
    }
    tracing::info!("ending: what was taken is answered");
    models.drain();
    _ = stop.send(true);
    let is_drained = tokio::select! {
        drained = &mut running => drained.unwrap_or(false),
        () = asked(&mut signals) => false,
    };
    Ok(if is_drained { Ended::Drained } else { Ended::BrokenOff })
}

/// Waits until a signal asks to end.
async fn asked(signals: &mut [tokio::signal::unix::Signal; 2]) {
    let [terminate, interrupt] = signals;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Reads keys and certificates again when their files change, or when it is asked for.
fn following(
    options: &Options,
    keys: &Current<Keys>,
    tls: Option<&Current<ServerConfig>>,
    [keys_asked, tls_asked]: &[Arc<Notify>; 2],
) {
    if let Some(file) = &options.key_file {
        let (own, asked) = (options.clone(), Arc::clone(keys_asked));
        let read = move |before: &Keys| own.all_keys().map(|keys| Arc::new(keys.go_on(before)));
        tokio::spawn(current::follow("keys", keys.clone(), vec![file.clone()], asked, read));
    }
    if let (Some(files), Some(tls)) = (&options.tls, tls) {
        let (own, asked) = (files.clone(), Arc::clone(tls_asked));
        let read = move |_: &ServerConfig| own.read();
        let files = vec![files.certificates.clone(), files.key.clone()];
        tokio::spawn(current::follow("certificates", tls.clone(), files, asked, read));
    }
}

/// Has newer deployments, keys and certificates looked for whenever a signal asks for it.
async fn refreshing(
    mut hangup: tokio::signal::unix::Signal,
    models: Arc<Models>,
    asked: [Arc<Notify>; 2],
) {
    while hangup.recv().await.is_some() {
        models.refresh();
        asked.iter().for_each(|asked| asked.notify_one());
    }
}

/// Loads in a thread of its own.  What is given ends only when the first model could not be loaded, with why.
fn loading<E: Display + Send + 'static>(
    loader: Loader<E>,
) -> io::Result<impl Future<Output = Option<E>>> {
    let (failed, failure) = tokio::sync::oneshot::channel();
    let work = move || {
        if let Err(error) = loader.run() {
            // Nobody hears it if the server was told to end meanwhile.
            _ = failed.send(error);
        }
    };
    std::thread::Builder::new().name("load".to_owned()).spawn(work)?;
    Ok(async {
        match failure.await {
            Ok(error) => Some(error),
            Err(_) => std::future::pending().await,
        }
    })
}

/// What may be done with slots.
fn slots<E>(options: &Options) -> Result<Slots, ServeError<E>> {
    let files = options.slot_files.as_ref().map(|(dir, bytes_max)| {
        let failed = |source| ServeError::SlotFiles { dir: dir.clone(), source };
        SlotFiles::new(dir, *bytes_max).map(Arc::new).map_err(failed)
    });
    let files = files.transpose()?;
    Ok(Slots { are_listed: options.are_slots_listed, files, moving: Work::moving() })
}

fn router(
    options: &Options,
    models: Arc<Models>,
    (bodies, kept, preparing, slots): (Bodies, Arc<Kept>, Work, Slots),
    (keys, tracer): (Current<Keys>, Option<Tracer>),
) -> axum::Router {
    let mut collectors: Vec<Box<dyn Collector>> =
        vec![Box::new(OfModels(Arc::clone(&models))), Box::new(OfMemory)];
    if let Some(tracer) = tracer.clone() {
        collectors.push(Box::new(tracer));
    }
    let shared = Shared {
        models,
        metrics: Arc::new(Metrics::new(collectors)),
        bodies,
        kept,
        remote: options.remote_images.map(Remote::new),
        is_cache_shared: options.is_cache_shared,
        limits: Limits { images_max: options.images_max, frames_max: options.frames_max },
        films: Films::new(options.films.clone()),
        filming: preparing.filming(),
        preparing,
        fetching: Work::fetching(),
        slots,
    };
    let is_open = keys.get().is_open();
    let doors = Doors {
        keys,
        hosts: Hosts {
            // Elsewhere nobody knows what a server is called; who says it is held to it.
            is_guarded: is_open && (options.addr.ip().is_loopback() || !options.hosts.is_empty()),
            allowed: options.hosts.clone(),
            origins: options.cors_origins.clone(),
        },
        slow: options.slow,
        tracer,
    };
    routes::router(Arc::new(shared), doors)
}
