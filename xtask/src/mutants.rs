//! Changes what decides, one small thing at a time, and asks the crate's own tests: cargo-mutants, row by row.
//!
//! A mutant that no test sees is a survivor.  `xtask/mutants/survivors.txt` lists those that there are with why each is
//! right to live; one that is not listed fails, and so does a row of which too few are caught.  Mutants are made in a copy
//! of the repository, so nothing here changes.

mod outcomes;
mod survivors;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::ci::cargo;
use crate::{root, target, unchanged};
use outcomes::Outcomes;
use survivors::Survivors;

/// The version of cargo-mutants: the newest when this was written.  Another one makes other mutants.
const CARGO_MUTANTS: &str = "27.1.0";

/// Of the mutants that compile, this part must be caught.
const CAUGHT_MIN: f64 = 0.95;

/// A row is tried in so many parts, each a sample of all its files, so that one that is ended early still says something.
const PARTS: u32 = 8;

/// No further part of a row is begun after so long.
const MINUTES: u64 = 120;

/// Files that decide, and the tests of their crate that must see a change.
struct Row {
    name: &'static str,
    package: &'static str,
    /// In the `src` of the package.
    files: &'static [&'static str],
    /// What the names of the tests contain; all unit tests where nothing is named.
    tests: &'static [&'static str],
    /// A test that takes longer than to compile: it is asked only of what the others miss.
    slow: Option<&'static str>,
}

/// Unit tests alone: they are what a change of these files is tried with first, and take seconds.
const ROWS: [Row; 11] = [
    Row {
        name: "schedule",
        package: "smelt-plan",
        files: &["schedule.rs", "retry.rs"],
        tests: &["schedule::", "retry::"],
        slow: None,
    },
    Row {
        name: "admission",
        package: "smelt-plan",
        files: &["admission.rs"],
        tests: &["admission::"],
        slow: None,
    },
    Row {
        name: "keys",
        package: "smelt-plan",
        files: &["key.rs", "digest.rs"],
        tests: &["key::", "digest::", "plan::", "pipeline::"],
        slow: None,
    },
    Row {
        name: "share",
        package: "smelt-plan",
        files: &["share.rs"],
        tests: &["share::"],
        slow: None,
    },
    Row {
        name: "guard",
        package: "smelt-watch",
        files: &["guard.rs"],
        tests: &["guard::"],
        slow: None,
    },
    Row {
        name: "classify",
        package: "smelt-exec",
        files: &["classify.rs"],
        tests: &["classify::", "signatures::"],
        slow: None,
    },
    Row {
        name: "signatures",
        package: "smelt-exec",
        files: &["signatures.rs"],
        tests: &["classify::", "signatures::"],
        slow: None,
    },
    Row {
        name: "seal and log",
        package: "smelt-store",
        files: &["seal.rs", "log.rs", "manifest.rs"],
        tests: &[],
        slow: None,
    },
    Row {
        name: "sampler",
        package: "smelt-backend",
        files: &["sampling/*.rs"],
        tests: &["sampling::"],
        slow: None,
    },
    Row {
        name: "requests",
        package: "smelt-runtime",
        files: &["schedule/*.rs"],
        tests: &["schedule::"],
        slow: Some("any_pattern_of_arrivals"),
    },
    Row {
        name: "servers",
        package: "smelt-serve",
        files: &["upstream/keeper.rs"],
        tests: &["upstream::keeper::"],
        slow: None,
    },
];

/// How the copy is built: again and again, after small changes.
const BUILD: [(&str, &str); 2] = [("CARGO_INCREMENTAL", "1"), ("CARGO_PROFILE_DEV_DEBUG", "0")];

/// `cargo xtask mutants [--only NAME]... [--shard K/N] [--minutes M]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let settings = Settings::parse(arguments)?;
    let survivors = Survivors::committed()?;
    install()?;
    copy_repository()?;
    let (mut report, mut failed) = (String::new(), Vec::new());
    for row in ROWS.iter().filter(|row| settings.wants(row.name)) {
        let begin = Instant::now();
        let (outcomes, is_whole) = row.outcomes(&settings).context(row.name)?;
        let verdict = Verdict::of(row, &outcomes, is_whole, &survivors);
        report += &verdict.line(row.name, &outcomes, is_whole, begin.elapsed());
        verdict.findings.iter().for_each(|finding| eprintln!("mutants: {}: {finding}", row.name));
        if !verdict.findings.is_empty() {
            failed.push(row.name);
        }
    }
    println!("\n{report}");
    ensure!(failed.is_empty(), "mutants live that should not: {}", failed.join(", "));
    Ok(())
}

/// What was asked for.
#[derive(Debug, PartialEq)]
struct Settings {
    only: Vec<String>,
    /// One part of as many as one likes, as `0/20`.
    shard: Option<String>,
    budget: Duration,
}

