//! Programs that a stage names by path count by their content, others where the stage says so.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::world::{World, ended, statuses};
use serde_json::Value;

fn program(world: &World, name: &str, text: &str) {
    world.write(name, text);
    fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o755)).unwrap();
}

/// One stage that runs `argv`, a list of TOML.
fn world_of(argv: &str, more: &str) -> World {
    let world = World::new("");
    let argv = argv.replace("WORLD", world.path("").to_str().unwrap().trim_end_matches('/'));
    let stage = "smelt = 1\nname = \"t\"\n[stage.a]\nkind = \"command\"\noutputs = [\"o\"]\n";
    world.write("p.toml", &format!("{stage}argv = {argv}\n{more}"));
    world
}

#[track_caller]
fn said(world: &World) -> String {
    fs::read_to_string(world.out("a").join("o")).unwrap()
}

/// An edited script is no hit with the old output.
#[track_caller]
fn counts(argv: &str, more: &str) {
    let world = world_of(argv, more);
    program(&world, "tool.sh", "#!/bin/sh\necho one > o\n");
    world.run(&[]);
    assert_eq!(said(&world), "one\n");
    assert_eq!(statuses(&world.run(&[])), ["a hit"]);
    program(&world, "tool.sh", "#!/bin/sh\necho two > o\n");
    let plan = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(plan.contains("tool"), "{plan}");
    assert_eq!(statuses(&world.run(&[])), ["a sealed"], "{argv}");
    assert_eq!(said(&world), "two\n");
}

#[test]
fn what_is_named_by_path_counts() {
    counts("[\"WORLD/tool.sh\"]", "");
    counts("[\"./tool.sh\"]", "");
    counts("[\"sh\", \"WORLD/tool.sh\"]", "");
    counts("[\"sh\", \"-ec\", \"X=1 WORLD/tool.sh\"]", "");
}

/// Plain files too, wherever they lie: the elsewhere of this world is neither the pipeline's folder nor beneath it.
#[test]
fn what_is_interpreted_counts_wherever_it_lies() {
    for argv in [
        "[\"sh\", \"ELSEWHERE/plain\"]",
        "[\"env\", \"X=1\", \"sh\", \"-e\", \"ELSEWHERE/plain\", \"/dev/null\"]",
        "[\"sh\", \"-ec\", \"sh ELSEWHERE/plain\"]",
        "[\"sh\", \"-ec\", \". ELSEWHERE/plain\"]",
        "[\"sh\", \"-ec\", \"D=$PWD; cd ELSEWHERE; . ./plain > $D/o\"]",
        "[\"sh\", \"-ec\", \"sh 'ELSEWHERE/with blanks/plain'\"]",
        "[\"sh\", \"-ec\", \"sh ../../../../../elsewhere/plain\"]",
        "[\"sh\", \"../../../../../elsewhere/plain\"]",
    ] {
        let world = World::new("");
        let place = |name: &str| world.path("elsewhere").join(name);
        fs::create_dir_all(place("with blanks")).unwrap();
        fs::create_dir(world.path("pipeline")).unwrap();
        let argv = argv.replace("ELSEWHERE", place("").to_str().unwrap().trim_end_matches('/'));
        let head = "smelt = 1\nname = \"t\"\n[stage.a]\nkind = \"command\"\noutputs = [\"o\"]\n";
        world.write("pipeline/p.toml", &format!("{head}argv = {argv}\n"));
        let run = |word: &str| {
            // With `cd` its output is led back; else it writes where it is.
            let text = if argv.contains("cd ") {
                format!("echo {word}\n")
            } else {
                format!("echo {word} > o\n")
            };
            ["plain", "with blanks/plain"]
                .iter()
                .for_each(|name| fs::write(place(name), &text).unwrap());
            let mut smelt = world.command(&["run", "p.toml", "--json"]);
            smelt.current_dir(world.path("pipeline"));
            let ended = ended(smelt.env("SMELT_CACHE", world.path("pipeline/cache")));
            assert_eq!(ended.code, Some(0), "{argv}: {}", ended.stderr);
            statuses(&serde_json::from_str::<Value>(&ended.stdout).unwrap())
        };
        assert_eq!(run("one"), ["a sealed"], "{argv}");
        assert_eq!(run("one"), ["a hit"], "{argv}");
        assert_eq!(run("two"), ["a sealed"], "{argv}");
    }
}

