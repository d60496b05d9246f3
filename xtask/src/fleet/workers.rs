//! Has stages of a run built by `smelt worker` on a machine with other facts, which a real scheduler finds: BuildGrid over PostgreSQL.
//!
//! The worker runs in a mount name space where CUDA of another version seems to be installed: its facts differ.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use serde_json::Value;

use super::leases::until;
use super::{Board, Daemon, PICTURE, PIPELINE, statuses, text};
use crate::server::free_port;
use crate::{debian, python, root};

/// The version that the worker's machine seems to have.
pub(super) const CUDA: &str = "12.6.68";
/// What only a worker builds.
pub(super) const ENGINE: &str = "llm-engine";

/// Brings BuildGrid and PostgreSQL.
pub(super) fn fetch() -> Result<()> {
    buildgrid()?;
    postgresql().map(drop)
}

/// One run of a host and a worker; and again, where each of them goes wrong.
pub(super) fn a_stage_is_built_where_it_belongs(
    smelt: &Path,
    work: &Path,
    is_whole: bool,
) -> Result<()> {
    let work = work.join("workers");
    fs::create_dir_all(&work)?;
    let grid = Grid::start(&work)?;
    let board = |name: &str| Board::new(smelt, work.join(name), grid.server.port());
    let (host, far) = (board("host")?, board("far")?);
    let [host_key, far_key] = [&host, &far].map(|board| board.ok(&["fleet", "keygen"]));
    let (host_key, far_key) = (host_key?, far_key?);
    let pipeline = pipeline(&work, CUDA)?;
    no_worker_is_waited_for_in_vain(&host, &pipeline)?;
    nobody_knows_such_a_fact(&host, &work)?;
    believes(&far, "host", &host_key, "portable")?;
    let strict = far.output(&["worker"])?;
    ensure!(text(&strict.stderr).contains("--for work"), "{}", text(&strict.stderr));
    believes(&host, "far", &far_key, "device,portable")?;
    a_strangers_work_is_not_done(&board("stranger")?, &far, &work, &pipeline)?;
    far.ok(&["fleet", "untrust", "host"])?;
    let far = board("near")?;
    let far_key = far.ok(&["fleet", "keygen"])?;
    believes(&far, "host", &host_key, "work,portable")?;
    believes(&host, "near", &far_key, "device,portable")?;
    let worker = Worker::start(&far, &work)?;
    the_run_goes_through(&host, &pipeline, &far)?;
    another_host_gets_the_same(&board("second")?, &host, &far, &pipeline, &far_key)?;
    drop(worker);
    if is_whole {
        what_is_taken_back_ends(&host, &far, &work)?;
    }
    Ok(())
}

/// The demo, whose decoder's engine is built where CUDA is of that version.
pub(super) fn pipeline(work: &Path, cuda: &str) -> Result<String> {
    let text = fs::read_to_string(root().join(PIPELINE))?;
    let here = format!("path:{}", root().join("tests").display());
    let engine = format!("[stage.{ENGINE}]\n");
    ensure!(text.contains(&engine), "the demo has no {ENGINE}");
    let there = format!("{engine}where = {{ cuda = \"{cuda}\" }}\ndevice = [\"cuda\"]\n");
    let text = text.replace("path:../tests", &here).replace(&engine, &there);
    let path = work.join(format!("demo-{cuda}.toml"));
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

/// A stage for such a machine that takes `seconds`, made of nothing: its path.
pub(super) fn slow(work: &Path) -> Result<String> {
    let slow = work.join("slow.toml");
    let text_of = "smelt = 1\nname = \"slow\"\n[stage.slow]\nkind = \"command\"\nargv = [\"sh\", \"-c\", \"sleep $SLOW; echo done > done\"]\n\
        outputs = [\"done\"]\nshare = true\nwhere = { cuda = \"CUDA\" }\nenv = { SLOW = \"${seconds}\" }\n[params]\nseconds = \"600\"\n";
    fs::write(&slow, text_of.replace("CUDA", CUDA))?;
    Ok(slow.display().to_string())
}

/// A shell's line by which its mount name space has that CUDA.
pub(super) fn with_cuda() -> String {
    format!(
        "mount -t tmpfs none /usr/local && mkdir /usr/local/cuda && printf '{{\\n \"cuda\" : {{\\n \"version\" : \"{CUDA}\"\\n }}\\n}}\\n' > /usr/local/cuda/version.json"
    )
}

fn no_worker_is_waited_for_in_vain(host: &Board, pipeline: &str) -> Result<()> {
    let output = host.output(&["run", pipeline, "--worker-wait", "3s"])?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(5), "{}: {said}", output.status);
    ensure!(said.contains("no worker with cuda = \"12.6.68\" took it within 3 s"), "{said}");
    // Without a server nobody is asked.
    let output = host.output(&["run", pipeline, "--fleet", ""])?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(5) && said.contains("smelt worker"), "{said}");
    Ok(())
}

