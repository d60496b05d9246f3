//! Holds the crates' dependencies against the table of the architecture.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::check::Crate;
use crate::root;

/// Which crates of ours each crate may name.  `crates/ARCHITECTURE.md` says why.
const EDGES: [(&str, &[&str]); 19] = [
    ("smelt-random", &[]),
    ("smelt-plan", &[]),
    ("smelt-watch", &[]),
    ("smelt-onnx", &[]),
    ("smelt-tensor", &[]),
    ("smelt-hub", &[]),
    ("smelt-backend", &["smelt-random"]),
    ("smelt-load", &["smelt-watch"]),
    ("smelt-model", &["smelt-backend", "smelt-onnx", "smelt-tensor"]),
    ("smelt-doctor", &["smelt-watch"]),
    ("smelt-store", &["smelt-plan", "smelt-random"]),
    ("smelt-engine", &["smelt-backend", "smelt-tensor"]),
    (
        "smelt-engine-build",
        &["smelt-backend", "smelt-onnx", "smelt-tensor", "smelt-model", "smelt-engine"],
    ),
    ("smelt-exec", &["smelt-plan", "smelt-store", "smelt-watch"]),
    ("smelt-runtime", &["smelt-backend", "smelt-watch"]),
    ("smelt-serve", &["smelt-runtime", "smelt-watch"]),
    (
        "smelt",
        &[
            "smelt-plan",
            "smelt-store",
            "smelt-watch",
            "smelt-doctor",
            "smelt-exec",
            "smelt-hub",
            "smelt-load",
            "smelt-onnx",
            "smelt-model",
            "smelt-backend",
            "smelt-engine",
            "smelt-engine-build",
            "smelt-runtime",
            "smelt-serve",
        ],
    ),
    ("smelt-shapes", &["smelt-random", "smelt-runtime"]),
    ("xtask", &["smelt-random", "smelt-watch"]),
];

pub(super) fn check() -> Result<Vec<String>> {
    Ok(packages()?.iter().flat_map(check_package).collect())
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

/// Edges that tests need may point anywhere: they make no cycle in what is shipped.
fn check_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, allowed)) = EDGES.iter().find(|(crate_name, _)| *crate_name == name) else {
        return vec![format!("crate {name} is not in the table of edges")];
    };
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies
        .filter(|dependency| dependency["kind"] != "dev")
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|to| to.starts_with("smelt") && !allowed.contains(to))
        .map(|to| format!("crate {name} may not depend on {to}"))
        .collect()
}
