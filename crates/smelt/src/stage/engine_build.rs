//! `engine-build`: a graph as an engine, of smelt's own, ONNX Runtime's or TensorRT's.

use smelt_cuda::CudaTarget;
use smelt_cuda::kernels::source::graph_source;
use smelt_engine_build::graph::Precision;
use smelt_engine_build::{BuildError, graph, onnxruntime};
use smelt_plan::kind::engine_build::{EngineBuild, GraphBackend, GraphPrecision};

use super::kernels::compiled;
use super::request::{Request, say};
use super::{Worker, kernels, tensorrt};
use crate::exit::{Exit, Failed};

pub(super) const WORKER: Worker = Worker {
    executes_graphs: true,
    compiles_kernels: true,
    asks_tensorrt: true,
    refusal: Some(tensorrt::refusal),
    ..Worker::new(run)
};

fn run(request: &Request) -> Result<(), Failed> {
    let params: EngineBuild = request.typed()?;
    if let Some(why) =
        tensorrt::no_calibration(&params, request.optional_input("calibration").is_some())
    {
        return Err(Failed::new(Exit::BadPipeline, why));
    }
    if let Some(target) = params.target.capability() {
        return tensorrt::run(request, &params, target);
    }
    match (params.backend, CudaTarget::parse(params.target.word())) {
        (GraphBackend::Native, None) => native(request, precision(params.precision)?),
        (GraphBackend::Native, Some(target)) => for_card(request, target),
        (GraphBackend::OnnxRuntime, _) => foreign(request),
        (GraphBackend::TensorRtRtx | GraphBackend::TensorRt, _) => {
            Err(Failed::usage("TensorRT builds for no such target"))
        }
    }
}

/// Packs the graph, then compiles the kernels that its heads need.
fn for_card(request: &Request, target: CudaTarget) -> Result<(), Failed> {
    if request.optional_input("tactics").is_some() {
        return Err(kernels::no_tactics());
    }
    let packed = graph::pack_for_card(request.input("onnx")?, &request.out, &mut say);
    let packed = packed.map_err(Failed::model)?;
    say(&format!("compiling kernels for {}", target.sm()));
    let image = compiled("graph.cu", graph_source(packed.head()), target)?;
    packed.finish(target, &image).map_err(Failed::model)
}

fn native(request: &Request, precision: Precision) -> Result<(), Failed> {
    let options = graph::Options { precision, tactics: request.tactics()? };
    graph::build(request.input("onnx")?, options, &request.out, &mut say).map_err(Failed::model)
}

fn foreign(request: &Request) -> Result<(), Failed> {
    if request.optional_input("tactics").is_some() {
        let why = "\"tactics\" are for backend = \"native\"; leave them out";
        return Err(Failed::new(Exit::BadPipeline, why));
    }
    let built = onnxruntime::build(request.input("onnx")?, &request.out, &mut say);
    built.map_err(|error| match error {
        BuildError::Library(why) => Failed::new(Exit::DoesNotFit, why),
        error => Failed::model(error),
    })
}

fn precision(word: GraphPrecision) -> Result<Precision, Failed> {
    match word {
        GraphPrecision::F32 => Ok(Precision::F32),
        GraphPrecision::Int8 => Ok(Precision::Int8),
        GraphPrecision::F16 | GraphPrecision::Bf16 | GraphPrecision::StronglyTyped => {
            Err(Failed::usage("the native engine multiplies f32 or int8"))
        }
    }
}
