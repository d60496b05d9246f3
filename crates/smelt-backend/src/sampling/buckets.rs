//! Finds which of a row's tokens count, and draws one of them, where too many count to be sorted.
//!
//! Weights are added up in buckets of logits, from the largest down.  Only the bucket in which the set
//! of tokens ends, and the one in which a draw falls, are put in order.  Knows nothing of settings.

use super::select::Candidate;
use super::weights::{BLOCK, SPAN, fallen, spans, weight};

/// Buckets of a row.  So many hold some tens of tokens each of a usual vocabulary, and their sums
/// stay in the processor's nearest cache.
const BUCKETS: usize = 2048;

/// Logits so far below the largest, divided by the temperature, share the last bucket: together they
/// weigh 1e-8 of the likeliest where there are a million.
const REACH: f32 = 32.0;

/// How logits become weights: `exp((logit - largest) * scale)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) largest: f32,
    /// One over the temperature.
    pub(super) scale: f32,
}

impl Scale {
    pub(super) fn weight(self, logit: f32) -> f32 {
        weight(logit, self.largest, self.scale)
    }
}

/// The tokens of a row that count: all of the buckets before `end`, and so many of that one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    end: usize,
    of_end: usize,
    /// Of them all.
    weight: f64,
}

/// The weights of a row by logit; buffers are kept from row to row.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    weights: Vec<f64>,
    /// Of each [`SPAN`] of buckets.
    spans: Vec<f64>,
    /// Buckets for each unit of logit.
    per_logit: f32,
    /// The first bucket with a token that is too unlikely.
    unlikely: usize,
    /// The bucket in which the kept tokens end, in order.
    last: Vec<Candidate>,
    /// The bucket of a draw, in order.
    drawn: Vec<Candidate>,
}

impl Buckets {
    /// The likeliest tokens of `row` up to where they weigh `enough` together, or the next weighs less
    /// than `weight_min`; at least one.  Of equal logits the smaller token is likelier.
    pub(super) fn keep(&mut self, row: &[f32], scale: Scale, enough: f64, weight_min: f32) -> Kept {
        self.fill(row, scale, weight_min);
        let stop = self.unlikely.min(BUCKETS - 1);
        let (mut before, mut end) = (0.0, 0);
        while end + SPAN <= stop && before + self.spans[end / SPAN] < enough {
            before += self.spans[end / SPAN];
            end += SPAN;
        }
        while end < stop && before + self.weights[end] < enough {
            before += self.weights[end];
            end += 1;
        }
        let mut last = std::mem::take(&mut self.last);
        self.collect(row, scale, end, &mut last);
        let mut weight = before;
        let counts = |candidate: &&Candidate| {
            let own = scale.weight(candidate.logit());
            let does = weight < enough && own >= weight_min;
            weight += if does { f64::from(own) } else { 0.0 };
            does
        };
        let of_end = last.iter().take_while(counts).count();
        self.last = last;
        Kept { end, of_end, weight }
    }

    /// The token at `draw`, zero to one, of the weight of what was kept of `row`, likeliest first.
    pub(super) fn draw(&mut self, row: &[f32], scale: Scale, kept: Kept, draw: f64) -> u32 {
        let spans = &self.spans[..kept.end.div_ceil(SPAN)];
        let (span, mut left) = fallen(spans, draw * kept.weight);
        let begin = span * SPAN;
        let mut found = None;
        for (bucket, &weight) in self.weights[..kept.end].iter().enumerate().skip(begin) {
            if weight > 0.0 {
                found = Some((bucket, left));
                if left <= weight {
                    break;
                }
                left -= weight;
            }
        }
        if found.is_none() && kept.of_end == 0 {
            let last = self.weights[..begin].iter().rposition(|weight| *weight > 0.0);
            found = last.map(|bucket| (bucket, f64::INFINITY));
        }
        let is_before = found.is_some_and(|(bucket, left)| left <= self.weights[bucket]);
        match found {
            // Rounding may leave a little where the last bucket has nothing that counts.
            Some((bucket, left)) if is_before || kept.of_end == 0 => {
                let mut drawn = std::mem::take(&mut self.drawn);
                self.collect(row, scale, bucket, &mut drawn);
                let token = along(&drawn, scale, left);
                self.drawn = drawn;
                token
            }
            _ => along(&self.last[..kept.of_end], scale, left),
        }
    }

