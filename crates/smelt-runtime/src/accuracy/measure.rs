//! Asks one deployment every question: its own answer, greedily; then the right answer, token by
//! token, for what it thinks of it.
//!
//! The right answer goes through the same decode steps that an answer takes, so the figures are of
//! the kernels that speak, not of those that read prompts.  Pictures are opened as they are needed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::distributions::{Player, Recorder};
use super::question::Question;
use super::score::{Mean, Score, Tally, kl, median, median_s, nll};
use crate::deployment::{Deployment, Engines};
use crate::generate::{self, Encoded, GenerateError, Request, SamplingParams};
use crate::image::{Image, ImageDecodeError, MediaItem};
use crate::prompt::Turn;
use crate::template::Context;

/// An answer that goes on so far beyond the right one is wrong; what follows is not waited for.
pub(super) const TOKENS_BEYOND: usize = 16;

/// The date that templates may show (2025-01-01): figures do not depend on the day.
pub(super) const NOW_S: u64 = 1_735_689_600;

/// Why a deployment has no figures.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A picture was refused.
    #[error(transparent)]
    Picture(#[from] ImageDecodeError),
    /// A question cannot be asked.
    #[error("question {number}: {source}")]
    Question {
        /// Which one, from 1.
        number: usize,
        /// What is wrong.
        source: GenerateError,
    },
    /// The engines' sizes cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Engine {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file of distributions failed.
    #[error("cannot keep or read the logits to compare: {0}")]
    Distributions(#[source] io::Error),
}

/// What the distributions over right answers are compared with.
#[derive(Debug)]
pub enum Against {
    /// This deployment is the first; the others are compared with what is recorded here.
    Itself(Recorder),
    /// The first deployment's.
    First(Player),
}

/// The figures of the deployment of these engines over `questions`, whose pictures are in `folder`.
/// `progress` hears the answers so far after each.
///
/// # Errors
/// [`MeasureError`] naming the question or file.
pub fn measure(
    (deployment, engines): (&mut Deployment, &Engines),
    (questions, folder): (&[Question], &Path),
    against: Against,
    progress: &mut dyn FnMut(Tally),
) -> Result<Score, MeasureError> {
    let vision = engines.vision.as_deref().map(bytes);
    let vision_bytes = vision.transpose()?.unwrap_or_default();
    let llm_bytes = bytes(&engines.llm)?;
    let mut asked = Asked::default();
    let mut right = Right { against, is_same: true, nll: Mean::default(), kl: Mean::default() };
    for (index, question) in questions.iter().enumerate() {
        let shown = shown(question, folder)?;
        let failed = |source| MeasureError::Question { number: index + 1, source };
        let tokens = deployment.text.tokenizer.encode(&question.answer);
        let tokens = tokens.map_err(|error| failed(error.into()))?;
        right.begin(deployment.llm.facts().vocab, &tokens)?;
        let mut kept = Ok(());
        let mut visit = |token, logits: &[f32]| {
            if kept.is_ok() {
                kept = right.take(token, logits);
            }
        };
        asked.ask(deployment, question, &shown, &tokens, &mut visit).map_err(failed)?;
        kept?;
        progress(asked.all);
    }
    let (answer_tokens, nll_nats) = (right.nll.count, right.nll.value());
    Ok(Score {
        scheme: deployment.llm.facts().scheme.clone(),
        tasks: asked.tasks,
        image_tokens: asked.image_tokens.value(),
        smaller: asked.smaller,
        answer_tokens,
        nll_nats,
        kl_nats: right.finish()?,
        vision_bytes,
        llm_bytes,
        first_token_s: median_s(&asked.first_tokens),
        tokens_per_second: median(asked.rates),
    })
}

/// The bytes of an engine's files.
fn bytes(dir: &Path) -> Result<u64, MeasureError> {
    let length = |entry: io::Result<fs::DirEntry>| Ok(entry?.metadata()?.len());
    let sum: io::Result<u64> = fs::read_dir(dir).and_then(|entries| entries.map(length).sum());
    sum.map_err(|source| MeasureError::Engine { path: dir.to_owned(), source })
}

/// Sees each token of a right answer and the logits before it.
type Visit<'a> = &'a mut dyn FnMut(u32, &[f32]);

/// What came of the model's own answers.
#[derive(Default)]
struct Asked {
    tasks: BTreeMap<String, Tally>,
    all: Tally,
    image_tokens: Mean,
    /// Questions whose pictures did not fit as they are.
    smaller: u64,
    first_tokens: Vec<Duration>,
    rates: Vec<f64>,
}

impl Asked {
    /// Asks one question, and shows what is thought of the tokens of its right answer.
    fn ask(
        &mut self,
        deployment: &mut Deployment,
        question: &Question,
        shown: &[MediaItem],
        right: &[u32],
        visit: Visit<'_>,
    ) -> Result<(), GenerateError> {
        let new_tokens_max = right.len() + TOKENS_BEYOND;
        let start = Instant::now();
        let encoded = prepare(deployment, question, shown, new_tokens_max)?;
        self.smaller += u64::from(encoded.seen.smaller > 0);
        let prepared_after = start.elapsed();
        let answer =
            generate::answer_and_follow(deployment, &encoded, new_tokens_max, right, visit)?;
        let is_right = question.is_right(&answer.text);
        self.tasks.entry(question.task.clone()).or_default().take(is_right);
        self.all.take(is_right);
        let is_image = |token: &&u32| Some(**token) == deployment.text.image_token;
        self.image_tokens.take(encoded.tokens.iter().filter(is_image).count() as f64);
        self.first_tokens.push(prepared_after + answer.timing.first_token);
        self.rates.extend(answer.timing.tokens_per_second());
        Ok(())
    }
}

/// The prompt that asks `question`, its pictures encoded, with room for an answer of so many tokens.
pub(super) fn prepare(
    deployment: &mut Deployment,
    question: &Question,
    shown: &[MediaItem],
    new_tokens_max: usize,
) -> Result<Encoded, GenerateError> {
    let turns = [Turn::from_marked("user", &question.prompt(), shown.len())?];
    let sampling_params = SamplingParams::greedy(new_tokens_max);
    let context = &Context::default();
    let request =
        Request { turns: &turns, shown, context, sampling_params: &sampling_params, now_s: NOW_S };
    generate::prepare(deployment, &request, &mut |_| {})
}

/// The question's pictures, which are in `folder`.
pub(super) fn shown(
    question: &Question,
    folder: &Path,
) -> Result<Vec<MediaItem>, ImageDecodeError> {
    let open = |image: &PathBuf| Image::open(&folder.join(image)).map(MediaItem::from);
    question.images.iter().map(open).collect()
}

/// What the model thinks of the right answers.
struct Right {
    against: Against,
    /// Whether the first deployment's rows are over the same tokens, so far.
    is_same: bool,
    nll: Mean,
    kl: Mean,
}

impl Right {
    fn begin(&mut self, vocab: usize, tokens: &[u32]) -> Result<(), MeasureError> {
        match &mut self.against {
            Against::Itself(recorder) => recorder.begin(vocab, tokens),
            Against::First(_) if !self.is_same => Ok(()),
            Against::First(player) => player.begin(vocab, tokens).map(|same| self.is_same = same),
        }
        .map_err(MeasureError::Distributions)
    }

    /// Takes the logits before `token`.
    fn take(&mut self, token: u32, logits: &[f32]) -> Result<(), MeasureError> {
        self.nll.take(nll(logits, token));
        match &mut self.against {
            Against::Itself(recorder) => {
                self.kl.take(0.0);
                recorder.row(logits)
            }
            Against::First(player) if self.is_same => {
                player.row().map(|first| self.kl.take(kl(&first, logits)))
            }
            Against::First(_) => Ok(()),
        }
        .map_err(MeasureError::Distributions)
    }

    /// The mean divergence, if all could be compared.
    fn finish(self) -> Result<Option<f64>, MeasureError> {
        if let Against::Itself(recorder) = self.against {
            recorder.finish().map_err(MeasureError::Distributions)?;
        }
        Ok(self.is_same.then(|| self.kl.value()))
    }
}
