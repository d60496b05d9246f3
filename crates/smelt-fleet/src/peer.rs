//! Serves chunks to the neighbours of a board: the part of the Remote Execution API that reads blobs by their digests.
//!
//! It answers only for digests that are named, compares each blob with its digest before it sends it, takes nothing, and
//! lists nothing.  Whoever asks compares digests too, so nobody need trust it.  Beside the answer of `FindMissingBlobs` it
//! says by a header which of the missing ones its own board has asked the server for; other clients read over that.

mod shelf;

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
use bazel_remote_apis::google::rpc;
use futures_util::stream;
use ring::hmac;
use smelt_store::Digest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::BoxStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Code, Request, Response, Status};

pub use self::shelf::{Coming, Sealed, Shelf};
use crate::chunk::{CHUNK_BYTES_MAX, Chunk};
use crate::paced::Pace;
use crate::reapi::blob_of;

use api::capabilities_server::{Capabilities, CapabilitiesServer};
use api::content_addressable_storage_server::{
    ContentAddressableStorage, ContentAddressableStorageServer,
};
use api::digest_function::Value::Sha256;

/// Says in the answer to `GetCapabilities` which peer this is, so that a board leaves itself out.
pub(crate) const ID: &str = "smelt-peer";
/// Says beside the answer to `FindMissingBlobs` which of the digests come, a bit for each in their order.
pub(crate) const COMES: &str = "smelt-comes-bin";
/// Connections at once: those of a large site.
const CONNECTIONS_MAX: usize = 256;
/// Requests of one of them at once.
const STREAMS_MAX: u32 = 8;
/// Answers with blobs that are put together at once: each holds [`ANSWER_BYTES_MAX`] at most, and their disk is busy.
const READS_MAX: usize = 8;
/// How long others wait for that before they are told to come again.
const BUSY_MAX: Duration = Duration::from_secs(2);
/// Of one answer; gRPC's own limit is 4 MiB, and names take a part of it.
const ANSWER_BYTES_MAX: usize = 2 * CHUNK_BYTES_MAX;
/// Digests in one question, some 80 bytes each.
const ASKED_MAX: usize = 10_000;
/// How long an answer may wait for its turn by the rate; what would wait for longer is not sent.
const PACED_MAX: Duration = Duration::from_secs(1);
/// A request that takes longer is broken off, as one whose asker reads nothing.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// A neighbour that says nothing for so long is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How soon the end is heard.
const LOOK_AT_STOP: Duration = Duration::from_millis(100);

/// What a neighbour must show of the fleet's token.  It does not lead back to it: who plays a peer learns what opens other
/// peers, and not what opens the server.
pub fn pass(token: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let tag = hmac::sign(&key, b"smelt fleet peer 1");
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How a peer serves.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// The fleet's token, where it has one.
    pub token: Option<String>,
    /// The most bytes of blobs that are sent in a second.
    pub bytes_per_s: Option<u64>,
    /// What no other peer is called.
    pub id: String,
}

/// What a peer has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Serves what lies on a shelf until `stop` is set.
///
/// # Errors
/// If it cannot listen.
pub fn serve(
    listener: TcpListener,
    shelf: Arc<Shelf>,
    options: &PeerOptions,
    stop: &AtomicBool,
) -> io::Result<Sent> {
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(READS_MAX).build()?;
    let sent = Arc::new(Mutex::new(Sent::default()));
    let id = options.id.parse().map_err(|_| io::Error::other("its id is no plain text"))?;
    let pace = options.bytes_per_s.map(|rate| Arc::new(Mutex::new(Pace::new(rate))));
    let reads = Arc::new(Semaphore::new(READS_MAX));
    let peer = Peer { shelf, id, pace, reads, sent: sent.clone() };
    let open = options.token.as_deref().map(|token| format!("Bearer {}", pass(token)));
    let open = open.map(|text| Digest::of(text.as_bytes()));
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let storage = ContentAddressableStorageServer::with_interceptor(peer.clone(), move |it| {
            check(open.as_ref(), it)
        });
        let capabilities =
            CapabilitiesServer::with_interceptor(peer, move |it| check(open.as_ref(), it));
        let server = Server::builder()
            .timeout(REQUEST_MAX)
            .max_concurrent_streams(STREAMS_MAX)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .tcp_nodelay(true)
            .add_service(capabilities)
            .add_service(storage);
        let served = server.serve_with_incoming_shutdown(connections(listener), stopped(stop));
        // Whoever is still asking is not waited for.
        tokio::select! {
            served = served => served.map_err(io::Error::other),
            () = async { stopped(stop).await; tokio::time::sleep(BUSY_MAX).await } => Ok(()),
        }
    })?;
    runtime.shutdown_background();
    let sent = *sent.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(sent)
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK_AT_STOP).await;
    }
}

