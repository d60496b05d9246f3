//! Has stages built by workers of the fleet: those that say `where`, on a machine that is not of that kind.
//!
//! A stage that is built elsewhere is to the run a key that somebody else holds.  A thread publishes what it is made of,
//! has a worker build it, judges and fetches what that has published, and seals it under the run's own key.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use smelt_exec::{Asking, Elsewhere};
use smelt_fleet::execution::{Course, Executed, ExecutionError, Package, Took};
use smelt_fleet::keys::SigningKey;
use smelt_fleet::lease::LeaseTable as _;
use smelt_fleet::pull::offer;
use smelt_fleet::remote::{Key, Remote as _, plain};
use smelt_fleet::work::{InputOutput, PIPELINE_BYTES_MAX, WorkRequest};
use smelt_plan::{Digest, Failure, FailureClass, StageId, device};

use super::pull::{Built, take_built};
use super::push::{Outcome, push_each};
use super::turn::table;
use super::{Fleet, now};
use crate::exit::{Exit, Failed};
use crate::flags::{PushLimits, RunFlags};
use crate::load::{self, Loaded};
use crate::table::{bytes, seconds};

/// What a worker says of what it has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The content key under which it is published, where it went well.
    pub(crate) key: Option<Digest>,
    /// What went wrong.
    pub(crate) class: Option<FailureClass>,
    pub(crate) message: Option<String>,
}

/// What a run needs to have stages built elsewhere.
pub(crate) struct Workers<'a> {
    flags: &'a RunFlags,
    pub(super) loaded: &'a Loaded,
    /// Nobody waits any more.
    pub(super) stop: Arc<AtomicBool>,
    /// Held by what a machine that is reached by ssh builds.
    pub(super) turn: Mutex<()>,
}

/// Why a stage was not built elsewhere: what went wrong there, or here.
pub(super) enum NotBuilt {
    There(Failure),
    Here(Failed),
}

impl From<Failed> for NotBuilt {
    fn from(failed: Failed) -> Self {
        Self::Here(failed)
    }
}

/// The stages that workers have been asked for, until this is dropped.
pub(crate) struct Asked<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    workers: &'env Workers<'env>,
    standings: RefCell<BTreeMap<StageId, Arc<Mutex<Elsewhere>>>>,
}

impl<'scope, 'env> Asked<'scope, 'env> {
    /// None yet.
    pub(crate) fn new(scope: &'scope Scope<'scope, 'env>, workers: &'env Workers<'env>) -> Self {
        Self { scope, workers, standings: RefCell::default() }
    }

    /// How a stage stands that is to be built elsewhere; the first time it is asked for.
    pub(crate) fn ask(&self, asking: &Asking) -> Elsewhere {
        let mut standings = self.standings.borrow_mut();
        let standing = standings.entry(asking.stage).or_insert_with(|| self.begin(asking.clone()));
        standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn begin(&self, asking: Asking) -> Arc<Mutex<Elsewhere>> {
        let standing = Arc::new(Mutex::new(Elsewhere::Waits("a worker is asked for".to_owned())));
        let (told, workers) = (standing.clone(), self.workers);
        self.scope.spawn(move || {
            let set = |to| *told.lock().unwrap_or_else(PoisonError::into_inner) = to;
            let built = workers.build(&asking, &|line| set(Elsewhere::Waits(line)));
            set(built.map_or_else(Elsewhere::Failed, Elsewhere::Built));
        });
        standing
    }
}

impl Drop for Asked<'_, '_> {
    fn drop(&mut self) {
        self.workers.stop.store(true, Ordering::Relaxed);
    }
}

impl<'a> Workers<'a> {
    /// Of a run.
    pub(crate) fn new(flags: &'a RunFlags, loaded: &'a Loaded) -> Self {
        Self { flags, loaded, stop: Arc::default(), turn: Mutex::default() }
    }

    /// Whether there are any to ask.  A worker asks no other one.
    pub(crate) fn is_any(&self) -> bool {
        let RunFlags { worker, fleet, given, .. } = self.flags;
        (worker.is_some() || fleet.fleet.is_some()) && given.is_none() && !self.flags.is_trial()
    }

