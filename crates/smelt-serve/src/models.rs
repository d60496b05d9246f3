//! Owns the models that answer, and gives them out by name.
//!
//! There is one so far.  Whoever wants a model asks for it each time, so that it may be another one the
//! next time.  Knows nothing of requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use smelt_runtime::service::Service;

use crate::error::ApiError;

/// When to come again while a model is loaded: a second or two each gigabyte.
const LOADING_RETRY: Duration = Duration::from_secs(2);

/// When to come again while the server ends: another one has taken its place by then.
pub(crate) const DRAINING_RETRY: Duration = Duration::from_secs(5);

/// How far a model is.
#[derive(Clone, Debug)]
enum State {
    /// What is being done.
    Loading(String),
    Ready(Model),
}

/// A model that answers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// How clients call it.
    pub(crate) name: String,
    /// Seconds since 1970 when it was loaded.
    pub(crate) created: u64,
    /// Who does it.
    pub(crate) service: Service,
}

/// The models of a server.
#[derive(Debug)]
pub(crate) struct Models {
    state: Mutex<State>,
    is_draining: AtomicBool,
}

/// What `/health` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Ready,
    /// What is being done.
    Loading(String),
    Draining,
    /// A thread is gone, which is a fault of smelt.
    Failed,
}

impl Models {
    /// One model that is still to be loaded.
    pub(crate) fn new() -> Self {
        let state = Mutex::new(State::Loading("starting".to_owned()));
        Self { state, is_draining: false.into() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model is not ready, but being worked at.
    pub(crate) fn loading(&self, doing: &str) {
        *self.state() = State::Loading(doing.to_owned());
    }

    /// The model is ready.
    pub(crate) fn ready(&self, service: Service, name: Option<String>) {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = name.unwrap_or_else(|| service.text().spec.model.clone());
        *self.state() = State::Ready(Model { name, created, service });
        // Who was told to end meanwhile has nothing to begin with.
        if self.is_draining() {
            self.drain();
        }
    }

    /// Takes nothing new from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        if let Some(model) = self.all().first() {
            model.service.drain();
        }
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// The models that answer.
    pub(crate) fn all(&self) -> Vec<Model> {
        match &*self.state() {
            State::Loading(_) => Vec::new(),
            State::Ready(model) => vec![model.clone()],
        }
    }

    /// Whether any model could be asked.
    ///
    /// # Errors
    /// 503, saying what is awaited.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.health() {
            Health::Ready => Ok(()),
            Health::Loading(doing) => {
                let why = format!("the model is not ready: {doing}");
                Err(ApiError::unavailable(why, "model_loading", LOADING_RETRY))
            }
            Health::Draining => {
                let why = "the server is ending and takes nothing new";
                Err(ApiError::unavailable(why, "draining", DRAINING_RETRY))
            }
            Health::Failed => Err(ApiError::failed("the engine's thread has ended; restart smelt")),
        }
    }

    /// The model called `name`; the only one, if no name is given.
    ///
    /// # Errors
    /// 404 if there is none of that name, 503 while it is not ready.
    pub(crate) fn ask(&self, name: Option<&str>) -> Result<Model, ApiError> {
        self.check()?;
        let models = self.all();
        let found = models.iter().find(|model| name.is_none_or(|name| model.name == name));
        found.cloned().ok_or_else(|| {
            let known: Vec<&str> = models.iter().map(|model| &model.name[..]).collect();
            let name = name.unwrap_or_default();
            let why = format!("there is no model {name:?}, but {}", known.join(", "));
            let error = ApiError::new(StatusCode::NOT_FOUND, why).code("model_not_found");
            ApiError { param: Some("model".to_owned()), ..error }
        })
    }

    /// How the server is.
    pub(crate) fn health(&self) -> Health {
        if self.is_draining() {
            return Health::Draining;
        }
        match &*self.state() {
            State::Loading(doing) => Health::Loading(doing.clone()),
            State::Ready(model) if model.service.is_alive() => Health::Ready,
            State::Ready(_) => Health::Failed,
        }
    }
}
