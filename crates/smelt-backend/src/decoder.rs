//! The contract of engines that generate text: tokens in, tokens out, keys and values in slots.
//!
//! A sequence lives in a slot.  A step appends tokens to one or several slots and answers what was wanted of each: the tokens
//! that are chosen behind it, how likely given tokens are, or rows of logits.  What is answered depends on the tokens that
//! a slot holds and on what was wanted alone, bit for bit, not on how they came or on other slots.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::position_ids::PositionId;
use crate::sampling::{Chosen, Draw, Logprobs, NotFinite};
use crate::{FeatureSpan, KvBlock, KvType, KvUsage, MemoryReport, OpenError, Processors, Witness};

/// Longest sequence any engine may be built for; in halves the cache of a 2B model then is 30 GiB.
pub const MAX_SEQ_LEN_MAX: usize = 1 << 20;
/// Most sequences any engine may hold at once.
pub const MAX_SLOTS_MAX: usize = 256;

/// How long and how many sequences may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Tokens of one sequence, image tokens included.
    pub max_seq_len: usize,
    /// Sequences at once.
    pub max_slots: usize,
}

impl Limits {
    /// Whether any engine may have them.
    ///
    /// # Errors
    /// One line naming the limit that none may have.
    pub fn check(self) -> Result<(), String> {
        let Self { max_seq_len, max_slots } = self;
        if !(1..=MAX_SEQ_LEN_MAX).contains(&max_seq_len) {
            return Err(format!("max_seq_len {max_seq_len} is not in 1..={MAX_SEQ_LEN_MAX}"));
        }
        if !(1..=MAX_SLOTS_MAX).contains(&max_slots) {
            return Err(format!("max_slots {max_slots} is not in 1..={MAX_SLOTS_MAX}"));
        }
        Ok(())
    }
}

/// What a decoder says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderFacts {
    /// What it was opened with.
    pub limits: Limits,
    /// What it was built for, whatever it was opened with.
    pub built_for: Limits,
    /// Positions that the model was made for; engines of earlier versions do not say.
    pub positions: Option<usize>,
    /// Logits of each token.
    pub vocab: usize,
    /// How keys and values are kept.
    pub kv: KvType,
    /// Numbers in a token's embedding.
    pub hidden: usize,
    /// First layers behind which image features are added.
    pub deepstack: usize,
    /// The scheme of its linear weights, by the word that pipelines use.
    pub scheme: String,
    /// Adapters (LoRA) that runs may name.
    pub adapters: Vec<Adapter>,
}

/// A set of weights beside the model's own that a run may name (LoRA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adapter(pub u32);

/// What stands in the places of image tokens.
#[derive(Clone, Copy, Debug)]
pub struct ImageEmbeds<'a> {
    /// The id that marks a place for an embedding.
    pub token: u32,
    /// As many tokens as there are places, in their order.
    pub features: &'a [FeatureSpan<'a>],
}

/// How likely given tokens are.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// What follows each token of the run, the last one apart if nothing is known to follow it.
    pub next: &'a [u32],
    /// How many of the likeliest tokens are told with each.
    pub top: usize,
}

/// Which rows of logits are copied to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitRows {
    /// None: what is chosen is chosen where they are.
    #[default]
    None,
    /// That behind the last token.
    Last,
    /// That behind each token.
    All,
}

/// What is wanted of a run beside that its tokens are held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want<'a> {
    /// Tokens to choose behind the last tokens of the run, as many as there are draws: one to go on with, several where
    /// the run proposes tokens that somebody guessed (speculation).
    pub draws: &'a [Draw<'a>],
    /// How likely the model finds tokens of the run itself.
    pub scores: Option<Scores<'a>>,
    /// Rows for whoever measures.
    pub logits: LogitRows,
}

/// What is wanted behind one token of a run.
#[derive(Clone, Copy, Debug)]
pub struct RowWant<'a> {
    /// How a token is chosen.
    pub draw: Option<&'a Draw<'a>>,
    /// How likely a token is found, and how many of the likeliest are told with it.
    pub score: Option<(u32, usize)>,
    /// Whether its logits are copied to the host.
    pub is_shown: bool,
}

impl RowWant<'_> {
    /// Whether its logits are needed at all.
    pub fn is_any(&self) -> bool {
        self.draw.is_some() || self.score.is_some() || self.is_shown
    }
}

impl<'a> Want<'a> {
    /// What is wanted behind token `at` of a run of so many.
    pub fn behind(&self, at: usize, tokens: usize) -> RowWant<'a> {
        let draw = (at + self.draws.len()).checked_sub(tokens);
        RowWant {
            draw: draw.and_then(|at| self.draws.get(at)),
            score: self.scores.and_then(|scores| Some((*scores.next.get(at)?, scores.top))),
            is_shown: match self.logits {
                LogitRows::None => false,
                LogitRows::Last => at + 1 == tokens,
                LogitRows::All => true,
            },
        }
    }
}

