//! Executes graphs on a GPU: towers of pictures and encoders, by the plans of [`smelt_engine`].
//!
//! An engine for cards is a graph engine of processors with kernels beside it.  What the graph becomes for inputs of certain
//! shapes is worked out as processors do it; then tasks become steps (`lower`) over values (`values`) in one piece of memory,
//! constants are brought (`constants`), and steps are launched (`card`).  What depends on no float of the card (embeddings of
//! tokens, masks) the host computes.  A row's bits do not depend on what else is in its batch.  Knows no checkpoints, ONNX
//! files or pictures.

mod card;
mod constants;
mod fused;
mod lower;
mod values;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use smelt_backend::{
    Constant, Graph, GraphError, GraphInput, GraphOutput, Graphs, Heading, OpenError, Pending,
    Tensor, Witness,
};
use smelt_engine::engine_file::{KernelsEntry, WEIGHTS_FILE};
use smelt_engine::graph::GraphEngine;
use smelt_engine::graph::plan::Plan;

use crate::CudaTarget;
/// Keys of stages name one version for the kernels of decoders and of graphs.
pub use crate::decoder::LAYOUT;
use crate::decoder::file::{self, read_kernels};
use crate::driver::{Driver, DriverError};
use card::Card;
pub use lower::head_of;

/// Why a graph did not run.
#[derive(Clone, Debug)]
enum GraphFault {
    Driver(DriverError),
    Graph(String),
}

impl From<DriverError> for GraphFault {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<GraphFault> for GraphError {
    fn from(fault: GraphFault) -> Self {
        Self::Graph(match fault {
            GraphFault::Driver(error) => error.to_string(),
            GraphFault::Graph(problem) => problem,
        })
    }
}

/// A graph on a card, or one that is only looked at.
#[derive(Debug)]
pub struct CudaGraph {
    engine: GraphEngine,
    target: CudaTarget,
    /// The card, which the graphs of a directory share, and the graph's number there.
    card: Option<(Arc<Mutex<Card>>, usize)>,
}

impl CudaGraph {
    /// Opens the graphs in `dir` on the card of `driver`.  Weights are uploaded.
    ///
    /// # Errors
    /// When the directory holds no graphs for this card, their parts disagree, or the card has no room for them.
    pub fn open_all(dir: &Path, driver: &Arc<dyn Driver>) -> Result<Graphs, OpenError> {
        let (target, engines) = engines(dir)?;
        let Some((_, first)) = engines.first() else { return Ok(Vec::new()) };
        let (wanted, own) = (target.sm(), driver.card());
        if wanted != own.sm {
            let problem = format!("its kernels are for {wanted}, and {} is {}", own.name, own.sm);
            return Err(first.unfit("this card", problem));
        }
        let entry = kernels_of(first)?;
        let kernels = read_kernels(
            dir,
            &file::KernelsEntry {
                file: entry.file.clone(),
                sha256: entry.sha256.clone(),
                layout: entry.layout,
            },
        )?;
        let weights = std::fs::metadata(dir.join(WEIGHTS_FILE)).map_or(0, |facts| facts.len());
        let refused = |error: DriverError| first.unfit("this device", error.to_string());
        let card = Card::new(driver, &kernels, entry.head, weights).map_err(refused)?;
        let card = Arc::new(Mutex::new(card));
        let mut graphs: Graphs = Vec::new();
        for (index, (grid, engine)) in engines.into_iter().enumerate() {
            let graph = Self { engine, target, card: Some((Arc::clone(&card), index)) };
            graph.bring()?;
            graphs.push((grid, Box::new(graph)));
        }
        Ok(graphs)
    }

    /// Opens the graphs in `dir` without any card: they say what they are, and run nothing.
    ///
    /// # Errors
    /// When the directory holds no graphs for cards, or their parts disagree.
    pub fn describe_all(dir: &Path) -> Result<Graphs, OpenError> {
        let (target, engines) = engines(dir)?;
        let of = |engine| Box::new(Self { engine, target, card: None }) as Box<dyn Graph>;
        Ok(engines.into_iter().map(|(grid, engine)| (grid, of(engine))).collect())
    }

