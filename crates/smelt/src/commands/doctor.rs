//! `smelt doctor`: examines a device, or what a pipeline needs of it, tells what it found, and with `--fix` cures what it may.

use std::io::{self, BufRead, IsTerminal as _};
use std::process::Command;

use serde_json::json;
use smelt_cuda::{CardFacts, CudaTarget, Sm, nvrtc};
use smelt_doctor::{Facts, Finding, Fix, Gpu, Gpus, Severity, judge};
use smelt_exec::{Confinement, Way};

use crate::console::{answer, tell, tell_raw};
use crate::device;
use crate::exit::{Exit, Failed};
use crate::flags::DoctorFlags;
#[cfg(feature = "build")]
use crate::flags::PipelineFlags;
use crate::load;
#[cfg(feature = "build")]
use crate::readiness;

/// Where explanations are broken.
const COLUMNS: usize = 100;
/// The width of the longest severity, and a gap.
const INDENT: usize = 9;
/// A line of input longer than this is no answer.
const ANSWER_BYTES_MAX: u64 = 1024;

pub(crate) fn run(flags: &DoctorFlags) -> Result<Exit, Failed> {
    if flags.fix && !io::stdin().is_terminal() {
        return Err(Failed::usage(
            "--fix asks before each command, and standard input is no terminal; run `smelt doctor` \
             and the commands it names",
        ));
    }
    #[cfg(feature = "build")]
    if let Some(asked) = flags.asked() {
        return stages(&asked, flags);
    }
    let facts = facts(flags)?;
    let findings = judge(&facts);
    if flags.json {
        let document = json!({ "findings": findings, "measured": facts.measured() });
        answer(format_args!("{document:#}\n"))?;
        return Ok(exit(&findings));
    }
    answer(report(&findings))?;
    // What a captured tree says of its errors is not for a terminal.
    if let (None, Some(error)) = (&flags.root, &facts.measured().error) {
        tell(format_args!("smelt: {error}"));
    }
    if !flags.fix {
        return Ok(exit(&findings));
    }
    cure(&findings, &mut io::stdin().lock(), perform);
    let left = judge(&self::facts(flags)?);
    let problems = count(&left, Severity::Problem);
    tell(format_args!("problems left: {problems}; what needs a reboot counts until then"));
    Ok(exit(&left))
}

/// What the stages of a pipeline need, and what of it is here.
#[cfg(feature = "build")]
fn stages(asked: &PipelineFlags, flags: &DoctorFlags) -> Result<Exit, Failed> {
    let pipeline = load::parse(asked)?;
    let findings = readiness::findings(&pipeline, flags.on, asked.folder())?;
    if flags.json {
        let document = json!({ "findings": findings });
        answer(format_args!("{document:#}\n"))?;
    } else {
        answer(report(&findings))?;
    }
    Ok(exit(&findings))
}

fn facts(flags: &DoctorFlags) -> Result<Facts, Failed> {
    let Some(root) = &flags.root else {
        let store = load::root()?;
        let store = std::path::absolute(&store).unwrap_or(store);
        let confinement = Confinement::find().map_err(Failed::usage)?;
        let confined_by = confinement.way.map_or("none", Way::name);
        let facts = Facts::of_this_device(&store, confined_by, &confinement.unheld());
        return Ok(facts.with_gpus(gpus()));
    };
    if !root.is_dir() {
        return Err(Failed::usage(format!("--root {}: no such directory", root.display())));
    }
    Ok(Facts::of_captured(root))
}

/// What NVIDIA's driver says, and which compilers of kernels are here.
fn gpus() -> Gpus {
    let compilers = CudaTarget::ALL.into_iter().filter(|&target| nvrtc::find(target).is_ok());
    let by =
        |target: CudaTarget| format!("{} by NVRTC {}", target.word(), target.toolkit().version);
    let compilers = compilers.map(by).collect();
    match smelt_cuda::cards() {
        Ok(cards) => Gpus { cards: cards.iter().map(gpu).collect(), missing: None, compilers },
        Err(why) => {
            // Of machines without a GPU there is nothing to say.
            let missing = device::seen().map(|_| why.to_string());
            Gpus { cards: Vec::new(), missing, compilers }
        }
    }
}

fn gpu(card: &CardFacts) -> Gpu {
    let Sm(sm) = card.sm;
    Gpu {
        name: card.name.clone(),
        sm,
        multiprocessors: card.multiprocessors,
        memory_bytes: card.memory_bytes,
        unified: card.unified,
        driver: card.driver_version(),
        target: CudaTarget::of(card.sm).map(|target| target.word().to_owned()),
    }
}

