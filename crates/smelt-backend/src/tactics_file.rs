//! Writes and reads the file in which tuning leaves its choices.
//!
//! Knows nothing of what they say: each back end reads its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The file in a tuned stage's directory.
pub const TACTICS_FILE: &str = "tactics.json";

/// Why tactics could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TacticsError {
    /// The system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what this version of the back end writes.
    #[error("{} holds no tactics of {whose}: {problem}; tune again", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// Whose tactics were looked for.
        whose: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// Writes tactics into `dir`.
///
/// # Errors
/// When the file cannot be written.
pub fn write(dir: &Path, tactics: &impl Serialize) -> Result<(), TacticsError> {
    let path = dir.join(TACTICS_FILE);
    let text = serde_json::to_string_pretty(tactics).expect("plain data is JSON") + "\n";
    fs::write(&path, text).map_err(|source| TacticsError::Io { verb: "write", path, source })
}

/// Reads those in `dir`; messages say `whose` they are to be.
///
/// # Errors
/// When there are none, or that of `parse`.
pub fn read<T>(
    dir: &Path,
    whose: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, TacticsError> {
    let path = dir.join(TACTICS_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(TacticsError::Io { verb: "read", path, source }),
    };
    parse(&text).map_err(|problem| TacticsError::Bad { path, whose, problem })
}
