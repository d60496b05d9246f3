//! Leaves out a step of `ci` that held before with the same inputs, and says so.
//!
//! Inputs are places in the repository, by content, and the compiler.  What a step takes from elsewhere (packages,
//! kernels, other people's clients) changes without us, so a result is good for a week.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::{root, target};

/// How long a result is believed.
const GOOD_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Runs a step, unless it held before with what is in `inputs` now; whether it ran, as it says itself.
pub(crate) fn or_run(name: &str, inputs: &[&str], step: fn() -> Result<bool>) -> Result<bool> {
    let digest = digest(inputs)?;
    let record = record(name);
    if held_with(&record, &digest) {
        println!("\n{name}: NOT RUN, it held with these inputs: {}", inputs.join(", "));
        return Ok(false);
    }
    if !step()? {
        return Ok(false);
    }
    fs::create_dir_all(record.parent().context("a record has a folder")?)?;
    fs::write(&record, digest).with_context(|| record.display().to_string())?;
    Ok(true)
}

/// Forgets what held.
pub(crate) fn forget() -> Result<()> {
    match fs::remove_dir_all(target().join("ci")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn record(name: &str) -> PathBuf {
    target().join("ci").join(name.replace(' ', "-"))
}

fn held_with(record: &Path, digest: &[u8]) -> bool {
    let age = fs::metadata(record).and_then(|meta| meta.modified());
    let age = age.ok().and_then(|when| SystemTime::now().duration_since(when).ok());
    age.is_some_and(|age| age < GOOD_FOR) && fs::read(record).is_ok_and(|held| held == digest)
}

/// Of the names and contents of all files in `inputs` that git would keep.
pub(crate) fn digest(inputs: &[&str]) -> Result<Vec<u8>> {
    let mut sum = Sha256::new();
    sum.update(said(Command::new("rustc").arg("-vV"))?);
    for input in inputs {
        let names = files(input)?;
        // What is no place would be an input that never changes.
        ensure!(!names.is_empty(), "{input} has no files");
        for name in names {
            // One that is deleted and not yet committed.
            let Ok(content) = fs::read(root().join(&name)) else { continue };
            sum.update((name.len() as u64).to_le_bytes());
            sum.update(&name);
            sum.update((content.len() as u64).to_le_bytes());
            sum.update(content);
        }
    }
    Ok(sum.finalize().to_vec())
}

/// The files in a place of the repository that git would keep, from the root; some may be deleted and not yet committed.
pub(crate) fn files(place: &str) -> Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", place];
    let names = said(Command::new("git").args(list))?;
    Ok(str::from_utf8(&names)?.split_terminator('\0').map(str::to_owned).collect())
}

fn said(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.current_dir(root()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_known_by_content() {
        let [one, more] =
            [&["LICENSE"][..], &["LICENSE", "clippy.toml"]].map(|all| digest(all).unwrap());
        assert_eq!(digest(&["LICENSE"]).unwrap(), one);
        assert_ne!(one, more);
        digest(&["LICENSE", "no-such-place"]).unwrap_err();
        digest(&["crates/*/src"]).unwrap_err();
    }

    #[test]
    fn a_result_is_believed_of_the_same_inputs_for_a_week() {
        let folder = target().join("tmp");
        fs::create_dir_all(&folder).unwrap();
        let record = folder.join(format!("record-{}", std::process::id()));
        assert!(!held_with(&record, b"a"), "nothing held yet");
        fs::write(&record, "a").unwrap();
        assert!(held_with(&record, b"a") && !held_with(&record, b"b"));
        let old = SystemTime::now() - GOOD_FOR - Duration::from_secs(1);
        fs::File::options().write(true).open(&record).unwrap().set_modified(old).unwrap();
        assert!(!held_with(&record, b"a"), "it is old");
        fs::remove_file(&record).unwrap();
    }
}
