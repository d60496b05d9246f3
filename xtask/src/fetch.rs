//! Brings what steps of `ci` need from Debian, PyPI and npm, while cargo compiles: that waits for the network and for
//! disks, which compilers do not.

use anyhow::{Context, Result};

use crate::{conformance, debian, fleet, nvrtc, onnxruntime, operation, target, toolchains};

/// What tests are told, by the names of variables.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// What tests of crates need: programs that they start, and libraries that they load.
pub(crate) fn for_tests() -> Result<Variables> {
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
    let text = "the target directory is no text";
    Ok(vec![
        ("SMELT_ONNXRUNTIME", library.to_str().context(text)?.to_owned()),
        // Kernels are compiled by both, and kept by content: what did not change takes no time.
        ("SMELT_NVRTC", nvrtc::libraries()?),
        ("SMELT_TENSORRT_RTX", toolchains::library()?),
        ("SMELT_KEPT_KERNELS", target().join("kernels").to_str().context(text)?.to_owned()),
    ])
}

/// A check, and what brings what it needs.
type Bring = (&'static str, fn() -> Result<()>);

const CHECKS: [Bring; 3] =
    [("conformance", conformance::fetch), ("operation", operation::fetch), ("fleet", fleet::fetch)];

/// What the checks behind the tests need.  What does not come now is asked for again by the check, which says what it lacks.
pub(crate) fn for_checks() {
    for (name, fetch) in CHECKS {
        if let Err(error) = fetch() {
            eprintln!("xtask: not all that {name} needs is here yet: {error:#}");
        }
    }
}
