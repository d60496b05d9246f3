//! Turns what callers give to a graph and get from it into values and back.
//!
//! Inside, values share their numbers and may lie in the file; outside, they are owned.

use smelt_backend::Tensor;

use super::array::{Array, Value};
use super::ops::Machine;
use super::shapes::Fact;

/// What is known of a value before its numbers are.
pub(super) fn fact(tensor: &Tensor) -> Fact {
    Fact { integer: matches!(tensor, Tensor::I64 { .. }), shape: tensor.shape().to_vec() }
}

pub(super) fn into_value(tensor: Tensor) -> Value {
    match tensor {
        Tensor::F32 { shape, data } => Value::F32(Array::new(shape, data)),
        Tensor::I64 { shape, data } => Value::I64(Array::new(shape, data)),
    }
}

pub(super) fn from_value(value: Value, machine: Machine<'_>) -> Tensor {
    match value {
        Value::I64(array) => {
            let (shape, data) = array.into_parts();
            Tensor::I64 { shape, data }
        }
        Value::F32(array) => {
            let (shape, data) = array.into_parts();
            Tensor::F32 { shape, data }
        }
        Value::Weight(weight) => {
            let (shape, data) = machine.widen(&weight).into_parts();
            Tensor::F32 { shape, data }
        }
    }
}
