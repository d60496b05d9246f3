//! `smelt onnx`: looks at ONNX models, checks them and operates on them, weights left on disk.

use std::path::{Path, PathBuf};

use smelt_onnx::surgery::{Consume, Parts, Report, Rule, apply};
use smelt_onnx::{ElementType, MODEL_FILE, Model, check, inspect};
use smelt_plan::quantity;

use crate::exit::{Exit, Failed};
use crate::flags::{FloatType, OnnxCommand, Output};
use crate::say::{answer, tell};
use crate::table::bytes;

pub(crate) fn run(command: &OnnxCommand) -> Result<Exit, Failed> {
    match command {
        OnnxCommand::Inspect { model } => answer(inspect(&read(model)?.0))?,
        OnnxCommand::Check { model } => {
            let (read, dir) = read(model)?;
            check(&read, &dir).map_err(|error| at(model, error))?;
            answer(format_args!("{} is sound\n", model.display()))?;
        }
        OnnxCommand::SplitHead { model, head, parts, max_bytes, output } => {
            let rule =
                Rule::SplitHead { output: head.clone(), parts: cut(*parts, max_bytes.as_deref())? };
            operate(model, &rule, output)?;
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
        OnnxCommand::Externalize { model, names, output } => {
            operate(model, &Rule::Externalize { names: names.clone() }, output)?;
        }
    }
    Ok(Exit::Ok)
}

fn operate(model: &Path, rule: &Rule, output: &Output) -> Result<(), Failed> {
    let consume = if output.consume { Consume::Yes } else { Consume::No };
    let report = apply(model, rule, &output.out, consume).map_err(Failed::model)?;
    tell(summary(&report, &output.out));
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

/// The model, and the directory its weights are beside.
fn read(model: &Path) -> Result<(Model, PathBuf), Failed> {
    let file = if model.is_dir() { model.join(MODEL_FILE) } else { model.to_owned() };
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or_else(|| Path::new(".")).to_owned();
    Ok((Model::read(&file).map_err(Failed::model)?, dir))
}

fn at(model: &Path, error: impl std::fmt::Display) -> Failed {
    Failed::model(format!("{}: {error}", model.display()))
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
