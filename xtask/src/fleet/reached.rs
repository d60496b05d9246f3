//! Has a stage of a run built on a machine with other facts that is reached by ssh: OpenSSH's client and dropbear's server.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::leases::until;
use super::workers::{ENGINE, pipeline, slow, the_engine_alone_was_built_elsewhere, with_cuda};
use super::{Board, Daemon, PICTURE, text};
use crate::server::free_port;
use crate::{debian, root};

/// What such a version of CUDA is not.
const OTHER_CUDA: &str = "12.8.1";
/// So long that nobody else sleeps as long.
const SECONDS: &str = "617";

/// Brings server and client.
pub(super) fn fetch() -> Result<()> {
    debian::need_alone("dropbear-bin", || debian::runs("dropbear", "-V"))?;
    debian::need_alone("openssh-client", || debian::runs("ssh", "-V"))
}

/// One run of a host and a board; and again, where each of them goes wrong.
pub(super) fn a_stage_is_built_on_a_board(smelt: &Path, work: &Path) -> Result<()> {
    fetch()?;
    let work = work.join("reached");
    fs::create_dir_all(&work)?;
    // Nobody is there who could be asked.
    let board = |name: &str| Board::new(smelt, work.join(name), 1);
    let reached = Reached::start(board("near")?, &work)?;
    let host = Host { board: board("host")?, bin: reached.bin.clone() };
    let demo = pipeline(&work, super::workers::CUDA)?;
    who_cannot_be_reached_is_told(&host, &demo, &reached)?;
    a_board_with_other_facts_builds_nothing(&host, &work, &reached)?;
    the_run_goes_through(&host, &demo, &reached)?;
    nobody_else_vouches_for_it(&host, &demo)?;
    what_nobody_waits_for_ends(&host, &work, &reached)
}

fn who_cannot_be_reached_is_told(host: &Host, demo: &str, reached: &Reached) -> Result<()> {
    let refused = |address: &str, words: &str| {
        let output = host.output(&["run", demo, "--worker", address])?;
        let said = text(&output.stderr);
        ensure!(!output.status.success() && said.contains(words), "{address}: {said}");
        Ok(())
    };
    refused("ssh://127.0.0.1:1", "Connection refused")?;
    refused(&format!("{}-not", reached.address()), "ssh://HOST/PATH/OF/smelt")?;
    refused("grpc://127.0.0.1:1", "write ssh://HOST")?;
    // Without anybody the way is named.
    refused("", "--worker ssh://HOST")
}

fn a_board_with_other_facts_builds_nothing(
    host: &Host,
    work: &Path,
    reached: &Reached,
) -> Result<()> {
    let other = pipeline(work, OTHER_CUDA)?;
    let output = host.output(&["run", &other, "--worker", &reached.address()])?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(5), "{}: {said}", output.status);
    ensure!(said.contains("is \"12.6.68\", not \"12.8.1\""), "{said}");
    ensure!(!reached.board.home.join("cache/out").exists(), "something came to the board");
    Ok(())
}

/// What the host builds, what the board builds of that, and what the host builds of that again, in one run.
fn the_run_goes_through(host: &Host, demo: &str, reached: &Reached) -> Result<()> {
    let ran = host.output(&["run", demo, "--json", "--worker", &reached.address()])?;
    let said = text(&ran.stderr);
    let report: Value = serde_json::from_slice(&ran.stdout).with_context(|| said.clone())?;
    ensure!(said.contains("has built it in ") && said.contains("peak RSS"), "{said}");
    the_engine_alone_was_built_elsewhere(&report)?;
    ensure!(!host.ok(&["chat", demo, "--image", PICTURE, "what shape?"])?.is_empty(), "no answer");
    // The board has what it was made of, and no more; the host has the same engine.
    let there = fs::read_dir(reached.board.home.join("cache/out"))?.count();
    ensure!(there == 2, "the board has {there} outputs");
    let engine = host.ok(&["out", demo, ENGINE])?;
    let name = engine.rsplit('/').next().unwrap_or_default();
    ensure!(reached.board.home.join("cache/out").join(name).exists(), "the engines differ");
    // Nobody is asked twice, and nobody need be there.
    let again = host.ok(&["run", demo, "--json", "--worker", "ssh://127.0.0.1:1"])?;
    let stages = report["stages"].as_array().context("no stages")?;
    ensure!(again.matches("\"hit\"").count() == stages.len(), "{again}");
    host.ok(&["cache", "fsck"])?;
    reached.board.ok(&["cache", "fsck"]).map(drop)
}

/// What was built there bears nobody's signature, and is published by nobody who was not there.
fn nobody_else_vouches_for_it(host: &Host, demo: &str) -> Result<()> {
    let chain = host.ok(&["provenance", demo, "deployment", "--chain"])?;
    let line = chain.lines().find(|line| line.starts_with(ENGINE)).unwrap_or_default();
    ensure!(line.contains("ssh://"), "the engine is not the board's: {chain}");
    let refused = host.output(&["provenance", demo, ENGINE])?;
    let said = text(&refused.stderr);
    ensure!(!refused.status.success() && said.contains("alone can vouch for it"), "{said}");
    Ok(())
}

