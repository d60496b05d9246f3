//! Holds what `smelt fit` says before a build against what the build and the first answers really take.
//!
//! Every model is fitted, built and asked about a photograph, in a store of its own; then it is fitted again, since what
//! was measured by then is what the first fit had estimated.  A shared machine is twice as fast in one minute as in the next,
//! so times are estimated and measured in turns, and the middle turn counts.  Models have random weights of their true sizes.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::measure;
use crate::{root, scale, target};

/// Models of all families, small ones first.
const MODELS: [&str; 12] = [
    "internvl3-tiny",
    "internvl3_5-tiny",
    "qwen2_vl-tiny",
    "qwen2_5_vl-tiny",
    "qwen3_vl-tiny",
    "smolvlm-tiny",
    "ms-marco-minilm-l6",
    "smolvlm-256m",
    "smolvlm-500m",
    "internvl3-1b",
    "internvl3_5-1b",
    "qwen3_vl-2b",
];
/// The picture that is asked about.
const PICTURE: &str = "tests/data/picture.png";
/// How far memory and times may be from what was said.
const MEMORY_OFF_MAX: f64 = 0.10;
const TIME_OFF_MAX: f64 = 0.25;
/// The most that advising may take, and that building by a name may add, in seconds.
const FIT_S_MAX: f64 = 1.0;
const BUILD_ADDS_S_MAX: f64 = 0.1;
/// Runs of which the middle one counts.
const QUICK_RUNS: usize = 5;
/// Turns of an estimate and an answer, of which the middle one counts.
const TURNS: usize = 5;
/// Below this the program itself is most of what is held, and clocks most of a time.
const MEMORY_MIN: f64 = 256.0;
const TIME_MIN_S: f64 = 0.5;

/// One figure, as it was said and as it was found.
struct Figure {
    what: &'static str,
    said: f64,
    found: f64,
    off_max: f64,
    /// Below this the figure tells nothing.
    least: f64,
}

impl Figure {
    /// One that may be less than was said, and not more.
    fn at_most(what: &'static str, said: f64, found: f64) -> Self {
        Self { what, said, found, off_max: 0.0, least: said }
    }

    fn off(&self) -> f64 {
        (self.said - self.found) / self.found.max(f64::MIN_POSITIVE)
    }

    fn is_missed(&self) -> bool {
        self.found >= self.least && self.off().abs() > self.off_max
    }
}

/// `cargo xtask fit [--only TEXT]… [--smoke]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let only = only(arguments)?;
    let smelt = scale::build()?;
    let is_asked = |name: &&str| only.is_empty() || only.iter().any(|text| name.contains(text));
    println!("{:20} {:22} {:>10} {:>10} {:>7}", "model", "", "said", "found", "off");
    let mut missed = Vec::new();
    for name in MODELS.into_iter().filter(is_asked) {
        let figures = of_model(&smelt, name).context(name)?;
        // What is built of one model is large, and the next has its own.
        fs::remove_dir_all(target().join("fit").join(name))?;
        for figure in figures {
            let Figure { what, said, found, .. } = figure;
            let mark = if figure.is_missed() { "  MISSED" } else { "" };
            let off = figure.off() * 100.0;
            println!("{name:20} {what:22} {said:10.2} {found:10.2} {off:6.1}%{mark}");
            if figure.is_missed() {
                missed.push(format!("{name}: {what}"));
            }
        }
    }
    ensure!(missed.is_empty(), "forecasts missed: {}", missed.join("; "));
    Ok(())
}

/// Parts of the names of models that are asked for; `--smoke` stands for the smallest.
fn only<'a>(arguments: &[&'a str]) -> Result<Vec<&'a str>> {
    let mut only = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        match argument {
            "--smoke" => only.push("internvl3-tiny"),
            "--only" => only.push(arguments.next().copied().context("--only takes a text")?),
            _ => bail!("fit takes --only TEXT and --smoke, not {argument}"),
        }
    }
    Ok(only)
}

