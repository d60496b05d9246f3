//! Encodes pictures by executing an ONNX graph on the CPU.
//!
//! Any graph engine will do whose one input is square tiles (`[batch, channels, size, size]`) or the
//! patches of one picture (`[patches, values]`), and whose first output is tokens.  Outputs named
//! `deepstack_{i}` say more of the same tokens.  Pictures go through it one after another.  Knows
//! nothing of checkpoints, of how pictures are cut, or of prompts.

use std::path::Path;

pub use smelt_model::grid::{Grid, Lattice};

pub use crate::engine_file::OpenError;
use crate::executor::Executor;
pub use crate::graph::Constant;
pub use crate::graph::Pause;
pub use crate::graph::{BuildError, Precision, build};
use crate::graph::{InputFile, OutputFile, Tensor};

/// What a graph must be to be opened here, in messages.
const PURPOSE: &str = "pictures";
/// A tile larger than this is a broken graph (the largest vision towers take 1792 pixels).
const IMAGE_SIZE_MAX: usize = 1 << 14;
/// A picture has at most these channels.
const CHANNELS_MAX: usize = 4;
/// More patches of one picture than any processor lets through (16,777,216 pixels of 14 x 14).
const PATCHES_MAX: usize = 1 << 17;
/// More values of one patch than any tower reads (2 frames of 3 channels of 32 x 32 have 6144).
const VALUES_MAX: usize = 1 << 16;
/// How the outputs begin that say more of the tokens.
const DEEPSTACK: &str = "deepstack_";

/// Why pictures could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The pixels do not fill the tiles.
    #[error("{tiles} tiles of {per_tile} numbers were announced, but {found} numbers came")]
    Pixels {
        /// How many tiles the caller named.
        tiles: usize,
        /// Numbers of one: `channels * image_size²`, or those of all patches.
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

/// What a vision engine reads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A square tile, `[channels, side, side]`.
    Tile {
        /// Colour channels.
        channels: usize,
        /// Pixels on a side.
        side: usize,
    },
    /// One picture as `[patches, values]`.
    Patches {
        /// Patches of the picture.
        patches: usize,
        /// Values of one.
        values: usize,
    },
}

impl Takes {
    /// How many numbers that is.
    pub fn numbers(self) -> usize {
        match self {
            Self::Tile { channels, side } => channels * side * side,
            Self::Patches { patches, values } => patches * values,
        }
    }

    fn shape(self) -> Vec<usize> {
        match self {
            Self::Tile { channels, side } => vec![1, channels, side, side],
            Self::Patches { patches, values } => vec![patches, values],
        }
    }
}

/// What an engine says of a tile or picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// `[tokens, hidden]`.
    pub embeds: Vec<f32>,
    /// What blocks of the tower say of the same tokens: for each `[tokens, hidden]`.
    pub deepstack: Vec<Vec<f32>>,
}

/// An opened vision engine.
#[derive(Debug)]
pub struct VisionEngine {
    graph: Executor,
    takes: Takes,
    /// The size of pictures it is for, where the engine says so.
    grid: Option<Grid>,
    tokens_per_tile: usize,
    hidden: usize,
    /// Which outputs say more of the tokens, in their order.
    deepstack: Vec<usize>,
}

