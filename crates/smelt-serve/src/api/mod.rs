//! The shapes of OpenAI's API: what is asked and what is answered, as plain data.
//!
//! Reading is as tolerant as OpenAI's server: fields that nobody knows are passed over and told, and null is
//! the same as nothing.  What is known must be of its type, and the error names the field; so does that of what is known to
//! change answers and is not done here.

pub(crate) mod chat;
pub(crate) mod clip;
pub(crate) mod common;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod fields;
pub(crate) mod foreign;
pub(crate) mod format;
pub(crate) mod predict;
pub(crate) mod read;
pub(crate) mod score;
pub(crate) mod several;
pub(crate) mod structured_output;
pub(crate) mod tools;
pub(crate) mod usage;
pub(crate) mod weigh;

#[cfg(test)]
mod tests;
