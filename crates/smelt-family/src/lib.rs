//! Says what is true of every model of a family, whoever asks.
//!
//! A family that speaks is one row of the registry, a [`Family`]: plain data that exporters, deployments and
//! the runtime read.  What differs from model to model is in a checkpoint and not here.
//! Knows nothing of checkpoints, graphs, prompts or pixels.

mod family;
mod registry;

pub use family::{
    ClipFacts, ClipLimits, CutFacts, Family, FrameChoice, FrameLabels, ImageFacts, ImageMarks,
    Normalization, SplitFacts, TowerInput,
};
pub use registry::ModelFamily;