fn nobody_knows_such_a_fact(host: &Board, work: &Path) -> Result<()> {
    let text_of = fs::read_to_string(pipeline(work, CUDA)?)?;
    let odd = work.join("odd.toml");
    fs::write(&odd, text_of.replace("where = { cuda = ", "where = { kernel = "))?;
    let output = host.output(&["run", &path(&odd)])?;
    let said = text(&output.stderr);
    ensure!(!output.status.success() && said.contains("Known properties"), "{said}");
    Ok(())
}

/// Whoever is believed to build need not be believed to give work.
fn a_strangers_work_is_not_done(
    stranger: &Board,
    far: &Board,
    work: &Path,
    pipeline: &str,
) -> Result<()> {
    let key = stranger.ok(&["fleet", "keygen"])?;
    believes(far, "boss", &key, "portable")?;
    let other = far.ok(&["fleet", "keygen", "--out", &far.path("boss.pem")])?;
    believes(far, "other", &other, "work")?;
    let worker = Worker::start(far, work)?;
    let output = stranger.output(&["run", pipeline])?;
    let said = text(&output.stderr);
    ensure!(!output.status.success(), "a stranger's work is done: {said}");
    ensure!(said.contains("nobody asks for it whose work is done here"), "{said}");
    ensure!(worker.said("is not trusted for \"work\""), "the worker does not say why");
    ensure!(!far.home.join("cache/out").exists() || is_empty(&far.home.join("cache/out"))?);
    Ok(())
}

fn is_empty(folder: &Path) -> Result<bool> {
    Ok(fs::read_dir(folder)?.next().is_none())
}

/// What the host builds, what the worker builds of that, and what the host builds of that again, in one run.
fn the_run_goes_through(host: &Board, pipeline: &str, far: &Board) -> Result<()> {
    let ran = host.output(&["run", pipeline, "--json"])?;
    let (report, said): (Value, _) = (serde_json::from_slice(&ran.stdout)?, text(&ran.stderr));
    ensure!(said.contains("has built it in ") && said.contains("peak RSS"), "{said}");
    the_engine_alone_was_built_elsewhere(&report)?;
    let answer = host.ok(&["chat", pipeline, "--image", PICTURE, "what shape?"])?;
    ensure!(!answer.is_empty(), "no answer");
    let chain = host.ok(&["provenance", pipeline, "deployment", "--chain"])?;
    let line = chain.lines().find(|line| line.starts_with(ENGINE)).unwrap_or_default();
    ensure!(line.contains("near"), "the engine is not the worker's: {chain}");
    // The worker has what it was made of, and no more.
    let out = fs::read_dir(far.home.join("cache/out"))?.count();
    ensure!(out == 2, "the worker has {out} outputs, not what it was made of and itself");
    // Nothing is asked for twice.
    let again = host.json(&["run", pipeline, "--json", "--worker-wait", "1s"])?;
    ensure!(statuses(&again)?.iter().all(|(_, status)| status == "hit"), "{again}");
    host.ok(&["cache", "fsck"]).map(drop)
}

/// What a run tells when another machine built the engine, and this one what is made of that.
pub(super) fn the_engine_alone_was_built_elsewhere(report: &Value) -> Result<()> {
    let attempts = |stage: &Value| stage["attempts"].as_array().map_or(0, Vec::len);
    let stages = report["stages"].as_array().context("no stages")?;
    let of = |name: &str| stages.iter().find(|stage| stage["name"] == name).context("a stage");
    ensure!(attempts(of(ENGINE)?) == 0 && of(ENGINE)?["status"] == "sealed", "{report}");
    ensure!(attempts(of("verify")?) == 1 && attempts(of("deployment")?) == 1, "{report}");
    Ok(())
}

/// Who asks later is given what is there; nothing is built again.
fn another_host_gets_the_same(
    second: &Board,
    host: &Board,
    far: &Board,
    pipeline: &str,
    far_key: &str,
) -> Result<()> {
    let key = second.ok(&["fleet", "keygen"])?;
    believes(far, "second", &key, "work,portable")?;
    let refused = second.output(&["run", pipeline])?;
    let said = text(&refused.stderr);
    ensure!(!refused.status.success() && said.contains("smelt fleet trust"), "{said}");
    believes(second, "near", far_key, "device,portable")?;
    second.ok(&["run", pipeline, "--json"])?;
    let out = |board: &Board| board.ok(&["out", pipeline, ENGINE]);
    let name = |path: String| path.rsplit('/').next().map(str::to_owned);
    ensure!(name(out(second)?) == name(out(host)?), "the engines differ");
    ensure!(fs::read_dir(far.home.join("cache/out"))?.count() == 2, "it was built again");
    Ok(())
}

