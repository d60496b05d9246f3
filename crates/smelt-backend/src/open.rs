//! Names why a directory could not be opened as an engine.

use std::io;
use std::path::PathBuf;

use crate::NoEngine;

/// Why a directory could not be opened as an engine.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `engine.json` is not what this version writes.
    #[error("{} is no engine of this version: {problem}; build the engine again", path.display())]
    NotAnEngine {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The engine is of another kind than was asked for.
    #[error(
        "{} is of kind {found:?}, not {wanted:?}; name the directory of the other engine",
        path.display()
    )]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// The kind it names.
        found: String,
        /// The kind that was asked for.
        wanted: &'static str,
    },
    /// The engine serves another purpose than it was opened for.
    #[error("{} is no engine for {purpose}: {problem}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What it was opened for.
        purpose: &'static str,
        /// What is in the way.
        problem: String,
    },
    /// A context is asked for that the model was not made for.
    #[error(
        "a context of {asked} tokens is more than the model's {positions} positions; ask for at most {positions}"
    )]
    TooLong {
        /// Tokens that were asked for.
        asked: usize,
        /// Tokens that there may be.
        positions: usize,
    },
    /// The engine was built for another device.
    #[error("{} is no engine for this device: {why}; build it here", path.display())]
    OtherDevice {
        /// The file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// None of the engines that a file names for several devices runs on this one.
    #[error("{}: {why}", path.display())]
    NoEngine {
        /// The file that names them.
        path: PathBuf,
        /// Why none does.
        why: NoEngine,
    },
    /// What executes the engine is not on this machine.
    #[error("{0}")]
    Library(String),
    /// The engine does not agree with its weights.
    #[error("{} is damaged: {problem}; build the engine again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}
