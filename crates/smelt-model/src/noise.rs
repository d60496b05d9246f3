//! Numbers without a pattern for tests, always the same ones.

/// `len` numbers from -1 to 1 that `seed` begins.
pub(crate) fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
