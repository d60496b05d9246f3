//! Generates text: a decoder with a key-value cache for several sequences.
//!
//! [`build`] packs the language model of a checkpoint; [`LlmEngine`] opens what it wrote.  A
//! sequence lives in a slot: `prefill` appends a prompt, `decode` one token to each of several
//! slots, `release` forgets.  Knows nothing of text, requests or pictures: image embeddings are
//! numbers here.

mod build;
mod content;
mod forward;
mod kv;
mod linear;
mod pack;
mod weights;

use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_model::decoder::Family;

use crate::engine_file::EngineFile;
pub use crate::engine_file::OpenError;
use crate::kernels::isa::Isa;
use crate::kernels::rope::Llama3;
pub use crate::kernels::striped::Arithmetic;
use crate::kernels::threads::Threads;
pub use build::{BuildError, build};
pub use content::Tensor;
use forward::{Buffers, Pass, Span};
use kv::{KvShape, Slot};
use weights::{Decoder, Machine};

/// What `engine.json` calls this kind.
const KIND: &str = "llm";
/// Prompt tokens computed at a time, so that memory does not grow with the prompt.
const CHUNK_TOKENS: usize = 128;

/// Longest sequence any engine may be built for; the cache is f32, so this is already 60 GiB at 2B.
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

/// The sizes of a decoder, as `engine.json` keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LlmFile {
    family: String,
    scheme: String,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    vocab: usize,
    eps: f32,
    rope_theta: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rope_scaling: Option<Llama3>,
    limits: Limits,
}

impl LlmFile {
    /// Whether the sizes can belong to a decoder; tensors are compared with them later.
    fn check(&self) -> Result<(), String> {
        let Self { hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, .. } = *self;
        if Family::named(&self.family).is_none() {
            let known = Family::ALL.map(|family| family.name).join(", ");
            return Err(format!("family {:?} is none of {known}", self.family));
        }
        let sizes = [hidden, layers, heads, kv_heads, head_dim, intermediate, vocab];
        /// Products of two sizes then fit any usize.
        const SIZE_MAX: usize = 1 << 24;
        if !sizes.iter().all(|size| (1..=SIZE_MAX).contains(size)) {
            return Err(format!("sizes {sizes:?} are not those of a decoder"));
        }
        if !heads.is_multiple_of(kv_heads) || !head_dim.is_multiple_of(2) {
            return Err(format!("{heads} heads of {head_dim} do not share {kv_heads} key heads"));
        }
        let numbers_hold = self.eps > 0.0 && self.eps < 1.0 && self.rope_theta >= 1.0;
        if !numbers_hold {
            let (eps, theta) = (self.eps, self.rope_theta);
            return Err(format!("eps {eps} and rope_theta {theta} are not those of a decoder"));
        }
        if let Some(scaling) = self.rope_scaling.filter(|scaling| !scaling.is_sound()) {
            return Err(format!("{scaling:?} is no scaling of rotary frequencies"));
        }
        self.limits.check()
    }

    /// What the layers have.  [`Self::check`] has refused unknown names.
    fn family(&self) -> &'static Family {
        Family::named(&self.family).expect("the family was checked when the engine was opened")
    }
}

impl Limits {
    fn check(self) -> Result<(), String> {
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

/// Tokens to append to a slot.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Token ids, one after another.
    pub tokens: &'a [u32],
    /// What stands in the places of image tokens.
    pub image: Option<ImageEmbeds<'a>>,
}

/// Embeddings of image tokens.
#[derive(Clone, Copy, Debug)]
pub struct ImageEmbeds<'a> {
    /// The id that marks a place for an embedding.
    pub token: u32,
    /// `[image tokens, hidden]`, in the order of the places.
    pub embeds: &'a [f32],
}

/// Why tokens could not be taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
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
}

/// An opened language model engine.
#[derive(Debug)]
pub struct LlmEngine {
    file: EngineFile<LlmFile>,
    decoder: Decoder,
    slots: Vec<Slot>,
    buffers: Buffers,
    isa: Isa,
    threads: Threads,
    arithmetic: Arithmetic,
}

