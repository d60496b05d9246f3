//! Follows the README, and then `docs/getting-started.md`, as a newcomer does: every command of the shell blocks that
//! names smelt as it lies in `target` or in the `PATH`, in order, in a store of its own.
//!
//! A comment right below a command is what its output must hold.  Commands run as they stand, but for models
//! that only a hub has: those are random weights, of the same sizes where time allows, and the picture that the reader
//! has is one of [`PICTURES`] in turn.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::ci::children_cpu_s;
use crate::tidy::build_smelt;
use crate::{root, target};

/// Models of random weights, and what they are let say where nobody waits for the end.
const RANDOM: &str = "synthetic:";
const FEW_TOKENS: &str = " --max-tokens 32";

/// What stands for a hub's models: the smallest VLM's sizes.
const MODEL: &str = "synthetic:internvl3-1b";

/// The models that the pages call by name, what stands for them, and what `ci` asks instead: it has the true sizes by the
/// pipeline of a hub.
const NAMED: [(&str, &str, &str); 3] = [
    ("smollm2", "smollm2", "smollm2"),
    ("internvl3-1b", MODEL, "synthetic:internvl3-tiny"),
    ("qwen2.5-vl-3b", "synthetic:qwen2_5_vl-tiny", "synthetic:qwen2_5_vl-tiny"),
];

/// The page that goes on where the README ends; of its commands those of an installed smelt.
const PAGE: &str = "docs/getting-started.md";
const INSTALLED: &str = "smelt ";
/// The README's command that builds smelt, and where it leaves it.
const BUILD: &str = "cargo build --release";
const BUILT: &str = "target/release";
/// Where the tests' smelt lies.
const BUILT_FOR_TESTS: &str = "target/debug";

/// The picture that README's reader is to have.
const PHOTO: &str = "photo.jpg";

/// Pictures as people have them: a file, its width and height.
const PICTURES: [(&str, [usize; 2]); 2] = [("4-3.png", [1024, 768]), ("16-9.png", [1920, 1080])];

/// The most time of processors that the commands of the VLM may take together, from its plan to its last answer.
const VLM_CPU_MAX_S: u64 = 8 * 60;

/// How often the first picture is shown when several are, to whom a released smelt answers soon.
const SEVERAL: usize = 6;

/// A command, and what its output must hold.
#[derive(Debug, PartialEq)]
struct WalkStep {
    command: String,
    expect: Option<String>,
}

/// Whose smelt a walk asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walker {
    /// A reader's, released, which the README's first command builds.
    Reader,
    /// The tests', which `ci` has: to build another takes longer than the walk.
    Ci,
}

impl Walker {
    /// Where his smelt lies.
    fn built(self) -> &'static str {
        match self {
            Self::Reader => BUILT,
            Self::Ci => BUILT_FOR_TESTS,
        }
    }

    /// A command of the pages as he gives it.
    fn says(self, command: &str) -> String {
        match self {
            Self::Ci if command == BUILD => format!("{BUILT_FOR_TESTS}/smelt --version"),
            _ => command.replace(BUILT, self.built()),
        }
    }

    /// What stands for a model that the pages call by this name.
    fn shown(self, word: &str) -> Option<&'static str> {
        let (_, reader, ci) = NAMED.iter().find(|(name, ..)| *name == word)?;
        Some(match self {
            Self::Reader => reader,
            Self::Ci => ci,
        })
    }

    /// Random weights speak until their context is full, which `ci` does not wait for.
    fn asks(self, command: String) -> String {
        let speaks = command.contains(" chat ") && command.contains(RANDOM);
        if self == Self::Ci && speaks { command + FEW_TOKENS } else { command }
    }
}

