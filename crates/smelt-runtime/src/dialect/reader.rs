//! Reads an answer's text into what is thought, said and called.
//!
//! A state machine over characters.  Holds back only what may yet be a mark, or a call whose tool is not
//! known.

use super::call::{Call, CallDelta, Progress};
use super::finder::{Finder, MarkMatch};
use super::{CALL_TAGS, Calls, Dialect, THINK_TAGS};

/// What follows in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Content(String),
    /// It calls a tool.
    Call {
        /// Which call of the answer this is, counted from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments, as JSON.
    Arguments {
        /// Which call of the answer this is.
        index: usize,
        /// The text.
        text: String,
    },
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space was said.
    Start(Finder),
    Thinking {
        close: Finder,
        is_begun: bool,
    },
    /// Behind the thinking, before anything is said.
    Between,
    Saying(Finder),
    /// Nothing is looked for any more.
    Plain,
    Calling {
        call: Call,
        raw: String,
    },
    /// Behind a call.
    Called(Finder),
    /// Behind a call of Llama 3's.
    Next,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct Reader {
    calls: Option<Calls>,
    state: State,
    /// How many calls were told.
    told: usize,
    deltas: Vec<Delta>,
    said: Vec<CallDelta>,
}

impl Reader {
    /// Begins an answer in a `dialect`.  `is_thinking` if the prompt ends inside of the model's thinking
    /// ([`Dialect::is_thinking`]).  Calls are read if `dialect.calls` says how, which it should not where
    /// no tools were offered.
    pub fn new(dialect: Dialect, is_thinking: bool) -> Self {
        let state = if is_thinking {
            State::Thinking { close: Finder::new(THINK_TAGS[1]), is_begun: false }
        } else if dialect.thinks {
            State::Start(Finder::new(THINK_TAGS[0]))
        } else if dialect.calls.is_some() {
            State::Between
        } else {
            State::Plain
        };
        Self { calls: dialect.calls, state, told: 0, deltas: Vec::new(), said: Vec::new() }
    }

    /// How many calls were told so far.
    pub fn calls(&self) -> usize {
        self.told
    }

    /// Takes more text; returns what it settled.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        text.chars().for_each(|c| self.step(c));
        std::mem::take(&mut self.deltas)
    }

    /// What was held back, as no more text comes.
    pub fn finish(&mut self) -> Vec<Delta> {
        match std::mem::replace(&mut self.state, State::Plain) {
            State::Start(mut open) => self.content(&open.finish()),
            State::Thinking { mut close, is_begun } => {
                let rest = close.finish();
                if is_begun || !rest.trim().is_empty() {
                    self.reasoning(if is_begun { &rest } else { rest.trim_start() });
                }
            }
            State::Saying(mut open) => {
                let rest = open.finish();
                if self.told == 0 || !rest.trim().is_empty() {
                    self.content(&rest);
                }
            }
            State::Calling { call, raw } if !call.is_named() => self.content(&raw),
            State::Between
            | State::Plain
            | State::Calling { .. }
            | State::Called(_)
            | State::Next => {}
        }
        std::mem::take(&mut self.deltas)
    }

    fn step(&mut self, c: char) {
        let state = std::mem::replace(&mut self.state, State::Plain);
        self.state = match state {
            State::Start(open) => self.start(open, c),
            State::Thinking { close, is_begun } => self.thinking(close, is_begun, c),
            State::Between if c.is_whitespace() => State::Between,
            State::Between => self.first(c),
            State::Saying(open) => self.saying(open, c),
            State::Plain => self.plain(c),
            State::Calling { call, raw } => self.calling(call, raw, c),
            State::Called(mut close) => match close.push(c) {
                MarkMatch::Mark => State::Saying(Finder::new(CALL_TAGS[0])),
                MarkMatch::Text(_) => State::Called(close),
            },
            State::Next if c.is_whitespace() || c == ';' => State::Next,
            State::Next => self.first(c),
        };
    }

    fn start(&mut self, mut open: Finder, c: char) -> State {
        match open.push(c) {
            MarkMatch::Mark => {
                State::Thinking { close: Finder::new(THINK_TAGS[1]), is_begun: false }
            }
            MarkMatch::Text(text) if text.is_empty() => State::Start(open),
            MarkMatch::Text(text) => {
                // There is no thinking; what was held back is said.
                let rest = text + &open.finish();
                self.state = if self.calls.is_some() { State::Between } else { State::Plain };
                rest.chars().for_each(|c| self.step(c));
                std::mem::replace(&mut self.state, State::Plain)
            }
        }
    }

    fn thinking(&mut self, mut close: Finder, is_begun: bool, c: char) -> State {
        match close.push(c) {
            MarkMatch::Mark => State::Between,
            MarkMatch::Text(text) => {
                let text = if is_begun { &text[..] } else { text.trim_start() };
                self.reasoning(text);
                // White space that stands before anything that was thought is held, then dropped.
                let is_begun = is_begun || !text.is_empty() || !close.is_blank();
                State::Thinking { close, is_begun }
            }
        }
    }

    /// The first character that is said.
    fn first(&mut self, c: char) -> State {
        match self.calls {
            Some(Calls::Hermes) => self.saying(Finder::new(CALL_TAGS[0]), c),
            Some(Calls::Llama3) if c == '{' => self.calling(Call::new(), String::new(), c),
            Some(Calls::Llama3) | None => self.plain(c),
        }
    }

    fn saying(&mut self, mut open: Finder, c: char) -> State {
        match open.push(c) {
            MarkMatch::Mark => State::Calling { call: Call::new(), raw: CALL_TAGS[0].to_owned() },
            MarkMatch::Text(text) => {
                self.content(&text);
                State::Saying(open)
            }
        }
    }

    fn plain(&mut self, c: char) -> State {
        self.content(c.encode_utf8(&mut [0; 4]));
        State::Plain
    }

    fn calling(&mut self, mut call: Call, mut raw: String, c: char) -> State {
        let progress = call.push(c, &mut self.said);
        self.tell();
        if !call.is_named() {
            raw.push(c);
        }
        match (progress, self.calls) {
            (Progress::Open, _) => State::Calling { call, raw },
            // What is wrong behind the name is left out up to the call's end.
            (_, Some(Calls::Hermes)) if call.is_named() => State::Called(Finder::new(CALL_TAGS[1])),
            (Progress::Whole, _) => State::Next,
            (Progress::Broken, Some(Calls::Hermes)) => {
                self.content(&raw);
                State::Saying(Finder::new(CALL_TAGS[0]))
            }
            (Progress::Broken, _) => {
                self.content(&raw);
                State::Plain
            }
        }
    }

    /// Tells what became known of the call.
    fn tell(&mut self) {
        for said in std::mem::take(&mut self.said) {
            match said {
                CallDelta::Name(name) => {
                    self.deltas.push(Delta::Call { index: self.told, name });
                    self.told += 1;
                }
                CallDelta::Arguments(more) => match self.deltas.last_mut() {
                    Some(Delta::Arguments { text, .. }) => text.push_str(&more),
                    _ if more.is_empty() => {}
                    _ => {
                        let index = self.told.saturating_sub(1);
                        self.deltas.push(Delta::Arguments { index, text: more });
                    }
                },
            }
        }
    }

    fn content(&mut self, more: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Content(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.deltas.push(Delta::Content(more.to_owned())),
        }
    }

    fn reasoning(&mut self, more: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Reasoning(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.deltas.push(Delta::Reasoning(more.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const QWEN: Dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };
    const LLAMA: Dialect = Dialect { thinks: false, calls: Some(Calls::Llama3) };

    /// Joins neighbours.
    fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
        let mut all: Vec<Delta> = Vec::new();
        for delta in deltas {
            match (all.last_mut(), delta) {
                (Some(Delta::Reasoning(text)), Delta::Reasoning(more))
                | (Some(Delta::Content(text)), Delta::Content(more)) => *text += &more,
                (
                    Some(Delta::Arguments { index, text }),
                    Delta::Arguments { index: i, text: more },
                ) if *index == i => {
                    *text += &more;
                }
                (_, delta) => all.push(delta),
            }
        }
        all
    }

    fn read<'a>(
        dialect: Dialect,
        is_thinking: bool,
        pieces: impl Iterator<Item = &'a str>,
    ) -> Vec<Delta> {
        let mut reader = Reader::new(dialect, is_thinking);
        let mut deltas: Vec<Delta> = pieces.flat_map(|piece| reader.push(piece)).collect();
        deltas.extend(reader.finish());
        joined(deltas)
    }

    /// Thought, said and called, as lines.
    #[track_caller]
    fn check(dialect: Dialect, is_thinking: bool, text: &str, expect: &[&str]) {
        let told = |delta: Delta| match delta {
            Delta::Reasoning(text) => format!("thinks {text}"),
            Delta::Content(text) => format!("says {text}"),
            Delta::Call { index, name } => format!("calls {index} {name}"),
            Delta::Arguments { index, text } => format!("with {index} {text}"),
        };
        let found: Vec<String> =
            read(dialect, is_thinking, [text].into_iter()).into_iter().map(told).collect();
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn thinking_is_told_apart() {
        let thinks = Dialect { thinks: true, calls: None };
        check(
            thinks,
            false,
            "<think>\nA <b> c.\n</think>\n\nYes. ",
            &["thinks A <b> c.", "says Yes. "],
        );
        check(thinks, true, "\nA.\n\nB\n</think>\n\nYes", &["thinks A.\n\nB", "says Yes"]);
        check(thinks, true, "A. \n", &["thinks A. \n"]);
        check(thinks, false, " No <think>x</think>", &["says  No <think>x</think>"]);
        check(thinks, false, "<think>\n\n</think>\n\nYes", &["says Yes"]);
        check(thinks, false, "<thi", &["says <thi"]);
        check(Dialect::default(), false, " <think>a</think> ", &["says  <think>a</think> "]);
        check(thinks, true, "a </thin b", &["thinks a </thin b"]);
    }

    #[test]
    fn calls_are_told_apart() {
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let told = ["calls 0 f", "with 0 {\"a\": 1}"];
        check(QWEN, false, call, &told);
        check(
            QWEN,
            true,
            &format!("Hm.</think>\n\n{call}\n"),
            &[&["thinks Hm."], &told[..]].concat(),
        );
        check(
            QWEN,
            false,
            &format!("Let us see.\n{call}\n{call}\nDone"),
            &[&["says Let us see."], &told[..], &["calls 1 f", "with 1 {\"a\": 1}", "says \nDone"]]
                .concat(),
        );
        // Cut off, or wrong behind the name: what was told stands.
        check(
            QWEN,
            false,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
            &["calls 0 f", "with 0 {\"a\""],
        );
        check(
            QWEN,
            false,
            "<tool_call>{\"name\": \"f\", \"arguments\": {}; x</tool_call> y",
            &["calls 0 f", "with 0 {}", "says  y"],
        );
        // No call after all.
        check(QWEN, false, "<tool_call>f(1)</tool_call> ", &["says <tool_call>f(1)</tool_call> "]);
        check(QWEN, false, "a <tool_call>{\"name\": ", &["says a<tool_call>{\"name\": "]);
    }

    #[test]
    fn calls_of_llama_are_whole_answers() {
        let call = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
        check(LLAMA, false, call, &["calls 0 f", "with 0 {\"a\": 1}"]);
        check(
            LLAMA,
            false,
            &format!("\n{call}; {call}"),
            &["calls 0 f", "with 0 {\"a\": 1}", "calls 1 f", "with 1 {\"a\": 1}"],
        );
        check(LLAMA, false, &format!("I say {call}"), &[&format!("says I say {call}")[..]]);
        check(LLAMA, false, "{\"a\": 1} ", &["says {\"a\": 1} "]);
    }

    #[test]
    fn how_text_is_cut_changes_nothing() {
        let parts = [
            "<think>",
            "</think>",
            "<tool_call>{\"name\": \"g\", \"arguments\": {}}",
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"f\", ",
            "\"arguments\": ",
            "\"parameters\":",
            "{\"a\": [1, \"x}\"]}",
            "}",
            "\n",
            " ",
            "<",
            "word",
            "\"{\\\"b\\\": 2}\"",
            ";",
            "\u{e9}",
        ];
        let dialects = [QWEN, LLAMA, Dialect::default(), Dialect { calls: None, ..QWEN }];
        let mut random = Random::new(5);
        let mut calls = 0;
        for round in 0..6000 {
            let text: String =
                (0..random.below(14)).map(|_| parts[random.below(parts.len())]).collect();
            let dialect = dialects[round % dialects.len()];
            let is_thinking = dialect.thinks && round % 3 == 0;
            let whole = read(dialect, is_thinking, [&text[..]].into_iter());
            calls += whole.iter().filter(|delta| matches!(delta, Delta::Call { .. })).count();
            let mut cuts: Vec<usize> = (0..=text.len())
                .filter(|cut| text.is_char_boundary(*cut) && random.below(3) == 0)
                .collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            assert_eq!(read(dialect, is_thinking, pieces), whole, "{text:?} {cuts:?}");
        }
        assert!(calls > 50, "{calls}");
    }
}
