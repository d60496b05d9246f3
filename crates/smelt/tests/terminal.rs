//! What somebody at a terminal sees first of each command: smelt's own words, coloured or not, and
//! nobody else's.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::hub::{HubWorld, Mood};
use crate::world::{World, anywhere, data, halved, until};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");
const COLUMNS: u16 = 100;
const ROWS: u16 = 50;

/// The demo, built once for all tests.
static BUILT: LazyLock<World> = LazyLock::new(|| {
    let world = World::new(&anywhere(DEMO));
    world.run(&[]);
    world
});

/// A terminal that is a command's input, output and errors.
struct Terminal {
    child: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let [input, out] = [0; 2].map(|_| pty.slave.try_clone().unwrap());
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        let child = command.stdin(input).stdout(out).stderr(pty.slave).spawn().unwrap();
        // The command keeps copies of the terminal's other end.
        *command = Command::new("true");
        let (sender, output) = channel();
        let mut master = File::from(pty.master);
        let keyboard = master.try_clone().unwrap();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last process that had the terminal is gone: an error, not an end.
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let [rows, columns] = [ROWS, COLUMNS].map(|n| NonZero::new(n).unwrap());
        let parser = vt100::Parser::new(rows, columns, 0);
        Self { child, keyboard, output, parser, bytes: Vec::new() }
    }

    /// What stands there now.
    fn text(&mut self) -> String {
        while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(20)) {
            self.parser.process(&bytes);
            self.bytes.extend(bytes);
        }
        self.parser.screen().contents()
    }

    /// Waits until these words stand there.
    #[track_caller]
    fn wait_for(&mut self, words: &str) -> String {
        let mut text = String::new();
        let is_there = until(|| {
            text = self.text();
            text.contains(words)
        });
        assert!(is_there, "no {words:?} in:\n{text}");
        text
    }

    fn types(&mut self, line: &str) {
        self.keyboard.write_all(line.as_bytes()).unwrap();
    }

    /// What stands there when the command has ended.
    fn end(mut self) -> (String, Vec<u8>) {
        self.wait();
        (self.text(), self.bytes.clone())
    }

    /// The same, with the exit code.
    fn end_with_code(mut self) -> (String, Option<i32>) {
        let code = self.wait();
        (self.text(), code)
    }

    fn wait(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(ended) = self.child.try_wait().unwrap() {
                return ended.code();
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", self.text());
            _ = self.text();
        }
    }
}

