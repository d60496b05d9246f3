//! Names the facts about a device that a stage's result can depend on.
//!
//! A stage declares the facts it depends on, and its back end may name more; only those enter its keys, so that boards
//! share whatever they can.  How a fact is found out is not known here.

use std::collections::BTreeMap;

/// The facts, by the words of the pipeline file; a new one goes to the end.
pub const FACTS: [&str; 12] = [
    "arch",
    "cpu",
    "gpu",
    "gpu-driver",
    "cuda",
    "tensorrt",
    "l4t",
    "kernel",
    "sm",
    "nvcc",
    "soc",
    "power-mode",
];

/// What a fact is worth where the device has no such thing: also an answer.
pub const ABSENT: &str = "none";

/// What is true of one device, by the names of [`FACTS`].
pub type Facts = BTreeMap<&'static str, String>;

/// Facts as a pipeline file says them, one behind the other.
pub fn words(facts: &Facts) -> String {
    let all: Vec<String> =
        facts.iter().map(|(fact, value)| format!("{fact} = {value:?}")).collect();
    all.join(", ")
}
