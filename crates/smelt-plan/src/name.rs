//! Names a stage: `[a-z0-9][a-z0-9-]*`, safe in paths, logs and environment variables.

use std::borrow::Borrow;
use std::fmt;

/// A stage's name, checked once; it never contains `/`, `.` or white space.
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
    /// Checks `text`.
    pub fn parse(text: &str) -> Result<Self, BadStageName> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let starts = text.bytes().next().is_some_and(|b| b != b'-');
        if starts && text.len() <= STAGE_NAME_BYTES_MAX && text.bytes().all(legal) {
            return Ok(Self(text.to_owned()));
        }
        Err(BadStageName(text.chars().take(80).collect()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as part of an environment variable: upper case, `_` for `-`.
    pub fn as_variable(&self) -> String {
        self.0.to_ascii_uppercase().replace('-', "_")
    }
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
        for text in ["a", "llm-engine", "0", "internvl3-2b-int8"] {
            assert_eq!(StageName::parse(text).unwrap().as_str(), text);
        }
        assert_eq!(StageName::parse("llm-engine").unwrap().as_variable(), "LLM_ENGINE");
    }

    #[test]
    fn illegal_names() {
        for text in ["", "-a", "A", "a b", "../x", "a/b", "é", &"a".repeat(65)] {
            assert!(StageName::parse(text).is_err(), "{text}");
        }
    }
}
