//! Names a stage: `[a-z0-9][a-z0-9-]*`, safe in paths, logs and environment variables.
//!
//! Variants that a matrix makes are named after their stage, part by part: `quant.int8`.

use std::borrow::Borrow;
use std::fmt;

/// A stage's name, checked once; it never contains `/` or white space, nor a part that is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct StageName(String);

/// The text cannot name a stage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" cannot name a stage: use lower-case letters, digits and -, at most 64, not starting with -"
)]
pub struct BadStageName(pub String);

/// File names and cgroup names carry the stage's name; 64 keeps them far below NAME_MAX (255).
pub const STAGE_NAME_BYTES_MAX: usize = 64;

impl StageName {
    /// Checks the name of a stage or of a variant.
    pub fn parse(text: &str) -> Result<Self, BadStageName> {
        let is_legal = text.len() <= STAGE_NAME_BYTES_MAX && text.split('.').all(is_part);
        if is_legal { Ok(Self(text.to_owned())) } else { Err(bad(text)) }
    }

    /// Checks the name of a stage as a file gives it; those of variants are made.
    pub(crate) fn parse_base(text: &str) -> Result<Self, BadStageName> {
        if text.contains('.') { Err(bad(text)) } else { Self::parse(text) }
    }

    /// Checks a name in a list, where `quant.*` stands for all variants of `quant`.
    pub(crate) fn parse_pattern(text: &str) -> Result<Self, BadStageName> {
        match text.strip_suffix(".*") {
            Some(base) => Self::parse_base(base).map(|_| Self(text.to_owned())),
            None => Self::parse(text),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as part of an environment variable: upper case, `_` for `-` and `.`.
    pub fn as_variable(&self) -> String {
        self.0.to_ascii_uppercase().replace(['-', '.'], "_")
    }
}

fn is_part(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(legal)
}

fn bad(text: &str) -> BadStageName {
    BadStageName(text.chars().take(80).collect())
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for StageName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_names() {
        for text in ["a", "llm-engine", "0", "internvl3-2b-int8", "quant.int8.448x448"] {
            assert_eq!(StageName::parse(text).unwrap().as_str(), text);
        }
        assert_eq!(StageName::parse("llm-engine").unwrap().as_variable(), "LLM_ENGINE");
    }

    #[test]
    fn illegal_names() {
        for text in ["", "-a", "A", "a b", "../x", "a/b", "é", ".", "a.", "a..b", &"a".repeat(65)]
        {
            assert!(StageName::parse(text).is_err(), "{text}");
        }
        assert!(StageName::parse_base("a.b").is_err());
        assert!(StageName::parse_pattern("a.*").is_ok());
        assert!(StageName::parse_pattern("*").is_err());
    }
}
