//! Encodes pictures by executing an ONNX graph on the CPU.
//!
//! [`build`] packs a graph and its weights into an engine directory; [`VisionEngine`] opens one and
//! runs the graph it was given, node by node: renaming values or inserting `Identity` changes
//! nothing, another GELU changes exactly the answer.  Knows nothing of checkpoints, tiles or
//! prompts.

mod array;
mod build;
mod graph;
mod op;
mod ops;
mod program;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine_file::EngineFile;
pub use crate::engine_file::OpenError;
use crate::kernels::isa::Isa;
use crate::kernels::threads::Threads;
use array::{Array, Value, Weight};
pub use build::{BuildError, build};
use graph::GraphFile;
use ops::Machine;
use program::Program;

/// What `engine.json` calls this kind.
pub(crate) const KIND: &str = "vision";

/// Float constants of up to this many numbers (norms, biases) are widened when the engine is
/// opened.
const WIDE_NUMBERS_MAX: usize = 1 << 14;

/// The sizes of a vision engine, and its graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VisionFile {
    pub(crate) channels: usize,
    pub(crate) image_size: usize,
    pub(crate) tokens_per_tile: usize,
    pub(crate) hidden: usize,
    pub(crate) graph: GraphFile,
}

/// Why pictures could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The pixels do not fill the tiles.
    #[error("{tiles} tiles of {per_tile} numbers were announced, but {found} numbers came")]
    Pixels {
        /// How many tiles the caller named.
        tiles: usize,
        /// `channels * image_size²`.
        per_tile: usize,
        /// How many numbers came.
        found: usize,
    },
    /// An operator cannot take the values it met.
    #[error("the graph cannot run: {0}")]
    Graph(String),
    /// The graph gave something else than `[tokens, hidden]` a tile.
    #[error("the graph gave {found:?} for a tile instead of {tokens} tokens of {hidden}")]
    Output {
        /// The shape it gave.
        found: Vec<usize>,
        /// Tokens the engine promises.
        tokens: usize,
        /// Numbers a token.
        hidden: usize,
    },
}

/// An opened vision engine.
#[derive(Debug)]
pub struct VisionEngine {
    file: EngineFile<VisionFile>,
    program: Program,
    isa: Isa,
    threads: Threads,
}

impl VisionEngine {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no vision engine of this version, or its parts disagree.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::new(EngineFile::open(dir, KIND)?)
    }

    fn new(file: EngineFile<VisionFile>) -> Result<Self, OpenError> {
        let (isa, threads) = (Isa::detect(), Threads::available());
        let machine = Machine { isa, threads, weights: &file.weights };
        let constants = load_constants(&file, machine)?;
        let program = Program::new(&file.engine.graph, &constants, machine)
            .map_err(|problem| file.damaged(problem))?;
        Ok(Self { file, program, isa, threads })
    }

    /// Uses `count` threads instead of as many as there are processors; the numbers stay the same.
    #[must_use]
    pub fn with_threads(mut self, count: usize) -> Self {
        self.threads = Threads::new(count);
        self
    }

    /// Edge of a tile in pixels.
    pub fn image_size(&self) -> usize {
        self.file.engine.image_size
    }

    /// Image tokens that each tile gives.
    pub fn tokens_per_tile(&self) -> usize {
        self.file.engine.tokens_per_tile
    }

    /// Numbers in each token.
    pub fn hidden(&self) -> usize {
        self.file.engine.hidden
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        self.file.verify_digest()
    }

    /// Embeds `tiles` tiles: pixels `[tiles, channels, image_size, image_size]` already normalised,
    /// result `[tiles * tokens_per_tile, hidden]`.  Tiles go one after another, so that memory does
    /// not grow with their number.
    ///
    /// # Errors
    /// When the pixels do not fill the tiles, or the graph fails.
    pub fn encode(&mut self, pixels: &[f32], tiles: usize) -> Result<Vec<f32>, RunError> {
        let VisionFile { channels, image_size, tokens_per_tile, hidden, .. } = self.file.engine;
        let per_tile = channels * image_size * image_size;
        if tiles.checked_mul(per_tile) != Some(pixels.len()) {
            return Err(RunError::Pixels { tiles, per_tile, found: pixels.len() });
        }
        let mut out = Vec::with_capacity(tiles * tokens_per_tile * hidden);
        for tile in pixels.chunks_exact(per_tile.max(1)) {
            let shape = vec![1, channels, image_size, image_size];
            let array = self.run(Array::new(shape, tile.to_vec()))?;
            if !is_tokens(array.shape(), tokens_per_tile, hidden) {
                let found = array.shape().to_vec();
                return Err(RunError::Output { found, tokens: tokens_per_tile, hidden });
            }
            out.extend_from_slice(array.data());
        }
        Ok(out)
    }

    /// Runs the graph on one tile.
    fn run(&self, tile: Array<f32>) -> Result<Array<f32>, RunError> {
        let machine = Machine { isa: self.isa, threads: self.threads, weights: &self.file.weights };
        match self.program.run(Value::F32(tile), machine).map_err(RunError::Graph)? {
            Value::F32(array) => Ok(array),
            Value::Weight(weight) => Ok(machine.widen(&weight)),
            Value::I64(_) => Err(RunError::Graph("its output is integers".to_owned())),
        }
    }
}

fn is_tokens(shape: &[usize], tokens: usize, hidden: usize) -> bool {
    shape.last() == Some(&hidden) && shape.iter().product::<usize>() == tokens * hidden
}

fn load_constants(
    file: &EngineFile<VisionFile>,
    machine: Machine<'_>,
) -> Result<BTreeMap<String, Value>, OpenError> {
    let mut constants = BTreeMap::new();
    for name in file.names() {
        let stored = file.stored(name).expect("the name came from the file");
        let shape = stored.shape.clone();
        let value = if let Some(numbers) = file.weights.integers(stored) {
            Value::I64(Array::new(shape, numbers.to_vec()))
        } else if file.weights.elements(stored).is_some() {
            let weight = Weight { stored: Arc::new(stored.clone()), shape, transposed: false };
            let small = weight.shape.iter().product::<usize>() <= WIDE_NUMBERS_MAX;
            if small { Value::F32(machine.widen(&weight)) } else { Value::Weight(weight) }
        } else {
            return Err(file.damaged(format!("tensor {name:?} has dtype {}", stored.dtype)));
        };
        constants.insert(name.to_owned(), value);
    }
    Ok(constants)
}