pub(crate) fn run(walker: Walker) -> Result<()> {
    println!("\n$ cargo xtask walks");
    if walker == Walker::Ci {
        build_smelt()?;
    }
    let folder = target().join("walks");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (name, size) in PICTURES {
        draw(&folder.join(name), size)?;
    }
    let steps = pages()?;
    let builds = steps.iter().any(|step| step.command == BUILD);
    ensure!(builds, "README.md: no command is {BUILD:?}");
    let mut vlm_s = 0;
    for step in steps {
        let is_hub = of_a_hub(&step.command)?;
        let begin_s = children_cpu_s()?;
        let command = walker.says(&by_name(walker, &step.command, &folder));
        for command in here(walker, &command, &folder, is_hub) {
            follow(&walker.asks(command), walker, step.expect.as_deref(), &folder)?;
        }
        vlm_s += if is_hub { children_cpu_s()? - begin_s } else { 0 };
    }
    println!("walks: the commands of the VLM took {vlm_s} s of processors");
    ensure!(vlm_s > 0, "README.md: no command is of a hub's model");
    ensure!(vlm_s <= VLM_CPU_MAX_S, "they are to take {VLM_CPU_MAX_S} s at most");
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// The commands of the pages.
fn pages() -> Result<Vec<WalkStep>> {
    let read = |page: &str| fs::read_to_string(root().join(page)).context(page.to_owned());
    let mut all = steps(&read("README.md")?);
    ensure!(all.iter().any(|step| step.expect.is_some()), "README.md: no command has an answer");
    let mut more = steps(&read(PAGE)?);
    more.retain(|step| step.command.starts_with(INSTALLED));
    ensure!(!more.is_empty(), "{PAGE}: no command is of an installed smelt");
    all.extend(more);
    Ok(all)
}

/// The commands of the ```sh blocks.
fn steps(text: &str) -> Vec<WalkStep> {
    let mut inside = false;
    let mut steps: Vec<WalkStep> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            inside = line.starts_with("```sh");
        } else if inside && !line.starts_with('#') && !line.trim().is_empty() {
            let below = lines.peek().and_then(|below| below.strip_prefix("# "));
            steps.push(WalkStep { command: line.to_owned(), expect: below.map(str::to_owned) });
        }
    }
    steps
}

/// Whether the pipeline that `command` names takes its model from a hub.
fn of_a_hub(command: &str) -> Result<bool> {
    let mut words = command.split_whitespace();
    let Some(path) = words.find(|word| word.starts_with("pipelines/")) else { return Ok(false) };
    let text = fs::read_to_string(root().join(path)).with_context(|| path.to_owned())?;
    Ok(text.lines().any(|line| line.starts_with("model = \"hf:")))
}

/// What `command` becomes that names a model and no pipeline: of one that only a hub has random weights.  A pipeline is
/// written where the walk ends with it.
fn by_name(walker: Walker, command: &str, folder: &Path) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let shown = words.iter().map(|word| walker.shown(word).unwrap_or(word));
    let shown = shown.collect::<Vec<_>>().join(" ");
    match words[..] {
        [_, "build", model] if walker.shown(model).is_some() => {
            format!("{shown} --out {}", folder.join(format!("{model}.toml")).display())
        }
        _ => shown,
    }
}

/// What `command` becomes on a machine without a hub and without its user's photographs.
fn here(walker: Walker, command: &str, pictures: &Path, is_hub: bool) -> Vec<String> {
    let command =
        if is_hub { format!("{command} --set model={MODEL}") } else { command.to_owned() };
    if !command.contains(PHOTO) {
        return vec![command];
    }
    let path = |name: &str| pictures.join(name).display().to_string();
    let with = |shown: &str| command.replace(&format!("--image {PHOTO}"), shown);
    let one = PICTURES.iter().map(|(name, _)| format!("--image {}", path(name)));
    let several = || vec![format!("--image {}", path(PICTURES[0].0)); SEVERAL].join(" ");
    let several = (walker == Walker::Reader).then(several);
    one.chain(several).map(|shown| with(&shown)).collect()
}

/// Runs a command as whoever is in this repository types it; one of an installed smelt as from any folder.
fn follow(command: &str, walker: Walker, expect: Option<&str>, folder: &Path) -> Result<()> {
    println!("$ {command}");
    let begin = Instant::now();
    let is_installed = command.starts_with(INSTALLED);
    let place = if is_installed { folder.to_owned() } else { root() };
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", root().join(walker.built()).display());
    let mut shell = Command::new("sh");
    shell.args(["-euc", command]).current_dir(place).env("PATH", path);
    shell.env("SMELT_CACHE", folder.join("cache"));
    let output = shell.output().context("cannot start sh")?;
    let [said, told] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    println!("{}  ({:.1} s)", said.trim_end(), begin.elapsed().as_secs_f64());
    if !output.status.success() {
        bail!("{command}: {}\n{}", output.status, told.trim_end());
    }
    match expect {
        Some(expect) if !said.contains(expect) => bail!("{command}: no {expect:?} in {said:?}"),
        _ => Ok(()),
    }
}

