//! Reads which files a command starts or has interpreted, as far as its words say.
//!
//! A line of a shell is cut into commands as a shell does, and nothing in it is computed but where `~` leads: a word that
//! holds a variable or a pattern is known to the shell alone, and so is what a program makes of code among its arguments.
//! Such words are told apart, and a line that is too odd to be read names less than it starts.

use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::str::Chars;

use super::plain;

/// A line of more commands was not written by a person.
const COMMANDS_MAX: usize = 256;
/// Lines within lines, as `sh -c 'sh -c …'`.
const DEPTH_MAX: usize = 8;

/// What a command starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Started {
    /// A file that may be there, and the word for it.
    File(String, PathBuf),
    /// What cannot be told before it is started.
    Unknown(String),
}

/// A word of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Said(String),
    /// Of which `~` is the home.
    Home(String),
    /// A pattern of paths, of which only a shell knows what it matches.
    Pattern(String),
    /// As it is written: only a shell knows what it stands for.
    Open(String),
}

impl Word {
    fn said(&self) -> Option<&str> {
        match self {
            Self::Said(text) | Self::Home(text) => Some(text),
            Self::Pattern(_) | Self::Open(_) => None,
        }
    }

    fn text(&self) -> &str {
        let (Self::Said(text) | Self::Home(text) | Self::Pattern(text) | Self::Open(text)) = self;
        text
    }
}

/// The folder in which a command is started.
#[derive(Debug, Clone)]
enum Folder {
    /// The stage's own, wherever that lies.
    Own(PathBuf),
    Known(PathBuf),
    /// What `cd` was told.
    Unknown(String),
}

/// What these words start, a program and its arguments, in this folder; `~` is `home` in a shell's line.
pub(super) fn started(argv: &[&str], folder: &Path, home: Option<&Path>) -> Vec<Started> {
    let words: Vec<_> = argv.iter().map(|word| Word::Said((*word).to_owned())).collect();
    let mut reader = Reader { found: Vec::new(), depth: 0, home, has_own_path: false };
    reader.command(&words, &Folder::Own(folder.to_owned()));
    // The program itself is found where the pipeline lies.
    let own = argv.first().copied().unwrap_or_default();
    let is_own = |found: &Started| matches!(found, Started::File(name, _) if name == own);
    reader.found.retain(|found| !is_own(found));
    reader.found
}

/// Whole words of the shell's lines among these that may be programs and hold blanks.
pub(super) fn words_with_blanks(argv: &[&str]) -> Vec<String> {
    let lines = argv.iter().flat_map(|line| {
        let words =
            Line::of(line).words().into_iter().filter_map(|word| Some(word.said()?.to_owned()));
        words.chain([(*line).to_owned()])
    });
    let is_path = |word: &String| word.starts_with('/') && word.contains(char::is_whitespace);
    lines.filter(is_path).collect()
}

/// Programs that start another one, whose name is the first of their arguments that is no option, number or assignment.
const STARTERS: [&str; 17] = [
    "env", "nice", "nohup", "exec", "command", "builtin", "setsid", "stdbuf", "ionice", "timeout",
    "xargs", "sudo", "chrt", "taskset", "time", "busybox", "unbuffer",
];
/// What a shell does itself, and its words that begin or end something.
const BUILT_IN: [&str; 43] = [
    ":", "[", "[[", "alias", "break", "case", "cd", "continue", "declare", "done", "echo", "esac",
    "exit", "export", "false", "fi", "for", "function", "getopts", "hash", "kill", "let", "local",
    "popd", "printf", "pushd", "pwd", "read", "readonly", "return", "select", "set", "shift",
    "shopt", "test", "trap", "true", "type", "typeset", "ulimit", "umask", "unset", "wait",
];
/// What sets variables for the commands that follow.
const SETTERS: [&str; 5] = ["export", "declare", "typeset", "readonly", "local"];
/// What `find` starts a program by.
const FIND_STARTS: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];
/// Words of the shell before a command.
const KEYWORDS: [&str; 9] = ["if", "then", "else", "elif", "do", "while", "until", "!", "{"];

