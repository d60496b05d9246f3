//! Counts how large the numbers of a value are, and chooses the range that 8 bits should cover.
//!
//! Magnitudes fall into 2,048 bins of one width.  Where a number lies beyond the last, the width is doubled and
//! neighbours are joined, so that one pass over the numbers is enough.  Pure.

use serde::{Deserialize, Serialize};

/// As many as TensorRT's calibrators count in.
const BINS: usize = 2048;
/// The magnitudes that a signed byte has.
const LEVELS: usize = 128;
/// Of ten thousand numbers, those that [`Method::Percentile`] covers.
const COVERED: u64 = 9_999;
/// Those that [`Method::Entropy`] covers at least.  Where nearly all lies beyond a range, what is told of the rest may be
/// perfect: of numbers from 0.3 to 0.7 the best range by divergence alone would end at 0.3.
const COVERED_LEAST: u64 = 9_990;

/// What stands for a count where bytes say that there is nothing, and there is: so little that no range is worth it which
/// cuts off many, and none is ruled out that cuts off two of a million (as MXNet's and ONNX Runtime's calibrators have it).
const UNTOLD: f64 = 1e-4;

/// How a range is chosen from what was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Where the bytes say the most of the numbers: the least Kullback-Leibler divergence.
    Entropy,
    /// All numbers.
    Max,
    /// All but one of ten thousand.
    Percentile,
}

/// A value held what is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotANumber;

/// How large the numbers of a value are.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    /// Of a bin; 0 as long as all numbers are.
    width: f32,
    min: f32,
    max: f32,
}

impl Histogram {
    /// Of no numbers.
    pub(super) fn new() -> Self {
        Self { counts: vec![0; BINS], width: 0.0, min: f32::INFINITY, max: f32::NEG_INFINITY }
    }

    /// Takes more numbers.  Infinite ones, which hide what a mask covers, do not count.
    ///
    /// # Errors
    /// When one is no number.
    pub(super) fn take(&mut self, numbers: &[f32]) -> Result<(), NotANumber> {
        let mut most = 0.0f32;
        for &number in numbers {
            if number.is_nan() {
                return Err(NotANumber);
            }
            if number.is_finite() {
                most = most.max(number.abs());
                self.min = self.min.min(number);
                self.max = self.max.max(number);
            }
        }
        self.reach(most);
        // Of no width only where all are zero so far.
        let per_width = if self.width > 0.0 { 1.0 / f64::from(self.width) } else { 0.0 };
        for number in numbers.iter().filter(|number| number.is_finite()) {
            let bin = (f64::from(number.abs()) * per_width) as usize;
            self.counts[bin.min(BINS - 1)] += 1;
        }
        Ok(())
    }

    /// Makes bins wide enough for `most`.
    fn reach(&mut self, most: f32) {
        if self.width == 0.0 && most > 0.0 {
            // Of the smallest numbers a 2,048th may be none.
            self.width = (most / BINS as f32).max(f32::MIN_POSITIVE);
        }
        while f64::from(most) > f64::from(self.width) * BINS as f64 {
            for bin in 0..BINS / 2 {
                self.counts[bin] = self.counts[2 * bin] + self.counts[2 * bin + 1];
            }
            self.counts[BINS / 2..].fill(0);
            self.width *= 2.0;
        }
    }

    /// The least and the largest number.
    pub(super) fn bounds(&self) -> [f32; 2] {
        [self.min, self.max]
    }

    fn magnitude(&self) -> f32 {
        self.min.abs().max(self.max.abs())
    }

    /// The magnitude up to which 8 bits should say numbers; those beyond it become the largest byte.
    pub(super) fn threshold(&self, method: Method) -> f32 {
        let edge = |bins: usize| (bins as f32 * self.width).min(self.magnitude());
        match method {
            Method::Max => self.magnitude(),
            Method::Percentile => edge(self.covering(COVERED)),
            Method::Entropy => edge(self.most_telling()),
        }
    }

    /// The first bins that hold so many of ten thousand numbers.
    fn covering(&self, share: u64) -> usize {
        let total: u64 = self.counts.iter().sum();
        let mut below = 0;
        let is_enough = |count: &u64| {
            below += count;
            u128::from(below) * 10_000 >= u128::from(total) * u128::from(share)
        };
        self.counts.iter().position(is_enough).map_or(BINS, |bin| bin + 1)
    }

    /// The first bins that lose the least by being told in bytes (S. Migacz, "8-bit Inference with TensorRT", GTC 2017).
    fn most_telling(&self) -> usize {
        // Numbers that are zero are told by every range: half of all behind a ReLU would hide the others.
        let mut counts = self.counts.clone();
        counts[0] = counts[1];
        let first = self.covering(COVERED_LEAST).max(LEVELS);
        let divergences = (first..=BINS).map(|bins| (divergence(&counts, bins), bins));
        let least = divergences.min_by(|one, other| one.0.total_cmp(&other.0));
        least.filter(|(loss, _)| loss.is_finite()).map_or(BINS, |(_, bins)| bins)
    }
}

