//! What a plan's stages need, and whether a device has it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use smelt_engine_build::llm::Unpacked;
use smelt_exec::Took;
use smelt_plan::admission::{Admission, Forecast, Room, admit};
use smelt_plan::plan::Stage;
use smelt_plan::{Kind, Plan, StageId};

use crate::alike::bytes_below;
use crate::tensors::{self, Tensors};
use crate::{Alike, Forecasts, LargestTensor, Towers};

/// What a plan's stages need of a device.
#[derive(Debug)]
pub struct Needs {
    /// Of the stages that must be built, in the order of the plan.
    held: Vec<Option<(Forecast, Fits)>>,
    largest: HashMap<StageId, LargestTensor>,
    unpacked: Vec<(StageId, Unpacked)>,
}

/// Whether a stage fits, if it runs alone now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fits {
    /// In what is free.
    Yes,
    /// With a part of it swapped out.
    Swapping,
    /// When other programs have ended.
    Later,
    /// Never on this device.
    No,
}

impl Needs {
    /// Of the stages of a plan whose `output` is not there, in what a device has; each `took` as much when this pipeline was
    /// run last, and others `alike`.
    pub fn of(
        plan: &Plan,
        output: &dyn Fn(StageId) -> Option<PathBuf>,
        took: &dyn Fn(&str) -> Option<Took>,
        alike: &Alike,
        room: &Room,
    ) -> Self {
        let towers = &Towers::of_plan(plan, output);
        let forecasts = Forecasts { took, alike, towers };
        let input_bytes = |stage: &Stage| {
            let bytes = |need: StageId| output(need).map(|path| bytes_below(&path));
            stage.needs().map(bytes).sum::<Option<u64>>()
        };
        let held = |(id, stage): (StageId, &Stage)| {
            let is_built = output(id).is_none();
            let forecast = is_built.then(|| forecasts.of_stage(stage, &|| input_bytes(stage)));
            let forecast = forecast.flatten()?;
            Some((forecast, fits(forecast, room)))
        };
        let held = plan.stages().map(held).collect();
        let found = tensors::found(plan, output);
        let unpacked = unpacked_of(plan, &found);
        Self { held, largest: tensors::largest(plan, found), unpacked }
    }

    /// What a stage that must be built will hold, and whether that fits.
    #[must_use]
    pub fn of_stage(&self, id: StageId) -> Option<(Forecast, Fits)> {
        self.held[id.index()]
    }

    /// The largest tensor that a stage handles, where the checkpoint is there to be asked.
    #[must_use]
    pub fn largest(&self, id: StageId) -> Option<&LargestTensor> {
        self.largest.get(&id)
    }

    /// What engines of language models will hold unpacked.
    #[must_use]
    pub fn unpacked(&self) -> &[(StageId, Unpacked)] {
        &self.unpacked
    }
}

impl Fits {
    /// As JSON says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Swapping => "swapping",
            Self::Later => "later",
            Self::No => "no",
        }
    }

    /// As the table says it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Yes => "fits",
            Self::Swapping => "will swap",
            Self::Later => "waits for other programs",
            Self::No => "does not fit",
        }
    }
}

/// Whether a stage fits alone.
fn fits(forecast: Forecast, room: &Room) -> Fits {
    let without_swap = Room { swap_free_bytes: 0, ..*room };
    match admit(forecast, room, Duration::ZERO) {
        Admission::Start if admit(forecast, &without_swap, Duration::ZERO) == Admission::Start => {
            Fits::Yes
        }
        Admission::Start => Fits::Swapping,
        Admission::Wait => Fits::Later,
        Admission::Refuse(_) => Fits::No,
    }
}

/// The stages that build an engine of a language model of which something is unpacked.
fn unpacked_of(plan: &Plan, found: &HashMap<StageId, Tensors>) -> Vec<(StageId, Unpacked)> {
    let engines = plan.stages().filter(|(_, stage)| stage.kind == Kind::LlmEngineBuild);
    let of = |id: StageId| Some((id, found.get(&id)?.unpacked.clone()?));
    engines.filter_map(|(id, _)| of(id)).collect()
}

#[cfg(test)]
mod tests {
    use smelt_plan::admission::Basis;

    use super::*;

    #[test]
    fn a_stage_alone_fits_swaps_waits_or_does_not() {
        let room = Room {
            total_bytes: 1000 << 20,
            available_bytes: 600 << 20,
            swap_total_bytes: 500 << 20,
            swap_free_bytes: 300 << 20,
            ..Room::default()
        };
        let check = |mib: u64, expect| {
            let forecast = Forecast { bytes: mib << 20, basis: Basis::Learned };
            assert_eq!(fits(forecast, &room), expect);
        };
        check(500, Fits::Yes);
        check(800, Fits::Swapping);
        check(1200, Fits::Later);
        check(1600, Fits::No);
    }
}
