//! A request over a connection of its own, and its answer.
//!
//! Who reads the answer drives the connection itself: a task for it would be woken for each event before the reader is, and takes
//! the processor twice from a server that shares it.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::seat::Seat;

/// What reads and writes on the connection.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// The body of an answer; the connection is closed when it is dropped.
pub(super) struct AnswerBody {
    body: Incoming,
    connection: Connection,
}

struct Connection(Option<Driver>);

impl Connection {
    /// Reads and writes what can be.
    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(driver) = &mut self.0
            && driver.as_mut().poll(context).is_ready()
        {
            // How it ended the answer's reader hears.
            self.0 = None;
        }
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
    let mut connection = Connection(Some(Box::pin(driver)));
    let request = Request::post(path)
        .header(HOST, addr.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header(CONTENT_LENGTH, body.len())
        .body(Full::new(Bytes::from(body)));
    let request = request.map_err(|error| words(&error))?;
    let mut answer = Box::pin(sender.send_request(request));
    let answer = std::future::poll_fn(|context| {
        connection.drive(context);
        answer.as_mut().poll(context)
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
        self.connection.drive(context);
        Pin::new(&mut self.body).poll_frame(context)
    }
}
