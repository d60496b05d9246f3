//! Programs under strace, which counts their system calls and injects into them.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use super::World;

/// The `nth` call of that name in a thread.
pub type Point = (String, usize);

/// `strace ARGUMENTS…` in the world; the trace goes to the file `trace`.
pub fn strace(world: &World, follow: &[&str], expression: &str, program: &[&str]) -> Output {
    let trace = world.path("trace").display().to_string();
    let mut strace = Command::new("strace");
    // As clean as a stage's: cargo's library paths would add calls of the loader.
    strace.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    world.prepare(&mut strace);
    strace.args(follow).args(["-o", &trace, "-e", expression]).args(program);
    strace.output().expect("these tests need strace; it is a Debian package")
}

/// Every point of an undisturbed run of `program` that is one of these `calls`.
pub fn points(world: &World, follow: &[&str], calls: &str, program: &[&str]) -> Vec<Point> {
    strace(world, follow, &format!("trace={calls}"), program);
    let trace = world.read("trace");
    let mut counts = BTreeMap::<(&str, &str), usize>::new();
    for line in trace.lines().filter(|line| !line.contains("resumed>")) {
        // With -f each line begins with the thread's id.
        let (thread, call) =
            if follow.is_empty() { ("", line) } else { line.split_once(' ').unwrap() };
        let Some((name, _)) = call.trim_start().split_once('(') else { continue };
        *counts.entry((thread, name)).or_default() += 1;
    }
    let mut most = BTreeMap::<&str, usize>::new();
    for ((_, name), count) in counts {
        let entry = most.entry(name).or_default();
        *entry = count.max(*entry);
    }
    let numbers = |(name, count): (&str, usize)| {
        (1..=count).map(move |n| (name.to_owned(), n)).collect::<Vec<_>>()
    };
    most.into_iter().flat_map(numbers).collect()
}
