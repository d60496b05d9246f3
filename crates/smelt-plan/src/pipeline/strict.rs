//! Settles which programs are strict: those see nothing but what they declare.
//!
//! What is not strict says nothing of it afterwards, so that its keys are what they always were.

use std::collections::BTreeMap;

use serde_json::Value;

use super::PipelineError;
use super::table::Table;
use crate::kind::{NETWORK, STRICT, WRITES};

/// Leaves in `values` of a stage only what holds: `strict` and `network` where they are true.  The
/// pipeline says what a stage is that does not.
pub(super) fn settle(
    values: &mut BTreeMap<String, Value>,
    of_pipeline: bool,
    table: &Table<'_>,
) -> Result<(), PipelineError> {
    let is_strict = values.remove(STRICT).map_or(of_pipeline, |said| said == true);
    let has_network = values.remove(NETWORK).is_some_and(|said| said == true);
    if has_network && !is_strict {
        let why = "\"network\" is for a stage with strict = true; all others have it";
        return Err(at(table, NETWORK, why));
    }
    for (name, holds) in [(STRICT, is_strict), (NETWORK, has_network)] {
        if holds {
            values.insert(name.to_owned(), true.into());
        }
    }
    not_free(values, table)
}

/// Whoever may write anywhere is held to nothing.
pub(super) fn not_free(
    values: &BTreeMap<String, Value>,
    table: &Table<'_>,
) -> Result<(), PipelineError> {
    let writes = values.get(WRITES).and_then(Value::as_array);
    let is_free = writes.is_some_and(|places| places.iter().any(|place| place == "/"));
    match values.contains_key(STRICT) && is_free {
        true => Err(at(table, WRITES, "a strict stage names where it writes; \"/\" is everywhere")),
        false => Ok(()),
    }
}

fn at(table: &Table<'_>, key: &'static str, why: &str) -> PipelineError {
    table.get(key).map_or_else(|| table.error(why), |item| item.error(why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::pipeline::{Overrides, Pipeline, StageSpec};

    /// The one stage of a pipeline with this at its head, and this in the stage.
    fn stage(head: &str, own: &str) -> Result<StageSpec, String> {
        let text = format!(
            "smelt = 1\nname = \"s\"\n{head}[stage.a]\nkind = \"command\"\nargv = [\"x\"]\noutputs = [\"o\"]\n{own}"
        );
        let read = Pipeline::parse("p.toml", &text, &Overrides::default());
        read.map(|pipeline| pipeline.stages[0].clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn only_what_holds_is_said() {
        let check = |head: &str, own: &str, strict: bool, network: bool| {
            let params = stage(head, own).unwrap().params;
            let said = |name: &str| params.get(name).map(|value| value == &json!(true));
            let expect = |holds: bool| holds.then_some(true);
            assert_eq!((said("strict"), said("network")), (expect(strict), expect(network)));
        };
        check("", "", false, false);
        check("", "strict = false\nnetwork = false\n", false, false);
        check("", "strict = true\n", true, false);
        check("strict = true\n", "", true, false);
        check("strict = true\n", "strict = false\n", false, false);
        check("strict = true\n", "network = true\n", true, true);
    }

    #[test]
    fn contradictions_have_their_place() {
        let check = |head: &str, own: &str, words: &str| {
            let error = stage(head, own).unwrap_err();
            assert!(error.contains(words) && error.starts_with("p.toml:"), "{error}");
        };
        check("", "network = true\n", "is for a stage with strict = true");
        check("strict = true\n", "writes = [\"/\"]\n", "names where it writes");
        check("strict = 1\n", "", "must be true or false");
        let step = |key: &str| format!("strict = true\nretry = {{ escalate = [{{ {key} }}] }}\n");
        check("", &step("strict = false"), "strict");
        check("", &step("writes = [\"/\"]"), "names where it writes");
        assert!(stage("", &step("writes = [\"/a\"]")).is_ok());
    }
}
