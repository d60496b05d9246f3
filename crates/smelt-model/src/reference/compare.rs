//! Compares an engine's logits with the reference's.
//!
//! Two matrices of logits come in, numbers per position come out; which numbers pass is the
//! caller's bound.  Reads nothing and knows no engine.

/// What the comparison of one position found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// Cosine of the two rows of logits; -1 if the engine's row is not finite.
    pub cosine: f64,
    /// Largest difference of one logit, over the reference row's largest absolute logit.
    pub error_of_scale: f64,
    /// The reference's best logit less its second best, on the same scale.
    pub margin_of_scale: f64,
    /// Whether both rows have the same best token.
    pub top1_agrees: bool,
}

/// What the comparison of all positions found.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The lowest cosine of any position.
    pub cosine_min: f64,
    /// The largest error of any position, as a fraction of that position's scale.
    pub error_max_of_scale: f64,
    /// The position with that error.
    pub worst_position: usize,
    /// Every position, in order.
    pub positions: Vec<Position>,
}

impl Comparison {
    /// Positions where the reference is certain of its best token, and how many of them agree.
    ///
    /// An error of `bound_of_scale` on each of two logits can swap them if they are closer than
    /// twice that, so only wider margins count.
    pub fn top1(&self, bound_of_scale: f64) -> Top1 {
        let certain = || self.positions.iter().filter(|p| p.margin_of_scale > 2.0 * bound_of_scale);
        Top1 { certain: certain().count(), agreed: certain().filter(|p| p.top1_agrees).count() }
    }
}

/// How often the best tokens agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top1 {
    /// Positions whose margin is wide enough to ask.
    pub certain: usize,
    /// Those of them where the engine has the same best token.
    pub agreed: usize,
}

/// Why two sets of logits cannot be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// There is nothing to compare, or not whole rows.
    #[error("the reference's {reference} logits are not rows of {vocab}")]
    NotRows {
        /// Logits of the reference.
        reference: usize,
        /// Length of a row.
        vocab: usize,
    },
    /// The two differ in number.
    #[error("the engine gave {engine} logits where the reference has {reference}")]
    Lengths {
        /// Logits of the engine.
        engine: usize,
        /// Logits of the reference.
        reference: usize,
    },
    /// The reference itself overflowed.
    #[error(
        "the reference's logits at position {position} are not finite; the checkpoint is damaged"
    )]
    NotFinite {
        /// The position.
        position: usize,
    },
}

/// Compares rows of `vocab` logits, `[positions, vocab]` each.
///
/// # Errors
/// [`CompareError`] if the two are not rows of the same number, or the reference is not finite.
/// An engine that is not finite is no error but as wrong as can be.
pub fn compare(
    reference: &[f32],
    engine: &[f32],
    vocab: usize,
) -> Result<Comparison, CompareError> {
    if reference.is_empty() || vocab == 0 || !reference.len().is_multiple_of(vocab) {
        return Err(CompareError::NotRows { reference: reference.len(), vocab });
    }
    if reference.len() != engine.len() {
        return Err(CompareError::Lengths { engine: engine.len(), reference: reference.len() });
    }
    if let Some(index) = reference.iter().position(|x| !x.is_finite()) {
        return Err(CompareError::NotFinite { position: index / vocab });
    }
    let rows = reference.chunks(vocab).zip(engine.chunks(vocab));
    Ok(summary(rows.map(|(reference, engine)| position(reference, engine)).collect()))
}

fn summary(positions: Vec<Position>) -> Comparison {
    let worse = |worst: usize, (index, position): (usize, &Position)| {
        if position.error_of_scale > positions[worst].error_of_scale { index } else { worst }
    };
    let worst_position = positions.iter().enumerate().fold(0, worse);
    Comparison {
        cosine_min: positions.iter().map(|p| p.cosine).fold(f64::INFINITY, f64::min),
        error_max_of_scale: positions[worst_position].error_of_scale,
        worst_position,
        positions,
    }
}

fn position(reference: &[f32], engine: &[f32]) -> Position {
    let scale = reference.iter().fold(0.0, |scale: f64, x| scale.max(f64::from(*x).abs()));
    let (best, margin) = best(reference);
    // A reference of zeros has no scale; any difference from it is then infinite.
    let of_scale = |x: f64| if x == 0.0 { 0.0 } else { x / scale };
    let margin_of_scale = of_scale(margin);
    if engine.iter().any(|x| !x.is_finite()) {
        let error_of_scale = f64::INFINITY;
        return Position { cosine: -1.0, error_of_scale, margin_of_scale, top1_agrees: false };
    }
    let pairs = || reference.iter().zip(engine).map(|(r, e)| (f64::from(*r), f64::from(*e)));
    let error = pairs().fold(0.0, |error: f64, (r, e)| error.max((r - e).abs()));
    Position {
        cosine: cosine(pairs()),
        error_of_scale: of_scale(error),
        margin_of_scale,
        top1_agrees: self::best(engine).0 == best,
    }
}

