//! Lists what is measured, and what each case may take.
//!
//! A new case is a new entry: a command line with `IN` and `OUT` in it (and `SEEN`, where it needs
//! what calibrating the input gives), the same for the rival if it has one, and the targets.

use super::inputs::Input;

/// One piece of work, done by smelt and perhaps by the rival.
pub(super) struct Case {
    /// The word for it on the command line.
    pub(super) name: &'static str,
    /// The work, in the report.
    pub(super) what: &'static str,
    pub(super) input: Input,
    /// smelt's arguments, parted by spaces.
    pub(super) smelt: &'static str,
    /// The arguments of `xtask/rival/rival.py`; nothing where smelt's figures stand alone.
    pub(super) rival: Option<&'static str>,
    /// Whether the input is used up: each run gets a twin of it.
    pub(super) consumes: bool,
    pub(super) targets: Targets,
}

/// The most a case may take; nothing where nothing is promised.
pub(super) struct Targets {
    pub(super) rss_mib_max: Option<f64>,
    pub(super) cpu_s_max: Option<f64>,
    /// CPU time as a share of the rival's.
    pub(super) cpu_ratio_max: Option<f64>,
}

impl Targets {
    /// Figures that stand for themselves.
    const NONE: Self = Self { rss_mib_max: None, cpu_s_max: None, cpu_ratio_max: None };
}

const fn within(rss_mib: f64, cpu_s: Option<f64>, cpu_ratio: Option<f64>) -> Targets {
    Targets { rss_mib_max: Some(rss_mib), cpu_s_max: cpu_s, cpu_ratio_max: cpu_ratio }
}

/// Every case.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "vision-1b",
        what: "1B vision tower to ONNX f16",
        input: Input::Checkpoint("internvl3-1b"),
        smelt: "export IN --part vision --dtype f16 --out OUT",
        rival: Some("vision IN OUT"),
        consumes: false,
        targets: within(30.0, Some(1.5), None),
    },
    Case {
        name: "int8-1b",
        what: "1B decoder to int8",
        input: Input::Checkpoint("internvl3-1b"),
        smelt: "quantize IN --scheme int8 --out OUT",
        rival: Some("rtn IN OUT int8"),
        consumes: false,
        targets: within(48.0, None, Some(0.5)),
    },
    Case {
        name: "int8-2b",
        what: "2B decoder to int8",
        input: Input::Checkpoint("internvl3-2b"),
        smelt: "quantize IN --scheme int8 --out OUT",
        rival: Some("rtn IN OUT int8"),
        consumes: false,
        targets: within(48.0, None, Some(0.5)),
    },
    Case {
        name: "int4-1b",
        what: "1B decoder to int4-g128",
        input: Input::Checkpoint("internvl3-1b"),
        smelt: "quantize IN --scheme int4-g128 --out OUT",
        rival: Some("rtn IN OUT int4-g128"),
        consumes: false,
        targets: within(48.0, None, Some(0.5)),
    },
    Case {
        name: "int4-2b",
        what: "2B decoder to int4-g128",
        input: Input::Checkpoint("internvl3-2b"),
        smelt: "quantize IN --scheme int4-g128 --out OUT",
        rival: Some("rtn IN OUT int4-g128"),
        consumes: false,
        targets: within(48.0, None, Some(0.5)),
    },
    Case {
        name: "split-copy",
        what: "622 MB head of 3.44 GB split in 4, copying",
        input: Input::Decoder,
        smelt: "onnx split-head IN --parts 4 --out OUT",
        rival: Some("split-head IN OUT 4"),
        consumes: false,
        targets: within(40.0, Some(3.0), None),
    },
    Case {
        name: "split-consume",
        what: "622 MB head of 3.44 GB split in 4, consuming",
        input: Input::Decoder,
        smelt: "onnx split-head IN --parts 4 --out OUT --consume",
        rival: Some("split-head IN OUT 4 consume"),
        consumes: true,
        targets: within(40.0, Some(0.8), None),
    },
    Case {
        name: "minilm",
        what: "MiniLM encoder to ONNX f32",
        input: Input::Sentences,
        smelt: "export IN --part encoder --dtype f32 --out OUT",
        rival: None,
        consumes: false,
        targets: Targets::NONE,
    },
    Case {
        name: "mse-1b",
        what: "1B decoder to int4-g128, clips by MSE",
        input: Input::Checkpoint("internvl3-1b"),
        smelt: "quantize IN --scheme int4-g128 --method mse --out OUT",
        rival: None,
        consumes: false,
        targets: Targets::NONE,
    },
    Case {
        name: "awq-1b",
        what: "1B decoder to int4-g128-asym by AWQ",
        input: Input::Checkpoint("internvl3-1b"),
        smelt: "quantize IN --scheme int4-g128-asym --method awq --calibration SEEN --out OUT",
        rival: None,
        consumes: false,
        targets: Targets::NONE,
    },
    Case {
        name: "gptq-1b",
        what: "1B decoder to int4-g128 by GPTQ",
        input: Input::Checkpoint("internvl3-1b"),
        smelt: "quantize IN --scheme int4-g128 --method gptq --calibration SEEN --out OUT",
        rival: None,
        consumes: false,
        targets: Targets::NONE,
    },
];
