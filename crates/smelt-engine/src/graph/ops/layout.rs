//! Computes operators that move numbers or rename their shape, and never change one.

use super::super::array::{
    Array, Value, Weight, axis_of, broadcast, broadcast_strides, element_count, strides_of,
};
use super::{Inputs, Machine, integers, list, only};

/// Applies `$function` to the array inside a value, floats and integers alike.
macro_rules! either {
    ($value:expr, $machine:expr, $array:ident => $result:expr) => {
        match $value {
            Value::I64($array) => Value::I64($result),
            other => {
                let $array = $machine.floats(other)?;
                Value::F32($result)
            }
        }
    };
}

/// The value under another shape of the same count; numbers stay where they are.
fn renamed(value: Value, shape: Vec<usize>) -> Value {
    match value {
        Value::F32(array) => Value::F32(array.reshaped(shape)),
        Value::I64(array) => Value::I64(array.reshaped(shape)),
        Value::Weight(weight) => Value::Weight(Weight { shape, ..weight }),
    }
}

pub(in super::super) fn size(value: i64) -> Result<usize, String> {
    usize::try_from(value).map_err(|_| format!("{value} is no size"))
}

pub(super) fn reshape(
    allow_zero: bool,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let (value, wanted) = (inputs.take(0), list(inputs.take(1))?);
    let shape = reshaped(value.shape(), &wanted, allow_zero)?;
    rename(value, shape, machine)
}

/// [`renamed`], after a transposed or striped weight was put in order.
fn rename(value: Value, shape: Vec<usize>, machine: Machine<'_>) -> Result<Value, String> {
    match value {
        Value::Weight(weight) if weight.transposed || !weight.is_by_rows() => {
            Ok(renamed(Value::F32(machine.widen(&weight)), shape))
        }
        value => Ok(renamed(value, shape)),
    }
}

/// The shape that Reshape gives: 0 copies a dimension unless it is allowed as itself, -1 is the
/// rest.
pub(in super::super) fn reshaped(
    from: &[usize],
    wanted: &[i64],
    allow_zero: bool,
) -> Result<Vec<usize>, String> {
    let fail = || format!("cannot give {from:?} the shape {wanted:?}");
    let total = element_count(from)?;
    let mut shape = Vec::with_capacity(wanted.len());
    for (axis, &dim) in wanted.iter().enumerate() {
        shape.push(match dim {
            0 if !allow_zero => *from.get(axis).ok_or_else(fail)?,
            -1 => 1,
            dim => size(dim).map_err(|_| fail())?,
        });
    }
    let mut open = wanted.iter().enumerate().filter(|(_, dim)| **dim == -1);
    if let Some((axis, _)) = open.next() {
        let known = element_count(&shape)?;
        if known == 0 || !total.is_multiple_of(known) || open.next().is_some() {
            return Err(fail());
        }
        shape[axis] = total / known;
    }
    if element_count(&shape)? == total { Ok(shape) } else { Err(fail()) }
}

pub(super) fn flatten(axis: i64, value: Value, machine: Machine<'_>) -> Result<Value, String> {
    let shape = flattened(value.shape(), axis)?;
    rename(value, shape, machine)
}

/// The shape that Flatten gives.
pub(in super::super) fn flattened(shape: &[usize], axis: i64) -> Result<Vec<usize>, String> {
    // The rank itself is allowed here: everything goes to the first dimension.
    let axis = if axis == shape.len() as i64 { shape.len() } else { axis_of(axis, shape.len())? };
    Ok(vec![shape[..axis].iter().product(), shape[axis..].iter().product()])
}

pub(super) fn squeeze(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let value = inputs.take(0);
    let axes = inputs.optional(1).map(list).transpose()?;
    let shape = squeezed(value.shape(), axes.as_deref())?;
    rename(value, shape, machine)
}

