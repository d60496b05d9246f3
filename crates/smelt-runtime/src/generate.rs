//! Answers one conversation with a deployment: prompt, pictures, prefill, decoding.
//!
//! The steps are plain calls on the engines, in order, on one slot.  Times are taken here and
//! nowhere below.  Knows nothing of who asks.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use smelt_engine::llm::{ImageEmbeds, LlmEngine, Prompt};

use crate::deployment::Deployment;
use crate::image::{self, Picture};
use crate::prompt::{self, PromptError, Turn};
use crate::sampling::{Logprobs, Sampler, SettingError, Settings};
use crate::stop::{Stop, StopError};
use crate::template::{Message, TemplateError};
use crate::tokenizer::{Detokenizer, Tokenizer, TokenizerError};

/// The slot a lone conversation uses.
const SLOT: usize = 0;

/// Why a conversation could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// Turns and pictures do not fit.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The chat template refused.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A setting of the sampler has no meaning.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A stop string cannot be looked for.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens, but the engine holds {max} with the answer; shorten it or use fewer tiles"
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens the engine holds.
        max: usize,
    },
    /// The vision engine failed.
    #[error("the vision engine failed: {0}")]
    Vision(#[source] smelt_engine::vision::RunError),
    /// The language model's engine failed.
    #[error("the llm engine failed: {0}")]
    Llm(#[source] smelt_engine::llm::RunError),
    /// The engine gave no usable logits.
    #[error("the llm engine gave logits that are not finite after {tokens} tokens; verify it")]
    NotFinite {
        /// Tokens read and written before.
        tokens: usize,
    },
}

/// A conversation to be continued.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The turns so far.
    pub turns: &'a [Turn],
    /// The pictures the turns show, in order.
    pub pictures: &'a [Picture],
    /// How it is answered.
    pub manner: Manner<'a>,
    /// The date templates may show, in seconds since 1970.
    pub now_s: u64,
}

/// How an answer is said, and where it ends.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'a> {
    /// How tokens are chosen.
    pub sampling: &'a Settings,
    /// The text ends before the first of these.
    pub stop_strings: &'a [String],
    /// Tokens that end it beside the model's own end tokens.
    pub stop_tokens: &'a [u32],
    /// The most tokens of the answer, at least one.
    pub new_tokens_max: usize,
}

/// Settings of [`Manner::greedy`].
static GREEDY: Settings = Settings::GREEDY;

impl Manner<'_> {
    /// Always the likeliest token, at most so many, until the model ends.
    pub fn greedy(new_tokens_max: usize) -> Self {
        Self { sampling: &GREEDY, stop_strings: &[], stop_tokens: &[], new_tokens_max }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop token or string did.
    Stop,
    /// It reached the length asked for.
    Length,
    /// The engine's slot is full.
    Full,
}

impl Finish {
    /// The finish reason of OpenAI's API.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length | Self::Full => "length",
        }
    }
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What was said, special tokens left out, up to a stop string.
    pub text: String,
    /// The tokens, the end token left out; those of a stop string are there.
    pub tokens: Vec<u32>,
    /// How likely the model found each of them, if asked for.
    pub logprobs: Vec<Logprobs>,
    /// Tokens of the prompt, image tokens included.
    pub prompt_tokens: usize,
    /// Tiles the pictures were cut into.
    pub tiles: usize,
    /// Why it ended.
    pub finish: Finish,
    /// How long it took.
    pub timing: Timing,
}

/// How long the parts of an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Cutting pictures into tiles and encoding them.
    pub vision: Duration,
    /// Running the prompt through the language model.
    pub prefill: Duration,
    /// From the request to the first token.
    pub first_token: Duration,
    /// All decode steps after it.
    pub decode: Duration,
    /// How many those were.
    pub decode_steps: usize,
}

