//! Finds the library, compiles the loader, and opens sessions.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use smelt_tensorrt::{Libraries, Loader, Session, find};
use tempfile::TempDir;

/// A golden's file.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

/// The folders of compilers.
pub(crate) fn path() -> OsString {
    env::var_os("PATH").unwrap()
}

/// The loader, and the folder that it is compiled in.
pub(crate) fn loader() -> (TempDir, Loader) {
    let scratch = TempDir::new().unwrap();
    let loader = Loader::compile(scratch.path(), &path()).unwrap();
    (scratch, loader)
}

/// The real library, loaded.
pub(crate) struct World {
    pub(crate) scratch: TempDir,
    pub(crate) loader: Loader,
    pub(crate) libraries: Libraries,
}

impl World {
    /// Nothing where the library is not here, which is said.
    pub(crate) fn new() -> Option<Self> {
        match find(&|name| env::var_os(name)) {
            Ok(libraries) => {
                let (scratch, loader) = loader();
                Some(Self { scratch, loader, libraries })
            }
            Err(why) => {
                eprintln!("NOT TESTED: {why}");
                None
            }
        }
    }

    pub(crate) fn session(&self) -> Session {
        Session::open(&self.loader, &self.libraries).unwrap()
    }

    /// A file that is not there yet.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}
