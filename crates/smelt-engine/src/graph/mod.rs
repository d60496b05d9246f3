//! Executes ONNX graphs on the CPU: any inputs and outputs of floats and integers.
//!
//! [`build`] packs a graph and its weights into an engine directory; [`GraphEngine`] opens one and
//! runs the graph it was given, node by node: renaming values or inserting `Identity` changes
//! nothing, another GELU changes exactly the answer.  Knows nothing of checkpoints, pictures or
//! texts.

mod array;
mod build;
mod file;
mod op;
mod ops;
mod program;
mod tensor;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use smelt_model::dtype::Dtype;

use crate::engine_file::EngineFile;
pub use crate::engine_file::OpenError;
use crate::kernels::isa::Isa;
use crate::kernels::matrix::Elements;
use crate::kernels::threads::Threads;
use array::{Array, Value, Weight};
pub(crate) use build::tried_input;
pub use build::{BuildError, build};
use file::GraphFile;
pub(crate) use file::input_file;
pub use file::{InputFile, OutputFile};
use ops::Machine;
use program::Program;
pub use tensor::Tensor;

/// What `engine.json` calls this kind.
pub(crate) const KIND: &str = "graph";

/// Float constants of up to this many numbers (norms, biases) are widened when the engine is
/// opened.
const WIDE_NUMBERS_MAX: usize = 1 << 14;

/// Why a graph could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The values given are not those the graph reads.
    #[error("input {name:?}: {problem}")]
    Input {
        /// The input.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An operator cannot take the values it met.
    #[error("the graph cannot run: {0}")]
    Graph(String),
}

/// An opened engine that executes a graph.
#[derive(Debug)]
pub struct GraphEngine {
    file: EngineFile<GraphFile>,
    program: Program,
    isa: Isa,
    threads: Threads,
}

impl GraphEngine {
    /// Opens the engine in `dir`.  Weights are mapped, not read.
    ///
    /// # Errors
    /// When the directory holds no graph engine of this version, or its parts disagree.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::new(EngineFile::open(dir, KIND)?)
    }

    fn new(file: EngineFile<GraphFile>) -> Result<Self, OpenError> {
        let (isa, threads) = (Isa::detect(), Threads::available());
        let machine = Machine { isa, threads: &threads, weights: &file.weights };
        let constants = load_constants(&file, machine)?;
        let program = Program::new(&file.engine, &constants, machine)
            .map_err(|problem| file.damaged(problem))?;
        Ok(Self { file, program, isa, threads })
    }

    /// Uses `count` threads instead of as many as there are processors; the numbers stay the same.
    #[must_use]
    pub fn with_threads(mut self, count: usize) -> Self {
        self.threads = Threads::new(count);
        self
    }

    /// What the graph reads, in its order.
    pub fn inputs(&self) -> &[InputFile] {
        &self.file.engine.inputs
    }

    /// What the graph gives, in its order.
    pub fn outputs(&self) -> &[OutputFile] {
        &self.file.engine.outputs
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        self.file.verify_digest()
    }

    /// The constant `name`, if it is of floats and a node reads it.
    pub fn constant(&self, name: &str) -> Option<Constant<'_>> {
        let mut inputs = self.file.engine.nodes.iter().flat_map(|node| &node.inputs);
        inputs.find(|input| *input == name)?;
        let stored = self.file.stored(name)?;
        let elements = self.file.weights.elements(stored)?;
        (stored.dtype != Dtype::I8).then_some(Constant { elements, dtype: stored.dtype })
    }

    /// The refusal of an engine that does not serve its purpose.
    pub(crate) fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        self.file.unfit(purpose, problem)
    }

    /// Runs the graph on `inputs`, in the order of [`Self::inputs`]; gives its outputs in the order
    /// of [`Self::outputs`].
    ///
    /// # Errors
    /// When an input has another type or shape than the graph declares, or an operator fails.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, RunError> {
        check_inputs(self.inputs(), &inputs)?;
        let machine =
            Machine { isa: self.isa, threads: &self.threads, weights: &self.file.weights };
        let inputs = inputs.into_iter().map(Tensor::into_value).collect();
        let values = self.program.run(inputs, machine).map_err(RunError::Graph)?;
        Ok(values.into_iter().map(|value| Tensor::from_value(value, machine)).collect())
    }
}

/// Whether `given` are the inputs that a graph declares.
pub(crate) fn check_inputs(declared: &[InputFile], given: &[Tensor]) -> Result<(), RunError> {
    if declared.len() != given.len() {
        let problem =
            format!("the graph reads {} inputs, {} are given", declared.len(), given.len());
        let name = declared.last().map_or_else(String::new, |input| input.name.clone());
        return Err(RunError::Input { name, problem });
    }
    for (declared, given) in declared.iter().zip(given) {
        if let Some(problem) = declared.fault(given) {
            return Err(RunError::Input { name: declared.name.clone(), problem });
        }
    }
    Ok(())
}

/// Floats that a graph holds.
#[derive(Clone, Copy, Debug)]
pub struct Constant<'a> {
    pub(crate) elements: Elements<'a>,
    pub(crate) dtype: Dtype,
}

impl Constant<'_> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.elements.len()
    }

    /// The type they are stored in.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Fills `out` with the numbers from `start`.  Panics where they end before that.
    pub fn widen(&self, start: usize, out: &mut [f32]) {
        self.elements.widen(start, out);
    }
}

fn load_constants(
    file: &EngineFile<GraphFile>,
    machine: Machine<'_>,
) -> Result<BTreeMap<String, Value>, OpenError> {
    let mut constants = BTreeMap::new();
    for name in file.names() {
        let stored = file.stored(name).expect("the name came from the file");
        let shape = stored.shape.clone();
        let value = if let Some(numbers) = file.weights.integers(stored) {
            Value::I64(Array::new(shape, numbers.to_vec()))
        } else if file.weights.elements(stored).is_some() {
            let weight = Weight { stored: Arc::new(stored.clone()), shape, transposed: false };
            let small = weight.shape.iter().product::<usize>() <= WIDE_NUMBERS_MAX;
            if small { Value::F32(machine.widen(&weight)) } else { Value::Weight(weight) }
        } else {
            return Err(file.damaged(format!("tensor {name:?} has dtype {}", stored.dtype)));
        };
        constants.insert(name.to_owned(), value);
    }
    Ok(constants)
}
