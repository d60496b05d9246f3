//! Answers one conversation with a deployment: prompt, pictures, prefill, decoding.
//!
//! The steps are plain calls on the engines, in order, on one slot.  Times are taken here and
//! nowhere below.  Knows nothing of who asks.

use std::time::{Duration, Instant};

use smelt_engine::llm::places::Place;
use smelt_engine::llm::{ImageEmbeds, LlmEngine, Prompt};

use crate::deployment::Deployment;
use crate::image::Shown;
use crate::prepare::{PrepareError, Prepared, Question, Seen};
use crate::prompt::{PromptError, Turn};
use crate::sampling::Logprobs;
pub use crate::speaker::{Finish, Manner, SpeakError};
use crate::speaker::{Form, Speaker};
use crate::template::Context;
use crate::tokenizer::TokenizerError;
use crate::vision::Embedded;

/// The slot a lone conversation uses.
const SLOT: usize = 0;

/// Why a conversation could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The conversation does not become a prompt.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The answer cannot begin or go on.
    #[error(transparent)]
    Speak(#[from] SpeakError),
    /// Keys and values of the prompt have no memory.
    #[error(
        "the prompt has {tokens} tokens, but memory has room for the keys and values of {room}: shorten it, show fewer pictures, keep them in int8, or free memory"
    )]
    NoRoom {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that have room.
        room: usize,
    },
    /// The vision engine failed.
    #[error("the vision engine failed: {0}")]
    Vision(#[source] smelt_engine::vision::RunError),
    /// The language model's engine failed.
    #[error("the llm engine failed: {0}")]
    Llm(#[source] smelt_engine::llm::RunError),
}

impl From<PromptError> for GenerateError {
    fn from(error: PromptError) -> Self {
        Self::Prepare(error.into())
    }
}

impl From<TokenizerError> for GenerateError {
    fn from(error: TokenizerError) -> Self {
        Self::Prepare(error.into())
    }
}

/// A conversation to be continued.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The turns so far.
    pub turns: &'a [Turn],
    /// The pictures and clips the turns show, in order.
    pub shown: &'a [Shown],
    /// What the chat template is told beside the turns.
    pub context: &'a Context,
    /// How it is answered.
    pub manner: &'a Manner,
    /// The date templates may show, in seconds since 1970.
    pub now_s: u64,
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
    /// Parts the pictures were cut into.
    pub tiles: usize,
    /// How closely the pictures were looked at.
    pub seen: Seen,
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// The tokens, image tokens included.
    pub tokens: Vec<u32>,
    /// What stands in the places of the image tokens.
    pub images: Embedded,
    /// The place of each token, where the decoder takes three of a token.
    pub places: Option<Vec<Place>>,
    /// Parts the pictures were cut into.
    pub tiles: usize,
    /// How closely the pictures were looked at.
    pub seen: Seen,
}

/// What is heard while a conversation is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// The vision engine begins with a part of the pictures, counted from 1.
    Looking {
        /// Which one.
        part: usize,
        /// Of how many.
        parts: usize,
    },
    /// The answer goes on.
    Text(&'a str),
}

impl Encoded {
    /// For the engine, with embeddings in the places of `image_token`.
    fn prompt(&self, image_token: Option<u32>) -> Prompt<'_> {
        let Embedded { embeds, deepstack } = &self.images;
        let image_token = image_token.filter(|_| !embeds.is_empty());
        let image = image_token.map(|token| ImageEmbeds { token, embeds });
        let places = self.places.as_deref();
        Prompt { deepstack, places, ..Prompt::plain(&self.tokens, image) }
    }
}