/// Programs that read another program: of which file, code or module, their options say.
struct Interpreter {
    names: &'static [&'static str],
    /// Options of one letter whose argument is code, or names what is found elsewhere.
    code: &'static str,
    /// Options of one letter that have another argument.
    valued: &'static str,
    /// Long ones.
    long: &'static [&'static str],
}

const INTERPRETERS: [Interpreter; 9] = [
    Interpreter {
        names: &["sh", "bash", "dash", "zsh", "ksh", "ash"],
        code: "c",
        valued: "oO",
        long: &["--rcfile", "--init-file"],
    },
    Interpreter {
        names: &["python", "pypy"],
        code: "cm",
        valued: "WX",
        long: &["--check-hash-based-pycs"],
    },
    Interpreter { names: &["perl"], code: "eE", valued: "I", long: &[] },
    Interpreter { names: &["ruby"], code: "e", valued: "rIC", long: &[] },
    Interpreter { names: &["node", "nodejs"], code: "ep", valued: "r", long: &["--require"] },
    Interpreter { names: &["lua", "luajit"], code: "e", valued: "l", long: &[] },
    Interpreter { names: &["Rscript", "julia"], code: "e", valued: "", long: &[] },
    Interpreter { names: &["php"], code: "r", valued: "dc", long: &[] },
    Interpreter { names: &["tclsh", "wish"], code: "", valued: "", long: &[] },
];

impl Interpreter {
    /// By its file's name, which may end in a version.
    fn of(program: &str) -> Option<&'static Self> {
        let name = program.rsplit('/').next().unwrap_or(program);
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        INTERPRETERS.iter().find(|known| known.names.contains(&name))
    }

    fn is_shell(&self) -> bool {
        self.names.contains(&"sh")
    }
}

struct Reader<'a> {
    found: Vec<Started>,
    depth: usize,
    home: Option<&'a Path>,
    /// Whether the line says where programs are found by name.
    has_own_path: bool,
}

