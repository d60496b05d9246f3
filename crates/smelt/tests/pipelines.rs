//! Whole pipelines of small commands: what is built, what is reused, what is told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::world::machine::Machine;
use crate::world::{World, commands, statuses, writing};
use serde_json::Value;

#[test]
fn a_second_run_starts_nothing_and_says_so() {
    let world = World::of_commands(&["a::echo hi > o", "b:a:cat $SMELT_IN_A/o > o"]);
    assert_eq!(statuses(&world.run(&[])), ["a sealed", "b sealed"]);
    let again = world.smelt(&["run", "p.toml"]);
    assert_eq!(again.code, Some(0));
    assert!(again.stderr.contains("nothing to do"), "{}", again.stderr);
    let report = world.run(&[]);
    assert_eq!(statuses(&report), ["a hit", "b hit"]);
    assert_eq!(report["stages"][0]["attempts"], Value::Array(Vec::new()));
}

#[test]
fn the_summary_has_the_columns_people_know() {
    let world = World::of_commands(&["a::echo hi > o"]);
    let ended = world.smelt(&["run", "p.toml"]);
    let header = ended.stdout.lines().next().unwrap();
    let columns: Vec<_> =
        header.split("  ").filter(|column| !column.is_empty()).map(str::trim).collect();
    assert_eq!(columns, ["Stage", "Status", "Time", "Peak RSS", "Peak VMS", "Attempts"]);
}

#[test]
fn a_change_reruns_exactly_what_depends_on_it() {
    let lines = [
        "a::echo a > o",
        "b:a:cat $SMELT_IN_A/o > o",
        "c:b:cat $SMELT_IN_B/o > o",
        "d::echo d > o",
    ];
    let world = World::of_commands(&lines);
    world.run(&[]);
    let mut changed = lines;
    changed[1] = "b:a:cat $SMELT_IN_A/o > o; echo more >> o";
    world.write("p.toml", &commands(&changed));
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b sealed", "c sealed", "d hit"]);
    // Back again: everything is still in the store.
    world.write("p.toml", &commands(&lines));
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit", "c hit", "d hit"]);
}

#[test]
fn an_unchanged_output_stops_the_wave() {
    let world = World::of_commands(&[
        "a::echo a > o",
        "b:a:cat $SMELT_IN_A/o > o",
        "c:b:cat $SMELT_IN_B/o > o",
    ]);
    world.run(&[]);
    world.write(
        "p.toml",
        &commands(&[
            "a::printf 'a\\n' > o",
            "b:a:cat $SMELT_IN_A/o > o",
            "c:b:cat $SMELT_IN_B/o > o",
        ]),
    );
    assert_eq!(statuses(&world.run(&[])), ["a sealed", "b hit", "c hit"]);
}

#[test]
fn a_path_is_an_input_by_what_it_holds() {
    let world = World::of_commands(&["a:x:cat $SMELT_INPUTS > o"]);
    world.write("p.toml", &world.read("p.toml").replace("\"x\"", "\"path:in.txt\""));
    world.write("in.txt", "one");
    world.run(&[]);
    // Touched, not changed.
    world.write("in.txt", "one");
    assert_eq!(statuses(&world.run(&[])), ["a hit"]);
    // Same size, other content.
    world.write("in.txt", "two");
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
    assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), "two");
}

#[test]
fn only_and_force() {
    let world = World::of_commands(&["a::echo a > o", "b:a:echo b > o", "c::echo c > o"]);
    assert_eq!(statuses(&world.run(&["--only", "b"])), ["a sealed", "b sealed"]);
    assert_eq!(statuses(&world.run(&["--force", "a"])), ["a sealed", "b hit", "c sealed"]);
}

