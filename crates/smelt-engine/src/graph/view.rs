//! Sees numbers that lie somewhere as an array: where they begin, a shape, a step for each
//! dimension.
//!
//! Transposing, cutting and repeating make another view of the same numbers; what cannot be a view
//! says so, and is copied by the caller.  Knows nothing of operators.

use std::ops::Range;

use super::array::{broadcast_strides, strides_of};

/// Whose numbers a view sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// A buffer of the arena.
    Buffer(usize),
    /// An input of the graph.
    Input(usize),
    /// A constant, by its place.
    Constant(usize),
}

/// An array inside its home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Whose numbers they are.
    pub home: Home,
    /// Where the first number lies.
    pub start: usize,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Distance of neighbours along each dimension; 0 where one number is seen again and again.
    pub steps: Vec<usize>,
}

impl View {
    /// All numbers of `home`, row-major.
    pub(crate) fn whole(home: Home, shape: Vec<usize>) -> Self {
        let steps = strides_of(&shape);
        Self { home, start: 0, shape, steps }
    }

    /// Steps of numbers of `shape` that lie side by side.
    pub fn side_by_side(shape: &[usize]) -> Vec<usize> {
        strides_of(shape)
    }

    /// How many numbers it shows.
    #[allow(clippy::len_without_is_empty)] // Nobody asks.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The part of the home that its numbers lie in.
    pub fn span(&self) -> Range<usize> {
        if self.len() == 0 {
            return self.start..self.start;
        }
        let last: usize =
            self.shape.iter().zip(&self.steps).map(|(dim, step)| (dim - 1) * step).sum();
        self.start..self.start + last + 1
    }

