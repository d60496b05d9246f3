//! `engine-build`: a graph as an engine, of smelt's own or ONNX Runtime's.

use smelt_engine_build::graph::Precision;
use smelt_engine_build::{BuildError, graph, onnxruntime};
use smelt_plan::kind::engine_build::{EngineBuild, GraphBackend, GraphPrecision};

use super::Worker;
use super::request::{Request, say};
use crate::exit::{Exit, Failed};

pub(super) const WORKER: Worker = Worker { executes_graphs: true, ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let params: EngineBuild = request.typed()?;
    match params.backend {
        GraphBackend::Native => native(request, precision(params.precision)),
        GraphBackend::OnnxRuntime => foreign(request),
    }
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

fn precision(word: GraphPrecision) -> Precision {
    match word {
        GraphPrecision::F32 => Precision::F32,
        GraphPrecision::Int8 => Precision::Int8,
    }
}
