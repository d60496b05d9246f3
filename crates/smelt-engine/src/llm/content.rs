//! Says what an engine holds, so that it can be compared with what it should be built from.
//!
//! Sizes and the list of tensors are compared here; numbers come out row by row as the layers see
//! them, packed weights multiplied out and columns in the order of the input channels, whatever
//! form they are stored in.  Decides nothing about how far numbers may differ.

use smelt_tensor::dtype::Dtype;

use super::linear::Linear;
use super::weights::vector;
use super::{LlmEngine, LlmFile, OpenError};
use crate::engine_file::{TensorSpec, Weights};

/// A weight of an engine.
pub struct Tensor<'a> {
    form: TensorContent,
    weights: &'a Weights,
}

enum TensorContent {
    /// Norms and biases are one row.
    Vector(Vec<f32>),
    Matrix(Linear),
}

impl Tensor<'_> {
    /// Puts row `row` into `out`, which is as long as a row.  Panics where there is no such row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        match &self.form {
            TensorContent::Vector(numbers) => out.copy_from_slice(numbers),
            TensorContent::Matrix(linear) => linear.widen_row(row, self.weights, out),
        }
    }
}

impl LlmEngine {
    /// The first size or tensor in which the engine is not one of `sizes` and `tensors`, in words; numbers
    /// are not compared, nor what it was tuned for and how many positions the model has.
    pub fn unlike(&self, sizes: LlmFile, tensors: &[TensorSpec]) -> Option<String> {
        let own = &self.file.engine;
        let wanted = LlmFile { tactics: own.tactics.clone(), positions: own.positions, ..sizes };
        other_size(own, &wanted).or_else(|| self.other_tensor(tensors))
    }

    /// Whether any weight is stored as quants with scales.
    pub fn is_packed(&self) -> bool {
        let mut stored = self.file.names().filter_map(|name| self.file.stored(name));
        stored.any(|stored| matches!(stored.dtype, Dtype::I8 | Dtype::U8))
    }

    fn other_tensor(&self, specs: &[TensorSpec]) -> Option<String> {
        for spec in specs {
            let Some(stored) = self.file.stored(&spec.name) else {
                return Some(format!("it has no tensor {}", spec.name));
            };
            let (own, wanted) = (
                (stored.dtype, &stored.shape, stored.layout),
                (spec.dtype, &spec.shape, spec.layout),
            );
            if own != wanted {
                let words = |(dtype, shape, layout): (_, &Vec<usize>, _)| {
                    format!("{dtype} {shape:?} in {layout:?}")
                };
                let (own, wanted) = (words(own), words(wanted));
                return Some(format!("its {} is {own}, not {wanted}", spec.name));
            }
        }
        let is_more = |name: &&str| specs.iter().all(|spec| spec.name != *name);
        self.file.names().find(is_more).map(|name| format!("it has a tensor {name} too many"))
    }

    /// The weight `name` of `shape`: a vector, or a matrix of rows.
    ///
    /// # Errors
    /// When the engine has none of that shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, OpenError> {
        let form = match *shape {
            [len] => TensorContent::Vector(vector(&self.file, name, len)?),
            [rows, columns] => {
                TensorContent::Matrix(Linear::find(&self.file, name, [rows, columns])?)
            }
            _ => {
                let problem = format!("tensor {name:?} cannot have shape {shape:?}");
                return Err(self.file.damaged(problem));
            }
        };
        Ok(Tensor { form, weights: &self.file.weights })
    }
}

/// The first field of `own` that is not as in `wanted`.
fn other_size(own: &LlmFile, wanted: &LlmFile) -> Option<String> {
    let fields = |file: &LlmFile| serde_json::to_value(file).expect("plain data is JSON");
    let (own, wanted) = (fields(own), fields(wanted));
    let names = wanted.as_object().into_iter().chain(own.as_object()).flat_map(|all| all.keys());
    let mut other = names.filter(|&name| own[name] != wanted[name]);
    other.next().map(|name| format!("its {name} is {}, not {}", own[name], wanted[name]))
}
