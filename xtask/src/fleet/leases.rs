//! Boards that want the same at once agree by a real server of leases, nats-server, on who builds it; and builders are taken away.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Board, Daemon, PIPELINE, is_built, python, text};
use crate::server::free_port;

/// As long as everything may take: a lease of 15 seconds, and a few builds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// A frozen builder's lease has run out by then.
const FROZEN: Duration = Duration::from_secs(20);
/// Boards that want the same at once.
const BOARDS: usize = 4;

/// Of boards that want the same at once one builds; where it dies, one of the others does.
pub(super) fn one_of_many_builds(smelt: &Path, casd: &Path, work: &Path) -> Result<()> {
    let site = Site::new(smelt, casd, work.join("site"))?;
    let (boards, keys) = site.boards(BOARDS)?;
    let reader = site.board("reader")?;
    trust(&reader, &keys)?;
    let mut going: Vec<Going<'_>> = boards
        .iter()
        .map(|board| Going::start(board, &["--push", "sealed"]))
        .collect::<Result<_>>()?;
    let builder = builder_of(&going)?;
    // Whoever only takes waits, too.
    going.push(Going::start(&reader, &[])?);
    until("the reader waits", || going[BOARDS].said("smelt: waiting, since"))?;
    // Whoever believes nobody would wait for nothing.
    let stranger = site.board("stranger")?;
    let alone = Going::start(&stranger, &[])?;
    until("the stranger builds", || alone.said("it is not waited for"))?;
    let mut dead = going.swap_remove(builder);
    dead.child.kill()?;
    dead.child.wait()?;
    let ended = going.into_iter().map(Going::end).collect::<Result<Vec<_>>>()?;
    let built = ended.iter().map(|ended| ended.is_built()).collect::<Result<Vec<_>>>()?;
    let count = built.iter().filter(|is_built| **is_built).count();
    ensure!(alone.end()?.is_built()?, "the stranger has built nothing");
    ensure!(count == 1, "{count} of the boards that were left have built");
    ensure!(!ended.iter().any(|ended| ended.is_of(&reader) && ended.told().contains("sealed in")));
    site.alone_without_a_server()
}

/// A builder that was frozen for longer than its lease publishes nothing over its successor.
pub(super) fn who_was_frozen_publishes_nothing(
    smelt: &Path,
    casd: &Path,
    work: &Path,
) -> Result<()> {
    let site = Site::new(smelt, casd, work.join("frozen"))?;
    let (boards, _) = site.boards(2)?;
    let mut going: Vec<Going<'_>> = boards
        .iter()
        .map(|board| Going::start(board, &["--push", "sealed"]))
        .collect::<Result<_>>()?;
    let builder = builder_of(&going)?;
    let frozen = going.swap_remove(builder);
    let signal = |signal| kill(Pid::from_raw(frozen.child.id().cast_signed()), signal);
    signal(Signal::SIGSTOP)?;
    let begin = Instant::now();
    let successor = going.remove(0).end()?;
    ensure!(successor.is_built()?, "the successor built nothing");
    ensure!(successor.told().contains("published deployment"), "{}", successor.told());
    thread::sleep(FROZEN.saturating_sub(begin.elapsed()));
    signal(Signal::SIGCONT)?;
    let frozen = frozen.end()?;
    let told = frozen.told();
    ensure!(told.contains("nothing is published: this run was away"), "{told}");
    ensure!(!told.contains("published deployment"), "{told}");
    Ok(())
}

/// Two servers, and boards that believe each other.
struct Site<'a> {
    smelt: &'a Path,
    work: PathBuf,
    casd: Daemon,
    nats: Daemon,
}

impl<'a> Site<'a> {
    fn new(smelt: &'a Path, casd: &Path, work: PathBuf) -> Result<Self> {
        fs::create_dir_all(&work)?;
        let casd = Daemon::casd(casd, &work.join("cas"), free_port()?)?;
        let nats = nats(&work, free_port()?)?;
        Ok(Self { smelt, work, casd, nats })
    }

