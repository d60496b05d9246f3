//! Deployments of checkpoints: what one says of its engines, what it will be refused for before anything is built, and what
//! photographs will cost it.
//!
//! A checkpoint's tokenizer, chat template and preprocessing become the plain data of `smelt-runtime`'s deployments.  Nothing
//! here opens an engine.

#![forbid(unsafe_code)]

mod deploy_error;
pub mod foresee;
pub mod photographs;
pub mod seeing;
pub mod spec;
pub mod text_files;

pub use deploy_error::{Blame, DeployError};
