//! Knows fields of other servers' requests that nobody here reads.
//!
//! A field that would change an answer and is dropped in silence costs its reader an afternoon.  So what is known to change
//! answers is refused with what to send instead, unless it says what is done anyway; what changes none is passed over; and
//! what nobody knows is passed over and told.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use super::read::Body;
use crate::error::ApiError;

/// Most names that are told.
const TOLD_MAX: usize = 16;

/// The longest name that is told, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Fields that change no answer: accounts, caches of other servers, guesses of what will be said.
const HARMLESS: [&str; 15] = [
    "cache_prompt",
    "keep_alive",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "return_progress",
    "safety_identifier",
    "service_tier",
    "slot_id",
    "store",
    "t_max_predict_ms",
    "timings_per_token",
    "user",
];

/// A field that changes answers: what it says where it changes none, beside null, false and nothing; and what to send
/// instead.
type Refused = (&'static str, Value, &'static str);

static REFUSED: LazyLock<Vec<Refused>> = LazyLock::new(|| {
    let none = Value::Null;
    vec![
        ("add_generation_prompt", json!(true), "send the prompt to /v1/completions as it is"),
        ("add_special_tokens", json!(true), "send tokens as the prompt of /v1/completions"),
        ("allowed_token_ids", none.clone(), "use response_format, or logit_bias"),
        ("bad_words", none.clone(), "use logit_bias, or response_format with a grammar"),
        ("chat_template", none.clone(), "start smelt with --chat-template"),
        (
            "continue_final_message",
            none.clone(),
            "ask /v1/chat/completions, which goes on with the last message",
        ),
        ("custom_logit_processor", none.clone(), "use logit_bias"),
        ("documents", none.clone(), "write them in a message"),
        ("dry_multiplier", json!(0), "use repetition_penalty"),
        ("dynatemp_range", json!(0), "use temperature"),
        ("early_stopping", none.clone(), "leave it out; there is no beam search"),
        ("include_stop_str_in_output", none.clone(), "add the stop to what is answered"),
        ("length_penalty", json!(1), "leave it out; there is no beam search"),
        ("logits_processors", none.clone(), "use logit_bias"),
        ("lora", none.clone(), "serve a deployment of the merged weights, and name it in model"),
        (
            "lora_path",
            none.clone(),
            "serve a deployment of the merged weights, and name it in model",
        ),
        ("min_tokens", json!(0), "use response_format with a grammar that is as long"),
        ("mirostat", json!(0), "use temperature, top_p or min_p"),
        ("n_keep", json!(0), "shorten the prompt"),
        ("max_chunks_per_doc", none.clone(), "use max_tokens_per_doc"),
        ("n_probs", json!(0), "use logprobs and top_logprobs"),
        ("no_stop_trim", none.clone(), "add the stop to what is answered"),
        ("prompt_logprobs", none.clone(), "use echo and logprobs of /v1/completions"),
        ("reasoning", none.clone(), "use enable_thinking and thinking_budget"),
        ("rank_fields", json!(["text"]), "write what is to be ranked as the text of a document"),
        ("raw_scores", none.clone(), "use use_activation: false"),
        (
            "samplers",
            none.clone(),
            "use temperature, top_k, top_p and min_p, which come in this order",
        ),
        ("session_params", none.clone(), "send the whole conversation"),
        ("skip_special_tokens", json!(true), "use logprobs, whose tokens include them"),
        ("spaces_between_special_tokens", json!(true), "leave it out"),
        ("stop_regex", none.clone(), "use stop, or response_format with a regex"),
        ("structural_tag", none.clone(), "use response_format with a grammar"),
        ("tfs_z", json!(1), "use top_p or min_p"),
        ("truncation_side", json!("right"), "cut the texts"),
        ("truncate_prompt_tokens", none.clone(), "shorten the prompt; /tokenize counts it"),
        ("typical_p", json!(1), "use top_p or min_p"),
        ("use_beam_search", none.clone(), "use n"),
        ("xtc_probability", json!(0), "use top_p or min_p"),
        ("suffix", json!(""), "write the prompt of the model's own form of filling in"),
    ]
});

