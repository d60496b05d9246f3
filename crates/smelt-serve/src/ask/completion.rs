//! Turns a completion into prompts.

use smelt_runtime::deployment::Text;
use smelt_runtime::prepare::Prepared;

use super::unprepared;
use crate::api::common::Common;
use crate::api::completion::CompletionFields;
use crate::api::several::Prompts;
use crate::api::{read, weigh::weigh};
use crate::error::ApiError;

/// A completion as it was read.
pub(crate) struct Completion {
    pub(crate) common: Common,
    pub(crate) fields: CompletionFields,
}

impl Completion {
    /// Reads a request's body.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body = weigh(body)?;
        let completion = Self { common: read::json(body)?, fields: read::json(body)? };
        completion.fields.check(completion.common.answers()?)?;
        Ok(completion)
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
                let prompts = all.iter().map(|tokens| text.prepare_words(tokens.clone()));
                let prompts: Result<Vec<_>, _> = prompts.collect();
                let texts = all.iter().map(|tokens| text.tokenizer.decode(tokens, false));
                let texts: Result<Vec<_>, _> = texts.collect();
                let texts = texts.map_err(|error| ApiError::field("prompt", error))?;
                (prompts.map_err(failed)?, texts)
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
