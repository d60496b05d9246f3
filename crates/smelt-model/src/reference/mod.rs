//! Evaluates a checkpoint in f32, layer by layer, as the answer engines are compared with.
//!
//! Pixels or tokens come in; image embeddings or logits come out.  Weights stream through one
//! block of rows at a time, so a model of any size runs in the memory of its activations.
//! Shares no arithmetic with any engine and knows of none.

use std::ops::Range;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::grid::{Grid, GridError};
use crate::model::Vision;
use crate::position_ids::PositionId;

pub mod compare;

mod attention;
mod elementary;
#[cfg(test)]
mod golden;
mod llm;
pub(crate) mod matmul;
mod patches;
mod peaks;
mod pointwise;
mod smolvlm;
mod stream;
mod threads;
mod tiles;
mod vision;

pub use peaks::Peak;
use peaks::Peaks;
use stream::Stream;

/// The largest block of weight rows held as f32; its packed copy is as large again.
pub const BLOCK_BYTES: usize = 8 << 20;

/// Why a reference could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The pixels are not whole tiles.
    #[error("{tiles} tiles of {per_tile} pixel values need {} values, got {found}", tiles.saturating_mul(*per_tile))]
    Pixels {
        /// Tiles asked for.
        tiles: usize,
        /// Values of one tile, `channels * side * side`.
        per_tile: usize,
        /// Values given.
        found: usize,
    },
    /// The picture's size is none that the tower takes.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The pixels are not the picture's patches.
    #[error("{patches} patches of {values} values need {} values, got {found}", patches * values)]
    Patches {
        /// Patches of the picture.
        patches: usize,
        /// Values of one, `channels * frames * patch * patch`.
        values: usize,
        /// Values given.
        found: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {token} at position {position} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Where it is in the prompt.
        position: usize,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// The prompt has more or fewer image tokens than there are embeddings.
    #[error("the prompt has {tokens} image tokens of width {width}, but {found} embedding values")]
    ImageTokens {
        /// Image tokens in the prompt.
        tokens: usize,
        /// Channels of a token.
        width: usize,
        /// Embedding values given.
        found: usize,
    },
    /// The positions asked for are not in the prompt.
    #[error("positions {}..{} are not in a prompt of {tokens} tokens", positions.start, positions.end)]
    Positions {
        /// Positions asked for.
        positions: Range<usize>,
        /// Tokens in the prompt.
        tokens: usize,
    },
    /// There is not a place for every token.
    #[error(
        "the prompt has {tokens} tokens but {found} places; this model turns by three positions a token"
    )]
    Places {
        /// Tokens in the prompt.
        tokens: usize,
        /// Places given.
        found: usize,
    },
    /// The features of the tower's blocks are not those the decoder adds.
    #[error("the decoder adds features after {layers} layers, each of {values} values")]
    Deepstack {
        /// Layers after which features are added.
        layers: usize,
        /// Values of each: as many as the image embeddings have.
        values: usize,
    },
    /// The prompt is longer than the model's positions.
    #[error("a prompt of {tokens} tokens is longer than the model's {max} positions")]
    TooLong {
        /// Tokens in the prompt.
        tokens: usize,
        /// Positions of the model.
        max: usize,
    },
}

/// Image embeddings that stand in for a token of the prompt.
#[derive(Clone, Copy, Debug)]
pub struct PromptEmbeds<'a> {
    /// The token each embedding replaces, in order.
    pub token: u32,
    /// `[count, hidden]`, as many as the prompt has such tokens.
    pub embeds: &'a [f32],
}

/// Tokens, some of which stand for images.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// What stands in for some of them.
    pub image: Option<PromptEmbeds<'a>>,
    /// Time, height and width of every token, of a model that turns by them; see
    /// [`rope_index()`](crate::position_ids::rope_index).  Without images they may be left out.
    pub position_ids: Option<&'a [PositionId]>,
    /// What is added at the image tokens after each of the first layers, `[count, hidden]` each;
    /// as many as the model's deepstack.
    pub deepstack: &'a [Vec<f32>],
}

impl<'a> Prompt<'a> {
    /// A prompt of a model whose tokens have one position.
    pub fn plain(tokens: &'a [u32], image: Option<PromptEmbeds<'a>>) -> Self {
        Self { tokens, image, position_ids: None, deepstack: &[] }
    }
}

/// How much of the machine to use.  Answers are the same bits for any effort.
#[derive(Clone, Copy)]
struct Effort {
    threads: usize,
    block_bytes: usize,
}

impl Effort {
    fn whole_machine() -> Self {
        Self { threads: threads::available(), block_bytes: BLOCK_BYTES }
    }
}

/// The image embeddings of `tiles` tiles: `[tiles * tokens_per_tile, hidden]`.
///
/// `pixels` is `[tiles, channels, side, side]`, normalised.  Holds one tile's activations at a
/// time, so the weights are read once per tile.
///
/// # Errors
/// [`ReferenceError`] if the pixels are not `tiles` tiles or the checkpoint cannot be read.
pub fn vision_embeds(
    ckpt: &Checkpoint,
    pixels: &[f32],
    tiles: usize,
) -> Result<Vec<f32>, ReferenceError> {
    tiles_seen(&mut Stream::new(ckpt, Effort::whole_machine()), pixels, tiles, &mut |_| ())
}