    fn build(&self, asking: &Asking, say: &dyn Fn(String)) -> Result<String, Failure> {
        self.try_build(asking, say).map_err(|why| match why {
            NotBuilt::There(failure) => failure,
            NotBuilt::Here(failed) => {
                let class = match failed.exit {
                    Exit::DoesNotFit => FailureClass::DoesNotFit,
                    _ => FailureClass::SpawnFailed,
                };
                Failure { class, exit: Some(failed.exit as i32), message: failed.to_string() }
            }
        })
    }

    /// Has it built, and fetches it; who built it.
    fn try_build(&self, asking: &Asking, say: &dyn Fn(String)) -> Result<String, NotBuilt> {
        if let Some(address) = &self.flags.worker {
            return self.build_by_ssh(address, asking, say);
        }
        let signer = super::signer(&self.flags.fleet.key)?;
        let fleet = Fleet::open(&self.flags.fleet, &self.stop)?;
        say("what it is made of is published".to_owned());
        self.publish(&fleet, asking, &signer)?;
        let (package, name) = self.package(&fleet, asking, &signer)?;
        let executed = self.execute(&fleet, (&package, name), asking, say)?;
        let key = done(&executed).map_err(NotBuilt::There)?;
        let line = format!("{} has built it{}", executed.worker, took(&executed));
        say(format!("{line}; it is fetched"));
        let inputs: Vec<(StageId, Digest)> =
            asking.inputs.iter().map(|input| (input.stage, input.tree)).collect();
        let built = Built { stage: asking.stage, key, under: asking.key, inputs: &inputs };
        take_built(&fleet, self.loaded, &built, &self.stop)?;
        Ok(line)
    }

    /// The stages whose outputs the worker is to be given.
    pub(super) fn chosen(&self, asking: &Asking) -> Result<BTreeSet<StageId>, Failed> {
        let plan = &self.loaded.plan;
        let mut chosen = BTreeSet::new();
        for input in &asking.inputs {
            let need = plan.stage(input.stage);
            if let Some(pin) = need.given() {
                let message = format!(
                    "it is to be built elsewhere and reads path:{}, which is on this machine alone: let another stage copy or quantise it first",
                    pin.path.display()
                );
                return Err(Failed::new(Exit::DoesNotFit, message));
            }
            // A worker fetches the same commit from the hub.
            if need.fetched().is_none() {
                chosen.insert(input.stage);
            }
        }
        Ok(chosen)
    }

    /// Publishes what the stage is made of, so that the worker can fetch it.
    fn publish(&self, fleet: &Fleet, asking: &Asking, signer: &SigningKey) -> Result<(), Failed> {
        let (plan, chosen) = (&self.loaded.plan, self.chosen(asking)?);
        let goes_on = || !self.stop.load(Ordering::Relaxed);
        let chosen = (&chosen, &PushLimits::default());
        for (id, outcome) in push_each(fleet, self.loaded, signer, chosen, &goes_on)? {
            let key = asking.inputs.iter().find(|input| input.stage == id).and_then(|it| it.key);
            let why = match outcome {
                Outcome::Pushed(_) | Outcome::WasThere => continue,
                // What came from the fleet is there.
                Outcome::Kept(_) if key.is_some_and(|key| is_published(fleet, key)) => continue,
                Outcome::Kept(why) => why,
                Outcome::Failed(error) => error.to_string(),
            };
            let name = &plan.stage(id).name;
            let message = format!("what it is made of is not published: {name}: {why}");
            return Err(Failed::new(Exit::NotSeen, message));
        }
        Ok(())
    }

    /// What is asked for, and the name under which the worker's lease is.
    fn package(
        &self,
        fleet: &Fleet,
        asking: &Asking,
        signer: &SigningKey,
    ) -> Result<(Package, Digest), Failed> {
        let (request, text) = self.request(asking, fleet.client.instance())?;
        let signed = request.sign(signer).map_err(Failed::usage)?;
        let name = Digest::of(&signed);
        Ok((Package::of(signed, text.into_bytes(), &request.machine), name))
    }