#[test]
fn what_lies_in_the_home_counts() {
    let world = world_of("[\"sh\", \"-ec\", \"~/tool.sh\"]", "");
    let run = |word: &str| {
        program(&world, "tool.sh", &format!("#!/bin/sh\necho {word} > o\n"));
        let mut smelt = world.command(&["run", "p.toml", "--json"]);
        let ended = ended(smelt.env("HOME", world.path("")));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        statuses(&serde_json::from_str::<Value>(&ended.stdout).unwrap())
    };
    assert_eq!(run("one"), ["a sealed"]);
    assert_eq!(run("one"), ["a hit"]);
    assert_eq!(run("two"), ["a sealed"]);
}

/// What is read besides is data, not a tool.
#[test]
fn what_is_not_interpreted_does_not_count() {
    let world = world_of("[\"sh\", \"-ec\", \"cat WORLD/data > o\"]", "");
    world.write("data", "one");
    world.run(&[]);
    world.write("data", "two");
    assert_eq!(statuses(&world.run(&[])), ["a hit"]);
}

#[test]
fn what_cannot_be_told_is_said() {
    let said = |argv: &str| world_of(argv, "").smelt(&["plan", "p.toml"]).stdout;
    let words = "cannot be told beforehand, so results stay when it changes: ";
    for (argv, what) in [
        ("[\"sh\", \"-ec\", \"P=/p; $P/w.sh > o\"]", "$P/w.sh"),
        ("[\"python3\", \"-c\", \"import tool\"]", "python3 -c"),
        ("[\"sh\", \"-ec\", \"cd $P; ./z.sh; python3 -m tool\"]", "$P/z.sh, python3 -m"),
        ("[\"sh\", \"-ec\", \"PATH=/d:$PATH tool.sh; /d/tool.s* > o\"]", "/d/tool.s*, tool.sh"),
        ("[\"find\", \"/d\", \"-exec\", \"{}\", \";\"]", "find -exec {}"),
    ] {
        let plan = said(argv);
        assert!(plan.contains(&format!("{words}{what} (")), "{argv}: {plan}");
    }
    let plan = said("[\"sh\", \"-ec\", \"$SMELT_IN_A/x.sh; echo $X > o; sh WORLD/x.sh\"]");
    assert!(!plan.contains(words), "{plan}");
}

/// Said once, by the run that builds anew.
#[test]
fn what_counts_now_is_named_once() {
    let script = "[ ! -e WORLD/plain ] || . WORLD/plain; echo x > o";
    let world = world_of(&format!("[\"sh\", \"-ec\", \"{script}\"]"), "");
    world.run(&[]);
    world.write("plain", "X=1");
    let said = || world.smelt(&["run", "p.toml"]).stderr;
    let words = "the content of what it runs counts now (";
    let first = said();
    assert!(first.contains(words) && first.contains("plain)"), "{first}");
    assert!(!said().contains(words));
    world.write("plain", "X=2");
    assert!(!said().contains(words), "it has counted before");
}

#[test]
fn what_lies_beside_the_pipeline_counts_without_being_a_program() {
    let world = world_of("[\"sh\", \"WORLD/plain\"]", "");
    world.write("plain", "echo one > o");
    world.run(&[]);
    world.write("plain", "echo two > o");
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
}

/// What a stage may write is no tool: it would change the key by which it is found.
#[test]
fn what_is_written_does_not_count() {
    let world =
        world_of("[\"sh\", \"-ec\", \"echo x >> WORLD/log; echo x > o\"]", "writes = [\"log\"]\n");
    program(&world, "log", "");
    world.run(&[]);
    assert_eq!(statuses(&world.run(&[])), ["a hit"]);
}

