//! Agrees with the other builders of a fleet on who builds what this run lacks.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smelt_fleet::lease::{Claim, Holder, Lease, LeaseTable, TableError, Waited, claim, wait};
use smelt_fleet::nats::NatsTable;
use smelt_plan::schedule::Wishes;
use smelt_plan::{Digest, Plan};
use smelt_store::Store;

use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::{FleetFlags, Push, RunFlags};
use crate::telling::Telling;

/// Whose turn it is.
pub(crate) enum Turn {
    /// This run's: it builds, and the others wait as long as it has the leases.  None where nobody would hear of what it builds,
    /// or where the server of leases is gone.
    Ours(Option<Lease>),
    /// Somebody else has built, or ended: what is there is to be looked at again.
    Again,
}

/// The builders of a fleet that share a server of leases.
pub(crate) struct Builders {
    table: Arc<dyn LeaseTable>,
    name: String,
}

impl Builders {
    /// Those that the flags name.  A server that is gone is told of, and everybody builds.
    pub(crate) fn of(flags: &FleetFlags, instance: &str) -> Option<Self> {
        Self::open(flags, instance).unwrap_or_else(|error| {
            gone(&error);
            None
        })
    }

    /// The same, if their server answers.
    pub(crate) fn open(flags: &FleetFlags, instance: &str) -> Result<Option<Self>, TableError> {
        let Some(address) = &flags.fleet_lock else { return Ok(None) };
        let token = env::var("SMELT_FLEET_LOCK_TOKEN").ok().filter(|token| !token.is_empty());
        let authority = flags.fleet_ca.as_deref();
        let table = NatsTable::connect(address, token.as_deref(), authority, instance)?;
        Ok(Some(Self { table: Arc::new(table), name: address.to_string() }))
    }

    /// The server that they share.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for whoever builds one of `keys`, or takes them all for this run.
    pub(crate) fn turn(
        &self,
        flags: &RunFlags,
        keys: &BTreeSet<Digest>,
        stop: &AtomicBool,
    ) -> Result<Turn, Failed> {
        let asked = match flags.push {
            // Whoever publishes nothing has nothing that others could wait for.
            Push::Never => self.held(keys).map(|held| held.map(Claim::Theirs)),
            Push::Sealed | Push::Verified => {
                let holder = Holder { all: keys.len(), ..Holder::new(&own_name()) };
                claim(self.table.clone(), keys, holder).map(Some)
            }
        };
        match asked {
            Ok(None) => Ok(Turn::Ours(None)),
            Ok(Some(Claim::Ours(lease))) => Ok(Turn::Ours(Some(lease))),
            Ok(Some(Claim::Theirs(key))) if flags.no_wait => Err(self.busy(&key)),
            Ok(Some(Claim::Theirs(key))) => self.wait(&key, stop),
            Err(error) => Ok(alone(&error)),
        }
    }

    /// The first of them that somebody builds.
    fn held(&self, keys: &BTreeSet<Digest>) -> Result<Option<Digest>, TableError> {
        for key in keys {
            if self.table.look(key)?.is_some() {
                return Ok(Some(*key));
            }
        }
        Ok(None)
    }

    fn wait(&self, key: &Digest, stop: &AtomicBool) -> Result<Turn, Failed> {
        let (mut telling, mut first) = (Telling::new(), true);
        let waited = wait(&*self.table, key, &mut |holder| {
            if std::mem::take(&mut first) {
                tell(format_args!("smelt: waiting, since {holder}"));
            }
            telling.hear(&format!("[{}/{}] waiting: {holder}", holder.done, holder.all));
            !stop.load(Ordering::Relaxed)
        });
        match waited {
            Ok(Waited::Free) => Ok(Turn::Again),
            Ok(Waited::Stopped) => Err(Failed::stopped()),
            Err(error) => Ok(alone(&error)),
        }
    }

    fn busy(&self, key: &Digest) -> Failed {
        let entry = self.table.look(key).ok().flatten();
        let who = entry.map_or_else(
            || "another builder builds it".to_owned(),
            |entry| entry.holder().to_string(),
        );
        Failed::new(Exit::Held, format!("{who}; without --no-wait it is waited for"))
    }
}

fn gone(error: &TableError) {
    warn(format_args!("nobody is asked who builds what: {error}; what is missing is built here"));
}

fn alone(error: &TableError) -> Turn {
    gone(error);
    Turn::Ours(None)
}

/// What others know this machine by.
fn own_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The recipe keys of what a run is to build and others could take.
pub(crate) fn to_build(
    plan: &Plan,
    store: &Store,
    wishes: &Wishes,
) -> Result<BTreeSet<Digest>, Failed> {
    let mut keys = BTreeSet::new();
    for id in wishes.wanted(plan) {
        let stage = plan.stage(id);
        let is_here = || -> Result<bool, Failed> {
            let Some(key) = store.resolve(&stage.recipe_key)? else { return Ok(false) };
            Ok(store.lookup(&key)?.hit().is_some())
        };
        let is_known = wishes.known.contains_key(&id);
        let is_taken = stage.given().is_none() && stage.unread.is_none() && stage.is_shared();
        if !is_known && is_taken && (wishes.force.contains(&id) || !is_here()?) {
            keys.insert(stage.recipe_key);
        }
    }
    Ok(keys)
}
