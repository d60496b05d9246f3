//! Protocols beside OpenAI's chats: each turns what it is asked into a chat, and what is heard into its own words.
//!
//! Nothing below knows of them, so limits, keys, cancelling and metrics are the same for all.

pub(crate) mod anthropic;
pub(crate) mod events;
pub(crate) mod field_names;
pub(crate) mod ollama;
pub(crate) mod ours;
pub(crate) mod responses;
pub(crate) mod sections;
pub(crate) mod thought;
pub(crate) mod time;

use axum::http::StatusCode;

/// A protocol by whose words its routes say what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    OpenAi,
    Ollama,
    Anthropic,
}

impl Protocol {
    /// The protocol whose route is at `path`.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            path if path.starts_with("/api/") => Self::Ollama,
            path if path.starts_with("/v1/messages") => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// What is said of an error, where that is not OpenAI's shape.
    pub(crate) fn error(self, status: StatusCode, why: &str) -> Option<String> {
        match self {
            Self::OpenAi => None,
            Self::Ollama => Some(ollama::error(why)),
            Self::Anthropic => Some(anthropic::error(status, why)),
        }
    }
}
