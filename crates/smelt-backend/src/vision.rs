//! Encodes images by executing a graph.
//!
//! Any [`Graph`] will do whose one input is square tiles (`[batch, channels, size, size]`) or the
//! patches of one picture (`[patches, values]`), and whose first output is tokens.  Outputs named
//! `deepstack_{i}` say more of the same tokens.  Pictures go through it one after another.  Knows
//! nothing of checkpoints, of how pictures are cut, or of prompts.

use std::ops::Range;
use std::sync::Arc;

use crate::grid::Grid;
use crate::{
    Constant, Graph, GraphError, GraphInput, GraphOutput, OpenError, Pending, Processors, Tensor,
    Value, Witness,
};

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
pub enum VisionError {
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
    Graph(#[from] GraphError),
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

/// What an engine gives of a tile or picture: handles that caches hold and decoders read.
#[derive(Clone, Debug)]
pub struct Features {
    /// How many tokens they are of.
    pub tokens: usize,
    /// `[…, tokens, hidden]`: what stands in the places of the tokens.
    pub embeds: Value,
    /// What blocks of the tower give of the same tokens, added behind the first layers of a decoder (deepstack).
    pub deepstack: Vec<Value>,
}

impl Features {
    /// The numbers in the host's memory.
    ///
    /// # Errors
    /// When the device fails, or they are no floats.
    pub fn to_host(&self) -> Result<HostFeatures, VisionError> {
        let floats = |value: &Value| match Arc::unwrap_or_clone(value.to_host()?) {
            Tensor::F32 { data, .. } => Ok(data),
            Tensor::I64 { shape, .. } => {
                Err(VisionError::Output { found: shape, tokens: self.tokens, hidden: 0 })
            }
        };
        let deepstack = self.deepstack.iter().map(floats).collect::<Result<_, _>>()?;
        Ok(HostFeatures { embeds: floats(&self.embeds)?, deepstack })
    }

    /// All of them: what stands in the places of the tokens, then what is added behind layers.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        [&self.embeds].into_iter().chain(&self.deepstack)
    }

    /// Bytes of all of them, wherever they lie.
    pub fn bytes(&self) -> usize {
        self.values().map(Value::bytes).sum()
    }
}

/// Features as plain numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFeatures {
    /// `[tokens, hidden]`.
    pub embeds: Vec<f32>,
    /// For each block of the tower that says more: `[tokens, hidden]`.
    pub deepstack: Vec<Vec<f32>>,
}

impl HostFeatures {
    /// As an engine hands them on, of so many tokens.
    pub fn into_features(self, tokens: usize) -> Features {
        let value = |data: Vec<f32>| {
            let hidden = data.len() / tokens.max(1);
            Value::from(Tensor::F32 { shape: vec![tokens, hidden], data })
        };
        let deepstack = self.deepstack.into_iter().map(value).collect();
        Features { tokens, embeds: value(self.embeds), deepstack }
    }
}

/// A stretch of the tokens of some features.
#[derive(Clone, Debug)]
pub struct FeatureSpan<'a> {
    /// Of which.
    pub features: &'a Features,
    /// Which tokens.
    pub tokens: Range<usize>,
}

/// Features that are still being computed.
#[derive(Debug)]
pub struct PendingFeatures {
    pending: Pending,
    tokens: usize,
    hidden: usize,
    deepstack: Vec<usize>,
}

impl PendingFeatures {
    /// Waits for them.
    ///
    /// # Errors
    /// When the graph fails or gives something else.
    pub fn wait(self) -> Result<Features, VisionError> {
        let Self { pending, tokens, hidden, deepstack } = self;
        let values = pending.wait()?;
        let take = |at: usize| checked(values.get(at), tokens, hidden);
        let deepstack = deepstack.into_iter().map(take).collect::<Result<_, _>>()?;
        Ok(Features { tokens, embeds: take(0)?, deepstack })
    }
}

