//! What the files of another program's engine were when it was deployed.
//!
//! Our own engines say that of themselves, in `engine.json`.  Of another program's nobody else does.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use smelt_backend::{OpenError, Witness, files};

use crate::deployment::DEPLOYMENT_FILE;

/// Files of an engine at most: those of TensorRT-LLM are some for each card.
const FILES_MAX: usize = 10_000;

/// A file of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    /// Its path below the engine's directory.
    path: String,
    /// Its size.
    bytes: u64,
    /// Its digest, in hexadecimal digits.
    sha256: String,
}

impl EngineFile {
    /// The files in `engine` as they are, in the order of their paths; `told` hears of each piece's bytes.
    ///
    /// # Errors
    /// When one cannot be read, or there are more than ten thousand.
    pub fn all(engine: &Path, told: &mut dyn Witness) -> Result<Vec<Self>, OpenError> {
        let read = |source| OpenError::Read { path: engine.to_owned(), source };
        let paths = paths(engine).map_err(read)?;
        paths.into_iter().map(|path| Self::at(engine, path, told)).collect()
    }

    fn at(engine: &Path, path: String, told: &mut dyn Witness) -> Result<Self, OpenError> {
        let at = engine.join(&path);
        let read = |source| OpenError::Read { path: at.clone(), source };
        let file = File::open(&at).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let sha256 = files::sha256(&at, (&file, bytes), told)?;
        Ok(Self { path, bytes, sha256 })
    }

    /// Reads it in `engine` and compares it.
    ///
    /// # Errors
    /// When it cannot be read, or [`OpenError::Damaged`] where it is another.
    pub(super) fn verify(&self, engine: &Path, told: &mut dyn Witness) -> Result<(), OpenError> {
        let found = Self::at(engine, self.path.clone(), told)?;
        if found == *self {
            return Ok(());
        }
        let said = |file: &Self| format!("{} bytes of sha256 {}", file.bytes, file.sha256);
        let problem =
            format!("it has {}, and had {} by {DEPLOYMENT_FILE}", said(&found), said(self));
        Err(OpenError::Damaged { path: engine.join(&self.path), problem })
    }

    /// Whether it lies in the engine's directory.
    pub(super) fn is_below(&self) -> bool {
        let mut parts = Path::new(&self.path).components();
        !self.path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
    }
}

/// The files below a directory, sorted.
fn paths(root: &Path) -> io::Result<Vec<String>> {
    let (mut waiting, mut found) = (vec![PathBuf::new()], Vec::new());
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(root.join(&below))? {
            let path = below.join(entry?.file_name());
            if fs::metadata(root.join(&path))?.is_dir() {
                waiting.push(path);
                continue;
            }
            let odd = || io::Error::other(format!("{} is no UTF-8", path.display()));
            found.push(path.to_str().ok_or_else(odd)?.to_owned());
            if found.len() > FILES_MAX {
                return Err(io::Error::other(format!("it has more than {FILES_MAX} files")));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_known_and_one_that_differs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let engine = dir.path();
        fs::create_dir(engine.join("rank")).unwrap();
        fs::write(engine.join("rank/0.engine"), "weights").unwrap();
        fs::write(engine.join("config.json"), "{}").unwrap();
        let mut bytes = 0;
        let files = EngineFile::all(engine, &mut |more| bytes += more).unwrap();
        let named: Vec<&str> = files.iter().map(|file| &file.path[..]).collect();
        assert_eq!((named, bytes), (vec!["config.json", "rank/0.engine"], 9));
        let check = || files.iter().try_for_each(|file| file.verify(engine, &mut |_| ()));
        check().unwrap();
        fs::write(engine.join("stray"), "what a server writes beside it").unwrap();
        check().unwrap();
        for damaged in ["weightz", "weight"] {
            fs::write(engine.join("rank/0.engine"), damaged).unwrap();
            let told = check().unwrap_err().to_string();
            assert!(told.contains("rank/0.engine") && told.contains("and had 7 bytes"), "{told}");
        }
        fs::remove_file(engine.join("rank/0.engine")).unwrap();
        assert!(check().unwrap_err().to_string().starts_with("cannot read"));
    }

    #[test]
    fn no_file_elsewhere_is_read() {
        let at = |path: &str| EngineFile { path: path.to_owned(), bytes: 0, sha256: String::new() };
        assert!(at("a/b.engine").is_below());
        for path in ["", "../x", "/etc/passwd", "a/../../x"] {
            assert!(!at(path).is_below(), "{path}");
        }
    }
}
