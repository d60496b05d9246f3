//! Turns requests into tokens: tokenizer, images, templates, generation.
//!
//! A deployment directory becomes a [`deployment::Deployment`]; a chat with pictures becomes a
//! prompt, the prompt engine steps, the steps text; a text becomes an embedding.  Knows nothing of pipelines, of how engines
//! are built or of where they are stored.

pub mod accuracy;
pub mod deployment;
mod deployment_error;
pub mod dialect;
pub mod embed;
pub mod engine_dirs;
pub mod fit;
pub mod generate;
pub mod generation;
pub mod grammar;
pub mod handle;
pub mod identity;
pub mod image;
pub mod markup;
pub mod media_plan;
pub mod prefix;
pub mod prepare;
mod prepare_error;
pub mod prompt;
pub mod proof;
pub mod schedule;
pub mod score;
pub mod service;
pub mod similarity;
pub mod stop;
pub mod template;
pub mod timeline;
pub mod tokenizer;
pub mod upstream;
pub mod vision;

pub use smelt_backend::sampling;
