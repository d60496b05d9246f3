//! Writes the files of an engine, and holds them to what its `engine.json` says of them.
//!
//! Knows nothing of what is in them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{ENGINE_FILE, OpenError, Witness};

/// Bytes read and hashed at a time.
const HASH_BYTES: usize = 1 << 20;

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

/// Reads the `bytes` of a file and compares their sha256 with what `engine.json` says; `told` hears of each piece's bytes.
///
/// # Errors
/// As [`sha256`], or [`OpenError::Damaged`] where it has another.
pub fn check_all(
    path: &Path,
    file: (&File, u64),
    said: &str,
    told: &mut dyn Witness,
) -> Result<(), OpenError> {
    compare(path, &sha256(path, file, told)?, said)
}

/// Reads the `bytes` of a file; `told` hears of each piece's.  What `told` knows of the file is not read again.
///
/// They are read, and not looked at where they are mapped: pages of weights that no answer needs would stay in memory.
///
/// # Errors
/// When it cannot be read.
pub fn sha256(
    path: &Path,
    (file, bytes): (&File, u64),
    told: &mut dyn Witness,
) -> Result<String, OpenError> {
    if let Some(known) = told.sha256(path, file) {
        told.has_read(bytes);
        return Ok(known);
    }
    let read = |source| OpenError::Read { path: path.to_owned(), source };
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; HASH_BYTES]);
    for at in (0..bytes).step_by(HASH_BYTES) {
        let piece = &mut buffer[..(bytes - at).min(HASH_BYTES as u64) as usize];
        file.read_exact_at(piece, at).map_err(read)?;
        hash.update(&*piece);
        told.has_read(piece.len() as u64);
    }
    Ok(hex(&hash.finalize()))
}

/// Whether a file has the sha256 that `engine.json` says.
///
/// # Errors
/// [`OpenError::Damaged`] where it has another.
pub fn check_sha256(path: &Path, found: &[u8], said: &str) -> Result<(), OpenError> {
    compare(path, &hex(found), said)
}

fn compare(path: &Path, found: &str, said: &str) -> Result<(), OpenError> {
    if found == said {
        return Ok(());
    }
    let problem = format!("its sha256 is {found} where {ENGINE_FILE} says {said}");
    Err(OpenError::Damaged { path: path.to_owned(), problem })
}
