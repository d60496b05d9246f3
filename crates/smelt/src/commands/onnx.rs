//! `smelt onnx`: looks at ONNX models, checks them and operates on them, weights left on disk.

mod parser;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smelt_engine_build::graph::Ranges;
use smelt_onnx::surgery::{Consume, Parts, Report, Rule, apply};
use smelt_onnx::target::{Finding, Severity, findings};
use smelt_onnx::{ElementType, Inspection, Large, Model, Port, check, inspect, located};
use smelt_plan::quantity;

use crate::atomic_dir::{AtomicDir, go_through};
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{FloatType, Judge, OnnxCommand, Output};
use crate::stage::calibrate::graph::{AskedOfGraph, watch};
use crate::stage::calibrate::pictures;
use crate::table::bytes;
use crate::telling::Telling;

pub(crate) fn run(command: &OnnxCommand) -> Result<Exit, Failed> {
    match command {
        OnnxCommand::Inspect { model, json } => {
            let inspection = inspect(&read(model)?.model);
            match json {
                true => answer(format_args!("{:#}\n", description(&inspection)))?,
                false => answer(inspection)?,
            }
        }
        OnnxCommand::Check { model, target, json } => judge(model, *target, *json)?,
        OnnxCommand::SplitHead { model, head, parts, max_bytes, output } => {
            let rule =
                Rule::SplitHead { output: head.clone(), parts: cut(*parts, max_bytes.as_deref())? };
            operate(model, &rule, output)?;
        }
        OnnxCommand::QuantizeHead { model, head, scheme, output } => {
            let rule = Rule::QuantizeHead { output: head.clone(), scheme: *scheme };
            operate(model, &rule, output)?;
        }
        OnnxCommand::ToOpset { model, version, output } => {
            operate(model, &Rule::ToOpset { version: *version }, output)?;
        }
        OnnxCommand::SetBatch { model, size, output } => {
            operate(model, &Rule::SetBatch { size: *size }, output)?;
        }
        OnnxCommand::Dedupe { model, output } => operate(model, &Rule::Dedupe, output)?,
        OnnxCommand::FoldConstants { model, output } => {
            operate(model, &Rule::FoldConstants, output)?
        }
        OnnxCommand::Extract { model, inputs, outputs, output } => {
            let rule = Rule::Extract { inputs: inputs.clone(), outputs: outputs.clone() };
            operate(model, &rule, output)?;
        }
        OnnxCommand::InsertCast { model, nodes, to, output } => {
            let rule = Rule::InsertCast { nodes: nodes.clone(), to: element_type(*to) };
            operate(model, &rule, output)?;
        }
        OnnxCommand::Calibrate { model, images, method, pixels, side, out } => {
            let pictures = pictures(images)?;
            let (method, pixels, side) = (*method, *pixels, *side);
            calibrate(&AskedOfGraph { model, pictures, method, pixels, side }, out)?;
        }
        OnnxCommand::InsertQdq { model, calibration, except, output } => {
            let thresholds = Ranges::read(calibration).map_err(Failed::model)?.thresholds();
            let rule = Rule::InsertQdq { thresholds, except: except.clone() };
            operate(model, &rule, output)?;
        }
        OnnxCommand::Externalize { model, names, output } => {
            operate(model, &Rule::Externalize { names: names.clone() }, output)?;
        }
    }
    Ok(Exit::Ok)
}

fn operate(model: &Path, rule: &Rule, output: &Output) -> Result<(), Failed> {
    let report = if output.consume {
        // Half-way through, parts of the model lie in the output.
        go_through();
        apply(model, rule, &output.out, Consume::Yes).map_err(Failed::model)?
    } else {
        let fresh = AtomicDir::begin(&output.out)?;
        let made = fresh.path().join("model");
        let report = apply(model, rule, &made, Consume::No).map_err(Failed::model)?;
        fresh.finish_with(&made)?;
        report
    };
    tell(summary(&report, &output.out));
    Ok(())
}

fn calibrate(asked: &AskedOfGraph<'_>, out: &Path) -> Result<(), Failed> {
    let fresh = AtomicDir::begin(out)?;
    // Its weights lie beside what is made: there is room for both, or for neither.
    let mut telling = Telling::new();
    watch(asked, fresh.path(), fresh.path(), &mut |line| telling.hear(line))?;
    drop(telling);
    fresh.finish()?;
    tell(format_args!("wrote {}", out.display()));
    Ok(())
}