#[test]
fn outputs_are_read_only_real_files_with_one_name() {
    use std::os::unix::fs::MetadataExt;
    let world = World::of_commands(&["a::echo a > o; mkdir d; echo x > d/run; chmod +x d/run"]);
    world.write("p.toml", &world.read("p.toml").replace("[\"o\"]", "[\"o\", \"d\"]"));
    world.run(&[]);
    let check = |name: &str, mode: u32| {
        let meta = fs::symlink_metadata(world.out("a").join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
        assert!(meta.is_file() && meta.nlink() == 1, "{name}");
    };
    check("o", 0o444);
    check("d/run", 0o555);
}

#[test]
fn a_commands_environment_is_its_own() {
    let world = World::of_commands(&["a::echo a > o", "b-2:a:env > o"]);
    let text = world.read("p.toml") + "env = { LEVEL = \"3\" }\n";
    world.write("p.toml", &text);
    let mut command = world.command(&["run", "p.toml"]);
    assert!(command.env("SECRET", "x").output().unwrap().status.success());
    let env = fs::read_to_string(world.out("b-2").join("o")).unwrap();
    let has = |name: &str| env.lines().any(|line| line.starts_with(name));
    assert!(
        has("LEVEL=3") && has("SMELT_IN_A=/") && has("SMELT_INPUTS=/") && has("PATH="),
        "{env}"
    );
    assert!(!has("SECRET") && !has("SMELT_CACHE"), "{env}");
}

/// What is told about a bad pipeline or command line: the exit code, and one line with `words`.
#[track_caller]
fn refused(world: &World, arguments: &[&str], code: i32, words: &str) {
    let ended = world.smelt(arguments);
    assert_eq!(ended.code, Some(code), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "one line: {}", ended.stderr);
}

#[test]
fn bad_pipelines_are_refused_in_one_line() {
    let world = World::of_commands(&["a::echo a > o"]);
    let good = world.read("p.toml");
    let with = |from: &str, to: &str| {
        assert!(good.contains(from));
        world.write("p.toml", &good.replacen(from, to, 1));
    };
    with("outputs", "output");
    refused(&world, &["run", "p.toml"], 3, "p.toml:6:1: unknown key \"output\"");
    with("inputs = []", "inputs = [\"a\"]");
    refused(&world, &["run", "p.toml"], 3, "circle: a needs a");
    with("inputs = []", "inputs = [\"b\"]");
    refused(&world, &["run", "p.toml"], 3, "stage \"b\"");
    with("inputs = []", "inputs = [\"path:nothing/here\"]");
    refused(&world, &["run", "p.toml"], 3, "p.toml:5:11: path:nothing/here");
    with("\"command\"", "\"comand\"");
    refused(&world, &["plan", "p.toml"], 3, "did you mean \"command\"?");
    refused(&world, &["run", "nothing.toml"], 3, "cannot read the pipeline nothing.toml");
    world.write("p.toml", &good);
    refused(&world, &["run", "p.toml", "--set", "x=1"], 2, "no such param");
    refused(&world, &["run", "p.toml", "--only", "aa"], 2, "did you mean \"a\"?");
    refused(&world, &["out", "p.toml", "a"], 1, "smelt run p.toml");
    assert_eq!(world.smelt(&["run"]).code, Some(2));
    assert_eq!(world.smelt(&["nonsense"]).code, Some(2));
}

/// What is told about a stage that fails: its class and message in the report.
#[track_caller]
fn fails(script: &str, class: &str, words: &str) {
    let world = World::of_commands(&[&format!("a::{script}"), "b:a:echo b > o"]);
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(statuses(&report), ["a failed", "b skipped"]);
    let attempt = &report["stages"][0]["attempts"][0];
    assert_eq!(attempt["class"], class, "{attempt}");
    assert!(attempt["message"].as_str().unwrap().contains(words), "{attempt}");
    assert!(fs::read_dir(world.path("cache/out")).unwrap().next().is_none(), "nothing is sealed");
    world.assert_nothing_runs();
}

#[test]
fn failures_have_a_class_and_a_reason() {
    fails("echo 'no such layer' >&2; exit 4", "tool-rejected", "no such layer (exit 4)");
    fails("true", "output-missing", "\"o\" is missing");
    fails(": > o", "output-missing", "empty");
    fails("ln -s /etc/hostname o", "output-invalid", "symbolic link");
    let environment = "mkdir -p o/lib; echo x > o/lib/x; ln -s lib o/lib64";
    fails(environment, "output-invalid", "o/lib64 is a symbolic link; an output holds only files");
    fails("echo x > o; kill -9 $$", "killed-externally", "signal 9");
    fails("echo x > o; kill -SEGV $$", "tool-rejected", "signal 11");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let world = World::of_commands(&["a::echo"]);
    world.write("p.toml", &world.read("p.toml").replace("\"sh\"", "\"nosuchprogram\""));
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot start nosuchprogram"), "{}", ended.stderr);
    assert!(ended.stderr.contains("spawn-failed"), "{}", ended.stderr);
}

#[test]
fn limits_end_a_stage_and_a_step_lets_it_through() {
    let world = World::of_commands(&["a::sleep $SLEEP; echo x > o"]);
    let more = "env = { SLEEP = \"60\" }\nlimits = { timeout = \"1s\" }\n\
        [stage.a.retry]\nescalate = [{ env = { SLEEP = \"0\" } }]\n";
    world.write("p.toml", &(world.read("p.toml") + more));
    let report = world.run(&[]);
    let attempts = report["stages"][0]["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{report}");
    assert_eq!(attempts[0]["class"], "timed-out");
    assert_eq!(attempts[1]["outcome"], "sealed");
    assert!(attempts[1]["changed"].as_str().unwrap().contains("SLEEP = \"0\""));
    assert_eq!(attempts.iter().filter(|attempt| attempt["log"] != Value::Null).count(), 2);
}

#[test]
fn too_much_memory_is_ended() {
    let world = World::of_commands(&["a::head -c 300000000 /dev/zero | tail; echo x > o"]);
    world.write("p.toml", &(world.read("p.toml") + "limits = { memory = \"64MiB\" }\n"));
    // Swap would let it through, slowly.
    let machine = Machine::without_swap(4 << 30);
    let arguments = ["run", "p.toml", "--json"];
    let ended = match &machine {
        Some(machine) => crate::world::ended(&mut machine.smelt(&world, &arguments)),
        None => world.smelt(&arguments),
    };
    assert_eq!(ended.code, Some(1));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let attempt = &report["stages"][0]["attempts"][0];
    let class = if attempt["limit"] == "kernel" { "oom-killed" } else { "memory-limit" };
    assert_eq!(attempt["class"], class, "{report}");
    assert!(ended.stderr.contains("64 MiB of limits.memory"), "{}", ended.stderr);
}

#[test]
fn an_input_that_changes_meanwhile_spoils_the_attempt() {
    let world = World::new(&writing(&["a:x:cat $SMELT_INPUTS > o; echo more >> $SMELT_INPUTS"]));
    world.write("p.toml", &world.read("p.toml").replace("\"x\"", "\"path:in.txt\""));
    world.write("in.txt", "one");
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("in.txt was changed while the stage ran"), "{}", ended.stderr);
}

