//! Holds answers to a form: JSON, a schema, a pattern, a grammar, one of some choices.
//!
//! A [`Grammar`] is what a request asks for; a [`Compiler`], made once for a vocabulary, turns it into a
//! [`GrammarMatcher`], which follows one answer and says before each token which may come.  The work is
//! done by llguidance.  Knows nothing of engines, of sampling or of who asks.

mod bounds;
mod closed;
mod compiler;
mod gbnf;
mod matcher;
mod pieces;
mod recursion;
#[cfg(test)]
pub(crate) mod tests;

pub use compiler::{Compiler, CompilerError};
pub(crate) use compiler::{bounded, quoted};
pub use gbnf::GbnfError;
pub use matcher::{ConstraintError, GrammarMatcher};
pub use pieces::{PiecesError, TokenBytes};

/// The longest grammar or schema, in bytes.  Real schemas stay below 100 KB; compiling takes time and
/// memory in proportion.
pub const GRAMMAR_BYTES_MAX: usize = 256 << 10;

/// Most choices of an answer.  So many still compile in some milliseconds.
pub const CHOICES_MAX: usize = 1024;

/// Parts of regular expressions that may be left out (`?`, `*`, `{0,1}`), at most in a grammar: what follows a
/// sequence of them takes time by their square, some 30 ms for so many.
const OPTIONAL_MAX: usize = 2000;

/// The most rules of a grammar: a chain of terminals is compiled in time by its square, so many in a second.
const RULES_MAX: usize = 1000;

/// The most properties of a schema: some thousand are compiled in a second.
const PROPERTIES_MAX: usize = 4000;

/// The largest sum of all `multipleOf` of a schema, without their decimal points: each is an automaton of so many
/// states, of which a hundred thousand are looked through in a second.
const MULTIPLES_MAX: u64 = 100_000;

/// The most parts of rules that may be under way at one place of an answer, and so often as many until the next token's
/// mask is found.  Each is looked for among all others of its place, so ambiguity costs their square and more: a
/// millisecond a place for 300, most of a second for 2,000.  Honest grammars have some tens.
const ROW_ITEMS: usize = 300;

/// The same of a text that a client wrote, whatever schemas are in it.
const TEXT_ROW_ITEMS_MAX: usize = 500;

/// The same of a schema that refers to itself.  Alternatives that begin alike and hold each other cost the cube of their
/// number: 180 lists, which have so many parts under way, some 40 ms a mask, 300 four times as long and more.  Of honest
/// ones a hundred kinds that a constant tells apart take a hundred, an object of 140 properties as many as there may be.
const RECURSIVE_ROW_ITEMS_MAX: usize = 600;

/// The same of any grammar.
const ROW_ITEMS_MAX: usize = 2000;

/// What a property adds to them, which may be left out as all that follow it.
const PROPERTY_ITEMS: usize = 4;

/// What an alternative adds to them (`anyOf`, `oneOf`, a tool): of an object that all begin alike, seven.
const ALTERNATIVE_ITEMS: usize = 7;

/// The most alternatives for which more is allowed; as many that cannot be told apart take some ten milliseconds a mask.
const ALTERNATIVES_MAX: usize = 128;

/// How many places as full as they may be one mask may look at; a text of tokens seldom has more.
const MASK_ROWS: usize = 10;

/// Between two parts of JSON is a space, or the end of a line and at most so much indentation, as in llama.cpp's
/// grammars.  Models that may go on with white space sometimes do.
const INDENT_MAX: usize = 20;

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
    /// The same, written by us around the schemas of tools.
    Calls(String),
    /// llama.cpp's form of grammars, which begins at `root`.  Rules that refer to themselves are read token
    /// by token as Lark's are, each part taking as much as it can.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// About as many bytes as what is compiled of a value of a schema takes, as schemas of many small objects show.
const VALUE_BYTES: usize = 2 << 10;

/// The same of a byte of a grammar that is text, or of a schema's text.
const TEXT_BYTES: usize = 128;

/// About how many bytes what is compiled of a schema takes, at most.
pub fn bytes_of_schema(schema: &serde_json::Value) -> usize {
    use serde_json::Value as Json;
    let inside = match schema {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(bytes_of_schema).sum(),
        Json::Object(fields) => fields.values().map(bytes_of_schema).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    };
    VALUE_BYTES + inside
}

/// About how many bytes what is compiled of a grammar's text takes, at most.
pub fn bytes_of_text(text: &str) -> usize {
    text.len().min(GRAMMAR_BYTES_MAX) * TEXT_BYTES
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
            Self::Regex(text) | Self::Lark(text) | Self::Calls(text) | Self::Gbnf(text) => {
                text.len()
            }
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
    /// Too many parts may be left out.
    #[error(
        "{0} parts of regular expressions may be left out (?, *, {{0,…}}), more than {OPTIONAL_MAX}"
    )]
    Optional(usize),
    /// Too many rules.
    #[error("the grammar has {0} rules, more than {RULES_MAX}")]
    Rules(usize),
    /// Too many properties.
    #[error("the schema has {0} properties, more than {PROPERTIES_MAX}")]
    Properties(usize),
    /// Numbers must be multiples of too large ones.
    #[error("all multipleOf together are more than {MULTIPLES_MAX}, without their decimal points")]
    Multiples,
    /// There is no memory for the thread that compiles.
    #[error("no thread could be started to compile the grammar: {0}")]
    Thread(String),
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
