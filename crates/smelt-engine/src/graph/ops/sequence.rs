//! Computes operators over places in a row: ranges, running sums, triangles.

use super::super::array::{Array, Value, axis_of, element_count};
use super::{Inputs, Machine, integers, only};

/// Numbers from a start by a step to before a limit.
pub(super) fn range(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let (start, limit, step) = (inputs.take(0), inputs.take(1), inputs.take(2));
    if let (Value::I64(start), Value::I64(limit), Value::I64(step)) = (&start, &limit, &step) {
        let (start, limit) = (only(start, "start")?, only(limit, "limit")?);
        let step = only(step, "step")?;
        let count = steps((limit as f64 - start as f64) / step as f64)?;
        let data = (0..count as i64).map(|index| start.wrapping_add(index.wrapping_mul(step)));
        return Ok(Value::I64(Array::new(vec![count], data.collect())));
    }
    let start = only(&machine.floats(start)?, "start")?;
    let limit = only(&machine.floats(limit)?, "limit")?;
    let step = only(&machine.floats(step)?, "step")?;
    let count = steps((f64::from(limit) - f64::from(start)) / f64::from(step))?;
    let data = (0..count).map(|index| start + index as f32 * step).collect();
    Ok(Value::F32(Array::new(vec![count], data)))
}

fn steps(count: f64) -> Result<usize, String> {
    if count.is_nan() || count.is_infinite() {
        return Err("its step is 0".to_owned());
    }
    element_count(&[count.ceil().max(0.0) as usize])
}

/// Sums of all numbers up to each place along an axis.
pub(super) fn running_sum(
    exclusive: bool,
    reverse: bool,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let (value, axis) = (inputs.take(0), only(&integers(inputs.take(1))?, "axis")?);
    let axis = axis_of(axis, value.shape().len())?;
    Ok(match value {
        Value::I64(array) => Value::I64(summed(array, axis, exclusive, reverse, i64::wrapping_add)),
        value => {
            let array = machine.floats(value)?;
            Value::F32(summed(array, axis, exclusive, reverse, |a, b| a + b))
        }
    })
}

fn summed<T: Copy + Default>(
    mut array: Array<T>,
    axis: usize,
    exclusive: bool,
    reverse: bool,
    add: impl Fn(T, T) -> T,
) -> Array<T> {
    let shape = array.shape().to_vec();
    let (len, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    for block in array.data_mut().chunks_exact_mut((len * inner).max(1)) {
        for column in 0..inner {
            let mut sum = T::default();
            for index in 0..len {
                let index = if reverse { len - 1 - index } else { index };
                let place = &mut block[index * inner + column];
                let next = add(sum, *place);
                *place = if exclusive { sum } else { next };
                sum = next;
            }
        }
    }
    array
}

/// Matrices with zeros on one side of the `k`-th diagonal.
pub(super) fn triangle(
    upper: bool,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let value = inputs.take(0);
    let diagonal = inputs.optional(1).map(integers).transpose()?;
    let diagonal = diagonal.map_or(Ok(0), |k| only(&k, "diagonal"))?;
    let &[.., rows, columns] = value.shape() else {
        return Err(format!("takes a triangle of {:?}, not of matrices", value.shape()));
    };
    let keeps = move |place: usize| {
        let (row, column) = (place / columns % rows, place % columns);
        let beyond = column as i64 - row as i64;
        if upper { beyond >= diagonal } else { beyond <= diagonal }
    };
    Ok(match value {
        Value::I64(array) => Value::I64(kept(array, keeps)),
        value => Value::F32(kept(machine.floats(value)?, keeps)),
    })
}

fn kept<T: Copy + Default>(mut array: Array<T>, keeps: impl Fn(usize) -> bool) -> Array<T> {
    for (place, value) in array.data_mut().iter_mut().enumerate() {
        if !keeps(place) {
            *value = T::default();
        }
    }
    array
}
