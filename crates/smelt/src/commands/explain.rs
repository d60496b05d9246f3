//! `smelt explain`: says why a stage is a hit or not, part by part of its key, against the last run
//! of the same pipeline.

use serde_json::{Value, json};

use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::ExplainFlags;
use crate::last_run::LastRun;
use crate::load::{self, Access};
use crate::story::Story;

pub(crate) fn run(flags: &ExplainFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Look)?;
    let stage = loaded.plan.find(&flags.stage)?;
    let last = LastRun::read(&loaded.store, &flags.pipeline.pipeline);
    let story = Story::of(&loaded, &last)?;
    // What led to it comes first, so that the first line is the first cause.
    let chain = story.causes(stage);
    if flags.json {
        let stages: Vec<Value> = chain.iter().map(|&id| story.json(id)).collect();
        let text = json!({ "pipeline": loaded.plan.name, "stage": flags.stage, "stages": stages });
        answer(format_args!("{text}\n"))?;
        return Ok(Exit::Ok);
    }
    for id in chain {
        let verdict = story.verdict(id);
        answer(format_args!("{}: {verdict}\n", loaded.plan.stage(id).name))?;
        for change in story.changes(id) {
            answer(format_args!("  {change}\n"))?;
        }
    }
    Ok(Exit::Ok)
}
