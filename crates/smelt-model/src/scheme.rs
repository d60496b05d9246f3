//! Names the ways a checkpoint's linear weights are stored, and marks a directory with one.
//!
//! Text of `smelt-quantize.json` comes in or goes out.  Knows nothing of tensors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The file that marks a directory as written by [`crate::quantize::quantize`].
pub(crate) const MARK_FILE: &str = "smelt-quantize.json";

/// The version of the directory's layout; a change of names or meanings raises it.
const FORMAT: u32 = 1;

/// How linear weights of the language model are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// As the checkpoint has them: no quantisation.
    None,
    /// Symmetric 8-bit integers with one f32 scale per output channel.
    Int8,
}

impl Scheme {
    /// Every scheme, in the order of the enum.
    pub const ALL: [Self; 2] = [Self::None, Self::Int8];

    /// The word pipelines and flags use.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Int8 => "int8",
        }
    }

    /// The scheme of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == word)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    format: u32,
    scheme: String,
    part: String,
}

/// The text of the mark of a directory that holds the language model under `scheme`.
pub(crate) fn mark(scheme: Scheme) -> String {
    let mark = Mark { format: FORMAT, scheme: scheme.name().to_owned(), part: "llm".to_owned() };
    let text = serde_json::to_string_pretty(&mark).expect("a struct of text and numbers is JSON");
    text + "\n"
}

/// The scheme a mark's text names, or what is wrong with the text.
pub(crate) fn parse_mark(text: &str) -> Result<Scheme, String> {
    let mark: Mark = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if mark.format != FORMAT {
        return Err(format!(
            "format {} is not {FORMAT}; quantise the checkpoint again",
            mark.format
        ));
    }
    if mark.part != "llm" {
        return Err(format!("part {:?} is not \"llm\"", mark.part));
    }
    Scheme::parse(&mark.scheme)
        .ok_or_else(|| format!("scheme {:?} is none of none, int8", mark.scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_read_back() {
        for scheme in Scheme::ALL {
            assert_eq!(parse_mark(&mark(scheme)), Ok(scheme));
        }
    }

    #[test]
    fn foreign_marks_are_refused() {
        for (text, words) in [
            ("{", "EOF"),
            (r#"{"format":2,"scheme":"int8","part":"llm"}"#, "format 2"),
            (r#"{"format":1,"scheme":"int3","part":"llm"}"#, "int3"),
            (r#"{"format":1,"scheme":"int8","part":"vision"}"#, "vision"),
            (r#"{"format":1,"scheme":"int8","part":"llm","x":1}"#, "unknown field"),
        ] {
            let error = parse_mark(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
