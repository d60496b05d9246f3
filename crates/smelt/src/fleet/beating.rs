//! Announces this board to its fleet, so often as it was asked to; a server that is gone costs a line and nothing else.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;

use smelt_fleet::address::LockAddress;
use smelt_fleet::beat::{Announced, Beat, Deployed, Role};
use smelt_fleet::counts::Counts;
use smelt_fleet::judge::newest_seen;
use smelt_fleet::keys::SigningKey;
use smelt_fleet::lease::TableError;
use smelt_fleet::nats::{NatsBoards, NatsServer};
use smelt_plan::device::FACTS;
use smelt_store::{Store, Wait};

use super::turn::{lock_token, own_name};
use super::{counted, now, seen_time, signer};
use crate::config;
use crate::console::{tell, warn};
use crate::device::fact_of;
use crate::exit::Failed;
use crate::flags::HeartbeatFlags;
use crate::load;
use crate::version::BUILDER;

/// What is deployed on this board now.
pub(crate) type Deployments = Box<dyn Fn() -> Vec<Deployed> + Send>;

/// Announces this board until it is dropped.
pub(crate) struct Beating {
    _ends: Sender<()>,
}

impl Beating {
    /// Begins, if the flags ask for it.  What is wrong with them is told at once; a server that is gone is not.
    pub(crate) fn begin(
        flags: &HeartbeatFlags,
        role: Role,
        deployments: Deployments,
    ) -> Result<Option<Self>, Failed> {
        let Some((board, every)) = Board::of(flags, role)?.zip(flags.heartbeat) else {
            return Ok(None);
        };
        let (_ends, end) = channel();
        // Nobody waits for it: a server may take seconds not to answer.
        thread::spawn(move || {
            let mut heard = Hearing::default();
            loop {
                heard.say(board.announce(deployments()));
                if end.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Ok(Some(Self { _ends }))
    }
}

/// Says when the server begins or ends to hear, and nothing in between.
#[derive(Default)]
struct Hearing {
    is_lost: bool,
}

impl Hearing {
    fn say(&mut self, announced: Result<(), String>) {
        match announced {
            Err(error) if !self.is_lost => {
                lost(&error);
                self.is_lost = true;
            }
            Ok(()) if self.is_lost => {
                tell("this board is announced again");
                self.is_lost = false;
            }
            _ => {}
        }
    }
}

/// Says that nobody hears of this board.
pub(crate) fn lost(error: &str) {
    warn(format_args!("this board is not announced: {error}"));
}

/// This board, and where it is announced.
pub(crate) struct Board {
    signer: SigningKey,
    address: LockAddress,
    token: Option<String>,
    authority: Option<PathBuf>,
    instance: String,
    role: Role,
}

impl Board {
    /// The one that is announced, if the flags ask for it.
    pub(crate) fn of(flags: &HeartbeatFlags, role: Role) -> Result<Option<Self>, Failed> {
        if flags.heartbeat.is_none() {
            return Ok(None);
        }
        let none = || {
            Failed::usage(
                "--heartbeat: no server is named to tell; add --fleet-lock nats://HOST:PORT",
            )
        };
        Ok(Some(Self {
            signer: signer(&flags.key)?,
            address: flags.fleet_lock.clone().ok_or_else(none)?,
            token: lock_token(),
            authority: flags.fleet_ca.clone().or_else(config::authority),
            instance: flags.fleet.as_ref().map_or_else(String::new, |it| it.instance.clone()),
            role,
        }))
    }

    /// Says what is deployed here, and when.
    ///
    /// # Errors
    /// If nobody signs, or the server does not answer in some seconds.
    pub(crate) fn announce(&self, deployments: Vec<Deployed>) -> Result<(), String> {
        let told = |error: TableError| error.to_string();
        let boards = NatsBoards::connect(&NatsServer {
            address: &self.address,
            token: self.token.as_deref(),
            authority: self.authority.as_deref(),
            instance: &self.instance,
        });
        let boards = boards.map_err(told)?;
        let beat = self.beat(deployments);
        let envelope = beat.sign(&self.signer).map_err(|error| error.to_string())?;
        boards.announce(Announced { name: beat.name(), envelope }).map_err(told)
    }

    fn beat(&self, deployments: Vec<Deployed>) -> Beat {
        let (at, counts) = known();
        let facts = FACTS.iter().filter_map(|fact| Some(((*fact).to_owned(), fact_of(fact)?)));
        Beat {
            board: own_name(),
            key: self.signer.public(),
            role: self.role,
            instance: self.instance.clone(),
            at,
            version: BUILDER.to_owned(),
            facts: facts.collect(),
            deployments,
            counts,
        }
    }
}

/// What time it is, and what was counted, as far as the store knows.
fn known() -> (u64, Counts) {
    let store = load::root().ok().and_then(|root| Store::open_read_only(&root, Wait::No).ok());
    let seen = store.as_ref().and_then(seen_time);
    (newest_seen(now(), seen), store.as_ref().map(counted::read).unwrap_or_default())
}
