//! Says what of a step cannot be done, before anything begins.
//!
//! Sizes, what slots hold, and runs in; the refusal out, if there is one.  Knows no device.

use smelt_backend::{DecoderFacts, FeatureSpan, MAX_SEQ_LEN_MAX, RunError, SlotInput};

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
        for (index, run) in runs.iter().enumerate() {
            if runs[..index].iter().any(|other| other.slot == run.slot) {
                return Err(RunError::SlotTwice { slot: run.slot });
            }
            self.check(run)?;
        }
        Ok(())
    }

    fn check(self, run: &SlotInput<'_>) -> Result<(), RunError> {
        self.check_slot(run.slot)?;
        if run.tokens.is_empty() {
            return Err(RunError::EmptyPrompt);
        }
        if run.adapter.is_some() {
            return Err(RunError::Unsupported { what: "compute with adapters" });
        }
        check_rows(run)?;
        self.check_room(run.slot, run.tokens.len())?;
        self.check_tokens(run.tokens)?;
        run.want.scores.map_or(Ok(()), |scores| self.check_tokens(scores.next))?;
        self.check_image(run)?;
        self.check_places(run)
    }

    /// Whether there is such a slot.
    pub(super) fn check_slot(self, slot: usize) -> Result<(), RunError> {
        let max_slots = self.pages.slots();
        if slot < max_slots { Ok(()) } else { Err(RunError::UnknownSlot { slot, max_slots }) }
    }

    /// Whether `slot` may grow by so many tokens.
    pub(super) fn check_room(self, slot: usize, more: usize) -> Result<(), RunError> {
        let (held, max_seq_len) = (self.pages.len(slot), self.facts.limits.max_seq_len);
        if more > max_seq_len.saturating_sub(held) {
            return Err(RunError::TooLong { slot, held, more, max_seq_len });
        }
        Ok(())
    }

    fn check_tokens(self, tokens: &[u32]) -> Result<(), RunError> {
        let vocab = self.facts.vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(RunError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
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

    /// Whether features are as wide as the decoder, and there are as many as layers take.
    fn check_span(
        self,
        FeatureSpan { features, tokens }: &FeatureSpan<'_>,
    ) -> Result<(), RunError> {
        let (numbers, layers) = (self.facts.hidden, self.facts.deepstack);
        let values = || [&features.embeds].into_iter().chain(&features.deepstack);
        let found: Vec<usize> =
            values().map(|value| value.shape().last().copied().unwrap_or(0)).collect();
        if found.len() != layers + 1 || found.iter().any(|width| *width != numbers) {
            return Err(RunError::FeatureCount { layers, numbers, found });
        }
        let held = values().map(|value| value.shape().iter().product::<usize>() / numbers.max(1));
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
        let tokens = run.tokens.len();
        let Some(position_ids) = run.position_ids else {
            let needs = run.image.is_some();
            return if needs { Err(RunError::PlaceCount { tokens, found: 0 }) } else { Ok(()) };
        };
        if position_ids.len() != tokens {
            return Err(RunError::PlaceCount { tokens, found: position_ids.len() });
        }
        let max = MAX_SEQ_LEN_MAX;
        let largest = position_ids.iter().map(|place| place.iter().fold(0, |most, p| most.max(*p)));
        match largest.enumerate().find(|(_, place)| *place as usize >= max) {
            Some((index, place)) => Err(RunError::PlaceTooFar { index, place, max }),
            None => Ok(()),
        }
    }
}

/// Whether a run has as many tokens as rows are wanted of it.
fn check_rows(run: &SlotInput<'_>) -> Result<(), RunError> {
    let tokens = run.tokens.len();
    let scored = run.want.scores.map_or(0, |scores| scores.next.len());
    let wanted = run.want.draws.len().max(scored);
    if wanted > tokens { Err(RunError::TooManyRows { wanted, tokens }) } else { Ok(()) }
}
