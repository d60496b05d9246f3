//! Follows one answer and says which tokens may come next.
//!
//! A constraint is made by a compiler, may move to the thread that chooses tokens, and is asked before each
//! token.  Knows nothing of logits.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::sampling::Mask;

/// What llguidance says where no token may come.
const NOTHING_FOLLOWS: &str = "NoExtensionBias";

/// What it says where an answer takes more work than its grammar may.
const TOO_MUCH_WORK: [&str; 2] = ["Too many items", "Current row has"];

/// The longest reason that is told, in characters.
const REASON_CHARS_MAX: usize = 300;

/// An answer that could not be followed: a grammar so ambiguous that the next token takes too long to
/// find, or a token that was not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer cannot be held to its grammar: {0}")]
pub struct ConstraintError(String);

impl ConstraintError {
    /// What is wrong, without what it is wrong with.
    pub(super) fn reason(self) -> String {
        self.0
    }
}

/// Holds one answer to a grammar.  A clone follows another answer from the same place on; what was
/// learned of the vocabulary is shared.
#[derive(Clone)]
pub struct GrammarMatcher {
    matcher: Matcher,
    /// What ends an answer.
    ends: Arc<[u32]>,
    /// Which tokens may come next, unless that is still to be found.
    mask: Option<SimpleVob>,
}

impl fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarMatcher").field("is_ended", &self.is_ended()).finish_non_exhaustive()
    }
}

impl GrammarMatcher {
    pub(super) fn new(matcher: Matcher, ends: Arc<[u32]>) -> Self {
        Self { matcher, ends, mask: None }
    }

    /// Finds the first mask, and whether an answer can go on behind it: text that must follow is read along
    /// with the first token, however long it is.
    pub(super) fn begin(&mut self) -> Result<(), ConstraintError> {
        let first = self.mask()?.tokens().next();
        match first {
            Some(token) => self.clone().take(token),
            None => Ok(()),
        }
    }

    /// Which tokens may come next.  End tokens are among them where the answer may end, alone where it
    /// must.
    ///
    /// # Errors
    /// [`ConstraintError`] where finding them would take too long.
    pub fn mask(&mut self) -> Result<Mask<'_>, ConstraintError> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.matcher.compute_mask_or_eos().map_err(|error| failed(&error))?,
        };
        Ok(Mask::new(self.mask.insert(mask).as_slice()))
    }

    /// Takes note of the answer's next token; an end token changes nothing.
    ///
    /// # Errors
    /// [`ConstraintError`] if the mask did not allow it.
    pub fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.ends.contains(&token) {
            return Ok(());
        }
        self.mask = None;
        self.matcher.consume_token(token).map_err(|error| failed(&error))
    }

    /// Items that the parser made for the last mask.
    #[cfg(test)]
    pub(super) fn items(&self) -> usize {
        self.matcher.last_step_stats().map_or(0, |stats| stats.all_items)
    }

    /// Whether the answer is whole and nothing may follow.
    pub fn is_ended(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Whether the answer may end here.
    ///
    /// # Errors
    /// [`ConstraintError`] if it could not be followed so far.
    pub fn may_end(&mut self) -> Result<bool, ConstraintError> {
        if self.is_ended() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(|error| failed(&error))
    }
}

fn failed(error: &impl fmt::Display) -> ConstraintError {
    ConstraintError(one_line(error))
}

/// An error of llguidance's on one line, without what it says of its own state.
pub(super) fn one_line(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let told = ["<non-verbose", "<state>", "<backtrace>"];
    let end = told.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    let words: Vec<&str> = text[..end].split_whitespace().collect();
    if words == [NOTHING_FOLLOWS] {
        return "no text is of this form, or none that ends".to_owned();
    }
    if TOO_MUCH_WORK.iter().any(|mark| text.contains(mark)) {
        return "there are too many ways to read the answer so far; make it narrower, or less ambiguous"
            .to_owned();
    }
    words.join(" ").chars().take(REASON_CHARS_MAX).collect()
}
