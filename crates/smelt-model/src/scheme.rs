//! Names the ways a checkpoint's linear weights are stored, and marks a directory with one.
//!
//! A word becomes a [`Scheme`], a scheme the [`IntGrid`] its integers lie on; text of
//! `smelt-quantize.json` comes in or goes out.  Knows nothing of tensors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The file that marks a directory as written by [`crate::quantize::quantize`].
pub(crate) const MARK_FILE: &str = "smelt-quantize.json";

/// The version of the directory's layout; a change of names or meanings raises it.
const FORMAT: u32 = 2;

/// How a linear weight of the language model is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// As the checkpoint has it: no quantisation.
    None,
    /// Symmetric 8-bit integers with one f32 scale per output channel.
    Int8,
    /// Symmetric 8-bit integers with one f16 scale per 32 inputs.
    Int8G32,
    /// Symmetric 4-bit integers with one f32 scale per output channel.
    Int4,
    /// Symmetric 4-bit integers with one f16 scale per 32 inputs.
    Int4G32,
    /// Symmetric 4-bit integers with one f16 scale per 64 inputs.
    Int4G64,
    /// Symmetric 4-bit integers with one f16 scale per 128 inputs.
    Int4G128,
    /// 4-bit integers with one f16 scale and one zero point per 32 inputs.
    Int4G32Asym,
    /// 4-bit integers with one f16 scale and one zero point per 64 inputs.
    Int4G64Asym,
    /// 4-bit integers with one f16 scale and one zero point per 128 inputs.
    Int4G128Asym,
}

/// The integers of a scheme, and how many inputs share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntGrid {
    /// Bits of an integer: 8 or 4.
    pub bits: u8,
    /// Inputs that share a scale; a whole row does where there is none.
    pub group: Option<usize>,
    /// Whether each group has a zero point of its own.
    pub has_zero: bool,
}

impl IntGrid {
    /// Scales of a row of `width` inputs; the last group may be short.
    pub fn groups(self, width: usize) -> usize {
        self.group.map_or(1, |group| width.div_ceil(group))
    }

    /// Bytes of a row of `width` integers.
    pub fn row_bytes(self, width: usize) -> usize {
        if self.bits == 4 { width.div_ceil(2) } else { width }
    }
}

impl Scheme {
    /// Every scheme, in the order of the enum.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::Int8,
        Self::Int8G32,
        Self::Int4,
        Self::Int4G32,
        Self::Int4G64,
        Self::Int4G128,
        Self::Int4G32Asym,
        Self::Int4G64Asym,
        Self::Int4G128Asym,
    ];

    /// The words of [`Scheme::ALL`], as pipelines and flags use them.
    pub const WORDS: [&'static str; 10] = [
        "none",
        "int8",
        "int8-g32",
        "int4",
        "int4-g32",
        "int4-g64",
        "int4-g128",
        "int4-g32-asym",
        "int4-g64-asym",
        "int4-g128-asym",
    ];

    /// The word pipelines and flags use.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// The scheme of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == word)
    }

    /// The grid its integers lie on; nothing for floats.
    pub fn grid(self) -> Option<IntGrid> {
        let grid = |bits, group, has_zero| Some(IntGrid { bits, group, has_zero });
        match self {
            Self::None => None,
            Self::Int8 => grid(8, None, false),
            Self::Int8G32 => grid(8, Some(32), false),
            Self::Int4 => grid(4, None, false),
            Self::Int4G32 => grid(4, Some(32), false),
            Self::Int4G64 => grid(4, Some(64), false),
            Self::Int4G128 => grid(4, Some(128), false),
            Self::Int4G32Asym => grid(4, Some(32), true),
            Self::Int4G64Asym => grid(4, Some(64), true),
            Self::Int4G128Asym => grid(4, Some(128), true),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `smelt-quantize.json` says of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// How linear weights are stored.
    pub(crate) scheme: Scheme,
    /// How the head is stored.
    pub(crate) head: Scheme,
    /// How the embedding is stored.
    pub(crate) embeddings: Scheme,
    /// How integers were chosen: `rtn`, `mse`, `awq` or `gptq`.
    pub(crate) method: String,
    /// The patterns of names left as they were.
    pub(crate) exclude: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkText {
    format: u32,
    part: String,
    scheme: String,
    head: String,
    embeddings: String,
    method: String,
    exclude: Vec<String>,
}

impl Mark {
    /// The text of the mark.
    pub(crate) fn text(&self) -> String {
        let word = |scheme: Scheme| scheme.name().to_owned();
        let mark = MarkText {
            format: FORMAT,
            part: "llm".to_owned(),
            scheme: word(self.scheme),
            head: word(self.head),
            embeddings: word(self.embeddings),
            method: self.method.clone(),
            exclude: self.exclude.clone(),
        };
        let text = serde_json::to_string_pretty(&mark);
        text.expect("a struct of text and numbers is JSON") + "\n"
    }

    /// The mark a text holds, or what is wrong with the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if version.format != FORMAT {
            return Err(format!(
                "format {} is not {FORMAT}; quantise the checkpoint again",
                version.format
            ));
        }
        let mark: MarkText = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if mark.part != "llm" {
            return Err(format!("part {:?} is not \"llm\"", mark.part));
        }
        let scheme = |field: &str, word: &str| {
            let words = || format!("{field} {word:?} is none of {}", Scheme::WORDS.join(", "));
            Scheme::parse(word).ok_or_else(words)
        };
        Ok(Self {
            scheme: scheme("scheme", &mark.scheme)?,
            head: scheme("head", &mark.head)?,
            embeddings: scheme("embeddings", &mark.embeddings)?,
            method: mark.method,
            exclude: mark.exclude,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_their_grids() {
        for scheme in Scheme::ALL {
            let word = scheme.grid().map_or("none".to_owned(), |grid| {
                let group = grid.group.map_or(String::new(), |group| format!("-g{group}"));
                let zero = if grid.has_zero { "-asym" } else { "" };
                format!("int{}{group}{zero}", grid.bits)
            });
            assert_eq!(scheme.name(), word);
            assert_eq!(Scheme::parse(&word), Some(scheme));
        }
        assert_eq!(Scheme::parse("int3"), None);
    }

    #[test]
    fn marks_read_back() {
        for scheme in Scheme::ALL {
            let exclude = vec!["*.down_proj.weight".to_owned()];
            let (head, embeddings, method) = (Scheme::Int8, Scheme::None, "gptq".to_owned());
            let mark = Mark { scheme, head, embeddings, method, exclude };
            assert_eq!(Mark::parse(&mark.text()), Ok(mark));
        }
    }

    #[test]
    fn foreign_marks_are_refused() {
        let mark = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut mark = serde_json::json!({
                "format": 2, "part": "llm", "scheme": "int8", "head": "int8",
                "embeddings": "none", "method": "rtn", "exclude": [],
            });
            change(&mut mark);
            Mark::parse(&mark.to_string())
        };
        assert!(mark(&|_| ()).is_ok());
        for (field, value, words) in [
            ("format", 1.into(), "format 1 is not 2"),
            ("scheme", "int3".into(), "scheme \"int3\" is none of none, int8"),
            ("head", "".into(), "head \"\" is none of"),
            ("part", "vision".into(), "part \"vision\""),
            ("x", serde_json::Value::Null, "unknown field"),
        ] {
            let error = mark(&|mark| mark[field] = value.clone()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(Mark::parse("{").unwrap_err().contains("EOF"));
    }
}
