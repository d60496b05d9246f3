//! Loads, swaps and unloads models, in a thread of its own.
//!
//! Models are loaded when they are asked for.  Where a newer deployment of one is found, it is loaded beside
//! the old one and takes its place if it is fit, else the old one stays.  Models that nobody asks leave
//! when others need the room.  Knows nothing of requests.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use smelt_watch::Machine;

use super::devices::{Devices, News};
use super::room::{self, Resident};
use super::{LoaderCommand, Models, Progress, Running};

/// How often memory is looked at, and replaced models are.
const TICK: Duration = Duration::from_secs(1);

/// Beside its weights, a model needs room for keys, values and what it computes in.
const ROOM_BESIDE_WEIGHTS: f64 = 1.25;

/// How long is waited until nobody hears a model that was unloaded: who reads what it counts holds it for
/// microseconds.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// How often that is looked at.
const LEAVE_TICK: Duration = Duration::from_millis(5);

/// How often it is asked how checks stand that go on behind models.
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// The words for a check that has ended.
pub(super) const PASSED: &str = "passed";
const FAILED: &str = "failed";

/// Why a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// There is none of its name.
    First,
    /// It is to take another one's place, so it must show that it can.
    Swap,
}

/// A deployment that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentInfo {
    /// Its directory.
    pub dir: PathBuf,
    /// What it is called.
    pub name: String,
    /// Bytes of its engines.
    pub bytes: u64,
    /// Of these, those of engines that live in a device's own memory.
    pub device_bytes: u64,
    /// Whether another program's server answers.
    pub is_upstream: bool,
}

/// Says how the check stands that goes on behind the deployment in a directory: `passed`, `running`, `failed` or
/// `open`; nothing where there is none.
pub type Checked = Box<dyn Fn(&Path) -> Option<&'static str> + Send>;

/// Says where a model's deployment is.
pub type Find<E> = Box<dyn Fn() -> Result<DeploymentInfo, E> + Send>;

/// Why a deployment cannot be loaded.
#[derive(Debug)]
pub enum Unfit<E> {
    /// Memory is short: it may be fit where others leave.
    Shortage(E),
    /// Whatever else there is in memory.
    Broken(E),
}

impl<E> Unfit<E> {
    fn why(self) -> E {
        match self {
            Self::Shortage(why) | Self::Broken(why) => why,
        }
    }
}

impl<E> From<E> for Unfit<E> {
    fn from(why: E) -> Self {
        Self::Broken(why)
    }
}

/// Opens, checks and warms up a deployment.
pub type Open<E> =
    Box<dyn Fn(&DeploymentInfo, Purpose, &Progress) -> Result<Running, Unfit<E>> + Send>;

/// Says how many bytes are free in the device's own memory that some of a deployment's engines will live in, as their
/// back ends see it; nothing where none do, or that is not known.
pub type DeviceRoom = Box<dyn Fn(&DeploymentInfo) -> Option<u64> + Send>;

/// A model that may be loaded.
pub struct Source<E> {
    /// The deployment that is known to be fit: what there was at the start, then what was loaded last.
    pub known: DeploymentInfo,
    /// Where its deployment is now.
    pub find: Find<E>,
    /// What a device has left for it.
    pub device_room: DeviceRoom,
    /// Loads it.
    pub open: Open<E>,
    /// How its check stands.
    pub check: Checked,
}

/// Hears how many bytes the models in memory and requests may take besides what they have: nothing yet when the first
/// model begins to load, then at each tick.  It may block.
pub type Growth = Box<dyn FnMut(Option<u64>) + Send>;

pub(crate) struct Loader<E> {
    sources: Vec<Source<E>>,
    /// Which deployment each model is of, if it is loaded.
    held: Vec<Option<DeploymentInfo>>,
    /// The deployment of each that was found last and is not fit; it is not tried again.
    refused: Vec<Option<DeploymentInfo>>,
    models: Arc<Models>,
    orders: Receiver<LoaderCommand>,
    /// Where it is asked, for the log.
    addr: String,
    /// How often newer deployments are looked for, if not only when asked.
    watch: Option<Duration>,
    /// Those that were replaced, as long as somebody hears them.
    retired: Vec<Running>,
    /// Why a newer deployment of each could not be found at last.
    unfound: Vec<Option<String>>,
    growth: Growth,
    /// How devices stood when they were looked at last.
    devices: Devices,
}

impl<E: Display> Loader<E> {
    pub(crate) fn new(
        sources: Vec<Source<E>>,
        models: Arc<Models>,
        orders: Receiver<LoaderCommand>,
        addr: String,
        watch: Option<Duration>,
        growth: Growth,
    ) -> Self {
        let nothing = vec![None; sources.len()];
        let (held, refused) = (nothing.clone(), nothing);
        let (retired, unfound) = (Vec::new(), vec![None; sources.len()]);
        let devices = Devices::default();
        Self {
            sources,
            held,
            refused,
            models,
            orders,
            addr,
            watch,
            retired,
            unfound,
            growth,
            devices,
        }
    }

