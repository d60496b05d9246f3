//! Computes operators that look at a whole row: softmax, layer normalisation, means.

use super::super::array::{
    Array, Value, axis_of, broadcast, broadcast_strides, element_count, strides_of,
};
use super::{Inputs, Machine, list};
use crate::kernels::norm;
use crate::kernels::softmax::softmax as softmax_row;

/// One number's cost in multiplications, roughly.
const NUMBER_WORK: usize = 8;

pub(super) fn softmax(axis: i64, value: Value, machine: Machine<'_>) -> Result<Value, String> {
    let mut array = machine.floats(value)?;
    let axis = axis_of(axis, array.rank())?;
    let shape = array.shape().to_vec();
    let len = shape[axis];
    if array.len() == 0 {
        return Ok(Value::F32(array));
    }
    let threads = machine.threads.for_work(array.len() * NUMBER_WORK);
    let inner: usize = shape[axis + 1..].iter().product();
    if inner == 1 {
        threads.rows(array.data_mut(), len, |_, rows| {
            rows.chunks_exact_mut(len).for_each(softmax_row);
        });
        return Ok(Value::F32(array));
    }
    // Along another axis: each block of `len * inner` numbers holds `inner` columns.
    threads.rows(array.data_mut(), len * inner, |_, blocks| {
        let mut column = vec![0.0; len];
        for block in blocks.chunks_exact_mut(len * inner) {
            for offset in 0..inner {
                for (index, value) in column.iter_mut().enumerate() {
                    *value = block[index * inner + offset];
                }
                softmax_row(&mut column);
                for (index, value) in column.iter().enumerate() {
                    block[index * inner + offset] = *value;
                }
            }
        }
    });
    Ok(Value::F32(array))
}

/// Gives the normalised value, the means and the inverse deviations.
pub(super) fn layer_normalization(
    axis: i64,
    eps: f32,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Vec<Value>, String> {
    let mut array = machine.floats(inputs.take(0))?;
    let axis = axis_of(axis, array.rank())?;
    let shape = array.shape().to_vec();
    let (outer, normal) = shape.split_at(axis);
    let scale = spread(machine.floats(inputs.take(1))?, normal)?;
    let bias = inputs.optional(2).map(|bias| machine.floats(bias)).transpose()?;
    let bias = bias.map(|bias| spread(bias, normal)).transpose()?;
    let len = element_count(normal)?;
    if len == 0 {
        return Err(format!("normalises {shape:?} over nothing"));
    }
    let bias = bias.as_deref();
    let threads = machine.threads.for_work(array.len() * NUMBER_WORK);
    let rows = array.len() / len;
    let (mut means, mut inverses) = (vec![0.0; rows], vec![0.0; rows]);
    // The moments are cheap next to the rest, and most graphs do not even ask for them.
    for (row, values) in array.data().chunks_exact(len).enumerate() {
        (means[row], inverses[row]) = norm::moments(values, eps);
    }
    threads.rows(array.data_mut(), len, |_, rows| {
        for row in rows.chunks_exact_mut(len) {
            norm::layer_norm(row, &scale, bias, eps);
        }
    });
    let moments: Vec<usize> = outer.iter().copied().chain(normal.iter().map(|_| 1)).collect();
    Ok(vec![
        Value::F32(array),
        Value::F32(Array::new(moments.clone(), means)),
        Value::F32(Array::new(moments, inverses)),
    ])
}

/// The numbers of `array`, repeated to fill `shape`.
fn spread(array: Array<f32>, shape: &[usize]) -> Result<Vec<f32>, String> {
    if broadcast(array.shape(), shape)? != shape {
        return Err(format!("its scale or bias {:?} does not fit {shape:?}", array.shape()));
    }
    if array.shape() == shape {
        return Ok(array.data().to_vec());
    }
    let from = broadcast_strides(array.shape(), shape);
    let steps = strides_of(shape);
    let place = |index: usize| -> usize {
        let dims = steps.iter().zip(shape).zip(&from);
        dims.map(|((step, dim), from)| index / step % dim * from).sum()
    };
    Ok((0..element_count(shape)?).map(|index| array.data()[place(index)]).collect())
}

pub(super) fn mean(
    axes: Option<&[i64]>,
    keep_dims: bool,
    none_is_nothing: bool,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let array = machine.floats(inputs.take(0))?;
    let given = match inputs.optional(1) {
        Some(axes) => Some(list(axes)?),
        None => axes.map(<[i64]>::to_vec),
    };
    let given = given.unwrap_or_default();
    if given.is_empty() && none_is_nothing {
        return Ok(Value::F32(array));
    }
    let rank = array.rank();
    let mut reduced = vec![given.is_empty(); rank];
    for axis in given {
        reduced[axis_of(axis, rank)?] = true;
    }
    let shape = array.shape();
    let kept_shape: Vec<usize> =
        (0..rank).map(|axis| if reduced[axis] { 1 } else { shape[axis] }).collect();
    let count = array.len() / element_count(&kept_shape)?.max(1);
    let mut sums = vec![0f64; element_count(&kept_shape)?];
    let (to, steps) = (broadcast_strides(&kept_shape, shape), strides_of(shape));
    for (index, &value) in array.data().iter().enumerate() {
        let dims = steps.iter().zip(shape).zip(&to);
        let place: usize = dims.map(|((step, dim), to)| index / step % dim * to).sum();
        sums[place] += f64::from(value);
    }
    let means = sums.into_iter().map(|sum| (sum / count as f64) as f32).collect();
    let dims = (0..rank).filter(|&axis| keep_dims || !reduced[axis]).map(|axis| kept_shape[axis]);
    Ok(Value::F32(Array::new(dims.collect(), means)))
}
