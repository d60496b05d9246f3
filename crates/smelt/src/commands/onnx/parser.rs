//! Asks the parser of TensorRT for RTX what it says of a model.

use std::env;
use std::path::Path;

use smelt_onnx::target::{Finding, Severity};
use smelt_tensorrt::{CompileError, Loader, Log, Refusal, Session, SessionError, find};

use crate::exit::{Exit, Failed};

/// Both rules are the parser's.
const RULE: &str = "parser";

/// What it refuses, as errors, and what it warns of.
pub(super) fn findings(file: &Path) -> Result<Vec<Finding>, Failed> {
    let fit = |error: &dyn std::fmt::Display| Failed::new(Exit::DoesNotFit, error);
    let libraries = find(&|name| env::var_os(name)).map_err(|error| fit(&error))?;
    let path = env::var_os("PATH").unwrap_or_default();
    let loader = Loader::compile(&env::temp_dir(), &path).map_err(|error| match error {
        CompileError::Io { .. } => Failed::new(Exit::StageFailed, error),
        error => fit(&error),
    })?;
    let mut session = Session::open(&loader, &libraries).map_err(|error| match error {
        SessionError::Library { .. } => fit(&error),
        error => Failed::new(Exit::StageFailed, error),
    })?;
    // The parser reads weights beside the file, by its path.
    let file = std::path::absolute(file).map_err(Failed::model)?;
    // A parser that crashes of a model does not take it.
    let answer = session.check(&file).map_err(Failed::model)?;
    let refused = answer.refusals.iter().map(refused);
    let is_silent = answer.network.is_none() && answer.refusals.is_empty();
    let silent = is_silent.then(|| of_parser(Severity::Error, "model", "it does not say why", ""));
    let warned =
        answer.logs.iter().filter(|log| log.severity == smelt_tensorrt::LogSeverity::Warning);
    Ok(refused.chain(silent).chain(warned.map(warning)).collect())
}

fn refused(refusal: &Refusal) -> Finding {
    let place = match (refusal.node, refusal.name.as_str()) {
        (..0, _) => "model".to_owned(),
        (node, "") => format!("node {node} ({})", refusal.operator),
        (_, name) => format!("node {name:?} ({})", refusal.operator),
    };
    let what = format!("{}: {}", refusal.reason(), refusal.words());
    of_parser(Severity::Error, &place, &what, refusal.remedy())
}

fn warning(log: &Log) -> Finding {
    of_parser(Severity::Warning, "model", &log.text, "")
}

fn of_parser(severity: Severity, place: &str, what: &str, remedy: &str) -> Finding {
    // Finer words than the parser's have smelt's own rules.
    let remedy = if remedy.is_empty() { "`--for tensorrt-10.3` may know a cure" } else { remedy };
    let what = what.replace('\n', " ");
    Finding { severity, rule: RULE, place: place.to_owned(), what, remedy: remedy.to_owned() }
}
