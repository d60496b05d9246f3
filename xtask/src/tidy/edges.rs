//! Holds the crates' dependencies against the table of the architecture.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::check::Crate;
use crate::root;

/// Which crates of ours each crate may name.  `crates/ARCHITECTURE.md` says why.
const EDGES: [(&str, &[&str]); 29] = [
    ("smelt-random", &[]),
    ("smelt-plan", &[]),
    ("smelt-watch", &[]),
    ("smelt-onnx", &[]),
    ("smelt-tensor", &[]),
    ("smelt-hub", &[]),
    ("smelt-plot", &[]),
    ("smelt-family", &[]),
    ("smelt-fit", &[]),
    ("smelt-fleet", &["smelt-random", "smelt-store"]),
    ("smelt-backend", &["smelt-random"]),
    ("smelt-tensorrt", &["smelt-backend"]),
    ("smelt-load", &["smelt-plot", "smelt-watch"]),
    ("smelt-model", &["smelt-backend", "smelt-family", "smelt-onnx", "smelt-tensor"]),
    ("smelt-doctor", &["smelt-watch"]),
    ("smelt-store", &["smelt-plan", "smelt-random"]),
    ("smelt-engine", &["smelt-backend", "smelt-tensor"]),
    ("smelt-cuda", &["smelt-backend", "smelt-engine", "smelt-random", "smelt-tensor"]),
    (
        "smelt-engine-build",
        &[
            "smelt-backend",
            "smelt-onnx",
            "smelt-tensor",
            "smelt-model",
            "smelt-engine",
            "smelt-cuda",
            "smelt-tensorrt",
        ],
    ),
    ("smelt-exec", &["smelt-plan", "smelt-store", "smelt-watch"]),
    ("smelt-report", &["smelt-plan", "smelt-watch", "smelt-exec", "smelt-plot"]),
    ("smelt-runtime", &["smelt-backend", "smelt-family", "smelt-plot", "smelt-watch"]),
    ("smelt-serve", &["smelt-runtime", "smelt-watch"]),
    (
        "smelt-forecast",
        &[
            "smelt-plan",
            "smelt-store",
            "smelt-exec",
            "smelt-fit",
            "smelt-model",
            "smelt-engine-build",
        ],
    ),
    ("smelt-deploy", &["smelt-backend", "smelt-model", "smelt-runtime"]),
    (
        "smelt-verify",
        &[
            "smelt-watch",
            "smelt-backend",
            "smelt-model",
            "smelt-engine",
            "smelt-cuda",
            "smelt-engine-build",
            "smelt-runtime",
            "smelt-deploy",
        ],
    ),
    (
        "smelt",
        &[
            "smelt-plan",
            "smelt-store",
            "smelt-watch",
            "smelt-doctor",
            "smelt-exec",
            "smelt-fit",
            "smelt-fleet",
            "smelt-forecast",
            "smelt-hub",
            "smelt-load",
            "smelt-report",
            "smelt-onnx",
            "smelt-model",
            "smelt-backend",
            "smelt-engine",
            "smelt-cuda",
            "smelt-tensorrt",
            "smelt-engine-build",
            "smelt-deploy",
            "smelt-verify",
            "smelt-runtime",
            "smelt-serve",
        ],
    ),
    ("smelt-shapes", &["smelt-random", "smelt-runtime"]),
    ("xtask", &["smelt-random", "smelt-watch"]),
];

/// What opens and runs engines, and what makes them: a program that only serves links no exporter, quantiser or
/// reference, and reads no checkpoints.
pub(super) const RUNS: [&str; 6] =
    ["smelt-tensor", "smelt-backend", "smelt-engine", "smelt-cuda", "smelt-runtime", "smelt-serve"];
pub(super) const BUILDS: [&str; 6] = [
    "smelt-onnx",
    "smelt-model",
    "smelt-engine-build",
    "smelt-deploy",
    "smelt-verify",
    "smelt-forecast",
];

pub(super) fn check() -> Result<Vec<String>> {
    let packages = packages()?;
    let mut findings: Vec<String> = packages.iter().flat_map(check_package).collect();
    findings.extend(mixed(&packages));
    Ok(findings)
}

