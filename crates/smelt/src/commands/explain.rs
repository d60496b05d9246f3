//! `smelt explain`: says why a stage is a hit or not, part by part of its key, against the last run
//! of the same pipeline.

use serde_json::{Value, json};
use smelt_fleet::pull::offer;
use smelt_fleet::remote::Key;
use smelt_plan::StageId;

use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::ExplainFlags;
use crate::fleet::elsewhere::told;
use crate::fleet::{Fleet, judging_time};
use crate::last_run::LastRun;
use crate::load::{self, Access, Loaded};
use crate::stop::stop_flag;
use crate::story::Story;

pub(crate) fn run(flags: &ExplainFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Look)?;
    let stage = loaded.plan.find(&flags.stage)?;
    let last = LastRun::read(&loaded.store, &flags.pipeline.pipeline);
    let story = Story::of(&loaded, &last)?;
    // What led to it comes first, so that the first line is the first cause.
    let chain = story.causes(stage);
    let elsewhere = elsewhere(flags, &loaded, stage)?;
    if flags.json {
        let stages: Vec<Value> = chain.iter().map(|&id| story.json(id)).collect();
        let mut text =
            json!({ "pipeline": loaded.plan.name, "stage": flags.stage, "stages": stages });
        if flags.fleet.fleet.is_some() {
            text["fleet"] = json!(elsewhere);
        }
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
    if let Some(elsewhere) = elsewhere {
        answer(format_args!("fleet: {elsewhere}\n"))?;
    }
    Ok(Exit::Ok)
}

/// What the fleet has of the stage, where one is named: for this device, for another one, or nothing.
fn elsewhere(
    flags: &ExplainFlags,
    loaded: &Loaded,
    stage: StageId,
) -> Result<Option<String>, Failed> {
    if flags.fleet.fleet.is_none() {
        return Ok(None);
    }
    let fleet = Fleet::open(&flags.fleet, &stop_flag()?)?;
    let (plan, time) = (&loaded.plan, judging_time(&loaded.store));
    let key = Key::Recipe(plan.stage(stage).recipe_key);
    Ok(Some(match offer(&fleet.client, key, &fleet.trust, time) {
        Ok(Some(found)) => format!("it is there, vouched for by {}", found.vouched.by.join(", ")),
        Ok(None) => {
            let other = told(&fleet, plan, stage, time);
            other.unwrap_or_else(|| "nobody has published it".to_owned())
        }
        Err(error) => Failed::model(error).to_string(),
    }))
}