/// `shape` without the dimensions of 1 at `axes`, or without all of them.
pub(in super::super) fn squeezed(
    shape: &[usize],
    axes: Option<&[i64]>,
) -> Result<Vec<usize>, String> {
    let axes: Vec<usize> = match axes {
        Some(axes) => {
            axes.iter().map(|&axis| axis_of(axis, shape.len())).collect::<Result<_, _>>()?
        }
        None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
    };
    if let Some(axis) = axes.iter().find(|&&axis| shape[axis] != 1) {
        return Err(format!("cannot squeeze axis {axis} of {shape:?}"));
    }
    let kept = (0..shape.len()).filter(|axis| !axes.contains(axis));
    Ok(kept.map(|axis| shape[axis]).collect())
}

pub(super) fn unsqueeze(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let (value, axes) = (inputs.take(0), list(inputs.take(1))?);
    let shape = unsqueezed(value.shape(), &axes)?;
    rename(value, shape, machine)
}

/// `shape` with dimensions of 1 at `axes` of the result.
pub(in super::super) fn unsqueezed(shape: &[usize], axes: &[i64]) -> Result<Vec<usize>, String> {
    let rank = shape.len() + axes.len();
    let mut ones = vec![false; rank];
    for &axis in axes {
        if std::mem::replace(&mut ones[axis_of(axis, rank)?], true) {
            return Err(format!("axis {axis} is given twice"));
        }
    }
    let mut dims = shape.iter();
    let next = |one: bool| if one { Some(1) } else { dims.next().copied() };
    Ok(ones.into_iter().map(next).collect::<Option<_>>().expect("ranks were added up"))
}

pub(super) fn shape(start: i64, end: Option<i64>, value: &Value) -> Value {
    let shape = value.shape();
    let rank = shape.len() as i64;
    let held = |index: i64| (if index < 0 { index + rank } else { index }).clamp(0, rank) as usize;
    let (start, end) = (held(start), held(end.unwrap_or(rank)));
    let dims: Vec<i64> = shape[start..end.max(start)].iter().map(|&dim| dim as i64).collect();
    Value::I64(Array::new(vec![dims.len()], dims))
}

/// Numbers of `source` seen from `start` through `strides`, in row-major order of `shape`.
fn collect<T: Copy>(source: &[T], start: usize, shape: &[usize], strides: &[isize]) -> Vec<T> {
    let count: usize = shape.iter().product();
    let mut out = Vec::with_capacity(count);
    if count == 0 {
        return out;
    }
    let Some((&len, outer)) = shape.split_last() else { return vec![source[start]] };
    let step = strides[outer.len()];
    let mut index = vec![0; outer.len()];
    let mut at = start as isize;
    loop {
        if step == 1 {
            out.extend_from_slice(&source[at as usize..at as usize + len]);
        } else {
            out.extend((0..len as isize).map(|i| source[(at + i * step) as usize]));
        }
        // The next outer index, the last dimension fastest.
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return out;
            }
            axis -= 1;
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            at -= strides[axis] * outer[axis] as isize;
            index[axis] = 0;
        }
    }
}

fn signed(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|&stride| stride as isize).collect()
}

pub(super) fn transpose(
    order: Option<&[i64]>,
    value: Value,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let rank = value.shape().len();
    let order: Vec<usize> = match order {
        None => (0..rank).rev().collect(),
        Some(order) => order.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<_, _>>()?,
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(format!("perm {order:?} does not order {rank} dimensions"));
    }
    match value {
        Value::Weight(weight) if order == [1, 0] => Ok(Value::Weight(Weight {
            shape: vec![weight.shape[1], weight.shape[0]],
            transposed: !weight.transposed,
            ..weight
        })),
        value => Ok(either!(value, machine, array => permuted(&array, &order))),
    }
}

fn permuted<T: Copy>(array: &Array<T>, order: &[usize]) -> Array<T> {
    let strides = signed(&strides_of(array.shape()));
    let shape: Vec<usize> = order.iter().map(|&axis| array.shape()[axis]).collect();
    let strides: Vec<isize> = order.iter().map(|&axis| strides[axis]).collect();
    let data = collect(array.data(), 0, &shape, &strides);
    Array::new(shape, data)
}