/// Tokens to append to a slot, and what is wanted behind them.
#[derive(Clone, Copy, Debug)]
pub struct SlotInput<'a> {
    /// The slot.
    pub slot: usize,
    /// Token ids, at least one.
    pub tokens: &'a [u32],
    /// What stands in the places of image tokens.
    pub image: Option<ImageEmbeds<'a>>,
    /// The position of each token in time, height and width, of the whole sequence (M-RoPE); without
    /// them tokens count on from what the slot holds.  Decoders of one position a token always do.
    pub position_ids: Option<&'a [PositionId]>,
    /// The adapter that the whole of the slot is computed with.
    pub adapter: Option<Adapter>,
    /// What is wanted.
    pub want: Want<'a>,
}

impl<'a> SlotInput<'a> {
    /// Tokens of a text of one position each, of which nothing is wanted.
    pub fn new(slot: usize, tokens: &'a [u32]) -> Self {
        let (image, position_ids, adapter, want) = (None, None, None, Want::default());
        Self { slot, tokens, image, position_ids, adapter, want }
    }

    /// As it is, with tokens chosen behind its last ones.
    #[must_use]
    pub fn choosing(self, draws: &'a [Draw<'a>]) -> Self {
        Self { want: Want { draws, ..self.want }, ..self }
    }

    /// As it is, with these rows of logits.
    #[must_use]
    pub fn showing(self, logits: LogitRows) -> Self {
        Self { want: Want { logits, ..self.want }, ..self }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// For each draw its token.
    pub chosen: Vec<Result<Chosen, NotFinite>>,
    /// How likely each of [`Scores::next`] is; nothing where logits were not finite.
    pub scores: Vec<Option<Logprobs>>,
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
}

/// Why tokens could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// No such slot.
    #[error("slot {slot} does not exist; the engine has slots 0..{max_slots}")]
    UnknownSlot {
        /// The slot that was named.
        slot: usize,
        /// Slots of the engine.
        max_slots: usize,
    },
    /// A step names a slot twice.
    #[error("slot {slot} is named twice in one step")]
    SlotTwice {
        /// The slot.
        slot: usize,
    },
    /// A step continues a slot without a prompt.
    #[error("slot {slot} holds no tokens; prefill it first")]
    EmptySlot {
        /// The slot.
        slot: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The sequence would grow past the limit.
    #[error(
        "slot {slot} holds {held} tokens and cannot take {more} more: the engine was built for {max_seq_len}"
    )]
    TooLong {
        /// The slot.
        slot: usize,
        /// Tokens in it.
        held: usize,
        /// Tokens to append.
        more: usize,
        /// The engine's limit.
        max_seq_len: usize,
    },
    /// No such token.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Embeddings and their places differ in number.
    #[error(
        "the prompt has {places} image tokens, but {numbers} embedding numbers came, not {hidden} each"
    )]
    ImageCount {
        /// Image tokens in the prompt.
        places: usize,
        /// Numbers that came.
        numbers: usize,
        /// Numbers one token needs.
        hidden: usize,
    },
    /// A prompt with pictures has to say where its tokens stand.
    #[error(
        "the prompt has {tokens} tokens, but {found} places came; the decoder takes three positions a token (M-RoPE)"
    )]
    PlaceCount {
        /// Tokens of the prompt.
        tokens: usize,
        /// Places that came.
        found: usize,
    },
    /// A place too far for exact angles.
    #[error("place {place} of token {index} is not below {max}")]
    PlaceTooFar {
        /// Which token of the prompt.
        index: usize,
        /// Its largest position.
        place: u32,
        /// The first number that is too large.
        max: usize,
    },
    /// Features of images do not match the decoder or the embeddings.
    #[error(
        "the decoder adds image features behind {layers} layers, {numbers} numbers each; {found:?} numbers came"
    )]
    FeatureCount {
        /// Layers that take them; none without images.
        layers: usize,
        /// Numbers that each needs.
        numbers: usize,
        /// Numbers that came, layer by layer.
        found: Vec<usize>,
    },
    /// Keys and values have no room.
    #[error(
        "the step needs {more} more blocks of keys and values, and {held} of {total} are held; release a slot or give the engine a larger budget"
    )]
    KvFull {
        /// Blocks that are needed.
        more: usize,
        /// Blocks that slots hold.
        held: usize,
        /// Blocks that there may be.
        total: usize,
    },
    /// The system refuses memory.
    #[error("the system has no memory for {bytes} more bytes of keys and values; release a slot")]
    NoMemory {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// What was to be put back is no block that an engine of these sizes gave.
    #[error(
        "{tokens} tokens and {bytes} bytes are no block that can go behind what slot {slot} holds"
    )]
    NoBlock {
        /// The slot.
        slot: usize,
        /// Tokens of the block.
        tokens: usize,
        /// Bytes of it.
        bytes: usize,
    },
    /// A fork asks for more than there is.
    #[error("slot {slot} holds {held} tokens, of which the first {len} cannot be shared")]
    NotHeld {
        /// The slot to share from.
        slot: usize,
        /// Tokens in it.
        held: usize,
        /// Tokens that were asked for.
        len: usize,
    },
    /// More rows are wanted of a run than it has tokens.
    #[error("{wanted} rows are wanted of a run of {tokens} tokens")]
    TooManyRows {
        /// Rows.
        wanted: usize,
        /// Tokens.
        tokens: usize,
    },
    /// The back end cannot do it.
    #[error("this engine cannot {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// A step was submitted before the last one was waited for, or waited for without one.
    #[error("steps are submitted and waited for in turn")]
    OutOfTurn,
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
}

