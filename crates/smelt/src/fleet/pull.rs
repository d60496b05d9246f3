//! Takes from a fleet what a pipeline would else build, only as far as something needs it.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use smelt_fleet::counts::Counts;
use smelt_fleet::judge::Vouched;
use smelt_fleet::peer::Sealed;
use smelt_fleet::places::PlacesLog;
use smelt_fleet::pull::{Offer, PullError, offer, offer_of};
use smelt_fleet::remote::{Found, Key, Remote as _};
use smelt_fleet::site::{self, Site, Wire};
use smelt_fleet::statement::{Provenance, Statement};
use smelt_fleet::work::InputOutput;
use smelt_plan::device::FACTS;
use smelt_plan::plan::{Pin, Stage, Tool};
use smelt_plan::{Digest, Plan, StageId};
use smelt_store::{Holder, KeyLock, Output, OutputItem, SealError, Store};

use super::holdings::output;
use super::turn::is_here;
use super::vouched::{Origin, doubt};
use super::{Fleet, judging_time, saw_time, with_dependents};
use crate::console::warn;
use crate::exit::{Exit, Failed};
use crate::load::Loaded;
use crate::table::bytes;
use crate::telling::Telling;

/// How soon a key held by another run is looked at again.
const TICK: Duration = Duration::from_millis(200);
/// What is left free beside what is fetched: records and the journals of others.
const RESERVE_BYTES: u64 = 64 << 20;
/// Each is read and cut, which takes a second a gigabyte.
const OLDER_MAX: usize = 2;
/// Outputs name engines, and these nothing more; a chain is no longer than this.
const REFERS_DEPTH_MAX: u32 = 8;

/// Entries that are in memory together; of one with 30,000 chunks that is a megabyte.
const ASKED_MAX: usize = 256;
/// No stage takes longer than a month, whoever says so.
const COST_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// What is here now, and need not be built.
pub(crate) struct Pulled {
    /// What was asked for: nothing of the pipeline needs these.
    pub(crate) targets: Vec<StageId>,
    /// The content keys of the outputs that are here; what only they need is not asked for.
    pub(crate) known: BTreeMap<StageId, Digest>,
    /// What came from the server.
    pub(crate) fetched: Vec<Taken>,
    /// Of them, in this call and in ones before that were cut short.
    pub(crate) bytes: u64,
    pub(crate) kept: u64,
    /// Of what was fetched, from neighbours.
    pub(crate) neighbours: u64,
    /// From other versions that were here.
    pub(crate) local: u64,
    /// The same, to be counted in the store.
    pub(crate) counts: Counts,
    /// The server answered no more.
    pub(crate) is_lost: bool,
    /// A collection spares them as long as this lives.
    _holder: Holder,
}

impl Pulled {
    /// What came from the fleet, in a line.
    pub(crate) fn line(&self, plan: &Plan) -> String {
        if self.fetched.is_empty() {
            return "nothing was fetched".to_owned();
        }
        let names = self.fetched.iter().map(|taken| plan.stage(taken.stage).name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let size = match self.neighbours {
            0 => bytes(self.bytes),
            some => format!("{} ({} of it from neighbours)", bytes(self.bytes), bytes(some)),
        };
        let all: BTreeSet<&str> =
            self.fetched.iter().flat_map(|it| it.by.iter().map(String::as_str)).collect();
        let by = all.into_iter().collect::<Vec<_>>().join(", ");
        let here = match self.local + self.kept {
            0 => String::new(),
            here => format!(" and {} that were here", bytes(here)),
        };
        format!("fetched {names}: {size}{here}, vouched for by {by}")
    }
}

/// An output that came from the server.
pub(crate) struct Taken {
    pub(crate) stage: StageId,
    pub(crate) tree: Digest,
    pub(crate) bytes: u64,
    /// Who vouches for it.
    pub(crate) by: Vec<String>,
}

impl Taken {
    pub(crate) fn as_json(&self, plan: &Plan) -> Value {
        let stage = &plan.stage(self.stage).name;
        json!({ "stage": stage.as_str(), "tree": self.tree, "bytes": self.bytes, "by": self.by })
    }
}

/// The stages that nothing else of the pipeline needs.
pub(crate) fn sinks(plan: &Plan) -> Vec<StageId> {
    let needed: BTreeSet<StageId> = plan.stages().flat_map(|(_, stage)| stage.needs()).collect();
    plan.stages().map(|(id, _)| id).filter(|id| !needed.contains(id)).collect()
}

/// What a pull is to take.
pub(crate) struct Wanted<'a> {
    /// The stages that somebody wants; all of the pipeline where there are none.
    pub(crate) only: &'a [StageId],
    /// Those that are to be built whatever is there.
    pub(crate) force: &'a BTreeSet<StageId>,
    /// Those whose outputs here are not vouched for any more.
    pub(crate) doubted: &'a BTreeMap<StageId, String>,
    /// Outputs that are to be taken whatever they were made of here.
    pub(crate) given: &'a BTreeMap<StageId, InputOutput>,
}

