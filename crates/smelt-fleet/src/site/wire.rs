//! Neighbours on the network: who they are, which of them answer, and what they say.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
use futures_util::future::join_all;
use smelt_store::Digest;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::{NeighbourAnswer, Neighbours, Seen};
use crate::address::PeerList;
use crate::mdns::Finder;
use crate::peer::{COMES, ID, of_bits, pass};
use crate::reapi::{named, within};
use crate::remote::{Blob, RemoteError};

use api::capabilities_client::CapabilitiesClient;
use api::content_addressable_storage_client::ContentAddressableStorageClient;
use api::digest_function::Value::Sha256;

/// Neighbours that are asked: each look costs a message to each of them.
const NEIGHBOURS_MAX: usize = 100;
/// A neighbour is in the same building.
const GREET_MAX: Duration = Duration::from_secs(2);
/// How long the first look waits for greetings: a pull must not stand still for boards that are off.
const GREETINGS_MAX: Duration = Duration::from_millis(700);
/// The same where neighbours must be found first.
const FIND_MAX: Duration = Duration::from_millis(1500);
/// How soon that is looked at again.
const TICK: Duration = Duration::from_millis(20);
/// For what has no blobs in it.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// For some chunks.
const READ_MAX: Duration = Duration::from_secs(10);
/// After a failure a neighbour is left alone for so long, doubled from one to the next.
const PAUSE: Duration = Duration::from_secs(5);
/// After so many in a row it is asked no more.
const FAILURES_MAX: u32 = 4;
/// Beside its blobs, of an answer.
const NAMES_BYTES: usize = 256 << 10;
/// What a neighbour sends at once, before it is told that some of it was taken.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// The neighbours that somebody named, or that are found.
pub struct Wire {
    /// Until it is dropped.
    runtime: Option<Runtime>,
    pass: Option<MetadataValue<Ascii>>,
    /// What this board's own peer is called.
    own: Option<String>,
    finder: Option<Finder>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    peers: Vec<Peer>,
    has_waited: bool,
}

struct Peer {
    address: String,
    line: Line,
    failures: u32,
}

/// How it stands with a neighbour.
enum Line {
    /// It answered.
    Ready(ContentAddressableStorageClient<Channel>),
    /// It is being greeted.
    Greeted(JoinHandle<Result<Greeting, Status>>),
    /// It is left alone until then.
    Off(Instant),
    /// It wants another token.
    Refuses,
    /// It is asked no more: it is this board itself, no peer, or has failed too often.
    Gone,
}

/// Of each chunk whether a neighbour has it, and whether it comes to it.
type Looked = (Vec<bool>, Vec<bool>);

/// What a neighbour said of itself.
struct Greeting {
    id: Option<String>,
    channel: Channel,
}

impl Wire {
    /// The neighbours of a list, without this board's own, whose peer is called `own`; `seed` chooses among too many.
    ///
    /// # Errors
    /// If this machine has no network to ask.
    pub fn new(
        list: &PeerList,
        token: Option<&str>,
        own: Option<String>,
        seed: u64,
    ) -> Result<Self, RemoteError> {
        let wrong = |problem: String| RemoteError {
            server: "neighbours".to_owned(),
            problem,
            is_gone: false,
        };
        // Greetings go on while nobody waits for an answer.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
        let pass = token.map(|token| format!("Bearer {}", pass(token)).parse());
        let pass = pass.transpose().map_err(|_| wrong("the token is no plain text".to_owned()))?;
        let finder = list.is_found.then(Finder::begin).transpose().map_err(wrong)?;
        let mut hosts = list.hosts.clone();
        hosts.sort_by_key(|host| {
            super::learned::drawn(seed, &Blob { digest: Digest::of(host.as_bytes()), bytes: 0 })
        });
        let mut state = State::default();
        hosts.into_iter().for_each(|host| state.add(host));
        Ok(Self { runtime: Some(runtime), pass, own, finder, state: Mutex::new(state) })
    }

