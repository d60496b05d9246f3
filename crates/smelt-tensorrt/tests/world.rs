//! Finds the library, compiles the shim, and opens sessions.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use smelt_tensorrt::{Libraries, Session, Shim, find};
use tempfile::TempDir;

/// A golden's file.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

/// The folders of compilers.
pub(crate) fn path() -> OsString {
    env::var_os("PATH").unwrap()
}

/// The shim, and the folder that it is compiled in.
pub(crate) fn shim() -> (TempDir, Shim) {
    let scratch = TempDir::new().unwrap();
    let shim = Shim::compile(scratch.path(), &path()).unwrap();
    (scratch, shim)
}

/// The real library, loaded.
pub(crate) struct World {
    pub(crate) scratch: TempDir,
    pub(crate) shim: Shim,
    pub(crate) libraries: Libraries,
}

impl World {
    /// Nothing where the library is not here, which is said.
    pub(crate) fn new() -> Option<Self> {
        match find(&|name| env::var_os(name)) {
            Ok(libraries) => {
                let (scratch, shim) = shim();
                Some(Self { scratch, shim, libraries })
            }
            Err(why) => {
                eprintln!("NOT TESTED: {why}");
                None
            }
        }
    }

    pub(crate) fn session(&self) -> Session {
        Session::open(&self.shim, &self.libraries).unwrap()
    }

    /// A file that is not there yet.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}
