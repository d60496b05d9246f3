//! `graph-surgery`: one rule applied to a graph, weights copied by the kernel.
//!
//! The graph that is read is sealed and stays as it is.  JSON files beside it, which say how to
//! feed it, come along.

use std::fs;
use std::path::Path;

use smelt_model::export::GRIDS_FILE;
use smelt_onnx::surgery::{Consume, HeadScheme, Parts, Rule, apply_heard};
use smelt_onnx::{ElementType, MODEL_FILE};

use super::request::{Request, say};
use crate::exit::{Exit, Failed};

pub(crate) fn run(request: &Request) -> Result<(), Failed> {
    let from = request.input("onnx")?;
    if !from.join(MODEL_FILE).exists() && from.join(GRIDS_FILE).exists() {
        return Err(Failed::model(format!(
            "{} holds graphs for several grids and no {MODEL_FILE}; a rule changes one: export one grid for it",
            from.display()
        )));
    }
    // A rule makes a directory of its own, whole or not at all; its files move up from there.
    let made = request.out.join("made");
    let report = apply_heard(from, &rule(request)?, &made, Consume::No, &mut say);
    let report = report.map_err(Failed::model)?;
    say(report.summary.as_deref().unwrap_or("there is nothing to do"));
    let cannot = |error| {
        let out = request.out.display();
        Failed::new(Exit::StageFailed, format!("cannot bring the new graph to {out}: {error}"))
    };
    move_up(&made, &request.out).map_err(cannot)?;
    companions(from, &request.out).map_err(cannot)
}

fn rule(request: &Request) -> Result<Rule, Failed> {
    let output = || request.optional_word("head").map(str::to_owned);
    Ok(match request.word("rule")? {
        "split-head" => Rule::SplitHead { output: output(), parts: parts(request)? },
        "quantize-head" => {
            let scheme = HeadScheme::parse(request.word("scheme")?);
            let scheme = scheme.ok_or_else(|| Failed::usage("the head's scheme is unknown"))?;
            Rule::QuantizeHead { output: output(), scheme }
        }
        "set-batch" => Rule::SetBatch { size: request.count("size")? },
        "dedupe" => Rule::Dedupe,
        "fold-constants" => Rule::FoldConstants,
        "extract" => {
            Rule::Extract { inputs: request.texts("inputs"), outputs: request.texts("outputs") }
        }
        "insert-cast" => {
            let nodes = request.word("nodes")?.to_owned();
            Rule::InsertCast { nodes, to: element_type(request.word("to")?) }
        }
        "externalize" => Rule::Externalize { names: request.texts("names") },
        "to-opset" => Rule::ToOpset { version: request.count("opset")? as i64 },
        other => return Err(Failed::usage(format!("there is no rule \"{other}\""))),
    })
}

fn parts(request: &Request) -> Result<Parts, Failed> {
    match request.count("parts") {
        Ok(count) => Ok(Parts::Count(count)),
        Err(_) => Ok(Parts::MaxBytes(request.count("max-bytes")? as u64)),
    }
}

fn element_type(word: &str) -> ElementType {
    match word {
        "f16" => ElementType::F16,
        "bf16" => ElementType::Bf16,
        _ => ElementType::F32,
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