    /// Loads the first model, then whatever is asked for, until nobody can ask any more.
    ///
    /// # Errors
    /// Why the first model cannot be loaded.
    pub(crate) fn run(mut self) -> Result<(), E> {
        (self.growth)(None);
        if let Some(first) = self.sources.first() {
            self.load(0, first.known.clone(), Purpose::First)?;
        }
        let (mut looked, mut checked) = (Instant::now(), Instant::now());
        loop {
            let may_take = self.may_take_bytes();
            (self.growth)(Some(may_take));
            self.tell_of_devices();
            match self.orders.recv_timeout(TICK) {
                Ok(LoaderCommand::Load(at)) => self.wake(at),
                Ok(LoaderCommand::Refresh) => {
                    if !self.refresh() {
                        tracing::info!(
                            "asked for newer deployments, but there are none; of a directory there never are, of a pipeline there is one when it was run again"
                        );
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.relieve();
            self.let_go();
            if checked.elapsed() >= CHECK_PERIOD {
                let awaiting = (0..self.sources.len()).filter(|&at| self.models.awaits_check(at));
                awaiting.for_each(|at| self.check(at));
                checked = Instant::now();
            }
            if self.watch.is_some_and(|every| looked.elapsed() >= every) {
                _ = self.refresh();
                looked = Instant::now();
            }
        }
    }

    /// Says what became of devices since they were looked at last.
    fn tell_of_devices(&mut self) {
        for news in self.devices.look(&self.models.devices()) {
            match news {
                News::Good(line) => tracing::info!("{line}"),
                News::Bad(line) => tracing::warn!("{line}"),
                News::Worst(line) => tracing::error!("{line}"),
            }
        }
    }

    /// Loads a model that is not there.
    fn load(&mut self, at: usize, found: DeploymentInfo, purpose: Purpose) -> Result<(), E> {
        let begun = Instant::now();
        self.make_room(at, &found);
        let progress = Progress::new(&self.models, Some(at));
        let running = self.open(at, &found, purpose, &progress)?;
        let (name, room) = (found.name.clone(), running.room());
        self.loaded_is(at, found, running);
        let (addr, took_s) = (&self.addr, begun.elapsed().as_secs_f64());
        tracing::info!("ready: {name} answers at {addr} after {took_s:.1} s; {room}");
        Ok(())
    }

    /// Opens a deployment; where memory is short, others leave one after the other, as long as there are
    /// such that answer nobody.
    fn open(
        &mut self,
        at: usize,
        found: &DeploymentInfo,
        purpose: Purpose,
        progress: &Progress,
    ) -> Result<Running, E> {
        loop {
            match (self.sources[at].open)(found, purpose, progress) {
                Ok(running) => return Ok(running),
                Err(Unfit::Shortage(_)) if self.make_way(at) => {}
                Err(unfit) => return Err(unfit.why()),
            }
        }
    }

    /// Unloads the model that was asked longest ago, of those that answer nobody, and is not `at`.  Says
    /// whether there was one.
    fn make_way(&mut self, at: usize) -> bool {
        let (places, loaded) = self.loaded();
        let leaving = room::make_way(&loaded, places.iter().position(|place| *place == at));
        let Some(leaving) = leaving else { return false };
        self.unload(places[leaving], "another model needs the room");
        let begun = Instant::now();
        while !self.let_go() && begun.elapsed() < LEAVE_TIME_MAX {
            std::thread::sleep(LEAVE_TICK);
        }
        true
    }

    /// Drops those of the replaced that nobody hears any more; says whether that were all.
    fn let_go(&mut self) -> bool {
        self.retired.retain(|running| running.live() > 0 || !running.is_last());
        self.retired.is_empty()
    }

    /// A deployment answers from now on; the one before it, when it has given the answers that it owes, no
    /// more.
    fn loaded_is(&mut self, at: usize, found: DeploymentInfo, running: Running) {
        self.retired.extend(self.models.ready(at, &found, running));
        self.sources[at].known = found.clone();
        self.held[at] = Some(found);
        self.check(at);
    }

    /// Asks how the check of a model stands, and says what is news.
    fn check(&self, at: usize) {
        let Some(found) = &self.held[at] else { return };
        let check = (self.sources[at].check)(&found.dir);
        if !self.models.checked(at, check) {
            return;
        }
        let model = &found.name;
        match check {
            Some(PASSED) => tracing::info!(model, "verified: it computes what the reference does"),
            Some(FAILED) => tracing::error!(model, "its engines failed the reference check"),
            Some(check) => {
                tracing::warn!(model, "not verified yet: its reference check is {check}")
            }
            None => {}
        }
    }

    /// Loads a model that somebody waits for, if it is not there by now.
    fn wake(&mut self, at: usize) {
        if self.held[at].is_some() {
            return;
        }
        let found = (self.sources[at].find)();
        let found = found.inspect_err(|error| tracing::warn!("{error}; what is known is loaded"));
        for (found, purpose) in
            trials(&self.sources[at].known, found.ok(), self.refused[at].as_ref())
        {
            match self.load(at, found.clone(), purpose) {
                Ok(()) => return,
                Err(error) if purpose == Purpose::Swap => self.refuse(at, found, &error),
                Err(error) => {
                    tracing::error!(model = found.name, "cannot be loaded: {error}");
                    self.models.failed(at, error.to_string());
                }
            }
        }
    }

    /// Puts newer deployments in the place of those that are loaded.  Says whether there were any, fit or
    /// not.
    fn refresh(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.sources.len() {
            if self.held[at].is_none() {
                continue;
            }
            match (self.sources[at].find)() {
                Ok(found) => {
                    self.unfound[at] = None;
                    any |= self.swap(at, found);
                }
                Err(error) => {
                    self.unfound(at, error.to_string());
                    any = true;
                }
            }
        }
        any
    }

    /// Loads a deployment beside the one that answers, if it is a newer one, and lets it take its place if
    /// it is fit.  Says whether it is a newer one.
    fn swap(&mut self, at: usize, found: DeploymentInfo) -> bool {
        let mut is_newer = false;
        let known = self.sources[at].known.clone();
        let trials = trials(&known, Some(found), self.refused[at].as_ref());
        for (found, purpose) in trials.into_iter().filter(|(_, purpose)| *purpose == Purpose::Swap)
        {
            is_newer = true;
            let DeploymentInfo { dir, name, .. } = &found;
            tracing::info!(model = name, "a newer deployment: {}", dir.display());
            let progress = Progress::new(&self.models, None);
            match self.open(at, &found, purpose, &progress) {
                Ok(running) => {
                    tracing::info!(model = name, "the newer deployment answers from now on");
                    self.loaded_is(at, found, running);
                }
                Err(error) => self.refuse(at, found, &error),
            }
        }
        is_newer
    }

    /// What there is instead of a newer deployment is damaged, or is none: refused like one that is not fit, and
    /// counted once as long as it stays so.
    fn unfound(&mut self, at: usize, why: String) {
        if self.unfound[at].as_ref() == Some(&why) {
            return;
        }
        self.models.refused();
        let name = &self.sources[at].known.name;
        tracing::error!(
            model = name,
            "cannot look for a newer deployment; the older one stays: {why}"
        );
        self.unfound[at] = Some(why);
    }

    /// A newer deployment is not fit.
    fn refuse(&mut self, at: usize, found: DeploymentInfo, error: &E) {
        self.models.refused();
        tracing::error!(model = found.name, "the older deployment stays: {error}");
        self.refused[at] = Some(found);
    }

    /// Bytes that models in memory, those that were replaced too, may take besides what they have.
    fn may_take_bytes(&self) -> u64 {
        let loaded = (0..self.held.len()).filter_map(|at| Some(self.models.loaded(at)?.0));
        let retired = self.retired.iter().map(Running::may_take_bytes);
        loaded.map(|running| running.may_take_bytes()).chain(retired).sum()
    }

    /// Unloads what nobody asks, if the engines of a deployment do not fit otherwise where they will live.
    fn make_room(&mut self, at: usize, found: &DeploymentInfo) {
        let device_room = (self.sources[at].device_room)(found);
        let (places, loaded) = self.loaded();
        for at in room_for(&loaded, found, memory().0, device_room) {
            self.unload(places[at], "another model needs the room");
        }
    }

    /// Unloads a model if the machine runs out of memory.
    fn relieve(&mut self) {
        let (places, loaded) = self.loaded();
        if loaded.len() < 2 {
            // Who was asked last stays, however little memory is left.
            return;
        }
        let (available, total) = memory();
        if let Some(at) = room::relieve(&loaded, available, total) {
            self.unload(places[at], "the machine runs out of memory");
        }
    }

    /// The models in memory and their places.
    fn loaded(&self) -> (Vec<usize>, Vec<Resident>) {
        let resident = |(at, found): (usize, &Option<DeploymentInfo>)| {
            let (running, used) = self.models.loaded(at)?;
            let (is_busy, is_on_device) = (running.live() > 0, running.is_on_device());
            Some((at, Resident { bytes: found.as_ref()?.bytes, used, is_busy, is_on_device }))
        };
        self.held.iter().enumerate().filter_map(resident).unzip()
    }

    fn unload(&mut self, at: usize, why: &str) {
        tracing::info!(model = self.sources[at].known.name, "unloaded: {why}");
        self.retired.extend(self.models.unload(at));
        self.held[at] = None;
    }
}

/// The deployments to try, in order, until one is loaded: what was found, if it is another one than the one
/// that is `known` to be fit and not `refused`; then that.
fn trials(
    known: &DeploymentInfo,
    found: Option<DeploymentInfo>,
    refused: Option<&DeploymentInfo>,
) -> Vec<(DeploymentInfo, Purpose)> {
    let newer = found.filter(|found| found != known && Some(found) != refused);
    let newer = newer.map(|found| (found, Purpose::Swap));
    newer.into_iter().chain([(known.clone(), Purpose::First)]).collect()
}

/// The places of models to unload before a deployment is loaded, by what the machine has left and a device of its own.
/// Where nothing suffices, all stay: opening it says what is missing.
fn room_for(
    loaded: &[Resident],
    found: &DeploymentInfo,
    available: u64,
    device_room: Option<u64>,
) -> Vec<usize> {
    let need = |bytes: u64| (bytes as f64 * ROOM_BESIDE_WEIGHTS) as u64;
    let machine_bytes = found.bytes.saturating_sub(found.device_bytes);
    let in_machine = room::make_room(loaded, false, need(machine_bytes), available);
    let on_device =
        device_room.and_then(|free| room::make_room(loaded, true, need(found.device_bytes), free));
    in_machine.into_iter().chain(on_device).flatten().collect()
}

/// Bytes that a process could have, and bytes there are.
fn memory() -> (u64, u64) {
    let machine = Machine::left_to_us(Path::new("/"));
    let all = u64::MAX;
    (machine.mem_available_bytes.unwrap_or(all), machine.mem_total_bytes.unwrap_or(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_of_before_the_first_model_and_then_at_each_tick() {
        let (models, orders) = Models::new(Vec::new());
        let (sender, heard) = std::sync::mpsc::channel();
        let growth = Box::new(move |more| _ = sender.send(more));
        let addr = "http://a:1".to_owned();
        let loader =
            Loader::<String>::new(Vec::new(), Arc::new(models), orders, addr, None, growth);
        // It has no end, since the models it holds could ask for more.
        std::thread::spawn(move || loader.run());
        assert_eq!([heard.recv().unwrap(), heard.recv().unwrap()], [None, Some(0)]);
    }

    fn found(dir: &str, bytes: u64, device_bytes: u64) -> DeploymentInfo {
        let (dir, name) = (dir.into(), "m".to_owned());
        DeploymentInfo { dir, name, bytes, device_bytes, is_upstream: false }
    }

    #[test]
    fn room_is_made_where_the_engines_will_live() {
        let resident =
            |used, is_on_device| Resident { bytes: 100, used, is_busy: false, is_on_device };
        let loaded = [resident(1, false), resident(2, true)];
        let leaving = |bytes, device_bytes, available, device_room| {
            room_for(&loaded, &found("new", bytes, device_bytes), available, device_room)
        };
        assert_eq!(leaving(80, 0, 99, None), [0]);
        assert_eq!(leaving(80, 0, 100, None), [0; 0], "a quarter besides");
        assert_eq!(leaving(80, 80, 0, Some(99)), [1], "the machine needs no room for it");
        assert_eq!(leaving(80, 80, 0, Some(100)), [0; 0]);
        assert_eq!(leaving(80, 80, 0, None), [0; 0], "nobody knows what the device has");
        assert_eq!(leaving(160, 80, 50, Some(50)), [0, 1], "a tower here, a decoder there");
        assert_eq!(leaving(800, 0, 50, None), [0; 0], "nothing suffices");
    }

    #[test]
    fn what_was_refused_is_not_tried_again_and_what_is_known_is_always_there() {
        let of = |dir: &str| found(dir, 1, 0);
        let [old, new, newest] = ["old", "new", "newest"].map(of);
        let tried = |found: Option<&DeploymentInfo>, refused: Option<&DeploymentInfo>| {
            let trials = trials(&old, found.cloned(), refused);
            trials.into_iter().map(|(found, purpose)| (found.dir, purpose)).collect::<Vec<_>>()
        };
        let known = ("old".into(), Purpose::First);
        assert_eq!(tried(None, None), std::slice::from_ref(&known));
        assert_eq!(tried(Some(&old), None), std::slice::from_ref(&known));
        assert_eq!(tried(Some(&new), None), [("new".into(), Purpose::Swap), known.clone()]);
        assert_eq!(tried(Some(&new), Some(&new)), std::slice::from_ref(&known));
        assert_eq!(tried(Some(&newest), Some(&new)), [("newest".into(), Purpose::Swap), known]);
    }
}
