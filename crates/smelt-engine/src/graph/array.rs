//! Holds the values that flow through a graph: arrays of floats or integers, and stored weights.
//!
//! Arrays share their numbers until someone writes, so that a reshape costs nothing and the last
//! reader may write in place.  Knows nothing of operators.

use std::sync::Arc;

use crate::engine_file::{Layout, Stored};

/// No value that is held may have more numbers than this (1 GiB of f32): a graph that asks for more is
/// broken.  What operators that became one would have given each other is not held.
pub(crate) const ELEMENTS_MAX: usize = 1 << 28;

/// Numbers in row-major order under a shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array<T> {
    shape: Vec<usize>,
    data: Arc<Vec<T>>,
}

/// How many numbers `shape` has, if their bytes can be counted.
pub(crate) fn countable(shape: &[usize]) -> Option<usize> {
    const NUMBERS_MAX: usize = isize::MAX.cast_unsigned() / size_of::<i64>();
    let count = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    count.filter(|&count| count <= NUMBERS_MAX)
}

/// How many numbers `shape` holds, or why that is too many.
pub(crate) fn element_count(shape: &[usize]) -> Result<usize, String> {
    countable(shape)
        .filter(|&count| count <= ELEMENTS_MAX)
        .ok_or_else(|| format!("shape {shape:?} has more than {ELEMENTS_MAX} numbers"))
}

impl<T: Clone> Array<T> {
    /// `data` under `shape`.  Panics where they disagree: a bug in an operator.
    pub(crate) fn new(shape: Vec<usize>, data: Vec<T>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?} fits its data");
        Self { shape, data: Arc::new(data) }
    }

    /// A single number without dimensions.
    pub(crate) fn scalar(value: T) -> Self {
        Self::new(vec![], vec![value])
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn data(&self) -> &[T] {
        &self.data
    }

    /// The numbers, to be written; copied only if someone else still reads them.
    pub(crate) fn data_mut(&mut self) -> &mut [T] {
        Arc::<Vec<T>>::make_mut(&mut self.data)
    }

    /// Whether writing copies nothing.
    pub(crate) fn is_unshared(&mut self) -> bool {
        Arc::get_mut(&mut self.data).is_some()
    }

    /// Shape and numbers; copied only if someone else still reads them.
    pub(crate) fn into_parts(self) -> (Vec<usize>, Vec<T>) {
        (self.shape, Arc::unwrap_or_clone(self.data))
    }

    /// The same numbers under another shape of the same count.
    pub(crate) fn reshaped(self, shape: Vec<usize>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), self.len(), "a reshape keeps the count");
        Self { shape, data: self.data }
    }
}

/// A tensor that lies in `weights.bin`, floats row after row or in stripes, and becomes f32 where it
/// is used.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) stored: Arc<Stored>,
    /// The scales of its rows, where it is quants.
    pub(crate) scale: Option<Arc<Stored>>,
    /// The shape the graph sees.
    pub(crate) shape: Vec<usize>,
    /// Whether the graph sees a stored matrix with rows and columns exchanged.
    pub(crate) transposed: bool,
}

/// Anything a graph edge can carry.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Floats of any width; held in f32.
    F32(Array<f32>),
    /// Integers of any width; shapes and axes.
    I64(Array<i64>),
    /// Floats that are still in the file.
    Weight(Weight),
}

impl Weight {
    /// Whether it lies row after row, not in stripes.
    pub(crate) fn is_by_rows(&self) -> bool {
        self.stored.layout == Layout::Rows
    }
}

impl Value {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::F32(array) => array.shape(),
            Self::I64(array) => array.shape(),
            Self::Weight(weight) => &weight.shape,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shape().iter().product()
    }
}

/// `axis` counted from the front; negative ones count from the back of `rank` dimensions.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize, String> {
    let rank_signed = rank as i64;
    let index = if axis < 0 { axis + rank_signed } else { axis };
    if (0..rank_signed).contains(&index) {
        return Ok(index as usize);
    }
    Err(format!("axis {axis} is outside a value of {rank} dimensions"))
}

/// Distances between neighbours of each dimension of a row-major `shape`.
pub(crate) fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// The shape two shapes broadcast to (numpy's rule), of a value that is held.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let shape = broadcast_shape(a, b)?;
    element_count(&shape)?;
    Ok(shape)
}

/// The shape two shapes broadcast to, of a value that may never be held.
pub(crate) fn broadcast_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
    };
    let shape: Option<Vec<usize>> = (0..rank)
        .map(|axis| match (dim(a, axis), dim(b, axis)) {
            (a, b) if a == b => Some(a),
            (1, other) | (other, 1) => Some(other),
            _ => None,
        })
        .collect();
    let shape = shape.ok_or_else(|| format!("shapes {a:?} and {b:?} do not broadcast"))?;
    countable(&shape).ok_or_else(|| format!("shape {shape:?} has too many numbers"))?;
    Ok(shape)
}

/// Strides that read an array of shape `from` as if it had the larger shape `to`.
pub(crate) fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let missing = to.len() - from.len();
    let mut strides = vec![0; missing];
    strides.extend(
        strides_of(from).iter().zip(from).map(|(&stride, &dim)| if dim == 1 { 0 } else { stride }),
    );
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_like_numpy() {
        let check = |a: &[usize], b: &[usize], expect: Option<&[usize]>| {
            assert_eq!(broadcast(a, b).ok().as_deref(), expect, "{a:?} {b:?}");
        };
        check(&[2, 3], &[3], Some(&[2, 3]));
        check(&[2, 1], &[1, 5], Some(&[2, 5]));
        check(&[], &[4], Some(&[4]));
        check(&[0], &[1], Some(&[0]));
        check(&[2], &[3], None);
        check(&[1 << 20, 1], &[1, 1 << 20], None);
        assert_eq!(broadcast_shape(&[1 << 20, 1], &[1, 1 << 20]), Ok(vec![1 << 20; 2]));
        assert!(broadcast_shape(&[1 << 40, 1], &[1, 1 << 40]).is_err());
    }

    #[test]
    fn strides_of_broadcast_dimensions_are_zero() {
        assert_eq!(strides_of(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(broadcast_strides(&[3, 1], &[2, 3, 4]), [0, 1, 0]);
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(axis_of(-1, 3), Ok(2));
        assert_eq!(axis_of(0, 3), Ok(0));
        assert!(axis_of(3, 3).is_err() && axis_of(-4, 3).is_err() && axis_of(0, 0).is_err());
    }

    #[test]
    fn writing_copies_only_what_is_shared() {
        let mut one = Array::new(vec![2], vec![1, 2]);
        let other = one.clone();
        assert!(!one.is_unshared());
        one.data_mut()[0] = 9;
        assert_eq!((one.data(), other.data()), (&[9, 2][..], &[1, 2][..]));
        assert!(one.is_unshared());
    }
}
