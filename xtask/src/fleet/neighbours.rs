//! Boards of one site take from each other what one of them has, by `smelt fleet peer`, and from the server the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Board, Daemon, PIPELINE, text};
use crate::server::free_port;

/// What neighbours must know.
const TOKEN: &str = "the-fleets-token";
/// One output, of half a megabyte.
const STAGE: &str = "llm-engine";
/// A peer that takes seconds for that.
const SLOW: &str = "100KiB";
/// As long as a pull may take to begin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a builder has built goes from the server to one board, and from that to others.
pub(super) fn what_one_board_has_the_others_take(
    smelt: &Path,
    casd: &Path,
    work: &Path,
    key: &str,
) -> Result<()> {
    let site = Site { smelt, work: work.to_owned(), key, port: free_port()? };
    let server = Daemon::casd(casd, &work.join("site-cas"), site.port)?;
    // Its store has all of it.
    site.board_at(work.join("builder"))?.ok(&["cache", "push", PIPELINE])?;
    let one = site.board("one")?;
    one.ok(&["cache", "pull", PIPELINE])?;
    let peer = site.peer(&one, &[])?;
    site.all_comes_from_the_neighbour(&peer)?;
    site.strangers_get_nothing(&peer)?;
    site.a_damaged_store_sends_nothing(&peer, &one)?;
    drop(peer);
    site.a_builder_serves_what_it_published(work)?;
    site.without_the_server_neighbours_go_on(server)
}

struct Site<'a> {
    smelt: &'a Path,
    work: PathBuf,
    /// The builder's.
    key: &'a str,
    /// The server's.
    port: u16,
}

impl Site<'_> {
    fn board_at(&self, home: PathBuf) -> Result<Board> {
        Board::new(self.smelt, home, self.port)
    }

    fn board(&self, name: &str) -> Result<Board> {
        let board = self.board_at(self.work.join(format!("site-{name}")))?;
        board.trusts(self.key)?;
        Ok(board)
    }

    /// The peer of a board, once it has something.
    fn peer(&self, board: &Board, more: &[&str]) -> Result<Daemon> {
        let port = free_port()?;
        let listen = format!("127.0.0.1:{port}");
        let mut command = board.command(&[&["fleet", "peer", "--listen", &listen], more].concat());
        command.env("SMELT_FLEET_TOKEN", TOKEN);
        let peer = Daemon::start(&mut command, port, &board.home.join("peer.log"))?;
        // It reads its store beside that.
        thread::sleep(Duration::from_secs(2));
        Ok(peer)
    }

    /// What a pull with a neighbour says.
    fn pulls(&self, board: &Board, peer: &Daemon, token: &str, more: &[&str]) -> Result<Value> {
        let mut pull = self.pull(board, peer, more);
        let output = pull.env("SMELT_FLEET_TOKEN", token).output()?;
        let said = text(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", output.status);
        let is_refused = token != TOKEN;
        ensure!(said.contains("want another token") == is_refused, "{token}: {said}");
        serde_json::from_slice(&output.stdout).context(said)
    }

    fn pull(&self, board: &Board, peer: &Daemon, more: &[&str]) -> std::process::Command {
        let peers = format!("127.0.0.1:{}", peer.port());
        let words = ["cache", "pull", PIPELINE, "--json", "--fleet-peers", &peers];
        board.command(&[&words, more].concat())
    }

    fn all_comes_from_the_neighbour(&self, peer: &Daemon) -> Result<()> {
        let two = self.board("two")?;
        let pulled = self.pulls(&two, peer, TOKEN, &[])?;
        let [all, some] = bytes(&pulled);
        ensure!(all > 100_000 && some == all, "{pulled}");
        two.ok(&["cache", "fsck"]).map(drop)
    }

    /// Who does not know the token is served by the server alone.
    fn strangers_get_nothing(&self, peer: &Daemon) -> Result<()> {
        for (name, token) in [("stranger", "another-token"), ("silent", "")] {
            let stranger = self.board(name)?;
            let pulled = self.pulls(&stranger, peer, token, &["--only", STAGE])?;
            let [all, some] = bytes(&pulled);
            ensure!(all > 0 && some == 0, "{name}: {pulled}");
        }
        // Its own board leaves itself out, and needs nothing.
        Ok(())
    }

    /// What a disk changed is not sent, and comes from the server.
    fn a_damaged_store_sends_nothing(&self, peer: &Daemon, one: &Board) -> Result<()> {
        damage(&one.home.join("cache/out"))?;
        let four = self.board("four")?;
        let pulled = self.pulls(&four, peer, TOKEN, &["--only", STAGE])?;
        let [all, some] = bytes(&pulled);
        ensure!(all > 0 && some < all, "{pulled}");
        four.ok(&["cache", "fsck"]).map(drop)
    }

    /// What was built on the site need not come back by the line; what was not published stays.
    fn a_builder_serves_what_it_published(&self, work: &Path) -> Result<()> {
        let builder = self.board_at(work.join("builder"))?;
        let peer = self.peer(&builder, &[])?;
        let five = self.board("five")?;
        let pulled = self.pulls(&five, &peer, TOKEN, &["--only", STAGE])?;
        let [all, some] = bytes(&pulled);
        ensure!(all > 0 && some == all, "{pulled}");
        Ok(())
    }

    /// A pull that has begun ends without the server.
    fn without_the_server_neighbours_go_on(&self, server: Daemon) -> Result<()> {
        let two = self.board_at(self.work.join("site-two"))?;
        let peer = self.peer(&two, &["--rate", SLOW])?;
        let six = self.board("six")?;
        let mut pull = self.pull(&six, &peer, &["--only", STAGE]);
        pull.env("SMELT_FLEET_TOKEN", TOKEN).stdout(Stdio::piped()).stderr(Stdio::piped());
        let pull = pull.spawn()?;
        let (begin, pulls) = (Instant::now(), six.home.join("cache/pulls"));
        let has_begun = || {
            let entries = fs::read_dir(&pulls).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.path())
                .any(|it| it.extension().is_some_and(|it| it == "places"))
        };
        while !has_begun() {
            ensure!(begin.elapsed() < PATIENCE, "the pull does not begin");
            thread::sleep(Duration::from_millis(5));
        }
        drop(server);
        let output = pull.wait_with_output()?;
        let said = text(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", output.status);
        let pulled: Value = serde_json::from_slice(&output.stdout).context(said)?;
        let [all, some] = bytes(&pulled);
        ensure!(all > 0 && some > 0, "{pulled}");
        six.ok(&["cache", "fsck"]).map(drop)
    }
}

/// What a pull fetched, and how much of that from neighbours.
fn bytes(pulled: &Value) -> [u64; 2] {
    ["fetched_bytes", "neighbour_bytes"].map(|name| pulled[name].as_u64().unwrap_or(0))
}

/// Changes a byte in the middle of every file.
fn damage(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            damage(&path)?;
            continue;
        }
        let mut content = fs::read(&path)?;
        let middle = content.len() / 2;
        if let Some(byte) = content.get_mut(middle) {
            *byte ^= 1;
        }
        let mut modes = fs::metadata(&path)?.permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut modes, 0o644);
        fs::set_permissions(&path, modes)?;
        fs::write(&path, content)?;
    }
    Ok(())
}