    /// All that was kept of `row`, in no order.
    #[cfg(test)]
    pub(super) fn kept(&self, row: &[f32], scale: Scale, kept: Kept) -> Vec<Candidate> {
        let all = (0u32..).zip(row).filter(|(_, logit)| self.bucket(**logit, scale) < kept.end);
        let before = all.map(|(token, logit)| Candidate::new(token, *logit));
        before.chain(self.last[..kept.of_end].iter().copied()).collect()
    }

    fn fill(&mut self, row: &[f32], scale: Scale, weight_min: f32) {
        let least = row.iter().copied().fold(scale.largest, f32::min);
        let range = ((scale.largest - least) * scale.scale).clamp(f32::MIN_POSITIVE, REACH);
        self.per_logit = BUCKETS as f32 * scale.scale / range;
        self.weights.clear();
        self.weights.resize(BUCKETS, 0.0);
        self.unlikely = BUCKETS;
        let mut weights = [0.0; BLOCK];
        for block in row.chunks(BLOCK) {
            for (weight, logit) in weights.iter_mut().zip(block) {
                *weight = scale.weight(*logit);
            }
            for (weight, logit) in weights.iter().zip(block) {
                let bucket = self.bucket(*logit, scale);
                self.weights[bucket] += f64::from(*weight);
                if *weight < weight_min {
                    self.unlikely = self.unlikely.min(bucket);
                }
            }
        }
        self.spans.clear();
        self.spans.extend(spans(&self.weights));
    }

    /// The bucket of a logit: never before that of a larger one.
    fn bucket(&self, logit: f32, scale: Scale) -> usize {
        (((scale.largest - logit) * self.per_logit) as usize).min(BUCKETS - 1)
    }

    /// Writes a bucket's tokens to `found`, likeliest first.
    fn collect(&self, row: &[f32], scale: Scale, bucket: usize, found: &mut Vec<Candidate>) {
        found.clear();
        let of_bucket = |(_, logit): &(u32, &f32)| self.bucket(**logit, scale) == bucket;
        let all = (0u32..).zip(row).filter(of_bucket);
        found.extend(all.map(|(token, logit)| Candidate::new(token, *logit)));
        found.sort_unstable();
    }
}

