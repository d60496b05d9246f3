//! Reads bodies of requests, within limits of size, time and memory.
//!
//! All bodies that are read at once share a budget, so that many large ones wait for each other
//! instead of filling the memory.  A body takes of it what has come, not what it says will come: who sends
//! slowly keeps nobody out.  The room of one largest body is kept apart for the first that finds no more, or several that
//! each have some would wait for each other for ever.  Knows nothing of what bodies say.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::error::ApiError;

/// How long a body may take to come: 32 MiB at 5 Mbit/s.
const READ_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a body waits for others to be done with.
const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

/// How many of the largest bodies are held at once, each with what it is decoded to, where memory is not capped.
pub(crate) const LARGEST_AT_ONCE: usize = 4;

/// Bodies behind which freed memory is given back at once, what is made of them counted.
const LARGE_KIB: usize = 256;

/// How long after any other body it is given back: each leaves little, and many of them much.
const SMALL_GIVEN_BACK: Duration = Duration::from_secs(2);

/// Grammars that are as small count nothing: they are within what each body may take beside its bytes.
const SMALL_GRAMMAR_BYTES: usize = 1 << 20;

/// Bodies of which nothing large can be made: a hundred times as much is no more than what each may take beside its bytes.
const SMALL_KIB: usize = 64;

/// Bytes that a value of a body takes at most once it is read: the value, and its place in a tree.
const VALUE_BYTES: usize = 300;

/// How many bytes a body may take for each of its own.
const MADE_FACTOR: usize = 8;

/// How many times the room of its bytes a text has that is turned into tokens: each byte of a body has room for eight.
const ENCODED_FACTOR: usize = 12;

/// How long what was made of a body may still be dropped before freed memory is given back.
const DROPPED_WITHIN: Duration = Duration::from_millis(100);

/// How much of a refused body is taken in, in bodies that would be allowed.
const SWALLOWED_BODIES: usize = 4;

/// How long a refused body is taken in.
const SWALLOW_TIME_MAX: Duration = Duration::from_secs(5);

/// Reads bodies, and remembers how much of them is held.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    bytes_max: usize,
    /// KiB that may still be held.
    budget: Arc<Semaphore>,
    /// The room of one largest body.
    last: Arc<Semaphore>,
    /// KiB that grammars may still take until their answers end: they keep out none but each other.
    grammars: Arc<Semaphore>,
    grammars_kib: u32,
    freed: Arc<Freed>,
}

/// What tells that memory was let go.
#[derive(Debug, Default)]
struct Freed {
    much: Notify,
    little: Notify,
}

impl Freed {
    /// Waits until there is something to give back: soon behind much, once in a while behind little.
    async fn wait(&self) {
        let much = async {
            self.much.notified().await;
            sleep(DROPPED_WITHIN).await;
        };
        let little = async {
            self.little.notified().await;
            sleep(SMALL_GIVEN_BACK).await;
        };
        tokio::select! {
            () = much => {}
            () = little => {}
        }
    }
}

/// What a body must say that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// JSON: a web page of another origin may send plain text without being asked whether it may.
    Json,
    /// Whatever it says.
    Any,
}

/// A body that was read, and its part of the budget until it is dropped.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) bytes: Bytes,
    pub(crate) budget: Budget,
}

/// A part of what all bodies may take.
#[derive(Debug)]
pub(crate) struct Budget {
    /// KiB of the body.
    kib: usize,
    permit: Option<OwnedSemaphorePermit>,
    last: Option<OwnedSemaphorePermit>,
    freed: Arc<Freed>,
}

/// What a large grammar takes until its answers have ended.
#[derive(Debug)]
pub(crate) struct Compiled {
    _permit: OwnedSemaphorePermit,
    freed: Arc<Freed>,
}

impl Drop for Compiled {
    fn drop(&mut self) {
        self.freed.much.notify_one();
    }
}

impl Budget {
    /// Whether nothing large can be made of the body, whatever it says.
    pub(crate) fn is_small(&self) -> bool {
        self.kib <= SMALL_KIB
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        match self.kib >= LARGE_KIB {
            true => self.freed.much.notify_one(),
            false => self.freed.little.notify_one(),
        }
    }
}

