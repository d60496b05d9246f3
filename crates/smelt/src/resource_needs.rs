//! Says before a run what its stages will need and whether this device has it.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use smelt_engine_build::llm::{Unpacked, unpacked};
use smelt_exec::served;
use smelt_model::checkpoint::Checkpoint;
use smelt_plan::admission::{Admission, Forecast, Room, admit};
use smelt_plan::kind::TensorsHandled;
use smelt_plan::plan::Stage;
use smelt_plan::{Kind, StageId};
use smelt_watch::Machine;

use crate::forecast::{self, Alike, bytes_below};
use crate::last_run::LastRun;
use crate::load::{self, Loaded, Standing};
use crate::story::Story;
use crate::table::bytes;
use crate::towers::Towers;

/// An element of a tensor in the half precision that engine builders hold it in.
const HALF_BYTES: u64 = 2;

/// What a plan's stages need, on this device as it is now.
pub(crate) struct ResourceNeeds<'a> {
    loaded: &'a Loaded,
    room: Room,
    /// Of the stages that must be built, in the order of the plan.
    held: Vec<Option<(Forecast, Fits)>>,
    largest: HashMap<StageId, Tensor>,
    /// What engines of language models will hold unpacked.
    unpacked: Vec<(StageId, Unpacked)>,
}

/// Whether a stage fits, if it runs alone now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fits {
    /// In what is free.
    Yes,
    /// With a part of it swapped out.
    Swapping,
    /// When other programs have ended.
    Later,
    /// Never on this device.
    No,
}

/// The largest piece that a builder has to hold at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    name: String,
    pub(crate) bytes: u64,
}

/// The largest tensors of a checkpoint, and what an engine of it will hold unpacked.
#[derive(Debug, Clone, Default)]
struct Largest {
    vision: Option<Tensor>,
    rest: Option<Tensor>,
    unpacked: Option<Unpacked>,
}

impl<'a> ResourceNeeds<'a> {
    pub(crate) fn of_now(loaded: &'a Loaded, last: &LastRun, story: &Story<'_>) -> Self {
        let room = room_now();
        let alike = Alike::read(&loaded.store);
        let towers = Towers::of_plan(&loaded.plan, |id| match &story.standings[id.index()].0 {
            Standing::Hit { path, .. } => Some(path.clone()),
            Standing::Miss(_) | Standing::Unknown { .. } => None,
        });
        let held = |(id, stage): (StageId, &Stage)| {
            let forecast = forecast_of(id, stage, story, last, (&alike, &towers))?;
            Some((forecast, fits(forecast, &room)))
        };
        let held = loaded.plan.stages().map(held).collect();
        let found = found(loaded, story);
        let unpacked = unpacked_of(loaded, &found);
        Self { loaded, room, held, largest: largest(loaded, found), unpacked }
    }

    /// What a stage that must be built will hold, and whether that fits.
    pub(crate) fn of(&self, id: StageId) -> Option<(Forecast, Fits)> {
        self.held[id.index()]
    }

    /// The largest tensor that a stage handles, where the checkpoint is there to be asked.
    pub(crate) fn largest(&self, id: StageId) -> Option<&Tensor> {
        self.largest.get(&id)
    }

    /// Lines under the table: the largest tensor, and what does not fit.
    pub(crate) fn advice(&self, story: &Story<'_>) -> Vec<String> {
        let is_built =
            |&id: &StageId| !matches!(story.standings[id.index()].0, Standing::Hit { .. });
        let stages = || self.loaded.plan.stages().map(|(id, _)| id).filter(is_built);
        let largest = stages().filter_map(|id| Some((self.largest(id)?, id)));
        let mut lines = Vec::new();
        if let Some((tensor, id)) = largest.max_by_key(|(tensor, _)| tensor.bytes) {
            let stage = &self.loaded.plan.stage(id).name;
            lines.push(format!(
                "largest single allocation: {} for {} in half precision ({stage})",
                bytes(tensor.bytes),
                tensor.name
            ));
        }
        let no = |id: StageId| {
            let (forecast, fits) = self.of(id)?;
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
        };
        let wide = self.unpacked.iter().filter(|(id, _)| is_built(id));
        lines.extend(wide.map(|(id, wide)| unpacked_line(&self.loaded.plan.stage(*id).name, wide)));
        lines.extend(stages().filter_map(no));
        lines
    }
}

impl Fits {
    /// As JSON says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Swapping => "swapping",
            Self::Later => "later",
            Self::No => "no",
        }
    }

    /// As the table says it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Yes => "fits",
            Self::Swapping => "will swap",
            Self::Later => "waits for other programs",
            Self::No => "does not fit",
        }
    }
}

