//! Measures sharing 1 GiB by a server on this machine beside the least a client can do: whole blobs by ByteStream.
//!
//! Both sides hash what they send and fetch, and leave what they fetched on the disk.  Ours cuts it into chunks, asks which
//! the server has, signs and judges, and seals what came.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::bundle::{shell, words};
use super::measure::{self, Figures};
use super::{parse, succeed};
use crate::ci::cargo;
use crate::fleet::{Daemon, casd_program, python};
use crate::server::free_port;
use crate::{root, target};

/// Runs of each side when `--runs` does not say.
const RUNS: usize = 3;
/// The least of the rival's rate, the most of its processor time, and of memory.
const RATE_MIN: f64 = 0.9;
const CPU_MAX: f64 = 1.3;
const RSS_MIB_MAX: f64 = 40.0;

/// A script is part of the key, so that what it makes is shared.
const PIPELINE: &str = r#"smelt = 1
name = "large"
[stage.large]
kind = "command"
argv = ["./make.sh"]
outputs = ["0", "1", "2", "3"]
"#;
/// Four files of 256 MiB that look like noise and are the same everywhere.
const SCRIPT: &str = "#!/bin/sh
for n in 0 1 2 3; do
  openssl enc -aes-256-ctr -K 0$n -iv 0 </dev/zero 2>/dev/null | head -c 268435456 >$n
done
";

/// `cargo xtask bench fleet [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (runs, _) = parse(arguments, &[], RUNS)?;
    cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    let (casd, python) = (casd_program()?, python()?);
    let folder = target().join("bench/fleet");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    fs::write(folder.join("p.toml"), PIPELINE)?;
    fs::write(folder.join("make.sh"), SCRIPT)?;
    fs::set_permissions(folder.join("make.sh"), fs::Permissions::from_mode(0o755))?;
    succeed(&mut shell(
        &folder,
        &format!(
            "{HOME} smelt run p.toml && smelt fleet trust $(smelt fleet keygen) --name own && cp -r --no-preserve=mode \"$(smelt out p.toml large)\" plain"
        ),
    ))?;
    let client = format!("'{}' '{}/xtask/fleet/bytestream.py'", python.display(), root().display());
    let mut sides = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (side, rows) in sides.iter_mut().enumerate() {
            let server = Daemon::casd(&casd, &folder.join("cas"), free_port()?)?;
            let at = format!("127.0.0.1:{}", server.port());
            rows.push(match side {
                0 => both(
                    &folder,
                    &format!("smelt cache push p.toml --fleet grpc://{at}"),
                    &format!("SMELT_CACHE=there smelt cache pull p.toml --fleet grpc://{at}"),
                )?,
                _ => both(
                    &folder,
                    &format!("{client} put {at} plain"),
                    &format!("mv plain.list there.list && {client} get {at} there"),
                )?,
            });
            drop(server);
            succeed(&mut shell(&folder, "rm -rf there there.list cas && sync"))?;
        }
    }
    let _ = fs::remove_dir_all(&folder);
    told(&sides)
}

/// A home of this bench's own.
const HOME: &str = "export HOME=$PWD XDG_CONFIG_HOME=$PWD/config &&";

fn both(folder: &Path, push: &str, pull: &str) -> Result<[Figures; 2]> {
    let run = |line: &str| measure::run(&words(folder, &format!("{HOME} {line}")));
    Ok([run(push)?, run(pull)?])
}

fn told(sides: &[Vec<[Figures; 2]>; 2]) -> Result<()> {
    println!("| 1 GiB | | CPU s | wall s | peak RSS |");
    println!("|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (at, verb) in ["push", "pull"].into_iter().enumerate() {
        let [ours, theirs] = sides
            .each_ref()
            .map(|rows| Figures::medians(&rows.iter().map(|row| row[at]).collect::<Vec<_>>()));
        for (name, side) in [("smelt cache", ours), ("ByteStream", theirs)] {
            println!(
                "| {verb} | {name} | {:.2} | {:.2} | {:.0} MiB |",
                side.cpu_s, side.wall_s, side.rss_mib
            );
        }
        let (rate, cpu) = (theirs.wall_s / ours.wall_s, ours.cpu_s / theirs.cpu_s);
        println!("{verb}: {rate:.2} of the rival's rate, {cpu:.2} of its processor time");
        if rate < RATE_MIN || cpu > CPU_MAX || ours.rss_mib > RSS_MIB_MAX {
            missed.push(verb);
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    bail!(
        "targets missed by {}: {RATE_MIN} of the rate, {CPU_MAX} of the time, {RSS_MIB_MAX} MiB",
        missed.join(" and ")
    )
}
