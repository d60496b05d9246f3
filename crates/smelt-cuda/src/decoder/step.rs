//! Orders the work of a step: passes over the layers, and the logits of a few rows at a time behind each.
//!
//! A plan in, parts in their order out.  What logits give is copied to the host before the memory for it is used again.
//! Knows no device.

use std::collections::VecDeque;
use std::ops::Range;

use smelt_backend::Answer;
use smelt_backend::sampling::Chooser;

use super::pages::Taken;
use super::plan::{StepPlan, Wanted};

/// A part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A pass over the layers: which.
    Pass(usize),
    /// Logits of rows of the pass before.
    Head(HeadPart),
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
    /// What is still to be put on the stream.
    pub(super) parts: VecDeque<Part>,
    /// The logits that are being computed.
    pub(super) pending: Option<HeadPart>,
    pub(super) answers: Vec<Answer>,
}

impl Step {
    /// A step of which nothing has begun, with logits of so many rows at once.
    pub(super) fn new(plan: StepPlan, taken: Taken, head_rows: usize) -> Self {
        let answers = plan.places.iter().map(|_| Answer::default()).collect();
        let parts = parts(&plan, head_rows);
        Self { plan, taken, parts, pending: None, answers }
    }

    /// What is wanted behind the rows of a part.
    pub(super) fn wanted(&self, part: &HeadPart) -> &[Wanted] {
        &self.plan.passes[part.pass].wanted[part.wanted.clone()]
    }

    /// Takes of logits `[rows, vocab]` what is wanted of the rows of `part`.
    pub(super) fn take(
        &mut self,
        part: &HeadPart,
        logits: &[f32],
        vocab: usize,
        chooser: &mut Chooser,
    ) {
        let wanted = &self.plan.passes[part.pass].wanted[part.wanted.clone()];
        for (wanted, row) in wanted.iter().zip(logits.chunks_exact(vocab)) {
            let answer = &mut self.answers[wanted.run];
            let draw = wanted.draw.as_ref().map(|draw| chooser.choose(row, &draw.as_draw()));
            answer.chosen.extend(draw);
            let score = wanted.score.map(|(token, top)| chooser.score(row, token, top).ok());
            answer.scores.extend(score);
            if wanted.shown {
                answer.logits.extend_from_slice(row);
            }
        }
    }
}

/// The parts of a step, with logits of so many rows at once.
fn parts(plan: &StepPlan, head_rows: usize) -> VecDeque<Part> {
    let mut parts = VecDeque::new();
    for (pass, rows) in plan.passes.iter().enumerate() {
        parts.push_back(Part::Pass(pass));
        let all = rows.wanted.len();
        for first in (0..all).step_by(head_rows) {
            let wanted = first..(first + head_rows).min(all);
            parts.push_back(Part::Head(HeadPart { pass, wanted }));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use smelt_backend::sampling::GREEDY;
    use smelt_backend::{LogitRows, SlotInput};

    use super::super::plan::{Held, plan};
    use super::*;

    #[test]
    fn logits_come_right_behind_the_pass_that_computes_their_rows() {
        let tokens = [1; 7];
        let runs = [SlotInput::new(0, &tokens).showing(LogitRows::All)];
        let plan = plan(&runs, &[Held::default()], false, 5);
        let head = |pass, wanted| Part::Head(HeadPart { pass, wanted });
        let expected =
            [Part::Pass(0), head(0, 0..3), head(0, 3..5), Part::Pass(1), head(1, 0..2)];
        assert_eq!(parts(&plan, 3), expected);
    }

    #[test]
    fn of_logits_each_run_is_told_what_it_wanted() {
        let draws = [GREEDY];
        let runs = [
            SlotInput::new(0, &[1, 2]).choosing(&draws),
            SlotInput::new(1, &[3]).showing(LogitRows::Last),
        ];
        let plan = plan(&runs, &[Held::default(); 2], false, 8);
        let mut step = Step::new(plan, Taken::default(), 8);
        let part = HeadPart { pass: 0, wanted: 0..2 };
        assert_eq!(step.wanted(&part).iter().map(|one| one.row).collect::<Vec<_>>(), [1, 2]);
        step.take(&part, &[0.0, 2.0, 1.0, 5.0, 6.0, 7.0], 3, &mut Chooser::default());
        let token = step.answers[0].chosen[0].as_ref().map(|chosen| chosen.token);
        assert_eq!((token, &step.answers[0].logits[..]), (Ok(1), &[][..]));
        assert_eq!((step.answers[1].chosen.len(), &step.answers[1].logits[..]), (0, &[5.0, 6.0, 7.0][..]));
    }
}
