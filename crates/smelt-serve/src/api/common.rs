//! What chats and completions share: the model, how tokens are chosen, where an answer ends.
//!
//! A body is read once for these fields and once for its own, so that no field is said twice.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde::Deserialize;
use smelt_runtime::generation::SamplingParams;
use smelt_runtime::sampling::{self, SettingError, Settings};
use smelt_runtime::service::{ANSWERS_MAX, Priority};
use smelt_runtime::stop;

use super::fields::fields;
use super::foreign::Known;
use super::several::TextOr;
use crate::error::ApiError;

/// Most stop tokens of a request: each is compared with every token.
const STOP_TOKENS_MAX: usize = 64;

/// The longest time that a request may give itself.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The fields of both kinds of request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    seed: Option<i64>,
    stop: Option<TextOr<String>>,
    stop_token_ids: Option<Vec<u32>>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    logit_bias: Option<BTreeMap<String, f64>>,
    /// What `repetition_penalty` and the limit of tokens are called by llama-server.
    repeat_penalty: Option<f64>,
    n_predict: Option<i64>,
    /// `high` or `normal`; ours.
    priority: Option<String>,
    /// Seconds after which nobody waits for the answer any more; ours.
    timeout_s: Option<f64>,
    /// What else must be equal where prompts are not read again, as in vLLM.
    pub(crate) cache_salt: Option<String>,
    /// What the client calls the slot that it is answered in, as in llama-server.
    id_slot: Option<i64>,
    /// Whether the model's own end tokens do not count, as in vLLM; for measurements.
    ignore_eos: Option<bool>,
}

/// What a stream tells besides its text.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// As one object, when all is said.
    Whole,
    /// As events, as it is said.
    Stream {
        /// Whether the last event tells the tokens.
        usage: bool,
    },
}

impl Common {
    /// Reads also these fields of fields.
    pub(crate) fn within(known: Known) -> Known {
        known.within("stream_options", fields::<StreamOptions>())
    }

    /// How the answer is sent.
    ///
    /// # Errors
    /// As OpenAI's server, if there are options of a stream without one.
    pub(crate) fn delivery(&self) -> Result<Delivery, ApiError> {
        match (self.stream.unwrap_or(false), &self.stream_options) {
            (true, options) => {
                let usage = options.as_ref().and_then(|options| options.include_usage);
                Ok(Delivery::Stream { usage: usage.unwrap_or(false) })
            }
            (false, None) => Ok(Delivery::Whole),
            (false, Some(_)) => {
                Err(ApiError::field("stream_options", "only allowed where stream is true"))
            }
        }
    }

    /// How each of the wanted answers is said; all but their seeds are equal.
    ///
    /// # Errors
    /// Naming the field that has no meaning.
    pub(crate) fn choice_params(
        &self,
        top_logprobs: Option<usize>,
        new_tokens_max: usize,
    ) -> Result<Vec<SamplingParams>, ApiError> {
        let first = SamplingParams {
            sampling: self.settings(top_logprobs)?,
            stop_strings: self.stop_strings()?,
            stop_tokens: self.stop_tokens()?,
            new_tokens_max,
            ignore_eos: self.ignore_eos.unwrap_or(false),
        };
        let answers = 0..self.answers()? as u64;
        let sampling_params = |answer| {
            let seed = first.sampling.seed.wrapping_add(answer);
            SamplingParams {
                sampling: Settings { seed, ..first.sampling.clone() },
                ..first.clone()
            }
        };
        Ok(answers.map(sampling_params).collect())
    }

    /// The most tokens of an answer, where it is said as llama-server's clients say it; -1 is no limit there.
    ///
    /// # Errors
    /// If it is zero, which is no answer.
    pub(crate) fn n_predict(&self) -> Result<Option<usize>, ApiError> {
        match self.n_predict {
            Some(0) => Err(ApiError::field("n_predict", "must be at least 1, or -1 for no limit")),
            limit => Ok(limit.and_then(|limit| usize::try_from(limit).ok())),
        }
    }

    /// Whether a limit of tokens is given that is none.
    pub(crate) fn wants_all(&self) -> bool {
        self.n_predict.is_some_and(|limit| limit < 0)
    }

    /// How many answers are wanted.
    ///
    /// # Errors
    /// If there are none or too many.
    pub(crate) fn answers(&self) -> Result<usize, ApiError> {
        match self.n.unwrap_or(1) {
            n if (1..=ANSWERS_MAX).contains(&n) => Ok(n),
            n => Err(ApiError::field("n", format!("must be 1 to {ANSWERS_MAX}, not {n}"))),
        }
    }

    /// The strings that end the answer.
    ///
    /// # Errors
    /// If they cannot be looked for.
    fn stop_strings(&self) -> Result<Vec<String>, ApiError> {
        let strings = match &self.stop {
            None => Vec::new(),
            Some(TextOr::Text(text)) => vec![text.clone()],
            Some(TextOr::List(texts)) => texts.clone(),
        };
        stop::check(&strings).map_err(|error| ApiError::field("stop", error))?;
        Ok(strings)
    }

