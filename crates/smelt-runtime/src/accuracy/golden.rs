//! Asks a deployment golden prompts: questions that it must answer right.
//!
//! Each goes the whole way of a conversation: pictures, template, tokenizer, both engines.  The
//! answers come back beside the tokens they followed, for whoever wants to know why one is wrong.

use std::path::Path;

use super::measure::{NOW_S, TOKENS_BEYOND, prepare, shown};
use super::question::Question as Asked;
use crate::deployment::{Deployment, Text};
use crate::generate::{self, Encoded, GenerateError, SamplingParams};
use crate::image::{ImageDecodeError, Size, VisionInput};
use crate::prepare::Question;
use crate::prompt::{PromptError, Turn};
use crate::template::Context;
use crate::tokenizer::TokenizerError;

/// The file of golden prompts in their directory, beside their pictures.
pub const PROMPTS_FILE: &str = "questions.jsonl";

/// Why a golden prompt has no answer.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A picture was refused.
    #[error(transparent)]
    Picture(#[from] ImageDecodeError),
    /// The deployment gave none.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The question is none.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The right answer is not to be written in tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// What came of a golden prompt.
#[derive(Clone, Debug)]
pub struct GoldenResult {
    /// What was said.
    pub text: String,
    /// Whether that is the answer.
    pub is_right: bool,
    /// The prompt.
    pub encoded: Encoded,
    /// The tokens that were said.
    pub tokens: Vec<u32>,
}

/// Asks `question`, whose pictures are in `folder`.
///
/// # Errors
/// [`GoldenError`] naming the picture, or the part of the deployment that failed.
pub fn ask(
    deployment: &mut Deployment,
    question: &Asked,
    folder: &Path,
) -> Result<GoldenResult, GoldenError> {
    let shown = shown(question, folder)?;
    let new_tokens_max = answer_max(&deployment.text, question)?;
    let encoded = prepare(deployment, question, &shown, new_tokens_max)?;
    let sampling_params = SamplingParams::greedy(new_tokens_max);
    let answer = generate::answer(deployment, &encoded, &sampling_params, &mut |_| {})?;
    let is_right = question.is_right(&answer.text);
    Ok(GoldenResult { text: answer.text, is_right, encoded, tokens: answer.tokens })
}

/// Tokens that the answer may have.
fn answer_max(text: &Text, question: &Asked) -> Result<usize, TokenizerError> {
    Ok(text.tokenizer.encode(&question.answer)?.len() + TOKENS_BEYOND)
}

/// What the vision engines take of the question's pictures, one run after another: the numbers, and the
/// size of the engine.
///
/// # Errors
/// [`GoldenError`] naming the picture.
pub fn parts(
    deployment: &Deployment,
    question: &Asked,
    folder: &Path,
) -> Result<Vec<(Vec<f32>, Size)>, GoldenError> {
    let text = &deployment.text;
    let shown = shown(question, folder)?;
    let turns = [Turn::from_marked("user", &question.prompt(), shown.len())?];
    let (turns, shown, context) = (&turns, &shown, &Context::default());
    let answer_max = Some(answer_max(text, question)?);
    let question = Question { turns, shown, context, answer_max, now_s: NOW_S, reuse: None };
    let prepared = text.prepare(&question).map_err(GenerateError::from)?;
    // Who sees nothing was shown nothing.
    let Some(image_processor) = &text.image_processor else { return Ok(Vec::new()) };
    let numbers = |part: &VisionInput| {
        let size = image_processor.grids[part.grid].size;
        (part.numbers(&image_processor.cutting, size), size)
    };
    Ok(prepared.views.iter().flat_map(|view| &view.parts).map(numbers).collect())
}
