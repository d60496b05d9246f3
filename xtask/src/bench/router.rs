//! Measures what routing tiles saves and what it costs: one model, asked the same questions by
//! deployments that look closely everywhere, nowhere, and where a tile is worth it.
//!
//! `pipelines/shapes-router.toml` names the deployments, `smelt-shapes` draws the pictures, and
//! `smelt bench accuracy` asks; its table, JSON and plot are what is written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{remove, succeed};
use crate::ci::cargo;
use crate::tidy::build_smelt;
use crate::{root, target};

/// Questions of each set when `--questions` does not say.
const QUESTIONS: usize = 600;
/// Enough for the smoke run to see that tokens are saved and answers are heard.
const SMOKE_QUESTIONS: usize = 24;
/// How often all deployments are timed in turns, so that a busy machine is busy for all; and over how many
/// questions.
const TURNS: usize = 5;
const TIMED: usize = 60;
/// Questions kept of each picture.
const OF_ONE: usize = 2;

/// Pictures, what draws them, and the deployment that README recommends for them.
struct Set {
    name: &'static str,
    flags: &'static [&'static str],
    recommended: &'static str,
}

/// Pictures as the model was trained on, which fill their tiles; such that lie in one of four, the others
/// plain; and such of four busy tiles, one of which is asked about.
const SETS: [Set; 3] = [
    Set { name: "whole", flags: &[], recommended: "texture.2" },
    Set { name: "sparse", flags: &["--canvas", "2x2"], recommended: "texture.2" },
    Set { name: "mosaic", flags: &["--mosaic", "2x2"], recommended: "near.108" },
];

/// The share of right answers that a recommended deployment may lose: a little more than one question of
/// the smoke run's.
const LOSS_MAX: f64 = 0.05;

/// `cargo xtask bench router [--questions N] [--smoke]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        [] => measure("release", QUESTIONS, TURNS),
        ["--smoke"] => measure("debug", SMOKE_QUESTIONS, 0),
        ["--questions", count] => {
            let count = count.parse().ok().filter(|&count| count > 0);
            measure("release", count.context("--questions takes a number")?, TURNS)
        }
        _ => bail!("bench router takes --questions N or --smoke, not {}", arguments.join(" ")),
    }
}

fn measure(profile: &str, questions: usize, turns: usize) -> Result<()> {
    match profile {
        "release" => {
            let build = ["build", "--locked", "--release", "-p", "smelt", "-p", "smelt-shapes"];
            cargo(&build, &[])?;
        }
        _ => drop(build_smelt()?),
    }
    let bench = Bench {
        folder: target().join("bench/router"),
        programs: target().join(profile),
        pipeline: root().join("pipelines/shapes-router.toml"),
        turns,
    };
    fs::create_dir_all(&bench.folder).with_context(|| bench.folder.display().to_string())?;
    succeed(bench.smelt().arg("run").arg(&bench.pipeline))?;
    SETS.iter().try_for_each(|set| bench.ask(set, questions))
}

struct Bench {
    folder: PathBuf,
    programs: PathBuf,
    pipeline: PathBuf,
    turns: usize,
}

impl Bench {
    fn smelt(&self) -> Command {
        let mut command = Command::new(self.programs.join("smelt"));
        command.env("SMELT_CACHE", self.folder.join("cache"));
        command
    }

    /// Asks all deployments the questions of one set, and prints what came of it.
    fn ask(&self, set: &Set, questions: usize) -> Result<()> {
        let Set { name, flags, recommended } = *set;
        let (asked, figures) =
            (self.folder.join(name), self.folder.join(format!("{name}-figures")));
        remove(&asked)?;
        remove(&figures)?;
        let pictures = questions.to_string();
        let mut generate = Command::new(self.programs.join("smelt-shapes"));
        generate.args(["generate", "--count", &pictures, "--questions", &OF_ONE.to_string()]);
        succeed(generate.args(flags).arg("--out").arg(&asked))?;
        let asked = asked.join("questions.jsonl");
        succeed(self.accuracy(&asked, questions).arg("--out").arg(&figures))?;
        println!("\n{name}\n\n{}", fs::read_to_string(figures.join("accuracy.md"))?);
        self.time(&asked)?;
        check(&figures.join("accuracy.json"), recommended).with_context(|| name.to_owned())
    }

    fn accuracy(&self, asked: &Path, questions: usize) -> Command {
        let mut command = self.smelt();
        command.args(["bench", "accuracy"]).arg(&self.pipeline);
        command.args(["--limit", &questions.to_string(), "--questions"]).arg(asked);
        command
    }

    /// Prints the time to the first token of each deployment: the median of what all turns say.
    fn time(&self, asked: &Path) -> Result<()> {
        let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for _ in 0..self.turns {
            let output = self.accuracy(asked, TIMED).arg("--json").output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let figures: Value = serde_json::from_slice(&output.stdout)?;
            for row in figures["targets"].as_array().into_iter().flatten() {
                let name = row["target"].as_str().context("a target has a name")?.to_owned();
                let time = row["first_token_s"].as_f64().context("a time is a number")?;
                times.entry(name).or_default().push(time);
            }
        }
        for (name, mut times) in times {
            times.sort_by(f64::total_cmp);
            println!("{name}: first token after {:.1} ms", times[times.len() / 2] * 1e3);
        }
        Ok(())
    }
}

/// Whoever looks less closely has fewer tokens, and the `recommended` deployment is right as often.
fn check(path: &Path, recommended: &str) -> Result<()> {
    let figures: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let of = |name: &str| {
        let targets = figures["targets"].as_array().into_iter().flatten();
        let row = targets.into_iter().find(|row| row["target"] == name);
        let row = row.with_context(|| format!("{name} was not measured"))?;
        let number = |value: &Value| value.as_f64().context("a figure is no number");
        let share = number(&row["exact"]["right"])? / number(&row["exact"]["of"])?;
        Ok::<_, anyhow::Error>((share, number(&row["image_tokens"])?))
    };
    let ((high, all), (low, least)) = (of("high")?, of("low")?);
    let (routed, tokens) = of(recommended)?;
    ensure!(least < tokens && tokens < all, "{tokens} image tokens, between {least} and {all}?");
    ensure!(high > low, "looking closely is no better: {high:.3} and {low:.3} are right");
    ensure!(routed >= high - LOSS_MAX, "{recommended} is right in {routed:.3}, high in {high:.3}");
    Ok(())
}
