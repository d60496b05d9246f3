//! Works out the shapes of an operator's results from those of its inputs, before anything runs.
//!
//! What depends on numbers that are not known yet has no answer here, and neither has what cannot
//! be computed at all: running the operator says why.

use super::array::{Value, axis_of, broadcast_shape, countable};
use super::op::{CastTo, Op, Reduce};
use super::ops::layout::{
    Cut, Frame, flattened, reshaped, size, split_sizes, squeezed, unsqueezed,
};
use super::ops::reduce::Reduction;
use super::ops::resize::resized;
use super::ops::window::{convolved, pooled};

/// What is known of a value before it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) integer: bool,
    pub(crate) shape: Vec<usize>,
}

/// An input of an operator: its fact, and its numbers where they are known.
#[derive(Clone, Copy)]
pub(crate) struct InputFact<'a> {
    pub(crate) fact: &'a Fact,
    pub(crate) known: Option<&'a Value>,
}

impl InputFact<'_> {
    fn list(&self) -> Option<Vec<i64>> {
        list(self.known?)
    }
}

/// The integers of a known list.
pub(crate) fn list(value: &Value) -> Option<Vec<i64>> {
    let Value::I64(array) = value else { return None };
    (array.rank() <= 1).then(|| array.data().to_vec())
}

/// The floats of a known list that lies in memory.
fn floats(value: &Value) -> Option<&[f32]> {
    match value {
        Value::F32(array) => Some(array.data()),
        Value::I64(_) | Value::Weight(_) => None,
    }
}

