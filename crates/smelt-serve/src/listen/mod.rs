//! Takes connections, within limits of number and time, until it is told to stop.
//!
//! HTTP/1.1, with or without TLS.  A connection that says nothing, or takes nothing, is ended, and gives way before where
//! places run out.  Knows nothing of what is asked.

mod connection_table;
mod framing;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::current::Current;
use crate::ending::Ending;
use connection_table::{Arrival, ConnectionTable, Id, KEPT};
use framing::Framing;

/// How long a client may take to agree on TLS.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a client may take to say what it wants, and how long a connection is kept without a wish.
const HEADERS_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a client may take none of what is sent to it.
const STALL_TIME_MAX: Duration = Duration::from_secs(60);

/// Most bytes of a request's headers, and of what is read or written at a time; the least that browsers with
/// cookies of other servers on the same host need.
const BUFFER_BYTES_MAX: usize = 32 << 10;

/// How long a client that is in the middle of a request may go on with it when the server is told to end:
/// what is on its way already arrives.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(250);

/// How long accepting pauses after the system refused a connection, as when files run out.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How long who comes waits for who gives way to be gone.
const WAY_TIME_MAX: Duration = Duration::from_secs(1);

/// Where connections come from and how many there may be.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Current<ServerConfig>>,
    pub(crate) connections_max: u32,
}

/// So many have asked that there are only the places that are kept: for who looks after the server, or shows a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowded;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Listening {
    /// Takes connections until `stop` turns true; then lets those that are open end what they do, for at
    /// most `drain_time_max`.  Says whether all ended.
    pub(crate) async fn run(
        self,
        router: Router,
        mut stop: watch::Receiver<bool>,
        drain_time_max: Duration,
    ) -> bool {
        let permits = self.connections_max + KEPT as u32;
        let free = Arc::new(Semaphore::new(permits as usize));
        let crowd = Crowd::new(self.connections_max as usize);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stopped(&mut stop) => break,
            };
            let Ok((stream, peer)) = accepted else {
                crowd.give_way();
                sleep(REFUSED_PAUSE).await;
                continue;
            };
            // Who finds no place is cut off at once.
            let Some(place) = crowd.arrive(peer).map(Arc::new) else { continue };
            let Ok(Ok(seat)) = timeout(WAY_TIME_MAX, Arc::clone(&free).acquire_owned()).await
            else {
                continue;
            };
            let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.get()));
            let (router, stop, id) = (router.clone(), stop.clone(), place.id);
            let task = tokio::spawn(async move {
                // A connection that fails is its client's affair.
                _ = connection(stream, peer, &place, tls, router, stop).await;
                drop((place, seat));
            });
            crowd.runs(id, task.abort_handle());
        }
        drop(self.listener);
        timeout(drain_time_max, free.acquire_many(permits)).await.is_ok()
    }
}

/// All connections.
#[derive(Clone, Debug)]
struct Crowd(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    places: ConnectionTable,
    running: HashMap<Id, AbortHandle>,
}

/// A connection's place, as long as it is there.
#[derive(Debug)]
struct ConnectionPermit {
    crowd: Crowd,
    id: Id,
}

impl Crowd {
    fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            places: ConnectionTable::new(most),
            running: HashMap::new(),
        })))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A place for who comes from `peer`, if there is one; others may be cut off for it.
    fn arrive(&self, peer: SocketAddr) -> Option<ConnectionPermit> {
        let id = self.with(|inner| match inner.places.arrive(peer.ip()) {
            Arrival::Taken(id, gone) => {
                gone.into_iter().for_each(|id| inner.cut(id));
                Some(id)
            }
            Arrival::Refused => None,
        })?;
        Some(ConnectionPermit { crowd: self.clone(), id })
    }

    /// Somebody silent is cut off.
    fn give_way(&self) {
        self.with(|inner| {
            if let Some(id) = inner.places.give_way() {
                inner.cut(id);
            }
        });
    }

    /// The connection runs here, unless it has ended.
    fn runs(&self, id: Id, task: AbortHandle) {
        self.with(|inner| {
            if inner.places.has(id) {
                inner.running.insert(id, task);
            }
        });
    }
}

impl Inner {
    fn cut(&mut self, id: Id) {
        if let Some(task) = self.running.remove(&id) {
            task.abort();
        }
    }
}

impl ConnectionPermit {
    /// Its request is whole.
    fn asked(&self) {
        self.crowd.with(|inner| inner.places.asked(self.id));
    }

    /// Whether it is one too many.
    fn is_crowded(&self) -> bool {
        self.crowd.with(|inner| inner.places.is_crowded(self.id))
    }

    /// It has nothing to be answered.
    fn is_silent(&self) {
        self.crowd.with(|inner| inner.places.is_silent(self.id));
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.crowd.with(|inner| {
            inner.places.leave(self.id);
            inner.running.remove(&self.id);
        });
    }
}

/// Waits until `stop` is true, or nobody can make it so any more.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    place: &Arc<ConnectionPermit>,
    tls: Option<TlsAcceptor>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    // Every event is sent as soon as it is written.
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return serve(stream, peer, place, router, stop).await };
    let stream = tokio::select! {
        agreed = timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)) => agreed??,
        () = stopped(&mut stop) => return Ok(()),
    };
    serve(stream, peer, place, router, stop).await
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    place: &Arc<ConnectionPermit>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut stream = TimeoutStream::new(Watched { stream, framing: Framing::default() });
    stream.set_write_timeout(Some(STALL_TIME_MAX));
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&has_asked);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let (router, place) = (router.clone(), Arc::clone(place));
        if place.is_crowded() {
            request.extensions_mut().insert(Crowded);
        }
        let is_whole = Whole { has_asked: Arc::clone(&asked), place: Arc::clone(&place) };
        match request.body().is_end_stream() {
            true => is_whole.is_told(),
            false => asked.store(false, Ordering::Release),
        }
        async move {
            let told = is_whole.clone();
            let heard = |body| Ending { body, kept: is_whole, whole: |whole| whole.is_told() };
            let response = router.oneshot(request.map(heard)).await?;
            // Some answers do not wait for the body.
            told.is_told();
            let answer = |body| Ending { body, kept: Over(place), whole: |_| () };
            Ok::<_, Infallible>(response.map(answer))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIME_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            match timeout(LAST_WORDS_TIME_MAX, connection.as_mut()).await {
                Ok(ended) => ended,
                Err(_) if has_asked.load(Ordering::Acquire) => connection.await,
                // Nothing is owed to who has not said what it wants.
                Err(_) => return Ok(()),
            }
        }
    };
    ended.map_err(io::Error::other)
}

/// Tells that a request is whole.
#[derive(Clone)]
struct Whole {
    has_asked: Arc<AtomicBool>,
    place: Arc<ConnectionPermit>,
}

impl Whole {
    fn is_told(&self) {
        self.has_asked.store(true, Ordering::Release);
        self.place.asked();
    }
}

/// Whoever was answered has nothing to be answered.
struct Over(Arc<ConnectionPermit>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_silent();
    }
}

/// A connection whose requests are looked at on their way.
struct Watched<S> {
    stream: S,
    framing: Framing,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        self.framing.pass(&mut into.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