/// The crates of the workspace.
pub(crate) fn crates() -> Result<Vec<Crate>> {
    packages()?.iter().map(|package| read(package).context("cargo metadata")).collect()
}

fn read(package: &Value) -> Option<Crate> {
    let manifest = Path::new(package["manifest_path"].as_str()?);
    let folder = manifest.parent()?.strip_prefix(root()).ok()?;
    let needs = package["dependencies"].as_array()?.iter();
    let needs =
        needs.filter(|need| !need["path"].is_null()).filter_map(|need| need["name"].as_str());
    Some(Crate {
        name: package["name"].as_str()?.to_owned(),
        folder: folder.to_str()?.to_owned(),
        needs: needs.map(str::to_owned).collect(),
        integration: package["targets"].as_array()?.iter().filter_map(integration).collect(),
    })
}

/// The name of a program of integration tests, and its file.
fn integration(target: &Value) -> Option<(String, String)> {
    let is_test = target["kind"].as_array()?.iter().any(|kind| kind == "test");
    let file = Path::new(target["src_path"].as_str()?).strip_prefix(root()).ok()?;
    is_test.then_some((target["name"].as_str()?.to_owned(), file.to_str()?.to_owned()))
}

fn packages() -> Result<Vec<Value>> {
    let packages = metadata()?["packages"].as_array().cloned();
    packages.context("cargo metadata without packages")
}

/// What cargo knows of the workspace, without its dependencies.
pub(super) fn metadata() -> Result<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata")
}

fn check_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, allowed)) = EDGES.iter().find(|(crate_name, _)| *crate_name == name) else {
        return vec![format!("crate {name} is not in the table of edges")];
    };
    shipped(package)
        .filter(|to| to.starts_with("smelt") && !allowed.contains(to))
        .map(|to| format!("crate {name} may not depend on {to}"))
        .collect()
}

/// What a crate is built of.  Edges that tests need may point anywhere: they make no cycle in what is shipped.
fn shipped(package: &Value) -> impl Iterator<Item = &str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies
        .filter(|dependency| dependency["kind"] != "dev")
        .filter_map(|dependency| dependency["name"].as_str())
}

/// What runs engines and reaches what builds them, by any path.
fn mixed(packages: &[Value]) -> Vec<String> {
    let of = |from: &'static str| {
        let reached = reached(packages, from);
        let wrong = BUILDS.into_iter().filter(move |to| reached.contains(to));
        wrong.map(move |to| {
            format!("crate {from} runs engines, and reaches {to}, which builds them")
        })
    };
    RUNS.into_iter().flat_map(of).collect()
}

/// The crate `from`, what it is built of, and what that is.
fn reached<'a>(packages: &'a [Value], from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(name) = left.pop() {
        if reached.insert(name) {
            let package = packages.iter().find(|package| package["name"] == name);
            left.extend(package.into_iter().flat_map(shipped));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, needs: &[&str], kind: Option<&str>) -> Value {
        let need = |need: &&str| json!({ "name": need, "kind": kind });
        json!({ "name": name, "dependencies": needs.iter().map(need).collect::<Vec<_>>() })
    }

    #[test]
    fn what_runs_engines_may_not_reach_what_builds_them_by_any_path() {
        let packages = |kind| {
            [
                package("smelt-serve", &["smelt-runtime"], None),
                package("smelt-runtime", &["some-helper"], None),
                package("some-helper", &["smelt-model"], kind),
                package("smelt-model", &["smelt-onnx"], None),
            ]
        };
        assert_eq!(mixed(&packages(Some("dev"))), [""; 0]);
        let found = mixed(&packages(None));
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(
            found[1],
            "crate smelt-runtime runs engines, and reaches smelt-model, which builds them"
        );
        assert!(found[2].starts_with("crate smelt-serve"), "{found:?}");
    }

    #[test]
    fn the_table_lets_nothing_that_runs_engines_reach_what_builds_them() {
        let row = |(name, needs): &(&str, &[&str])| package(name, needs, None);
        let packages: Vec<Value> = EDGES.iter().map(row).collect();
        assert_eq!(mixed(&packages), [""; 0]);
        for name in RUNS.iter().chain(&BUILDS) {
            assert!(EDGES.iter().any(|(known, _)| known == name), "{name} is no crate");
        }
    }
}
