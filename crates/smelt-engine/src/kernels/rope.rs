//! Rotates heads by their position (rotary embedding, rotate-half form).

use serde::{Deserialize, Serialize};
use smelt_backend::position_ids::PositionId;
use smelt_tensor::decoder;

/// Cosines and sines of one place for heads of `2 * len` numbers.
pub(crate) struct CosSin {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// How frequencies were stretched for longer texts (`rope_type` `llama3`), as `engine.json` keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llama3 {
    /// What waves longer than the original positions hold `low` times are slowed by.
    pub factor: f64,
    /// Waves that the original positions hold less often than this are slowed by the whole factor.
    pub low: f64,
    /// Waves that the original positions hold this often keep their frequency.
    pub high: f64,
    /// Positions that the model was first trained for.
    pub original_positions: f64,
}

impl Llama3 {
    /// Whether every frequency it gives is a positive number.
    pub(crate) fn is_sound(&self) -> bool {
        let all = [self.factor, self.low, self.high, self.original_positions];
        all.iter().all(|value| value.is_finite() && *value > 0.0) && self.high > self.low
    }

    /// The formula of `_compute_llama3_parameters` in transformers, by wavelength.
    fn scaled(&self, frequency: f64) -> f64 {
        let wave = std::f64::consts::TAU / frequency;
        let keep = (self.original_positions / wave - self.low) / (self.high - self.low);
        let keep = keep.clamp(0.0, 1.0);
        frequency * (keep + (1.0 - keep) / self.factor)
    }
}

/// How frequencies were stretched by YaRN (`rope_type` `yarn`), as `engine.json` keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// What slow waves are slowed by further.
    pub factor: f64,
    /// Positions that the model was first trained for.
    pub original_positions: f64,
    /// Waves that the original positions hold this often keep their frequency.
    pub fast: f64,
    /// Waves that they hold less often than this are slowed.
    pub slow: f64,
    /// Whether the borders between are moved to whole pairs.
    pub whole: bool,
    /// What cosines and sines are multiplied by.
    pub attention: f64,
}

impl Yarn {
    /// Whether every frequency it gives is a positive number.
    pub(crate) fn is_sound(&self) -> bool {
        let all = [self.factor, self.original_positions, self.fast, self.slow, self.attention];
        all.iter().all(|value| value.is_finite() && *value > 0.0) && self.fast >= self.slow
    }

    /// The formula of `_compute_yarn_parameters` in transformers, for pair `i` of `pairs`.
    fn scaled(&self, frequency: f64, i: usize, pairs: usize, theta: f64) -> f64 {
        let width = 2.0 * pairs as f64;
        // The pair whose wave the original positions hold so often.
        let held = |times: f64| {
            let wave = self.original_positions / times;
            width * (wave / std::f64::consts::TAU).ln() / (2.0 * theta.ln())
        };
        let mut ends = [held(self.fast), held(self.slow)];
        if self.whole {
            ends = [ends[0].floor(), ends[1].ceil()];
        }
        let [first, last] = [ends[0].max(0.0), ends[1].min(width - 1.0)];
        let span = if first == last { 0.001 } else { last - first };
        let slowed = ((i as f64 - first) / span).clamp(0.0, 1.0);
        frequency * (1.0 - slowed + slowed / self.factor)
    }
}

/// How frequencies were stretched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scaling {
    Linear(f64),
    Llama3(Llama3),
    Yarn(Yarn),
}

/// Which of a token's three positions (time, height, width) turns which pair of a head (M-RoPE), as
/// `engine.json` keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sections {
    /// Pairs of time, height and width.
    pub sizes: [usize; 3],
    /// Whether the three take turns instead of lying one after another.
    pub interleaved: bool,
}

impl Sections {
    /// Whether they are the pairs of a head of `head_dim` numbers.
    pub(crate) fn fit(&self, head_dim: usize) -> bool {
        let sum = self.sizes.iter().try_fold(0, |sum: usize, size| sum.checked_add(*size));
        sum == Some(head_dim / 2)
    }

    /// Which position turns each pair.
    fn axes(&self) -> Vec<usize> {
        decoder::Sections { sizes: self.sizes, is_interleaved: self.interleaved }.axes()
    }
}

impl From<decoder::Sections> for Sections {
    fn from(sections: decoder::Sections) -> Self {
        Self { sizes: sections.sizes, interleaved: sections.is_interleaved }
    }
}

/// How heads are turned: for each pair the angle per position, and which position.
#[derive(Debug)]
pub(crate) struct RotaryEmbedding {
    frequencies: Vec<f32>,
    /// 0 time, 1 height, 2 width.
    axes: Vec<usize>,
    /// What cosines and sines are multiplied by.
    attention: f32,
}

impl RotaryEmbedding {
    /// Those of heads of `head_dim` numbers; without `sections`, the first position turns all pairs.
    pub(crate) fn new(
        head_dim: usize,
        theta: f64,
        scaling: Option<Scaling>,
        sections: Option<Sections>,
    ) -> Self {
        let axes = sections.map_or_else(|| vec![0; head_dim / 2], |sections| sections.axes());
        let attention = match scaling {
            Some(Scaling::Yarn(yarn)) => yarn.attention as f32,
            Some(Scaling::Linear(_) | Scaling::Llama3(_)) | None => 1.0,
        };
        Self { frequencies: frequencies(head_dim, theta, scaling), axes, attention }
    }
}

