//! Knows fields of other servers' requests that nobody here reads.
//!
//! A field that would change an answer and is dropped in silence costs its reader an afternoon.  So what is known to change
//! answers is refused with what to send instead, unless it says what is done anyway; what changes none is passed over; and
//! what nobody knows is passed over and told.  One table says so for all protocols; each tells which fields it reads, also of
//! objects within the body, and what it calls those that chats know by another name.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::read::Body;
use crate::error::ApiError;

/// Most names that are told.
const TOLD_MAX: usize = 16;

/// The longest name that is told, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Fields that change no answer: accounts, caches of other servers, guesses of what will be said.
const HARMLESS: [&str; 14] = [
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
        ("image_data", none.clone(), "send pictures to /v1/chat/completions"),
        ("include_stop_str_in_output", none.clone(), "add the stop to what is answered"),
        ("length_penalty", json!(1), "leave it out; there is no beam search"),
        ("logits_processors", none.clone(), "use logit_bias"),
        ("lora", none.clone(), "serve a deployment of the merged weights, and name it in model"),
        (
            "lora_path",
            none.clone(),
            "serve a deployment of the merged weights, and name it in model",
        ),
        (
            "lora_request",
            none.clone(),
            "serve a deployment of the merged weights, and name it in model",
        ),
        ("min_tokens", json!(0), "use response_format with a grammar that is as long"),
        ("mirostat", json!(0), "use temperature, top_p or min_p"),
        ("n_keep", json!(0), "shorten the prompt"),
        ("max_chunks_per_doc", none.clone(), "use max_tokens_per_doc"),
        ("n_probs", json!(0), "use logprobs and top_logprobs"),
        ("no_stop_trim", none.clone(), "add the stop to what is answered"),
        ("penalty_prompt", none.clone(), "leave it out; penalties count the prompt and the answer"),
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
        ("t_max_predict_ms", json!(-1), "use timeout_s"),
        ("tfs_z", json!(1), "use top_p or min_p"),
        ("top_n_sigma", json!(-1), "use top_p or min_p"),
        ("truncation_side", json!("right"), "cut the texts"),
        ("truncate_prompt_tokens", none.clone(), "shorten the prompt; /tokenize counts it"),
        ("typical_p", json!(1), "use top_p or min_p"),
        ("use_beam_search", none.clone(), "use n"),
        ("xtc_probability", json!(0), "use top_p or min_p"),
        ("suffix", json!(""), "write the prompt of the model's own form of filling in"),
    ]
});

/// What Ollama's clients are told of other ways to choose tokens.
const IN_OPTIONS: &str = "use temperature, top_k, top_p or min_p";

/// Fields of objects within a body that change answers.
static REFUSED_WITHIN: LazyLock<Vec<Refused>> = LazyLock::new(|| {
    vec![
        ("messages.audio", Value::Null, "send what was said as content"),
        ("messages.function_call", Value::Null, "use tool_calls"),
        ("messages.partial", Value::Null, "use continue_final_message"),
        ("messages.prefix", Value::Null, "use continue_final_message"),
        ("messages.refusal", Value::Null, "send it as content"),
        ("options.mirostat", json!(0), IN_OPTIONS),
        ("options.tfs_z", json!(1), IN_OPTIONS),
        ("options.typical_p", json!(1), IN_OPTIONS),
    ]
});

/// Fields within a body that change no answer: marks of caches, what an answer had beside its words, and how Ollama is to
/// use its machine.
const HARMLESS_WITHIN: [&str; 21] = [
    "messages.annotations",
    "messages.cache_control",
    "messages.content.cache_control",
    "messages.content.citations",
    "messages.content.signature",
    "messages.id",
    "options.f16_kv",
    "options.low_vram",
    "options.main_gpu",
    "options.mirostat_eta",
    "options.mirostat_tau",
    "options.num_batch",
    "options.num_ctx",
    "options.num_gpu",
    "options.num_keep",
    "options.num_thread",
    "options.numa",
    "options.use_mlock",
    "options.use_mmap",
    "options.vocab_only",
    "stream_options.include_obfuscation",
];