/// Ctrl-C takes back what a worker was asked for, which it then ends; a worker that is killed is replaced by another one.
fn what_is_taken_back_ends(host: &Board, far: &Board, work: &Path) -> Result<()> {
    let slow = slow(work)?;
    let worker = Worker::start(far, work)?;
    let mut run = host.command(&["run", &slow]);
    let log = work.join("taken-back.log");
    let mut run =
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
    until("the worker builds", || worker.said("attempt 1") || worker.said("slow started"))?;
    kill(Pid::from_raw(run.id().cast_signed()), Signal::SIGINT)?;
    let ended = run.wait()?;
    ensure!(ended.code() == Some(6), "{ended}: {}", fs::read_to_string(&log)?);
    until("the worker ends it", || worker.said("nobody wants slow any more"))?;
    let mut run = host.command(&["run", &slow, "--set", "seconds=5"]);
    let run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
    until("the worker builds again", || worker.count("asks for slow") == 2)?;
    worker.kill()?;
    let second = Worker::start(far, work)?;
    let ended = run.wait_with_output()?;
    ensure!(ended.status.success(), "{}: {}", ended.status, fs::read_to_string(&log)?);
    ensure!(second.said("asks for slow"), "another worker did nothing");
    Ok(())
}

fn path(file: &Path) -> String {
    file.display().to_string()
}

fn believes(board: &Board, name: &str, key: &str, purposes: &str) -> Result<()> {
    board.ok(&["fleet", "trust", key, "--name", name, "--for", purposes]).map(drop)
}

/// `smelt worker` on a machine with CUDA.
struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    fn start(board: &Board, work: &Path) -> Result<Self> {
        let log = work.join("worker.log");
        let cuda = format!("{} && exec \"$0\" worker", with_cuda());
        let mut worker = Command::new("unshare");
        worker.args(["-m", "sh", "-c", &cuda]).arg(&board.smelt);
        let own = board.command(&[]);
        worker.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        worker.env_remove("XDG_CONFIG_HOME").current_dir(root()).stdin(Stdio::null());
        let child = worker.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        let worker = Self { child, log };
        until("the worker is ready", || worker.said("builds what"))?;
        Ok(worker)
    }

    fn said(&self, words: &str) -> bool {
        self.count(words) > 0
    }

    fn count(&self, words: &str) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().matches(words).count()
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It hands back what it has not done.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// BuildGrid and its database.
struct Grid {
    server: Daemon,
    _database: Database,
}

impl Grid {
    fn start(work: &Path) -> Result<Self> {
        let (bgd, database, port) = (buildgrid()?, Database::start()?, free_port()?);
        let address = format!("postgresql://smelt@/postgres?host={}", database.folder.display());
        let migrated = Command::new(&bgd).args(["migrate", "apply", &address]).output()?;
        ensure!(migrated.status.success(), "bgd migrate: {}", text(&migrated.stderr));
        let mut server = Command::new(&bgd);
        server.args(["server", "start"]).arg(root().join("xtask/fleet/buildgrid/server.yml"));
        server.env("SMELT_BUILDGRID_PORT", port.to_string()).env("SMELT_BUILDGRID_DB", address);
        let server = Daemon::start(&mut server, port, &work.join("buildgrid.log"))?;
        Ok(Self { server, _database: database })
    }
}

/// Its command.
fn buildgrid() -> Result<PathBuf> {
    let requirements = root().join("xtask/fleet/buildgrid/requirements.txt");
    Ok(python::environment("buildgrid", &requirements)?.with_file_name("bgd"))
}

/// Where PostgreSQL's programs are.
fn postgresql() -> Result<PathBuf> {
    debian::need_alone("postgresql", || programs().is_some())?;
    programs().context("postgresql has no programs")
}

/// PostgreSQL in a folder of its own, reached by a socket there.
struct Database {
    programs: PathBuf,
    folder: PathBuf,
}

impl Database {
    fn start() -> Result<Self> {
        let programs = postgresql()?;
        // Short, since the path of a socket is, and where its own user reaches it.
        let folder = PathBuf::from(format!("/tmp/smelt-postgres-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let database = Self { programs, folder };
        if let Some(user) = postgres()? {
            chown(&database.folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        let data = database.folder.join("data").display().to_string();
        database.ok(
            "initdb",
            &["-D", &data, "-U", "smelt", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        )?;
        let options = format!(
            "-c listen_addresses='' -k {} -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=32MB -c jit=off",
            database.folder.display()
        );
        database.ok(
            "pg_ctl",
            &["-D", &data, "-l", &format!("{data}.log"), "-w", "-s", "-o", &options, "start"],
        )?;
        Ok(database)
    }

    /// It does not run as root.
    fn command(&self, program: &str, arguments: &[&str]) -> Result<Command> {
        let program = self.programs.join(program);
        let mut command = match postgres()? {
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", &user.name, "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        Ok(command)
    }

    fn ok(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(program, arguments)?;
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(ended.success(), "{program}: {ended}");
        Ok(())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let data = self.folder.join("data").display().to_string();
        let _ = self.ok("pg_ctl", &["-D", &data, "-m", "immediate", "-w", "-s", "stop"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The user that it runs as where this is root.
fn postgres() -> Result<Option<User>> {
    match nix::unistd::geteuid().is_root() {
        true => Ok(User::from_name("postgres")?),
        false => Ok(None),
    }
}

/// Where Debian keeps the programs of the newest PostgreSQL that is here.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let folders = versions.map(|version| version.path().join("bin"));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}
