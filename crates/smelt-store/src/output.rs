//! Holds what the store answers: an output, where it lies, and what became of it.
//!
//! Plain data.  Reads nothing and decides nothing.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::digest::Digest;
use crate::manifest::Manifest;

/// The result of a stage, or a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The digest of the tree, equal for equal content.
    pub digest: Digest,
    /// Where the files are.
    pub location: Location,
    /// The files.
    pub manifest: Manifest,
    /// What the caller gave when it was sealed.
    pub record: Value,
}

/// Where the files of an output are; each path is absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the store: immutable.
    Sealed(PathBuf),
    /// Outside, and not ours: a directory, or a single file.
    External(PathBuf),
}

impl Output {
    /// The directory (or the single external file) that holds the output.
    pub fn path(&self) -> &Path {
        match &self.location {
            Location::Sealed(path) | Location::External(path) => path,
        }
    }
}

/// What is known under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// The output, verified.
    Hit(Box<Output>),
    /// Nothing.
    Miss,
    /// Files outside of the store are no longer what was recorded, as the sentence says; the key
    /// is a miss.
    Changed(String),
    /// An output that was no longer what was sealed.  It has been moved away; the key is a miss.
    Damaged(Damage),
}

impl Lookup {
    /// The output, if it can be used.
    pub fn hit(self) -> Option<Output> {
        match self {
            Self::Hit(output) => Some(*output),
            Self::Miss | Self::Changed(_) | Self::Damaged(_) => None,
        }
    }
}

/// What was found wrong with a sealed output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Of the tree as it was sealed.
    pub digest: Digest,
    /// The finding, as a sentence.
    pub what: String,
    /// Where it lies now; `None` if the store is open for reading only.
    pub moved_to: Option<PathBuf>,
}
