//! OpenAI's Responses API: what its newer clients ask by default.
//!
//! Conversations are lists of items, tools are flat, streams are events that have names and numbers, and an answer is kept
//! for whoever goes on from it or asks for it again.

pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod asked;
pub(crate) mod items;
pub(crate) mod kept;
mod likely;
pub(crate) mod response_object;
