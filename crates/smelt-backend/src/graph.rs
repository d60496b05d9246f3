//! The contract of engines that execute a graph: numbers in, numbers out.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{OpenError, Processors, Witness};

/// Numbers in row-major order under a shape, in the host's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// Floats of any width, in f32.
    F32 {
        /// The dimensions, outermost first.
        shape: Vec<usize>,
        /// As many numbers as the shape holds.
        data: Vec<f32>,
    },
    /// Integers of any width and booleans (0 and 1), in i64.
    I64 {
        /// The dimensions, outermost first.
        shape: Vec<usize>,
        /// As many numbers as the shape holds.
        data: Vec<i64>,
    },
}

impl Tensor {
    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::F32 { shape, .. } | Self::I64 { shape, .. } => shape,
        }
    }

    /// The numbers, if they are floats.
    pub fn floats(&self) -> Option<&[f32]> {
        match self {
            Self::F32 { data, .. } => Some(data),
            Self::I64 { .. } => None,
        }
    }

    /// Bytes of the numbers.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32 { data, .. } => size_of_val(&data[..]),
            Self::I64 { data, .. } => size_of_val(&data[..]),
        }
    }

    /// Whether there are as many numbers as the shape holds.
    fn is_full(&self) -> bool {
        let len = match self {
            Self::F32 { data, .. } => data.len(),
            Self::I64 { data, .. } => data.len(),
        };
        let count = self.shape().iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        count == Some(len)
    }
}

/// Numbers that lie where a device put them.
pub trait DeviceValue: fmt::Debug + Send + Sync {
    /// The dimensions, outermost first.
    fn shape(&self) -> &[usize];

    /// Bytes that it holds.
    fn bytes(&self) -> usize;

    /// A copy in the host's memory.
    ///
    /// # Errors
    /// When the device fails.
    fn to_host(&self) -> Result<Tensor, GraphError>;

    /// Itself, for the back end that made it.
    fn as_any(&self) -> &dyn Any;
}

/// What a graph gives.  Caches hold it, count its bytes and hand it on; only its back end and who asks for numbers
/// look at them.
#[derive(Clone, Debug)]
pub enum Value {
    /// In the host's memory.
    Host(Arc<Tensor>),
    /// In a device's.
    Device(Arc<dyn DeviceValue>),
}

impl Value {
    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(value) => value.shape(),
        }
    }

    /// Bytes that it holds, wherever they are.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Host(tensor) => tensor.bytes(),
            Self::Device(value) => value.bytes(),
        }
    }

    /// The numbers in the host's memory: these, or a copy.
    ///
    /// # Errors
    /// When the device fails.
    pub fn to_host(&self) -> Result<Arc<Tensor>, GraphError> {
        match self {
            Self::Host(tensor) => Ok(Arc::clone(tensor)),
            Self::Device(value) => value.to_host().map(Arc::new),
        }
    }

    /// The numbers in the host's memory, without a copy where nobody else holds them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn into_host(self) -> Result<Tensor, GraphError> {
        match self {
            Self::Host(tensor) => Ok(Arc::unwrap_or_clone(tensor)),
            Self::Device(value) => value.to_host(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Host(Arc::new(tensor))
    }
}

/// A value the graph reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphInput {
    /// Its name.
    pub name: String,
    /// Whether it holds integers or booleans, not floats.
    pub integer: bool,
    /// Its dimensions, `None` where they may vary.
    pub dims: Vec<Option<usize>>,
}

/// A value the graph gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphOutput {
    /// Its name.
    pub name: String,
    /// The shape it had when the engine was built and tried: the first open dimension of every
    /// input was 1.
    pub tried: Vec<usize>,
}

