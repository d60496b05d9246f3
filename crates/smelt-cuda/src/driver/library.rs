//! Finds the library of NVIDIA's driver, `libcuda.so.1`.
//!
//! It is part of the driver and never linked.  A stage's environment is clean, so the loader's own search is not enough:
//!
//! 1. `SMELT_LIBCUDA`: the file, or a folder with it; then nothing else is asked;
//! 2. the loader by name: `LD_LIBRARY_PATH`, then what the system has told it;
//! 3. the usual folders of drivers, of containers and of boards.

use std::ffi::OsString;
use std::path::PathBuf;

/// The variable that names the library before anything else.
pub const VARIABLE: &str = "SMELT_LIBCUDA";
/// Its file's name, which is also what it calls itself.
pub(super) const NAME: &str = "libcuda.so.1";
/// Where drivers, containers, WSL and boards put it, in this order.
const FOLDERS: [&str; 12] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib",
];

/// Why there is no card to work on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCard {
    /// The driver's library is nowhere.
    #[error(
        "no libcuda.so.1 is on this machine; install NVIDIA's driver, or name the file in SMELT_LIBCUDA"
    )]
    NoLibrary,
    /// It is not where the variable says.
    #[error("SMELT_LIBCUDA names {}, where no libcuda.so.1 is", path.display())]
    Misnamed {
        /// What the variable holds.
        path: PathBuf,
    },
    /// It is there and cannot be used.
    #[error("{library} cannot be used: {problem}")]
    Unfit {
        /// The file, or its name where the loader found it.
        library: String,
        /// What the loader or the driver said.
        problem: String,
    },
    /// The driver works and has no card, or not that many.
    #[error("the driver finds {count} cards, and card {ordinal} is none of them")]
    NoSuchCard {
        /// Cards that there are.
        count: u32,
        /// The card that was asked for.
        ordinal: u32,
    },
}

/// What to hand the loader, in order, until it loads one; what the variable names alone where it names something.
///
/// # Errors
/// When the variable names what is not there.
#[cfg_attr(target_env = "musl", expect(dead_code, reason = "nothing is loaded there"))]
pub(super) fn candidates() -> Result<Vec<PathBuf>, NoCard> {
    candidates_by(std::env::var_os(VARIABLE).filter(|value| !value.is_empty()), &FOLDERS)
}

fn candidates_by(named: Option<OsString>, folders: &[&str]) -> Result<Vec<PathBuf>, NoCard> {
    if let Some(path) = named.map(PathBuf::from) {
        let file = if path.is_dir() { path.join(NAME) } else { path.clone() };
        return if file.is_file() { Ok(vec![file]) } else { Err(NoCard::Misnamed { path }) };
    }
    let usual = folders.iter().map(|folder| PathBuf::from(folder).join(NAME));
    let usual = usual.filter(|file| file.is_file());
    Ok(std::iter::once(PathBuf::from(NAME)).chain(usual).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_named_is_all_that_is_asked_and_the_loader_comes_before_folders() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(NAME);
        let folder = root.path().to_str().unwrap();
        let named = |name: &str| candidates_by(Some(name.into()), &[folder]);
        assert_eq!(candidates_by(None, &[folder]), Ok(vec![NAME.into()]), "the file is not there");
        let error = named(folder).unwrap_err().to_string();
        assert!(error.starts_with("SMELT_LIBCUDA names ") && !error.contains('\n'), "{error}");
        fs::write(&file, "").unwrap();
        assert_eq!(candidates_by(None, &[folder]), Ok(vec![NAME.into(), file.clone()]));
        assert_eq!(named(folder), Ok(vec![file.clone()]));
        assert_eq!(named(file.to_str().unwrap()), Ok(vec![file]));
        assert!(named("/nowhere/libcuda.so.1").is_err());
    }
}
