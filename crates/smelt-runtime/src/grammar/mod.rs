//! Holds answers to a form: JSON, a schema, a pattern, a grammar, one of some choices.
//!
//! A [`Grammar`] is what a request asks for; a [`Compiler`], made once for a vocabulary, turns it into a
//! [`Constraint`], which follows one answer and says before each token which may come.  The work is
//! done by llguidance.  Knows nothing of engines, of sampling or of who asks.

mod compiler;
mod constraint;
mod gbnf;
mod pieces;
#[cfg(test)]
pub(crate) mod tests;

pub use compiler::{Compiler, CompilerError};
pub(crate) use compiler::{bounded, quoted};
pub use constraint::{Constraint, ConstraintError};
pub use gbnf::GbnfError;
pub use pieces::{PiecesError, TokenBytes};

/// The longest grammar or schema, in bytes.  Real schemas stay below 100 KB; compiling takes time and
/// memory in proportion.
pub const GRAMMAR_BYTES_MAX: usize = 256 << 10;

/// Most choices of an answer.  So many still compile in some milliseconds.
pub const CHOICES_MAX: usize = 1024;

/// White space between two parts of JSON at most, in characters: two lines' ends and the indentation of deep
/// nesting, as in llama.cpp's grammars.  Models that may go on with it for ever sometimes do.
const WHITESPACE_MAX: usize = 22;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema allows (draft 2020-12, or as its `$schema` says).  Parts of a schema that
    /// cannot be held to are refused, never left out.
    JsonSchema(serde_json::Value),
    /// Text that a pattern matches as a whole, in the syntax of the `regex` crate.
    Regex(String),
    /// llguidance's variant of Lark, which begins at `start`.
    Lark(String),
    /// llama.cpp's form of grammars, which begins at `root`.  Rules that refer to themselves are read token
    /// by token as Lark's are, each part taking as much as it can.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Grammar {
    /// What is in `text`: GBNF if rules are defined by `::=`, else Lark.
    pub fn of_text(text: String) -> Self {
        if text.contains("::=") { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
            Self::Choice(choices) => choices.iter().map(String::len).sum(),
        }
    }
}

/// Why no answer can be held to a grammar.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// It is too long.
    #[error("the grammar has {0} bytes, more than {GRAMMAR_BYTES_MAX}")]
    TooLong(usize),
    /// There are no choices, or too many.
    #[error("the number of choices must be 1 to {CHOICES_MAX}, not {0}")]
    Choices(usize),
    /// It is not GBNF.
    #[error("the grammar is no GBNF: {0}")]
    Gbnf(#[from] GbnfError),
    /// A schema that cannot be held to.
    #[error("the JSON schema cannot be used: {0}")]
    Schema(String),
    /// A pattern that cannot be held to.
    #[error("the regular expression cannot be used: {0}")]
    Regex(String),
    /// A grammar that cannot be held to.
    #[error("the grammar cannot be used: {0}")]
    Grammar(String),
}
