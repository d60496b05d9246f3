//! The back ends of this crate: a row for each kind of engine.

use std::path::Path;

use smelt_backend::{
    Backends, Decoder, Graph, Graphs, KvOptions, MemoryPlace, MemoryReport, OpenError, Opens, Row,
};

use crate::engine_file::TARGET;
use crate::graph::{self, GraphEngine};
use crate::llm::{self, LlmEngine};
use crate::onnxruntime::{self, OnnxruntimeEngine};

/// The native engines and ONNX Runtime.
pub const BACKENDS: Backends = Backends::new(&ROWS);

/// Their rows, for who has more back ends.
pub const ROWS: [Row; 4] = [
    on_any(llm::KIND, NATIVE, Opens::Decoder(open_decoder)),
    on_any(graph::KIND, NATIVE, Opens::Graphs(open_graphs)),
    on_any(graph::GRIDS_KIND, NATIVE, Opens::Graphs(open_graphs)),
    on_any(onnxruntime::KIND, "onnxruntime", Opens::Graphs(open_onnxruntime)),
];

/// What pipelines call the engines of our own.
const NATIVE: &str = "native";

/// Engines for processors depend on no device: what suits one is found when they run.  They live in its memory.
const fn on_any(kind: &'static str, backend: &'static str, opens: Opens) -> Row {
    Row {
        kind,
        target: TARGET,
        backend,
        facts: &[],
        place: || MemoryPlace::Host,
        memory: || MemoryReport::HOST,
        opens,
    }
}

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
