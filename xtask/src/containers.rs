//! Has stages start containers by docker's own daemon and by podman, and looks whether those are the stages': measured, limited,
//! killed with them, whoever dies.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::tidy::build_smelt;
use crate::{debian, target};

/// Whatever is waited for comes within this.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a container of these tests says to be found by.
const SLEEPS: &str = "sleep 6171";
/// In bytes, what one of them holds.
const HELD: u64 = 200 << 20;

/// `cargo xtask containers`; whether it could run.
pub(crate) fn run() -> Result<bool> {
    println!("\n$ cargo xtask containers");
    if !nix::unistd::geteuid().is_root() {
        println!("containers: not run, since a daemon of one's own needs root");
        return Ok(false);
    }
    fetch()?;
    let (smelt, work) = (build_smelt()?, target().join("containers"));
    unmount_below(&work)?;
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    fs::create_dir_all(&work)?;
    let image = image(&work)?;
    let docker = Docker::start(&work)?;
    docker.takes(&image)?;
    whole(&Bench { smelt: smelt.clone(), work: work.join("d"), engine: docker.engine() })?;
    docker.others_are_left_alone(&smelt, &work)?;
    let podman = podman(&work, &image)?;
    whole(&Bench { smelt, work: work.join("p"), engine: podman })?;
    println!(
        "containers of docker and podman are measured, limited and killed as their stages are"
    );
    Ok(true)
}

/// What containers of podman whose monitor was killed have left mounted.
fn unmount_below(folder: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    // The last that was mounted goes first.
    let own: Vec<&Path> = points.filter(|point| point.starts_with(folder)).collect();
    own.into_iter().rev().try_for_each(|point| succeeds(Command::new("umount").arg(point)))
}

/// Brings engines and what is in their containers.
fn fetch() -> Result<()> {
    debian::need_alone("docker.io", || debian::runs("dockerd", "--version"))?;
    debian::need_alone("podman", || debian::runs("podman", "--version"))?;
    debian::need_alone("runc", || debian::runs("runc", "--version"))?;
    debian::need_alone("busybox-static", || Path::new("/bin/busybox").exists())
}

/// An image of busybox alone, as a file.
fn image(work: &Path) -> Result<PathBuf> {
    let (folder, file) = (work.join("image"), work.join("image.tar"));
    fs::create_dir_all(folder.join("bin"))?;
    fs::copy("/bin/busybox", folder.join("bin/busybox"))?;
    for name in ["sh", "sleep", "head", "tail", "echo"] {
        std::os::unix::fs::symlink("busybox", folder.join("bin").join(name))?;
    }
    let mut tar = Command::new("tar");
    succeeds(tar.arg("-C").arg(&folder).arg("-cf").arg(&file).arg("."))?;
    Ok(file)
}

/// How a stage starts containers.
struct Engine {
    /// What it writes before the image.
    run: String,
    env: Vec<(String, String)>,
}

/// Whether a process does this, whatever engines say of their containers.
fn runs(words: &str) -> bool {
    let wanted = words.replace(' ', "\0") + "\0";
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.ends_with(wanted.as_bytes()))
}

fn until_nothing_runs() -> Result<()> {
    until("it has ended", || !runs(SLEEPS))
}

/// A daemon of these tests' own.
struct Docker {
    child: Child,
    host: String,
}

