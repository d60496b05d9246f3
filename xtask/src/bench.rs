//! Runs smelt beside a rival that does the same work, in the same minutes, and holds it to targets.
//!
//! `cases` is the table of what is run; `inputs` makes true-size random models once, under
//! `target/bench`; `measure` runs one process and says what it took.  Both sides alternate, so
//! that a busy machine is busy for both, and medians are compared.  Results must hold the same
//! weights, byte for byte: a fast wrong answer is no answer.

pub(crate) mod boards;
pub(crate) mod bundle;
pub(crate) mod cached;
mod cases;
mod counted;
pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod deltas;
pub(crate) mod film;
pub(crate) mod first;
pub(crate) mod fit;
pub(crate) mod fleet;
mod inputs;
pub(crate) mod measure;
mod report;
pub(crate) mod router;
pub(crate) mod serve;
pub(crate) mod site;
pub(crate) mod upstream;
pub(crate) mod watch;
pub(crate) mod workflow;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use cases::{CASES, Case};
use inputs::Inputs;
use measure::Figures;

/// Runs of each side when `--runs` does not say.
const RUNS: usize = 5;

/// What a side took, and what it should have.
struct Outcome {
    case: &'static Case,
    smelt: Figures,
    rival: Option<Figures>,
}

/// `cargo xtask bench front [--runs N] [CASE]…`: cases by their names, all when none is named.
pub(crate) fn front(arguments: &[&str]) -> Result<()> {
    let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
    let (runs, names) = parse(arguments, &known, RUNS)?;
    let inputs = Inputs::prepare()?;
    let mut outcomes = Vec::new();
    for case in CASES.iter().filter(|case| names.is_empty() || names.contains(&case.name)) {
        eprintln!("bench: {}", case.name);
        outcomes.push(run(case, runs, &inputs).with_context(|| case.name.to_owned())?);
    }
    let missed = report::write(&outcomes, runs, &inputs.folder.join("front.json"))?;
    if !missed.is_empty() {
        bail!("targets missed: {}", missed.join("; "));
    }
    Ok(())
}

/// `[--runs N] [CASE]…`: how often, `runs` times when it is not said, and the cases named.
fn parse<'a>(
    arguments: &[&'a str],
    known: &[&str],
    mut runs: usize,
) -> Result<(usize, Vec<&'a str>)> {
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        if argument == "--runs" {
            let count = arguments.next().and_then(|text| text.parse().ok());
            runs = count.filter(|&runs| runs > 0).context("--runs takes a number")?;
        } else if known.contains(&argument) {
            names.push(argument);
        } else {
            bail!("no case {argument}; there are {}", known.join(", "));
        }
    }
    Ok((runs, names))
}

/// Alternates both sides `runs` times.
fn run(case: &'static Case, runs: usize, inputs: &Inputs) -> Result<Outcome> {
    let source = inputs.make(case.input)?;
    let seen = if case.smelt.contains("SEEN") { Some(inputs.seen(&source)?) } else { None };
    let (source, seen) = (source.as_path(), seen.as_deref());
    let (mut smelt, mut rival) = (Vec::new(), Vec::new());
    let (ours, theirs) = (inputs.folder.join("out-smelt"), inputs.folder.join("out-rival"));
    for turn in 0..runs {
        remove(&ours)?;
        smelt.push(one(&inputs.smelt, &[], case.smelt, case, (source, seen), &ours)?);
        let Some(arguments) = case.rival else { continue };
        remove(&theirs)?;
        let script = inputs::script("rival.py");
        rival.push(one(&inputs.python, &[&script], arguments, case, (source, None), &theirs)?);
        if turn == 0 {
            same(inputs, &ours, &theirs)?;
        }
    }
    remove(&ours)?;
    remove(&theirs)?;
    let rival = (!rival.is_empty()).then(|| Figures::medians(&rival));
    Ok(Outcome { case, smelt: Figures::medians(&smelt), rival })
}

/// One process, its input and output put into the arguments.
fn one(
    program: &Path,
    first: &[&Path],
    arguments: &str,
    case: &Case,
    (source, seen): (&Path, Option<&Path>),
    out: &Path,
) -> Result<Figures> {
    let used = if case.consumes { inputs::twin(source)? } else { source.to_owned() };
    let place = |argument: &str| match argument {
        "IN" => used.clone().into_os_string(),
        "OUT" => out.to_owned().into_os_string(),
        "SEEN" => seen.unwrap_or(source).to_owned().into_os_string(),
        word => word.into(),
    };
    let mut command = vec![program.as_os_str().to_owned()];
    command.extend(first.iter().map(|path| path.as_os_str().to_owned()));
    command.extend(arguments.split(' ').map(place));
    measure::run(&command)
}

/// Both results hold the same weights, and a rival's graph is sound.
fn same(inputs: &Inputs, ours: &Path, theirs: &Path) -> Result<()> {
    let mut compare = Command::new(&inputs.python);
    compare.arg(inputs::script("same.py")).args([ours, theirs]);
    succeed(&mut compare).context("the two results differ")?;
    if theirs.join("model.onnx").exists() {
        succeed(Command::new(&inputs.smelt).args(["onnx", "check"]).arg(theirs))?;
    }
    Ok(())
}

/// The turns of a benchmark that is told nothing but `--runs N`; else its usual ones.
fn runs_of(name: &str, arguments: &[&str], usual: usize) -> Result<usize> {
    match arguments {
        [] => Ok(usual),
        ["--runs", count] => {
            count.parse().ok().filter(|&runs| runs > 0).context("--runs takes a number")
        }
        _ => bail!("bench {name} takes --runs N, not {}", arguments.join(" ")),
    }
}

/// Runs a command that must succeed; what it prints goes to standard error.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    eprintln!("  {}{}", text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    Ok(())
}

pub(crate) fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
