//! `smelt ls`: lists the deployments of the store, which `chat`, `serve` and `embed` take by name.

use serde_json::{Value, json};
use smelt_store::RunId;

use crate::built::{self, Built};
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::ListFlags;
use crate::load;
use crate::table::{Table, ago, bytes};

pub(crate) fn run(flags: &ListFlags) -> Result<Exit, Failed> {
    let root = load::root()?;
    let all = built::all()?;
    if flags.json {
        let list: Vec<Value> = all.iter().map(Built::as_json).collect();
        answer(format_args!("{}\n", json!({ "store": root, "deployments": list })))?;
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        tell(format_args!("no deployment is built in {}; `smelt run` builds one", root.display()));
        return Ok(Exit::Ok);
    }
    let header = ["Name", "Model", "Does", "Size", "Used", "Built (UTC)", "Pipeline"];
    let mut table = Table::new(&header);
    for built in &all {
        table.row([
            built.tree.short(),
            built.model.clone(),
            built.kind.to_owned(),
            bytes(built.bytes),
            ago(built.idle_ns),
            built.run.as_ref().map_or_else(|| "-".to_owned(), RunId::began),
            pipeline(built),
        ]);
    }
    answer(table)?;
    tell("ask one by its name, as in: smelt chat NAME");
    Ok(Exit::Ok)
}

/// The pipeline's file, else its name, its stage, and what was set.
fn pipeline(built: &Built) -> String {
    let file =
        built.file.as_ref().map_or_else(|| built.pipeline.clone(), |f| f.display().to_string());
    let settings = built.settings();
    let gap = if settings.is_empty() { "" } else { " " };
    format!("{file}#{}{gap}{settings}", built.stage)
}
