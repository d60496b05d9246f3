//! What a run takes from its fleet before it builds, and what it gives to it afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smelt_exec::{RunReport, RunStatus, StageReport};
use smelt_fleet::beat::{Deployed, Role};
use smelt_fleet::counts::Counts;
use smelt_fleet::keys::SigningKey;
use smelt_fleet::lease::{Lease, LeaseState};
use smelt_fleet::work::{InputOutput, WORK_BYTES_MAX};
use smelt_plan::plan::Stage;
use smelt_plan::schedule::Wishes;
use smelt_plan::{Kind, StageId};

use super::beating::{self, Board};
use super::counted;
use super::pull::{self, Pulled, Wanted};
use super::push::{Outcome, push_each, verified};
use super::turn::{Builders, Turn, is_here, to_build};
use super::vouched::doubted_stages;
use super::{Fleet, trust};
use crate::config;
use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::{FleetFlags, HeartbeatFlags, Push, RunFlags};
use crate::load::{self, Loaded};
use crate::table::bytes;

/// The key by which a run vouches for what it publishes, where it does.
pub(crate) fn signer(flags: &RunFlags) -> Result<Option<SigningKey>, Failed> {
    if flags.push == Push::Never || flags.is_trial() {
        return Ok(None);
    }
    if flags.fleet.fleet.is_none() {
        // The configuration says what is done with a server, where there is one.
        if config::get().says_push() {
            return Ok(None);
        }
        return Err(Failed::usage("--push: no server is named; add --fleet grpc://HOST:PORT"));
    }
    super::signer(&flags.fleet.key).map(Some)
}

/// A run's fleet.
pub(crate) struct Sharing<'a> {
    flags: &'a RunFlags,
    loaded: &'a Loaded,
    stop: &'a Arc<AtomicBool>,
    /// By whose key it publishes, where it does.
    signer: Option<SigningKey>,
    /// Nothing where none is named, and where it does not answer.
    fleet: Option<Fleet>,
    /// The stages whose outputs here came from a fleet and are not vouched for any more.
    doubted: BTreeMap<StageId, String>,
    /// What came from it, which a collection spares meanwhile.
    pulled: Option<Pulled>,
    /// What the fleet gave.
    counts: Counts,
    /// By which other builders wait for this run.
    lease: Option<Lease>,
    /// Outputs of the fleet that what is wanted is made of, whatever they were made of here.
    given: BTreeMap<StageId, InputOutput>,
}