/// A stage's output that a worker has built, of inputs that are here, and the key under which it counts here.
pub(crate) struct Built<'a> {
    pub(crate) stage: StageId,
    /// The content key that it has there.
    pub(crate) key: Digest,
    pub(crate) under: Digest,
    pub(crate) inputs: &'a [(StageId, Digest)],
}

/// Fetches and seals what a worker has built.
pub(crate) fn take_built(
    fleet: &Fleet,
    loaded: &Loaded,
    built: &Built<'_>,
    stop: &Arc<AtomicBool>,
) -> Result<(), Failed> {
    let none = BTreeMap::new();
    let mut pulling = Pulling::new(Some(fleet), loaded, &none, stop)?;
    let found = offer(&fleet.client, Key::Content(built.key), &fleet.trust, pulling.time);
    let found = found.map_err(|error| pulling.failed(&error))?;
    let lost = || Failed::new(Exit::StageFailed, "it has built it, and nothing is published");
    let offer = found.ok_or_else(lost)?;
    if !is_built_of(&loaded.plan, built, &offer.vouched.statement.provenance) {
        let message = "what the worker has published was made of something else, or in another way";
        return Err(Failed::new(Exit::StageFailed, message));
    }
    pulling.take_as(&offer, &built.under, 0)?;
    Ok(loaded.store.sync()?)
}