impl LlmEngine {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no language model engine of this version, or its parts disagree.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::new(EngineFile::open(dir, KIND)?)
    }

    fn new(file: EngineFile<LlmFile>) -> Result<Self, OpenError> {
        let sizes = &file.engine;
        sizes.check().map_err(|problem| file.damaged(problem))?;
        let decoder = Decoder::find(&file)?;
        let LlmFile { layers, kv_heads, head_dim, .. } = *sizes;
        let shape = KvShape { layers, kv_heads, head_dim };
        let slots = (0..sizes.limits.max_slots).map(|_| Slot::new(shape)).collect();
        let (isa, threads) = (Isa::detect(), Threads::available());
        let (buffers, arithmetic) = (Buffers::default(), Arithmetic::Integers);
        Ok(Self { file, decoder, slots, buffers, isa, threads, arithmetic })
    }

    /// Uses `count` threads instead of as many as there are processors; the numbers stay the same.
    #[must_use]
    pub fn with_threads(mut self, count: usize) -> Self {
        self.threads = Threads::new(count);
        self
    }

    /// Multiplies packed weights as `arithmetic` says from now on; engines begin with integers.
    pub fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.arithmetic = arithmetic;
    }

    /// What the engine was built for.
    pub fn limits(&self) -> Limits {
        self.file.engine.limits
    }

    /// Logits of each step.
    pub fn vocab(&self) -> usize {
        self.file.engine.vocab
    }

    /// The scheme of its linear weights, by the word pipelines use.
    pub fn scheme(&self) -> &str {
        &self.file.engine.scheme
    }

    /// Numbers in a token's embedding.
    pub fn hidden(&self) -> usize {
        self.file.engine.hidden
    }

    /// Tokens that a slot holds; 0 for slots that do not exist.
    pub fn held(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, Slot::len)
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        self.file.verify_digest()
    }

    /// Appends `prompt` to what `slot` holds; gives the logits `[vocab]` after its last token.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged.
    pub fn prefill(&mut self, slot: usize, prompt: &Prompt<'_>) -> Result<Vec<f32>, RunError> {
        let mut last = Vec::new();
        self.append(slot, prompt, |engine, x| {
            last = x[x.len() - engine.hidden()..].to_vec();
        })?;
        Ok(self.logits(&last))
    }

    /// As [`Self::prefill`], but gives the logits after every token: `[tokens, vocab]`.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged.
    pub fn logits_all(&mut self, slot: usize, prompt: &Prompt<'_>) -> Result<Vec<f32>, RunError> {
        let mut all = Vec::new();
        self.append(slot, prompt, |engine, x| all.extend(engine.logits(x)))?;
        Ok(all)
    }

    /// Appends one token to each of several slots; gives the logits `[vocab]` of each, in order.
    ///
    /// # Errors
    /// [`RunError`], and then no slot is changed.
    pub fn decode(&mut self, tokens: &[(usize, u32)]) -> Result<Vec<Vec<f32>>, RunError> {
        for (index, &(slot, token)) in tokens.iter().enumerate() {
            self.check(slot, &[token])?;
            if self.slots[slot].len() == 0 {
                return Err(RunError::EmptySlot { slot });
            }
            if tokens[..index].iter().any(|&(other, _)| other == slot) {
                return Err(RunError::SlotTwice { slot });
            }
        }
        let hidden = self.hidden();
        let mut x = vec![0.0; tokens.len() * hidden];
        let mut spans = Vec::with_capacity(tokens.len());
        for (row, &(slot, token)) in tokens.iter().enumerate() {
            self.embed(token, &mut x[row * hidden..(row + 1) * hidden]);
            spans.push(Span { slot, rows: row..row + 1, start: self.slots[slot].len() });
        }
        self.forward(&mut x, &spans);
        let logits = self.logits(&x);
        Ok(logits.chunks_exact(self.vocab()).map(<[f32]>::to_vec).collect())
    }

    /// Forgets what `slot` holds; a slot that does not exist holds nothing.
    pub fn release(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.clear();
        }
    }

    /// Forgets what `slot` holds behind its first `len` tokens; a slot that does not exist, or holds
    /// fewer, stays as it is.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.truncate(len);
        }
    }

    /// Runs a prompt chunk by chunk and shows each chunk's hidden states to `visit`.
    fn append(
        &mut self,
        slot: usize,
        prompt: &Prompt<'_>,
        mut visit: impl FnMut(&mut Self, &[f32]),
    ) -> Result<(), RunError> {
        if prompt.tokens.is_empty() {
            return Err(RunError::EmptyPrompt);
        }
        self.check(slot, prompt.tokens)?;
        self.check_image(prompt)?;
        let hidden = self.hidden();
        let mut embeds = prompt.image.map_or(&[][..], |image| image.embeds).chunks_exact(hidden);
        for tokens in prompt.tokens.chunks(CHUNK_TOKENS) {
            let mut x = vec![0.0; tokens.len() * hidden];
            for (&token, row) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
                let marked = prompt.image.is_some_and(|image| image.token == token);
                match marked.then(|| embeds.next()).flatten() {
                    Some(embed) => row.copy_from_slice(embed),
                    None => self.embed(token, row),
                }
            }
            let start = self.slots[slot].len();
            self.forward(&mut x, &[Span { slot, rows: 0..tokens.len(), start }]);
            visit(self, &x);
        }
        Ok(())
    }

    fn forward(&mut self, x: &mut [f32], spans: &[Span]) {
        for span in spans {
            self.slots[span.slot].reserve(span.rows.len());
        }
        let mut slots = std::mem::take(&mut self.slots);
        let mut buffers = std::mem::take(&mut self.buffers);
        self.pass().layers(x, spans, &mut slots, &mut buffers);
        (self.slots, self.buffers) = (slots, buffers);
    }

    /// Logits `[rows, vocab]` of hidden states `[rows, hidden]`.
    fn logits(&mut self, x: &[f32]) -> Vec<f32> {
        let mut buffers = std::mem::take(&mut self.buffers);
        let logits = self.pass().logits(x, &mut buffers);
        self.buffers = buffers;
        logits
    }

    fn machine(&self) -> Machine<'_> {
        let Self { isa, ref threads, arithmetic, .. } = *self;
        Machine { isa, threads, weights: &self.file.weights, arithmetic }
    }

    fn pass(&self) -> Pass<'_> {
        Pass { sizes: &self.file.engine, decoder: &self.decoder, machine: self.machine() }
    }

    fn embed(&self, token: u32, out: &mut [f32]) {
        self.decoder.embed(token as usize, self.machine(), out);
    }

    fn check_slot(&self, slot: usize) -> Result<(), RunError> {
        let max_slots = self.slots.len();
        if slot < max_slots { Ok(()) } else { Err(RunError::UnknownSlot { slot, max_slots }) }
    }

    /// Whether `slot` can take `tokens`.
    fn check(&self, slot: usize, tokens: &[u32]) -> Result<(), RunError> {
        self.check_slot(slot)?;
        let (held, more, max_seq_len) =
            (self.slots[slot].len(), tokens.len(), self.limits().max_seq_len);
        if more > max_seq_len - held {
            return Err(RunError::TooLong { slot, held, more, max_seq_len });
        }
        let vocab = self.vocab();
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(RunError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    fn check_image(&self, prompt: &Prompt<'_>) -> Result<(), RunError> {
        let Some(ImageEmbeds { token, embeds }) = prompt.image else { return Ok(()) };
        let places = prompt.tokens.iter().filter(|&&other| other == token).count();
        let (numbers, hidden) = (embeds.len(), self.hidden());
        if places.checked_mul(hidden) == Some(numbers) {
            return Ok(());
        }
        Err(RunError::ImageCount { places, numbers, hidden })
    }
}
