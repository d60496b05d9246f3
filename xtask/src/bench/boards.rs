//! Measures a fleet of a thousand boards that take one output from a real server, beside a tenth of them.
//!
//! Boards are threads of one program that does what `smelt` does with `smelt-fleet` (its example `boards`); buildbox-casd and
//! they share this machine.  What goes between them is counted on the way: requests, and bytes with all that carries them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};
use serde_json::Value;
use smelt_watch::Sample;

use super::counted::{Counted, Counts};
use super::measure::{self, Figures, median};
use super::{remove, succeed};
use crate::ci::cargo;
use crate::fleet::{Daemon, casd_program};
use crate::server::free_port;
use crate::target;

/// How many, where nobody says otherwise.
const BOARDS: usize = 1000;
/// What they are compared with: a part of them.
const PART: usize = 10;
/// What each takes.
const MIB: &str = "4";
/// Where they do not come at once, so many come in a second, in either number of them.
const BOARDS_PER_S: f64 = 25.0;
/// Of the requests and bytes of a board among few.
const GROWTH_MAX: f64 = 1.1;
/// Of all but one in a hundred hits of boards that do not come at once.
const HIT_S_MAX: f64 = 1.0;
/// Of the server and of the programs of boards and of this one, for each board; and what else they have open.
const FILES_PER_BOARD: usize = 8;
const FILES_MORE: usize = 200;

/// `cargo xtask bench boards [--boards N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let boards = match arguments {
        [] => BOARDS,
        ["--boards", count] => {
            let count = count.parse().ok().filter(|count| (PART..=10_000).contains(count));
            count.context("--boards takes a number from 10 to 10000")?
        }
        _ => bail!("bench boards takes --boards N, not {}", arguments.join(" ")),
    };
    open_many(boards)?;
    cargo(&["build", "--release", "--locked", "-p", "smelt-fleet", "--example", "boards"], &[])?;
    let (casd, folder) = (casd_program()?, target().join("bench/boards"));
    let mut rows = Vec::new();
    for is_at_once in [false, true] {
        for count in [boards / PART, boards] {
            remove(&folder)?;
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            rows.push(Row::of(&casd, &folder, count, is_at_once)?);
        }
    }
    remove(&folder)?;
    println!(
        "| boards | come | requests each | KiB each, to the server | MiB each, from it | hit, median and p99, s | all, median and p99, s | wall s | boards' CPU s | casd's CPU s | casd's peak RSS | failed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(Row::print);
    let missed = missed(&rows);
    if missed.is_empty() {
        return Ok(());
    }
    bail!("targets missed: {}", missed.join("; "))
}

/// Lets this program, and what it starts, have as many files open as so many boards take.
fn open_many(boards: usize) -> Result<()> {
    let needed = (boards * FILES_PER_BOARD + FILES_MORE) as u64;
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(most >= needed, "{boards} boards open {needed} files, and ulimit -Hn is {most}");
    setrlimit(Resource::RLIMIT_NOFILE, now.max(needed), most).context("ulimit -n")
}

/// What became of so many boards.
struct Row {
    boards: usize,
    is_at_once: bool,
    counts: Counts,
    hit_s: Vec<f64>,
    whole_s: Vec<f64>,
    failed: Vec<String>,
    figures: Figures,
    casd_cpu_s: f64,
    casd_mib: f64,
}

impl Row {
    fn of(casd: &Path, folder: &Path, boards: usize, is_at_once: bool) -> Result<Self> {
        eprintln!("bench: {boards} boards, {}", come(is_at_once));
        let server = Daemon::casd(casd, &folder.join("cas"), free_port()?)?;
        let line = Counted::before(server.port())?;
        let program = target().join("release/examples/boards");
        let words = |verb: &str, port: u16| -> Vec<PathBuf> {
            let address = format!("grpc://127.0.0.1:{port}");
            [&program, Path::new(verb), Path::new(&address), folder].map(Path::to_owned).into()
        };
        let publish = words("publish", server.port());
        succeed(Command::new(&publish[0]).args(&publish[1..]).arg(MIB))?;
        let spread = if is_at_once { 0.0 } else { boards as f64 / BOARDS_PER_S };
        let take = |port: u16, count: usize, spread: f64| {
            let numbers = [count.to_string(), spread.to_string()];
            let words = words("take", port).into_iter().map(PathBuf::into_os_string);
            measure::told(&words.chain(numbers.map(Into::into)).collect::<Vec<_>>())
        };
        let before = cpu_s(server.pid())?;
        let (figures, answer) = take(line.port(), boards, spread)?;
        let casd_cpu_s = cpu_s(server.pid())? - before;
        let sample = Sample::of(server.pid()).context("casd has ended")?;
        let (_, after) = take(server.port(), 1, 0.0)?;
        ensure!(list(&after, "hit_s")?.len() == 1, "casd does not answer afterwards: {after}");
        let failed: Value = serde_json::from_str(&answer)?;
        let failed = failed["failed"].as_array().into_iter().flatten().map(Value::to_string);
        Ok(Self {
            boards,
            is_at_once,
            counts: line.counts(),
            hit_s: list(&answer, "hit_s")?,
            whole_s: list(&answer, "whole_s")?,
            failed: failed.collect(),
            figures,
            casd_cpu_s,
            casd_mib: sample.rss_process_peak_bytes as f64 / f64::from(1 << 20),
        })
    }