    /// What the fleet of that name is asked for, and the pipeline's text.
    pub(super) fn request(
        &self,
        asking: &Asking,
        instance: &str,
    ) -> Result<(WorkRequest, String), Failed> {
        let plan = &self.loaded.plan;
        let stage = plan.stage(asking.stage);
        let text = load::read(&self.flags.pipeline.pipeline)?;
        if text.len() > PIPELINE_BYTES_MAX {
            let message = format!("a pipeline of {} bytes is too long for a worker", text.len());
            return Err(Failed::new(Exit::DoesNotFit, message));
        }
        let inputs = asking.inputs.iter().filter_map(|input| {
            let need = plan.stage(input.stage);
            // What a hub has the worker fetches there.
            let key = input.key.filter(|_| need.fetched().is_none())?;
            Some((need.name.to_string(), InputOutput { key, tree: input.tree }))
        });
        let machine = stage.elsewhere.iter().flatten();
        let request = WorkRequest {
            stage: stage.name.to_string(),
            pipeline: Digest::of(text.as_bytes()),
            sets: self.flags.pipeline.sets.clone(),
            inputs: inputs.collect(),
            machine: machine.map(|(fact, value)| ((*fact).to_owned(), value.clone())).collect(),
            instance: instance.to_owned(),
        };
        Ok((request, text))
    }

    /// Has a worker do it, which none may take for so long.
    fn execute(
        &self,
        fleet: &Fleet,
        (package, name): (&Package, Digest),
        asking: &Asking,
        say: &dyn Fn(String),
    ) -> Result<Executed, Failed> {
        let stage = self.loaded.plan.stage(asking.stage);
        let machine = stage.elsewhere.as_ref().map(device::words).unwrap_or_default();
        let most = self.flags.worker_wait;
        // A worker that dies leaves it to another one.
        let mut begin = Instant::now();
        // Without it one knows that it is built, and not how that goes.
        let table = table(&self.flags.fleet, fleet.client.instance()).ok().flatten();
        let holder = || table.as_ref()?.look(&name).ok()?.map(|entry| entry.holder().to_string());
        let told = &mut |course| {
            let is_queued = course == Course::Queued;
            begin = if is_queued { begin } else { Instant::now() };
            say(match is_queued {
                true => format!("a worker with {machine} is waited for"),
                false => holder().unwrap_or_else(|| format!("a worker with {machine} builds it")),
            });
            let is_late = is_queued && begin.elapsed() > most;
            !is_late && !self.stop.load(Ordering::Relaxed)
        };
        fleet.client.execute(package, told).map_err(|error| match error {
            _ if self.stop.load(Ordering::Relaxed) => Failed::stopped(),
            ExecutionError::GivenUp => Failed::new(
                Exit::DoesNotFit,
                format!(
                    "no worker with {machine} took it within {} s: start smelt worker on such a machine, or wait longer (--worker-wait)",
                    most.as_secs()
                ),
            ),
            ExecutionError::Remote(error) => {
                let message = format!("it is not built elsewhere: {error}");
                Failed::new(Exit::NotSeen, message)
            }
        })
    }
}

/// Whether the fleet has an output under its key, from somebody who is believed.
fn is_published(fleet: &Fleet, key: Digest) -> bool {
    let found = offer(&fleet.client, Key::Content(key), &fleet.trust, now());
    matches!(found, Ok(Some(_)))
}

/// What it took there, in words.
pub(super) fn took(executed: &Executed) -> String {
    let words = |took: Took| {
        let seconds = seconds(took.wall_ms as f64 / 1e3);
        format!(" in {seconds}, peak RSS {}", bytes(took.peak_rss_bytes))
    };
    executed.took.map_or_else(String::new, words)
}

/// The key under which a worker has published what it has built.
pub(super) fn done(executed: &Executed) -> Result<Digest, Failure> {
    let told: Option<Told> = serde_json::from_slice(&executed.told).ok();
    let Told { key, class, message } = told.unwrap_or_default();
    if let Some(key) = key.filter(|_| executed.exit == 0) {
        return Ok(key);
    }
    let last = executed.log.lines().last().unwrap_or("it says nothing");
    let message = plain(&message.unwrap_or_else(|| last.to_owned()));
    let class = class.unwrap_or(FailureClass::ToolRejected);
    let message = format!("worker {}: {message}", executed.worker);
    Err(Failure { class, exit: Some(executed.exit), message })
}
