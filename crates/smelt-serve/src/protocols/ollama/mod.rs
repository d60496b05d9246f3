//! Ollama's API: what cameras, home automation and desktop tools speak.
//!
//! Names end in `:latest`, streams are lines of JSON and go on by default, pictures are bare base64, and an error is one
//! word.  Models are what smelt's pipelines built, so nothing is pulled, made or deleted.

pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod tell;

/// The version of Ollama whose API this is.
pub(crate) const VERSION: &str = "0.12.0";

/// What is said of an error.
pub(crate) fn error(message: &str) -> String {
    serde_json::json!({ "error": message }).to_string()
}
