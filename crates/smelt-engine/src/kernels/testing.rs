//! Makes reproducible test numbers and compares results with slow, exact ones.
//!
//! Knows nothing of what is tested.

/// A small generator (splitmix64), the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A number in -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// `all` rounds of a test; a few of them under Miri, which takes a thousand times as long for each.
pub(crate) fn rounds(all: usize) -> usize {
    if cfg!(miri) { all.div_ceil(40) } else { all }
}

/// The bound `all` of a random size; a smaller one under Miri.
pub(crate) fn size(all: usize) -> usize {
    if cfg!(miri) { all.div_ceil(8) } else { all }
}

/// Fails unless every number is within `tolerance` of the largest expected one.
#[track_caller]
pub(crate) fn close(got: &[f32], expect: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expect.len(), "{what}: length");
    let scale = expect.iter().fold(1e-30f64, |scale, value| scale.max(value.abs()));
    for (index, (&got, &expect)) in got.iter().zip(expect).enumerate() {
        let apart = (f64::from(got) - expect).abs();
        assert!(apart <= tolerance * scale, "{what}: [{index}] is {got}, not {expect}");
    }
}
