//! Turns pairs that are to be scored into tokens.

use smelt_runtime::score::CrossEncoder;
use smelt_runtime::tokenizer::PairTokens;

use super::work::Asker;
use crate::api::score::{Cut, Manner};
use crate::error::ApiError;

/// Most tokens of one request: as many pairs as it may have, of 512 tokens.
const TOKENS_MAX: usize = 1 << 20;

/// The tokens of each pair; `names` says which field a text of the pair at a place is.
///
/// # Errors
/// 400, naming the text that is empty or too long.
pub(crate) fn pairs(
    pairs: &[[&str; 2]],
    names: impl Fn(usize) -> [String; 2],
    manner: &Manner,
    encoder: &CrossEncoder,
    asker: &Asker,
) -> Result<Vec<PairTokens>, ApiError> {
    let (mut all, mut total) = (Vec::with_capacity(pairs.len()), 0);
    for (at, pair) in pairs.iter().enumerate() {
        asker.check()?;
        let names = names(at);
        let tokens = one(*pair, &names, manner.cut, encoder)?;
        total += tokens.ids.len();
        if total > TOKENS_MAX {
            let why = format!("more than {TOKENS_MAX} tokens with those before; send fewer");
            return Err(ApiError::field(&names[1], why));
        }
        all.push(tokens);
    }
    Ok(all)
}

fn one(
    pair: [&str; 2],
    names: &[String; 2],
    cut: Option<Cut>,
    encoder: &CrossEncoder,
) -> Result<PairTokens, ApiError> {
    let (max, tokenizer) = (encoder.spec().max_tokens, encoder.tokenizer());
    for (text, name) in pair.iter().zip(names) {
        if text.is_empty() {
            return Err(ApiError::field(name, "is empty"));
        }
        if cut.is_none() && text.len() > tokenizer.bytes_max(max) {
            let what = format!("{} bytes are far more than", text.len());
            return Err(too_long(&what, max, name));
        }
    }
    let (second_max, tokens_max) = match cut {
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
    let tokens = tokenizer.encode_pair(pair, second_max, tokens_max);
    let tokens = tokens.map_err(|error| ApiError::field(&names[1], error))?;
    match tokens.ids.len() {
        count if count > max => {
            Err(too_long(&format!("{count} tokens of both are more than"), max, &names[1]))
        }
        _ => Ok(tokens),
    }
}

fn too_long(what: &str, max: usize, at: &str) -> ApiError {
    let why = format!(
        "{what} the {max} tokens that the model takes of both texts; shorten them, or have them cut by \
         truncate_prompt_tokens: -1"
    );
    ApiError::field(at, why).code("context_length_exceeded")
}