    fn board(&self, name: &str) -> Result<Board> {
        let mut board = Board::new(self.smelt, self.work.join(name), self.casd.port())?;
        board.lock = format!("nats://127.0.0.1:{}", self.nats.port());
        Ok(board)
    }

    /// Boards that believe each other, and their keys.
    fn boards(&self, count: usize) -> Result<(Vec<Board>, Vec<String>)> {
        let boards = (0..count).map(|n| self.board(&format!("board{n}")));
        let boards: Vec<Board> = boards.collect::<Result<_>>()?;
        let keys = boards.iter().map(|board| board.ok(&["fleet", "keygen"]));
        let keys: Vec<String> = keys.collect::<Result<_>>()?;
        boards.iter().try_for_each(|board| trust(board, &keys))?;
        Ok((boards, keys))
    }

    /// Without the server of leases a board builds at once, and says so in a line.
    fn alone_without_a_server(&self) -> Result<()> {
        let mut board = self.board("alone")?;
        board.lock = format!("nats://127.0.0.1:{}", free_port()?);
        let output = board.output(&["run", PIPELINE, "--json"])?;
        let said = text(&output.stderr);
        ensure!(output.status.success(), "{said}");
        let lines = said.lines().filter(|line| line.contains("nobody is asked who builds what"));
        ensure!(lines.count() == 1, "{said}");
        let refused = board.output(&["fleet", "status"])?;
        ensure!(refused.status.code() == Some(8), "{}", text(&refused.stdout));
        board.lock = format!("nats://127.0.0.1:{}", self.nats.port());
        let told = board.ok(&["fleet", "status"])?;
        ensure!(told.contains("builders agree by nats://"), "{told}");
        Ok(())
    }
}

/// Has a board believe some keys.
fn trust(board: &Board, keys: &[String]) -> Result<()> {
    for (n, key) in keys.iter().enumerate() {
        board.ok(&["fleet", "trust", key, "--name", &format!("board{n}")])?;
    }
    Ok(())
}

/// Which of them builds: all others wait.
fn builder_of(going: &[Going<'_>]) -> Result<usize> {
    let waits = |going: &Going<'_>| going.said("smelt: waiting, since");
    until("all but one wait", || going.iter().filter(|it| waits(it)).count() == going.len() - 1)?;
    going.iter().position(|it| !waits(it)).context("nobody builds")
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let begin = Instant::now();
    while !is_so() {
        ensure!(begin.elapsed() < PATIENCE, "it was waited in vain until {what}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A run that goes on.
struct Going<'a> {
    board: &'a Board,
    child: Child,
    err: PathBuf,
}

/// One that has ended.
struct Ended<'a> {
    board: &'a Board,
    output: Output,
    err: PathBuf,
}

impl<'a> Going<'a> {
    fn start(board: &'a Board, more: &[&str]) -> Result<Self> {
        let err = PathBuf::from(board.path("run.err"));
        let mut smelt = board.command(&[&["run", PIPELINE, "--json"], more].concat());
        smelt.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&err)?);
        Ok(Self { board, child: smelt.spawn().context("cannot start smelt")?, err })
    }

    fn said(&self, words: &str) -> bool {
        fs::read_to_string(&self.err).is_ok_and(|said| said.contains(words))
    }

    fn end(self) -> Result<Ended<'a>> {
        let output = self.child.wait_with_output()?;
        let ended = Ended { board: self.board, output, err: self.err };
        ensure!(ended.output.status.success(), "{}: {}", ended.output.status, ended.told());
        Ok(ended)
    }
}

impl Ended<'_> {
    fn told(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    fn is_built(&self) -> Result<bool> {
        is_built(&serde_json::from_slice(&self.output.stdout)?)
    }

    fn is_of(&self, board: &Board) -> bool {
        std::ptr::eq(self.board, board)
    }
}

/// nats-server, which keeps leases in `work`.
pub(super) fn nats(work: &Path, port: u16) -> Result<Daemon> {
    let mut nats = Command::new(python()?.with_file_name("nats-server"));
    nats.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]).arg(work.join("nats"));
    Daemon::start(&mut nats, port, &work.join("nats.log"))
}