impl Timing {
    /// Decode steps per second, if there were any.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.decode.as_secs_f64();
        (self.decode_steps > 0 && seconds > 0.0).then(|| self.decode_steps as f64 / seconds)
    }
}

/// A prompt as the language model's engine takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The tokens, image tokens included.
    pub tokens: Vec<u32>,
    /// One embedding per image token: `[image tokens, hidden]`.
    pub embeds: Vec<f32>,
    /// Tiles the pictures were cut into.
    pub tiles: usize,
}

impl Prepared {
    /// For the engine, with embeddings in the places of `image_token`.
    fn prompt(&self, image_token: u32) -> Prompt<'_> {
        let image = ImageEmbeds { token: image_token, embeds: &self.embeds };
        Prompt::plain(&self.tokens, (!self.embeds.is_empty()).then_some(image))
    }
}

/// Writes the prompt of `request` and encodes its pictures.
///
/// # Errors
/// [`GenerateError`]; a prompt too long for the engine is refused before any picture is encoded.
pub fn prepare(
    deployment: &mut Deployment,
    request: &Request<'_>,
) -> Result<Prepared, GenerateError> {
    let (tokens, tiles) = prompt_tokens(deployment, request)?;
    let max = deployment.llm.limits().max_seq_len;
    if tokens.len() > max {
        return Err(GenerateError::TooLong { tokens: tokens.len(), max });
    }
    let mut embeds = Vec::new();
    for picture in request.pictures {
        let tiles = image::tiles(picture, &deployment.spec.image);
        let encoded = deployment.vision.encode(&tiles.pixels, tiles.count);
        embeds.extend(encoded.map_err(GenerateError::Vision)?);
    }
    Ok(Prepared { tokens, embeds, tiles })
}

/// The tokens of the prompt, and how many tiles its pictures have.
fn prompt_tokens(
    deployment: &Deployment,
    request: &Request<'_>,
) -> Result<(Vec<u32>, usize), GenerateError> {
    let Deployment { spec, tokenizer, template, vision, .. } = deployment;
    prompt::check(request.turns, request.pictures.len(), &spec.image_tokens)?;
    let messages: Vec<&Message> = request.turns.iter().map(Turn::message).collect();
    let rendered = template.render(&messages, true, request.now_s)?;
    let tiles =
        |picture: &Picture| image::tile_count(picture.width(), picture.height(), &spec.image);
    let tiles: Vec<usize> = request.pictures.iter().map(tiles).collect();
    let counts: Vec<usize> = tiles.iter().map(|n| n * vision.tokens_per_tile()).collect();
    let text = prompt::expand(&rendered, &spec.image_tokens, &counts)?;
    Ok((tokenizer.encode(&text)?, tiles.iter().sum()))
}

/// Answers `request`; `on_text` hears each piece of the answer as it comes.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.  The engine's slot is free again in any case.
pub fn generate(
    deployment: &mut Deployment,
    request: &Request<'_>,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, GenerateError> {
    let start = Instant::now();
    let prepared = prepare(deployment, request)?;
    let vision = start.elapsed();
    let mut answer = answer(deployment, &prepared, &request.manner, on_text)?;
    answer.timing.vision = vision;
    answer.timing.first_token += vision;
    Ok(answer)
}

/// Answers a prepared prompt in a `manner`.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.  The engine's slot is free again in any case.
pub fn answer(
    deployment: &mut Deployment,
    prepared: &Prepared,
    manner: &Manner<'_>,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, GenerateError> {
    let read = read(deployment, prepared);
    let answer = read.and_then(|read| say(deployment, prepared, &read, manner, on_text));
    deployment.llm.release(SLOT);
    answer
}

