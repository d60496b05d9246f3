//! Installs the compilers of kernels from PyPI, for tests that compile them: no GPU and no CUDA is needed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::ci::cargo;
use crate::{python, root};

/// The folders of their libraries in what pip installs.
const FOLDERS: [&str; 2] = ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"];

/// What `SMELT_NVRTC` is to name.
pub(crate) fn libraries() -> Result<String> {
    let requirements = root().join("xtask/nvrtc/requirements.txt");
    let python = python::environment("nvrtc", &requirements)?;
    let path = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    let output = Command::new(python).args(["-c", path]).output().context("cannot start python")?;
    let packages = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let folders = FOLDERS.map(|folder| packages.join(folder));
    for folder in &folders {
        ensure!(folder.is_dir(), "{} is not there after pip installed it", folder.display());
    }
    let joined = std::env::join_paths(folders)?.into_string();
    joined.map_err(|_| anyhow::anyhow!("the target directory is no text"))
}

/// Compiles every kernel for every target, whether it changed or not.
pub(crate) fn compile_all(variables: &[(&str, &str)]) -> Result<()> {
    let libraries = libraries()?;
    let variables = [variables, &[("SMELT_NVRTC", libraries.as_str())]].concat();
    let test = ["test", "--locked", "-p", "smelt-cuda", "--test", "smelt-cuda-integration"];
    cargo(&[&test[..], &["kernels::", "--", "--nocapture"]].concat(), &variables)
}
