//! Draws a pipeline: its stages, what each needs, and how each stands in the store.
//!
//! Pure: a [`Drawing`] goes in, text comes out, the same for the same pipeline.

mod dot;
mod layout;
mod mermaid;
mod order;
mod svg;

pub use dot::dot;
pub use mermaid::mermaid;
pub use svg::svg;

use smelt_plan::Plan;

/// What is drawn.
pub struct Drawing {
    /// The pipeline's name.
    pub(crate) name: String,
    /// Its stages, each after all it needs.
    pub(crate) boxes: Vec<StageBox>,
}

/// One stage.
pub(crate) struct StageBox {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    /// `None` where the store was not asked.
    pub(crate) mark: Option<StageMark>,
    /// The stages it needs, each once, by position.
    pub(crate) needs: Vec<usize>,
}

/// How a stage stands in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageMark {
    /// It is there.
    Hit,
    /// It would be built.
    Miss,
    /// What it needs is not there yet, so its key is not known.
    Unknown,
}

impl StageMark {
    pub(crate) const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Unknown];

    /// The word of `smelt plan`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Unknown => "unknown",
        }
    }

    /// A fill that dark text reads well on.
    pub(crate) fn fill(self) -> &'static str {
        match self {
            Self::Hit => "#cde7d6",
            Self::Miss => "#f6d9c4",
            Self::Unknown => "#e4e6ea",
        }
    }
}

impl Drawing {
    /// The plan, with how its stages stand where that is known.
    pub fn of(plan: &Plan, marks: Option<&[StageMark]>) -> Self {
        let boxes = plan.stages().map(|(id, stage)| {
            let mut needs: Vec<usize> = stage.needs().map(|need| need.index()).collect();
            needs.sort_unstable();
            needs.dedup();
            StageBox {
                name: stage.name.to_string(),
                kind: stage.kind.name(),
                mark: marks.map(|marks| marks[id.index()]),
                needs,
            }
        });
        Self { name: plan.name.clone(), boxes: boxes.collect() }
    }
}

#[cfg(test)]
mod testing {
    use super::{Drawing, StageBox};

    /// Stages by what each needs.
    pub(super) fn picture(needs: &[&[usize]]) -> Drawing {
        let stage = |(at, needs): (usize, &&[usize])| StageBox {
            name: format!("s{at}"),
            kind: "command",
            mark: None,
            needs: needs.to_vec(),
        };
        Drawing { name: "p".to_owned(), boxes: needs.iter().enumerate().map(stage).collect() }
    }
}
