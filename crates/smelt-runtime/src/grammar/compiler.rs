//! Compiles grammars for one vocabulary.
//!
//! Making a compiler sorts the whole vocabulary, once; compiling is bounded by the size of a grammar and
//! by fuel, so that no grammar takes seconds or much memory.  Knows nothing of answers.

use std::fmt;
use std::sync::Arc;
use std::thread::Builder;

use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{
    INVALID_TOKEN, InferenceCapabilities, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Logger, Matcher, ParserFactory, TokenParser};
use serde_json::{Value, json};

use super::bounds::{self, Work};
use super::closed::closed;
use super::gbnf;
use super::matcher::{GrammarMatcher, one_line};
use super::pieces::{self, Piece, PiecesError};
use super::{CHOICES_MAX, Grammar, GrammarError, INDENT_MAX};
use crate::tokenizer::Tokenizer;

/// States of the automaton that reads an answer's bytes, at most: one or two kB each.
const LEXER_STATES_MAX: usize = 30_000;

/// Parts of a compiled grammar, at most; a schema of 100 kB has some ten thousands.
const GRAMMAR_PARTS_MAX: usize = 100_000;

/// Nodes of regular expressions made before the first token, at most: one takes a tenth of a microsecond to
/// several (`multipleOf`, long text that must follow), so that all take one or two seconds at worst.
const START_FUEL_MAX: u64 = 300_000;

/// Steps of the automaton for the mask of one token, at most: as many take 5 to 50 ms, for which all answers
/// of a model wait.  What the parser does beside them is bounded by [`bounds::work`].
const MASK_FUEL_MAX: u64 = 100_000;

/// The stack on which grammars are compiled; only what is touched of it is memory.  Chains of references are
/// followed by calls: at worst 9 kB for a schema that takes 36 bytes, so [`GRAMMAR_BYTES_MAX`] fill 66 MB.
const STACK_BYTES: usize = 256 << 20;

/// A vocabulary for which no grammar can be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompilerError {
    /// The tokens have no bytes.
    #[error(transparent)]
    Pieces(#[from] PiecesError),
    /// The library refuses it.
    #[error("no grammar can be compiled for this vocabulary: {0}")]
    Vocabulary(String),
}

