//! Cuts a step into passes over the layers: which token is in which row, where it stands, and what is wanted behind it.
//!
//! Runs and what slots hold in, plain data out.  A pass has as many rows as the buffers hold; rows of all slots go
//! through the layers together.  Knows no device, no page and no kernel.

use std::ops::Range;

use smelt_backend::SlotInput;
use smelt_backend::position_ids::PositionId;
use smelt_backend::sampling::OwnDraw;

/// What a step does, pass after pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StepPlan {
    pub(super) passes: Vec<PassPlan>,
    /// Where the tokens of each run stand.
    pub(super) places: Vec<Vec<PositionId>>,
}

/// One pass over the layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PassPlan {
    pub(super) rows: Vec<Row>,
    /// Neighbouring rows of one slot, in the order of rows.
    pub(super) pieces: Vec<Piece>,
    /// What stands in the rows of images, in their order.
    pub(super) images: Vec<ImagePiece>,
    /// Rows behind which something is wanted, in rising order.
    pub(super) wanted: Vec<Wanted>,
}

/// A token of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) source: Source,
    /// Tokens before it in its slot.
    pub(super) position: usize,
    pub(super) place: PositionId,
}

/// What a row begins as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The embedding of a token.
    Token(u32),
    /// Features of an image: which of the pass's, counted through [`PassPlan::images`].
    Image(usize),
}

/// Neighbouring tokens of one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) slot: usize,
    pub(super) rows: Range<usize>,
    /// Tokens before the first of them in the slot.
    pub(super) start: usize,
}

impl Piece {
    /// Tokens that the last of them sees, itself included.
    pub(super) fn end(&self) -> usize {
        self.start + self.rows.len()
    }
}

/// Some tokens of one span of a run's features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImagePiece {
    pub(super) run: usize,
    pub(super) span: usize,
    /// Tokens of the features, not of the span.
    pub(super) tokens: Range<usize>,
}

/// What is wanted behind a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) row: usize,
    pub(super) run: usize,
    pub(super) draw: Option<OwnDraw>,
    /// How likely a token is found, and how many of the likeliest are told with it.
    pub(super) score: Option<(u32, usize)>,
    pub(super) shown: bool,
}

/// What slots hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) tokens: usize,
    /// The place of the token that follows.
    pub(super) next_place: u32,
}

/// What the runs do together, of slots that hold what `held` says.  `rows_max` is at least one; decoders of one position a
/// token do not look at the runs' own places.
pub(super) fn plan(
    runs: &[SlotInput<'_>],
    held: &[Held],
    has_places: bool,
    rows_max: usize,
) -> StepPlan {
    let mut step = StepPlan::default();
    for (index, (run, held)) in runs.iter().zip(held).enumerate() {
        let places = places(run, held.next_place, has_places);
        let mut images = ImageTokens::new(index, run);
        for (at, (&token, &place)) in run.tokens.iter().zip(&places).enumerate() {
            let pass = step.open_pass(rows_max);
            let source = pass.source(token, &mut images);
            pass.extend_pieces(run.slot, held.tokens + at);
            pass.wanted.extend(wanted(index, run, at, pass.rows.len()));
            pass.rows.push(Row { source, position: held.tokens + at, place });
        }
        step.places.push(places);
    }
    step
}

impl StepPlan {
    /// The last pass, or a new one where that is full.
    fn open_pass(&mut self, rows_max: usize) -> &mut PassPlan {
        let is_full = self.passes.last().is_none_or(|pass| pass.rows.len() >= rows_max);
        if is_full {
            self.passes.push(PassPlan::default());
        }
        let last = self.passes.len() - 1;
        &mut self.passes[last]
    }
}

impl PassPlan {
    /// Rows of images.
    pub(super) fn image_rows(&self) -> usize {
        self.images.iter().map(|piece| piece.tokens.len()).sum()
    }

    /// Tokens that the longest slot of the pass holds when it is done.
    pub(super) fn longest(&self) -> usize {
        self.pieces.iter().map(Piece::end).max().unwrap_or(0)
    }

    fn source(&mut self, token: u32, images: &mut ImageTokens<'_>) -> Source {
        let Some((span, at)) = images.next(token) else { return Source::Token(token) };
        let row = self.image_rows();
        let run = images.run;
        match self.images.last_mut() {
            Some(last) if (last.run, last.span, last.tokens.end) == (run, span, at) => {
                last.tokens.end += 1;
            }
            _ => self.images.push(ImagePiece { run, span, tokens: at..at + 1 }),
        }
        Source::Image(row)
    }

    fn extend_pieces(&mut self, slot: usize, position: usize) {
        let row = self.rows.len();
        match self.pieces.last_mut() {
            Some(last) if last.slot == slot => last.rows.end = row + 1,
            _ => self.pieces.push(Piece { slot, rows: row..row + 1, start: position }),
        }
    }
}

/// Goes through the tokens of a run's features.
struct ImageTokens<'a> {
    run: usize,
    input: &'a SlotInput<'a>,
    span: usize,
    at: usize,
}

impl<'a> ImageTokens<'a> {
    fn new(run: usize, input: &'a SlotInput<'a>) -> Self {
        Self { run, input, span: 0, at: 0 }
    }

