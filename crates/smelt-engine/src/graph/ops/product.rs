//! Computes operators made of products: MatMul, Gemm.
//!
//! A stored weight that lies row after row is multiplied as it is, in its own type.

use super::super::array::{Array, Value, broadcast, broadcast_strides, element_count, strides_of};
use super::{Inputs, Machine};
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::product::{Panels, Product};

/// A value as the matrices of its last two dimensions.
pub(super) struct Operand<'a> {
    elements: Elements<'a>,
    /// Dimensions before the last two.
    batch: &'a [usize],
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a> Operand<'a> {
    pub(super) fn new(
        value: &'a Value,
        shape: &'a [usize],
        machine: &'a Machine<'_>,
    ) -> Result<Self, String> {
        let (elements, transposed) = match value {
            Value::F32(array) => (Elements::F32(array.data()), false),
            Value::Weight(weight) => (machine.elements(weight), weight.transposed),
            Value::I64(_) => return Err("multiplies integers".to_owned()),
        };
        let [batch @ .., rows, columns] = shape else {
            return Err(format!("multiplies a value of shape {shape:?}"));
        };
        Ok(Self { elements, batch, rows: *rows, columns: *columns, transposed })
    }

    /// The `index`-th matrix.
    pub(super) fn matrix(&self, index: usize) -> Matrix<'a> {
        let size = self.rows * self.columns;
        let elements = self.elements.part(index * size, size);
        if self.transposed {
            Matrix::new(elements, self.columns, self.rows).transposed()
        } else {
            Matrix::new(elements, self.rows, self.columns)
        }
    }
}

pub(super) fn mat_mul(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let (a, b) = (machine.readable(inputs.take(0)), machine.readable(inputs.take(1)));
    let (a_shape, b_shape) = (a.shape().to_vec(), b.shape().to_vec());
    let fail = || format!("cannot multiply {a_shape:?} by {b_shape:?}");
    if a_shape.is_empty() || b_shape.is_empty() {
        return Err(fail());
    }
    // A vector is a row on the left and a column on the right; its dimension of 1 leaves again.
    let a_matrix = if a_shape.len() == 1 { vec![1, a_shape[0]] } else { a_shape.clone() };
    let b_matrix = if b_shape.len() == 1 { vec![b_shape[0], 1] } else { b_shape.clone() };
    let (left, right) =
        (Operand::new(&a, &a_matrix, &machine)?, Operand::new(&b, &b_matrix, &machine)?);
    if left.columns != right.rows {
        return Err(fail());
    }
    let batch = broadcast(left.batch, right.batch).map_err(|_| fail())?;
    let mut shape = batch.clone();
    shape.extend((a_shape.len() > 1).then_some(left.rows));
    shape.extend((b_shape.len() > 1).then_some(right.columns));
    let mut out = vec![0.0; element_count(&shape)?];
    multiply(&left, &right, &batch, machine, &mut out);
    Ok(Value::F32(Array::new(shape, out)))
}

fn multiply(
    left: &Operand<'_>,
    right: &Operand<'_>,
    batch: &[usize],
    machine: Machine<'_>,
    out: &mut [f32],
) {
    let size = left.rows * right.columns;
    if size == 0 || out.is_empty() {
        return;
    }
    let count: usize = batch.iter().product();
    let one_right = right.batch.iter().all(|&dim| dim == 1);
    if count > 1 && one_right && !left.transposed && left.batch.iter().product::<usize>() == count {
        // One matrix for the whole batch: the rows of all lefts are one tall matrix.
        let tall = Matrix::new(left.elements, count * left.rows, left.columns);
        let product = Product::new(tall, right.matrix(0).transposed());
        return product.run(machine.isa, machine.threads, out);
    }
    let (left_steps, right_steps) =
        (broadcast_strides(left.batch, batch), broadcast_strides(right.batch, batch));
    let steps = strides_of(batch);
    let place = |index: usize, to: &[usize]| -> usize {
        let dims = steps.iter().zip(batch).zip(to);
        dims.map(|((step, dim), to)| index / step % dim * to).sum()
    };
    let product = |index: usize| {
        let a = left.matrix(place(index, &left_steps));
        Product::new(a, right.matrix(place(index, &right_steps)).transposed())
    };
    if count == 1 {
        return product(0).run(machine.isa, machine.threads, out);
    }
    machine.threads.for_work(count * size * left.columns).rows(out, size, |first, part| {
        let mut panels = Panels::default();
        for (index, out) in part.chunks_exact_mut(size).enumerate() {
            product(first + index).run_here(machine.isa, &mut panels, out);
        }
    });
}

pub(super) fn gemm(
    alpha: f32,
    beta: f32,
    [transpose_a, transpose_b]: [bool; 2],
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let (a, b) = (machine.readable(inputs.take(0)), machine.readable(inputs.take(1)));
    let c = inputs.optional(2).map(|c| machine.floats(c)).transpose()?;
    let (a_shape, b_shape) = (a.shape().to_vec(), b.shape().to_vec());
    if a_shape.len() != 2 || b_shape.len() != 2 {
        return Err(format!("multiplies {a_shape:?} by {b_shape:?}, not two matrices"));
    }
    let left = Operand::new(&a, &a_shape, &machine)?.matrix(0);
    let right = Operand::new(&b, &b_shape, &machine)?.matrix(0);
    let left = if transpose_a { left.transposed() } else { left };
    let right = if transpose_b { right } else { right.transposed() };
    if left.columns() != right.columns() {
        let (inner, other) = (left.columns(), right.columns());
        return Err(format!("multiplies rows of {inner} numbers by columns of {other}"));
    }
    let shape = vec![left.rows(), right.rows()];
    let mut out = vec![0.0; element_count(&shape)?];
    Product::new(left, right).run(machine.isa, machine.threads, &mut out);
    finish_gemm(alpha, beta, c, &shape, &mut out, machine)?;
    Ok(Value::F32(Array::new(shape, out)))
}

/// `out = alpha * out + beta * c`
fn finish_gemm(
    alpha: f32,
    beta: f32,
    c: Option<Array<f32>>,
    shape: &[usize],
    out: &mut [f32],
    machine: Machine<'_>,
) -> Result<(), String> {
    if alpha != 1.0 {
        out.iter_mut().for_each(|value| *value *= alpha);
    }
    let Some(c) = c else { return Ok(()) };
    if c.rank() > 2 || broadcast(c.shape(), shape)? != shape {
        return Err(format!("cannot add {:?} to {shape:?}", c.shape()));
    }
    let steps = broadcast_strides(c.shape(), shape);
    let columns = shape[1];
    let data = c.data();
    machine.threads.for_work(out.len()).rows(out, columns, |first, rows| {
        for (index, row) in rows.chunks_exact_mut(columns).enumerate() {
            let start = (first + index) * steps[0];
            for (column, value) in row.iter_mut().enumerate() {
                *value += beta * data[start + column * steps[1]];
            }
        }
    });
    Ok(())
}
