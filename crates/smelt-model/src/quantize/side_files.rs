//! Copies what a checkpoint has beside its weights.
//!
//! Bytes go over as they are.  Knows nothing of what is in them.

use std::fs;
use std::io;
use std::path::Path;

use super::{QuantizeError, failed};
use crate::checkpoint::CheckpointError;

/// The side files copied if they are there.
const SIDE_FILES: [&str; 9] = [
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// Copies the side files of `from` that are there, its configuration left out, into `to`.
pub(crate) fn copy_side_files(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    for name in SIDE_FILES {
        let source = from.join(name);
        if source.exists() {
            copy_file(&source, &to.join(name))?;
        }
    }
    Ok(())
}

/// Copies the bytes alone: a sealed file's read-only mode must not come along.
fn copy_file(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    let mut source =
        fs::File::open(from).map_err(|source| CheckpointError::Io { path: from.into(), source })?;
    let mut target = fs::File::create(to).map_err(failed(to))?;
    io::copy(&mut source, &mut target).map_err(failed(to))?;
    Ok(())
}