pub(super) fn expand(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let (value, wanted) = (inputs.take(0), list(inputs.take(1))?);
    let wanted = wanted.into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let shape = broadcast(value.shape(), &wanted)?;
    if shape == value.shape() {
        return Ok(value);
    }
    Ok(either!(value, machine, array => {
        let strides = signed(&broadcast_strides(array.shape(), &shape));
        Array::new(shape.clone(), collect(array.data(), 0, &shape, &strides))
    }))
}

pub(super) fn slice(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let value = inputs.take(0);
    let (starts, ends) = (list(inputs.take(1))?, list(inputs.take(2))?);
    let axes = inputs.optional(3).map(list).transpose()?;
    let steps = inputs.optional(4).map(list).transpose()?;
    let cut = Cut::of(value.shape(), &starts, &ends, axes, steps)?;
    Ok(either!(value, machine, array => cut.apply(&array)))
}

/// A part of an array with a step along each axis.
pub(in super::super) struct Cut {
    from: Vec<usize>,
    pub(in super::super) first: Vec<usize>,
    pub(in super::super) shape: Vec<usize>,
    pub(in super::super) steps: Vec<isize>,
}

impl Cut {
    /// What Slice takes of an array of shape `from`.
    pub(in super::super) fn of(
        from: &[usize],
        starts: &[i64],
        ends: &[i64],
        axes: Option<Vec<i64>>,
        steps: Option<Vec<i64>>,
    ) -> Result<Self, String> {
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err("starts, ends, axes and steps differ in length".to_owned());
        }
        let mut cut = Self::whole(from);
        for (index, &axis) in axes.iter().enumerate() {
            cut.narrow(axis_of(axis, from.len())?, starts[index], ends[index], steps[index])?;
        }
        Ok(cut)
    }

    fn whole(shape: &[usize]) -> Self {
        let rank = shape.len();
        let (from, shape) = (shape.to_vec(), shape.to_vec());
        Self { from, first: vec![0; rank], shape, steps: vec![1; rank] }
    }

    /// Takes `start..end` by `step` of `axis`, numbers outside held to the axis as numpy does.
    fn narrow(&mut self, axis: usize, start: i64, end: i64, step: i64) -> Result<(), String> {
        if step == 0 {
            return Err("a slice has step 0".to_owned());
        }
        let len = self.from[axis] as i64;
        let from_front = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let start = from_front(start).clamp(low.max(0), high.max(0));
        let end = from_front(end).clamp(low, high);
        let distance = if step > 0 { end - start } else { start - end };
        let count = if len == 0 { 0 } else { distance.max(0) as u64 };
        let count = count.div_ceil(step.unsigned_abs());
        self.first[axis] = if count == 0 { 0 } else { start as usize };
        self.shape[axis] = count as usize;
        // With one number the step is never taken, and may be any size.
        self.steps[axis] = if count <= 1 { 1 } else { step as isize };
        Ok(())
    }

    fn apply<T: Copy>(&self, array: &Array<T>) -> Array<T> {
        let strides = strides_of(&self.from);
        let start = self.first.iter().zip(&strides).map(|(first, stride)| first * stride).sum();
        let strides: Vec<isize> =
            strides.iter().zip(&self.steps).map(|(&stride, step)| stride as isize * step).collect();
        Array::new(self.shape.clone(), collect(array.data(), start, &self.shape, &strides))
    }
}