impl Bodies {
    /// Reads bodies of at most `bytes_max`, all together at most `all_max`, of which one takes no more than half.
    pub(crate) fn new(bytes_max: usize, all_max: usize) -> Self {
        let bytes_max = bytes_max.min(all_max / 2);
        let budget = Arc::new(Semaphore::new(kib(all_max - bytes_max) as usize));
        let (last, grammars_kib) = (Arc::new(Semaphore::new(1)), kib(all_max));
        let grammars = Arc::new(Semaphore::new(grammars_kib as usize));
        Self { bytes_max, budget, last, grammars, grammars_kib, freed: Arc::default() }
    }

    /// The same, of whose room so many bytes are for what is kept beside.
    pub(crate) fn beside(self, bytes: usize) -> Self {
        self.budget.forget_permits(kib(bytes) as usize);
        self
    }

    /// Bytes that bodies may take besides what they hold.
    pub(crate) fn free_bytes(&self) -> u64 {
        let last_bytes = self.last.available_permits() * self.bytes_max;
        (self.budget.available_permits() as u64 * 1024).saturating_add(last_bytes as u64)
    }

    /// Lets a body hold so many bytes more.
    ///
    /// # Errors
    /// 413 if that is more than a body may have, 429 if too much is held already.
    pub(crate) async fn more(&self, budget: &mut Budget, bytes: usize) -> Result<(), ApiError> {
        let all = budget.kib + kib(bytes) as usize;
        match all > kib(self.bytes_max) as usize {
            true => Err(self.too_long()),
            false => self.take(budget, all).await,
        }
    }

