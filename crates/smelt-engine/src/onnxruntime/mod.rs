//! Executes ONNX graphs by ONNX Runtime, whose shared library is found on the machine.
//!
//! For graphs with operators that the native engine does not have.  An engine is a directory like any
//! other: `engine.json` and `weights.bin` beside `model.onnx`, whose weights are ranges of
//! `weights.bin`.  What it holds comes from the graph alone; which version computes it is the machine's
//! affair.  Knows nothing of pictures or texts.

mod backend;
mod library;
#[cfg_attr(target_env = "musl", path = "static_session.rs")]
mod session;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use smelt_tensor::dtype::Dtype;

use crate::engine_file::{EngineFile, OpenError, Unsealed};
use smelt_backend::{GraphInput, GraphOutput, Witness, files};

use crate::graph::{Constant, RunError, Tensor};
pub use library::{LibraryError, VARIABLE, find, load};
use session::Session;

/// What `engine.json` calls this kind.
pub const KIND: &str = "onnxruntime";
/// The graph's file in the engine's directory.
pub const MODEL_FILE: &str = "model.onnx";

/// What `engine.json` says of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnnxFile {
    /// Of `model.onnx`.
    sha256: String,
    inputs: Vec<GraphInput>,
    /// What the graph gives, in its order.
    pub outputs: Vec<GraphOutput>,
}

impl OnnxFile {
    /// Of the graph in `model`, the bytes of [`MODEL_FILE`].
    pub fn new(model: &[u8], inputs: Vec<GraphInput>, outputs: Vec<GraphOutput>) -> Self {
        Self { sha256: files::hex(&Sha256::digest(model)), inputs, outputs }
    }
}

/// An opened engine that ONNX Runtime executes.
#[derive(Debug)]
pub struct OnnxruntimeEngine {
    file: EngineFile<OnnxFile>,
    threads: Option<usize>,
    /// Begun by the first run: it reads and repacks all weights, which an engine that is only looked
    /// at does not need.
    session: OnceLock<Mutex<Session>>,
}

impl OnnxruntimeEngine {
    /// Opens the engine in `dir`, and loads ONNX Runtime's library.  The graph itself is read by the
    /// first run.
    ///
    /// # Errors
    /// When the directory holds no such engine of this version, or the library is not here.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::new(EngineFile::open(dir, KIND)?)
    }

    /// Opens an engine whose `engine.json` is not written yet, to try it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn preview(unsealed: &Unsealed<OnnxFile>) -> Result<Self, OpenError> {
        Self::new(unsealed.preview()?)
    }

    fn new(file: EngineFile<OnnxFile>) -> Result<Self, OpenError> {
        library::load().map_err(|error| OpenError::Library(error.to_string()))?;
        Ok(Self { file, threads: None, session: OnceLock::new() })
    }

    /// Uses `count` threads instead of as many as there are processors.
    #[must_use]
    pub fn with_threads(self, count: usize) -> Self {
        Self { threads: Some(count), session: OnceLock::new(), ..self }
    }

    /// What the graph reads, in its order.
    pub fn inputs(&self) -> &[GraphInput] {
        &self.file.engine.inputs
    }

    /// What the graph gives, in its order.
    pub fn outputs(&self) -> &[GraphOutput] {
        &self.file.engine.outputs
    }

    /// Compares graph and weights with the hashes in `engine.json`; reads all of them, and tells `told` of each piece's
    /// bytes.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.file.verify_digest(told)?;
        let path = self.file.dir().join(MODEL_FILE);
        let bytes =
            fs::read(&path).map_err(|source| OpenError::Read { path: path.clone(), source })?;
        told.has_read(bytes.len() as u64);
        files::check_sha256(&path, &Sha256::digest(&bytes), &self.file.engine.sha256)
    }

    /// The constant `name`, if it is of floats.
    pub fn constant(&self, name: &str) -> Option<Constant<'_>> {
        let stored = self.file.stored(name)?;
        let elements = self.file.weights.elements(stored)?;
        let dtype = stored.dtype;
        (dtype != Dtype::I8).then(|| Constant::of_rows(elements, dtype))
    }

    /// The refusal of an engine that does not serve its purpose.
    pub(crate) fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        self.file.unfit(purpose, problem)
    }

    /// Runs the graph on `inputs`, in the order of [`Self::inputs`]; gives its outputs in the order
    /// of [`Self::outputs`].
    ///
    /// # Errors
    /// When an input has another type or shape than the graph declares, or ONNX Runtime refuses the
    /// graph or fails.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, RunError> {
        GraphInput::check_all(self.inputs(), &inputs)?;
        let mut session = self.session()?.lock().unwrap_or_else(PoisonError::into_inner);
        session.run(inputs).map_err(said)
    }

    fn session(&self) -> Result<&Mutex<Session>, RunError> {
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        let path = self.file.dir().join(MODEL_FILE);
        let session = Session::begin(&path, self.threads).map_err(said)?;
        Ok(self.session.get_or_init(|| Mutex::new(session)))
    }
}

fn said(problem: String) -> RunError {
    RunError::Graph(format!("ONNX Runtime: {problem}"))
}
