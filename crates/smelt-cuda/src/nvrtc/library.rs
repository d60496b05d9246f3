//! Finds the library of a pinned NVRTC.
//!
//! Searched are, in this order:
//!
//! 1. `SMELT_NVRTC`: files, or folders with them, separated by colons; then nothing else is asked;
//! 2. the package of pip in each Python, the active one first;
//! 3. `LD_LIBRARY_PATH`, then CUDA's own folders.
//!
//! A library of another version than the pinned one is passed over, and named where there is no better.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use smelt_backend::installed;

use crate::target::Toolkit;

/// The variable that names libraries before anything else.
pub const VARIABLE: &str = "SMELT_NVRTC";
/// Where CUDA's toolkits put it.
const SYSTEM: [&str; 6] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/aarch64-linux/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

/// Why kernels cannot be compiled here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCompiler {
    /// It is nowhere.
    #[error(
        "no NVRTC {version} is on this machine{}; run `python3 -m pip install {package}=={version}`, or name its library in SMELT_NVRTC",
        others(found)
    )]
    Absent {
        /// The version that is wanted.
        version: &'static str,
        /// What pip installs.
        package: &'static str,
        /// Other versions that are here.
        found: BTreeSet<String>,
    },
    /// It is not where the variable says.
    #[error("SMELT_NVRTC names {}, where no libnvrtc.so is", path.display())]
    Misnamed {
        /// What the variable holds.
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

fn others(found: &BTreeSet<String>) -> String {
    if found.is_empty() {
        return String::new();
    }
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    format!(" (here is {})", found.join(" and "))
}

/// Where the library of a toolkit is.
pub(super) fn find(toolkit: Toolkit) -> Result<PathBuf, NoCompiler> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    find_by(toolkit, &variable, &SYSTEM)
}

fn find_by(
    toolkit: Toolkit,
    variable: installed::Variables<'_>,
    system: &[&str],
) -> Result<PathBuf, NoCompiler> {
    let mut found = BTreeSet::new();
    for path in candidates(toolkit, variable, system)? {
        match version(&path, toolkit) {
            Some(version) if version == toolkit.version => return Ok(path),
            Some(version) => found.insert(version),
            None => found.insert("one of an unknown version".to_owned()),
        };
    }
    let Toolkit { version, package, .. } = toolkit;
    Err(NoCompiler::Absent { version, package, found })
}

/// All libraries of the toolkit's first number, whatever their versions.
fn candidates(
    toolkit: Toolkit,
    variable: installed::Variables<'_>,
    system: &[&str],
) -> Result<Vec<PathBuf>, NoCompiler> {
    if let Some(named) = variable(VARIABLE) {
        return named_in(&named, toolkit);
    }
    let mut folders = installed::packages(variable, toolkit.folder);
    folders.extend(installed::listed(variable));
    folders.extend(system.iter().map(PathBuf::from));
    let libraries = folders.iter();
    Ok(libraries.filter_map(|folder| installed::library(folder, toolkit.library)).collect())
}

/// The libraries that the variable names, of which each has to be there; those of other toolkits are passed over.
fn named_in(named: &OsString, toolkit: Toolkit) -> Result<Vec<PathBuf>, NoCompiler> {
    let mut libraries = Vec::new();
    for path in std::env::split_paths(named) {
        if path.is_dir() {
            let any = installed::library(&path, "libnvrtc.so");
            any.ok_or_else(|| NoCompiler::Misnamed { path: path.clone() })?;
            libraries.extend(installed::library(&path, toolkit.library));
        } else if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(toolkit.library) {
                libraries.push(path);
            }
        } else {
            return Err(NoCompiler::Misnamed { path });
        }
    }
    Ok(libraries)
}

/// The whole version of a library: behind its file's name, or in pip's record of the package that it is in.  The library
/// itself tells only the first two numbers.
fn version(path: &Path, toolkit: Toolkit) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let name = real.file_name()?.to_str()?;
    let behind = name.strip_prefix("libnvrtc.so.")?;
    if behind.split('.').count() == 3 {
        return Some(behind.to_owned());
    }
    let packages = real.ancestors().nth(1 + toolkit.folder.split('/').count())?;
    let records = installed::entries(packages).into_iter();
    let mut versions = records.filter_map(|record| {
        Some(record.strip_prefix(toolkit.record)?.strip_suffix(".dist-info")?.to_owned())
    });
    versions.next()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::CudaTarget;

    fn put(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path.canonicalize().unwrap()
    }

    #[track_caller]
    fn check(
        root: &Path,
        target: CudaTarget,
        variables: &[(&str, String)],
        expect: Result<&Path, &str>,
    ) {
        let variable = |name: &str| {
            let value = &variables.iter().find(|(known, _)| *known == name)?.1;
            Some(OsString::from(value))
        };
        let system = root.join("system");
        let found = find_by(target.toolkit(), &variable, &[system.to_str().unwrap()]);
        match expect {
            Ok(path) => assert_eq!(found.unwrap().canonicalize().unwrap(), path),
            Err(words) => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains(words) && !error.contains('\n'), "{error}");
            }
        }
    }

    #[test]
    fn only_the_pinned_version_is_taken_and_others_are_named() {
        let root = TempDir::new().unwrap();
        let root = root.path();
        let site = "venv/lib/python3.11/site-packages";
        let venv = |name| ("VIRTUAL_ENV", root.join(name).to_str().unwrap().to_owned());
        check(
            root,
            CudaTarget::Sm87,
            &[venv("venv")],
            Err(
                "no NVRTC 12.6.85 is on this machine; run `python3 -m pip install nvidia-cuda-nvrtc-cu12==12.6.85`",
            ),
        );
        let older = put(root, "system/libnvrtc.so.12.6.68");
        check(
            root,
            CudaTarget::Sm87,
            &[],
            Err("12.6.85 is on this machine (here is 12.6.68); run"),
        );
        let of_pip = put(root, &format!("{site}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        check(
            root,
            CudaTarget::Sm87,
            &[venv("venv")],
            Err("(here is 12.6.68 and one of an unknown version)"),
        );
        put(root, &format!("{site}/nvidia_cuda_nvrtc_cu12-12.6.85.dist-info/METADATA"));
        check(root, CudaTarget::Sm87, &[venv("venv")], Ok(&of_pip));
        check(root, CudaTarget::Sm90, &[venv("venv")], Ok(&of_pip));
        check(
            root,
            CudaTarget::Sm110,
            &[venv("venv")],
            Err("pip install nvidia-cuda-nvrtc==13.0.88"),
        );
        let newest = put(root, &format!("{site}/nvidia/cu13/lib/libnvrtc.so.13"));
        put(root, &format!("{site}/nvidia_cuda_nvrtc-13.0.88.dist-info/METADATA"));
        check(root, CudaTarget::Sm110, &[venv("venv")], Ok(&newest));
        let named = |paths: &[&Path]| {
            (VARIABLE, std::env::join_paths(paths).unwrap().into_string().unwrap())
        };
        check(root, CudaTarget::Sm87, &[named(&[&older]), venv("venv")], Err("(here is 12.6.68)"));
        let both = [newest.as_path(), of_pip.parent().unwrap()];
        check(root, CudaTarget::Sm87, &[named(&both)], Ok(&of_pip));
        check(root, CudaTarget::Sm110, &[named(&both)], Ok(&newest));
        check(root, CudaTarget::Sm87, &[named(&[&root.join("none")])], Err("SMELT_NVRTC names "));
        check(root, CudaTarget::Sm87, &[named(&[root])], Err("where no libnvrtc.so is"));
    }
}
