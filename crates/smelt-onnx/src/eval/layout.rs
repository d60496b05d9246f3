//! Computes operators that move elements without changing them, and shapes.

use super::{Call, Tensor, Why, axis_of, broadcast, broadcast_source, one, strides, unravel};
use crate::ElementType;
use crate::model::{AttributeValue, Data};

impl Call<'_> {
    /// A tensor of shape `dims` whose element at an index is `source(index)` of the input.
    pub(super) fn moved(
        &self,
        dims: Vec<usize>,
        mut source: impl FnMut(&[usize]) -> Option<usize>,
    ) -> Result<Tensor, Why> {
        let elements = self.fits(&dims)?;
        let mut index = vec![0; dims.len()];
        let mut picks = Vec::with_capacity(elements);
        for flat in 0..elements {
            unravel(flat, &dims, &mut index);
            picks.push(source(&index));
        }
        let fill = if self.node.op == "Pad" { self.optional(2) } else { None };
        Ok(self.input(0)?.pick(dims, fill, picks.into_iter()))
    }

    pub(super) fn reshape(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let copies_zero = !self.flag("allowzero", false);
        let mut dims = Vec::new();
        let mut open = None;
        for (at, wanted) in self.ints(1)?.iter().enumerate() {
            dims.push(match wanted {
                -1 if open.replace(at).is_some() => return Err("it leaves two sizes open".into()),
                -1 => 1,
                0 if copies_zero => {
                    *input.dims().get(at).ok_or("it copies a size that is not there")?
                }
                size => usize::try_from(*size).map_err(|_| format!("size {size}"))?,
            });
        }
        let wrong = || format!("{:?} does not reshape to {:?}", input.dims(), self.ints(1));
        let known = self.fits(&dims)?;
        if let Some(open) = open {
            dims[open] = input.elements().checked_div(known).ok_or_else(wrong)?;
        }
        if self.fits(&dims)? != input.elements() {
            return Err(wrong());
        }
        Ok(input.shaped(dims))
    }

    pub(super) fn transpose(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        let order: Vec<usize> = match self.node.ints("perm") {
            None => (0..rank).rev().collect(),
            Some(order) => order.iter().map(|at| axis_of(*at, rank)).collect::<Result<_, _>>()?,
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            return Err(format!("{order:?} is no permutation of {rank} axes"));
        }
        let step = strides(input.dims());
        let dims = order.iter().map(|at| input.dims()[*at]).collect();
        self.moved(dims, |index| Some(order.iter().zip(index).map(|(at, i)| step[*at] * i).sum()))
    }

    pub(super) fn pad(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        let source: fn(i64, i64) -> Option<i64> = match self.text("mode", "constant") {
            "constant" => |at, size| (0..size).contains(&at).then_some(at),
            "edge" => |at, size| Some(at.clamp(0, size - 1)),
            "wrap" => |at, size| at.checked_rem_euclid(size),
            "reflect" => reflect,
            other => return Err(format!("mode {other:?} is not known here")),
        };
        let pads = self.pads(rank)?;
        let size = |at: usize| {
            let size = (input.dims()[at] as i64).saturating_add(pads[at].0);
            let size = size.saturating_add(pads[at].1);
            usize::try_from(size).map_err(|_| format!("axis {at} would have {size}"))
        };
        let dims = (0..rank).map(size).collect::<Result<_, _>>()?;
        let step = strides(input.dims());
        self.moved(dims, |index| {
            let place = |at: usize| {
                let place = (index[at] as i64).checked_sub(pads[at].0)?;
                let place = source(place, input.dims()[at] as i64)?;
                usize::try_from(place).ok().map(|place| place * step[at])
            };
            (0..rank).map(place).sum()
        })
    }

    /// Entries before and after every axis.
    fn pads(&self, rank: usize) -> Result<Vec<(i64, i64)>, Why> {
        let pads = self.ints(1)?;
        let axes: Vec<usize> = match self.optional(3) {
            None => (0..rank).collect(),
            Some(_) => {
                self.ints(3)?.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_, _>>()?
            }
        };
        if pads.len() != 2 * axes.len() {
            return Err(format!("{} pads do not fit {} axes", pads.len(), axes.len()));
        }
        let mut all = vec![(0, 0); rank];
        for (at, axis) in axes.iter().enumerate() {
            all[*axis] = (pads[at], pads[axes.len() + at]);
        }
        Ok(all)
    }

    pub(super) fn slice(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        let (starts, ends) = (self.ints(1)?, self.ints(2)?);
        let axes = match self.optional(3) {
            Some(_) => self.ints(3)?.to_vec(),
            None => (0..starts.len() as i64).collect(),
        };
        let hops = match self.optional(4) {
            Some(_) => self.ints(4)?.to_vec(),
            None => vec![1; starts.len()],
        };
        if [ends.len(), axes.len(), hops.len()].iter().any(|length| *length != starts.len()) {
            return Err("starts, ends, axes and steps differ in length".to_owned());
        }
        let mut cut: Vec<(i64, i64)> = vec![(0, 1); rank];
        let mut dims = input.dims().to_vec();
        for (at, axis) in axes.iter().enumerate() {
            let axis = axis_of(*axis, rank)?;
            let size = input.dims()[axis] as i64;
            let (count, begin) = slice_range(starts[at], ends[at], hops[at], size)?;
            cut[axis] = (begin, hops[at]);
            dims[axis] = count;
        }
        let step = strides(input.dims());
        self.moved(dims, |index| {
            let place = |at: usize| (cut[at].0 + index[at] as i64 * cut[at].1) as usize * step[at];
            Some((0..rank).map(place).sum())
        })
    }

    pub(super) fn split(&self) -> Result<Vec<Tensor>, Why> {
        let input = self.input(0)?;
        let axis = axis_of(self.node.int("axis").unwrap_or(0), input.dims().len())?;
        let (whole, parts) = (input.dims()[axis], self.node.outputs.len());
        let sizes: Vec<usize> = match self.list(1, "split")? {
            Some(sizes) => sizes.iter().map(|size| (*size).max(0) as usize).collect(),
            None => {
                let even = whole.div_ceil(parts.max(1));
                (0..parts).map(|at| whole.saturating_sub(at * even).min(even)).collect()
            }
        };
        if sizes.len() != parts
            || sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)) != whole
        {
            return Err(format!("sizes {sizes:?} do not cut {whole} into {parts}"));
        }
        let step = strides(input.dims());
        let mut begin = 0;
        let mut tensors = Vec::new();
        for size in sizes {
            let mut dims = input.dims().to_vec();
            dims[axis] = size;
            let place =
                |index: &[usize]| -> usize { index.iter().zip(&step).map(|(i, s)| i * s).sum() };
            tensors.push(self.moved(dims, |index| Some(place(index) + begin * step[axis]))?);
            begin += size;
        }
        Ok(tensors)
    }

    pub(super) fn concat(&self) -> Result<Tensor, Why> {
        let parts: Vec<&Tensor> =
            (0..self.inputs.len()).map(|at| self.input(at)).collect::<Result<_, _>>()?;
        let first = self.input(0)?.dims();
        let axis = axis_of(self.node.int("axis").ok_or("it has no axis")?, first.len())?;
        let all = Tensor::chain(&parts).ok_or("its inputs differ in type")?;
        let mut dims = first.to_vec();
        dims[axis] = 0;
        let mut begins = Vec::new();
        let mut offset = 0;
        for part in &parts {
            let rest = |dims: &[usize]| [&dims[..axis], &dims[axis + 1..]].concat();
            if part.dims().len() != first.len() || rest(part.dims()) != rest(first) {
                return Err(format!("{:?} does not join {first:?}", part.dims()));
            }
            begins.push((dims[axis], offset, strides(part.dims())));
            dims[axis] += part.dims()[axis];
            offset += part.elements();
        }
        let elements = self.fits(&dims)?;
        let mut index = vec![0; dims.len()];
        let picks: Vec<_> = (0..elements)
            .map(|flat| {
                unravel(flat, &dims, &mut index);
                let at = (0..parts.len())
                    .rfind(|at| begins[*at].0 <= index[axis] && parts[*at].dims()[axis] > 0)?;
                let (begin, offset, step) = &begins[at];
                index[axis] -= begin;
                Some(offset + index.iter().zip(step).map(|(i, s)| i * s).sum::<usize>())
            })
            .collect();
        Ok(all.pick(dims, None, picks.into_iter()))
    }

    pub(super) fn squeeze(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        let axes: Vec<usize> = match self.list(1, "axes")? {
            None => (0..rank).filter(|at| input.dims()[*at] == 1).collect(),
            Some(axes) => axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_, _>>()?,
        };
        if let Some(axis) = axes.iter().find(|axis| input.dims()[**axis] != 1) {
            return Err(format!("axis {axis} is not of size 1"));
        }
        let dims = (0..rank).filter(|at| !axes.contains(at)).map(|at| input.dims()[at]).collect();
        Ok(input.shaped(dims))
    }

    pub(super) fn unsqueeze(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let axes = self.list(1, "axes")?.ok_or("it has no axes")?;
        let rank = input.dims().len() + axes.len();
        let axes: Vec<usize> =
            axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_, _>>()?;
        let mut old = input.dims().iter();
        let dims: Option<Vec<usize>> = (0..rank)
            .map(|at| if axes.contains(&at) { Some(1) } else { old.next().copied() })
            .collect();
        let dims = dims.filter(|_| old.next().is_none()).ok_or("it names an axis twice")?;
        Ok(input.shaped(dims))
    }

    pub(super) fn flatten(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        let axis = self.node.int("axis").unwrap_or(1);
        let at = if axis == rank as i64 { rank } else { axis_of(axis, rank)? };
        let (before, after) = input.dims().split_at(at);
        Ok(input.shaped(vec![before.iter().product(), after.iter().product()]))
    }

    pub(super) fn expand(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let wanted = self.sizes(1)?;
        let dims = broadcast(input.dims(), &wanted)?;
        let step = strides(input.dims());
        self.moved(dims, |index| Some(broadcast_source(input.dims(), &step, index)))
    }

    pub(super) fn gather(&self) -> Result<Tensor, Why> {
        let (input, at) = (self.input(0)?, self.input(1)?);
        let axis = axis_of(self.node.int("axis").unwrap_or(0), input.dims().len())?;
        let size = input.dims()[axis];
        let wanted = self.ints(1)?;
        let rows: Vec<usize> = wanted
            .iter()
            .map(|row| axis_of(*row, size).map_err(|_| format!("index {row} is outside {size}")))
            .collect::<Result<_, _>>()?;
        let (before, after) = (&input.dims()[..axis], &input.dims()[axis + 1..]);
        let dims = [before, at.dims(), after].concat();
        let (step, row_step, rank) = (strides(input.dims()), strides(at.dims()), at.dims().len());
        self.moved(dims, |index| {
            let (head, rest) = index.split_at(axis);
            let (row, tail) = rest.split_at(rank);
            let row: usize = row.iter().zip(&row_step).map(|(i, s)| i * s).sum();
            let around = head.iter().zip(&step).chain(tail.iter().zip(&step[axis + 1..]));
            Some(around.map(|(i, s)| i * s).sum::<usize>() + rows[row] * step[axis])
        })
    }

    pub(super) fn shape(&self) -> Result<Tensor, Why> {
        let dims = self.input(0)?.dims();
        let rank = dims.len() as i64;
        let clip = |at: i64| if at < 0 { at + rank } else { at }.clamp(0, rank) as usize;
        let begin = clip(self.node.int("start").unwrap_or(0));
        let end = clip(self.node.int("end").unwrap_or(rank)).max(begin);
        let sizes: Vec<i64> = dims[begin..end].iter().map(|size| *size as i64).collect();
        Ok(Tensor::ints(ElementType::I64, &[sizes.len()], sizes))
    }

    pub(super) fn constant_of_shape(&self) -> Result<Tensor, Why> {
        let dims = self.sizes(0)?;
        let elements = self.fits(&dims)?;
        let zero = || Tensor::floats(ElementType::F32, &[1], vec![0.0]);
        let value = match self.node.attribute("value") {
            None => zero(),
            Some(AttributeValue::Tensor(tensor)) => match &tensor.data {
                Data::Inline(bytes) => Tensor::from_bytes(tensor.dtype, &tensor.dims, bytes)
                    .filter(|tensor| tensor.elements() == 1)
                    .ok_or("its value is not one number")?,
                Data::External { .. } => return Err("its value is external".to_owned()),
            },
            Some(_) => return Err("its value is no tensor".to_owned()),
        };
        Ok(value.pick(dims, None, std::iter::repeat_n(Some(0), elements)))
    }

    pub(super) fn range(&self) -> Result<Tensor, Why> {
        let dtype = self.input(0)?.dtype();
        if dtype.is_float() {
            let [start, limit, delta] = [self.floats(0)?, self.floats(1)?, self.floats(2)?];
            let (start, limit, delta) = (one(start)?, one(limit)?, one(delta)?);
            let count = ((limit - start) / delta).ceil().max(0.0);
            let count =
                self.fits(&[if count.is_finite() { count as usize } else { usize::MAX }])?;
            let values = (0..count).map(|at| start + at as f64 * delta).collect();
            return Ok(Tensor::floats(dtype, &[count], values));
        }
        let (start, limit, delta) = (one(self.ints(0)?)?, one(self.ints(1)?)?, one(self.ints(2)?)?);
        if delta == 0 {
            return Err("its step is 0".to_owned());
        }
        let distance = i128::from(limit) - i128::from(start);
        let (reach, hop) =
            if delta < 0 { (-distance, -i128::from(delta)) } else { (distance, i128::from(delta)) };
        let count = reach.max(0).unsigned_abs().div_ceil(hop.unsigned_abs());
        let count = self.fits(&[usize::try_from(count).unwrap_or(usize::MAX)])?;
        Ok(Tensor::ints(
            dtype,
            &[count],
            (0..count).map(|at| start.wrapping_add((at as i64).wrapping_mul(delta))).collect(),
        ))
    }

    pub(super) fn trilu(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        if rank < 2 {
            return Err("its input is no matrix".to_owned());
        }
        let upper = self.flag("upper", true);
        let diagonal = self.optional(1).map_or(Ok(0), |_| one(self.ints(1)?))?;
        let step = strides(input.dims());
        self.moved(input.dims().to_vec(), |index| {
            let ahead = index[rank - 1] as i64 - index[rank - 2] as i64;
            let kept = if upper { ahead >= diagonal } else { ahead <= diagonal };
            kept.then(|| index.iter().zip(&step).map(|(i, s)| i * s).sum())
        })
    }

    /// Input `at` as sizes of a shape.
    pub(super) fn sizes(&self, at: usize) -> Result<Vec<usize>, Why> {
        let size = |size: &i64| usize::try_from(*size).map_err(|_| format!("size {size}"));
        self.ints(at)?.iter().map(size).collect()
    }
}

/// The entry of an axis that stands mirrored at `at`, the edge itself once.
fn reflect(at: i64, size: i64) -> Option<i64> {
    if size == 1 {
        return Some(0);
    }
    let period = 2 * (size - 1);
    let at = at.checked_rem_euclid(period)?;
    Some(if at < size { at } else { period - at })
}

/// How many entries a slice has, and the first of them.
fn slice_range(start: i64, end: i64, hop: i64, size: i64) -> Result<(usize, i64), Why> {
    let from_end = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    let (begin, end) = if hop > 0 {
        (from_end(start).clamp(0, size), from_end(end).clamp(0, size))
    } else {
        (from_end(start).clamp(-1, size - 1), from_end(end).clamp(-1, size - 1))
    };
    let distance = if hop > 0 { end - begin } else { begin - end };
    match hop.unsigned_abs() {
        0 => Err("its step is 0".to_owned()),
        hop => Ok(((distance.max(0) as u64).div_ceil(hop) as usize, begin)),
    }
}