/// Answers a prepared prompt greedily as [`answer`] does; then follows a `given` answer from the same prompt,
/// which is read once, by the steps of an answer: `visit` sees each token and the logits `[vocab]`
/// before it, all finite.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.  The engine's slot is free again in any case.
pub fn answer_and_follow(
    deployment: &mut Deployment,
    prepared: &Prepared,
    new_tokens_max: usize,
    given: &[u32],
    visit: &mut dyn FnMut(u32, &[f32]),
) -> Result<Answer, GenerateError> {
    let both = read(deployment, prepared).and_then(|read| {
        let manner = Manner::greedy(new_tokens_max);
        let answer = say(deployment, prepared, &read, &manner, &mut |_| {})?;
        deployment.llm.truncate(SLOT, prepared.tokens.len());
        follow(deployment, read, given, visit)?;
        Ok(answer)
    });
    deployment.llm.release(SLOT);
    both
}

/// A prompt that the slot holds.
struct Read {
    /// What follows it: `[vocab]`.
    logits: Vec<f32>,
    took: Duration,
}

/// Runs the prompt through the language model.
fn read(deployment: &mut Deployment, prepared: &Prepared) -> Result<Read, GenerateError> {
    let Deployment { llm, image_token, .. } = deployment;
    let start = Instant::now();
    let logits = llm.prefill(SLOT, &prepared.prompt(*image_token)).map_err(GenerateError::Llm)?;
    Ok(Read { logits, took: start.elapsed() })
}

/// Decodes behind the prompt that was read.
fn say(
    deployment: &mut Deployment,
    prepared: &Prepared,
    read: &Read,
    manner: &Manner<'_>,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, GenerateError> {
    let Deployment { spec, tokenizer, llm, .. } = deployment;
    let mut sampler = Sampler::new(manner.sampling, &prepared.tokens, llm.vocab())?;
    let mut progress = Progress {
        ends: [&spec.eos, manner.stop_tokens],
        prompt: prepared.tokens.len(),
        new_tokens_max: manner.new_tokens_max.max(1),
        seq_len_max: llm.limits().max_seq_len,
        tokens: Vec::new(),
    };
    let mut speech = Speech::new(tokenizer, manner.stop_strings, on_text)?;
    let mut logprobs = Vec::new();
    let (prefill, first_token) = (read.took, read.took);
    let mut timing = Timing { prefill, first_token, ..Timing::default() };
    let start = Instant::now();
    let mut logits = Cow::Borrowed(&read.logits[..]);
    let finish = loop {
        let held = progress.held();
        let not_finite = |_| GenerateError::NotFinite { tokens: held };
        let choice = sampler.choose(&logits, None).map_err(not_finite)?;
        let mut finish = progress.take(choice.token);
        // Only an end token is not part of the answer.
        if finish != Some(Finish::Stop) {
            logprobs.extend(choice.logprobs.cloned());
            if speech.say(choice.token)? {
                finish = Some(Finish::Stop);
            }
        }
        if let Some(finish) = finish {
            break finish;
        }
        logits = Cow::Owned(step(llm, choice.token)?);
        timing.decode_steps += 1;
    };
    timing.decode = start.elapsed();
    let (text, is_stopped) = speech.finish()?;
    Ok(Answer {
        text,
        tokens: progress.tokens,
        logprobs,
        prompt_tokens: prepared.tokens.len(),
        tiles: prepared.tiles,
        finish: if is_stopped { Finish::Stop } else { finish },
        timing,
    })
}

/// Shows the tokens of a given answer behind the prompt that was read.
fn follow(
    deployment: &mut Deployment,
    read: Read,
    tokens: &[u32],
    visit: &mut dyn FnMut(u32, &[f32]),
) -> Result<(), GenerateError> {
    let llm = &mut deployment.llm;
    let mut logits = read.logits;
    for (index, &token) in tokens.iter().enumerate() {
        if index > 0 {
            logits = step(llm, tokens[index - 1])?;
        }
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Err(GenerateError::NotFinite { tokens: llm.held(SLOT) });
        }
        visit(token, &logits);
    }
    Ok(())
}

