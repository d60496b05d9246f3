//! Names the directories of an engine: one, or several of which each device runs one.
//!
//! Engines of several devices answer alike, so which one is opened is no part of what a deployment is.  Knows no device:
//! the back ends say what fits the one they are on.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use smelt_backend::{Backends, OpenError};

/// The file that makes a directory a deployment.
pub const DEPLOYMENT_FILE: &str = "deployment.json";

/// More kinds of devices than one model is deployed on.
const DEVICES_MAX: usize = 64;

/// The directories of an engine, relative to the deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a directory, or a list of directories")]
pub enum EngineDirs {
    /// The one that every device runs.
    One(String),
    /// Several, of which each device runs the one that fits it: of equally good ones the first.
    PerDevice(Vec<String>),
}

impl From<String> for EngineDirs {
    fn from(dir: String) -> Self {
        Self::One(dir)
    }
}

impl From<&str> for EngineDirs {
    fn from(dir: &str) -> Self {
        Self::One(dir.to_owned())
    }
}

impl From<Vec<String>> for EngineDirs {
    /// A list of one is written as a deployment with one engine always was.
    fn from(mut dirs: Vec<String>) -> Self {
        match dirs.len() {
            1 => Self::One(dirs.remove(0)),
            _ => Self::PerDevice(dirs),
        }
    }
}

impl EngineDirs {
    /// All of them.
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(dir) => std::slice::from_ref(dir),
            Self::PerDevice(dirs) => dirs,
        }
    }

    /// The directory of the engine that the device of `backends` runs, for a deployment at `at`.
    ///
    /// # Errors
    /// When none of several fits, or the heading of one cannot be read.
    pub fn chosen(&self, backends: Backends, at: &Path) -> Result<PathBuf, OpenError> {
        backends.choose(&at.join(DEPLOYMENT_FILE), &self.paths(at)).map(Path::to_owned)
    }

    /// Where all of them are, for a deployment at `at`.
    pub fn paths(&self, at: &Path) -> Vec<PathBuf> {
        self.all().iter().map(|dir| named_from(at, dir)).collect()
    }

    /// What is wrong with the directories of `field`, if anything.
    pub(crate) fn fault(&self, field: &str) -> Option<String> {
        let dirs = self.all();
        if !(1..=DEVICES_MAX).contains(&dirs.len()) {
            let count = dirs.len();
            return Some(format!("{field} names {count} engines, not 1 to {DEVICES_MAX}"));
        }
        let odd = dirs.iter().find(|dir| dir.is_empty() || Path::new(dir).is_absolute())?;
        Some(format!("{field} is {odd:?}, but must be a relative directory"))
    }
}

/// The directory that a deployment at `at` calls `name`: beside it, even where it is not there yet.
fn named_from(at: &Path, name: &str) -> PathBuf {
    match (name.strip_prefix("../"), at.parent()) {
        (Some(name), Some(folder)) if !at.exists() => folder.join(name),
        _ => at.join(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_engine_is_written_as_it_always_was() {
        let check = |dirs: EngineDirs, text: &str| {
            assert_eq!(serde_json::to_string(&dirs).unwrap(), text);
            assert_eq!(serde_json::from_str::<EngineDirs>(text).unwrap(), dirs);
        };
        check("../llm".into(), "\"../llm\"");
        check(vec!["../llm".to_owned()].into(), "\"../llm\"");
        check(vec!["../a".to_owned(), "../b".to_owned()].into(), "[\"../a\",\"../b\"]");
        let error = serde_json::from_str::<EngineDirs>("5").unwrap_err().to_string();
        assert!(error.starts_with("a directory, or a list of directories"), "{error}");
    }

    #[test]
    fn directories_are_relative_and_there_is_at_least_one() {
        let fault = |dirs: &[&str]| {
            let dirs: Vec<String> = dirs.iter().map(|dir| (*dir).to_owned()).collect();
            EngineDirs::PerDevice(dirs).fault("llm")
        };
        assert_eq!(fault(&["../a", "../b"]), None);
        let absolute = "llm is \"/b\", but must be a relative directory";
        assert_eq!(fault(&["../a", "/b"]).as_deref(), Some(absolute));
        assert_eq!(fault(&[]).as_deref(), Some("llm names 0 engines, not 1 to 64"));
        assert!(fault(&["../a"; 65]).is_some() && fault(&[""]).is_some());
    }
}
