//! Finds the largest of a row of logits without sorting the row.

/// A token and its logit, packed so that whole numbers in falling order are larger logits first, then
/// smaller tokens: numbers sort in a fraction of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

impl Candidate {
    pub(super) fn new(token: u32, logit: f32) -> Self {
        // Zeros of either sign are equal; adding zero makes them one.
        let bits = (logit + 0.0).to_bits();
        // Floats as sign and magnitude, to numbers in the same order.
        let rank = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Self(u64::from(!rank) << 32 | u64::from(token))
    }

    pub(super) fn token(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn logit(self) -> f32 {
        let rank = !((self.0 >> 32) as u32);
        f32::from_bits(if rank >> 31 == 1 { rank ^ 1 << 31 } else { !rank })
    }
}

/// Writes the `count` largest of `logits` to `found`, largest first; of equal ones the first.
///
/// One pass: what is larger than the least that counts is collected, and whenever twice as many as are
/// wanted have come, the smaller half is thrown away.
pub(super) fn largest(logits: &[f32], count: usize, found: &mut Vec<Candidate>) {
    found.clear();
    let count = count.min(logits.len());
    if count == 0 {
        return;
    }
    let mut least = f32::NEG_INFINITY;
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > least {
            found.push(Candidate::new(token, logit));
            if found.len() == 2 * count {
                found.select_nth_unstable(count - 1);
                found.truncate(count);
                least = found[count - 1].logit();
            }
        }
    }
    found.sort_unstable();
    found.truncate(count);
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    fn unpacked(found: &[Candidate]) -> Vec<(u32, f32)> {
        found.iter().map(|candidate| (candidate.token(), candidate.logit())).collect()
    }

    #[test]
    fn candidates_give_back_what_they_hold() {
        for logit in [0.0, 1e-40, -1e-40, 2.5, -2.5, f32::MAX, f32::MIN] {
            let candidate = Candidate::new(u32::MAX, logit);
            assert_eq!((candidate.token(), candidate.logit()), (u32::MAX, logit));
        }
    }

    #[test]
    fn the_largest_are_those_of_a_sort() {
        let mut random = Random::new(1);
        for size in [1, 2, 7, 100, 999] {
            // Few different values, so that many are equal.
            let logits: Vec<f32> = (0..size).map(|_| random.below(64) as f32 - 32.0).collect();
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            let mut found = Vec::new();
            for count in [0, 1, 2, 3, 50, 998, 5000] {
                largest(&logits, count, &mut found);
                assert_eq!(unpacked(&found), sorted[..count.min(size)], "{count} of {size}");
            }
        }
    }

    #[test]
    fn of_equal_logits_the_first_count() {
        let mut found = Vec::new();
        largest(&[0.0, 2.0, -1.0, 2.0, 2.0], 2, &mut found);
        assert_eq!(unpacked(&found), [(1, 2.0), (3, 2.0)]);
        // Zeros of either sign are equal, as they are to greedy decoding.
        largest(&[-0.0, 0.0, -0.0], 1, &mut found);
        assert_eq!(unpacked(&found), [(0, 0.0)]);
    }
}
