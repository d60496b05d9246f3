//! Takes deliveries into the store: judged, no older than what was taken, sealed as they come.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smelt_fleet::oci::auth::{self, Credentials};
use smelt_fleet::oci::delivery::{Delivery, Taken, may_follow, remember};
use smelt_fleet::oci::fetch::{self, FetchError, Fetched, Found};
use smelt_fleet::oci::place::{Place, PlaceError};
use smelt_fleet::oci::reference::{At, Reference};
use smelt_fleet::oci::registry::Access;
use smelt_fleet::trust::Trust;
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_store::Store;
use smelt_store::bundle::BundledOutput;

use super::delivered::{self, Delivered};
use super::incoming::{Draft, Incoming};
use super::{judging_time, saw_time, trust, vouched};
use crate::exit::{Exit, Failed};
use crate::load;
use crate::telling::Telling;

/// As docker's own file.
const AUTH_BYTES_MAX: u64 = 1 << 20;
/// As that of a fleet.
const AUTHORITY_BYTES_MAX: u64 = 1 << 20;

/// A place, and whom this machine believes of what is there.
pub(crate) struct Source {
    pub(crate) reference: Reference,
    pub(crate) place: Place,
    /// What a delivery there must be called, where that is known.
    pub(crate) called: Option<String>,
    pub(crate) trust: Trust,
    /// How many must vouch.
    least: usize,
}

/// What was taken.
pub(crate) struct Took {
    pub(crate) delivery: Delivery,
    pub(crate) by: Vec<String>,
    /// Where the deployment is.
    pub(crate) dir: PathBuf,
    pub(crate) fetched: Fetched,
}

impl Source {
    pub(crate) fn open(
        reference: &Reference,
        called: Option<&str>,
        (trust_file, authority): (Option<&Path>, Option<&Path>),
        least: Option<u16>,
    ) -> Result<Self, Failed> {
        let trust = trust(trust_file)?;
        let least = least.map_or(trust.deliveries_least, usize::from).max(1);
        let place = place(reference, authority)?;
        let called = called.map(str::to_owned).or_else(|| reference.called());
        Ok(Self { reference: reference.clone(), place, called, trust, least })
    }

    /// What is there now, if it is to be believed, and by which time that was judged.
    pub(crate) fn look(&self, store: Option<&Store>) -> Result<(Found, u64), Failed> {
        let time = store.map_or_else(super::now, judging_time);
        let wanted = (self.reference.tag.as_str(), self.called.as_deref());
        let found = fetch::look(&self.place, wanted, &self.trust, (self.least, time));
        Ok((found.map_err(not_fetched)?, time))
    }

    /// Takes what was found, unless it is here.
    pub(crate) fn take(
        &self,
        store: &Store,
        (found, at): &(Found, u64),
        allow_older: bool,
    ) -> Result<Took, Failed> {
        let vouched = &found.vouched;
        let (delivery, by) = (&vouched.delivery, &vouched.by);
        if !allow_older {
            may_follow(&delivered::taken(store)?, delivery).map_err(|why| {
                Failed::new(Exit::StageFailed, format!("{} is not taken: {why}", self.reference))
            })?;
        }
        saw_time(store, delivery.signed);
        let offer = fetch::open(&self.place, found).map_err(not_fetched)?;
        check_deployment(offer.outputs.last(), &self.reference)?;
        let origin = Delivered::new(&self.reference.to_string(), vouched, *at)?;
        let mark = |record: &mut Value| origin.put(record);
        let incoming = Incoming::begin(store, &offer.outputs, &mark, &self.trust)?;
        incoming.has_room("fetched", incoming.kept_bytes()?)?;
        let all = offer.outputs.iter().map(|output| output.files.bytes()).sum::<u64>();
        let (mut telling, mut done) = (Telling::new(), 0);
        let mut fetched = Fetched::default();
        let mut told = |some: u64| {
            done += some;
            telling.hear(&format!("[{}/{all}] fetching {}", done.min(all), delivery.name));
        };
        let places = incoming.seal(Draft::Kept, &mut |number, folder| {
            let output = &offer.outputs[number];
            let here = store.root().join("out").join(output.tree.to_string());
            let Some(folder) = folder else {
                fetched.kept += output.files.bytes();
                told(output.files.bytes());
                return Ok(());
            };
            if here.is_dir() && fetch::copy(output, &here, folder).is_ok() {
                fetched.kept += output.files.bytes();
                told(output.files.bytes());
                return Ok(());
            }
            let some = offer.fetch(&self.place, number, folder, &mut told);
            let some = some.map_err(|error| not_fetched(error.into()))?;
            fetched.bytes += some.bytes;
            fetched.kept += some.kept;
            Ok(())
        })?;
        let dir = places.last().expect("a delivery has outputs").clone();
        let tree = *delivery.outputs.last().expect("a delivery has outputs");
        let (name, version, manifest) =
            (delivery.name.clone(), delivery.version, delivery.manifest);
        let new = Taken { name, version, manifest, tree, ran: false, refused: None };
        delivered::change(store, |all| {
            // What is known of it stays: it is the same still.
            let is_it = |it: &&Taken| it.manifest == manifest && it.version == version;
            let known = all.iter().find(is_it).cloned();
            remember(all, known.unwrap_or(new));
        })?;
        let (delivery, by) = (delivery.clone(), by.clone());
        Ok(Took { delivery, by, dir, fetched })
    }
}

