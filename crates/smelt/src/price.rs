//! Says before a run what processor time calibrating and rounding will take.

use smelt_model::model::Model;
use smelt_model::price::{calibrating, products_a_second, rounding};
use smelt_model::quantize::{BUDGET, Method};
use smelt_plan::plan::Stage;
use smelt_plan::{Kind, Plan};

use crate::checkpoints::Checkpoints;
use crate::commands::explain::Story;
use crate::load::Standing;
use crate::stage::calibrate::BUILT_IN_TOKENS_MAX;
use crate::table::seconds;

/// Less than this many seconds is no price worth a line.
const SECONDS_MIN: f64 = 10.0;

/// A line for each stage to be run whose price is known and not small.
pub(crate) fn lines(plan: &Plan, story: &Story<'_>, checkpoints: &Checkpoints<'_>) -> Vec<String> {
    let is_miss = |at: usize| !matches!(story.standings[at].0, Standing::Hit { .. });
    let stages = plan.stages().filter(|(id, _)| is_miss(id.index()));
    let priced = stages.filter_map(|(_, stage)| {
        let products = of_stage(plan, stage, &|| checkpoints.model(stage).ok()?)?;
        Some((stage, products / products_a_second()))
    });
    let dear = priced.filter(|(_, price)| *price >= SECONDS_MIN);
    dear.map(|(stage, price)| line(stage, price)).collect()
}

fn line(stage: &Stage, price: f64) -> String {
    let time = seconds(price);
    format!("{}: about {time} of processor time on cores like these", stage.name)
}

/// The products of a stage; none where it multiplies little, or what it reads is not known.
fn of_stage(plan: &Plan, stage: &Stage, model: &dyn Fn() -> Option<Model>) -> Option<f64> {
    match stage.kind {
        // Of what was given the words are not counted yet.
        Kind::Calibrate if gives_prompts(stage) => None,
        Kind::Calibrate => Some(calibrating(&model()?.llm?, BUILT_IN_TOKENS_MAX)),
        Kind::Quantize => {
            let method = Method::parse(stage.params.get("method")?.as_str()?)?;
            let count = |stage: &Stage, name: &str| stage.params.get(name)?.as_u64();
            let budget = count(stage, "budget").map_or(BUDGET, |budget| budget as usize);
            let calibration = stage.needs().map(|id| plan.stage(id));
            let mut calibration = calibration.filter(|need| need.kind == Kind::Calibrate);
            let samples = count(calibration.next()?, "tokens")? as usize;
            Some(rounding(&model()?.llm?, method, budget, samples))
        }
        _ => None,
    }
}

fn gives_prompts(stage: &Stage) -> bool {
    let inputs = stage.inputs.iter().any(|input| ["prompts", "images"].contains(&input.field));
    inputs || stage.params.contains_key("texts")
}
