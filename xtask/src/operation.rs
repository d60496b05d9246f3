//! Checks the files that an operator copies: the unit by systemd, the alerts by Prometheus, the container
//! file as far as that goes without building it.
//!
//! That dashboard and alerts name metrics that are counted is a test of `smelt`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::debian::{self, Packages};
use crate::tidy::build_smelt;
use crate::{root, target};

/// Where the unit and the container file look for smelt.
const PROGRAM: &str = "/usr/local/bin/smelt";

/// What the unit must say, each in a line, so that what README promises of a server holds.
const PROMISES: [(&str, &str); 5] = [
    ("Environment=ADDR=127.0.0.1:8000", "others than this machine reach it unasked"),
    ("StateDirectory=smelt", "its store is nobody's"),
    ("Environment=SMELT_CACHE=/var/lib/smelt/cache", "what it serves is not held in its store"),
    ("ExecReload=kill -HUP $MAINPID", "a newer deployment needs a restart"),
    ("RestartPreventExitStatus=2 3 4 5", "what cannot start is started for ever"),
];

/// The same of the unit that serves neighbours.
const PEER_PROMISES: [(&str, &str); 3] = [
    ("Environment=SMELT_CACHE=/var/lib/smelt/cache", "it serves another store than the server's"),
    ("IOSchedulingClass=idle", "neighbours go before models"),
    ("RestartPreventExitStatus=2", "what cannot start is started for ever"),
];

/// What no container is made of, however large it is.
const IGNORED: [&str; 2] = ["target", "cache"];

pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask operation");
    let from = root().join("crates/smelt-serve/operation");
    let scratch = scratch()?;
    let smelt = build_smelt()?;
    unit(&from.join("smelt.service"), &PROMISES, &smelt, &scratch)?;
    unit(&from.join("smelt-peer.service"), &PEER_PROMISES, &smelt, &scratch)?;
    alerts(&from.join("alerts.yml"), &scratch)?;
    container(&from.join("Containerfile"), &smelt)
}

fn scratch() -> Result<PathBuf> {
    let scratch = target().join("operation");
    fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    Ok(scratch)
}

/// Brings the programs that look at them.
pub(crate) fn fetch() -> Result<()> {
    need_systemd()?;
    prometheus(&scratch()?).map(drop)
}

fn need_systemd() -> Result<()> {
    debian::need("systemd", || debian::runs("systemd-analyze", "--version"))
}

fn prometheus(scratch: &Path) -> Result<PathBuf> {
    Packages::own().unpack("prometheus", scratch)
}

/// systemd understands every line, and smelt every flag.
fn unit(unit: &Path, promises: &[(&str, &str)], smelt: &Path, scratch: &Path) -> Result<()> {
    need_systemd()?;
    let text = fs::read_to_string(unit).with_context(|| unit.display().to_string())?;
    let command = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
    let command = command.and_then(|command| command.strip_prefix(PROGRAM));
    let command = command.with_context(|| format!("the unit does not start {PROGRAM}"))?;
    takes(smelt, &filled(&text, command))?;
    for (line, else_what) in promises {
        ensure!(text.lines().any(|said| said == *line), "the unit lacks {line:?}: {else_what}");
    }
    // What it starts is not installed here.
    let name = unit.file_name().and_then(|name| name.to_str()).context("a unit has a name")?;
    let copy = scratch.join(name);
    let smelt = smelt.to_str().context("the target's path is text")?;
    fs::write(&copy, text.replace(PROGRAM, smelt))?;
    let verify = Command::new("systemd-analyze").arg("verify").arg(&copy).output()?;
    // It ends well where it ignores a line, and says so.
    let said = String::from_utf8_lossy(&verify.stderr);
    ensure!(verify.status.success() && !said.contains(name), "the unit is wrong: {}", said.trim());
    Ok(())
}

/// The words of a unit's `command`, with what its `Environment=` lines say in the place of variables.
fn filled(unit: &str, command: &str) -> Vec<String> {
    let set = unit.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='));
    let set: Vec<(&str, &str)> = set.collect();
    let value = |word: &str| {
        let name = word.strip_prefix('$')?.trim_matches(['{', '}']);
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let words =
        command.split_whitespace().map(|word| value(word).unwrap_or_else(|| word.to_owned()));
    words.filter(|word| !word.is_empty()).collect()
}

fn alerts(rules: &Path, scratch: &Path) -> Result<()> {
    let promtool = prometheus(scratch)?.join("usr/bin/promtool");
    let status = Command::new(promtool).args(["check", "rules"]).arg(rules).status();
    ensure!(status.context("cannot start promtool")?.success(), "the alerts are wrong");
    Ok(())
}

/// Instructions are known, what is copied is there and not more, and smelt takes the flags.
fn container(file: &Path, smelt: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let ignored = fs::read_to_string(root().join(".dockerignore")).context(".dockerignore")?;
    let is_ignored = |name: &&str| ignored.lines().any(|line| line == *name);
    ensure!(IGNORED.iter().all(is_ignored), ".dockerignore lacks one of {IGNORED:?}");
    let mut starts = Vec::new();
    let is_said = |line: &&str| !line.is_empty() && !line.starts_with('#');
    for line in text.lines().filter(is_said) {
        let (instruction, words) = line.split_once(' ').unwrap_or((line, ""));
        let known = match instruction {
            "FROM" | "WORKDIR" | "RUN" | "ENV" | "USER" | "EXPOSE" | "STOPSIGNAL" => true,
            "COPY" => copies(words).is_some(),
            "ENTRYPOINT" | "CMD" => {
                let words: Vec<String> = serde_json::from_str(words).context(line.to_owned())?;
                starts.extend(words);
                true
            }
            _ => false,
        };
        ensure!(known, "{}: what does this do? {line}", file.display());
    }
    takes(smelt, starts.get(1..).context("ENTRYPOINT is empty")?)
}

/// Where a `COPY` puts what is there: in the repository, or what the stage before has built.
fn copies(words: &str) -> Option<&str> {
    let built = "--from=build /smelt/target/release/smelt ";
    if let Some(to) = words.strip_prefix(built) {
        return (to == PROGRAM).then_some(to);
    }
    let (sources, to) = words.rsplit_once(' ')?;
    let is_there = |source: &str| root().join(source).exists();
    sources.split(' ').all(is_there).then_some(to)
}

/// smelt knows these words: behind wrong ones it does not come to tell of itself.
fn takes(smelt: &Path, words: &[String]) -> Result<()> {
    let output = Command::new(smelt).args(words).arg("--help").output();
    let output = output.context("cannot start smelt")?;
    if !output.status.success() {
        bail!("smelt does not take {words:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_unit_are_what_it_sets() {
        let unit = "Environment=ADDR=127.0.0.1:1\nEnvironment=FLAGS=\n";
        let words = filled(unit, " serve --addr ${ADDR} --api-key-file %d/keys $FLAGS $OTHER");
        assert_eq!(
            words,
            ["serve", "--addr", "127.0.0.1:1", "--api-key-file", "%d/keys", "$OTHER"]
        );
    }
}
