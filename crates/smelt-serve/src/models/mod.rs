//! Owns the models that answer, and gives them out by name.
//!
//! A model is there, or is loaded when somebody asks for it; whoever wants one asks each time, since it may
//! be another one the next time.  Knows nothing of requests.

mod devices;
mod loader;
mod room;
mod running;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use smelt_runtime::embed::EmbedService;
use smelt_runtime::grammar::{Grammar, GrammarMatcher};
use smelt_runtime::score::CrossEncoder;
use smelt_runtime::service::{ReplicaState, Service};
use smelt_runtime::tokenizer::Tokenizer;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::error::ApiError;
pub(crate) use loader::Loader;
pub use loader::{Checked, DeploymentInfo, DeviceRoom, Find, Growth, Open, Purpose, Source, Unfit};
pub use running::Running;

/// When to come again while a model is loaded: a second or two each gigabyte.
const LOADING_RETRY: Duration = Duration::from_secs(2);

/// How long a request waits for its model: a large one is read from a slow card.
const WAKE_TIME_MAX: Duration = Duration::from_secs(120);

/// How long a model that could not be loaded is not tried again: opening one reads gigabytes, and who is
/// refused comes again at once.
const FAILURE_TIME: Duration = Duration::from_secs(5);

/// Orders that may wait: a loader that is busy will look at everything anyhow.
const ORDERS_MAX: usize = 64;

/// What the loader is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoaderCommand {
    /// The model at this place.
    Load(usize),
    /// Newer deployments of those that are loaded.
    Refresh,
}

/// What is being done to load a model, and how far that is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadingStep {
    /// In words, the share and the time that is left among them.
    pub words: String,
    /// The share that is done, from 0 to 1, where it is known.
    pub done: Option<f64>,
    /// Seconds that are left, where that is known.
    pub left_s: Option<u64>,
}

impl From<&str> for LoadingStep {
    /// What nobody knows the share of.
    fn from(words: &str) -> Self {
        Self { words: words.to_owned(), ..Self::default() }
    }
}

/// How far a model is.
#[derive(Clone, Debug)]
enum State {
    /// Not in memory.
    Away,
    /// What is being done.
    Loading(LoadingStep),
    Ready(Model),
    Failed(Failure),
}

/// A model could not be loaded.
#[derive(Clone, Debug)]
struct Failure {
    why: String,
    since: Instant,
}

impl Failure {
    /// How long it is not tried again.
    fn rest(&self, now: Instant) -> Duration {
        FAILURE_TIME.saturating_sub(now.saturating_duration_since(self.since))
    }
}

/// A model that answers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// How clients call it.
    pub(crate) name: String,
    /// Seconds since 1970 when it was loaded.
    pub(crate) created: u64,
    /// Bytes of its engines.
    pub(crate) bytes: u64,
    /// Who does it.
    pub(crate) running: Running,
    /// How the check stands that goes on behind it, where there is one.
    pub(crate) check: Option<&'static str>,
}

