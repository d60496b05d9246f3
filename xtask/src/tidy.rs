//! Checks what compilers do not: crate edges, file headers, leftovers, pipelines, the pages that users read.
//!
//! It also prints the longest functions and files, as places to look; they fail nothing.

mod circles;
mod edges;
mod longest;
mod packages;
mod pages;
mod serving;
mod vectors;

pub(crate) use edges::crates;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail};

use crate::{root, target};

/// A Rust file of the repository.
pub(crate) struct Source {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Prints every finding, then fails if there was one.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask tidy");
    let sources = sources()?;
    let mut findings = of_texts(&sources)?;
    let smelt = build_smelt()?;
    findings.extend(pipelines(&smelt)?);
    findings.extend(pages::check(&smelt)?);
    findings.extend(vectors::check(&smelt)?);
    longest::print(&sources);
    tell(&findings)
}

/// The same of what can be found without building anything.
pub(crate) fn texts() -> Result<()> {
    tell(&of_texts(&sources()?)?)
}

fn of_texts(sources: &[Source]) -> Result<Vec<String>> {
    let mut findings = edges::check()?;
    findings.extend(packages::check()?);
    findings.extend(serving::check()?);
    findings.extend(circles::check(sources));
    findings.extend(circles::names(sources));
    findings.extend(sources.iter().filter_map(header));
    findings.extend(sources.iter().flat_map(leftovers));
    findings.extend(sources.iter().flat_map(tests_in_documentation));
    Ok(findings)
}

fn tell(findings: &[String]) -> Result<()> {
    for finding in findings {
        eprintln!("tidy: {finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    Ok(())
}

fn sources() -> Result<Vec<Source>> {
    let root = root();
    let mut sources = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("tools"), root.join("xtask")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                sources.push(Source { path: path.strip_prefix(&root)?.to_owned(), text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

/// Every file says first what it is for.  A file of tests is named for what it tests.
fn header(source: &Source) -> Option<String> {
    let is_tests = source.path.ends_with("tests.rs") || has_folder(&source.path, "tests");
    let says = source.text.starts_with("//! ");
    (!says && !is_tests).then(|| format!("{}: starts without a //! header", source.path.display()))
}

fn has_folder(path: &Path, name: &str) -> bool {
    path.components().any(|part| part.as_os_str() == name)
}

/// Marks that are for the time before a commit.  Spelled in halves, so that this file is clean.
const LEFTOVERS: [&str; 4] =
    [concat!("dbg", "!("), concat!("todo", "!("), concat!("FIX", "ME"), concat!("XX", "X")];

fn leftovers(source: &Source) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    let found = lines.filter(|(_, line)| LEFTOVERS.iter().any(|mark| line.contains(mark)));
    found
        .map(|(at, line)| {
            format!("{}:{}: leftover: {}", source.path.display(), at + 1, line.trim())
        })
        .collect()
}

/// Code in documentation is a test, which `ci` does not run: each would be a program of its own.
fn tests_in_documentation(source: &Source) -> Vec<String> {
    let lines = source.text.lines().enumerate().filter_map(|(at, line)| {
        let line = line.trim_start();
        let words = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        Some((at, words.trim_start().strip_prefix("```")?))
    });
    // Every other mark ends what one before it began.
    let begins = lines.step_by(2).filter(|(_, kind)| *kind != "text");
    begins
        .map(|(at, _)| {
            format!(
                "{}:{}: a test in documentation; say ```text, or make it a test",
                source.path.display(),
                at + 1
            )
        })
        .collect()
}

/// The command, built, and beside it `smelt-shapes`.
///
/// An example of the whole workspace is built with it: then cargo counts what tests need, features are
/// those of `cargo test --workspace`, and nothing that it left is built again.  It is built once: cargo would wait for what
/// another one builds, only to find nothing to do.
pub(crate) fn build_smelt() -> Result<PathBuf> {
    static BUILT: AtomicBool = AtomicBool::new(false);
    if !BUILT.load(Relaxed) {
        build_smelt_now()?;
        BUILT.store(true, Relaxed);
    }
    Ok(target().join("debug/smelt"))
}

fn build_smelt_now() -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--workspace", "--bin", "smelt", "--bin", "smelt-shapes"])
        .args(["--example", "bench_cpu"])
        .arg("--locked")
        .current_dir(root())
        .status()?;
    if !status.success() {
        bail!("smelt does not build");
    }
    Ok(())
}

/// Every pipeline plans, in a store of its own.  One whose model is not here says in a
/// `# tidy:` line with which flags it does.
fn pipelines(smelt: &Path) -> Result<Vec<String>> {
    let folder = root().join("pipelines");
    let cache = root().join("target/tidy-cache");
    let mut findings = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("# tidy: ")).unwrap_or("");
        let output = Command::new(smelt)
            .arg("plan")
            .arg(&path)
            .args(flags.split_whitespace())
            .env("SMELT_CACHE", &cache)
            .output()
            .context("cannot start smelt")?;
        if !output.status.success() {
            findings
                .push(format!("does not plan: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        findings.extend(heading(&path, &text));
    }
    Ok(findings)
}

/// What the comment at the head of a pipeline does not say of disk and memory.
fn heading(path: &Path, text: &str) -> Option<String> {
    let head = text.split("\nsmelt = ").next().unwrap_or_default();
    let lacks = ["# Disk: ", "Memory:"].into_iter().find(|words| !head.contains(*words))?;
    Some(format!("{}: its heading lacks {lacks:?}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_in_documentation_is_found() {
        let found = |text: &str| {
            let source = Source { path: PathBuf::from("a.rs"), text: text.to_owned() };
            tests_in_documentation(&source).len()
        };
        assert_eq!(
            found("//! ```text\n//! a\n//! ```\n    /// ```\n    /// f();\n    /// ```\n"),
            1
        );
        assert_eq!(found("//! ```rust\n//! ```\n/// ```text\n/// ```\n"), 1);
        assert_eq!(found("/// Lines of ```sh blocks\n// ```\nlet a = \"```\";\n"), 0);
    }
}
