//! `graph-surgery`: one rule applied to a graph, weights copied by the kernel.
//!
//! The graph that is read is sealed and stays as it is.  JSON files beside it, which say how to
//! feed it, come along.

use std::fs;
use std::path::Path;

use smelt_engine_build::graph::Ranges;
use smelt_onnx::ElementType;
use smelt_onnx::surgery::{Consume, HeadScheme, Parts, Rule, apply_heard};
use smelt_plan::kind;
use smelt_plan::kind::graph_surgery::{GraphSurgery, HeadPrecision, SurgeryRule};
use smelt_plan::kind::words::FloatType;
use smelt_plan::plan::Stage;

use super::Worker;
use super::request::{Request, say};
use crate::checkpoints::Checkpoints;
use crate::exit::{Exit, Failed};

pub(super) const WORKER: Worker = Worker { refusal: Some(refusal), ..Worker::new(run) };

/// Why a rule has no use for what the stage names, or lacks it.
fn refusal(_: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    let rule: SurgeryRule = kind::param(&stage.params, "rule")?;
    let is_calibrated = stage.inputs.iter().any(|input| input.field == CALIBRATION);
    match (rule, is_calibrated) {
        (SurgeryRule::InsertQdq, false) => Some(
            "rule \"insert-qdq\" needs \"calibration\": a stage of kind \"calibrate\" with \"onnx\""
                .to_owned(),
        ),
        (SurgeryRule::InsertQdq, true) | (_, false) => None,
        (_, true) => {
            let word = rule.word();
            Some(format!("rule \"{word}\" has no \"calibration\"; that is of \"insert-qdq\""))
        }
    }
}

const CALIBRATION: &str = "calibration";

fn run(request: &Request) -> Result<(), Failed> {
    let from = request.only_graph("a rule changes one")?;
    // A rule makes a directory of its own, whole or not at all; its files move up from there.
    let made = request.out.join("made");
    let rule = rule(request.typed()?, request.optional_input(CALIBRATION))?;
    let report = apply_heard(from, &rule, &made, Consume::No, &mut say);
    let report = report.map_err(Failed::model)?;
    say(report.summary.as_deref().unwrap_or("there is nothing to do"));
    let cannot = |error| {
        let out = request.out.display();
        Failed::new(Exit::StageFailed, format!("cannot bring the new graph to {out}: {error}"))
    };
    move_up(&made, &request.out).map_err(cannot)?;
    companions(from, &request.out).map_err(cannot)
}

fn rule(params: GraphSurgery, calibration: Option<&Path>) -> Result<Rule, Failed> {
    let output = params.head;
    Ok(match params.rule {
        SurgeryRule::SplitHead => {
            let parts = match params.parts {
                Some(count) => Parts::Count(count),
                None => Parts::MaxBytes(given("max-bytes", params.max_bytes)?),
            };
            Rule::SplitHead { output, parts }
        }
        SurgeryRule::QuantizeHead => {
            Rule::QuantizeHead { output, scheme: head_scheme(given("scheme", params.scheme)?) }
        }
        SurgeryRule::SetBatch => Rule::SetBatch { size: given("size", params.size)? },
        SurgeryRule::Dedupe => Rule::Dedupe,
        SurgeryRule::FoldConstants => Rule::FoldConstants,
        SurgeryRule::Extract => Rule::Extract { inputs: params.inputs, outputs: params.outputs },
        SurgeryRule::InsertCast => Rule::InsertCast {
            nodes: given("nodes", params.nodes)?,
            to: element_type(given("to", params.to)?),
        },
        SurgeryRule::InsertQdq => insert_qdq(calibration, params.except)?,
        SurgeryRule::Externalize => Rule::Externalize { names: params.names },
        SurgeryRule::ToOpset => Rule::ToOpset { version: given("opset", params.opset)? },
    })
}

/// Reads what a `calibrate` stage saw of the graph.
fn insert_qdq(calibration: Option<&Path>, except: Vec<String>) -> Result<Rule, Failed> {
    let ranges = Ranges::read(given(CALIBRATION, calibration)?).map_err(Failed::model)?;
    Ok(Rule::InsertQdq { thresholds: ranges.thresholds(), except })
}

/// A param without which the rule does nothing; the plan has seen to it.
fn given<T>(name: &str, param: Option<T>) -> Result<T, Failed> {
    param.ok_or_else(|| Failed::usage(format!("the stage's request lacks \"{name}\"")))
}

fn head_scheme(word: HeadPrecision) -> HeadScheme {
    match word {
        HeadPrecision::Int8 => HeadScheme::Int8,
        HeadPrecision::Int4G32 => HeadScheme::Int4(32),
        HeadPrecision::Int4G64 => HeadScheme::Int4(64),
        HeadPrecision::Int4G128 => HeadScheme::Int4(128),
    }
}

fn element_type(word: FloatType) -> ElementType {
    match word {
        FloatType::F32 => ElementType::F32,
        FloatType::F16 => ElementType::F16,
        FloatType::Bf16 => ElementType::Bf16,
    }
}

fn move_up(from: &Path, into: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::rename(entry.path(), into.join(entry.file_name()))?;
    }
    fs::remove_dir(from)
}

fn companions(from: &Path, into: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        let target = into.join(name);
        if path.extension().is_some_and(|extension| extension == "json") && !target.exists() {
            fs::write(target, fs::read(&path)?)?;
        }
    }
    Ok(())
}
