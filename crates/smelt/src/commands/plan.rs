//! `smelt plan`: says what a run would do, as a table or as JSON.

use serde_json::{Value, json};
use smelt_plan::plan::{HubPin, Stage};
use smelt_plan::{Digest, Plan};

use crate::exit::{Exit, Failed};
use crate::flags::PlanFlags;
use crate::load::{self, Access, Standing};
use crate::say::answer;
use crate::table::Table;

pub(crate) fn run(flags: &PlanFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Look)?;
    let standings = load::standings(&loaded)?;
    let rows = loaded.plan.stages().zip(&standings);
    if flags.json {
        let stages: Vec<Value> = rows
            .map(|((_, stage), (standing, key))| as_json(&loaded.plan, stage, standing, *key))
            .collect();
        let text = json!({ "pipeline": loaded.plan.name, "stages": stages });
        answer(format_args!("{text}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Stage", "Kind", "Status", "Key"]);
    for ((_, stage), (standing, key)) in rows {
        table.row([
            stage.name.to_string(),
            stage.kind.name().to_owned(),
            status(&loaded.plan, standing),
            key.map_or_else(|| "-".to_owned(), |key| key.short()),
        ]);
    }
    answer(table)?;
    for (_, stage) in loaded.plan.stages() {
        if let Some(HubPin { repo, revision, commit, .. }) = stage.fetched() {
            answer(format_args!("{} is hf:{repo}@{revision} at commit {commit}\n", stage.name))?;
        }
    }
    Ok(Exit::Ok)
}

fn status(plan: &Plan, standing: &Standing) -> String {
    match standing {
        Standing::Hit(_) => "hit".to_owned(),
        Standing::Miss => "miss".to_owned(),
        Standing::Unknown { until, last: None } => {
            format!("unknown until {}", plan.stage(*until).name)
        }
        Standing::Unknown { until, last: Some(key) } => {
            format!("unknown until {}, last time {}", plan.stage(*until).name, key.short())
        }
    }
}

fn as_json(plan: &Plan, stage: &Stage, standing: &Standing, key: Option<Digest>) -> Value {
    let (word, output) = match standing {
        Standing::Hit(path) => ("hit", Some(path)),
        Standing::Miss => ("miss", None),
        Standing::Unknown { .. } => ("unknown", None),
    };
    json!({
        "name": stage.name,
        "kind": stage.kind,
        "status": word,
        "reason": status(plan, standing),
        "key": key,
        "recipe_key": stage.recipe_key,
        "output": output,
        "fetches": stage.fetched().map(|HubPin { repo, revision, commit, .. }| {
            json!({ "repo": repo, "revision": revision, "commit": commit })
        }),
    })
}
