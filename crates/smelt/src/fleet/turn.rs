//! Agrees with the other builders of a fleet on who builds what this run lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use smelt_fleet::keys::{PublicKey, SigningKey};
use smelt_fleet::lease::{Claim, Holder, Lease, LeaseTable, TableError, Waited, claim, held, wait};
use smelt_fleet::nats::{NatsServer, NatsTable};
use smelt_fleet::remote::Remote as _;
use smelt_plan::schedule::Wishes;
use smelt_plan::{Digest, StageId};
use smelt_store::Store;

use super::Fleet;
use super::push::verified;
use crate::config;
use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::{FleetFlags, Push, RunFlags};
use crate::load::Loaded;
use crate::telling::Telling;

/// Within this time builders that wait have taken over: they look each second.
const SUCCESSION: Duration = Duration::from_secs(2);

/// Whose turn it is.
pub(crate) enum Turn {
    /// This run's: it builds, and the others wait as long as it has the leases.  None where nobody would hear of what it builds,
    /// or where the server of leases is gone.
    Ours(Option<Lease>),
    /// Somebody else has built, or ended: what is there is to be looked at again.
    Again,
}

/// The builders of a fleet that share a server of leases.
pub(crate) struct Builders<'a> {
    table: Arc<dyn LeaseTable>,
    flags: &'a RunFlags,
    fleet: &'a Fleet,
    signer: Option<&'a SigningKey>,
}

/// The server of leases that the flags name, if any.
///
/// # Errors
/// If it does not answer.
pub(crate) fn table(flags: &FleetFlags, instance: &str) -> Result<Option<NatsTable>, TableError> {
    let Some(address) = &flags.fleet_lock else { return Ok(None) };
    let (token, authority) = (lock_token(), flags.fleet_ca.as_deref());
    let server = NatsServer { address, token: token.as_deref(), authority, instance };
    NatsTable::connect(&server).map(Some)
}

/// What the server of leases wants to hear.
pub(crate) fn lock_token() -> Option<String> {
    config::variable("SMELT_FLEET_LOCK_TOKEN")
}

impl<'a> Builders<'a> {
    /// Those that the flags name.  A server that is gone is told of, and everybody builds.
    pub(crate) fn of(
        flags: &'a RunFlags,
        fleet: &'a Fleet,
        signer: Option<&'a SigningKey>,
    ) -> Option<Self> {
        match table(&flags.fleet, fleet.client.instance()) {
            Ok(table) => Some(Self { table: Arc::new(table?), flags, fleet, signer }),
            Err(error) => {
                gone(&error);
                None
            }
        }
    }

    /// Waits for whoever builds one of `keys`, or takes those that this run will publish.  `has_waited` says whether this run
    /// has waited before.
    pub(crate) fn turn(
        &self,
        keys: &Keys,
        has_waited: bool,
        stop: &AtomicBool,
    ) -> Result<Turn, Failed> {
        let asked = match self.signer.filter(|_| !keys.published.is_empty()) {
            // Whoever publishes nothing has nothing that others could wait for.
            None => self.held(&keys.built, has_waited).map(|held| held.map(Claim::Theirs)),
            Some(signer) => {
                let key = signer.public().to_string();
                let holder = Holder::new(&own_name(), &key, keys.built.len());
                claim(self.table.clone(), &keys.published, holder).map(Some)
            }
        };
        match asked {
            Ok(None) => Ok(Turn::Ours(None)),
            Ok(Some(Claim::Ours(lease))) => Ok(Turn::Ours(Some(lease))),
            Ok(Some(Claim::Theirs(key))) => self.others(&key, stop),
            Err(error) => Ok(alone(&error)),
        }
    }

