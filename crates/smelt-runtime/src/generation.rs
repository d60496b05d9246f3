//! Says one answer: what its next token is chosen by, what becomes of the token, when it ends.
//!
//! Draws out, tokens in, pieces of text out; who chooses and who hears is for others.

use std::sync::Arc;

use crate::deployment::Text;
use crate::dialect::Thinking;
use crate::grammar::{ConstraintError, GrammarMatcher};
use crate::sampling::{Chosen, Draw, Logprobs, Mask, NotFinite, Sampler, SettingError, Settings};
use crate::stop::{Stop, StopError};
use crate::tokenizer::{Detokenizer, TokenizerError};

/// Why an answer cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SpeakError {
    /// A setting of the sampler has no meaning.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A stop string cannot be looked for.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The answer cannot be held to its form.
    #[error(transparent)]
    Form(#[from] ConstraintError),
    /// The engine gave no usable logits.
    #[error("the llm engine gave logits that are not finite after {tokens} tokens; verify it")]
    NotFinite {
        /// Tokens read and written before.
        tokens: usize,
    },
}

/// How an answer is said, and where it ends.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// How tokens are chosen.
    pub sampling: Settings,
    /// The text ends before the first of these.
    pub stop_strings: Vec<String>,
    /// Tokens that end it beside the model's own end tokens.
    pub stop_tokens: Vec<u32>,
    /// The most tokens of the answer, at least one.
    pub new_tokens_max: usize,
    /// Whether the model's own end tokens are tokens like any other: for measurements.
    pub ignore_eos: bool,
}

impl SamplingParams {
    /// Always the likeliest token, at most so many, until the model ends.
    pub fn greedy(new_tokens_max: usize) -> Self {
        Self {
            sampling: Settings::GREEDY,
            stop_strings: Vec::new(),
            stop_tokens: Vec::new(),
            new_tokens_max,
            ignore_eos: false,
        }
    }
}

/// What an answer must be, beside what it says.
#[derive(Clone, Debug, Default)]
pub struct Constraint {
    /// What it is held to once it does not think.
    pub matcher: Option<GrammarMatcher>,
    /// How long it may think.
    pub thinking: Option<Thinking>,
}

impl Constraint {
    /// Which tokens may come next, if not all: one bit for each, into `words`.
    fn allowed(&mut self, vocab: usize, words: &mut Vec<u32>) -> Result<bool, ConstraintError> {
        let (forced, opening, is_open) = self
            .thinking
            .as_ref()
            .map_or((None, None, false), |t| (t.forced(), t.opening(), t.is_open()));
        let matcher = self.matcher.as_mut().filter(|_| !is_open || opening.is_some());
        if forced.is_none() && matcher.is_none() {
            return Ok(false);
        }
        words.clear();
        if let (Some(matcher), None) = (matcher, forced) {
            words.extend_from_slice(matcher.mask()?.words());
        }
        words.resize(vocab.div_ceil(32), 0);
        for token in forced.into_iter().chain(opening) {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(true)
    }

    /// Takes note of the next token; returns whether the answer is whole.
    fn take(&mut self, token: u32) -> Result<bool, ConstraintError> {
        if let Some(thinking) = &mut self.thinking {
            let is_thought = match thinking.opening() {
                Some(opening) => opening == token,
                None => thinking.is_open(),
            };
            thinking.take(token);
            if is_thought {
                return Ok(false);
            }
        }
        let Some(matcher) = &mut self.matcher else { return Ok(false) };
        matcher.take(token)?;
        Ok(matcher.is_ended())
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop token did.
    Stop,
    /// This stop string ended it, by its place among those of the request.
    Text(usize),
    /// It reached the length asked for.
    Length,
    /// The engine's slot is full.
    Full,
}

impl Finish {
    /// The finish reason of OpenAI's API.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Stop | Self::Text(_) => "stop",
            Self::Length | Self::Full => "length",
        }
    }
}

/// What a chosen token led to.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOutput {
    /// The token, unless it ended the answer and is no part of it.
    pub token: Option<u32>,
    /// The text that is certain now, which may be that of earlier tokens.
    pub text: String,
    /// How likely the model found the token, if asked for.
    pub logprobs: Option<Logprobs>,
    /// Why the answer is at its end, if it is.
    pub finish: Option<Finish>,
}

/// One answer as it grows.
#[derive(Debug)]
pub struct Generation {
    sampler: Sampler,
    constraint: Constraint,
    /// Which tokens the form allows, if `is_held`; kept for its memory.
    allowed: Vec<u32>,
    is_held: bool,
    /// Whether that is of the token that comes next.
    is_drawn: bool,
    vocab: usize,
    pieces: Detokenizer,
    stop: Stop,
    progress: Progress,
}

