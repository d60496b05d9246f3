//! Installs vendors' tools that run here without their devices, and holds what drives them to the real ones.
//!
//! Nothing of a vendor's is kept in the repository: libraries come from PyPI, headers from the crate that carries them, by
//! versions and digests that stand here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::ci::cargo;
use crate::{python, root, target};

/// The crate that carries the headers, its version and the digest of what the registry has.
const HEADERS: (&str, &str, &str) =
    ("trtx-sys", "=0.9.1", "5480ee056292951daa1bc74532162d6cb75190f091e45d7d97c0c356916ae171");
/// The versions whose headers it has, and whether a row of the loader's is for them.
const VERSIONS: [(&str, bool); 6] = [
    ("TRT-RTX-1.3", false),
    ("TRT-RTX-1.4", false),
    ("TRT-RTX-1.5", true),
    ("TRT-RTX-1.6", true),
    ("TRT-RTX-1.7", true),
    ("TRT-Enterprise-11.4", true),
];

/// What is asked of what, and how far that is a proof.
const PROOFS: [(&str, &str, &str); 14] = [
    ("TensorRT for RTX 1.7.1", "parse, build for sm86, progress, cancel, kill, refusals", "run"),
    ("TensorRT for RTX 1.7.1", "smelt's rules, on goldens, random and changed graphs", "run"),
    ("TensorRT for RTX 1.7.1", "its plans, cut at every page", "run"),
    ("TensorRT for RTX 1.7.1", "graphs whose products multiply integers (insert-qdq)", "run"),
    ("headers RTX 1.5 to 1.7, 11.4", "places in tables, layouts, numbers", "run"),
    ("the allocator", "counts and refusals, on a device that is made up", "stand-in"),
    ("libraries that misbehave", "crash, exit, noise, other versions", "stand-in"),
    (
        "trtexec 10.3",
        "flags, refusals, ten ways to go wrong, by a program after its sources",
        "stand-in",
    ),
    ("trtexec", "a calibration's scales, by a program after its sources", "stand-in"),
    ("trtexec", "a build on a GPU", "projected"),
    (
        "llm_inference, run.py",
        "golden prompts, eleven ways to go wrong, by programs after their sources",
        "stand-in",
    ),
    ("llm_inference, run.py", "an answer of an engine on a board", "projected"),
    ("TensorRT 11.4", "a row that is held to its headers; no builder of it is here", "projected"),
    ("plans on a GPU", "nothing here runs them", "projected"),
];

/// Runs all that is real, and says what is not.
pub(crate) fn run() -> Result<()> {
    quick()?;
    let library = library()?;
    let variables = [("SMELT_TENSORRT_RTX", library.as_str())];
    cargo(&["test", "--package", "smelt-tensorrt", "--tests", "--locked"], &variables)?;
    cargo(
        &[
            "test",
            "--package",
            "smelt",
            "--tests",
            "--locked",
            "--",
            "tensorrt",
            "trtexec",
            "runtime::",
        ],
        &variables,
    )?;
    for (what, how, proof) in PROOFS {
        println!("{proof:10} {what}: {how}");
    }
    Ok(())
}

/// Holds the loader's declarations to the vendor's headers, which takes seconds.  What is asked of the libraries
/// themselves is a part of the tests.
pub(crate) fn quick() -> Result<()> {
    println!("\n$ cargo xtask toolchains");
    let headers = headers()?;
    VERSIONS.iter().try_for_each(|(version, has_row)| hold_layout(&headers, version, *has_row))
}

/// What `SMELT_TENSORRT_RTX` is to name.
pub(crate) fn library() -> Result<String> {
    let requirements = root().join("xtask/tensorrt/requirements.txt");
    let python = python::environment("tensorrt", &requirements)?;
    let path = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    let output = Command::new(python).args(["-c", path]).output().context("cannot start python")?;
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim()).join("tensorrt_rtx_libs");
    ensure!(folder.is_dir(), "{} is not there after pip installed it", folder.display());
    folder.into_os_string().into_string().ok().context("the target directory is no text")
}

/// Compiles the comparison against one version's headers and runs it.  A version without a row must be refused: else
/// the comparison could not tell versions apart.
fn hold_layout(headers: &Path, version: &str, has_row: bool) -> Result<()> {
    let program = target().join("toolchains").join(version);
    let status = Command::new("c++")
        .args(["-std=c++17", "-w", "-o"])
        .arg(&program)
        .arg(root().join("xtask/tensorrt/layout.cpp"))
        .arg("-I")
        .arg(root().join("crates/smelt-tensorrt/loader"))
        .arg("-isystem")
        .arg(headers.join(version))
        .arg("-isystem")
        .arg(headers)
        .status()
        .context("cannot start c++")?;
    ensure!(status.success(), "the comparison with {version} does not compile");
    let output = Command::new(program).output().context("cannot start what was compiled")?;
    print!("{version}: {}", String::from_utf8_lossy(&output.stdout));
    match (output.status.success(), has_row) {
        (true, true) | (false, false) => Ok(()),
        (false, true) => bail!("the loader's declarations are not those of {version}"),
        (true, false) => bail!("{version} has a row now; say so in VERSIONS"),
    }
}

/// The folder of all headers, in what cargo fetched.
fn headers() -> Result<PathBuf> {
    let (name, version, digest) = HEADERS;
    let folder = target().join("toolchains/headers");
    fs::create_dir_all(folder.join("src")).with_context(|| folder.display().to_string())?;
    let manifest = format!(
        "[package]\nname = \"headers\"\nedition = \"2024\"\n[dependencies]\n{name} = \"{version}\"\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/lib.rs"), "")?;
    // The first call brings what is not here yet.
    let metadata: Value = serde_json::from_slice(&metadata(&folder)?).context("cargo metadata")?;
    let locked = fs::read_to_string(folder.join("Cargo.lock"))?;
    ensure!(
        locked.contains(digest),
        "the registry's {name} {version} is not the one that was read"
    );
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let package = packages.iter().find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = Path::new(manifest.with_context(|| format!("cargo brought no {name}"))?);
    let place = manifest.parent().context("a manifest lies in a folder")?;
    Ok(place.join("TensorRT-Headers"))
}

fn metadata(folder: &Path) -> Result<Vec<u8>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1"])
        .current_dir(folder)
        .output()
        .context("cannot start cargo metadata")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo cannot fetch the headers: {said}");
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_proof_is_labelled_as_what_it_is() {
        let known = ["run", "stand-in", "projected"];
        assert!(PROOFS.iter().all(|(.., proof)| known.contains(proof)));
        let requirements = fs::read_to_string(root().join("xtask/tensorrt/requirements.txt"));
        let told = fs::read_to_string(root().join("crates/smelt-tensorrt/src/library.rs")).unwrap();
        let pinned = requirements.unwrap();
        let pin = pinned.lines().find_map(|line| line.strip_suffix(" \\")).unwrap();
        assert!(told.contains(pin), "users are told of another version than {pin}");
    }
}