/// How much less bytes that cover the first `bins` say than the numbers do, in nats.
fn divergence(counts: &[u64], bins: usize) -> f64 {
    let (inner, outer) = counts.split_at(bins);
    let beyond: u64 = outer.iter().sum();
    let total = inner.iter().sum::<u64>() + beyond;
    let kept: u64 = inner.iter().sum();
    if kept == 0 {
        return f64::INFINITY;
    }
    let mut loss = 0.0;
    for level in 0..LEVELS {
        let [from, to] = [level, level + 1].map(|level| level * bins / LEVELS);
        let group = &inner[from..to];
        let filled = group.iter().filter(|count| **count > 0).count();
        let even = group.iter().sum::<u64>() as f64 / filled.max(1) as f64;
        for (bin, &count) in (from..to).zip(group) {
            // What lies beyond becomes the last.
            let real = count + if bin == bins - 1 { beyond } else { 0 };
            if real == 0 {
                continue;
            }
            let told = if count > 0 { even } else { UNTOLD };
            let real = real as f64 / total as f64;
            loss += real * (real / (told / kept as f64)).ln();
        }
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f32]) -> Histogram {
        let mut histogram = Histogram::new();
        histogram.take(numbers).unwrap();
        histogram
    }

    /// Sums of twelve even numbers: nearly normal, of deviation 1.
    fn normal(count: usize, seed: u64) -> Vec<f32> {
        // Knuth's constants for 64 bits; the upper ones are the better.
        let mut state = seed;
        let mut even = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        (0..count).map(|_| (0..12).map(|_| even()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn bins_grow_with_what_comes_and_lose_no_number() {
        let mut histogram = of(&[0.0, 0.5, -1.0]);
        for power in 0..20 {
            let far = (1u32 << power) as f32;
            histogram.take(&[far, -far]).unwrap();
        }
        assert_eq!(histogram.counts.iter().sum::<u64>(), 43);
        assert_eq!(histogram.threshold(Method::Max), (1u32 << 19) as f32);
        assert_eq!(histogram.bounds(), [-524_288.0, 524_288.0]);
        assert!(histogram.width * BINS as f32 >= 524_288.0);
    }

    #[test]
    fn zeros_and_the_smallest_numbers_have_ranges() {
        for method in [Method::Entropy, Method::Max, Method::Percentile] {
            assert_eq!(of(&[0.0; 9]).threshold(method), 0.0);
            let tiny = of(&[1e-45, 0.0]).threshold(method);
            assert!((0.0..=1e-45).contains(&tiny), "{method:?}: {tiny}");
        }
        assert_eq!(of(&[0.0]).take(&[1.0, f32::NAN]), Err(NotANumber));
        let masked = of(&[f32::NEG_INFINITY, 2.0]);
        assert_eq!((masked.threshold(Method::Max), masked.bounds()), (2.0, [2.0, 2.0]));
    }

    #[test]
    fn a_few_far_numbers_widen_no_range_but_the_largest() {
        let mut numbers = normal(200_000, 7);
        numbers.extend([300.0, -280.0]);
        let histogram = of(&numbers);
        assert_eq!(histogram.threshold(Method::Max), 300.0);
        let percentile = histogram.threshold(Method::Percentile);
        assert!((3.0..5.0).contains(&percentile), "{percentile}");
        let entropy = histogram.threshold(Method::Entropy);
        assert!(entropy < 40.0, "{entropy}");
    }

    /// What a sigmoid gives of numbers around zero: nothing lies below 0.3.
    #[test]
    fn numbers_that_are_all_large_are_covered() {
        let numbers: Vec<f32> = normal(20_000, 3).iter().map(|x| 0.5 + x / 20.0).collect();
        let histogram = of(&numbers);
        let covered = numbers.iter().filter(|x| **x <= histogram.threshold(Method::Entropy));
        assert!(covered.count() * 1000 >= numbers.len() * 999);
    }

    /// Numbers that fill their range are told whole.
    #[test]
    fn even_numbers_are_all_covered() {
        let numbers: Vec<f32> = (0..100_000).map(|n| n as f32 / 1000.0).collect();
        let threshold = of(&numbers).threshold(Method::Entropy);
        assert!(threshold > 98.0, "{threshold}");
    }

    #[test]
    fn the_order_of_what_is_taken_moves_no_threshold_by_more_than_a_bin() {
        let (low, high) = (normal(5_000, 1), normal(5_000, 2).iter().map(|x| x * 8.0).collect());
        let one: Vec<f32> = [low.clone(), high].concat();
        let mut pieces = Histogram::new();
        one.chunks(100).for_each(|chunk| pieces.take(chunk).unwrap());
        let [whole, pieces] = [of(&one), pieces];
        let close = pieces.width.max(whole.width) * 2.0;
        let [a, b] = [&whole, &pieces].map(|it| it.threshold(Method::Percentile));
        assert!((a - b).abs() <= close, "{a} {b}");
    }
}
