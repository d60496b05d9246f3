//! Measures moving 2 GiB of sealed output to another store beside `tar` and `sha256sum`.
//!
//! Both sides end with files on a disk whose content was compared with SHA-256 digests that travelled with them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::measure::{self, Figures};
use super::{parse, succeed};
use crate::ci::cargo;
use crate::target;

/// Runs of each side when `--runs` does not say.
const RUNS: usize = 3;
/// Files of the output, as engines have them: a large one and small ones would be moved as fast.
const FILES: u64 = 8;
const FILE_BYTES: u64 = 256 << 20;
/// The most of the rival's processor time, and of memory.
const RATIO_MAX: f64 = 1.2;
const RSS_MIB_MAX: f64 = 40.0;

/// One stage that copies what lies beside the pipeline.
const PIPELINE: &str = r#"smelt = 1
name = "large"
[stage.large]
kind = "command"
inputs = ["path:files"]
argv = ["sh", "-c", "cp $SMELT_INPUTS/* ."]
outputs = ["0", "1", "2", "3", "4", "5", "6", "7"]
"#;

/// `cargo xtask bench bundle [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (runs, _) = parse(arguments, &[], RUNS)?;
    cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    let folder = target().join("bench/bundle");
    let _ = fs::remove_dir_all(&folder);
    sealed(&folder)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(both(
            &folder,
            ["smelt bundle p.toml --out x.smelt", "SMELT_CACHE=there smelt unbundle x.smelt"],
        )?);
        theirs.push(both(
            &folder,
            [
                "tar cf x.tar -C \"$(smelt out p.toml large)\" . && sha256sum x.tar > sum",
                "mkdir there && sha256sum --quiet -c sum && tar xf x.tar -C there",
            ],
        )?);
    }
    let _ = fs::remove_dir_all(&folder);
    let (ours, theirs) = (Figures::medians(&ours), Figures::medians(&theirs));
    let ratio = ours.cpu_s / theirs.cpu_s;
    println!("| 2 GiB, bundled and unpacked | CPU s | wall s | peak RSS |");
    println!("|---|---|---|---|");
    for (name, side) in [("smelt bundle, unbundle", ours), ("tar, sha256sum", theirs)] {
        println!("| {name} | {:.2} | {:.2} | {:.0} MiB |", side.cpu_s, side.wall_s, side.rss_mib);
    }
    println!("processor time: {ratio:.2} of the rival's");
    if ratio > RATIO_MAX || ours.rss_mib > RSS_MIB_MAX {
        bail!("targets missed: {RATIO_MAX} of the time, {RSS_MIB_MAX} MiB");
    }
    Ok(())
}

/// Seals the output; what it was copied from is removed.
fn sealed(folder: &Path) -> Result<()> {
    let files = folder.join("files");
    fs::create_dir_all(&files).with_context(|| files.display().to_string())?;
    fs::write(folder.join("p.toml"), PIPELINE)?;
    let mut state = 1u64;
    let mut piece = vec![0u8; 1 << 20];
    for number in 0..FILES {
        let mut file = File::create(files.join(number.to_string()))?;
        for _ in 0..FILE_BYTES >> 20 {
            // Nothing here shrinks what it moves; the numbers only have to differ.
            for word in piece.as_chunks_mut::<8>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *word = state.to_le_bytes();
            }
            file.write_all(&piece)?;
        }
    }
    succeed(shell(folder, "smelt run p.toml").stdout(Stdio::null()).stderr(Stdio::null()))
}

/// What sending and receiving take together; what was made is removed.
fn both(folder: &Path, commands: [&str; 2]) -> Result<Figures> {
    let [sent, received] = commands;
    let sent = measure::run(&words(folder, sent))?;
    let received = measure::run(&words(folder, received))?;
    succeed(&mut shell(folder, "rm -rf there x.* sum && sync"))?;
    Ok(Figures {
        cpu_s: sent.cpu_s + received.cpu_s,
        user_s: sent.user_s + received.user_s,
        wall_s: sent.wall_s + received.wall_s,
        rss_mib: sent.rss_mib.max(received.rss_mib),
    })
}

/// A line for a shell in `folder`, where `smelt` is ours and its store.
pub(super) fn words(folder: &Path, line: &str) -> Vec<OsString> {
    let programs = target().join("release");
    let line = format!(
        "cd '{}' && export PATH='{}':$PATH && {line}",
        folder.display(),
        programs.display()
    );
    ["sh", "-c", &line].map(OsString::from).into()
}

pub(super) fn shell(folder: &Path, line: &str) -> Command {
    let words = words(folder, line);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}