fn of_model(smelt: &Path, name: &str) -> Result<Vec<Figure>> {
    let folder = target().join("fit").join(name);
    let _ = fs::remove_dir_all(&folder);
    // The log of what is measured lies in the latter.
    for folder in [&folder, &target().join("bench")] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let ask = |arguments: &[&str]| json(smelt, &folder, arguments);
    let model = format!("synthetic:{name}");
    let said = ask(&["fit", &model, "--json"])?;
    let report = ask(&["build", &model, "--out", "model.toml", "--json"])?;
    let listed = ask(&["ls", "--json"])?;
    let line = &said["lines"][0];
    let mib = |value: &Value| value.as_f64().map(|bytes| bytes / f64::from(1 << 20));
    let of_line = |field: &str| mib(&line[field]).with_context(|| format!("fit says no {field}"));
    let memory = |what, said, found| Figure {
        what,
        said,
        found,
        off_max: MEMORY_OFF_MAX,
        least: MEMORY_MIN,
    };
    let engines = mib(&listed["deployments"][0]["bytes"]).context("nothing is listed")?;
    let mut figures = vec![
        memory("engines, MiB", of_line("engines_bytes")?, engines),
        // What streams may hold more, and does not.
        Figure::at_most("building, MiB", of_line("building_bytes")?, held(&report)),
    ];
    if line["scheme"].is_null() {
        return Ok(figures);
    }
    figures.extend(quick(smelt, &folder, &model)?);
    let resident = chat(smelt, &folder)?;
    let spare = of_line("pictures_bytes")? + of_line("kv_bytes")?;
    let context = line["context"].as_f64().unwrap_or(1.0);
    let asked = line["image_tokens"].as_f64().unwrap_or(0.0) + 100.0;
    let kv = of_line("kv_bytes")? * (asked / context).min(1.0);
    figures.push(memory("answering, MiB", of_line("serving_bytes")? - spare + kv, resident));
    // An answer that clocks cannot tell from none is not remembered.
    if name.ends_with("-tiny") {
        return Ok(figures);
    }
    let turns: Vec<Turn> =
        (0..TURNS).map(|_| turn(smelt, &folder, &model)).collect::<Result<_>>()?;
    let time = |what, field: &str, least| {
        let (said, found) = middle(&turns, field)?;
        Some(Figure { what, said, found, off_max: TIME_OFF_MAX, least })
    };
    figures.extend(time("tokens/s", "tokens_per_s", 0.0).filter(|figure| figure.found < 300.0));
    figures.extend(time("first token, s", "first_token_s", TIME_MIN_S));
    Ok(figures)
}

/// What `fit` says of a speed without having seen any, and what it says behind an answer.
struct Turn {
    said: Value,
    found: Value,
}

fn turn(smelt: &Path, folder: &Path, model: &str) -> Result<Turn> {
    let speed = |store: &str| -> Result<Value> {
        let said = json_of(smelt, folder, &["fit", model, "--json"], store)?;
        Ok(said["lines"][0]["speed"].clone())
    };
    let said = speed("nothing")?;
    chat(smelt, folder)?;
    let found = speed("cache")?;
    ensure!(found["basis"] == "measured", "no answer was remembered: {found}");
    Ok(Turn { said, found })
}

/// Of the turn whose estimate is off by as much as the middle one's, what was said of `field` and what was found.
fn middle(turns: &[Turn], field: &str) -> Option<(f64, f64)> {
    let pair = |turn: &Turn| Some((turn.said[field].as_f64()?, turn.found[field].as_f64()?));
    let mut pairs: Vec<(f64, f64)> = turns.iter().filter_map(pair).collect();
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    pairs.get(pairs.len() / 2).copied()
}

