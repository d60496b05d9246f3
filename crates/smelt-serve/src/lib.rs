//! Answers OpenAI-style requests over HTTP with what `smelt_runtime` says.

mod answer;
mod api;
mod error;
mod heard;
mod pictures;