    /// The first of them that somebody builds.  Where a builder has died, those that have waited for it as well take over
    /// first.
    fn held(
        &self,
        keys: &BTreeSet<Digest>,
        has_waited: bool,
    ) -> Result<Option<Digest>, TableError> {
        let found = held(&*self.table, keys)?;
        if found.is_some() || !has_waited {
            return Ok(found);
        }
        thread::sleep(SUCCESSION);
        held(&*self.table, keys)
    }

    /// What to do while somebody else builds.
    fn others(&self, key: &Digest, stop: &AtomicBool) -> Result<Turn, Failed> {
        let holder = match self.table.look(key) {
            Ok(Some(entry)) => entry.holder(),
            Ok(None) => {
                // Two that have given way to each other do not go on in step.
                thread::sleep(Duration::from_millis(u64::from(process::id() % 500)));
                return Ok(Turn::Again);
            }
            Err(error) => return Ok(alone(&error)),
        };
        if !self.believes(&holder) {
            tell(format_args!(
                "smelt: {holder}; it is not waited for, since nobody here believes its key"
            ));
            return Ok(Turn::Ours(None));
        }
        if self.flags.no_wait {
            let message = format!("{holder}; without --no-wait it is waited for");
            return Err(Failed::new(Exit::Held, message));
        }
        tell(format_args!("smelt: waiting, since {holder}"));
        self.wait(key, stop)
    }

    /// Whether anything could be taken of what somebody says to build.
    fn believes(&self, holder: &Holder) -> bool {
        let key: Option<PublicKey> = holder.key.parse().ok();
        let known = key.and_then(|key| self.fleet.trust.by_id(key.id()));
        known.is_some_and(|known| known.revoked.is_none())
    }

    fn wait(&self, key: &Digest, stop: &AtomicBool) -> Result<Turn, Failed> {
        let mut telling = Telling::new();
        let waited = wait(&*self.table, key, &mut |holder| {
            telling.hear(&format!("[{}/{}] waiting: {holder}", holder.done, holder.all));
            !stop.load(Ordering::Relaxed)
        });
        match waited {
            Ok(Waited::Free) => Ok(Turn::Again),
            Ok(Waited::Stopped) => Err(Failed::stopped()),
            Err(error) => Ok(alone(&error)),
        }
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
pub(crate) fn own_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The recipe keys of what a run is to build and others could take.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) built: BTreeSet<Digest>,
    /// Of these, those of what it will publish.
    pub(crate) published: BTreeSet<Digest>,
}

/// What a run is to build that others could take; outputs of `doubted` are none.
pub(crate) fn to_build(
    Loaded { plan, store, .. }: &Loaded,
    wishes: &Wishes,
    flags: &RunFlags,
    doubted: &BTreeMap<StageId, String>,
) -> Result<Keys, Failed> {
    let wanted = wishes.wanted(plan);
    let published = match flags.push {
        Push::Never => BTreeSet::new(),
        Push::Sealed => wanted.clone(),
        Push::Verified => verified(plan, &wanted),
    };
    let published = flags.push_limits.of_kind(plan, &published);
    let mut keys = Keys::default();
    for id in wanted.into_iter().filter(|id| !wishes.known.contains_key(id)) {
        let stage = plan.stage(id);
        // Whoever builds it elsewhere holds its lease there.
        let is_own = stage.given().is_none() && stage.elsewhere.is_none();
        let may_be_shared = is_own && stage.unread.is_none() && stage.is_shared();
        let is_made = wishes.force.contains(&id) || doubted.contains_key(&id);
        if may_be_shared && (is_made || !is_here(store, &stage.recipe_key)?) {
            keys.built.insert(stage.recipe_key);
            keys.published.extend(published.contains(&id).then_some(stage.recipe_key));
        }
    }
    Ok(keys)
}

/// Whether the output to which a recipe led is here.
pub(super) fn is_here(store: &Store, recipe: &Digest) -> Result<bool, Failed> {
    let Some(key) = store.resolve(recipe)? else { return Ok(false) };
    Ok(store.lookup(&key)?.hit().is_some())
}
