//! A request over a connection of its own, and its answer.
//!
//! Who reads the answer drives the connection itself: a task for it would be woken for each event before the reader is, and takes
//! the processor twice from a server that shares it.  For the same reason the connection goes on only where something has come of
//! it, and does not have its reader woken that is at it already.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::seat::Seat;

/// How often the connection goes on before others have their turn: a server that has much to say would keep them waiting, and so
/// would a runtime that wants its turn back.
const TURNS_MAX: usize = 8;

/// What reads and writes on the connection.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// The body of an answer; the connection is closed when it is dropped.
pub(super) struct AnswerBody {
    body: Incoming,
    connection: Connection,
}

struct Connection {
    driver: Option<Driver>,
    bell: Arc<Bell>,
    /// Rings the bell.
    waker: Waker,
}

impl Connection {
    fn new(driver: Driver) -> Self {
        let bell = Arc::<Bell>::default();
        let waker = Waker::from(Arc::clone(&bell));
        Self { driver: Some(driver), bell, waker }
    }

    /// Asks `reader` for what it waits for, while the connection goes on.
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut reader: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.bell.is_attended();
        let own = &mut Context::from_waker(&self.waker);
        for _ in 0..TURNS_MAX {
            if let Poll::Ready(read) = reader(own) {
                return Poll::Ready(read);
            }
            if !self.bell.has_rung() {
                if self.bell.is_left_by(context.waker()) {
                    return Poll::Pending;
                }
                continue;
            }
            if let Some(driver) = &mut self.driver
                && driver.as_mut().poll(own).is_ready()
            {
                // How it ended the reader hears.
                self.driver = None;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Rings where the connection can go on, or has something for its reader.
struct Bell {
    has_rung: AtomicBool,
    /// Who is woken by it; nobody while the reader is there to hear it.
    sleeper: Mutex<Option<Waker>>,
}

impl Default for Bell {
    /// It has rung: nothing was done yet.
    fn default() -> Self {
        Self { has_rung: AtomicBool::new(true), sleeper: Mutex::default() }
    }
}

impl Bell {
    fn sleeper(&self) -> MutexGuard<'_, Option<Waker>> {
        self.sleeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader is there.
    fn is_attended(&self) {
        *self.sleeper() = None;
    }

    /// Whether it has rung since this was asked.
    fn has_rung(&self) -> bool {
        self.has_rung.swap(false, Ordering::AcqRel)
    }

    /// Whether the reader may leave, to be woken by this: not where it has rung meanwhile.
    fn is_left_by(&self, waker: &Waker) -> bool {
        *self.sleeper() = Some(waker.clone());
        // Whoever rings afterwards sees the sleeper.
        let is_quiet = !self.has_rung.load(Ordering::Acquire);
        if !is_quiet {
            self.is_attended();
        }
        is_quiet
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        let sleeper = self.sleeper().take();
        sleeper.into_iter().for_each(Waker::wake);
    }
}

/// Sends a request; gives the head of the answer.
pub(super) async fn send(
    addr: SocketAddr,
    path: &str,
    body: Vec<u8>,
    seat: &mut Seat,
) -> Result<Response<AnswerBody>, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(addr).await.map_err(|error| words(&error))?;
    let _ = stream.set_nodelay(true);
    seat.connects(stream.local_addr().ok(), addr);
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, driver) = shaken.map_err(|error| words(&error))?;
    let mut connection = Connection::new(Box::pin(driver));
    let request = Request::post(path)
        .header(HOST, addr.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header(CONTENT_LENGTH, body.len())
        .body(Full::new(Bytes::from(body)));
    let request = request.map_err(|error| words(&error))?;
    let mut answer = Box::pin(sender.send_request(request));
    let answer = std::future::poll_fn(|context| {
        connection.poll(context, |context| answer.as_mut().poll(context))
    });
    let answer = answer.await.map_err(|error| words(&error))?;
    Ok(answer.map(|body| AnswerBody { body, connection }))
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { body, connection } = &mut *self;
        connection.poll(context, |context| Pin::new(&mut *body).poll_frame(context))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// How often a task was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection that goes on by `driver`, and the task of its reader.
    struct Asked {
        connection: Connection,
        woken: Arc<Woken>,
    }

    impl Asked {
        fn new(
            driver: impl FnMut(&mut Context<'_>) -> Poll<hyper::Result<()>> + Send + 'static,
        ) -> Self {
            let driver = Box::pin(std::future::poll_fn(driver));
            Self { connection: Connection::new(driver), woken: Arc::default() }
        }

        fn poll<T>(&mut self, mut reader: impl FnMut() -> Poll<T>) -> Poll<T> {
            let waker = Waker::from(Arc::clone(&self.woken));
            self.connection.poll(&mut Context::from_waker(&waker), |_| reader())
        }

        fn times_woken(&self) -> usize {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_connection_goes_on_where_something_has_come_of_it_alone() {
        let seen = Arc::<Mutex<(usize, Option<Waker>)>>::default();
        let driven = Arc::clone(&seen);
        let mut asked = Asked::new(move |context| {
            let mut seen = driven.lock().unwrap();
            *seen = (seen.0 + 1, Some(context.waker().clone()));
            Poll::Pending
        });
        let times = || seen.lock().unwrap().0;
        for _ in 0..3 {
            assert!(asked.poll(|| Poll::<()>::Pending).is_pending());
        }
        assert_eq!((times(), asked.times_woken()), (1, 0));
        let waker = seen.lock().unwrap().1.clone().unwrap();
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(asked.times_woken(), 1, "it knows already");
        assert!(asked.poll(|| Poll::<()>::Pending).is_pending());
        assert_eq!((times(), asked.times_woken()), (2, 1));
    }

    #[test]
    fn who_is_there_hears_it_without_being_woken() {
        let mut asked = Asked::new(|context| {
            context.waker().wake_by_ref();
            Poll::Ready(Ok(()))
        });
        let mut looks = 0;
        let read = asked.poll(|| {
            looks += 1;
            if looks > 1 { Poll::Ready(looks) } else { Poll::Pending }
        });
        assert_eq!((read, asked.times_woken()), (Poll::Ready(2), 0));
        assert!(asked.poll(|| Poll::<()>::Pending).is_pending(), "it has ended");
    }

    #[test]
    fn others_have_their_turn_beside_a_connection_that_always_goes_on() {
        let mut asked = Asked::new(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(asked.poll(|| Poll::<()>::Pending).is_pending());
        assert_eq!(asked.times_woken(), 1, "or it would never go on");
    }
}
