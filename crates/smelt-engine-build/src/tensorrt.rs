//! Builds plans of NVIDIA's TensorRT: one of a graph, or one for each size of pictures.
//!
//! The graph goes to the vendor's parser as it is.  What is decided here is which sizes it is built for; all else is the
//! builder's.  Nothing runs a plan where it is built.

pub mod rtx;
pub mod trtexec;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use smelt_backend::ENGINE_FILE;
use smelt_backend::grid::Grid;
use smelt_model::export::{GRIDS_FILE, GridList, GridsError};
use smelt_onnx::{Dim, MODEL_FILE, Model, ValueInfo};
use smelt_tensorrt::trtexec::Fault;
use smelt_tensorrt::{CompileError, LibraryError, SessionError, Shapes};

/// Version of the directory's layout.
const FORMAT: u32 = 1;
/// The plan of a graph that is for one size.
const PLAN_FILE: &str = "engine.plan";

/// What any builder of plans is told.
#[derive(Clone, Debug)]
pub struct PlanSettings {
    /// The GPUs' compute capability, as 86, and its word in pipelines.
    pub target: (u32, String),
    /// How long sizes that vary may be, by their names in the graph: least, likeliest, most.
    pub sizes: BTreeMap<String, [u64; 3]>,
    /// Bytes that kernels may use besides tensors, where they are limited.
    pub workspace_bytes: Option<u64>,
    /// How long the builder looks for kernels, 0 to 5.
    pub level: Option<u32>,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum TensorRtError {
    /// The libraries are not here.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The program that loads them does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// There is no conversation with the libraries, or none any more.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The graph cannot be read.
    #[error(transparent)]
    Read(#[from] smelt_onnx::ReadError),
    /// The list of graphs for sizes of pictures cannot be used.
    #[error(transparent)]
    Grids(#[from] GridsError),
    /// The graph breaks the standard's rules.
    #[error("{} is no valid graph: {source}", path.display())]
    Check {
        /// The model file.
        path: PathBuf,
        /// The first broken rule.
        source: smelt_onnx::CheckError,
    },
    /// The parser does not take the graph.
    #[error("TensorRT does not take {}: {what}", path.display())]
    Refused {
        /// The model file.
        path: PathBuf,
        /// The first refusals.
        what: String,
    },
    /// Sizes or settings do not go with the graph.
    #[error("{0}")]
    Unfit(String),
    /// The builder does not take what it is told.
    #[error("TensorRT's builder does not take this: {0}")]
    Setting(String),
    /// The builder gave no plan.
    #[error("TensorRT's builder failed: {0}")]
    Builder(String),
    /// A file is not as long as the builder said.
    #[error("{} has {found} bytes, and the builder gave {given}", path.display())]
    Short {
        /// The plan.
        path: PathBuf,
        /// Bytes in the file.
        found: u64,
        /// Bytes that there should be.
        given: u64,
    },
    /// A version of the program does not know what it would be told.
    #[error("{0}")]
    Flag(String),
    /// What the program left counts for nothing.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The program cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The engine cannot be written.
    #[error("cannot write the engine in {}: {source}", dir.display())]
    Write {
        /// The engine's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A graph that becomes a plan.
struct Source {
    path: PathBuf,
    model: Model,
    grid: Option<Grid>,
    plan: String,
    /// Of inputs that have sizes which vary.
    shapes: BTreeMap<String, Shapes>,
}

/// The graphs of the directory, with the shapes that they are built for.
fn shaped(dir: &Path, settings: &PlanSettings) -> Result<Vec<Source>, TensorRtError> {
    let mut sources = sources(dir)?;
    check_names(&sources, &settings.sizes)?;
    for source in &mut sources {
        source.shapes = shapes(&source.model, &settings.sizes)?;
    }
    Ok(sources)
}

/// The graph of the directory, or those that its list names, one for each size of pictures.
fn sources(dir: &Path) -> Result<Vec<Source>, TensorRtError> {
    let read = |file: &str, grid: Option<Grid>, plan: String| {
        let path = dir.join(file);
        let model = Model::read(&path)?;
        smelt_onnx::check(&model, dir)
            .map_err(|source| TensorRtError::Check { path: path.clone(), source })?;
        Ok(Source { path, model, grid, plan, shapes: BTreeMap::new() })
    };
    if !dir.join(GRIDS_FILE).exists() {
        return Ok(vec![read(MODEL_FILE, None, PLAN_FILE.to_owned())?]);
    }
    let list = GridList::read(dir)?;
    let one = |(grid, file): &(Grid, String)| read(file, Some(*grid), format!("{grid}.plan"));
    list.grids.iter().map(one).collect()
}

/// The inputs that callers give; old files list initializers among them.
fn inputs(model: &Model) -> impl Iterator<Item = &ValueInfo> {
    let own: BTreeSet<&str> =
        model.graph.initializers.iter().map(|own| own.name.as_str()).collect();
    model.graph.inputs.iter().filter(move |input| !own.contains(input.name.as_str()))
}

/// Sizes of names that no graph has are somebody's mistake.
fn check_names(
    sources: &[Source],
    sizes: &BTreeMap<String, [u64; 3]>,
) -> Result<(), TensorRtError> {
    let dims = sources.iter().flat_map(|source| inputs(&source.model));
    let dims = dims.flat_map(|input| input.dims.iter().flatten());
    let known: BTreeSet<&str> = dims.filter_map(symbol).collect();
    let Some(wrong) = sizes.keys().find(|name| !known.contains(name.as_str())) else {
        return Ok(());
    };
    let known: Vec<&str> = known.into_iter().collect();
    let have = match known.as_slice() {
        [] => "all its sizes are fixed".to_owned(),
        known => format!("its sizes that vary are {}", known.join(", ")),
    };
    Err(TensorRtError::Unfit(format!("\"sizes\" names {wrong:?}, which the graph has not: {have}")))
}

fn symbol(dim: &Dim) -> Option<&str> {
    match dim {
        Dim::Symbol(symbol) => Some(symbol),
        Dim::Fixed(_) | Dim::Unknown => None,
    }
}

/// The shapes of the inputs that have sizes which vary.
fn shapes(
    model: &Model,
    sizes: &BTreeMap<String, [u64; 3]>,
) -> Result<BTreeMap<String, Shapes>, TensorRtError> {
    let mut shapes = BTreeMap::new();
    for input in inputs(model) {
        let name = &input.name;
        let lacks = |what: &str| TensorRtError::Unfit(format!("the input {name:?} {what}"));
        let dims =
            input.dims.as_deref().ok_or_else(|| lacks("declares no shape; export it again"))?;
        let is_fixed = |dim: &Dim| matches!(dim, Dim::Fixed(_));
        if dims.iter().all(is_fixed) {
            continue;
        }
        let unsaid = |symbol: &String| {
            lacks(&format!(
                "has a size {symbol:?} that varies: say how, as in sizes = {{ \"{symbol}\" = \"1,1,4\" }}"
            ))
        };
        let range = |dim: &Dim| match dim {
            Dim::Fixed(size) => Ok([*size as u64; 3]),
            Dim::Symbol(symbol) => sizes.get(symbol).copied().ok_or_else(|| unsaid(symbol)),
            Dim::Unknown => Err(lacks("has a size that varies and has no name; give it one")),
        };
        let ranges = dims.iter().map(range).collect::<Result<Vec<_>, _>>()?;
        let [min, opt, max] =
            [0, 1, 2].map(|at| ranges.iter().map(|range| range[at] as i64).collect::<Vec<i64>>());
        shapes.insert(name.clone(), Shapes { min, opt, max });
    }
    Ok(shapes)
}

/// What `engine.json` holds.
#[derive(Serialize)]
struct EngineFile<M> {
    format: u32,
    kind: &'static str,
    target: String,
    /// A plan runs on GPUs of the capability that it was built for.
    device: BTreeMap<&'static str, String>,
    /// What built it, and how.
    #[serde(flatten)]
    made: M,
    plans: Vec<PlanFile>,
}

impl<M: Serialize> EngineFile<M> {
    fn new(kind: &'static str, settings: &PlanSettings, made: M, plans: Vec<PlanFile>) -> Self {
        let (capability, word) = &settings.target;
        let device = [("sm", capability.to_string())].into();
        Self { format: FORMAT, kind, target: word.clone(), device, made, plans }
    }

    fn write(&self, dir: &Path) -> Result<(), TensorRtError> {
        let text = serde_json::to_string_pretty(self).expect("names, numbers and lists of them");
        fs::write(dir.join(ENGINE_FILE), text + "\n").map_err(write_error(dir))
    }
}

/// One plan.
#[derive(Serialize)]
struct PlanFile {
    file: String,
    bytes: u64,
    /// The picture that it is for, in pixels, where there is one for each size.
    #[serde(skip_serializing_if = "Option::is_none")]
    grid: Option<[usize; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<i64>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// An input or output; -1 is a size that varies.
#[derive(Serialize)]
struct Port {
    name: String,
    dtype: String,
    sizes: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opt: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<Vec<i64>>,
}

impl Port {
    /// With the shapes that it was built for, where its sizes vary.
    fn new(name: &str, dtype: impl ToString, sizes: Vec<i64>, shapes: Option<&Shapes>) -> Self {
        let of = |sizes: fn(&Shapes) -> &Vec<i64>| shapes.map(|shapes| sizes(shapes).clone());
        Self {
            name: name.to_owned(),
            dtype: dtype.to_string(),
            sizes,
            min: of(|shapes| &shapes.min),
            opt: of(|shapes| &shapes.opt),
            max: of(|shapes| &shapes.max),
        }
    }
}

fn write_error(dir: &Path) -> impl Fn(io::Error) -> TensorRtError {
    move |source| TensorRtError::Write { dir: dir.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use smelt_onnx::{ElementType, Graph};

    use super::*;

    fn model(dims: &[Dim]) -> Model {
        let dims = Some(dims.to_vec());
        let input = ValueInfo { name: "x".to_owned(), dtype: ElementType::F32, dims };
        Model {
            ir_version: 8,
            opset: 17,
            other_opsets: Vec::new(),
            producer: String::new(),
            metadata: Vec::new(),
            graph: Graph { inputs: vec![input], ..Graph::default() },
        }
    }

    fn sizes(all: &[(&str, [u64; 3])]) -> BTreeMap<String, [u64; 3]> {
        all.iter().map(|(name, range)| ((*name).to_owned(), *range)).collect()
    }

    #[test]
    fn sizes_that_vary_become_three_shapes() {
        let varying = model(&[Dim::Symbol("batch".to_owned()), Dim::Fixed(3)]);
        let found = shapes(&varying, &sizes(&[("batch", [1, 2, 8])])).unwrap();
        let expect = Shapes { min: vec![1, 3], opt: vec![2, 3], max: vec![8, 3] };
        assert_eq!(found, [("x".to_owned(), expect)].into());
        assert_eq!(shapes(&model(&[Dim::Fixed(3)]), &sizes(&[])).unwrap(), BTreeMap::new());
    }

    #[test]
    fn sizes_that_nobody_said_or_nobody_can_say_are_refused() {
        let refused = |dim: Dim| shapes(&model(&[dim]), &sizes(&[])).unwrap_err().to_string();
        let lacking = refused(Dim::Symbol("batch".to_owned()));
        assert!(lacking.contains("sizes = { \"batch\" = \"1,1,4\" }"), "{lacking}");
        assert!(refused(Dim::Unknown).contains("has no name"));
    }

    #[test]
    fn sizes_of_names_that_no_graph_has_are_refused() {
        let source = |dims: &[Dim]| Source {
            path: PathBuf::new(),
            model: model(dims),
            grid: None,
            plan: String::new(),
            shapes: BTreeMap::new(),
        };
        let sizes = sizes(&[("bach", [1; 3])]);
        let check = |dims: &[Dim], words: &str| {
            let why = check_names(&[source(dims)], &sizes).unwrap_err().to_string();
            assert!(why.contains("\"bach\"") && why.contains(words), "{why}");
        };
        check(&[Dim::Symbol("batch".to_owned())], "its sizes that vary are batch");
        check(&[Dim::Fixed(1)], "all its sizes are fixed");
        check_names(&[source(&[Dim::Symbol("bach".to_owned())])], &sizes).unwrap();
    }
}
