//! Has a stage built on another machine that is reached by ssh: one host and one board, without a server and without keys.
//!
//! Whoever may log in there may run anything there, so nothing is signed.  What comes back is judged all the same: it must be
//! this stage's, made of what was sent, on a machine as the stage wants it.

use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use smelt_exec::Asking;
use smelt_fleet::execution::Executed;
use smelt_fleet::remote::plain;
use smelt_fleet::ssh::SshAddress;
use smelt_plan::{Digest, Plan, StageId, device};
use smelt_store::bundle::{BundledKey, BundledOutput, check};

use super::incoming::Incoming;
use super::outgoing::{Leaving, outputs};
use super::pull::{Built, is_built_of};
use super::session::{
    Greeting, Saying, SessionError, SessionOutcome, SessionWork, greeted, hear, say,
};
use super::stream::{self, bytes_of};
use super::vouched;
use super::workers::{NotBuilt, Workers, done, took};
use crate::exit::{Exit, Failed};
use crate::table::bytes;
use crate::version::TEXT;

/// The program that reaches machines.
const SSH: &str = "ssh";
/// What it is told to do there.
pub(crate) const SESSION: [&str; 2] = ["worker", "--session"];
/// How soon one that nobody waits for any more is ended.
const TICK: Duration = Duration::from_millis(100);
/// Of what it complains.
const COMPLAINTS_BYTES_MAX: usize = 64 << 10;
/// How long a machine may say nothing: it tells each minute that it builds, and hashes gigabytes in less.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// What cures a line that has broken.
const AGAIN: &str = "the same command goes on where it was";
/// So long it may take to say why it ends.
const GRACE: Duration = Duration::from_secs(2);

