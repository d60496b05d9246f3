//! Checks that every command the README shows exists.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::edges::metadata;
use crate::root;

/// A line of a shell block, and where it is.
struct Shown {
    line: usize,
    words: Vec<String>,
}

pub(super) fn check(smelt: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join("README.md")).context("README.md")?;
    let shown = commands(&text);
    let mut findings = Vec::new();
    if shown.is_empty() {
        findings.push("README.md: shows no command".to_owned());
    }
    if !runs_smelt()? {
        findings.push("README.md: `cargo run` does not run smelt; see default-members".to_owned());
    }
    for command in &shown {
        if let Some(wrong) = wrong(smelt, &command.words) {
            findings.push(format!(
                "README.md:{}: {wrong}: {}",
                command.line,
                command.words.join(" ")
            ));
        }
    }
    Ok(findings)
}

/// Whether `cargo run` without a package has one choice, and that is smelt.
fn runs_smelt() -> Result<bool> {
    let metadata = metadata()?;
    let default = &metadata["workspace_default_members"];
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let smelt = packages.filter(|package| package["name"] == "smelt").map(|package| &package["id"]);
    Ok(default.as_array().map(Vec::as_slice) == Some(&smelt.cloned().collect::<Vec<_>>()[..]))
}

/// Lines of ```sh blocks, without comments.
fn commands(text: &str) -> Vec<Shown> {
    let mut inside = false;
    let mut shown = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            inside = line.starts_with("```sh");
        } else if inside && !line.trim_start().starts_with('#') {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            if !words.is_empty() {
                shown.push(Shown { line: at + 1, words });
            }
        }
    }
    shown
}

/// Why a command does not exist; `None` where it does.
fn wrong(smelt: &Path, words: &[String]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["cargo", "xtask", what, ..] => {
            (!["bench", "ci", "fuzz", "onnxruntime", "shapes", "soak", "tidy"].contains(what))
                .then(|| format!("no xtask {what}"))
        }
        ["cargo", "run", "--release", "--", arguments @ ..]
        | ["smelt" | "target/release/smelt", arguments @ ..] => wrong_flags(smelt, arguments),
        ["cargo" | "git" | "cd" | "kill" | "ls" | "cp" | "cat", ..] => None,
        _ => Some("neither smelt nor cargo".to_owned()),
    }
}

/// The subcommand is there, and its help knows every long flag.
fn wrong_flags(smelt: &Path, arguments: &[&str]) -> Option<String> {
    let (command, rest) = arguments.split_first()?;
    // The second word may be a command of its own; a plain argument changes nothing of the help.
    let second = rest.first().filter(|word| !word.starts_with('-'));
    let help = [command].into_iter().chain(second).chain([&"--help"]);
    let output = Command::new(smelt).args(help).output().ok()?;
    if !output.status.success() {
        return Some(format!("no command {command}"));
    }
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let flag = |word: &&&str| word.starts_with("--");
    let unknown = rest.iter().filter(flag).find(|word| !help.contains(**word))?;
    Some(format!("no flag {unknown}"))
}
