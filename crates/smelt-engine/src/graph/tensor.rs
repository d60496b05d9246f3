//! Holds what callers give to a graph and get from it: plain numbers under a shape.
//!
//! Inside, values share their numbers and may lie in the file; here they are owned.

use super::array::{Array, Value};
use super::ops::Machine;
use super::shapes::Fact;

/// Numbers in row-major order under a shape.
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

    /// Whether there are as many numbers as the shape holds.
    pub(super) fn is_full(&self) -> bool {
        let len = match self {
            Self::F32 { data, .. } => data.len(),
            Self::I64 { data, .. } => data.len(),
        };
        let count = self.shape().iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        count == Some(len)
    }

    /// What is known of the value before its numbers are.
    pub(super) fn fact(&self) -> Fact {
        Fact { integer: matches!(self, Self::I64 { .. }), shape: self.shape().to_vec() }
    }

    pub(super) fn into_value(self) -> Value {
        match self {
            Self::F32 { shape, data } => Value::F32(Array::new(shape, data)),
            Self::I64 { shape, data } => Value::I64(Array::new(shape, data)),
        }
    }

    pub(super) fn from_value(value: Value, machine: Machine<'_>) -> Self {
        match value {
            Value::I64(array) => {
                let (shape, data) = array.into_parts();
                Self::I64 { shape, data }
            }
            Value::F32(array) => {
                let (shape, data) = array.into_parts();
                Self::F32 { shape, data }
            }
            Value::Weight(weight) => {
                let (shape, data) = machine.widen(&weight).into_parts();
                Self::F32 { shape, data }
            }
        }
    }
}
