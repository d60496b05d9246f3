//! Answers OpenAI-style requests over HTTP with what `smelt_runtime` says.

mod api;
mod error;
mod pictures;
