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

use smelt_watch::{Cgroups, Machine};

use super::room::{self, Resident};
use super::{Models, Order, Progress, Running};

/// How often memory is looked at, and replaced models are.
const TICK: Duration = Duration::from_secs(1);

/// Beside its weights, a model needs room for keys, values and what it computes in.
const ROOM_BESIDE_WEIGHTS: f64 = 1.25;

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
pub struct Found {
    /// Its directory.
    pub dir: PathBuf,
    /// What it is called.
    pub name: String,
    /// Bytes of its engines.
    pub bytes: u64,
}

/// Says where a model's deployment is.
pub type Find<E> = Box<dyn Fn() -> Result<Found, E> + Send>;

/// Opens, checks and warms up a deployment.
pub type Open<E> = Box<dyn Fn(&Found, Purpose, &Progress) -> Result<Running, E> + Send>;

/// A model that may be loaded.
pub struct Source<E> {
    /// Where its deployment was when it was found last.
    pub known: Found,
    /// Where its deployment is now.
    pub find: Find<E>,
    /// Loads it.
    pub open: Open<E>,
}

pub(crate) struct Loader<E> {
    sources: Vec<Source<E>>,
    /// Which deployment each model is of, if it is loaded.
    held: Vec<Option<Found>>,
    models: Arc<Models>,
    orders: Receiver<Order>,
    /// How often newer deployments are looked for, if not only when asked.
    watch: Option<Duration>,
    /// Those that were replaced, as long as somebody hears them.
    retired: Vec<Running>,
}

impl<E: Display> Loader<E> {
    pub(crate) fn new(
        sources: Vec<Source<E>>,
        models: Arc<Models>,
        orders: Receiver<Order>,
        watch: Option<Duration>,
    ) -> Self {
        let held = sources.iter().map(|_| None).collect();
        Self { sources, held, models, orders, watch, retired: Vec::new() }
    }

    /// Loads the first model, then whatever is asked for, until nobody can ask any more.
    ///
    /// # Errors
    /// Why the first model cannot be loaded.
    pub(crate) fn run(mut self) -> Result<(), E> {
        if let Some(first) = self.sources.first() {
            self.load(0, first.known.clone())?;
        }
        let mut looked = Instant::now();
        loop {
            match self.orders.recv_timeout(TICK) {
                Ok(Order::Load(at)) => self.wake(at),
                Ok(Order::Refresh) => self.refresh(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.relieve();
            self.retired.retain(|running| running.live() > 0 || !running.is_last());
            if self.watch.is_some_and(|every| looked.elapsed() >= every) {
                self.refresh();
                looked = Instant::now();
            }
        }
    }

    /// Loads a model that is not there.
    fn load(&mut self, at: usize, found: Found) -> Result<(), E> {
        self.make_room(found.bytes);
        let progress = Progress::new(&self.models, Some(at));
        let running = (self.sources[at].open)(&found, Purpose::First, &progress)?;
        self.models.ready(at, found.name.clone(), running);
        self.sources[at].known = found.clone();
        self.held[at] = Some(found);
        Ok(())
    }

    /// Loads a model that somebody waits for, if it is not there by now.
    fn wake(&mut self, at: usize) {
        if self.held[at].is_some() {
            return;
        }
        let found = (self.sources[at].find)().unwrap_or_else(|error| {
            tracing::warn!("the deployment is looked for where it was: {error}");
            self.sources[at].known.clone()
        });
        if let Err(error) = self.load(at, found) {
            tracing::error!("cannot load model {at}: {error}");
            self.models.failed(at, error.to_string());
        }
    }

    /// Puts newer deployments in the place of those that are loaded.
    fn refresh(&mut self) {
        for at in 0..self.sources.len() {
            let Some(old) = &self.held[at] else { continue };
            match (self.sources[at].find)() {
                Ok(found) if found == *old => {}
                Ok(found) => self.swap(at, found),
                Err(error) => tracing::warn!("cannot look for a newer deployment: {error}"),
            }
        }
    }

    /// Loads a deployment beside the one that answers, and lets it take its place if it is fit.
    fn swap(&mut self, at: usize, found: Found) {
        let Found { dir, name, .. } = &found;
        tracing::info!(model = name, "a newer deployment: {}", dir.display());
        let progress = Progress::new(&self.models, None);
        match (self.sources[at].open)(&found, Purpose::Swap, &progress) {
            Ok(running) => {
                self.retired.extend(self.models.ready(at, name.clone(), running));
                tracing::info!(model = name, "the newer deployment answers from now on");
            }
            Err(error) => {
                self.models.refused();
                tracing::error!(model = name, "the older deployment stays: {error}");
            }
        }
        // What is not fit is not tried again, until there is another one.
        self.held[at] = Some(found);
    }

    /// Unloads what nobody asks, if engines of so many bytes do not fit otherwise.
    fn make_room(&mut self, bytes: u64) {
        let need = (bytes as f64 * ROOM_BESIDE_WEIGHTS) as u64;
        let (places, loaded) = self.loaded();
        let leaving = room::make_room(&loaded, need, memory().0);
        // If nothing suffices, opening it says what is missing.
        for at in leaving.unwrap_or_default() {
            self.unload(places[at], "another model needs the room");
        }
    }

    /// Unloads a model if the machine runs out of memory.
    fn relieve(&mut self) {
        let (places, loaded) = self.loaded();
        let (available, total) = memory();
        if let Some(at) = room::relieve(&loaded, available, total) {
            self.unload(places[at], "the machine runs out of memory");
        }
    }

    /// The models in memory and their places.
    fn loaded(&self) -> (Vec<usize>, Vec<Resident>) {
        let resident = |(at, found): (usize, &Option<Found>)| {
            let (running, used) = self.models.loaded(at)?;
            let is_busy = running.live() > 0;
            Some((at, Resident { bytes: found.as_ref()?.bytes, used, is_busy }))
        };
        self.held.iter().enumerate().filter_map(resident).unzip()
    }

    fn unload(&mut self, at: usize, why: &str) {
        tracing::info!("model {at} is unloaded: {why}");
        self.retired.extend(self.models.unload(at));
        self.held[at] = None;
    }
}

/// Bytes that a process could have, and bytes there are.
fn memory() -> (u64, u64) {
    let root = Path::new("/");
    let ceiling = Cgroups::find(root).map(|cgroups| cgroups.ceiling()).unwrap_or_default();
    let machine = ceiling.over(Machine::read(root));
    let all = u64::MAX;
    (machine.mem_available_bytes.unwrap_or(all), machine.mem_total_bytes.unwrap_or(all))
}
