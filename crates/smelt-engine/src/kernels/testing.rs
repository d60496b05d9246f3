//! Sizes tests, and compares results with slow, exact ones.
//!
//! Knows nothing of what is tested.

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
