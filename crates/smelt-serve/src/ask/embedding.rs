//! Turns what is to be embedded into tokens.

use smelt_runtime::embed::{EmbedService, Refused, SentenceEncoder};
use smelt_runtime::tokenizer::Tokenizer;

use crate::api::embedding::EmbeddingFields;
use crate::api::several::Prompts;
use crate::error::ApiError;

/// Most tokens of one request, as in OpenAI's API.
const TOKENS_MAX: usize = 300_000;

/// The tokens of each text.
///
/// # Errors
/// 400, naming the text that is none, or is too long.
pub(crate) fn texts(
    fields: &EmbeddingFields,
    service: &EmbedService,
) -> Result<Vec<Vec<u32>>, ApiError> {
    fields.check(service.width())?;
    let (encoder, is_cut) = (service.encoder(), fields.is_cut()?);
    let (mut all, mut total) = (Vec::new(), 0);
    let mut take = |tokens: Vec<u32>| {
        total += tokens.len();
        all.push(tokens);
        match total > TOKENS_MAX {
            true => Err(ApiError::field("input", format!("more than {TOKENS_MAX} tokens"))),
            false => Ok(()),
        }
    };
    match &fields.input {
        Prompts::Texts(texts) => {
            for (at, text) in texts.iter().enumerate() {
                take(of_text(encoder, text, is_cut, &format!("input[{at}]"))?)?;
            }
        }
        Prompts::Tokens(lists) => {
            for (at, tokens) in lists.iter().enumerate() {
                take(of_tokens(encoder, tokens, &format!("input[{at}]"))?)?;
            }
        }
    }
    Ok(all)
}

fn of_text(
    encoder: &SentenceEncoder,
    text: &str,
    is_cut: bool,
    at: &str,
) -> Result<Vec<u32>, ApiError> {
    if text.is_empty() {
        return Err(ApiError::field(at, "is empty"));
    }
    let tokens = match is_cut {
        true => encoder.tokens(text).map_err(|error| ApiError::field(at, error))?,
        false => whole(encoder.tokenizer(), encoder.spec().max_tokens, text, at)?,
    };
    fits(encoder, tokens.len(), at).map(|()| tokens)
}

/// All tokens of `text`, unless it is so long that they need not be counted, where `max` are taken.
///
/// # Errors
/// 400, naming the field `at`.
pub(crate) fn whole(
    tokenizer: &Tokenizer,
    max: usize,
    text: &str,
    at: &str,
) -> Result<Vec<u32>, ApiError> {
    encoded(tokenizer, max, (text, true), at)
}

/// The same, with the special ones if the text `is_whole`.
///
/// # Errors
/// As [`whole`].
pub(crate) fn encoded(
    tokenizer: &Tokenizer,
    max: usize,
    (text, is_whole): (&str, bool),
    at: &str,
) -> Result<Vec<u32>, ApiError> {
    if text.len() > tokenizer.bytes_max(max) {
        return Err(too_long(&format!("{} bytes are far more than", text.len()), max, at));
    }
    tokenizer.encode_as(text, is_whole).map_err(|error| ApiError::field(at, error))
}

/// Tokens are taken as they are: `/tokenize` puts the special ones around them.
fn of_tokens(encoder: &SentenceEncoder, tokens: &[u32], at: &str) -> Result<Vec<u32>, ApiError> {
    let vocab = encoder.tokenizer().vocab();
    if tokens.is_empty() {
        return Err(ApiError::field(at, "has no tokens"));
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(ApiError::field(
            at,
            format!("{token} is not one of the model's {vocab} tokens"),
        ));
    }
    fits(encoder, tokens.len(), at).map(|()| tokens.to_vec())
}

fn fits(encoder: &SentenceEncoder, tokens: usize, at: &str) -> Result<(), ApiError> {
    let max = encoder.spec().max_tokens;
    if tokens <= max {
        return Ok(());
    }
    Err(too_long(&format!("{tokens} tokens are more than"), max, at))
}

fn too_long(what: &str, max: usize, at: &str) -> ApiError {
    let why = format!(
        "{what} the {max} tokens that the model takes; shorten the text, or have it cut by truncate_prompt_tokens: -1"
    );
    ApiError::field(at, why).code("context_length_exceeded")
}

/// What it means to who asked that a service does not take a request.
pub(crate) fn refused(error: Refused) -> ApiError {
    let message = error.to_string();
    match error {
        Refused::Busy { retry_after, .. } => ApiError::busy(message, retry_after),
        Refused::Draining => ApiError::draining(message),
    }
}
