//! Computes operators that look elements up by index, repeat them, or say where they are.

use super::{Call, Tensor, Why, axis_of, strides, unravel};
use crate::ElementType;

impl Call<'_> {
    pub(super) fn tile(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let times = self.sizes(1)?;
        if times.len() != input.dims().len() {
            return Err(format!("{times:?} does not repeat {:?}", input.dims()));
        }
        let dims: Option<Vec<usize>> =
            input.dims().iter().zip(&times).map(|(size, times)| size.checked_mul(*times)).collect();
        let step = strides(input.dims());
        self.moved(dims.ok_or("its result is over the limit")?, |index| {
            let place = |at: usize| index[at] % input.dims()[at] * step[at];
            Some((0..index.len()).map(place).sum())
        })
    }

    pub(super) fn gather_elements(&self) -> Result<Tensor, Why> {
        let (input, at) = (self.input(0)?, self.input(1)?);
        let axis = axis_of(self.node.int("axis").unwrap_or(0), input.dims().len())?;
        let size = input.dims()[axis];
        let fits = |d: usize| d == axis || at.dims()[d] <= input.dims()[d];
        if at.dims().len() != input.dims().len() || !(0..at.dims().len()).all(fits) {
            return Err(format!("indices {:?} do not fit {:?}", at.dims(), input.dims()));
        }
        let rows = places(self.ints(1)?, size)?;
        let (step, own) = (strides(input.dims()), strides(at.dims()));
        self.moved(at.dims().to_vec(), |index| {
            let flat: usize = index.iter().zip(&own).map(|(i, s)| i * s).sum();
            let place = |d: usize| if d == axis { rows[flat] } else { index[d] } * step[d];
            Some((0..index.len()).map(place).sum())
        })
    }

    pub(super) fn gather_nd(&self) -> Result<Tensor, Why> {
        let (input, at) = (self.input(0)?, self.input(1)?);
        if self.node.int("batch_dims").unwrap_or(0) != 0 {
            return Err("batch dimensions are not known here".to_owned());
        }
        let (begins, inner) = slices(input, at, self.ints(1)?)?;
        let (outer, depth) = at.dims().split_at(at.dims().len() - 1);
        let dims = [outer, &input.dims()[depth[0]..]].concat();
        let elements = self.fits(&dims)?;
        let picks = (0..elements).map(|flat| Some(begins[flat / inner] + flat % inner));
        Ok(input.pick(dims, None, picks))
    }

    pub(super) fn scatter_nd(&self) -> Result<Tensor, Why> {
        let (input, at, updates) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let reduction = self.text("reduction", "none");
        if reduction != "none" {
            return Err(format!("reduction {reduction:?} is not known here"));
        }
        let (begins, inner) = slices(input, at, self.ints(1)?)?;
        if begins.len() * inner != updates.elements() {
            return Err(format!("updates {:?} do not fit", updates.dims()));
        }
        let both = Tensor::chain(&[input, updates]).ok_or("its inputs differ in type")?;
        let mut from: Vec<usize> = (0..input.elements()).collect();
        for (count, begin) in begins.iter().enumerate() {
            for at in 0..inner {
                from[begin + at] = input.elements() + count * inner + at;
            }
        }
        Ok(both.pick(input.dims().to_vec(), None, from.into_iter().map(Some)))
    }

    pub(super) fn cumsum(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let &[axis] = self.ints(1)? else { return Err("its axis is not one number".to_owned()) };
        let axis = axis_of(axis, input.dims().len())?;
        let (size, step) = (input.dims()[axis], strides(input.dims())[axis]);
        let (exclusive, reverse) = (self.flag("exclusive", false), self.flag("reverse", false));
        let mut values = input.cast(ElementType::F64).as_floats().unwrap_or_default().to_vec();
        for begin in (0..values.len()).filter(|at| at / step % size == 0) {
            let mut sum = 0.0;
            for k in 0..size {
                let at = begin + if reverse { size - 1 - k } else { k } * step;
                let next = sum + values[at];
                values[at] = if exclusive { sum } else { next };
                sum = next;
            }
        }
        Ok(Tensor::floats(ElementType::F64, input.dims(), values).cast(input.dtype()))
    }

    /// ArgMax or ArgMin.
    pub(super) fn arg(&self, largest: bool) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let axis = axis_of(self.node.int("axis").unwrap_or(0), input.dims().len())?;
        let last = self.flag("select_last_index", false);
        let (size, step) = (input.dims()[axis], strides(input.dims())[axis]);
        if size == 0 {
            return Err("its axis is empty".to_owned());
        }
        let wide = input.cast(ElementType::F64);
        let values = wide.as_floats().unwrap_or_default();
        let mut dims = input.dims().to_vec();
        dims[axis] = 1;
        let mut index = vec![0; dims.len()];
        let best = |begin: usize| {
            let mut best = 0;
            for k in 1..size {
                let (new, old) = (values[begin + k * step], values[begin + best * step]);
                let wins = if largest { new > old } else { new < old };
                best = if wins || last && new == old { k } else { best };
            }
            best as i64
        };
        let in_step = strides(input.dims());
        let found = (0..dims.iter().product()).map(|flat| {
            unravel(flat, &dims, &mut index);
            best(index.iter().zip(&in_step).map(|(i, s)| i * s).sum())
        });
        let result = Tensor::ints(ElementType::I64, &dims, found.collect());
        if !self.flag("keepdims", true) {
            dims.remove(axis);
        }
        Ok(result.shaped(dims))
    }
}

/// Indices counted from the end where negative.
fn places(indices: &[i64], size: usize) -> Result<Vec<usize>, Why> {
    let place = |at: &i64| axis_of(*at, size).map_err(|_| format!("index {at} is outside {size}"));
    indices.iter().map(place).collect()
}

/// Where the slice of each tuple of indices begins, and the elements of a slice.
fn slices(input: &Tensor, at: &Tensor, indices: &[i64]) -> Result<(Vec<usize>, usize), Why> {
    let depth = at.dims().last().copied().filter(|depth| *depth <= input.dims().len());
    let depth = depth.ok_or_else(|| format!("indices {:?} are too deep", at.dims()))?;
    let step = strides(input.dims());
    let inner = input.dims()[depth..].iter().product();
    let begin = |tuple: &[i64]| -> Result<usize, Why> {
        let mut begin = 0;
        for (d, index) in tuple.iter().enumerate() {
            let size = input.dims()[d];
            let place = axis_of(*index, size).map_err(|_| format!("index {index} of {size}"))?;
            begin += place * step[d];
        }
        Ok(begin)
    };
    if depth == 0 {
        return Ok((vec![0; at.dims().iter().rev().skip(1).product()], inner));
    }
    Ok((indices.chunks(depth).map(begin).collect::<Result<_, _>>()?, inner))
}
