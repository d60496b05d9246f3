//! Holds the packages of the lock file against `deny.toml`: licences, sources, several versions of one.
//!
//! `cargo deny` says more, since it asks for advisories, and takes minutes to build; what needs no network is said here at each
//! run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::root;

/// What `deny.toml` lets through.
#[derive(Debug, Default)]
struct Allowed {
    licences: BTreeSet<String>,
    /// Names and versions beside which there may be another.
    doubles: BTreeSet<(String, String)>,
}

pub(super) fn check() -> Result<Vec<String>> {
    let path = root().join("deny.toml");
    let allowed = Allowed::read(&fs::read_to_string(&path).context("deny.toml")?);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let mut findings: Vec<String> =
        packages.iter().filter_map(|package| licence(package, &allowed)).collect();
    findings.extend(packages.iter().filter_map(source));
    findings.extend(doubles(packages, &allowed));
    Ok(findings)
}

impl Allowed {
    /// The words of the two lists that count here.
    fn read(text: &str) -> Self {
        let list = |start: &str| {
            let list = text.split(start).nth(1).unwrap_or_default();
            list.split("\n]").next().unwrap_or_default().to_owned()
        };
        let quoted = |line: &str| -> Vec<String> {
            line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let licences = list("\nallow = [").lines().flat_map(quoted).collect();
        let pair = |line: &str| match &quoted(line)[..] {
            [name, version] => Some((name.clone(), version.clone())),
            _ => None,
        };
        Self { licences, doubles: list("\nskip = [").lines().filter_map(pair).collect() }
    }
}

/// Whether some way through the licence's expression is allowed.
fn licence(package: &Value, allowed: &Allowed) -> Option<String> {
    let words = package["license"].as_str().unwrap_or("none");
    (!is_allowed(words, &allowed.licences))
        .then(|| format!("{} has the licence {words}", name(package)))
}

/// Of an SPDX expression: every part joined by AND, one of those joined by OR.
fn is_allowed(words: &str, licences: &BTreeSet<String>) -> bool {
    let words = words.replace(['(', ')'], " ").replace('/', " OR ");
    let mut all = words.split(" AND ");
    all.all(|part| part.split(" OR ").any(|licence| licences.contains(licence.trim())))
}

fn source(package: &Value) -> Option<String> {
    let source = package["source"].as_str()?;
    let is_known = source.starts_with("registry+") && source.contains("crates.io");
    (!is_known).then(|| format!("{} comes from elsewhere than the crate registry", name(package)))
}

/// Packages of which there are several versions.
fn doubles(packages: &[Value], allowed: &Allowed) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let version = package["version"].as_str().unwrap_or_default();
        let key = (name(package).to_owned(), version.to_owned());
        if !allowed.doubles.contains(&key) {
            versions.entry(name(package)).or_default().push(version);
        }
    }
    let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    several
        .map(|(name, versions)| {
            format!("{name} is built in several versions: {}", versions.join(", "))
        })
        .collect()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_through_a_licence_is_enough() {
        let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]);
        for words in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND ISC"] {
            assert!(is_allowed(words, &allowed), "{words}");
        }
        for words in ["GPL-3.0", "MIT AND GPL-3.0", "none"] {
            assert!(!is_allowed(words, &allowed), "{words}");
        }
    }

    #[test]
    fn the_lists_are_read() {
        let text = "[licenses]\nallow = [\n  \"MIT\",\n]\n[bans]\nskip = [\n  { name = \"syn\", version = \"2.0\" },\n]\n";
        let Allowed { licences, doubles } = Allowed::read(text);
        assert_eq!(licences, BTreeSet::from(["MIT".to_owned()]));
        assert_eq!(doubles, BTreeSet::from([("syn".to_owned(), "2.0".to_owned())]));
    }
}
