//! Runs the commands of the half that builds.

use super::{build, calibrate, export, fit, init, onnx, plan, quantize, resume, run, worker};
use crate::exit::{Exit, Failed};
use crate::flags::{ModelCommand, PipelineCommand};

/// Those of pipelines.
pub(crate) fn pipeline(command: &PipelineCommand) -> Result<Exit, Failed> {
    match command {
        PipelineCommand::Fit(flags) => fit::run(flags),
        PipelineCommand::Init(flags) => init::run(flags),
        PipelineCommand::Build(flags) => build::run(flags),
        PipelineCommand::Run(flags) => run::run(flags),
        PipelineCommand::Resume(flags) => resume::run(flags),
        PipelineCommand::Plan(flags) => plan::run(flags),
        PipelineCommand::Worker(flags) => worker::run(flags),
    }
}

/// Those of checkpoints and graphs.
pub(crate) fn model(command: &ModelCommand) -> Result<Exit, Failed> {
    match command {
        ModelCommand::Export(flags) => export::run(flags),
        ModelCommand::Calibrate(flags) => calibrate::run(flags),
        ModelCommand::Quantize(flags) => quantize::run(flags),
        ModelCommand::Onnx(command) => onnx::run(command),
    }
}
