//! Computes operators that look at a whole row: softmax, layer normalisation, sums, the largest.

use super::super::array::{
    Array, Value, axis_of, broadcast, broadcast_strides, element_count, strides_of,
};
use super::super::op::Reduce;
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

/// Takes the numbers along the given axes together; sums are f64.
pub(super) fn reduce(
    kind: Reduce,
    axes: Option<&[i64]>,
    keep_dims: bool,
    none_is_nothing: bool,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let value = inputs.take(0);
    let given = match inputs.optional(1) {
        Some(axes) => Some(list(axes)?),
        None => axes.map(<[i64]>::to_vec),
    };
    let given = given.unwrap_or_default();
    if given.is_empty() && none_is_nothing {
        return Ok(value);
    }
    let from = value.shape().to_vec();
    let reduction = Reduction::new(&from, &given)?;
    let shape = reduction.shape(keep_dims);
    if let Value::I64(array) = &value {
        let data = reduction.integers(kind, array)?;
        return Ok(Value::I64(Array::new(shape, data)));
    }
    let data = reduction.floats(kind, &machine.floats(value)?)?;
    Ok(Value::F32(Array::new(shape, data)))
}

/// Which result each number of an array goes to.
pub(in super::super) struct Reduction<'a> {
    from: &'a [usize],
    reduced: Vec<bool>,
    /// The result's shape with dimensions of 1.
    kept: Vec<usize>,
}

impl<'a> Reduction<'a> {
    /// Along `axes`, or along all where there are none.
    pub(in super::super) fn new(from: &'a [usize], axes: &[i64]) -> Result<Self, String> {
        let mut reduced = vec![axes.is_empty(); from.len()];
        for axis in axes {
            reduced[axis_of(*axis, from.len())?] = true;
        }
        let dims = from.iter().zip(&reduced);
        let kept = dims.map(|(&dim, &gone)| if gone { 1 } else { dim }).collect();
        Ok(Self { from, reduced, kept })
    }

    pub(in super::super) fn shape(&self, keep_dims: bool) -> Vec<usize> {
        let dims = self.kept.iter().zip(&self.reduced);
        dims.filter(|(_, gone)| keep_dims || !**gone).map(|(&dim, _)| dim).collect()
    }

    /// Visits every number with the place of its result, in order.
    fn each<T: Copy>(&self, array: &Array<T>, mut visit: impl FnMut(usize, T)) {
        let (to, steps) = (broadcast_strides(&self.kept, self.from), strides_of(self.from));
        for (index, &value) in array.data().iter().enumerate() {
            let dims = steps.iter().zip(self.from).zip(&to);
            visit(dims.map(|((step, dim), to)| index / step % dim * to).sum(), value);
        }
    }

    fn floats(&self, kind: Reduce, array: &Array<f32>) -> Result<Vec<f32>, String> {
        let results = element_count(&self.kept)?;
        let count = (array.len() / results.max(1)) as f64;
        let start = match kind {
            Reduce::Mean | Reduce::Sum => 0.0,
            Reduce::Max => f64::NEG_INFINITY,
            Reduce::Min => f64::INFINITY,
        };
        let mut out = vec![start; results];
        self.each(array, |place, value| {
            let value = f64::from(value);
            out[place] = match kind {
                Reduce::Mean | Reduce::Sum => out[place] + value,
                Reduce::Max => out[place].max(value),
                Reduce::Min => out[place].min(value),
            };
        });
        let scale = if kind == Reduce::Mean { count } else { 1.0 };
        Ok(out.into_iter().map(|value| (value / scale) as f32).collect())
    }

    fn integers(&self, kind: Reduce, array: &Array<i64>) -> Result<Vec<i64>, String> {
        let mut out: Vec<Option<i64>> = vec![None; element_count(&self.kept)?];
        self.each(array, |place, value| {
            out[place] = Some(match (kind, out[place]) {
                (_, None) => value,
                (Reduce::Max, Some(so_far)) => so_far.max(value),
                (Reduce::Min, Some(so_far)) => so_far.min(value),
                (Reduce::Sum | Reduce::Mean, Some(so_far)) => so_far.wrapping_add(value),
            });
        });
        match kind {
            Reduce::Mean => Err("takes the mean of integers; cast them to floats".to_owned()),
            _ => Ok(out.into_iter().map(Option::unwrap_or_default).collect()),
        }
    }
}

/// The place of the largest number along `axis`, the first of equals unless the `last` is asked.
pub(super) fn arg_max(
    axis: i64,
    keep_dims: bool,
    last: bool,
    value: Value,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let axis = axis_of(axis, value.shape().len())?;
    let mut shape = value.shape().to_vec();
    let (len, inner) = (shape[axis], shape[axis + 1..].iter().product());
    if len == 0 {
        return Err(format!("looks for the largest of nothing in {shape:?}"));
    }
    let places = match value {
        Value::I64(array) => largest(array.data(), len, inner, last),
        value => largest(machine.floats(value)?.data(), len, inner, last),
    };
    if keep_dims {
        shape[axis] = 1;
    } else {
        shape.remove(axis);
    }
    Ok(Value::I64(Array::new(shape, places)))
}

fn largest<T: PartialOrd + Copy>(data: &[T], len: usize, inner: usize, last: bool) -> Vec<i64> {
    let mut places = Vec::with_capacity(data.len() / len);
    for block in data.chunks_exact((len * inner).max(1)) {
        for column in 0..inner {
            let mut best = 0;
            for index in 1..len {
                let (value, most) = (block[index * inner + column], block[best * inner + column]);
                if value > most || last && value == most {
                    best = index;
                }
            }
            places.push(best as i64);
        }
    }
    places
}