/// The forecast of a stage that must be built.
fn forecast_of(
    id: StageId,
    stage: &Stage,
    story: &Story<'_>,
    last: &LastRun,
    (alike, towers): (&Alike, &Towers),
) -> Option<Forecast> {
    if matches!(story.standings[id.index()].0, Standing::Hit { .. }) {
        return None;
    }
    let input_bytes = || {
        let path = |need: StageId| match &story.standings[need.index()].0 {
            Standing::Hit { path, .. } => Some(bytes_below(path)),
            Standing::Miss(_) | Standing::Unknown { .. } => None,
        };
        stage.needs().map(path).sum()
    };
    forecast::of_stage(stage, last, alike, towers, &input_bytes)
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

/// What this device has, as the control groups above us see it.
fn room_now() -> Room {
    let served_bytes = served::may_take_bytes(&served::servers(&load::tokens()));
    Room { served_bytes, ..smelt_exec::room_of(&Machine::left_to_us(Path::new("/"))) }
}

/// What the user is told of weights that an engine will not hold as the checkpoint does.
fn unpacked_line(stage: impl std::fmt::Display, wide: &Unpacked) -> String {
    let Unpacked { tensors, first, bytes: size } = wide;
    format!(
        "{stage} holds {tensors} packed tensors as f32, {} in all, since no 32 columns share a scale (the first is {first})",
        bytes(*size)
    )
}

/// The stages that build an engine of a language model of which something is unpacked.
fn unpacked_of(loaded: &Loaded, found: &HashMap<StageId, Largest>) -> Vec<(StageId, Unpacked)> {
    let engines = loaded.plan.stages().filter(|(_, stage)| stage.kind == Kind::LlmEngineBuild);
    let of = |id: StageId| Some((id, found.get(&id)?.unpacked.clone()?));
    engines.filter_map(|(id, _)| of(id)).collect()
}

/// What there is of each stage that reads a checkpoint which is there, or a graph of it.
fn found(loaded: &Loaded, story: &Story<'_>) -> HashMap<StageId, Largest> {
    let mut found: HashMap<StageId, Largest> = HashMap::new();
    for (id, stage) in loaded.plan.stages() {
        let below = || stage.needs().find_map(|need| found.get(&need).cloned());
        let own = match stage.kind.tensors(&stage.params) {
            TensorsHandled::Brings => match &story.standings[id.index()].0 {
                Standing::Hit { path, .. } => of_checkpoint(path),
                Standing::Miss(_) | Standing::Unknown { .. } => None,
            },
            TensorsHandled::Vision => below().map(|all| Largest { rest: None, ..all }),
            TensorsHandled::Llm => below().map(|all| Largest { vision: None, ..all }),
            TensorsHandled::All => below(),
            TensorsHandled::None => None,
        };
        found.extend(own.map(|own| (id, own)));
    }
    found
}

/// The largest tensor that each of these stages handles; a source handles none.
fn largest(loaded: &Loaded, found: HashMap<StageId, Largest>) -> HashMap<StageId, Tensor> {
    let of = |(id, Largest { vision, rest, .. }): (StageId, Largest)| {
        let is_source = loaded.plan.stage(id).kind == Kind::Source;
        let tensor = vision.into_iter().chain(rest).max_by_key(|tensor| tensor.bytes);
        tensor.filter(|_| !is_source).map(|tensor| (id, tensor))
    };
    found.into_iter().filter_map(of).collect()
}

fn of_checkpoint(path: &Path) -> Option<Largest> {
    let checkpoint = Checkpoint::open(path).ok()?;
    // A model without a decoder has nothing to unpack.
    let unpacked = unpacked(&checkpoint).ok().flatten();
    let mut largest = Largest { unpacked, ..Largest::default() };
    for weight in checkpoint.tensors() {
        let elements: usize = checkpoint.shape(&weight.name).ok()?.iter().product();
        let tensor = Tensor { name: weight.name.clone(), bytes: elements as u64 * HALF_BYTES };
        let is_vision = ["vision", "visual", "mlp1."].iter().any(|part| weight.name.contains(part));
        let place = if is_vision { &mut largest.vision } else { &mut largest.rest };
        if place.as_ref().is_none_or(|other| other.bytes < tensor.bytes) {
            *place = Some(tensor);
        }
    }
    Some(largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smelt_plan::admission::Basis;

    #[test]
    fn what_is_unpacked_is_said_with_its_size() {
        let wide = Unpacked { tensors: 7, first: "a.weight".to_owned(), bytes: 12 << 20 };
        assert_eq!(
            unpacked_line("llm", &wide),
            "llm holds 7 packed tensors as f32, 12.0 MiB in all, since no 32 columns share a scale (the first is a.weight)"
        );
    }

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