    /// Those that want another token than this board's.
    pub fn refusing(&self) -> Vec<String> {
        let state = self.state();
        let refusing = state.peers.iter().filter(|peer| matches!(peer.line, Line::Refuses));
        refusing.map(|peer| peer.address.clone()).collect()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until this is dropped")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The neighbours that may be asked now, with their numbers.
    fn ready(&self) -> Vec<(usize, ContentAddressableStorageClient<Channel>)> {
        let mut state = self.state();
        if !std::mem::replace(&mut state.has_waited, true) {
            drop(state);
            self.greet_all();
            state = self.state();
        }
        self.turn(&mut state);
        let ready = |(number, peer): (usize, &Peer)| match &peer.line {
            Line::Ready(client) => Some((number, client.clone())),
            _ => None,
        };
        state.peers.iter().enumerate().filter_map(ready).collect()
    }

    /// Waits for those that answer soon.
    fn greet_all(&self) {
        let begin = Instant::now();
        let most = if self.finder.is_some() { FIND_MAX } else { GREETINGS_MAX };
        while begin.elapsed() < most {
            let mut state = self.state();
            self.turn(&mut state);
            let is_open = |peer: &Peer| matches!(peer.line, Line::Greeted(_));
            if self.finder.is_none() && !state.peers.iter().any(is_open) {
                return;
            }
            drop(state);
            std::thread::sleep(TICK);
        }
    }

    /// Takes who was found, greets who is due, and hears who has answered.
    fn turn(&self, state: &mut State) {
        let found = self.finder.as_ref().map(Finder::found).unwrap_or_default();
        found.iter().map(SocketAddr::to_string).for_each(|host| state.add(host));
        for peer in &mut state.peers {
            match &mut peer.line {
                Line::Off(until) if Instant::now() >= *until => {
                    let greeting = greet(peer.address.clone(), self.pass.clone());
                    peer.line = Line::Greeted(self.runtime().spawn(greeting));
                }
                Line::Greeted(task) if task.is_finished() => {
                    let greeting = self.runtime().block_on(task);
                    peer.heard(
                        greeting.unwrap_or_else(|_| Err(Status::unknown(""))),
                        self.own.as_deref(),
                    );
                }
                _ => {}
            }
        }
    }

    fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        with_pass(message, limit, self.pass.as_ref())
    }

    /// What one neighbour says of these chunks.
    async fn look_at(
        &self,
        mut client: ContentAddressableStorageClient<Channel>,
        asked: &[Blob],
    ) -> Result<Looked, Status> {
        let message = api::FindMissingBlobsRequest {
            instance_name: String::new(),
            blob_digests: asked.iter().map(named).collect(),
            digest_function: Sha256 as i32,
        };
        let request = self.request(message, LOOK_MAX);
        let answer = within(LOOK_MAX, client.find_missing_blobs(request)).await?;
        let comes = answer.metadata().get_bin(COMES).and_then(|bits| bits.to_bytes().ok());
        let comes = of_bits(&comes.unwrap_or_default(), asked.len());
        let missing = answer.into_inner().missing_blob_digests;
        let missing: HashSet<String> = missing.into_iter().map(|digest| digest.hash).collect();
        let has = |blob: &Blob| !missing.contains(&blob.digest.to_string());
        Ok((asked.iter().map(has).collect(), comes))
    }

    /// What one neighbour sends of these chunks.
    async fn read_from(
        &self,
        client: ContentAddressableStorageClient<Channel>,
        blobs: &[Blob],
    ) -> Result<Vec<Option<Vec<u8>>>, Status> {
        let bytes: usize = blobs.iter().map(|blob| blob.bytes as usize).sum();
        // More than was asked for is not read.
        let mut client = client.max_decoding_message_size(bytes + NAMES_BYTES);
        let message = api::BatchReadBlobsRequest {
            instance_name: String::new(),
            digests: blobs.iter().map(named).collect(),
            acceptable_compressors: Vec::new(),
            digest_function: Sha256 as i32,
        };
        let request = self.request(message, READ_MAX);
        let answer = within(READ_MAX, client.batch_read_blobs(request)).await?;
        let mut found = HashMap::new();
        for response in answer.into_inner().responses {
            let code = response.status.map_or(Code::Ok, |status| Code::from(status.code));
            if let (Some(digest), Code::Ok) = (response.digest, code) {
                found.insert(digest.hash, response.data);
            }
        }
        Ok(blobs.iter().map(|blob| found.remove(&blob.digest.to_string())).collect())
    }