/// The image embeddings of tiles, by the tower that takes them.
fn tiles_seen(
    stream: &mut Stream<'_>,
    pixels: &[f32],
    tiles: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    match &stream.ckpt.model().vision {
        Some(Vision::SmolVlm(tower)) => {
            smolvlm::embeds_of(stream, tower, (pixels, tiles), progress)
        }
        // Others take no tiles, which this one's says.
        _ => vision::embeds_of(stream, pixels, tiles, progress),
    }
}

/// What a tower says of a picture or tile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageFeatures {
    /// `[tokens, hidden]`.
    pub embeds: Vec<f32>,
    /// What some of its blocks say of the same tokens: for each `[tokens, hidden]`.
    pub deepstack: Vec<Vec<f32>>,
}

impl ImageFeatures {
    /// Puts what is said of the next one behind this.
    pub fn append(&mut self, next: Self) {
        self.embeds.extend(next.embeds);
        self.deepstack.resize(next.deepstack.len(), Vec::new());
        self.deepstack.iter_mut().zip(next.deepstack).for_each(|(all, next)| all.extend(next));
    }
}

/// What the tower says of a picture or tile of size `grid`.
///
/// `pixels` is `[channels, side, side]` of a tower that takes tiles, `[patches, values]` in the order
/// of the image processor of one that takes pictures of any size; normalised.  Holds all activations of
/// the picture; each weight is read once.  `progress` hears one line per block.
///
/// # Errors
/// [`ReferenceError`] if the tower takes no pictures of this size, the pixels do not fill it, or the
/// checkpoint cannot be read.
pub fn see(
    ckpt: &Checkpoint,
    pixels: &[f32],
    grid: Grid,
    progress: &mut dyn FnMut(&str),
) -> Result<ImageFeatures, ReferenceError> {
    let stream = &mut Stream::new(ckpt, Effort::whole_machine());
    if ckpt.tile().is_ok() {
        let embeds = tiles_seen(stream, pixels, 1, progress)?;
        return Ok(ImageFeatures { embeds, deepstack: Vec::new() });
    }
    patches::seen(stream, pixels, grid, progress)
}

/// The largest activation of each block while [`vision_embeds`] is computed for one tile, in the
/// order of the model.
///
/// # Errors
/// [`ReferenceError`] as for [`vision_embeds`].
pub fn vision_peaks(ckpt: &Checkpoint, pixels: &[f32]) -> Result<Vec<Peak>, ReferenceError> {
    let mut stream = Stream::new(ckpt, Effort::whole_machine());
    stream.peaks = Some(Peaks::default());
    tiles_seen(&mut stream, pixels, 1, &mut |_| ())?;
    Ok(stream.peaks.take().unwrap_or_default().finish())
}

/// The largest activation of each block while the [`logits`] after all `tokens` are computed, in
/// the order of the model.
///
/// # Errors
/// [`ReferenceError`] as for [`logits`].
pub fn llm_peaks(
    ckpt: &Checkpoint,
    tokens: &[u32],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Peak>, ReferenceError> {
    let mut stream = Stream::new(ckpt, Effort::whole_machine());
    stream.peaks = Some(Peaks::default());
    let prompt = Prompt::plain(tokens, None);
    llm::logits_of(&mut stream, &prompt, tokens.len().saturating_sub(1)..tokens.len(), progress)?;
    Ok(stream.peaks.take().unwrap_or_default().finish())
}

/// The logits at `positions` of `tokens`, in one causal pass: `[positions, vocab]`.
///
/// Logits at position p score the token that follows p.  `progress` hears of each layer.
///
/// # Errors
/// [`ReferenceError`] if the prompt does not fit the model or the checkpoint cannot be read.
pub fn logits(
    ckpt: &Checkpoint,
    tokens: &[u32],
    image: Option<PromptEmbeds<'_>>,
    positions: Range<usize>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    logits_after(ckpt, &Prompt::plain(tokens, image), positions, progress)
}

/// [`logits`] of a prompt with all that a model may want of it.
///
/// # Errors
/// Those of [`logits`].
pub fn logits_after(
    ckpt: &Checkpoint,
    prompt: &Prompt<'_>,
    positions: Range<usize>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    llm::logits(ckpt, prompt, positions, Effort::whole_machine(), progress)
}

/// Runs `prompts`, which see nothing of each other, and tells `see` the input of each set of linears
/// that share one: the name of the first of them without `.weight`, and `[rows, channels]`, the prompts
/// one after another, some at a time.  Those of the inputs of a layer may alternate; an input that comes before
/// another in the model is whole before that one is.  Weights are read once for each run of prompts.
///
/// # Errors
/// [`ReferenceError`] if a prompt does not fit the model or the checkpoint cannot be read.
pub(crate) fn observe(
    ckpt: &Checkpoint,
    prompts: &[Prompt<'_>],
    progress: &mut dyn FnMut(&str),
    see: &mut dyn FnMut(&str, &[f32]),
) -> Result<(), ReferenceError> {
    llm::observe(ckpt, prompts, Effort::whole_machine(), progress, see)
}
