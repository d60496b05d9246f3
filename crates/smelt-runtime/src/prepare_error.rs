//! Why a question could not be prepared: what its parts say, and what the engine has no room for.

use smelt_backend::position_ids::PositionIdsError;

use crate::image::TooLong;
use crate::prompt::PromptError;
use crate::similarity::SimilarityError;
use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

/// Why a question could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Turns and pictures do not fit.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The chat template refused.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A picture has no size that the model sees.
    #[error(transparent)]
    Picture(#[from] TooLong),
    /// A picture cannot be compared with the question.
    #[error(transparent)]
    Similarity(#[from] SimilarityError),
    /// The prompt's image tokens are not those of its pictures.
    #[error(transparent)]
    Places(#[from] PositionIdsError),
    /// The prompt leaves no room for an answer.  By its first words clients know what to do, as by Anthropic's.
    #[error(
        "the prompt is too long: it has {tokens} tokens, but the engine holds {max} with the answer; shorten it{}",
        if *.shows { " or show fewer pictures" } else { "" }
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens the engine holds.
        max: usize,
        /// Whether some of them are of pictures.
        shows: bool,
    },
    /// The text is so long that its tokens need not be counted.
    #[error(
        "the prompt is too long: its text has {bytes} bytes, far more than the {max} tokens that the engine holds at most, with the answer; shorten it"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens the engine holds.
        max: usize,
    },
    /// A model that sees nothing is shown something.
    #[error("{model:?} reads text alone; leave pictures and clips out")]
    Blind {
        /// The model's name.
        model: String,
    },
    /// There is nothing to read.
    #[error("the prompt has no tokens")]
    Empty,
    /// A token that the model does not have.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}