    /// Notes how a question to each of them ended.
    fn heard(&self, ends: &[(usize, Result<(), Code>)]) {
        let mut state = self.state();
        for (number, end) in ends {
            match end {
                Ok(()) => state.peers[*number].failures = 0,
                // It is busy: it is asked for less.
                Err(Code::ResourceExhausted) => {}
                Err(_) => state.peers[*number].failed(),
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Neighbours for Wire {
    fn look(&self, asked: &[Blob]) -> Vec<Seen> {
        let ready = self.ready();
        let looks = ready
            .into_iter()
            .map(|(number, client)| async move { (number, self.look_at(client, asked).await) });
        let looked = self.runtime().block_on(join_all(looks));
        let end = |(number, look): &(usize, Result<_, Status>)| {
            (*number, look.as_ref().map(drop).map_err(Status::code))
        };
        self.heard(&looked.iter().map(end).collect::<Vec<_>>());
        let seen = |(neighbour, look): (usize, Result<Looked, Status>)| {
            let (has, comes) = look.ok()?;
            Some(Seen { neighbour, has, comes })
        };
        looked.into_iter().filter_map(seen).collect()
    }

    fn read(&self, lists: &[(usize, Vec<Blob>)]) -> Vec<NeighbourAnswer> {
        let ready: HashMap<_, _> = self.ready().into_iter().collect();
        let reads = lists.iter().map(|(number, blobs)| {
            let client = ready.get(number).cloned();
            async move {
                let begin = Instant::now();
                let read = match client {
                    Some(client) => self.read_from(client, blobs).await,
                    None => Err(Status::unavailable("")),
                };
                (*number, blobs.len(), read, begin.elapsed())
            }
        });
        let read = self.runtime().block_on(join_all(reads));
        let end = |(number, _, read, _): &(usize, usize, Result<_, Status>, Duration)| {
            (*number, read.as_ref().map(drop).map_err(Status::code))
        };
        self.heard(&read.iter().map(end).collect::<Vec<_>>());
        let answer = |(neighbour, count, read, took): (usize, usize, Result<_, Status>, _)| {
            NeighbourAnswer {
                neighbour,
                contents: read.unwrap_or_else(|_| vec![None; count]),
                took,
            }
        };
        read.into_iter().map(answer).collect()
    }

    fn name(&self, neighbour: usize) -> String {
        self.state().peers.get(neighbour).map_or_else(String::new, |peer| peer.address.clone())
    }

    fn leave(&self, neighbour: usize) {
        if let Some(peer) = self.state().peers.get_mut(neighbour) {
            peer.line = Line::Gone;
        }
    }
}

impl State {
    fn add(&mut self, address: String) {
        let is_known = self.peers.iter().any(|peer| peer.address == address);
        if !is_known && self.peers.len() < NEIGHBOURS_MAX {
            self.peers.push(Peer { address, line: Line::Off(Instant::now()), failures: 0 });
        }
    }
}

impl Peer {
    fn heard(&mut self, greeting: Result<Greeting, Status>, own: Option<&str>) {
        match greeting {
            Ok(greeting) if own.is_some() && greeting.id.as_deref() == own => {
                self.line = Line::Gone
            }
            Ok(greeting) => {
                self.failures = 0;
                self.line = Line::Ready(ContentAddressableStorageClient::new(greeting.channel));
            }
            Err(status) if is_of_token(status.code()) => self.line = Line::Refuses,
            Err(status) if status.code() == Code::Unimplemented => self.line = Line::Gone,
            Err(_) => self.failed(),
        }
    }

    fn failed(&mut self) {
        self.failures += 1;
        self.line = match self.failures {
            FAILURES_MAX.. => Line::Gone,
            failures => Line::Off(Instant::now() + PAUSE * 2u32.pow(failures - 1)),
        };
    }
}

fn is_of_token(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

fn with_pass<T>(message: T, limit: Duration, pass: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    if let Some(pass) = pass {
        request.metadata_mut().insert("authorization", pass.clone());
    }
    request
}

/// Asks a neighbour who it is.
async fn greet(address: String, pass: Option<MetadataValue<Ascii>>) -> Result<Greeting, Status> {
    let odd = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(odd)?;
    let endpoint = endpoint
        .connect_timeout(GREET_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES);
    within(GREET_MAX, async move {
        let channel = endpoint.connect().await.map_err(odd)?;
        let message = api::GetCapabilitiesRequest::default();
        let request = with_pass(message, GREET_MAX, pass.as_ref());
        let answer = CapabilitiesClient::new(channel.clone()).get_capabilities(request).await?;
        let id = answer.metadata().get(ID).and_then(|id| id.to_str().ok());
        Ok(Greeting { id: id.map(str::to_owned), channel })
    })
    .await
}

#[cfg(test)]
mod tests;
