//! Ends connections on which a request was answered before all of it was read.
//!
//! What is left of its body may still be under way, and nobody takes it for the next request.  Hyper closes such a connection
//! behind the answer; a client that was not told asks on it again and finds it closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};

/// Says with the answer that the connection ends, where the request was not read to its end.
pub(crate) async fn closes(request: Request, next: Next) -> Response {
    let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let watched = |inner| Body::new(Watched { inner, is_read: Arc::clone(&is_read) });
    let mut response = next.run(request.map(watched)).await;
    if !is_read.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A body, and whether it was read to its end.
struct Watched {
    inner: Body,
    is_read: Arc<AtomicBool>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.inner.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
