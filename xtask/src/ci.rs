//! Runs every check, in the order that fails fastest, and says how long each took.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{
    bench, cma, conformance, cross, debian, nvrtc, onnxruntime, operation, power_cuts, root,
    target, tidy, unchanged, walks,
};

const STEPS: [(&str, &[&str]); 5] = [
    ("format", &["fmt", "--all", "--check"]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
    // A smelt that only serves.  As features of all else stay as they are, nothing but the command is checked again.
    (
        "serving",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--no-default-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    ),
    // Without examples, which the lints have checked, and tests in documentation, of which `tidy` allows none.
    ("tests", &["test", "--workspace", "--tests", "--locked", "--no-fail-fast"]),
    // With examples, features are those of the lints, and what they checked is not checked again.
    ("docs", &["doc", "--workspace", "--lib", "--bins", "--examples", "--no-deps", "--locked"]),
];

/// What every step of our own depends on.
const INPUTS: [&str; 8] =
    ["Cargo.lock", "Cargo.toml", ".cargo", "crates", "tools", "xtask", "pipelines", "tests/data"];

/// A check that is our own: its name, what it reads beside [`INPUTS`], and how it runs, or says that it cannot.
type CheckFn = (&'static str, &'static [&'static str], fn() -> Result<bool>);

const OWN: [CheckFn; 10] = [
    ("onnxruntime", &[], || ran(onnxruntime::run())),
    ("conformance", &[], || ran(conformance::run())),
    ("bench cpu", &[], || ran(bench::cpu::run(&["--smoke"]))),
    ("bench serve", &[], || ran(bench::serve::run(&["--smoke"]))),
    ("bench router", &[], || ran(bench::router::run(&["--smoke"]))),
    ("operation", &["docs"], || ran(operation::run())),
    ("walks", &["README.md", "docs"], || ran(walks::run())),
    ("aarch64", &[], || ran(cross::test_engine())),
    ("cma", &[], || cma::run(cma::CI)),
    ("power cuts", &[], || power_cuts::run(power_cuts::CI)),
];

/// Fails at the first step that fails.  Long steps that held with the same inputs are left out, but for `all`.
pub(crate) fn run(all: bool) -> Result<()> {
    if all {
        unchanged::forget()?;
    }
    // The kill-point sweeps count and cut system calls with it, and the order of syncs is seen by it.
    debian::need("strace", || debian::runs("strace", "-V"))?;
    // Films are made and read by it.
    debian::need_alone("ffmpeg", || debian::runs("ffmpeg", "-version"))?;
    // A camera that others wrote.
    for (package, proof) in [
        ("python3-gi", "import gi"),
        ("gir1.2-gst-rtsp-server-1.0", "import gi; gi.require_version('GstRtspServer', '1.0')"),
        (
            "gstreamer1.0-plugins-good",
            "from gi.repository import Gst; Gst.init(); assert Gst.ElementFactory.find('rtph264pay')",
        ),
    ] {
        debian::need_alone(package, || debian::proves(proof))?;
    }
    // Alerts and dashboards are evaluated by it.
    debian::need("prometheus", || debian::runs("promtool", "--version"))?;
    // Pages of runs are looked at in it.
    debian::need("chromium", || debian::runs("chromium", "--version"))?;
    // Engines of its back end are tested with it.
    let library = onnxruntime::library()?;
    let library = library.to_str().context("the target directory is no text")?;
    // Kernels are compiled by both, and kept by content: what did not change takes no time.
    let compilers = nvrtc::libraries()?;
    let kept = target().join("kernels");
    let kept = kept.to_str().context("the target directory is no text")?;
    let libraries = [
        ("SMELT_ONNXRUNTIME", library),
        ("SMELT_NVRTC", compilers.as_str()),
        ("SMELT_KEPT_KERNELS", kept),
    ];
    let mut times = Vec::new();
    let mut timed = |name, step: &mut dyn FnMut() -> Result<bool>| {
        let begin = Instant::now();
        let has_run = step().with_context(|| format!("{name} failed"))?;
        let seconds = begin.elapsed().as_secs();
        let took = if has_run { format!("{seconds:4} s") } else { "not run".to_owned() };
        println!("\n{name}: {took}");
        times.push((name, took));
        anyhow::Ok(())
    };
    for (name, arguments) in STEPS {
        timed(name, &mut || ran(cargo(arguments, &libraries)))?;
    }
    timed("tidy", &mut || ran(tidy::run()))?;
    for (name, own, step) in OWN {
        let inputs = [&INPUTS, own].concat();
        timed(name, &mut || unchanged::or_run(name, &inputs, step))?;
    }
    for (name, took) in times {
        println!("{name:11} {took}");
    }
    Ok(())
}

fn ran(step: Result<()>) -> Result<bool> {
    step.map(|()| true)
}

/// Runs cargo in the root, with these variables besides our own.
pub(crate) fn cargo(arguments: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    println!("\n$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .env("RUSTDOCFLAGS", "-D warnings")
        .envs(variables.iter().copied())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steps_depend_on_is_there() {
        for (_, own, _) in OWN {
            unchanged::digest(&[&INPUTS, own].concat()).unwrap();
        }
    }
}
