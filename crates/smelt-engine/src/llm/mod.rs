//! Generates text: a decoder with a key-value cache for several sequences.
//!
//! [`LlmEngine`] opens an engine, whose sizes are an [`LlmFile`].  A sequence lives in a slot: `prefill`
//! appends a prompt, `decode` one token to each of several slots, `fork` shares a beginning with another
//! slot, `release` forgets.  What a token's logits are depends on the tokens before it alone, bit for bit,
//! not on how they came or on other slots.  Knows nothing of checkpoints, text, requests or pictures: image
//! embeddings are numbers here.

mod attention;
mod block;
mod content;
mod decoder;
mod forward;
mod kv;
mod linear;
mod weights;

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub use smelt_backend::position_ids;
use smelt_backend::position_ids::PositionId;
use smelt_backend::sampling::Chooser;
use smelt_backend::{Answer, DecoderFacts, KvBlock, Witness, check_position_ids};
pub use smelt_backend::{
    KvOptions, KvType, KvUsage, Limits, MAX_SEQ_LEN_MAX, MAX_SLOTS_MAX, RunError,
};
use smelt_tensor::decoder::{DecoderFamily, check_sizes};

pub use crate::engine_file::OpenError;
use crate::engine_file::{EngineFile, Unsealed};
use crate::kernels::cached_attention::HeadShape;
use crate::kernels::isa::Isa;
pub use crate::kernels::rope::{Llama3, Sections, Yarn};
use crate::kernels::rope::{RotaryEmbedding, Scaling};
pub use crate::kernels::striped::Arithmetic;
use crate::kernels::threads::Threads;
use crate::processors::Shared;
use crate::tactics::{ExecutionConfig, Tactics};
pub use content::Tensor;
use forward::{Buffers, Features, Pass, Span};
use kv::{Cache, KvShape};
use weights::{Decoder, Machine};

/// What `engine.json` calls this kind.
pub const KIND: &str = "llm";
/// Prompt tokens computed at a time, so that memory does not grow with the prompt.
const CHUNK_TOKENS: usize = 128;
/// Rows of logits held at a time where all are shown: 10 MB of a large vocabulary.
const SHOWN_ROWS: usize = 16;

/// What a block of keys and values of a decoder of these sizes takes, none of which is held.
pub fn kv_block(layers: usize, kv_heads: usize, head_dim: usize, kind: KvType) -> KvUsage {
    let head = HeadShape { dim: head_dim, kind };
    Cache::new(KvShape { layers, kv_heads, head }, 0, 0, None).usage()
}

