//! Reads the heading of an engine: which kind it is of, for which target, and for which devices.
//!
//! Every back end's `engine.json` begins so, whatever else it holds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::OpenError;

/// The file that says what the engine is.
pub const ENGINE_FILE: &str = "engine.json";

/// An `engine.json` longer than this is no engine of ours (a graph of 10 000 nodes takes 3 MiB).
const ENGINE_FILE_BYTES_MAX: u64 = 64 << 20;

/// The fields that every engine has, whatever the rest of the file looks like.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Heading {
    /// Version of the directory's layout; each back end counts its own.
    pub format: u32,
    /// What it is: `llm`, `graph`, …
    pub kind: String,
    /// What runs it: `cpu`, …
    pub target: String,
    /// The facts about the device on which it depends, by the words of pipelines, as they were where it was built;
    /// none of engines that run on any.
    #[serde(default)]
    pub device: BTreeMap<String, String>,
    /// Bytes of a device's memory that it takes at least; nothing of engines that live in the host's, which others
    /// measure.
    #[serde(default)]
    pub device_bytes: Option<u64>,
}

impl Heading {
    /// The heading of the engine in `dir`.
    ///
    /// # Errors
    /// [`OpenError`] when the file cannot be read or has none.
    pub fn read(dir: &Path) -> Result<Self, OpenError> {
        Ok(Self::read_with_text(dir)?.0)
    }

    /// As [`Self::read`], with the whole text of the file, whose length is bounded.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_with_text(dir: &Path) -> Result<(Self, String), OpenError> {
        let path = dir.join(ENGINE_FILE);
        let read = |source| OpenError::Read { path: path.clone(), source };
        let not_ours = |problem| OpenError::NotAnEngine { path: path.clone(), problem };
        let file = File::open(&path).map_err(read)?;
        let mut text = String::new();
        file.take(ENGINE_FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
        if text.len() as u64 > ENGINE_FILE_BYTES_MAX {
            return Err(not_ours(format!("it is longer than {ENGINE_FILE_BYTES_MAX} bytes")));
        }
        let heading = serde_json::from_str(&text).map_err(|error| not_ours(error.to_string()))?;
        Ok((heading, text))
    }

    /// As [`Self::read_with_text`], of an engine of this kind and this version of its layout.
    ///
    /// # Errors
    /// As [`Self::read`], and when it is of another version or kind.
    pub fn read_of(
        dir: &Path,
        format: u32,
        kind: &'static str,
    ) -> Result<(Self, String), OpenError> {
        let path = dir.join(ENGINE_FILE);
        let (heading, text) = Self::read_with_text(dir)?;
        if heading.format != format {
            let problem = format!("format {} is not {format}", heading.format);
            return Err(OpenError::NotAnEngine { path, problem });
        }
        if heading.kind != kind {
            return Err(OpenError::OtherKind { path, found: heading.kind, wanted: kind });
        }
        Ok((heading, text))
    }
}