impl Generation {
    /// Begins an answer to `prompt`.
    ///
    /// # Errors
    /// [`SpeakError`] if `sampling_params` have no meaning.
    pub fn new(
        text: &Arc<Text>,
        prompt: &[u32],
        sampling_params: &SamplingParams,
        constraint: Constraint,
    ) -> Result<Self, SpeakError> {
        let sampler = Sampler::new(&sampling_params.sampling, prompt, text.vocab)?;
        let stop = Stop::new(&sampling_params.stop_strings)?;
        let own = if sampling_params.ignore_eos { &[][..] } else { &text.spec.eos };
        let progress = Progress {
            ends: [own, &sampling_params.stop_tokens].concat(),
            prompt: prompt.len(),
            new_tokens_max: sampling_params.new_tokens_max.max(1),
            seq_len_max: text.max_seq_len,
            tokens: Vec::new(),
        };
        let (pieces, vocab) = (Detokenizer::new(&text.tokenizer), text.vocab);
        let (allowed, is_held, is_drawn) = Default::default();
        Ok(Self { sampler, constraint, allowed, is_held, is_drawn, vocab, pieces, stop, progress })
    }

    /// The tokens said so far, the end token left out; those of a stop string are there.
    pub fn tokens(&self) -> &[u32] {
        &self.progress.tokens
    }

    /// What the next token is chosen by.
    ///
    /// # Errors
    /// [`SpeakError`] if the form cannot be held to any more.
    pub fn draw(&mut self) -> Result<Draw<'_>, SpeakError> {
        if !self.is_drawn {
            self.is_held = self.constraint.allowed(self.vocab, &mut self.allowed)?;
            self.is_drawn = true;
        }
        Ok(self.drawn())
    }

    /// As [`Self::draw`] said it last.
    pub fn drawn(&self) -> Draw<'_> {
        self.sampler.draw(self.is_held.then(|| Mask::new(&self.allowed)))
    }

    /// Says the token that was chosen by the last draw.
    ///
    /// # Errors
    /// [`SpeakError`] if nothing could be chosen or the token has no text.
    pub fn push(&mut self, choice: Result<Chosen, NotFinite>) -> Result<TokenOutput, SpeakError> {
        let tokens = self.progress.held();
        let choice = choice.map_err(|NotFinite| SpeakError::NotFinite { tokens })?;
        self.sampler.count(choice.token);
        self.is_drawn = false;
        let mut finish = self.progress.take(choice.token);
        let is_whole = finish != Some(Finish::Stop) && self.constraint.take(choice.token)?;
        // Only an end token is not part of the answer.
        if finish == Some(Finish::Stop) {
            let text = self.rest()?;
            return Ok(TokenOutput { token: None, text, logprobs: None, finish });
        }
        let (token, logprobs) = (Some(choice.token), choice.logprobs);
        if is_whole {
            finish = Some(Finish::Stop);
        }
        let mut text = self.stop.push(&self.pieces.push(choice.token)?);
        if self.stop.met().is_none() && finish.is_some() {
            text += &self.rest()?;
        }
        let finish = self.stop.met().map(Finish::Text).or(finish);
        Ok(TokenOutput { token, text, logprobs, finish })
    }

    /// The text that was held back, as no more comes.
    fn rest(&mut self) -> Result<String, TokenizerError> {
        let rest = self.pieces.finish()?;
        Ok(self.stop.push(&rest) + &self.stop.finish())
    }
}

/// How far an answer has come, and when it ends.
#[derive(Debug)]
struct Progress {
    /// The model's end tokens and those of the request.
    ends: Vec<u32>,
    prompt: usize,
    new_tokens_max: usize,
    seq_len_max: usize,
    tokens: Vec<u32>,
}

impl Progress {
    /// Takes the next token, unless it is an end token; says whether the answer ends with it.
    fn take(&mut self, token: u32) -> Option<Finish> {
        if self.ends.contains(&token) {
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
    fn check(ends: &[u32], new_tokens_max: usize, seq_len_max: usize, count: usize, end: Finish) {
        let ends = ends.to_vec();
        let mut progress =
            Progress { ends, prompt: 10, new_tokens_max, seq_len_max, tokens: Vec::new() };
        let finish = (1..).find_map(|token| progress.take(token)).unwrap();
        assert_eq!((progress.tokens.len(), finish), (count, end));
    }

    #[test]
    fn an_answer_ends_at_the_end_token_or_a_limit() {
        check(&[9, 4], 100, 100, 3, Finish::Stop);
        check(&[9], 5, 100, 5, Finish::Length);
        check(&[5], 5, 100, 4, Finish::Stop);
        check(&[5], 4, 100, 4, Finish::Length);
        // Twelve tokens fit the slot; the last one said need not.
        check(&[9], 100, 12, 3, Finish::Full);
    }
}
