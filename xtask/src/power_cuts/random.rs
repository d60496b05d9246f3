//! Gives numbers that follow from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number less than `count`, which is not 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        // The high half of a product; its bias is far below what a few hundred draws show.
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// Heads or tails.
    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}
