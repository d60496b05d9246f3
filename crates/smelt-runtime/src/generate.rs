//! Answers one conversation with a deployment: prompt, pictures, prefill, decoding.
//!
//! The steps are plain calls on the engines, in order, on one slot.  Times are taken here and
//! nowhere below.  Knows nothing of who asks.

use std::time::{Duration, Instant};

use smelt_backend::position_ids::PositionId;
use smelt_backend::{Answer as Stepped, Decoder, FeatureSpan, ImageEmbeds, LogitRows, SlotInput};

use crate::deployment::Deployment;
use crate::generation::{Constraint, Generation, TokenOutput};
pub use crate::generation::{Finish, SamplingParams, SpeakError};
use crate::image::MediaItem;
use crate::prepare::{ImageUsage, PrepareError, Prepared, Question};
use crate::prompt::{PromptError, Turn};
use crate::sampling::Logprobs;
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
        "the prompt is too long: it has {tokens} tokens, but memory has room for the keys and values of {room}: shorten it, show fewer pictures, keep them in int8, or free memory"
    )]
    NoRoom {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that have room.
        room: usize,
    },
    /// The vision engine failed.
    #[error("the vision engine failed: {0}")]
    Vision(#[source] smelt_backend::VisionError),
    /// The language model's engine failed.
    #[error("the llm engine failed: {0}")]
    Llm(#[source] smelt_backend::RunError),
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
    pub shown: &'a [MediaItem],
    /// What the chat template is told beside the turns.
    pub context: &'a Context,
    /// How it is answered.
    pub sampling_params: &'a SamplingParams,
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
    pub seen: ImageUsage,
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
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// The tokens, image tokens included.
    pub tokens: Vec<u32>,
    /// What stands in the places of the image tokens.
    pub images: Embedded,
    /// The place of each token, where the decoder takes three of a token.
    pub position_ids: Option<Vec<PositionId>>,
    /// Parts the pictures were cut into.
    pub tiles: usize,
    /// How closely the pictures were looked at.
    pub seen: ImageUsage,
}

/// What is heard while a conversation is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationEvent<'a> {
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
    /// All features of the images.
    fn features(&self) -> Vec<FeatureSpan<'_>> {
        self.images.spans(0..self.images.tokens()).collect()
    }

    /// For the engine, with `features` in the places of `image_token`.
    fn run<'a>(
        &'a self,
        image_token: Option<u32>,
        features: &'a [FeatureSpan<'a>],
    ) -> SlotInput<'a> {
        let image_token = image_token.filter(|_| !features.is_empty());
        let image = image_token.map(|token| ImageEmbeds { token, features });
        let position_ids = self.position_ids.as_deref();
        SlotInput { image, position_ids, ..SlotInput::new(SLOT, &self.tokens) }
    }
}