impl Drop for Terminal {
    /// A test that failed leaves nothing running.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Words that only libraries say.
const FOREIGN: [&str; 6] = ["ansi", "feature", "tracing", "subscriber", "panicked", "RUST_"];

#[track_caller]
fn assert_own_words(arguments: &[&str], text: &str) {
    assert!(!text.trim().is_empty(), "{arguments:?} says nothing");
    for word in FOREIGN {
        assert!(!text.contains(word), "{arguments:?} says {word:?}:\n{text}");
    }
    assert!(!text.contains('\u{FFFD}'), "{arguments:?}:\n{text}");
}

#[test]
fn every_command_begins_with_its_own_words() {
    let world = &*BUILT;
    for arguments in [
        &["run", "p.toml"][..],
        &["run", "p.toml", "--force", "llm-engine"],
        &["resume"],
        &["plan", "p.toml"],
        &["explain", "p.toml", "verify"],
        &["out", "p.toml", "deployment"],
        &["runs"],
        &["report"],
        &["graph", "p.toml"],
        &["chat", "p.toml", "Hello"],
        &["cache", "du"],
        &["doctor"],
        &["watch", "--once"],
        &["schema"],
        &["--version"],
        &["run", "absent.toml"],
        &["frobnicate"],
    ] {
        let (text, _) = Terminal::start(&mut world.command(arguments)).end();
        assert_own_words(arguments, &text);
    }
}

#[test]
fn who_sits_at_a_terminal_is_asked_before_much_is_fetched() {
    let start = |hub: &HubWorld, more: &[&str]| {
        let chat = [&["chat", "org/tiny-model", "--max-tokens", "2", "Hi"], more].concat();
        Terminal::start(&mut hub.command(&chat, &[]))
    };
    let hub = HubWorld::in_mood(Mood::Large);
    for no in ["n\r", "what?\r", "\u{4}"] {
        let mut terminal = start(&hub, &[]);
        let asked = terminal.wait_for("Go on? [Y/n]");
        assert!(asked.contains("MiB are fetched, and all that is made of it takes"), "{asked}");
        terminal.types(no);
        let (text, code) = terminal.end_with_code();
        assert_eq!(code, Some(6), "{text}");
        assert!(text.contains("nothing was fetched; smelt build org/tiny-model"), "{text}");
        assert!(hub.is_untouched());
    }
    // An empty line agrees; the hub has not what it says, so nobody waits for the end.
    let mut terminal = start(&hub, &[]);
    terminal.wait_for("Go on? [Y/n]");
    terminal.types("\r");
    terminal.wait_for("tiny-model.toml: ");
    drop(terminal);
    let hub = HubWorld::in_mood(Mood::Large);
    let text = start(&hub, &["--yes"]).wait_for("tiny-model.toml: ");
    assert!(!text.contains("Go on?"), "{text}");
    let build = &mut hub.command(&["build", "org/tiny-model", "--out", "other.toml"], &[]);
    let text = Terminal::start(build).wait_for("other.toml: ");
    assert!(!text.contains("Go on?"), "{text}");
}

#[test]
fn a_server_on_a_terminal_says_when_it_is_ready() {
    let arguments = ["serve", "p.toml", "--addr", "127.0.0.1:0", "--batch", "2"];
    let mut terminal = Terminal::start(&mut BUILT.command(&arguments));
    let text = terminal.wait_for("ready: ");
    assert_own_words(&arguments, &text);
    // Lines are longer than this terminal, which wraps them.
    let line: String = text.lines().collect::<Vec<_>>().concat();
    let ready = line.split("ready: ").nth(1).unwrap();
    assert!(ready.starts_with("shapes-vl answers at http://127.0.0.1:"), "{text}");
    let words: Vec<&str> = ready.split_whitespace().collect();
    let after = words.iter().position(|word| *word == "after").unwrap();
    // A small model may be ready within the 0.1 s that is shown.
    assert!(words[after + 1].parse::<f64>().unwrap() >= 0.0, "{text}");
    assert!(ready.contains(" contexts of 512 tokens at once"), "{text}");
    let bytes = String::from_utf8_lossy(&terminal.bytes).into_owned();
    assert!(bytes.contains("\u{1b}[32mINFO\u{1b}[0m"), "{bytes:?}");
}

/// What stands on a terminal, and every byte that went there, when a question about a picture is answered.
fn asked(flag: &str) -> (String, String) {
    let picture = data("shapes-1.png").display().to_string();
    let question = "What is left of the red circle?";
    let arguments = ["chat", flag, "p.toml", "--image", &picture, question];
    let (text, bytes) = Terminal::start(&mut BUILT.command(&arguments)).end();
    (text, String::from_utf8(bytes).unwrap())
}

#[test]
fn quiet_chat_says_the_answer_alone() {
    let (text, bytes) = asked("-q");
    assert_eq!(text.trim(), LEFT_OF_RED);
    assert!(!bytes.contains("looking at"), "{bytes:?}");
    let (_, bytes) = asked("--color=auto");
    assert!(bytes.contains("looking at tile 1 of"), "who wants no quiet hears of it: {bytes:?}");
}

#[test]
fn verbose_chat_says_which_model_speaks_and_where_time_goes() {
    let (text, _) = asked("-v");
    for words in [
        "opening the engines",
        "deployment: ",
        "model: shapes-vl, internvl3, weights int8, sees pictures of ",
        "context: 512 tokens, keys and values in f16",
        "sampling: the likeliest token each time, so no seed",
        "memory: keys and values may take ",
        "pictures: ",
        " image tokens in ",
        " tokens read in ",
        "; the model ended it",
        LEFT_OF_RED,
        "answered; first token after",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    let plain = asked("--color=auto").0;
    assert!(!plain.contains("deployment: ") && plain.contains("answered; first token"), "{plain}");
}

#[test]
fn the_second_question_about_a_picture_is_answered_right() {
    let picture = data("shapes-1.png").display().to_string();
    let mut terminal =
        Terminal::start(&mut BUILT.command(&["chat", "p.toml", "--image", &picture]));
    let text = terminal.wait_for("/quit ends");
    assert!(text.contains("forgets what was said"), "{text}");
    terminal.types("What is left of the red circle?\n");
    terminal.wait_for("answered; first token");
    terminal.types("What number is written?\n");
    let both = until(|| terminal.text().matches("answered; first token").count() == 2);
    let text = terminal.text();
    assert!(both, "{text}");
    terminal.types("/quit\n");
    let given: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("> "))
        .filter(|line| !line.starts_with("> ") && !line.contains("prompt tokens"))
        .collect();
    let right = [LEFT_OF_RED, NUMBER];
    assert_eq!(given, right, "{text}");
    assert!(!text.contains("tokens/s"), "three tokens are no rate:\n{text}");
}

/// What `tests/data/shapes-1.png` shows.
const LEFT_OF_RED: &str = "a blue circle";
const NUMBER: &str = "24";

#[test]
fn words_are_coloured_for_terminals_that_want_it() {
    let world = World::of_commands(&["a::echo a > o", "b:a:exit 3"]);
    let is_coloured = |bytes: &[u8]| {
        bytes.windows(2).any(|two| two == b"\x1b[") && {
            let text = String::from_utf8_lossy(bytes).into_owned();
            ["\x1b[32m", "\x1b[1;31m", "\x1b[33m"].iter().any(|code| text.contains(code))
        }
    };
    let run = |more: &[&str], no_color: Option<&str>| {
        let mut command = world.command(&[&["run", "p.toml"], more].concat());
        let mut terminal = {
            let size = no_color;
            if let Some(value) = size {
                // Set behind what the terminal clears.
                let mut inner = Command::new("env");
                inner.arg(format!("NO_COLOR={value}")).arg(command.get_program());
                inner.args(command.get_args());
                world.prepare(&mut inner);
                command = inner;
            }
            Terminal::start(&mut command)
        };
        _ = terminal.text();
        terminal.end().1
    };
    assert!(is_coloured(&run(&[], None)));
    assert!(is_coloured(&run(&[], Some(""))));
    assert!(!is_coloured(&run(&[], Some("1"))));
    assert!(!is_coloured(&run(&["--color", "never"], None)));
    assert!(is_coloured(&run(&["--color=always"], Some("1"))));
    let piped = |color: &str| world.smelt(&["run", "p.toml", "--color", color]).stderr;
    assert!(!piped("auto").contains('\u{1b}') && piped("always").contains("\u{1b}[1;31m"));
}

#[test]
fn a_failure_is_told_once_and_quiet_tells_nothing_else() {
    let world = World::of_commands(&["a::echo a > o", "b:a:echo the-reason >&2; exit 3"]);
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr.matches("the-reason").count(), 1, "{}", ended.stderr);
    let quiet = world.smelt(&["-q", "run", "p.toml"]);
    let lines: Vec<&str> = quiet.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("smelt: stage b: ") && lines[0].contains("the-reason"));
    assert!(lines[1].starts_with("smelt: its log is "));
    let both = world.smelt(&["-q", "-v", "run", "p.toml"]);
    assert_eq!(both.code, Some(2));
}

