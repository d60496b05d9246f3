//! Turns pairs that are to be scored, and texts that are to be classified, into tokens.

use smelt_runtime::score::CrossEncoder;
use smelt_runtime::tokenizer::PairTokens;

use super::work::Asker;
use crate::api::score::{Cut, ScoreOptions};
use crate::error::ApiError;

/// Most tokens of one request: as many pairs as it may have, of 512 tokens.
const TOKENS_MAX: usize = 1 << 20;

/// The tokens of each text or pair; `name` says which field a text of the one at a place is.
///
/// # Errors
/// 400, naming the text that is empty or too long.
pub(crate) fn tokens<'a>(
    asked: &[impl AsRef<[&'a str]>],
    name: impl Fn(usize, usize) -> String,
    score_options: &ScoreOptions,
    encoder: &CrossEncoder,
    asker: &Asker,
) -> Result<Vec<PairTokens>, ApiError> {
    let (mut all, mut total) = (Vec::with_capacity(asked.len()), 0);
    for (at, texts) in asked.iter().enumerate() {
        asker.check()?;
        let (texts, name) = (texts.as_ref(), |text| name(at, text));
        let tokens = one(texts, &name, score_options, encoder)?;
        total += tokens.ids.len();
        if total > TOKENS_MAX {
            let why = format!("more than {TOKENS_MAX} tokens with those before; send fewer");
            return Err(ApiError::field(name(texts.len() - 1), why));
        }
        all.push(tokens);
    }
    Ok(all)
}

fn one(
    texts: &[&str],
    name: &impl Fn(usize) -> String,
    score_options: &ScoreOptions,
    encoder: &CrossEncoder,
) -> Result<PairTokens, ApiError> {
    let (max, tokenizer) = (encoder.spec().max_tokens, encoder.tokenizer());
    for (at, text) in texts.iter().enumerate() {
        if text.is_empty() {
            return Err(ApiError::field(name(at), "is empty"));
        }
        if score_options.cut.is_none() && text.len() > tokenizer.bytes_max(max) {
            let what = format!("{} bytes are far more than", text.len());
            return Err(too_long(&what, max, &name(at), score_options));
        }
    }
    let (second_max, tokens_max) = match score_options.cut {
        None => (usize::MAX, usize::MAX),
        Some(Cut::Own) => (usize::MAX, max),
        Some(Cut::Document(tokens)) => (tokens, max),
        Some(Cut::Pair(tokens)) => {
            let around = tokenizer.around_pair();
            if !(around + 1..=max).contains(&tokens) {
                let why = format!("must be between {} and {max}, not {tokens}", around + 1);
                return Err(ApiError::field("truncate_prompt_tokens", why));
            }
            (usize::MAX, tokens)
        }
    };
    let (tokens, last) = match *texts {
        [first, second] => (tokenizer.encode_pair([first, second], second_max, tokens_max), 1),
        _ => (tokenizer.encode_alone(texts[0], tokens_max), 0),
    };
    let tokens = tokens.map_err(|error| ApiError::field(name(last), error))?;
    match tokens.ids.len() {
        count if count > max => {
            Err(too_long(&format!("{count} tokens are more than"), max, &name(last), score_options))
        }
        _ => Ok(tokens),
    }
}

fn too_long(what: &str, max: usize, at: &str, score_options: &ScoreOptions) -> ApiError {
    let cut = score_options.cut_by;
    let why = format!(
        "{what} the {max} tokens that the model takes of a text, or of both of a pair; shorten it, or have it cut by {cut}"
    );
    ApiError::field(at, why).code("context_length_exceeded")
}
