//! Lays out what is asked of rows of logits, so that the device chooses, and takes what it tells.
//!
//! What the device leaves to the host, the host does with the row itself: a token is the same either way.  Wanted rows in,
//! bytes out; results in, answers out.

use smelt_backend::Answer;
use smelt_backend::sampling::{Chooser, Chosen, NotFinite};

use super::plan::Wanted;
use crate::DeviceAddress;
use crate::driver::DriverError;
use crate::kernels::choose::{
    ChoiceLists, ChoicesAsked, RESULT_BYTES, Told, VOCAB_MAX, read_result,
};

/// Where lists begin in their piece.
const ALIGN: usize = 16;

/// What is asked of some rows of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices {
    /// Lists behind one another, as the device reads them.
    pub(super) bytes: Vec<u8>,
    /// What choices have in common.
    pub(super) asked: ChoicesAsked,
    /// Where biases, counts and masks begin; choices begin the piece.
    starts: [usize; 3],
}

/// Places of the lists on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListPlaces {
    pub(super) choices: DeviceAddress,
    pub(super) biases: DeviceAddress,
    pub(super) counts: DeviceAddress,
    pub(super) masks: DeviceAddress,
}

impl Choices {
    /// What is asked of these rows, which are those of the logits in order; nothing where rows of so many tokens are more
    /// than the device looks at.
    pub(super) fn of(wanted: &[Wanted], vocab: usize) -> Self {
        let mut lists = ChoiceLists::default();
        if vocab > VOCAB_MAX {
            return Self::default();
        }
        for (row, wanted) in (0..).zip(wanted) {
            if let Some(draw) = &wanted.draw {
                lists.draw(row, &draw.as_draw(), None);
            }
            if let Some((token, top)) = wanted.score {
                lists.score(row, token, top);
            }
        }
        let mut out = Self { asked: lists.asked(), ..Self::default() };
        out.bytes = lists.choices;
        out.starts = [lists.biases, lists.counts, lists.masks].map(|list| {
            out.bytes.resize(out.bytes.len().next_multiple_of(ALIGN), 0);
            let start = out.bytes.len();
            out.bytes.extend(list);
            start
        });
        // Each list has a place, if it is empty.
        out.bytes.resize(out.bytes.len().next_multiple_of(ALIGN) + ALIGN, 0);
        out
    }

    /// The lists, which are kept no longer.
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Where the lists lie whose piece begins at `base`.
    pub(super) fn places(&self, base: DeviceAddress) -> ListPlaces {
        let [biases, counts, masks] = self.starts.map(|start| base.offset(start as u64));
        ListPlaces { choices: base, biases, counts, masks }
    }
}

/// Asks of a row of so many choices: the most that there can be.
pub(super) fn asked(wanted: &Wanted) -> usize {
    usize::from(wanted.draw.is_some()) + usize::from(wanted.score.is_some())
}

/// Takes what the device told of some rows into the answers of their runs.
///
/// # Errors
/// Those of `row`, which fetches a row of logits.
pub(super) fn take(
    wanted: &[Wanted],
    results: &[u8],
    vocab: usize,
    row: impl Fn(usize) -> Result<Vec<f32>, DriverError>,
    chooser: &mut Chooser,
    answers: &mut [Answer],
) -> Result<(), DriverError> {
    let mut results = results.as_chunks::<RESULT_BYTES>().0.iter();
    for (index, wanted) in wanted.iter().enumerate() {
        let answer = &mut answers[wanted.run];
        let mut logits = wanted.shown.then(|| row(index)).transpose()?;
        if let Some(draw) = &wanted.draw {
            let top = draw.settings.top_logprobs;
            let chosen = match told(results.next(), vocab, top) {
                Some(chosen) => chosen,
                None => chooser.choose(fetched(&mut logits, || row(index))?, &draw.as_draw()),
            };
            answer.chosen.push(chosen);
        }
        if let Some((token, top)) = wanted.score {
            let score = match told(results.next(), vocab, Some(top)) {
                Some(chosen) => chosen.ok().and_then(|chosen| chosen.logprobs),
                None => chooser.score(fetched(&mut logits, || row(index))?, token, top).ok(),
            };
            answer.scores.push(score);
        }
        if wanted.shown {
            answer.logits.append(&mut logits.unwrap_or_default());
        }
    }
    Ok(())
}

