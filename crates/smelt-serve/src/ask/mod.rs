//! Turns what was asked into what a service takes.
//!
//! Reading, fetching and cutting pictures are work that blocks, and each has its own limit on how much is
//! done at once.  Knows nothing of connections.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod pixels;
pub(crate) mod score;
pub(crate) mod shown;
pub(crate) mod work;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use smelt_runtime::grammar::TokenBytes;
use smelt_runtime::prepare::{PrepareError, Prepared, Seen};
use smelt_runtime::service::{self, Refused, Request, Service, Ticket};
use smelt_runtime::speaker::{Form, Manner, SpeakError};

use crate::answer::Words;
use crate::api::common::Common;
use crate::error::ApiError;

/// How a request is to be answered.
pub(crate) struct Wish<'a> {
    pub(crate) client: service::Client,
    pub(crate) common: &'a Common,
    pub(crate) manners: &'a [Manner],
    pub(crate) form: Form,
    /// How many of the likeliest tokens are told with each of the prompt's, if any are.
    pub(crate) scored: Option<usize>,
    /// When the request came.
    pub(crate) begun: Instant,
}

/// Submits each prompt.  Gives with each ticket how closely its pictures are looked at.
///
/// # Errors
/// As the service refuses; prompts that were taken before are cancelled.
pub(crate) fn submit(
    service: &Service,
    prompts: Vec<Prepared>,
    wish: &Wish<'_>,
) -> Result<Vec<(Ticket, Seen)>, ApiError> {
    let (priority, timeout) = (wish.common.priority()?, wish.common.timeout()?);
    let deadline = timeout.map(|timeout| wish.begun + timeout);
    let client = service::Client { slot: wish.common.slot(service.running_max())?, ..wish.client };
    let one = |prepared: Prepared| {
        let seen = prepared.seen;
        let (manners, form) = (wish.manners.to_vec(), wish.form.clone());
        let scored = wish.scored;
        let request = Request { client, prepared, manners, form, priority, deadline, scored };
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
        Refused::Manner(SpeakError::Setting(_) | SpeakError::Stop(_)) => ApiError::bad(message),
        Refused::Manner(_) => ApiError::failed(message),
    }
}
