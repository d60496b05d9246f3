//! Takes connections, within limits of number and time, until it is told to stop.
//!
//! HTTP/1.1, with or without TLS.  A connection that says nothing, or takes nothing, is ended.  Knows nothing
//! of what is asked.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::Request;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

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

/// Where connections come from and how many there may be.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) connections_max: u32,
}

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
        let places = Arc::new(Semaphore::new(self.connections_max as usize));
        let tls = self.tls.map(TlsAcceptor::from);
        loop {
            // Without a place the system's own queue holds who comes.
            let accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                accepted = accepted => accepted,
                () = stopped(&mut stop) => break,
            };
            let Ok((stream, peer)) = accepted else {
                sleep(REFUSED_PAUSE).await;
                continue;
            };
            let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
            tokio::spawn(async move {
                // A connection that fails is its client's affair.
                _ = connection(stream, peer, tls, router, stop).await;
                drop(place);
            });
        }
        drop(self.listener);
        timeout(drain_time_max, places.acquire_many(self.connections_max)).await.is_ok()
    }
}

/// Waits until `stop` is true, or nobody can make it so any more.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    // Every event is sent as soon as it is written.
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return serve(stream, peer, router, stop).await };
    let stream = tokio::select! {
        agreed = timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)) => agreed??,
        () = stopped(&mut stop) => return Ok(()),
    };
    serve(stream, peer, router, stop).await
}

async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALL_TIME_MAX));
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&has_asked);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let (router, asked) = (router.clone(), Arc::clone(&asked));
        asked.store(request.body().is_end_stream(), Ordering::Release);
        async move {
            let request = request.map(|body| Heard { body, is_whole: Arc::clone(&asked) });
            let response = router.oneshot(request).await;
            // Some answers do not wait for the body.
            asked.store(true, Ordering::Release);
            response
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

/// A request's body, which tells when it was whole.
struct Heard {
    body: Incoming,
    is_whole: Arc<AtomicBool>,
}

impl http_body::Body for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_whole.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