impl GraphInput {
    /// What keeps `given` from being this input, if anything.
    pub fn fault(&self, given: &Tensor) -> Option<String> {
        let integer = matches!(given, Tensor::I64 { .. });
        if integer != self.integer {
            let words = |integer| if integer { "integers" } else { "floats" };
            return Some(format!("it takes {}, not {}", words(self.integer), words(integer)));
        }
        let shape = given.shape();
        let mut pairs = self.dims.iter().zip(shape);
        let fits = pairs.all(|(dim, &size)| size > 0 && dim.is_none_or(|dim| dim == size));
        if !fits || self.dims.len() != shape.len() {
            return Some(format!("shape {shape:?} is not {:?}", self.dims));
        }
        (!given.is_full()).then(|| format!("the numbers do not fill {shape:?}"))
    }

    /// Whether `given` are the inputs that a graph declares.
    ///
    /// # Errors
    /// [`GraphError::Input`] naming the first that is not.
    pub fn check_all(declared: &[Self], given: &[Tensor]) -> Result<(), GraphError> {
        if declared.len() != given.len() {
            let problem =
                format!("the graph reads {} inputs, {} are given", declared.len(), given.len());
            let name = declared.last().map_or_else(String::new, |input| input.name.clone());
            return Err(GraphError::Input { name, problem });
        }
        for (declared, given) in declared.iter().zip(given) {
            if let Some(problem) = declared.fault(given) {
                return Err(GraphError::Input { name: declared.name.clone(), problem });
            }
        }
        Ok(())
    }
}

/// Why a graph could not be run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
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

/// Floats that an engine holds, whatever form they lie in.
pub trait Constant: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// The type they are stored in, as safetensors call it; `I8` stands for levels, of which each output has 127 on either
    /// side of 0 for its largest number.
    fn dtype(&self) -> &'static str;

    /// Fills `out` with the numbers from `start`, in the graph's order.  Panics where they end
    /// before that.
    fn widen(&self, start: usize, out: &mut [f32]);
}

/// What comes of work that was submitted.
type Outcome = Result<Vec<Value>, GraphError>;

/// Work that was submitted to a graph, and may still be under way.
pub struct Pending(Box<dyn FnOnce() -> Outcome + Send>);

impl Pending {
    /// Work that `wait` waits for.
    pub fn new(wait: impl FnOnce() -> Outcome + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Work that is done.
    pub fn done(values: Vec<Value>) -> Self {
        Self::new(|| Ok(values))
    }

    /// What the graph gives, in the order of [`Graph::outputs`].
    ///
    /// # Errors
    /// When an operator failed.
    pub fn wait(self) -> Outcome {
        (self.0)()
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

/// An opened engine that executes a graph.  What it gives depends on its inputs alone, bit for bit.
pub trait Graph: fmt::Debug + Send + Sync {
    /// What the graph reads, in its order.
    fn inputs(&self) -> &[GraphInput];

    /// What the graph gives, in its order.
    fn outputs(&self) -> &[GraphOutput];

    /// Begins to run the graph on `inputs`, in the order of [`Self::inputs`].  Where the device works by itself, this
    /// returns at once.
    ///
    /// # Errors
    /// When an input has another type or shape than the graph declares, or an operator fails.
    fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, GraphError>;

    /// Runs the graph on `inputs`; gives numbers in the host's memory.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, GraphError> {
        self.submit(inputs)?.wait()?.into_iter().map(Value::into_host).collect()
    }

    /// From now on the engine shares the processors of a decoder of the same back end.
    fn share(&mut self, _processors: &Processors) {}

    /// Compares what the engine holds with the hashes in `engine.json`; reads all of it.  `told` hears how many
    /// bytes were read, piece by piece.
    ///
    /// # Errors
    /// When they differ.
    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError>;

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    fn untuned(&self) -> Option<&str> {
        None
    }

    /// The constant `name`, if the graph has one of floats and a node reads it.
    fn constant(&self, _name: &str) -> Option<Box<dyn Constant + '_>> {
        None
    }

    /// The refusal of an engine that is whole, but not for `purpose`.
    fn unfit(&self, purpose: &'static str, problem: String) -> OpenError;
}