    /// Brings the constants to the card that inputs of the tried shapes need, so that the first picture does not wait.
    fn bring(&self) -> Result<(), OpenError> {
        let Some((card, index)) = &self.card else { return Ok(()) };
        let Some(inputs) = smallest(self.engine.inputs()) else { return Ok(()) };
        let did = locked(card).prepare(*index, &self.engine, &inputs);
        match did {
            Err(GraphFault::Driver(error)) => {
                Err(self.engine.unfit("this device", error.to_string()))
            }
            // Inputs that small need not fit a graph; those that come say why not.
            Err(GraphFault::Graph(_)) | Ok(()) => Ok(()),
        }
    }

    fn run_here(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, GraphError> {
        GraphInput::check_all(self.engine.inputs(), &inputs)?;
        let Some((card, index)) = &self.card else {
            let problem = format!("no card of {} was opened", self.target.word());
            return Err(GraphError::Graph(problem));
        };
        Ok(locked(card).run(*index, &self.engine, inputs)?)
    }
}

/// What keeps a card from running `plan`, if anything: one line that names the node.
///
/// # Errors
/// The reason, in words.
pub fn check(engine: &GraphEngine, plan: &Plan, inputs: &[Tensor]) -> Result<(), String> {
    let numbers: Vec<usize> =
        inputs.iter().map(|input| input.floats().map_or(0, <[f32]>::len)).collect();
    let kinds = |place| constants::kind_of(engine, plan, place);
    lower::lower(plan, &numbers, head_of(plan), &kinds).map(drop)
}

fn locked(card: &Mutex<Card>) -> std::sync::MutexGuard<'_, Card> {
    card.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inputs of zeros with one of everything that is open; none where that is no small input.
fn smallest(inputs: &[GraphInput]) -> Option<Vec<Tensor>> {
    /// More numbers are no input that is worth making.
    const NUMBERS_MAX: usize = 1 << 26;
    let one = |input: &GraphInput| {
        let shape: Vec<usize> = input.dims.iter().map(|dim| dim.unwrap_or(1)).collect();
        let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim))?;
        (count <= NUMBERS_MAX).then(|| match input.integer {
            true => Tensor::I64 { shape, data: vec![0; count] },
            false => Tensor::F32 { shape, data: vec![0.0; count] },
        })
    };
    inputs.iter().map(one).collect()
}

/// The graphs of a directory, and the cards that they are for.
type Engines = (CudaTarget, Vec<(Option<smelt_backend::grid::Grid>, GraphEngine)>);

fn engines(dir: &Path) -> Result<Engines, OpenError> {
    let target = Heading::read(dir)?.target;
    let engines = GraphEngine::open_all_for(dir, &target)?;
    let wrong =
        |problem| OpenError::Damaged { path: dir.join(smelt_backend::ENGINE_FILE), problem };
    let card = CudaTarget::parse(&target);
    Ok((card.ok_or_else(|| wrong(format!("target {target:?} is no card's")))?, engines))
}

fn kernels_of(engine: &GraphEngine) -> Result<&KernelsEntry, OpenError> {
    let entry = engine.kernels();
    let entry = entry.ok_or_else(|| engine.unfit("a card", "it has no kernels".to_owned()))?;
    if entry.layout != LAYOUT {
        let problem = format!("its kernels are of layout {}, not {LAYOUT}", entry.layout);
        return Err(engine.unfit("this version", problem));
    }
    Ok(entry)
}

impl Graph for CudaGraph {
    fn inputs(&self) -> &[GraphInput] {
        self.engine.inputs()
    }

    fn outputs(&self) -> &[GraphOutput] {
        self.engine.outputs()
    }

    fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, GraphError> {
        let outputs = self.run_here(inputs)?;
        Ok(Pending::done(outputs.into_iter().map(Into::into).collect()))
    }

    fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, GraphError> {
        self.run_here(inputs)
    }

    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.engine.verify_digest(told)
    }

    fn constant(&self, name: &str) -> Option<Box<dyn Constant + '_>> {
        Some(Box::new(self.engine.constant(name)?))
    }

    fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        self.engine.unfit(purpose, problem)
    }
}
