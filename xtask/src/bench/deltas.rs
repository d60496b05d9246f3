//! Measures what a changed version costs who has the old one, beside casync and zchunk of Debian: bytes of chunks that are new.
//!
//! Each tool is given the same two folders.  Ours publishes and fetches by a server of this machine; casync has a store of
//! chunks on its disk, which it fills and reads; zchunk has a file for each file, of which headers are compared.

mod rivals;
mod versions;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::bundle::{shell, words};
use super::counted::Counted;
use super::measure::{self, Figures};
use super::{remove, succeed};
use crate::ci::cargo;
use crate::fleet::{Daemon, casd_program};
use crate::server::free_port;
use crate::{debian, target};

use versions::{CASES, Case};

/// Turns when `--runs` does not say: bytes are the same in each.
const RUNS: usize = 1;
/// The most of the best rival's new bytes; of the whole, where a case says that so little has changed.
const RATIO_MAX: f64 = 1.3;
const SHARE_MAX: f64 = 0.01;
/// What is compared to say how much of a version differs: a page of most systems.
const PAGE_BYTES: usize = 4096;

/// The same stage of two versions.
const PIPELINE: &str = r#"smelt = 1
name = "deltas"
[params]
version = "old"
[stage.files]
kind = "command"
inputs = ["path:${version}"]
argv = ["sh", "-c", "cp -r \"$SMELT_INPUTS\" files"]
outputs = ["files"]
share = true
"#;
/// A home of this bench's own, and the program that it tries.
const HOME: &str = "export HOME=$PWD XDG_CONFIG_HOME=$PWD/config PATH=$PWD/bin:$PATH &&";

/// `cargo xtask bench fleet deltas [--runs N] [--program FILE] [CASE]…`: of this smelt, or of one that is built for it.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (runs, program, names) = read(arguments)?;
    debian::need("casync", || debian::runs("casync", "--version"))?;
    debian::need("zchunk", || debian::runs("zck", "--version"))?;
    if program.is_none() {
        cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    }
    let bench = Bench {
        folder: target().join("bench/deltas"),
        smelt: program.unwrap_or_else(|| target().join("release/smelt")),
        casd: casd_program()?,
    };
    let mut missed = Vec::new();
    for case in CASES.iter().filter(|case| names.is_empty() || names.contains(&case.name)) {
        eprintln!("bench: {}", case.name);
        let told = bench.case(case, runs).with_context(|| case.name.to_owned())?;
        missed.extend(told.missed(case));
        told.print(case);
    }
    remove(&bench.folder)?;
    if missed.is_empty() {
        return Ok(());
    }
    bail!("targets missed: {}", missed.join("; "))
}

/// How often, which program, and the cases named.
fn read<'a>(arguments: &[&'a str]) -> Result<(usize, Option<PathBuf>, Vec<&'a str>)> {
    let (mut program, mut rest) = (None, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--program" => program = words.next().map(PathBuf::from),
            word => rest.push(word),
        }
    }
    let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
    let (runs, names) = super::parse(&rest, &known, RUNS)?;
    Ok((runs, program, names))
}

/// What a command moved, and what it took.
struct Row {
    who: &'static str,
    /// Of chunks that the old version lacks, before anything shrinks them.
    new_bytes: Option<u64>,
    /// With what leads to them, as it goes over a line.
    line_bytes: u64,
    figures: Figures,
}

/// Where everything is.
struct Bench {
    folder: PathBuf,
    smelt: PathBuf,
    casd: PathBuf,
}

impl Bench {
    fn case(&self, case: &Case, runs: usize) -> Result<Told> {
        remove(&self.folder)?;
        fs::create_dir_all(self.folder.join("bin"))?;
        symlink(&self.smelt, self.folder.join("bin/smelt"))?;
        fs::write(self.folder.join("p.toml"), PIPELINE)?;
        (case.make)(self)?;
        self.does("for v in old new; do smelt run p.toml --set version=$v || exit 1; done")?;
        self.does("smelt fleet trust $(smelt fleet keygen) --name own")?;
        let [old, new] = ["old", "new"].map(|version| self.folder.join(version));
        let (whole_bytes, page_bytes) = (bytes_of(&new)?, pages_that_differ(&old, &new)?);
        let turns = (0..runs).map(|_| self.turn()).collect::<Result<Vec<_>>>()?;
        Ok(Told { whole_bytes, page_bytes, rows: medians(turns) })
    }

    /// What each side takes for the new version where it has the old one.
    fn turn(&self) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = self.ours()?.into();
        rows.extend(rivals::casync(self)?);
        rows.push(rivals::zchunk(self)?);
        Ok(rows)
    }

    fn ours(&self) -> Result<[Row; 2]> {
        let server = Daemon::casd(&self.casd, &self.folder.join("cas"), free_port()?)?;
        let line = Counted::before(server.port())?;
        let version = |verb: &str, version: &str| {
            let at = format!("--set version={version} --fleet grpc://127.0.0.1:{}", line.port());
            format!("smelt cache {verb} p.toml --json {at}")
        };
        let pull = |name: &str| format!("SMELT_CACHE=there {}", version("pull", name));
        self.does(&version("push", "old"))?;
        self.does(&pull("old"))?;
        let before = line.counts();
        let (pushed, _) = self.told(&version("push", "new"))?;
        let between = line.counts();
        let (pulled, answer) = self.told(&pull("new"))?;
        let after = line.counts();
        let answer: Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
        let fetched = answer["fetched_bytes"].as_u64().context("it fetched nothing")?;
        drop(server);
        self.does("rm -rf there cas && sync")?;
        let row = |who, new_bytes, line_bytes, figures| Row { who, new_bytes, line_bytes, figures };
        Ok([
            row("smelt cache push", None, between.up_bytes - before.up_bytes, pushed),
            row("smelt cache pull", Some(fetched), after.down_bytes - between.down_bytes, pulled),
        ])
    }

    /// Does a line of a shell, which must succeed.
    fn does(&self, line: &str) -> Result<()> {
        succeed(&mut shell(&self.folder, &format!("{HOME} {line}")))
    }

    /// The same, measured; with what it answered.
    fn told(&self, line: &str) -> Result<(Figures, String)> {
        measure::told(&words(&self.folder, &format!("{HOME} {line}")))
    }
}