/// Writes a picture that is busy everywhere, as photographs are.
fn draw(path: &Path, [width, height]: [usize; 2]) -> Result<()> {
    let script: PathBuf = root().join("xtask/walks/draw.py");
    let status = Command::new("python3")
        .args([&script, path])
        .args([width, height].map(|side| side.to_string()))
        .status()
        .context("cannot start python3")?;
    ensure!(status.success(), "{} ended with {status}", script.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_answers_below_them() {
        let text = "# Title\n```sh\nmake it\nask it\n# 42\n```\n```toml\nno = 1\n```\n";
        let step = |command: &str, expect: Option<&str>| WalkStep {
            command: command.to_owned(),
            expect: expect.map(str::to_owned),
        };
        assert_eq!(steps(text), [step("make it", None), step("ask it", Some("42"))]);
    }

    #[test]
    fn a_model_that_is_called_by_name_is_made_of_random_weights() {
        let folder = Path::new("/x");
        let check = |command: &str, expect: &str| {
            assert_eq!(by_name(Walker::Reader, command, folder), expect);
        };
        check("smelt fit internvl3-1b", "smelt fit synthetic:internvl3-1b");
        check(
            "smelt build internvl3-1b",
            "smelt build synthetic:internvl3-1b --out /x/internvl3-1b.toml",
        );
        check("smelt build smollm2", "smelt build smollm2 --out /x/smollm2.toml");
        check("smelt chat internvl3-1b \"a b\"", "smelt chat synthetic:internvl3-1b \"a b\"");
        check(
            "smelt plan pipelines/internvl3-1b-int8.toml",
            "smelt plan pipelines/internvl3-1b-int8.toml",
        );
        check("cargo build --release", "cargo build --release");
        let of_ci = by_name(Walker::Ci, "smelt fit internvl3-1b", folder);
        assert_eq!(of_ci, "smelt fit synthetic:internvl3-tiny");
    }

    #[test]
    fn ci_asks_the_smelt_that_it_has() {
        let check = |walker: Walker, command: &str, expect: &str| {
            assert_eq!(walker.says(command), expect);
        };
        for command in ["cargo build --release", "target/release/smelt demo", "smelt demo"] {
            check(Walker::Reader, command, command);
        }
        check(Walker::Ci, "cargo build --release", "target/debug/smelt --version");
        check(Walker::Ci, "target/release/smelt demo", "target/debug/smelt demo");
        check(Walker::Ci, "smelt demo", "smelt demo");
    }

    #[test]
    fn the_pages_build_what_they_ask_by_name() {
        let all = pages().unwrap();
        let has = |words: &str| all.iter().any(|step| step.command.contains(words));
        for (name, ..) in NAMED {
            assert!(has(&format!("smelt chat {name} ")), "{name}");
        }
        assert!(has("smelt build smollm2") && has("smelt fit internvl3-1b") && has("smelt demo"));
        assert!(!has("cargo run"), "of the second page only what an installed smelt does");
    }

    #[test]
    fn a_reader_s_photograph_is_each_picture_and_then_several() {
        let folder = Path::new("/x");
        assert_eq!(here(Walker::Reader, "smelt runs", folder, false), ["smelt runs"]);
        let asks = "smelt chat p.toml --image photo.jpg \"What?\"";
        let asked = here(Walker::Reader, asks, folder, true);
        assert_eq!(asked.len(), PICTURES.len() + 1);
        assert_eq!(here(Walker::Ci, asks, folder, true), asked[..PICTURES.len()]);
        let first = format!("smelt chat p.toml --image /x/4-3.png \"What?\" --set model={MODEL}");
        assert_eq!(asked[0], first);
        assert_eq!(asked[2].matches("--image /x/4-3.png").count(), SEVERAL);
        assert_eq!(Walker::Ci.asks(first.clone()), format!("{first}{FEW_TOKENS}"));
        assert_eq!(Walker::Reader.asks(first.clone()), first);
    }
}
