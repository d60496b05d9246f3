//! Builds llama-server for this processor from the sources that llama-cpp-python carries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::{remove, succeed};
use crate::python;

/// The release whose sources are built; `bench cpu` measures the same.
pub(super) const PACKAGE: &str = "llama_cpp_python-0.3.36";

/// For this very processor; nothing is fetched, and only the server is built.
const OPTIONS: [&str; 9] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
];

/// The Python that fetches, builds and writes.
pub(super) fn python() -> Result<PathBuf> {
    python::environment("bench-serve", &super::inputs::script("requirements.txt"))
}

/// `folder/llama-server`, built if it is not there.
pub(in crate::bench) fn server(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("llama-server");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("bench: building llama-server, which takes some minutes");
    let python = python()?;
    let work = folder.join("llama.cpp");
    remove(&work)?;
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    let package = PACKAGE.replace('_', "-").replacen("python-", "python==", 1);
    let mut fetch = Command::new(&python);
    fetch.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]);
    // The build's own tools are there already.
    fetch.args(["--no-build-isolation", "--dest"]).arg(&work).arg(package);
    let bin = python.parent().context("python lies in a folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", bin.display());
    succeed(fetch.env("PATH", &path))?;
    succeed(
        Command::new("tar")
            .arg("xzf")
            .arg(work.join(format!("{PACKAGE}.tar.gz")))
            .arg("-C")
            .arg(&work),
    )?;
    let (source, build) = (work.join(PACKAGE).join("vendor/llama.cpp"), work.join("build"));
    let mut configure = Command::new(bin.join("cmake"));
    configure.args(["-G", "Ninja", "-S"]).arg(source).arg("-B").arg(&build).args(OPTIONS);
    succeed(configure.env("PATH", &path))?;
    succeed(Command::new(bin.join("ninja")).arg("-C").arg(&build).arg("llama-server"))?;
    fs::rename(build.join("bin/llama-server"), &program)?;
    remove(&work)?;
    Ok(program)
}