impl Reader<'_> {
    fn line(&mut self, line: &str, folder: &Folder) {
        if self.depth == DEPTH_MAX {
            return;
        }
        self.depth += 1;
        let (mut folder, mut outer) = (folder.clone(), Vec::new());
        for part in Line::of(line).parts.into_iter().take(COMMANDS_MAX) {
            match part {
                ShellPart::Begin => outer.push(folder.clone()),
                ShellPart::End => folder = outer.pop().unwrap_or(folder),
                ShellPart::Within(line) => self.line(&line, &folder),
                ShellPart::Command(words) => self.command_of_a_line(&words, &mut folder),
            }
        }
        self.depth -= 1;
    }

    fn command_of_a_line(&mut self, words: &[Word], folder: &mut Folder) {
        let words = skip_keywords(words);
        let (_, command) = assignments(words);
        if !matches!(command.first().and_then(Word::said), Some("cd" | "pushd")) {
            return self.command(words, folder);
        }
        let to = command[1..].iter().find(|word| !word.text().starts_with('-'));
        *folder = match (to, &*folder) {
            (Some(Word::Said(to)), Folder::Own(from) | Folder::Known(from)) => {
                Folder::Known(plain(&from.join(to)))
            }
            (Some(Word::Pattern(to)), Folder::Own(from)) if is_own(to) => {
                Folder::Known(plain(&from.join(to)))
            }
            (Some(Word::Home(to)), _) => match self.at_home(to) {
                Some(path) => Folder::Known(path),
                None => Folder::Unknown(to.clone()),
            },
            (Some(Word::Said(to)), Folder::Unknown(_)) if to.starts_with('/') => {
                Folder::Known(to.into())
            }
            (Some(Word::Said(to)), Folder::Unknown(from)) => {
                Folder::Unknown(format!("{from}/{to}"))
            }
            (Some(Word::Open(to) | Word::Pattern(to)), _) => Folder::Unknown(to.clone()),
            (None, _) => Folder::Unknown("~".to_owned()),
        };
    }

    /// A command behind its assignments, of which one may say where programs are found: for it, or alone for all that
    /// follow.
    fn command(&mut self, words: &[Word], folder: &Folder) {
        let (assigned, words) = assignments(words);
        let before = self.has_own_path;
        self.has_own_path |= assigned.iter().any(sets_path);
        self.program(words, folder);
        self.has_own_path = match words.first().and_then(Word::said) {
            _ if words.is_empty() => self.has_own_path,
            Some(name) if SETTERS.contains(&name) => before || words[1..].iter().any(sets_path),
            _ => before,
        };
    }

    fn program(&mut self, words: &[Word], folder: &Folder) {
        let Some((program, arguments)) = words.split_first() else { return };
        let Some(name) = program.said() else { return self.file(program, folder) };
        match name {
            "." | "source" => {
                if let Some(script) = arguments.first() {
                    self.file(script, folder);
                }
            }
            "eval" => self.unknown("eval".to_owned()),
            _ => {
                let file = name.rsplit('/').next().unwrap_or(name);
                let is_known = [&BUILT_IN[..], &STARTERS].iter().any(|all| all.contains(&name));
                if name.contains('/') {
                    self.file(program, folder);
                } else if self.has_own_path && !is_known {
                    self.unknown(name.to_owned());
                }
                if let Some(interpreter) = Interpreter::of(name) {
                    self.interpreted(interpreter, file, arguments, folder);
                } else if STARTERS.contains(&file) {
                    let is_before = |word: &&Word| {
                        word.text().starts_with(|c: char| c == '-' || c.is_ascii_digit())
                    };
                    let before = arguments.iter().take_while(is_before).count();
                    self.command(&arguments[before..], folder);
                } else if file == "find" {
                    self.found_files(arguments, folder);
                }
            }
        }
    }

    /// What `find` starts for each file, and the files themselves where they are what is started.
    fn found_files(&mut self, arguments: &[Word], folder: &Folder) {
        let is_start = |word: &Word| word.said().is_some_and(|text| FIND_STARTS.contains(&text));
        let is_of_it = |word: &&Word| !matches!(word.text(), ";" | "+");
        for words in arguments.split(is_start).skip(1) {
            let with_files = |word: &Word| match word.text() {
                text if text.contains("{}") => Word::Open(format!("find -exec {text}")),
                _ => word.clone(),
            };
            let words: Vec<Word> = words.iter().take_while(is_of_it).map(with_files).collect();
            self.command(&words, folder);
        }
    }

    /// What an interpreter reads: the first argument that is no option, or the code of one.
    fn interpreted(
        &mut self,
        interpreter: &Interpreter,
        name: &str,
        arguments: &[Word],
        folder: &Folder,
    ) {
        let mut arguments = arguments.iter();
        let mut is_code = false;
        while let Some(word) = arguments.next() {
            let text = word.text();
            let is_option = text.len() > 1 && text.starts_with(['-', '+']);
            if !is_option {
                return match (is_code, word) {
                    (true, Word::Said(line)) => self.line(line, folder),
                    (true, Word::Home(_)) => self.file(word, folder),
                    (true, _) => self.unknown(format!("{name} -c")),
                    (false, _) if text == "-" => {}
                    (false, word) => self.file(word, folder),
                };
            }
            if interpreter.long.contains(&text) {
                arguments.next();
            }
            if text.starts_with("--") || text.starts_with('+') && !interpreter.is_shell() {
                continue;
            }
            for (at, letter) in text.char_indices().skip(1) {
                let is_last = at + letter.len_utf8() == text.len();
                if interpreter.code.contains(letter) && text.starts_with('-') {
                    if !interpreter.is_shell() {
                        return self.unknown(format!("{name} -{letter}"));
                    }
                    is_code = true;
                } else if interpreter.valued.contains(letter) {
                    if is_last {
                        arguments.next();
                    } else if !interpreter.is_shell() {
                        break;
                    }
                }
            }
        }
    }

    fn unknown(&mut self, what: String) {
        self.add(Started::Unknown(what));
    }

    fn add(&mut self, found: Started) {
        if !self.found.contains(&found) {
            self.found.push(found);
        }
    }

    /// Where a word leads that begins with the home.
    fn at_home(&self, text: &str) -> Option<PathBuf> {
        let rest = text.trim_start_matches('~').trim_start_matches('/');
        Some(plain(&self.home?.join(rest)))
    }

    fn file(&mut self, word: &Word, folder: &Folder) {
        let found = match (word, folder) {
            (Word::Open(text) | Word::Pattern(text), _) if is_in_key(text) => return,
            // Of what it has made itself.
            (Word::Pattern(text), Folder::Own(_)) if is_own(text) => return,
            (Word::Pattern(text), Folder::Known(folder)) => {
                Started::Unknown(folder.join(text).display().to_string())
            }
            (Word::Open(text) | Word::Pattern(text), _) => Started::Unknown(text.clone()),
            (Word::Home(text), _) => match self.at_home(text) {
                Some(path) => Started::File(text.clone(), path),
                None => Started::Unknown(text.clone()),
            },
            (Word::Said(text), _) if text.starts_with('/') => {
                Started::File(text.clone(), text.into())
            }
            (Word::Said(text), Folder::Own(folder)) => {
                Started::File(text.clone(), plain(&folder.join(text)))
            }
            (Word::Said(text), Folder::Known(folder)) => {
                let path = plain(&folder.join(text));
                Started::File(path.display().to_string(), path)
            }
            (Word::Said(_), Folder::Unknown(folder)) if is_in_key(folder) => return,
            (Word::Said(text), Folder::Unknown(folder)) => {
                Started::Unknown(format!("{folder}/{}", text.trim_start_matches("./")))
            }
        };
        self.add(found);
    }
}

