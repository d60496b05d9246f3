//! Holds the smelt that only serves to what it links: no exporter, no quantiser, no reference.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::edges::{BUILDS, RUNS};
use crate::root;

pub(super) fn check() -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "smelt", "--no-default-features", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}", "--locked"])
        .current_dir(root())
        .output()
        .context("cannot start cargo tree")?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree ended with {}: {why}", output.status);
    Ok(findings(&String::from_utf8(output.stdout)?))
}

/// What is wrong with the packages of a tree, one a line: `name v0.1.0 (path)`.
fn findings(tree: &str) -> Vec<String> {
    let packages: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let linked = BUILDS.iter().filter(|name| packages.contains(*name));
    let linked = linked.map(|name| {
        format!("a smelt without the feature \"build\" only serves, and links {name}, which builds")
    });
    let lacking = RUNS.iter().filter(|name| !packages.contains(*name));
    let lacking = lacking.map(|name| {
        format!("a smelt without the feature \"build\" serves, and does not link {name}")
    });
    linked.chain(lacking).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_serves_links_what_runs_and_nothing_that_builds() {
        let lines = |names: &[&str]| -> String {
            names.iter().map(|name| format!("{name} v0.1.0 (/smelt/crates/{name})\n")).collect()
        };
        let whole = lines(&RUNS) + "serde v1.0.229\nserde v1.0.229 (*)\n";
        assert_eq!(findings(&whole), [""; 0]);
        let found = findings(&(whole + &lines(&["smelt-model"])));
        assert!(found.len() == 1 && found[0].contains("smelt-model"), "{found:?}");
        assert_eq!(findings("smelt v0.1.0 (/smelt/crates/smelt)\n").len(), RUNS.len());
    }
}
