//! Says how far an engine may be from the f32 reference, and what a person reads where it is farther.

use serde::Serialize;
use smelt_model::reference::compare::Comparison;

/// What a comparison must reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Bound {
    /// Lowest cosine of any row.
    cosine_min: f64,
    /// Largest error of any value, as a fraction of its row's largest.
    error_max_of_scale: f64,
}

/// f32 arithmetic over weights that the export may have rounded: f16 of bf16 weights measures 7e-5
/// at 24 layers, bf16 of f32 weights could reach 4e-3.
const ROUNDED_WEIGHTS: Bound = Bound { cosine_min: 0.9999, error_max_of_scale: 5e-3 };
/// The same weights in another order of summation: only rounding differs, 2e-6 at 28 layers.
pub(crate) const SAME_WEIGHTS: Bound = Bound { cosine_min: 0.999_999, error_max_of_scale: 1e-4 };
/// The same weights on a card, whose products, keys and values take halves: tiny models on a card are within a hundredth of
/// scale of the reference.
pub(crate) const HALVES: Bound = Bound { cosine_min: 0.999, error_max_of_scale: 3e-2 };
/// Activations rounded to 8 bits for each run of 32: random weights measure a cosine of 0.9997 and an
/// error of 0.03 of scale.
pub(crate) const ROUNDED_INPUTS: Bound = Bound { cosine_min: 0.995, error_max_of_scale: 0.25 };
/// The same through all layers of a decoder: real weights have channels that are far larger than the others.
/// SmolLM2-135M's Q4_1 measures 0.9938 and an error of 0.05 of scale, random weights 0.9997.
pub(crate) const ROUNDED_DECODER: Bound = Bound { cosine_min: 0.98, error_max_of_scale: 0.25 };
/// int8 measures 0.9993 and better on random weights; the error of a single logit says little
/// about it.
const INT8: Bound = Bound { cosine_min: 0.995, error_max_of_scale: 0.25 };
/// int4 measures 0.70 and better, and 1.3 of scale, on random weights 64 wide, the worst case: nothing
/// in them is redundant.  Logits that have nothing to do with each other have a cosine near 0.
const INT4: Bound = Bound { cosine_min: 0.5, error_max_of_scale: 2.0 };

/// What quantisation may cost a decoder of `scheme`.
pub(crate) fn quantised(scheme: &str) -> Bound {
    if scheme.starts_with("int4") { INT4 } else { INT8 }
}

/// How an engine has the weights of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Number for number.
    Same,
    /// In a smaller type, or in another form.
    Rounded,
    /// In 8 bits, which activations are rounded to as well.
    Quantized,
}

/// What an encoder of pictures may cost.
pub(crate) fn vision(kept: Kept) -> Bound {
    match kept {
        Kept::Same => SAME_WEIGHTS,
        Kept::Rounded => ROUNDED_WEIGHTS,
        Kept::Quantized => ROUNDED_INPUTS,
    }
}

/// What a tower may cost behind a decoder that has the checkpoint's own weights; there may be none.
pub(crate) fn plain(tower: Option<Kept>) -> Bound {
    match tower {
        None | Some(Kept::Same) => SAME_WEIGHTS,
        Some(Kept::Rounded) => ROUNDED_WEIGHTS,
        Some(Kept::Quantized) => ROUNDED_DECODER,
    }
}

/// The same of a decoder that computes in halves.
pub(crate) fn plain_in_halves(tower: Option<Kept>) -> Bound {
    match tower {
        None | Some(Kept::Same | Kept::Rounded) => HALVES,
        Some(Kept::Quantized) => ROUNDED_DECODER,
    }
}

/// One comparison as the artifact records it.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    what: &'static str,
    bound: Bound,
    cosine_min: f64,
    error_max_of_scale: f64,
    worst_position: usize,
    certain: usize,
    agreed: usize,
}

impl Finding {
    pub(crate) fn new(what: &'static str, bound: Bound, comparison: &Comparison) -> Self {
        let top1 = comparison.top1(bound.error_max_of_scale);
        Self {
            what,
            bound,
            cosine_min: comparison.cosine_min,
            error_max_of_scale: comparison.error_max_of_scale,
            worst_position: comparison.worst_position,
            certain: top1.certain,
            agreed: top1.agreed,
        }
    }

    /// What was found, in a line.
    pub(crate) fn line(&self) -> String {
        let Self { what, cosine_min, error_max_of_scale, .. } = self;
        format!("{what}: cosine {cosine_min:.7}, largest error {error_max_of_scale:.2e} of scale")
    }

    /// What a person reads when a finding breaks its bound.
    pub(crate) fn complaint(&self) -> Option<String> {
        let Self { what, bound, cosine_min, error_max_of_scale, worst_position, .. } = self;
        // Written so that a NaN fails too.
        let good =
            *cosine_min >= bound.cosine_min && *error_max_of_scale <= bound.error_max_of_scale;
        (!good).then(|| {
            format!(
                "the engine differs from the f32 reference: {what} have cosine {cosine_min:.6} (at least {}) and an error of {error_max_of_scale:.2e} of scale (at most {:e}), worst at row {worst_position}",
                bound.cosine_min, bound.error_max_of_scale
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding_of(cosine_min: f64, error_max_of_scale: f64) -> Finding {
        Finding {
            what: "logits",
            bound: SAME_WEIGHTS,
            cosine_min,
            error_max_of_scale,
            worst_position: 3,
            certain: 0,
            agreed: 0,
        }
    }

    #[test]
    fn bounds_hold_for_numbers_that_are_none() {
        assert_eq!(finding_of(1.0, 0.0).complaint(), None);
        assert!(finding_of(0.99, 0.0).complaint().is_some());
        assert!(finding_of(1.0, 0.1).complaint().is_some());
        assert!(finding_of(f64::NAN, 0.0).complaint().is_some());
        assert!(finding_of(1.0, f64::NAN).complaint().is_some());
    }

    #[test]
    fn a_tower_in_eight_bits_may_cost_something_behind_any_decoder() {
        assert_eq!(plain(None), SAME_WEIGHTS);
        assert_eq!(plain(Some(Kept::Same)), SAME_WEIGHTS);
        let [rounded, quantized] = [Kept::Rounded, Kept::Quantized].map(|kept| plain(Some(kept)));
        assert!(quantized.cosine_min < rounded.cosine_min, "{quantized:?}");
        assert!(rounded.cosine_min < SAME_WEIGHTS.cosine_min, "{rounded:?}");
        assert_eq!((plain_in_halves(None), plain_in_halves(Some(Kept::Same))), (HALVES, HALVES));
        assert_eq!(plain_in_halves(Some(Kept::Quantized)), quantized);
        assert!(HALVES.cosine_min < rounded.cosine_min && HALVES.cosine_min > quantized.cosine_min);
    }

    #[test]
    fn four_bits_may_cost_more_than_eight() {
        for scheme in smelt_model::quantize::Scheme::WORDS {
            let (bound, is_int4) = (quantised(scheme), scheme.starts_with("int4"));
            assert_eq!(bound.cosine_min < INT8.cosine_min, is_int4, "{scheme}");
        }
    }
}
