//! The parts of a stage that run in processes of their own: the shim, and
//! the work of smelt's own kinds, which have a row and a file each.

pub(crate) mod exposed;
pub(crate) mod order;
mod phases;
mod request;
mod work;

mod accuracy;
pub(crate) mod calibrate;
pub(crate) mod deployment;
mod engine_build;
pub(crate) mod film;
mod graph_surgery;
mod llm_engine_build;
mod onnx_export;
pub(crate) mod quantize;
mod source;
mod strict;
mod tune;
mod verify;

use std::io::{self, Read};

use smelt_exec::call_process;
use smelt_plan::Kind;
use smelt_plan::plan::Stage;

use self::request::Request;
use crate::checkpoints::Checkpoints;
use crate::exit::{Exit, Failed};
use crate::flags::{StageFlags, StagePart};

/// A request names a stage's params and directories; the pipeline's own limits keep it small.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

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
    /// What it computes, where that is worth a word before a run.
    pub(crate) products: Option<Products>,
    /// Whether it can be refused before it is built, and why.
    pub(crate) refusal: Option<Refusal>,
}

impl Worker {
    const fn new(run: fn(&Request) -> Result<(), Failed>) -> Self {
        Self { run, executes_graphs: false, compiles_kernels: false, products: None, refusal: None }
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

pub(crate) fn run(flags: &StageFlags) -> Result<Exit, Failed> {
    match &flags.part {
        StagePart::Shim { space, mapped } => {
            call_process("smelt-shim");
            match smelt_exec::shim::main(*space, *mapped) {
                0 => Ok(Exit::Ok),
                _ => Ok(Exit::StageFailed),
            }
        }
        StagePart::Film { arguments } => film::run(arguments),
        StagePart::Work { name } => {
            call_process(&format!("smelt:{}", name.as_deref().unwrap_or("stage")));
            let mut request = String::new();
            io::stdin()
                .take(REQUEST_BYTES_MAX)
                .read_to_string(&mut request)
                .map_err(|error| Failed::usage(format!("cannot read the request: {error}")))?;
            work::run(&request)
        }
    }
}
