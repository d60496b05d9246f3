//! Reads a trace of `strace -f -y`: lines in, calls with their begin and end out.
//!
//! A call of one thread may begin on one line and end on a later one; between the two nobody knows
//! whether it has happened.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A call that has ended.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The lines, from 1, on which it begins and ends.
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) thread: &'a str,
    pub(super) name: &'a str,
    /// As strace shows them, split at the commas between them.
    pub(super) arguments: Vec<String>,
    /// Whether it did what it was asked.
    pub(super) is_done: bool,
}

/// Every call of a trace that has ended, in the order of their ends.
pub(super) fn calls(trace: &str) -> Vec<Call<'_>> {
    let mut begun: HashMap<&str, (usize, &str, String)> = HashMap::new();
    let mut calls = Vec::new();
    for (line, text) in (1..).zip(trace.lines()) {
        let Some((thread, text)) = text.split_once(' ') else { continue };
        let text = text.trim_start();
        if let Some(rest) = text.strip_prefix("<... ") {
            let Some((begin, name, first)) = begun.remove(thread) else { continue };
            let rest = rest.split_once(" resumed>").map_or("", |(_, rest)| rest);
            calls.extend(call(thread, name, begin, line, &(first + rest)));
        } else if let Some((name, rest)) = text.split_once('(') {
            match rest.strip_suffix(" <unfinished ...>") {
                Some(first) => drop(begun.insert(thread, (line, name, first.to_owned()))),
                None => calls.extend(call(thread, name, line, line, rest)),
            }
        }
    }
    calls
}

/// `text` is what follows the name and the bracket; `None` where that is no call, but a signal.
fn call<'a>(
    thread: &'a str,
    name: &'a str,
    begin: usize,
    end: usize,
    text: &str,
) -> Option<Call<'a>> {
    let (arguments, result) = text.rsplit_once(" = ")?;
    let arguments = split(arguments.trim_end().strip_suffix(')')?);
    let is_done = !result.starts_with(['-', '?']);
    Some(Call { begin, end, thread, name, arguments, is_done })
}

/// At the commas that stand in no quotes and no brackets.
fn split(text: &str) -> Vec<String> {
    let (mut arguments, mut depth, mut is_quoted, mut is_escaped) =
        (vec![String::new()], 0, false, false);
    for c in text.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '<' | '[' | '{' if !is_quoted => depth += 1,
            '>' | ']' | '}' if !is_quoted => depth -= 1,
            ',' if !is_quoted && depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut().expect("never empty").push(c);
    }
    arguments.iter().map(|argument| argument.trim().to_owned()).collect()
}

impl Call<'_> {
    /// The file behind the descriptor that is argument `at`.
    pub(super) fn file(&self, at: usize) -> Option<PathBuf> {
        let (number, path) = self.arguments.get(at)?.strip_suffix('>')?.split_once('<')?;
        let is_number = number == "AT_FDCWD" || number.parse::<u32>().is_ok();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        (is_number && path.starts_with('/')).then(|| PathBuf::from(path))
    }

    /// The text of argument `at`, with strace's escapes; cut where strace cut it.
    pub(super) fn text(&self, at: usize) -> Option<&str> {
        let text = self.arguments.get(at)?.strip_prefix('"')?;
        text.strip_suffix('"').or_else(|| text.strip_suffix("\"..."))
    }

    /// The path that argument `at` names, from `dir` if it is relative.
    pub(super) fn path(&self, at: usize, dir: Option<&Path>) -> Option<PathBuf> {
        let text = Path::new(self.text(at)?);
        if text.is_absolute() { Some(text.to_owned()) } else { Some(dir?.join(text)) }
    }
}
