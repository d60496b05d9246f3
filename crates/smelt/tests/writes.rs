//! What a stage writes outside of its own directory is refused, and fails it where it says so.

use std::fs;

use crate::world::{Ended, World, commands, statuses};
use serde_json::Value;

/// A stage that runs this, in a world that has the folder `there`; `None` where the kernel has no
/// Landlock, as the report then says.
fn run(script: &str, more: &str) -> Option<(World, Ended, Value)> {
    let kind = "kind = \"command\"\n";
    let world = World::new("");
    let script = script.replace("WORLD", world.path("").to_str().unwrap().trim_end_matches('/'));
    let text = commands(&[&format!("a::{script}")]).replace(kind, &format!("{kind}{more}"));
    world.write("p.toml", &text);
    fs::create_dir(world.path("there")).unwrap();
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
    if report["stages"][0]["attempts"][0]["writes"] == "unwatched" {
        println!("not run: no Landlock here");
        return None;
    }
    Some((world, ended, report))
}

#[track_caller]
fn is_refused(script: &str, exit: i64, words: &str) {
    let Some((world, ended, report)) = run(script, "") else { return };
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let attempt = &report["stages"][0]["attempts"][0];
    assert_eq!((&attempt["class"], &attempt["exit"]), (&"undeclared-write".into(), &exit.into()));
    assert_eq!(attempt["writes"], "confined");
    let named = format!("it tried to write {}", world.path("").display());
    assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert!(!world.path("new").exists() && !world.path("there/new").exists());
}

#[test]
fn a_write_outside_fails_the_stage() {
    is_refused("echo x > WORLD/new", 2, "Permission denied (exit 2)");
    is_refused("echo x > o; cp o WORLD/there/new", 1, "there/new, outside of its own directory");
}

#[test]
fn it_fails_a_stage_that_goes_on_too() {
    is_refused("mkdir WORLD/new || true; echo x > o", 0, "declare that in \"writes\"");
    is_refused("setsid sh -c 'echo x > WORLD/there/new' || true; echo x > o", 0, "(exit 0)");
}

/// As a Python that cannot keep what it compiled, say.
#[test]
fn one_that_keeps_quiet_has_written_nothing() {
    let Some((world, ended, report)) = run("touch WORLD/new 2> e || true; echo x > o; rm e", "")
    else {
        return;
    };
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(report["stages"][0]["attempts"][0]["writes"], "confined");
    assert!(!world.path("new").exists());
}

#[test]
fn what_is_declared_may_be_written() {
    let script = "echo x > WORLD/there/new; echo x > o";
    for (line, how) in [
        ("writes = [\"there\"]\n", "confined"),
        ("writes = [\"./there/..//there\"]\n", "confined"),
        ("writes = [\"/\"]\n", "anywhere"),
    ] {
        let Some((world, ended, report)) = run(script, line) else { continue };
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(report["stages"][0]["attempts"][0]["writes"], how);
        assert_eq!(world.read("there/new"), "x\n");
        // It is no part of the key.
        world.write("p.toml", &world.read("p.toml").replace(line, ""));
        assert_eq!(statuses(&world.run(&[])), ["a hit"]);
    }
}

#[test]
fn what_is_declared_must_be_there() {
    let Some((world, ended, report)) = run("echo x > o", "writes = [\"nowhere\"]\n") else {
        return;
    };
    assert_eq!(report["stages"][0]["attempts"][0]["class"], "spawn-failed");
    let words = format!("it writes to {}: No such file", world.path("nowhere").display());
    assert!(ended.stderr.contains(&words), "{}", ended.stderr);
}

#[test]
fn a_home_stands_for_itself() {
    let world = World::new("");
    let kind = "kind = \"command\"\n";
    let text = commands(&["a::echo x > $HOME/made; echo x > o"]);
    world.write("p.toml", &text.replace(kind, &format!("{kind}writes = [\"~/\"]\n")));
    let ended = crate::world::ended(world.command(&["run", "p.toml"]).env("HOME", world.path("")));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(world.read("made"), "x\n");
}

/// Of its own, on the file system of its output; nothing of it is left.
#[test]
fn temporary_files_have_a_place() {
    let script = "echo $TMPDIR > o; echo x > $(mktemp); mkdir -p $TMPDIR/d; echo y > $TMPDIR/d/f; \
                  mv $TMPDIR/d/f moved; ls -A $TMPDIR | grep -c . >> o";
    let world = World::of_commands(&[&format!("a::{script}"), "b:a:ls -A $TMPDIR | wc -l > o"]);
    world.run(&[]);
    let told = fs::read_to_string(world.out("a").join("o")).unwrap();
    let (place, count) = told.trim_end().split_once('\n').unwrap();
    assert!(place.starts_with(world.path("cache/work").to_str().unwrap()), "{place}");
    assert_eq!(count, "2");
    assert_eq!(fs::read_dir(world.path("cache/work")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(world.out("b").join("o")).unwrap().trim(), "0");
}

/// On a kernel without Landlock, or with its first form, which forbids renames, stages run all the
/// same, and the report says it.
#[test]
fn an_older_kernel_watches_nobody() {
    for answer in ["error=ENOSYS", "error=EOPNOTSUPP", "retval=1"] {
        let world = World::of_commands(&["a::mkdir d; echo x > d/f; mv d/f o; touch $OUT"]);
        let out = world.path("out").display().to_string();
        world.write("p.toml", &world.read("p.toml").replace("$OUT", &out));
        let mut strace = std::process::Command::new("strace");
        world.prepare(&mut strace);
        let inject = format!("inject=landlock_create_ruleset:{answer}");
        // Nor does it let anybody have name spaces.
        strace.args([
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=landlock_create_ruleset,unshare",
        ]);
        strace.args(["-e", &inject, "-e", "inject=unshare:error=EPERM"]);
        strace.args([env!("CARGO_BIN_EXE_smelt"), "run", "p.toml", "--json"]);
        let ended = crate::world::ended(&mut strace);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(report["stages"][0]["attempts"][0]["writes"], "unwatched", "{answer}");
        assert!(world.path("out").exists());
        let told = world.smelt(&["report"]).stdout;
        assert!(told.contains("was not watched: the kernel has no Landlock"), "{told}");
    }
}

/// Root may write everywhere, but for this.
#[test]
fn what_is_sealed_cannot_be_spoiled() {
    let spoil = "echo x > o; chmod u+w $SMELT_IN_A/o || true; echo spoiled > $SMELT_IN_A/o || true";
    let world = World::of_commands(&["a::echo a > o", &format!("b:a:{spoil}")]);
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    if ended.stdout.contains("\"unwatched\"") {
        return println!("not run: no Landlock here");
    }
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("undeclared-write") || ended.stderr.contains("tried to write"));
    assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), "a\n");
}