/// An opened engine that generates text.
///
/// Between [`Self::submit`] and [`Self::wait`] slots are not touched.  A step that fails, whether it is refused or the
/// device fails, leaves every slot as it was.
pub trait Decoder: fmt::Debug + Send {
    /// What it says of itself.
    fn facts(&self) -> &DecoderFacts;

    /// Where its memory is, and how much there is.
    fn memory(&self) -> MemoryReport {
        MemoryReport::HOST
    }

    /// What keys and values take at the moment.
    fn kv_usage(&self) -> KvUsage;

    /// Lets keys and values take so many bytes from now on; what slots hold already stays.
    fn set_kv_bytes_max(&mut self, bytes: u64);

    /// Tokens that a slot holds; 0 for slots that do not exist.
    fn held(&self, slot: usize) -> usize;

    /// Begins a step that appends each run to its slot; no slot is named twice.  Where the device works by itself, this returns
    /// at once; what the runs borrow has been read by then.
    ///
    /// # Errors
    /// [`RunError`]; nothing has begun then.
    fn submit(&mut self, runs: &[SlotInput<'_>]) -> Result<(), RunError>;

    /// Waits for the step that was submitted; gives what came of each run, in order.
    ///
    /// # Errors
    /// [`RunError`] when the device failed, or no step was submitted.
    fn wait(&mut self) -> Result<Vec<Answer>, RunError>;

    /// Submits a step and waits for it.
    ///
    /// # Errors
    /// [`RunError`], and then no slot is changed.
    fn step(&mut self, runs: &[SlotInput<'_>]) -> Result<Vec<Answer>, RunError> {
        self.submit(runs)?;
        self.wait()
    }

    /// Forgets what `slot` holds behind its first `len` tokens; a slot that does not exist, or holds
    /// fewer, stays as it is.
    fn truncate(&mut self, slot: usize, len: usize);

    /// Forgets what `slot` holds; a slot that does not exist holds nothing.
    fn release(&mut self, slot: usize) {
        self.truncate(slot, 0);
    }

    /// Lets `to` hold the first `len` tokens of `from` in place of what it holds.  The memory of
    /// whole blocks is shared until it is written.
    ///
    /// # Errors
    /// When a slot does not exist, both are one, or `from` holds fewer; then nothing is changed.
    fn fork(&mut self, from: usize, to: usize, len: usize) -> Result<(), RunError>;

    /// Keys and values of the `index`-th block of tokens of `slot`, or of the rest; nothing where there are none.
    ///
    /// # Errors
    /// When the device fails.
    fn block(&self, slot: usize, index: usize) -> Result<Option<KvBlock<'_>>, RunError>;

    /// Lets `slot`, which holds whole blocks, go on with one that [`Self::block`] of an engine with the same weights and
    /// form of numbers gave: as if its tokens had been read.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged.
    fn put_block(&mut self, slot: usize, block: &KvBlock<'_>) -> Result<(), RunError>;

    /// Why its device does nothing more, if so: another one that is opened anew may.
    fn lost(&self) -> Option<String> {
        None
    }

    /// From now on steps are timed by the device's own clock, where it has one.
    fn time_steps(&mut self) {}

    /// What the device took for the last step, where that is timed.
    fn step_time(&self) -> Option<Duration> {
        None
    }

    /// What graphs of the same back end may share, since they run on the same processors.
    fn processors(&self) -> Processors {
        Processors::default()
    }

    /// How long to leave the processors to others before the next step, which reads a prompt or does not.  Who waits
    /// so long may take what comes meanwhile.
    fn rest(&self, _reads_next: bool) -> Duration {
        Duration::ZERO
    }

    /// Compares the weights with the hashes in `engine.json`; reads all of them.  `told` hears how many bytes were
    /// read, piece by piece.
    ///
    /// # Errors
    /// When they differ.
    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError>;

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    fn untuned(&self) -> Option<&str> {
        None
    }
}