/// Whether what led to an output is this stage as this plan has it, made of what is here on a machine as the stage wants it.
pub(super) fn is_built_of(plan: &Plan, built: &Built<'_>, said: &Provenance) -> bool {
    let stage = plan.stage(built.stage);
    let machine = stage.elsewhere.as_ref();
    let is_there = |(fact, value): (&String, &String)| {
        let wanted = machine.and_then(|machine| machine.get(fact.as_str()));
        wanted.is_none_or(|wanted| wanted == value)
    };
    let tree =
        |need: StageId| built.inputs.iter().find(|(id, _)| *id == need).map(|(_, tree)| *tree);
    let is_made_of =
        stage.inputs.iter().zip(&said.inputs).all(|(input, (_, digest))| match input.from {
            smelt_plan::plan::From::Stage(id) => tree(id) == Some(*digest),
            _ => true,
        });
    // In the order that keys have them; one that is not known here is in no key.
    let fact = |fact: &'static str| Some((fact, said.device.get(fact)?.clone()));
    let device: Vec<(&'static str, String)> = FACTS.into_iter().filter_map(fact).collect();
    let is_known = device.len() == said.device.len();
    let tool = |(name, digest): &(String, Digest)| Tool {
        name: name.clone(),
        pin: Pin { path: PathBuf::new(), digest: *digest },
    };
    let tools: Vec<Tool> = said.tools.iter().map(tool).collect();
    let key = plan.content_key_by(built.stage, &device, &tools, &said.inputs);
    is_known && said.device.iter().all(is_there) && is_made_of && key == Some(built.key)
}

/// Takes an output that is here or in the fleet, else what it is made of.  What cannot be had is told in one line and left to
/// be built.  Without a fleet, as where its server is gone, what is here is found all the same.
pub(crate) fn pull(
    fleet: Option<&Fleet>,
    loaded: &Loaded,
    wanted: &Wanted<'_>,
    stop: &Arc<AtomicBool>,
) -> Result<Pulled, Failed> {
    let Loaded { plan, store, .. } = loaded;
    let Wanted { only, force, doubted, given } = *wanted;
    let mut targets = if only.is_empty() { sinks(plan) } else { only.to_vec() };
    let forced: Vec<StageId> = force.iter().filter(|id| !targets.contains(id)).copied().collect();
    targets.extend(forced);
    // What is made of a stage that is built anew may come out another way; of one that names what is not here, keys mean
    // nothing.
    let is_built = |id, stage: &Stage| {
        force.contains(&id) || stage.unread.is_some() || given.contains_key(&id)
    };
    let built = with_dependents(plan, is_built);
    let mut pulling = Pulling::new(fleet, loaded, doubted, stop)?;
    let mut needed: BTreeSet<StageId> = targets.iter().copied().collect();
    pulling.ask(&needed, &built)?;
    let mut known = BTreeMap::new();
    // Each stage comes behind those that it needs.
    for id in plan.stages().map(|(id, _)| id).collect::<Vec<_>>().into_iter().rev() {
        let stage = plan.stage(id);
        if !needed.contains(&id) || stage.given().is_some() {
            continue;
        }
        let found = match keyed(plan, id, given) {
            Some(key) if !force.contains(&id) => pulling.found_by(id, key)?,
            None if !built.contains(&id) => pulling.found(id)?,
            _ => None,
        };
        match found {
            Some(key) => drop(known.insert(id, key)),
            None => needed.extend(stage.needs()),
        }
    }
    store.sync()?;
    let Pulling { fetched, bytes, kept, neighbours, local, counts, is_lost, holder, .. } = pulling;
    let (server_bytes, peer_bytes, disk_bytes) = (bytes - neighbours, neighbours, kept + local);
    let counts = Counts { server_bytes, peer_bytes, disk_bytes, ..counts };
    let _holder = holder;
    Ok(Pulled { targets, known, fetched, bytes, kept, neighbours, local, counts, is_lost, _holder })
}

/// The content key of a stage that follows from what was given: its own, or that of what is made of nothing else.
fn keyed(plan: &Plan, id: StageId, given: &BTreeMap<StageId, InputOutput>) -> Option<Digest> {
    if let Some(own) = given.get(&id) {
        return Some(own.key);
    }
    let stage = plan.stage(id);
    let mut needs = stage.needs().peekable();
    let follows = needs.peek().is_some() && needs.all(|need| given.contains_key(&need));
    (follows && stage.unread.is_none()).then(|| plan.content_key(id, |need| given[&need].tree))
}

struct Pulling<'a> {
    fleet: Option<&'a Fleet>,
    plan: &'a Plan,
    store: &'a Store,
    stop: &'a Arc<AtomicBool>,
    doubted: &'a BTreeMap<StageId, String>,
    telling: Telling,
    /// The server is gone: it is asked no more.
    is_lost: bool,
    told: BTreeSet<String>,
    /// What the server said of stages that were asked for together.
    asked: BTreeMap<StageId, Found>,
    /// By which statements are judged.
    time: u64,
    fetched: Vec<Taken>,
    bytes: u64,
    kept: u64,
    neighbours: u64,
    local: u64,
    /// But for bytes.
    counts: Counts,
    /// The boards that are asked before the server, from the first fetch on.
    wire: OnceCell<Option<Wire>>,
    /// This board's own.
    seed: u64,
    holder: Holder,
    /// What the holder spares.
    held: Vec<Digest>,
}

impl<'a> Pulling<'a> {
    fn new(
        fleet: Option<&'a Fleet>,
        loaded: &'a Loaded,
        doubted: &'a BTreeMap<StageId, String>,
        stop: &'a Arc<AtomicBool>,
    ) -> Result<Self, Failed> {
        let Loaded { plan, store, .. } = loaded;
        Ok(Self {
            fleet,
            plan,
            store,
            stop,
            doubted,
            telling: Telling::new(),
            is_lost: false,
            told: BTreeSet::new(),
            asked: BTreeMap::new(),
            time: if fleet.is_some() { judging_time(store) } else { 0 },
            fetched: Vec::new(),
            bytes: 0,
            kept: 0,
            neighbours: 0,
            local: 0,
            counts: Counts::default(),
            wire: OnceCell::new(),
            seed: site::seed(),
            holder: store.begin_hold(SystemTime::now())?,
            held: Vec::new(),
        })
    }

