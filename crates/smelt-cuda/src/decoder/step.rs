//! Orders the work of a step: passes over the layers, and the logits of a few rows at a time behind each.
//!
//! A plan in, parts in their order out.  What logits give is taken before the memory for it is used again.  Knows no device.

use std::collections::VecDeque;
use std::ops::Range;

use smelt_backend::Answer;

use super::choices::asked;
use super::pages::Taken;
use super::plan::{StepPlan, Wanted};

/// A part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What is asked of logits is brought to the device: of which of [`Step::heads`].
    Asked(usize),
    /// A pass over the layers: which.
    Pass(usize),
    /// Logits of rows of the pass before: which of [`Step::heads`].
    Head(usize),
}

/// Logits of some rows of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadPart {
    pub(super) pass: usize,
    /// Which of [`PassPlan::wanted`](super::plan::PassPlan::wanted).
    pub(super) wanted: Range<usize>,
}

/// A step that is under way.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) plan: StepPlan,
    /// What it has taken, in case it fails.
    pub(super) taken: Taken,
    pub(super) heads: Vec<HeadPart>,
    /// What is still to be put on the stream.
    pub(super) parts: VecDeque<Part>,
    /// The logits that are being computed.
    pub(super) pending: Option<usize>,
    pub(super) answers: Vec<Answer>,
}

impl Step {
    /// A step of which nothing has begun, with logits of so many rows, and as many choices, at once.
    pub(super) fn new(plan: StepPlan, taken: Taken, head_rows: usize) -> Self {
        let answers = plan.places.iter().map(|_| Answer::default()).collect();
        let (mut heads, mut parts) = (Vec::new(), VecDeque::new());
        for (pass, rows) in plan.passes.iter().enumerate() {
            let own = pieces(&rows.wanted, head_rows);
            let mut own = own.into_iter().map(|wanted| HeadPart { pass, wanted });
            // Between a pass and its logits the device would wait for a copy.
            let first = own.next().map(|head| add(&mut heads, head));
            parts.extend(first.map(Part::Asked));
            parts.push_back(Part::Pass(pass));
            parts.extend(first.map(Part::Head));
            for head in own {
                let head = add(&mut heads, head);
                parts.extend([Part::Asked(head), Part::Head(head)]);
            }
        }
        Self { plan, taken, heads, parts, pending: None, answers }
    }

    /// What is wanted behind the rows of each part of logits.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &[Wanted]> {
        self.heads.iter().map(|head| &self.plan.passes[head.pass].wanted[head.wanted.clone()])
    }
}

/// Appends to a list: the place in it.
fn add<T>(list: &mut Vec<T>, item: T) -> usize {
    list.push(item);
    list.len() - 1
}

/// Cuts wanted rows where they, or what is asked of them, would be more than `most`, which is two at least.
fn pieces(wanted: &[Wanted], most: usize) -> Vec<Range<usize>> {
    let (mut pieces, mut first, mut choices) = (Vec::new(), 0, 0);
    for (at, wanted) in wanted.iter().enumerate() {
        if at - first == most || choices + asked(wanted) > most {
            pieces.push(first..at);
            (first, choices) = (at, 0);
        }
        choices += asked(wanted);
    }
    if first < wanted.len() {
        pieces.push(first..wanted.len());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use smelt_backend::sampling::GREEDY;
    use smelt_backend::{LogitRows, Scores, SlotInput, Want};

    use super::super::plan::{Held, plan};
    use super::*;

    #[test]
    fn logits_come_right_behind_the_pass_that_computes_their_rows() {
        let tokens = [1; 7];
        let runs = [SlotInput::new(0, &tokens).showing(LogitRows::All)];
        let plan = plan(&runs, &[Held::default()], false, 5);
        let step = Step::new(plan, Taken::default(), 3);
        let first = [Part::Asked(0), Part::Pass(0), Part::Head(0)];
        let expected = [&first[..], &[Part::Asked(1), Part::Head(1)]].concat();
        let expected = [&expected[..], &[Part::Asked(2), Part::Pass(1), Part::Head(2)]].concat();
        assert_eq!(step.parts, expected);
        let head = |pass, wanted| HeadPart { pass, wanted };
        assert_eq!(step.heads, [head(0, 0..3), head(0, 3..5), head(1, 0..2)]);
        assert_eq!(step.wanted().map(<[Wanted]>::len).collect::<Vec<_>>(), [3, 2, 2]);
    }

    #[test]
    fn rows_of_which_two_things_are_asked_count_twice() {
        let (draws, next) = ([GREEDY; 4], [1; 4]);
        let scores = Some(Scores { next: &next, top: 0 });
        let want = Want { draws: &draws, scores, logits: LogitRows::None };
        let runs = [SlotInput { want, ..SlotInput::new(0, &[1; 4]) }];
        let plan = plan(&runs, &[Held::default()], false, 8);
        let step = Step::new(plan, Taken::default(), 5);
        let cuts: Vec<_> = step.heads.iter().map(|head| head.wanted.clone()).collect();
        assert_eq!(cuts, [0..2, 2..4]);
    }
}
