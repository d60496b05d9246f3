//! Keeps leases, and what boards announce, in buckets of NATS JetStream's key-value store, whose entries run out.
//!
//! A lease is the entry of its key: `create` takes one that is not there, `update` names the revision that it renews.
//! What a board announces is the entry of its name, which `put` replaces.
//! <https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md>

use std::path::Path;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream;
use async_nats::jetstream::kv::{Config, CreateErrorKind, Operation, Store, UpdateErrorKind};
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use smelt_store::Digest;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::address::LockAddress;
use crate::beat::{Announced, BEAT_AGE_MAX_S, BEAT_BYTES_MAX, fleet_name};
use crate::lease::{Entry, LeaseTable, TableError};
use crate::remote::{plain, told};

/// As for the server of results.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const ASK_MAX: Duration = Duration::from_secs(3);
/// So long others wait for a builder that died; and so long one may be away before it loses what it has.
const LEASE: Duration = Duration::from_secs(15);
/// Names that are looked at: those of some fleets, and what somebody may have put beside them.
const NAMES_MAX: usize = 10_000;
/// Of one fleet.  One of 1,000 boards has as many, or twice that.
const BOARDS_MAX: usize = 2_000;
/// Asked for at once, so that a fleet's are had within a second by a line whose answers take a while.
const READ_AT_ONCE: usize = 64;

/// A bucket of entries that run out.  One serves all fleets of a server, whose instances are part of the keys.
struct Kind {
    name: &'static str,
    description: &'static str,
    /// How long an entry is kept.
    lasts: Duration,
    /// Of one entry.
    bytes_max: i32,
    /// Of all together; 0 is no limit.
    all_bytes_max: i64,
}

const LEASES: Kind = Kind {
    name: "smelt-leases",
    description: "who builds what",
    lasts: LEASE,
    // What a builder says of itself, with room to spare.
    bytes_max: 16 << 10,
    // They are gone within seconds.
    all_bytes_max: 0,
};
const BOARDS: Kind = Kind {
    name: "smelt-boards",
    description: "which boards are there",
    lasts: Duration::from_secs(BEAT_AGE_MAX_S),
    bytes_max: BEAT_BYTES_MAX as i32,
    // Of 10,000 boards, as long as none says as much as it may.
    all_bytes_max: 32 << 20,
};

/// A server that answered once, and one of its buckets.
struct Bucket {
    runtime: Runtime,
    store: Store,
    name: String,
    instance: String,
}

/// Where a server is and how it is asked.
#[derive(Clone, Copy, Debug)]
pub struct NatsServer<'a> {
    /// Its address.
    pub address: &'a LockAddress,
    /// What it wants to hear.
    pub token: Option<&'a str>,
    /// A PEM file, where its certificate is vouched for by nobody else.
    pub authority: Option<&'a Path>,
    /// Which fleet's entries are meant.
    pub instance: &'a str,
}

impl Bucket {
    fn open(server: &NatsServer<'_>, kind: &Kind) -> Result<Self, TableError> {
        let NatsServer { address, token, authority, instance } = *server;
        let name = address.to_string();
        let wrong = |problem: String| TableError { server: name.clone(), problem: plain(&problem) };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
        let options = options(address, token, authority);
        let opened = async {
            let client = options.connect(&address.host).await.map_err(|error| told(&error))?;
            bucket(jetstream::new(client), kind).await
        };
        let opened = runtime.block_on(async { timeout(CONNECT_MAX, opened).await });
        let late = |_| wrong("it does not answer".to_owned());
        let store = opened.map_err(late)?.map_err(&wrong)?;
        let lasts = store.stream.cached_info().config.max_age;
        if lasts != kind.lasts {
            // By other times a dead builder would be waited for, perhaps for ever.
            let (has, wants, bucket) = (lasts.as_secs_f64(), kind.lasts.as_secs(), kind.name);
            let problem = format!(
                "its bucket {bucket} keeps entries for {has} s instead of {wants}: remove it"
            );
            return Err(wrong(problem));
        }
        Ok(Self { runtime, store, name, instance: instance.to_owned() })
    }

    fn wrong(&self, problem: &str) -> TableError {
        TableError { server: self.name.clone(), problem: plain(problem) }
    }

    /// What the server answers in time.
    fn ask<T>(&self, asked: impl Future<Output = Result<T, String>>) -> Result<T, TableError> {
        let answer = self.runtime.block_on(async { timeout(ASK_MAX, asked).await });
        let answer = answer.map_err(|_| self.wrong("it does not answer"))?;
        answer.map_err(|problem| self.wrong(&problem))
    }
}

/// Leases at a server.
pub struct NatsTable(Bucket);

impl NatsTable {
    /// Connects, and makes the bucket where there is none.
    ///
    /// # Errors
    /// If it does not answer in time, or keeps nothing, as without JetStream.
    pub fn connect(server: &NatsServer<'_>) -> Result<Self, TableError> {
        Bucket::open(server, &LEASES).map(Self)
    }

    /// An entry's name: one that no other fleet of the server has.
    fn entry(&self, key: &Digest) -> String {
        Digest::of(format!("{}\n{key}", self.0.instance).as_bytes()).to_string()
    }
}