/// What the device told of a choice; nothing where it left that to the host.
fn told(
    result: Option<&[u8; RESULT_BYTES]>,
    vocab: usize,
    top: Option<usize>,
) -> Option<Result<Chosen, NotFinite>> {
    match read_result(result?, vocab, top) {
        Told::Chosen(chosen) => Some(chosen),
        Told::LeftToHost => None,
    }
}

/// A row of logits, fetched once.
fn fetched(
    row: &mut Option<Vec<f32>>,
    fetch: impl FnOnce() -> Result<Vec<f32>, DriverError>,
) -> Result<&[f32], DriverError> {
    if row.is_none() {
        *row = Some(fetch()?);
    }
    Ok(row.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use smelt_backend::sampling::GREEDY;
    use smelt_backend::{LogitRows, Scores, SlotInput, Want};

    use super::super::plan::{Held, plan};
    use super::*;

    const VOCAB: usize = 3;

    fn wanted() -> Vec<Wanted> {
        let (draws, next) = ([GREEDY], [2]);
        let scores = Some(Scores { next: &next, top: 1 });
        let want = Want { draws: &draws, scores, logits: LogitRows::None };
        let runs = [
            SlotInput { want, ..SlotInput::new(0, &[1]) },
            SlotInput::new(1, &[3]).showing(LogitRows::Last),
        ];
        plan(&runs, &[Held::default(); 2], false, 8).passes.remove(0).wanted
    }

    fn logits(row: usize) -> Vec<f32> {
        [[0.0, 5.0, 1.0], [5.0, 6.0, 7.0]][row].to_vec()
    }

    /// What the device would write: a state, and a token.
    fn result(state: u8, token: u8) -> [u8; RESULT_BYTES] {
        let mut bytes = [0; RESULT_BYTES];
        (bytes[8], bytes[12]) = (state, token);
        bytes[..8].copy_from_slice(&1.0_f64.to_le_bytes());
        bytes
    }

    #[test]
    fn each_draw_and_score_is_a_choice_of_its_row() {
        let choices = Choices::of(&wanted(), VOCAB);
        assert_eq!(choices.asked, ChoicesAsked { count: 2, adjusts: false, scores: true });
        let places = choices.places(DeviceAddress(4096));
        let all = [places.choices, places.biases, places.counts, places.masks];
        assert!(
            all.iter()
                .all(|at| at.0.is_multiple_of(16) && at.0 < 4096 + choices.bytes.len() as u64)
        );
        assert_eq!(Choices::of(&wanted(), VOCAB_MAX + 1).asked, ChoicesAsked::default());
        assert_eq!(wanted().iter().map(asked).collect::<Vec<_>>(), [2, 0]);
    }

    #[test]
    fn what_the_device_leaves_the_host_does() {
        let wanted = wanted();
        let left = [result(2, 0), result(2, 0)].concat();
        for results in [&left[..], &[]] {
            let mut answers = vec![Answer::default(); 2];
            let row = |row| Ok(logits(row));
            take(&wanted, results, VOCAB, row, &mut Chooser::default(), &mut answers).unwrap();
            let mut chooser = Chooser::default();
            assert_eq!(answers[0].chosen, [chooser.choose(&logits(0), &GREEDY)]);
            assert_eq!(answers[0].scores, [chooser.score(&logits(0), 2, 1).ok()]);
            assert_eq!((&answers[0].logits[..], &answers[1].logits), (&[][..], &logits(1)));
        }
    }

    #[test]
    fn what_the_device_tells_needs_no_row() {
        let results = [result(0, 1), result(1, 0)].concat();
        let mut answers = vec![Answer::default(); 2];
        let row = |row| {
            assert_eq!(row, 1, "only that row is shown");
            Ok(logits(row))
        };
        take(&wanted(), &results, VOCAB, row, &mut Chooser::default(), &mut answers).unwrap();
        assert_eq!(answers[0].chosen, [Ok(Chosen { token: 1, logprobs: None })]);
        assert_eq!(answers[0].scores, [None], "its logits were not finite");
    }
}
