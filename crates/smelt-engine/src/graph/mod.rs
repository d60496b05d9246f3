//! Executes ONNX graphs on the CPU: any inputs and outputs of floats and integers.
//!
//! [`GraphEngine`] opens an engine, whose graph is a [`GraphFile`], compiles the graph for the shapes of its
//! inputs and runs that: operators that follow each other become one, and all results share one arena.
//! What counts is how data flows: renaming values or inserting `Identity` changes nothing, another GELU
//! changes exactly the answer.  Knows nothing of ONNX files, checkpoints, pictures or texts.

mod arena;
mod array;
mod backend;
mod chain;
mod compile;
mod constant;
mod file;
mod grids;
mod observe;
mod op;
mod ops;
pub mod plan;
mod program;
mod run;
mod shapes;
mod task;
mod tensor;
mod view;
mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::engine_file::OpenError;
use crate::engine_file::{EngineFile, KernelsEntry, TARGET, Unsealed};
use crate::kernels::isa::Isa;
use crate::kernels::threads::Threads;
use crate::processors::Shared;
use crate::tactics::{ExecutionConfig, Tactics};
use compile::ExecutionPlan;
pub use constant::{Constant, scale_name};
pub use file::{AttributeFile, GraphFile, NodeFile, ProductFile};
pub use grids::{GridFile, GridsFile, KIND as GRIDS_KIND, grid_prefix};
use ops::Machine;
use program::Program;
use run::ExecutionContext;
use shapes::Fact;
use smelt_backend::grid::Grid;
pub use smelt_backend::{GraphError as RunError, Tensor};
use smelt_backend::{GraphInput, GraphOutput, Witness, only_graph};
use task::Task;

/// What `engine.json` calls this kind.
pub const KIND: &str = "graph";

/// Plans kept, each for other shapes of the inputs; compiling one takes milliseconds.
const PLANS_MAX: usize = 4;

/// An opened engine that executes a graph.
#[derive(Debug)]
pub struct GraphEngine {
    file: EngineFile<GraphFile>,
    program: Program,
    /// The latest plans with what they are for, the oldest first.
    plans: Mutex<Vec<(Vec<Fact>, Arc<ExecutionPlan>)>>,
    isa: Isa,
    threads: Threads,
    untuned: Option<String>,
    pause: Option<Pause>,
    /// What is known of the decoder on the same processors.
    shared: Option<Arc<Shared>>,
}

/// What an engine calls before each task of a graph, on the thread that runs it.  It may block: the engine's
/// threads sleep meanwhile, and the numbers stay the same.
#[derive(Clone)]
pub struct Pause(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pause")
    }
}

/// What a graph became for inputs of certain shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// How many tasks there are of each kind: `linear`, `attention`, `norm`, `map` (operators that
    /// look at one number of each input at a time), `copy`, `fill`, and `operator` for those that
    /// run by themselves.
    pub tasks: BTreeMap<&'static str, usize>,
    /// Memory of all results together.
    pub arena_bytes: usize,
}