impl Settings {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut settings =
            Self { only: Vec::new(), shard: None, budget: Duration::from_secs(MINUTES * 60) };
        for pair in arguments.chunks(2) {
            match *pair {
                ["--only", name] => settings.only.push(known(name)?.to_owned()),
                ["--shard", shard] => settings.shard = Some(shard.to_owned()),
                ["--minutes", minutes] => {
                    let minutes: u32 = minutes.parse().context("--minutes takes a number")?;
                    settings.budget = Duration::from_secs(u64::from(minutes) * 60);
                }
                _ => bail!("say mutants [--only NAME]... [--shard K/N] [--minutes M]"),
            }
        }
        Ok(settings)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// The name, if it is a row's.
fn known(name: &str) -> Result<&str> {
    let names = ROWS.map(|row| row.name);
    ensure!(names.contains(&name), "no row is called {name}; there are: {}", names.join(", "));
    Ok(name)
}

impl Row {
    /// What came of its mutants, and whether of all: the budget may end first.
    fn outcomes(&self, settings: &Settings) -> Result<(Outcomes, bool)> {
        if let Some(shard) = &settings.shard {
            return Ok((self.part(shard)?, false));
        }
        let begin = Instant::now();
        let mut all = Outcomes::default();
        for part in 0..PARTS {
            if part > 0 && begin.elapsed() >= settings.budget {
                return Ok((all, false));
            }
            all.add(self.part(&format!("{part}/{PARTS}"))?);
        }
        Ok((all, true))
    }

    /// What came of one part of them.
    fn part(&self, shard: &str) -> Result<Outcomes> {
        let of_part = ["--sharding", "round-robin", "--shard", shard].map(str::to_owned);
        let Some(slow) = self.slow else { return self.tried(shard, &of_part, &[]) };
        let quick = self.tried(shard, &of_part, &["--skip", slow])?;
        if quick.missed.is_empty() {
            return Ok(quick);
        }
        let names = quick.missed.iter().flat_map(|one| ["--re".to_owned(), one.pattern()]);
        let again = self.tried(&format!("{shard}-slow"), &names.collect::<Vec<_>>(), &[])?;
        Ok(quick.tried_again(again))
    }

    /// What came of the mutants that `which` chooses, with the tests that are left.
    fn tried(&self, part: &str, which: &[String], but: &[&str]) -> Result<Outcomes> {
        let out = folder("out").join(self.name.replace(' ', "-")).join(part.replace('/', "-of-"));
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        let mut mutants = Command::new(program());
        mutants.args(["mutants", "--in-place"]).args(which);
        mutants.arg("--dir").arg(folder("copy")).arg("--output").arg(&out);
        mutants.args(["--package", self.package]);
        mutants.args(self.paths().iter().flat_map(|path| ["--file", path.as_str()]));
        mutants.args(["--cargo-arg=--locked", "--cargo-arg=--lib"]);
        mutants.args(["--", "--"]).args(self.tests).args(but);
        mutants.envs(BUILD).env("CARGO_TARGET_DIR", folder("target"));
        println!("\n$ {mutants:?}");
        let status = mutants.status().context("cannot start cargo-mutants")?;
        match status.code() {
            // All caught; some missed; some in time out.
            Some(0 | 2 | 3) => Outcomes::read(&out.join("mutants.out/outcomes.json")),
            Some(4) => bail!("its tests fail without a mutant; see {}", out.display()),
            _ => bail!("cargo-mutants ended with {status}"),
        }
    }

    /// Its files, from the root; with a `*` where several are meant.
    fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| format!("crates/{}/src/{file}", self.package)).collect()
    }

    /// Whether a file is one of its own.
    fn has(&self, file: &str) -> bool {
        self.paths().iter().any(|path| match path.split_once('*') {
            Some((before, after)) => {
                let rest = file.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                rest.is_some_and(|name| !name.contains('/'))
            }
            None => path == file,
        })
    }
}

/// What is wrong with a row.
#[derive(Debug, PartialEq)]
struct Verdict {
    findings: Vec<String>,
}

impl Verdict {
    /// Of a part, the share caught is a sample and no more: then only survivors that are not listed count.
    fn of(row: &Row, outcomes: &Outcomes, is_whole: bool, survivors: &Survivors) -> Self {
        let listed = survivors.of(|file| row.has(file));
        let unlisted = survivors::beyond(&outcomes.missed, &listed);
        let mut findings: Vec<String> =
            unlisted.iter().map(|mutant| format!("no test sees {mutant}")).collect();
        if !is_whole {
            return Self { findings };
        }
        if outcomes.share() < CAUGHT_MIN {
            let (share, least) = (outcomes.share() * 100.0, CAUGHT_MIN * 100.0);
            findings.push(format!("{share:.1} % are caught, and {least} % must be"));
        }
        let gone = survivors::gone(&listed, &outcomes.missed);
        findings.extend(gone.iter().map(|one| format!("is caught or is gone; unlist it: {one}")));
        Self { findings }
    }

