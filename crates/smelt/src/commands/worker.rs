//! `smelt worker`: builds on this machine what somebody who is believed asks a scheduler for.
//!
//! A piece of work is a stage of a pipeline and the outputs it is made of.  It is built by `smelt run`, as anybody would
//! build it here: guarded, limited, retried, in the journals.  What comes of it is published; the scheduler hears of its key.

mod running;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use smelt_fleet::bots::{Bot, Leased, WorkOutcome};
use smelt_fleet::lease::{Claim, Holder, Lease, LeaseTable, claim};
use smelt_fleet::remote::Remote as _;
use smelt_fleet::trust::{Purpose, Trust};
use smelt_fleet::work::{WorkRequest, accept};
use smelt_plan::Digest;
use smelt_plan::device::FACTS;

use crate::console::{tell, warn};
use crate::device::fact_of;
use crate::exit::{Exit, Failed};
use crate::flags::{FleetFlags, WorkerFlags};
use crate::fleet::turn::{own_name, table};
use crate::fleet::{Fleet, now, signer, trust};
use crate::stop::stop_flag;
use crate::table::some;

use self::running::{LINES_MAX, Lines, Outcome, Place, Running, cannot};

/// How soon a run that has ended is noticed.
const TICK: Duration = Duration::from_millis(200);
/// How often the scheduler hears that work goes on; it gives it to another machine after some times as long.
const ALIVE: Duration = Duration::from_secs(5);
/// A scheduler that is gone may be back soon.
const AGAIN: Duration = Duration::from_secs(5);

pub(crate) fn run(flags: &WorkerFlags) -> Result<Exit, Failed> {
    let stop = stop_flag()?;
    if flags.session {
        return session::run(flags, &stop);
    }
    // It will sign what it builds.
    let key = signer(&flags.fleet.key)?.public();
    let bosses = bosses(&trust(flags.fleet.fleet_trust.as_deref())?)?;
    let fleet = Fleet::open(&flags.fleet, &stop)?;
    let name = flags.name.clone().unwrap_or_else(own_name);
    let worker = Worker { flags, fleet: &fleet, name, facts: facts(), stop: &stop };
    tell(format_args!(
        "worker {} of {} builds what {bosses} asks for and signs it by {key}; it is a machine with {}",
        worker.name,
        fleet.client.name(),
        words(&worker.facts)
    ));
    worker.work()
}

/// What is true of this machine.
fn facts() -> BTreeMap<String, String> {
    FACTS.iter().filter_map(|fact| Some(((*fact).to_owned(), fact_of(fact)?))).collect()
}

/// Refuses what is for a machine of which something else is true.
fn is_for(request: &WorkRequest, facts: &BTreeMap<String, String>) -> Result<(), Failed> {
    let is_other = |(fact, wants): &(&String, &String)| facts.get(*fact) != Some(*wants);
    request.machine.iter().find(is_other).map_or(Ok(()), |(fact, wants)| {
        let message =
            format!("it wants a machine whose {fact} is {wants:?}, which this one's is not");
        Err(Failed::new(Exit::DoesNotFit, message))
    })
}

/// Whose work is done here.
fn bosses(trust: &Trust) -> Result<String, Failed> {
    let keys = trust.keys.iter().filter(|key| key.revoked.is_none());
    let names = keys.filter(|key| key.purposes.contains(&Purpose::Work)).map(|key| &key.name);
    let names: Vec<&String> = names.collect();
    if names.is_empty() {
        return Err(Failed::usage(
            "nobody's work is done here: smelt fleet trust KEY --name NAME --for work,portable names who may ask for it",
        ));
    }
    Ok(some(names, LINES_MAX))
}

fn words(facts: &BTreeMap<String, String>) -> String {
    let all: Vec<String> = facts.iter().map(|(fact, value)| format!("{fact} {value:?}")).collect();
    all.join(", ")
}

struct Worker<'a> {
    flags: &'a WorkerFlags,
    fleet: &'a Fleet,
    name: String,
    facts: BTreeMap<String, String>,
    stop: &'a Arc<AtomicBool>,
}