impl<'a> Sharing<'a> {
    /// Takes from the fleet what a run would else build, agrees with its other builders on who builds the rest, and has what is
    /// not vouched for any more built anew.
    pub(crate) fn begin(
        flags: &'a RunFlags,
        loaded: &'a Loaded,
        signer: Option<SigningKey>,
        stop: &'a Arc<AtomicBool>,
        wishes: &mut Wishes,
    ) -> Result<Self, Failed> {
        let fleet = open(flags, stop)?;
        let doubted = doubted(flags, loaded, wishes)?;
        let (pulled, counts, lease) = (None, Counts::default(), None);
        let given = given(flags, loaded)?;
        let mut sharing =
            Self { flags, loaded, stop, signer, fleet, doubted, pulled, counts, lease, given };
        // What is given is here, whoever brought it.
        let shares = flags.fleet.fleet.is_some() || !sharing.given.is_empty();
        if shares && !flags.is_trial() {
            sharing.share(wishes)?;
        }
        counted::add(&loaded.store, &sharing.counts);
        let wanted = wishes.wanted(&loaded.plan);
        let again = sharing.doubted.keys().filter(|id| !wishes.known.contains_key(id));
        wishes.force.extend(again.filter(|id| wanted.contains(id)));
        Ok(sharing)
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    fn share(&mut self, wishes: &mut Wishes) -> Result<(), Failed> {
        let mut has_waited = false;
        loop {
            let pulled = self.pull(wishes)?;
            self.need_given(&pulled)?;
            wishes.is_share |= wishes.only.is_empty();
            wishes.only.clone_from(&pulled.targets);
            wishes.known.extend(&pulled.known);
            self.counts = self.counts.then(&pulled.counts);
            self.pulled = Some(pulled);
            let keys = to_build(self.loaded, wishes, self.flags, &self.doubted)?;
            if keys.built.is_empty() {
                self.lease = None;
                return Ok(());
            }
            // Somebody may have published between the question and the lease, so it was asked once more.
            if self.lease.is_some() {
                return Ok(());
            }
            let fleet = self.fleet.as_ref();
            let builders =
                fleet.and_then(|fleet| Builders::of(self.flags, fleet, self.signer.as_ref()));
            let Some(builders) = builders else { return Ok(()) };
            match builders.turn(&keys, has_waited, self.stop)? {
                Turn::Ours(None) => return Ok(()),
                Turn::Ours(taken) => self.lease = taken,
                Turn::Again => has_waited = true,
            }
        }
    }

    fn pull(&self, wishes: &Wishes) -> Result<Pulled, Failed> {
        let plan = &self.loaded.plan;
        let mut built_anyway = wishes.force.clone();
        for name in &self.flags.check {
            built_anyway.insert(plan.find(name)?);
        }
        let wanted = Wanted {
            only: &wishes.only,
            force: &built_anyway,
            doubted: &self.doubted,
            given: &self.given,
        };
        let pulled = pull::pull(self.fleet.as_ref(), self.loaded, &wanted, self.stop)?;
        if !pulled.fetched.is_empty() {
            tell(pulled.line(plan));
        }
        Ok(pulled)
    }

    /// Refuses to build what is made of something that was promised and is not to be had.
    fn need_given(&self, pulled: &Pulled) -> Result<(), Failed> {
        let plan = &self.loaded.plan;
        let is_made_of = plan.closure_but(&pulled.targets, &pulled.known);
        let lacks =
            self.given.keys().find(|id| is_made_of.contains(id) && !pulled.known.contains_key(id));
        let lacks = lacks.map(|id| {
            let message =
                format!("what this is made of is not to be had: {}", plan.stage(*id).name);
            Failed::new(Exit::NotSeen, message)
        });
        lacks.map_or(Ok(()), Err)
    }

    /// Publishes what the run has built or found.  What cannot be published is told, and is there all the same.
    pub(crate) fn publish(&self, report: &RunReport) {
        let Some((fleet, signer)) = self.fleet.as_ref().zip(self.signer.as_ref()) else { return };
        let plan = &self.loaded.plan;
        if let Some(why) = self.lease().and_then(|lease| away(lease.confirm())) {
            return warn(format_args!("nothing is published: {why}; smelt cache push publishes"));
        }
        let is_good = |stage: &&StageReport| stage.digest.is_some();
        let good = report.stages.iter().filter(is_good).filter_map(|it| plan.find(&it.name).ok());
        let mut good: BTreeSet<StageId> = good.collect();
        // A run does not look at what nothing of it needs any more; its server may have removed that.
        if report.status == RunStatus::Ok && self.flags.only.is_empty() && self.flags.on.is_none() {
            let store = &self.loaded.store;
            let is_here = |stage: &Stage| is_here(store, &stage.recipe_key).unwrap_or(false);
            good.extend(plan.stages().filter(|(_, stage)| is_here(stage)).map(|(id, _)| id));
        }
        let chosen = match self.flags.push {
            Push::Never => return,
            Push::Sealed => good,
            Push::Verified => verified(plan, &good),
        };
        let is_ours = || self.lease().is_none_or(|lease| away(lease.state()).is_none());
        let goes_on = || !self.stop.load(Ordering::Relaxed) && is_ours();
        let chosen = (&chosen, &self.flags.push_limits);
        match push_each(fleet, self.loaded, signer, chosen, &goes_on) {
            Ok(outcomes) => outcomes.iter().for_each(|(id, outcome)| self.tell(*id, outcome)),
            Err(failed) => warn(format_args!("nothing is published: {failed}")),
        }
    }

    fn tell(&self, id: StageId, outcome: &Outcome) {
        let name = &self.loaded.plan.stage(id).name;
        match outcome {
            Outcome::Pushed(pushed) => {
                let (all, sent) = (bytes(pushed.bytes), bytes(pushed.sent));
                tell(format_args!(
                    "published {name}: {all}, of which {sent} were new to the fleet"
                ));
            }
            Outcome::Failed(error) => warn(format_args!("{name} is not published: {error}")),
            Outcome::WasThere | Outcome::Kept(_) => {}
        }
    }
}

/// The outputs that a run is given by its flags.
fn given(flags: &RunFlags, loaded: &Loaded) -> Result<BTreeMap<StageId, InputOutput>, Failed> {
    let named = given_by_name(flags)?.into_iter();
    named.map(|(name, output)| Ok((loaded.plan.find(&name)?, output))).collect()
}

/// The same by the names of their stages.
pub(crate) fn given_by_name(flags: &RunFlags) -> Result<BTreeMap<String, InputOutput>, Failed> {
    let Some(file) = &flags.given else { return Ok(BTreeMap::new()) };
    let text = load::read_within(file, "what is given", WORK_BYTES_MAX as u64)?;
    serde_json::from_str(&text)
        .map_err(|error| Failed::usage(format!("--given {}: {error}", file.display())))
}

/// Whether this board is announced when the run ends, and where.
pub(crate) fn board(flags: &RunFlags) -> Result<Option<Board>, Failed> {
    let FleetFlags { fleet, fleet_lock, key, fleet_ca, .. } = flags.fleet.clone();
    let heartbeat = flags.heartbeat.filter(|_| !flags.is_trial());
    Board::of(&HeartbeatFlags { heartbeat, fleet, fleet_lock, key, fleet_ca }, Role::Run)
}

/// Announces this board with what a run has built or found.
pub(crate) fn announce(board: &Board, report: &RunReport) {
    let deployments = report.stages.iter().filter(|stage| stage.kind == Kind::Deployment);
    let one =
        |stage: &StageReport| Some(Deployed { name: report.pipeline.clone(), tree: stage.digest? });
    if let Err(error) = board.announce(deployments.filter_map(one).collect()) {
        beating::lost(&error);
    }
}

/// Why a builder may not publish over its successor.
fn away(state: LeaseState) -> Option<&'static str> {
    match state {
        LeaseState::Ours => None,
        LeaseState::Lost => Some(
            "this run was away for longer than its lease, and another builder may have taken over",
        ),
        LeaseState::Unknown => {
            Some("the server of leases answers no more, and another builder may have taken over")
        }
    }
}

