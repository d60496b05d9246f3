//! Boards announce themselves at a real server of leases and are seen, and what a real fleet holds goes first where room is needed.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::leases::{nats, until};
use super::{Board, Daemon, PIPELINE, lose_half, text};
use crate::server::free_port;

const STATUS: [&str; 3] = ["fleet", "status", "--json"];
/// Nothing fits, so all goes that may.
const NO_ROOM: [&str; 4] = ["cache", "gc", "--max-size", "1B"];

/// `key` is the builder's, which has built everything.
pub(super) fn boards_are_seen_and_rooms_made(
    smelt: &Path,
    casd: &Path,
    work: &Path,
    key: &str,
) -> Result<()> {
    let cas = work.join("seen-cas");
    let (server, lock) = (Daemon::casd(casd, &cas, free_port()?)?, nats(work, free_port()?)?);
    let port = server.port();
    let board_at = |home: PathBuf| -> Result<Board> {
        let mut board = Board::new(smelt, home, port)?;
        board.lock = format!("nats://127.0.0.1:{}", lock.port());
        Ok(board)
    };
    let board = |name: &str| -> Result<Board> {
        let board = board_at(work.join(format!("seen-{name}")))?;
        board.trusts(key)?;
        Ok(board)
    };
    let builder = board_at(work.join("builder"))?;
    builder.ok(&["cache", "push", PIPELINE])?;
    let one = board("one")?;
    who_announces_itself_is_seen_once_its_key_is_known(&builder, &one)?;
    servers_and_peers_announce_themselves(&builder, &one)?;
    the_metrics_are_such(&builder)?;
    let two = board("two")?;
    what_the_fleet_holds_goes_first(&two)?;
    drop(server);
    without_the_server_age_decides(&two)?;
    lose_half(&cas)?;
    let _server = Daemon::casd(casd, &cas, port)?;
    what_the_server_lost_is_published_again(&builder, &board("three")?)?;
    drop(lock);
    nobody_waits_for_a_server_that_is_gone(&one)
}

fn who_announces_itself_is_seen_once_its_key_is_known(builder: &Board, one: &Board) -> Result<()> {
    let refused = one.output(&["run", PIPELINE, "--heartbeat", "1m"])?;
    ensure!(refused.status.code() == Some(2), "{}", text(&refused.stderr));
    let key = one.ok(&["fleet", "keygen"])?;
    one.runs(&[])?;
    ensure!(builder.json(&STATUS)?["refused"] == json!([]), "a board announces itself unasked");
    one.runs(&["--heartbeat", "1m"])?;
    let told = builder.json(&STATUS)?;
    let why = told["refused"][0]["why"].as_str().unwrap_or_default();
    ensure!(why.contains(&format!("smelt fleet trust {key} ")), "{told}");
    ensure!(told["boards"] == json!([]), "{told}");
    builder.ok(&["fleet", "trust", &key, "--name", "one", "--for", "heartbeat"])?;
    let told = builder.json(&STATUS)?;
    ensure!(told["answers"] == true && told["free_bytes"].as_u64() > Some(0), "{told}");
    let seen = &told["boards"][0];
    let tree = one.ok(&["out", PIPELINE, "deployment"])?;
    let served = seen["deployments"][0]["tree"].as_str().unwrap_or_default();
    ensure!(seen["name"] == "one" && seen["role"] == "run", "{told}");
    ensure!(!served.is_empty() && tree.ends_with(served), "{tree}: {told}");
    ensure!(!seen["facts"]["arch"].is_null(), "{told}");
    let counts = &one.json(&STATUS)?["counts"];
    ensure!(seen["counts"] == *counts && counts["hits"].as_u64() > Some(1), "{told}");
    ensure!(counts["server_bytes"].as_u64() > Some(100_000), "{counts}");
    ensure!(counts["saved_ms"].as_u64() > Some(0), "{counts}");
    Ok(())
}