/// Puts `token` behind what the slot holds; gives what follows.
fn step(llm: &mut LlmEngine, token: u32) -> Result<Vec<f32>, GenerateError> {
    let step = llm.decode(&[(SLOT, token)]).map_err(GenerateError::Llm)?;
    Ok(step.into_iter().next().unwrap_or_default())
}

/// The text of an answer so far, and who hears it.
struct Speech<'a> {
    pieces: Detokenizer<'a>,
    stop: Stop<'a>,
    text: String,
    on_text: &'a mut dyn FnMut(&str),
}

impl<'a> Speech<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        stop_strings: &'a [String],
        on_text: &'a mut dyn FnMut(&str),
    ) -> Result<Self, StopError> {
        let stop = Stop::new(stop_strings)?;
        Ok(Self { pieces: Detokenizer::new(tokenizer), stop, text: String::new(), on_text })
    }

    /// Says one more token; returns whether a stop string ends the answer.
    fn say(&mut self, token: u32) -> Result<bool, TokenizerError> {
        let piece = self.pieces.push(token)?;
        let piece = self.stop.push(&piece);
        self.add(&piece);
        Ok(self.stop.is_met())
    }

    /// The whole text, and whether a stop string ended it.
    fn finish(mut self) -> Result<(String, bool), TokenizerError> {
        let rest = self.pieces.finish()?;
        let rest = self.stop.push(&rest) + &self.stop.finish();
        self.add(&rest);
        Ok((self.text, self.stop.is_met()))
    }

    fn add(&mut self, piece: &str) {
        if !piece.is_empty() {
            (self.on_text)(piece);
            self.text += piece;
        }
    }
}

/// How far an answer has come, and when it ends.
struct Progress<'a> {
    /// The model's end tokens and those of the request.
    ends: [&'a [u32]; 2],
    prompt: usize,
    new_tokens_max: usize,
    seq_len_max: usize,
    tokens: Vec<u32>,
}

impl Progress<'_> {
    /// Takes the next token, unless it is an end token; says whether the answer ends with it.
    fn take(&mut self, token: u32) -> Option<Finish> {
        if self.ends.iter().any(|ends| ends.contains(&token)) {
            return Some(Finish::Stop);
        }
        self.tokens.push(token);
        if self.tokens.len() >= self.new_tokens_max {
            return Some(Finish::Length);
        }
        // The next step would put this token into the slot.
        (self.held() > self.seq_len_max).then_some(Finish::Full)
    }

    /// Tokens read and written so far.
    fn held(&self) -> usize {
        self.prompt + self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds tokens 1, 2, 3, … to an answer after a prompt of 10.
    #[track_caller]
    fn check(
        ends: [&[u32]; 2],
        new_tokens_max: usize,
        seq_len_max: usize,
        count: usize,
        end: Finish,
    ) {
        let mut progress =
            Progress { ends, prompt: 10, new_tokens_max, seq_len_max, tokens: Vec::new() };
        let finish = (1..).find_map(|token| progress.take(token)).unwrap();
        assert_eq!((progress.tokens.len(), finish), (count, end));
    }

    #[test]
    fn an_answer_ends_at_the_end_token_or_a_limit() {
        check([&[9], &[4]], 100, 100, 3, Finish::Stop);
        check([&[9], &[]], 5, 100, 5, Finish::Length);
        check([&[5], &[]], 5, 100, 4, Finish::Stop);
        check([&[5], &[]], 4, 100, 4, Finish::Length);
        // Twelve tokens fit the slot; the last one said need not.
        check([&[9], &[]], 100, 12, 3, Finish::Full);
    }

    #[test]
    fn speed_needs_a_step() {
        assert_eq!(Timing::default().tokens_per_second(), None);
        let timing =
            Timing { decode: Duration::from_millis(500), decode_steps: 10, ..Timing::default() };
        assert_eq!(timing.tokens_per_second(), Some(20.0));
    }
}