/// The fleet that is asked; one that does not answer fails no run.
fn open(flags: &RunFlags, stop: &Arc<AtomicBool>) -> Result<Option<Fleet>, Failed> {
    if flags.fleet.fleet.is_none() || flags.is_trial() {
        return Ok(None);
    }
    match Fleet::open(&flags.fleet, stop) {
        Err(failed) if failed.exit == Exit::NotSeen => {
            warn(format_args!("the fleet is not asked: {failed}; what is missing is built here"));
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// What is wanted, came from the fleet once, and is not vouched for any more: it is fetched or built again.
fn doubted(
    flags: &RunFlags,
    Loaded { plan, store, .. }: &Loaded,
    wishes: &Wishes,
) -> Result<BTreeMap<StageId, String>, Failed> {
    if flags.is_trial() || !store.has_pulls() {
        return Ok(BTreeMap::new());
    }
    let mut doubted = doubted_stages(plan, store, &trust(flags.fleet.fleet_trust.as_deref())?)?;
    let wanted = wishes.wanted(plan);
    doubted.retain(|id, _| wanted.contains(id));
    for (id, why) in &doubted {
        let name = &plan.stage(*id).name;
        warn(format_args!("{name} came from the fleet and is made anew: {why}"));
    }
    Ok(doubted)
}
