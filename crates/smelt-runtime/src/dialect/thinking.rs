//! Bounds a model's thinking.
//!
//! Plain state over the tokens of one answer: it says when the tokens that close the thinking must be
//! put in the model's mouth.  Knows nothing of texts.

/// How long one answer may think, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    opening: Vec<u32>,
    closing: Vec<u32>,
    /// Tokens the model may think.
    budget: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many tokens of the opening were said, and nothing else.
    Opening(usize),
    /// So many tokens were thought; so many of the last are the beginning of the closing.
    Open {
        spent: usize,
        closed: usize,
    },
    /// So many tokens of the closing were forced.
    Forcing(usize),
    Over,
}

impl Thinking {
    /// Bounds thinking to `budget` tokens.  `opening` and `closing` are the tokens of
    /// [`THINK_TAGS`](super::THINK_TAGS), each at least one; `is_open` if the prompt already holds the opening.
    pub fn new(opening: Vec<u32>, closing: Vec<u32>, budget: usize, is_open: bool) -> Self {
        let state = match (is_open, opening.is_empty() || closing.is_empty()) {
            (_, true) => State::Over,
            (true, _) => State::Open { spent: 0, closed: 0 },
            (false, _) => State::Opening(0),
        };
        let mut thinking = Self { opening, closing, budget, state };
        thinking.exhaust();
        thinking
    }

    /// The token that must come next, whatever the model would say.
    pub fn forced(&self) -> Option<u32> {
        match self.state {
            State::Forcing(said) => self.closing.get(said).copied(),
            State::Opening(_) | State::Open { .. } | State::Over => None,
        }
    }

    /// The token that would begin the thinking, or go on beginning it, while nothing else was said.
    pub fn opening(&self) -> Option<u32> {
        match self.state {
            State::Opening(said) => self.opening.get(said).copied(),
            State::Open { .. } | State::Forcing(_) | State::Over => None,
        }
    }

    /// Whether the model thinks, or may begin to; a grammar of the answer does not hold meanwhile.
    pub fn is_open(&self) -> bool {
        self.state != State::Over
    }

    /// Takes note of the answer's next token.
    pub fn take(&mut self, token: u32) {
        self.state = match self.state {
            State::Opening(said) if self.opening[said] != token => State::Over,
            State::Opening(said) if said + 1 < self.opening.len() => State::Opening(said + 1),
            State::Opening(_) => State::Open { spent: 0, closed: 0 },
            State::Open { spent, closed } => match self.matched(closed, token) {
                closed if closed == self.closing.len() => State::Over,
                closed => State::Open { spent: spent + 1, closed },
            },
            State::Forcing(said) if said + 1 < self.closing.len() => State::Forcing(said + 1),
            State::Forcing(_) | State::Over => State::Over,
        };
        self.exhaust();
    }

    /// Where the budget is spent the closing is forced, from what the model itself said of it.
    fn exhaust(&mut self) {
        if let State::Open { spent, closed } = self.state
            && spent >= self.budget
        {
            self.state = State::Forcing(closed);
        }
    }

    /// How many tokens of the closing the answer ends with, if it ended with `closed` of them before
    /// `token`.
    fn matched(&self, closed: usize, token: u32) -> usize {
        let mut said = self.closing[..closed].to_vec();
        said.push(token);
        (0..=said.len()).rev().find(|&count| said.ends_with(&self.closing[..count])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says `tokens`, or what is forced; gives all that was said, and where thinking was over.
    #[track_caller]
    fn check(budget: usize, is_open: bool, tokens: &[u32], said: &[u32], over: Option<usize>) {
        let mut thinking = Thinking::new(vec![1], vec![2, 2, 3], budget, is_open);
        let (mut all, mut over_at) = (Vec::new(), None);
        let mut own = tokens.iter();
        loop {
            if over_at.is_none() && !thinking.is_open() {
                over_at = Some(all.len());
            }
            let Some(token) = thinking.forced().or_else(|| own.next().copied()) else { break };
            thinking.take(token);
            all.push(token);
        }
        assert_eq!((&all[..], over_at), (said, over));
    }

    #[test]
    fn thinking_ends_where_its_budget_does() {
        check(9, false, &[1, 7, 2, 2, 3, 8], &[1, 7, 2, 2, 3, 8], Some(5));
        check(9, true, &[7, 2, 2, 2, 3, 8], &[7, 2, 2, 2, 3, 8], Some(5));
        check(2, true, &[7, 7, 8], &[7, 7, 2, 2, 3, 8], Some(5));
        check(0, false, &[1, 8], &[1, 2, 2, 3, 8], Some(4));
        check(0, true, &[8], &[2, 2, 3, 8], Some(3));
        // The model had begun to close: only the rest is forced.
        check(3, true, &[7, 2, 2, 8], &[7, 2, 2, 3, 8], Some(4));
        check(9, false, &[8, 1, 7], &[8, 1, 7], Some(1));
        check(9, true, &[7, 7], &[7, 7], None);
    }

    #[test]
    fn without_tags_there_is_no_thinking() {
        let thinking = Thinking::new(Vec::new(), vec![1], 0, true);
        assert!(!thinking.is_open() && thinking.forced().or(thinking.opening()).is_none());
        let mut thinking = Thinking::new(vec![1], vec![2], 9, false);
        assert_eq!(thinking.opening(), Some(1));
        thinking.take(1);
        assert_eq!((thinking.opening(), thinking.is_open()), (None, true));
    }
}
