//! The forecast of one stage.

use smelt_exec::{Task, Took};
use smelt_fit::building;
use smelt_plan::Kind;
use smelt_plan::admission::{Basis, Forecast};
use smelt_plan::kind::{MemoryUse, Values};
use smelt_plan::pipeline::Limits;
use smelt_plan::plan::{Attempt, Stage};

use crate::Towers;
use crate::alike::{Alike, bytes_below, how};

/// What forecasts are made of.
pub struct Forecasts<'a> {
    /// What a stage of that name took when this pipeline was run last.
    pub took: &'a dyn Fn(&str) -> Option<Took>,
    /// What stages of every kind took.
    pub alike: &'a Alike,
    /// What executing vision towers holds.
    pub towers: &'a Towers,
}

impl Forecasts<'_> {
    /// The forecast of an attempt that is about to begin.
    #[must_use]
    pub fn of_task(&self, task: &Task<'_>) -> Option<Forecast> {
        let Attempt { params, limits, changed } = task.attempt;
        let asked = Asked { stage: task.stage, params, limits, is_changed: changed.is_some() };
        let input_bytes = || Some(task.inputs.iter().map(|input| bytes_below(&input.path)).sum());
        self.of(&asked, &input_bytes)
    }

    /// The forecast of a stage's first attempt; how much it reads is asked only where that tells something,
    /// and may not be known yet.
    #[must_use]
    pub fn of_stage(
        &self,
        stage: &Stage,
        input_bytes: &dyn Fn() -> Option<u64>,
    ) -> Option<Forecast> {
        let Stage { params, limits, .. } = stage;
        self.of(&Asked { stage, params, limits, is_changed: false }, input_bytes)
    }

    fn of(&self, asked: &Asked<'_>, input_bytes: &dyn Fn() -> Option<u64>) -> Option<Forecast> {
        let &Asked { stage, params, limits, is_changed } = asked;
        let Stage { kind, name, recipe_key, .. } = stage;
        let known = |basis, bytes: Option<u64>| {
            Some(Forecast { bytes: bytes.filter(|&bytes| bytes > 0)?, basis })
        };
        let took = (self.took)(name.as_str());
        // What was learned holds for the stage as it is written.
        let is_same = |took: &Took| took.recipe == Some(*recipe_key) && !is_changed;
        let learned = known(Basis::Learned, took.filter(is_same).map(|took| took.held_bytes));
        let before = || known(Basis::Alike, took.map(|took| took.held_bytes));
        let bytes = || match kind.memory(params) {
            MemoryUse::Streams => Some(building::STREAMING_BYTES),
            MemoryUse::Learns => Some(building::learning(input_bytes()?)),
            MemoryUse::Executes => Some(building::executing(self.towers.of(name.as_str())?)),
            MemoryUse::Unknown => None,
        };
        let estimated = || known(Basis::Estimated, Some(bytes()? + compiling(*kind, params)));
        let like = || {
            let bytes = || self.alike.of(*kind, &how(*kind, params), input_bytes()?);
            known(Basis::Alike, (*kind != Kind::Command).then(bytes).flatten())
        };
        let declared = || known(Basis::Declared, limits.memory_bytes_max);
        learned.or_else(estimated).or_else(like).or_else(before).or_else(declared)
    }
}

/// What a stage holds beside that compiles kernels for GPUs.
fn compiling(kind: Kind, params: &Values) -> u64 {
    let builds = matches!(kind, Kind::EngineBuild | Kind::LlmEngineBuild);
    let target = params.get("target").and_then(|target| target.as_str());
    let is_for_gpus = target.is_some_and(|target| target.starts_with("cuda-"));
    if builds && is_for_gpus { building::COMPILING_BYTES } else { 0 }
}

/// An attempt at a stage.
struct Asked<'a> {
    stage: &'a Stage,
    params: &'a Values,
    limits: &'a Limits,
    is_changed: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use smelt_plan::Kind;

    use super::*;

    #[test]
    fn what_runs_a_model_does_not_stream() {
        let check = |kind: Kind, params: Value, streams: bool| {
            let params: Values = params.as_object().unwrap().clone().into_iter().collect();
            assert_eq!(kind.memory(&params) == MemoryUse::Streams, streams, "{params:?}");
        };
        check(Kind::OnnxExport, serde_json::json!({ "part": "llm" }), true);
        check(Kind::OnnxExport, serde_json::json!({ "part": "llm", "probe": true }), false);
        check(Kind::Quantize, serde_json::json!({ "scheme": "int8" }), true);
        check(Kind::Quantize, serde_json::json!({ "method": "mse" }), true);
        check(Kind::Quantize, serde_json::json!({ "method": "gptq" }), false);
        check(Kind::LlmEngineBuild, serde_json::json!({ "max-slots": 4 }), true);
        check(Kind::Verify, serde_json::json!({}), false);
    }

    #[test]
    fn engines_for_gpus_have_kernels_that_are_compiled() {
        let of = |kind, target: &str| {
            compiling(kind, &Values::from([("target".to_owned(), Value::from(target))]))
        };
        assert_eq!(of(Kind::LlmEngineBuild, "cuda-sm87"), building::COMPILING_BYTES);
        assert_eq!(of(Kind::EngineBuild, "cuda-sm90"), building::COMPILING_BYTES);
        assert_eq!((of(Kind::LlmEngineBuild, "cpu"), of(Kind::EngineBuild, "sm87")), (0, 0));
        assert_eq!(of(Kind::Tune, "cuda-sm87"), 0);
    }

    #[test]
    fn what_is_calibrated_learns_from_a_model() {
        let params = |method: &str| Values::from([("method".to_owned(), Value::from(method))]);
        assert_eq!(Kind::Quantize.memory(&params("best")), MemoryUse::Learns);
        assert_ne!(Kind::Quantize.memory(&params("rtn")), MemoryUse::Learns);
        assert_eq!(Kind::Calibrate.memory(&Values::new()), MemoryUse::Learns);
    }
}
