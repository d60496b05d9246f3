//! How many tokens a request took, as OpenAI's API tells it.

use serde::Serialize;
use smelt_runtime::prepare::ImageUsage;

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
    /// Pictures and clips that are shown smaller than they were wished, so that all fits the context.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) smaller_images: usize,
    /// Where there are such: the image tokens that there would be as it was wished.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) wished_image_tokens: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Usage {
    /// The counts of a prompt to which nothing is said yet.
    pub(crate) fn of_prompt(tokens: usize, cached_tokens: usize, seen: ImageUsage) -> Self {
        let is_smaller = seen.smaller > 0;
        Self {
            prompt_tokens: tokens,
            completion_tokens: 0,
            total_tokens: tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens,
                image_tokens: seen.tokens,
                smaller_images: seen.smaller,
                wished_image_tokens: if is_smaller { seen.wished } else { 0 },
            },
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
                smaller_images: a.smaller_images + b.smaller_images,
                wished_image_tokens: a.wished_image_tokens + b.wished_image_tokens,
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
