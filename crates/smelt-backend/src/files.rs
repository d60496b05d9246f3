//! Writes the files of an engine, and holds them to what its `engine.json` says of them.
//!
//! Knows nothing of what is in them.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::{ENGINE_FILE, OpenError};

/// A digest as `engine.json` says it.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file whole and durably.
///
/// # Errors
/// When the system refuses.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Opens a file of which `engine.json` says that it has so many bytes.
///
/// # Errors
/// When it cannot be read, or has another number.
pub fn open(path: &Path, said: u64) -> Result<File, OpenError> {
    let read = |source| OpenError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let found = file.metadata().map_err(read)?.len();
    if found == said {
        return Ok(file);
    }
    let problem = format!("it has {found} bytes where {ENGINE_FILE} says {said}");
    Err(OpenError::Damaged { path: path.to_owned(), problem })
}

/// Whether a file has the sha256 that `engine.json` says.
///
/// # Errors
/// [`OpenError::Damaged`] where it has another.
pub fn check_sha256(path: &Path, found: &[u8], said: &str) -> Result<(), OpenError> {
    let found = hex(found);
    if found == said {
        return Ok(());
    }
    let problem = format!("its sha256 is {found} where {ENGINE_FILE} says {said}");
    Err(OpenError::Damaged { path: path.to_owned(), problem })
}