    fn each(&self, sum: u64) -> f64 {
        sum as f64 / self.boards as f64
    }

    fn print(&self) {
        let Counts { requests, up_bytes, down_bytes } = self.counts;
        println!(
            "| {} | {} | {:.2} | {:.1} | {:.3} | {} | {} | {:.1} | {:.1} | {:.1} | {:.0} MiB | {} |",
            self.boards,
            come(self.is_at_once),
            self.each(requests),
            self.each(up_bytes) / 1024.0,
            self.each(down_bytes) / f64::from(1 << 20),
            middle_and_last(&self.hit_s),
            middle_and_last(&self.whole_s),
            self.figures.wall_s,
            self.figures.cpu_s,
            self.casd_cpu_s,
            self.casd_mib,
            self.failed.len(),
        );
        // Most fail of the same.
        if let Some(one) = self.failed.first() {
            println!("one of those that failed: {one}");
        }
    }
}

fn come(is_at_once: bool) -> &'static str {
    if is_at_once { "at once" } else { "25 in a second" }
}

fn middle_and_last(seconds: &[f64]) -> String {
    if seconds.is_empty() {
        return "none".to_owned();
    }
    format!("{:.3}, {:.3}", median(seconds.iter().copied()), p99(seconds))
}

/// What one in a hundred exceeds.
fn p99(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(f64::INFINITY)
}

/// What is too much, in words.
fn missed(rows: &[Row]) -> Vec<String> {
    let mut missed = Vec::new();
    for row in rows {
        let who = format!("{} boards {}", row.boards, come(row.is_at_once));
        if !row.failed.is_empty() {
            missed.push(format!("{who}: {} failed", row.failed.len()));
        }
        if !row.is_at_once && p99(&row.hit_s) > HIT_S_MAX {
            missed.push(format!("{who}: a hit in {:.2} s of {HIT_S_MAX} s", p99(&row.hit_s)));
        }
    }
    for both in rows.as_chunks::<2>().0 {
        let [few, many] = both;
        let growth =
            |of: fn(&Counts) -> u64| many.each(of(&many.counts)) / few.each(of(&few.counts));
        let requests = growth(|counts| counts.requests);
        let bytes = growth(|counts| counts.up_bytes + counts.down_bytes);
        for (what, growth) in [("requests", requests), ("bytes", bytes)] {
            if growth > GROWTH_MAX {
                let who = come(many.is_at_once);
                missed.push(format!("{who}: {growth:.2} of the {what} of a board among few"));
            }
        }
    }
    missed
}

fn list(answer: &str, name: &str) -> Result<Vec<f64>> {
    let answer: Value = serde_json::from_str(answer).with_context(|| answer.to_owned())?;
    let list = answer[name].as_array().with_context(|| format!("no {name}"))?;
    Ok(list.iter().filter_map(Value::as_f64).collect())
}

/// Seconds on a processor of a process so far, its threads that have ended too.
fn cpu_s(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("it has ended")?;
    // The name in brackets may hold blanks; user and system time are the 14th and 15th field.
    let fields = text.rsplit_once(')').context("/proc/PID/stat")?.1;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    let ticks = ticks.sum::<Result<f64, _>>()?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock ticks")?;
    Ok(ticks / per_second as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(boards: usize, is_at_once: bool, requests: u64, hit_s: f64) -> Row {
        Row {
            boards,
            is_at_once,
            counts: Counts { requests, up_bytes: 10, down_bytes: boards as u64 * 1000 },
            hit_s: vec![hit_s; boards],
            whole_s: vec![2.0; boards],
            failed: Vec::new(),
            figures: Figures::default(),
            casd_cpu_s: 1.0,
            casd_mib: 40.0,
        }
    }

    #[test]
    fn what_grows_faster_than_boards_is_missed() {
        assert!(missed(&[row(10, false, 80, 0.1), row(100, false, 800, 0.9)]).is_empty());
        let words = missed(&[row(10, true, 80, 0.1), row(100, true, 900, 9.0)]);
        assert_eq!(words, ["at once: 1.12 of the requests of a board among few"]);
        let slow = missed(&[row(10, false, 80, 0.1), row(100, false, 800, 1.5)]);
        assert_eq!(slow, ["100 boards 25 in a second: a hit in 1.50 s of 1 s"]);
    }

    #[test]
    fn one_in_a_hundred_is_left_out() {
        let seconds: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((p99(&seconds), p99(&[3.0])), (198.0, 3.0));
    }
}
