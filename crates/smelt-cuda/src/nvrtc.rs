//! Compiles kernels by NVRTC, NVIDIA's compiler as a library, on any machine: no GPU and no CUDA toolkit is needed.
//!
//! The library is found and loaded when it is asked for, never linked.  Its version is pinned by what a target's driver
//! loads, since cubins are part of engines and equal inputs make equal engines.

#[cfg_attr(target_env = "musl", path = "nvrtc/static_bindings.rs")]
mod bindings;
mod library;
mod log;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use smelt_backend::files;

use crate::CudaTarget;
use crate::cubin::{Cubin, NotACubin};
pub use library::{NoCompiler, VARIABLE};

/// A program of kernels to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What messages call it.
    pub name: String,
    /// CUDA C, all of it: it includes nothing.
    pub text: String,
    /// Names that the text may use, and what they stand for.
    pub defines: Vec<(String, String)>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The code.
    pub image: Vec<u8>,
    /// What the code says of itself.
    pub cubin: Cubin,
    /// What the compiler said.
    pub log: String,
    /// The compiler's version.
    pub version: String,
}

/// Why a program did not compile.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// There is no compiler, or not the one that is wanted.
    #[error(transparent)]
    NoCompiler(#[from] NoCompiler),
    /// It refuses the program.
    #[error("{name} does not compile for {architecture}: {problem}")]
    Refused {
        /// The program.
        name: String,
        /// For what it was compiled.
        architecture: &'static str,
        /// The first thing that it says.
        problem: String,
        /// All that it says.
        log: String,
    },
    /// It compiled the program in a way that is slow without saying so.
    #[error("{name} for {architecture}: {problem}")]
    Slow {
        /// The program.
        name: String,
        /// For what it was compiled.
        architecture: &'static str,
        /// What the log tells.
        problem: String,
    },
    /// What it made is no cubin for the target.
    #[error("{name} for {architecture}: {problem}")]
    Odd {
        /// The program.
        name: String,
        /// For what it was compiled.
        architecture: &'static str,
        /// What is wrong.
        problem: String,
    },
}

/// Compiles a program for a target, or takes it from the folder `kept` if it was compiled before with the same content.
///
/// # Errors
/// [`CompileError`]; so where registers are spilled or `wgmma` is serialised (messages C75xx), which no one would see.
pub fn compile(
    source: &Source,
    target: CudaTarget,
    kept: Option<&Path>,
) -> Result<Compiled, CompileError> {
    let place = kept.map(|folder| folder.join(content_name(source, target) + ".cubin"));
    if let Some(compiled) = place.as_deref().and_then(|place| read(place, target)) {
        return Ok(compiled);
    }
    let compiled = compile_anew(source, target)?;
    if let Some(place) = place {
        // What is not kept is compiled again.
        let _ = keep(&place, &compiled);
    }
    Ok(compiled)
}

/// Options beside those of defines; the second lets the log tell of registers and spills.
const OPTIONS: [&str; 3] =
    ["--std=c++17", "--ptxas-options=-v", "--device-as-default-execution-space"];

fn compile_anew(source: &Source, target: CudaTarget) -> Result<Compiled, CompileError> {
    let (toolkit, architecture) = (target.toolkit(), target.architecture());
    let name = || source.name.clone();
    let path = library::find(toolkit)?;
    let library = bindings::Library::load(&path)
        .map_err(|problem| NoCompiler::Unfit { path: path.clone(), problem })?;
    let made = library.compile(&source.name, &source.text, &options(source, target));
    let made = made.map_err(|log| CompileError::Refused {
        name: name(),
        architecture,
        problem: log::first_error(&log),
        log,
    })?;
    if let Some(problem) = log::slowness(&made.log) {
        return Err(CompileError::Slow { name: name(), architecture, problem });
    }
    let odd = |problem| CompileError::Odd { name: name(), architecture, problem };
    let cubin = for_target(&made.image, target).map_err(|error| odd(error.to_string()))?;
    let version = toolkit.version.to_owned();
    Ok(Compiled { image: made.image, cubin, log: made.log, version })
}

/// All that the compiler is told, in an order that the source fixes.
fn options(source: &Source, target: CudaTarget) -> Vec<String> {
    let architecture = format!("--gpu-architecture={}", target.architecture());
    let defines = source.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
    let fixed = OPTIONS.map(str::to_owned);
    std::iter::once(architecture).chain(fixed).chain(defines).collect()
}

