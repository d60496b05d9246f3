//! Keeps leases in a bucket of NATS JetStream's key-value store, whose entries run out.
//!
//! A lease is the entry of its key: `create` takes one that is not there, `update` names the revision that it renews.
//! <https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md>

use std::path::Path;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream;
use async_nats::jetstream::kv::{Config, CreateErrorKind, Operation, Store, UpdateErrorKind};
use futures_util::future::try_join_all;
use smelt_store::Digest;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::address::LockAddress;
use crate::lease::{Entry, LeaseTable, TableError};
use crate::remote::{plain, told};

/// As for the server of results.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const ASK_MAX: Duration = Duration::from_secs(3);
/// One bucket for all fleets of a server, whose instances are part of the keys.
const BUCKET: &str = "smelt-leases";
/// So long others wait for a builder that died; and so long one may be away before it loses what it has.
const LEASE: Duration = Duration::from_secs(15);
/// What a builder says of itself, with room to spare.
const SAID_BYTES_MAX: i32 = 16 << 10;

/// A server that answered once.
pub struct NatsTable {
    runtime: Runtime,
    store: Store,
    name: String,
    instance: String,
}

impl NatsTable {
    /// Connects, and makes the bucket where there is none.  `authority` is a PEM file, where the server's certificate is vouched
    /// for by nobody else.
    ///
    /// # Errors
    /// If it does not answer in time, or keeps nothing, as without JetStream.
    pub fn connect(
        address: &LockAddress,
        token: Option<&str>,
        authority: Option<&Path>,
        instance: &str,
    ) -> Result<Self, TableError> {
        let name = address.to_string();
        let wrong = |problem: String| TableError { server: name.clone(), problem: plain(&problem) };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
        let options = options(address, token, authority);
        let opened = async {
            let client = options.connect(&address.host).await.map_err(|error| told(&error))?;
            bucket(jetstream::new(client)).await
        };
        let opened = runtime.block_on(async { timeout(CONNECT_MAX, opened).await });
        let late = |_| wrong("it does not answer".to_owned());
        let store = opened.map_err(late)?.map_err(&wrong)?;
        let lasts = store.stream.cached_info().config.max_age;
        if lasts != LEASE {
            // By other times a dead builder would be waited for, perhaps for ever.
            let (has, wants) = (lasts.as_secs_f64(), LEASE.as_secs());
            let problem = format!(
                "its bucket {BUCKET} keeps entries for {has} s instead of {wants}: remove it"
            );
            return Err(wrong(problem));
        }
        Ok(Self { runtime, store, name, instance: instance.to_owned() })
    }

    /// An entry's name: one that no other fleet of the server has.
    fn entry(&self, key: &Digest) -> String {
        Digest::of(format!("{}\n{key}", self.instance).as_bytes()).to_string()
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

impl LeaseTable for NatsTable {
    fn lasts(&self) -> Duration {
        LEASE
    }

    fn take(&self, keys: &[Digest], said: &[u8]) -> Result<Vec<Option<u64>>, TableError> {
        self.ask(try_join_all(keys.iter().map(async |key| {
            match self.store.create(&self.entry(key), said.to_vec().into()).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(None),
                Err(error) => Err(told(&error)),
            }
        })))
    }

    fn renew(&self, leases: &[(Digest, u64)], said: &[u8]) -> Result<Vec<Option<u64>>, TableError> {
        self.ask(try_join_all(leases.iter().map(async |(key, revision)| {
            match self.store.update(&self.entry(key), said.to_vec().into(), *revision).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
                Err(error) => Err(told(&error)),
            }
        })))
    }

    fn release(&self, leases: &[(Digest, u64)]) -> Result<(), TableError> {
        let released = try_join_all(leases.iter().map(async |(key, revision)| {
            let deleted =
                self.store.delete_expect_revision(&self.entry(key), Some(*revision)).await;
            deleted.map_err(|error| told(&error))
        }));
        self.ask(released).map(drop)
    }

    fn look(&self, key: &Digest) -> Result<Option<Entry>, TableError> {
        let entry = self.entry(key);
        let found =
            self.ask(async { self.store.entry(&entry).await.map_err(|error| told(&error)) })?;
        let found = found.filter(|entry| entry.operation == Operation::Put);
        Ok(found.map(|entry| Entry { said: entry.value.to_vec(), revision: entry.revision }))
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

/// The bucket of leases, made where it is not there.
async fn bucket(server: jetstream::Context) -> Result<Store, String> {
    if let Ok(store) = server.get_key_value(BUCKET).await {
        return Ok(store);
    }
    let config = Config {
        bucket: BUCKET.to_owned(),
        description: "who builds what".to_owned(),
        history: 1,
        max_age: LEASE,
        max_value_size: SAID_BYTES_MAX,
        ..Config::default()
    };
    match server.create_key_value(config).await {
        Ok(store) => Ok(store),
        // Another board may just have made it.
        Err(error) => server.get_key_value(BUCKET).await.map_err(|_| told(&error)),
    }
}
