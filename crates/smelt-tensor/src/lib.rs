//! Says what the tensors of models are: element types, packed forms, and what the layers of decoders have.
//!
//! Who reads checkpoints and who runs engines mean the same by these words, and neither needs the other.
//! Plain data and tables.  Knows no files, no checkpoints and no engines.

pub mod decoder;
pub mod dtype;
pub mod packed;
