//! Stretches rows of a coarse component over the pixels of the picture.
//!
//! Twice as coarse ones are interpolated between the middles of their samples ("fancy upsampling" of libjpeg: three
//! quarters of the nearer sample, one of the farther, with alternating roundings); others are repeated.

use super::frame::{Component, Frame};

/// Components narrower than this are repeated where others are interpolated across.
const INTERPOLATED_MIN: usize = 3;

/// How the rows of a component become rows of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// They are such already.
    None,
    /// Interpolated across.
    Across,
    /// Interpolated down.
    Down,
    /// Interpolated both ways.
    Both,
    /// Each sample repeated across, each row down.
    Repeat(usize, usize),
}

impl Stretch {
    /// Of a component of `frame`.
    pub(super) fn of(component: &Component, frame: &Frame) -> Self {
        let times = (frame.finest.0 / component.across, frame.finest.1 / component.down);
        let is_wide = component.width >= INTERPOLATED_MIN;
        match times {
            (1, 1) => Self::None,
            (2, 1) if is_wide => Self::Across,
            (1, 2) => Self::Down,
            (2, 2) if is_wide => Self::Both,
            (across, down) => Self::Repeat(across, down),
        }
    }

    /// Whether rows beside the nearest are needed.
    pub(super) fn has_neighbours(self) -> bool {
        matches!(self, Self::Down | Self::Both)
    }

    /// Writes a row of pixels from the nearest row of samples and that on the other side of it, which is the one below if
    /// `is_below`.  `out` has room for every sample as often as it is needed.
    pub(super) fn row(
        self,
        near: &[u8],
        far: &[u8],
        is_below: bool,
        out: &mut [u8],
        sums: &mut Vec<u16>,
    ) {
        match self {
            Self::None => out[..near.len()].copy_from_slice(near),
            Self::Across => across(near, out),
            Self::Down => {
                let rounding = if is_below { 2 } else { 1 };
                for ((out, near), far) in out.iter_mut().zip(near).zip(far) {
                    *out = ((u16::from(*near) * 3 + u16::from(*far) + rounding) >> 2) as u8;
                }
            }
            Self::Both => {
                sums.clear();
                let sum = |(near, far): (&u8, &u8)| u16::from(*near) * 3 + u16::from(*far);
                sums.extend(near.iter().zip(far).map(sum));
                both(sums, out);
            }
            Self::Repeat(across, _) => {
                for (out, sample) in out.chunks_mut(across).zip(near) {
                    out.fill(*sample);
                }
            }
        }
    }
}

/// Twice as many samples across.
fn across(samples: &[u8], out: &mut [u8]) {
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    let out = &mut out[..2 * samples.len()];
    let [begin, inner @ .., end] = out else { return };
    (*begin, *end) = (first, last);
    let pairs = samples.iter().zip(&samples[1..]);
    for ([left, right], (one, other)) in inner.as_chunks_mut().0.iter_mut().zip(pairs) {
        let (one, other) = (u16::from(*one), u16::from(*other));
        *left = ((one * 3 + other + 2) >> 2) as u8;
        *right = ((other * 3 + one + 1) >> 2) as u8;
    }
}

/// Twice as many samples across, of four times their values.
fn both(sums: &[u16], out: &mut [u8]) {
    let (first, last) = (sums[0], sums[sums.len() - 1]);
    let out = &mut out[..2 * sums.len()];
    let [begin, inner @ .., end] = out else { return };
    *begin = ((first * 4 + 8) >> 4) as u8;
    *end = ((last * 4 + 7) >> 4) as u8;
    let pairs = sums.iter().zip(&sums[1..]);
    for ([left, right], (one, other)) in inner.as_chunks_mut().0.iter_mut().zip(pairs) {
        *left = ((one * 3 + other + 7) >> 4) as u8;
        *right = ((other * 3 + one + 8) >> 4) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of the interpolation both ways, pixel by pixel.
    #[test]
    fn pixels_are_between_the_middles_of_samples() {
        let (near, far) = ([0, 200, 255, 3, 90], [16, 0, 255, 70, 91]);
        let mut out = [0; 10];
        Stretch::Both.row(&near, &far, true, &mut out, &mut Vec::new());
        for (x, found) in out.into_iter().enumerate() {
            let sum = |x: usize| u32::from(near[x]) * 3 + u32::from(far[x]);
            let other = if x % 2 == 0 { (x / 2).saturating_sub(1) } else { (x / 2 + 1).min(4) };
            let rounding = if x % 2 == 0 { 8 } else { 7 };
            assert_eq!(u32::from(found), (sum(x / 2) * 3 + sum(other) + rounding) >> 4, "{x}");
        }
        Stretch::Across.row(&near, &far, true, &mut out, &mut Vec::new());
        assert_eq!(out, [0, 50, 150, 214, 241, 192, 66, 25, 68, 90]);
        Stretch::Down.row(&near, &far, true, &mut out, &mut Vec::new());
        assert_eq!(out[..5], [4, 150, 255, 20, 90]);
        Stretch::Repeat(2, 3).row(&near, &far, true, &mut out, &mut Vec::new());
        assert_eq!(out, [0, 0, 200, 200, 255, 255, 3, 3, 90, 90]);
    }
}