/// The first of `candidates` up to which they weigh `left`; the last if rounding left a little over.
pub(super) fn along(candidates: &[Candidate], scale: Scale, mut left: f64) -> u32 {
    let mut last = 0;
    for candidate in candidates {
        last = candidate.token();
        left -= f64::from(scale.weight(candidate.logit()));
        if left <= 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::super::weights;
    use super::*;

    /// So many logits of a seed.
    fn row(seed: u64, tokens: usize, steps: f32) -> Vec<f32> {
        let mut random = Random::new(seed);
        let mut part = || random.unit();
        // Sums are likelier in the middle, as logits are.
        (0..tokens)
            .map(|_| ((part() + part() + part()) * steps).round() / steps * 8.0 - 12.0)
            .collect()
    }

    /// What counts of a whole row in order, and what a draw finds in it.
    fn sorted(row: &[f32], scale: Scale, enough: f64, weight_min: f32) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            (0u32..).zip(row).map(|(token, logit)| Candidate::new(token, *logit)).collect();
        all.sort_unstable();
        let mut before = 0.0;
        let counts = |candidate: &&Candidate| {
            let weight = scale.weight(candidate.logit());
            let does = before < enough && weight >= weight_min;
            before += f64::from(weight);
            does
        };
        let count = all.iter().take_while(counts).count();
        all.truncate(count);
        all
    }

    #[test]
    fn what_counts_and_what_is_drawn_is_that_of_a_sorted_row() {
        let mut buckets = Buckets::default();
        for seed in 0..400 {
            let tokens = [1, 2, 70, 900, 5000][seed as usize % 5];
            let row = row(seed, tokens, [2.0, 60.0, 1e6][seed as usize % 3]);
            let largest = weights::largest(&row).unwrap();
            let scale = Scale { largest, scale: [0.5, 1.0, 20.0][seed as usize / 5 % 3] };
            let all: f64 = row.iter().map(|logit| f64::from(scale.weight(*logit))).sum();
            let enough = [0.95 * all, 0.3 * all, f64::INFINITY][seed as usize / 3 % 3];
            let weight_min = [0.0, 0.2, 0.001][seed as usize / 7 % 3];
            let expect = sorted(&row, scale, enough, weight_min);
            let kept = buckets.keep(&row, scale, enough, weight_min);
            let mut found = buckets.kept(&row, scale, kept);
            found.sort_unstable();
            assert_eq!(found, expect, "{seed}");
            let weight: f64 = expect.iter().map(|c| f64::from(scale.weight(c.logit()))).sum();
            for step in 0..40 {
                let draw = (f64::from(step) + 0.317) / 40.0;
                let token = buckets.draw(&row, scale, kept, draw);
                assert_eq!(token, along(&expect, scale, draw * weight), "{seed} {draw}");
            }
        }
    }

    /// Only one or two buckets are put in order, so all must be small, at any temperature.
    #[test]
    fn no_bucket_has_many_of_a_row() {
        let row = row(1, 100_000, 1e6);
        let largest = weights::largest(&row).unwrap();
        for temperature in [0.5, 1.0, 4.0] {
            let scale = Scale { largest, scale: 1.0 / temperature };
            let mut buckets = Buckets::default();
            buckets.keep(&row, scale, f64::INFINITY, 0.0);
            let mut counts = vec![0; BUCKETS];
            // What hardly weighs anything shares the last.
            let weighs = |logit: &&f32| (largest - **logit) * scale.scale < REACH;
            row.iter().filter(weighs).for_each(|l| counts[buckets.bucket(*l, scale)] += 1);
            let most = counts.iter().max().unwrap();
            // Three equal parts added up are at most 9/4 times as dense as evenly spread ones.
            assert!((1..=4 * row.len() / BUCKETS).contains(most), "{most} at {temperature}");
        }
    }

    #[test]
    fn a_draw_at_either_end_is_of_what_counts() {
        let row = row(1, 3000, 1e6);
        let scale = Scale { largest: weights::largest(&row).unwrap(), scale: 1.0 };
        let mut buckets = Buckets::default();
        for weight_min in [0.0, 0.01, 0.5, 1.0] {
            let kept = buckets.keep(&row, scale, f64::INFINITY, weight_min);
            let all = buckets.kept(&row, scale, kept);
            for draw in [f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0] {
                let token = buckets.draw(&row, scale, kept, draw);
                assert!(all.iter().any(|candidate| candidate.token() == token), "{weight_min}");
            }
        }
    }

    /// Weights that were rounded up as they were added up leave the largest draw behind all buckets.
    #[test]
    fn what_rounding_leaves_over_is_of_the_last_that_counts() {
        let mut buckets = Buckets::default();
        for seed in 0..50 {
            let mut random = Random::new(seed);
            // Only the first is too unlikely, and the bucket before its own is empty.
            let mut row = vec![-26.5, 0.0];
            row.extend((0..50).map(|_| -24.0 - random.unit()));
            let scale = Scale { largest: 0.0, scale: 1.0 };
            let kept = buckets.keep(&row, scale, f64::INFINITY, 1e-11);
            let token = buckets.draw(&row, scale, kept, 1.0 - f64::EPSILON / 2.0);
            assert_ne!(token, 0, "{seed}");
        }
    }
}