/// Compiles the grammars of all requests to one model.
pub struct Compiler {
    factory: ParserFactory,
    ends: Arc<[u32]>,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Compiler {
    /// For a model of `vocab` logits whose answers end with one of `ends`.  Takes some tenths of a second
    /// and 20 MB for 150,000 tokens.
    ///
    /// # Errors
    /// [`CompilerError`] if the tokenizer's words have no bytes of their own.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, ends: &[u32]) -> Result<Self, CompilerError> {
        let (pieces, is_canonical) = pieces::pieces(tokenizer.inner(), vocab)?;
        let words: Vec<Vec<u8>> = pieces.into_iter().map(word).collect();
        let ends: Arc<[u32]> = ends.iter().copied().filter(|end| (*end as usize) < vocab).collect();
        let vocab = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let info = TokRxInfo::new(vocab, ends.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if ends.len() > 1 {
            trie = trie.with_eos_tokens(&ends);
        }
        let words: Arc<dyn TokenizerEnv + Sync> =
            Arc::new(Words { trie, tokenizer: tokenizer.clone(), is_canonical });
        let refused = |error| CompilerError::Vocabulary(one_line(&error));
        let mut factory = ParserFactory::new_simple(&words).map_err(refused)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = LEXER_STATES_MAX;
        limits.max_grammar_size = GRAMMAR_PARTS_MAX;
        limits.initial_lexer_fuel = START_FUEL_MAX;
        limits.step_lexer_fuel = MASK_FUEL_MAX;
        limits.verbose_errors = false;
        Ok(Self { factory, ends })
    }

    /// What holds one answer to `grammar`, with its first mask: clones share it.  Takes some milliseconds, a
    /// large schema some hundreds, and a thread of its own, whose stack is deep enough for any grammar.
    ///
    /// # Errors
    /// [`GrammarError`] saying what is wrong with the grammar.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarMatcher, GrammarError> {
        let work = bounds::work(grammar)?;
        std::thread::scope(|scope| {
            let thread = Builder::new().name("smelt-grammar".to_owned()).stack_size(STACK_BYTES);
            let compiled = thread.spawn_scoped(scope, || self.compile_here(grammar, work));
            let compiled = compiled.map_err(|error| GrammarError::Thread(error.to_string()))?;
            compiled.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn compile_here(&self, grammar: &Grammar, work: Work) -> Result<GrammarMatcher, GrammarError> {
        let source = source(grammar)?;
        let failed = |why: String| match grammar {
            Grammar::JsonObject | Grammar::JsonSchema(_) => GrammarError::Schema(why),
            Grammar::Regex(_) => GrammarError::Regex(why),
            Grammar::Lark(_) | Grammar::Calls(_) | Grammar::Gbnf(_) | Grammar::Choice(_) => {
                GrammarError::Grammar(why)
            }
        };
        let parser = self.parser(source, work).map_err(failed)?;
        let matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(failed(one_line(&error)));
        }
        let mut constraint = GrammarMatcher::new(matcher, Arc::clone(&self.ends));
        match constraint.begin() {
            Ok(()) => Ok(constraint),
            Err(error) => Err(failed(error.reason())),
        }
    }

    /// What reads answers to `source`, and may take so much work.
    fn parser(&self, source: GrammarWithLexer, work: Work) -> Result<TokenParser, String> {
        let factory = &self.factory;
        let mut limits = factory.limits().clone();
        (limits.max_items_in_row, limits.step_max_items) = (work.row_items, work.mask_items);
        let init = GrammarInit::Serialized(TopLevelGrammar::from_grammar(source));
        let logger = Logger::new(factory.buffer_log_level(), factory.stderr_log_level());
        let capabilities = InferenceCapabilities::default();
        let parser = factory.create_parser_from_init_ext(init, logger, capabilities, limits);
        parser.map_err(|error| one_line(&error))
    }
}

/// A grammar as llguidance takes it.
fn source(grammar: &Grammar) -> Result<GrammarWithLexer, GrammarError> {
    let lark = |text: String| Ok(GrammarWithLexer::from_lark(text));
    match grammar {
        Grammar::JsonObject => Ok(schema(&json!({ "type": "object" }))),
        Grammar::JsonSchema(value) => Ok(schema(value)),
        Grammar::Regex(pattern) => Ok(GrammarWithLexer::from_regex(pattern)),
        Grammar::Lark(text) | Grammar::Calls(text) => lark(text.clone()),
        Grammar::Gbnf(text) => lark(gbnf::to_lark(text)?),
        Grammar::Choice(choices) if choices.is_empty() || choices.len() > CHOICES_MAX => {
            Err(GrammarError::Choices(choices.len()))
        }
        Grammar::Choice(choices) => {
            let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
            lark(format!("start: CHOICE\nCHOICE: {}", choices.join(" | ")))
        }
    }
}

/// A text as Lark writes it, which is as JSON does.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn schema(value: &Value) -> GrammarWithLexer {
    GrammarWithLexer::from_json_schema(bounded(value))
}

/// The schema with our own say on white space and on properties that it does not name, and none on what to leave out.
pub(crate) fn bounded(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => closed(other.clone()),
    };
    if let Some(fields) = schema.as_object_mut() {
        let spaces = format!(" |\\n[ \\t]{{0,{INDENT_MAX}}}");
        fields.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": spaces }));
    }
    schema
}

/// A piece as the trie takes it: no text begins with the byte that marks special tokens.
fn word(piece: Piece) -> Vec<u8> {
    match piece {
        Piece::Bytes(bytes) => bytes,
        Piece::Special(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat(),
        Piece::Nothing => Vec::new(),
    }
}

/// A vocabulary as llguidance asks for it.
struct Words {
    trie: TokTrie,
    tokenizer: Tokenizer,
    is_canonical: bool,
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens of a text that must follow, none of them special, whatever the text says.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let tokens = self.tokenizer.encode(text).unwrap_or_default();
            let is_whole = self.trie.decode(&tokens) == text.as_bytes();
            let is_plain = !tokens.iter().any(|token| self.trie.is_special_token(*token));
            if is_whole && is_plain { tokens } else { self.trie.greedy_tokenize(text.as_bytes()) }
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}
