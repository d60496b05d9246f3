//! Cuts an answer into sections: what is thought, what is said, each call of a tool.
//!
//! Protocols whose answers are lists of such tell in their own words how each begins, goes on and ends.  Knows nothing of
//! those words.

use smelt_runtime::dialect::{Delta, Reader};

/// What a section is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Thought,
    Said,
    /// A call of the tool of this name; its text is the arguments, JSON.
    Call(String),
}

/// A section as far as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// What happens to a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SectionEvent {
    Begins,
    GoesOn(String),
    Ends,
}

/// The sections of one answer, of which the last may be open.
pub(crate) struct Sections {
    reader: Reader,
    all: Vec<Section>,
    is_open: bool,
    /// What was not told yet, with the numbers of the sections.
    steps: Vec<(usize, SectionEvent)>,
}

impl Sections {
    /// An answer of which nothing was read.
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader, all: Vec::new(), is_open: false, steps: Vec::new() }
    }

    /// All sections so far.
    pub(crate) fn all(&self) -> &[Section] {
        &self.all
    }

    /// Whether a tool is called.
    pub(crate) fn has_calls(&self) -> bool {
        self.all.iter().any(|section| matches!(section.kind, Kind::Call(_)))
    }

    /// Takes more of the answer; gives what happened to which section.
    pub(crate) fn push(&mut self, text: &str) -> Vec<(usize, SectionEvent)> {
        let deltas = self.reader.push(text);
        self.take(deltas);
        std::mem::take(&mut self.steps)
    }

    /// Takes the answer's end.
    pub(crate) fn finish(&mut self) -> Vec<(usize, SectionEvent)> {
        let deltas = self.reader.finish();
        self.take(deltas);
        self.close();
        std::mem::take(&mut self.steps)
    }

    fn take(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.add(Kind::Thought, text),
                Delta::Content(text) => self.add(Kind::Said, text),
                Delta::Call { name, .. } => self.begin(Kind::Call(name)),
                Delta::Arguments { text, .. } => self.go_on(text),
            }
        }
    }

    /// More of what is thought or said.
    fn add(&mut self, kind: Kind, text: String) {
        let is_same = self.is_open && self.all.last().is_some_and(|last| last.kind == kind);
        // White space between calls is no section.
        if !is_same && text.trim().is_empty() && self.has_calls() {
            return;
        }
        if !is_same {
            self.begin(kind);
        }
        self.go_on(text);
    }

    fn begin(&mut self, kind: Kind) {
        self.close();
        self.is_open = true;
        self.steps.push((self.all.len(), SectionEvent::Begins));
        self.all.push(Section { kind, text: String::new() });
    }

    fn go_on(&mut self, text: String) {
        if let Some(last) = self.all.last_mut() {
            last.text += &text;
            self.steps.push((self.all.len() - 1, SectionEvent::GoesOn(text)));
        }
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.is_open, false) {
            self.steps.push((self.all.len() - 1, SectionEvent::Ends));
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_runtime::dialect::{Calls, Dialect};

    use super::*;

    const SAID: &str = "<think>\nhm</think>\n\nI look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\n";

    fn sections() -> Sections {
        let dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };
        Sections::new(Reader::new(dialect, false))
    }

    /// What is told of a text that comes in pieces of so many letters, neighbours joined.
    fn told(letters: usize) -> Vec<(usize, SectionEvent)> {
        let mut sections = sections();
        let all: Vec<char> = SAID.chars().collect();
        let pieces = all.chunks(letters).map(|piece| piece.iter().collect::<String>());
        let mut steps: Vec<_> = pieces.flat_map(|piece| sections.push(&piece)).collect();
        steps.extend(sections.finish());
        let mut joined: Vec<(usize, SectionEvent)> = Vec::new();
        for (at, step) in steps {
            match (joined.last_mut(), step) {
                (Some((_, SectionEvent::GoesOn(text))), SectionEvent::GoesOn(more)) => {
                    *text += &more
                }
                (_, step) => joined.push((at, step)),
            }
        }
        joined
    }

    #[test]
    fn sections_begin_go_on_and_end_however_the_text_is_cut() {
        let texts = ["hm", "I look.", "{\"a\": 1}", "{}"];
        let expect: Vec<(usize, SectionEvent)> = (0..)
            .zip(texts)
            .flat_map(|(at, text)| {
                [
                    (at, SectionEvent::Begins),
                    (at, SectionEvent::GoesOn(text.to_owned())),
                    (at, SectionEvent::Ends),
                ]
            })
            .collect();
        for letters in [1, 3, 7, SAID.len()] {
            assert_eq!(told(letters), expect, "{letters}");
        }
    }

    #[test]
    fn all_is_what_was_told() {
        let mut sections = sections();
        sections.push(SAID);
        sections.finish();
        let kinds: Vec<&Kind> = sections.all().iter().map(|section| &section.kind).collect();
        let call = |name: &str| Kind::Call(name.to_owned());
        assert_eq!(kinds, [&Kind::Thought, &Kind::Said, &call("f"), &call("g")]);
        assert!(sections.has_calls());
        assert_eq!(sections.finish(), [], "it ends once");
    }
}
