//! Protocols beside OpenAI's chats: each turns what it is asked into a chat, and what is heard into its own words.
//!
//! Nothing below knows of them, so limits, keys, cancelling and metrics are the same for all.

pub(crate) mod events;
pub(crate) mod ollama;
pub(crate) mod places;
pub(crate) mod responses;
pub(crate) mod sections;
pub(crate) mod thought;
pub(crate) mod time;