impl Model {
    fn new(name: String, bytes: u64, running: Running) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { name, created, bytes, running, check: None }
    }

    /// Who continues conversations and texts.
    ///
    /// # Errors
    /// 400 if the model does something else.
    pub(crate) fn speaks(&self) -> Result<&Service, ApiError> {
        match &self.running {
            Running::Speaks(service) => Ok(service),
            Running::Embeds(_) | Running::Scores(_) | Running::Relays(_) => Err(self.unable("")),
        }
    }

    /// Who gives embeddings.
    ///
    /// # Errors
    /// 400 if the model does something else.
    pub(crate) fn embeds(&self) -> Result<&EmbedService, ApiError> {
        match &self.running {
            Running::Embeds(service) => Ok(service),
            Running::Speaks(_) | Running::Scores(_) | Running::Relays(_) => Err(self.unable("")),
        }
    }

    /// Who scores pairs of texts.
    ///
    /// # Errors
    /// 400 if the model does something else.
    pub(crate) fn scores(&self) -> Result<&EmbedService<CrossEncoder>, ApiError> {
        match &self.running {
            Running::Scores(service) if !service.encoder().spec().classifies() => Ok(service),
            _ => Err(self.unable("; serve a cross-encoder to rerank")),
        }
    }

    /// Who classifies texts.
    ///
    /// # Errors
    /// 400 if the model does something else.
    pub(crate) fn classifies(&self) -> Result<&EmbedService<CrossEncoder>, ApiError> {
        match &self.running {
            Running::Scores(service) if service.encoder().spec().classifies() => Ok(service),
            _ => Err(self.unable("; serve a model of several labels to classify")),
        }
    }

    /// What turns its texts into tokens.
    ///
    /// # Errors
    /// 400 if that is another program's affair.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, ApiError> {
        self.running.tokenizer().ok_or_else(|| self.unable(""))
    }

    /// 400: it does something else.
    pub(crate) fn unable(&self, instead: &str) -> ApiError {
        let (does, at) = self.running.does();
        let why = format!("the model {:?} {does}; ask it at {at}{instead}", self.name);
        let error = ApiError::bad(why).code("model_not_suitable");
        ApiError { param: Some("model".to_owned()), ..error }
    }

    /// What holds an answer to `grammar`, which the field `param` of a request asks for.
    ///
    /// # Errors
    /// 400, saying what is wrong with the grammar.
    pub(crate) fn constraint(
        &self,
        grammar: &Grammar,
        param: &str,
    ) -> Result<GrammarMatcher, ApiError> {
        let compiler = self.speaks()?.text().compiler();
        let compiler = compiler.map_err(|error| ApiError::field(param, error))?;
        compiler.compile(grammar).map_err(|error| ApiError::field(param, error))
    }
}

#[derive(Debug)]
struct Entry {
    name: String,
    state: State,
    /// When it was asked last: larger is later.
    used: u64,
}

/// How often models came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Models that were loaded since they were asked for, or at the start.
    pub(crate) loads: u64,
    /// Newer deployments that took the place of older ones.
    pub(crate) swaps: u64,
    /// Newer deployments that were not fit.
    pub(crate) swaps_refused: u64,
    /// Models that left memory.
    pub(crate) unloads: u64,
}

/// What Ollama puts behind the names of models that have no other version.
pub(crate) const LATEST: &str = ":latest";

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    clock: u64,
    moves: Moves,
}

/// The models of a server.
#[derive(Debug)]
pub(crate) struct Models {
    inner: Mutex<Inner>,
    orders: SyncSender<LoaderCommand>,
    /// A model is there, or will not be.
    changed: Notify,
    /// The first model was there.
    has_begun: AtomicBool,
    is_draining: AtomicBool,
    /// Whether any of them is answered by another program's server.
    has_upstream: AtomicBool,
}

/// What `/health` says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Health {
    Ready,
    /// What is being done.
    Loading(LoadingStep),
    Draining,
    /// A thread is gone, which is a fault of smelt.
    Failed,
}

/// Tells what a loading model is doing.
#[derive(Debug)]
pub struct Progress {
    models: Arc<Models>,
    at: Option<usize>,
}

impl Progress {
    /// Of the model at a place; of none that anybody waits for without one.
    fn new(models: &Arc<Models>, at: Option<usize>) -> Self {
        Self { models: Arc::clone(models), at }
    }

    /// It is doing this now.  Whoever asks hears of every step, the log of those that are news.
    pub fn tell(&self, step: LoadingStep, is_news: bool) {
        if is_news {
            let LoadingStep { words, done, left_s } = &step;
            tracing::info!(done, left_s, "{words}");
        }
        if let Some(at) = self.at {
            self.models.set(at, State::Loading(step));
        }
    }
}

