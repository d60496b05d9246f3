//! Finds the libraries of TensorRT for RTX, and tells their version without loading them.
//!
//! Searched are, in this order, and what the first names must be there:
//!
//! 1. `SMELT_TENSORRT_RTX`: the folder with both libraries;
//! 2. the package `tensorrt_rtx_libs` of the Pythons here (`pip install tensorrt-rtx-cu12-libs`);
//! 3. `LD_LIBRARY_PATH` and the system's folders of libraries.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use smelt_backend::installed::{self, Variables};

/// The variable that names the folder before anything else.
pub const VARIABLE: &str = "SMELT_TENSORRT_RTX";
/// The folder of the libraries in Python's package.
const PACKAGE: &str = "tensorrt_rtx_libs";
/// How the files' names begin; a version may follow.
const CORE: &str = "libtensorrt_rtx.so";
const PARSER: &str = "libtensorrt_onnxparser_rtx.so";
/// Folders of libraries, where a Debian or the vendor's archive has them.
const SYSTEM: [&str; 7] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/tensorrt-rtx/lib",
    "/opt/tensorrt-rtx/lib",
];

/// The library has a name for its version, `tensorrt_version_1_7_1_116`, among those that it gives out.  They stand near
/// its beginning (at byte 24 828 of 220 million in 1.7.1); a file without one in this much is another.
const VERSION_WITHIN_BYTES: usize = 4 << 20;
const VERSION_NAME: &[u8] = b"tensorrt_version_";

/// Why the libraries cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// They are nowhere.
    #[error(
        "no libtensorrt_rtx.so is on this machine; run `{cure}`, or name its folder in SMELT_TENSORRT_RTX",
        cure = LibraryError::CURE
    )]
    Absent,
    /// They are not where the variable says.
    #[error("SMELT_TENSORRT_RTX names {}, where libtensorrt_rtx.so and its parser are not both", .0.display())]
    Misnamed(PathBuf),
}

impl LibraryError {
    /// The command that brings them here.
    pub const CURE: &'static str = "python3 -m pip install tensorrt-rtx-cu12-libs==1.7.1.116";
}

/// Where the libraries are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libraries {
    /// The builder.
    pub core: PathBuf,
    /// The parser of ONNX.
    pub parser: PathBuf,
}

/// Where the libraries are, by what `variable` says of the environment.
///
/// # Errors
/// When they are nowhere, or not where [`VARIABLE`] says.
pub fn find(variable: Variables<'_>) -> Result<Libraries, LibraryError> {
    find_by(variable, &SYSTEM)
}

fn find_by(variable: Variables<'_>, system: &[&str]) -> Result<Libraries, LibraryError> {
    if let Some(folder) = variable(VARIABLE).filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(folder);
        return both(&folder).ok_or(LibraryError::Misnamed(folder));
    }
    let mut folders = installed::packages(variable, PACKAGE);
    folders.extend(installed::listed(variable));
    folders.extend(system.iter().map(PathBuf::from));
    folders.iter().find_map(|folder| both(folder)).ok_or(LibraryError::Absent)
}

/// A builder is of no use without its parser, which must be of the same version.
fn both(folder: &Path) -> Option<Libraries> {
    let one = |name| installed::library(folder, name)?.canonicalize().ok();
    Some(Libraries { core: one(CORE)?, parser: one(PARSER)? })
}

/// The version of the library at `core`, as `1.7.1.116`; nothing where it names none.
///
/// # Errors
/// When the file cannot be read.
pub fn version(core: &Path) -> io::Result<Option<String>> {
    let mut begin = Vec::new();
    File::open(core)?.take(VERSION_WITHIN_BYTES as u64).read_to_end(&mut begin)?;
    Ok(version_in(&begin))
}

fn version_in(bytes: &[u8]) -> Option<String> {
    let at = bytes.windows(VERSION_NAME.len()).position(|window| window == VERSION_NAME)?;
    let rest = &bytes[at + VERSION_NAME.len()..];
    let length = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'_')?;
    let numbers = std::str::from_utf8(&rest[..length]).ok()?;
    (!numbers.is_empty()).then(|| numbers.replace('_', "."))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn put(root: &Path, folder: &str) {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        for name in [CORE, PARSER] {
            fs::write(folder.join(format!("{name}.1")), "").unwrap();
        }
    }

    #[track_caller]
    fn check(root: &Path, variables: &[(&str, &str)], expect: Option<&str>) {
        let variable = |name: &str| {
            let value = variables.iter().find(|(known, _)| *known == name)?.1;
            Some(OsString::from(root.join(value)))
        };
        let system = root.join("system");
        let found = find_by(&variable, &[system.to_str().unwrap()]);
        let folder = found.as_ref().ok().map(|found| found.core.parent().unwrap().to_owned());
        assert_eq!(folder, expect.map(|folder| root.join(folder)), "{found:?}");
    }

    #[test]
    fn the_variable_comes_first_then_python_then_the_system() {
        let root = TempDir::new().unwrap();
        let root = root.path().canonicalize().unwrap();
        check(&root, &[], None);
        put(&root, "system");
        check(&root, &[], Some("system"));
        let package = "venv/lib/python3.12/site-packages/tensorrt_rtx_libs";
        put(&root, package);
        check(&root, &[("VIRTUAL_ENV", "venv")], Some(package));
        put(&root, "named");
        check(&root, &[("VIRTUAL_ENV", "venv"), (VARIABLE, "named")], Some("named"));
        check(&root, &[("VIRTUAL_ENV", "venv"), (VARIABLE, "nowhere")], None);
        fs::remove_file(root.join("named").join(format!("{PARSER}.1"))).unwrap();
        check(&root, &[(VARIABLE, "named")], None);
    }

    #[test]
    fn the_version_is_a_name_in_the_library() {
        let check = |bytes: &[u8], expect: Option<&str>| {
            assert_eq!(version_in(bytes).as_deref(), expect);
        };
        check(b"\x7fELF\0a\0tensorrt_version_1_7_1_116\0b", Some("1.7.1.116"));
        check(b"tensorrt_version_10_3_0\0", Some("10.3.0"));
        check(b"tensorrt_version_\0", None);
        check(b"tensorrt_version_1_7", None);
        check(b"", None);
    }
}
