//! Runs a pipeline at true size inside a control group of little memory, and says what it took.
//!
//! The weights are random and of the sizes of InternVL3-2B, 4.2 GB.  The second run forces the
//! decoder's build under a limit that the kernel enforces by killing it; its retry must cure that.

mod confined;
mod told;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{root, target};
use told::Stage;

const PIPELINE: &str = "pipelines/internvl3-2b-int8.toml";
const MODEL: &str = "model=synthetic:internvl3-2b";
const KILLED: &str = "xtask/src/scale/killed.toml";
/// The stage of it that is killed.
const STAGE: &str = "llm-engine";

/// A fifth of what the boards have; file pages take what the stages leave of it.
const MEMORY: u64 = 1536 << 20;

struct Settings {
    memory_bytes: u64,
    /// Begins with the store that is there and leaves it.
    keep: bool,
}

impl Settings {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut settings = Self { memory_bytes: MEMORY, keep: false };
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            match argument {
                "--memory" => {
                    let bytes = arguments.next().and_then(|text| bytes(text));
                    settings.memory_bytes =
                        bytes.context("--memory takes a size such as 1536MiB or 2GiB")?;
                }
                "--keep" => settings.keep = true,
                _ => bail!("scale takes --memory SIZE and --keep, not {argument}"),
            }
        }
        Ok(settings)
    }
}

fn bytes(text: &str) -> Option<u64> {
    let units = [("MiB", 20), ("GiB", 30)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
    let number: u64 = number.parse().ok().filter(|&number| number > 0)?;
    number.checked_mul(1 << shift)
}

/// Where everything is built, and what is asked.
struct Bench {
    smelt: PathBuf,
    store: PathBuf,
    memory_bytes: u64,
}

/// `cargo xtask scale [--memory SIZE] [--keep]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let settings = Settings::parse(arguments)?;
    let store = target().join("scale");
    let bench = Bench { smelt: build()?, store, memory_bytes: settings.memory_bytes };
    if !settings.keep {
        remove(&bench.store)?;
    }
    let result = bench.both();
    if !settings.keep {
        remove(&bench.store)?;
    }
    result
}

impl Bench {
    fn both(&self) -> Result<()> {
        let plain = self.run("undisturbed", &[PIPELINE, "--set", MODEL])?;
        let killed = self.run("killed at first", &[KILLED, "--force", STAGE])?;
        let find = |stages: &[Stage]| stages.iter().find(|stage| stage.name == STAGE).cloned();
        let mut wrongs = told::wrongs(&plain);
        wrongs.extend(told::wrongs_of_killed(find(&killed).as_ref(), find(&plain).as_ref()));
        for wrong in &wrongs {
            println!("WRONG: {wrong}");
        }
        ensure!(wrongs.is_empty(), "the pipeline does not do at true size what it should");
        Ok(())
    }

    /// Plans, runs and reports, and prints what was told.
    fn run(&self, name: &str, arguments: &[&str]) -> Result<Vec<Stage>> {
        let (pipeline, set) = arguments.split_first().context("a run needs a pipeline")?;
        let set = if set.contains(&"--set") { set } else { &[] };
        let plan = self.ask(&[&["plan", pipeline, "--json"], set].concat())?;
        let variables = [("SMELT_CACHE", self.store.as_path())];
        let arguments = [&["run"], arguments].concat();
        let taken = confined::run(&self.smelt, &arguments, &variables, self.memory_bytes)?;
        let stages = told::read(&self.ask(&["report", "--json"])?)?;
        println!("\n{name}: {}, in {} MiB", taken.status, self.memory_bytes >> 20);
        println!("{}", told::HEAD);
        for stage in &stages {
            let forecast = told::forecast(&plan, &stage.name)?;
            told::lines(stage, forecast).iter().for_each(|line| println!("{line}"));
        }
        println!(
            "the group's peak {} MiB, page cache counted; {} processes killed for want of memory",
            taken.peak_bytes >> 20,
            stages.iter().map(Stage::oom_kills).sum::<u64>()
        );
        Ok(stages)
    }

    /// What smelt says of the store.
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let mut smelt = Command::new(&self.smelt);
        smelt.args(arguments).current_dir(root()).env("SMELT_CACHE", &self.store);
        let output = smelt.output().context("cannot start smelt")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{smelt:?} failed: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The command as it is released.
pub(crate) fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--quiet", "--package", "smelt", "--locked"]);
    let status = cargo.current_dir(root()).status().context("cannot start cargo")?;
    ensure!(status.success(), "smelt does not build");
    Ok(target().join("release/smelt"))
}

fn remove(store: &Path) -> Result<()> {
    if store.exists() {
        fs::remove_dir_all(store).with_context(|| store.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_refused() {
        let settings = Settings::parse(&["--memory", "2GiB", "--keep"]).unwrap();
        assert_eq!((settings.memory_bytes, settings.keep), (2 << 30, true));
        assert_eq!(Settings::parse(&[]).unwrap().memory_bytes, 1_610_612_736);
        for wrong in ["0MiB", "1.5GiB", "1536", "-1GiB", "99999999999999GiB"] {
            assert!(Settings::parse(&["--memory", wrong]).is_err(), "{wrong}");
        }
        assert!(Settings::parse(&["--what"]).is_err());
        assert!(Settings::parse(&["--memory"]).is_err());
    }
}