/// Fields of a chat that change its answer, and what they say where they change none.  Where another protocol does not read
/// one, it is refused with that protocol's own word.
static OF_CHATS: LazyLock<Vec<(&'static str, Value)>> = LazyLock::new(|| {
    let none = Value::Null;
    vec![
        ("frequency_penalty", json!(0)),
        ("logprobs", none.clone()),
        ("max_completion_tokens", none.clone()),
        ("max_tokens", none.clone()),
        ("media_io_kwargs", none.clone()),
        ("mm_processor_kwargs", none.clone()),
        ("n", json!(1)),
        ("parallel_tool_calls", json!(true)),
        ("presence_penalty", json!(0)),
        ("reasoning_effort", none.clone()),
        ("response_format", json!({ "type": "text" })),
        ("stop", none.clone()),
        ("temperature", none.clone()),
        ("tool_choice", json!("auto")),
        ("tools", none.clone()),
        ("top_k", none.clone()),
        ("top_logprobs", json!(0)),
        ("top_p", none),
    ]
});

/// What a protocol reads of its requests.
#[derive(Debug, Default)]
pub(crate) struct Known {
    names: BTreeSet<&'static str>,
    /// The same of objects, and of those in lists, by where they are: `messages.content`.
    within: Vec<(&'static str, BTreeSet<&'static str>)>,
    /// What it calls fields of chats.
    own: Option<&'static [(&'static str, &'static str)]>,
    /// What fields say that say what it does anyway, where that is not what others do.
    does: Vec<(&'static str, Value)>,
}

impl Known {
    /// Reads these fields.
    pub(crate) fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self { names: names.into_iter().collect(), ..Self::default() }
    }

    /// Reads these fields of what is at `place`.
    pub(crate) fn within(
        mut self,
        place: &'static str,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        self.within.push((place, names.into_iter().collect()));
        self
    }

    /// Is another protocol than chats, whose fields it calls so.
    pub(crate) fn calling(mut self, own: &'static [(&'static str, &'static str)]) -> Self {
        self.own = Some(own);
        self
    }

    /// Does what a field says that says this.
    pub(crate) fn doing(mut self, name: &'static str, value: Value) -> Self {
        self.does.push((name, value));
        self
    }

    /// What becomes of the field at `place`.
    fn fate(&self, place: &str) -> Fate {
        let (outer, name) = place.rsplit_once('.').unwrap_or(("", place));
        let is_read = match outer {
            "" => self.names.contains(name),
            outer => self.inner(outer).is_none_or(|names| names.contains(name)),
        };
        if is_read {
            return if self.inner(place).is_some() { Fate::LookedInto } else { Fate::Passed };
        }
        if HARMLESS.contains(&place) || HARMLESS_WITHIN.contains(&place) {
            return Fate::Passed;
        }
        if let Some((name, neutral, instead)) = refused(place) {
            let own = self.does.iter().find(|(does, _)| does == name);
            let neutral = own.map_or(neutral, |(_, value)| value);
            return Fate::Refused { neutral: neutral.clone(), instead: (*instead).to_owned() };
        }
        let of_chats = OF_CHATS.iter().find(|(chats, _)| *chats == place);
        match (of_chats, self.own) {
            (Some((_, neutral)), Some(own)) => {
                let own = own.iter().find(|(chats, _)| *chats == place).map(|(_, own)| own);
                let instead = own.map_or_else(
                    || "ask /v1/chat/completions, which reads it".to_owned(),
                    |own| format!("use {own}"),
                );
                Fate::Refused { neutral: neutral.clone(), instead }
            }
            _ => Fate::Told,
        }
    }

    fn inner(&self, place: &str) -> Option<&BTreeSet<&'static str>> {
        self.within.iter().find(|(known, _)| *known == place).map(|(_, names)| names)
    }
}

