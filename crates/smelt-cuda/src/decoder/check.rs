//! Says what of a step cannot be done, before anything begins.
//!
//! Sizes, what slots hold, and runs in; the refusal out, if there is one.  Knows no device.

use smelt_backend::{DecoderFacts, RunError, SlotInput, check_position_ids};

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
        self.facts.check_words(run)?;
        self.facts.check_image(run)?;
        self.check_places(run)
    }

    fn check_places(self, run: &SlotInput<'_>) -> Result<(), RunError> {
        if !self.has_places {
            return Ok(());
        }
        check_position_ids(run.position_ids, run.tokens.len(), run.image.is_some())
    }
}
