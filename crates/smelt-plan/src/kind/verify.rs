//! `verify`: engines against the f32 reference, or another program's engine by what its own runtime answers.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, Takes, field};
use super::{CHECKPOINT, ENGINE, FOREIGN, Kind, LLM_ENGINE};

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Verify {
    /// Whether the reference computes all, instead of a sample.
    #[serde(default)]
    pub full: bool,
    /// Whether weights are compared and nothing is computed.
    #[serde(default)]
    pub weights_only: bool,
    /// The program that runs another program's engine, and its words; none where smelt does.
    #[serde(default)]
    pub runtime: Vec<String>,
}

/// What is said of an engine that another program runs.
const BY_RUNTIME: [&str; 3] = ["engine", RUNTIME, "prompts"];

/// The param that names that program.
pub const RUNTIME: &str = "runtime";

/// The param of a stage that compares weights and computes nothing.
pub const WEIGHTS_ONLY: &str = "weights-only";

const FIELDS: &[Field] = &[
    field("vision", ENGINE, Absent::Nothing),
    field("llm", LLM_ENGINE, Absent::Nothing),
    field("against", CHECKPOINT, Absent::Nothing),
    field("engine", FOREIGN, Absent::Nothing),
    field(RUNTIME, Takes::Texts, Absent::Nothing),
    field("weights", Takes::Stage(&[Kind::Quantize, Kind::Command]), Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    // What the reference computes is sampled otherwise.
    field("full", Takes::Flag, Absent::Nothing),
    // What may stand before a deployment, while the rest goes on behind it.
    field(WEIGHTS_ONLY, Takes::Flag, Absent::Nothing),
    field("compared", Takes::Stage(&[Kind::Verify]), Absent::Nothing),
];

/// Version 9: the reference's products are fused; of pictures of 16 bits the upper 8 count.
pub(super) const KIND: Definition = Definition {
    is_reproducible: Some(false),
    smaller: "engines of a smaller scheme",
    fault,
    ..Definition::new("verify", 9, FIELDS)
};

fn fault(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    if is_given("engine") || is_given(RUNTIME) {
        return of_runtime(is_given);
    }
    if !is_given("llm") || !is_given("against") {
        return Some(
            "needs the keys \"llm\" and \"against\", or \"engine\", \"runtime\" and \"prompts\" where another program runs the engine",
        );
    }
    let computes = ["compared", "full", "prompts"].into_iter().any(is_given);
    (is_given(WEIGHTS_ONLY) && computes).then_some(
        "\"weights-only\" computes nothing; leave out \"compared\", \"full\" and \"prompts\"",
    )
}

/// What is wrong with the fields of a stage that asks another program's runtime.
fn of_runtime(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    let is_other = |field: &&Field| !BY_RUNTIME.contains(&field.name);
    let has_other = FIELDS.iter().filter(is_other).any(|field| is_given(field.name));
    (has_other || !BY_RUNTIME.into_iter().all(is_given)).then_some(
        "an engine that another program runs is asked by \"engine\", \"runtime\" and \"prompts\", these three and no other",
    )
}
