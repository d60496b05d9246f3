//! The commands of the half that builds; in a smelt that only serves, `absent.rs` stands for them.

use super::{
    BuildFlags, CalibrateFlags, ExportFlags, FitFlags, InitFlags, OnnxCommand, PlanFlags,
    QuantizeFlags, ResumeFlags, RunFlags, WorkerFlags,
};

// Comments of these two would be taken for help of smelt itself.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PipelineCommand {
    /// Say what of a model this device can hold and do, before anything large is fetched
    Fit(FitFlags),
    /// Write the pipeline of a model that `smelt fit` advises, with comments
    Init(InitFlags),
    /// Build a model by its name: the pipeline that `smelt init` writes, and a run of it
    Build(BuildFlags),
    /// Build everything a pipeline describes; what is already built is reused
    Run(Box<RunFlags>),
    /// Go on with runs that were killed, cut off by a reset of the board, or wait for a reboot
    Resume(ResumeFlags),
    /// Say what a run would do, without doing it
    Plan(PlanFlags),
    /// Build what those that are believed ask a scheduler of the Remote Execution API for
    Worker(WorkerFlags),
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ModelCommand {
    /// Write parts of a checkpoint as ONNX, in bounded memory
    Export(ExportFlags),
    /// Watch what a checkpoint's decoder is fed, so that it can be quantised by that
    Calibrate(CalibrateFlags),
    /// Write a checkpoint's decoder with smaller weights, in bounded memory
    Quantize(QuantizeFlags),
    /// Look at, check and operate on ONNX models, weights left on disk
    #[command(subcommand)]
    Onnx(OnnxCommand),
}
