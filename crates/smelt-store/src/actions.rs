//! Keeps which key led to which output.
//!
//! The action log is scanned once and then followed; in memory stand only the places of the
//! newest records, about 100 bytes each.  Knows nothing of the outputs' files.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::disk::DiskError;
use crate::log::{Log, LogError, Place, Visit};
use crate::manifest::Manifest;

/// At a usual 1 KiB a record, a quarter of a million results.
pub(crate) const ACTION_LOG_BYTES_MAX: u64 = 256 << 20;

/// One record of the action log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Entry {
    /// A key led to a tree in `out/`.
    Seal { key: Digest, tree: Digest, files: Manifest, record: Value },
    /// A key led to files outside of the store.
    Reference { key: Digest, tree: Digest, path: String, files: Manifest, record: Value },
    /// A recipe key led to a content key.
    Alias { recipe: Digest, key: Digest },
}

/// The action log and the index over it.
pub(crate) struct Actions {
    /// `None` if there is nothing to read and nothing may be written.
    log: Option<Log>,
    index: Index,
}

#[derive(Default)]
struct Index {
    outputs: HashMap<Digest, Place>,
    aliases: HashMap<Digest, Digest>,
}

impl Actions {
    pub(crate) fn new(log: Option<Log>) -> Self {
        Self { log, index: Index::default() }
    }

    /// Reads what this and other processes have added.
    pub(crate) fn refresh(&mut self) -> Result<(), DiskError> {
        let Self { log: Some(log), index } = self else { return Ok(()) };
        log.read_new(&mut |place, text| index.note(place, text))
    }

    /// The newest [`Entry::Seal`] or [`Entry::Reference`] of a key.
    pub(crate) fn find(&mut self, key: &Digest) -> Result<Option<Entry>, DiskError> {
        self.refresh()?;
        let (Some(log), Some(&place)) = (&self.log, self.index.outputs.get(key)) else {
            return Ok(None);
        };
        let text = log.read_again(place)?;
        let entry = text.and_then(|text| serde_json::from_str::<Entry>(&text).ok());
        // The log may have been cut and grown again since, so only the record itself counts.
        Ok(entry.filter(|entry| entry.is_whole_and_of(key)))
    }

    pub(crate) fn resolve(&mut self, recipe: &Digest) -> Result<Option<Digest>, DiskError> {
        self.refresh()?;
        Ok(self.index.aliases.get(recipe).copied())
    }

    pub(crate) fn append(&mut self, entry: &Entry) -> Result<(), LogError> {
        self.add(entry, Log::append)
    }

    /// For what a power cut may take.
    pub(crate) fn append_later(&mut self, entry: &Entry) -> Result<(), LogError> {
        self.add(entry, Log::append_later)
    }

    fn add(&mut self, entry: &Entry, add: Add) -> Result<(), LogError> {
        let text = entry.to_text();
        let Self { log: Some(log), index } = self else {
            unreachable!("a store that is open for reading only refuses before it comes here");
        };
        let place = add(log, &text, &mut |place, text| index.note(place, text))?;
        index.note(place, &text);
        Ok(())
    }
}

/// A way to append a record.
type Add = fn(&mut Log, &str, Visit<'_>) -> Result<Place, LogError>;

impl Entry {
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("digests, strings, numbers and JSON values are JSON")
    }

    fn is_whole_and_of(&self, wanted: &Digest) -> bool {
        match self {
            Self::Seal { key, tree, files, .. } | Self::Reference { key, tree, files, .. } => {
                key == wanted && files.digest() == *tree
            }
            Self::Alias { .. } => false,
        }
    }
}

impl Index {
    /// A record of an unknown shape is skipped: what it says is not for this version.
    fn note(&mut self, place: Place, text: &str) {
        match serde_json::from_str(text) {
            Ok(Entry::Seal { key, .. } | Entry::Reference { key, .. }) => {
                self.outputs.insert(key, place);
            }
            Ok(Entry::Alias { recipe, key }) => {
                self.aliases.insert(recipe, key);
            }
            Err(_) => {}
        }
    }
}