    fn line(&self, name: &str, outcomes: &Outcomes, is_whole: bool, took: Duration) -> String {
        let of = if is_whole { "of all" } else { "of a part" };
        let is_well = if self.findings.is_empty() { "held" } else { "FAILED" };
        format!("{name:12} {is_well:6} {outcomes}, {of}, {} s\n", took.as_secs())
    }
}

/// Where all of this lies.
fn folder(name: &str) -> PathBuf {
    target().join("mutants").join(name)
}

/// Brings cargo-mutants, where it is not.
fn install() -> Result<()> {
    let is_there = Command::new(program()).args(["mutants", "--version"]).output();
    let version = is_there.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if version.is_ok_and(|version| version.trim().ends_with(CARGO_MUTANTS)) {
        return Ok(());
    }
    let tools = folder("tools");
    let tools = tools.to_str().context("the target directory is no text")?;
    let what = ["--locked", "--force", "cargo-mutants", "--version", CARGO_MUTANTS];
    cargo(&[&["install", "--root", tools], &what[..]].concat(), &[])
}

fn program() -> PathBuf {
    folder("tools").join("bin/cargo-mutants")
}

/// Copies what git would keep, anew each time: a mutant that somebody interrupted is in no copy.
fn copy_repository() -> Result<()> {
    let copy = folder("copy");
    if copy.exists() {
        fs::remove_dir_all(&copy).with_context(|| copy.display().to_string())?;
    }
    for name in unchanged::files(".")? {
        let (from, to) = (root().join(&name), copy.join(&name));
        // One that is deleted and not yet committed.
        if !from.is_file() {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(&from, &to).with_context(|| name.clone())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::outcomes::tests::outcomes;
    use super::*;

    #[test]
    fn settings_are_read() {
        let settings = Settings::parse(&["--only", "guard", "--only", "keys", "--shard", "1/20"]);
        let settings = settings.unwrap();
        assert_eq!(settings.only, ["guard", "keys"]);
        assert_eq!(settings.shard.as_deref(), Some("1/20"));
        assert!(settings.wants("keys") && !settings.wants("sampler"));
        let settings = Settings::parse(&["--minutes", "5"]).unwrap();
        assert_eq!(settings.budget, Duration::from_secs(300));
        assert!(settings.wants("sampler"));
        for wrong in [&["--only"][..], &["--only", "what"], &["--minutes", "x"], &["guard"]] {
            assert!(Settings::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_row_has_files_and_a_name_of_its_own() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            for path in row.paths() {
                let (before, after) = path.split_once('*').unwrap_or((path.as_str(), ""));
                let files = unchanged::files(&path).unwrap();
                assert!(!files.is_empty(), "{path}");
                let is_like_it = |file: &String| file.starts_with(before) && file.ends_with(after);
                assert!(files.iter().all(is_like_it), "{files:?}");
            }
        }
    }

    #[test]
    fn survivors_that_are_listed_are_survivors_of_a_row() {
        let survivors = Survivors::committed().unwrap();
        let all = survivors.of(|_| true);
        let of_rows = survivors.of(|file| ROWS.iter().any(|row| row.has(file)));
        assert_eq!(all, of_rows);
    }

    #[test]
    fn files_are_known_as_a_rows_own() {
        let has = |name: &str, file: &str| {
            ROWS.iter().find(|row| row.name == name).unwrap().has(&format!("crates/{file}"))
        };
        assert!(has("sampler", "smelt-backend/src/sampling/draw.rs"));
        assert!(!has("sampler", "smelt-backend/src/sampling/deeper/draw.rs"));
        assert!(!has("sampler", "smelt-backend/src/row.rs"));
        assert!(has("guard", "smelt-watch/src/guard.rs"));
        assert!(!has("guard", "smelt-watch/src/guard.rs.old"));
    }

    #[test]
    fn too_few_caught_survivors_not_listed_and_listed_ones_that_are_gone_are_findings() {
        const GUARD: &str = "crates/smelt-watch/src/guard.rs";
        let row = ROWS.iter().find(|row| row.name == "guard").unwrap();
        let list = |change: &str| {
            Survivors::read(&format!("{GUARD}: {change}\n    looks are never as near as that\n"))
        };
        let verdict = |caught, change: &str, is_whole| {
            let outcomes = outcomes(caught, &[(GUARD, 7, "replace < with <= in judge")]);
            Verdict::of(row, &outcomes, is_whole, &list(change).unwrap()).findings
        };
        let listed = "replace < with <= in judge";
        assert_eq!(verdict(19, listed, true), [""; 0]);
        let few = ["94.7 % are caught, and 95 % must be"];
        assert_eq!(verdict(18, listed, true), few);
        assert_eq!(verdict(18, listed, false), [""; 0], "of a part that is a sample");
        let unlisted = format!("no test sees {GUARD}:7: replace < with <= in judge");
        let gone = format!("is caught or is gone; unlist it: {GUARD}: replace < with == in judge");
        assert_eq!(verdict(19, "replace < with == in judge", true), [unlisted.clone(), gone]);
        assert_eq!(verdict(19, "replace < with == in judge", false), [unlisted]);
    }
}
