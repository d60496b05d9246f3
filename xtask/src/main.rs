//! Runs the development commands: `cargo xtask ci`, `cargo xtask tidy`, `cargo xtask soak`,
//! `cargo xtask onnxruntime`.

mod ci;
mod onnxruntime;
mod soak;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask ci|onnxruntime|soak|tidy

  ci           everything a change must pass: format, lints, tests, docs, onnxruntime, tidy
  onnxruntime  the exported golden graphs in onnxruntime against what transformers computed
  soak         the sweeps of ci without their bounds: a million worlds, the store under every crash
  tidy         what compilers do not check: crate edges, file headers, pipelines, README";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ci"] => ci::run(),
        ["onnxruntime"] => onnxruntime::run(),
        ["soak"] => soak::run(),
        ["tidy"] => tidy::run(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where cargo builds.
fn target() -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// The repository's root: the folder above this crate.
fn root() -> std::path::PathBuf {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("xtask lies in the repository").to_owned()
}