    /// Whether its numbers lie side by side in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expect = 1;
        self.shape.iter().zip(&self.steps).rev().all(|(&dim, &step)| {
            let fits = dim == 1 || step == expect;
            expect *= dim;
            fits
        }) || self.len() == 0
    }

    /// Dimension `i` of the result is dimension `order[i]` of this.
    pub(crate) fn transposed(&self, order: &[usize]) -> Self {
        let shape = order.iter().map(|&axis| self.shape[axis]).collect();
        let steps = order.iter().map(|&axis| self.steps[axis]).collect();
        Self { shape, steps, ..*self }
    }

    /// `len` entries of `axis` from `first`, each `step` after the other.
    pub(crate) fn cut(&self, axis: usize, first: usize, len: usize, step: usize) -> Self {
        let mut cut = self.clone();
        cut.start += if len == 0 { 0 } else { first * self.steps[axis] };
        cut.shape[axis] = len;
        cut.steps[axis] *= step;
        cut
    }

    /// Repeated to `shape`, if numpy's rule allows that.
    pub(crate) fn repeated(&self, shape: &[usize]) -> Option<Self> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        let fits =
            self.shape.iter().zip(&shape[missing..]).all(|(&from, &to)| from == to || from == 1);
        if !fits {
            return None;
        }
        // Which dimensions repeat is the same whatever the steps are.
        let repeats = broadcast_strides(&self.shape, shape);
        let step = |axis: usize| {
            let own = axis.checked_sub(missing).map_or(0, |axis| self.steps[axis]);
            if repeats[axis] == 0 { 0 } else { own }
        };
        let steps = (0..shape.len()).map(step).collect();
        Some(Self { shape: shape.to_vec(), steps, ..*self })
    }

    /// The same numbers in the same order under another shape of the same count, if steps can say
    /// that.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        if self.is_contiguous() {
            let steps = strides_of(shape);
            return Some(Self { shape: shape.to_vec(), steps, ..*self });
        }
        let from: Vec<(usize, usize)> = self.loops();
        let mut steps = vec![0; shape.len()];
        let (mut old, mut new) = (0, 0);
        while old < from.len() && new < shape.len() {
            let (old_first, new_first) = (old, new);
            let (mut old_count, mut new_count) = (from[old].0, shape[new]);
            (old, new) = (old + 1, new + 1);
            while old_count != new_count {
                if old_count < new_count {
                    old_count *= from.get(old)?.0;
                    old += 1;
                } else {
                    new_count *= shape.get(new)?;
                    new += 1;
                }
            }
            let group = &from[old_first..old];
            if group.windows(2).any(|pair| pair[0].1 != pair[1].0 * pair[1].1) {
                return None;
            }
            let mut step = group.last()?.1;
            for axis in (new_first..new).rev() {
                steps[axis] = step;
                step *= shape[axis];
            }
        }
        Some(Self { shape: shape.to_vec(), steps, ..*self })
    }

    /// The dimensions that hold more than one entry, with their steps.
    fn loops(&self) -> Vec<(usize, usize)> {
        let dims = self.shape.iter().copied().zip(self.steps.iter().copied());
        dims.filter(|&(dim, _)| dim != 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    /// The numbers of a home of 0, 1, 2, … in the view's order.
    fn seen(view: &View) -> Vec<usize> {
        let strides = strides_of(&view.shape);
        let place = |index: usize| -> usize {
            let dims = strides.iter().zip(&view.shape).zip(&view.steps);
            view.start + dims.map(|((by, dim), step)| index / by % dim * step).sum::<usize>()
        };
        (0..view.len()).map(place).collect()
    }

    fn view(shape: &[usize]) -> View {
        View::whole(Home::Input(0), shape.to_vec())
    }

    #[test]
    fn heads_leave_a_fused_projection_without_a_copy() {
        // Rows of q, k and v side by side; v by heads.
        let (rows, heads, head) = (3, 2, 4);
        let v = view(&[rows, 3 * heads * head]).cut(1, 2 * heads * head, heads * head, 1);
        assert!(!v.is_contiguous());
        let v = v.reshaped(&[1, rows, heads, head]).unwrap().transposed(&[0, 2, 1, 3]);
        assert_eq!((v.start, &v.steps[1..]), (16, &[4, 24, 1][..]));
        assert_eq!(seen(&v)[..5], [16, 17, 18, 19, 40]);
        assert_eq!(v.span(), 16..72);
        // Back to rows, the heads do not follow each other.
        assert_eq!(v.reshaped(&[heads, rows * head]), None);
    }

    #[test]
    fn single_entries_and_nothing_are_always_side_by_side() {
        let row = view(&[4, 5]).cut(0, 2, 1, 1);
        assert!(row.is_contiguous());
        assert_eq!(seen(&row.reshaped(&[5]).unwrap()), [10, 11, 12, 13, 14]);
        let none = view(&[4, 5]).cut(1, 5, 0, 1);
        assert!(none.is_contiguous() && none.span().is_empty());
        assert_eq!(view(&[]).span(), 0..1);
    }

    #[test]
    fn repeating_steps_nowhere() {
        let row = view(&[3, 1]).repeated(&[2, 3, 2]).unwrap();
        assert_eq!(seen(&row), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        assert_eq!(view(&[3]).repeated(&[2]), None);
        assert_eq!(view(&[1, 1]).repeated(&[1]), None);
    }

    #[test]
    fn any_chain_of_views_shows_what_copies_would() {
        let mut random = Random::new(12);
        for _ in 0..2000 {
            let rank = 1 + random.below(4);
            let shape: Vec<usize> = (0..rank).map(|_| 1 + random.below(4)).collect();
            let mut view = view(&shape);
            let mut expect = seen(&view);
            for _ in 0..4 {
                let before = view.clone();
                match random.below(3) {
                    0 => {
                        let mut order: Vec<usize> = (0..view.shape.len()).collect();
                        let by = random.below(order.len());
                        order.rotate_left(by);
                        view = view.transposed(&order);
                    }
                    1 => {
                        let axis = random.below(view.shape.len());
                        let first = random.below(view.shape[axis]);
                        let step = 1 + random.below(2);
                        let len = (view.shape[axis] - first).div_ceil(step);
                        view = view.cut(axis, first, len, step);
                    }
                    _ => {
                        let mut dims = view.shape.clone();
                        dims.rotate_left(random.below(view.shape.len()));
                        let (last, rest) = dims.split_last().unwrap();
                        let half = if last % 2 == 0 { 2 } else { 1 };
                        let to = [rest, &[last / half, half]].concat();
                        // A refusal is right only if the numbers are not evenly apart.
                        let Some(reshaped) = view.reshaped(&to) else { continue };
                        assert_eq!(seen(&reshaped), expect);
                        view = reshaped;
                        continue;
                    }
                }
                // By hand: the numbers of the view before, in the new order.
                let held = seen(&before);
                assert!(seen(&view).iter().all(|number| held.contains(number)));
                expect = seen(&view);
                assert!(expect.iter().all(|number| view.span().contains(number)));
            }
        }
    }
}
