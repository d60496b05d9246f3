//! Chooses how far to scale the inputs of linear layers so that rounding hurts the output least.
//!
//! AWQ (Lin et al., 2023): inputs that are large get larger weights, hence smaller relative errors;
//! what comes before divides by the same scales.  Rounding errors of different inputs hardly
//! depend on each other, so the output error is the sum over inputs of E[x²] (w - ŵ)²: no products
//! with activations are needed to compare exponents.  Knows nothing of files.

use super::group::{Rounded, Rounder};
use crate::dtype::Dtype;

/// Exponents tried: 0, 1/16, … 1.  Sixteenths, because four square roots give them, which are the
/// same bits on every machine, and a power is not.
pub(crate) const EXPONENTS: usize = 17;

/// The smallest mean activation that counts, as a part of the largest: one that is never seen
/// would otherwise be scaled without bound.
const FLOOR: f32 = 1e-4;

/// What was seen of the inputs of a layer.
#[derive(Clone, Debug)]
pub(super) struct ActivationStats {
    /// Mean |x| of each input.
    pub(super) mean: Vec<f32>,
    /// Mean x² of each input.
    pub(super) square: Vec<f32>,
}

/// The candidates for the scales of one set of inputs, and how each has fared so far.
pub(super) struct Search {
    /// `[EXPONENTS]` vectors of scales.
    candidates: Vec<Vec<f32>>,
    /// E[x²] / s², for each candidate.
    importance: Vec<Vec<f32>>,
}

impl Search {
    pub(super) fn new(seen: &ActivationStats) -> Self {
        let largest = seen.mean.iter().copied().fold(0.0, f32::max);
        let floor = (largest * FLOOR).max(f32::MIN_POSITIVE);
        let mean: Vec<f32> = seen.mean.iter().map(|mean| mean.max(floor)).collect();
        let candidates: Vec<Vec<f32>> = (0..EXPONENTS).map(|n| scales(&mean, n)).collect();
        let weigh = |scales: &Vec<f32>| importance(seen, scales);
        let importance = candidates.iter().map(weigh).collect();
        Self { candidates, importance }
    }

    /// Adds the estimated output error of rounding `rows` `[rows, inputs]` under each candidate to
    /// `costs`; says which row cannot be rounded.
    pub(super) fn weigh(
        &self,
        rows: &[f32],
        rounder: Rounder,
        costs: &mut [f64; EXPONENTS],
    ) -> Result<(), usize> {
        let width = self.candidates[0].len();
        let (mut scaled, mut rounded) = (vec![0.0; width], vec![0.0; width]);
        let mut out = Rounded::default();
        for (n, row) in rows.chunks(width).enumerate() {
            let all = self.candidates.iter().zip(&self.importance).zip(&mut *costs);
            for ((scales, importance), cost) in all {
                scaled.iter_mut().zip(row).zip(scales).for_each(|((out, w), s)| *out = w * s);
                out.clear();
                rounder.rows(&scaled, width, None, &mut out).map_err(|_| n)?;
                out.restore(rounder.grid, &mut rounded);
                let error = scaled.iter().zip(&rounded).zip(importance);
                *cost += error.map(|((w, r), i)| f64::from((w - r) * (w - r) * i)).sum::<f64>();
            }
        }
        Ok(())
    }

    /// The scales that cost least; of equals those with the smaller exponent.
    pub(super) fn best(mut self, costs: &[f64; EXPONENTS]) -> Vec<f32> {
        let better = |best: usize, n: usize| if costs[n] < costs[best] { n } else { best };
        self.candidates.swap_remove((1..EXPONENTS).fold(0, better))
    }
}

/// E[x²] / s²: what an error of a scaled weight costs the output.
pub(super) fn importance(seen: &ActivationStats, scales: &[f32]) -> Vec<f32> {
    seen.square.iter().zip(scales).map(|(square, s)| square / (s * s)).collect()
}

/// `mean^(n/16)`, scaled so that its smallest and its largest multiply to 1.
fn scales(mean: &[f32], n: usize) -> Vec<f32> {
    let raw: Vec<f32> = mean.iter().map(|mean| sixteenths(*mean, n)).collect();
    let least = raw.iter().copied().fold(f32::INFINITY, f32::min);
    let most = raw.iter().copied().fold(0.0, f32::max);
    if least == most {
        return vec![1.0; raw.len()];
    }
    let middle = least.sqrt() * most.sqrt();
    raw.iter().map(|scale| scale / middle).collect()
}