/// Whether what is named in the stage's own folder lies there.
fn is_own(text: &str) -> bool {
    !text.starts_with('/') && !text.contains("..")
}

/// Whether a word says where programs are found by name.
fn sets_path(word: &Word) -> bool {
    word.text().starts_with("PATH=")
}

/// Whether a word begins with what the key covers, an input, or with the stage's own folders.
fn is_in_key(text: &str) -> bool {
    let name = text.trim_start_matches(['"', '$', '{']);
    ["SMELT_IN", "TMPDIR", "PWD", "OLDPWD"].iter().any(|own| name.starts_with(own))
}

fn skip_keywords(words: &[Word]) -> &[Word] {
    let is_one = |word: &&Word| word.said().is_some_and(|text| KEYWORDS.contains(&text));
    &words[words.iter().take_while(is_one).count()..]
}

/// A command's assignments, and the rest of it.
fn assignments(words: &[Word]) -> (&[Word], &[Word]) {
    let is_one = |word: &&Word| {
        let name = word.text().split('=').next().unwrap_or_default();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        name.len() < word.text().len() && !name.is_empty() && is_name
    };
    words.split_at(words.iter().take_while(is_one).count())
}

/// A part of a line.
#[derive(Debug, PartialEq, Eq)]
enum ShellPart {
    Command(Vec<Word>),
    /// A line whose output stands in a word.
    Within(String),
    /// Of commands whose folder is their own.
    Begin,
    End,
}

/// A line, cut as a shell cuts it.
struct Line {
    parts: Vec<ShellPart>,
}

impl Line {
    fn of(line: &str) -> Self {
        let rest = line.chars().peekable();
        let mut cutter = Cutter { rest, parts: Vec::new(), words: Vec::new(), depth: 0 };
        cutter.cut();
        Self { parts: cutter.parts }
    }

    fn words(self) -> Vec<Word> {
        let words = |part| if let ShellPart::Command(words) = part { words } else { Vec::new() };
        self.parts.into_iter().flat_map(words).collect()
    }
}

struct Cutter<'a> {
    rest: Peekable<Chars<'a>>,
    parts: Vec<ShellPart>,
    words: Vec<Word>,
    /// Parentheses that are open.
    depth: usize,
}

