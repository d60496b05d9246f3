//! Opens what a fleet needs: its server, whom this machine believes, the key by which it vouches.

pub(crate) mod beating;
pub(crate) mod counted;
pub(crate) mod deliver;
pub(crate) mod delivered;
pub(crate) mod elsewhere;
pub(crate) mod following;
pub(crate) mod holdings;
pub(crate) mod incoming;
pub(crate) mod metrics;
pub(crate) mod outgoing;
pub(crate) mod pull;
pub(crate) mod push;
#[cfg(feature = "build")]
pub(crate) mod session;
#[cfg(feature = "build")]
pub(crate) mod sharing;
#[cfg(feature = "build")]
pub(crate) mod ssh;
#[cfg(feature = "build")]
pub(crate) mod stream;
pub(crate) mod survey;
pub(crate) mod turn;
pub(crate) mod vouched;
#[cfg(feature = "build")]
pub(crate) mod workers;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use smelt_fleet::address::PeerList;
use smelt_fleet::judge::newest_seen;
use smelt_fleet::keys::SigningKey;
use smelt_fleet::paced::Paced;
use smelt_fleet::reapi::{Capabilities, Client};
use smelt_fleet::site::Wire;
use smelt_fleet::trust::{Trust, date_text};
use smelt_plan::plan::Stage;
use smelt_plan::{Plan, StageId};
use smelt_store::{Digest, Store};

use self::holdings::own_peer;
use crate::config;
use crate::console::warn;
use crate::exit::{Exit, Failed};
use crate::flags::{FleetFlags, KeyFlags};
use crate::load;

/// Clocks of one site differ by less.
const CLOCK_LATE_MAX_S: u64 = DAY_S;
const DAY_S: u64 = 24 * 3600;
/// When this was written, 2026-11-28: a clock that says less has not been set.
const WRITTEN_AT: u64 = 1_795_824_000;
/// A token is one line.
const TOKEN_BYTES_MAX: u64 = 64 << 10;
/// As the trust file's own limit.
const TRUST_BYTES_MAX: u64 = 1 << 20;

/// A server that answered, and whom this machine believes.
pub(crate) struct Fleet {
    pub(crate) client: Client,
    pub(crate) capabilities: Capabilities,
    pub(crate) trust: Trust,
    pub(crate) round_trip: Duration,
    rate: Option<u64>,
    peers: PeerList,
    token: Option<String>,
    stop: Arc<AtomicBool>,
}

impl Fleet {
    /// The one that the flags name.
    pub(crate) fn open(flags: &FleetFlags, stop: &Arc<AtomicBool>) -> Result<Self, Failed> {
        let none = || Failed::usage("no server is named: --fleet grpc://HOST:PORT, or SMELT_FLEET");
        let address = flags.fleet.as_ref().ok_or_else(none)?;
        let trust = trust(flags.fleet_trust.as_deref())?;
        let token = token(flags.fleet_token_file.as_deref())?;
        let authority = flags.fleet_ca.as_deref();
        let read = |path| load::read_within(path, "the authority", TRUST_BYTES_MAX);
        let authority = authority.map(read).transpose()?;
        let begin = Instant::now();
        let connected = Client::connect(address, token.as_deref(), authority.as_deref(), stop);
        let (client, capabilities) =
            connected.map_err(|error| Failed::new(Exit::NotSeen, error))?;
        let (round_trip, rate, stop) = (begin.elapsed(), flags.fleet_rate, stop.clone());
        let peers = flags.fleet_peers.clone();
        Ok(Self { client, capabilities, trust, round_trip, rate, peers, token, stop })
    }

    /// The server, to and from which no more is moved in a second than was asked for.
    pub(crate) fn paced(&self) -> Paced<'_> {
        Paced::new(&self.client, self.rate, &self.stop)
    }

    /// The boards that are asked before it, where some are named; without them the server does.
    pub(crate) fn neighbours(&self, store: &Store, seed: u64) -> Option<Wire> {
        if self.peers.is_empty() {
            return None;
        }
        let wire = Wire::new(&self.peers, self.token.as_deref(), own_peer(store), seed);
        wire.inspect_err(|error| warn(format_args!("no neighbour is asked: {error}"))).ok()
    }
}

/// What the server wants to hear; never an argument, which everybody on a machine can read.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<String>, Failed> {
    let text = match file {
        Some(path) => Some(load::read_within(path, "the token", TOKEN_BYTES_MAX)?),
        None => env::var("SMELT_FLEET_TOKEN").ok(),
    };
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// Where it is written who is believed.
pub(crate) fn trust_file(given: Option<&Path>) -> Result<PathBuf, Failed> {
    given.map_or_else(|| config::own_file("trust.toml"), |path| Ok(path.to_owned()))
}

/// Who is believed; nobody where no such file is.
pub(crate) fn trust(given: Option<&Path>) -> Result<Trust, Failed> {
    let path = trust_file(given)?;
    if given.is_none() && !path.exists() {
        return Ok(Trust::default());
    }
    let text =
        load::read_within(&path, "the trust file", TRUST_BYTES_MAX).map_err(Failed::usage)?;
    Trust::parse(&text).map_err(|error| Failed::usage(format!("{}: {error}", path.display())))
}