/// Refuses who does not show the pass.  Digests are compared, so that how long it takes says nothing.
fn check(open: Option<&Digest>, request: Request<()>) -> Result<Request<()>, Status> {
    let shown = request.metadata().get("authorization").map(|text| Digest::of(text.as_bytes()));
    match open {
        Some(open) if shown.as_ref() != Some(open) => {
            Err(Status::unauthenticated("a neighbour must show the fleet's token"))
        }
        _ => Ok(request),
    }
}

/// Connections, of which only so many are taken at once.
fn connections(
    listener: tokio::net::TcpListener,
) -> impl futures_util::Stream<Item = io::Result<Held>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    stream::unfold((listener, places), |(listener, places)| async {
        let place = places.clone().acquire_owned().await.expect("nobody closes it");
        // One that fails, as for want of descriptors, is no reason to end.
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(_) => tokio::time::sleep(LOOK_AT_STOP).await,
            }
        };
        Some((Ok(Held { stream, _place: place }), (listener, places)))
    })
}

/// A connection and its place among them.
struct Held {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Held {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Held {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Answers.
#[derive(Clone)]
struct Peer {
    shelf: Arc<Shelf>,
    id: MetadataValue<tonic::metadata::Ascii>,
    pace: Option<Arc<Mutex<Pace>>>,
    reads: Arc<Semaphore>,
    sent: Arc<Mutex<Sent>>,
}

impl Peer {
    /// Takes a turn of the rate; whether that is soon.
    fn has_turn(&self, bytes: u64) -> Option<Duration> {
        let Some(pace) = &self.pace else { return Some(Duration::ZERO) };
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.take_within(bytes, Instant::now(), PACED_MAX)
    }

    /// The blobs that are here and have their turn; how long to wait until they may go.
    async fn blobs(&self, chunks: Vec<Chunk>) -> (Vec<(Chunk, Result<Vec<u8>, Code>)>, Duration) {
        let peer = self.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut wait = Duration::ZERO;
            let looked = peer.shelf.look(&chunks);
            let one = |(chunk, (has, _)): (Chunk, (bool, bool))| {
                if !has {
                    return (chunk, Err(Code::NotFound));
                }
                let Some(turn) = peer.has_turn(chunk.bytes.into()) else {
                    return (chunk, Err(Code::ResourceExhausted));
                };
                wait = wait.max(turn);
                (chunk, peer.shelf.read(&chunk).ok_or(Code::NotFound))
            };
            let contents = chunks.into_iter().zip(looked).map(one).collect();
            (contents, wait)
        });
        reading.await.unwrap_or_default()
    }

    fn count(&self, contents: &[(Chunk, Result<Vec<u8>, Code>)]) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        for content in contents.iter().filter_map(|(_, content)| content.as_ref().ok()) {
            sent.chunks += 1;
            sent.bytes += content.len() as u64;
        }
    }
}

/// The chunks that digests name.
fn chunks_of(digests: &[api::Digest]) -> Result<Vec<Chunk>, Status> {
    if digests.len() > ASKED_MAX {
        let count = digests.len();
        return Err(Status::invalid_argument(format!("{count} digests, more than {ASKED_MAX}")));
    }
    let one = |digest: &api::Digest| blob_of(Some(digest));
    let chunks: Option<Vec<Chunk>> = digests.iter().map(one).collect();
    chunks.ok_or_else(|| Status::invalid_argument("a digest is no SHA-256 of a chunk"))
}

fn read_only<T>() -> Result<T, Status> {
    Err(Status::permission_denied("a peer only serves what its board has"))
}

fn unknown<T>() -> Result<T, Status> {
    Err(Status::unimplemented("a peer serves blobs by their digests, and nothing else"))
}

#[tonic::async_trait]
impl Capabilities for Peer {
    async fn get_capabilities(
        &self,
        _: Request<api::GetCapabilitiesRequest>,
    ) -> Result<Response<api::ServerCapabilities>, Status> {
        let cache = api::CacheCapabilities {
            digest_functions: vec![Sha256 as i32],
            action_cache_update_capabilities: Some(api::ActionCacheUpdateCapabilities {
                update_enabled: false,
            }),
            max_batch_total_size_bytes: ANSWER_BYTES_MAX as i64,
            ..Default::default()
        };
        let mut answer = Response::new(api::ServerCapabilities {
            cache_capabilities: Some(cache),
            ..Default::default()
        });
        answer.metadata_mut().insert(ID, self.id.clone());
        Ok(answer)
    }
}