impl Worker<'_> {
    /// Does one piece of work after the other until somebody stops it.
    fn work(&self) -> Result<Exit, Failed> {
        let mut bot = self.open()?;
        let mut is_lost = false;
        while !self.is_stopped() {
            match bot.wait() {
                Ok(leased) => {
                    if std::mem::take(&mut is_lost) {
                        tell("the scheduler answers again");
                    }
                    let Some(leased) = leased else { continue };
                    self.do_it(&mut bot, &leased);
                    if self.flags.once {
                        break;
                    }
                }
                Err(_) if self.is_stopped() => break,
                Err(error) => {
                    if !std::mem::replace(&mut is_lost, true) {
                        warn(format_args!("no work comes: {error}"));
                    }
                    thread::sleep(AGAIN);
                    // It may know nothing of this worker any more.
                    if let Ok(again) = self.open() {
                        bot = again;
                    }
                }
            }
        }
        bot.leave();
        Ok(Exit::Ok)
    }

    fn open(&self) -> Result<Bot<'_>, Failed> {
        let opened = Bot::open(&self.fleet.client, &self.name, &self.facts);
        opened.map_err(|error| Failed::new(Exit::NotSeen, error))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn do_it(&self, bot: &mut Bot<'_>, leased: &Leased) {
        let outcome = match self.accepted(leased) {
            Ok((request, text, by)) => {
                tell(format_args!("{by} asks for {}", request.stage));
                self.build(bot, leased, &request, &text)
            }
            Err(failed) => Some(Outcome::refused(&failed)),
        };
        let Some(outcome) = outcome else { return };
        if let Err(error) = bot.done(leased, &outcome.into()) {
            // What was built is published: who asks again is told so.
            warn(format_args!("nobody hears what came of it: {error}"));
        }
    }

    /// What is to be built, if whoever asks may.
    fn accepted(&self, leased: &Leased) -> Result<(WorkRequest, Vec<u8>, String), Failed> {
        let failed = |why: String| Failed::new(Exit::StageFailed, why);
        let (envelope, text) = leased.work.as_ref().map_err(|why| failed(why.clone()))?;
        // Whose work is done here may have changed since.
        let trust = trust(self.flags.fleet.fleet_trust.as_deref())?;
        let instance = self.fleet.client.instance();
        let accepted = accept(&trust, (envelope, text), instance, now());
        let (request, by) = accepted.map_err(|error| failed(error.to_string()))?;
        is_for(&request, &self.facts)?;
        Ok((request, text.clone(), by))
    }

    /// Builds a stage by a run of its own; nothing where nobody wants it any more.
    fn build(
        &self,
        bot: &mut Bot<'_>,
        leased: &Leased,
        request: &WorkRequest,
        text: &[u8],
    ) -> Option<Outcome> {
        let place = match Place::new(request, text) {
            Ok(place) => place,
            Err(error) => return Some(Outcome::refused(&cannot(&error))),
        };
        let mut running = match Running::start(&self.arguments(request, &place), Lines::Told) {
            Ok(running) => running,
            Err(error) => return Some(Outcome::refused(&cannot(&error))),
        };
        let lease = self.lease(leased, request);
        let mut told = Instant::now();
        loop {
            if let Some(lease) = &lease {
                lease.tell(|holder| holder.line = running.line());
            }
            match running.ended() {
                Ok(Some(status)) => return Some(running.outcome(request, status.code())),
                Ok(None) => thread::sleep(TICK),
                Err(error) => return Some(Outcome::refused(&cannot(&error))),
            }
            if told.elapsed() >= ALIVE {
                told = Instant::now();
                // A scheduler that is gone may be back when this is built.
                if bot.goes_on(leased) == Ok(false) {
                    tell(format_args!("nobody wants {} any more", request.stage));
                    return None;
                }
            }
            if self.is_stopped() {
                return None;
            }
        }
    }

    /// By which whoever waits hears how it goes, where a server of leases is named.
    fn lease(&self, leased: &Leased, request: &WorkRequest) -> Option<Lease> {
        let (envelope, _) = leased.work.as_ref().ok()?;
        let table = table(&self.flags.fleet, self.fleet.client.instance());
        let table: Arc<dyn LeaseTable> = match table.transpose()? {
            Ok(table) => Arc::new(table),
            Err(error) => {
                warn(format_args!("nobody hears how it goes: {error}"));
                return None;
            }
        };
        let mut holder = Holder::new(&self.name, "", 1);
        holder.stage.clone_from(&request.stage);
        match claim(table, &BTreeSet::from([Digest::of(envelope)]), holder) {
            Ok(Claim::Ours(lease)) => Some(lease),
            // Another worker has been given the same.
            Ok(Claim::Theirs(_)) | Err(_) => None,
        }
    }

    /// Of `smelt run`, which publishes what it builds.
    fn arguments(&self, request: &WorkRequest, place: &Place) -> Vec<OsString> {
        let mut all = place.flags(request, self.flags);
        all.extend(["--push".into(), "sealed".into()]);
        all.extend(arguments_of(&self.flags.fleet));
        all
    }
}

/// The flags as whoever starts another command says them.
fn arguments_of(flags: &FleetFlags) -> Vec<OsString> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.as_os_str().to_owned());
    let text = |text: String| Some(OsString::from(text)).filter(|text| !text.is_empty());
    let FleetFlags { fleet, fleet_lock, fleet_peers, fleet_trust, key, fleet_token_file, .. } =
        flags;
    let named = [
        ("--fleet", fleet.as_ref().and_then(|it| text(it.to_string()))),
        ("--fleet-lock", fleet_lock.as_ref().and_then(|it| text(it.to_string()))),
        ("--fleet-peers", text(fleet_peers.to_string())),
        ("--fleet-trust", path(fleet_trust)),
        ("--fleet-key", path(&key.fleet_key)),
        ("--signer", path(&key.fleet_signer)),
        ("--fleet-token-file", path(fleet_token_file)),
        ("--fleet-rate", flags.fleet_rate.and_then(|rate| text(rate.to_string()))),
        ("--fleet-ca", path(&flags.fleet_ca)),
    ];
    let said = named.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?]));
    said.flatten().collect()
}

impl From<Outcome> for WorkOutcome {
    fn from(Outcome { exit, told, log, took }: Outcome) -> Self {
        Self { exit, told: serde_json::to_vec(&told).expect("texts are JSON"), log, took }
    }
}