impl Workers<'_> {
    /// Has the machine build it, and takes it; who built it.
    pub(super) fn build_by_ssh(
        &self,
        address: &SshAddress,
        asking: &Asking,
        say: &dyn Fn(String),
    ) -> Result<String, NotBuilt> {
        // A board has memory for one stage.
        let _turn = locked(&self.turn);
        say(format!("{address} is reached"));
        let mut line = Line::open(address, &self.stop)?;
        match self.build_by(&mut line, asking, say) {
            Err(NotBuilt::Here(_)) if self.stop.load(Ordering::Relaxed) => {
                Err(Failed::stopped().into())
            }
            built => built,
        }
    }

    fn build_by(
        &self,
        line: &mut Line<'_>,
        asking: &Asking,
        say: &dyn Fn(String),
    ) -> Result<String, NotBuilt> {
        let greeting = line.greeted()?;
        self.fits(line, asking, &greeting)?;
        let sent = self.sent(asking)?;
        let (request, pipeline) = self.request(asking, "")?;
        let outputs = sent.iter().map(|(output, _)| output.clone()).collect();
        let work = SessionWork { request, pipeline, outputs };
        line.say(&work)?;
        let outcome = self.wait(line, (&work, &sent), say)?;
        let executed = Executed {
            exit: outcome.exit,
            told: serde_json::to_vec(&outcome.told).expect("texts are JSON"),
            log: outcome.log.clone(),
            worker: line.address.to_string(),
            took: outcome.took,
        };
        let key = done(&executed).map_err(NotBuilt::There)?;
        let built = format!("{} has built it{}", executed.worker, took(&executed));
        say(format!("{built}; it is fetched"));
        self.take(line, asking, (key, outcome, &work.outputs, &greeting.version), say)?;
        Ok(built)
    }

    /// Refuses a machine that is not as the stage wants it.
    fn fits(&self, line: &Line<'_>, asking: &Asking, there: &Greeting) -> Result<(), Failed> {
        let stage = self.loaded.plan.stage(asking.stage);
        let wanted = stage.elsewhere.as_ref();
        let is_other =
            |(fact, value): &(&&'static str, &String)| there.facts.get(**fact) != Some(*value);
        let Some((fact, value)) = wanted.into_iter().flatten().find(is_other) else {
            return Ok(());
        };
        let found = there.facts.get(*fact).map_or("unknown", String::as_str);
        let (address, machine) = (line.address, wanted.map(device::words).unwrap_or_default());
        let message = format!(
            "it is built where {machine}: {fact} of {address} is {found:?}, not {value:?}; --worker names another machine"
        );
        Err(Failed::new(Exit::DoesNotFit, message))
    }

    /// What the stage is made of with all that this refers to, each with its folder.
    fn sent(&self, asking: &Asking) -> Result<Vec<(BundledOutput, PathBuf)>, Failed> {
        let plan = &self.loaded.plan;
        let own = self.chosen(asking)?;
        let inputs = asking.inputs.iter().filter(|input| own.contains(&input.stage));
        let leaving: Vec<Leaving> = inputs
            .map(|input| Leaving {
                tree: input.tree,
                recipes: vec![plan.stage(input.stage).recipe_key],
            })
            .collect();
        let mut all = outputs(&self.loaded.store, &leaving)?;
        for (output, _) in &mut all {
            // Each comes under the keys by which it is meant; what another one refers to, under any.
            let first = output.keys.first().cloned();
            let is_meant =
                |key: &BundledKey| asking.inputs.iter().any(|it| it.key == Some(key.key));
            output.keys.retain(is_meant);
            if output.keys.is_empty() {
                output.keys.extend(first);
            }
        }
        Ok(all)
    }

    /// Sends what the machine lacks, and hears how it goes until that has ended.
    fn wait(
        &self,
        line: &mut Line<'_>,
        (work, sent): (&SessionWork, &[(BundledOutput, PathBuf)]),
        say: &dyn Fn(String),
    ) -> Result<SessionOutcome, Failed> {
        let (address, mut is_sent) = (line.address, false);
        loop {
            match line.hear::<Saying>()? {
                Saying::Lacks(_) if std::mem::replace(&mut is_sent, true) => {
                    return Err(line.odd("it asks twice for what it was sent"));
                }
                Saying::Lacks(parts) => {
                    let all = bytes_of(&parts, &work.outputs);
                    let mut told = line.telling(all, format!("sent to {address}"), say);
                    let sent = stream::send(sent, &parts, &mut line.to, &mut told);
                    sent.map_err(|failed| line.failed(failed))?;
                    say(format!("{address} builds it"));
                }
                Saying::Line(text) => say(format!("{address}: {}", plain(&text))),
                Saying::Ended(outcome) => return Ok(*outcome),
            }
        }
    }

    /// Judges what was built, and takes it under the key that it has here.
    fn take(
        &self,
        line: &mut Line<'_>,
        asking: &Asking,
        (key, outcome, sent, version): (Digest, SessionOutcome, &[BundledOutput], &str),
        say: &dyn Fn(String),
    ) -> Result<(), NotBuilt> {
        let SessionOutcome { outputs, provenance, .. } = outcome;
        let mut own = only(outputs, sent).map_err(|why| line.odd(&plain(&why)))?;
        let inputs: Vec<(StageId, Digest)> =
            asking.inputs.iter().map(|input| (input.stage, input.tree)).collect();
        let built = Built { stage: asking.stage, key, under: asking.key, inputs: &inputs };
        let plan: &Plan = &self.loaded.plan;
        let Some(said) = provenance.filter(|said| is_built_of(plan, &built, said)) else {
            let message = "what it has built was made of something else, or in another way";
            let versions = match version == TEXT {
                true => String::new(),
                false => format!(": there is smelt {}, here {TEXT}", plain(version)),
            };
            return Err(line.odd(&format!("{message}{versions}")).into());
        };
        let record = own.keys.first().map(BundledKey::record).unwrap_or_default();
        own.keys = vec![BundledKey::new(asking.key, Vec::new(), &record)];
        let outputs = [own];
        let machine = line.address.to_string();
        let mark = |record: &mut Value| vouched::put_built_at(record, &machine, &said.device);
        let (store, trust) = (&self.loaded.store, vouched::believed()?);
        let incoming = Incoming::begin(store, &outputs, &mark, &trust)?;
        incoming.has_room("fetched", incoming.kept_bytes()?)?;
        let parts = stream::missing(&incoming)?;
        line.say(&parts)?;
        let all = bytes_of(&parts, &outputs);
        let mut told = line.telling(all, format!("fetched from {machine}"), say);
        let received = stream::receive(&incoming, &parts, &mut line.from, &mut told);
        received.map_err(|failed| line.failed(failed))?;
        Ok(())
    }
}

