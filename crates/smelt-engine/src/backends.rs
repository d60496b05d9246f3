//! The back ends of this crate: a row for each kind of engine.

use std::path::Path;

use smelt_backend::{Backends, Decoder, Graph, Graphs, KvOptions, OpenError, Opens, Row};

use crate::engine_file::TARGET;
use crate::graph::{self, GraphEngine};
use crate::llm::{self, LlmEngine};
use crate::onnxruntime::{self, OnnxruntimeEngine};

/// The native engines and ONNX Runtime.
pub const BACKENDS: Backends = Backends(&[
    Row { kind: llm::KIND, target: TARGET, opens: Opens::Decoder(open_decoder) },
    Row { kind: graph::KIND, target: TARGET, opens: Opens::Graphs(open_graphs) },
    Row { kind: graph::GRIDS_KIND, target: TARGET, opens: Opens::Graphs(open_graphs) },
    Row { kind: onnxruntime::KIND, target: TARGET, opens: Opens::Graphs(open_onnxruntime) },
]);

fn open_decoder(dir: &Path, kv: KvOptions) -> Result<Box<dyn Decoder>, OpenError> {
    Ok(Box::new(LlmEngine::open_with(dir, kv)?))
}

fn open_graphs(dir: &Path) -> Result<Graphs, OpenError> {
    let engines = GraphEngine::open_all(dir)?.into_iter();
    Ok(engines.map(|(grid, engine)| (grid, Box::new(engine) as Box<dyn Graph>)).collect())
}

fn open_onnxruntime(dir: &Path) -> Result<Graphs, OpenError> {
    Ok(vec![(None, Box::new(OnnxruntimeEngine::open(dir)?))])
}
