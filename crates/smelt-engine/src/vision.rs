//! Opens vision engines of this crate's back ends.

use std::path::Path;

pub use smelt_backend::grid::{Grid, Lattice};
pub use smelt_backend::{HostFeatures, Takes, VisionEngine, VisionError as RunError};

use crate::BACKENDS;
pub use crate::engine_file::OpenError;

/// Opens the only vision engine in `dir`.
///
/// # Errors
/// When the directory holds no engine of a graph from pictures to tokens, its parts disagree, or there are several.
pub fn open(dir: &Path) -> Result<VisionEngine, OpenError> {
    let mut engines = BACKENDS.vision(dir)?;
    match engines.pop() {
        Some(engine) if engines.is_empty() => Ok(engine),
        // Of several graphs, or none, this says why they are not one.
        _ => VisionEngine::new(BACKENDS.graph(dir)?, None),
    }
}
