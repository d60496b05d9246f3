//! Does the work of smelt's own kinds: reads a request, calls one library function, exits with a
//! code the supervisor understands.
//!
//! Runs in a process of its own and writes only into the directory it is given; nothing it leaves
//! is visible to anyone before the supervisor seals it.

use smelt_engine::tactics::Tactics;
use smelt_engine_build::graph::Precision;
use smelt_engine_build::{graph, llm, onnxruntime};
use smelt_model::dtype::Dtype;
use smelt_model::export::LlmInput;
use smelt_model::grid::Grid;
use smelt_model::model::ModelPart;
use smelt_model::quantize::{BUDGET, Method, Options, Report, Scheme};
use smelt_plan::Kind;

use super::request::{Request, say};
use super::{calibrate, deployment, source, surgery, verify};
use crate::checkpoint::{self, QuantFormat};
use crate::commands::export::ExportOptions;
use crate::exit::{Exit, Failed};

pub(crate) fn run(request: &str) -> Result<Exit, Failed> {
    let request: Request = serde_json::from_str(request)
        .map_err(|error| Failed::usage(format!("the stage's request does not read: {error}")))?;
    match request.kind {
        Kind::Source => source::run(&request)?,
        Kind::OnnxExport => onnx_export(&request)?,
        Kind::GraphSurgery => surgery::run(&request)?,
        Kind::Calibrate => calibrate::run(&request)?,
        Kind::Quantize => quantize(&request)?,
        Kind::EngineBuild => engine_build(&request)?,
        Kind::LlmEngineBuild => llm_engine_build(&request)?,
        Kind::Tune => Tactics::tune(&mut say).write(&request.out).map_err(Failed::model)?,
        Kind::Verify => verify::run(&request)?,
        Kind::Deployment => deployment::run(&request)?,
        Kind::Command => return Err(Failed::usage("a command is a program of its own")),
    }
    Ok(Exit::Ok)
}

fn onnx_export(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let dtype = match request.word("dtype")? {
        "f16" => Dtype::F16,
        "bf16" => Dtype::BF16,
        _ => Dtype::F32,
    };
    let input = match request.word("input") {
        Ok("ids") => Some(LlmInput::Ids),
        Ok(_) => Some(LlmInput::Embeds),
        Err(_) => None,
    };
    let grids = request.texts("grids");
    let grids = grids.iter().map(|grid| grid.parse()).collect::<Result<Vec<Grid>, _>>();
    let grids = grids.map_err(Failed::usage)?;
    let part = match request.word("part")? {
        "llm" => ModelPart::Llm,
        "encoder" => ModelPart::Encoder,
        "classifier" => ModelPart::Classifier,
        _ => ModelPart::Vision,
    };
    let order = ExportOptions { dtype, input, probe: request.flag("probe"), grids };
    order.check(&[part])?;
    order.fill(&checkpoint, part, &request.out, &mut say).map_err(Failed::model)
}

fn quantize(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let optional = |field: &str| {
        let word = request.optional_word(field);
        word.map(|word| scheme(field, word)).transpose()
    };
    let method = request.word("method")?;
    let options = Options {
        head: optional("head")?,
        embeddings: optional("embeddings")?,
        method: Method::parse(method).ok_or_else(|| unknown("method", method))?,
        budget: request.count("budget").unwrap_or(BUDGET),
        exclude: request.texts("exclude"),
        allow_requantize: request.flag("allow-requantize"),
        calibration: request.optional_input("calibration"),
        ..Options::plain(scheme("scheme", request.word("scheme")?)?)
    };
    let form = QuantFormat::parse(request.word("format")?).map_err(Failed::usage)?;
    let report = checkpoint::quantize(&checkpoint, &options, form, &request.out, &mut say)?;
    report.iter().flat_map(Report::table).for_each(|line| say(&line));
    Ok(())
}

fn scheme(field: &str, word: &str) -> Result<Scheme, Failed> {
    Scheme::parse(word).ok_or_else(|| unknown(field, word))
}

fn unknown(field: &str, word: &str) -> Failed {
    Failed::usage(format!("the stage's request has no known \"{field}\": {word:?}"))
}

fn engine_build(request: &Request) -> Result<(), Failed> {
    let onnx = request.input("onnx")?;
    if request.word("backend")? == "onnxruntime" {
        if request.optional_input("tactics").is_some() {
            let why = "\"tactics\" are for backend = \"native\"; leave them out";
            return Err(Failed::new(Exit::BadPipeline, why));
        }
        return onnxruntime::build(onnx, &request.out, &mut say).map_err(|error| match error {
            onnxruntime::BuildError::Library(why) => Failed::new(Exit::DoesNotFit, why),
            error => Failed::model(error),
        });
    }
    let word = request.word("precision")?;
    let precision = Precision::parse(word).ok_or_else(|| unknown("precision", word))?;
    let options = graph::Options { precision, tactics: tactics(request)? };
    graph::build(onnx, options, &request.out, &mut say).map_err(Failed::model)
}

/// What a tuned stage found, if the stage names one.
fn tactics(request: &Request) -> Result<Option<Tactics>, Failed> {
    request.optional_input("tactics").map(Tactics::read).transpose().map_err(Failed::model)
}

fn llm_engine_build(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let limits = llm::Limits {
        max_seq_len: request.count("max-seq-len")?,
        max_slots: request.count("max-slots")?,
    };
    llm::build_with(&checkpoint, limits, tactics(request)?, &request.out, &mut say)
        .map_err(Failed::model)
}

#[cfg(test)]
mod tests {
    use smelt_model::quantize::BUDGET_MAX;
    use smelt_plan::kind::quantize::{RoundingMethod, WeightScheme};

    use super::*;

    #[test]
    fn the_plan_and_the_quantiser_know_the_same_words() {
        assert_eq!(WeightScheme::WORDS, Scheme::WORDS);
        assert_eq!(RoundingMethod::WORDS, Method::WORDS);
        assert_eq!(smelt_plan::kind::quantize::BUDGET_MAX, BUDGET_MAX as u64);
    }
}