fn summary(report: &Report, out: &Path) -> String {
    let [before, after] = report.nodes;
    format!(
        "{}: {before} nodes became {after}; {} written, {} renamed, {} dead; in {}",
        report.summary.as_deref().unwrap_or("nothing to do"),
        bytes(report.bytes_written),
        bytes(report.bytes_renamed),
        bytes(report.bytes_dead),
        out.display()
    )
}

/// A model file, read.
struct Read {
    model: Model,
    file: PathBuf,
    /// In which its weights lie.
    dir: PathBuf,
}

fn read(model: &Path) -> Result<Read, Failed> {
    let (file, dir) = located(model);
    Ok(Read { model: Model::read(&file).map_err(Failed::model)?, file, dir })
}

fn judge(model: &Path, target: Option<Judge>, json: bool) -> Result<(), Failed> {
    let at = |error: &dyn Display| Failed::model(format!("{}: {error}", model.display()));
    let read = read(model)?;
    check(&read.model, &read.dir).map_err(|error| at(&error))?;
    let found = match target {
        Some(Judge::Rules(_, target)) => {
            findings(&read.model, &read.file, target).map_err(|error| at(&error))?
        }
        Some(Judge::TensorRtRtx) => parser::findings(&read.file)?,
        None => Vec::new(),
    };
    let errors = found.iter().filter(|finding| finding.severity == Severity::Error).count();
    let by = target.map_or(String::new(), |target| format!(" for {}", target.word()));
    if json {
        let rows: Vec<Value> = found.iter().map(finding).collect();
        let target = target.map(Judge::word);
        let document = json!({ "target": target, "sound": errors == 0, "findings": rows });
        answer(format_args!("{document:#}\n"))?;
    } else {
        found.iter().try_for_each(|finding| answer(format_args!("{finding}\n")))?;
        if errors == 0 {
            answer(format_args!("{} is sound{by}\n", model.display()))?;
        }
    }
    match errors {
        0 => Ok(()),
        1 => Err(at(&format_args!("it breaks the rules{by} in 1 place"))),
        count => Err(at(&format_args!("it breaks the rules{by} in {count} places"))),
    }
}

fn finding(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.to_string(),
        "rule": finding.rule,
        "place": finding.place,
        "what": finding.what,
        "remedy": finding.remedy,
    })
}

fn description(inspection: &Inspection) -> Value {
    let ports = |ports: &[Port]| -> Vec<Value> {
        let port =
            |port: &Port| json!({ "name": port.name, "dtype": port.dtype, "dims": port.dims });
        ports.iter().map(port).collect()
    };
    let operators: Vec<Value> = (inspection.operators.iter())
        .map(|(op, count)| json!({ "operator": op, "count": count }))
        .collect();
    let weights: Vec<Value> = (inspection.weights.iter())
        .map(|row| json!({ "dtype": row.dtype, "count": row.count, "bytes": row.bytes }))
        .collect();
    let large = |tensor: &Large| {
        let place = tensor.place.as_ref();
        json!({
            "name": tensor.name,
            "dtype": tensor.dtype,
            "dims": tensor.dims,
            "bytes": tensor.bytes,
            "location": place.map(|(location, _)| location),
            "offset": place.map(|(_, offset)| offset),
        })
    };
    let opsets: Vec<Value> = (inspection.other_opsets.iter())
        .map(|(domain, version)| json!({ "domain": domain, "version": version }))
        .collect();
    json!({
        "opset": inspection.opset,
        "ir_version": inspection.ir_version,
        "other_opsets": opsets,
        "producer": inspection.producer,
        "inputs": ports(&inspection.inputs),
        "outputs": ports(&inspection.outputs),
        "operators": operators,
        "weights": weights,
        "largest": inspection.largest.iter().map(large).collect::<Vec<_>>(),
    })
}

fn cut(parts: Option<usize>, max_bytes: Option<&str>) -> Result<Parts, Failed> {
    match (parts, max_bytes) {
        (Some(parts), None) => Ok(Parts::Count(parts)),
        (None, Some(text)) => {
            let bytes = text.parse().ok().map_or_else(|| quantity::bytes(text), Ok);
            bytes.map(Parts::MaxBytes).map_err(Failed::usage)
        }
        _ => Err(Failed::usage("give either --parts or --max-bytes")),
    }
}

fn element_type(dtype: FloatType) -> ElementType {
    match dtype {
        FloatType::F32 => ElementType::F32,
        FloatType::F16 => ElementType::F16,
        FloatType::Bf16 => ElementType::Bf16,
    }
}
