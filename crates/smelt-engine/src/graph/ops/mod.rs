//! Computes what each operator means: values in, values out.
//!
//! Every operator follows the ONNX standard, broadcasting and negative axes included.  The file of
//! each group says what it holds; this one sends an [`Op`] to its group.  Knows nothing of graphs.

mod elementwise;
pub(super) mod layout;
pub(super) mod product;
pub(super) mod reduce;
pub(super) mod resize;
mod sequence;
mod truth;
pub(super) mod window;

use super::array::{Array, Value, Weight};
use super::op::Op;
use crate::engine_file::Weights;
use crate::kernels::isa::Isa;
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::threads::Threads;

/// What operators run on.
#[derive(Clone, Copy)]
pub(crate) struct Machine<'a> {
    pub(crate) isa: Isa,
    pub(crate) threads: &'a Threads,
    pub(crate) weights: &'a Weights,
}

/// The values an operator reads; taking one gives up the graph's claim on it.
pub(crate) struct Inputs(pub(crate) Vec<Option<Value>>);

impl Inputs {
    /// A value that [`Op::parse`] made sure of.
    fn take(&mut self, index: usize) -> Value {
        self.optional(index).expect("parsing counted the inputs")
    }

    fn optional(&mut self, index: usize) -> Option<Value> {
        self.0.get_mut(index).and_then(Option::take)
    }
}

/// Runs one operator.
pub(crate) fn run(op: &Op, mut inputs: Inputs, machine: Machine<'_>) -> Result<Vec<Value>, String> {
    let inputs = &mut inputs;
    let one = match op {
        Op::Identity => Ok(inputs.take(0)),
        Op::Cast { to } => elementwise::cast(*to, inputs.take(0), machine),
        Op::Binary(kind) => elementwise::binary(*kind, inputs, machine),
        Op::Unary(kind) => elementwise::unary(*kind, inputs.take(0), machine),
        Op::Compare(kind) => truth::compare(*kind, inputs, machine),
        Op::Not => truth::not(inputs.take(0)),
        Op::Where => truth::choose(inputs, machine),
        Op::ArgMax { axis, keep_dims, last } => {
            reduce::arg_max(*axis, *keep_dims, *last, inputs.take(0), machine)
        }
        Op::CumSum { exclusive, reverse } => {
            sequence::running_sum(*exclusive, *reverse, inputs, machine)
        }
        Op::Range => sequence::range(inputs, machine),
        Op::Trilu { upper } => sequence::triangle(*upper, inputs, machine),
        Op::Reshape { allow_zero } => layout::reshape(*allow_zero, inputs, machine),
        Op::Transpose { order } => layout::transpose(order.as_deref(), inputs.take(0), machine),
        Op::Pad => layout::pad(inputs, machine),
        Op::Slice => layout::slice(inputs, machine),
        Op::Split { axis, parts } => return layout::split(*axis, *parts, inputs, machine),
        Op::Concat { axis } => layout::concat(*axis, inputs, machine),
        Op::Squeeze => layout::squeeze(inputs, machine),
        Op::Unsqueeze => layout::unsqueeze(inputs, machine),
        Op::Flatten { axis } => layout::flatten(*axis, inputs.take(0), machine),
        Op::Expand => layout::expand(inputs, machine),
        Op::Gather { axis } => layout::gather(*axis, inputs, machine),
        Op::Shape { start, end } => Ok(layout::shape(*start, *end, &inputs.take(0))),
        Op::ConstantOfShape => layout::constant_of_shape(inputs, machine),
        Op::MatMul => product::mat_mul(inputs, machine),
        Op::Gemm { alpha, beta, transpose_a, transpose_b } => {
            product::gemm(*alpha, *beta, [*transpose_a, *transpose_b], inputs, machine)
        }
        Op::Conv(conv) => window::conv(conv, inputs, machine),
        Op::MaxPool(windows) => window::max_pool(windows, inputs.take(0), machine),
        Op::Resize(how) => resize::resize(how, inputs, machine),
        Op::Softmax { axis } => reduce::softmax(*axis, inputs.take(0), machine),
        Op::LayerNormalization { axis, eps } => {
            return reduce::layer_normalization(*axis, *eps, inputs, machine);
        }
        Op::Reduce { kind, axes, keep_dims, none_is_nothing } => {
            reduce::reduce(*kind, axes.as_deref(), *keep_dims, *none_is_nothing, inputs, machine)
        }
    };
    one.map(|value| vec![value])
}

impl<'a> Machine<'a> {
    /// The value as f32, a stored weight widened.
    pub(crate) fn floats(self, value: Value) -> Result<Array<f32>, String> {
        match value {
            Value::F32(array) => Ok(array),
            Value::Weight(weight) => Ok(self.widen(&weight)),
            Value::I64(array) => Err(format!("reads integers {:?} as floats", array.shape())),
        }
    }

    /// A stored weight in f32, in the order the graph sees.
    pub(crate) fn widen(self, weight: &Weight) -> Array<f32> {
        if let Some(array) = self.unstriped(weight) {
            return array;
        }
        let elements = self.elements(weight);
        let mut data = vec![0.0; elements.len()];
        if let (true, &[rows, columns]) = (weight.transposed, &weight.shape[..]) {
            let stored = Matrix::new(elements, columns, rows).transposed();
            for (row, out) in data.chunks_exact_mut(columns.max(1)).enumerate() {
                stored.widen_row(row, out);
            }
        } else {
            elements.widen(0, &mut data);
        }
        Array::new(weight.shape.clone(), data)
    }

    /// The value, a stored weight in stripes as one that operators can read.
    fn readable(self, value: Value) -> Value {
        match value {
            Value::Weight(weight) if !weight.is_by_rows() => Value::F32(self.widen(&weight)),
            value => value,
        }
    }

    /// Rows of a stored weight in f32; the others stay in the file.
    fn rows(self, weight: &Weight, rows: &[usize]) -> Vec<f32> {
        let elements = self.elements(weight);
        let width: usize = weight.shape[1..].iter().product();
        let mut data = vec![0.0; rows.len() * width];
        for (row, out) in rows.iter().zip(data.chunks_exact_mut(width.max(1))) {
            elements.widen(row * width, out);
        }
        data
    }

    pub(crate) fn elements(&self, weight: &Weight) -> Elements<'a> {
        self.weights.elements(&weight.stored).expect("loading keeps only floats as weights")
    }
}

/// The value as integers.
fn integers(value: Value) -> Result<Array<i64>, String> {
    match value {
        Value::I64(array) => Ok(array),
        other => Err(format!("reads floats {:?} as integers", other.shape())),
    }
}

/// The one number of a scalar input.
fn only<T: Copy>(array: &Array<T>, what: &str) -> Result<T, String> {
    match array.data() {
        [value] => Ok(*value),
        _ => Err(format!("its {what} has shape {:?}, not one number", array.shape())),
    }
}

/// Integers of a list input: shapes, axes, pads.
fn list(value: Value) -> Result<Vec<i64>, String> {
    let array = integers(value)?;
    if array.rank() > 1 {
        return Err(format!("reads {:?} numbers as a list", array.shape()));
    }
    Ok(array.data().to_vec())
}

#[cfg(test)]
mod tests;
