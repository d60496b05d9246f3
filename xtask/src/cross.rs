//! Builds for the boards that smelt is for: aarch64, linked statically.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{ci, debian, root, target};

const TARGET: &str = "aarch64-unknown-linux-musl";

/// Debian's C compiler for them: `ring` brings C and assembly, and a guest's client is C.
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Where cargo and `cc` look for the target's linker and compiler.  Symbols would be nine tenths of
/// the file.  Flags of the target leave macros and build scripts as this machine's builds have them, where a profile's would
/// have all of them compiled again.  But for the engine, nothing here computes so long that optimising it would pay.
const BUILD: [(&str, &str); 4] = [
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
    ("CC_aarch64_unknown_linux_musl", COMPILER),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS", "-Cdebuginfo=0 -Cstrip=symbols"),
];

/// What every build names, so that all have the same features and the engine is compiled once.
const TOGETHER: [&str; 6] =
    ["--package", "smelt", "--package", "smelt-engine", "--package", "smelt-engine-build"];

/// Tests that are built with the command: then cargo counts what tests need, and it is what `aarch64` has built.
const TESTS: [&str; 2] = ["--test", "smelt-engine-build-integration"];

/// Of them one that is about memory, which is the same on every processor: QEMU takes two minutes for 419 million scores.
const SLOW: &str = "vision::what_attention_never_holds_limits_no_tower";

/// What runs the boards' programs here, with every feature of a processor that it knows.
const RUNNER: (&str, &str) =
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "qemu-aarch64 -cpu max");

/// The command, built for the boards.
pub(crate) fn build_smelt() -> Result<PathBuf> {
    let built = cargo(&["build", "--quiet"])?.args(["--bin", "smelt"]).args(TESTS).status();
    ensure!(built.context("cannot start cargo")?.success(), "smelt does not build for {TARGET}");
    Ok(target().join(TARGET).join("debug/smelt"))
}

/// The engine's kernels and decoders, tested as the boards compute: NEON against plain Rust and, of engines built
/// there, the golden vectors.
pub(crate) fn test_engine() -> Result<()> {
    need_runner()?;
    let integration =
        [&TESTS[..], &["--", "golden::", "packed::", "vision::", "--skip", SLOW]].concat();
    for tests in [&["--lib"][..], &integration] {
        let mut cargo = cargo(&["test", "--quiet"])?;
        cargo.args(tests).env(RUNNER.0, RUNNER.1);
        ensure!(cargo.status().context("cannot start cargo")?.success(), "tests fail on {TARGET}");
    }
    Ok(())
}

/// Kernels of the boards' processor, checked and not executed: that they compile, `ci` says, and what they compute, `soak`.
pub(crate) fn lint() -> Result<()> {
    add_target();
    ci::cargo(
        &["clippy", "-p", "smelt-engine", "--locked", "--target", TARGET, "--", "-D", "warnings"],
        &[],
    )
}

/// Runs programs of the boards without a guest.
pub(crate) fn need_runner() -> Result<()> {
    debian::need_alone("qemu-user", || debian::runs("qemu-aarch64", "--version"))
}

fn need_builder() -> Result<()> {
    add_target();
    need_compiler()
}

/// What Debian's toolchains come with needs no rustup; cargo says what is missing.
fn add_target() {
    let _ = Command::new("rustup").args(["target", "add", TARGET]).output();
}

/// Cargo in the root, for the boards.
fn cargo(arguments: &[&str]) -> Result<Command> {
    need_builder()?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(TOGETHER).args(["--locked", "--target", TARGET]);
    cargo.current_dir(root()).envs(BUILD);
    Ok(cargo)
}

/// Compiles a C file into a program without libraries.
pub(crate) fn compile(source: &Path, program: &Path) -> Result<()> {
    need_compiler()?;
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-static", "-O2", "-Wall", "-Wextra", "-Werror", "-s", "-o"]);
    compiler.arg(program).arg(source);
    ensure!(compiler.status().context("cannot start it")?.success(), "{compiler:?} failed");
    Ok(())
}

fn need_compiler() -> Result<()> {
    debian::need("gcc-aarch64-linux-gnu", || debian::runs(COMPILER, "--version"))
}
