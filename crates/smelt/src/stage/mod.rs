//! What stages do: the work of smelt's own kinds, which have a row and a file each, and the programs that are started for
//! any kind.

pub(crate) mod exposed;
pub(crate) mod order;
mod refusal;
mod request;
pub(crate) mod work;

mod accuracy;
pub(crate) mod calibrate;
mod deployment;
mod engine_build;
mod graph_surgery;
mod kernels;
mod llm_engine_build;
mod onnx_export;
mod quantize;
mod runtime;
mod source;
mod strict;
mod tensorrt;
mod tune;
mod verify;

use smelt_plan::Kind;
use smelt_plan::plan::Stage;

use self::request::Request;
use crate::checkpoints::Checkpoints;
use crate::exit::Failed;

/// The products of floats that a stage computes, where they are many and known before it runs.
pub(crate) type Products = fn(&Checkpoints<'_>, &Stage) -> Option<f64>;

/// Why a stage will be refused, by what small files say before anything is built.
pub(crate) type Refusal = fn(&Checkpoints<'_>, &Stage) -> Option<String>;

/// What smelt does for a kind of stage.
pub(crate) struct Worker {
    /// Does the work, in a process of its own, and writes into the directory of the request alone.
    run: fn(&Request) -> Result<(), Failed>,
    /// Whether it executes graphs, for which ONNX Runtime is looked for.
    executes_graphs: bool,
    /// Whether it compiles kernels, for which NVRTC is looked for.
    compiles_kernels: bool,
    /// Whether it asks TensorRT, for which that and a compiler of C++ are looked for.
    asks_tensorrt: bool,
    /// What it computes, where that is worth a word before a run.
    pub(crate) products: Option<Products>,
    /// Whether it can be refused before it is built, and why.
    pub(crate) refusal: Option<Refusal>,
}

impl Worker {
    const fn new(run: fn(&Request) -> Result<(), Failed>) -> Self {
        Self {
            run,
            executes_graphs: false,
            compiles_kernels: false,
            asks_tensorrt: false,
            products: None,
            refusal: None,
        }
    }
}

/// A row for each kind; nothing of a `command`, which is a program of its own.
pub(crate) fn worker(kind: Kind) -> Option<&'static Worker> {
    Some(match kind {
        Kind::Source => &source::WORKER,
        Kind::OnnxExport => &onnx_export::WORKER,
        Kind::GraphSurgery => &graph_surgery::WORKER,
        Kind::Calibrate => &calibrate::WORKER,
        Kind::Quantize => &quantize::WORKER,
        Kind::EngineBuild => &engine_build::WORKER,
        Kind::LlmEngineBuild => &llm_engine_build::WORKER,
        Kind::Tune => &tune::WORKER,
        Kind::Verify => &verify::WORKER,
        Kind::Accuracy => &accuracy::WORKER,
        Kind::Deployment => &deployment::WORKER,
        Kind::Command => return None,
    })
}
