//! `smelt cache` as a user sees it; a full disk; a store on a read-only file system.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::world::side::Side;
use crate::world::{World, ended, statuses, until};
use serde_json::Value;

const TWO: [&str; 2] = ["a::echo a > o", "b:a:cat $SMELT_IN_A/o > o; echo b >> o"];

fn json(world: &World, arguments: &[&str]) -> Value {
    let ended = world.smelt(&[&["cache"], arguments, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn du_and_ls_say_what_is_kept_and_needed() {
    let world = World::of_commands(&TWO);
    let none = world.smelt(&["cache", "du"]);
    assert_eq!(none.code, Some(1));
    assert!(none.stderr.contains("there is no store"), "{}", none.stderr);
    assert!(!world.path("cache").exists(), "asking makes nothing");
    world.run(&[]);
    let du = json(&world, &["du"]);
    assert_eq!((&du["outputs"]["count"], &du["outputs"]["bytes"]), (&2.into(), &6.into()));
    assert_eq!(du["outputs"]["held_bytes"], 6);
    let ls = json(&world, &["ls"]);
    let stages = ls["outputs"].as_array().unwrap().iter().map(|output| {
        assert!(Path::new(output["path"].as_str().unwrap()).join("o").exists());
        output["record"]["stage"].as_str().unwrap()
    });
    let mut stages: Vec<_> = stages.collect();
    stages.sort_unstable();
    assert_eq!(stages, ["a", "b"]);
    for (what, words) in [("du", "together"), ("ls", "test b")] {
        let table = world.smelt(&["cache", what]);
        assert!(table.code == Some(0) && table.stdout.contains(words), "{}", table.stdout);
    }
}

#[test]
fn gc_leaves_what_the_last_good_run_of_each_pipeline_needs() {
    let world = World::of_commands(&TWO);
    world.run(&[]);
    world.write("p.toml", &world.read("p.toml").replace("echo b", "echo c"));
    world.run(&[]);
    assert_eq!(json(&world, &["du"])["outputs"]["count"], 3);
    let dry = json(&world, &["gc", "--max-size", "0", "--dry-run"]);
    let whats: Vec<_> = dry["removed"].as_array().unwrap().iter().map(|v| &v["what"]).collect();
    assert_eq!(whats.iter().filter(|what| **what == "output").count(), 1, "{dry}");
    assert_eq!(json(&world, &["du"])["outputs"]["count"], 3, "only said");
    let done = json(&world, &["gc", "--max-size", "0"]);
    assert_eq!(done["removed"], dry["removed"]);
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"]);
    assert_eq!(json(&world, &["du"])["outputs"]["count"], 2);
    let again = world.smelt(&["cache", "gc", "--max-size", "0"]);
    assert!(again.stderr.contains("the last good run of every pipeline need"), "{}", again.stderr);
    // A failed run and a part of a pipeline change nothing about what is needed.
    let good = world.read("p.toml");
    world.write("p.toml", &good.replace("echo c", "false"));
    assert_eq!(world.smelt(&["run", "p.toml"]).code, Some(1));
    world.write("p.toml", &good);
    world.run(&["--only", "a"]);
    json(&world, &["gc", "--max-size", "0"]);
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"]);
}

#[test]
fn gc_clears_what_dead_runs_left() {
    let world = World::of_commands(&TWO);
    world.run(&[]);
    std::fs::create_dir_all(world.path("cache/work/20260101-000000-0000/a.1")).unwrap();
    world.write("cache/work/20260101-000000-0000/a.1/half", "x");
    json(&world, &["gc"]);
    assert_eq!(std::fs::read_dir(world.path("cache/work")).unwrap().count(), 0);
}

/// The list that a run holds is not synced: a power cut leaves an empty file, and its run is dead.
#[test]
fn what_a_power_cut_leaves_of_a_runs_list_is_no_damage() {
    let world = World::of_commands(&TWO);
    world.run(&[]);
    for command in [&["fsck"][..], &["gc", "--max-size", "1GiB"]] {
        for ending in ["lock", "roots"] {
            world.write(&format!("cache/runs/20260101-000000-abcd.{ending}"), "");
        }
        json(&world, command);
        let left = std::fs::read_dir(world.path("cache/runs")).unwrap().count();
        assert_eq!(left, 0, "{command:?} clears what dead runs left");
    }
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"]);
}

/// What a failed run made is what the next one goes on with.
#[test]
fn gc_leaves_what_a_failed_run_made_until_it_is_forgotten() {
    let world = World::of_commands(&["a::echo a > o", "b:a:test -e WORLD-is-fine; echo b > o"]);
    let gc = |more: &[&str]| {
        let ended = world.smelt(&[&["cache", "gc", "--max-size", "0B"][..], more].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        (ended.stdout.matches("removed: output").count(), ended.stderr)
    };
    assert_eq!(world.smelt(&["run", "p.toml"]).code, Some(1));
    let (removed, said) = gc(&[]);
    assert_eq!(removed, 0);
    assert!(said.contains("runs that failed or did not end (--unfinished takes those)"), "{said}");
    assert_eq!(gc(&["--unfinished"]).0, 1);
    assert_eq!(world.smelt(&["run", "p.toml"]).code, Some(1));
    let runs: Value = serde_json::from_str(&world.smelt(&["runs", "--json"]).stdout).unwrap();
    let last = runs["runs"][0]["run"].as_str().unwrap().to_owned();
    let forgot = world.smelt(&["runs", "forget", &last]);
    assert_eq!(forgot.stdout, format!("run {last} is forgotten\n"), "{}", forgot.stderr);
    assert_eq!(gc(&[]).0, 1);
}

#[test]
fn what_is_pinned_stays_whatever_is_asked() {
    let world = World::of_commands(&["a::echo a > o", "b::echo b > o"]);
    world.run(&[]);
    let out = world.out("a").display().to_string();
    let pinned = world.smelt(&["cache", "pin", &out]);
    assert_eq!(pinned.code, Some(0), "{}", pinned.stderr);
    assert_eq!(json(&world, &["pins"])["pins"][0]["path"], out);
    // The pipeline becomes another one, so that nothing else holds what it was.
    world.write("p.toml", &world.read("p.toml").replace("echo ", "echo new "));
    world.run(&[]);
    let gc = ["cache", "gc", "--max-size", "0B", "--unfinished"];
    assert_eq!(world.smelt(&gc).stdout.matches("removed: output").count(), 1);
    assert!(std::path::Path::new(&out).exists());
    assert_eq!(world.smelt(&["cache", "unpin", &out]).code, Some(0));
    assert_eq!(world.smelt(&gc).stdout.matches("removed: output").count(), 1);
    for odd in [&["cache", "pin", "0123"][..], &["cache", "unpin", &out]] {
        assert_eq!(world.smelt(odd).code, Some(1), "{odd:?}");
    }
}

#[test]
fn a_run_that_is_forgotten_is_not_gone_on_with() {
    let world = World::of_commands(&["a::echo $$ > began; sleep 100; echo a > o"]);
    let mut child = world.start(&["run", "p.toml"]);
    let began =
        || std::fs::read_dir(world.path("cache/logs")).is_ok_and(|mut all| all.next().is_some());
    assert!(until(began));
    child.kill().unwrap();
    child.wait().unwrap();
    world.assert_nothing_runs();
    let open = || -> Value {
        serde_json::from_str(&world.smelt(&["resume", "--list", "--json"]).stdout).unwrap()
    };
    assert_eq!(open()["runs"].as_array().unwrap().len(), 1);
    assert_eq!(world.smelt(&["runs", "forget", "--all"]).code, Some(0));
    assert_eq!(open()["runs"].as_array().unwrap().len(), 0);
}

#[test]
fn limits_are_checked() {
    let world = World::of_commands(&TWO);
    for bad in
        [["--max-size", "20"], ["--max-size", "-1GiB"], ["--max-age", "30"], ["--max-age", "x"]]
    {
        let refused = world.smelt(&["cache", "gc", bad[0], bad[1]]);
        assert_eq!(refused.code, Some(2), "{bad:?}: {}", refused.stderr);
    }
}

#[test]
fn fsck_finds_damage_and_repair_brings_a_lost_log_back() {
    let world = World::of_commands(&TWO);
    world.run(&[]);
    assert_eq!(json(&world, &["fsck"])["sound"], true);
    std::fs::write(world.path("cache/ac.log"), "rubbish\n").unwrap();
    let found = world.smelt(&["cache", "fsck"]);
    assert_eq!(found.code, Some(1), "{}", found.stdout);
    assert!(found.stdout.contains("2 results that the action log has lost"), "{}", found.stdout);
    assert!(found.stderr.contains("smelt cache fsck --repair"), "{}", found.stderr);
    assert_eq!(json(&world, &["fsck", "--repair"])["repaired"], true);
    assert_eq!(json(&world, &["fsck"])["sound"], true);
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"]);
    let file = world.out("a").join("o");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "x\n").unwrap();
    let found = world.smelt(&["cache", "fsck"]);
    assert_eq!(found.code, Some(1), "{}", found.stdout);
    assert!(found.stdout.contains("other content than was sealed"), "{}", found.stdout);
    assert_eq!(world.smelt(&["cache", "fsck", "--repair"]).code, Some(0));
    assert_eq!(statuses(&world.run(&[])), ["a sealed", "b hit"], "the wave stops at once");
}

/// A stage of the same user's may take what Landlock does not know.
#[test]
fn repair_sets_modes_back() {
    let side = Side::User;
    if !side.is_here() {
        return;
    }
    for damage in
        ["chmod -R 0 cache", "chmod 0 cache", "chmod 0 cache/*", "chmod 777 cache/out/*/*"]
    {
        let world = World::of_commands(&["a::echo a > o; chmod +x o", "b:a:echo b > o"]);
        ["", "p.toml"].iter().for_each(|name| side.give(&world.path(name)));
        let smelt = |arguments: &[&str]| {
            let mut command = world.command(arguments);
            side.start(&mut command);
            ended(&mut command)
        };
        assert_eq!(smelt(&["run", "p.toml"]).code, Some(0));
        let mut sh = std::process::Command::new("sh");
        side.start(sh.args(["-c", damage]).current_dir(world.path("")));
        sh.status().unwrap();
        let repaired = smelt(&["cache", "fsck", "--repair", "--json"]);
        assert_eq!(repaired.code, Some(0), "{damage}: {}", repaired.stderr);
        let checkup: Value = serde_json::from_str(&repaired.stdout).unwrap();
        assert!(checkup["mended"].as_u64().unwrap() > 0, "{damage}: {checkup}");
        assert_eq!(checkup["damaged"].as_array().unwrap().len(), 0, "{damage}: {checkup}");
        let again = smelt(&["run", "p.toml", "--json"]);
        let report = serde_json::from_str(&again.stdout).unwrap();
        assert_eq!(statuses(&report), ["a hit", "b hit"], "{damage}: {}", again.stderr);
    }
}

/// Whoever names a folder that is no store for one keeps it as it is.
#[test]
fn what_is_no_store_is_not_looked_at_and_keeps_its_modes() {
    let world = World::new("");
    let check = |folder: &str| {
        for more in [&["cache", "fsck"][..], &["cache", "fsck", "--repair"]] {
            let mut command = world.command(more);
            let checked = ended(command.env("SMELT_CACHE", world.path(folder)));
            let is_made = folder == "nowhere" && more.len() > 2;
            assert_eq!(checked.code, Some(if is_made { 0 } else { 8 }), "{}", checked.stderr);
        }
    };
    std::fs::create_dir(world.path("other")).unwrap();
    world.write("other/file", "");
    let none = std::fs::Permissions::from_mode(0o0);
    std::fs::set_permissions(world.path("other/file"), none.clone()).unwrap();
    check("other");
    let mode = world.path("other/file").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, none.mode());
    check("nowhere");
    std::fs::create_dir(world.path("strange")).unwrap();
    world.write("strange/FORMAT", "smelt-store 999\n");
    check("strange");
}

/// A stage of root's may have done any of this.
#[test]
fn repair_cures_a_log_that_is_no_file_or_cannot_be_written() {
    let sh = |world: &World, script: &str| {
        let mut sh = std::process::Command::new("sh");
        sh.args(["-ec", script]).current_dir(world.path("cache")).status().unwrap().success()
    };
    for (damage, is_said) in [
        ("rm ac.log; mkdir ac.log; echo x > ac.log/x", true),
        ("rm ac.log; mkfifo ac.log", true),
        ("rm ac.log; ln -s /dev/null ac.log", true),
        ("chattr +i ac.log", false),
        ("chattr +a ac.log", false),
        ("chmod 000 ac.log", false),
    ] {
        let world = World::of_commands(&TWO);
        world.run(&[]);
        if !sh(&world, damage) {
            println!("not run: {damage}");
            continue;
        }
        let checked = world.smelt(&["cache", "fsck"]);
        assert_eq!(checked.code == Some(1), is_said, "{damage}: {}", checked.stderr);
        let refused = world.smelt(&["run", "p.toml"]);
        // Modes keep nothing from root.
        let is_open = damage.starts_with("chmod") && refused.code == Some(0);
        let is_named = refused.stderr.contains("smelt cache fsck --repair");
        assert!(is_open || is_named, "{damage}: {}", refused.stderr);
        let repaired = world.smelt(&["cache", "fsck", "--repair"]);
        assert_eq!(repaired.code, Some(0), "{damage}: {}", repaired.stderr);
        assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"], "{damage}");
        world.write("p.toml", &world.read("p.toml").replace("echo ", "echo new "));
        world.run(&[]);
        assert_eq!(world.smelt(&["cache", "fsck"]).code, Some(0), "{damage}");
    }
}

/// What is left of it is told, with the word.
#[test]
fn a_damaged_journal_is_called_that() {
    let world = World::of_commands(&TWO);
    world.run(&[]);
    let journal = std::fs::read_dir(world.path("cache/journal")).unwrap().next().unwrap();
    let journal = journal.unwrap().path();
    let whole = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    for at in 0..lines.len() - 1 {
        let mut lines = lines.clone();
        lines[at] = "0 no record";
        std::fs::write(&journal, lines.join("\n") + "\n").unwrap();
        let report = world.smelt(&["report"]);
        assert_eq!(report.code, Some(0), "line {at}: {}", report.stderr);
        assert!(report.stdout.contains("is damaged; this is what is left"), "{}", report.stdout);
        let runs = world.smelt(&["runs"]).stdout;
        assert!(runs.contains(" damaged "), "line {at}: {runs}");
    }
    std::fs::write(&journal, "nothing\nat all\n").unwrap();
    let report = world.smelt(&["report"]);
    assert_eq!(report.code, Some(1), "{}", report.stdout);
    assert!(report.stderr.contains("is damaged, and nothing is left of it"), "{}", report.stderr);
}

/// It holds up no other run.
#[test]
fn a_journal_that_is_no_file_is_told_of_and_passed_over() {
    for make in ["mkdir", "mkfifo"] {
        let world = World::of_commands(&TWO);
        world.run(&[]);
        let journal = std::fs::read_dir(world.path("cache/journal")).unwrap().next().unwrap();
        let journal = journal.unwrap().path();
        std::fs::remove_file(&journal).unwrap();
        assert!(Command::new(make).arg(&journal).status().unwrap().success());
        for command in [&["report"][..], &["resume", "--list"], &["resume"]] {
            let ended = world.smelt(command);
            assert_eq!(ended.code, Some(i32::from(command[0] == "report")), "{}", ended.stderr);
            let words = "is damaged, and nothing is left of it";
            assert!(ended.stderr.contains(words), "{make} {command:?}: {}", ended.stderr);
        }
        assert!(world.smelt(&["runs"]).stdout.contains("unreadable"));
        assert_eq!(statuses(&world.run(&[])), ["a hit", "b hit"], "{make}");
        assert_eq!(world.smelt(&["report"]).code, Some(0), "the last one can be read");
    }
}

#[test]
fn repair_waits_for_runs_or_says_that_it_would() {
    let world = World::of_commands(&["a::echo"]);
    let script = format!(
        "a::touch {0}/running; while [ -e {0}/hang ]; do sleep 0.02; done; echo a > o",
        world.path("").display()
    );
    world.write("p.toml", &crate::world::writing(&[&script]));
    world.write("hang", "");
    let mut run = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    assert_eq!(world.smelt(&["cache", "fsck", "--repair", "--no-wait"]).code, Some(7));
    assert_eq!(world.smelt(&["cache", "fsck"]).code, Some(0), "a check goes beside a run");
    assert_eq!(world.smelt(&["cache", "gc", "--max-size", "0"]).code, Some(0));
    std::fs::remove_file(world.path("hang")).unwrap();
    assert!(run.wait().unwrap().success());
}

/// A file system of 12 MiB in the world, where the user may mount one.
struct Mounted {
    at: std::path::PathBuf,
}

impl Mounted {
    fn tmpfs(world: &World) -> Option<Self> {
        let at = world.path("small");
        std::fs::create_dir(&at).unwrap();
        let ended = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"])
            .arg(&at)
            .output();
        let is_mounted = ended.is_ok_and(|output| output.status.success());
        if !is_mounted {
            println!("may not mount; a full and a read-only disk are left to the simulated one");
        }
        is_mounted.then_some(Self { at })
    }

    fn read_only(&self) {
        let options = ["-o", "remount,ro"];
        // What confined a stage refers to its directory for some moments after both are gone.
        let mut mount = Command::new("mount");
        mount.args(options).arg(&self.at);
        assert!(until(|| mount.output().unwrap().status.success()));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn smelt_on(world: &World, mounted: &Mounted, arguments: &[&str]) -> crate::world::Ended {
    let mut command = world.command(arguments);
    command.env("SMELT_CACHE", mounted.at.join("cache"));
    crate::world::ended(&mut command)
}

#[test]
fn a_full_disk_fails_the_stage_and_leaves_the_store_sound() {
    let world = World::of_commands(&["a::echo a > o", "b:a:head -c 20M /dev/zero > o"]);
    let Some(mounted) = Mounted::tmpfs(&world) else { return };
    let full = smelt_on(&world, &mounted, &["run", "p.toml", "--json"]);
    assert_eq!(full.code, Some(1), "{}", full.stderr);
    let report: Value = serde_json::from_str(&full.stdout).expect(&full.stderr);
    assert_eq!(statuses(&report), ["a sealed", "b failed"]);
    let attempt = &report["stages"][1]["attempts"][0];
    assert_eq!(attempt["class"], "disk-full", "{report}");
    assert!(attempt["message"].as_str().unwrap().contains("free at least"), "{attempt}");
    let sound = smelt_on(&world, &mounted, &["cache", "fsck"]);
    assert_eq!(sound.code, Some(0), "{}{}", sound.stdout, sound.stderr);
    world.write("p.toml", &world.read("p.toml").replace("20M", "5M"));
    let good = smelt_on(&world, &mounted, &["run", "p.toml", "--json"]);
    assert_eq!(good.code, Some(0), "{}", good.stderr);
    assert_eq!(statuses(&serde_json::from_str(&good.stdout).unwrap()), ["a hit", "b sealed"]);
    // Known to need 5 MiB now, it is not even started where there is no room for a second one.
    let early = smelt_on(&world, &mounted, &["run", "p.toml", "--force", "b", "--json"]);
    assert_eq!(early.code, Some(1), "{}", early.stdout);
    assert!(early.stderr.contains("not started: its output took 5 MiB"), "{}", early.stderr);
}

#[test]
fn a_store_on_a_read_only_disk_still_plans_and_reports() {
    let world = World::of_commands(&TWO);
    let Some(mounted) = Mounted::tmpfs(&world) else { return };
    assert_eq!(smelt_on(&world, &mounted, &["run", "p.toml"]).code, Some(0));
    mounted.read_only();
    for arguments in [
        &["plan", "p.toml"][..],
        &["out", "p.toml", "b"],
        &["cache", "du"],
        &["cache", "ls"],
        &["cache", "gc", "--dry-run"],
    ] {
        let ended = smelt_on(&world, &mounted, arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    }
    for (arguments, exit) in
        [(&["run", "p.toml"][..], 1), (&["cache", "gc"], 1), (&["cache", "fsck"], 8)]
    {
        let ended = smelt_on(&world, &mounted, arguments);
        assert_eq!(ended.code, Some(exit), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("mounted read-only"), "{arguments:?}: {}", ended.stderr);
    }
}

/// Orders, reports and journals are text, and a path need not be.
#[test]
fn no_path_is_a_bug() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let world = World::new("");
    let odd = OsStr::from_bytes(b"not-\xff-text");
    let folder = world.path("").join(odd);
    std::fs::create_dir(&folder).unwrap();
    let pipeline = "smelt = 1\nname = \"t\"\n[stage.a]\nkind = \"command\"\noutputs = [\"o\"]\n\
                    argv = [\"sh\", \"-c\", \"echo x > o\"]\n";
    for file in [folder.join("p.toml"), world.path("p.toml"), world.path("").join(odd).join(odd)] {
        std::fs::write(file, pipeline).unwrap();
    }
    let of_pipeline = ["run", "plan", "explain", "out", "graph", "ls"];
    let others = [
        &["resume"][..],
        &["resume", "--list", "--json"],
        &["runs", "--json"],
        &["report", "--json"],
        &["cache", "du", "--json"],
        &["cache", "ls", "--json"],
        &["cache", "gc", "--json"],
        &["cache", "fsck", "--json"],
        &["cache", "pins", "--json"],
        &["runs", "forget", "--all"],
        &["doctor", "--json"],
        &["watch", "--once", "--json"],
    ];
    // In a folder that is no text, of one, and with a store in one.
    for (here, path, cache) in [
        (&folder, OsStr::new("p.toml").to_owned(), world.path("cache")),
        (&folder, odd.to_owned(), world.path("cache")),
        (&world.path(""), folder.join("p.toml").into_os_string(), world.path("cache")),
        (&world.path(""), OsStr::new("p.toml").to_owned(), folder.join("cache")),
        (&folder, OsStr::new("p.toml").to_owned(), Path::new("cache").to_owned()),
    ] {
        let run = |command: &mut Command| {
            let command = command.current_dir(here).env("SMELT_CACHE", &cache);
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_fine = output.status.code().is_some_and(|code| code < 70);
            assert!(is_fine && !said.contains("panicked"), "{command:?}: {said}");
        };
        for name in of_pipeline {
            let mut command = world.command(&[name]);
            command.args((name != "ls").then_some(&path));
            run(command.args(["explain", "out"].contains(&name).then_some("a")));
        }
        others.iter().for_each(|arguments| run(&mut world.command(arguments)));
    }
}