/// The sizes of a decoder, as `engine.json` keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlmFile {
    /// The name of its [`DecoderFamily`].
    pub family: String,
    /// The scheme of its linear weights, by the word pipelines use.
    pub scheme: String,
    /// Numbers in a token's embedding.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Numbers inside the MLP.
    pub intermediate: usize,
    /// Tokens it tells apart.
    pub vocab: usize,
    /// Epsilon of the RMSNorms.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How frequencies were stretched as in Llama 3.1; at most one of three ways is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Llama3>,
    /// What frequencies are divided by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_linear: Option<f64>,
    /// How frequencies were stretched by YaRN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_yarn: Option<Yarn>,
    /// Which of three positions turns which pair of a head, where tokens have three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_sections: Option<Sections>,
    /// Whether all four projections of attention add a bias.
    #[serde(default, skip_serializing_if = "is_false")]
    pub attention_bias: bool,
    /// First layers that are followed by adding image features.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deepstack: usize,
    /// What it is built for.
    pub limits: Limits,
    /// Places that the model was made for: no slot may be longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<usize>,
    /// How it is best run, on machines equal to the one that was tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactics: Option<Tactics>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl LlmFile {
    /// How frequencies were stretched; at most one way is given.
    fn scaling(&self) -> Option<Scaling> {
        let linear = self.rope_linear.map(Scaling::Linear);
        let yarn = || self.rope_yarn.map(Scaling::Yarn);
        linear.or_else(yarn).or_else(|| self.rope_scaling.map(Scaling::Llama3))
    }

    /// What is wrong with how frequencies were stretched, if anything.
    fn scaling_fault(&self) -> Option<String> {
        let Self { rope_linear, rope_yarn, rope_scaling, .. } = self;
        let ways = [rope_linear.is_some(), rope_yarn.is_some(), rope_scaling.is_some()];
        let is_sound = rope_linear.is_none_or(|factor| factor.is_finite() && factor > 0.0)
            && rope_yarn.is_none_or(|yarn| yarn.is_sound())
            && rope_scaling.is_none_or(|llama3| llama3.is_sound())
            && ways.into_iter().filter(|way| *way).count() <= 1;
        (!is_sound).then(|| {
            format!(
                "{rope_linear:?}, {rope_yarn:?}, {rope_scaling:?} are no scaling of rotary frequencies"
            )
        })
    }

    /// Whether the sizes can belong to a decoder; tensors are compared with them later.
    fn check(&self) -> Result<(), String> {
        let Self { hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, .. } = *self;
        if DecoderFamily::named(&self.family).is_none() {
            let known = DecoderFamily::ALL.map(|family| family.name).join(", ");
            return Err(format!("family {:?} is none of {known}", self.family));
        }
        check_sizes([hidden, layers, heads, kv_heads, head_dim, intermediate, vocab])?;
        let numbers_hold = self.eps > 0.0 && self.eps < 1.0 && self.rope_theta >= 1.0;
        if !numbers_hold {
            let (eps, theta) = (self.eps, self.rope_theta);
            return Err(format!("eps {eps} and rope_theta {theta} are not those of a decoder"));
        }
        if let Some(fault) = self.scaling_fault() {
            return Err(fault);
        }
        if let Some(sections) = self.rope_sections.filter(|sections| !sections.fit(head_dim)) {
            return Err(format!("{sections:?} are not the pairs of heads of {head_dim}"));
        }
        if self.deepstack > layers {
            let deepstack = self.deepstack;
            return Err(format!("deepstack {deepstack} is more than the {layers} layers"));
        }
        self.tactics.as_ref().map_or(Ok(()), Tactics::check)?;
        self.limits.check()
    }

    /// What the layers have.  [`Self::check`] has refused unknown names.
    fn family(&self) -> &'static DecoderFamily {
        DecoderFamily::named(&self.family)
            .expect("the family was checked when the engine was opened")
    }
}

/// Tokens to append to a slot.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Token ids, one after another.
    pub tokens: &'a [u32],
    /// What stands in the places of image tokens.
    pub image: Option<ImageEmbeds<'a>>,
    /// The place of each token in time, height and width, of the whole sequence (M-RoPE); without
    /// them tokens count on from what the slot holds.  Decoders of one position a token always do.
    pub position_ids: Option<&'a [PositionId]>,
    /// What blocks of the vision tower say of the same images, added behind the first layers
    /// (deepstack): for each `[image tokens, hidden]`.
    pub deepstack: &'a [Vec<f32>],
}

impl<'a> Prompt<'a> {
    /// A prompt of one position a token and without deepstack.
    pub fn plain(tokens: &'a [u32], image: Option<ImageEmbeds<'a>>) -> Self {
        Self { tokens, image, position_ids: None, deepstack: &[] }
    }
}

/// Embeddings of image tokens.
#[derive(Clone, Copy, Debug)]
pub struct ImageEmbeds<'a> {
    /// The id that marks a place for an embedding.
    pub token: u32,
    /// `[image tokens, hidden]`, in the order of the places.
    pub embeds: &'a [f32],
}

/// An opened language model engine.
#[derive(Debug)]
pub struct LlmEngine {
    file: EngineFile<LlmFile>,
    decoder: Decoder,
    rotary: RotaryEmbedding,
    cache: Cache,
    buffers: Buffers,
    isa: Isa,
    threads: Threads,
    arithmetic: Arithmetic,
    /// Prompt tokens computed at a time.
    chunk_tokens: usize,
    /// Why the tactics that the engine was built with are not followed, if they are not.
    untuned: Option<String>,
    facts: DecoderFacts,
    /// What the step gave that was submitted and is not waited for yet.
    answers: Option<Vec<Answer>>,
    /// How long the last step took.
    took: Duration,
    chooser: Chooser,
    /// Of the last step, kept for their memory.
    logits: Vec<f32>,
    shared: Arc<Shared>,
}

