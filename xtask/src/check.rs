//! What a small change must pass, in the time that one waits: format, lints, and the unit tests of the crates that
//! changed and of those that depend on them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::ci::cargo;
use crate::{root, tidy};

/// Checks what differs from a commit, the last one where none is named.
pub(crate) fn run(since: Option<&str>) -> Result<()> {
    let begin = Instant::now();
    let crates = tidy::crates()?;
    let paths = changed(since.unwrap_or("HEAD"))?;
    let affected = affected(&paths, &crates);
    let names: Vec<_> = affected.iter().map(|one| one.name.as_str()).collect();
    println!("{} files changed; crates: {}", paths.len(), names.join(", "));
    tidy::texts()?;
    cargo(&["fmt", "--all", "--check"], &[])?;
    if !names.is_empty() {
        cargo(
            &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
            &[],
        )?;
    }
    let tests = built(&["--lib", "--bins"])?;
    for test in tests.iter().filter(|test| names.contains(&test.of.as_str())) {
        test.run()?;
    }
    let integration: BTreeSet<_> =
        paths.iter().filter_map(|path| integration_test(path, &crates)).collect();
    for (program, module) in &integration {
        cargo(&["test", "--workspace", "--locked", "--test", program, module], &[])
            .with_context(|| format!("{program} {module} failed"))?;
    }
    println!(
        "\ncheck: all held, {} s. Left to `cargo xtask ci`: the smelt that only serves, integration tests that did not change, docs, pipelines, pages, walks, other machines",
        begin.elapsed().as_secs()
    );
    Ok(())
}

/// A crate of ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Its folder, from the root.
    pub(crate) folder: String,
    /// Those of ours that it is built of, or tested with.
    pub(crate) needs: Vec<String>,
    /// Its programs of integration tests: names, and files from the root.
    pub(crate) integration: Vec<(String, String)>,
}

/// The crates of these files, and those that depend on them; all where what all are built by has changed.
fn affected<'a>(paths: &[String], crates: &'a [Crate]) -> BTreeSet<&'a Crate> {
    if paths
        .iter()
        .any(|path| ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"].contains(&&path[..]))
    {
        return crates.iter().collect();
    }
    let is_in = |path: &str, one: &Crate| Path::new(path).starts_with(&one.folder);
    let mut affected: BTreeSet<_> =
        crates.iter().filter(|one| paths.iter().any(|path| is_in(path, one))).collect();
    loop {
        let needs = |one: &Crate, known: &BTreeSet<&Crate>| {
            one.needs.iter().any(|need| known.iter().any(|known| known.name == *need))
        };
        let more: Vec<_> = crates.iter().filter(|one| needs(one, &affected)).collect();
        let before = affected.len();
        affected.extend(more);
        if affected.len() == before {
            return affected;
        }
    }
}

/// The program that a file's integration tests are in, and their module; of a module that is only shared, no test matches.
fn integration_test(path: &str, crates: &[Crate]) -> Option<(String, String)> {
    let of = crates.iter().find(|one| Path::new(path).starts_with(&one.folder))?;
    let whole = |program: &str| Some((program.to_owned(), String::new()));
    if let Some((program, _)) = of.integration.iter().find(|(_, file)| file == path) {
        return whole(program);
    }
    let (program, main) = of.integration.iter().find(|(_, file)| file.ends_with("/main.rs"))?;
    let module = path.strip_prefix(main.strip_suffix("main.rs")?)?;
    let module = module.split('/').next()?.trim_end_matches(".rs");
    Some((program.clone(), format!("{module}::")))
}

/// The files that differ from a commit, and those that git does not know yet.
fn changed(since: &str) -> Result<Vec<String>> {
    let mut paths = lines(&["diff", "--name-only", "--no-renames", since, "--"])?;
    paths.extend(lines(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(paths)
}

fn lines(arguments: &[&str]) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(root()).stderr(Stdio::inherit());
    let output = git.output().context("cannot start git")?;
    ensure!(output.status.success(), "git {} ended with {}", arguments.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// A program of tests.
pub(crate) struct TestProgram {
    /// Its crate.
    of: String,
    folder: String,
    pub(crate) program: String,
}

impl TestProgram {
    fn run(&self) -> Result<()> {
        println!("\n$ the unit tests of {}", self.of);
        let status = Command::new(&self.program).arg("--quiet").current_dir(&self.folder).status();
        let status = status.with_context(|| self.program.clone())?;
        ensure!(status.success(), "the unit tests of {} failed", self.of);
        Ok(())
    }
}

/// The programs of tests of these kinds, built as `ci` builds them: features are those of the whole workspace.
pub(crate) fn built(kinds: &[&str]) -> Result<Vec<TestProgram>> {
    let arguments = ["test", "--workspace", "--locked", "--no-run", "--message-format", "json"];
    println!("\n$ cargo {} {}", arguments.join(" "), kinds.join(" "));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(kinds).current_dir(root()).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let lines = String::from_utf8(output.stdout)?;
    Ok(lines.lines().filter_map(|line| program(&serde_json::from_str(line).ok()?)).collect())
}

/// The program of one message of cargo's, if it tells one.
fn program(message: &Value) -> Option<TestProgram> {
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_str()?.to_owned();
    // `path+file:///folder/name#0.1.0`
    let of = manifest.parent()?.file_name()?.to_str()?.to_owned();
    let program = message["executable"].as_str()?.to_owned();
    message["profile"]["test"].as_bool()?.then_some(TestProgram { of, folder, program })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str]) -> Vec<String> {
        let of = |name: &str, needs: &[&str]| Crate {
            name: name.to_owned(),
            folder: format!("crates/{name}"),
            needs: needs.iter().map(|need| (*need).to_owned()).collect(),
            integration: Vec::new(),
        };
        let crates =
            [of("plan", &[]), of("store", &["plan"]), of("store-more", &[]), of("top", &["store"])];
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        affected(&paths, &crates).iter().map(|one| one.name.clone()).collect()
    }

    #[test]
    fn a_change_reaches_all_that_depends_on_it() {
        assert_eq!(names(&["crates/plan/src/lib.rs"]), ["plan", "store", "top"]);
        assert_eq!(names(&["crates/store/src/lib.rs", "README.md"]), ["store", "top"]);
        assert_eq!(names(&["crates/top/tests/a.rs"]), ["top"]);
        assert_eq!(names(&["docs/a.md"]), [""; 0]);
        assert_eq!(names(&["Cargo.lock"]).len(), 4);
    }

    #[test]
    fn integration_tests_are_known_by_their_files() {
        let name = "onnx".to_owned();
        let file = |name: &str| format!("crates/onnx/tests/{name}.rs");
        let integration =
            vec![("memory".to_owned(), file("memory")), ("onnx-all".to_owned(), file("main"))];
        let folder = "crates/onnx".to_owned();
        let crates = [Crate { name, folder, needs: Vec::new(), integration }];
        let found = |path: &str| integration_test(path, &crates);
        let is = |program: &str, module: &str| Some((program.to_owned(), module.to_owned()));
        assert_eq!(found("crates/onnx/tests/heads.rs"), is("onnx-all", "heads::"));
        assert_eq!(found("crates/onnx/tests/world/mod.rs"), is("onnx-all", "world::"));
        assert_eq!(found("crates/onnx/tests/main.rs"), is("onnx-all", ""));
        assert_eq!(found("crates/onnx/tests/memory.rs"), is("memory", ""));
        for path in ["crates/onnx/src/tests.rs", "crates/other/tests/a.rs", "tests/data/a"] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
