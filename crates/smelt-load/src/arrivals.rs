//! Says when requests come that do not wait for each other.
//!
//! A rate and a seed in, moments out.  Knows nothing of requests or clocks.

use std::time::Duration;

use crate::prompt::mixed;

/// The moments at which `count` requests come, so many a second on average and each whenever it likes: a
/// Poisson process, whose gaps are exponential.  Equal seeds give equal moments.
pub(crate) fn poisson(per_s: f64, count: usize, seed: u64) -> Vec<Duration> {
    let mut state = seed;
    let mut at = 0.0;
    let next = || {
        // The upper 53 bits as a number from 0 to below 1.
        let drawn = (mixed(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
        at += -(1.0 - drawn).ln() / per_s;
        Duration::try_from_secs_f64(at).unwrap_or(Duration::MAX)
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_as_often_as_said_and_irregularly() {
        let moments = poisson(4.0, 4000, 7);
        assert_eq!(moments, poisson(4.0, 4000, 7));
        assert_ne!(moments, poisson(4.0, 4000, 8));
        let all = moments[3999].as_secs_f64();
        assert!((950.0..1050.0).contains(&all), "{all}");
        let gaps = moments.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
        // Of an exponential distribution as many are longer than the mean as exp(-1).
        let long = gaps.filter(|gap| *gap > 0.25).count();
        assert!((1372..1572).contains(&long), "{long}");
    }
}