/// A problem is an answer of the kind that `fsck` gives: something is wrong and has to be put right.
fn exit(findings: &[Finding]) -> Exit {
    if count(findings, Severity::Problem) > 0 { Exit::StageFailed } else { Exit::Ok }
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

/// The gravest first; of what is well a line each.
fn report(findings: &[Finding]) -> String {
    let mut text: String = findings.iter().map(paragraph).collect();
    let count = |severity, one, many| match count(findings, severity) {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    text.push_str(&format!(
        "\n{}, {}, {}\n",
        count(Severity::Problem, "problem", "problems"),
        count(Severity::Warning, "warning", "warnings"),
        count(Severity::Note, "note", "notes"),
    ));
    text
}

fn paragraph(finding: &Finding) -> String {
    let word = finding.severity.word();
    let mut text = format!("{word:INDENT$}{}: {}\n", finding.id, finding.title);
    if finding.severity == Severity::Ok {
        return text;
    }
    for evidence in &finding.evidence {
        line(&mut text, "seen", std::slice::from_ref(evidence));
    }
    line(&mut text, "why", &wrap(&finding.why, COLUMNS - 2 * INDENT));
    if let Some(fix) = &finding.fix {
        // Never broken: it is there to be copied.
        line(&mut text, "fix", &[format!("{}{}", fix.command, after(fix))]);
    }
    text
}

fn after(fix: &Fix) -> &'static str {
    if fix.needs_reboot && !fix.command.ends_with("reboot") { "   # then reboot" } else { "" }
}

/// Lines below a word.
fn line(text: &mut String, word: &str, lines: &[String]) {
    for (at, line) in lines.iter().enumerate() {
        let word = if at == 0 { word } else { "" };
        text.push_str(&format!("{:INDENT$}{word:6}{line}\n", ""));
    }
}

/// Breaks a text between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Offers each cure that can be applied, and performs those that the user agrees to.
fn cure(findings: &[Finding], input: &mut impl BufRead, mut perform: impl FnMut(&str)) {
    let fixes = findings.iter().filter(|finding| finding.severity != Severity::Ok);
    for finding in fixes {
        let Some(fix) = finding.fix.as_ref().filter(|fix| fix.can_apply) else { continue };
        tell(format_args!("\n{}\n  {}{}", finding.title, fix.command, after(fix)));
        tell_raw("run this? [y/N] ");
        if agrees(input) {
            perform(&fix.command);
        }
    }
}

fn agrees(input: &mut impl BufRead) -> bool {
    let mut answer = String::new();
    let mut input = io::Read::take(input, ANSWER_BYTES_MAX);
    input.read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Runs exactly that, on the user's terminal.
fn perform(command: &str) {
    match Command::new("sh").arg("-c").arg(command).status() {
        Ok(status) if status.success() => {}
        Ok(status) => tell(format_args!("smelt: it ended with {status}")),
        Err(error) => tell(format_args!("smelt: cannot start sh: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, command: &str, can_apply: bool) -> Finding {
        let fix = Fix { command: command.to_owned(), needs_reboot: false, can_apply };
        Finding {
            id: "x",
            severity,
            title: "it is so".to_owned(),
            evidence: vec!["a file".to_owned()],
            why: "because".to_owned(),
            fix: Some(fix),
        }
    }

    #[test]
    fn only_what_is_agreed_to_is_run() {
        let findings = [
            finding(Severity::Problem, "one", true),
            finding(Severity::Problem, "by hand", false),
            finding(Severity::Warning, "two", true),
            finding(Severity::Ok, "needless", true),
            finding(Severity::Note, "three", true),
        ];
        let run = |answers: &str| {
            let mut ran = Vec::new();
            cure(&findings, &mut answers.as_bytes(), |command| ran.push(command.to_owned()));
            ran
        };
        assert_eq!(run("y\nn\ny\n"), ["one", "three"]);
        assert_eq!(run("\nY\nyes, but\n"), ["two"]);
        assert_eq!(run("y"), ["one"]);
        assert!(run("").is_empty());
    }

    #[test]
    fn only_problems_fail() {
        let of = |severity| exit(&[finding(severity, "", false)]);
        assert_eq!(of(Severity::Problem), Exit::StageFailed);
        assert_eq!(of(Severity::Warning), Exit::Ok);
    }

    #[test]
    fn commands_are_whole_and_texts_are_broken() {
        let mut long = finding(Severity::Warning, &"c ".repeat(90), false);
        long.why = "word ".repeat(40);
        let text = paragraph(&long);
        assert!(text.contains(&"c ".repeat(90)));
        let why = text.lines().filter(|line| line.contains("word"));
        assert!(why.clone().count() > 1 && why.into_iter().all(|line| line.len() <= COLUMNS));
        assert_eq!(wrap("a bb ccc", 4), ["a bb", "ccc"]);
        assert!(wrap("", 4).is_empty());
    }
}
