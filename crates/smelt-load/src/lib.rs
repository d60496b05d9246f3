//! Measures any OpenAI-compatible server: smelt, llama-server, vLLM, Ollama, with the same client.
//!
//! A [`plan::LoadPlan`] says what is asked and how often; [`run::measure`] asks it over streams, one thread for
//! each; [`figures`] are what came of it, told by [`report`] and [`plot`].  Knows no deployment and no
//! pipeline: what is measured is what a client sees, and what `smelt-watch` sees of a process.

pub mod figures;
pub mod plan;
pub mod plot;
pub mod receive;
pub mod report;
pub mod run;

mod arrivals;
mod ask;
mod error;
pub mod picture;
mod process;
mod prompt;
mod watts;

#[cfg(test)]
mod tests;
