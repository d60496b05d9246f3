//! Compiles the program that speaks with TensorRT, by the machine's own compiler.
//!
//! It takes a second or two, needs no header and no library of the vendor's, and leaves smelt's own build free of C++.
//! What is compiled is carried in the program and lies in a folder of its own until the last session has ended.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// The sources; the first is what is compiled.
const SOURCES: [(&str, &str); 4] = [
    ("loader.cpp", include_str!("../loader/loader.cpp")),
    ("allocator.hpp", include_str!("../loader/allocator.hpp")),
    ("json.hpp", include_str!("../loader/json.hpp")),
    ("vendor.hpp", include_str!("../loader/vendor.hpp")),
];
/// Names of compilers, the one that every distribution has first.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];
/// C++17 is what g++ of JetPack 5 knows; the libraries stand apart in glibc before 2.34, which it has.
const FLAGS: [&str; 5] = ["-std=c++17", "-O1", "-o", "loader", "loader.cpp"];
const LIBRARIES: [&str; 2] = ["-ldl", "-pthread"];
/// What is wrong stands in a compiler's first lines.
const SAID_BYTES_MAX: usize = 2000;

/// The command that brings a compiler here.
pub const COMPILER_CURE: &str = "sudo apt update && sudo apt install g++";

/// Why there is no loader.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// No compiler of C++ is in `PATH`.
    #[error("no compiler of C++ is on this machine (c++, g++ or clang++); run `{COMPILER_CURE}`")]
    NoCompiler,
    /// The compiler refuses the source: it is too old, or half installed.
    #[error("{} does not compile the program that loads TensorRT: {said}", compiler.display())]
    Refused {
        /// The compiler.
        compiler: PathBuf,
        /// The beginning of what it said.
        said: String,
    },
    /// The source cannot be written, or the compiler not be started.
    #[error("cannot compile the program that loads TensorRT in {}: {source}", folder.display())]
    Io {
        /// Where.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The compiler that `path`, as in `PATH`, leads to.
pub fn compiler(path: &std::ffi::OsStr) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(path).filter(|dir| dir.is_absolute()).collect();
    let of_name =
        |name: &&str| folders.iter().map(|dir| dir.join(name)).find(|file| file.is_file());
    COMPILERS.iter().find_map(of_name)
}

/// The program, compiled.
#[derive(Debug)]
pub struct Loader {
    folder: TempDir,
}

impl Loader {
    /// Compiles it in a new folder in `scratch`, with a compiler that `path`, as in `PATH`, leads to.
    ///
    /// # Errors
    /// When there is no compiler, or it does not compile.
    pub fn compile(scratch: &Path, path: &std::ffi::OsStr) -> Result<Self, CompileError> {
        let compiler = compiler(path).ok_or(CompileError::NoCompiler)?;
        let io_error = |source| CompileError::Io { folder: scratch.to_owned(), source };
        let folder = tempfile::Builder::new().prefix("tensorrt-loader-").tempdir_in(scratch);
        let folder = folder.map_err(io_error)?;
        for (name, text) in SOURCES {
            fs::write(folder.path().join(name), text).map_err(io_error)?;
        }
        let output = Command::new(&compiler)
            .args(FLAGS)
            .args(LIBRARIES)
            .current_dir(folder.path())
            // Its own scratch files, and where it finds its parts.
            .env_clear()
            .env("PATH", path)
            .env("TMPDIR", folder.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(io_error)?;
        if output.status.success() {
            return Ok(Self { folder });
        }
        Err(CompileError::Refused { compiler, said: first_lines(&output.stderr) })
    }

    /// The program's file.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("loader")
    }
}

/// The beginning of what a program said, as one line.
pub(crate) fn first_lines(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(&said[..said.len().min(SAID_BYTES_MAX)]).into_owned();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
