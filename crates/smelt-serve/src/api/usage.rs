//! How many tokens a request took, as OpenAI's API tells it.

use serde::Serialize;

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// Of the prompt, image tokens included.
    pub(crate) prompt_tokens: usize,
    /// Of all answers.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    /// What the prompt's are.
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// What the tokens of a prompt are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptDetails {
    /// Of those, read from the cache.
    pub(crate) cached_tokens: usize,
    /// Of those, standing for pictures.
    pub(crate) image_tokens: usize,
}

impl Usage {
    /// The counts of a prompt to which nothing is said yet.
    pub(crate) fn of_prompt(tokens: usize, cached_tokens: usize, image_tokens: usize) -> Self {
        Self {
            prompt_tokens: tokens,
            completion_tokens: 0,
            total_tokens: tokens,
            prompt_tokens_details: PromptDetails { cached_tokens, image_tokens },
        }
    }

    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        let (a, b) = (self.prompt_tokens_details, other.prompt_tokens_details);
        Self {
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            completion_tokens: self.completion_tokens + other.completion_tokens,
            total_tokens: self.total_tokens + other.total_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: a.cached_tokens + b.cached_tokens,
                image_tokens: a.image_tokens + b.image_tokens,
            },
        }
    }

    /// The same with so many more tokens answered.
    pub(crate) fn said(self, tokens: usize) -> Self {
        Self {
            completion_tokens: self.completion_tokens + tokens,
            total_tokens: self.total_tokens + tokens,
            ..self
        }
    }
}
