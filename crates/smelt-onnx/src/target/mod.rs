//! Judges a model by the rules of one back end, beyond those of the standard.
//!
//! A target is a table of rules; each is a plain function from a model to findings, which
//! name the rule, the place and what to do.  [`crate::check`] must have passed before.  Knows
//! nothing of how a back end is run.

mod finite;
mod onnxruntime;
mod operands;
mod place;
mod tensorrt;

use std::fmt;
use std::path::Path;

use crate::external::DataError;
use crate::model::{Graph, Model, Node};
use crate::survey::Survey;

/// A back end whose rules are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The ONNX parser of TensorRT 10.3, which JetPack 6.2 has.
    TensorRt10_3,
    /// ONNX Runtime on a CPU.
    OnnxRuntimeCpu,
}

impl Target {
    /// Every target with its word.
    pub const ALL: [(&str, Self); 2] =
        [("tensorrt-10.3", Self::TensorRt10_3), ("onnxruntime-cpu", Self::OnnxRuntimeCpu)];

    /// The target of that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(name, _)| *name == word).map(|(_, target)| target)
    }

    fn rules(self) -> Vec<&'static TargetRule> {
        match self {
            Self::TensorRt10_3 => {
                tensorrt::RULES.iter().chain(&operands::RULES).chain(&place::RULES).collect()
            }
            Self::OnnxRuntimeCpu => onnxruntime::RULES.iter().chain(&place::RULES).collect(),
        }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The back end refuses the model, or computes something else.
    Error,
    /// The back end takes it; it may be slow, large or inexact.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One thing that a rule found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Name of the rule.
    pub rule: &'static str,
    /// The node, tensor or value, as messages name it.
    pub place: String,
    /// What is wrong there.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, rule, place, what, remedy } = self;
        write!(f, "{severity}[{rule}] {place}: {what}; {remedy}")
    }
}

/// Judges `model`, read from the file `path`, by the rules of `target`; every finding, errors
/// first, each group in the order of the rules and of the graph.
///
/// # Errors
/// When a weight cannot be read.
pub fn findings(model: &Model, path: &Path, target: Target) -> Result<Vec<Finding>, DataError> {
    let subject = Subject::new(model, path);
    let mut all = Vec::new();
    for rule in target.rules() {
        all.extend(apply(rule, &subject)?);
    }
    all.sort_by_key(|finding| finding.severity);
    Ok(all)
}

fn apply(rule: &TargetRule, subject: &Subject<'_>) -> Result<Vec<Finding>, DataError> {
    let mut found = Findings { rule: rule.name, findings: Vec::new() };
    (rule.judge)(subject, &mut found)?;
    Ok(found.findings)
}

/// One row of a target's table.
struct TargetRule {
    name: &'static str,
    judge: fn(&Subject<'_>, &mut Findings) -> Result<(), DataError>,
}

/// The model under judgement.
struct Subject<'m> {
    model: &'m Model,
    path: &'m Path,
    survey: Survey<'m>,
    types: std::collections::BTreeMap<&'m str, crate::ElementType>,
}

impl<'m> Subject<'m> {
    fn new(model: &'m Model, path: &'m Path) -> Self {
        let survey = Survey::new(&model.graph);
        let types = survey.types();
        Self { model, path, survey, types }
    }

    /// The directory that external data is relative to.
    fn dir(&self) -> &'m Path {
        self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Every node, those of subgraphs too.
    fn nodes(&self) -> Vec<&'m Node> {
        let mut all = Vec::new();
        collect(&self.model.graph, &mut all);
        all
    }

    /// Whether `value` is an initializer or the result of a Constant.
    fn is_constant(&self, value: &str) -> bool {
        let made = || self.survey.producer(value).map(|at| &self.survey.graph.nodes[at]);
        self.survey.constant(value).is_some() || made().is_some_and(|node| node.op == "Constant")
    }

    fn dtype(&self, value: &str) -> Option<crate::ElementType> {
        self.types.get(value).copied()
    }
}

fn collect<'m>(graph: &'m Graph, all: &mut Vec<&'m Node>) {
    for node in &graph.nodes {
        all.push(node);
        for attribute in &node.attributes {
            if let crate::AttributeValue::Graph(inner) = &attribute.value {
                collect(inner, all);
            }
        }
    }
}

/// The findings of one rule.
struct Findings {
    rule: &'static str,
    findings: Vec<Finding>,
}

impl Findings {
    fn error(&mut self, place: impl Into<String>, what: impl Into<String>, remedy: &str) {
        self.add(Severity::Error, place.into(), what.into(), remedy);
    }

    fn warning(&mut self, place: impl Into<String>, what: impl Into<String>, remedy: &str) {
        self.add(Severity::Warning, place.into(), what.into(), remedy);
    }

    fn add(&mut self, severity: Severity, place: String, what: String, remedy: &str) {
        let remedy = remedy.to_owned();
        self.findings.push(Finding { severity, rule: self.rule, place, what, remedy });
    }
}

#[cfg(test)]
mod tests;