pub(super) fn split(
    axis: i64,
    parts: usize,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Vec<Value>, String> {
    let value = inputs.take(0);
    let axis = axis_of(axis, value.shape().len())?;
    let sizes = inputs.optional(1).map(list).transpose()?;
    let sizes = split_sizes(value.shape()[axis], parts, sizes)?;
    let mut start = 0;
    let mut values = Vec::with_capacity(parts);
    for size in sizes {
        let mut cut = Cut::whole(value.shape());
        (cut.first[axis], cut.shape[axis]) = (start, size);
        start += size;
        values.push(either!(value.clone(), machine, array => cut.apply(&array)));
    }
    Ok(values)
}

/// How long each of `parts` parts of `len` entries is.
pub(in super::super) fn split_sizes(
    len: usize,
    parts: usize,
    sizes: Option<Vec<i64>>,
) -> Result<Vec<usize>, String> {
    let sizes: Vec<usize> = match sizes {
        Some(sizes) => sizes.into_iter().map(size).collect::<Result<_, _>>()?,
        None => {
            // Equal parts, the last one smaller where it does not come out even.
            let each = len.div_ceil(parts);
            (0..parts).map(|part| each.min(len.saturating_sub(part * each))).collect()
        }
    };
    let total = sizes.iter().try_fold(0usize, |total, &size| total.checked_add(size));
    if sizes.len() != parts || total != Some(len) {
        return Err(format!("sizes {sizes:?} do not split {len} into {parts}"));
    }
    Ok(sizes)
}

pub(super) fn concat(
    axis: i64,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let values: Vec<Value> = inputs.0.iter_mut().filter_map(Option::take).collect();
    let Some(first) = values.first() else { return Err("joins nothing".to_owned()) };
    let axis = axis_of(axis, first.shape().len())?;
    let other_dims = |value: &Value| {
        let mut shape = value.shape().to_vec();
        if let Some(dim) = shape.get_mut(axis) {
            *dim = 0;
        }
        shape
    };
    if let Some(odd) = values.iter().find(|value| other_dims(value) != other_dims(first)) {
        return Err(format!("cannot join {:?} and {:?}", first.shape(), odd.shape()));
    }
    if matches!(first, Value::I64(_)) {
        let arrays = values.into_iter().map(integers).collect::<Result<Vec<_>, _>>()?;
        return joined(axis, &arrays).map(Value::I64);
    }
    let arrays = values.into_iter().map(|v| machine.floats(v)).collect::<Result<Vec<_>, _>>()?;
    joined(axis, &arrays).map(Value::F32)
}

fn joined<T: Copy>(axis: usize, arrays: &[Array<T>]) -> Result<Array<T>, String> {
    let mut shape = arrays[0].shape().to_vec();
    shape[axis] = arrays.iter().map(|array| array.shape()[axis]).sum();
    let mut out = Vec::with_capacity(element_count(&shape)?);
    let outer: usize = shape[..axis].iter().product();
    for index in 0..outer {
        for array in arrays {
            let block = array.len() / outer;
            out.extend_from_slice(&array.data()[index * block..(index + 1) * block]);
        }
    }
    Ok(Array::new(shape, out))
}

pub(super) fn gather(
    axis: i64,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let (value, indices) = (inputs.take(0), integers(inputs.take(1))?);
    let axis = axis_of(axis, value.shape().len())?;
    let len = value.shape()[axis];
    let mut picked = Vec::with_capacity(indices.len());
    for &index in indices.data() {
        let place = axis_of(index, len).map_err(|_| format!("index {index} is outside {len}"))?;
        picked.push(place);
    }
    let from = value.shape();
    let shape: Vec<usize> = [&from[..axis], indices.shape(), &from[axis + 1..]].concat();
    element_count(&shape)?;
    if let (Value::Weight(weight), 0) = (&value, axis)
        && !weight.transposed
        && weight.is_by_rows()
    {
        return Ok(Value::F32(Array::new(shape, machine.rows(weight, &picked))));
    }
    Ok(either!(value, machine, array => {
        let outer: usize = array.shape()[..axis].iter().product();
        let inner: usize = array.shape()[axis + 1..].iter().product();
        let mut out = Vec::with_capacity(outer * picked.len() * inner);
        for block in 0..outer {
            for &place in &picked {
                let start = (block * len + place) * inner;
                out.extend_from_slice(&array.data()[start..start + inner]);
            }
        }
        Array::new(shape.clone(), out)
    }))
}

pub(super) fn constant_of_shape(
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let shape = list(inputs.take(0))?.into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let count = element_count(&shape)?;
    let value = inputs.optional(1).unwrap_or(Value::F32(Array::scalar(0.0)));
    if value.len() != 1 {
        return Err(format!("its value has shape {:?}, not one number", value.shape()));
    }
    Ok(either!(value, machine, array => Array::new(shape, vec![array.data()[0]; count])))
}

pub(super) fn pad(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let (value, pads) = (inputs.take(0), list(inputs.take(1))?);
    let (fill, axes) = (inputs.optional(2), inputs.optional(3).map(list).transpose()?);
    let frame = Frame::of(value.shape(), &pads, axes)?;
    Ok(match value {
        Value::I64(array) => {
            let fill = fill.map(integers).transpose()?.unwrap_or(Array::scalar(0));
            Value::I64(frame.apply(&array, only(&fill, "fill")?))
        }
        value => {
            let array = machine.floats(value)?;
            let fill = fill.map(|fill| machine.floats(fill)).transpose()?;
            let fill = fill.unwrap_or(Array::scalar(0.0));
            Value::F32(frame.apply(&array, only(&fill, "fill")?))
        }
    })
}

/// Where a padded (or, with negative pads, cropped) array lies in its result.
pub(in super::super) struct Frame {
    pub(in super::super) shape: Vec<usize>,
    /// First index of the result that the array fills, along each axis.
    pub(in super::super) to: Vec<usize>,
    pub(in super::super) cut: Cut,
}

impl Frame {
    /// What Pad makes of an array of shape `from`.
    pub(in super::super) fn of(
        from: &[usize],
        pads: &[i64],
        axes: Option<Vec<i64>>,
    ) -> Result<Self, String> {
        let rank = from.len();
        let axes: Vec<usize> = match axes {
            Some(axes) => {
                axes.into_iter().map(|axis| axis_of(axis, rank)).collect::<Result<_, _>>()?
            }
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(format!("{} pads do not fit {} axes", pads.len(), axes.len()));
        }
        let mut frame = Self::whole(from);
        for (index, &axis) in axes.iter().enumerate() {
            frame.widen(axis, pads[index], pads[axes.len() + index])?;
        }
        element_count(&frame.shape)?;
        Ok(frame)
    }

    fn whole(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), to: vec![0; shape.len()], cut: Cut::whole(shape) }
    }

    fn widen(&mut self, axis: usize, before: i64, after: i64) -> Result<(), String> {
        let len = self.cut.from[axis] as i64;
        let total = len.checked_add(before).and_then(|len| len.checked_add(after));
        let total = total.filter(|&total| total >= 0);
        let total = total.ok_or_else(|| format!("pads {before}, {after} do not fit {len}"))?;
        let (start, end) = ((-before).clamp(0, len), (len + after.min(0)).clamp(0, len));
        self.shape[axis] = size(total)?;
        self.to[axis] = before.max(0) as usize;
        self.cut.first[axis] = start as usize;
        self.cut.shape[axis] = (end - start).max(0) as usize;
        Ok(())
    }

    fn apply<T: Copy>(&self, array: &Array<T>, fill: T) -> Array<T> {
        let inside = self.cut.apply(array);
        let mut out = vec![fill; self.shape.iter().product()];
        let strides = strides_of(&self.shape);
        let len = inside.shape().last().copied().unwrap_or(1);
        let outer = &inside.shape()[..inside.rank().saturating_sub(1)];
        for (row, line) in inside.data().chunks_exact(len.max(1)).enumerate() {
            let mut at =
                self.to.iter().zip(&strides).map(|(to, stride)| to * stride).sum::<usize>();
            let mut rest = row;
            for (axis, &dim) in outer.iter().enumerate().rev() {
                at += rest % dim * strides[axis];
                rest /= dim;
            }
            out[at..at + len].copy_from_slice(line);
        }
        Array::new(self.shape.clone(), out)
    }
}