/// What boards announce at a server.
pub struct NatsBoards(Bucket);

impl NatsBoards {
    /// Connects, and makes the bucket where there is none.
    ///
    /// # Errors
    /// As [`NatsTable::connect`].
    pub fn connect(server: &NatsServer<'_>) -> Result<Self, TableError> {
        Bucket::open(server, &BOARDS).map(Self)
    }

    /// Announces something under a name, in the place of what was there.
    ///
    /// # Errors
    /// If the server does not answer, or does not take it.
    pub fn announce(&self, Announced { name, envelope }: Announced) -> Result<(), TableError> {
        let put = async { self.0.store.put(name, envelope.into()).await };
        self.0.ask(async { put.await.map(drop).map_err(|error| told(&error)) })
    }

    /// What is announced to this fleet, and how many names were not looked at.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn all(&self) -> Result<(Vec<Announced>, usize), TableError> {
        let (mut names, mut left_out) = self.names()?;
        left_out += names.len().saturating_sub(BOARDS_MAX);
        names.truncate(BOARDS_MAX);
        let mut all = Vec::with_capacity(names.len());
        for some in names.chunks(READ_AT_ONCE) {
            let read = try_join_all(some.iter().map(async |name| {
                let found = self.0.store.get(name).await.map_err(|error| told(&error))?;
                Ok(found.map(|it| Announced { name: name.clone(), envelope: it.to_vec() }))
            }));
            all.extend(self.0.ask(read)?.into_iter().flatten());
        }
        Ok((all, left_out))
    }

    /// The names of this fleet, in their order, and how many of any fleet come behind those that were read.
    fn names(&self) -> Result<(Vec<String>, usize), TableError> {
        let begin = format!("{}.", fleet_name(&self.0.instance));
        self.0.ask(async {
            let all = self.0.store.keys().await.map_err(|error| told(&error))?;
            let (mut names, mut count) = (Vec::new(), 0);
            let mut all = all.take(NAMES_MAX);
            while let Some(name) = all.next().await {
                count += 1;
                let name = name.map_err(|error| told(&error))?;
                names.extend(Some(name).filter(|name| name.starts_with(&begin)));
            }
            names.sort_unstable();
            let there = self.0.store.stream.get_info().await.map_err(|error| told(&error))?;
            Ok((names, (there.state.messages as usize).saturating_sub(count)))
        })
    }
}

impl LeaseTable for NatsTable {
    fn lasts(&self) -> Duration {
        LEASE
    }

    fn take(&self, keys: &[Digest], said: &[u8]) -> Result<Vec<Option<u64>>, TableError> {
        self.0.ask(try_join_all(keys.iter().map(async |key| {
            match self.0.store.create(&self.entry(key), said.to_vec().into()).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(None),
                Err(error) => Err(told(&error)),
            }
        })))
    }

    fn renew(&self, leases: &[(Digest, u64)], said: &[u8]) -> Result<Vec<Option<u64>>, TableError> {
        self.0.ask(try_join_all(leases.iter().map(async |(key, revision)| {
            match self.0.store.update(&self.entry(key), said.to_vec().into(), *revision).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
                Err(error) => Err(told(&error)),
            }
        })))
    }

    fn release(&self, leases: &[(Digest, u64)]) -> Result<(), TableError> {
        let released = try_join_all(leases.iter().map(async |(key, revision)| {
            let deleted =
                self.0.store.delete_expect_revision(&self.entry(key), Some(*revision)).await;
            deleted.map_err(|error| told(&error))
        }));
        self.0.ask(released).map(drop)
    }

    fn look_each(&self, keys: &[Digest]) -> Result<Vec<Option<Entry>>, TableError> {
        self.0.ask(try_join_all(keys.iter().map(async |key| {
            let found = self.0.store.entry(&self.entry(key)).await.map_err(|error| told(&error))?;
            let found = found.filter(|entry| entry.operation == Operation::Put);
            Ok(found.map(|entry| Entry { said: entry.value.to_vec(), revision: entry.revision }))
        })))
    }
}

fn options(address: &LockAddress, token: Option<&str>, authority: Option<&Path>) -> ConnectOptions {
    let options = ConnectOptions::new()
        .name("smelt")
        .require_tls(address.is_secure)
        .connection_timeout(CONNECT_MAX)
        .request_timeout(Some(ASK_MAX));
    let options = match token {
        Some(token) => options.token(token.to_owned()),
        None => options,
    };
    match authority {
        Some(authority) => options.add_root_certificates(authority.to_owned()),
        None => options,
    }
}

/// A bucket, made where it is not there.
async fn bucket(server: jetstream::Context, kind: &Kind) -> Result<Store, String> {
    if let Ok(store) = server.get_key_value(kind.name).await {
        return Ok(store);
    }
    let config = Config {
        bucket: kind.name.to_owned(),
        description: kind.description.to_owned(),
        history: 1,
        max_age: kind.lasts,
        max_value_size: kind.bytes_max,
        max_bytes: kind.all_bytes_max,
        ..Config::default()
    };
    match server.create_key_value(config).await {
        Ok(store) => Ok(store),
        // Another board may just have made it.
        Err(error) => server.get_key_value(kind.name).await.map_err(|_| told(&error)),
    }
}