/// Writes the prompt of `request` and encodes its pictures; `hear` hears which part is looked at.
///
/// # Errors
/// [`GenerateError`]; a prompt too long for the engine or its memory is refused before any picture is encoded.
pub fn prepare(
    deployment: &mut Deployment,
    request: &Request<'_>,
    hear: &mut dyn FnMut(Heard<'_>),
) -> Result<Encoded, GenerateError> {
    let Request { turns, shown, context, now_s, manner } = *request;
    let answer_max = Some(manner.new_tokens_max);
    let Prepared { tokens, views, places, seen } = deployment.text.prepare(&Question {
        turns,
        shown,
        context,
        answer_max,
        now_s,
        reuse: None,
    })?;
    let kv = deployment.llm.kv_usage();
    let room = kv.blocks_free() * kv.block_tokens;
    if tokens.len() > room {
        return Err(GenerateError::NoRoom { tokens: tokens.len(), room });
    }
    let mut encoded = Encoded { tokens, places, seen, ..Encoded::default() };
    let parts = views.iter().map(|view| view.parts.len()).sum();
    // Without a tower nothing is shown.
    if let Some(vision) = &mut deployment.vision {
        for part in views.iter().flat_map(|view| &view.parts) {
            hear(Heard::Looking { part: encoded.tiles + 1, parts });
            encoded.images.append(&vision.encode(part).map_err(GenerateError::Vision)?);
            encoded.tiles += 1;
        }
    }
    Ok(encoded)
}

/// The date that templates may show where nobody asks (2025-01-01).
const SOME_DAY_S: u64 = 1_735_689_600;

/// Does once what an answer takes: writes the prompt of a word by the template, which must hold the word, looks at
/// a picture of the smallest size where there are eyes, reads the prompt and says a token behind it.  `told` hears
/// what comes next, and roughly which share of the time is over.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.
pub fn try_once(
    deployment: &mut Deployment,
    told: &mut dyn FnMut(f64, &str),
) -> Result<(), GenerateError> {
    deployment.text.template.try_once().map_err(PrepareError::from)?;
    let mut looked = 0.0;
    if let Some(vision) = &mut deployment.vision
        && let Some(part) = vision.samples().first()
    {
        told(0.0, "looking at a picture");
        vision.encode(part).map_err(GenerateError::Vision)?;
        looked = 0.5;
    }
    told(looked, "saying a word");
    let turns = [Turn::from_parts("user", &[crate::prompt::Part::Text("Hello")])?];
    let (context, manner) = (&Context::default(), &Manner::greedy(2));
    let request = Request { turns: &turns, shown: &[], context, manner, now_s: SOME_DAY_S };
    generate(deployment, &request, &mut |_| {}).map(drop)
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
    generate_heard(deployment, request, &mut |heard| {
        if let Heard::Text(text) = heard {
            on_text(text);
        }
    })
}

/// As [`generate`]; `hear` hears, too, which part of the pictures is looked at.
///
/// # Errors
/// As [`generate`].
pub fn generate_heard(
    deployment: &mut Deployment,
    request: &Request<'_>,
    hear: &mut dyn FnMut(Heard<'_>),
) -> Result<Answer, GenerateError> {
    let start = Instant::now();
    let encoded = prepare(deployment, request, hear)?;
    let vision = start.elapsed();
    let on_text = &mut |text: &str| hear(Heard::Text(text));
    let mut answer = answer(deployment, &encoded, request.manner, on_text)?;
    answer.timing.vision = vision;
    answer.timing.first_token += vision;
    Ok(answer)
}

/// Answers an encoded prompt in a `manner`.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.  The engine's slot is free again in any case.
pub fn answer(
    deployment: &mut Deployment,
    encoded: &Encoded,
    manner: &Manner,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, GenerateError> {
    let read = read(deployment, encoded);
    let answer = read.and_then(|read| say(deployment, encoded, &read, manner, on_text));
    deployment.llm.release(SLOT);
    answer
}

/// Answers an encoded prompt greedily as [`answer`] does; then follows a `given` answer from the same
/// prompt, which is read once, by the steps of an answer: `visit` sees each token and the logits
/// `[vocab]` before it, all finite.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.  The engine's slot is free again in any case.
pub fn answer_and_follow(
    deployment: &mut Deployment,
    encoded: &Encoded,
    new_tokens_max: usize,
    given: &[u32],
    visit: &mut dyn FnMut(u32, &[f32]),
) -> Result<Answer, GenerateError> {
    let both = read(deployment, encoded).and_then(|read| {
        let manner = Manner::greedy(new_tokens_max);
        let answer = say(deployment, encoded, &read, &manner, &mut |_| {})?;
        deployment.llm.truncate(SLOT, encoded.tokens.len());
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
fn read(deployment: &mut Deployment, encoded: &Encoded) -> Result<Read, GenerateError> {
    let Deployment { llm, text, .. } = deployment;
    let start = Instant::now();
    let prompt = encoded.prompt(text.image_token);
    let logits = llm.prefill(SLOT, &prompt).map_err(GenerateError::Llm)?;
    Ok(Read { logits, took: start.elapsed() })
}

/// Decodes behind the prompt that was read.
fn say(
    deployment: &mut Deployment,
    encoded: &Encoded,
    read: &Read,
    manner: &Manner,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, GenerateError> {
    let Deployment { text, llm, .. } = deployment;
    let mut speaker = Speaker::new(text, &encoded.tokens, manner, Form::default())?;
    let (mut answer, mut logprobs) = (String::new(), Vec::new());
    let (prefill, first_token) = (read.took, read.took);
    let mut timing = Timing { prefill, first_token, ..Timing::default() };
    let start = Instant::now();
    let mut said = speaker.say(&read.logits)?;
    let finish = loop {
        logprobs.extend(said.logprobs);
        if !said.text.is_empty() {
            on_text(&said.text);
            answer += &said.text;
        }
        let (None, Some(token)) = (said.finish, said.token) else { break said.finish };
        said = speaker.say(&step(llm, token)?)?;
        timing.decode_steps += 1;
    };
    timing.decode = start.elapsed();
    Ok(Answer {
        text: answer,
        tokens: speaker.tokens().to_vec(),
        logprobs,
        prompt_tokens: encoded.tokens.len(),
        tiles: encoded.tiles,
        seen: encoded.seen,
        finish: finish.unwrap_or(Finish::Stop),
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
            return Err(SpeakError::NotFinite { tokens: llm.held(SLOT) }.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_needs_a_step() {
        assert_eq!(Timing::default().tokens_per_second(), None);
        let timing =
            Timing { decode: Duration::from_millis(500), decode_steps: 10, ..Timing::default() };
        assert_eq!(timing.tokens_per_second(), Some(20.0));
    }
}
