//! Protocols beside OpenAI's chats: each turns what it is asked into a chat, and what is heard into its own words.
//!
//! Nothing below knows of them, so limits, keys, cancelling and metrics are the same for all.

pub(crate) mod ollama;
pub(crate) mod time;