/// The lists at `inputs[from..]`; the outer `None` where one of them is not known.
fn lists<const N: usize>(
    inputs: &[Option<InputFact<'_>>],
    from: usize,
) -> Option<[Option<Vec<i64>>; N]> {
    let mut found = [const { None }; N];
    for (index, found) in found.iter_mut().enumerate() {
        if let Some(given) = inputs.get(from + index).copied().flatten() {
            *found = Some(given.list()?);
        }
    }
    Some(found)
}

/// The facts of every result of `op`.
pub(crate) fn infer(op: &Op, inputs: &[Option<InputFact<'_>>]) -> Option<Vec<Fact>> {
    let first = inputs.first().copied().flatten();
    let shape = first.map(|given| given.fact.shape.as_slice());
    let integer = first.is_some_and(|given| given.fact.integer);
    let other = |index: usize| Some(inputs.get(index).copied()??.fact);
    // What is never held may be of any size that can be counted.
    let one = |integer, shape: Vec<usize>| {
        countable(&shape)?;
        Some(vec![Fact { integer, shape }])
    };
    match op {
        Op::Identity | Op::Unary(_) | Op::Softmax { .. } | Op::CumSum { .. } | Op::Trilu { .. } => {
            one(integer, shape?.to_vec())
        }
        Op::Not => one(true, shape?.to_vec()),
        Op::Cast { to } => {
            one(matches!(to, CastTo::I32 | CastTo::I64 | CastTo::Bool), shape?.to_vec())
        }
        Op::Binary(_) => {
            let b = other(1)?;
            one(integer && b.integer, broadcast_shape(shape?, &b.shape).ok()?)
        }
        Op::Compare(_) => one(true, broadcast_shape(shape?, &other(1)?.shape).ok()?),
        Op::Where => {
            let (a, b) = (other(1)?, other(2)?);
            let pair = broadcast_shape(&a.shape, &b.shape).ok()?;
            one(a.integer && b.integer, broadcast_shape(shape?, &pair).ok()?)
        }
        Op::MatMul => one(false, multiplied(shape?, &other(1)?.shape)?),
        Op::Gemm { transpose_a, transpose_b, .. } => {
            let (&[a, b], &[c, d]) = (shape?, other(1)?.shape.as_slice()) else { return None };
            let (rows, inner) = if *transpose_a { (b, a) } else { (a, b) };
            let (depth, columns) = if *transpose_b { (d, c) } else { (c, d) };
            (inner == depth).then(|| one(false, vec![rows, columns]))?
        }
        Op::Conv(conv) => one(false, convolved(conv, shape?, &other(1)?.shape).ok()?),
        Op::MaxPool(windows) => one(false, pooled(windows, shape?).ok()?),
        Op::Resize(resize) => {
            let scales = match inputs.get(2).copied().flatten() {
                None => None,
                Some(given) => Some(floats(given.known?)?).filter(|scales| !scales.is_empty()),
            };
            let [sizes] = lists(inputs, 3)?;
            let sizes = sizes.filter(|sizes: &Vec<i64>| !sizes.is_empty());
            one(false, resized(resize, shape?, scales, sizes.as_deref()).ok()?.0)
        }
        Op::LayerNormalization { axis, .. } => {
            let axis = axis_of(*axis, shape?.len()).ok()?;
            let moments = shape?.iter().enumerate().map(|(i, &dim)| if i < axis { dim } else { 1 });
            let moments = Fact { integer: false, shape: moments.collect() };
            let whole = Fact { integer: false, shape: shape?.to_vec() };
            Some(vec![whole, moments.clone(), moments])
        }
        Op::Reduce { axes, keep_dims, none_is_nothing, .. } => {
            let [given] = lists(inputs, 1)?;
            let axes = given.or_else(|| axes.clone()).unwrap_or_default();
            if axes.is_empty() && *none_is_nothing {
                return one(integer, shape?.to_vec());
            }
            one(integer, Reduction::new(shape?, &axes).ok()?.shape(*keep_dims))
        }
        Op::ArgMax { axis, keep_dims, .. } => {
            let axis = axis_of(*axis, shape?.len()).ok()?;
            one(true, Reduction::new(shape?, &[axis as i64]).ok()?.shape(*keep_dims))
        }
        _ => laid_out(op, inputs, shape?, integer),
    }
}

/// The facts of what operators give that move numbers or make them.
fn laid_out(
    op: &Op,
    inputs: &[Option<InputFact<'_>>],
    shape: &[usize],
    integer: bool,
) -> Option<Vec<Fact>> {
    let result = match op {
        Op::Reshape { allow_zero } => {
            let [wanted] = lists(inputs, 1)?;
            reshaped(shape, &wanted?, *allow_zero).ok()?
        }
        Op::Flatten { axis } => flattened(shape, *axis).ok()?,
        Op::Squeeze => {
            let [axes] = lists(inputs, 1)?;
            squeezed(shape, axes.as_deref()).ok()?
        }
        Op::Unsqueeze => {
            let [axes] = lists(inputs, 1)?;
            unsqueezed(shape, &axes?).ok()?
        }
        Op::Transpose { order } => {
            let order = transposition(order.as_deref(), shape.len())?;
            order.into_iter().map(|axis| shape[axis]).collect()
        }
        Op::Slice => slice_of(shape, inputs)?.shape,
        Op::Pad => frame_of(shape, inputs)?.shape,
        Op::Expand => {
            let [wanted] = lists(inputs, 1)?;
            let wanted = wanted?.into_iter().map(size).collect::<Result<Vec<_>, _>>().ok()?;
            broadcast_shape(shape, &wanted).ok()?
        }
        Op::Gather { axis } => {
            let axis = axis_of(*axis, shape.len()).ok()?;
            let indices = &inputs.get(1).copied()??.fact.shape;
            [&shape[..axis], indices, &shape[axis + 1..]].concat()
        }
        Op::Split { axis, parts } => {
            let axis = axis_of(*axis, shape.len()).ok()?;
            let [sizes] = lists(inputs, 1)?;
            let part = |size: usize| {
                let mut shape = shape.to_vec();
                shape[axis] = size;
                Fact { integer, shape }
            };
            let sizes = split_sizes(shape[axis], *parts, sizes).ok()?;
            return Some(sizes.into_iter().map(part).collect());
        }
        Op::Concat { axis } => joined(inputs, shape, axis_of(*axis, shape.len()).ok()?)?,
        Op::Shape { start, end } => {
            let rank = shape.len() as i64;
            let held = |i: i64| (if i < 0 { i + rank } else { i }).clamp(0, rank);
            let (start, end) = (held(*start), held(end.unwrap_or(rank)));
            return Some(vec![Fact { integer: true, shape: vec![(end - start).max(0) as usize] }]);
        }
        // Their sizes are numbers; where those are known the step itself is computed ahead.
        _ => return None,
    };
    countable(&result)?;
    Some(vec![Fact { integer, shape: result }])
}

/// The shape of a MatMul.
fn multiplied(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let (&[.., inner], &[.., depth, columns]) = (a, b) else { return None };
    let (batch, rows) = match a {
        [batch @ .., rows, _] => (batch, Some(*rows)),
        _ => (&[][..], None),
    };
    if inner != depth {
        return None;
    }
    let mut shape = broadcast_shape(batch, &b[..b.len() - 2]).ok()?;
    shape.extend(rows);
    shape.push(columns);
    Some(shape)
}

fn joined(inputs: &[Option<InputFact<'_>>], first: &[usize], axis: usize) -> Option<Vec<usize>> {
    let mut shape = first.to_vec();
    shape[axis] = 0;
    for given in inputs {
        let part = &(*given)?.fact.shape;
        let fits = part.len() == shape.len()
            && (0..shape.len()).all(|other| other == axis || part[other] == shape[other]);
        if !fits {
            return None;
        }
        shape[axis] += part[axis];
    }
    Some(shape)
}

/// The order of dimensions that Transpose gives, if it is one.
pub(crate) fn transposition(order: Option<&[i64]>, rank: usize) -> Option<Vec<usize>> {
    let Some(order) = order else { return Some((0..rank).rev().collect()) };
    let order: Vec<usize> =
        order.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<_, _>>().ok()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rank).then_some(order)
}

/// What Slice cuts out, where its lists are known.
pub(crate) fn slice_of(shape: &[usize], inputs: &[Option<InputFact<'_>>]) -> Option<Cut> {
    let [starts, ends, axes, steps] = lists(inputs, 1)?;
    Cut::of(shape, &starts?, &ends?, axes, steps).ok()
}

/// How Pad frames its input, where its lists are known.
pub(crate) fn frame_of(shape: &[usize], inputs: &[Option<InputFact<'_>>]) -> Option<Frame> {
    let [pads] = lists(inputs, 1)?;
    let [axes] = lists(inputs, 3)?;
    Frame::of(shape, &pads?, axes).ok()
}

/// Whether `kind` of reduction is the mean over the last of `rank` dimensions alone, which stays.
pub(crate) fn is_row_mean(op: &Op, inputs: &[Option<InputFact<'_>>], rank: usize) -> bool {
    let Op::Reduce { kind: Reduce::Mean, axes, keep_dims: true, .. } = op else { return false };
    let Some([given]) = lists(inputs, 1) else { return false };
    let axes = given.or_else(|| axes.clone()).unwrap_or_default();
    matches!(axes[..], [axis] if axis_of(axis, rank) == Ok(rank.wrapping_sub(1)))
}