    /// Asks for what is wanted and not here, then for what that needs where nobody has it, and so on: each time for all
    /// together, so that a plan of a hundred stages costs as many answers as it is deep.
    fn ask(&mut self, wanted: &BTreeSet<StageId>, built: &BTreeSet<StageId>) -> Result<(), Failed> {
        if self.fleet.is_none() {
            return Ok(());
        }
        let (mut wave, mut seen) = (wanted.clone(), wanted.clone());
        while !wave.is_empty() && self.asked.len() < ASKED_MAX {
            let (mut open, mut asked) = (Vec::new(), Vec::new());
            for id in wave {
                let stage = self.plan.stage(id);
                if built.contains(&id) {
                    open.push(id);
                } else if stage.given().is_none() && self.is_lacking(id)? {
                    asked.push(id);
                }
            }
            // The others are asked for when they are looked for.
            asked.truncate(ASKED_MAX - self.asked.len());
            let Some(found) = self.entries(&asked) else { return Ok(()) };
            let lacks = asked.iter().zip(&found).filter(|(_, found)| matches!(found, Ok(None)));
            open.extend(lacks.map(|(id, _)| *id));
            self.asked.extend(asked.into_iter().zip(found));
            let needs = open.iter().flat_map(|id| self.plan.stage(*id).needs());
            wave = needs.filter(|need| seen.insert(*need)).collect();
        }
        Ok(())
    }

    fn is_lacking(&self, id: StageId) -> Result<bool, Failed> {
        let recipe = self.plan.stage(id).recipe_key;
        Ok(self.doubted.contains_key(&id) || !is_here(self.store, &recipe)?)
    }

    /// What the server has of stages.  One that is gone is told, and asked no more; what else is wrong is found out again by
    /// whoever asks for one of them.
    fn entries(&mut self, stages: &[StageId]) -> Option<Vec<Found>> {
        let fleet = self.fleet.filter(|_| !self.is_stopped())?;
        let key = |id: &StageId| Key::Recipe(self.plan.stage(*id).recipe_key);
        let keys: Vec<Key> = stages.iter().map(key).collect();
        match fleet.client.entries(&keys) {
            Ok(found) => Some(found),
            Err(error) => {
                if let (true, Some(id)) = (error.is_gone, stages.first()) {
                    self.is_lost = true;
                    self.refuse(self.plan.stage(*id), &PullError::Remote(error));
                }
                None
            }
        }
    }

