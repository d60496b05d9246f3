//! What smelt shows of runs: live on a terminal, and afterwards by `runs`, `report` and `graph`.

use std::fs::File;
use std::io::Read;
use std::num::NonZero;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::world::{World, statuses, until};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use serde_json::Value;

const COLUMNS: u16 = 60;
const ROWS: u16 = 12;

/// A terminal that smelt's standard error is.
struct Terminal {
    smelt: Child,
    parser: vt100::Parser,
    output: Receiver<Vec<u8>>,
}

impl Terminal {
    /// Starts smelt in the world.
    fn start(world: &World, arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        // With a copy of our end smelt could not see that nobody looks any more.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let mut command = world.command(arguments);
        let smelt = command.stdout(Stdio::null()).stderr(Stdio::from(pty.slave)).spawn().unwrap();
        // The command keeps a copy of the terminal's other end.
        drop(command);
        let (sender, output) = channel();
        let mut master = File::from(pty.master);
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
        Self { smelt, parser: vt100::Parser::new(rows, columns, 0), output }
    }

    /// Takes what has come; no line may ever be wrapped.
    fn lines(&mut self) -> Vec<String> {
        while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(20)) {
            self.parser.process(&bytes);
            let screen = self.parser.screen();
            let wrapped = (0..ROWS).find(|&row| screen.row_wrapped(row));
            assert_eq!(wrapped, None, "{}", screen.contents());
        }
        self.parser.screen().contents().lines().map(str::to_owned).collect()
    }
}

impl Drop for Terminal {
    /// A test that failed leaves nothing running.
    fn drop(&mut self) {
        let _ = self.smelt.kill();
        let _ = self.smelt.wait();
    }
}

