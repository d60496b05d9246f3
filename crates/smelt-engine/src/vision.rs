//! Encodes pictures by executing an ONNX graph on the CPU.
//!
//! Any graph engine whose one input is square pictures and whose first output is tokens will do;
//! pictures go through it one after another.  Knows nothing of checkpoints, tiles or prompts.

use std::path::Path;

pub use crate::engine_file::OpenError;
use crate::executor::Executor;
pub use crate::graph::Constant;
pub use crate::graph::{BuildError, Precision, build};
use crate::graph::{InputFile, Tensor};

/// What a graph must be to be opened here, in messages.
const PURPOSE: &str = "pictures";
/// A tile larger than this is a broken graph (the largest vision towers take 1792 pixels).
const IMAGE_SIZE_MAX: usize = 1 << 14;
/// A picture has at most these channels.
const CHANNELS_MAX: usize = 4;

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
    /// The graph failed.
    #[error(transparent)]
    Graph(#[from] crate::graph::RunError),
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
    graph: Executor,
    channels: usize,
    image_size: usize,
    tokens_per_tile: usize,
    hidden: usize,
}

impl VisionEngine {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no graph engine of this version, its parts disagree, or its graph
    /// is not one from pictures to tokens.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let graph = Executor::open(dir)?;
        let (channels, image_size) =
            image_of(graph.inputs()).map_err(|problem| graph.unfit(PURPOSE, problem))?;
        let tried = graph.outputs().first().map_or(&[][..], |output| &output.tried);
        let (tokens_per_tile, hidden) =
            tokens_of(tried).map_err(|problem| graph.unfit(PURPOSE, problem))?;
        Ok(Self { graph, channels, image_size, tokens_per_tile, hidden })
    }

    /// Uses `count` threads instead of as many as there are processors; the numbers stay the same.
    #[must_use]
    pub fn with_threads(mut self, count: usize) -> Self {
        self.graph = self.graph.with_threads(count);
        self
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    pub fn untuned(&self) -> Option<&str> {
        self.graph.untuned()
    }

    /// Edge of a tile in pixels.
    pub fn image_size(&self) -> usize {
        self.image_size
    }

    /// Channels of a pixel.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Image tokens that each tile gives.
    pub fn tokens_per_tile(&self) -> usize {
        self.tokens_per_tile
    }

    /// Numbers in each token.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        self.graph.verify_digest()
    }

    /// The constant `name` of the graph, if it is of floats and a node reads it.
    pub fn constant(&self, name: &str) -> Option<Constant<'_>> {
        self.graph.constant(name)
    }

    /// Embeds `tiles` tiles: pixels `[tiles, channels, image_size, image_size]` already normalised,
    /// result `[tiles * tokens_per_tile, hidden]`.  Tiles go one after another, so that memory does
    /// not grow with their number.
    ///
    /// # Errors
    /// When the pixels do not fill the tiles, or the graph fails.
    pub fn encode(&mut self, pixels: &[f32], tiles: usize) -> Result<Vec<f32>, RunError> {
        let &mut Self { channels, image_size, tokens_per_tile: tokens, hidden, .. } = self;
        let per_tile = channels * image_size * image_size;
        if tiles.checked_mul(per_tile) != Some(pixels.len()) {
            return Err(RunError::Pixels { tiles, per_tile, found: pixels.len() });
        }
        let mut out = Vec::with_capacity(tiles * tokens * hidden);
        for tile in pixels.chunks_exact(per_tile.max(1)) {
            let shape = vec![1, channels, image_size, image_size];
            let outputs = self.graph.run(vec![Tensor::F32 { shape, data: tile.to_vec() }])?;
            let first = outputs.first().expect("opening found an output");
            let is_whole = is_tokens(first.shape(), tokens, hidden);
            let Some(embeds) = first.floats().filter(|_| is_whole) else {
                let found = first.shape().to_vec();
                return Err(RunError::Output { found, tokens, hidden });
            };
            out.extend_from_slice(embeds);
        }
        Ok(out)
    }
}

fn is_tokens(shape: &[usize], tokens: usize, hidden: usize) -> bool {
    shape.last() == Some(&hidden) && shape.iter().product::<usize>() == tokens * hidden
}

/// Channels and image size of the one input `[batch, channels, size, size]`.
fn image_of(inputs: &[InputFile]) -> Result<(usize, usize), String> {
    let [input] = inputs else {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        return Err(format!("it has one input for them, this graph has [{}]", names.join(", ")));
    };
    match *input.dims {
        [None | Some(1), Some(channels), Some(height), Some(width)]
            if !input.integer
                && height == width
                && (1..=IMAGE_SIZE_MAX).contains(&width)
                && (1..=CHANNELS_MAX).contains(&channels) =>
        {
            Ok((channels, width))
        }
        _ => Err(format!(
            "its input is {:?}, not [batch, channels, size, size] with a batch of 1 or any",
            input.dims
        )),
    }
}

/// Tokens and hidden size of an output `[…, tokens, hidden]` of one tile.
fn tokens_of(shape: &[usize]) -> Result<(usize, usize), String> {
    match shape {
        [outer @ .., hidden] if !outer.is_empty() && shape.iter().all(|&dim| dim > 0) => {
            Ok((outer.iter().product(), *hidden))
        }
        _ => Err(format!("its output is {shape:?} for one tile, not [tokens, hidden]")),
    }
}
