//! Gathers an answer until all is said.

use smelt_runtime::generation::Finish;
use smelt_runtime::service::{Event, TokenInfo};

/// A choice so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    /// The prompt's tokens, where it was asked how likely they are.
    pub(crate) prompt: Vec<TokenInfo>,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
    /// Why it ended; empty until then.
    pub(crate) reason: &'static str,
    pub(crate) finish: Option<Finish>,
}

/// All choices of a request, as far as they were said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Accumulator {
    pub(crate) choices: Vec<Choice>,
}

impl Accumulator {
    /// So many choices of which nothing is said.
    pub(crate) fn new(choices: usize) -> Self {
        Self { choices: vec![Choice::default(); choices] }
    }

    /// Takes what was heard.
    pub(crate) fn hear(&mut self, event: Event) {
        match event {
            Event::Emitted { choice, text, tokens } => {
                let choice = &mut self.choices[choice];
                choice.text += &text;
                choice.tokens.extend(tokens);
            }
            Event::Scored { choice, tokens } => self.choices[choice].prompt = tokens,
            Event::Ended { choice, finish, .. } => {
                let choice = &mut self.choices[choice];
                (choice.reason, choice.finish) = (finish.reason(), Some(finish));
            }
            Event::Looking { .. } | Event::Read { .. } | Event::Failed(_) => {}
        }
    }
}