impl GraphEngine {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no graph engine of this version, its parts disagree, or it holds the
    /// graphs of several sizes of pictures.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        only_graph(dir, Self::open_all(dir)?, Self::unfit)
    }

    /// Opens the engines in `dir`, with the size of pictures that each is for where there is a list of
    /// them.  They share their weights, which are mapped and not read.
    ///
    /// # Errors
    /// When the directory holds no graph engine of this version, or its parts disagree.
    pub fn open_all(dir: &Path) -> Result<Vec<(Option<Grid>, Self)>, OpenError> {
        Self::open_all_for(dir, TARGET)
    }

    /// As [`Self::open_all`], of engines for cards of `target`: they run here too, in the processors' way.
    ///
    /// # Errors
    /// As [`Self::open_all`].
    pub fn open_all_for(dir: &Path, target: &str) -> Result<Vec<(Option<Grid>, Self)>, OpenError> {
        match EngineFile::open_for(dir, KIND, target) {
            Err(OpenError::OtherKind { found, .. }) if found == grids::KIND => {
                let engines = grids::open(dir, target)?.into_iter();
                Ok(engines.map(|(grid, engine)| (Some(grid), engine)).collect())
            }
            file => Ok(vec![(None, Self::new(file?)?)]),
        }
    }

    /// Opens an engine whose `engine.json` is not written yet, to try it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn preview(unsealed: &Unsealed<GraphFile>) -> Result<Self, OpenError> {
        Self::new(unsealed.preview()?)
    }

    /// As [`Self::preview`], of the engines for several sizes of pictures, in their stored order.
    ///
    /// # Errors
    /// As [`Self::open_all`].
    pub fn preview_grids(unsealed: &Unsealed<GridsFile>) -> Result<Vec<(Grid, Self)>, OpenError> {
        grids::engines(&unsealed.preview()?)
    }

    fn new(file: EngineFile<GraphFile>) -> Result<Self, OpenError> {
        let tactics = file.engine.tactics.as_ref();
        tactics.map_or(Ok(()), Tactics::check).map_err(|problem| file.damaged(problem))?;
        let ExecutionConfig { isa, threads, untuned } = ExecutionConfig::by(tactics);
        let machine = Machine { isa, threads: &threads, weights: &file.weights };
        let constants = constant::load(&file, machine)?;
        let program = Program::new(&file.engine, &constants, machine)
            .map_err(|problem| file.damaged(problem))?;
        let (plans, pause, shared) = (Mutex::default(), None, None);
        Ok(Self { file, program, plans, isa, threads, untuned, pause, shared })
    }

    /// Uses `count` threads instead of as many as there are processors; the numbers stay the same.
    #[must_use]
    pub fn with_threads(mut self, count: usize) -> Self {
        self.threads = Threads::new(count);
        self
    }

    /// Calls `pause` before each task.
    #[must_use]
    pub fn with_pause(mut self, pause: Pause) -> Self {
        self.pause = Some(pause);
        self
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    pub fn untuned(&self) -> Option<&str> {
        self.untuned.as_deref()
    }

    /// What the graph reads, in its order.
    pub fn inputs(&self) -> &[GraphInput] {
        &self.file.engine.inputs
    }

    /// What the graph gives, in its order.
    pub fn outputs(&self) -> &[GraphOutput] {
        &self.file.engine.outputs
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them, and tells `told` of each piece's bytes.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.file.verify_digest(told)
    }

    /// The constant `name`, if it is of floats and a node reads it.
    pub fn constant(&self, name: &str) -> Option<Constant<'_>> {
        let mut inputs = self.file.engine.nodes.iter().flat_map(|node| &node.inputs);
        inputs.find(|input| *input == name)?;
        Constant::find(&self.file, name)
    }

    /// The kernels beside it, of an engine for cards.
    pub fn kernels(&self) -> Option<&KernelsEntry> {
        self.file.kernels.as_ref()
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.file.dir()
    }

    /// The refusal of an engine that does not serve its purpose.
    pub fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        self.file.unfit(purpose, problem)
    }

    /// Runs the graph on `inputs`, in the order of [`Self::inputs`]; gives its outputs in the order
    /// of [`Self::outputs`].
    ///
    /// # Errors
    /// When an input has another type or shape than the graph declares, or an operator fails.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, RunError> {
        self.run_with_progress(inputs, &mut |_| {})
    }

    /// As [`Self::run`]; `progress` is told before each task which share of the work is done, from 0 to 1.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_with_progress(
        &self,
        inputs: Vec<Tensor>,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Vec<Tensor>, RunError> {
        let plan = self.plan(&inputs)?;
        let all: usize = plan.tasks.iter().map(|task| task.work.price()).sum();
        let mut done = 0;
        let before = &mut |task: &Task| {
            self.pause.iter().for_each(|pause| (pause.0)());
            progress(done as f64 / all.max(1) as f64);
            done += task.work.price();
        };
        let inputs = inputs.into_iter().map(tensor::into_value).collect();
        let values = ExecutionContext::all(&plan, inputs, self.machine(), before)
            .map_err(RunError::Graph)?;
        Ok(values.into_iter().map(|value| tensor::from_value(value, self.machine())).collect())
    }

    /// What the graph becomes for inputs of the shapes of `inputs`.
    ///
    /// # Errors
    /// When an input has another type or shape than the graph declares, or the graph cannot run on
    /// such inputs.
    pub fn survey(&self, inputs: &[Tensor]) -> Result<Survey, RunError> {
        let plan = self.plan(inputs)?;
        let arena_bytes = plan.arena * size_of::<f32>();
        Ok(Survey { tasks: plan.survey(), arena_bytes })
    }

    fn machine(&self) -> Machine<'_> {
        Machine { isa: self.isa, threads: &self.threads, weights: &self.file.weights }
    }

    /// The plan for inputs of these shapes, compiled if it is not kept.
    fn plan(&self, inputs: &[Tensor]) -> Result<Arc<ExecutionPlan>, RunError> {
        GraphInput::check_all(self.inputs(), inputs)?;
        let facts: Vec<Fact> = inputs.iter().map(tensor::fact).collect();
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, plan)) = plans.iter().find(|(of, _)| *of == facts) {
            return Ok(Arc::clone(plan));
        }
        let plan =
            ExecutionPlan::new(&self.program, &facts, self.machine()).map_err(RunError::Graph)?;
        let plan = Arc::new(plan);
        if plans.len() == PLANS_MAX {
            plans.remove(0);
        }
        plans.push((facts, Arc::clone(&plan)));
        Ok(plan)
    }
}