/// The names of fields that nobody knows, of those that are not among the `known`.
///
/// # Errors
/// 400, naming a field that would change the answer, and what to send in its place.
pub(crate) fn passed_over(
    body: Body<'_>,
    known: &BTreeSet<&'static str>,
) -> Result<Vec<String>, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body.bytes());
    let looked = reader.deserialize_map(Look(known));
    // What is no object was refused by who read it.
    looked.unwrap_or_else(|_| Ok(Vec::new()))
}

struct Look<'a>(&'a BTreeSet<&'static str>);

impl<'de> Visitor<'de> for Look<'_> {
    type Value = Result<Vec<String>, ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut over = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if self.0.contains(&name[..]) || HARMLESS.contains(&&name[..]) {
                map.next_value::<IgnoredAny>()?;
            } else if let Some((name, neutral, instead)) = refused(&name) {
                let value = map.next_value::<Value>()?;
                if !is_nothing(&value) && !is_equal(&value, neutral) {
                    let why = format!("is not understood; {instead}");
                    return Ok(Err(ApiError::field(*name, why).code("field_not_supported")));
                }
            } else {
                map.next_value::<IgnoredAny>()?;
                if over.len() < TOLD_MAX {
                    over.push(shown(&name));
                }
            }
        }
        Ok(Ok(over))
    }
}

fn refused(name: &str) -> Option<&'static Refused> {
    REFUSED.iter().find(|(refused, ..)| *refused == name)
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn is_equal(value: &Value, neutral: &Value) -> bool {
    match (value.as_f64(), neutral.as_f64()) {
        (Some(value), Some(neutral)) => value == neutral,
        _ => value == neutral,
    }
}

/// A name as a header can hold it.
fn shown(name: &str) -> String {
    let is_word = |letter: &char| letter.is_ascii_graphic() && *letter != ',';
    name.chars()
        .map(|letter| if is_word(&letter) { letter } else { '?' })
        .take(NAME_BYTES_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::weigh::weigh;

    fn over(body: &Value) -> Result<Vec<String>, ApiError> {
        let text = body.to_string();
        let known = ["model", "temperature"].into();
        passed_over(weigh(text.as_bytes()).unwrap(), &known)
    }

    #[test]
    fn what_changes_an_answer_is_refused_unless_it_says_what_is_done() {
        for (name, neutral, instead) in REFUSED.iter() {
            let error = over(&json!({ *name: ["x"] })).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(*name)));
            assert!(error.message.ends_with(instead), "{error:?}");
            for value in [neutral, &json!(null), &json!(false), &json!([]), &json!({})] {
                assert_eq!(over(&json!({ *name: value })), Ok(vec![]), "{name} {value}");
            }
        }
        assert_eq!(over(&json!({ "typical_p": 1.0 })), Ok(vec![]));
        assert!(over(&json!({ "typical_p": 0.5 })).is_err());
        assert!(over(&json!({ "skip_special_tokens": 0 })).is_err());
    }

    #[test]
    fn what_nobody_knows_is_told_and_what_is_harmless_is_not() {
        let body =
            json!({ "model": "m", "user": "u", "prediction": { "a": 1 }, "stroe": 1, "x,\n": 2 });
        assert_eq!(over(&body), Ok(vec!["stroe".to_owned(), "x??".to_owned()]));
        let many: serde_json::Map<_, _> =
            (0..99).map(|at| (format!("f{at}"), json!(null))).collect();
        assert_eq!(over(&Value::Object(many)).unwrap().len(), TOLD_MAX);
        assert_eq!(over(&json!([1])), Ok(vec![]));
    }

    #[test]
    fn no_field_is_in_two_lists() {
        let all: BTreeSet<&str> = REFUSED.iter().map(|(name, ..)| *name).chain(HARMLESS).collect();
        assert_eq!(all.len(), REFUSED.len() + HARMLESS.len());
    }
}
