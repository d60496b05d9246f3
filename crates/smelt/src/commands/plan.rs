//! `smelt plan`: says what a run would do, as a table or as JSON.

use serde_json::{Value, json};
use smelt_exec::{Confinement, Took};
use smelt_forecast::Fits;
use smelt_plan::admission::Basis;
use smelt_plan::kind::STRICT;
use smelt_plan::plan::{HubPin, Stage};
use smelt_plan::{Plan, StageId, device};

use crate::checkpoints::Checkpoints;
use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::PlanFlags;
use crate::last_run::LastRun;
use crate::load::{self, Access, Standing};
use crate::resource_needs::ResourceNeeds;
use crate::stage::exposed;
use crate::story::Story;
use crate::table::{Table, bytes, seconds};
use crate::{known_bad, price, refusals, sees, tools};

pub(crate) fn run(flags: &PlanFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Look)?;
    let last = LastRun::read(&loaded.store, &flags.pipeline.pipeline);
    let story = Story::of(&loaded, &last)?;
    let needs = ResourceNeeds::of_now(&loaded, &last, &story);
    let checkpoints = Checkpoints::of(&loaded.plan, &story);
    let refusals = refusals::of(&checkpoints);
    let confinement = Confinement::find().map_err(Failed::usage)?;
    if flags.json {
        let of_stage = |(id, stage)| as_json(&story, &needs, refusals.get(&id), id, stage);
        let stages: Vec<Value> = loaded.plan.stages().map(of_stage).collect();
        let Confinement { way, holds_signals, filters_calls, network } = confinement;
        let confinement = json!({ "by": way, "signals": holds_signals, "calls": filters_calls, "network": network });
        let text = json!({
            "pipeline": loaded.plan.name, "confinement": confinement, "stages": stages,
        });
        answer(format_args!("{text}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Stage", "Kind", "Status", "Key", "Forecast", "Why"]);
    for (id, stage) in loaded.plan.stages() {
        let (standing, key) = &story.standings[id.index()];
        table.row([
            stage.name.to_string(),
            stage.kind.name().to_owned(),
            status(&loaded.plan, id, standing),
            key.map_or_else(|| "-".to_owned(), |key| key.short()),
            forecast(&story, &needs, id),
            why(&story, id),
        ]);
    }
    answer(&table)?;
    for line in needs.advice(&story) {
        answer(format_args!("{line}\n"))?;
    }
    for line in price::lines(&checkpoints) {
        answer(format_args!("{line}\n"))?;
    }
    for line in sees::lines(&checkpoints) {
        answer(format_args!("{line}\n"))?;
    }
    for (&id, why) in &refusals {
        answer(format_args!("{}\n", refusals::line(&loaded.plan, id, why)))?;
    }
    answer(format_args!("{}\n", confinement.words()))?;
    let folder = flags.pipeline.folder();
    for line in exposed::lines(&loaded.plan, folder, loaded.store.root(), confinement.way) {
        answer(format_args!("{line}\n"))?;
    }
    if loaded.plan.stages().any(|(_, stage)| stage.params.contains_key(STRICT)) {
        answer(format_args!("{}\n", confinement.strict_words()))?;
    }
    for (_, line) in known_bad::lines(&loaded.plan, folder) {
        answer(format_args!("{line}\n"))?;
    }
    let unseen = [tools::not_in_keys(&loaded.plan), tools::unknown(&loaded.plan)];
    for line in unseen.into_iter().flatten() {
        answer(format_args!("{line}\n"))?;
    }
    if let Some(line) = all_in_all(&loaded.plan, &story) {
        answer(format_args!("{line}\n"))?;
    }
    for (_, stage) in loaded.plan.stages() {
        if let Some(HubPin { repo, revision, commit, file, .. }) = stage.fetched() {
            let file = file.as_ref().map_or_else(String::new, |file| format!(":{file}"));
            let stage = &stage.name;
            answer(format_args!("{stage} is hf:{repo}@{revision}{file} at commit {commit}\n"))?;
        }
    }
    // The process ends here, and giving back a large plan piece by piece would take a tenth as long as
    // making it; the store is closed in order.
    std::mem::forget((loaded.plan, table));
    Ok(Exit::Ok)
}

