//! Turns what was asked into what a service takes.
//!
//! Reading, fetching and cutting pictures are work that blocks, and each has its own limit on how much is
//! done at once.  Knows nothing of connections.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod pixels;
pub(crate) mod resolved_message;
pub(crate) mod score;
pub(crate) mod work;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use smelt_runtime::generation::{Constraint, SamplingParams, SpeakError};
use smelt_runtime::grammar::TokenBytes;
use smelt_runtime::prepare::{ImageUsage, PrepareError, Prepared};
use smelt_runtime::service::{self, EventReceiver, Refused, Request, Service};

use crate::answer::Words;
use crate::api::common::Common;
use crate::error::ApiError;

/// How a request is to be answered.
pub(crate) struct AnswerOptions<'a> {
    pub(crate) client: service::Client,
    pub(crate) common: &'a Common,
    pub(crate) choice_params: &'a [SamplingParams],
    pub(crate) constraint: Constraint,
    /// How many of the likeliest tokens are told with each of the prompt's, if any are.
    pub(crate) scored: Option<usize>,
    /// When the request came.
    pub(crate) begun: Instant,
}

/// Submits each prompt.  Gives with each receiver of events how closely its pictures are looked at.
///
/// # Errors
/// As the service refuses; prompts that were taken before are cancelled.
pub(crate) fn submit(
    service: &Service,
    prompts: Vec<Prepared>,
    answer_options: &AnswerOptions<'_>,
) -> Result<Vec<(EventReceiver, ImageUsage)>, ApiError> {
    let (priority, timeout) = (answer_options.common.priority()?, answer_options.common.timeout()?);
    let deadline = timeout.map(|timeout| answer_options.begun + timeout);
    let client = service::Client {
        slot: answer_options.common.slot(service.running_max())?,
        ..answer_options.client
    };
    let one = |prepared: Prepared| {
        let seen = prepared.seen;
        let (choice_params, constraint) =
            (answer_options.choice_params.to_vec(), answer_options.constraint.clone());
        let scored = answer_options.scored;
        let request =
            Request { client, prepared, choice_params, constraint, priority, deadline, scored };
        Ok((service.submit(request).map_err(refused)?, seen))
    };
    prompts.into_iter().map(one).collect()
}

/// The words of a service's tokens, in bytes: not all of them are whole characters.
pub(crate) fn words(service: &Service) -> Words {
    let text = Arc::clone(service.text());
    // Most requests ask for none.
    let bytes = OnceLock::new();
    Arc::new(move |token| match bytes.get_or_init(|| TokenBytes::new(&text.tokenizer).ok()) {
        Some(bytes) => bytes.of(token),
        // What no decoder has a text for has none here.
        None => text.tokenizer.decode(&[token], false).unwrap_or_default().into_bytes(),
    })
}

/// What a prompt's error means to who asked in the field `param`.
pub(crate) fn unprepared(param: &str, error: PrepareError) -> ApiError {
    let code = match &error {
        PrepareError::TooLong { .. } | PrepareError::TextTooLong { .. } => {
            Some("context_length_exceeded")
        }
        // Nothing is wrong with what was asked.
        PrepareError::Similarity(_) => return ApiError::failed(error.to_string()),
        _ => None,
    };
    ApiError { code, ..ApiError::field(param, error) }
}

fn refused(error: Refused) -> ApiError {
    let message = error.to_string();
    match error {
        Refused::Busy { retry_after, .. } => ApiError::busy(message, retry_after),
        Refused::Draining => ApiError::draining(message),
        Refused::TooLong { .. } => ApiError::bad(message).code("context_length_exceeded"),
        Refused::Answers(_) => ApiError::field("n", message),
        Refused::SamplingParams(SpeakError::Setting(_) | SpeakError::Stop(_)) => {
            ApiError::bad(message)
        }
        Refused::SamplingParams(_) => ApiError::failed(message),
    }
}