/// Writes the prompt of `request` and encodes its pictures; `hear` hears which part is looked at.
///
/// # Errors
/// [`GenerateError`]; a prompt too long for the engine or its memory is refused before any picture is encoded.
pub fn prepare(
    deployment: &mut Deployment,
    request: &Request<'_>,
    hear: &mut dyn FnMut(GenerationEvent<'_>),
) -> Result<Encoded, GenerateError> {
    let Request { turns, shown, context, now_s, sampling_params } = *request;
    let answer_max = Some(sampling_params.new_tokens_max);
    let Prepared { tokens, views, position_ids, seen } = deployment.text.prepare(&Question {
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
    let mut encoded = Encoded { tokens, position_ids, seen, ..Encoded::default() };
    let parts = views.iter().map(|view| view.parts.len()).sum();
    // Without a tower nothing is shown.
    if let Some(vision) = &deployment.vision {
        for part in views.iter().flat_map(|view| &view.parts) {
            hear(GenerationEvent::Looking { part: encoded.tiles + 1, parts });
            encoded.images.push(vision.encode(part).map_err(GenerateError::Vision)?);
            encoded.tiles += 1;
        }
    }
    Ok(encoded)
}

/// The date that templates may show where nobody asks (2025-01-01).
const SOME_DAY_S: u64 = 1_735_689_600;

/// Does once what an answer takes: writes the prompt of a word by the template, which must hold the word, looks at
/// a picture of the smallest size where the model sees, reads the prompt and says a token behind it.  `told` hears
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
    if let Some(vision) = &deployment.vision
        && let Some(part) = vision.samples().first()
    {
        told(0.0, "looking at a picture");
        vision.encode(part).map_err(GenerateError::Vision)?;
        looked = 0.5;
    }
    told(looked, "saying a word");
    let turns = [Turn::from_parts("user", &[crate::prompt::PromptPart::Text("Hello")])?];
    let (context, sampling_params) = (&Context::default(), &SamplingParams::greedy(2));
    let request =
        Request { turns: &turns, shown: &[], context, sampling_params, now_s: SOME_DAY_S };
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
        if let GenerationEvent::Text(text) = heard {
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
    hear: &mut dyn FnMut(GenerationEvent<'_>),
) -> Result<Answer, GenerateError> {
    let start = Instant::now();
    let encoded = prepare(deployment, request, hear)?;
    let vision = start.elapsed();
    let on_text = &mut |text: &str| hear(GenerationEvent::Text(text));
    let mut answer = answer(deployment, &encoded, request.sampling_params, on_text)?;
    answer.timing.vision = vision;
    answer.timing.first_token += vision;
    Ok(answer)
}

/// Answers an encoded prompt as `sampling_params` say.
///
/// # Errors
/// [`GenerateError`] naming the part that failed.  The engine's slot is free again in any case.
pub fn answer(
    deployment: &mut Deployment,
    encoded: &Encoded,
    sampling_params: &SamplingParams,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, GenerateError> {
    let answer = begin(deployment, encoded, sampling_params).and_then(|mut begun| {
        begun.read(deployment, encoded, LogitRows::None)?;
        begun.say(deployment, encoded, on_text)
    });
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
    let both = begin(deployment, encoded, &SamplingParams::greedy(new_tokens_max)).and_then(
        |mut begun| {
            let logits = begun.read(deployment, encoded, LogitRows::Last)?;
            let answer = begun.say(deployment, encoded, &mut |_| {})?;
            deployment.llm.truncate(SLOT, encoded.tokens.len());
            follow(deployment, logits, given, visit)?;
            Ok(answer)
        },
    );
    deployment.llm.release(SLOT);
    both
}

/// An answer whose prompt is read.
struct Begun {
    generation: Generation,
    /// What followed the last step.
    stepped: Stepped,
    /// How long reading took.
    took: Duration,
}

fn begin(
    deployment: &Deployment,
    encoded: &Encoded,
    sampling_params: &SamplingParams,
) -> Result<Begun, GenerateError> {
    let generation =
        Generation::new(&deployment.text, &encoded.tokens, sampling_params, Constraint::default())?;
    Ok(Begun { generation, stepped: Stepped::default(), took: Duration::ZERO })
}

impl Begun {
    /// Runs the prompt through the language model; gives the logits that were asked for.
    fn read(
        &mut self,
        deployment: &mut Deployment,
        encoded: &Encoded,
        logits: LogitRows,
    ) -> Result<Vec<f32>, GenerateError> {
        let start = Instant::now();
        let features = encoded.features();
        let draws = [self.generation.draw()?];
        let run = encoded.run(deployment.text.image_token, &features);
        self.stepped = one(&mut *deployment.llm, run.choosing(&draws).showing(logits))?;
        self.took = start.elapsed();
        Ok(std::mem::take(&mut self.stepped.logits))
    }

    /// Decodes behind the prompt that was read.
    fn say(
        mut self,
        deployment: &mut Deployment,
        encoded: &Encoded,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Answer, GenerateError> {
        let (mut answer, mut logprobs) = (String::new(), Vec::new());
        let (prefill, first_token) = (self.took, self.took);
        let mut timing = Timing { prefill, first_token, ..Timing::default() };
        let start = Instant::now();
        let mut emitted = self.next()?;
        let finish = loop {
            logprobs.extend(emitted.logprobs);
            if !emitted.text.is_empty() {
                on_text(&emitted.text);
                answer += &emitted.text;
            }
            let (None, Some(token)) = (emitted.finish, emitted.token) else { break emitted.finish };
            let draws = [self.generation.draw()?];
            let run = SlotInput::new(SLOT, std::slice::from_ref(&token)).choosing(&draws);
            self.stepped = one(&mut *deployment.llm, run)?;
            emitted = self.next()?;
            timing.decode_steps += 1;
        };
        timing.decode = start.elapsed();
        Ok(Answer {
            text: answer,
            tokens: self.generation.tokens().to_vec(),
            logprobs,
            prompt_tokens: encoded.tokens.len(),
            tiles: encoded.tiles,
            seen: encoded.seen,
            finish: finish.unwrap_or(Finish::Stop),
            timing,
        })
    }

    /// Says the token that the last step chose.
    fn next(&mut self) -> Result<TokenOutput, GenerateError> {
        let chosen = self.stepped.chosen.pop().expect("each run had one draw");
        Ok(self.generation.push(chosen)?)
    }
}

/// Shows the tokens of a given answer behind the prompt that was read, and the `logits` behind that.
fn follow(
    deployment: &mut Deployment,
    mut logits: Vec<f32>,
    tokens: &[u32],
    visit: &mut dyn FnMut(u32, &[f32]),
) -> Result<(), GenerateError> {
    let llm = &mut *deployment.llm;
    for (index, &token) in tokens.iter().enumerate() {
        if index > 0 {
            let run = SlotInput::new(SLOT, &tokens[index - 1..index]).showing(LogitRows::Last);
            logits = one(llm, run)?.logits;
        }
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Err(SpeakError::NotFinite { tokens: llm.held(SLOT) }.into());
        }
        visit(token, &logits);
    }
    Ok(())
}

/// A step of one run.
fn one(llm: &mut dyn Decoder, run: SlotInput<'_>) -> Result<Stepped, GenerateError> {
    let stepped = llm.step(&[run]).map_err(GenerateError::Llm)?;
    Ok(stepped.into_iter().next().unwrap_or_default())
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