    /// The span and the token of its features that stand in the place of `token`, if it marks one.
    fn next(&mut self, token: u32) -> Option<(usize, usize)> {
        let image = self.input.image.filter(|image| image.token == token)?;
        while self.at >= image.features.get(self.span)?.tokens.len() {
            (self.span, self.at) = (self.span + 1, 0);
        }
        let at = image.features[self.span].tokens.start + self.at;
        self.at += 1;
        Some((self.span, at))
    }
}

/// Where the tokens of a run stand.
fn places(run: &SlotInput<'_>, next: u32, has_places: bool) -> Vec<PositionId> {
    match run.position_ids.filter(|_| has_places) {
        Some(places) => places.to_vec(),
        None => (next..).take(run.tokens.len()).map(|place| [place; 3]).collect(),
    }
}

/// What is wanted behind token `at` of a run, which is in row `row`.
fn wanted(index: usize, run: &SlotInput<'_>, at: usize, row: usize) -> Option<Wanted> {
    let want = run.want.behind(at, run.tokens.len());
    want.is_any().then(|| Wanted {
        row,
        run: index,
        draw: want.draw.map(OwnDraw::of),
        score: want.score,
        shown: want.is_shown,
    })
}

#[cfg(test)]
mod tests {
    use smelt_backend::sampling::GREEDY;
    use smelt_backend::{
        FeatureSpan, Features, HostFeatures, ImageEmbeds, LogitRows, Scores, Want,
    };

    use super::*;

    fn features(tokens: usize) -> Features {
        HostFeatures { embeds: vec![0.0; tokens * 4], deepstack: Vec::new() }.into_features(tokens)
    }

    fn held(tokens: usize) -> Held {
        Held { tokens, next_place: tokens as u32 }
    }

    #[test]
    fn rows_of_all_slots_lie_one_behind_another_and_are_cut_where_buffers_end() {
        let runs = [SlotInput::new(3, &[1, 2, 3, 4, 5]), SlotInput::new(1, &[6])];
        let step = plan(&runs, &[held(0), held(70)], false, 4);
        let pieces: Vec<_> = step.passes.iter().map(|pass| pass.pieces.clone()).collect();
        let piece = |slot, rows, start| Piece { slot, rows, start };
        assert_eq!(pieces[0], [piece(3, 0..4, 0)]);
        assert_eq!(pieces[1], [piece(3, 0..1, 4), piece(1, 1..2, 70)]);
        assert_eq!((step.passes[0].longest(), step.passes[1].longest()), (4, 71));
        let last = step.passes[1].rows[1];
        assert_eq!((last.source, last.position, last.place), (Source::Token(6), 70, [70; 3]));
        assert!(step.passes.iter().all(|pass| pass.wanted.is_empty()));
    }

    #[test]
    fn what_is_wanted_is_found_in_its_row() {
        let draws = [GREEDY; 2];
        let scores = Some(Scores { next: &[8], top: 3 });
        let want = Want { draws: &draws, scores, logits: LogitRows::Last };
        let runs =
            [SlotInput::new(0, &[9]), SlotInput { want, ..SlotInput::new(1, &[1, 2, 3, 4]) }];
        let step = plan(&runs, &[held(5), held(0)], false, 3);
        let found: Vec<_> = step
            .passes
            .iter()
            .flat_map(|pass| &pass.wanted)
            .map(|one| (one.row, one.run, one.draw.is_some(), one.score, one.shown))
            .collect();
        let expected = [
            (1, 1, false, Some((8_u32, 3_usize)), false),
            (0, 1, true, None, false),
            (1, 1, true, None, true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn features_are_taken_token_by_token_across_spans_and_passes() {
        let (first, second) = (features(3), features(2));
        let spans = [
            FeatureSpan { features: &first, tokens: 1..3 },
            FeatureSpan { features: &second, tokens: 0..0 },
            FeatureSpan { features: &second, tokens: 0..2 },
        ];
        let image = Some(ImageEmbeds { token: 7, features: &spans });
        let run = SlotInput { image, ..SlotInput::new(0, &[7, 7, 1, 7, 7]) };
        let step = plan(&[run], &[held(0)], false, 4);
        let sources = |pass: usize| -> Vec<Source> {
            step.passes[pass].rows.iter().map(|row| row.source).collect()
        };
        let image = Source::Image;
        assert_eq!(sources(0), [image(0), image(1), Source::Token(1), image(2)]);
        assert_eq!(sources(1), [image(0)]);
        let piece = |span, tokens| ImagePiece { run: 0, span, tokens };
        assert_eq!(step.passes[0].images, [piece(0, 1..3), piece(2, 0..1)]);
        assert_eq!(step.passes[1].images, [piece(2, 1..2)]);
    }

    #[test]
    fn places_count_on_unless_the_decoder_goes_by_three() {
        let ids = [[4, 5, 6], [7, 7, 7]];
        let run = SlotInput { position_ids: Some(&ids), ..SlotInput::new(0, &[1, 2]) };
        let held = [Held { tokens: 9, next_place: 3 }];
        assert_eq!(plan(&[run], &held, true, 8).places, [ids.to_vec()]);
        assert_eq!(plan(&[run], &held, false, 8).places, [vec![[3; 3], [4; 3]]]);
    }
}