/// An output that is `[…, tokens, hidden]`.
fn checked(value: Option<&Value>, tokens: usize, hidden: usize) -> Result<Value, VisionError> {
    let shape = value.map_or(&[][..], Value::shape);
    let fits = shape.last() == Some(&hidden) && shape.iter().product::<usize>() == tokens * hidden;
    match value {
        Some(value) if fits => Ok(value.clone()),
        _ => Err(VisionError::Output { found: shape.to_vec(), tokens, hidden }),
    }
}

/// An opened vision engine: a graph from images to tokens.
#[derive(Debug)]
pub struct VisionEngine {
    graph: Box<dyn Graph>,
    takes: Takes,
    /// The size of pictures it is for, where the engine says so.
    grid: Option<Grid>,
    tokens_per_tile: usize,
    hidden: usize,
    /// Which outputs say more of the tokens, in their order.
    deepstack: Vec<usize>,
}

impl VisionEngine {
    /// Of a graph, and the size of pictures that it is for where that is known.
    ///
    /// # Errors
    /// When the graph is not one from pictures to tokens.
    pub fn new(graph: Box<dyn Graph>, grid: Option<Grid>) -> Result<Self, OpenError> {
        let unfit = |problem| graph.unfit(PURPOSE, problem);
        let takes = takes_of(graph.inputs()).map_err(unfit)?;
        let outputs = graph.outputs();
        let tried = outputs.first().map_or(&[][..], |output| &output.tried);
        let (tokens_per_tile, hidden) = tokens_of(tried).map_err(unfit)?;
        let deepstack = deepstack_of(outputs, tokens_per_tile, hidden).map_err(unfit)?;
        Ok(Self { takes, grid, tokens_per_tile, hidden, deepstack, graph })
    }

    /// From now on the engine shares the processors of a decoder of the same back end.
    pub fn share(&mut self, processors: &Processors) {
        self.graph.share(processors);
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

    /// Compares the weights with the hash in `engine.json`; reads all of them, and tells `told` of each piece's bytes.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.graph.verify_digest(told)
    }

    /// The constant `name` of the graph, if it is of floats and a node reads it.
    pub fn constant(&self, name: &str) -> Option<Box<dyn Constant + '_>> {
        self.graph.constant(name)
    }

    /// Begins to encode one tile or picture, normalised, in the order of [`Self::takes`].
    ///
    /// # Errors
    /// When the numbers do not fill it, or the graph fails.
    pub fn submit(&self, numbers: Vec<f32>) -> Result<PendingFeatures, VisionError> {
        let per_tile = self.takes.numbers();
        if numbers.len() != per_tile {
            return Err(VisionError::Pixels { tiles: 1, per_tile, found: numbers.len() });
        }
        let input = Tensor::F32 { shape: self.takes.shape(), data: numbers };
        let pending = self.graph.submit(vec![input])?;
        let (tokens, hidden, deepstack) =
            (self.tokens_per_tile, self.hidden, self.deepstack.clone());
        Ok(PendingFeatures { pending, tokens, hidden, deepstack })
    }

    /// Encodes one tile or picture, normalised, in the order of [`Self::takes`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn features(&self, numbers: Vec<f32>) -> Result<Features, VisionError> {
        self.submit(numbers)?.wait()
    }

    /// Embeds `tiles` tiles or pictures one after another, so that memory does not grow with their
    /// number: numbers normalised, result `[tiles * tokens_per_tile, hidden]`.
    ///
    /// # Errors
    /// When the pixels do not fill the tiles, or the graph fails.
    pub fn encode(&self, pixels: &[f32], tiles: usize) -> Result<Vec<f32>, VisionError> {
        let per_tile = self.takes.numbers();
        if tiles.checked_mul(per_tile) != Some(pixels.len()) {
            return Err(VisionError::Pixels { tiles, per_tile, found: pixels.len() });
        }
        let mut out = Vec::with_capacity(tiles * self.tokens_per_tile * self.hidden);
        for tile in pixels.chunks_exact(per_tile.max(1)) {
            out.append(&mut self.features(tile.to_vec())?.to_host()?.embeds);
        }
        Ok(out)
    }
}

/// What the one input, `[batch, channels, size, size]` or `[patches, values]`, takes.
fn takes_of(inputs: &[GraphInput]) -> Result<Takes, String> {
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
    outputs: &[GraphOutput],
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