impl Docker {
    fn start(work: &Path) -> Result<Self> {
        // Short, since the path of a socket is.
        let folder = PathBuf::from(format!("/tmp/smelt-docker-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let host = format!("unix://{}/s", folder.display());
        let path = |name: &str| folder.join(name).display().to_string();
        let mut daemon = Command::new("dockerd");
        daemon.args(["--bridge=none", "--iptables=false", "--ip-masq=false", "-H", &host]);
        daemon.args([
            "--data-root",
            &path("data"),
            "--exec-root",
            &path("exec"),
            "-p",
            &path("pid"),
        ]);
        let log = File::create(work.join("dockerd.log"))?;
        daemon.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let docker = Self { child: daemon.spawn().context("cannot start dockerd")?, host };
        until("docker answers", || {
            docker.command(&["version"]).output().is_ok_and(|it| it.status.success())
        })?;
        Ok(docker)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        docker.args(arguments).env("DOCKER_HOST", &self.host);
        docker
    }

    fn takes(&self, image: &Path) -> Result<()> {
        succeeds(self.command(&["import"]).arg(image).arg("tiny"))
    }

    fn engine(&self) -> Engine {
        Engine {
            run: "docker run --rm --network none".to_owned(),
            env: vec![("DOCKER_HOST".to_owned(), self.host.clone())],
        }
    }

    /// A stage that notes the id of a container which was there before ends nobody.
    fn others_are_left_alone(&self, smelt: &Path, work: &Path) -> Result<()> {
        let words = ["run", "-d", "--network", "none", "tiny", "sleep", "6172"];
        let started = self.command(&words).output()?;
        let id = String::from_utf8_lossy(&started.stdout).trim().to_owned();
        ensure!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let bench = Bench { smelt: smelt.to_owned(), work: work.join("o"), engine: self.engine() };
        let line = format!(
            "mkdir -p $SMELT_CONTAINERS; echo {id} > $SMELT_CONTAINERS/docker-1; echo done > out"
        );
        let output = bench.run(&line, "")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ensure!(runs("sleep 6172"), "a stage has ended somebody else's container");
        succeeds(&mut self.command(&["rm", "-f", &id]))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
        if let Some(folder) =
            self.host.strip_prefix("unix://").map(Path::new).and_then(Path::parent)
        {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Podman with a store of these tests' own; its usual runtime knows no mixed hierarchies of control groups.
fn podman(work: &Path, image: &Path) -> Result<Engine> {
    let path = |name: &str| work.join(name).display().to_string();
    let (root, run) = (path("podman"), path("podman-run"));
    let own = [
        "podman",
        "--root",
        &root,
        "--runroot",
        &run,
        "--runtime",
        "runc",
        "--cgroup-manager",
        "cgroupfs",
    ];
    let mut import = Command::new(own[0]);
    succeeds(import.args(&own[1..]).arg("import").arg(image).arg("tiny"))?;
    let limits = "--ulimit nofile=1024:1024 --ulimit nproc=4096:4096";
    Ok(Engine {
        run: format!("{} run --rm --network none {limits}", own.join(" ")),
        env: Vec::new(),
    })
}

/// Everything of one engine.
fn whole(bench: &Bench) -> Result<()> {
    fs::create_dir_all(&bench.work)?;
    what_it_holds_is_the_stages(bench)?;
    what_it_holds_counts_against_the_limit(bench)?;
    what_is_left_ends_with_the_stage(bench)?;
    it_ends_with_the_server_that_started_it(bench)?;
    it_ends_whoever_dies(bench)
}

/// A store and an engine.
struct Bench {
    smelt: PathBuf,
    work: PathBuf,
    engine: Engine,
}

impl Bench {
    /// A pipeline of one stage that does a line of a shell.
    fn pipeline(&self, line: &str, more: &str) -> Result<PathBuf> {
        self.pipeline_with(line, more, "")
    }

    /// With another variable of its environment.
    fn pipeline_with(&self, line: &str, more: &str, variable: &str) -> Result<PathBuf> {
        fs::create_dir_all(&self.work)?;
        let path = self.work.join("p.toml");
        let own = self.engine.env.iter().map(|(name, value)| format!("{name} = \"{value}\""));
        let env: Vec<String> =
            own.chain([variable.to_owned()]).filter(|it| !it.is_empty()).collect();
        let text = format!(
            "smelt = 1\nname = \"containers\"\n[stage.box]\nkind = \"command\"\nargv = [\"sh\", \"-c\", '''{line}''']\noutputs = [\"out\"]\n\
             writes = [\"/\"]\nenv = {{ {} }}\n{more}\n",
            env.join(", ")
        );
        fs::write(&path, text)?;
        Ok(path)
    }

    fn command(&self, pipeline: &Path) -> Command {
        let mut smelt = Command::new(&self.smelt);
        smelt.arg("run").arg(pipeline).arg("--json").env("SMELT_CACHE", self.work.join("cache"));
        smelt.env("PATH", env::var("PATH").unwrap_or_default()).stdin(Stdio::null());
        smelt
    }

    fn run(&self, line: &str, more: &str) -> Result<Output> {
        self.run_with(line, more, "")
    }

    fn run_with(&self, line: &str, more: &str, variable: &str) -> Result<Output> {
        let pipeline = self.pipeline_with(line, more, variable)?;
        self.command(&pipeline).output().context("cannot start smelt")
    }

    /// In a container.
    fn within(&self, line: &str) -> String {
        format!("{} tiny sh -c \"{line}\"", self.engine.run)
    }
}

/// The attempt of a run of one stage.
fn attempt(output: &Output) -> Result<Value> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).with_context(|| said.clone())?;
    Ok(report["stages"][0]["attempts"].as_array().and_then(|all| all.last()).context(said)?.clone())
}

fn what_it_holds_is_the_stages(bench: &Bench) -> Result<()> {
    // `tail` keeps what it is given, which has no end of a line.
    let line = format!(
        "{} > out",
        bench.within(&format!("(head -c {HELD} /dev/zero; sleep 2) | tail -n 1 | head -c 3"))
    );
    let output = bench.run(&line, "")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let attempt = attempt(&output)?;
    for figure in ["peak_rss_bytes", "cgroup_peak_bytes"] {
        let bytes = attempt[figure].as_u64().unwrap_or_default();
        ensure!(bytes > HELD * 9 / 10, "{figure}: {bytes} of {HELD} were seen: {attempt}");
    }
    Ok(())
}

fn what_it_holds_counts_against_the_limit(bench: &Bench) -> Result<()> {
    let held = format!("(head -c {HELD} /dev/zero; {SLEEPS}) | tail -n 1");
    let output = bench
        .run(&format!("{}; echo > out", bench.within(&held)), "limits = { memory = \"100MiB\" }")?;
    let attempt = attempt(&output)?;
    ensure!(attempt["class"] == "memory-limit", "{attempt}");
    until_nothing_runs()
}

/// A container that goes on behind whoever started it is ended as processes are, and stays so.
fn what_is_left_ends_with_the_stage(bench: &Bench) -> Result<()> {
    for more in ["-d", "-d --restart=always"] {
        let line = bench.within(SLEEPS).replacen(" run --rm", &format!(" run {more}"), 1);
        // Whoever sets a path of his own is followed as well.
        let path = format!("PATH = \"{}\"", env::var("PATH")?);
        let output = bench.run_with(&format!("{line} && echo done > out"), "", &path)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let attempt = attempt(&output)?;
        ensure!(attempt["leftovers"].as_u64() > Some(0), "nothing was left: {attempt}");
        until_nothing_runs()?;
        // An engine that starts it again does so within a second.
        thread::sleep(Duration::from_secs(2));
        ensure!(!runs(SLEEPS), "{more}: it was started again");
    }
    // One that begins when its stage has ended.
    let line = bench.within(SLEEPS).replacen(" run ", " run -d ", 1);
    let output = bench.run(&format!("({line} >/dev/null 2>&1 &) ; echo done > out"), "")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    thread::sleep(Duration::from_secs(2));
    until_nothing_runs()
}

/// `smelt serve` has servers led so; the end of the pipe is its own.
fn it_ends_with_the_server_that_started_it(bench: &Bench) -> Result<()> {
    let line = format!("exec {} tiny {SLEEPS}", bench.engine.run);
    let mut lead = Command::new(&bench.smelt);
    lead.args(["stage", "lead", "--", "sh", "-c", &line]).envs(bench.engine.env.iter().cloned());
    lead.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut lead = lead.spawn()?;
    until("the container runs", || runs(SLEEPS))?;
    drop(lead.stdin.take());
    lead.wait()?;
    until_nothing_runs()
}

/// Ctrl-C; a supervisor that is killed; and a shim with it, which the next run finds.
fn it_ends_whoever_dies(bench: &Bench) -> Result<()> {
    for dies in ["nobody", "smelt", "smelt and its shim"] {
        let pipeline = bench.pipeline(&format!("{}; echo > out", bench.within(SLEEPS)), "")?;
        let mut run = bench.command(&pipeline);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        until("the container runs", || runs(SLEEPS))?;
        // It is known to the supervisor, too.
        thread::sleep(Duration::from_secs(1));
        let shims = children(run.id());
        let signal = if dies == "nobody" { Signal::SIGINT } else { Signal::SIGKILL };
        if dies == "smelt and its shim" {
            for shim in &shims {
                kill(Pid::from_raw(*shim), Signal::SIGKILL)?;
            }
        }
        kill(Pid::from_raw(run.id().cast_signed()), signal)?;
        run.wait()?;
        if dies == "smelt and its shim" {
            let next = bench.run("echo done > out", "")?;
            ensure!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
        }
        until(&format!("it has ended where {dies} was killed"), || !runs(SLEEPS))?;
    }
    Ok(())
}

/// The processes that another one has started.
fn children(of: u32) -> Vec<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.strip_prefix("PPid:").is_some_and(|it| it.trim() == of.to_string()))
    };
    pids.filter(is_child).collect()
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let begin = Instant::now();
    while !is_so() {
        ensure!(begin.elapsed() < PATIENCE, "it was waited in vain until {what}");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn succeeds(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}
