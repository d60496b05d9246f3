//! Describes weights stored as integers: which tensors belong together, and what they stand for.
//!
//! A linear weight X `[out, in]` is I8 `[out, in]`, or 4-bit U8 `[out, ceil(in / 2)]` with the even
//! column in the low half.  `X_scale` is `[out]`, or `[out, groups]` where runs of inputs share a
//! scale; `X_zero` U8 `[out, groups]` is there where groups have zero points; `X_order` I32 `[in]`
//! says which input each stored column belongs to where columns were reordered.
//! w = (q - zero) * scale, zero being 8 for 4 bits and 0 for 8 where there is no `X_zero`.
//! Reads no files.

/// The name endings of what belongs to a weight.
pub(crate) const SCALE_SUFFIX: &str = "_scale";
/// See the module.
pub(crate) const ZERO_SUFFIX: &str = "_zero";
/// See the module.
pub(crate) const ORDER_SUFFIX: &str = "_order";

/// The group sizes there are, which a number of groups is enough to tell apart.
const GROUPS: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];

/// How one weight's integers are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// 8 or 4.
    pub(crate) bits: u8,
    /// Inputs that share a scale.
    pub(crate) group: usize,
    /// Scales of a row.
    pub(crate) groups: usize,
    /// Whether groups have zero points.
    pub(crate) has_zero: bool,
    /// Whether columns are stored in another order.
    pub(crate) has_order: bool,
}

impl Form {
    /// Bytes of a row of `width` integers.
    pub(crate) fn row_bytes(self, width: usize) -> usize {
        if self.bits == 4 { width.div_ceil(2) } else { width }
    }

    /// Writes what a row's integers stand for to `out`, columns in the order they are stored in.
    pub(crate) fn restore_row(self, levels: &[u8], scales: &[f32], zeros: &[u8], out: &mut [f32]) {
        if self.bits == 8 {
            out.iter_mut().zip(levels).for_each(|(out, q)| *out = f32::from(q.cast_signed()));
        } else {
            for (out, pair) in out.chunks_mut(2).zip(levels) {
                let pair = [f32::from(pair & 15), f32::from(pair >> 4)];
                out.iter_mut().zip(pair).for_each(|(out, q)| *out = q);
            }
        }
        let plain = if self.bits == 4 { 8 } else { 0 };
        for (index, out) in out.chunks_mut(self.group).enumerate() {
            let (zero, scale) = (zeros.get(index).copied().unwrap_or(plain), scales[index]);
            out.iter_mut().for_each(|value| *value = (*value - f32::from(zero)) * scale);
        }
    }
}

/// The size of `groups` groups of `width` inputs, the last of which may be short.
pub(crate) fn group_size(width: usize, groups: usize) -> Option<usize> {
    if groups == 1 {
        return Some(width);
    }
    GROUPS.into_iter().find(|group| width.div_ceil(*group) == groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_sizes_follow_from_their_number() {
        assert_eq!(group_size(896, 7), Some(128));
        assert_eq!(group_size(900, 8), Some(128));
        assert_eq!(group_size(80, 1), Some(80));
        assert_eq!(group_size(80, 3), Some(32));
        assert_eq!((group_size(80, 4), group_size(80, 0)), (None, None));
    }

    #[test]
    fn rows_are_restored_by_group() {
        let form = Form { bits: 4, group: 2, groups: 2, has_zero: true, has_order: false };
        let mut out = [0.0; 3];
        form.restore_row(&[0xF0, 0x03], &[0.5, 2.0], &[1, 7], &mut out);
        assert_eq!(out, [-0.5, 7.0, -8.0]);
        let form = Form { has_zero: false, ..form };
        form.restore_row(&[0xF0, 0x03], &[0.5, 2.0], &[], &mut out);
        assert_eq!(out, [-4.0, 3.5, -10.0]);
        let form = Form { bits: 8, group: 3, groups: 1, ..form };
        form.restore_row(&[1, 255, 128], &[0.5], &[], &mut out);
        assert_eq!(out, [0.5, -0.5, -64.0]);
    }
}
