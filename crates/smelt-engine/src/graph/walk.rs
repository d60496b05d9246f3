//! Visits the numbers of several views of one shape together, run by run.
//!
//! Dimensions that all views step through alike become one, so that runs are as long as they can
//! be.  Knows nothing of what is done with the numbers.

use std::ops::Range;

use super::view::View;

/// One loop: how often, and how far each view steps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loop {
    len: usize,
    steps: Vec<usize>,
}

/// How views of one shape are walked together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    outer: Vec<Loop>,
    inner: Loop,
}

impl Walk {
    /// Over `views`, which have one shape.
    pub(crate) fn new(views: &[&View]) -> Self {
        let shape = views.first().map_or(&[][..], |view| &view.shape);
        let mut loops: Vec<Loop> = Vec::new();
        for (axis, &len) in shape.iter().enumerate().filter(|(_, len)| **len != 1) {
            let steps: Vec<usize> = views.iter().map(|view| view.steps[axis]).collect();
            let follows = |outer: &Loop| outer.steps.iter().zip(&steps).all(|(o, s)| *o == s * len);
            match loops.last_mut() {
                Some(outer) if follows(outer) => *outer = Loop { len: outer.len * len, steps },
                _ => loops.push(Loop { len, steps }),
            }
        }
        let one = || Loop { len: 1, steps: vec![0; views.len()] };
        let inner = loops.pop().unwrap_or_else(one);
        Self { outer: loops, inner }
    }

    /// How many numbers each view shows.
    pub(crate) fn len(&self) -> usize {
        self.outer.iter().map(|outer| outer.len).product::<usize>() * self.inner.len
    }

    /// How many numbers a whole run has.
    pub(crate) fn run_len(&self) -> usize {
        self.inner.len
    }

    /// How far each view steps inside a run.
    pub(crate) fn run_steps(&self) -> &[usize] {
        &self.inner.steps
    }

    /// Visits the numbers in `range`, in pieces of at most `most`: where the piece begins in each
    /// view, counted from its first number, and how long it is.
    #[inline(always)]
    pub(crate) fn pieces(
        &self,
        range: Range<usize>,
        most: usize,
        mut visit: impl FnMut(&[usize], usize),
    ) {
        let mut starts = vec![0; self.inner.steps.len()];
        let mut at = range.start;
        while at < range.end {
            let within = at % self.inner.len;
            let mut rest = at / self.inner.len;
            starts.iter_mut().zip(&self.inner.steps).for_each(|(s, step)| *s = within * step);
            for outer in self.outer.iter().rev() {
                let index = rest % outer.len;
                rest /= outer.len;
                starts.iter_mut().zip(&outer.steps).for_each(|(s, step)| *s += index * step);
            }
            let end = (at + self.inner.len - within).min(range.end);
            while at < end {
                let len = most.min(end - at);
                visit(&starts, len);
                starts.iter_mut().zip(&self.inner.steps).for_each(|(s, step)| *s += len * step);
                at += len;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::view::Home;

    fn view(shape: &[usize]) -> View {
        View::whole(Home::Input(0), shape.to_vec())
    }

    fn visited(walk: &Walk, range: Range<usize>, most: usize) -> Vec<(Vec<usize>, usize)> {
        let mut all = Vec::new();
        walk.pieces(range, most, |starts, len| all.push((starts.to_vec(), len)));
        all
    }

    #[test]
    fn alike_dimensions_are_one_run() {
        let (whole, row) = (view(&[2, 3, 4]), view(&[4]).repeated(&[2, 3, 4]).unwrap());
        let walk = Walk::new(&[&whole, &whole]);
        assert_eq!((walk.run_len(), walk.len()), (24, 24));
        let walk = Walk::new(&[&whole, &row]);
        assert_eq!((walk.run_len(), walk.run_steps()), (4, &[1, 1][..]));
        assert_eq!(
            visited(&walk, 2..9, 3),
            [(vec![2, 2], 2), (vec![4, 0], 3), (vec![7, 3], 1), (vec![8, 0], 1),]
        );
    }

    #[test]
    fn a_single_number_is_a_run() {
        let walk = Walk::new(&[&view(&[]), &view(&[])]);
        assert_eq!(visited(&walk, 0..1, 8), [(vec![0, 0], 1)]);
        assert!(visited(&Walk::new(&[&view(&[0, 3])]), 0..0, 8).is_empty());
    }
}
