//! Builds native engines from ONNX graphs: one, or those of a list of sizes of pictures.
//!
//! Knows nothing of checkpoints, pictures or texts.

mod build;
mod card;
mod convert;
mod grids;
mod histogram;
mod pack;
mod ranges;
mod size;

use std::path::Path;

use smelt_engine::tactics::Tactics;

use crate::BuildError;
pub use build::build;
pub(crate) use build::{tried_inputs, try_sizes};
pub use card::{PackedForCard, pack_for_card};
pub(crate) use convert::input_file;
pub use histogram::Method;
pub use ranges::{Observer, RANGES_FILE, Ranges, RangesError, ValueRange};
pub use size::tower_bytes;

/// How a graph's products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Weights as they are given, in f32, f16 or bf16; products in f32.
    F32,
    /// Weights in 8 bits with a scale for each output; activations in 8 bits with a scale for each
    /// row and 32 columns; sums of such 32 in integers.
    Int8,
}

impl Precision {
    /// Both, in the order of their words.
    const ALL: [(Self, &str); 2] = [(Self::F32, "f32"), (Self::Int8, "int8")];

    /// The one called `word`.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == word).map(|(precision, _)| *precision)
    }
}

/// What an engine is built with.
#[derive(Clone, Debug)]
pub struct Options {
    /// How its products are computed.
    pub precision: Precision,
    /// What it follows on machines equal to theirs.
    pub tactics: Option<Tactics>,
}

impl From<Precision> for Options {
    fn from(precision: Precision) -> Self {
        Self { precision, tactics: None }
    }
}

/// What the native back end cannot execute of the graph at `path`.
fn unfit(path: &Path, problem: String) -> BuildError {
    BuildError::Graph { path: path.to_owned(), backend: "native", problem }
}
