//! Eight runs of overlapping pipelines in one store, and a loop of collections beside them that
//! leave nothing that is not needed; checks beside builds and collections.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::world::{World, commands, ended};
use serde_json::Value;

const RUNS: usize = 8;
const ROUNDS: usize = 3;

/// Pipeline `n` of a round: three stages that all have, one that two have, one of its own, and one
/// that no round changes.
fn pipeline(world: &World, round: usize, n: usize) -> String {
    let stage = |name: &str, inputs: &[&str], id: &str| {
        let inputs: Vec<_> = inputs.iter().map(|input| format!("\"{input}\"")).collect();
        format!(
            "[stage.{name}]\nkind = \"command\"\nwrites = [\"built\"]\ninputs = [{}]\noutputs = [\"o\"]\nargv = [\"sh\", \"-ec\", \
             '''echo {id} >> {}; cat /dev/null $(for i in $SMELT_INPUTS; do echo $i/o; done) > o; echo {id} >> o''']\n",
            inputs.join(", "),
            world.path("built").display(),
        )
    };
    [
        format!("smelt = 1\nname = \"pipeline-{n}\"\n"),
        stage("always", &[], "always"),
        stage("base", &["always"], &format!("base-{round}")),
        stage("left", &["base"], &format!("left-{round}")),
        stage("right", &["base"], &format!("right-{round}")),
        stage("pair", &["left", "right"], &format!("pair-{round}-{}", n / 2)),
        stage("own", &["pair", "always"], &format!("own-{round}-{n}")),
    ]
    .concat()
}

/// What the stage `own` must hold in the end.
fn expected(round: usize, n: usize) -> String {
    let base = format!("always\nbase-{round}\n");
    let pair = format!("{base}left-{round}\n{base}right-{round}\npair-{round}-{}\n", n / 2);
    format!("{pair}always\nown-{round}-{n}\n")
}

