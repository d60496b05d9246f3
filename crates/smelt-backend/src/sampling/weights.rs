//! Adds up exponentials of a row of logits, fast and the same on every machine.
//!
//! Only additions, multiplications and comparisons of single floats, in a fixed order: compilers
//! make vectors of them, and no mathematics library has a say.

/// Logits whose exponentials are added up as singles before they are added to a double.
pub(super) const BLOCK: usize = 64;

/// Weights of blocks, or of buckets, that are added up among themselves: threads of a device add spans at once, and a draw
/// goes from span to span.
pub(super) const SPAN: usize = 64;

/// Sums kept side by side, so that they fit vectors of every machine.
const LANES: usize = 16;

/// Below this an exponential is that of this: 1e-38, nothing beside the largest, which is one.
const EXPONENT_MIN: f32 = -87.0;

/// The largest of `logits`, unless one is infinite or not a number, or there is none.
pub(super) fn largest(logits: &[f32]) -> Option<f32> {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    // Zero times what is not finite is not a number, and remains so.
    let mut faults = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = if chunk[lane] > largest[lane] { chunk[lane] } else { largest[lane] };
            faults[lane] += chunk[lane] * 0.0;
        }
    }
    let largest = largest.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max);
    let faults: f32 = faults.into_iter().chain(rest.iter().map(|logit| logit * 0.0)).sum();
    (faults == 0.0 && !logits.is_empty()).then_some(largest)
}

/// Writes the weight of each block of [`BLOCK`] logits to `blocks`; returns the weight of all.
///
/// The weight of a logit is `exp((logit - largest) * scale)`.
pub(super) fn sum(logits: &[f32], largest: f32, scale: f32, blocks: &mut Vec<f64>) -> f64 {
    blocks.clear();
    blocks.extend(logits.chunks(BLOCK).map(|block| block_sum(block, largest, scale)));
    spans(blocks).sum()
}

/// The sum of each [`SPAN`] of weights, whose halves are added to each other until one is left.
pub(super) fn spans(weights: &[f64]) -> impl Iterator<Item = f64> {
    weights.chunks(SPAN).map(|span| {
        let mut sums = [0.0; SPAN];
        sums[..span.len()].copy_from_slice(span);
        let mut len = SPAN;
        while len > 1 {
            len /= 2;
            for at in 0..len {
                sums[at] += sums[at + len];
            }
        }
        sums[0]
    })
}

/// Which of these weights a draw falls on, the last where it is beyond; what is left of it there.
pub(super) fn fallen(weights: &[f64], draw: f64) -> (usize, f64) {
    let (mut at, mut left) = (0, draw);
    while at + 1 < weights.len() && left > weights[at] {
        left -= weights[at];
        at += 1;
    }
    (at, left)
}

fn block_sum(block: &[f32], largest: f32, scale: f32) -> f64 {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += weight(chunk[lane], largest, scale);
        }
    }
    for (sum, logit) in sums.iter_mut().zip(rest) {
        *sum += weight(*logit, largest, scale);
    }
    f64::from(sums.iter().sum::<f32>())
}

/// The weight of one logit beside the largest: at most one.
#[inline]
pub(super) fn weight(logit: f32, largest: f32, scale: f32) -> f32 {
    exp((logit - largest) * scale)
}

/// The exponential of a number that is not positive, right to two units in the last place.
///
/// As Cephes (`expf.c`): a power of two times the exponential of what is left of at most ln(2) / 2, which
/// is a polynomial.
#[inline]
fn exp(x: f32) -> f32 {
    /// Adding this leaves a whole number in the lowest bits: 1.5 * 2^23.
    const ROUND: f32 = 12_582_912.0;
    /// ln(2) in two parts, the first with few bits, so that its multiples are exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x > EXPONENT_MIN { x } else { EXPONENT_MIN };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let twos = rounded - ROUND;
    let rest = (x - twos * LN2[0]) - twos * LN2[1];
    let mut series = 1.987_569_1e-4;
    for factor in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        series = series * rest + factor;
    }
    let series = (series * rest) * rest + rest + 1.0;
    let power = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    series * f32::from_bits(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_the_last_places() {
        for step in 0..870_000 {
            let x = -(step as f32) / 10_000.0;
            let expect = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expect).abs() / expect;
            assert!(error < 2.4e-7, "exp({x}) is off by {error}");
        }
        assert_eq!((exp(0.0), exp(-1e30)), (1.0, exp(EXPONENT_MIN)));
    }

    #[test]
    fn sums_are_those_of_doubles_whatever_the_length() {
        for count in [1usize, 2, 15, 16, 17, 63, 64, 65, 1000, 1337, 4096, 9001] {
            let logits: Vec<f32> = (0..count).map(|i| ((i * 37) % 101) as f32 / 7.0).collect();
            let largest = largest(&logits).unwrap();
            let expect: f64 = logits.iter().map(|l| f64::from((l - largest) * 0.5).exp()).sum();
            let mut blocks = Vec::new();
            let total = sum(&logits, largest, 0.5, &mut blocks);
            assert!((total - expect).abs() < 1e-6 * expect, "{count}: {total} {expect}");
            assert_eq!(blocks.len(), count.div_ceil(BLOCK));
        }
    }

    #[test]
    fn what_is_not_finite_is_found_anywhere() {
        assert_eq!(largest(&[]), None);
        for count in [1, 16, 40] {
            for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for place in 0..count {
                    let mut logits = vec![-3.0; count];
                    assert_eq!(largest(&logits), Some(-3.0));
                    logits[place] = fault;
                    assert_eq!(largest(&logits), None, "{fault} at {place} of {count}");
                }
            }
        }
    }
}
