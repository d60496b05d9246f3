//! Runs every check, in the order that fails fastest, and says how long each took.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{
    bench, cma, conformance, cross, debian, onnxruntime, operation, power_cuts, root, tidy, walks,
};

const STEPS: [(&str, &[&str]); 4] = [
    ("format", &["fmt", "--all", "--check"]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
    ("tests", &["test", "--workspace", "--locked", "--no-fail-fast"]),
    // With examples, features are those of the lints, and what they checked is not checked again.
    ("docs", &["doc", "--workspace", "--lib", "--bins", "--examples", "--no-deps", "--locked"]),
];

/// A check that is our own.
type Step = fn() -> Result<()>;

/// Fails at the first step that fails.
pub(crate) fn run() -> Result<()> {
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
    let mut times = Vec::new();
    for (name, arguments) in STEPS {
        let begin = Instant::now();
        cargo(arguments, &[("SMELT_ONNXRUNTIME", library)])
            .with_context(|| format!("{name} failed"))?;
        times.push((name, begin.elapsed()));
    }
    let steps: [(&str, Step); 11] = [
        ("onnxruntime", onnxruntime::run),
        ("conformance", conformance::run),
        ("bench cpu", || bench::cpu::run(&["--smoke"])),
        ("bench serve", || bench::serve::run(&["--smoke"])),
        ("bench router", || bench::router::run(&["--smoke"])),
        ("operation", operation::run),
        ("tidy", tidy::run),
        ("walks", walks::run),
        ("aarch64", cross::test_engine),
        ("cma", || cma::run(cma::CI)),
        ("power cuts", || power_cuts::run(power_cuts::CI)),
    ];
    for (name, step) in steps {
        let begin = Instant::now();
        step().with_context(|| format!("{name} failed"))?;
        times.push((name, begin.elapsed()));
    }
    for (name, time) in times {
        println!("{name:11} {:4} s", time.as_secs());
    }
    Ok(())
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