/// The first index of the largest value, and how far the next value is below it.
fn best(row: &[f32]) -> (usize, f64) {
    let (mut best, mut first, mut second) = (0, f64::NEG_INFINITY, f64::NEG_INFINITY);
    for (index, value) in row.iter().map(|x| f64::from(*x)).enumerate() {
        if value > first {
            (best, first, second) = (index, value, first);
        } else {
            second = second.max(value);
        }
    }
    (best, first - second)
}

fn cosine(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut dot, mut left, mut right) = (0.0, 0.0, 0.0);
    for (r, e) in pairs {
        dot += r * e;
        left += r * r;
        right += e * e;
    }
    match (left == 0.0, right == 0.0) {
        (true, true) => 1.0,
        (false, false) => dot / (left.sqrt() * right.sqrt()),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: [f32; 6] = [1.0, -4.0, 2.0, 0.5, 8.0, 7.9];

    fn found(engine: &[f32]) -> Comparison {
        compare(&REFERENCE, engine, 3).unwrap()
    }

    #[test]
    fn equal_logits_have_no_error() {
        let same = found(&REFERENCE);
        assert!((same.cosine_min - 1.0).abs() < 1e-12);
        assert_eq!(same.error_max_of_scale, 0.0);
        assert_eq!(same.top1(0.0), Top1 { certain: 2, agreed: 2 });
    }

    #[test]
    fn the_error_is_a_fraction_of_its_own_rows_scale() {
        let worst = found(&[1.0, -4.0, 2.5, 0.5, 8.0, 7.9]);
        assert_eq!((worst.worst_position, worst.error_max_of_scale), (0, 0.125));
        let worst = found(&[1.0, -4.0, 2.5, 0.5, 10.0, 7.9]);
        assert_eq!((worst.worst_position, worst.error_max_of_scale), (1, 0.25));
    }

    #[test]
    fn a_scaled_row_keeps_its_cosine_and_shows_in_the_error() {
        let doubled = found(&REFERENCE.map(|x| 2.0 * x));
        assert!((doubled.cosine_min - 1.0).abs() < 1e-12);
        assert_eq!(doubled.error_max_of_scale, 1.0);
    }

    #[test]
    fn best_tokens_count_only_where_the_margin_is_wide() {
        // The second row's margin is 0.1 of 8; its best two are swapped, the first row's are not.
        let swapped = found(&[1.0, -4.0, 2.0, 0.5, 7.9, 8.0]);
        assert_eq!(swapped.top1(0.0), Top1 { certain: 2, agreed: 1 });
        assert_eq!(swapped.top1(0.01), Top1 { certain: 1, agreed: 1 });
        assert_eq!(swapped.top1(0.2), Top1 { certain: 0, agreed: 0 });
    }

    #[test]
    fn an_engine_that_is_not_finite_is_as_wrong_as_can_be() {
        for bad in [f32::NAN, f32::INFINITY] {
            let broken = found(&[1.0, -4.0, 2.0, 0.5, bad, 7.9]);
            assert_eq!((broken.cosine_min, broken.worst_position), (-1.0, 1));
            assert_eq!(broken.error_max_of_scale, f64::INFINITY);
            assert_eq!(broken.top1(0.0), Top1 { certain: 2, agreed: 1 });
        }
    }

    #[test]
    fn a_silent_engine_is_found() {
        let silent = found(&[0.0; 6]);
        assert_eq!((silent.cosine_min, silent.error_max_of_scale), (0.0, 1.0));
    }

    #[test]
    fn what_cannot_be_compared_is_an_error() {
        let lengths = CompareError::Lengths { engine: 3, reference: 6 };
        assert_eq!(compare(&REFERENCE, &[0.0; 3], 3), Err(lengths));
        let rows = CompareError::NotRows { reference: 6, vocab: 4 };
        assert_eq!(compare(&REFERENCE, &REFERENCE, 4), Err(rows));
        assert_eq!(compare(&[], &[], 4), Err(CompareError::NotRows { reference: 0, vocab: 4 }));
        let broken = [1.0, f32::NAN];
        assert_eq!(compare(&broken, &broken, 1), Err(CompareError::NotFinite { position: 1 }));
    }
}