/// Each row of several turns, which all have the same.
fn medians(mut turns: Vec<Vec<Row>>) -> Vec<Row> {
    let of = |at: usize| turns.iter().map(|rows| rows[at].figures).collect::<Vec<_>>();
    let count = turns[0].len();
    let figures: Vec<_> = (0..count).map(|at| Figures::medians(&of(at))).collect();
    let rows = turns.swap_remove(0).into_iter().zip(figures);
    rows.map(|(row, figures)| Row { figures, ..row }).collect()
}

/// What came of a case.
struct Told {
    whole_bytes: u64,
    page_bytes: u64,
    rows: Vec<Row>,
}

impl Told {
    /// Ours, and the best rival's.
    fn new_bytes(&self) -> (u64, u64) {
        let new = |is_ours: bool| {
            let rows = self.rows.iter().filter(move |row| row.who.starts_with("smelt") == is_ours);
            rows.filter_map(|row| row.new_bytes).min().unwrap_or(0)
        };
        (new(true), new(false))
    }

    fn ratio(&self) -> f64 {
        let (ours, best) = self.new_bytes();
        // Where nobody needs anything all are equal.
        ours.max(1) as f64 / best.max(1) as f64
    }

    fn share(&self) -> f64 {
        self.new_bytes().0 as f64 / self.whole_bytes as f64
    }

    fn missed(&self, case: &Case) -> Vec<String> {
        let mut missed = Vec::new();
        if self.ratio() > RATIO_MAX {
            missed.push(format!("{}: {:.2} of {RATIO_MAX}", case.name, self.ratio()));
        }
        if case.is_small && self.share() > SHARE_MAX {
            let percent = 100.0 * self.share();
            missed.push(format!("{}: {percent:.2} % of {:.0} %", case.name, 100.0 * SHARE_MAX));
        }
        missed
    }

    fn print(&self, case: &Case) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let percent = |bytes: u64| 100.0 * bytes as f64 / self.whole_bytes as f64;
        let (whole, pages) = (mib(self.whole_bytes), self.page_bytes);
        println!(
            "\n{}: {}; {whole:.0} MiB, of which pages of 4 KiB that differ {:.2} MiB, {:.2} %",
            case.name,
            case.what,
            mib(pages),
            percent(pages)
        );
        println!("| | new, MiB | of the whole | over the line, MiB | CPU s | wall s | peak RSS |");
        println!("|---|---|---|---|---|---|---|");
        println!("| whole copy | {whole:.2} | 100 % | {whole:.2} | | | |");
        for Row { who, new_bytes, line_bytes, figures } in &self.rows {
            let new = new_bytes.map(|new| format!("{:.2} | {:.2} %", mib(new), percent(new)));
            let Figures { cpu_s, wall_s, rss_mib, .. } = figures;
            println!(
                "| {who} | {} | {:.2} | {cpu_s:.2} | {wall_s:.2} | {rss_mib:.0} MiB |",
                new.as_deref().unwrap_or("|"),
                mib(*line_bytes)
            );
        }
        println!("{}: {:.2} of the best rival's new bytes", case.name, self.ratio());
    }
}

/// The files of a folder by their paths in it, each with its size.
fn files_of(folder: &Path) -> Result<BTreeMap<PathBuf, u64>> {
    let (mut open, mut files) = (vec![folder.to_owned()], BTreeMap::new());
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            let about = fs::metadata(&path)?;
            if about.is_dir() {
                open.push(path);
            } else {
                files.insert(path.strip_prefix(folder)?.to_owned(), about.len());
            }
        }
    }
    Ok(files)
}

fn bytes_of(folder: &Path) -> Result<u64> {
    Ok(files_of(folder)?.values().sum())
}

/// Bytes of the pages of new files that are not in the same place of the old ones: the least that a copy of pages would move.
fn pages_that_differ(old: &Path, new: &Path) -> Result<u64> {
    let mut bytes = 0;
    for (path, size) in files_of(new)? {
        let Ok(mut before) = fs::File::open(old.join(&path)) else {
            bytes += size;
            continue;
        };
        let mut after = fs::File::open(new.join(&path))?;
        let [mut was, mut is] = [Vec::new(), Vec::new()];
        loop {
            for (file, piece) in [(&mut before, &mut was), (&mut after, &mut is)] {
                piece.clear();
                file.take(1 << 20).read_to_end(piece)?;
            }
            if is.is_empty() {
                break;
            }
            let pages = is.chunks(PAGE_BYTES).enumerate();
            let differs = |(at, page): &(usize, &[u8])| {
                was.get(at * PAGE_BYTES..at * PAGE_BYTES + page.len()) != Some(page)
            };
            bytes += pages.filter(differs).map(|(_, page)| page.len() as u64).sum::<u64>();
        }
    }
    Ok(bytes)
}
