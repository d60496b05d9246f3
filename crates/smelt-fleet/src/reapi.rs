//! Speaks to a server of Bazel's Remote Execution API v2: its content-addressed storage and its action cache.
//!
//! A key of smelt is an action whose command names it and that has no input, so that any server takes it.  Its result lists
//! statement, index and chunks as output files: servers answer with results only while they have all of their files.
//! <https://github.com/bazelbuild/remote-apis>, `build/bazel/remote/execution/v2/remote_execution.proto`.

#[cfg(test)]
mod served;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
use bazel_remote_apis::google::bytestream::ReadRequest;
use bazel_remote_apis::google::bytestream::byte_stream_client::ByteStreamClient;
use futures_util::future::try_join_all;
use prost::Message as _;
use ring::rand::{SecureRandom as _, SystemRandom};
use smelt_store::Digest;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::address::Address;
use crate::chunk::CHUNK_BYTES_MAX;
use crate::packed;
use crate::remote::{
    Blob, Contents, Entry, Found, Key, Range, Ranges, Remote, RemoteError, plain, told,
};

use api::action_cache_client::ActionCacheClient;
use api::capabilities_client::CapabilitiesClient;
use api::content_addressable_storage_client::ContentAddressableStorageClient;
use api::digest_function::Value::Sha256;

const IDENTITY: i32 = api::compressor::Value::Identity as i32;
const ZSTD: i32 = api::compressor::Value::Zstd as i32;

/// A server in the same building is reached within milliseconds; a run must not stand still for one that is gone.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// For what has no blobs in it: of a thousand boards that start together the last one is answered after some seconds.
pub(crate) const ASK_MAX: Duration = Duration::from_secs(15);
/// A batch of 4 MiB by a line of 0.5 Mbit/s.
const BATCH_MAX: Duration = Duration::from_secs(90);
/// What a message may carry where the server says nothing else; gRPC's own limit is 4 MiB.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Of that, what its blobs' names take.
const NAMES_BYTES: usize = 256 << 10;
/// What a batch holds of it: more is copied more slowly.
const BATCH_BYTES_MAX: usize = CHUNK_BYTES_MAX;
/// Batches on their way at once: enough to fill a line whose answers take a while, and 12 MiB of memory.
const BATCHES_MAX: usize = 8;
/// Parts of blobs on their way at once, each by a stream of its own.
const RANGES_MAX: usize = 16;
/// Of the batch that it sends: in pieces of 16 KiB, which is usual, each costs as much as copying it.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// What a server may send of a batch before it is told that some of it was taken: all of it.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Digests asked after in one message: some 80 bytes each.
const ASKED_MAX: usize = 20_000;
/// How often one call is made, where what went wrong may pass.
const CALLS_MAX: u32 = 3;
/// Doubled from call to call, and up to as much again by chance, so that a fleet does not come back in step.
const PAUSE: Duration = Duration::from_millis(200);
/// How soon somebody who wants no more is heard.
const LOOK_AT_STOP: Duration = Duration::from_millis(100);
/// After so many calls in a row that came to nothing, it is asked no more.
const FAILURES_MAX: u32 = 2;

/// Entries asked for at once: enough to hide how long one answer takes, of up to 4 MiB each.
const ENTRIES_MAX: usize = 16;
const DISK_USAGE: &str = "/build.buildgrid.LocalContentAddressableStorage/GetLocalDiskUsage";

const STATEMENT: &str = "statement.json";
const INDEX: &str = "index.json";
const PIECES: &str = "pieces";
const CHUNK: &str = "chunk/";

/// A server that answered once.
pub struct Client {
    /// Until it is dropped.
    runtime: Option<Runtime>,
    /// Whoever asks wants no more.
    stop: Arc<AtomicBool>,
    channel: Channel,
    address: Address,
    name: String,
    token: Option<MetadataValue<Ascii>>,
    batch_bytes_max: usize,
    /// Whether blobs may go and come packed.
    packs: bool,
    /// It gave out no part of a blob once, and is asked for none any more.
    gives_no_parts: AtomicBool,
    /// Calls in a row that came to nothing.
    failures: AtomicU32,
}

