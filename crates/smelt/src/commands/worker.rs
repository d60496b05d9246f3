//! `smelt worker`: builds on this machine what somebody who is believed asks a scheduler for.
//!
//! A piece of work is a stage of a pipeline and the outputs it is made of.  It is built by `smelt run`, as anybody would
//! build it here: guarded, limited, retried, in the journals.  What comes of it is published; the scheduler hears of its key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use smelt_fleet::bots::{Bot, Leased, WorkOutcome};
use smelt_fleet::execution::Took;
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
use crate::fleet::workers::Told;
use crate::fleet::{Fleet, now, signer, trust};
use crate::stop::stop_flag;
use crate::table::some;

/// How soon a run that has ended is noticed.
const TICK: Duration = Duration::from_millis(200);
/// How often the scheduler hears that work goes on; it gives it to another machine after some times as long.
const ALIVE: Duration = Duration::from_secs(5);
/// A scheduler that is gone may be back soon.
const AGAIN: Duration = Duration::from_secs(5);
/// Of a run's log, for whoever asked.
const LINES_MAX: usize = 20;
const LINE_BYTES_MAX: u64 = 4096;
/// A report has some KiB for each stage.
const REPORT_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn run(flags: &WorkerFlags) -> Result<Exit, Failed> {
    let stop = stop_flag()?;
    // It will sign what it builds.
    let key = signer(&flags.fleet.key)?.public();
    let bosses = bosses(&trust(flags.fleet.fleet_trust.as_deref())?)?;
    let fleet = Fleet::open(&flags.fleet, &stop)?;
    let name = flags.name.clone().unwrap_or_else(own_name);
    let facts = FACTS.iter().filter_map(|fact| Some(((*fact).to_owned(), fact_of(fact)?)));
    let worker = Worker { flags, fleet: &fleet, name, facts: facts.collect(), stop: &stop };
    tell(format_args!(
        "worker {} of {} builds what {bosses} asks for and signs it by {key}; it is a machine with {}",
        worker.name,
        fleet.client.name(),
        words(&worker.facts)
    ));
    worker.work()
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
            Err(failed) => Some(refused(&failed)),
        };
        let Some(outcome) = outcome else { return };
        if let Err(error) = bot.done(leased, &outcome) {
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
        let is_other = |(fact, wants): &(&String, &String)| self.facts.get(*fact) != Some(*wants);
        match request.machine.iter().find(is_other) {
            Some((fact, wants)) => Err(Failed::new(
                Exit::DoesNotFit,
                format!("it wants a machine whose {fact} is {wants:?}, which this one's is not"),
            )),
            None => Ok((request, text.clone(), by)),
        }
    }

    /// Builds a stage by a run of its own; nothing where nobody wants it any more.
    fn build(
        &self,
        bot: &mut Bot<'_>,
        leased: &Leased,
        request: &WorkRequest,
        text: &[u8],
    ) -> Option<WorkOutcome> {
        let place = match Place::new(request, text) {
            Ok(place) => place,
            Err(error) => return Some(refused(&cannot(&error))),
        };
        let mut running = match Running::start(&self.arguments(request, &place)) {
            Ok(running) => running,
            Err(error) => return Some(refused(&cannot(&error))),
        };
        let lease = self.lease(leased, request);
        let mut told = Instant::now();
        loop {
            if let Some(lease) = &lease {
                lease.tell(|holder| holder.line = running.line());
            }
            match running.child.try_wait() {
                Ok(Some(status)) => return Some(running.outcome(request, status.code())),
                Ok(None) => thread::sleep(TICK),
                Err(error) => return Some(refused(&cannot(&error))),
            }
            if told.elapsed() >= ALIVE {
                told = Instant::now();
                // A scheduler that is gone may be back when this is built.
                if bot.goes_on(leased) == Ok(false) {
                    tell(format_args!("nobody wants {} any more", request.stage));
                    running.end();
                    return None;
                }
            }
            if self.is_stopped() {
                running.end();
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

    /// Of `smelt run`.
    fn arguments(&self, request: &WorkRequest, place: &Place) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec!["run".into(), place.file(PIPELINE).into()];
        all.extend(["--only".into(), request.stage.clone().into()]);
        all.extend(["--given".into(), place.file(GIVEN).into()]);
        all.extend(["--push".into(), "sealed".into(), "--json".into()]);
        all.extend(request.sets.iter().flat_map(|set| ["--set".into(), OsString::from(set)]));
        if let Some(bytes) = self.flags.keep_free {
            all.extend(["--keep-free".into(), bytes.to_string().into()]);
        }
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

fn refused(failed: &Failed) -> WorkOutcome {
    warn(format_args!("work is not done: {failed}"));
    let told = Told { key: None, class: None, message: Some(failed.to_string()) };
    WorkOutcome {
        exit: failed.exit as i32,
        told: serde_json::to_vec(&told).expect("texts are JSON"),
        ..WorkOutcome::default()
    }
}

fn cannot(error: &io::Error) -> Failed {
    Failed::new(Exit::StageFailed, format!("the work cannot be begun: {error}"))
}

const PIPELINE: &str = "pipeline.toml";
const GIVEN: &str = "given.json";

/// A folder for a piece of work, which ends with it.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(request: &WorkRequest, text: &[u8]) -> io::Result<Self> {
        let name = format!("smelt-work-{}", std::process::id());
        let place = Self { folder: std::env::temp_dir().join(name) };
        // What a worker of that number has left is nobody's.
        let _ = fs::remove_dir_all(&place.folder);
        fs::DirBuilder::new().mode(0o700).create(&place.folder)?;
        fs::write(place.file(PIPELINE), text)?;
        let given = serde_json::to_vec(&request.inputs).expect("digests are JSON");
        fs::write(place.file(GIVEN), given)?;
        Ok(place)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // In the worst case the next start of the machine removes it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A run under way, whose lines are passed on.
struct Running {
    child: Child,
    report: thread::JoinHandle<Vec<u8>>,
    passing: thread::JoinHandle<()>,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Running {
    fn start(arguments: &[OsString]) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let report = thread::spawn(move || {
            let mut report = Vec::new();
            // A report that is cut off is none.
            let _ = stdout.take(REPORT_BYTES_MAX).read_to_end(&mut report);
            report
        });
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let last = lines.clone();
        let passing = thread::spawn(move || pass_on(BufReader::new(stderr), &last));
        Ok(Self { child, report, passing, lines })
    }

    /// The last of its log.
    fn line(&self) -> String {
        locked(&self.lines).back().cloned().unwrap_or_default()
    }

    /// Whoever leads the stages ends them when this is gone.
    fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn outcome(self, request: &WorkRequest, code: Option<i32>) -> WorkOutcome {
        let report = self.report.join().unwrap_or_default();
        let _ = self.passing.join();
        let report: Value = serde_json::from_slice(&report).unwrap_or_default();
        let stages = report["stages"].as_array().into_iter().flatten();
        let stage = stages.clone().find(|stage| stage["name"] == request.stage.as_str());
        let failed = stages.clone().find(|stage| !stage["message"].is_null());
        let exit = code.unwrap_or(Exit::StageFailed as i32);
        let told = Told {
            key: stage.filter(|_| exit == 0).and_then(|it| it["key"].as_str()?.parse().ok()),
            class: failed.and_then(|it| serde_json::from_value(it["class"].clone()).ok()),
            message: failed.and_then(|it| it["message"].as_str().map(str::to_owned)),
        };
        let took = stage.and_then(|stage| stage["attempts"].as_array()?.last()).map(|attempt| {
            let bytes = |name: &str| attempt[name].as_u64().unwrap_or_default();
            Took {
                wall_ms: (attempt["wall_s"].as_f64().unwrap_or_default() * 1e3) as u64,
                peak_rss_bytes: bytes("peak_rss_bytes"),
                peak_vms_bytes: bytes("peak_vms_bytes"),
            }
        });
        let log: Vec<String> = locked(&self.lines).iter().cloned().collect();
        WorkOutcome {
            exit,
            told: serde_json::to_vec(&told).expect("texts are JSON"),
            log: log.join("\n"),
            took,
        }
    }
}

fn locked<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes lines on to this worker's log, and keeps the last of them.
fn pass_on(mut from: impl BufRead, last: &Mutex<VecDeque<String>>) {
    loop {
        let mut line = Vec::new();
        match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        tell(&line);
        let mut last = locked(last);
        if last.len() == LINES_MAX {
            last.pop_front();
        }
        last.push_back(line);
    }
}