impl Models {
    /// Models of these names that are still to be loaded, and what is ordered of who loads them.
    pub(crate) fn new(names: Vec<String>) -> (Self, Receiver<LoaderCommand>) {
        let (orders, receiver) = mpsc::sync_channel(ORDERS_MAX);
        let entry = |name| Entry { name, state: State::Away, used: 0 };
        let mut entries: Vec<Entry> = names.into_iter().map(entry).collect();
        if let Some(first) = entries.first_mut() {
            first.state = State::Loading("starting".into());
        }
        let inner = Mutex::new(Inner { entries, ..Inner::default() });
        let (changed, has_begun, is_draining) = (Notify::new(), false.into(), false.into());
        let has_upstream = false.into();
        (Self { inner, orders, changed, has_begun, is_draining, has_upstream }, receiver)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a model into a state; gives the one it was in.
    fn set(&self, at: usize, state: State) -> State {
        let before = std::mem::replace(&mut self.inner().entries[at].state, state);
        self.changed.notify_waiters();
        before
    }

    /// The model is there.  Gives the one whose place it takes.
    fn ready(&self, at: usize, found: &DeploymentInfo, running: Running) -> Option<Running> {
        let DeploymentInfo { name, bytes, .. } = found;
        if matches!(running, Running::Relays(_)) {
            self.expect_upstream();
        }
        self.inner().entries[at].name.clone_from(name);
        let before = self.set(at, State::Ready(Model::new(name.clone(), *bytes, running)));
        self.has_begun.store(true, Ordering::Release);
        // Who was told to end meanwhile has nothing to begin with.
        if self.is_draining() {
            self.drain();
        }
        let mut inner = self.inner();
        match before {
            State::Ready(model) => {
                inner.moves.swaps += 1;
                Some(model.running)
            }
            State::Away | State::Loading(_) | State::Failed(_) => {
                inner.moves.loads += 1;
                None
            }
        }
    }

    /// One of them is answered by another program's server, or will be.
    pub(crate) fn expect_upstream(&self) {
        self.has_upstream.store(true, Ordering::Release);
    }

    /// Whether one of them is.
    pub(crate) fn has_upstream(&self) -> bool {
        self.has_upstream.load(Ordering::Acquire)
    }

    /// Whether the check of a model is still to pass.
    fn awaits_check(&self, at: usize) -> bool {
        match &self.inner().entries[at].state {
            State::Ready(model) => model.check.is_some_and(|check| check != loader::PASSED),
            State::Away | State::Loading(_) | State::Failed(_) => false,
        }
    }

    /// How the check of a model stands; says whether that is news.
    fn checked(&self, at: usize, check: Option<&'static str>) -> bool {
        match &mut self.inner().entries[at].state {
            State::Ready(model) => std::mem::replace(&mut model.check, check) != check,
            State::Away | State::Loading(_) | State::Failed(_) => false,
        }
    }

    /// The devices that models answer on, where those have names, and how each stands.
    pub(crate) fn devices(&self) -> Vec<(String, ReplicaState)> {
        let inner = self.inner();
        let ready = inner.entries.iter().filter_map(|entry| match &entry.state {
            State::Ready(model) => Some(model),
            State::Away | State::Loading(_) | State::Failed(_) => None,
        });
        let of = |model: &Model| {
            let states = model.running.replicas().into_iter();
            states.map(|state| (model.name.clone(), state)).collect::<Vec<_>>()
        };
        ready.flat_map(of).filter(|(_, state)| !state.name.is_empty()).collect()
    }

    /// A newer deployment is not fit.
    fn refused(&self) {
        self.inner().moves.swaps_refused += 1;
    }

    /// How often models came and went.
    pub(crate) fn moves(&self) -> Moves {
        self.inner().moves
    }

    /// The model cannot be loaded.
    fn failed(&self, at: usize, why: String) {
        self.set(at, State::Failed(Failure { why, since: Instant::now() }));
    }

    /// Takes the model out of memory.
    fn unload(&self, at: usize) -> Option<Running> {
        self.inner().moves.unloads += 1;
        match self.set(at, State::Away) {
            State::Ready(model) => Some(model.running),
            State::Away | State::Loading(_) | State::Failed(_) => None,
        }
    }

    /// The model at a place, if it is there, and when it was asked last.
    fn loaded(&self, at: usize) -> Option<(Running, u64)> {
        let inner = self.inner();
        let entry = inner.entries.get(at)?;
        match &entry.state {
            State::Ready(model) => Some((model.running.clone(), entry.used)),
            State::Away | State::Loading(_) | State::Failed(_) => None,
        }
    }

    /// Has newer deployments looked for.
    pub(crate) fn refresh(&self) {
        // A loader with so much to do looks by itself.
        _ = self.orders.try_send(LoaderCommand::Refresh);
    }

    /// Takes nothing new from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.all().iter().for_each(|model| model.running.drain());
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// The models that answer.
    pub(crate) fn all(&self) -> Vec<Model> {
        let ready = |entry: &Entry| match &entry.state {
            State::Ready(model) => Some(model.clone()),
            State::Away | State::Loading(_) | State::Failed(_) => None,
        };
        self.inner().entries.iter().filter_map(ready).collect()
    }

    /// The names of all models that can be asked for, and those that are there.
    pub(crate) fn listed(&self) -> Vec<(String, Option<Model>)> {
        let told = |entry: &Entry| match &entry.state {
            State::Ready(model) => (entry.name.clone(), Some(model.clone())),
            State::Away | State::Loading(_) | State::Failed(_) => (entry.name.clone(), None),
        };
        self.inner().entries.iter().map(told).collect()
    }

    /// The names of models that can be asked for and are not there.
    pub(crate) fn away(&self) -> Vec<String> {
        let is_away = |entry: &&Entry| !matches!(entry.state, State::Ready(_));
        let inner = self.inner();
        inner.entries.iter().filter(is_away).map(|entry| entry.name.clone()).collect()
    }

    /// Whether any model could be asked.
    ///
    /// # Errors
    /// 503, saying what is awaited.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.health() {
            Health::Ready => Ok(()),
            Health::Loading(step) => Err(loading(&step.words)),
            Health::Draining => {
                Err(ApiError::draining("the server is ending and takes nothing new"))
            }
            Health::Failed => Err(ApiError::failed("the engine's thread has ended; restart smelt")),
        }
    }

    /// The model called `name`; the first, if no name is given.
    ///
    /// # Errors
    /// 404 if there is none of that name, 503 while it is not ready: [`Self::wake`] it before.
    pub(crate) fn ask(&self, name: Option<&str>) -> Result<Model, ApiError> {
        self.check()?;
        let at = self.place(name)?;
        let mut inner = self.inner();
        inner.clock += 1;
        let used = inner.clock;
        let entry = &mut inner.entries[at];
        entry.used = used;
        match &entry.state {
            State::Ready(model) => Ok(model.clone()),
            State::Loading(step) => Err(loading(&step.words)),
            State::Away => Err(loading("it is not in memory")),
            State::Failed(failure) => {
                let why = format!("the model {:?} cannot be loaded: {}", entry.name, failure.why);
                let retry = failure.rest(Instant::now()).max(LOADING_RETRY);
                Err(ApiError::unavailable(why, "model_failed", retry))
            }
        }
    }

    /// Waits until the model called `name` is there, or cannot be.
    ///
    /// # Errors
    /// 404 if there is none of that name.
    pub(crate) async fn wake(&self, name: Option<&str>) -> Result<(), ApiError> {
        let at = self.place(name)?;
        if !self.want(at) {
            return Ok(());
        }
        let waited = async {
            loop {
                let changed = self.changed.notified();
                let state = self.inner().entries[at].state.clone();
                if !matches!(state, State::Loading(_)) {
                    return;
                }
                changed.await;
            }
        };
        // Who waited too long is told to come again.
        _ = timeout(WAKE_TIME_MAX, waited).await;
        Ok(())
    }

    /// Has a model loaded that is not there; says whether it is worth waiting for.
    fn want(&self, at: usize) -> bool {
        let mut inner = self.inner();
        let state = &mut inner.entries[at].state;
        match state {
            State::Ready(_) => false,
            State::Loading(_) => true,
            State::Failed(failure) if !failure.rest(Instant::now()).is_zero() => false,
            // A failure of before is tried again.
            State::Away | State::Failed(_) => {
                let is_ordered = self.orders.try_send(LoaderCommand::Load(at)).is_ok();
                if is_ordered {
                    *state = State::Loading("waiting for other models".into());
                }
                is_ordered
            }
        }
    }

    /// The name by which a model is known, of one that is asked for: as it is, or without the `:latest` that Ollama's
    /// clients put behind names.
    pub(crate) fn known(&self, name: Option<String>) -> Option<String> {
        let name = name?;
        let inner = self.inner();
        let is_known = |name: &str| inner.entries.iter().any(|entry| entry.name == name);
        let bare = name.strip_suffix(LATEST).filter(|bare| !is_known(&name) && is_known(bare));
        let bare = bare.map(str::to_owned);
        drop(inner);
        Some(bare.unwrap_or(name))
    }

    fn place(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let inner = self.inner();
        let is_meant = |entry: &Entry| name.is_none_or(|name| entry.name == name);
        let found = inner.entries.iter().position(is_meant);
        drop(inner);
        found.ok_or_else(|| self.unknown(name.unwrap_or_default()))
    }

    /// 404: there is no model called `name`.
    pub(crate) fn unknown(&self, name: &str) -> ApiError {
        let inner = self.inner();
        let known: Vec<&str> = inner.entries.iter().map(|entry| &entry.name[..]).collect();
        let why = format!("there is no model {name:?}, but {}", known.join(", "));
        let error = ApiError::new(StatusCode::NOT_FOUND, why).code("model_not_found");
        ApiError { param: Some("model".to_owned()), ..error }
    }

    /// How the server is.
    pub(crate) fn health(&self) -> Health {
        if self.is_draining() {
            return Health::Draining;
        }
        let has_begun = self.has_begun.load(Ordering::Acquire);
        let inner = self.inner();
        let mut states = inner.entries.iter().map(|entry| &entry.state);
        let is_dead = |state: &State| match state {
            State::Ready(model) => !model.running.is_alive(),
            State::Away | State::Loading(_) | State::Failed(_) => false,
        };
        match inner.entries.first().map(|first| &first.state) {
            _ if states.any(is_dead) => Health::Failed,
            Some(State::Loading(step)) if !has_begun => Health::Loading(step.clone()),
            // What is not in memory is loaded when it is asked for.
            _ => Health::Ready,
        }
    }
}

fn loading(doing: &str) -> ApiError {
    let why = format!("the model is not ready: {doing}");
    ApiError::unavailable(why, "model_loading", LOADING_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_loaded_is_tried_again_later() {
        let since = Instant::now();
        let failure = Failure { why: "no room".to_owned(), since };
        assert_eq!(failure.rest(since), FAILURE_TIME);
        assert_eq!(failure.rest(since + FAILURE_TIME), Duration::ZERO);
        let (models, orders) = Models::new(["first", "second"].map(str::to_owned).into());
        models.failed(1, "no room".to_owned());
        assert!(!models.want(1), "the refusal is remembered");
        assert!(orders.try_recv().is_err());
        let long_ago = since.checked_sub(FAILURE_TIME).unwrap();
        models.set(1, State::Failed(Failure { since: long_ago, ..failure }));
        assert!(models.want(1));
        assert_eq!(orders.try_recv(), Ok(LoaderCommand::Load(1)));
    }
}
