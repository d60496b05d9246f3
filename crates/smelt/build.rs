//! Finds the commit that smelt is built of, and the target it is built for.
//!
//! `SMELT_COMMIT` names the commit where there is no repository: in a tarball that a packager unpacks.
//! Without either there is none.  Git's own files are read, since a build needs no git.  Release builds
//! watch them, so a commit rebuilds the command alone; other builds keep the commit that they began with.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Digits that tell commits apart.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-env-changed=SMELT_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var("SMELT_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| of_repository(Path::new("../../.git")));
    let commit = commit.filter(|commit| commit.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let commit = commit.map(|commit| commit.chars().take(DIGITS).collect::<String>());
    let target = env::var("TARGET").unwrap_or_default();
    // In one piece: cargo takes blanks off the end of a value.
    let built = commit.into_iter().chain([target]).collect::<Vec<_>>().join(", ");
    println!("cargo::rustc-env=SMELT_BUILT={built}");
}

/// The commit that a repository is at, whose `.git` is a directory, or a file that names one.
fn of_repository(git: &Path) -> Option<String> {
    let dir = match fs::read_to_string(git) {
        Ok(text) => git.parent()?.join(text.trim().strip_prefix("gitdir: ")?),
        Err(_) if git.is_dir() => git.to_owned(),
        Err(_) => return None,
    };
    let head = read(&dir.join("HEAD"))?;
    let Some(branch) = head.strip_prefix("ref: ") else { return Some(head) };
    // Branches of a work tree lie with those of its repository.
    let common = read(&dir.join("commondir")).map_or_else(|| dir.clone(), |path| dir.join(path));
    read(&common.join(branch)).or_else(|| packed(&common.join("packed-refs"), branch))
}

/// The first line of a file that decides, which cargo watches from then on.
fn read(path: &PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    Some(text.trim().to_owned())
}

fn packed(path: &PathBuf, branch: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.split(' ').nth(1) == Some(branch))?;
    line.split(' ').next().map(str::to_owned)
}
