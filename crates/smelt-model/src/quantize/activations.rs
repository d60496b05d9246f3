//! Holds what the inputs of one linear were seen to be.

use pulp::{Arch, Simd, WithSimd};

/// Sums of a dot product that are kept apart.
const DOT_LANES: usize = 8;

/// Activations of one layer: `[inputs, samples]`, an input's samples side by side.
#[derive(Clone, Debug)]
pub(super) struct Activations {
    pub(super) values: Vec<f32>,
    pub(super) samples: usize,
}

impl Activations {
    /// From `rows` `[samples, width]`.
    pub(super) fn from_rows(rows: &[f32], width: usize) -> Self {
        let column = |input| rows.iter().skip(input).step_by(width).copied();
        Self { values: (0..width).flat_map(column).collect(), samples: rows.len() / width }
    }

    pub(super) fn inputs(&self) -> usize {
        self.values.len() / self.samples
    }

    /// The samples of one input.
    pub(super) fn of(&self, input: usize) -> &[f32] {
        &self.values[input * self.samples..][..self.samples]
    }

    /// Σ x² of each input.
    pub(super) fn energy(&self) -> Vec<f64> {
        self.values.chunks(self.samples).map(|x| dot(x, x)).collect()
    }

    /// Inputs by falling energy; equal ones keep their order.
    pub(super) fn order(&self) -> Vec<usize> {
        let energy = self.energy();
        let mut order: Vec<usize> = (0..self.inputs()).collect();
        order.sort_by(|a, b| energy[*b].total_cmp(&energy[*a]));
        order
    }

    /// The same with inputs in another order.
    pub(super) fn into_reordered(self, order: &[usize]) -> Self {
        let values = order.iter().flat_map(|input| self.of(*input)).copied().collect();
        Self { values, samples: self.samples }
    }
}

/// The dot product of two vectors, in f64.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    struct Dot<'a>(&'a [f32], &'a [f32]);
    impl WithSimd for Dot<'_> {
        type Output = f64;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> f64 {
            let ((a, a_last), (b, b_last)) =
                (self.0.as_chunks::<DOT_LANES>(), self.1.as_chunks::<DOT_LANES>());
            let mut sums = [0.0; DOT_LANES];
            for (a, b) in a.iter().zip(b) {
                for lane in 0..DOT_LANES {
                    sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
                }
            }
            let last = a_last.iter().zip(b_last).map(|(a, b)| f64::from(*a) * f64::from(*b));
            sums.iter().sum::<f64>() + last.sum::<f64>()
        }
    }
    Arch::new().dispatch(Dot(a, b))
}