    /// The tokens that end the answer beside the model's own.
    ///
    /// # Errors
    /// If they are too many.
    fn stop_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let tokens = self.stop_token_ids.clone().unwrap_or_default();
        if tokens.len() > STOP_TOKENS_MAX {
            let why = format!("{} tokens are more than {STOP_TOKENS_MAX}", tokens.len());
            return Err(ApiError::field("stop_token_ids", why));
        }
        Ok(tokens)
    }

    /// How tokens are chosen, and how many of the likeliest are told with each.
    ///
    /// What is not given is as in OpenAI's API: temperature and top_p 1, no cuts, no penalties, a
    /// seed that nobody knows.
    ///
    /// # Errors
    /// Naming the field that has no meaning.
    pub(crate) fn settings(&self, top_logprobs: Option<usize>) -> Result<Settings, ApiError> {
        let neutral = Settings::GREEDY;
        let settings = Settings {
            temperature: number("temperature", self.temperature, 1.0)?,
            top_k: self.top_k()?,
            top_p: number("top_p", self.top_p, neutral.top_p)?,
            min_p: number("min_p", self.min_p, neutral.min_p)?,
            repetition_penalty: number(
                "repetition_penalty",
                self.repetition_penalty.or(self.repeat_penalty),
                neutral.repetition_penalty,
            )?,
            presence_penalty: number(
                "presence_penalty",
                self.presence_penalty,
                neutral.presence_penalty,
            )?,
            frequency_penalty: number(
                "frequency_penalty",
                self.frequency_penalty,
                neutral.frequency_penalty,
            )?,
            logit_bias: self.logit_bias()?,
            seed: self.seed.map_or_else(unknown_seed, i64::cast_unsigned),
            top_logprobs,
        };
        settings.check().map_err(setting)?;
        Ok(settings)
    }

    /// Who is served first.
    ///
    /// # Errors
    /// If it is none of the words.
    pub(crate) fn priority(&self) -> Result<Priority, ApiError> {
        match self.priority.as_deref() {
            None | Some("normal") => Ok(Priority::Normal),
            Some("high") => Ok(Priority::High),
            Some(word) => {
                let why = format!("must be \"high\" or \"normal\", not {word:?}");
                Err(ApiError::field("priority", why))
            }
        }
    }

    /// What the slot is called, of so many; -1 is any, as in llama-server, and so the first.
    ///
    /// # Errors
    /// If there is no such slot.
    pub(crate) fn slot(&self, slots: usize) -> Result<u32, ApiError> {
        match self.id_slot.unwrap_or(-1) {
            -1 => Ok(0),
            id if (0..slots as i64).contains(&id) => Ok(id as u32),
            id => {
                let why = format!("must be 0 to {}, or -1 for any, not {id}", slots - 1);
                Err(ApiError::field("id_slot", why))
            }
        }
    }

    /// How long the answer is waited for, if there is a limit.
    ///
    /// # Errors
    /// If it is no time.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        let Some(seconds) = self.timeout_s else { return Ok(None) };
        let limit = TIMEOUT_MAX.as_secs_f64();
        if seconds > 0.0 && seconds <= limit {
            return Ok(Some(Duration::from_secs_f64(seconds)));
        }
        let why = format!("must be more than 0 and at most {limit} seconds, not {seconds}");
        Err(ApiError::field("timeout_s", why))
    }

    /// How many of the likeliest tokens count; -1 is all of them, as in vLLM.
    fn top_k(&self) -> Result<usize, ApiError> {
        match self.top_k.unwrap_or(0) {
            -1 => Ok(0),
            k => usize::try_from(k)
                .map_err(|_| ApiError::field("top_k", format!("must be at least -1, not {k}"))),
        }
    }

    /// What is added to the logits of tokens, in their order.
    fn logit_bias(&self) -> Result<Vec<(u32, f32)>, ApiError> {
        let entries = self.logit_bias.iter().flatten();
        let entry = |(token, bias): (&String, &f64)| {
            let why = || ApiError::field("logit_bias", format!("{token:?} is no token"));
            Ok((token.parse().map_err(|_| why())?, number("logit_bias", Some(*bias), 0.0)?))
        };
        entries.map(entry).collect()
    }
}

/// A setting of the request, or what is usual.
///
/// # Errors
/// If it has no meaning, as it was written: 1.0000000000000002 is more than 1, though no `f32` says so.
fn number(name: &'static str, written: Option<f64>, usual: f32) -> Result<f32, ApiError> {
    let Some(written) = written else { return Ok(usual) };
    sampling::check_number(name, written).map_err(setting)?;
    Ok(written as f32)
}

