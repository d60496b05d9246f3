//! Generates text on a GPU: a decoder with paged keys and values for several sequences.
//!
//! A step is planned as data (`plan`), laid out for the device (`inputs`), launched (`launches`), and waited for.  Slots are
//! tables of pages (`pages`) that lie in memory taken a piece at a time (`memory`).  Knows nothing of checkpoints, text,
//! requests or pictures.

mod check;
mod fault;
mod file;
mod memory;
mod pages;
mod plan;
mod step;
mod weights;

pub use file::{DecoderFile, DecoderWriter, FORMAT, KIND, KernelImage, TensorEntry, WEIGHTS_FILE};