/// Stands for what is written there; nothing where no such file can be read.
pub(crate) fn trust_mark(given: Option<&Path>) -> Option<Digest> {
    let path = trust_file(given).ok()?;
    let text = load::read_within(&path, "the trust file", TRUST_BYTES_MAX).ok()?;
    Some(Digest::of(text.as_bytes()))
}

/// Where the private key is.
pub(crate) fn key_file(given: Option<&Path>) -> Result<PathBuf, Failed> {
    given.map_or_else(|| config::own_file("fleet.pem"), |path| Ok(path.to_owned()))
}

/// The key by which this machine vouches.
pub(crate) fn signer(flags: &KeyFlags) -> Result<SigningKey, Failed> {
    if let Some(program) = &flags.fleet_signer {
        return SigningKey::of_program(program).map_err(Failed::usage);
    }
    let path = key_file(flags.fleet_key.as_deref())?;
    if !path.exists() {
        let message = format!(
            "no key is in {}; make one: smelt fleet keygen, or name a program that signs: --signer",
            path.display()
        );
        return Err(Failed::usage(message));
    }
    SigningKey::read(&path).map_err(Failed::usage)
}

/// Makes a file's folder.
pub(crate) fn make_folder_of(path: &Path) -> Result<(), Failed> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let made = folder.map_or(Ok(()), fs::create_dir_all);
    made.map_err(|error: io::Error| {
        Failed::new(
            Exit::StageFailed,
            format!("cannot make the folder of {}: {error}", path.display()),
        )
    })
}

/// The stages of which `is_one` is true, and all that are made of them.
pub(crate) fn with_dependents(
    plan: &Plan,
    is_one: impl Fn(StageId, &Stage) -> bool,
) -> BTreeSet<StageId> {
    let mut all = BTreeSet::new();
    for (id, stage) in plan.stages() {
        if is_one(id, stage) || stage.needs().any(|need| all.contains(&need)) {
            all.insert(id);
        }
    }
    all
}

/// What the clock says, in seconds of the Unix era.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// By which time statements are judged: many boards have no clock until they hear of the time, and then the newest time that
/// was seen signed says at least that much.
pub(crate) fn judging_time(store: &Store) -> u64 {
    let (now, seen) = (now(), seen_time(store));
    let time = newest_seen(now, seen);
    if time > now + CLOCK_LATE_MAX_S {
        warn(format_args!(
            "this machine's clock says {}, before what was signed on {}: keys that are believed until a date are judged by that",
            date_text(now / DAY_S * DAY_S),
            date_text(time / DAY_S * DAY_S)
        ));
    }
    time
}

fn seen_time(store: &Store) -> Option<u64> {
    let text = String::from_utf8(store.note(&seen_note())?).ok()?;
    text.trim().parse().ok()
}

/// Remembers a time that was seen signed by somebody who is believed: of a builder whose clock is far ahead only as much as
/// this machine's clock, where it has one, bears out.
pub(crate) fn saw_time(store: &Store, time: u64) {
    let has_clock = now() >= WRITTEN_AT;
    let time = if has_clock { time.min(now() + CLOCK_LATE_MAX_S) } else { time };
    if seen_time(store).is_none_or(|seen| seen < time) {
        // Without it the next pull knows less.
        let _ = store.keep_note(&seen_note(), time.to_string().as_bytes());
    }
}

fn seen_note() -> Digest {
    Digest::of(b"the newest time that was seen signed")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::flags::PipelineFlags;
    use crate::fleet::pull::sinks;
    use crate::fleet::push::verified;

    pub(crate) fn demo() -> Plan {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pipelines/demo.toml");
        let flags = PipelineFlags { pipeline: PathBuf::from(root), sets: Vec::new() };
        load::plan_unpinned(&flags).unwrap()
    }

    fn names(plan: &Plan, ids: impl IntoIterator<Item = StageId>) -> Vec<String> {
        ids.into_iter().map(|id| plan.stage(id).name.to_string()).collect()
    }

    #[test]
    fn what_is_made_of_a_stage_is_found() {
        let plan = demo();
        let made = |name: &str| {
            let id = plan.find(name).unwrap();
            names(&plan, with_dependents(&plan, |other, _| other == id))
        };
        assert_eq!(made("deployment"), ["deployment"]);
        assert_eq!(made("vision-engine"), ["vision-engine", "verify", "deployment"]);
        assert_eq!(made("checkpoint").len(), plan.len());
        assert_eq!(names(&plan, sinks(&plan)), ["deployment"]);
    }

    #[test]
    fn what_a_good_verify_stage_covers_is_verified() {
        let plan = demo();
        let all: BTreeSet<StageId> = plan.stages().map(|(id, _)| id).collect();
        assert_eq!(verified(&plan, &all), all);
        let verify = plan.find("verify").unwrap();
        let others: BTreeSet<StageId> = all.iter().copied().filter(|id| *id != verify).collect();
        assert!(verified(&plan, &others).is_empty());
        let deployment = plan.find("deployment").unwrap();
        let built: BTreeSet<StageId> = all.into_iter().filter(|id| *id != deployment).collect();
        assert_eq!(verified(&plan, &built), built);
    }
}