/// The sampler names the field itself.
fn setting(error: SettingError) -> ApiError {
    let param = match &error {
        SettingError::Range { name, .. } => *name,
        SettingError::TooMany { name, .. } if name.ends_with("logit_bias") => "logit_bias",
        SettingError::TooMany { name, .. } => *name,
        SettingError::Token { .. } => "logit_bias",
    };
    ApiError { param: Some(param.to_owned()), ..ApiError::bad(error.to_string()) }
}

/// A number that nobody can foretell: the keys of a hasher are the system's randomness.
fn unknown_seed() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(json: &str) -> Common {
        serde_json::from_str(json).unwrap()
    }

    #[track_caller]
    fn check(json: &str, param: &str) {
        let common = common(json);
        let refused = common.settings(None).map(drop);
        let refused = refused.and(common.delivery().map(drop)).and(common.answers().map(drop));
        let refused = refused.and(common.stop_strings().map(drop)).and(common.priority().map(drop));
        let refused = refused.and(common.timeout().map(drop)).and(common.stop_tokens().map(drop));
        assert_eq!(refused.unwrap_err().param.as_deref(), Some(param), "{json}");
    }

    #[test]
    fn what_has_no_meaning_is_named() {
        check(r#"{"temperature": 2.1}"#, "temperature");
        check(r#"{"top_p": 0}"#, "top_p");
        check(r#"{"top_k": -2}"#, "top_k");
        check(r#"{"min_p": 1.5}"#, "min_p");
        check(r#"{"min_p": 1.0000000000000002}"#, "min_p");
        check(r#"{"repeat_penalty": 10.000000000000002}"#, "repetition_penalty");
        check(r#"{"logit_bias": {"5": -100.0000000001}}"#, "logit_bias");
        check(r#"{"presence_penalty": 3}"#, "presence_penalty");
        check(r#"{"logit_bias": {"x": 1}}"#, "logit_bias");
        check(r#"{"logit_bias": {"5": 101}}"#, "logit_bias");
        check(r#"{"n": 0}"#, "n");
        check(r#"{"n": 17}"#, "n");
        check(r#"{"stop": ""}"#, "stop");
        check(r#"{"stop": ["a", ""]}"#, "stop");
        check(r#"{"stream_options": {"include_usage": true}}"#, "stream_options");
        check(r#"{"priority": "urgent"}"#, "priority");
        check(r#"{"timeout_s": 0}"#, "timeout_s");
        check(r#"{"timeout_s": 1e300}"#, "timeout_s");
    }

    #[test]
    fn null_and_unknown_fields_are_nothing() {
        let all = r#"{"model": null, "stream": null, "stream_options": null, "n": null, "seed": null,
            "stop": null, "temperature": null, "top_p": null, "logit_bias": null, "user": "x",
            "metadata": {"a": 1}, "priority": null, "timeout_s": null}"#;
        let common = common(all);
        assert_eq!(common.delivery(), Ok(Delivery::Whole));
        let settings = common.settings(None).unwrap();
        let expect = Settings { temperature: 1.0, seed: settings.seed, ..Settings::GREEDY };
        assert_eq!(settings, expect);
    }

    #[test]
    fn answers_differ_in_their_seeds_alone() {
        let choice_params = common(r#"{"n": 3, "seed": -1}"#).choice_params(None, 5).unwrap();
        let seeds: Vec<u64> =
            choice_params.iter().map(|sampling_params| sampling_params.sampling.seed).collect();
        assert_eq!(seeds, [u64::MAX, 0, 1]);
        assert!(choice_params.iter().all(|sampling_params| sampling_params.new_tokens_max == 5));
    }

    #[test]
    fn a_seed_is_kept_and_none_is_another_each_time() {
        let seed = |json: &str| common(json).settings(None).unwrap().seed;
        assert_eq!(seed(r#"{"seed": -1}"#), u64::MAX);
        assert_eq!(seed(r#"{"seed": 7}"#), 7);
        assert_ne!(seed("{}"), seed("{}"));
    }

    #[test]
    fn a_slot_is_one_of_those_there_are() {
        let slot = |json: &str| common(json).slot(8);
        let said = ["{}", r#"{"id_slot": -1}"#, r#"{"id_slot": null}"#, r#"{"id_slot": 7}"#];
        assert_eq!(said.map(|json| slot(json).unwrap()), [0, 0, 0, 7]);
        for id in [-2, 8, i64::MAX] {
            let refused = slot(&format!("{{\"id_slot\": {id}}}")).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("id_slot"));
        }
    }

    #[test]
    fn usage_is_told_where_it_is_asked_for() {
        let delivery = |json: &str| common(json).delivery().unwrap();
        assert_eq!(delivery(r#"{"stream": true}"#), Delivery::Stream { usage: false });
        let asked = r#"{"stream": true, "stream_options": {"include_usage": true}}"#;
        assert_eq!(delivery(asked), Delivery::Stream { usage: true });
    }
}