impl Took {
    pub(crate) fn as_json(&self) -> Value {
        let Delivery { name, version, manifest, outputs, .. } = &self.delivery;
        json!({
            "name": name, "version": version, "manifest": manifest, "outputs": outputs, "by": self.by,
            "path": self.dir, "fetched_bytes": self.fetched.bytes, "kept_bytes": self.fetched.kept,
        })
    }
}

/// The last output is what is asked.
pub(crate) fn check_deployment(
    last: Option<&BundledOutput>,
    what: &impl fmt::Display,
) -> Result<(), Failed> {
    let files = last.map_or(&[][..], |output| output.files.files());
    if files.iter().any(|file| file.path == DEPLOYMENT_FILE) {
        return Ok(());
    }
    Err(Failed::model(format!("{what} is no deployment: its last output has no {DEPLOYMENT_FILE}")))
}

/// A deployment of this store that was taken before, was not refused, and is as `is_fit` says: the newest of a name that is
/// still here.
pub(crate) fn newest_good(
    store: &Store,
    name: &str,
    is_fit: impl Fn(&Taken) -> bool,
) -> Result<Option<PathBuf>, Failed> {
    let mut taken = delivered::taken(store)?;
    taken.retain(|it| it.name == name && it.refused.is_none() && is_fit(it));
    taken.sort_by_key(|it| std::cmp::Reverse(it.version));
    let mut dirs = taken.iter().map(|it| store.root().join("out").join(it.tree.to_string()));
    Ok(dirs.find(|dir| dir.is_dir() && vouched::check(dir).is_ok()))
}

/// The place that a reference names, and what this machine says of who it is.
pub(crate) fn place(reference: &Reference, authority: Option<&Path>) -> Result<Place, Failed> {
    let read = |path: &Path| {
        let text = load::read_within(path, "the authority", AUTHORITY_BYTES_MAX);
        text.map(|text| (path.to_owned(), text)).map_err(Failed::usage)
    };
    let (credentials, authority) = (credentials(reference)?, authority.map(read).transpose()?);
    Place::of(reference, Access { credentials, authority }).map_err(Failed::usage)
}

/// Who asks a registry, as the environment or the usual file says; never an argument, which everybody on a machine can read.
fn credentials(reference: &Reference) -> Result<Option<Credentials>, Failed> {
    let At::Registry { host, name, .. } = &reference.at else { return Ok(None) };
    let variable = |name| env::var(name).ok().filter(|text| !text.is_empty());
    match (variable("SMELT_REGISTRY_USER"), variable("SMELT_REGISTRY_PASSWORD")) {
        (Some(user), Some(password)) => return Ok(Some(Credentials { user, password })),
        (None, None) => {}
        _ => {
            let why = "one of $SMELT_REGISTRY_USER and $SMELT_REGISTRY_PASSWORD is not set: set both or none";
            return Err(Failed::usage(why));
        }
    }
    for (path, is_named) in auth_files() {
        if !is_named && !path.is_file() {
            continue;
        }
        let text = load::read_within(&path, "the registry's users", AUTH_BYTES_MAX);
        let found = auth::from_file(&text.map_err(Failed::usage)?, host, name);
        let found = found.map_err(|why| Failed::usage(format!("{}: {why}", path.display())))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Where docker, podman and skopeo keep them, and whether somebody has named the file.
fn auth_files() -> Vec<(PathBuf, bool)> {
    let variable = |name| env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    if let Some(named) = variable("REGISTRY_AUTH_FILE") {
        return vec![(named, true)];
    }
    let podman = variable("XDG_RUNTIME_DIR").map(|dir| dir.join("containers/auth.json"));
    let docker = variable("DOCKER_CONFIG").or_else(|| Some(variable("HOME")?.join(".docker")));
    let docker = docker.map(|dir| dir.join("config.json"));
    podman.into_iter().chain(docker).map(|path| (path, false)).collect()
}

/// What is wrong with what was delivered is a bad file; who does not answer cannot be looked at; the rest is this machine's.
pub(crate) fn not_fetched(error: FetchError) -> Failed {
    let exit = match &error {
        FetchError::Place(error) => return of_place(error),
        FetchError::NotADelivery { .. } => Exit::BadModel,
        FetchError::NoTag { .. } | FetchError::Refused { .. } => Exit::StageFailed,
    };
    Failed::new(exit, error)
}

pub(crate) fn of_place(error: &PlaceError) -> Failed {
    let exit = match error {
        PlaceError::Gone { .. } => Exit::NotSeen,
        PlaceError::Wrong { .. } => Exit::BadModel,
        PlaceError::Refused { .. } | PlaceError::Io { .. } => Exit::StageFailed,
    };
    let more = match (error, error.is_disk_full()) {
        (_, true) => "; free some space, then the same command goes on",
        (PlaceError::Gone { .. }, _) => "; once it answers, the same command goes on where it was",
        _ => "",
    };
    Failed::new(exit, format!("{error}{more}"))
}