/// The one output that a board may send: what it refers to was sent to it.
fn only(mut outputs: Vec<BundledOutput>, sent: &[BundledOutput]) -> Result<BundledOutput, String> {
    let (Some(own), true) = (outputs.pop(), outputs.is_empty()) else {
        return Err("it sends more than what was asked for, or nothing".to_owned());
    };
    let others = sent.iter().filter(|other| other.tree != own.tree).cloned();
    check(&others.chain([own.clone()]).collect::<Vec<_>>())?;
    Ok(own)
}

/// How much has been moved, told each twentieth.
struct Share {
    done: u64,
    all: u64,
    told: u64,
}

impl Share {
    const PARTS: u64 = 20;

    fn of(all: u64) -> Self {
        Self { done: 0, all, told: 0 }
    }

    /// In words, if it is time to say it.
    fn add(&mut self, some: u64) -> Option<String> {
        self.done += some;
        let part = self.done.saturating_mul(Self::PARTS) / self.all.max(1);
        if part == self.told {
            return None;
        }
        self.told = part;
        Some(format!("{} % of {}", part * 100 / Self::PARTS, bytes(self.all)))
    }
}

/// A machine that is reached.
struct Line<'a> {
    address: &'a SshAddress,
    child: Arc<Mutex<Child>>,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What ssh, and smelt there, complain of.
    complaints: Arc<Mutex<Vec<u8>>>,
    is_over: Arc<AtomicBool>,
    is_greeted: bool,
    /// When anything was moved last.
    moved: Arc<Mutex<Instant>>,
}

impl<'a> Line<'a> {
    /// Starts ssh, which ends when `stop` is set.
    fn open(address: &'a SshAddress, stop: &Arc<AtomicBool>) -> Result<Self, Failed> {
        let mut ssh = Command::new(SSH);
        ssh.args(address.arguments(&SESSION));
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ssh.spawn().map_err(|error| {
            let message = format!("{SSH} cannot be started: {error}; apt install openssh-client");
            Failed::new(Exit::NotSeen, message)
        })?;
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        let (mut stderr, complaints) = (child.stderr.take().expect("it is piped"), Arc::default());
        let (child, is_over) = (Arc::new(Mutex::new(child)), Arc::<AtomicBool>::default());
        let kept = Arc::clone(&complaints);
        thread::spawn(move || keep(&mut stderr, &kept));
        let (ended, over, stop) = (child.clone(), is_over.clone(), stop.clone());
        let moved = Arc::new(Mutex::new(Instant::now()));
        let last = moved.clone();
        thread::spawn(move || {
            let is_silent = || locked(&last).elapsed() > SILENCE_MAX;
            while !over.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) && !is_silent() {
                thread::sleep(TICK);
            }
            let _ = locked(&ended).kill();
        });
        Ok(Self { address, child, to, from, complaints, is_over, is_greeted: false, moved })
    }

    fn greeted(&mut self) -> Result<Greeting, Failed> {
        let greeting = greeted(&mut self.from).map_err(|error| self.lost(&error))?;
        self.is_greeted = true;
        Ok(greeting)
    }

    fn say(&mut self, message: &impl Serialize) -> Result<(), Failed> {
        say(&mut self.to, message).map_err(|error| self.lost(&SessionError::Io(error)))
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<T, Failed> {
        *locked(&self.moved) = Instant::now();
        let heard = hear(&mut self.from).and_then(|heard| heard.ok_or(SessionError::Ended));
        heard.map_err(|error| self.lost(&error))
    }

    /// Notes whenever something was moved, and tells how much of `all` bytes it is by now.
    fn telling<'s>(
        &self,
        all: u64,
        how: String,
        say: &'s dyn Fn(String),
    ) -> impl FnMut(u64) + use<'s> {
        let (moved, mut share) = (self.moved.clone(), Share::of(all));
        move |some| {
            *locked(&moved) = Instant::now();
            if let Some(share) = share.add(some) {
                say(format!("{share} {how}"));
            }
        }
    }

    /// Why the machine says no more: what ssh, or smelt there, complains of, if anything.
    fn lost(&mut self, error: &SessionError) -> Failed {
        let why = match error {
            SessionError::Odd(_) => error.to_string(),
            SessionError::Ended | SessionError::Io(_) => {
                self.complaint().unwrap_or_else(|| error.to_string())
            }
        };
        let cure = match (self.is_greeted, error) {
            (_, SessionError::Odd(_)) => "is that smelt of the same version?",
            (true, _) => AGAIN,
            (false, _) => {
                "ssh must get there without a password, and find smelt there, else as in ssh://HOST/PATH/OF/smelt"
            }
        };
        Failed::new(Exit::NotSeen, format!("{}: {why}; {cure}", self.address))
    }

    /// The same where files were moved and the stream has ended; what else went wrong is this machine's.
    fn failed(&self, failed: Failed) -> Failed {
        if failed.exit != Exit::NotSeen {
            return failed;
        }
        let why = self.complaint().unwrap_or_else(|| failed.to_string());
        Failed::new(Exit::NotSeen, format!("{}: {why}; {AGAIN}", self.address))
    }

    fn odd(&self, why: &str) -> Failed {
        Failed::new(Exit::StageFailed, format!("{}: {why}", self.address))
    }

    /// The last line that was complained of.
    fn complaint(&self) -> Option<String> {
        let begin = Instant::now();
        // It says why before it ends.
        while matches!(locked(&self.child).try_wait(), Ok(None)) && begin.elapsed() < GRACE {
            thread::sleep(TICK);
        }
        let text = String::from_utf8_lossy(&locked(&self.complaints)).into_owned();
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(plain)
    }
}