#[test]
fn what_interprets_a_script_counts() {
    let world = world_of("[\"WORLD/tool\"]", "");
    program(&world, "shell", "#!/bin/sh\nexec /bin/sh \"$@\"\n");
    program(&world, "tool", &format!("#!{} \necho x > o\n", world.path("shell").display()));
    world.run(&[]);
    program(&world, "shell", "#!/bin/sh\nexec /bin/sh -e \"$@\"\n");
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
}

#[test]
fn what_is_found_by_name_counts_where_that_is_declared() {
    let run = |world: &World, with: &str| {
        let path = format!("{}:{}", world.path("").display(), std::env::var("PATH").unwrap());
        let mut command: Command = world.command(&["run", "p.toml", "--json"]);
        let ended = ended(command.env("PATH", path));
        assert_eq!(ended.code, Some(0), "{with}: {}", ended.stderr);
        statuses(&serde_json::from_str::<Value>(&ended.stdout).unwrap())
    };
    for (more, expect) in [("", "a hit"), ("tool = [\"mytool\"]\n", "a sealed")] {
        let world = world_of("[\"mytool\"]", more);
        program(&world, "mytool", "#!/bin/sh\necho one > o\n");
        run(&world, more);
        program(&world, "mytool", "#!/bin/sh\necho two > o\n");
        assert_eq!(run(&world, more), [expect], "{more}");
        let plan = world.smelt(&["plan", "p.toml"]);
        let says = plan.stdout.contains("in no key, so results stay when they change: mytool");
        assert_eq!(says, more.is_empty(), "{}{}", plan.stdout, plan.stderr);
    }
}

#[test]
fn a_tool_that_is_declared_must_be_there() {
    let world = world_of("[\"sh\", \"-c\", \"echo x > o\"]", "tool = [\"nothing-of-that-name\"]\n");
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("there is no tool \"nothing-of-that-name\""), "{}", ended.stderr);
}

/// As an input that is edited meanwhile.
#[test]
fn a_tool_that_changes_while_it_runs_seals_nothing() {
    let world = world_of("[\"WORLD/tool.sh\"]", "writes = [\"there\"]\n");
    fs::create_dir(world.path("there")).unwrap();
    let wait = "touch there/began; while [ ! -e there/go ]; do sleep 0.01; done";
    let wait = wait.replace("there", world.path("there").to_str().unwrap());
    program(&world, "tool.sh", &format!("#!/bin/sh\n{wait}\necho x > o\n"));
    let mut child = world.start(&["run", "p.toml"]);
    world.wait_for("there/began");
    world.write("tool.new", "#!/bin/sh\n");
    fs::rename(world.path("tool.new"), world.path("tool.sh")).unwrap();
    world.write("there/go", "");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let report = world.smelt(&["report"]).stdout;
    assert!(report.contains("was changed while the stage ran"), "{report}");
}

/// The libraries of a vendor's tool and the package of one that pip installed: an upgrade changes them, and not the program.
#[test]
fn what_does_a_tool_s_work_counts_with_it() {
    for (tool, part) in [
        ("trtexec", "lib/libnvinfer.so.10"),
        ("packed", "lib/python3.10/site-packages/packed-1.dist-info/RECORD"),
    ] {
        let path = format!("vendor/bin/{tool}");
        let world = world_of(&format!("[\"{path}\"]"), "");
        for folder in ["bin", "lib/python3.10/site-packages/packed-1.dist-info"] {
            fs::create_dir_all(world.path("vendor").join(folder)).unwrap();
        }
        let table = "vendor/lib/python3.10/site-packages/packed-1.dist-info/entry_points.txt";
        world.write(table, "[console_scripts]\npacked = packed:main\n");
        program(&world, &path, "#!/bin/sh\necho x > o\n");
        let part = format!("vendor/{part}");
        world.write(&part, "one");
        assert_eq!(statuses(&world.run(&[])), ["a sealed"], "{tool}");
        assert_eq!(statuses(&world.run(&[])), ["a hit"], "{tool}");
        world.write(&part, "two");
        let plan = world.smelt(&["plan", "p.toml"]).stdout;
        assert!(plan.contains(&format!("tool {path}: ")), "{plan}");
        assert_eq!(statuses(&world.run(&[])), ["a sealed"], "{tool}");
    }
}