#[tonic::async_trait]
impl ContentAddressableStorage for Peer {
    async fn find_missing_blobs(
        &self,
        request: Request<api::FindMissingBlobsRequest>,
    ) -> Result<Response<api::FindMissingBlobsResponse>, Status> {
        let digests = request.into_inner().blob_digests;
        let looked = self.shelf.look(&chunks_of(&digests)?);
        let comes: Vec<bool> = looked.iter().map(|(_, comes)| *comes).collect();
        let missing = digests.into_iter().zip(looked).filter(|(_, (has, _))| !has);
        let missing_blob_digests = missing.map(|(digest, _)| digest).collect();
        let mut answer = Response::new(api::FindMissingBlobsResponse { missing_blob_digests });
        answer.metadata_mut().insert_bin(COMES, MetadataValue::from_bytes(&bits(&comes)));
        Ok(answer)
    }

    async fn batch_read_blobs(
        &self,
        request: Request<api::BatchReadBlobsRequest>,
    ) -> Result<Response<api::BatchReadBlobsResponse>, Status> {
        let chunks: BTreeSet<Chunk> =
            chunks_of(&request.into_inner().digests)?.into_iter().collect();
        let bytes: usize = chunks.iter().map(|chunk| chunk.bytes as usize).sum();
        if bytes > ANSWER_BYTES_MAX {
            let message = format!("{bytes} bytes, more than the {ANSWER_BYTES_MAX} of an answer");
            return Err(Status::invalid_argument(message));
        }
        let place = tokio::time::timeout(BUSY_MAX, self.reads.clone().acquire_owned()).await;
        let Ok(Ok(_place)) = place else {
            return Err(Status::resource_exhausted("others are served first"));
        };
        let (contents, wait) = self.blobs(chunks.into_iter().collect()).await;
        tokio::time::sleep(wait).await;
        self.count(&contents);
        let one = |(chunk, content): (Chunk, Result<Vec<u8>, Code>)| {
            let code = content.as_ref().err().map_or(Code::Ok, |code| *code);
            api::batch_read_blobs_response::Response {
                digest: Some(crate::reapi::named(&chunk)),
                data: content.unwrap_or_default(),
                compressor: 0,
                status: Some(rpc::Status { code: code as i32, ..Default::default() }),
            }
        };
        let responses = contents.into_iter().map(one).collect();
        Ok(Response::new(api::BatchReadBlobsResponse { responses }))
    }

    async fn batch_update_blobs(
        &self,
        _: Request<api::BatchUpdateBlobsRequest>,
    ) -> Result<Response<api::BatchUpdateBlobsResponse>, Status> {
        read_only()
    }

    type GetTreeStream = BoxStream<api::GetTreeResponse>;

    async fn get_tree(
        &self,
        _: Request<api::GetTreeRequest>,
    ) -> Result<Response<Self::GetTreeStream>, Status> {
        unknown()
    }

    async fn split_blob(
        &self,
        _: Request<api::SplitBlobRequest>,
    ) -> Result<Response<api::SplitBlobResponse>, Status> {
        unknown()
    }

    type GetChunkMappingStream = BoxStream<api::GetChunkMappingResponse>;

    async fn get_chunk_mapping(
        &self,
        _: Request<api::GetChunkMappingRequest>,
    ) -> Result<Response<Self::GetChunkMappingStream>, Status> {
        unknown()
    }

    async fn splice_blob(
        &self,
        _: Request<api::SpliceBlobRequest>,
    ) -> Result<Response<api::SpliceBlobResponse>, Status> {
        read_only()
    }

    async fn register_chunk_mapping(
        &self,
        _: Request<tonic::Streaming<api::RegisterChunkMappingRequest>>,
    ) -> Result<Response<api::RegisterChunkMappingResponse>, Status> {
        read_only()
    }
}

/// A bit for each, the first of a byte in its lowest.
pub(crate) fn bits(all: &[bool]) -> Vec<u8> {
    let byte = |some: &[bool]| some.iter().rev().fold(0, |byte, one| byte << 1 | u8::from(*one));
    all.chunks(8).map(byte).collect()
}

/// The first `count` of bits that somebody sent.
pub(crate) fn of_bits(bytes: &[u8], count: usize) -> Vec<bool> {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
    (0..count).map(bit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back() {
        let all: Vec<bool> = (0..19).map(|at| at % 3 == 0).collect();
        assert_eq!(of_bits(&bits(&all), 19), all);
        assert_eq!(of_bits(&[], 3), [false; 3]);
        assert!(bits(&[]).is_empty());
    }

    #[test]
    fn a_pass_is_neither_the_token_nor_that_of_another() {
        assert_eq!(pass("secret"), pass("secret"));
        assert_ne!(pass("secret"), pass("other"));
        assert!(!pass("secret").contains("secret") && pass("secret").len() == 64);
    }
}
