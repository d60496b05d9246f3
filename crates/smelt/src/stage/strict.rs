//! Lists what a strict program declares that it reads: its inputs and its tools.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_exec::{Strict, Task};
use smelt_plan::kind::{NETWORK, STRICT};
use smelt_store::FILES_MAX;

/// What the program of a task may see, where the stage is strict.
pub(super) fn of(task: &Task<'_>) -> Option<Strict> {
    let is_set = |name: &str| task.attempt.params.get(name) == Some(&Value::Bool(true));
    let tools = task.stage.tools.iter().map(|tool| tool.pin.path.clone());
    let inputs = task.inputs.iter().map(|input| input.path.clone());
    let linked = task.inputs.iter().flat_map(|input| linked(&input.path));
    is_set(STRICT).then(|| Strict {
        reads: inputs.chain(tools).chain(linked).collect(),
        network: is_set(NETWORK),
    })
}

/// Files that links below a folder lead to: they count as its content, as in the hub's cache.
fn linked(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    let mut left = FILES_MAX;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(left) {
            left = left.saturating_sub(1);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_symlink() => found.extend(fs::canonicalize(entry.path())),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_of_an_input_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("in/deep")).unwrap();
        fs::write(at("blob"), "x").unwrap();
        symlink("../../blob", at("in/deep/link")).unwrap();
        symlink("nowhere", at("in/lost")).unwrap();
        assert_eq!(linked(&at("in")), [at("blob").canonicalize().unwrap()]);
        assert!(linked(&at("blob")).is_empty());
    }
}
