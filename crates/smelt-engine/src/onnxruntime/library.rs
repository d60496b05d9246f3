//! Finds the shared library of ONNX Runtime, and loads it once a process.
//!
//! Nothing is linked and nothing is downloaded: the library is what this machine has.  Searched are,
//! in this order, and what the first two name must be there:
//!
//! 1. `SMELT_ONNXRUNTIME`: the file, or a folder with it;
//! 2. `ORT_DYLIB_PATH`, which other programs know, the same way;
//! 3. the package `onnxruntime` of the active Python environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), of
//!    the Python that comes first in `PATH`, and of the user (`~/.local`);
//! 4. `LD_LIBRARY_PATH` and the system's folders of libraries.

use std::ffi::OsString;
use std::path::PathBuf;

use smelt_backend::installed;

/// The variable that names the library before anything else.
pub const VARIABLE: &str = "SMELT_ONNXRUNTIME";
/// The one that other programs know.
const SHARED_VARIABLE: &str = "ORT_DYLIB_PATH";
/// How its file's name begins; a version may follow.
const NAME: &str = "libonnxruntime.so";
/// Folders of libraries, where a Debian or a board has them.
const SYSTEM: [&str; 6] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/opt/onnxruntime/lib",
];
/// The folder of its library in the package of Python.
const PACKAGE: &str = "onnxruntime/capi";

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It is nowhere.
    #[error(
        "no libonnxruntime.so is on this machine; run `python3 -m pip install onnxruntime`, or name the file in SMELT_ONNXRUNTIME"
    )]
    Absent,
    /// It is not where a variable says.
    #[error("{variable} names {}, where no libonnxruntime.so is", path.display())]
    Misnamed {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        path: PathBuf,
    },
    /// It is there and cannot be used.
    #[error("{} cannot be used: {problem}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What the loader or the library said.
        problem: String,
    },
}

/// Where the library is, by what this process has in its environment.
///
/// # Errors
/// When it is nowhere, or not where a variable says.
pub fn find() -> Result<PathBuf, LibraryError> {
    find_by(&|name| std::env::var_os(name).filter(|value| !value.is_empty()), &SYSTEM)
}

/// Loads the library that [`find`] finds; later calls find it loaded.
///
/// # Errors
/// As [`find`], and when what is there cannot be used.
pub fn load() -> Result<(), LibraryError> {
    let path = find()?;
    super::session::load(&path).map_err(|problem| LibraryError::Unfit { path, problem })
}

fn find_by(
    variable: &dyn Fn(&str) -> Option<OsString>,
    system: &[&str],
) -> Result<PathBuf, LibraryError> {
    for name in [VARIABLE, SHARED_VARIABLE] {
        if let Some(path) = variable(name).map(PathBuf::from) {
            let found =
                if path.is_dir() { installed::library(&path, NAME) } else { Some(path.clone()) };
            let found = found.filter(|path| path.is_file());
            return found.ok_or(LibraryError::Misnamed { variable: name, path });
        }
    }
    let mut folders = installed::packages(variable, PACKAGE);
    folders.extend(installed::listed(variable));
    folders.extend(system.iter().map(PathBuf::from));
    let mut found = folders.iter().filter_map(|folder| installed::library(folder, NAME));
    found.next().ok_or(LibraryError::Absent)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use tempfile::TempDir;

    fn put(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

    #[track_caller]
    fn check(root: &Path, variables: &[(&str, &str)], expect: Result<&Path, &str>) {
        let variable = |name: &str| {
            let value = variables.iter().find(|(known, _)| *known == name)?.1;
            Some(root.join(value).into_os_string())
        };
        let system = root.join("system");
        let found = find_by(&variable, &[system.to_str().unwrap()]);
        match expect {
            Ok(path) => assert_eq!(found, Ok(path.to_owned())),
            Err(words) => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains(words) && !error.contains('\n'), "{error}");
            }
        }
    }

    #[test]
    fn what_is_named_comes_before_what_is_active_and_that_before_the_system() {
        let root = TempDir::new().unwrap();
        let root = root.path();
        let capi = "lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.31.1";
        let system = put(root, "system/libonnxruntime.so.1.18.0");
        put(root, "system/libonnxruntime_providers_shared.so");
        // A machine of its own might have one for every user, so the system's own folders are not
        // asked about here but beside what is named.
        let active = put(root, &format!("venv/{capi}"));
        let named = put(root, "named/libonnxruntime.so");
        check(root, &[("VIRTUAL_ENV", "venv")], Ok(&active));
        let both = [("VIRTUAL_ENV", "venv"), (SHARED_VARIABLE, "named")];
        check(root, &both, Ok(&named));
        let all = [(SHARED_VARIABLE, "named"), (VARIABLE, "system/libonnxruntime.so.1.18.0")];
        check(root, &all, Ok(&system));
        let wrong = [(VARIABLE, "nowhere.so"), ("VIRTUAL_ENV", "venv")];
        check(root, &wrong, Err("SMELT_ONNXRUNTIME names "));
        check(root, &[(VARIABLE, "venv")], Err("where no libonnxruntime.so is"));
    }
}
