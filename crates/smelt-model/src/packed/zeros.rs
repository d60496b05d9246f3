//! Decides what stored zeros mean.
//!
//! The set of all stored zeros and the configuration's label come in, the shift to the real zeros
//! comes out, with a warning where the label cannot be right.  A pure decision; reads nothing.

/// What a configuration says of stored zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// They are the zeros: AWQ, compressed-tensors.
    Real,
    /// GPTQ of version 1: one less than the zeros.
    GptqV1,
    /// GPTQ of version 2: the zeros; may be a mistake, since tools have confused the two.
    GptqV2,
}

/// The stored zeros that occur.
#[derive(Clone, Debug)]
pub(crate) struct StoredZeros([bool; 256]);

impl Default for StoredZeros {
    fn default() -> Self {
        Self([false; 256])
    }
}

impl StoredZeros {
    /// Takes note of a stored zero.
    pub(crate) fn note(&mut self, zero: u8) {
        self.0[usize::from(zero)] = true;
    }

    /// The only zero that occurs.
    fn only(&self) -> Option<u8> {
        let mut seen = (0..=u8::MAX).filter(|&zero| self.0[usize::from(zero)]);
        seen.next().filter(|_| seen.next().is_none())
    }
}

/// What stored zeros mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// Added to a stored zero, modulo the number of quants, it gives the real one.
    pub(crate) shift: u8,
    /// Whether every real zero is the middle quant, so that none need be kept.
    pub(crate) is_symmetric: bool,
    /// What to tell the user.
    pub(crate) warning: Option<&'static str>,
}

/// Said of version 2 zeros under the label of version 1: vllm#38966.
const V2_AS_V1: &str = "the zeros are those of GPTQ version 2 although checkpoint_format says \
    \"gptq\"; they are read as version 2 (every zero would be off by one level otherwise)";

/// Said of version 1 zeros under the label of version 2: vllm#26092.
const V1_AS_V2: &str = "the zeros are those of GPTQ version 1 although checkpoint_format says \
    \"gptq_v2\"; they are read as version 1 (every zero would be off by one level otherwise)";

/// Decides from all zeros of a checkpoint of `bits`-bit quants.
///
/// Zeros that are all alike are the middle quant: no range of real weights puts every group's zero
/// beside it.  So one value tells the versions apart, whatever the label; several values cannot,
/// and the label is followed.
pub(crate) fn judge(seen: &StoredZeros, label: Label, bits: u32) -> Meaning {
    let middle = 1_u8 << (bits - 1);
    let shift = u8::from(label == Label::GptqV1);
    let meaning = |shift, is_symmetric, warning| Meaning { shift, is_symmetric, warning };
    match (seen.only(), label) {
        (Some(zero), _) if zero == middle - shift => meaning(shift, true, None),
        (Some(zero), Label::GptqV1) if zero == middle => meaning(0, true, Some(V2_AS_V1)),
        (Some(zero), Label::GptqV2) if zero == middle - 1 => meaning(1, true, Some(V1_AS_V2)),
        _ => meaning(shift, false, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(zeros: &[u8], label: Label, bits: u32, shift: u8, symmetric: bool, warns: bool) {
        let mut seen = StoredZeros::default();
        zeros.iter().for_each(|&zero| seen.note(zero));
        let meaning = judge(&seen, label, bits);
        let found = (meaning.shift, meaning.is_symmetric, meaning.warning.is_some());
        assert_eq!(found, (shift, symmetric, warns), "{zeros:?} {label:?}");
    }

    #[test]
    fn labels_that_fit_are_followed() {
        check(&[7, 7], Label::GptqV1, 4, 1, true, false);
        check(&[8, 8], Label::GptqV2, 4, 0, true, false);
        check(&[8], Label::Real, 4, 0, true, false);
        check(&[127], Label::GptqV1, 8, 1, true, false);
        check(&[128], Label::GptqV2, 8, 0, true, false);
    }

    #[test]
    fn symmetric_zeros_under_the_wrong_label_are_read_rightly() {
        check(&[8, 8], Label::GptqV1, 4, 0, true, true);
        check(&[7], Label::GptqV2, 4, 1, true, true);
        check(&[128], Label::GptqV1, 8, 0, true, true);
    }

    #[test]
    fn zeros_that_differ_follow_the_label() {
        check(&[7, 8], Label::GptqV1, 4, 1, false, false);
        check(&[7, 8], Label::GptqV2, 4, 0, false, false);
        check(&[3], Label::Real, 4, 0, false, false);
        check(&[7], Label::Real, 4, 0, false, false);
    }
}
