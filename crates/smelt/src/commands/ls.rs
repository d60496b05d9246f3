//! `smelt ls`: lists the deployments of the store, which `chat`, `serve` and `embed` take by name.

use serde_json::{Value, json};
use smelt_store::RunId;

use crate::built::{self, Built};
use crate::check::Checks;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::ListFlags;
use crate::load;
use crate::table::{Table, ago, bytes};

pub(crate) fn run(flags: &ListFlags) -> Result<Exit, Failed> {
    let root = load::root()?;
    let (all, checks) = (built::all()?, Checks::read());
    if flags.json {
        let list: Vec<Value> = all.iter().map(|built| listed(built, &all, &checks)).collect();
        answer(format_args!("{}\n", json!({ "store": root, "deployments": list })))?;
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        tell(format_args!(
            "nothing is built in {}; smelt build MODEL builds a model by its name, and smelt demo asks one now",
            root.display()
        ));
        return Ok(Exit::Ok);
    }
    let header = ["Name", "Digest", "Does", "From", "Size", "Used", "Built (UTC)", "Pipeline"];
    let mut table = Table::new(&header);
    for built in &all {
        table.row([
            built.model.clone(),
            built.tree.short(),
            format!("{}{}", built.kind, checks.of(built).map_or("", |check| check.remark())),
            built.from.clone().unwrap_or_else(|| "-".to_owned()),
            bytes(built.bytes),
            ago(built.idle_ns),
            built.run.as_ref().map_or_else(|| "-".to_owned(), RunId::began),
            pipeline(built),
        ]);
    }
    answer(table)?;
    if let Some(last) = all.first() {
        let (command, name) = (last.asked_by(), last.name(&all));
        tell(format_args!("ask one by its name or its digest, as in: smelt {command} {name}"));
    }
    Ok(Exit::Ok)
}

/// A deployment, and how its check stands where more was to follow when it was made.
fn listed(built: &Built, all: &[Built], checks: &Checks) -> Value {
    let mut value = built.as_json(all);
    value["check"] = json!(checks.of(built).map(|check| check.word()));
    value
}

/// The pipeline's file, else its name, its stage, and what was set.
fn pipeline(built: &Built) -> String {
    let file =
        built.file.as_ref().map_or_else(|| built.pipeline.clone(), |f| f.display().to_string());
    let settings = built.settings();
    let gap = if settings.is_empty() { "" } else { " " };
    format!("{file}#{}{gap}{settings}", built.stage)
}