impl Cutter<'_> {
    fn cut(&mut self) {
        // Where the next texts end that a command reads.
        let mut ends: Vec<String> = Vec::new();
        while let Some(&c) = self.rest.peek() {
            match c {
                '\n' => {
                    self.rest.next();
                    self.end_command();
                    ends.drain(..).for_each(|end| self.skip_text(&end));
                }
                ' ' | '\t' | '\r' => drop(self.rest.next()),
                ';' | '&' | '|' => {
                    self.rest.next();
                    self.end_command();
                }
                '(' => {
                    self.rest.next();
                    self.end_command();
                    self.depth += 1;
                    self.parts.push(ShellPart::Begin);
                }
                ')' => {
                    self.rest.next();
                    if self.is_label() {
                        self.words.clear();
                    }
                    self.end_command();
                    self.depth = self.depth.saturating_sub(1);
                    self.parts.push(ShellPart::End);
                }
                '#' => while self.rest.next_if(|c| *c != '\n').is_some() {},
                '<' | '>' => ends.extend(self.redirection()),
                _ => {
                    let word = self.word();
                    // The number of what is redirected.
                    let is_number = word.text().bytes().all(|byte| byte.is_ascii_digit());
                    if !(is_number && matches!(self.rest.peek(), Some('<' | '>'))) {
                        self.words.push(word);
                    }
                }
            }
        }
        self.end_command();
    }

    /// Whether what stands before `)` is what a `case` compares with, and no command.
    fn is_label(&self) -> bool {
        let is_one = |word: &Word| matches!(word, Word::Pattern(_)) || !word.text().contains('/');
        self.depth == 0 && self.words.len() == 1 && self.words.iter().all(is_one)
    }

    fn end_command(&mut self) {
        if !self.words.is_empty() {
            self.parts.push(ShellPart::Command(std::mem::take(&mut self.words)));
        }
    }

    /// Passes over it and what it names; where a text within the line ends, if it is one.
    fn redirection(&mut self) -> Option<String> {
        let mut signs = String::new();
        while let Some(c) = self.rest.next_if(|c| "<>&|-".contains(*c)) {
            signs.push(c);
        }
        while self.rest.next_if(|c| " \t".contains(*c)).is_some() {}
        let word = self.word();
        (signs.starts_with("<<") && !signs.starts_with("<<<")).then(|| word.text().to_owned())
    }

    fn skip_text(&mut self, end: &str) {
        loop {
            let mut line = String::new();
            let mut is_over = true;
            for c in self.rest.by_ref() {
                if c == '\n' {
                    is_over = false;
                    break;
                }
                line.push(c);
            }
            if is_over || line.trim_start_matches('\t') == end {
                return;
            }
        }
    }

    fn word(&mut self) -> Word {
        let (mut text, mut is_open) = (String::new(), false);
        // The signs of a pattern, as far as they are not quoted.
        let mut signs = String::new();
        let is_home = self.rest.peek() == Some(&'~');
        while let Some(&c) = self.rest.peek() {
            match c {
                _ if c.is_whitespace() || ";&|()<>".contains(c) => break,
                '\'' => {
                    self.rest.next();
                    text.extend(self.rest.by_ref().take_while(|c| *c != '\''));
                }
                '"' => {
                    self.rest.next();
                    is_open |= self.quoted(&mut text);
                }
                '\\' => {
                    self.rest.next();
                    text.extend(self.rest.next().filter(|c| *c != '\n'));
                }
                '$' | '`' => is_open |= self.computed(&mut text),
                _ => {
                    self.rest.next();
                    text.push(c);
                    signs.extend("*?[]".contains(c).then_some(c));
                }
            }
        }
        // A single bracket is a command.
        let is_pattern = signs.contains(['*', '?']) || signs.contains("[]");
        match () {
            () if is_open => Word::Open(text),
            () if is_home && !is_pattern && (text == "~" || text.starts_with("~/")) => {
                Word::Home(text)
            }
            // Of another user, or a pattern beneath the home.
            () if is_home => Word::Open(text),
            () if is_pattern => Word::Pattern(text),
            () => Word::Said(text),
        }
    }

    /// To the end of double quotes; whether it holds anything computed.
    fn quoted(&mut self, text: &mut String) -> bool {
        let mut is_open = false;
        while let Some(&c) = self.rest.peek() {
            match c {
                '"' => {
                    self.rest.next();
                    break;
                }
                '\\' => {
                    self.rest.next();
                    text.extend(self.rest.next());
                }
                '$' | '`' => is_open |= self.computed(text),
                _ => text.extend(self.rest.next()),
            }
        }
        is_open
    }

    /// A variable, or the output of a line within the line; false for a plain sign.
    fn computed(&mut self, text: &mut String) -> bool {
        let sign = self.rest.next().unwrap_or_default();
        text.push(sign);
        if sign == '`' {
            let line: String = self.rest.by_ref().take_while(|c| *c != '`').collect();
            text.push('`');
            self.parts.push(ShellPart::Within(line));
            return true;
        }
        match self.rest.peek() {
            Some('(') => {
                let line = self.within();
                text.push_str("(…)");
                self.parts.push(ShellPart::Within(line));
                true
            }
            Some('{') => {
                for c in self.rest.by_ref() {
                    text.push(c);
                    if c == '}' {
                        break;
                    }
                }
                true
            }
            Some(c) => c.is_ascii_alphanumeric() || "_@*#?!-$".contains(*c),
            None => false,
        }
    }

    /// What stands in parentheses, with those within it.
    fn within(&mut self) -> String {
        let (mut line, mut depth) = (String::new(), 0);
        for c in self.rest.by_ref() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            line.push(c);
        }
        line.split_off(1.min(line.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What words start in `/w`: files by path, and what is unknown behind a question mark.
    fn said(argv: &[&str]) -> Vec<String> {
        let said = |found| match found {
            Started::File(_, path) => path.display().to_string(),
            Started::Unknown(what) => format!("? {what}"),
        };
        started(argv, Path::new("/w"), Some(Path::new("/h"))).into_iter().map(said).collect()
    }

    #[track_caller]
    fn check(argv: &[&str], expect: &[&str]) {
        assert_eq!(said(argv), expect, "{argv:?}");
    }

    #[track_caller]
    fn line(line: &str, expect: &[&str]) {
        check(&["sh", "-ec", line], expect);
    }

    #[test]
    fn what_is_interpreted_is_the_first_argument() {
        check(&["python3", "/p/x.py", "/data"], &["/p/x.py"]);
        check(&["/usr/bin/python3.11", "-u", "-W", "ignore", "/p/x.py"], &["/p/x.py"]);
        check(&["python3", "-Wignore", "../../t/x.py"], &["/t/x.py"]);
        check(&["env", "X=1", "nice", "-n", "5", "perl", "-I", "/lib", "/p/x.pl"], &["/p/x.pl"]);
        check(&["timeout", "10m", "bash", "-o", "pipefail", "/p/x"], &["/p/x"]);
        check(&["node", "--require", "/a.js", "/p/x.js"], &["/p/x.js"]);
        check(&["Rscript", "x.R"], &["/w/x.R"]);
        check(&["cat", "/p/x.py"], &[]);
        check(&["/p/own", "/p/x.py"], &[]);
        check(&["sh"], &[]);
    }

    #[test]
    fn what_code_does_is_unknown() {
        check(&["python3", "-c", "import x", "/data"], &["? python3 -c"]);
        check(&["python3", "-um", "tool"], &["? python3 -m"]);
        check(&["perl", "-ne", "print"], &["? perl -e"]);
        line("eval \"$X\"; python3 -c 'x' /data", &["? eval", "? python3 -c"]);
        line("sh -c \"$X\"", &["? sh -c"]);
    }

    #[test]
    fn a_line_is_read_as_a_shell_does() {
        line("python3 /p/x.py > o; echo /p/y.py", &["/p/x.py"]);
        line(". /p/lib.sh && source '/p q/lib.sh' || true", &["/p/lib.sh", "/p q/lib.sh"]);
        line("cd /p; ./z.sh | python3 y.py", &["/p/z.sh", "/p/y.py"]);
        line("(cd /p && ./z.sh); ./z.sh", &["/p/z.sh", "/w/z.sh"]);
        line("if [ -e x ]; then X=1 \"/p q/x.sh\" 2>&1 >/dev/null; fi", &["/p q/x.sh"]);
        line("x=$(python3 /p/in.py `sh /p/deep.sh`)", &["/p/deep.sh", "/p/in.py"]);
        line("python3 - <<'END' > o\nsh /no/x.sh\nEND\nsh /p/x.sh", &["/p/x.sh"]);
        line("cat <<END 3<f\nsh /no\nEND", &[]);
        line("# sh /no/x.sh\nsh ../../../../t/x.sh 2>e", &["/t/x.sh"]);
        line("sh -c 'sh -c \"sh /p/x.sh\"'", &["/p/x.sh"]);
        line(
            "case $1 in a) sh /p/x.sh;; esac; ls | xargs -n 1 sh /p/y.sh",
            &["/p/x.sh", "/p/y.sh"],
        );
        line("\\\nsh /p/a\\ b.sh", &["/p/a b.sh"]);
        line("' unfinished", &[]);
        line("$(unfinished", &["? $(…)"]);
        line("a; ) ( b; $\"", &[]);
    }

    #[test]
    fn what_only_a_shell_knows_is_unknown_unless_it_is_an_input() {
        line("P=/p; $P/w.sh; sh \"${P}/x y.sh\"", &["? $P/w.sh", "? ${P}/x y.sh"]);
        line(
            "cd $P; ./z.sh; cd sub; . lib.sh; cd /p; ./y.sh",
            &["? $P/z.sh", "? $P/sub/lib.sh", "/p/y.sh"],
        );
        line("$SMELT_IN_A/run.sh; cd \"$SMELT_IN_A\"; ./x.sh; sh $TMPDIR/x", &[]);
    }

    #[test]
    fn a_shell_s_home_is_known() {
        line("~/x.sh; sh ~/y.sh; . '~/no'", &["/h/x.sh", "/h/y.sh", "/w/~/no"]);
        line("cd ~/d; ./z.sh; sh -c ~/x.sh", &["/h/d/z.sh", "/h/x.sh"]);
        line("~u/x.sh; ~/$X/y; sh ~/*.sh", &["? ~u/x.sh", "? ~/$X/y", "? ~/*.sh"]);
        check(&["sh", "~/x.sh"], &["/w/~/x.sh"]);
        let none = started(&["sh", "-c", "~/x.sh"], Path::new("/w"), None);
        assert_eq!(none, [Started::Unknown("~/x.sh".to_owned())]);
    }

    #[test]
    fn what_a_pattern_matches_is_unknown_but_of_what_the_stage_made() {
        line("/d/tool.s*", &["? /d/tool.s*"]);
        line("sh /d/[ab].sh; [ -e /d/x ] && cd /p; ./t?", &["? /d/[ab].sh", "? /p/./t?"]);
        line("'/d/a*b.sh'; \"/d/c?\"; /d/\\*", &["/d/a*b.sh", "/d/c?", "/d/*"]);
        line("./own*.sh; ls /d/*; \"$SMELT_IN_A\"/*.sh; cd o*; ./x.sh", &["/w/o*/x.sh"]);
        line("case $1 in\n/d/*) sh /p/x.sh;; b) sh /p/y.sh;; esac", &["/p/x.sh", "/p/y.sh"]);
    }

    #[test]
    fn names_are_unknown_where_the_line_says_where_they_are_found() {
        line("PATH=/d:$PATH tool.sh; other.sh", &["? tool.sh"]);
        line("export PATH=/d:$PATH; tool.sh x; echo y | sed z", &["? tool.sh", "? sed"]);
        line("PATH=/d; X=1 nice tool.sh; sh -c 'deep.sh'", &["? tool.sh", "? sh", "? deep.sh"]);
        line("XPATH=/d tool.sh; export X=PATH=1; tool.sh", &[]);
        check(&["env", "PATH=/d", "tool.sh"], &["? tool.sh"]);
    }

    #[test]
    fn what_find_starts_counts_and_what_it_finds_is_unknown() {
        check(&["find", "/d", "-exec", "sh", "/p/x.sh", "{}", ";"], &["/p/x.sh"]);
        line("find /d -name x -exec {} \\;", &["? find -exec {}"]);
        line("find . -name '*.sh' -ok sh {} + -exec /p/y {} +", &["? find -exec {}", "/p/y"]);
        line("find /d -name '*.sh' -print", &[]);
    }

    #[test]
    fn blanks_are_parts_of_quoted_words() {
        let found = words_with_blanks(&["sh", "-c", "x '/p q/x.sh' /p/y", "/a b"]);
        assert_eq!(found, ["/p q/x.sh", "/a b"]);
    }
}