#[test]
fn a_damaged_output_is_built_again() {
    let world = World::of_commands(&["a::echo a > o", "b:a:cat $SMELT_IN_A/o > o"]);
    world.run(&[]);
    let file = world.out("a").join("o");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&file, "b\n").unwrap();
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("quarantine"), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(statuses(&report), ["a sealed", "b hit"]);
    assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), "a\n");
}

#[test]
fn plan_says_what_cannot_be_known_yet() {
    let world = World::of_commands(&["a::echo a > o", "b:a:echo b > o", "c:b:echo c > o"]);
    let ended = world.smelt(&["plan", "p.toml"]);
    assert!(ended.stdout.contains("unknown until a"), "{}", ended.stdout);
    world.run(&["--only", "a"]);
    let ended = world.smelt(&["plan", "p.toml", "--json"]);
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(statuses(&plan), ["a hit", "b miss", "c unknown"]);
}

#[test]
fn plan_remembers_where_a_recipe_led() {
    let world = World::of_commands(&["a::echo a > o", "b:a:echo b > o"]);
    let report = world.run(&[]);
    let key = report["stages"][1]["key"].as_str().unwrap()[..16].to_owned();
    fs::remove_dir_all(world.out("a")).unwrap();
    let plan = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(plan.contains(&format!("unknown until a, last time {key}")), "{plan}");
    assert_eq!(statuses(&world.run(&[])), ["a sealed", "b hit"]);
}

#[test]
fn twins_in_one_run_are_built_once_and_nobody_waits_for_himself() {
    let script = "echo a > o; sleep 0.2";
    let world = World::of_commands(&[&format!("a::{script}"), &format!("b::{script}")]);
    let report = world.run(&["--jobs", "2", "--no-wait"]);
    assert_eq!(statuses(&report), ["a sealed", "b hit"]);
}

