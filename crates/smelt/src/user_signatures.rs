//! Finds the user's own signatures of failures: `$SMELT_SIGNATURES`, else `signatures.toml` beside the
//! pipeline.

use std::path::{Path, PathBuf};

use smelt_exec::Signatures;
use smelt_exec::signatures::FILE_BYTES_MAX;

use crate::exit::{Exit, Failed};
use crate::load;

/// What is looked for in the logs of a pipeline's failed stages.
pub(crate) fn signatures(pipeline: &Path) -> Result<Signatures, Failed> {
    let Some(file) = file(pipeline) else { return Ok(Signatures::built_in()) };
    let text = load::read_within(&file, "the signatures", FILE_BYTES_MAX)?;
    Signatures::with(&file.display().to_string(), &text)
        .map_err(|error| Failed::new(Exit::BadPipeline, error))
}

/// A file that the variable names must be there; the one beside the pipeline may be missing.
fn file(pipeline: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("SMELT_SIGNATURES").filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| {
        let beside = pipeline.with_file_name("signatures.toml");
        beside.exists().then_some(beside)
    })
}
