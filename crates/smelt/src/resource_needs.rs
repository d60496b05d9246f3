//! Says before a run what its stages will need and whether this device has it.

use std::path::Path;

use smelt_engine_build::llm::Unpacked;
use smelt_exec::served;
use smelt_forecast::{Alike, Fits, Needs};
use smelt_plan::StageId;
use smelt_plan::admission::Room;
use smelt_watch::Machine;

use crate::config;
use crate::last_run::LastRun;
use crate::load::{self, Loaded};
use crate::story::Story;
use crate::table::bytes;

/// What a plan's stages need, on this device as it is now.
pub(crate) struct ResourceNeeds<'a> {
    loaded: &'a Loaded,
    room: Room,
    pub(crate) needs: Needs,
}

impl<'a> ResourceNeeds<'a> {
    pub(crate) fn of_now(loaded: &'a Loaded, last: &LastRun, story: &Story<'_>) -> Self {
        let room = room_now();
        let (took, alike) = (|stage: &str| last.took(stage), Alike::read(&loaded.store));
        let output = |id| story.path(id).map(Path::to_owned);
        let needs = Needs::of(&loaded.plan, &output, &took, &alike, &room);
        Self { loaded, room, needs }
    }

    /// Lines under the table: the largest tensor, and what does not fit.
    pub(crate) fn advice(&self, story: &Story<'_>) -> Vec<String> {
        let (needs, plan) = (&self.needs, &self.loaded.plan);
        let is_built = |&id: &StageId| story.path(id).is_none();
        let stages = || plan.stages().map(|(id, _)| id).filter(is_built);
        let largest = stages().filter_map(|id| Some((needs.largest(id)?, id)));
        let mut lines = Vec::new();
        if let Some((tensor, id)) = largest.max_by_key(|(tensor, _)| tensor.bytes) {
            lines.push(format!(
                "largest single allocation: {} for {} in half precision ({})",
                bytes(tensor.bytes),
                tensor.name,
                plan.stage(id).name
            ));
        }
        let wide = needs.unpacked().iter().filter(|(id, _)| is_built(id));
        lines.extend(wide.map(|(id, wide)| unpacked_line(&plan.stage(*id).name, wide)));
        lines.extend(stages().filter_map(|id| self.misfit(id)));
        lines
    }

    /// What the user is told of a stage that does not fit.
    fn misfit(&self, id: StageId) -> Option<String> {
        let (forecast, fits) = self.needs.of_stage(id)?;
        let stage = &self.loaded.plan.stage(id).name;
        (fits == Fits::No).then(|| {
            format!(
                "{stage} does not fit this device: it needs {} ({}), there are {} and {} of swap",
                bytes(forecast.bytes),
                forecast.basis.name(),
                bytes(self.room.total_bytes),
                bytes(self.room.swap_total_bytes)
            )
        })
    }
}

/// What this device has, as the control groups above us see it.
fn room_now() -> Room {
    let served_bytes = served::may_take_bytes(&served::servers(&load::tokens()));
    let kept_bytes = config::keep_free_bytes();
    Room { served_bytes, kept_bytes, ..smelt_exec::room_of(&Machine::left_to_us(Path::new("/"))) }
}

/// What the user is told of weights that an engine will not hold as the checkpoint does.
fn unpacked_line(stage: impl std::fmt::Display, wide: &Unpacked) -> String {
    let Unpacked { tensors, first, bytes: size } = wide;
    format!(
        "{stage} holds {tensors} packed tensors as f32, {} in all, since no 32 columns share a scale (the first is {first})",
        bytes(*size)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_said_with_its_size() {
        let wide = Unpacked { tensors: 7, first: "a.weight".to_owned(), bytes: 12 << 20 };
        assert_eq!(
            unpacked_line("llm", &wide),
            "llm holds 7 packed tensors as f32, 12.0 MiB in all, since no 32 columns share a scale (the first is a.weight)"
        );
    }
}
