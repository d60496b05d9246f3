//! Reads which files a command starts or has interpreted, as far as its words say.
//!
//! A line of a shell is cut into commands as a shell does, and nothing in it is computed: a word that holds a variable is
//! known to the shell alone, and so is what a program makes of code among its arguments.  Such words are told apart, and a
//! line that is too odd to be read names less than it starts.

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
    /// As it is written: only a shell knows what it stands for.
    Open(String),
}

impl Word {
    fn said(&self) -> Option<&str> {
        match self {
            Self::Said(text) => Some(text),
            Self::Open(_) => None,
        }
    }

    fn text(&self) -> &str {
        let (Self::Said(text) | Self::Open(text)) = self;
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

/// What these words start, a program and its arguments, in this folder.
pub(super) fn started(argv: &[&str], folder: &Path) -> Vec<Started> {
    let words: Vec<_> = argv.iter().map(|word| Word::Said((*word).to_owned())).collect();
    let mut reader = Reader { found: Vec::new(), depth: 0 };
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

struct Reader {
    found: Vec<Started>,
    depth: usize,
}

impl Reader {
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
        let words = without_assignments(skip_keywords(words));
        if !matches!(words.first().and_then(Word::said), Some("cd" | "pushd")) {
            return self.command(words, folder);
        }
        let to = words[1..].iter().find(|word| !word.text().starts_with('-'));
        *folder = match (to, &*folder) {
            (Some(Word::Said(to)), Folder::Own(from) | Folder::Known(from)) => {
                Folder::Known(plain(&from.join(to)))
            }
            (Some(Word::Said(to)), Folder::Unknown(_)) if to.starts_with('/') => {
                Folder::Known(to.into())
            }
            (Some(Word::Said(to)), Folder::Unknown(from)) => {
                Folder::Unknown(format!("{from}/{to}"))
            }
            (Some(Word::Open(to)), _) => Folder::Unknown(to.clone()),
            (None, _) => Folder::Unknown("~".to_owned()),
        };
    }

    fn command(&mut self, words: &[Word], folder: &Folder) {
        let words = without_assignments(words);
        let Some((program, arguments)) = words.split_first() else { return };
        let Some(name) = program.said() else { return self.file(program, folder) };
        match name {
            "." | "source" => {
                if let Some(script) = arguments.first() {
                    self.file(script, folder);
                }
            }
            "eval" => self.found.push(Started::Unknown("eval".to_owned())),
            _ => {
                if name.contains('/') {
                    self.file(program, folder);
                }
                let file = name.rsplit('/').next().unwrap_or(name);
                if let Some(interpreter) = Interpreter::of(name) {
                    self.interpreted(interpreter, file, arguments, folder);
                } else if STARTERS.contains(&file) {
                    let is_before = |word: &&Word| {
                        word.text().starts_with(|c: char| c == '-' || c.is_ascii_digit())
                    };
                    let before = arguments.iter().take_while(is_before).count();
                    self.command(&arguments[before..], folder);
                }
            }
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
                    (true, Word::Open(_)) => self.unknown(name, "-c"),
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
                        return self.unknown(name, &format!("-{letter}"));
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

    fn unknown(&mut self, name: &str, option: &str) {
        self.found.push(Started::Unknown(format!("{name} {option}")));
    }

    fn file(&mut self, word: &Word, folder: &Folder) {
        let found = match (word, folder) {
            (Word::Open(text), _) if is_in_key(text) => return,
            (Word::Open(text), _) => Started::Unknown(text.clone()),
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
        if !self.found.contains(&found) {
            self.found.push(found);
        }
    }
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

fn without_assignments(words: &[Word]) -> &[Word] {
    let is_one = |word: &&Word| {
        let name = word.text().split('=').next().unwrap_or_default();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        name.len() < word.text().len() && !name.is_empty() && is_name
    };
    &words[words.iter().take_while(is_one).count()..]
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
        let mut cutter =
            Cutter { rest: line.chars().peekable(), parts: Vec::new(), words: Vec::new() };
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
                '(' | ')' => {
                    self.rest.next();
                    self.end_command();
                    self.parts.push(if c == '(' { ShellPart::Begin } else { ShellPart::End });
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
                _ => text.extend(self.rest.next()),
            }
        }
        if is_open { Word::Open(text) } else { Word::Said(text) }
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
        started(argv, Path::new("/w")).into_iter().map(said).collect()
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
    fn blanks_are_parts_of_quoted_words() {
        let found = words_with_blanks(&["sh", "-c", "x '/p q/x.sh' /p/y", "/a b"]);
        assert_eq!(found, ["/p q/x.sh", "/a b"]);
    }
}
