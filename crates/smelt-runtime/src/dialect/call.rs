//! Reads one call of a tool, a JSON object, character by character.
//!
//! As soon as the tool's name is known, arguments are told as they come, as they are written.  Knows nothing of
//! what stands around a call.

/// What became known of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallDelta {
    /// The tool.
    Name(String),
    /// More of its arguments, as JSON.
    Arguments(String),
}

/// How far a call was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More must come.
    Open,
    /// It is whole.
    Whole,
    /// It is no call, or no JSON.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the object.
    Start,
    /// Before a key, or the object's end if that may be.
    Key {
        may_end: bool,
    },
    InKey,
    Colon,
    /// Before a value.
    Value,
    InValue,
    /// Behind a value.
    Behind,
    Ended(Progress),
}

/// What a field of the object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// Reads one call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    state: State,
    field: Field,
    scan: Scan,
    /// The key or value that is being read, unless it is told as it comes.
    text: String,
    name: Option<String>,
    /// Arguments that stand before the name.
    early: Option<String>,
    is_named: bool,
    has_arguments: bool,
}

impl Call {
    pub(super) fn new() -> Self {
        Self {
            state: State::Start,
            field: Field::Other,
            scan: Scan::default(),
            text: String::new(),
            name: None,
            early: None,
            is_named: false,
            has_arguments: false,
        }
    }

    /// Whether the tool was told.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Takes one more character; `said` hears what it makes known.
    pub(super) fn push(&mut self, c: char, said: &mut Vec<CallDelta>) -> Progress {
        let state = self.step(c, said);
        self.state = state;
        match state {
            State::Ended(progress) => progress,
            _ => Progress::Open,
        }
    }

    fn step(&mut self, c: char, said: &mut Vec<CallDelta>) -> State {
        const BROKEN: State = State::Ended(Progress::Broken);
        match self.state {
            State::InKey => {
                self.text.push(c);
                if self.scan.push(c) != Scanned::Last {
                    return State::InKey;
                }
                self.key()
            }
            State::InValue => self.in_value(c, said),
            state if c.is_whitespace() => state,
            State::Start if c == '{' => State::Key { may_end: true },
            State::Key { may_end: true } if c == '}' => self.end(said),
            State::Key { .. } if c == '"' => {
                self.begin(c);
                self.text.push(c);
                State::InKey
            }
            State::Colon if c == ':' => State::Value,
            State::Value if !matches!(c, '}' | ']' | ',' | ':') => {
                self.begin(c);
                self.begin_value(c, said);
                State::InValue
            }
            State::Behind => self.behind(c, said),
            State::Ended(progress) => State::Ended(progress),
            State::Start | State::Key { .. } | State::Colon | State::Value => BROKEN,
        }
    }

    fn begin(&mut self, c: char) {
        self.text.clear();
        self.scan = Scan::default();
        self.scan.push(c);
    }

    fn key(&mut self) -> State {
        let Ok(key) = serde_json::from_str::<String>(&self.text) else {
            return State::Ended(Progress::Broken);
        };
        self.field = match &key[..] {
            "name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if !self.has_arguments => Field::Arguments,
            _ => Field::Other,
        };
        State::Colon
    }

    fn begin_value(&mut self, c: char, said: &mut Vec<CallDelta>) {
        if self.field == Field::Arguments {
            self.has_arguments = true;
            self.tell_name(said);
        }
        self.add(c, said);
    }

    fn in_value(&mut self, c: char, said: &mut Vec<CallDelta>) -> State {
        match self.scan.push(c) {
            Scanned::More => self.add(c, said),
            Scanned::Last => {
                self.add(c, said);
                return self.value(said);
            }
            // A number or a word ends before what stands behind it.
            Scanned::Behind => {
                return match self.value(said) {
                    State::Behind if c.is_whitespace() => State::Behind,
                    State::Behind => self.behind(c, said),
                    state => state,
                };
            }
        }
        State::InValue
    }

    /// Adds to the value; arguments of a named call are told at once, unless they are a string.
    fn add(&mut self, c: char, said: &mut Vec<CallDelta>) {
        if self.field == Field::Arguments && self.is_named && !self.scan.is_string {
            said.push(CallDelta::Arguments(c.to_string()));
        } else if self.field != Field::Other {
            self.text.push(c);
        }
    }

