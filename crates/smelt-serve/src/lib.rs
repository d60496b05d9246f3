//! Answers OpenAI-style requests over HTTP with what `smelt_runtime` says.

mod account;
mod answer;
mod api;
mod body;
mod error;
mod keys;
mod listen;
mod metrics;
mod pictures;