#[test]
fn a_terminal_has_a_line_for_each_stage_that_runs() {
    let long = "模型加载中 and then a very long line that no terminal of this size could hold";
    let wait = |name: &str| {
        format!(
            "{name}:: : {name}; echo '{long}'; while ! test -e $GO; do sleep 0.02; done; echo x > o"
        )
    };
    let lines = [wait("first"), wait("second"), "last:first second:echo x > o".to_owned()];
    let world = World::of_commands(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let go = world.path("go");
    let text = world.read("p.toml").replace("$GO", &go.display().to_string());
    world.write("p.toml", &text);
    let mut terminal = Terminal::start(&world, &["run", "p.toml", "--jobs", "2"]);
    let mut shown = Vec::new();
    let both = until(|| {
        shown = terminal.lines();
        let is_stage = |line: &String| line.contains("模型加载中") && line.contains("iB");
        shown.len() == 3 && shown[..2].iter().all(is_stage)
    });
    assert!(both, "{shown:?}");
    assert!(
        shown[0].starts_with("[1/3] first ") && shown[1].starts_with("[2/3] second "),
        "{shown:?}"
    );
    assert!(shown[2].starts_with("0 of 3 stages, "), "the whole run is below: {shown:?}");
    world.write("go", "");
    terminal.smelt.wait().unwrap();
    let shown = terminal.lines();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(
        shown.iter().all(|line| line.contains(" sealed in ")),
        "nothing live is left: {shown:?}"
    );
    assert!(shown[2].starts_with("[3/3] last "), "{shown:?}");
}

/// A world with one run that failed on its second stage, with three attempts.
fn failed() -> World {
    let world = World::of_commands(&[
        "a::echo a > o",
        "b:a:echo '<i>no</i>' >&2; exit 3",
        "c:b:echo c > o",
    ]);
    let text = world.read("p.toml").replace("[stage.c]", "[stage.b.retry]\nattempts = 3\nescalate = [ { env = { N = \"2\" } }, { env = { N = \"3\" } } ]\n[stage.c]");
    world.write("p.toml", &text);
    assert_eq!(world.smelt(&["run", "p.toml"]).code, Some(1));
    world
}

fn json(world: &World, arguments: &[&str]) -> Value {
    let ended = world.smelt(arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn a_report_is_what_the_run_said() {
    let world = World::of_commands(&["a::echo a > o", "b:a:cat $SMELT_IN_A/o > o"]);
    for _ in 0..2 {
        let said = world.run(&[]);
        assert_eq!(json(&world, &["report", "--json"]), said);
    }
    let runs = json(&world, &["runs", "--json"]);
    let counts: Vec<_> = runs["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["built"].as_u64(), run["hit"].as_u64(), run["status"].as_str()))
        .collect();
    assert_eq!(counts, [(Some(0), Some(2), Some("ok")), (Some(2), Some(0), Some("ok"))]);
    let first = runs["runs"][1]["run"].as_str().unwrap();
    assert_eq!(json(&world, &["report", first, "--json"])["stages"][0]["status"], "sealed");
}

#[test]
fn every_figure_has_its_means() {
    let world =
        World::of_commands(&["a::head -c 20000000 /dev/zero | tail -c 20000000 > o; sleep 0.3"]);
    let report = world.run(&[]);
    let attempt = &report["stages"][0]["attempts"][0];
    for (figure, means) in attempt["methods"].as_object().unwrap() {
        assert!(attempt[figure].is_u64(), "{figure} by {means}: {}", attempt[figure]);
    }
    assert!(attempt["peak_rss_bytes"].as_u64().unwrap() >= 20_000_000);
    if attempt["method"] != "proc" {
        assert!(attempt["page_cache_peak_bytes"].as_u64().unwrap() >= 20_000_000, "{attempt}");
        assert!(attempt["cgroup_peak_bytes"].as_u64().unwrap() >= 20_000_000, "{attempt}");
    }
}

#[test]
fn a_failure_is_told_with_its_attempts_and_logs() {
    let world = failed();
    let ended = world.smelt(&["report"]);
    assert_eq!(ended.code, Some(0));
    let shown: Vec<_> = ended.stdout.lines().filter(|line| line.contains("attempt ")).collect();
    assert_eq!(shown.len(), 3, "{}", ended.stdout);
    assert!(
        shown[1].contains("N = \"2\"")
            && shown[1].contains("tool-rejected")
            && shown[1].ends_with("b.2.log"),
        "{}",
        shown[1]
    );
    assert!(ended.stdout.contains("stage b: <i>no</i> (exit 3)"), "{}", ended.stdout);
    let ended = world.smelt(&["report", "--html", "r.html", "--trace", "t.json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    let page = world.read("r.html");
    assert!(
        page.contains("&lt;i&gt;no&lt;/i&gt;") && !page.contains("<i>no"),
        "the log's text is text"
    );
    let trace: Value = serde_json::from_str(&world.read("t.json")).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    assert_eq!(spans.count(), 4);
}

#[test]
fn a_run_that_goes_on_and_one_that_died_are_told_apart() {
    let world = World::new("");
    let started = world.path("started").display().to_string();
    let lines = ["a::echo a > o", "b:a:touch $OUT; sleep 1000"];
    world.write("p.toml", &crate::world::writing(&lines).replace("$OUT", &started));
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("started");
    let status = || json(&world, &["report", "--json"]);
    let running = status();
    assert_eq!(
        (&running["status"], &running["stages"][1]["status"]),
        (&"running".into(), &"running".into())
    );
    smelt.kill().unwrap();
    smelt.wait().unwrap();
    world.assert_nothing_runs();
    let died = status();
    assert_eq!(
        (&died["status"], &died["stages"][1]["status"]),
        (&"died".into(), &"interrupted".into())
    );
    assert_eq!(died["stages"][1]["attempts"][0]["outcome"], "died");
    assert_eq!(died["stages"][0]["status"], "sealed");
    assert_eq!(world.smelt(&["report", "--html", "r.html"]).code, Some(0));
    assert!(world.read("r.html").contains("it has no last word"));
    // The next run clears what the dead one left, its control group too.
    assert_eq!(statuses(&world.run(&["--only", "a"])), ["a hit"]);
}

#[test]
fn what_is_not_there_is_said_in_one_line() {
    let world = World::of_commands(&["a::echo a > o"]);
    let check = |arguments: &[&str], code: i32, words: &str| {
        let ended = world.smelt(arguments);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(
            ended.stderr.contains(words) && ended.stderr.lines().count() == 1,
            "{}",
            ended.stderr
        );
    };
    check(&["report"], 1, "");
    assert!(!world.path("cache").exists(), "looking makes no store");
    world.run(&[]);
    check(&["report", "nonesuch"], 1, "no run nonesuch");
    world.run(&[]);
    check(&["report", "2"], 2, "may be");
    check(&["report", "--html", "/nonesuch/r.html"], 1, "cannot write /nonesuch/r.html");
    check(&["graph", "nonesuch.toml"], 3, "nonesuch.toml");
    check(&["man", "nonesuch"], 2, "no command");
    world.write("cache/journal/20200101-000000-0000.log", "garbage");
    let runs = world.smelt(&["runs"]);
    assert!(runs.code == Some(0) && runs.stdout.contains("unreadable"), "{}", runs.stdout);
}

#[test]
fn a_graph_has_the_colours_of_what_is_built() {
    let world = World::of_commands(&["a::echo a > o", "b:a:exit 1", "c:b:echo c > o"]);
    world.smelt(&["run", "p.toml"]);
    let svg = world.smelt(&["graph", "p.toml", "--format", "svg"]).stdout;
    for said in ["a (command): hit", "b (command): miss", "c (command): unknown"] {
        assert!(svg.contains(said), "{said}: {svg}");
    }
    let dot = world.smelt(&["graph", "p.toml"]).stdout;
    assert!(dot.contains("\"b\" -> \"c\"") && dot.contains("tooltip=\"hit\""), "{dot}");
    assert!(world.smelt(&["graph", "p.toml", "--format", "mermaid"]).stdout.contains("s1 --> s2"));
}

#[test]
fn smelt_describes_itself() {
    let world = World::of_commands(&["a::echo a > o"]);
    assert_eq!(json(&world, &["schema"])["title"], "smelt pipeline");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = world.smelt(&["completions", shell]);
        assert!(ended.code == Some(0) && ended.stdout.contains("report"), "{shell}");
    }
    let man = |command: &[&str]| world.smelt(&[&["man"], command].concat()).stdout;
    assert!(
        man(&[]).contains(".TH smelt 1")
            && man(&["onnx", "check"]).contains(".TH smelt-onnx-check 1")
    );
}