/// What a stage's program says of its share is shown by whoever watches, in the words of all stages.
#[test]
fn the_share_that_is_done_is_shown() {
    let world = World::of_commands(&[
        "a::echo '[ 40%] compiling'; while ! test -e $GO; do sleep 0.02; done; echo a > o",
    ]);
    let go = world.path("go").display().to_string();
    let text = world.read("p.toml").replace("$GO", &go);
    world.write("p.toml", &text);
    let mut terminal = Terminal::start(&mut world.command(&["run", "p.toml"]));
    terminal.wait_for(" 40 %: compiling");
    let mut seen = String::new();
    let watched = until(|| {
        seen = world.smelt(&["watch", "--once"]).stdout;
        seen.contains("Stage     a.1 · 40 %: compiling")
    });
    assert!(watched, "{seen}");
    let json = world.smelt(&["watch", "--once", "--json"]).stdout;
    let reading: serde_json::Value = serde_json::from_str(&json).unwrap();
    let stages = reading["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["done"] == 0.4), "{reading}");
    world.write("go", "");
    let (text, _) = terminal.end();
    assert!(text.contains("sealed"), "{text}");
}

/// Pipelines of three stages in a row, of which the first waits for the file `go` and says a share in a line that is
/// wider than the terminal.
fn waiting() -> World {
    let first =
        "a::echo \"[ 40%] compiling $WIDE\"; while ! test -e $GO; do sleep 0.02; done; echo a > o";
    let world = World::of_commands(&[first, "b:a:echo b > o", "c:b:echo c > o"]);
    let (go, wide) = (world.path("go").display().to_string(), "x".repeat(usize::from(COLUMNS)));
    let text = world.read("p.toml").replace("$GO", &go).replace("$WIDE", &wide);
    world.write("p.toml", &text);
    world
}

/// A build is one view: what each stage does, and below how far all of it is, which nobody knows the first time.
#[test]
fn a_run_shows_how_far_all_of_it_is_and_leaves_nothing_live() {
    let world = waiting();
    let mut terminal = Terminal::start(&mut world.command(&["run", "p.toml"]));
    terminal.wait_for("0 of 3 stages, 3 stages of unknown time left");
    terminal.wait_for(" 40 %: compiling xxx");
    let screen = terminal.parser.screen();
    assert!((0..ROWS).all(|row| !screen.row_wrapped(row)), "{}", screen.contents());
    world.write("go", "");
    let (text, _) = terminal.end();
    assert!(!text.contains("of 3 stages") && !text.contains("compiling"), "{text}");
    // What was timed is known the next time.
    std::fs::remove_file(world.path("go")).unwrap();
    let mut terminal = Terminal::start(&mut world.command(&["run", "p.toml", "--force", "a"]));
    terminal.wait_for("0 of 3 stages, ");
    world.write("go", "");
    let (text, bytes) = terminal.end();
    assert!(!text.contains("of 3 stages"), "{text}");
    // What takes longer than it did is of unknown time again, so all that stood there is looked at.
    let all = String::from_utf8_lossy(&bytes);
    let is_known = ["a few seconds left", "about"]
        .iter()
        .any(|known| all.contains(&format!("0 of 3 stages, {known}")));
    assert!(is_known, "{all:?}");
}

/// A conversation begins before its check has ended, and hears once how that ended.
#[test]
fn a_conversation_is_told_once_how_the_check_behind_it_ended() {
    let world = World::new(&halved(DEMO));
    world.run(&["--only", "deployment"]);
    let mut terminal = Terminal::start(&mut world.command(&["chat", "p.toml"]));
    let text = terminal.wait_for("/quit ends");
    assert_eq!(text.matches("not verified yet").count(), 1, "{text}");
    terminal.wait_for("verified: it computes what the reference does");
    let is_asked = until(|| terminal.text().trim_end().ends_with('>'));
    assert!(is_asked, "the prompt is there again:\n{}", terminal.text());
    terminal.types("What number is written?\n");
    terminal.wait_for("answered; first token");
    terminal.types("/quit\n");
    let (text, _) = terminal.end();
    assert_eq!(text.matches("verified: it computes").count(), 1, "{text}");
    assert!(!text.contains("is stopped"), "{text}");
    // The next one has nothing to say of it.
    let mut terminal = Terminal::start(&mut world.command(&["chat", "p.toml"]));
    let text = terminal.wait_for("/quit ends");
    assert!(!text.contains("verified"), "{text}");
    terminal.types("/quit\n");
    terminal.end();
}
