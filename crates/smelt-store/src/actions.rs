//! Keeps which key led to which output.
//!
//! The action log is scanned once and then followed; in memory stand only the places of the
//! newest records, about 100 bytes each.  Knows nothing of the outputs' files.

use std::cell::RefCell;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::disk::DiskError;
use crate::log::{Log, LogError, RecordLocation, Visit};
use crate::manifest::Manifest;

/// At a usual 1 KiB a record, a quarter of a million results.
pub(crate) const ACTION_LOG_BYTES_MAX: u64 = 256 << 20;

/// Below this a log is read in milliseconds, so that making it shorter gains nothing.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// Compacted when that many of its records are one live one: each record is then copied once for
/// every one written, however long the store lives.
const RECORDS_PER_LIVE_ONE: u64 = 2;

/// One record of the action log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Entry {
    /// A key led to a tree in `out/`.
    Seal {
        key: Digest,
        tree: Digest,
        files: Manifest,
        record: Value,
        /// Other trees in `out/` that this one names, and is nothing without.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refers: Vec<Digest>,
    },
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
    /// How often the log was read from its start.
    readings: u64,
    outputs: HashMap<Digest, RecordLocation>,
    /// The key, and which record said so.
    aliases: HashMap<Digest, (Digest, u64)>,
}

/// See [`Actions::version`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    readings: u64,
    records: u64,
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
        Ok(self.index.aliases.get(recipe).map(|(key, _)| *key))
    }

    pub(crate) fn append(&mut self, entry: &Entry) -> Result<(), LogError> {
        self.add(entry, Log::append)
    }

    /// For what a power cut may take.
    pub(crate) fn append_later(&mut self, entry: &Entry) -> Result<(), LogError> {
        self.add(entry, Log::append_later)
    }

    /// Makes durable what was appended, by other processes too.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        self.log.as_mut().map_or(Ok(()), Log::sync)
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

    /// Where the log stands: the same answer twice means that nothing was recorded in between.
    pub(crate) fn version(&mut self) -> Result<Version, DiskError> {
        self.refresh()?;
        let records = self.log.as_ref().map_or(0, Log::records);
        Ok(Version { readings: self.index.readings, records })
    }

    /// The content key a recipe key led to last, as far as the log has been read.
    pub(crate) fn known_alias(&self, recipe: &Digest) -> Option<Digest> {
        self.index.aliases.get(recipe).map(|(key, _)| *key)
    }

    /// Visits the newest record of every key that has an output, in the order of the log.
    pub(crate) fn each_output(&mut self, visit: &mut dyn FnMut(Entry)) -> Result<(), DiskError> {
        self.refresh()?;
        let Some(log) = &self.log else { return Ok(()) };
        let mut places: Vec<RecordLocation> = self.index.outputs.values().copied().collect();
        places.sort_by_key(|place| place.seq());
        for place in places {
            let text = log.read_again(place)?;
            let entry = text.and_then(|text| serde_json::from_str::<Entry>(&text).ok());
            if let Some(entry) = entry.filter(Entry::is_whole) {
                visit(entry);
            }
        }
        Ok(())
    }

    /// Whether most of the log is superseded, and it is long enough to matter.
    pub(crate) fn is_mostly_dead(&self) -> bool {
        let Some(log) = &self.log else { return false };
        let live = (self.index.outputs.len() + self.index.aliases.len()) as u64;
        log.bytes() >= COMPACT_BYTES_MIN && log.records() >= RECORDS_PER_LIVE_ONE * live
    }

    /// Whether some record says nothing that a later one does not.
    pub(crate) fn has_superseded(&self) -> bool {
        let live = (self.index.outputs.len() + self.index.aliases.len()) as u64;
        self.log.as_ref().is_some_and(|log| log.records() > live)
    }

    /// Drops what is superseded and what `is_live` denies; `added` comes after what stays.  Records of a shape that we do not know stay.
    pub(crate) fn compact(
        &mut self,
        is_live: &mut dyn FnMut(&Entry) -> bool,
        added: &[Entry],
    ) -> Result<(), LogError> {
        let Self { log: Some(log), index } = self else { return Ok(()) };
        let added: Vec<String> = added.iter().map(Entry::to_text).collect();
        let shared = RefCell::new(std::mem::take(index));
        let live = |place: RecordLocation, text: &str| {
            let Ok(entry) = serde_json::from_str::<Entry>(text) else { return true };
            let index = shared.borrow();
            match &entry {
                Entry::Alias { recipe, .. } => {
                    let newest = index.aliases.get(recipe).map(|(_, seq)| *seq);
                    newest == Some(place.seq()) && is_live(&entry)
                }
                Entry::Seal { key, .. } | Entry::Reference { key, .. } => {
                    index.outputs.get(key) == Some(&place) && entry.is_whole() && is_live(&entry)
                }
            }
        };
        let visit = &mut |place: RecordLocation, text: &str| shared.borrow_mut().note(place, text);
        let done = log.compact(live, &added, visit);
        *index = shared.into_inner();
        done
    }
}

/// A way to append a record.
type Add = fn(&mut Log, &str, Visit<'_>) -> Result<RecordLocation, LogError>;

impl Entry {
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("digests, strings, numbers and JSON values are JSON")
    }

    /// The tree in `out/` that it stands for.
    pub(crate) fn tree(&self) -> Option<&Digest> {
        match self {
            Self::Seal { tree, .. } => Some(tree),
            Self::Reference { .. } | Self::Alias { .. } => None,
        }
    }

    /// Whether it says of its files what its tree says.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Seal { tree, files, .. } | Self::Reference { tree, files, .. } => {
                files.digest() == *tree
            }
            Self::Alias { .. } => true,
        }
    }

    fn is_whole_and_of(&self, wanted: &Digest) -> bool {
        match self {
            Self::Seal { key, .. } | Self::Reference { key, .. } => {
                key == wanted && self.is_whole()
            }
            Self::Alias { .. } => false,
        }
    }
}

impl Index {
    /// A record of an unknown shape is skipped: what it says is not for this version.
    fn note(&mut self, place: RecordLocation, text: &str) {
        if place.seq() == 1 {
            // The log is read from its start again, because it was cut or compacted.
            *self = Self { readings: self.readings + 1, ..Self::default() };
        }
        match serde_json::from_str(text) {
            Ok(Entry::Seal { key, .. } | Entry::Reference { key, .. }) => {
                self.outputs.insert(key, place);
            }
            Ok(Entry::Alias { recipe, key }) => {
                self.aliases.insert(recipe, (key, place.seq()));
            }
            Err(_) => {}
        }
    }
}