    /// The same of a stage whose content key is known, whatever its recipe is here.
    fn found_by(&mut self, id: StageId, key: Digest) -> Result<Option<Digest>, Failed> {
        self.hold(&[key])?;
        if self.store.lookup(&key)?.hit().is_some_and(|here| !self.is_doubted(&here)) {
            return Ok(Some(key));
        }
        let Some(fleet) = self.fleet.filter(|_| !self.is_lost && !self.is_stopped()) else {
            return Ok(None);
        };
        let stage = self.plan.stage(id);
        let offer = match offer(&fleet.client, Key::Content(key), &fleet.trust, self.time) {
            Ok(Some(offer)) => offer,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.refuse(stage, &error);
                return Ok(None);
            }
        };
        let taken = self.take_as(&offer, &key, 0);
        self.taken(id, &offer, taken.map(|()| key))
    }

    /// Notes what came of taking a stage's output; its key where it is here now.
    fn taken(
        &mut self,
        id: StageId,
        offer: &Offer,
        taken: Result<Digest, Failed>,
    ) -> Result<Option<Digest>, Failed> {
        match taken {
            Ok(key) => {
                let Vouched { statement, by } = &offer.vouched;
                let (tree, bytes) = (statement.tree, statement.files.bytes());
                self.fetched.push(Taken { stage: id, tree, bytes, by: by.clone() });
                Ok(Some(key))
            }
            Err(failed) if failed.exit == Exit::Interrupted => Err(failed),
            Err(failed) => {
                self.counts.refused += u64::from(failed.exit == Exit::StageFailed);
                self.refuse(self.plan.stage(id), &failed);
                Ok(None)
            }
        }
    }

    /// The content key of a stage whose output is here, from now on if the fleet has it.
    fn found(&mut self, id: StageId) -> Result<Option<Digest>, Failed> {
        let stage = self.plan.stage(id);
        if !self.doubted.contains_key(&id)
            && let Some(key) = self.here(&stage.recipe_key)?
        {
            return Ok(Some(key));
        }
        let Some(offer) = self.offered(id) else { return Ok(None) };
        let (taken, key) = (self.take(&offer, Some(id), 0), offer.vouched.statement.key);
        if taken.is_ok() {
            // Whoever signed says of which recipes; only the one that was asked for is believed to lead here.
            self.store.alias_later(&stage.recipe_key, &key)?;
        }
        self.taken(id, &offer, taken.map(|()| key))
    }

    /// The content key of what a recipe led to, where that is here; a collection spares it.
    fn here(&mut self, recipe: &Digest) -> Result<Option<Digest>, Failed> {
        let Some(key) = self.store.resolve(recipe)? else { return Ok(None) };
        self.hold(&[key])?;
        Ok(self.store.lookup(&key)?.hit().map(|_| key))
    }

    fn hold(&mut self, more: &[Digest]) -> Result<(), Failed> {
        self.held.extend(more);
        Ok(self.holder.hold(&self.held)?)
    }

    /// What the fleet has of a stage; what is wrong with that is told.
    fn offered(&mut self, id: StageId) -> Option<Offer> {
        let (plan, fleet) = (self.plan, self.fleet?);
        let stage = plan.stage(id);
        if self.is_lost || self.is_stopped() {
            return None;
        }
        let (key, trust) = (Key::Recipe(stage.recipe_key), &fleet.trust);
        let found = match self.asked.remove(&id) {
            None => offer(&fleet.client, key, trust, self.time),
            Some(Err(error)) => Err(PullError::Remote(error)),
            Some(Ok(entry)) => {
                let of = |entry| offer_of(&fleet.client, key, &entry, trust, self.time);
                entry.map(of).transpose()
            }
        };
        match found {
            Ok(found) => {
                self.counts.misses += u64::from(found.is_none());
                found
            }
            Err(error) => {
                self.is_lost = matches!(&error, PullError::Remote(error) if error.is_gone);
                self.counts.misses += u64::from(matches!(error, PullError::Gone { .. }));
                let is_refused =
                    matches!(error, PullError::Refused { .. } | PullError::Wrong { .. });
                self.counts.refused += u64::from(is_refused);
                self.refuse(stage, &error);
                None
            }
        }
    }

    /// Says why something is not taken; once where that is true of many.
    fn refuse(&mut self, stage: &Stage, why: &dyn fmt::Display) {
        let why = Failed::new(Exit::StageFailed, why).to_string();
        if !self.is_stopped() && self.told.insert(why.clone()) {
            warn(format_args!("{} is not taken from the fleet: {why}", stage.name));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Fetches and seals an output behind those that it names: that of a stage, or of any that is named.
    fn take(&mut self, offer: &Offer, of: Option<StageId>, depth: u32) -> Result<(), Failed> {
        let statement = &offer.vouched.statement;
        let is_of = |id: &StageId| is_of_stage(self.plan, *id, statement);
        let mut stages =
            self.plan.stages().map(|(id, _)| id).filter(|id| of.is_none_or(|of| of == *id));
        if !stages.any(|id| is_of(&id)) {
            let stage = &statement.provenance.stage;
            let message = format!(
                "what is signed of {stage} leads to another key here: it is of another stage, or of another device"
            );
            return Err(Failed::new(Exit::StageFailed, message));
        }
        self.take_as(offer, &statement.key, depth)
    }

    /// The same of an output that has been found to be the one that is meant; `key` is the one that leads to it here.
    fn take_as(&mut self, offer: &Offer, key: &Digest, depth: u32) -> Result<(), Failed> {
        let statement = &offer.vouched.statement;
        saw_time(self.store, statement.finished);
        self.hold(&[*key])?;
        for tree in &statement.refers {
            if !self.is_whole(tree)? {
                self.take_named(tree, depth + 1)?;
            }
        }
        let _lock = self.locked(key)?;
        match self.store.lookup(key)?.hit() {
            // Somebody who is believed has signed the very bytes: who did is written down.
            Some(here) if here.digest == statement.tree && self.is_doubted(&here) => {}
            Some(here) if here.digest == statement.tree => return Ok(()),
            Some(here) => {
                let message = format!("under its key is {} here", here.digest.short());
                return Err(Failed::new(Exit::StageFailed, message));
            }
            None => {}
        }
        let folder = self.store.pull_dir(key)?;
        self.has_room(statement.files.bytes().saturating_sub(offer.bytes_in(&folder)))?;
        self.fetch(offer, key, &folder)?;
        self.seal(offer, key, &folder)
    }

    fn is_doubted(&self, output: &Output) -> bool {
        let trust = self.fleet.map(|fleet| &fleet.trust);
        trust.is_some_and(|trust| doubt(&output.digest, &output.record, trust).is_some())
    }

    /// Waits for another run that fetches or builds the key.
    fn locked(&self, key: &Digest) -> Result<KeyLock, Failed> {
        loop {
            if let Some(lock) = self.store.try_lock_key(key)? {
                return Ok(lock);
            }
            if self.is_stopped() {
                return Err(Failed::stopped());
            }
            thread::sleep(TICK);
        }
    }

    fn fetch(&mut self, offer: &Offer, key: &Digest, folder: &Path) -> Result<(), Failed> {
        let statement = &offer.vouched.statement;
        let fleet = self.fleet.expect("somebody offered it");
        let local = Offer::local(&self.older(&statement.provenance)?);
        let (name, all) = (&statement.provenance.stage, statement.files.bytes());
        let (mut done, telling, stop) = (0, &mut self.telling, self.stop);
        let mut told = |some: u64| {
            done += some;
            telling.hear(&format!("[{done}/{all}] fetching {name}"));
            !stop.load(Ordering::Relaxed)
        };
        let (server, seed) = (fleet.paced(), self.seed);
        let log = PlacesLog::create(&self.store.pull_log(key), &statement.tree);
        // Without it neighbours learn of this output when it is whole.
        let into = (folder, log.ok());
        let wire = self.wire.get_or_init(|| fleet.neighbours(self.store, seed));
        let fetched = match wire {
            Some(wire) => {
                let site = Site::new(&server, wire, seed, stop, &|line| warn(line));
                offer.fetch(&site, &local, into, &mut told)
            }
            None => offer.fetch(&server, &local, into, &mut told),
        };
        let refusing = wire.as_ref().map(Wire::refusing).unwrap_or_default().join(", ");
        if !refusing.is_empty() && self.told.insert(refusing.clone()) {
            warn(format_args!(
                "neighbours want another token than this board's: {refusing}; SMELT_FLEET_TOKEN, or --fleet-token-file"
            ));
        }
        let fetched = fetched.map_err(|error| self.failed(&error))?;
        self.bytes += fetched.bytes;
        self.neighbours += fetched.neighbours;
        self.kept += fetched.kept;
        self.local += fetched.local;
        Ok(())
    }

    fn seal(&mut self, offer: &Offer, key: &Digest, folder: &Path) -> Result<(), Failed> {
        let Vouched { statement, by } = &offer.vouched;
        let mut record = statement.record.clone();
        let client = &self.fleet.expect("somebody offered it").client;
        let envelope =
            offer.envelope.to_json().map_err(|error| Failed::new(Exit::StageFailed, error))?;
        let origin = Origin {
            server: client.name().to_owned(),
            instance: client.instance().to_owned(),
            by: by.clone(),
            at: self.time,
            statement: serde_json::from_slice(&envelope).expect("it is JSON"),
        };
        origin.put(&mut record);
        let kept = (record, statement.refers.as_slice());
        let sealed = self.store.seal_fetched(key, folder, kept, &statement.tree);
        let forget_log = || drop(fs::remove_file(self.store.pull_log(key)));
        match sealed {
            Ok(_) => {
                forget_log();
                self.counts.hits += 1;
                self.counts.saved_ms += cost_ms(&statement.record);
                Ok(())
            }
            Err(error) if error.is_stopped() => Err(Failed::stopped()),
            Err(error @ SealError::Other { .. }) => {
                // Else it would be gone on with.
                forget_log();
                let _ = fs::remove_dir_all(folder);
                Err(Failed::new(Exit::StageFailed, error))
            }
            Err(error) => Err(Failed::new(Exit::StageFailed, error)),
        }
    }

    /// Whether an output of that name is here, and a record of it.
    fn is_whole(&self, tree: &Digest) -> Result<bool, Failed> {
        let inventory = self.store.inventory()?;
        let item = inventory.outputs.iter().find(|item| item.tree == *tree);
        let Some(key) = item.and_then(|item| item.keys.first()) else { return Ok(false) };
        let output = self.store.lookup(key)?.hit();
        Ok(output.is_some_and(|output| output.digest == *tree && !self.is_doubted(&output)))
    }

    /// The outputs of the same stage that were used last: what comes is another version of them.
    fn older(&self, provenance: &Provenance) -> Result<Vec<Sealed>, Failed> {
        let is_of_stage = |item: &&OutputItem| {
            let says = |name: &str, what: &str| item.record[name].as_str() == Some(what);
            says("stage", &provenance.stage) && says("pipeline", &provenance.pipeline)
        };
        let inventory = self.store.inventory()?;
        let mut older: Vec<&OutputItem> = inventory.outputs.iter().filter(is_of_stage).collect();
        older.sort_by_key(|item| std::cmp::Reverse(item.used_ns));
        Ok(older.iter().take(OLDER_MAX).map(|item| output(self.store, item.tree)).collect())
    }

    /// Fetches an output that another one names.
    fn take_named(&mut self, tree: &Digest, depth: u32) -> Result<(), Failed> {
        let lacks = |why: &str| {
            Failed::new(Exit::StageFailed, format!("it names output {}, {why}", tree.short()))
        };
        if depth > REFERS_DEPTH_MAX {
            return Err(lacks("at the end of too long a chain"));
        }
        let fleet = self.fleet.expect("somebody offered it");
        let found = offer(&fleet.client, Key::Tree(*tree), &fleet.trust, self.time);
        let found = found.map_err(|error| self.failed(&error))?;
        let offer = found.ok_or_else(|| lacks("which the fleet does not have"))?;
        self.take(&offer, None, depth)
    }

    fn has_room(&self, needed: u64) -> Result<(), Failed> {
        let free = self.store.free_bytes()?;
        if needed.saturating_add(RESERVE_BYTES) <= free {
            return Ok(());
        }
        let message = format!(
            "{} are to be fetched and the store's disk has {} free: smelt cache gc, or SMELT_CACHE on a larger disk",
            bytes(needed),
            bytes(free)
        );
        Err(Failed::new(Exit::DoesNotFit, message))
    }

    fn failed(&self, error: &PullError) -> Failed {
        match error {
            _ if self.is_stopped() => Failed::stopped(),
            PullError::Stopped => Failed::stopped(),
            PullError::Remote(_) => Failed::new(Exit::NotSeen, error),
            error if error.is_disk_full() => {
                let message = format!("{error}; free some space, then the same command goes on");
                Failed::new(Exit::StageFailed, message)
            }
            _ => Failed::new(Exit::StageFailed, error),
        }
    }
}

/// What building an output took whoever built it, in milliseconds; nothing where that is not said.
fn cost_ms(record: &Value) -> u64 {
    let said = record["wall_s"].as_f64().unwrap_or(0.0);
    (said.clamp(0.0, COST_MAX.as_secs_f64()) * 1e3) as u64
}

/// Whether a statement is of this stage as this plan has it, on this device.  Its content key follows from that and from what
/// it was made of, so nobody vouches under the key of another stage, or of another device by leaving its facts out.
fn is_of_stage(plan: &Plan, id: StageId, statement: &Statement) -> bool {
    let (stage, said) = (plan.stage(id), &statement.provenance);
    let facts = stage.device.iter().map(|(fact, value)| (*fact, value.as_str()));
    let said_facts = said.device.iter().map(|(fact, value)| (fact.as_str(), value.as_str()));
    facts.collect::<BTreeMap<_, _>>() == said_facts.collect()
        && plan.content_key_of(id, &said.inputs) == Some(statement.key)
}

#[cfg(test)]
mod tests {
    use smelt_fleet::statement::Provenance;
    use smelt_plan::pipeline::Overrides;
    use smelt_plan::{Pins, Pipeline};
    use smelt_store::Manifest;

    use super::*;
    use crate::fleet::tests::demo;

    /// A statement of a stage of a plan, as whoever built it would sign it.
    fn statement(plan: &Plan, id: StageId) -> Statement {
        let stage = plan.stage(id);
        let input = |label: &String| (label.clone(), Digest::of(label.as_bytes()));
        let inputs: Vec<_> = stage.inputs.iter().map(|it| input(&it.label)).collect();
        let key = plan.content_key_of(id, &inputs).unwrap();
        let files = Manifest::new(Vec::new()).unwrap();
        let device = stage.device.iter().map(|(fact, value)| ((*fact).to_owned(), value.clone()));
        Statement {
            key,
            recipes: vec![stage.recipe_key],
            anywhere: None,
            instance: String::new(),
            tree: files.digest(),
            files,
            refers: Vec::new(),
            record: Value::Null,
            provenance: Provenance {
                stage: stage.name.to_string(),
                kind: stage.kind.name().to_owned(),
                kind_version: stage.kind.version(),
                pipeline: plan.name.clone(),
                params: stage.params.clone(),
                device: device.collect(),
                tools: Vec::new(),
                inputs,
                run: String::new(),
            },
            finished: 0,
            builder: "smelt 0.1.0".to_owned(),
        }
    }

    #[test]
    fn what_a_build_took_is_what_its_record_says_within_reason() {
        assert_eq!(cost_ms(&json!({ "wall_s": 61.25 })), 61_250);
        for odd in [json!({}), json!({ "wall_s": -1 }), json!({ "wall_s": "1" }), Value::Null] {
            assert_eq!(cost_ms(&odd), 0, "{odd}");
        }
        assert_eq!(cost_ms(&json!({ "wall_s": 1e300 })), COST_MAX.as_millis() as u64);
    }

    /// A checkpoint, and its decoder's engine, which is built where SM is 87.
    const ELSEWHERE: &str = "smelt = 1\nname = \"t\"\n[stage.c]\nkind = \"source\"\nfrom = \"synthetic:x\"\n\
        [stage.e]\nkind = \"llm-engine-build\"\ncheckpoint = \"c\"\ndevice = [\"sm\", \"cuda\"]\n\
        where = { sm = \"87\" }\n";

    #[test]
    fn what_a_worker_built_counts_if_it_is_made_of_what_is_here_on_such_a_machine() {
        let pipeline = Pipeline::parse("t.toml", ELSEWHERE, &Overrides::default()).unwrap();
        let plan = Plan::build(&pipeline, &Pins::default()).unwrap();
        let [checkpoint, engine] = ["c", "e"].map(|name| plan.find(name).unwrap());
        let tree = Digest::of(b"checkpoint");
        let device =
            |sm: &str| [("cuda", "12.6"), ("sm", sm)].map(|(fact, value)| (fact, value.to_owned()));
        let counts = |sm: &str, change: &dyn Fn(&mut Statement)| {
            let mut said = statement(&plan, engine);
            said.provenance.inputs = vec![("checkpoint".to_owned(), tree)];
            said.provenance.device =
                device(sm).map(|(fact, value)| (fact.to_owned(), value)).into();
            let inputs = said.provenance.inputs.clone();
            said.key = plan.content_key_by(engine, &device(sm), &[], &inputs).unwrap();
            change(&mut said);
            let under = Digest::of(b"its key here");
            let inputs = &[(checkpoint, tree)];
            let built = Built { stage: engine, key: said.key, under, inputs };
            is_built_of(&plan, &built, &said.provenance)
        };
        assert!(counts("87", &|_| {}), "its CUDA is its own");
        assert!(!counts("110", &|_| {}), "it was built for another device");
        assert!(!counts("87", &|said| said.provenance.inputs[0].1 = Digest::of(b"other")));
        assert!(!counts("87", &|said| drop(said.provenance.device.remove("cuda"))));
        let odd = |said: &mut Statement| {
            said.provenance.device.insert("colour".to_owned(), "red".to_owned());
        };
        assert!(!counts("87", &odd));
        let tool = ("trtexec".to_owned(), Digest::of(b"a program"));
        assert!(!counts("87", &|said| said.provenance.tools.push(tool.clone())));
    }

    #[test]
    fn a_statement_counts_for_its_own_stage_and_device_alone() {
        let plan = demo();
        let [engine, quant] = ["llm-engine", "llm-quant"].map(|name| plan.find(name).unwrap());
        let is_of = |change: &dyn Fn(&mut Statement)| {
            let mut said = statement(&plan, engine);
            change(&mut said);
            is_of_stage(&plan, engine, &said)
        };
        assert!(is_of(&|_| {}));
        assert!(!is_of(&|said| drop(said.provenance.device.insert("sm".into(), "87".into()))));
        assert!(!is_of(&|said| said.key = Digest::of(b"another stage's")));
        assert!(!is_of(&|said| drop(said.provenance.inputs.pop())));
        assert!(!is_of(&|said| said.provenance.inputs[0].1 = Digest::of(b"another checkpoint")));
        assert!(!is_of(&|said| said.provenance.inputs[0].0.push('x')));
        assert!(!is_of_stage(&plan, quant, &statement(&plan, engine)));
    }
}
