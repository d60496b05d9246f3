//! Says what a fleet has of a stage for other devices, and what is otherwise here.

use smelt_fleet::pull::offer;
use smelt_fleet::remote::Key;
use smelt_fleet::statement::Provenance;
use smelt_fleet::trust::date_text;
use smelt_plan::plan::Stage;
use smelt_plan::{Plan, StageId};

use super::Fleet;

/// What the last one who published a stage built it with, where this machine would not take that; `None` where nobody has.
pub(crate) fn told(fleet: &Fleet, plan: &Plan, id: StageId, time: u64) -> Option<String> {
    let (stage, key) = (plan.stage(id), plan.keys_anywhere()[id.index()]);
    let found = offer(&fleet.client, Key::Anywhere(key), &fleet.trust, time).ok()??;
    let statement = &found.vouched.statement;
    let differs = differences(stage, &statement.provenance);
    let (by, when) = (found.vouched.by.join(", "), date_text(statement.finished));
    if differs.is_empty() {
        return Some(format!("{by} built it on {when} of other inputs"));
    }
    Some(format!("{by} built it on {when} for {}", differs.join("; ")))
}

/// What is otherwise here, fact by fact and program by program.
fn differences(stage: &Stage, there: &Provenance) -> Vec<String> {
    let facts = stage.device.iter().map(|(fact, value)| (*fact, value.clone()));
    let tools = stage.tools.iter().map(|tool| (tool.name.as_str(), tool.pin.digest.short()));
    let tool = |name: &str| there.tools.iter().find(|(other, _)| other == name);
    let facts = facts.map(|(fact, here)| (fact, there.device.get(fact).cloned(), here));
    let tools = tools.map(|(name, here)| (name, tool(name).map(|(_, it)| it.short()), here));
    let is_other = |(_, there, here): &(&str, Option<String>, String)| there.as_ref() != Some(here);
    let told = |(name, there, here): (&str, Option<String>, String)| {
        format!("{name} {}, here {here}", there.as_deref().unwrap_or("unknown"))
    };
    facts.chain(tools).filter(is_other).map(told).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fleet::tests::demo;

    #[test]
    fn what_is_otherwise_here_is_named_with_both() {
        let plan = demo();
        let mut stage = plan.stage(plan.find("llm-engine").unwrap()).clone();
        stage.device = vec![("l4t", "36.5.0".to_owned()), ("sm", "87".to_owned())];
        let there = |l4t: Option<&str>| Provenance {
            stage: String::new(),
            kind: String::new(),
            kind_version: 1,
            pipeline: String::new(),
            params: BTreeMap::new(),
            device: [("sm", Some("87")), ("l4t", l4t)]
                .into_iter()
                .filter_map(|(fact, value)| Some((fact.to_owned(), value?.to_owned())))
                .collect(),
            tools: Vec::new(),
            inputs: Vec::new(),
            run: String::new(),
        };
        assert_eq!(differences(&stage, &there(Some("36.4.7"))), ["l4t 36.4.7, here 36.5.0"]);
        assert_eq!(differences(&stage, &there(None)), ["l4t unknown, here 36.5.0"]);
        assert!(differences(&stage, &there(Some("36.5.0"))).is_empty());
    }
}