/// Ctrl-C, a host that is killed: what the board builds ends; what it has of the files it keeps.
fn what_nobody_waits_for_ends(host: &Host, work: &Path, reached: &Reached) -> Result<()> {
    let pipeline = slow(work)?;
    // One that talks meets a line that has broken as it speaks.
    let quiet = fs::read_to_string(&pipeline)?;
    let talks = "sh -c 'while sleep 0.2; do date; done' & sleep $SLOW; kill $!;";
    fs::write(&pipeline, quiet.replace("sleep $SLOW;", talks))?;
    let seconds = format!("seconds={SECONDS}");
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let log = work.join("slow.log");
        let address = reached.address();
        let mut run = host.command(&["run", &pipeline, "--set", &seconds, "--worker", &address]);
        let run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut run = run.spawn()?;
        until("the board builds", || is_running(&["sleep", SECONDS]))?;
        kill(Pid::from_raw(run.id().cast_signed()), signal)?;
        let ended = run.wait()?;
        ensure!(signal == Signal::SIGKILL || ended.code() == Some(6), "{ended}");
        until("the board ends it", || !is_running(&["sleep", SECONDS]))?;
        let smelt = reached.board.smelt.display().to_string();
        until("its smelt ends", || !is_running(&[&smelt, "worker", "--session"]))?;
    }
    let done =
        host.output(&["run", &pipeline, "--set", "seconds=1", "--worker", &reached.address()])?;
    ensure!(done.status.success(), "{}", text(&done.stderr));
    Ok(())
}

/// Whether a process has these words among its arguments, one behind the other.
fn is_running(words: &[&str]) -> bool {
    let wanted = words.join("\0") + "\0";
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok())
        .any(|line| line.ends_with(&wanted))
}

/// A board that finds a client which knows the key.
struct Host {
    board: Board,
    bin: PathBuf,
}

impl Host {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut smelt = self.board.command(arguments);
        let path = std::env::var("PATH").unwrap_or_default();
        smelt.env("PATH", format!("{}:{path}", self.bin.display()));
        smelt.env("SMELT_FLEET", "");
        smelt
    }

    fn output(&self, arguments: &[&str]) -> Result<std::process::Output> {
        self.command(arguments).output().context("cannot start smelt")
    }

    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        ensure!(output.status.success(), "{}: {}", arguments.join(" "), text(&output.stderr));
        Ok(text(&output.stdout).trim_end().to_owned())
    }
}

/// A machine with another CUDA, and its server.
struct Reached {
    board: Board,
    bin: PathBuf,
    smelt: PathBuf,
    port: u16,
    _server: Daemon,
}

impl Reached {
    fn start(board: Board, work: &Path) -> Result<Self> {
        let (bin, port) = (work.join("bin"), free_port()?);
        fs::create_dir_all(&bin)?;
        let file = |name: &str| work.join(name).display().to_string();
        let (key, host_key) = (file("id"), file("host-key"));
        made(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &key]))?;
        made(Command::new("dropbearkey").args(["-t", "ed25519", "-f", &host_key]))?;
        // A client that knows nothing of whoever runs this.
        script(
            &bin.join("ssh"),
            &format!(
                "exec {} -F none -i {key} -o UserKnownHostsFile={} -o StrictHostKeyChecking=accept-new \"$@\"",
                debian::path_of("ssh")?.display(),
                file("known-hosts")
            ),
        )?;
        // A login has no environment: the board's smelt brings its own, and one line that no protocol knows.
        let smelt = work.join("board-smelt");
        let cache = board.path("cache");
        let own = format!(
            "echo Welcome to the board\nHOME={} SMELT_CACHE={cache} exec {} \"$@\"",
            board.home.display(),
            board.smelt.display()
        );
        script(&smelt, &own)?;
        let keys = "mkdir -p -m 700 ~/.ssh && mount -t tmpfs -o mode=700 none ~/.ssh && cp \"$0.pub\" ~/.ssh/authorized_keys && chmod 600 ~/.ssh/authorized_keys";
        // What the inputs were made of is on the host alone.
        let hidden = format!("mount -t tmpfs none {}", root().join("tests").display());
        let serve =
            format!("exec dropbear -F -E -s -p 127.0.0.1:{port} -r {host_key} -P {}", file("pid"));
        let mut server = Command::new("unshare");
        server.args([
            "-m",
            "sh",
            "-c",
            &format!("{} && {keys} && {hidden} && {serve}", with_cuda()),
            &key,
        ]);
        let server = Daemon::start(&mut server, port, &work.join("dropbear.log"))?;
        Ok(Self { board, bin, smelt, port, _server: server })
    }

    fn address(&self) -> String {
        format!("ssh://127.0.0.1:{}{}", self.port, self.smelt.display())
    }
}

fn made(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    Ok(())
}

fn script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