impl VisionEngine {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no graph engine of this version, its parts disagree, its graph
    /// is not one from pictures to tokens, or there are several.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let mut engines = Self::open_all(dir)?;
        match engines.pop() {
            Some(engine) if engines.is_empty() => Ok(engine),
            _ => Err(Executor::open(dir).err().unwrap_or_else(|| OpenError::Unfit {
                path: dir.to_owned(),
                purpose: PURPOSE,
                problem: "it holds no graph".to_owned(),
            })),
        }
    }

    /// Opens the engines in `dir`, one for each size of pictures.  They share their weights, which are
    /// mapped and not read.
    ///
    /// # Errors
    /// As [`Self::open`], several engines apart.
    pub fn open_all(dir: &Path) -> Result<Vec<Self>, OpenError> {
        Executor::open_all(dir)?.into_iter().map(|(grid, graph)| Self::new(graph, grid)).collect()
    }

    fn new(graph: Executor, grid: Option<Grid>) -> Result<Self, OpenError> {
        let unfit = |problem| graph.unfit(PURPOSE, problem);
        let takes = takes_of(graph.inputs()).map_err(unfit)?;
        let outputs = graph.outputs();
        let tried = outputs.first().map_or(&[][..], |output| &output.tried);
        let (tokens_per_tile, hidden) = tokens_of(tried).map_err(unfit)?;
        let deepstack = deepstack_of(outputs, tokens_per_tile, hidden).map_err(unfit)?;
        Ok(Self { takes, grid, tokens_per_tile, hidden, deepstack, graph })
    }

    /// Uses `count` threads instead of as many as there are processors; the numbers stay the same.
    #[must_use]
    pub fn with_threads(mut self, count: usize) -> Self {
        self.graph = self.graph.with_threads(count);
        self
    }

    /// Calls `pause` before each task of the graph, where the engine is the native one.
    #[must_use]
    pub fn with_pause(mut self, pause: Pause) -> Self {
        self.graph = self.graph.with_pause(pause);
        self
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    pub fn untuned(&self) -> Option<&str> {
        self.graph.untuned()
    }

    /// What it reads at a time.
    pub fn takes(&self) -> Takes {
        self.takes
    }

    /// The size of pictures it is for: that of a tile, or what the engine was built for; nothing where
    /// an engine of patches does not say.
    pub fn grid(&self) -> Option<Grid> {
        match self.takes {
            Takes::Tile { side, .. } => Some(Grid { height: side, width: side }),
            Takes::Patches { .. } => self.grid,
        }
    }

    /// Image tokens that each tile or picture gives.
    pub fn tokens_per_tile(&self) -> usize {
        self.tokens_per_tile
    }

    /// Numbers in each token.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// How many blocks of the tower say more of the tokens.
    pub fn deepstack(&self) -> usize {
        self.deepstack.len()
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

    /// Encodes one tile or picture, normalised, in the order of [`Self::takes`].
    ///
    /// # Errors
    /// When the numbers do not fill it, or the graph fails.
    pub fn see(&mut self, numbers: Vec<f32>) -> Result<Seen, RunError> {
        let per_tile = self.takes.numbers();
        if numbers.len() != per_tile {
            return Err(RunError::Pixels { tiles: 1, per_tile, found: numbers.len() });
        }
        let input = Tensor::F32 { shape: self.takes.shape(), data: numbers };
        let mut outputs = self.graph.run(vec![input])?;
        let deepstack = self.deepstack.iter().map(|at| self.rows(outputs.get_mut(*at)));
        let deepstack = deepstack.collect::<Result<Vec<_>, _>>()?;
        Ok(Seen { embeds: self.rows(outputs.first_mut())?, deepstack })
    }

    /// Embeds `tiles` tiles or pictures one after another, so that memory does not grow with their
    /// number: numbers normalised, result `[tiles * tokens_per_tile, hidden]`.
    ///
    /// # Errors
    /// When the pixels do not fill the tiles, or the graph fails.
    pub fn encode(&mut self, pixels: &[f32], tiles: usize) -> Result<Vec<f32>, RunError> {
        let per_tile = self.takes.numbers();
        if tiles.checked_mul(per_tile) != Some(pixels.len()) {
            return Err(RunError::Pixels { tiles, per_tile, found: pixels.len() });
        }
        let mut out = Vec::with_capacity(tiles * self.tokens_per_tile * self.hidden);
        for tile in pixels.chunks_exact(per_tile.max(1)) {
            out.append(&mut self.see(tile.to_vec())?.embeds);
        }
        Ok(out)
    }

    /// The numbers of an output that is `[…, tokens, hidden]`.
    fn rows(&self, output: Option<&mut Tensor>) -> Result<Vec<f32>, RunError> {
        let (tokens, hidden) = (self.tokens_per_tile, self.hidden);
        match output {
            Some(Tensor::F32 { shape, data })
                if shape.last() == Some(&hidden) && data.len() == tokens * hidden =>
            {
                Ok(std::mem::take(data))
            }
            other => {
                let found = other.map_or_else(Vec::new, |output| output.shape().to_vec());
                Err(RunError::Output { found, tokens, hidden })
            }
        }
    }
}

/// What the one input, `[batch, channels, size, size]` or `[patches, values]`, takes.
fn takes_of(inputs: &[InputFile]) -> Result<Takes, String> {
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
            Ok(Takes::Tile { channels, side: width })
        }
        [Some(patches), Some(values)]
            if !input.integer
                && (1..=PATCHES_MAX).contains(&patches)
                && (1..=VALUES_MAX).contains(&values) =>
        {
            Ok(Takes::Patches { patches, values })
        }
        _ => Err(format!(
            "its input is {:?}, not [batch, channels, size, size] with a batch of 1 or any, nor [patches, values]",
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

/// Which outputs are `deepstack_0`, `deepstack_1`, …, each of the shape of the embeddings.
fn deepstack_of(
    outputs: &[OutputFile],
    tokens: usize,
    hidden: usize,
) -> Result<Vec<usize>, String> {
    let count = outputs.iter().filter(|output| output.name.starts_with(DEEPSTACK)).count();
    let place = |index: usize| {
        let name = format!("{DEEPSTACK}{index}");
        let at = outputs.iter().position(|output| output.name == name);
        at.filter(|at| tokens_of(&outputs[*at].tried) == Ok((tokens, hidden)))
            .ok_or_else(|| format!("it has no output {name} of {tokens} tokens of {hidden}"))
    };
    (0..count).map(place).collect()
}
