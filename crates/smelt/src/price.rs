//! Says before a run what processor time calibrating and rounding will take.

use smelt_model::price::products_a_second;
use smelt_plan::plan::Stage;

use crate::checkpoints::Checkpoints;
use crate::load::Standing;
use crate::stage::worker;
use crate::table::seconds;

/// Less than this many seconds is no price worth a line.
const SECONDS_MIN: f64 = 10.0;

/// A line for each stage to be run whose price is known and not small.
pub(crate) fn lines(checkpoints: &Checkpoints<'_>) -> Vec<String> {
    let standings = &checkpoints.story.standings;
    let is_miss = |at: usize| !matches!(standings[at].0, Standing::Hit { .. });
    let stages = checkpoints.plan.stages().filter(|(id, _)| is_miss(id.index()));
    let priced = stages.filter_map(|(_, stage)| {
        let products = worker(stage.kind)?.products?(checkpoints, stage)?;
        Some((stage, products / products_a_second()))
    });
    let dear = priced.filter(|(_, price)| *price >= SECONDS_MIN);
    dear.map(|(stage, price)| line(stage, price)).collect()
}

fn line(stage: &Stage, price: f64) -> String {
    let time = seconds(price);
    format!("{}: about {time} of processor time on cores like these", stage.name)
}
