//! Turns llama.cpp's grammars (GBNF) into Lark.
//!
//! Rules that do not refer to themselves become terminals, which are read as one regular expression; the
//! others become rules.  Knows nothing of vocabularies.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use super::compiler::quoted;

/// How deep groups may be nested: each level is a call.
const DEPTH_MAX: usize = 64;

/// The largest number of repetitions: each is a copy to the compiler.
const REPEAT_MAX: u32 = 2000;

/// A text that is not GBNF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GbnfError {
    /// Something else was expected.
    #[error("line {line}: expected {wanted}")]
    Expected {
        /// Where, counted from 1.
        line: usize,
        /// What.
        wanted: &'static str,
    },
    /// A rule is used but not defined.
    #[error("there is no rule {0:?}")]
    NoRule(String),
    /// A rule is defined twice.
    #[error("there are two rules {0:?}")]
    TwoRules(String),
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum RuleElement {
    Text(String),
    /// A regular expression of one character.
    Class(String),
    Rule(String),
    Any(Vec<Vec<RuleElement>>),
    Repeat(Box<RuleElement>, u32, Option<u32>),
}

type Choices = Vec<Vec<RuleElement>>;

/// The grammar as Lark.
pub(super) fn to_lark(text: &str) -> Result<String, GbnfError> {
    let mut parser = Parser { chars: text.chars().peekable(), line: 1, depth: 0 };
    let rules = parser.rules()?;
    let places: HashMap<&str, usize> =
        rules.iter().enumerate().map(|(place, (name, _))| (&name[..], place)).collect();
    if places.len() < rules.len() {
        let twice = rules.iter().enumerate().find(|(place, (name, _))| places[&name[..]] != *place);
        return Err(GbnfError::TwoRules(
            twice.map_or(String::new(), |(_, (name, _))| name.clone()),
        ));
    }
    let root = *places.get("root").ok_or_else(|| GbnfError::NoRule("root".to_owned()))?;
    let uses = uses(&rules, &places)?;
    let is_rule = reach_a_cycle(&uses);
    let names: HashMap<&str, String> = places
        .iter()
        .map(|(name, &place)| (*name, format!("{}{place}", if is_rule[place] { 'r' } else { 'R' })))
        .collect();
    let mut lark = format!("start: {}\n", names[&rules[root].0[..]]);
    for (name, choices) in &rules {
        let _ = writeln!(lark, "{}: {}", names[&name[..]], written(choices, &names));
    }
    Ok(lark)
}

/// The rules that each rule names.
fn uses(
    rules: &[(String, Choices)],
    places: &HashMap<&str, usize>,
) -> Result<Vec<Vec<usize>>, GbnfError> {
    let uses = |(_, choices): &(String, Choices)| {
        let mut named = Vec::new();
        choices.iter().flatten().for_each(|part| part.names(&mut named));
        let place = |name: &String| {
            places.get(&name[..]).copied().ok_or_else(|| GbnfError::NoRule(name.clone()))
        };
        named.iter().map(place).collect()
    };
    rules.iter().map(uses).collect()
}

/// Which rules lead to one that leads to itself: those that are left when all are taken away that use only
/// what is taken away.
fn reach_a_cycle(uses: &[Vec<usize>]) -> Vec<bool> {
    let mut users = vec![Vec::new(); uses.len()];
    for (user, named) in uses.iter().enumerate() {
        named.iter().for_each(|place| users[*place].push(user));
    }
    let mut left: Vec<usize> = uses.iter().map(Vec::len).collect();
    let mut open: Vec<usize> = (0..uses.len()).filter(|place| left[*place] == 0).collect();
    while let Some(place) = open.pop() {
        for &user in &users[place] {
            left[user] -= 1;
            if left[user] == 0 {
                open.push(user);
            }
        }
    }
    left.iter().map(|left| *left > 0).collect()
}