/// What becomes of a field.
enum Fate {
    /// It is read, or changes nothing.
    Passed,
    /// It is read, and so are fields of it.
    LookedInto,
    /// It is refused, unless it says what is done anyway.
    Refused { neutral: Value, instead: String },
    /// Nobody knows it.
    Told,
}

/// The names of fields that nobody knows, of those that are not among the `known`.
///
/// # Errors
/// 400, naming a field that would change the answer, and what to send in its place.
pub(crate) fn passed_over(body: Body<'_>, known: &Known) -> Result<Vec<String>, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body.bytes());
    let mut over = Vec::new();
    let looked = Look { known, place: String::new(), over: &mut over }.deserialize(&mut reader);
    // What is no object was refused by who read it.
    looked.unwrap_or(Ok(()))?;
    Ok(over)
}

/// Looks at an object, or at all of a list, whose place in the body this is.
struct Look<'a> {
    known: &'a Known,
    place: String,
    over: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = Result<(), ApiError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = Result<(), ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let inner = match &self.place[..] {
                "" => name,
                place => format!("{place}.{name}"),
            };
            match self.known.fate(&inner) {
                Fate::Passed => _ = map.next_value::<IgnoredAny>()?,
                Fate::LookedInto => {
                    let look = Look { known: self.known, place: inner, over: self.over };
                    if let Err(error) = map.next_value_seed(look)? {
                        return Ok(Err(error));
                    }
                }
                Fate::Refused { neutral, instead } => {
                    let value = map.next_value::<Value>()?;
                    if !says_nothing(&value, &neutral) {
                        let why = format!("is not understood; {instead}");
                        return Ok(Err(ApiError::field(inner, why).code("field_not_supported")));
                    }
                }
                Fate::Told => {
                    map.next_value::<IgnoredAny>()?;
                    self.tell(&inner);
                }
            }
        }
        Ok(Ok(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        loop {
            let look = Look { known: self.known, place: self.place.clone(), over: &mut *self.over };
            match seq.next_element_seed(look)? {
                Some(Ok(())) => {}
                Some(Err(error)) => return Ok(Err(error)),
                None => return Ok(Ok(())),
            }
        }
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Ok(()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Ok(()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Ok(()))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Ok(()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Ok(()))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Ok(()))
    }
}

impl Look<'_> {
    /// Takes note of a name that nobody knows, once.
    fn tell(&mut self, name: &str) {
        let name = shown(name);
        if self.over.len() < TOLD_MAX && !self.over.contains(&name) {
            self.over.push(name);
        }
    }
}

fn refused(name: &str) -> Option<&'static Refused> {
    REFUSED.iter().chain(REFUSED_WITHIN.iter()).find(|(refused, ..)| *refused == name)
}

