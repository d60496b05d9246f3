//! The flags of whatever speaks to a fleet's server, and of `smelt fleet …`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use smelt_fleet::address::{Address, LockAddress, NotALockAddress, NotAnAddress, PeerList};
use smelt_fleet::ssh::{NotAnSshAddress, SshAddress};
use smelt_plan::{Kind, quantity};

use super::PipelineFlags;

/// An address, if one is named: a variable that is empty names none.
type Named = Option<Address>;

pub(crate) fn address(text: &str) -> Result<Named, NotAnAddress> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// The same of a server of leases.
type NamedLock = Option<LockAddress>;

pub(crate) fn lock_address(text: &str) -> Result<NamedLock, NotALockAddress> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// By whose key this machine vouches.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KeyFlags {
    /// The private key by which this machine vouches (default: fleet.pem in ~/.config/smelt)
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_KEY")]
    pub(crate) fleet_key: Option<PathBuf>,
    /// A program that signs in its place, as docs/fleet.md says: its key need lie in no file of this machine
    #[arg(long = "signer", value_name = "PROGRAM", env = "SMELT_FLEET_SIGNER")]
    pub(crate) fleet_signer: Option<PathBuf>,
}

/// Which server, and who is believed.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Fleet")]
#[serde(default)]
pub(crate) struct FleetFlags {
    /// The server that shares results, as in grpc://10.0.0.5:5200 or grpcs://HOST:PORT/INSTANCE
    #[arg(long, value_name = "ADDRESS", env = "SMELT_FLEET", value_parser = address)]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) fleet: Named,
    /// The NATS server by which builders agree on who builds what, as in nats://10.0.0.5:4222
    #[arg(long, value_name = "ADDRESS", env = "SMELT_FLEET_LOCK", value_parser = lock_address)]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) fleet_lock: NamedLock,
    /// Boards of this site that are asked before the server, as in 10.0.0.7:5210,10.0.0.8:5210, or mdns to find them
    #[arg(long, value_name = "HOST:PORT,…", env = "SMELT_FLEET_PEERS")]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) fleet_peers: PeerList,
    /// Whose results are taken (default: trust.toml in ~/.config/smelt)
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_TRUST")]
    pub(crate) fleet_trust: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) key: KeyFlags,
    /// A file with the token that the server wants; else $SMELT_FLEET_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) fleet_token_file: Option<PathBuf>,
    /// The most that is sent or fetched in a second, as in 2MiB (default: as much as goes)
    #[arg(long, value_name = "SIZE", env = "SMELT_FLEET_RATE", value_parser = super::size)]
    pub(crate) fleet_rate: Option<u64>,
    /// A PEM file with the authority that vouches for the server's name, where that is your own
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_CA")]
    pub(crate) fleet_ca: Option<PathBuf>,
}

/// So often a board is announced, if at all.
pub(crate) type Every = Option<Duration>;

/// Boards say the same for hours, and a thousand of them share one server.
const EVERY_MIN: Duration = Duration::from_secs(10);
/// Who looks wants to know whether a board is on.
const EVERY_MAX: Duration = Duration::from_secs(3600);

pub(crate) fn heartbeat(text: &str) -> Result<Every, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let every = quantity::duration(text).map_err(|error| error.to_string())?;
    if (EVERY_MIN..=EVERY_MAX).contains(&every) {
        return Ok(Some(every));
    }
    Err("write a time from 10s to 1h".to_owned())
}

/// A machine that builds for this one alone, if one is named.
pub(crate) type NamedWorker = Option<SshAddress>;

pub(crate) fn worker(text: &str) -> Result<NamedWorker, NotAnSshAddress> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// How long a stage waits for a worker where nobody says so: a board that reboots is back in two minutes.
pub(crate) const WORKER_WAIT: Duration = Duration::from_secs(600);

pub(crate) fn worker_wait(text: &str) -> Result<Duration, String> {
    quantity::duration(text).map_err(|error| error.to_string())
}

/// Whether this board is announced, and where.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct HeartbeatFlags {
    /// Announce this board to the fleet's lock server so often, signed, as in 1m: smelt fleet status lists it
    #[arg(long, value_name = "TIME", env = "SMELT_FLEET_HEARTBEAT", value_parser = heartbeat)]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) heartbeat: Every,
    /// The fleet's server, whose instance is announced with the board, as in grpc://10.0.0.5:5200
    #[arg(long, value_name = "ADDRESS", env = "SMELT_FLEET", value_parser = address)]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) fleet: Named,
    /// The NATS server where boards are announced, as in nats://10.0.0.5:4222
    #[arg(long, value_name = "ADDRESS", env = "SMELT_FLEET_LOCK", value_parser = lock_address)]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) fleet_lock: NamedLock,
    #[command(flatten)]
    pub(crate) key: KeyFlags,
    /// As where results are shared; else the one that the configuration names.
    #[arg(skip)]
    pub(crate) fleet_ca: Option<PathBuf>,
}

/// Which results a run publishes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Push {
    /// None: what boards do that only use them
    #[default]
    Never,
    /// What it has built
    Sealed,
    /// What it has built and a verify stage of the pipeline covers
    Verified,
}

/// Which results are worth their way.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Fleet")]
#[serde(default)]
pub(crate) struct PushLimits {
    /// Publish only results of stages of these kinds, and what those name, as in llm-engine-build,deployment
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = kind)]
    pub(crate) push_kind: Vec<Kind>,
    /// Publish no result that is larger, as in 4GiB
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub(crate) push_max: Option<u64>,
}

