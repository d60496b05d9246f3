//! Measures the CPU engine at true size beside llama.cpp and ONNX Runtime, in the same minutes.
//!
//! `cases` lists what is run, `inputs` makes weights that both sides read, `machine` says what it ran
//! on, `report` tells what was found.  Every run is a process of its own; all sides take turns, and
//! before each turn memory is read once by as many threads, which bounds what decoding can reach.

mod cases;
mod inputs;
mod machine;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::measure::{self, Figures};
use cases::{Case, Work};
use inputs::{Inputs, Side};
use report::Row;

/// Runs of each side when `--runs` does not say.
const RUNS: usize = 5;

/// What is asked on the command line.
struct Settings {
    runs: usize,
    /// Of every count there is, when none is named.
    threads: Option<usize>,
    /// Cases whose names hold one of these; all when there is none.
    only: Vec<String>,
    /// Every step of our side once, on tiny weights, and no clock.
    smoke: bool,
}

impl Settings {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut settings = Self { runs: RUNS, threads: None, only: Vec::new(), smoke: false };
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} what?"));
            let count = |text: &&str| text.parse().ok().filter(|&count: &usize| count > 0);
            match argument {
                "--runs" => settings.runs = count(value()?).context("--runs takes a number")?,
                "--threads" => {
                    settings.threads = Some(count(value()?).context("--threads takes a number")?);
                }
                "--only" => settings.only.push((*value()?).to_owned()),
                "--smoke" => settings.smoke = true,
                _ => bail!("bench cpu takes --runs, --threads, --only and --smoke, not {argument}"),
            }
        }
        Ok(settings)
    }

    fn wants(&self, case: &Case) -> bool {
        let name = case.name();
        self.threads.is_none_or(|threads| threads == case.threads)
            && (self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str())))
    }
}

/// `cargo xtask bench cpu [--runs N] [--threads N] [--only TEXT]… [--smoke]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let settings = Settings::parse(arguments)?;
    if settings.smoke {
        return smoke();
    }
    let cases: Vec<Case> = cases::all().filter(|case| settings.wants(case)).collect();
    let names = || cases::all().map(|case| case.name()).collect::<Vec<_>>().join(", ");
    ensure!(!cases.is_empty(), "no such case; there are {}", names());
    let inputs = Inputs::prepare()?;
    let facts = machine::facts()?;
    let (mut rows, mut failed) = (Vec::new(), None);
    for case in &cases {
        eprintln!("bench: {}", case.name());
        match measure(case, settings.runs, &inputs).with_context(|| case.name()) {
            Ok(row) => rows.push(row),
            // What took half an hour is told all the same.
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let written = report::write(&facts, &rows, settings.runs, &inputs.folder);
    failed.map_or(written, Err)
}

/// `runs` turns of all sides.
fn measure(case: &Case, runs: usize, inputs: &Inputs) -> Result<Row> {
    let sides = inputs.sides(case)?;
    let bytes = inputs.bytes_a_token(case)?;
    let mut bandwidths = Vec::new();
    let mut taken: Vec<Vec<ProcessRun>> = sides.iter().map(|_| Vec::new()).collect();
    for _ in 0..runs {
        bandwidths.push(inputs.bandwidth(case.threads)?);
        for (side, runs) in sides.iter().zip(&mut taken) {
            runs.push(ProcessRun::of(case, side)?);
        }
    }
    let names: Vec<&'static str> = sides.iter().map(|side| side.name).collect();
    Row::new(case, names, &taken, bytes, measure::median(bandwidths))
}

/// What one process of one side took.
#[derive(Clone, Copy)]
struct ProcessRun {
    load_s: f64,
    /// Tokens a second, where there are prompts.
    prefill: Option<f64>,
    /// Tokens a second, of all slots together; pictures a second of a graph.
    speed: f64,
    /// Less what an interpreter took before it had a model.
    rss_mib: f64,
    cpu_s: f64,
}

impl ProcessRun {
    fn of(case: &Case, side: &Side) -> Result<Self> {
        let (figures, said) = measure::told(&side.command)?;
        let said: Value = serde_json::from_str(&said).with_context(|| format!("said {said:?}"))?;
        let number = |name: &str| said[name].as_f64().with_context(|| format!("no {name}"));
        let Figures { cpu_s, rss_mib, .. } = figures;
        let rss_mib = rss_mib - said["idle_rss_mib"].as_f64().unwrap_or(0.0);
        let load_s = number("load_s")?;
        let (prefill, speed) = match case.work {
            Work::Text { prefill, decode, slots, .. } => {
                let speed = |tokens: usize, seconds: f64| (tokens * slots) as f64 / seconds;
                let prefill = speed(prefill, number("prefill_s")?);
                (Some(prefill), speed(decode, number("decode_s")?))
            }
            Work::Pictures { .. } => {
                let times: Vec<f64> = said["run_s"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_f64)
                    .collect();
                ensure!(!times.is_empty(), "no run_s");
                (None, 1.0 / measure::median(times))
            }
        };
        Ok(Self { load_s, prefill, speed, rss_mib, cpu_s })
    }
}

/// The synthetic checkpoints of this bench, for others that work on the same.
pub(super) struct Checkpoints(Inputs);

impl Checkpoints {
    pub(super) fn prepare() -> Result<Self> {
        Inputs::prepare().map(Self)
    }

    /// The checkpoint of this name, made if it is not there.
    pub(super) fn of(&self, name: &str) -> Result<PathBuf> {
        self.0.named_checkpoint(name)
    }

    /// What measures engines by themselves.
    pub(super) fn program(&self) -> PathBuf {
        self.0.program()
    }
}

/// What the figures are of.
pub(super) fn machine() -> Result<Value> {
    machine::facts()
}

/// Every command of our side on tiny weights, so that a change cannot break them unseen.
fn smoke() -> Result<()> {
    println!("\n$ cargo xtask bench cpu --smoke");
    let inputs = Inputs::tiny()?;
    for command in inputs.tiny_runs()? {
        let (_, said) = measure::told(&command)?;
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        println!("{}: {}", words[1..].join(" "), said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_choose_cases() {
        let named = |arguments: &[&str]| {
            let settings = Settings::parse(arguments).unwrap();
            cases::all().filter(|case| settings.wants(case)).map(|case| case.name()).collect()
        };
        let all: Vec<String> = named(&[]);
        assert_eq!(all.len(), cases::WORKS.len() * 2);
        let one: Vec<String> = named(&["--threads", "2", "--only", "0.5b-q4"]);
        assert_eq!(one, ["qwen2.5-0.5b-q4-t2", "qwen2.5-0.5b-q4-8slots-t2"]);
        for wrong in [&["--runs", "0"][..], &["--runs"], &["--fast"], &["--threads", "x"]] {
            assert!(Settings::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