/// How long a server may take until it is known.
#[derive(Clone, Copy)]
struct Patience {
    /// To be connected.
    connect: Duration,
    /// To say then what it can do.
    answer: Duration,
}

impl Patience {
    const USUAL: Self = Self { connect: CONNECT_MAX, answer: ASK_MAX };
}

/// What a server's storage holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// What is there.
    pub used: u64,
    /// What may be there before something is removed, where that is limited.
    pub quota: Option<u64>,
}

/// `GetLocalDiskUsageRequest` of `build/buildgrid/local_cas.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct DiskUsageRequest {}

/// `GetLocalDiskUsageResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct DiskUsageResponse {
    #[prost(int64, tag = "1")]
    size_bytes: i64,
    /// 0 is no limit.
    #[prost(int64, tag = "2")]
    quota_bytes: i64,
}

impl DiskUsage {
    /// Nothing where a number makes no sense.
    fn of(said: DiskUsageResponse) -> Option<Self> {
        let used = u64::try_from(said.size_bytes).ok()?;
        let quota = u64::try_from(said.quota_bytes).ok()?;
        Some(Self { used, quota: (quota > 0).then_some(quota) })
    }

    /// What may still come, where that is limited.
    pub fn free(&self) -> Option<u64> {
        Some(self.quota?.saturating_sub(self.used))
    }
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it takes entries, from somebody.
    pub takes_entries: bool,
    /// What one message may carry.
    pub batch_bytes_max: usize,
    /// Whether it takes blobs packed by Zstandard, and gives them out so.
    pub packs: bool,
}

impl Client {
    /// Connects and asks what the server can do.  `token` goes with every call; `authority` is a PEM file's content, where the
    /// server's certificate is vouched for by nobody else.
    ///
    /// # Errors
    /// If it does not answer in time, or keeps no results by SHA-256.
    pub fn connect(
        address: &Address,
        token: Option<&str>,
        authority: Option<&str>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(Self, Capabilities), RemoteError> {
        Self::connect_within(Patience::USUAL, address, (token, authority), stop)
    }

    fn connect_within(
        patience: Patience,
        address: &Address,
        (token, authority): (Option<&str>, Option<&str>),
        stop: &Arc<AtomicBool>,
    ) -> Result<(Self, Capabilities), RemoteError> {
        let server = || address.to_string();
        let wrong = |problem: String| RemoteError { server: server(), problem, is_gone: false };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
        let token = token.map(|token| format!("Bearer {token}").parse());
        let token =
            token.transpose().map_err(|_| wrong("the token is no plain text".to_owned()))?;
        let endpoint = endpoint(address, authority).map_err(|error| wrong(told(&error)))?;
        let endpoint = endpoint.connect_timeout(patience.connect);
        let channel = runtime.block_on(async { endpoint.connect_lazy() });
        let mut client = Self {
            runtime: Some(runtime),
            stop: stop.clone(),
            channel,
            name: address.to_string(),
            address: address.clone(),
            token,
            batch_bytes_max: BATCH_BYTES_MAX,
            packs: false,
            gives_no_parts: AtomicBool::new(false),
            failures: AtomicU32::new(0),
        };
        let capabilities = client.capabilities(patience.answer)?;
        (client.batch_bytes_max, client.packs) = (capabilities.batch_bytes_max, capabilities.packs);
        Ok((client, capabilities))
    }

    fn capabilities(&self, answer_max: Duration) -> Result<Capabilities, RemoteError> {
        let request = api::GetCapabilitiesRequest { instance_name: self.address.instance.clone() };
        let asked = self.request(request, answer_max);
        let answer = self.until_stopped(async {
            let mut client = CapabilitiesClient::new(self.channel.clone());
            within(answer_max, client.get_capabilities(asked)).await
        });
        let answer = answer.map_err(|status| self.gone(problem(&status)))?.into_inner();
        let cache = answer.cache_capabilities.unwrap_or_default();
        if !cache.digest_functions.contains(&(Sha256 as i32)) {
            return Err(self.wrong("it keeps nothing by SHA-256".to_owned()));
        }
        let updates = cache.action_cache_update_capabilities.unwrap_or_default();
        let most = usize::try_from(cache.max_batch_total_size_bytes).unwrap_or(0);
        let most = if most == 0 { MESSAGE_BYTES_MAX } else { most.min(MESSAGE_BYTES_MAX) };
        let batch_bytes_max = most.saturating_sub(NAMES_BYTES).min(BATCH_BYTES_MAX);
        if batch_bytes_max < CHUNK_BYTES_MAX {
            let least = CHUNK_BYTES_MAX + NAMES_BYTES;
            return Err(
                self.wrong(format!("a message may have {most} bytes, and {least} are needed"))
            );
        }
        let packs = cache.supported_batch_update_compressors.contains(&ZSTD);
        Ok(Capabilities { takes_entries: updates.update_enabled, batch_bytes_max, packs })
    }

    pub(crate) fn wrong(&self, problem: String) -> RemoteError {
        RemoteError { server: self.name.clone(), problem, is_gone: false }
    }

    pub(crate) fn gone(&self, problem: String) -> RemoteError {
        RemoteError { is_gone: true, ..self.wrong(problem) }
    }

    /// Waits for an answer, or until nobody wants it any more.
    pub(crate) fn until_stopped<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let runtime = self.runtime.as_ref().expect("it is there until this is dropped");
        runtime.block_on(async {
            tokio::select! {
                answer = answer => answer,
                () = stopped(&self.stop) => Err(Status::cancelled("stopped")),
            }
        })
    }

