//! Opens the engine of a graph, whichever back end executes it.
//!
//! `engine.json` says which one built it; callers see inputs, outputs and numbers.

use std::path::Path;

use smelt_model::grid::Grid;

use crate::engine_file::OpenError;
use crate::graph::{Constant, GraphEngine, InputFile, OutputFile, Pause, RunError, Tensor};
use crate::onnxruntime::{self, OnnxruntimeEngine};

/// An opened engine of a graph.
#[derive(Debug)]
pub enum Executor {
    /// The native engine.
    Native(Box<GraphEngine>),
    /// ONNX Runtime.
    Onnxruntime(Box<OnnxruntimeEngine>),
}

impl Executor {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no engine of a graph of this version, its parts disagree, or what
    /// executes it is not on this machine.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        match GraphEngine::open(dir) {
            Err(OpenError::OtherKind { found, .. }) if found == onnxruntime::KIND => {
                OnnxruntimeEngine::open(dir).map(|engine| Self::Onnxruntime(Box::new(engine)))
            }
            native => native.map(|engine| Self::Native(Box::new(engine))),
        }
    }

    /// Opens the engines in `dir`, with the size of pictures that each is for where there is a list of
    /// them.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_all(dir: &Path) -> Result<Vec<(Option<Grid>, Self)>, OpenError> {
        match GraphEngine::open_all(dir) {
            Err(OpenError::OtherKind { found, .. }) if found == onnxruntime::KIND => {
                Ok(vec![(None, Self::open(dir)?)])
            }
            native => {
                let native = native?.into_iter();
                Ok(native.map(|(grid, engine)| (grid, Self::Native(Box::new(engine)))).collect())
            }
        }
    }

    /// Uses `count` threads instead of as many as there are processors.
    #[must_use]
    pub fn with_threads(self, count: usize) -> Self {
        match self {
            Self::Native(engine) => Self::Native(Box::new(engine.with_threads(count))),
            Self::Onnxruntime(engine) => Self::Onnxruntime(Box::new(engine.with_threads(count))),
        }
    }

    /// Calls `pause` before each task of the graph, where the engine is the native one; the other runs through.
    #[must_use]
    pub fn with_pause(self, pause: Pause) -> Self {
        match self {
            Self::Native(engine) => Self::Native(Box::new(engine.with_pause(pause))),
            Self::Onnxruntime(engine) => Self::Onnxruntime(engine),
        }
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    pub fn untuned(&self) -> Option<&str> {
        match self {
            Self::Native(engine) => engine.untuned(),
            Self::Onnxruntime(_) => None,
        }
    }

    /// What the graph reads, in its order.
    pub fn inputs(&self) -> &[InputFile] {
        match self {
            Self::Native(engine) => engine.inputs(),
            Self::Onnxruntime(engine) => engine.inputs(),
        }
    }

    /// What the graph gives, in its order.
    pub fn outputs(&self) -> &[OutputFile] {
        match self {
            Self::Native(engine) => engine.outputs(),
            Self::Onnxruntime(engine) => engine.outputs(),
        }
    }

    /// Compares what the engine holds with the hashes in `engine.json`; reads all of it.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        match self {
            Self::Native(engine) => engine.verify_digest(),
            Self::Onnxruntime(engine) => engine.verify_digest(),
        }
    }

    /// The constant `name`, if the graph has one of floats.
    pub fn constant(&self, name: &str) -> Option<Constant<'_>> {
        match self {
            Self::Native(engine) => engine.constant(name),
            Self::Onnxruntime(engine) => engine.constant(name),
        }
    }

    /// The refusal of an engine that does not serve its purpose.
    pub(crate) fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        match self {
            Self::Native(engine) => engine.unfit(purpose, problem),
            Self::Onnxruntime(engine) => engine.unfit(purpose, problem),
        }
    }

    /// Runs the graph on `inputs`, in the order of [`Self::inputs`]; gives its outputs in the order
    /// of [`Self::outputs`].
    ///
    /// # Errors
    /// When an input has another type or shape than the graph declares, or an operator fails.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, RunError> {
        match self {
            Self::Native(engine) => engine.run(inputs),
            Self::Onnxruntime(engine) => engine.run(inputs),
        }
    }
}
