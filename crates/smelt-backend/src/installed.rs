//! Looks for shared libraries that back ends load, where machines have them installed.
//!
//! Nothing is loaded or started here.  The environment is an argument, and what is named in it is the caller's to heed first.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Prefixes under which packages for every user are installed.
const PREFIXES: [&str; 2] = ["/usr/local", "/usr"];

/// What a variable of the environment holds.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where `package` would lie in each Python: of the active environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), of the Python that
/// comes first in `PATH`, of the user (`~/.local`), then of every user.
pub fn packages(variable: Variables<'_>, package: &str) -> Vec<PathBuf> {
    prefixes(variable).iter().flat_map(|prefix| in_pythons(prefix, package)).collect()
}

/// Prefixes of Python environments, the active one first.
fn prefixes(variable: Variables<'_>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(variable)
        .map(PathBuf::from)
        .collect();
    let path = variable("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
    prefixes.extend(python.and_then(|folder| Some(folder.parent()?.to_owned())));
    prefixes.extend(variable("HOME").map(|home| PathBuf::from(home).join(".local")));
    prefixes.extend(PREFIXES.map(PathBuf::from));
    prefixes
}

/// Where the package would lie in each Python under `prefix`.
pub fn in_pythons(prefix: &Path, package: &str) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let pythons = entries(&lib).into_iter().filter(|name| name.starts_with("python3"));
    let site = |python: String| {
        ["site-packages", "dist-packages"]
            .map(|packages| lib.join(&python).join(packages).join(package))
    };
    pythons.flat_map(site).collect()
}

/// The folders that `LD_LIBRARY_PATH` lists.
pub fn listed(variable: Variables<'_>) -> Vec<PathBuf> {
    let paths = variable("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&paths).collect()
}

/// The library in `folder` whose file is called `name` or `name.VERSION`, the one with the last name where there are
/// several versions.
pub fn library(folder: &Path, name: &str) -> Option<PathBuf> {
    let is_library = |entry: &String| {
        entry.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    entries(folder).into_iter().rfind(is_library).map(|entry| folder.join(entry))
}

/// The names in `folder`, sorted; none where it cannot be read.
pub fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_last_version_of_several_is_taken_and_nothing_that_is_merely_alike() {
        let root = TempDir::new().unwrap();
        for name in ["liba.so.1.18.0", "liba.sock", "liba.so.1.23.2"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        assert_eq!(library(root.path(), "liba.so"), Some(root.path().join("liba.so.1.23.2")));
        assert_eq!(library(&root.path().join("none"), "liba.so"), None);
    }

    #[test]
    fn the_active_environment_comes_before_the_user() {
        let root = TempDir::new().unwrap();
        let place = |prefix: &str| root.path().join(prefix).join("lib/python3.11/site-packages/a");
        for prefix in ["venv", "home/.local"] {
            fs::create_dir_all(place(prefix)).unwrap();
        }
        let variable = |name: &str| match name {
            "VIRTUAL_ENV" => Some(root.path().join("venv").into_os_string()),
            "HOME" => Some(root.path().join("home").into_os_string()),
            _ => None,
        };
        let found = packages(&variable, "a").into_iter().filter(|folder| folder.is_dir());
        let found: Vec<PathBuf> = found.take(2).collect();
        assert_eq!(found, [place("venv"), place("home/.local")]);
    }
}