/// Whether a field changes no answer that says `value`, and none where it says what is `neutral`.
fn says_nothing(value: &Value, neutral: &Value) -> bool {
    match neutral {
        // Of what is done anyway, false is the contrary.
        Value::Bool(true) => value.is_null() || value == neutral,
        // Where llama-server has a limit, there is none at zero and below.
        Value::Number(number) if number.as_i64() == Some(-1) => {
            is_nothing(value) || value.as_f64().is_some_and(|value| value <= 0.0)
        }
        _ => is_nothing(value) || is_equal(value, neutral),
    }
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
        let known = Known::new(["model", "temperature"]);
        passed_over(weigh(text.as_bytes()).unwrap(), &known)
    }

    /// What another protocol than chats passes over.
    fn over_of_other(body: &Value) -> Result<Vec<String>, ApiError> {
        let text = body.to_string();
        let known = Known::new(["messages", "sizes", "max_output_tokens", "temperature"])
            .within("messages", ["role", "content"])
            .within("messages.content", ["type", "text"])
            .within("sizes", ["min"])
            .calling(&[("max_tokens", "max_output_tokens")])
            .doing("add_special_tokens", json!(false));
        passed_over(weigh(text.as_bytes()).unwrap(), &known)
    }

    #[test]
    fn what_changes_an_answer_is_refused_unless_it_says_what_is_done() {
        for (name, neutral, instead) in REFUSED.iter() {
            let error = over(&json!({ *name: ["x"] })).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(*name)));
            assert!(error.message.ends_with(instead), "{error:?}");
            for value in [neutral, &json!(null)] {
                assert_eq!(over(&json!({ *name: value })), Ok(vec![]), "{name} {value}");
            }
            for value in [json!(false), json!([]), json!({})] {
                let is_done = over(&json!({ *name: value })).is_ok();
                assert_eq!(is_done, *neutral != json!(true), "{name} {value}");
            }
        }
        assert_eq!(over(&json!({ "typical_p": 1.0 })), Ok(vec![]));
        assert!(over(&json!({ "typical_p": 0.5 })).is_err());
        assert!(over(&json!({ "skip_special_tokens": 0 })).is_err());
    }

    #[test]
    fn limits_of_others_are_none_at_zero_and_below() {
        for name in ["t_max_predict_ms", "top_n_sigma"] {
            for value in [json!(0), json!(-1), json!(-1.0)] {
                assert_eq!(over(&json!({ name: value })), Ok(vec![]), "{name} {value}");
            }
            let error = over(&json!({ name: 2 })).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
        }
        let error = over(&json!({ "t_max_predict_ms": 500 })).unwrap_err();
        assert!(error.message.ends_with("use timeout_s"), "{error:?}");
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
    fn what_nobody_knows_is_told_wherever_it_is() {
        let messages = json!([{ "role": "user", "content": "a", "naem": 1, "refusal": null },
            { "role": "user", "naem": 1, "content": [{ "type": "text", "txet": 1 }, 3, null] }]);
        let body = json!({ "messages": messages, "sizes": { "min": 1, "xam": { "a": 2 } } });
        let told = ["messages.naem", "messages.content.txet", "sizes.xam"].map(str::to_owned);
        assert_eq!(over_of_other(&body), Ok(told.to_vec()));
        assert_eq!(over_of_other(&json!({ "messages": "x", "sizes": [[1.5, true]] })), Ok(vec![]));
        let error = over_of_other(&json!({ "messages": [{ "prefix": true }] })).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages.prefix"));
        assert_eq!(over_of_other(&json!({ "messages": [{ "prefix": false }] })), Ok(vec![]));
    }

    #[test]
    fn what_chats_read_is_refused_by_who_calls_it_otherwise() {
        let error = over_of_other(&json!({ "max_tokens": 9 })).unwrap_err();
        assert!(error.message.ends_with("use max_output_tokens"), "{error:?}");
        let error = over_of_other(&json!({ "n": 2 })).unwrap_err();
        assert!(error.message.contains("/v1/chat/completions"), "{error:?}");
        let same = json!({ "n": 1, "max_tokens": null, "top_logprobs": 0, "temperature": 2 });
        assert_eq!(over_of_other(&same), Ok(vec![]));
        assert_eq!(over(&json!({ "n": 2 })), Ok(vec!["n".to_owned()]));
    }

    #[test]
    fn a_protocol_may_do_what_others_do_not() {
        let says = |value: bool| json!({ "add_special_tokens": value });
        assert!(over_of_other(&says(false)).is_ok() && over_of_other(&says(true)).is_err());
        assert!(over(&says(true)).is_ok() && over(&says(false)).is_err());
    }

    #[test]
    fn no_field_is_in_two_lists() {
        let within = REFUSED_WITHIN.iter().map(|(name, ..)| *name).chain(HARMLESS_WITHIN);
        let all = REFUSED.iter().map(|(name, ..)| *name).chain(HARMLESS).chain(within);
        let all: Vec<&str> = all.chain(OF_CHATS.iter().map(|(name, _)| *name)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
