//! Asks a fleet's servers how they are, and which boards were heard of.

use std::time::Duration;

use smelt_fleet::beat::{BEAT_AGE_MAX_S, Heard, NotHeard, Seen, hear};
use smelt_fleet::counts::Counts;
use smelt_fleet::judge::newest_seen;
use smelt_fleet::lease::TableError;
use smelt_fleet::nats::{NatsBoards, NatsServer};
use smelt_fleet::reapi::{Capabilities, DiskUsage};
use smelt_fleet::trust::Trust;
use smelt_store::{Digest, Store, Wait, notes};

use super::{Fleet, counted, now, seen_time, trust, turn};
use crate::exit::{Exit, Failed};
use crate::flags::FleetFlags;
use crate::load;
use crate::stop::stop_flag;

/// What is known of a fleet.
pub(crate) struct Survey {
    /// The address of the server of results.
    pub(crate) server: String,
    /// What that says, or why it does not.
    pub(crate) answer: Result<Answer, Failed>,
    /// The address of the server of leases, where one is named.
    pub(crate) lock: Option<String>,
    /// Which boards were announced there, or why that is not known.
    pub(crate) boards: Result<Boards, TableError>,
    /// What the fleet has given this board.
    pub(crate) counts: Counts,
    pub(crate) trust: Trust,
    /// By which time boards were judged, in seconds of the Unix era.
    pub(crate) time: u64,
}

/// What the server of results says.
pub(crate) struct Answer {
    pub(crate) round_trip: Duration,
    pub(crate) capabilities: Capabilities,
    pub(crate) disk: Option<DiskUsage>,
}

/// Which boards were heard of.
#[derive(Default)]
pub(crate) struct Boards {
    /// By their names.
    pub(crate) heard: Vec<Heard>,
    /// What does not count, by its name at the server, and why.
    pub(crate) refused: Vec<(String, NotHeard)>,
    /// How many more names there are.
    pub(crate) left_out: usize,
}

impl Survey {
    /// Asks those that the flags name.
    ///
    /// # Errors
    /// If the flags are wrong; a server that is gone is part of the answer.
    pub(crate) fn ask(flags: &FleetFlags) -> Result<Self, Failed> {
        let (trust, store) = (trust(flags.fleet_trust.as_deref())?, store());
        let (server, instance) = match &flags.fleet {
            Some(address) => (address.to_string(), address.instance.clone()),
            None => (String::new(), String::new()),
        };
        let answer = match Answer::ask(flags) {
            Err(failed) if failed.exit != Exit::NotSeen => return Err(failed),
            answer => answer,
        };
        let time = newest_seen(now(), store.as_ref().and_then(seen_time));
        let boards = boards(flags, &instance, (&trust, time), store.as_ref());
        let lock = flags.fleet_lock.as_ref().map(ToString::to_string);
        let counts = store.as_ref().map(counted::read).unwrap_or_default();
        Ok(Self { server, answer, lock, boards, counts, trust, time })
    }

    /// The first server that is gone.
    pub(crate) fn end(self) -> Result<Exit, Failed> {
        self.answer?;
        self.boards.map(|_| Exit::Ok).map_err(|error| Failed::new(Exit::NotSeen, error))
    }
}

impl Answer {
    fn ask(flags: &FleetFlags) -> Result<Self, Failed> {
        let Fleet { client, capabilities, round_trip, .. } = Fleet::open(flags, &stop_flag()?)?;
        Ok(Self { round_trip, capabilities, disk: client.disk_usage() })
    }
}

/// This machine's store, if it has one; only to be read where that is all one may.
fn store() -> Option<Store> {
    let root = load::root().ok()?;
    let looked = Store::open_read_only(&root, Wait::Yes).ok()?;
    Some(Store::open(&root, Wait::Yes).unwrap_or(looked))
}

/// What was announced, judged by whom one believes at that time; when each board was heard of is remembered, so that nobody
/// repeats later what it said before.
fn boards(
    flags: &FleetFlags,
    instance: &str,
    (trust, time): (&Trust, u64),
    store: Option<&Store>,
) -> Result<Boards, TableError> {
    let Some(address) = &flags.fleet_lock else { return Ok(Boards::default()) };
    // Builders agree by the same server.
    turn::table(flags, instance)?;
    let (token, authority) = (turn::lock_token(), flags.fleet_ca.as_deref());
    let server = NatsServer { address, token: token.as_deref(), authority, instance };
    let (announced, left_out) = NatsBoards::connect(&server)?.all()?;
    let mut boards = Boards { left_out, ..Boards::default() };
    let mut seen: Seen =
        store.map_or_else(Vec::new, |it| notes::read(it, &note())).into_iter().collect();
    for one in announced {
        match hear(trust, &one, instance, &seen, time) {
            Ok(heard) => {
                seen.insert(one.name, heard.beat.at);
                boards.heard.push(heard);
            }
            Err(why) => boards.refused.push((one.name, why)),
        }
    }
    boards.heard.sort_by(|a, b| (&a.by, a.beat.role).cmp(&(&b.by, b.beat.role)));
    // What is older is refused for its age.
    seen.retain(|_, at| *at + BEAT_AGE_MAX_S >= time);
    if let Some(store) = store {
        notes::keep(store, &note(), &seen.into_iter().collect::<Vec<_>>());
    }
    Ok(boards)
}

fn note() -> Digest {
    Digest::of(b"when boards were heard of")
}
