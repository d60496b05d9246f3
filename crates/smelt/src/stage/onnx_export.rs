//! `onnx-export`: a part of a checkpoint as ONNX.

use smelt_model::dtype::Dtype;
use smelt_model::export::LlmInput;
use smelt_model::grid::Grid;
use smelt_model::model::ModelPart;
use smelt_plan::kind::onnx_export::{ExportPart, OnnxExport, TokenInput};
use smelt_plan::kind::words::FloatType;

use super::Worker;
use super::request::{Request, say};
use crate::exit::Failed;
use crate::export_options::ExportOptions;

pub(super) const WORKER: Worker = Worker::new(run);

fn run(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let params: OnnxExport = request.typed()?;
    let grids = params.grids.iter().map(|grid| grid.parse()).collect::<Result<Vec<Grid>, _>>();
    let options = ExportOptions {
        dtype: dtype(params.dtype),
        input: params.input.map(input),
        probe: params.probe,
        grids: grids.map_err(Failed::usage)?,
    };
    let part = part(params.part);
    options.check(&[part])?;
    options.fill(&checkpoint, part, &request.out, &mut say).map_err(Failed::model)
}

fn dtype(word: FloatType) -> Dtype {
    match word {
        FloatType::F32 => Dtype::F32,
        FloatType::F16 => Dtype::F16,
        FloatType::Bf16 => Dtype::BF16,
    }
}

fn input(word: TokenInput) -> LlmInput {
    match word {
        TokenInput::Ids => LlmInput::Ids,
        TokenInput::Embeds => LlmInput::Embeds,
    }
}

fn part(word: ExportPart) -> ModelPart {
    match word {
        ExportPart::Vision => ModelPart::Vision,
        ExportPart::Llm => ModelPart::Llm,
        ExportPart::Encoder => ModelPart::Encoder,
        ExportPart::Classifier => ModelPart::Classifier,
    }
}
