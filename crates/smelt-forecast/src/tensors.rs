//! The largest tensors that stages handle, and what engines hold unpacked, by the checkpoints that are there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use smelt_engine_build::llm::{Unpacked, unpacked};
use smelt_model::checkpoint::Checkpoint;
use smelt_plan::kind::TensorsHandled;
use smelt_plan::{Kind, Plan, StageId};

/// An element of a tensor in the half precision that engine builders hold it in.
const HALF_BYTES: u64 = 2;

/// The largest piece that a builder has to hold at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargestTensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// In half precision.
    pub bytes: u64,
}

/// The largest tensors of a checkpoint, and what an engine of it will hold unpacked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tensors {
    vision: Option<LargestTensor>,
    rest: Option<LargestTensor>,
    pub(crate) unpacked: Option<Unpacked>,
}

/// What there is of each stage that reads a checkpoint which is there, or a graph of it.
pub(crate) fn found(
    plan: &Plan,
    output: &dyn Fn(StageId) -> Option<PathBuf>,
) -> HashMap<StageId, Tensors> {
    let mut found: HashMap<StageId, Tensors> = HashMap::new();
    for (id, stage) in plan.stages() {
        let below = || stage.needs().find_map(|need| found.get(&need).cloned());
        let own = match stage.kind.tensors(&stage.params) {
            TensorsHandled::Brings => output(id).and_then(|dir| of_checkpoint(&dir)),
            TensorsHandled::Vision => below().map(|all| Tensors { rest: None, ..all }),
            TensorsHandled::Llm => below().map(|all| Tensors { vision: None, ..all }),
            TensorsHandled::All => below(),
            TensorsHandled::None => None,
        };
        found.extend(own.map(|own| (id, own)));
    }
    found
}

/// The largest tensor that each of these stages handles; a source handles none.
pub(crate) fn largest(
    plan: &Plan,
    found: HashMap<StageId, Tensors>,
) -> HashMap<StageId, LargestTensor> {
    let of = |(id, Tensors { vision, rest, .. }): (StageId, Tensors)| {
        let is_source = plan.stage(id).kind == Kind::Source;
        let tensor = vision.into_iter().chain(rest).max_by_key(|tensor| tensor.bytes);
        tensor.filter(|_| !is_source).map(|tensor| (id, tensor))
    };
    found.into_iter().filter_map(of).collect()
}

fn of_checkpoint(path: &Path) -> Option<Tensors> {
    let checkpoint = Checkpoint::open(path).ok()?;
    // A model without a decoder has nothing to unpack.
    let unpacked = unpacked(&checkpoint).ok().flatten();
    let mut largest = Tensors { unpacked, ..Tensors::default() };
    for weight in checkpoint.tensors() {
        let elements: usize = checkpoint.shape(&weight.name).ok()?.iter().product();
        let tensor =
            LargestTensor { name: weight.name.clone(), bytes: elements as u64 * HALF_BYTES };
        let is_vision = ["vision", "visual", "mlp1."].iter().any(|part| weight.name.contains(part));
        let place = if is_vision { &mut largest.vision } else { &mut largest.rest };
        if place.as_ref().is_none_or(|other| other.bytes < tensor.bytes) {
            *place = Some(tensor);
        }
    }
    Some(largest)
}