#[test]
fn inputs_that_trade_names_are_another_key() {
    let lines = |a: &str, b: &str, needs: &str| {
        commands(&[
            &format!("a::echo {a} > o"),
            &format!("b::echo {b} > o"),
            &format!("c:{needs}:cat $SMELT_IN_A/o > o"),
        ])
    };
    let world = World::new(&lines("x", "y", "a b"));
    world.run(&[]);
    // The same two contents in the same order, but now a holds y.
    world.write("p.toml", &lines("y", "x", "b a"));
    world.run(&[]);
    assert_eq!(fs::read_to_string(world.out("c").join("o")).unwrap(), "y\n");
}

#[test]
fn a_reader_that_has_gone_away_is_no_bug() {
    let world = World::of_commands(&["a::echo a > o"]);
    let shell = |script: &str| {
        let mut command = std::process::Command::new("bash");
        world.prepare(&mut command);
        command.args(["-c", script]).env("SMELT", env!("CARGO_BIN_EXE_smelt"));
        crate::world::ended(&mut command)
    };
    let closed = shell("$SMELT plan p.toml | true; echo ${PIPESTATUS[0]}");
    assert_eq!(closed.stdout, "0\n", "{}", closed.stderr);
    let closed = shell("($SMELT run p.toml; echo $? > code) 2>&1 | true; cat code");
    assert_eq!(closed.stdout, "0\n", "{}", closed.stderr);
    let full = shell("$SMELT out p.toml a > /dev/full");
    assert_eq!(full.code, Some(1));
    assert!(full.stderr.contains("cannot write the answer"), "{}", full.stderr);
    assert_eq!(shell("$SMELT plan nothing.toml 2> /dev/full").code, Some(3));
}

#[test]
fn paths_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStringExt;
    let world = World::of_commands(&["a::echo a > o"]);
    let root = std::ffi::OsString::from_vec(b"caf\xe9".to_vec());
    let output = world.command(&["run", "p.toml"]).env("SMELT_CACHE", root).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not UTF-8"));
}

#[test]
fn a_path_that_holds_the_store_is_refused() {
    let world = World::of_commands(&["a:x:echo a > o"]);
    world.write("p.toml", &world.read("p.toml").replace("\"x\"", "\"path:.\""));
    refused(&world, &["run", "p.toml"], 3, "it holds the store");
}

#[test]
fn what_cannot_be_removed_holds_up_nobody() {
    // A file that not even its owner may remove; without the right to make one there is no test.
    let world = World::of_commands(&["a::echo a > keep; chattr +i keep; exit 3", "b::echo b > o"]);
    let first = world.smelt(&["run", "p.toml", "--keep-going"]);
    let freed = || {
        let _ = std::process::Command::new("chattr")
            .args(["-R", "-i"])
            .arg(world.path("cache/work"))
            .output();
    };
    if first.stderr.contains("exit 3") {
        assert_eq!(first.code, Some(1));
        assert!(
            first.stdout.contains("failed") && first.stderr.contains("left behind"),
            "{}",
            first.stderr
        );
        let second = world.smelt(&["run", "p.toml", "--only", "b"]);
        freed();
        assert_eq!(second.code, Some(0), "{}", second.stderr);
    } else {
        println!("not run: chattr +i is not allowed here: {}", first.stderr);
        freed();
    }
}

#[test]
fn a_log_is_bounded_and_a_stage_never_notices() {
    let world = World::of_commands(&[
        "a::head -c 80000000 /dev/zero | tr '\\0' x; echo; echo end; echo a > o",
    ]);
    let report = world.run(&[]);
    let log = report["stages"][0]["attempts"][0]["log"].as_str().unwrap().to_owned();
    let bytes = fs::metadata(&log).unwrap().len();
    assert!(bytes <= (64 << 20) + 100, "{bytes}");
    assert!(fs::read(&log).unwrap().ends_with(b"x\nend\n"));
}