/// How long it took, what it is expected to hold, and whether that fits.
fn forecast(story: &Story<'_>, needs: &ResourceNeeds<'_>, id: StageId) -> String {
    let took = story.forecast(id).map(|took| seconds(took.wall_s));
    let held = needs.needs.of_stage(id).map(|(forecast, fits)| {
        let at_most = if forecast.basis == Basis::Declared { "at most " } else { "" };
        let amount = format!("{at_most}{}", bytes(forecast.bytes));
        match fits {
            Fits::Yes => amount,
            fits => format!("{amount}: {}", fits.words()),
        }
    });
    match (took, held) {
        (None, None) => "-".to_owned(),
        (took, held) => took.into_iter().chain(held).collect::<Vec<_>>().join(", "),
    }
}

fn sum(took: Took) -> String {
    match took.peak_rss_bytes {
        0 => seconds(took.wall_s),
        peak => format!("{}, {}", seconds(took.wall_s), bytes(peak)),
    }
}

/// What the run will take, if each stage takes what it took when it was built last.
fn all_in_all(plan: &Plan, story: &Story<'_>) -> Option<String> {
    let is_hit = |(standing, _): &&(Standing, _)| matches!(standing, Standing::Hit { .. });
    let to_build = story.standings.len() - story.standings.iter().filter(is_hit).count();
    let known: Vec<Took> = plan.stages().filter_map(|(id, _)| story.forecast(id)).collect();
    let all = Took {
        wall_s: known.iter().map(|took| took.wall_s).sum(),
        peak_rss_bytes: known.iter().map(|took| took.peak_rss_bytes).max()?,
        ..Took::default()
    };
    let rest = match to_build - known.len() {
        0 => String::new(),
        unknown => format!("; {unknown} more were never built here"),
    };
    Some(format!("forecast, as the last time: {} one after the other{rest}", sum(all)))
}

/// The first change, or what else makes it a miss; a hit needs no reason.
fn why(story: &Story<'_>, id: StageId) -> String {
    let (standing, _) = &story.standings[id.index()];
    if let Some(why) = &story.loaded.plan.stage(id).unread {
        return why.clone();
    }
    let elsewhere = story.loaded.plan.stage(id).elsewhere.as_ref();
    if let Some(machine) = elsewhere.filter(|_| !matches!(standing, Standing::Hit { .. })) {
        return format!("built where {}", device::words(machine));
    }
    let mut changes = story.changes(id);
    match (standing, changes.len()) {
        (Standing::Hit { .. }, 0) | (Standing::Unknown { .. }, 0) => String::new(),
        (Standing::Hit { .. }, _) | (Standing::Miss(_) | Standing::Unknown { .. }, 1) => {
            changes.swap_remove(0)
        }
        (Standing::Miss(_), 0) => {
            let verdict = story.verdict(id);
            verdict.strip_prefix("miss, ").unwrap_or(&verdict).to_owned()
        }
        (_, count) => format!("{}; and {} more", changes.swap_remove(0), count - 1),
    }
}

fn status(plan: &Plan, id: StageId, standing: &Standing) -> String {
    match standing {
        Standing::Hit { .. } => "hit".to_owned(),
        Standing::Miss(_) => "miss".to_owned(),
        Standing::Unknown { until, last } => {
            let last = last.map_or_else(String::new, |key| format!(", last time {}", key.short()));
            match *until == id {
                true => format!("unknown here{last}"),
                false => format!("unknown until {}{last}", plan.stage(*until).name),
            }
        }
    }
}

fn as_json(
    story: &Story<'_>,
    needs: &ResourceNeeds<'_>,
    refusal: Option<&String>,
    id: StageId,
    stage: &Stage,
) -> Value {
    let (standing, key) = &story.standings[id.index()];
    let output = match standing {
        Standing::Hit { path, .. } => Some(path),
        Standing::Miss(_) | Standing::Unknown { .. } => None,
    };
    let need = needs.needs.of_stage(id);
    json!({
        "name": stage.name,
        "kind": stage.kind,
        "on": stage.on.map(|side| side.name()),
        "where": stage.elsewhere,
        "status": standing.word(),
        "reason": story.verdict(id),
        "changes": story.changes(id),
        "refusal": refusal,
        "forecast": story.forecast(id),
        "forecast_rss_bytes": story.forecast(id).map(|took| took.peak_rss_bytes),
        "need": need.map(|(forecast, fits)| {
            json!({ "bytes": forecast.bytes, "basis": forecast.basis, "fits": fits.name() })
        }),
        "largest_allocation_bytes": needs.needs.largest(id).map(|tensor| tensor.bytes),
        "key": key,
        "recipe_key": stage.recipe_key,
        "output": output,
        "fetches": stage.fetched().map(|HubPin { repo, revision, commit, file, .. }| {
            json!({ "repo": repo, "revision": revision, "commit": commit, "file": file })
        }),
    })
}
