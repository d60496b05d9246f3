//! Checks the pages that users read: every command they show exists, every file they link to is there, and
//! the README is a front page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::edges::metadata;
use crate::root;

/// What fits on a front page; all else belongs to `docs`.
const README_LINES_MAX: usize = 120;

/// What a newcomer reads in one sitting: a map, rules and how they are tested.
const ARCHITECTURE: &str = "crates/ARCHITECTURE.md";
const ARCHITECTURE_LINES_MAX: usize = 200;

/// A page, and its path relative to the root.
struct Page {
    path: PathBuf,
    text: String,
}

/// A line of a shell block, and where it is.
struct ShellLine {
    line: usize,
    words: Vec<String>,
}

pub(super) fn check(smelt: &Path) -> Result<Vec<String>> {
    let pages = pages()?;
    let mut findings: Vec<String> =
        pages.iter().flat_map(|page| dead_links(page).chain(wrong_commands(smelt, page))).collect();
    let lines = pages[0].text.lines().count();
    if lines > README_LINES_MAX {
        findings.push(format!("README.md: {lines} lines; {README_LINES_MAX} are a front page"));
    }
    let architecture = fs::read_to_string(root().join(ARCHITECTURE)).context(ARCHITECTURE)?;
    let lines = architecture.lines().count();
    if lines > ARCHITECTURE_LINES_MAX {
        findings.push(format!("{ARCHITECTURE}: {lines} lines; {ARCHITECTURE_LINES_MAX} are a map"));
    }
    if commands(&pages[0].text).is_empty() {
        findings.push("README.md: shows no command".to_owned());
    }
    if !runs_smelt()? {
        findings.push("README.md: `cargo run` does not run smelt; see default-members".to_owned());
    }
    Ok(findings)
}

/// The README, then the pages of `docs` by name.
fn pages() -> Result<Vec<Page>> {
    let mut docs = Vec::new();
    for entry in fs::read_dir(root().join("docs")).context("docs")? {
        let path = Path::new("docs").join(entry?.file_name());
        if path.extension().is_some_and(|extension| extension == "md") {
            docs.push(path);
        }
    }
    docs.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path));
        text.with_context(|| path.display().to_string()).map(|text| Page { path, text })
    };
    [PathBuf::from("README.md")].into_iter().chain(docs).map(read).collect()
}

/// Links to files that are not there.
fn dead_links(page: &Page) -> impl Iterator<Item = String> + '_ {
    let folder = root().join(page.path.parent().unwrap_or(Path::new("")));
    let lines = page.text.lines().enumerate();
    let linked = lines.flat_map(|(at, line)| links(line).map(move |link| (at + 1, link)));
    let is_dead = move |(_, file): &(usize, &str)| !folder.join(file).exists();
    linked
        .filter(is_dead)
        .map(|(line, file)| format!("{}:{line}: no file {file}", page.path.display()))
}

/// The files that a line links to, without the place inside of them.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains("://"));
    files.map(|target| target.split('#').next().unwrap_or("")).filter(|file| !file.is_empty())
}

fn wrong_commands(smelt: &Path, page: &Page) -> impl Iterator<Item = String> {
    let path = page.path.display();
    let say = move |command: ShellLine| {
        let wrong = wrong(smelt, &command.words)?;
        Some(format!("{path}:{}: {wrong}: {}", command.line, command.words.join(" ")))
    };
    commands(&page.text).into_iter().filter_map(say)
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
fn commands(text: &str) -> Vec<ShellLine> {
    let mut inside = false;
    let mut shown = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            inside = line.starts_with("```sh");
        } else if inside && !line.trim_start().starts_with('#') {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            if !words.is_empty() {
                shown.push(ShellLine { line: at + 1, words });
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
            (!["bench", "ci", "fuzz", "mutants", "onnxruntime", "shapes", "soak", "tidy", "walks"]
                .contains(what))
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
