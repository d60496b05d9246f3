//! Gives numbers that follow from a seed, for tests and simulations.
//!
//! A seed gives the same numbers on every machine and for ever: training data are drawn with them, and a test that fails
//! names a seed to play again.  It keeps no secrets, and knows nothing of what is drawn.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number less than `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    #[track_caller]
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "no number is less than 0");
        // Not as `between` does it: of either way there are numbers that must stay as they were.
        (self.next_u64() % end as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `high` is less than `low`.
    #[track_caller]
    pub fn between(&mut self, low: i32, high: i32) -> i32 {
        assert!(low <= high, "{low}..={high} holds no number");
        let count = (i64::from(high) - i64::from(low) + 1) as u64;
        // The high bits of a product: no division, and a bias below 2^-32.
        let at = (u128::from(self.next_u64()) * u128::from(count)) >> 64;
        (i64::from(low) + at as i64) as i32
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: i32) -> bool {
        self.between(0, 99) < percent
    }

    /// True in one of `count` cases.
    ///
    /// # Panics
    /// If `count` is 0.
    #[track_caller]
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }

    /// A number from 0 to 1, without 1.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// A number from -1 to 1, without 1.
    pub fn signed(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// So many numbers from -1 to 1, without 1.
    pub fn noise(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.signed()).collect()
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
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

    const DRAWS: usize = 1000;

    /// As many as tell a share of them.
    fn drawn<T>(mut draw: impl FnMut(&mut Random) -> T) -> Vec<T> {
        let mut random = Random::new(7);
        (0..DRAWS).map(|_| draw(&mut random)).collect()
    }

    #[test]
    fn numbers_are_those_of_the_paper() {
        let mut random = Random::new(0);
        let first = [(); 3].map(|()| random.next_u64());
        assert_eq!(first, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
    }

    /// What was drawn once is drawn again: training data and seeds of simulations depend on it.
    #[test]
    fn a_seed_gives_the_same_for_ever() {
        let mut random = Random::new(7);
        let between = [(); 12].map(|()| random.between(-2, 3));
        assert_eq!(between, [0, -2, 3, 1, 0, -1, 0, -1, -2, 0, -2, 3]);
        let mut random = Random::new(7);
        let below = [(); 12].map(|()| random.below(10));
        assert_eq!(below, [7, 4, 6, 3, 4, 5, 8, 2, 5, 5, 3, 6]);
        let mut items = [0, 1, 2, 3, 4, 5, 6, 7];
        Random::new(1).shuffle(&mut items);
        assert_eq!(items, [0, 3, 7, 1, 2, 6, 5, 4]);
    }

    #[test]
    fn whole_numbers_stay_within_their_ends_and_reach_both() {
        let all = drawn(|random| random.between(-2, 3));
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&-2), Some(&3)));
        let all = drawn(|random| random.below(6));
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&0), Some(&5)));
        assert_eq!(Random::new(1).below(1), 0);
        assert_eq!(Random::new(1).between(i32::MAX, i32::MAX), i32::MAX);
        Random::new(1).between(i32::MIN, i32::MAX);
    }

    #[test]
    fn floats_stay_within_their_ends_and_come_near_both() {
        let all = drawn(Random::unit);
        assert!(all.iter().all(|unit| (0.0..1.0).contains(unit)));
        assert!(all.iter().any(|unit| *unit < 0.01) && all.iter().any(|unit| *unit > 0.99));
        let all = drawn(Random::signed);
        assert!(all.iter().all(|signed| (-1.0..1.0).contains(signed)));
        assert!(
            all.iter().any(|signed| *signed < -0.99) && all.iter().any(|signed| *signed > 0.99)
        );
        assert_eq!(Random::new(7).noise(DRAWS), all);
    }

    #[test]
    fn what_may_be_is_as_frequent_as_it_is_likely() {
        let count = |of: fn(&mut Random) -> bool| drawn(of).iter().filter(|is| **is).count();
        assert!((250..350).contains(&count(|random| random.chance(30))));
        assert!((200..300).contains(&count(|random| random.one_in(4))));
        assert!((450..550).contains(&count(Random::coin)));
        assert_eq!(count(|random| random.chance(0)), 0);
        assert_eq!(count(|random| random.chance(100)), DRAWS);
    }

    #[test]
    fn every_item_is_picked() {
        let picked = drawn(|random| random.pick(&["a", "b", "c"]));
        assert!(["a", "b", "c"].iter().all(|item| picked.contains(item)));
    }

    #[test]
    #[should_panic(expected = "no number is less than 0")]
    fn there_is_none_below_nothing() {
        Random::new(1).below(0);
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
