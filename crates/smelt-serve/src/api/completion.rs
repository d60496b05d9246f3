//! What `/v1/completions` is asked.

use serde::Deserialize;

use super::several::Prompts;
use crate::error::ApiError;

/// Most prompts of one request: each is queued by itself.
const PROMPTS_MAX: usize = 32;

/// Most tokens of an answer where the request gives no limit, as in OpenAI's API.
const NEW_TOKENS_USUAL: usize = 16;

/// Most likeliest tokens told with each, as in OpenAI's API.
const LOGPROBS_MAX: usize = 5;

/// The fields that completions alone have.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CompletionFields {
    pub(crate) prompt: Prompts,
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(default)]
    logprobs: Option<usize>,
    #[serde(default)]
    echo: Option<bool>,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    best_of: Option<usize>,
}

impl CompletionFields {
    /// Whether all is understood.
    ///
    /// # Errors
    /// Naming the field that is not.
    pub(crate) fn check(&self, answers: usize) -> Result<(), ApiError> {
        let prompts = match &self.prompt {
            Prompts::Texts(texts) => texts.len(),
            Prompts::Tokens(tokens) => tokens.len(),
        };
        if prompts > PROMPTS_MAX {
            let why = format!("{prompts} prompts are more than {PROMPTS_MAX}");
            return Err(ApiError::field("prompt", why));
        }
        if self.suffix.as_deref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::field("suffix", "is not supported"));
        }
        if self.best_of.is_some_and(|best_of| best_of != answers) {
            return Err(ApiError::field("best_of", "is not supported other than n"));
        }
        Ok(())
    }

    /// Whether choices begin with their prompts.
    pub(crate) fn echo(&self) -> bool {
        self.echo.unwrap_or(false)
    }

    /// Whether it says how many tokens an answer may have.
    pub(crate) fn limits_tokens(&self) -> bool {
        self.max_tokens.is_some()
    }

    /// The most tokens of an answer.
    ///
    /// # Errors
    /// If it is zero.
    pub(crate) fn new_tokens_max(&self) -> Result<usize, ApiError> {
        match self.max_tokens.unwrap_or(NEW_TOKENS_USUAL) {
            0 => Err(ApiError::field("max_tokens", "must be at least 1")),
            max => Ok(max),
        }
    }

    /// How many of the likeliest tokens are told with each, if any are.
    ///
    /// # Errors
    /// If they are too many.
    pub(crate) fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        match self.logprobs {
            Some(top) if top > LOGPROBS_MAX => {
                let why = format!("must be at most {LOGPROBS_MAX}, not {top}");
                Err(ApiError::field("logprobs", why))
            }
            top => Ok(top),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, param: &str) {
        let fields: CompletionFields = serde_json::from_str(json).unwrap();
        let refused = fields.check(1).and(fields.new_tokens_max().map(drop));
        let refused = refused.and(fields.logprobs().map(drop));
        assert_eq!(refused.unwrap_err().param.as_deref(), Some(param));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        check(r#"{"prompt": "a", "suffix": "b"}"#, "suffix");
        check(r#"{"prompt": "a", "best_of": 2}"#, "best_of");
        check(r#"{"prompt": "a", "max_tokens": 0}"#, "max_tokens");
        check(r#"{"prompt": "a", "logprobs": 6}"#, "logprobs");
        let many = format!(r#"{{"prompt": [{}"a"]}}"#, r#""a","#.repeat(32));
        check(&many, "prompt");
    }
}