    /// The value is whole.
    fn value(&mut self, said: &mut Vec<CallDelta>) -> State {
        let text = std::mem::take(&mut self.text);
        match self.field {
            Field::Name => match serde_json::from_str(&text) {
                Ok(name) => self.name = Some(name),
                Err(_) => return State::Ended(Progress::Broken),
            },
            Field::Arguments => {
                // Some models write arguments as a string of JSON.
                let text = if self.scan.is_string {
                    match serde_json::from_str(&text) {
                        Ok(text) => text,
                        Err(_) => return State::Ended(Progress::Broken),
                    }
                } else {
                    text
                };
                if self.is_named {
                    said.push(CallDelta::Arguments(text));
                } else {
                    self.early = Some(text);
                }
            }
            Field::Other => {}
        }
        if self.early.is_some() {
            self.tell_name(said);
        }
        State::Behind
    }

    /// Tells the name if it is known and was not told, and arguments that stood before it.
    fn tell_name(&mut self, said: &mut Vec<CallDelta>) {
        if self.is_named {
            return;
        }
        if let Some(name) = &self.name {
            self.is_named = true;
            said.push(CallDelta::Name(name.clone()));
            said.extend(self.early.take().map(CallDelta::Arguments));
        }
    }

    fn behind(&mut self, c: char, said: &mut Vec<CallDelta>) -> State {
        match c {
            ',' => State::Key { may_end: false },
            '}' => self.end(said),
            _ => State::Ended(Progress::Broken),
        }
    }

    fn end(&mut self, said: &mut Vec<CallDelta>) -> State {
        self.tell_name(said);
        if !self.is_named {
            return State::Ended(Progress::Broken);
        }
        if !self.has_arguments {
            said.push(CallDelta::Arguments("{}".to_owned()));
        }
        State::Ended(Progress::Whole)
    }
}

/// What a character is to a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scanned {
    More,
    /// The value ends with it.
    Last,
    /// The value ended before it.
    Behind,
}

/// Finds the end of a JSON value, without checking what is in it.
#[derive(Clone, Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Whether the whole value is a string.
    is_string: bool,
    is_begun: bool,
}

impl Scan {
    fn push(&mut self, c: char) -> Scanned {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        if self.in_string {
            return self.in_string(c);
        }
        match c {
            '"' => {
                self.in_string = true;
                self.is_string = is_first;
            }
            '{' | '[' => self.depth += 1,
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Scanned::Last;
                }
            }
            _ if self.depth == 0 && (c.is_whitespace() || matches!(c, ',' | '}' | ']')) => {
                return Scanned::Behind;
            }
            _ => {}
        }
        Scanned::More
    }

    fn in_string(&mut self, c: char) -> Scanned {
        if self.is_escaped {
            self.is_escaped = false;
        } else if c == '\\' {
            self.is_escaped = true;
        } else if c == '"' {
            self.in_string = false;
            if self.depth == 0 {
                return Scanned::Last;
            }
        }
        Scanned::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name, the arguments and how it ended.
    #[track_caller]
    fn check(text: &str, name: &str, arguments: &str, end: Progress) {
        let (mut call, mut said, mut progress) = (Call::new(), Vec::new(), Progress::Open);
        for c in text.chars() {
            progress = call.push(c, &mut said);
            if progress != Progress::Open {
                break;
            }
        }
        let (mut names, mut told) = (String::new(), String::new());
        for part in said {
            match part {
                CallDelta::Name(name) => names += &name,
                CallDelta::Arguments(text) => told += &text,
            }
        }
        assert_eq!((&names[..], &told[..], progress), (name, arguments, end), "{text}");
    }

    #[test]
    fn calls_are_read_in_any_order() {
        use Progress::{Broken, Open, Whole};
        let plain = r#"{"name": "f", "arguments": {"a": "}\"{", "b": [1, {}]}}"#;
        check(plain, "f", r#"{"a": "}\"{", "b": [1, {}]}"#, Whole);
        check(r#"{"arguments":{"a":1},"x":[{"name":"g"}],"name":"f"}"#, "f", r#"{"a":1}"#, Whole);
        check(r#"{"name":"f"}"#, "f", "{}", Whole);
        check(r#"{"name":"f","parameters":null }"#, "f", "null", Whole);
        check(r#"{"id":12,"name":"f","arguments":"{\"a\":1}"}"#, "f", r#"{"a":1}"#, Whole);
        check(r#"{"name": "f", "arguments": {"a": 1"#, "f", r#"{"a": 1"#, Open);
        check(r#"{"name": "f""#, "", "", Open);
        check(r#"{"na\u006de": "f", "arguments": {}}"#, "f", "{}", Whole);
        check("[1]", "", "", Broken);
        check("{}", "", "", Broken);
        check(r#"{"name": 3}"#, "", "", Broken);
        check(r#"{"name" "f"}"#, "", "", Broken);
        check(r#"{"name": "f",}"#, "", "", Broken);
        check(r#"{"arguments": {}}"#, "", "", Broken);
        check(r#"{"name": "f" "arguments"}"#, "", "", Broken);
    }
}
