//! Turns a completion into prompts.

use std::sync::LazyLock;

use smelt_runtime::deployment::Text;
use smelt_runtime::prepare::Prepared;

use super::unprepared;
use crate::api::common::Common;
use crate::api::completion::CompletionFields;
use crate::api::fields::fields;
use crate::api::foreign::Known;
use crate::api::several::Prompts;
use crate::api::structured_output::StructuredOutputFields;
use crate::api::{foreign, read};
use crate::error::ApiError;

/// A completion as it was read.
pub(crate) struct Completion {
    pub(crate) common: Common,
    pub(crate) fields: CompletionFields,
    pub(crate) held: StructuredOutputFields,
    /// Fields that nobody knows.
    pub(crate) passed_over: Vec<String>,
}

/// The fields that a completion reads.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let all =
        [fields::<Common>(), fields::<CompletionFields>(), fields::<StructuredOutputFields>()];
    StructuredOutputFields::within(Common::within(Known::new(all.into_iter().flatten())))
});

impl Completion {
    /// Reads a request's body.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn read(body: read::Body<'_>) -> Result<Self, ApiError> {
        let completion = Self {
            common: read::json(body)?,
            fields: read::json(body)?,
            held: read::json(body)?,
            passed_over: foreign::passed_over(body, &KNOWN)?,
        };
        completion.fields.check(completion.common.answers()?)?;
        Ok(completion)
    }

    /// The most tokens of an answer.
    ///
    /// # Errors
    /// If it is zero.
    pub(crate) fn new_tokens_max(&self, most: usize) -> Result<usize, ApiError> {
        match (self.fields.limits_tokens(), self.common.n_predict()?) {
            (false, Some(limit)) => Ok(limit),
            (false, None) if self.common.wants_all() => Ok(most),
            _ => self.fields.new_tokens_max(),
        }
    }

    /// The prompts, and what each choice begins with where that is wanted.
    ///
    /// # Errors
    /// 400, if one is no prompt.
    pub(crate) fn prepare(&self, text: &Text) -> Result<(Vec<Prepared>, Vec<String>), ApiError> {
        let failed = |error| unprepared("prompt", error);
        let (prompts, texts) = match &self.fields.prompt {
            Prompts::Texts(texts) => {
                let prompts = texts.iter().map(|prompt| text.prepare_text(prompt));
                let prompts: Result<Vec<_>, _> = prompts.collect();
                (prompts.map_err(failed)?, texts.clone())
            }
            Prompts::Tokens(all) => {
                // What is too long is neither copied nor written out.
                all.iter().try_for_each(|tokens| text.has_room(tokens.len())).map_err(failed)?;
                let prompts = all.iter().map(|tokens| text.prepare_words(tokens.clone()));
                let prompts: Result<Vec<_>, _> = prompts.collect();
                let prompts = prompts.map_err(failed)?;
                let texts = all.iter().map(|tokens| text.tokenizer.decode(tokens, false));
                let texts: Result<Vec<_>, _> = texts.collect();
                (prompts, texts.map_err(|error| ApiError::field("prompt", error))?)
            }
        };
        if !self.fields.echo() {
            return Ok((prompts, Vec::new()));
        }
        let answers = self.common.answers()?;
        let echo = texts.into_iter().flat_map(|text| std::iter::repeat_n(text, answers));
        Ok((prompts, echo.collect()))
    }
}
