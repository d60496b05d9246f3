//! Says what of a step cannot be done, before anything begins.
//!
//! Sizes, what slots hold, and runs in; the refusal out, if there is one.  Knows no device.

use smelt_backend::{DecoderFacts, FeatureSpan, RunError, SlotInput, check_position_ids};

use super::pages::Pages;

/// What runs are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checker<'a> {
    pub(super) facts: &'a DecoderFacts,
    /// Whether tokens stand in time, height and width (M-RoPE).
    pub(super) has_places: bool,
    pub(super) pages: &'a Pages,
}

impl Checker<'_> {
    /// Whether all runs can be done together.
    pub(super) fn check_all(self, runs: &[SlotInput<'_>]) -> Result<(), RunError> {
        SlotInput::check_all(runs, |run| self.check(run))
    }

    fn check(self, run: &SlotInput<'_>) -> Result<(), RunError> {
        self.facts.check_slot(run.slot)?;
        run.check_alone()?;
        self.facts.check_room(run.slot, self.pages.len(run.slot), run.tokens.len())?;
        self.facts.check_tokens(run.tokens)?;
        run.want.scores.map_or(Ok(()), |scores| self.facts.check_tokens(scores.next))?;
        self.check_image(run)?;
        self.check_places(run)
    }

    fn check_image(self, run: &SlotInput<'_>) -> Result<(), RunError> {
        let Some(image) = run.image else { return Ok(()) };
        image.features.iter().try_for_each(|span| self.check_span(span))?;
        let places = run.tokens.iter().filter(|token| **token == image.token).count();
        let rows: usize = image.features.iter().map(|span| span.tokens.len()).sum();
        if places == rows {
            return Ok(());
        }
        let hidden = self.facts.hidden;
        Err(RunError::ImageCount { places, numbers: rows * hidden, hidden })
    }

    /// Whether features are those of the decoder, and have the tokens.
    fn check_span(
        self,
        FeatureSpan { features, tokens }: &FeatureSpan<'_>,
    ) -> Result<(), RunError> {
        self.facts.check_features(features)?;
        let numbers = self.facts.hidden;
        let held =
            features.values().map(|value| value.shape().iter().product::<usize>() / numbers.max(1));
        match held.min().filter(|held| *held < tokens.end || tokens.start > tokens.end) {
            Some(held) => Err(RunError::ImageCount {
                places: tokens.end,
                numbers: held * numbers,
                hidden: numbers,
            }),
            None => Ok(()),
        }
    }

    fn check_places(self, run: &SlotInput<'_>) -> Result<(), RunError> {
        if !self.has_places {
            return Ok(());
        }
        check_position_ids(run.position_ids, run.tokens.len(), run.image.is_some())
    }
}