    pub(crate) fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = self.unlimited(message);
        request.set_timeout(limit);
        request
    }

    /// The same of what may be answered for hours.
    pub(crate) fn unlimited<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Makes a call although nobody waits any more.
    pub(crate) fn whatever<T>(&self, call: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().expect("it is there until this is dropped");
        runtime.block_on(call)
    }

    fn storage(&self) -> ContentAddressableStorageClient<Channel> {
        ContentAddressableStorageClient::new(self.channel.clone())
            .max_decoding_message_size(2 * MESSAGE_BYTES_MAX)
    }

    fn streams(&self) -> ByteStreamClient<Channel> {
        ByteStreamClient::new(self.channel.clone()).max_decoding_message_size(2 * CHUNK_BYTES_MAX)
    }

    fn actions(&self) -> ActionCacheClient<Channel> {
        ActionCacheClient::new(self.channel.clone())
            .max_decoding_message_size(2 * MESSAGE_BYTES_MAX)
    }

    /// Makes a call, and again where what went wrong may pass; none where the server has failed before.
    fn call<T>(
        &self,
        call: impl AsyncFn() -> Result<T, Status>,
    ) -> Result<Result<T, Status>, RemoteError> {
        if self.failures.load(Ordering::Relaxed) >= FAILURES_MAX {
            return Err(self.gone("it failed before, and is asked no more by this run".to_owned()));
        }
        let answer = self.until_stopped(again(call));
        match &answer {
            Err(status) if passes(status.code()) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(self.gone(problem(status)))
            }
            _ => {
                self.failures.store(0, Ordering::Relaxed);
                Ok(answer)
            }
        }
    }

    fn answered<T>(&self, call: impl AsyncFn() -> Result<T, Status>) -> Result<T, RemoteError> {
        self.call(call)?.map_err(|status| self.wrong(problem(&status)))
    }

    /// What is kept under a key, if anything is.
    async fn result(&self, key: &Key) -> Result<Option<api::ActionResult>, Status> {
        let message = api::GetActionResultRequest {
            instance_name: self.address.instance.clone(),
            action_digest: Some(named(&Action::of(key).action.0)),
            digest_function: Sha256 as i32,
            ..Default::default()
        };
        let request = self.request(message, ASK_MAX);
        match within(ASK_MAX, self.actions().get_action_result(request)).await {
            Ok(found) => Ok(Some(found.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// What it keeps and how much of that it may, where it tells: BuildBox's servers do, by a call of their own.
    pub fn disk_usage(&self) -> Option<DiskUsage> {
        let asked = self.request(DiskUsageRequest {}, CONNECT_MAX);
        let answer = self.until_stopped(async {
            let mut client = Grpc::new(self.channel.clone());
            let ready = client.ready().await;
            ready.map_err(|error| Status::unavailable(told(&error)))?;
            let path = PathAndQuery::from_static(DISK_USAGE);
            within(CONNECT_MAX, client.unary(asked, path, ProstCodec::default())).await
        });
        answer.ok().and_then(|answer| DiskUsage::of(answer.into_inner()))
    }

    async fn read_batch(&self, blobs: &[Blob]) -> Result<Vec<Option<Vec<u8>>>, Status> {
        let once: BTreeSet<&Blob> = blobs.iter().collect();
        let message = api::BatchReadBlobsRequest {
            instance_name: self.address.instance.clone(),
            digests: once.into_iter().map(named).collect(),
            acceptable_compressors: self.packs.then_some(ZSTD).into_iter().collect(),
            digest_function: Sha256 as i32,
        };
        let request = self.request(message, BATCH_MAX);
        let answer = within(BATCH_MAX, self.storage().batch_read_blobs(request)).await?;
        let wanted: HashMap<String, u32> =
            blobs.iter().map(|blob| (blob.digest.to_string(), blob.bytes)).collect();
        // Only what has the size of what was asked for: each may be given out as often as it was asked for.
        let content = |digest: &api::Digest, data: Vec<u8>, compressor: i32| {
            let bytes = *wanted.get(&digest.hash)? as usize;
            match compressor {
                IDENTITY => Some(data).filter(|data| data.len() == bytes),
                ZSTD => packed::unpack(&data, bytes),
                _ => None,
            }
        };
        let mut found = HashMap::new();
        for response in answer.into_inner().responses {
            let code = response.status.map_or(Code::Ok, |status| Code::from(status.code));
            match (response.digest, code) {
                // What comes again is not unpacked again.
                (Some(digest), Code::Ok) if found.contains_key(&digest.hash) => {}
                (Some(digest), Code::Ok) => {
                    let content = content(&digest, response.data, response.compressor);
                    let content =
                        content.ok_or_else(|| Status::data_loss("a blob has another size"))?;
                    found.insert(digest.hash, content);
                }
                (None, Code::Ok) => return Err(Status::data_loss("a blob has no digest")),
                (_, Code::NotFound) => {}
                (_, code) => return Err(Status::new(code, "a blob cannot be read")),
            }
        }
        Ok(blobs.iter().map(|blob| found.get(&blob.digest.to_string()).cloned()).collect())
    }

    /// Part of a blob, by a stream of its own: nothing else of the protocol reads parts.
    async fn read_range(&self, range: &Range) -> Result<Option<Vec<u8>>, Status> {
        let message = ReadRequest {
            resource_name: resource(&self.address.instance, &range.blob),
            read_offset: range.from.into(),
            read_limit: range.bytes.into(),
        };
        let request = self.request(message, BATCH_MAX);
        let whole = async {
            let mut stream = self.streams().read(request).await?.into_inner();
            let mut content = Vec::new();
            while content.len() <= range.bytes as usize
                && let Some(part) = stream.message().await?
            {
                content.extend(part.data);
            }
            Ok(content)
        };
        match within(BATCH_MAX, whole).await {
            Ok(content) => Ok((content.len() == range.bytes as usize).then_some(content)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// What of some blobs is sent packed.
    fn packed(&self, blobs: &[(Blob, Vec<u8>)]) -> HashMap<Digest, Vec<u8>> {
        let of = |(blob, data): &(Blob, Vec<u8>)| Some((blob.digest, packed::pack(data)?));
        if self.packs { blobs.iter().filter_map(of).collect() } else { HashMap::new() }
    }

    async fn write_batch(
        &self,
        blobs: &[(Blob, Vec<u8>)],
        packed: &HashMap<Digest, Vec<u8>>,
    ) -> Result<(), Status> {
        let one = |(blob, data): &(Blob, Vec<u8>)| {
            let packed = packed.get(&blob.digest);
            let compressor = if packed.is_some() { ZSTD } else { IDENTITY };
            let (digest, data) = (Some(named(blob)), packed.unwrap_or(data).clone());
            api::batch_update_blobs_request::Request { digest, data, compressor }
        };
        let message = api::BatchUpdateBlobsRequest {
            instance_name: self.address.instance.clone(),
            requests: blobs.iter().map(one).collect(),
            digest_function: Sha256 as i32,
        };
        let request = self.request(message, BATCH_MAX);
        let answer = within(BATCH_MAX, self.storage().batch_update_blobs(request)).await?;
        let refused = answer.into_inner().responses.into_iter().filter_map(|it| it.status);
        match refused.into_iter().find(|status| status.code != 0) {
            Some(status) => Err(Status::new(Code::from(status.code), status.message)),
            None => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A name that no server answers for is asked for in a thread of its own, which nobody waits for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Remote for Client {
    fn name(&self) -> &str {
        &self.name
    }

    fn instance(&self) -> &str {
        &self.address.instance
    }

    fn missing(&self, blobs: &[Blob]) -> Result<Vec<Blob>, RemoteError> {
        let mut missing = Vec::new();
        for asked in blobs.chunks(ASKED_MAX) {
            let answer = self.answered(async || {
                let message = api::FindMissingBlobsRequest {
                    instance_name: self.address.instance.clone(),
                    blob_digests: asked.iter().map(named).collect(),
                    digest_function: Sha256 as i32,
                };
                let request = self.request(message, ASK_MAX);
                within(ASK_MAX, self.storage().find_missing_blobs(request)).await
            })?;
            let lacks = answer.into_inner().missing_blob_digests;
            let lacks: HashSet<String> = lacks.into_iter().map(|digest| digest.hash).collect();
            missing.extend(asked.iter().filter(|it| lacks.contains(&it.digest.to_string())));
        }
        Ok(missing)
    }

    fn read(&self, blobs: &[Blob]) -> Contents {
        let batches = batches(blobs, self.batch_bytes_max, |blob| blob.bytes as usize);
        let mut read = Vec::with_capacity(blobs.len());
        for some in batches.chunks(BATCHES_MAX) {
            let answers = self.answered(async || {
                try_join_all(some.iter().map(|batch| self.read_batch(batch))).await
            })?;
            read.extend(answers.into_iter().flatten());
        }
        Ok(read)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        (!self.gives_no_parts.load(Ordering::Relaxed)).then_some(self)
    }

    fn write(&self, blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        let batches = batches(blobs, self.batch_bytes_max, |(blob, _)| blob.bytes as usize);
        for some in batches.chunks(BATCHES_MAX) {
            let packed: Vec<_> = some.iter().map(|batch| self.packed(batch)).collect();
            self.answered(async || {
                let all = some.iter().zip(&packed);
                try_join_all(all.map(|(batch, packed)| self.write_batch(batch, packed))).await
            })?;
        }
        Ok(())
    }

    fn entry(&self, key: &Key) -> Result<Option<Entry>, RemoteError> {
        self.entries(&[*key])?.pop().unwrap_or(Ok(None))
    }

    fn entries(&self, keys: &[Key]) -> Result<Vec<Found>, RemoteError> {
        let mut entries = Vec::with_capacity(keys.len());
        for some in keys.chunks(ENTRIES_MAX) {
            let found = self
                .answered(async || try_join_all(some.iter().map(|key| self.result(key))).await)?;
            let read = |found: Option<api::ActionResult>| {
                found.map(|found| entry_of(&found)).transpose().map_err(|what| self.wrong(what))
            };
            entries.extend(found.into_iter().map(read));
        }
        Ok(entries)
    }

    fn publish(&self, key: &Key, entry: &Entry) -> Result<(), RemoteError> {
        let Action { action, command, root } = Action::of(key);
        let named_by = named(&action.0);
        self.write(&[command, root, action])?;
        self.answered(async || {
            let message = api::UpdateActionResultRequest {
                instance_name: self.address.instance.clone(),
                action_digest: Some(named_by.clone()),
                action_result: Some(result_of(entry)),
                digest_function: Sha256 as i32,
                ..Default::default()
            };
            let request = self.request(message, ASK_MAX);
            within(ASK_MAX, self.actions().update_action_result(request)).await
        })?;
        Ok(())
    }
}

impl Ranges for Client {
    fn read_ranges(&self, ranges: &[Range]) -> Contents {
        let mut read = Vec::with_capacity(ranges.len());
        // No more bytes at once than a batch has, which a slow line brings in the time of one.
        let batches = batches(ranges, BATCH_BYTES_MAX, |range| range.bytes as usize);
        for some in batches.into_iter().flat_map(|batch| batch.chunks(RANGES_MAX)) {
            // Once: whole chunks come instead, which are asked for again where that may help.
            let parts = try_join_all(some.iter().map(|range| self.read_range(range)));
            let parts = self.until_stopped(parts).map_err(|status| {
                self.gives_no_parts.store(true, Ordering::Relaxed);
                self.wrong(problem(&status))
            })?;
            read.extend(parts);
        }
        Ok(read)
    }
}

/// The blobs that name a key to a server.
struct Action {
    action: (Blob, Vec<u8>),
    command: (Blob, Vec<u8>),
    root: (Blob, Vec<u8>),
}

impl Action {
    /// The same bytes for ever, or no board finds what another has published.
    fn of(key: &Key) -> Self {
        let blob = |content: Vec<u8>| (Blob::of(&content), content);
        let words = ["smelt", "result-1", key.word(), &key.digest().to_string()];
        let command =
            api::Command { arguments: words.map(str::to_owned).to_vec(), ..Default::default() };
        let command = blob(command.encode_to_vec());
        let root = blob(Vec::new());
        let action = api::Action {
            command_digest: Some(named(&command.0)),
            input_root_digest: Some(named(&root.0)),
            ..Default::default()
        };
        Self { action: blob(action.encode_to_vec()), command, root }
    }
}

fn endpoint(
    address: &Address,
    authority: Option<&str>,
) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(address.url())?
        .max_frame_size(FRAME_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(BATCHES_MAX as u32 * STREAM_WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(ASK_MAX)
        .user_agent(concat!("smelt/", env!("CARGO_PKG_VERSION")))?;
    if !address.is_secure {
        return Ok(endpoint);
    }
    let config = ClientTlsConfig::new().with_webpki_roots();
    let config = match authority {
        Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
        None => config,
    };
    endpoint.tls_config(config)
}

pub(crate) fn named(blob: &Blob) -> api::Digest {
    api::Digest { hash: blob.digest.to_string(), size_bytes: blob.bytes.into() }
}

fn result_of(entry: &Entry) -> api::ActionResult {
    let file = |path: String, blob: &Blob| api::OutputFile {
        path,
        digest: Some(named(blob)),
        ..Default::default()
    };
    let chunks = entry.chunks.iter().enumerate();
    let mut output_files =
        vec![file(STATEMENT.to_owned(), &entry.statement), file(INDEX.to_owned(), &entry.index)];
    output_files.extend(entry.pieces.iter().map(|blob| file(PIECES.to_owned(), blob)));
    output_files.extend(chunks.map(|(number, blob)| file(format!("{CHUNK}{number}"), blob)));
    api::ActionResult { output_files, ..Default::default() }
}

/// The entry of a result, or what is odd about it.
fn entry_of(result: &api::ActionResult) -> Result<Entry, String> {
    let (mut statement, mut index, mut pieces, mut chunks) = (None, None, None, Vec::new());
    for file in &result.output_files {
        let blob = blob_of(file.digest.as_ref()).ok_or("its entry has a file without a digest")?;
        match file.path.as_str() {
            STATEMENT => statement = Some(blob),
            INDEX => index = Some(blob),
            PIECES => pieces = Some(blob),
            path if path.starts_with(CHUNK) => chunks.push(blob),
            path => return Err(format!("its entry has a file {path:?}, which is none of smelt's")),
        }
    }
    match (statement, index) {
        (Some(statement), Some(index)) => Ok(Entry { statement, index, pieces, chunks }),
        _ => Err("its entry has no statement or no list of chunks".to_owned()),
    }
}

pub(crate) fn blob_of(digest: Option<&api::Digest>) -> Option<Blob> {
    let api::Digest { hash, size_bytes } = digest?;
    let digest: Digest = hash.parse().ok()?;
    Some(Blob { digest, bytes: u32::try_from(*size_bytes).ok()? })
}

/// What a stream of a blob's bytes is asked for by.
fn resource(instance: &str, Blob { digest, bytes }: &Blob) -> String {
    let name = format!("blobs/{digest}/{bytes}");
    if instance.is_empty() { name } else { format!("{instance}/{name}") }
}

/// Ends when the flag is set.
async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK_AT_STOP).await;
    }
}

/// Makes a call, and again after a pause where what went wrong may pass.
async fn again<T>(call: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
    let mut calls = 1;
    loop {
        match call().await {
            Err(status) if passes(status.code()) && calls < CALLS_MAX => {
                tokio::time::sleep(pause(calls, chance())).await;
                calls += 1;
            }
            answer => return answer,
        }
    }
}

/// How long to wait after so many calls; `chance` is from 0 to 1.
fn pause(calls: u32, chance: f64) -> Duration {
    PAUSE.mul_f64(f64::from(1 << calls.min(8)) * (1.0 + chance) / 2.0)
}

fn chance() -> f64 {
    let mut bytes = [0; 4];
    // Without it all come back at once, which a server may take.
    let _ = SystemRandom::new().fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

/// Whether the same call may go well in a moment.
fn passes(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Aborted)
}

/// Ends a call that takes too long, whatever the server does.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let answer = tokio::time::timeout(limit, call).await;
    let late = || Status::deadline_exceeded(format!("no answer within {} s", limit.as_secs()));
    answer.unwrap_or_else(|_| Err(late()))
}

/// What went wrong, for a person.
pub(crate) fn problem(status: &Status) -> String {
    let cure = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            "; it wants another token: SMELT_FLEET_TOKEN, or --fleet-token-file"
        }
        Code::ResourceExhausted => "; it is full, or takes less at a time",
        _ => "",
    };
    let cause = status.source().map(told).unwrap_or_default();
    let [message, cause] = [status.message(), &cause].map(plain);
    let says = [message.as_str(), &cause].into_iter().find(|text| !text.is_empty());
    let text = says.unwrap_or(status.code().description());
    let is_own = text.contains("UnknownIssuer");
    let cure = if is_own { "; --fleet-ca names an authority of your own" } else { cure };
    format!("{text}{cure}")
}

/// In order, as many in each as one message takes; one that is larger by itself goes alone.
fn batches<T>(items: &[T], bytes_max: usize, bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut batches, mut from, mut sum) = (Vec::new(), 0, 0);
    for (at, item) in items.iter().enumerate() {
        if at > from && sum + bytes(item) > bytes_max {
            batches.push(&items[from..at]);
            (from, sum) = (at, 0);
        }
        sum += bytes(item);
    }
    if from < items.len() {
        batches.push(&items[from..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::peer::{PeerOptions, serve};

    #[test]
    fn batches_hold_what_a_message_takes() {
        let sizes = |items: &[usize]| -> Vec<Vec<usize>> {
            batches(items, 10, |size| *size).into_iter().map(<[usize]>::to_vec).collect()
        };
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&[3, 7, 1, 12, 2]), [vec![3, 7], vec![1], vec![12], vec![2]]);
    }

    #[test]
    fn free_is_what_the_quota_leaves() {
        let of = |size_bytes, quota_bytes| {
            let usage = DiskUsage::of(DiskUsageResponse { size_bytes, quota_bytes })?;
            Some((usage.used, usage.free()))
        };
        assert_eq!(of(3, 10), Some((3, Some(7))));
        assert_eq!(of(12, 10), Some((12, Some(0))));
        assert_eq!(of(3, 0), Some((3, None)));
        assert_eq!([of(-1, 10), of(1, -1)], [None, None]);
    }

    /// A server that many ask at once is connected by the kernel at once, and answers later.
    #[test]
    fn who_is_connected_is_waited_for_longer_than_a_connection() {
        let patience =
            Patience { connect: Duration::from_millis(20), answer: Duration::from_secs(20) };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("grpc://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (stop, over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let options = PeerOptions { token: None, bytes_per_s: None, id: String::new() };
        thread::scope(|scope| {
            let asked = scope
                .spawn(|| Client::connect_within(patience, &address, (None, None), &stop).is_ok());
            thread::sleep(5 * patience.connect);
            let serving = scope.spawn(|| serve(listener, Arc::default(), &options, &over).unwrap());
            let is_known = asked.join().unwrap();
            over.store(true, Ordering::Relaxed);
            serving.join().unwrap();
            assert!(is_known);
        });
    }

    #[test]
    fn pauses_grow_and_differ() {
        assert_eq!(pause(1, 0.0), Duration::from_millis(200));
        assert_eq!(pause(1, 1.0), Duration::from_millis(400));
        assert_eq!(pause(3, 0.0), Duration::from_millis(800));
    }

    #[test]
    fn a_stream_is_named_by_instance_digest_and_size() {
        let blob = Blob::of(b"abc");
        let name = "blobs/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad/3";
        assert_eq!(resource("", &blob), name);
        assert_eq!(resource("a/b", &blob), format!("a/b/{name}"));
    }

    /// Boards of another version must find what this one publishes.
    #[test]
    fn a_key_is_the_same_action_for_ever() {
        let key = Digest::of(b"abc");
        let action = |key: Key| Action::of(&key).action.0.digest.to_string();
        let golden = "112b147e409e0f1cd13420ab9c9a22565fc0d3b51d63f56c8ce48a4cc7983526";
        assert_eq!(action(Key::Content(key)), golden);
        assert_ne!(action(Key::Content(key)), action(Key::Recipe(key)));
    }

    #[test]
    fn an_entry_comes_back_from_its_result() {
        let blob = |text: &[u8]| Blob::of(text);
        let chunks = vec![blob(b"1"), blob(b"22")];
        let entry = Entry { statement: blob(b"s"), index: blob(b"i"), pieces: None, chunks };
        let with_pieces = Entry { pieces: Some(blob(b"p")), ..entry.clone() };
        assert_eq!(entry_of(&result_of(&with_pieces)), Ok(with_pieces));
        let result = result_of(&entry);
        assert_eq!(entry_of(&result), Ok(entry));
        let mut odd = result.clone();
        odd.output_files.remove(0);
        assert!(entry_of(&odd).unwrap_err().contains("no statement"));
        let mut odd = result.clone();
        odd.output_files[2].path = "../x".to_owned();
        assert!(entry_of(&odd).unwrap_err().contains("none of smelt's"));
        let mut odd = result;
        odd.output_files[2].digest.as_mut().unwrap().size_bytes = -1;
        assert!(entry_of(&odd).unwrap_err().contains("without a digest"));
    }
}