pub(crate) fn kind(text: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::parse(text).ok_or_else(|| format!("one of {}", names()))
}

/// What is published, and where.
#[derive(Debug, Args)]
pub(crate) struct PushFlags {
    #[command(flatten)]
    pub(crate) share: ShareFlags,
    #[command(flatten)]
    pub(crate) limits: PushLimits,
}

/// What is published or taken, and where.
#[derive(Debug, Args)]
pub(crate) struct ShareFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// Only this stage, and what its output is nothing without (may be given several times)
    #[arg(long, value_name = "STAGE")]
    pub(crate) only: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetCommand {
    /// Make a key pair: the private key for this machine, a public one for those that shall believe it
    Keygen(KeygenFlags),
    /// Believe what a public key vouches for
    Trust(TrustFlags),
    /// Believe a key no more, whatever it vouched for
    Untrust(UntrustFlags),
    /// Say who vouches for each stage's result that the server has
    Verify(FleetVerifyFlags),
    /// Serve neighbours what this machine's store has of the fleet's results, by digest and read-only
    Peer(PeerFlags),
    /// Say whether the servers answer, which boards were heard of, what the fleet gave, and who is believed
    Status(FleetStatusFlags),
}

#[derive(Debug, Args)]
pub(crate) struct KeygenFlags {
    /// Where the private key is written (default: fleet.pem in ~/.config/smelt)
    #[arg(id = "fleet_key", long = "out", value_name = "FILE", env = "SMELT_FLEET_KEY")]
    pub(crate) out: Option<PathBuf>,
    /// Make none: print the public key of the program that signs for this machine
    #[arg(
        id = "fleet_signer",
        long = "signer",
        value_name = "PROGRAM",
        env = "SMELT_FLEET_SIGNER"
    )]
    pub(crate) signer: Option<PathBuf>,
}

/// What a key may vouch for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// Results that are the same on every device
    Portable,
    /// Results that depend on facts of a device
    Device,
    /// What is handed over to be run
    Delivery,
    /// That its board is here, and nothing else
    Heartbeat,
    /// That a worker builds what it asks for
    Work,
}

impl From<Purpose> for smelt_fleet::trust::Purpose {
    fn from(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Portable => Self::Portable,
            Purpose::Device => Self::Device,
            Purpose::Delivery => Self::Delivery,
            Purpose::Heartbeat => Self::Heartbeat,
            Purpose::Work => Self::Work,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct WorkerFlags {
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// What the server calls this worker (default: the machine's name)
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// End behind the first piece of work
    #[arg(long)]
    pub(crate) once: bool,
    /// Build what is asked for by the standard input, for smelt run --worker (which starts this itself)
    #[arg(long, hide = true)]
    pub(crate) session: bool,
    /// Memory that stages leave to other programs, as in 1GiB
    #[arg(long, value_name = "SIZE", env = "SMELT_KEEP_FREE", value_parser = super::size)]
    pub(crate) keep_free: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct TrustFlags {
    /// The public key, as smelt fleet keygen printed it: ed25519:…
    pub(crate) key: String,
    /// What to call it
    #[arg(long)]
    pub(crate) name: String,
    /// What it may vouch for: portable results, those of a device, deliveries, no more than that its board is here, or what
    /// it has workers build (default: the first two)
    #[arg(long = "for", value_name = "WHAT", value_delimiter = ',')]
    pub(crate) purposes: Vec<Purpose>,
    /// Results of a device count only where this fact of it holds, as in sm=87 (may be given several times)
    #[arg(long = "fact", value_name = "NAME=VALUE")]
    pub(crate) facts: Vec<String>,
    /// The last moment up to which it is believed, as in 2027-06-01
    #[arg(long, value_name = "DATE")]
    pub(crate) until: Option<String>,
    /// The trust file (default: trust.toml in ~/.config/smelt)
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_TRUST")]
    pub(crate) fleet_trust: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UntrustFlags {
    /// What it is called
    pub(crate) name: String,
    /// The trust file (default: trust.toml in ~/.config/smelt)
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_TRUST")]
    pub(crate) fleet_trust: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct FleetVerifyFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FleetStatusFlags {
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Print metrics for Prometheus, as node_exporter's textfile collector takes them; exit 0 where a server is gone
    #[arg(long, conflicts_with = "json")]
    pub(crate) metrics: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PeerFlags {
    /// Where neighbours reach it
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:5210")]
    pub(crate) listen: SocketAddr,
    /// The most that is sent in a second, as in 2MiB (default: as much as goes)
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub(crate) rate: Option<u64>,
    /// Tell the network of it by mDNS, as _smelt._tcp
    #[arg(long)]
    pub(crate) announce: bool,
    /// A file with the fleet's token, which neighbours must know; else $SMELT_FLEET_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) fleet_token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) heartbeat: HeartbeatFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ProvenanceFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// The stage
    pub(crate) stage: String,
    /// The instance of the fleet that it is said for
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) instance: String,
    /// Print a table instead: the output, and all that it was made of, each with who made it and who vouches for it
    #[arg(long)]
    pub(crate) chain: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_announced_neither_all_the_time_nor_hardly_ever() {
        assert_eq!(heartbeat(""), Ok(None));
        assert_eq!(heartbeat("10s"), Ok(Some(EVERY_MIN)));
        assert_eq!(heartbeat("1h"), Ok(Some(EVERY_MAX)));
        for odd in ["9s", "61m", "2h", "1", "often", "-1m"] {
            assert!(heartbeat(odd).is_err(), "{odd}");
        }
    }
}