fn start(world: &World, n: usize) -> Child {
    let file = format!("p{n}.toml");
    let mut command = world.command(&["run", &file, "--jobs", "2"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Ends the collector's loop however the runs ended: a scope waits for its threads, so a failed
/// assertion would otherwise wait for ever, and never be read.
struct EndsIt<'a>(&'a AtomicBool);

impl Drop for EndsIt<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn collect(world: &World) {
    let done = world.smelt(&["cache", "gc", "--max-size", "0", "--max-age", "0d"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

/// Who looks while others seal and remove sees no damage but what is planted, and all of that.
#[test]
fn checks_beside_builds_and_collections_find_planted_damage_alone() {
    let checks = if std::env::var_os("SMELT_SOAK").is_some() { 10_000 } else { 300 };
    let world = World::new("");
    world.write("built", "");
    world.write("kept.toml", &kept());
    let kept = ended(&mut world.command(&["run", "kept.toml"]));
    assert_eq!(kept.code, Some(0), "{}", kept.stderr);
    let over = AtomicBool::new(false);
    let mut planted = 0;
    std::thread::scope(|scope| {
        let builder = scope.spawn(|| {
            let rounds = (0..).take_while(|_| !over.load(Ordering::Relaxed));
            for round in rounds {
                world.write("p0.toml", &pipeline(&world, round, 0));
                let run = start(&world, 0).wait_with_output().unwrap();
                assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
            }
        });
        let collector = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                collect(&world);
            }
        });
        let ends_it = EndsIt(&over);
        for n in 0..checks {
            let is_hurt = n % 10 == 9;
            let tree = is_hurt.then(|| plant(&world, planted));
            planted += usize::from(is_hurt);
            let checked = world.smelt(&["cache", "fsck"]);
            let said = format!("{n}: {tree:?} {}{}", checked.stdout, checked.stderr);
            assert_eq!(checked.code, Some(i32::from(is_hurt)), "{said}");
            let damaged = checked.stdout.lines().filter(|line| line.starts_with("damaged: "));
            assert_eq!(damaged.count(), usize::from(is_hurt), "{said}");
            if let Some(tree) = tree {
                assert!(checked.stdout.contains(&tree), "{said}");
                let again = ended(&mut world.command(&["run", "kept.toml"]));
                assert_eq!(again.code, Some(0), "{said}{}", again.stderr);
            }
        }
        drop(ends_it);
        builder.join().unwrap();
        collector.join().unwrap();
    });
    assert_eq!(planted, checks / 10);
    let builds = world.read("built").lines().count();
    println!("{checks} checks, {planted} damages, {builds} builds");
}

/// What no collection takes, since it is the last run of its pipeline: a file, a program and files in folders.
fn kept() -> String {
    commands(&[
        "kept::mkdir -p d/e; echo one > o; echo two > d/two; echo three > d/e/three; chmod +x d/two",
        "whole::echo whole > o",
    ])
    .replacen("outputs = [\"o\"]", "outputs = [\"o\", \"d\"]", 1)
}

/// Damages the output `kept` in one of the ways that there are; its digest.
fn plant(world: &World, n: usize) -> String {
    let out = ended(&mut world.command(&["out", "kept.toml", "kept"]));
    let out = PathBuf::from(out.stdout.trim());
    let [file, folder] = ["o", "d"].map(|name| out.join(name));
    match n % 6 {
        0 => rewrite(&file, "oen\n"),
        1 => rewrite(&file, "one more\n"),
        2 => rewrite(&folder.join("e/three"), ""),
        3 => fs::remove_file(folder.join("two")).unwrap(),
        4 => fs::set_permissions(folder.join("two"), fs::Permissions::from_mode(0o444)).unwrap(),
        _ => fs::remove_dir_all(folder).unwrap(),
    }
    out.file_name().unwrap().to_str().unwrap().to_owned()
}

/// As a bad disk does, or whoever may write there.
fn rewrite(file: &Path, text: &str) {
    fs::remove_file(file).unwrap();
    fs::write(file, text).unwrap();
}

/// How often each stage was built, by what it is called.
fn built(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in world.read("built").lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn overlapping_runs_and_collections_lose_nothing_and_build_nothing_twice() {
    let world = World::new("");
    world.write("built", "");
    let (over, collections) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            world.wait_for("cache/FORMAT");
            while !over.load(Ordering::Relaxed) {
                collect(&world);
                collections.fetch_add(1, Ordering::Relaxed);
            }
        });
        let ends_it = EndsIt(&over);
        for round in 0..ROUNDS {
            for n in 0..RUNS {
                world.write(&format!("p{n}.toml"), &pipeline(&world, round, n));
            }
            let runs: Vec<_> = (0..RUNS).map(|n| start(&world, n)).collect();
            for (n, run) in runs.into_iter().enumerate() {
                let run = run.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&run.stderr);
                assert!(run.status.success(), "round {round}, run {n}: {said}");
            }
            for n in 0..RUNS {
                let out = ended(&mut world.command(&["out", &format!("p{n}.toml"), "own"]));
                assert_eq!(out.code, Some(0), "round {round}, run {n}: {}", out.stderr);
                let file = std::path::Path::new(out.stdout.trim()).join("o");
                assert_eq!(std::fs::read_to_string(file).unwrap(), expected(round, n));
            }
        }
        drop(ends_it);
        collector.join().unwrap();
    });
    let counts = built(&world);
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "built more than once: {twice:?}");
    assert_eq!(counts.len(), 1 + ROUNDS * (3 + RUNS / 2 + RUNS));
    println!("{} collections beside {} runs", collections.load(Ordering::Relaxed), ROUNDS * RUNS);
    assert!(collections.load(Ordering::Relaxed) > 3);
    // One that sees no run alive.
    collect(&world);
    let checked = world.smelt(&["cache", "fsck", "--json"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    // Of earlier rounds only what this one needs too is left.
    assert_eq!(checked["outputs"], 1 + 3 + RUNS / 2 + RUNS);
}