/// Angles per position, `theta^(-2i / head_dim)` scaled, rounded to f32 as models were trained.
fn frequencies(head_dim: usize, theta: f64, scaling: Option<Scaling>) -> Vec<f32> {
    let plain = |i: usize| theta.powf(-(2.0 * i as f64) / head_dim as f64);
    let scaled = |i: usize| match scaling {
        None => plain(i),
        Some(Scaling::Linear(factor)) => plain(i) / factor,
        Some(Scaling::Llama3(by)) => by.scaled(plain(i)),
        Some(Scaling::Yarn(by)) => by.scaled(plain(i), i, head_dim / 2, theta),
    };
    (0..head_dim / 2).map(|i| scaled(i) as f32).collect()
}

impl CosSin {
    /// Angles `position * frequency`, rounded to f32 where the usual implementations round.
    pub(crate) fn new(position_id: PositionId, rotary: &RotaryEmbedding) -> Self {
        let half = rotary.frequencies.len();
        let angle = |i: usize| rotary.frequencies[i] * position_id[rotary.axes[i]] as f32;
        let (sin, cos) =
            (0..half).map(|i| (f64::from(angle(i))).sin_cos()).unzip::<f64, f64, Vec<_>, Vec<_>>();
        let narrow = |wide: Vec<f64>| {
            wide.into_iter().map(|value| value as f32 * rotary.attention).collect()
        };
        Self { cos: narrow(cos), sin: narrow(sin) }
    }

    /// Rotates one head in place: pairs are `(i, i + head_dim / 2)`.
    pub(crate) fn apply(&self, head: &mut [f32]) {
        let (first, second) = head.split_at_mut(self.cos.len());
        for (i, (a, b)) in first.iter_mut().zip(second).enumerate() {
            let (cos, sin) = (self.cos[i], self.sin[i]);
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rotation of heads of four numbers at one position.
    fn plain(position: u32, theta: f64) -> CosSin {
        CosSin::new([position; 3], &RotaryEmbedding::new(4, theta, None, None))
    }

    #[test]
    fn each_pair_is_turned_by_its_own_position() {
        for (interleaved, axes) in [(false, [0, 0, 1, 2]), (true, [0, 1, 2, 0])] {
            let sections = Sections { sizes: [2, 1, 1], interleaved };
            assert!(sections.fit(8) && !sections.fit(10));
            let rotary = RotaryEmbedding::new(8, 100.0, None, Some(sections));
            let position_id = [3, 5, 11];
            let found = CosSin::new(position_id, &rotary);
            for (pair, axis) in axes.into_iter().enumerate() {
                let angle = f64::from(position_id[axis]) * f64::from(rotary.frequencies[pair]);
                assert!((f64::from(found.cos[pair]) - angle.cos()).abs() < 1e-6, "{pair}");
                assert!((f64::from(found.sin[pair]) - angle.sin()).abs() < 1e-6, "{pair}");
            }
        }
    }

    #[test]
    fn position_zero_changes_nothing() {
        let mut head = [1.0, -2.0, 3.0, 4.0];
        plain(0, 1e6).apply(&mut head);
        assert_eq!(head, [1.0, -2.0, 3.0, 4.0]);
    }

    #[test]
    fn pairs_are_turned_by_their_angle() {
        let mut head = [1.0, 1.0, 0.0, 0.0];
        plain(3, 100.0).apply(&mut head);
        let expect = [3f64.cos(), 0.3f64.cos(), 3f64.sin(), 0.3f64.sin()];
        for (got, expect) in head.iter().zip(expect) {
            assert!((f64::from(*got) - expect).abs() < 1e-6);
        }
    }

    #[test]
    fn llama3_slows_long_waves_only() {
        let by = Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_positions: 64.0 };
        // Waves of 6 positions stay, of 32 are blended, of 167 are slowed.
        let expect = [1.0, 0.079_403_01, 0.004_700_754, 0.000_911_583_1];
        for (got, expect) in frequencies(16, 5e5, Some(Scaling::Llama3(by))).into_iter().zip(expect)
        {
            assert!((got - expect).abs() < 1e-6 * expect, "{got} {expect}");
        }
        assert!(by.is_sound() && !Llama3 { high: 1.0, ..by }.is_sound());
    }

    #[test]
    fn products_depend_on_the_distance_alone() {
        let turned = |position: u32, head: [f32; 4]| {
            let mut head = head;
            plain(position, 1e4).apply(&mut head);
            head
        };
        let dot = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (q, k) = ([0.3, -1.0, 0.7, 2.0], [1.5, 0.2, -0.4, 0.9]);
        let near = dot(turned(7, q), turned(4, k));
        let far = dot(turned(107, q), turned(104, k));
        assert!((near - far).abs() < 1e-4);
    }
}
