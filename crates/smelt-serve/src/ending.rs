//! A body beside which something is kept until it is over, and which tells when it is whole.
//!
//! Knows nothing of who is told.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};

/// A request's or a response's body.
pub(crate) struct Ending<B, K> {
    pub(crate) body: B,
    /// What is dropped with the body, whole or not.
    pub(crate) kept: K,
    /// What happens behind the last of the body, once or more.
    pub(crate) whole: fn(&mut K),
}

impl<B: Body + Unpin, K: Unpin> Body for Ending<B, K> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            let Self { kept, whole, .. } = &mut *self;
            whole(kept);
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