/// `value^(n/16)` for n up to 16.
fn sixteenths(value: f32, n: usize) -> f32 {
    let (mut power, mut root) = (1.0, value);
    // n / 16 in binary: one half, one fourth, …; 16 is the value itself.
    if n == 16 {
        return value;
    }
    for bit in [8, 4, 2, 1] {
        root = root.sqrt();
        if n & bit != 0 {
            power *= root;
        }
    }
    power
}

/// Divides `vector`, which makes the inputs (a norm's weights, a bias), by `scales` as `dtype` can
/// hold it, and changes the scales to what the division came to, so that nothing is lost.
pub(super) fn fold(vector: &mut [f32], scales: &mut [f32], dtype: Dtype) {
    let divided: Vec<f32> = vector.iter().zip(&*scales).map(|(value, s)| value / s).collect();
    let Some((_, held)) = dtype.narrow(&divided) else { return scales.fill(1.0) };
    for ((value, scale), held) in vector.iter_mut().zip(scales).zip(held) {
        if *value == 0.0 {
            continue;
        }
        if held.is_normal() {
            *scale = *value / held;
            *value = held;
        } else {
            *scale = 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::group::UNCLIPPED;
    use crate::scheme::Scheme;

    #[test]
    fn sixteenths_are_powers() {
        for n in 0..EXPONENTS {
            let power = 3.7_f32.powf(n as f32 / 16.0);
            assert!((sixteenths(3.7, n) / power - 1.0).abs() < 1e-6, "{n}");
        }
        assert_eq!([sixteenths(256.0, 4), sixteenths(0.25, 8)], [4.0, 0.5]);
    }

    #[test]
    fn scales_are_balanced_and_one_without_an_exponent() {
        let mean = [0.1, 4.0, 2.0];
        assert_eq!(scales(&mean, 0), [1.0; 3]);
        let scales = scales(&mean, 8);
        assert!((scales[0] * scales[1] - 1.0).abs() < 1e-6, "{scales:?}");
        assert!((scales[1] / scales[0] - 40.0_f32.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn folding_keeps_every_product() {
        let vector = [1.0_f32, -0.3, 0.0, 1e-30, 7.77];
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            let (mut folded, mut scales) = (vector, [3.3, 0.7, 9.0, 1.5, 1e-3]);
            fold(&mut folded, &mut scales, dtype);
            assert_eq!(dtype.narrow(&folded[..3]).unwrap().1, folded[..3], "{dtype} holds it");
            for ((old, new), scale) in vector.iter().zip(folded).zip(scales) {
                assert!(
                    (new * scale - old).abs() <= old.abs() * 1e-6,
                    "{dtype} {old} {new} {scale}"
                );
            }
            assert_eq!((folded[2], scales[2]), (0.0, 9.0));
        }
    }

    #[test]
    fn loud_inputs_are_scaled_and_equal_ones_are_not() {
        let rounder = Rounder { grid: Scheme::Int4G32.grid().unwrap(), clips: UNCLIPPED };
        let rows: Vec<f32> =
            (0..64 * 32).map(|n| ((n * 7919 % 1009) as f32 / 504.5) - 1.0).collect();
        let best = |mean: Vec<f32>| {
            let square = mean.iter().map(|mean| mean * mean * 1.5).collect();
            let search = Search::new(&ActivationStats { mean, square });
            let mut costs = [0.0; EXPONENTS];
            search.weigh(&rows, rounder, &mut costs).unwrap();
            search.best(&costs)
        };
        assert_eq!(best(vec![0.5; 32]), [1.0; 32]);
        let mut mean = vec![0.5; 32];
        mean[5] = 40.0;
        let scales = best(mean);
        assert!(scales[5] > 1.5 * scales[4], "{scales:?}");
        let search = Search::new(&ActivationStats { mean: vec![0.0; 32], square: vec![0.0; 32] });
        assert!(search.candidates.iter().flatten().all(|scale| *scale == 1.0), "never fed");
    }
}
