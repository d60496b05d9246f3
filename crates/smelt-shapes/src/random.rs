//! Gives whole numbers that follow from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `high` is less than `low`.
    pub fn between(&mut self, low: i32, high: i32) -> i32 {
        assert!(low <= high, "{low}..={high} holds no number");
        let count = (i64::from(high) - i64::from(low) + 1) as u64;
        // The high bits of a product: no division, and a bias below 2^-32.
        let at = (u128::from(self.next()) * u128::from(count)) >> 64;
        (i64::from(low) + at as i64) as i32
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: i32) -> bool {
        self.between(0, 99) < percent
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.between(0, items.len() as i32 - 1) as usize]
    }

    /// Puts `items` in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.between(0, last as i32) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_between_and_reach_both_ends() {
        let mut random = Random::new(7);
        let all: Vec<i32> = (0..1000).map(|_| random.between(-2, 3)).collect();
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&-2), Some(&3)));
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<i32> = (0..50).collect();
        Random::new(1).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