/// What advising takes, and what building by a name adds to the same pipeline by hand, where all is built.
fn quick(smelt: &Path, folder: &Path, model: &str) -> Result<[Figure; 2]> {
    let seconds = |arguments: &[&str]| -> Result<f64> {
        let time = |_| {
            let begin = Instant::now();
            json(smelt, folder, arguments)?;
            Ok(begin.elapsed().as_secs_f64())
        };
        Ok(measure::median((0..QUICK_RUNS).map(time).collect::<Result<Vec<_>>>()?))
    };
    let fit = seconds(&["fit", model, "--json"])?;
    let by_name = seconds(&["build", model, "--out", "model.toml", "--json"])?;
    let by_hand = seconds(&["run", "model.toml", "--json"])?;
    let adds = (by_name - by_hand).max(0.0);
    Ok([
        Figure::at_most("fit takes, s", FIT_S_MAX, fit),
        Figure::at_most("build adds, s", BUILD_ADDS_S_MAX, adds),
    ])
}

/// The most that a stage of a run held, in MiB, as samples saw it: what the kernel tells besides of the time between two
/// samples counts mapped weights, too.
fn held(report: &Value) -> f64 {
    let stages = report["stages"].as_array().into_iter().flatten();
    let attempts = stages.flat_map(|stage| stage["attempts"].as_array().into_iter().flatten());
    let bytes = attempts.filter_map(|attempt| attempt["peak_rss_anon_bytes"].as_f64());
    bytes.fold(0.0, f64::max) / f64::from(1 << 20)
}

/// Asks about a photograph; the most that was resident, in MiB.
fn chat(smelt: &Path, folder: &Path) -> Result<f64> {
    let picture = root().join(PICTURE);
    let mut command: Vec<OsString> = vec!["env".into()];
    command.push(format!("--chdir={}", folder.display()).into());
    command.push(format!("SMELT_CACHE={}", folder.join("cache").display()).into());
    command.push(smelt.into());
    command.extend(["chat", "model.toml", "--max-tokens", "48", "--image"].map(OsString::from));
    command.push(picture.into());
    command.push("Describe this image.".into());
    Ok(measure::told(&command)?.0.rss_mib)
}

fn json(smelt: &Path, folder: &Path, arguments: &[&str]) -> Result<Value> {
    json_of(smelt, folder, arguments, "cache")
}

/// What `smelt` answers with a store of this name in `folder`.
fn json_of(smelt: &Path, folder: &Path, arguments: &[&str], store: &str) -> Result<Value> {
    let output = Command::new(smelt)
        .args(arguments)
        .current_dir(folder)
        .env("SMELT_CACHE", folder.join(store))
        .output()
        .context("cannot start smelt")?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {}\n{told}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{arguments:?}: no JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_missed_where_it_is_far_off_and_tells_something() {
        let figure = |said, found| Figure { what: "x", said, found, off_max: 0.1, least: 256.0 };
        assert!(!figure(1000.0, 1000.0).is_missed() && !figure(1099.0, 1000.0).is_missed());
        assert!(figure(1200.0, 1000.0).is_missed() && figure(800.0, 1000.0).is_missed());
        assert!(!figure(200.0, 100.0).is_missed(), "the program itself is most of it");
    }

    #[test]
    fn the_middle_turn_counts() {
        let turn = |said: f64, found: f64| {
            let of = |value: f64| serde_json::json!({ "tokens_per_s": value });
            Turn { said: of(said), found: of(found) }
        };
        let turns = [turn(9.0, 1.0), turn(10.0, 8.0), turn(1.0, 7.0)];
        assert_eq!(middle(&turns, "tokens_per_s"), Some((10.0, 8.0)));
        assert_eq!(middle(&turns, "first_token_s"), None);
    }

    #[test]
    fn the_stage_that_held_most_counts() {
        let report = serde_json::json!({ "stages": [
            { "attempts": [{ "peak_rss_anon_bytes": 1 << 20 }, { "peak_rss_anon_bytes": 3 << 20 }] },
            { "attempts": [] },
        ] });
        assert_eq!(held(&report), 3.0);
    }

    #[test]
    fn models_are_chosen_by_parts_of_their_names() {
        assert_eq!(only(&["--only", "qwen", "--smoke"]).unwrap(), ["qwen", "internvl3-tiny"]);
        assert!(only(&["--only"]).is_err() && only(&["x"]).is_err());
    }
}