fn servers_and_peers_announce_themselves(builder: &Board, one: &Board) -> Result<()> {
    let start = |words: &[&str], at: &str, log: &str| {
        let port = free_port()?;
        let listen = format!("127.0.0.1:{port}");
        let mut command = one.command(&[words, &[at, &listen, "--heartbeat", "10s"]].concat());
        Daemon::start(&mut command, port, &one.home.join(log))
    };
    let _peer = start(&["fleet", "peer"], "--listen", "peer.log")?;
    let _server = start(&["serve", PIPELINE], "--addr", "serve.log")?;
    let roles = || -> Result<Vec<String>> {
        let told = builder.json(&STATUS)?;
        let boards = told["boards"].as_array().context("no boards")?;
        Ok(boards.iter().filter_map(|it| it["role"].as_str().map(str::to_owned)).collect())
    };
    let all = ["serve", "peer", "run"];
    until("all are seen", || roles().is_ok_and(|roles| roles == all))?;
    let told = builder.ok(&["fleet", "status"])?;
    ensure!(told.contains(" free\n") && told.contains("s ago"), "{told}");
    Ok(())
}

/// As Prometheus itself judges.
fn the_metrics_are_such(board: &Board) -> Result<()> {
    let metrics = board.ok(&["fleet", "status", "--metrics"])? + "\n";
    for part in ["smelt_fleet_lock_server_up 1\n", "{board=\"one\",role=\"serve\"}"] {
        ensure!(metrics.contains(part), "{part}: {metrics}");
    }
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let needs = "this needs promtool, of Debian's package prometheus";
    let mut check = check.stderr(Stdio::piped()).spawn().context(needs)?;
    check.stdin.take().context("no input")?.write_all(metrics.as_bytes())?;
    let checked = check.wait_with_output()?;
    ensure!(checked.status.success(), "{}{}", text(&checked.stderr), metrics);
    Ok(())
}

fn why(board: &Board, more: &[&str]) -> Result<Vec<Value>> {
    let told = board.json(&[&NO_ROOM[..], &["--json"], more].concat())?;
    let rows = told["removed"].as_array().context("nothing is removed")?;
    Ok(rows.iter().filter(|row| row["what"] == "output").map(|row| row["why"].clone()).collect())
}

/// What was fetched and no run needs goes first, and can be had again.
fn what_the_fleet_holds_goes_first(two: &Board) -> Result<()> {
    two.ok(&["cache", "pull", PIPELINE])?;
    let removed = why(two, &[])?;
    ensure!(
        !removed.is_empty() && removed.iter().all(|it| it == "the fleet has it"),
        "{removed:?}"
    );
    two.ok(&["cache", "pull", PIPELINE])?;
    // Whoever believes nobody has nobody who could give it again.
    let nobody = two.path("nobody.toml");
    fs::write(&nobody, "")?;
    let removed = why(two, &["--dry-run", "--fleet-trust", &nobody])?;
    ensure!(
        !removed.is_empty() && removed.iter().all(|it| it != "the fleet has it"),
        "{removed:?}"
    );
    Ok(())
}

fn without_the_server_age_decides(two: &Board) -> Result<()> {
    let output = two.output(&[&NO_ROOM[..], &["--dry-run"]].concat())?;
    let (said, told) = (text(&output.stderr), text(&output.stdout));
    ensure!(output.status.success() && said.contains("the fleet is not asked"), "{said}");
    ensure!(told.contains("unused for the longest time"), "{told}");
    Ok(())
}

/// A run that builds nothing still sends what its server has removed.
fn what_the_server_lost_is_published_again(builder: &Board, three: &Board) -> Result<()> {
    let lacks = three.output(&["cache", "pull", PIPELINE])?;
    ensure!(lacks.status.code() == Some(1), "nothing was lost: {}", text(&lacks.stderr));
    let output = builder.output(&["run", PIPELINE, "--push", "verified"])?;
    let said = text(&output.stderr);
    ensure!(output.status.success() && said.contains("published "), "{said}");
    three.ok(&["cache", "pull", PIPELINE]).map(drop)
}

fn nobody_waits_for_a_server_that_is_gone(one: &Board) -> Result<()> {
    let output = one.output(&["run", PIPELINE, "--heartbeat", "1m"])?;
    let said = text(&output.stderr);
    let lines = said.lines().filter(|line| line.contains("this board is not announced"));
    ensure!(output.status.success() && lines.count() == 1, "{said}");
    let gone = one.output(&["fleet", "status"])?;
    let told = text(&gone.stdout);
    ensure!(gone.status.code() == Some(8) && told.contains("here: "), "{told}");
    let metrics = one.ok(&["fleet", "status", "--metrics"])?;
    ensure!(metrics.contains("smelt_fleet_lock_server_up 0\n"), "{metrics}");
    Ok(())
}