impl RuleElement {
    fn names(&self, found: &mut Vec<String>) {
        match self {
            Self::Text(_) | Self::Class(_) => {}
            Self::Rule(name) => found.push(name.clone()),
            Self::Any(choices) => choices.iter().flatten().for_each(|part| part.names(found)),
            Self::Repeat(part, ..) => part.names(found),
        }
    }

    fn written(&self, names: &HashMap<&str, String>) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Class(class) => format!("/{class}/"),
            Self::Rule(name) => names[&name[..]].clone(),
            Self::Any(choices) => format!("({})", written(choices, names)),
            Self::Repeat(part, least, most) => {
                let part = part.written(names);
                match (least, most) {
                    (0, Some(1)) => format!("{part}?"),
                    (0, None) => format!("{part}*"),
                    (1, None) => format!("{part}+"),
                    (least, None) => format!("{part}{{{least},}}"),
                    (least, Some(most)) => format!("{part}{{{least},{most}}}"),
                }
            }
        }
    }
}

fn written(choices: &Choices, names: &HashMap<&str, String>) -> String {
    let sequence = |parts: &Vec<RuleElement>| match parts.is_empty() {
        true => "\"\"".to_owned(),
        false => parts.iter().map(|part| part.written(names)).collect::<Vec<_>>().join(" "),
    };
    choices.iter().map(sequence).collect::<Vec<_>>().join(" | ")
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rules(&mut self) -> Result<Vec<(String, Choices)>, GbnfError> {
        let mut rules = Vec::new();
        loop {
            self.space(true);
            if self.chars.peek().is_none() {
                return Ok(rules);
            }
            let name = self.name()?;
            self.space(false);
            for wanted in "::=".chars() {
                self.expect(wanted, "::= behind the name of a rule")?;
            }
            self.space(true);
            rules.push((name, self.choices(false)?));
            if !matches!(self.chars.peek(), None | Some('\n' | '\r')) {
                return Err(self.expected("a part of a rule, or the end of the line"));
            }
        }
    }

    /// Sequences between bars; within a group lines may end anywhere.
    fn choices(&mut self, is_group: bool) -> Result<Choices, GbnfError> {
        let mut choices = vec![self.sequence(is_group)?];
        while self.chars.next_if_eq(&'|').is_some() {
            self.space(true);
            choices.push(self.sequence(is_group)?);
        }
        Ok(choices)
    }

    fn sequence(&mut self, is_group: bool) -> Result<Vec<RuleElement>, GbnfError> {
        let mut parts = Vec::new();
        while let Some(part) = self.part()? {
            parts.push(self.repeated(part)?);
            self.space(is_group);
        }
        Ok(parts)
    }

    fn part(&mut self) -> Result<Option<RuleElement>, GbnfError> {
        Ok(Some(match self.chars.peek() {
            Some('"') => RuleElement::Text(self.text()?),
            Some('[') => RuleElement::Class(self.class()?),
            Some('.') => {
                self.chars.next();
                RuleElement::Class("[\\x{0}-\\x{10FFFF}]".to_owned())
            }
            Some('(') => RuleElement::Any(self.group()?),
            Some(c) if is_name(*c) => RuleElement::Rule(self.name()?),
            _ => return Ok(None),
        }))
    }

    fn group(&mut self) -> Result<Choices, GbnfError> {
        self.chars.next();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.expected("groups nested at most 64 deep"));
        }
        self.space(true);
        let choices = self.choices(true)?;
        self.expect(')', "the end of a group: )")?;
        self.depth -= 1;
        Ok(choices)
    }

    /// The part as often as what stands behind it says.
    fn repeated(&mut self, part: RuleElement) -> Result<RuleElement, GbnfError> {
        let (least, most) = match self.chars.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted(part),
            _ => return Ok(part),
        };
        self.chars.next();
        Ok(RuleElement::Repeat(Box::new(part), least, most))
    }

    /// `{2}`, `{2,}` or `{2,3}`.
    fn counted(&mut self, part: RuleElement) -> Result<RuleElement, GbnfError> {
        self.chars.next();
        let least = self.count()?;
        let most = match self.chars.next_if_eq(&',') {
            None => Some(least),
            Some(_) if self.chars.peek() == Some(&'}') => None,
            Some(_) => Some(self.count()?),
        };
        self.expect('}', "the end of a repetition: }")?;
        if most.is_some_and(|most| most < least) {
            return Err(self.expected("a repetition whose first number is not the larger"));
        }
        Ok(RuleElement::Repeat(Box::new(part), least, most))
    }

    fn count(&mut self) -> Result<u32, GbnfError> {
        let mut digits = String::new();
        while let Some(digit) = self.chars.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let count = digits.parse().ok().filter(|count| *count <= REPEAT_MAX);
        count.ok_or_else(|| self.expected("a number of repetitions, at most 2000"))
    }

    fn name(&mut self) -> Result<String, GbnfError> {
        let mut name = String::new();
        while let Some(c) = self.chars.next_if(|c| is_name(*c)) {
            name.push(c);
        }
        if name.is_empty() { Err(self.expected("the name of a rule")) } else { Ok(name) }
    }

    fn text(&mut self) -> Result<String, GbnfError> {
        self.chars.next();
        let mut text = String::new();
        loop {
            match self.character("the end of a text: \"")? {
                ('"', false) => return Ok(text),
                (c, _) => text.push(c),
            }
        }
    }

    /// A class of characters as a regular expression writes it.
    fn class(&mut self) -> Result<String, GbnfError> {
        self.chars.next();
        let is_not = self.chars.next_if_eq(&'^').is_some();
        let mut class = if is_not { "[^" } else { "[" }.to_owned();
        let wanted = "the end of a class of characters: ]";
        loop {
            let first = match self.character(wanted)? {
                (']', false) => break,
                (c, _) => c,
            };
            let mut rest = self.chars.clone();
            let is_range = rest.next() == Some('-') && rest.next().is_some_and(|c| c != ']');
            let last = if is_range {
                self.chars.next();
                self.character(wanted)?.0
            } else {
                first
            };
            if last < first {
                return Err(self.expected("a range whose first character is not the larger"));
            }
            let _ = write!(class, "\\x{{{:X}}}-\\x{{{:X}}}", u32::from(first), u32::from(last));
        }
        if class.ends_with(['[', '^']) {
            return Err(self.expected("a character in a class"));
        }
        Ok(class + "]")
    }

    /// The next character of a text or class, and whether it was written with a backslash.
    fn character(&mut self, wanted: &'static str) -> Result<(char, bool), GbnfError> {
        let c = self.chars.next().ok_or_else(|| self.expected(wanted))?;
        if c == '\n' {
            self.line += 1;
        }
        if c != '\\' {
            return Ok((c, false));
        }
        let escape = self.chars.next().ok_or_else(|| self.expected(wanted))?;
        let c = match escape {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            'U' => self.hex(8)?,
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => escape,
            _ => return Err(self.expected("one of \\n \\t \\r \\\\ \\\" \\[ \\] \\xHH \\uHHHH")),
        };
        Ok((c, true))
    }

    fn hex(&mut self, digits: usize) -> Result<char, GbnfError> {
        let text: String = self.chars.by_ref().take(digits).collect();
        let is_hex = text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
        let code = u32::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        code.and_then(char::from_u32).ok_or_else(|| self.expected("a code point in hex digits"))
    }

    /// Steps over spaces and comments, and over ends of lines if a rule may go on behind them.
    fn space(&mut self, is_over_lines: bool) {
        loop {
            match self.chars.peek() {
                Some(' ' | '\t') => {}
                Some('\n' | '\r') if is_over_lines => {}
                Some('#') => {
                    while self.chars.next_if(|c| *c != '\n').is_some() {}
                    continue;
                }
                _ => return,
            }
            if self.chars.next() == Some('\n') {
                self.line += 1;
            }
        }
    }

    fn expect(&mut self, c: char, wanted: &'static str) -> Result<(), GbnfError> {
        match self.chars.next_if_eq(&c) {
            Some(_) => Ok(()),
            None => Err(self.expected(wanted)),
        }
    }

    fn expected(&self, wanted: &'static str) -> GbnfError {
        GbnfError::Expected { line: self.line, wanted }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(gbnf: &str, lark: &str) {
        assert_eq!(to_lark(gbnf).unwrap(), lark);
    }

    #[track_caller]
    fn check_error(gbnf: &str, words: &str) {
        assert_eq!(to_lark(gbnf).unwrap_err().to_string(), words);
    }

    #[test]
    fn plain_rules_are_terminals() {
        check(
            "root ::= answer \" because \" [a-z]+ # why\nanswer ::= \"yes\" | \"no\"\n",
            "start: R0\nR0: R1 \" because \" /[\\x{61}-\\x{7A}]/+\nR1: \"yes\" | \"no\"\n",
        );
        check(
            "root ::= (\"a\" |\n  \"b\")? [^\\n\\x41]{2,3} .{2} \"\\\"\\u00e9\"\n",
            "start: R0\nR0: (\"a\" | \"b\")? /[^\\x{A}-\\x{A}\\x{41}-\\x{41}]/{2,3} /[\\x{0}-\\x{10FFFF}]/{2,2} \"\\\"\u{e9}\"\n",
        );
        check("root ::= \"a\" |\n  \"b\" |", "start: R0\nR0: \"a\" | \"b\" | \"\"\n");
        check(
            "root ::= [-a] [a-]",
            "start: R0\nR0: /[\\x{2D}-\\x{2D}\\x{61}-\\x{61}]/ /[\\x{61}-\\x{61}\\x{2D}-\\x{2D}]/\n",
        );
    }

    #[test]
    fn rules_that_lead_to_themselves_stay_rules() {
        check(
            "root ::= list\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= digit+ | list\ndigit ::= [0-9]",
            "start: r0\nr0: r1\nr1: \"[\" (r2 (\",\" r2)*)? \"]\"\nr2: R3+ | r1\nR3: /[\\x{30}-\\x{39}]/\n",
        );
    }

    #[test]
    fn long_chains_of_rules_are_looked_at_once() {
        // Each looked at from each, this would take minutes.
        let uses: Vec<Vec<usize>> = (1..=20_000).map(|next| vec![next % 20_000]).collect();
        assert!(reach_a_cycle(&uses).iter().all(|reaches| *reaches));
        assert_eq!(
            reach_a_cycle(&[vec![1], vec![1], vec![], vec![2, 2]]),
            [true, true, false, false]
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        check_error("", "there is no rule \"root\"");
        check_error("root ::= item", "there is no rule \"item\"");
        check_error("root ::= \"a\"\nroot ::= \"b\"", "there are two rules \"root\"");
        check_error("root = \"a\"", "line 1: expected ::= behind the name of a rule");
        check_error("\nroot ::= \"a", "line 2: expected the end of a text: \"");
        check_error("root ::= [a", "line 1: expected the end of a class of characters: ]");
        check_error("root ::= []", "line 1: expected a character in a class");
        check_error("root ::= (\"a\"", "line 1: expected the end of a group: )");
        check_error(
            "root ::= \"a\"{3,2}",
            "line 1: expected a repetition whose first number is not the larger",
        );
        check_error(
            "root ::= \"a\"{9999}",
            "line 1: expected a number of repetitions, at most 2000",
        );
        check_error(
            "root ::= \"a\" )",
            "line 1: expected a part of a rule, or the end of the line",
        );
        check_error(
            "root ::= \"\\q\"",
            "line 1: expected one of \\n \\t \\r \\\\ \\\" \\[ \\] \\xHH \\uHHHH",
        );
        check_error(
            "root ::= \"a\"**",
            "line 1: expected a part of a rule, or the end of the line",
        );
        check_error(
            "root ::= [z-a]",
            "line 1: expected a range whose first character is not the larger",
        );
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(65), ")".repeat(65));
        check_error(&deep, "line 1: expected groups nested at most 64 deep");
    }
}