/// What a cubin says of itself, if it is for the target.
fn for_target(image: &[u8], target: CudaTarget) -> Result<Cubin, NotATarget> {
    let cubin = Cubin::read(image)?;
    if cubin.sm != target.sm() {
        return Err(NotATarget::OtherSm(cubin.sm.to_string()));
    }
    Ok(cubin)
}

#[derive(Debug, thiserror::Error)]
enum NotATarget {
    #[error(transparent)]
    NotACubin(#[from] NotACubin),
    #[error("the compiler made code for {0}")]
    OtherSm(String),
}

/// The name of all that a compiled program depends on, the compiler's version among it, in hexadecimal digits: two
/// programs share it only where they compile to the same.
pub fn content_name(source: &Source, target: CudaTarget) -> String {
    let mut hash = Sha256::new();
    let told = options(source, target);
    let version = target.toolkit().version;
    let parts = [version, &source.name, &source.text].into_iter();
    for part in parts.chain(told.iter().map(String::as_str)) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    files::hex(&hash.finalize())
}

/// What was kept: the digest of the code, its length, the code, the log.
fn read(place: &Path, target: CudaTarget) -> Option<Compiled> {
    let bytes = fs::read(place).ok()?;
    let (digest, rest) = bytes.split_first_chunk::<32>()?;
    if *digest != <[u8; 32]>::from(Sha256::digest(rest)) {
        return None;
    }
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (image, log) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    let cubin = for_target(image, target).ok()?;
    let log = String::from_utf8(log.to_vec()).ok()?;
    let version = target.toolkit().version.to_owned();
    Some(Compiled { image: image.to_vec(), cubin, log, version })
}

/// Keeps what was compiled; whoever reads meanwhile sees all of it, or nothing.
fn keep(place: &Path, compiled: &Compiled) -> io::Result<()> {
    let mut rest = (compiled.image.len() as u64).to_le_bytes().to_vec();
    rest.extend_from_slice(&compiled.image);
    rest.extend_from_slice(compiled.log.as_bytes());
    let mut bytes = Sha256::digest(&rest).to_vec();
    bytes.append(&mut rest);
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial: PathBuf = place.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, bytes)?;
    fs::rename(partial, place)
}

/// Where the compiler for a target is.
///
/// # Errors
/// [`NoCompiler`] when it is not on this machine.
pub fn find(target: CudaTarget) -> Result<PathBuf, NoCompiler> {
    library::find(target.toolkit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source {
            name: "a.cu".to_owned(),
            text: text.to_owned(),
            defines: vec![("N".to_owned(), "4".to_owned())],
        }
    }

    #[test]
    fn what_is_told_and_the_text_name_what_is_kept() {
        let (one, target) = (source("x"), CudaTarget::Sm87);
        let name = content_name(&one, target);
        assert_eq!(name, content_name(&one.clone(), target));
        let other_define =
            Source { defines: vec![("N".to_owned(), "5".to_owned())], ..one.clone() };
        for other in [content_name(&source("y"), target), content_name(&other_define, target)] {
            assert_ne!(name, other);
        }
        assert_ne!(name, content_name(&one, CudaTarget::Sm90));
        let told = options(&one, CudaTarget::Sm90);
        assert_eq!((told[0].as_str(), told[4].as_str()), ("--gpu-architecture=sm_90a", "-DN=4"));
    }

    #[test]
    fn what_is_kept_is_read_again_and_nothing_that_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("inside/a.cubin");
        let image = include_bytes!("../tests/data/facts.sm87.cubin").to_vec();
        let cubin = Cubin::read(&image).unwrap();
        let (log, version) = ("said".to_owned(), "12.6.85".to_owned());
        let compiled = Compiled { image, cubin, log, version };
        keep(&place, &compiled).unwrap();
        assert_eq!(read(&place, CudaTarget::Sm87), Some(compiled));
        assert_eq!(read(&place, CudaTarget::Sm90), None, "for another target");
        let mut bytes = fs::read(&place).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&place, bytes).unwrap();
        assert_eq!(read(&place, CudaTarget::Sm87), None);
        assert_eq!(read(&folder.path().join("none"), CudaTarget::Sm87), None);
    }
}
