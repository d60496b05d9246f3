//! Says what of a step, a fork or a block cannot be done, before anything begins: the same for every back end.
//!
//! What is asked and what slots hold in; the refusal out, if there is one.  Back ends say in which order they ask, and add
//! what they alone know.

use crate::position_ids::PositionId;
use crate::{
    DecoderFacts, FeatureSpan, Features, KvBlock, KvUsage, MAX_SEQ_LEN_MAX, RunError, SlotInput,
    Value,
};

impl SlotInput<'_> {
    /// Whether no slot is named twice, and `check` lets each run be done.
    ///
    /// # Errors
    /// [`RunError::SlotTwice`], or what `check` says.
    pub fn check_all(
        runs: &[Self],
        check: impl Fn(&Self) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        for (index, run) in runs.iter().enumerate() {
            if runs[..index].iter().any(|other| other.slot == run.slot) {
                return Err(RunError::SlotTwice { slot: run.slot });
            }
            check(run)?;
        }
        Ok(())
    }

    /// Whether it has tokens, as many as rows are wanted of it, and names no adapter, with which no back end computes.
    ///
    /// # Errors
    /// [`RunError`] where it does not.
    pub fn check_alone(&self) -> Result<(), RunError> {
        let tokens = self.tokens.len();
        if tokens == 0 {
            return Err(RunError::EmptyPrompt);
        }
        if self.adapter.is_some() {
            return Err(RunError::Unsupported { what: "compute with adapters" });
        }
        let scored = self.want.scores.map_or(0, |scores| scores.next.len());
        let wanted = self.want.draws.len().max(scored);
        if wanted > tokens { Err(RunError::TooManyRows { wanted, tokens }) } else { Ok(()) }
    }
}

impl DecoderFacts {
    /// Whether there is such a slot.
    ///
    /// # Errors
    /// [`RunError::UnknownSlot`].
    pub fn check_slot(&self, slot: usize) -> Result<(), RunError> {
        let max_slots = self.limits.max_slots;
        if slot < max_slots { Ok(()) } else { Err(RunError::UnknownSlot { slot, max_slots }) }
    }

    /// Whether `slot`, which holds `held` tokens, may grow by so many.
    ///
    /// # Errors
    /// [`RunError::TooLong`].
    pub fn check_room(&self, slot: usize, held: usize, more: usize) -> Result<(), RunError> {
        let max_seq_len = self.limits.max_seq_len;
        if more > max_seq_len.saturating_sub(held) {
            return Err(RunError::TooLong { slot, held, more, max_seq_len });
        }
        Ok(())
    }

    /// Whether all tokens are of the vocabulary.
    ///
    /// # Errors
    /// [`RunError::UnknownToken`], of the first that is not.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), RunError> {
        let vocab = self.vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(RunError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    /// Whether all tokens of a run are of the vocabulary: those it appends, and those whose likelihood it wants to know.
    ///
    /// # Errors
    /// [`RunError::UnknownToken`], of the first that is not.
    pub fn check_words(&self, run: &SlotInput<'_>) -> Result<(), RunError> {
        self.check_tokens(run.tokens)?;
        run.want.scores.map_or(Ok(()), |scores| self.check_tokens(scores.next))
    }

    /// Whether images of a run give a row for each place that takes one, and all rows are there.
    ///
    /// # Errors
    /// [`RunError::ImageCount`], or [`RunError::FeatureCount`] where features are not those of the decoder.
    pub fn check_image(&self, run: &SlotInput<'_>) -> Result<(), RunError> {
        let Some(image) = run.image else { return Ok(()) };
        image.features.iter().try_for_each(|span| self.check_span(span))?;
        let places = run.tokens.iter().filter(|token| **token == image.token).count();
        let rows: usize = image.features.iter().map(|span| span.tokens.len()).sum();
        if places == rows {
            return Ok(());
        }
        let hidden = self.hidden;
        Err(RunError::ImageCount { places, numbers: rows * hidden, hidden })
    }

    /// Whether features are those of the decoder, and have the tokens.
    fn check_span(
        &self,
        FeatureSpan { features, tokens }: &FeatureSpan<'_>,
    ) -> Result<(), RunError> {
        self.check_features(features)?;
        let hidden = self.hidden;
        let held =
            features.values().map(|value| value.shape().iter().product::<usize>() / hidden.max(1));
        match held.min().filter(|held| *held < tokens.end || tokens.start > tokens.end) {
            Some(held) => {
                let (places, numbers) = (tokens.end, held * hidden);
                Err(RunError::ImageCount { places, numbers, hidden })
            }
            None => Ok(()),
        }
    }

    /// Whether features are as wide as the decoder, and there are as many as layers take.
    ///
    /// # Errors
    /// [`RunError::FeatureCount`].
    pub fn check_features(&self, features: &Features) -> Result<(), RunError> {
        let (numbers, layers) = (self.hidden, self.deepstack);
        let width = |value: &Value| value.shape().last().copied().unwrap_or(0);
        let found: Vec<usize> = features.values().map(width).collect();
        if found.len() != layers + 1 || found.iter().any(|width| *width != numbers) {
            return Err(RunError::FeatureCount { layers, numbers, found });
        }
        Ok(())
    }

    /// Whether `to` can hold the first `len` tokens of `from`, which holds `held`.
    ///
    /// # Errors
    /// [`RunError`] when a slot does not exist, both are one, or `from` holds fewer.
    pub fn check_fork(
        &self,
        from: usize,
        to: usize,
        held: usize,
        len: usize,
    ) -> Result<(), RunError> {
        self.check_slot(from)?;
        self.check_slot(to)?;
        if len > held {
            return Err(RunError::NotHeld { slot: from, held, len });
        }
        if from == to {
            return Err(RunError::SlotTwice { slot: from });
        }
        Ok(())
    }
}

impl KvUsage {
    /// Whether a block can go behind the `held` tokens of `slot`, which the position `next` follows.
    ///
    /// # Errors
    /// [`RunError::NoBlock`].
    pub fn check_block(
        &self,
        slot: usize,
        held: usize,
        next: u32,
        block: &KvBlock<'_>,
    ) -> Result<(), RunError> {
        let (tokens, bytes) = (block.ends.len(), block.bytes.len());
        let rises = block.ends.is_sorted() && block.ends.first() >= Some(&next);
        let is_near = block.ends.last().is_some_and(|end| *end as usize <= MAX_SEQ_LEN_MAX);
        let is_block = held.is_multiple_of(self.block_tokens) && tokens <= self.block_tokens;
        if rises && is_near && is_block && bytes == self.block_bytes {
            return Ok(());
        }
        Err(RunError::NoBlock { slot, tokens, bytes })
    }
}

/// Whether a run of so many tokens says where they stand, of a decoder that goes by three positions a token (M-RoPE): runs
/// with images have to, others may.
///
/// # Errors
/// [`RunError`] where places lack, or are too many or too far.
pub fn check_position_ids(
    position_ids: Option<&[PositionId]>,
    tokens: usize,
    has_image: bool,
) -> Result<(), RunError> {
    let Some(position_ids) = position_ids else {
        return if has_image { Err(RunError::PlaceCount { tokens, found: 0 }) } else { Ok(()) };
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