impl LlmEngine {
    /// Opens the engine in `dir`, with keys and values in half precision and no budget for them.
    /// Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no language model engine of this version, or its parts disagree.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_with(dir, KvOptions::default())
    }

    /// As [`Self::open`], with keys and values kept as `kv` says.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(dir: &Path, kv: KvOptions) -> Result<Self, OpenError> {
        Self::new(EngineFile::open(dir, KIND)?, kv)
    }

    /// Opens an engine whose `engine.json` is not written yet, to try it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn preview(unsealed: &Unsealed<LlmFile>) -> Result<Self, OpenError> {
        Self::new(unsealed.preview()?, KvOptions::default())
    }

    fn new(file: EngineFile<LlmFile>, kv: KvOptions) -> Result<Self, OpenError> {
        let sizes = &file.engine;
        sizes.check().map_err(|problem| file.damaged(problem))?;
        let decoder = Decoder::find(&file)?;
        let scaling = file.engine.scaling();
        let LlmFile { layers, kv_heads, head_dim, rope_theta, rope_sections, .. } = *sizes;
        let rotary = RotaryEmbedding::new(head_dim, rope_theta, scaling, rope_sections);
        let unfit = |purpose, problem| file.unfit(purpose, problem);
        let limits = kv.limits(sizes.limits, sizes.positions, unfit)?;
        let shape =
            KvShape { layers, kv_heads, head: HeadShape { dim: head_dim, kind: kv.form() } };
        let Limits { max_slots, max_seq_len } = limits;
        let cache = Cache::new(shape, max_slots, max_seq_len, kv.bytes_max);
        let (buffers, arithmetic) = (Buffers::default(), Arithmetic::Integers);
        let ExecutionConfig { isa, threads, untuned } = ExecutionConfig::by(sizes.tactics.as_ref());
        let tuned = sizes.tactics.as_ref().filter(|_| untuned.is_none());
        let chunk_tokens = tuned.map_or(CHUNK_TOKENS, |tactics| tactics.chunk_tokens);
        let facts = DecoderFacts {
            limits,
            built_for: file.engine.limits,
            positions: file.engine.positions,
            vocab: file.engine.vocab,
            kv: kv.form(),
            hidden: file.engine.hidden,
            deepstack: file.engine.deepstack,
            scheme: file.engine.scheme.clone(),
            adapters: Vec::new(),
        };
        let (chooser, logits, shared) = (Chooser::default(), Vec::new(), Arc::new(Shared::new()));
        let (answers, took) = (None, Duration::ZERO);
        Ok(Self {
            facts,
            answers,
            took,
            chooser,
            logits,
            shared,
            file,
            decoder,
            rotary,
            cache,
            buffers,
            isa,
            threads,
            arithmetic,
            chunk_tokens,
            untuned,
        })
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not: this
    /// machine is not equal to theirs.
    pub fn untuned(&self) -> Option<&str> {
        self.untuned.as_deref()
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

    /// What the engine was built for, or opened with.
    pub fn limits(&self) -> Limits {
        self.facts.limits
    }

    /// What the engine was built for, whatever it was opened with.
    pub fn built_for(&self) -> Limits {
        self.file.engine.limits
    }

    /// Places that the model was made for; engines of earlier versions do not say.
    pub fn positions(&self) -> Option<usize> {
        self.file.engine.positions
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

    /// First layers that are followed by adding image features.
    pub fn deepstack(&self) -> usize {
        self.file.engine.deepstack
    }

    /// Tokens that a slot holds; 0 for slots that do not exist.
    pub fn held(&self, slot: usize) -> usize {
        self.facts.check_slot(slot).map_or(0, |()| self.cache.len(slot))
    }

    /// What keys and values take at the moment.
    pub fn kv_usage(&self) -> KvUsage {
        self.cache.usage()
    }

    /// How keys and values are kept.
    pub fn kv_type(&self) -> KvType {
        self.cache.kv_type()
    }

    /// Lets keys and values take so many bytes from now on; what slots hold already stays.
    pub fn set_kv_bytes_max(&mut self, bytes: u64) {
        self.cache.set_bytes_max(self.facts.limits.max_seq_len, bytes);
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them, and tells `told` of each piece's bytes.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.file.verify_digest(told)
    }

    /// Appends `prompt` to what `slot` holds, where more of it is still to come.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged.
    pub fn read(&mut self, slot: usize, prompt: &Prompt<'_>) -> Result<(), RunError> {
        self.append(slot, prompt, |_, _| {})
    }

    /// As [`Self::read`]; gives the logits `[vocab]` after the last token.
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

    /// As [`Self::read`]; gives the logits after every token: `[tokens, vocab]`.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged.
    pub fn logits_all(&mut self, slot: usize, prompt: &Prompt<'_>) -> Result<Vec<f32>, RunError> {
        let mut all = Vec::new();
        self.read_shown(slot, prompt, |logits| all.extend_from_slice(logits))?;
        Ok(all)
    }

    /// As [`Self::read`]; shows `visit` the logits `[vocab]` after each token, in order, and holds those
    /// of a few at a time.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged and nothing was shown.
    pub fn read_shown(
        &mut self,
        slot: usize,
        prompt: &Prompt<'_>,
        mut visit: impl FnMut(&[f32]),
    ) -> Result<(), RunError> {
        let (hidden, vocab) = (self.hidden(), self.vocab());
        self.append(slot, prompt, |engine, x| {
            for rows in x.chunks(SHOWN_ROWS * hidden) {
                engine.logits(rows).chunks_exact(vocab).for_each(&mut visit);
            }
        })
    }

    /// Appends one token to each of several slots; gives the logits `[vocab]` of each, in order.
    ///
    /// # Errors
    /// [`RunError`], and then no slot is changed.
    pub fn decode(&mut self, tokens: &[(usize, u32)]) -> Result<Vec<Vec<f32>>, RunError> {
        let mut logits = Vec::new();
        self.decode_into(tokens, &mut logits)?;
        Ok(logits.chunks_exact(self.vocab()).map(<[f32]>::to_vec).collect())
    }

    /// As [`Self::decode`], with the logits `[tokens, vocab]` in place of what `logits` holds: who decodes
    /// again and again keeps the memory.
    ///
    /// # Errors
    /// [`RunError`], and then no slot is changed.
    pub fn decode_into(
        &mut self,
        tokens: &[(usize, u32)],
        logits: &mut Vec<f32>,
    ) -> Result<(), RunError> {
        for (index, &(slot, token)) in tokens.iter().enumerate() {
            self.check(slot, &[token])?;
            if self.cache.len(slot) == 0 {
                return Err(RunError::EmptySlot { slot });
            }
            if tokens[..index].iter().any(|&(other, _)| other == slot) {
                return Err(RunError::SlotTwice { slot });
            }
        }
        let more: Vec<(usize, usize)> = tokens.iter().map(|&(slot, _)| (slot, 1)).collect();
        self.cache.reserve(&more)?;
        let hidden = self.hidden();
        let mut x = vec![0.0; tokens.len() * hidden];
        let mut spans = Vec::with_capacity(tokens.len());
        for (row, &(slot, token)) in tokens.iter().enumerate() {
            self.embed(token, &mut x[row * hidden..(row + 1) * hidden]);
            spans.push(self.span(slot, row..row + 1, None));
        }
        self.forward(&mut x, &spans, Features::default());
        let (pass, _, buffers) = self.pass();
        pass.logits(&x, buffers, logits);
        Ok(())
    }

    /// Forgets what `slot` holds; a slot that does not exist holds nothing.
    pub fn release(&mut self, slot: usize) {
        self.truncate(slot, 0);
    }

    /// Forgets what `slot` holds behind its first `len` tokens; a slot that does not exist, or holds
    /// fewer, stays as it is.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        if slot < self.cache.slots() {
            self.cache.truncate(slot, len);
        }
    }

    /// Lets `to` hold the first `len` tokens of `from` in place of what it holds.  The memory of
    /// whole blocks is shared until it is written.
    ///
    /// # Errors
    /// When a slot does not exist, both are one, or `from` holds fewer; then nothing is changed.
    pub fn fork(&mut self, from: usize, to: usize, len: usize) -> Result<(), RunError> {
        self.facts.check_fork(from, to, self.held(from), len)?;
        self.cache.fork(from, to, len);
        Ok(())
    }

    /// Keys and values of the 64 tokens, or the rest, of `slot` from the `index`-th whole block on: where each token
    /// ends, and bytes that mean something to this engine alone.
    pub fn block(&self, slot: usize, index: usize) -> Option<(&[u32], &[u8])> {
        self.facts.check_slot(slot).ok()?;
        self.cache.block(slot, index)
    }

    /// Lets `slot`, which holds whole blocks, go on with one that [`Self::block`] of an engine with the same weights and
    /// [`KvType`] gave: as if its tokens had been read.
    ///
    /// # Errors
    /// [`RunError`], and then the slot is unchanged.
    pub fn put_block(&mut self, slot: usize, ends: &[u32], bytes: &[u8]) -> Result<(), RunError> {
        self.facts.check_slot(slot)?;
        let (held, next) = (self.cache.len(slot), self.cache.next_place(slot));
        let block = KvBlock { ends: Cow::Borrowed(ends), bytes: Cow::Borrowed(bytes) };
        self.kv_usage().check_block(slot, held, next, &block)?;
        self.facts.check_room(slot, held, ends.len())?;
        self.cache.put_block(slot, ends, bytes)
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
        self.check_places(prompt)?;
        self.check_features(prompt)?;
        self.cache.reserve(&[(slot, prompt.tokens.len())])?;
        let hidden = self.hidden();
        let mut embeds = prompt.image.map_or(&[][..], |image| image.embeds).chunks_exact(hidden);
        let mut images = 0;
        let chunk = self.chunk_tokens;
        for (index, tokens) in prompt.tokens.chunks(chunk).enumerate() {
            let mut x = vec![0.0; tokens.len() * hidden];
            let mut rows = Vec::new();
            for (row, (&token, x)) in tokens.iter().zip(x.chunks_exact_mut(hidden)).enumerate() {
                let marked = prompt.image.is_some_and(|image| image.token == token);
                match marked.then(|| embeds.next()).flatten() {
                    Some(embed) => {
                        x.copy_from_slice(embed);
                        rows.push((row, images));
                        images += 1;
                    }
                    None => self.embed(token, x),
                }
            }
            let position_ids =
                prompt.position_ids.map(|position_ids| &position_ids[index * chunk..]);
            let span = self.span(slot, 0..tokens.len(), position_ids);
            self.forward(&mut x, &[span], Features { layers: prompt.deepstack, rows: &rows });
            visit(self, &x);
        }
        Ok(())
    }

    /// `rows` that go on from what `slot` holds, at `position_ids` if the decoder goes by them.
    fn span(&self, slot: usize, rows: Range<usize>, position_ids: Option<&[PositionId]>) -> Span {
        let next = self.cache.next_place(slot);
        let given = position_ids.filter(|_| self.file.engine.rope_sections.is_some());
        let counted = || (next..).take(rows.len()).map(|place| [place; 3]).collect();
        let position_ids =
            given.map_or_else(counted, |position_ids| position_ids[..rows.len()].to_vec());
        Span { slot, rows, start: self.cache.len(slot), position_ids }
    }

    /// Runs the spans, whose room was made, through all layers.
    fn forward(&mut self, x: &mut [f32], spans: &[Span], features: Features<'_>) {
        let (pass, cache, buffers) = self.pass();
        pass.layers(x, spans, features, cache, buffers);
    }

    /// Logits `[rows, vocab]` of hidden states `[rows, hidden]`.
    fn logits(&mut self, x: &[f32]) -> Vec<f32> {
        let mut logits = Vec::new();
        let (pass, _, buffers) = self.pass();
        pass.logits(x, buffers, &mut logits);
        logits
    }

    /// What one forward pass reads, and what it changes.
    fn pass(&mut self) -> (Pass<'_>, &mut Cache, &mut Buffers) {
        let Self { file, decoder, rotary, cache, buffers, isa, threads, arithmetic, .. } = self;
        let (isa, arithmetic) = (*isa, *arithmetic);
        let machine = Machine { isa, threads, weights: &file.weights, arithmetic };
        (Pass { sizes: &file.engine, decoder, machine, rotary }, cache, buffers)
    }

    fn embed(&self, token: u32, out: &mut [f32]) {
        self.decoder.embed(token as usize, &self.file.weights, out);
    }

    /// Whether `slot` can take `tokens`.
    fn check(&self, slot: usize, tokens: &[u32]) -> Result<(), RunError> {
        self.facts.check_slot(slot)?;
        self.facts.check_room(slot, self.cache.len(slot), tokens.len())?;
        self.facts.check_tokens(tokens)
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

    fn check_places(&self, prompt: &Prompt<'_>) -> Result<(), RunError> {
        if self.file.engine.rope_sections.is_none() {
            return Ok(());
        }
        check_position_ids(prompt.position_ids, prompt.tokens.len(), prompt.image.is_some())
    }

    fn check_features(&self, prompt: &Prompt<'_>) -> Result<(), RunError> {
        let numbers = prompt.image.map_or(0, |image| image.embeds.len());
        let layers = if prompt.image.is_some() { self.file.engine.deepstack } else { 0 };
        let found: Vec<usize> = prompt.deepstack.iter().map(Vec::len).collect();
        if found.len() == layers && found.iter().all(|found| *found == numbers) {
            return Ok(());
        }
        Err(RunError::FeatureCount { layers, numbers, found })
    }
}
