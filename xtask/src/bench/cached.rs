//! Measures what a fully cached pipeline of twelve stages costs a fresh board, beside what fetching the last one's files alone takes,
//! and what it takes to judge the statement of a result of 2 GiB.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::bundle::{shell, words};
use super::measure::{self, Figures, median};
use super::{parse, remove, succeed};
use crate::ci::cargo;
use crate::fleet::{Daemon, casd_program, python};
use crate::server::free_port;
use crate::{root, target};

/// Turns when `--runs` does not say.
const RUNS: usize = 5;
const STAGES: usize = 12;
/// Beyond the time of fetching.
const BEYOND_S_MAX: f64 = 0.5;
/// Of judging a statement.
const JUDGE_MS_MAX: f64 = 1.0;

/// What looks like noise and is another for each stage: 32 MiB, the last one's 256.
const SCRIPT: &str = "#!/bin/sh
mib=32; [ \"$1\" = 11 ] && mib=256
openssl enc -aes-256-ctr -K 0$1 -iv 0 </dev/zero 2>/dev/null | head -c $((mib << 20)) >data
";
/// A home of this bench's own.
const HOME: &str = "export HOME=$PWD XDG_CONFIG_HOME=$PWD/config &&";

/// Each stage reads the one before it.
fn pipeline() -> String {
    let stage = |number: usize| {
        let inputs = match number.checked_sub(1) {
            Some(before) => format!("inputs = [\"s{before}\"]\n"),
            None => String::new(),
        };
        format!(
            "[stage.s{number}]\nkind = \"command\"\nargv = [\"./make.sh\", \"{number}\"]\n{inputs}outputs = [\"data\"]\n"
        )
    };
    let stages: String = (0..STAGES).map(stage).collect();
    format!("smelt = 1\nname = \"twelve\"\n{stages}")
}

/// `cargo xtask bench fleet cached [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (runs, _) = parse(arguments, &[], RUNS)?;
    cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    cargo(&["build", "--release", "--locked", "-p", "smelt-fleet", "--example", "boards"], &[])?;
    let (casd, python) = (casd_program()?, python()?);
    let folder = target().join("bench/cached");
    remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    fs::write(folder.join("p.toml"), pipeline())?;
    fs::write(folder.join("make.sh"), SCRIPT)?;
    fs::set_permissions(folder.join("make.sh"), fs::Permissions::from_mode(0o755))?;
    let server = Daemon::casd(&casd, &folder.join("cas"), free_port()?)?;
    let at = format!("127.0.0.1:{}", server.port());
    let does = |line: String| succeed(&mut shell(&folder, &format!("{HOME} {line}")));
    let client = format!("'{}' '{}/xtask/fleet/bytestream.py'", python.display(), root().display());
    does(format!(
        "smelt fleet trust $(smelt fleet keygen) --name own && smelt run p.toml --fleet grpc://{at} --push sealed"
    ))?;
    does(format!(
        "cp -r --no-preserve=mode \"$(smelt out p.toml s11)\" plain && {client} put {at} plain"
    ))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let run = format!("SMELT_CACHE=fresh smelt run p.toml --json --fleet grpc://{at}");
        let (figures, told) = measure::told(&words(&folder, &format!("{HOME} {run}")))?;
        nothing_was_built(&told)?;
        ours.push(figures);
        does("cp plain.list there.list".to_owned())?;
        let get = format!("{HOME} {client} get {at} there");
        theirs.push(measure::run(&words(&folder, &get))?);
        does("rm -rf fresh there there.list && sync".to_owned())?;
    }
    drop(server);
    remove(&folder)?;
    told(Figures::medians(&ours), Figures::medians(&theirs))
}

/// What a board has built that was to fetch everything would be no hit.
fn nothing_was_built(told: &str) -> Result<()> {
    let report: Value = serde_json::from_str(told).with_context(|| told.to_owned())?;
    let stages = report["stages"].as_array().context("a report has stages")?;
    let is_built = |stage: &&Value| stage["status"] == "sealed";
    let built: Vec<&Value> = stages.iter().filter(is_built).collect();
    ensure!(built.is_empty(), "built, and not fetched: {built:?}");
    Ok(())
}

fn told(ours: Figures, theirs: Figures) -> Result<()> {
    let beyond = ours.wall_s - theirs.wall_s;
    println!("| twelve stages, the last of 256 MiB | wall s | CPU s | peak RSS |");
    println!("|---|---|---|---|");
    for (name, side) in [("smelt run, a fresh board", ours), ("its files by ByteStream", theirs)] {
        println!("| {name} | {:.2} | {:.2} | {:.0} MiB |", side.wall_s, side.cpu_s, side.rss_mib);
    }
    println!("{beyond:.2} s beyond fetching, {BEYOND_S_MAX} are allowed");
    let judged = judge_ms()?;
    println!(
        "judging the statement of a result of 2 GiB: {judged:.3} ms, {JUDGE_MS_MAX} is allowed"
    );
    if beyond > BEYOND_S_MAX || judged > JUDGE_MS_MAX {
        bail!("targets missed");
    }
    Ok(())
}

/// By a program that does what a pull does with a statement that has come.
fn judge_ms() -> Result<f64> {
    let mut command = std::process::Command::new(target().join("release/examples/boards"));
    let output = command.arg("judge").output().context("cannot start the example boards")?;
    let text = String::from_utf8(output.stdout)?;
    let times = text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
    ensure!(output.status.success() && !times.is_empty(), "it told nothing");
    Ok(median(times))
}
