//! Does the least that stages can take: starts each program and commits what it made durably.
//!
//! No keys, no journal, no watching.  What smelt takes above this is its own.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// `xtask floor COUNT FOLDER`: COUNT stages one after another, each in a directory of its own.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let [count, folder] = arguments[..] else { bail!("floor takes a count and a folder") };
    let (count, folder): (usize, &Path) = (count.parse()?, Path::new(folder));
    let (work, out) = (folder.join("work"), folder.join("out"));
    fs::create_dir_all(&work)?;
    fs::create_dir_all(&out)?;
    let mut log = File::create(folder.join("log")).context("log")?;
    for stage in 0..count {
        let dir = work.join(stage.to_string());
        fs::create_dir(&dir)?;
        program(stage, &dir, &out)?;
        File::open(dir.join("o"))?.sync_all()?;
        File::open(&dir)?.sync_all()?;
        fs::rename(&dir, out.join(stage.to_string()))?;
        File::open(&out)?.sync_all()?;
        writeln!(log, "{stage}")?;
        log.sync_all()?;
    }
    Ok(())
}

/// The program of a stage of [`super::graph`].
fn program(stage: usize, dir: &Path, out: &Path) -> Result<()> {
    let input = match stage {
        0 => "/dev/null".into(),
        _ => out.join((stage - 1).to_string()).join("o"),
    };
    let text = format!("cp {} o && echo {stage} >> o", input.display());
    let status = Command::new("sh").args(["-c", &text]).current_dir(dir).status()?;
    if !status.success() {
        bail!("stage {stage} ended with {status}");
    }
    Ok(())
}