impl Drop for Line<'_> {
    /// What is asked for there ends with it.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let mut child = locked(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Keeps the end of what is said.
fn keep(from: &mut impl Read, kept: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(some @ 1..) = from.read(&mut piece) {
        let mut kept = locked(kept);
        kept.extend_from_slice(&piece[..some]);
        let surplus = kept.len().saturating_sub(COMPLAINTS_BYTES_MAX);
        kept.drain(..surplus);
    }
}

fn locked<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use smelt_store::{FileEntry, Manifest};

    use super::*;

    fn output(name: &str, refers: Vec<Digest>) -> BundledOutput {
        let sha256 = Digest::of(name.as_bytes());
        let entry = FileEntry { path: name.to_owned(), size: 1, sha256, executable: false };
        let files = Manifest::new(vec![entry]).unwrap();
        let keys = vec![BundledKey::new(sha256, Vec::new(), &Value::Null)];
        BundledOutput { tree: files.digest(), files, refers, keys }
    }

    #[test]
    fn a_board_sends_one_output_that_refers_to_nothing_but_what_it_was_sent() {
        let input = output("input", Vec::new());
        let sent = [input.clone()];
        let good = output("engine", vec![input.tree]);
        assert_eq!(only(vec![good.clone()], &sent), Ok(good.clone()));
        assert_eq!(only(vec![input.clone()], &sent), Ok(input.clone()), "it may be the same bytes");
        let refused = |outputs| only(outputs, &sent).unwrap_err();
        assert!(refused(vec![]).contains("nothing"));
        assert!(
            refused(vec![output("a tool of the host's", vec![]), good.clone()]).contains("more")
        );
        let strange = output("strange", vec![Digest::of(b"another")]);
        assert!(refused(vec![strange]).contains("refers to one"));
        let lying = BundledOutput { tree: Digest::of(b"another"), ..good.clone() };
        assert!(refused(vec![lying]).contains("other files"));
        let without = BundledOutput { keys: Vec::new(), ..good };
        assert!(refused(vec![without]).contains("nothing led"));
    }

    #[test]
    fn what_is_moved_is_told_a_few_times() {
        let mut share = Share::of(1 << 30);
        let told: Vec<String> = (0..1024).filter_map(|_| share.add(1 << 20)).collect();
        assert_eq!(told.len(), 20);
        assert_eq!([&*told[0], &told[19]], ["5 % of 1.00 GiB", "100 % of 1.00 GiB"]);
        assert_eq!(Share::of(0).add(0), None);
    }
}
