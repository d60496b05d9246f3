//! Programs under strace, which counts their system calls and injects into them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use super::World;

/// The `nth` call of that name in a thread.
pub(crate) type Point = (String, usize);

/// `strace ARGUMENTS…` in the world; the trace goes to the file `trace`.
pub(crate) fn strace(world: &World, follow: &[&str], expression: &str, program: &[&str]) -> Output {
    let trace = world.path("trace").display().to_string();
    let mut strace = Command::new("strace");
    // As clean as a stage's: cargo's library paths would add calls of the loader.
    strace.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    world.prepare(&mut strace);
    strace.args(follow).args(["-o", &trace, "-e", expression]).args(program);
    strace.output().expect("these tests need strace; it is a Debian package")
}

/// Every point of an undisturbed run of `program` that is one of these `calls`.
pub(crate) fn points(world: &World, follow: &[&str], calls: &str, program: &[&str]) -> Vec<Point> {
    points_in("", world, follow, calls, program)
}

/// Those that concern the world's own files, and none of libraries and of what the kernel tells.
pub(crate) fn own_points(
    world: &World,
    follow: &[&str],
    calls: &str,
    program: &[&str],
) -> Vec<Point> {
    let folder = world.path("").display().to_string();
    // Descriptors are written with their paths.
    let follow = [follow, &["-y"]].concat();
    points_in(folder.trim_end_matches('/'), world, &follow, calls, program)
}

/// Those whose line in the trace contains `word`.
fn points_in(
    word: &str,
    world: &World,
    follow: &[&str],
    calls: &str,
    program: &[&str],
) -> Vec<Point> {
    strace(world, follow, &format!("trace={calls}"), program);
    let trace = world.read("trace");
    let (mut counts, mut points) = (BTreeMap::<(&str, &str), usize>::new(), BTreeSet::new());
    for line in trace.lines().filter(|line| !line.contains("resumed>")) {
        // With -f each line begins with the thread's id.
        let (thread, call) =
            if follow.is_empty() { ("", line) } else { line.split_once(' ').unwrap() };
        let Some((name, _)) = call.trim_start().split_once('(') else { continue };
        let count = counts.entry((thread, name)).or_default();
        *count += 1;
        if line.contains(word) {
            points.insert((name.to_owned(), *count));
        }
    }
    points.into_iter().collect()
}
