//! Why nothing could be built: one type for engines of all kinds and back ends.

use std::io;
use std::path::PathBuf;

use smelt_backend::{GraphError, OpenError, RunError};
use smelt_engine::onnxruntime::LibraryError;
use smelt_model::checkpoint::CheckpointError;
use smelt_model::export::GridsError;

/// Why a checkpoint or a graph could not become an engine.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The library of the back end is not here.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The limits make no engine.
    #[error("{problem}; set limits the model can hold")]
    Limits {
        /// What is wrong with them.
        problem: String,
    },
    /// No card runs such a model.
    #[error("{0}")]
    Card(String),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model file cannot be read.
    #[error(transparent)]
    Read(#[from] smelt_onnx::ReadError),
    /// The list of graphs for sizes of pictures cannot be used.
    #[error(transparent)]
    Grids(#[from] GridsError),
    /// The model file breaks the standard's rules.
    #[error("{} is no valid graph: {source}", path.display())]
    Check {
        /// The model file.
        path: PathBuf,
        /// The first broken rule.
        source: smelt_onnx::CheckError,
    },
    /// The back end cannot execute the graph.
    #[error("{} cannot become an engine of the back end {backend}: {problem}", path.display())]
    Graph {
        /// The model file.
        path: PathBuf,
        /// The back end, as pipelines name it.
        backend: &'static str,
        /// The node, and what is wrong with it.
        problem: String,
    },
    /// A weight cannot be read.
    #[error(transparent)]
    Weight(#[from] smelt_onnx::DataError),
    /// The graph cannot be written.
    #[error(transparent)]
    WriteGraph(#[from] smelt_onnx::WriteError),
    /// The engine cannot be written.
    #[error("cannot write the engine in {}: {source}", dir.display())]
    Write {
        /// The engine's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The finished engine does not open.
    #[error("the engine does not open: {0}")]
    Open(#[from] OpenError),
    /// The finished engine of a graph does not run.
    #[error("the engine does not run: {0}")]
    RunGraph(#[from] GraphError),
    /// The finished engine of a decoder does not run.
    #[error("the engine does not run: {0}")]
    RunDecoder(#[from] RunError),
    /// The finished engine gives numbers that are no numbers.
    #[error("the engine gives {found} for {tried}; the weights are not usable in its arithmetic")]
    NotFinite {
        /// The first such number.
        found: f32,
        /// What it was tried with.
        tried: &'static str,
    },
    /// A value of a graph holds what is no number.
    #[error("the value {name:?} holds NaN; the graph is not usable on such input")]
    NotANumber {
        /// Its name.
        name: String,
    },
}