    /// Lets what is made of a body take so many bytes more.
    ///
    /// # Errors
    /// 413 if that is more than a body may have, 429 if too much is held already.
    pub(crate) async fn more_made(
        &self,
        budget: &mut Budget,
        bytes: usize,
    ) -> Result<(), ApiError> {
        let all = budget.kib + kib(bytes) as usize;
        if all > kib(self.bytes_max) as usize {
            let why = "the texts have so many signs that begin a mark of the model's that they take too much memory; send less text, or \"parse_special\": true";
            let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why);
            return Err(error.code("body_too_large"));
        }
        self.take(budget, all).await
    }

    /// Lets so many values be made of a body; those of ordinary ones are within the KiB that it has.
    ///
    /// # Errors
    /// 429 if too much is held already.
    pub(crate) async fn valued(&self, budget: &mut Budget, values: usize) -> Result<(), ApiError> {
        let made = values.saturating_mul(VALUE_BYTES) / MADE_FACTOR / 1024;
        let all = (budget.kib + made).min(kib(self.bytes_max) as usize);
        if all <= budget.kib {
            return Ok(());
        }
        self.take(budget, all).await
    }

    /// Waits until a text of so many bytes may be turned into tokens, which takes a hundred times as much; the longest have
    /// all that a body may have.
    ///
    /// # Errors
    /// 429 if too much is held already.
    pub(crate) async fn encoded(&self, budget: &mut Budget, bytes: usize) -> Result<(), ApiError> {
        if budget.is_small() {
            return Ok(());
        }
        let all = budget.kib + kib(bytes.saturating_mul(ENCODED_FACTOR)) as usize;
        let all = all.min(kib(self.bytes_max) as usize).max(budget.kib);
        self.take(budget, all).await
    }

    /// Lets a grammar take so many bytes; nothing is taken for a small one, and one that needs all has all.
    ///
    /// # Errors
    /// 429 if others take too much.
    pub(crate) async fn compiled(&self, bytes: usize) -> Result<Option<Compiled>, ApiError> {
        if bytes <= SMALL_GRAMMAR_BYTES {
            return Ok(None);
        }
        let permit =
            Arc::clone(&self.grammars).acquire_many_owned(kib(bytes).min(self.grammars_kib));
        match timeout(WAIT_TIME_MAX, permit).await {
            Ok(Ok(permit)) => {
                Ok(Some(Compiled { _permit: permit, freed: Arc::clone(&self.freed) }))
            }
            _ => {
                let why = "too many answers are held to large schemas or grammars; try again";
                Err(ApiError::busy(why, WAIT_TIME_MAX))
            }
        }
    }

    /// Has the allocator give memory back to the system behind bodies and grammars, for ever.
    pub(crate) async fn give_back(self, free: fn()) {
        loop {
            self.freed.wait().await;
            // Nobody waits for it.
            _ = spawn_blocking(free).await;
        }
    }

    /// What a request holds, which says that it is of this kind.
    ///
    /// # Errors
    /// 415 for anything else, 413 for what is too long, 408 for what does not come, 429 if too much is
    /// held already.
    pub(crate) async fn read_as(
        &self,
        headers: &HeaderMap,
        body: Body,
        kind: Kind,
    ) -> Result<BufferedBody, ApiError> {
        check_kind(headers, kind)?;
        let length =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let length: usize = length.unwrap_or(self.bytes_max);
        if length > self.bytes_max {
            swallow(headers, body, self.bytes_max).await;
            return Err(self.too_long());
        }
        let held = timeout(READ_TIME_MAX, self.gather(body)).await;
        held.map_err(|_| {
            let why = format!("the body did not come within {} s", READ_TIME_MAX.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, why)
        })?
    }

    /// All of a body, with its part of the budget.
    async fn gather(&self, body: Body) -> Result<BufferedBody, ApiError> {
        let mut body = Limited::new(body, self.bytes_max);
        let mut bytes = BytesMut::new();
        let freed = Arc::clone(&self.freed);
        let mut budget = Budget { kib: 0, permit: None, last: None, freed };
        self.take(&mut budget, 1).await?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => self.too_long(),
                false => ApiError::bad(format!("the body broke off: {error}")),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            let more = kib(bytes.len() + data.len()) as usize;
            if more > budget.kib {
                self.take(&mut budget, more).await?;
            }
            bytes.extend_from_slice(&data);
        }
        Ok(BufferedBody { bytes: bytes.freeze(), budget })
    }

    /// Lets `budget` have so many KiB: of what all share, or else of the room that one body has for itself.
    async fn take(&self, budget: &mut Budget, kib: usize) -> Result<(), ApiError> {
        let more = u32::try_from(kib - budget.kib).unwrap_or(u32::MAX);
        budget.kib = kib;
        if budget.last.is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.budget).acquire_many_owned(more);
        let last = Arc::clone(&self.last).acquire_owned();
        let either = async {
            tokio::select! {
                biased;
                permit = shared => permit.map(|permit| match &mut budget.permit {
                    Some(own) => own.merge(permit),
                    own => *own = Some(permit),
                }),
                permit = last => permit.map(|permit| budget.last = Some(permit)),
            }
        };
        match timeout(WAIT_TIME_MAX, either).await {
            Ok(Ok(())) => Ok(()),
            _ => {
                let why = "too many large requests are being read; try again";
                Err(ApiError::busy(why, WAIT_TIME_MAX))
            }
        }
    }

    fn too_long(&self) -> ApiError {
        let why = format!(
            "the body has more than the {} bytes allowed; send a shorter one, or smaller pictures",
            self.bytes_max
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why).code("body_too_large")
    }
}

/// Takes in some more of a body that is refused: a client that is cut off while it sends reads no answer.
async fn swallow(headers: &HeaderMap, mut body: Body, bytes_max: usize) {
    // Who asked before sending has sent nothing, and is told no.
    if headers.contains_key(EXPECT) {
        return;
    }
    let mut left = bytes_max.saturating_mul(SWALLOWED_BODIES);
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // Who is slow is cut off.
    _ = timeout(SWALLOW_TIME_MAX, all).await;
}

/// A permit is for a KiB, since a semaphore counts no further than to some 500 million.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX / 8)
}