/// A log with a time in it is no part of the output, and stops no wave.
#[test]
fn only_declared_outputs_are_sealed() {
    let world = World::of_commands(&[
        "a::mkdir -p d/e; date +%N > d/log; date +%N > log.txt; echo a > o; echo x > d/e/kept",
        "b:a:cat $SMELT_IN_A/o > o",
    ]);
    world.write("p.toml", &world.read("p.toml").replacen("[\"o\"]", "[\"o\", \"d/e\"]", 1));
    let first = world.run(&[]);
    let left = &first["stages"][0]["attempts"][0]["left_out"];
    assert_eq!(left, &serde_json::json!({ "count": 2, "names": ["d/log", "log.txt"] }), "{first}");
    let out = world.out("a");
    assert!(out.join("d/e/kept").exists() && !out.join("d/log").exists());
    let again = world.run(&["--force", "a"]);
    assert_eq!(statuses(&again), ["a sealed", "b hit"]);
    assert_eq!(first["stages"][0]["digest"], again["stages"][0]["digest"]);
    assert_eq!(world.smelt(&["run", "p.toml", "--check", "a"]).code, Some(0), "nor of a check");
}

#[test]
fn an_output_may_be_empty_where_it_says_so() {
    let world = World::of_commands(&["a::touch o"]);
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("validate = { \"o\" = \"may-be-empty\" }"),
        "{}",
        refused.stderr
    );
    let stamp = world.read("p.toml") + "validate = { o = \"may-be-empty\" }\n";
    world.write("p.toml", &stamp);
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
    assert_eq!(statuses(&world.run(&[])), ["a hit"]);
    assert_eq!(fs::metadata(world.out("a").join("o")).unwrap().len(), 0);
    world.write("p.toml", &stamp.replace("touch o", "true"));
    assert_eq!(world.smelt(&["run", "p.toml"]).code, Some(1), "it must be there");
}

#[test]
fn an_output_may_have_thousands_of_files() {
    let script = "a::mkdir o; cd o; seq 5000 | xargs touch";
    let world = World::of_commands(&[script, "b:a:ls $SMELT_IN_A/o | wc -l > o"]);
    assert_eq!(statuses(&world.run(&[])), ["a sealed", "b sealed"]);
    assert_eq!(fs::read_to_string(world.out("b").join("o")).unwrap().trim(), "5000");
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"]);
    assert_eq!(world.smelt(&["cache", "fsck"]).code, Some(0));
    // One that makes more than can be kept hears of it while it works.
    world.write(
        "p.toml",
        &world
            .read("p.toml")
            .replace("seq 5000 | xargs touch", "seq 33000 | xargs touch; sleep 1000"),
    );
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .stderr
            .contains("ended, since its outputs hold more than 32768 files (SMELT_FILES_MAX)"),
        "{}",
        refused.stderr
    );
    // One that ends before anybody has counted is told the same.
    let text = world.read("p.toml").replace("; sleep 1000", "");
    world.write("p.toml", &text);
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(1));
    let words = "more than 32768 files (SMELT_FILES_MAX)";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
}

/// Paths with blanks are listed in a file; the list that is divided by blanks refuses them.
#[test]
fn inputs_are_listed_in_a_file() {
    let world =
        World::of_commands(&["b::echo b > o", "a:b:tr \\\\0 \\\\n < $SMELT_INPUTS_FILE > o"]);
    let text = world.read("p.toml").replace("[\"b\"]", "[\"b\", \"path:my file\"]");
    world.write("my file", "x");
    world.write("p.toml", &text);
    world.run(&[]);
    let listed = fs::read_to_string(world.out("a").join("o")).unwrap();
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 2, "{listed}");
    assert_eq!(Path::new(lines[0]), world.out("b"));
    assert_eq!(Path::new(lines[1]), world.path("my file"));
    world.write("p.toml", &text.replace("< $SMELT_INPUTS_FILE", "< $SMELT_INPUTS"));
    refused(&world, &["run", "p.toml"], 3, "whose path holds a blank; read SMELT_INPUTS_FILE");
    // A script that nobody looks into is told by what it opens.
    world.write("s.sh", "cat $SMELT_INPUTS > o");
    let hidden = commands(&[&format!("a::sh {}", world.path("s.sh").display())]);
    world.write("p.toml", &hidden.replace("inputs = []", "inputs = [\"path:my file\"]"));
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("a-path-of-SMELT_INPUTS-holds-a-blank"), "{}", ended.stderr);
    // A program without inputs reads an empty list.
    world.write("p.toml", &commands(&["a::wc -c < $SMELT_INPUTS_FILE > o"]));
    world.run(&[]);
    assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap().trim(), "0");
}