/// Only what says that it is JSON is taken for it, where that matters.
fn check_kind(headers: &HeaderMap, wanted: Kind) -> Result<(), ApiError> {
    let refused = |why: &str| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if wanted == Kind::Json && !kind.eq_ignore_ascii_case("application/json") {
        return refused("the body must be JSON: send Content-Type: application/json");
    }
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            refused("the body must not be compressed: send no Content-Encoding")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paused::paused;

    impl Bodies {
        async fn read(&self, headers: &HeaderMap, body: Body) -> Result<BufferedBody, ApiError> {
            self.read_as(headers, body, Kind::Json).await
        }
    }

    #[track_caller]
    fn check(headers: &[(&str, &str)], body: &str, expect: Result<&str, u16>) {
        let pairs = headers.iter().map(|(name, value)| {
            let name: axum::http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        let headers: HeaderMap = pairs.collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read =
            runtime.block_on(Bodies::new(8, 4096).read(&headers, Body::from(body.to_owned())));
        let read = read.map(|held| String::from_utf8(held.bytes.to_vec()).unwrap());
        assert_eq!(read.map_err(|error| error.status.as_u16()), expect.map(str::to_owned));
    }

    #[test]
    fn bodies_are_json_of_bounded_length() {
        let json = ("content-type", "application/json; charset=utf-8");
        check(&[json], "{}", Ok("{}"));
        check(&[json, ("content-length", "2")], "{}", Ok("{}"));
        check(&[json], "123456789", Err(413));
        check(&[json, ("content-length", "9")], "", Err(413));
        check(&[], "{}", Err(415));
        check(&[("content-type", "text/plain")], "{}", Err(415));
        check(&[json, ("content-encoding", "gzip")], "{}", Err(415));
    }

    #[test]
    fn bodies_wait_for_each_other() {
        let bodies = Bodies::new(1 << 20, LARGEST_AT_ONCE << 20);
        let runtime = paused();
        runtime.block_on(async {
            let headers: HeaderMap =
                [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            let mut held = Vec::new();
            let largest = || Body::from(vec![b' '; 1 << 20]);
            for _ in 0..LARGEST_AT_ONCE {
                held.push(bodies.read(&headers, largest()).await.unwrap());
            }
            let refused = bodies.read(&headers, Body::from("{}")).await.unwrap_err();
            assert_eq!(refused.status, 429);
            held.pop();
            assert!(bodies.read(&headers, Body::from("{}")).await.is_ok());
        });
    }

    #[test]
    fn bodies_that_each_have_some_room_do_not_wait_for_each_other() {
        const MIB: usize = 1 << 20;
        /// A body that comes piece by piece, others going on between.
        struct Pieces {
            left: usize,
            is_ready: bool,
        }
        impl axum::body::HttpBody for Pieces {
            type Data = Bytes;
            type Error = std::convert::Infallible;
            fn poll_frame(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
                self.is_ready = !self.is_ready;
                if self.is_ready {
                    context.waker().wake_by_ref();
                    return std::task::Poll::Pending;
                }
                let is_over = self.left == 0;
                self.left = self.left.saturating_sub(1);
                let piece = Bytes::from(vec![b' '; MIB / 16]);
                std::task::Poll::Ready((!is_over).then(|| Ok(http_body::Frame::data(piece))))
            }
        }
        let bodies = Bodies::new(MIB, 2 * MIB);
        let runtime = paused();
        runtime.block_on(async {
            let read = || {
                let bodies = bodies.clone();
                let body = Pieces { left: 16, is_ready: false };
                tokio::spawn(async move {
                    let json = [(CONTENT_TYPE, "application/json".parse().unwrap())];
                    bodies.read(&json.into_iter().collect(), Body::new(body)).await.map(drop)
                })
            };
            for asked in [(); 6].map(|()| read()) {
                assert!(asked.await.unwrap().is_ok());
            }
        });
    }

    #[test]
    fn long_texts_are_turned_into_tokens_one_by_one() {
        let bodies = Bodies::new(1 << 20, 3 << 20);
        paused().block_on(async {
            let json = [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            let read =
                async || bodies.read(&json, Body::from(vec![b' '; 128 << 10])).await.unwrap();
            let mut held = [read().await, read().await, read().await];
            for held in &mut held[..2] {
                bodies.encoded(&mut held.budget, 1 << 20).await.unwrap();
            }
            // The first has most of what is shared, the second the room of one largest body.
            let third = bodies.encoded(&mut held[2].budget, 1 << 20).await;
            assert_eq!(third.unwrap_err().status, 429);
            assert!(bodies.read(&json, Body::from("{}")).await.is_ok(), "who asks little is read");
        });
    }

    #[test]
    fn small_bodies_of_many_values_wait_for_each_other() {
        let bodies = Bodies::new(1 << 20, 3 << 20);
        paused().block_on(async {
            let json = [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            let read = async || bodies.read(&json, Body::from(vec![b' '; 1024])).await.unwrap();
            let mut ordinary = read().await;
            bodies.valued(&mut ordinary.budget, 27).await.unwrap();
            assert_eq!(bodies.free_bytes(), (3 << 20) - 1024, "ordinary bodies take no more");
            drop(ordinary);
            let mut held = [read().await, read().await, read().await];
            // Each as many as one body may: the first of what is shared, the second of the room of one.
            for held in &mut held[..2] {
                bodies.valued(&mut held.budget, 1 << 15).await.unwrap();
            }
            let refused = bodies.valued(&mut held[2].budget, 1 << 15).await;
            assert_eq!(refused.unwrap_err().status, 429);
        });
    }

    #[test]
    fn memory_is_given_back_behind_many_values_at_once_and_behind_others_soon() {
        let bodies = Bodies::new(1 << 20, 3 << 20);
        paused().block_on(async {
            let json = [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            let read = async || bodies.read(&json, Body::from(vec![b' '; 1024])).await.unwrap();
            let is_told = async |within| timeout(within, bodies.freed.wait()).await.is_ok();
            assert!(!is_told(SMALL_GIVEN_BACK * 2).await, "nothing was held");
            let mut held = read().await;
            bodies.valued(&mut held.budget, 1 << 13).await.unwrap();
            drop(held);
            assert!(is_told(DROPPED_WITHIN * 2).await);
            drop((read().await, read().await));
            assert!(!is_told(DROPPED_WITHIN * 2).await);
            drop(read().await);
            assert!(is_told(SMALL_GIVEN_BACK * 2).await);
            assert!(!is_told(SMALL_GIVEN_BACK * 2).await, "once for all of them");
        });
    }

    #[test]
    fn large_grammars_wait_for_each_other_and_bodies_do_not_wait_for_them() {
        let bodies = Bodies::new(1 << 20, 4 << 20);
        paused().block_on(async {
            let small = bodies.compiled(SMALL_GRAMMAR_BYTES).await.unwrap();
            assert!(small.is_none());
            let all = bodies.compiled(usize::MAX).await.unwrap();
            assert_eq!(bodies.compiled(2 << 20).await.unwrap_err().status, 429);
            let json = [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            assert!(bodies.read(&json, Body::from(vec![b' '; 1 << 20])).await.is_ok());
            drop(all);
            assert!(bodies.compiled(2 << 20).await.is_ok_and(|some| some.is_some()));
            // What is let go has memory given back.
            assert!(timeout(WAIT_TIME_MAX, bodies.freed.much.notified()).await.is_ok());
        });
    }

    #[test]
    fn what_bodies_hold_they_may_not_take_again() {
        let bodies = Bodies::new(1 << 20, 4 << 20);
        assert_eq!(bodies.free_bytes(), 4 << 20);
        paused().block_on(async {
            let json = [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            let held = bodies.read(&json, Body::from(vec![b' '; 1 << 19])).await.unwrap();
            assert_eq!(bodies.free_bytes(), (4 << 20) - (1 << 19));
            drop(held);
        });
        assert_eq!(bodies.free_bytes(), 4 << 20);
    }

    #[test]
    fn bodies_that_do_not_come_keep_nobody_out() {
        /// A body of which nothing ever comes.
        struct Never;
        impl axum::body::HttpBody for Never {
            type Data = Bytes;
            type Error = std::convert::Infallible;
            fn poll_frame(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
                std::task::Poll::Pending
            }
        }
        let bodies = Bodies::new(1 << 20, LARGEST_AT_ONCE << 20);
        let runtime = paused();
        runtime.block_on(async {
            let headers: HeaderMap = [
                (CONTENT_TYPE, "application/json".parse().unwrap()),
                (CONTENT_LENGTH, "1048576".parse().unwrap()),
            ]
            .into_iter()
            .collect();
            let slow: Vec<_> = (0..100)
                .map(|_| {
                    let (bodies, headers) = (bodies.clone(), headers.clone());
                    tokio::spawn(async move { bodies.read(&headers, Body::new(Never)).await.err() })
                })
                .collect();
            tokio::task::yield_now().await;
            let json = [(CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
            assert!(bodies.read(&json, Body::from("{}")).await.is_ok());
            for slow in slow {
                assert_eq!(slow.await.unwrap().unwrap().status, 408);
            }
        });
    }
}
