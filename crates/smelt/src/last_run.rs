//! Keeps what the keys of a pipeline's last run were made of and what its stages took, and says what
//! has changed since.
//!
//! After a run, each stage that has an output leaves its walk: the parts of its key, for what it
//! reads outside of the store the files, and what building it took when it was built last.  One note for each pipeline file; a stage that a later run
//! did not get to keeps its older walk.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_exec::{RunReport, StageReport, StageStatus, Took};
use smelt_plan::explain::{Difference, bounded, differences};
use smelt_plan::key::Field;
use smelt_plan::plan::{From, Stage};
use smelt_plan::{Digest, Plan, StageId};
use smelt_store::{Store, notes};

/// Files of one input that are kept by name; of more only the digest of all is known.
const FILES_MAX: usize = 256;

/// One stage as the last run that had its output saw it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Walk {
    pub(crate) stage: String,
    /// The run.
    pub(crate) run: String,
    /// Whether that run built it, or found it.
    pub(crate) built: bool,
    pub(crate) fields: Vec<Field>,
    /// What it read outside of the store.
    outside: Vec<Outside>,
    /// What the attempt took that built it last, in this run or an earlier one.
    #[serde(default)]
    pub(crate) took: Option<Took>,
}

/// An input outside of the store.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Outside {
    /// The part of the key that it is.
    field: String,
    /// Where it lies, or its repository and commit.
    what: String,
    /// Name, bytes, digest of the content.
    files: Vec<(String, u64, String)>,
}

/// The walks of the last runs of a pipeline, by stage.
pub(crate) struct LastRun(HashMap<String, Walk>);

impl LastRun {
    /// Reads the note of the pipeline in `file`; what is not there was never run.
    pub(crate) fn read(store: &Store, file: &Path) -> Self {
        let read = |name| notes::read(store, &name);
        let walks: Vec<Walk> = name(file).map(read).unwrap_or_default();
        Self(walks.into_iter().map(|walk| (walk.stage.clone(), walk)).collect())
    }

    /// The walk of a stage.
    pub(crate) fn of(&self, stage: &str) -> Option<&Walk> {
        self.0.get(stage)
    }

    /// What a stage took when it was built last.
    pub(crate) fn took(&self, stage: &str) -> Option<Took> {
        self.of(stage)?.took
    }
}

/// Adds what a run found or made.  A note that cannot be kept costs an explanation and nothing else.
pub(crate) fn keep(store: &Store, file: &Path, plan: &Plan, report: &RunReport) {
    let Some(name) = name(file) else { return };
    let LastRun(mut walks) = LastRun::read(store, file);
    let names: HashSet<&str> = plan.stages().map(|(_, stage)| stage.name.as_str()).collect();
    walks.retain(|stage, _| names.contains(stage.as_str()));
    let rows = report.stages.iter().map(|row| (row.name.as_str(), row));
    let rows: HashMap<_, _> = rows.collect();
    let output = |id: StageId| rows.get(plan.stage(id).name.as_str())?.digest;
    for (id, stage) in plan.stages() {
        let Some(row) = rows.get(stage.name.as_str()).filter(|row| row.digest.is_some()) else {
            continue;
        };
        let built = row.status == StageStatus::Sealed;
        if let Some(mut walk) = walk(store, plan, id, &report.run, built, &output) {
            walk.took = took(stage, row).or_else(|| walks.get(&walk.stage)?.took);
            walks.insert(walk.stage.clone(), walk);
        }
    }
    notes::keep(store, &name, walks.values());
}

/// What building a stage took, if this run has built it.
fn took(stage: &Stage, row: &StageReport) -> Option<Took> {
    let attempt = row.attempts.last().filter(|_| row.status == StageStatus::Sealed)?;
    // An attempt with something changed is another one.
    let recipe = attempt.changed.is_none().then_some(stage.recipe_key);
    Some(Took { recipe, ..Took::of(attempt)? })
}

/// The walk of one stage now, as far as the outputs it needs are known.
pub(crate) fn walk(
    store: &Store,
    plan: &Plan,
    id: StageId,
    run: &str,
    built: bool,
    output: &dyn Fn(StageId) -> Option<Digest>,
) -> Option<Walk> {
    let stage = plan.stage(id);
    let needs: Option<HashMap<StageId, Digest>> =
        stage.needs().map(|need| Some((need, output(need)?))).collect();
    let needs = needs?;
    let fields = plan.content_fields(id, |need| needs[&need]);
    let fields: Vec<Field> =
        fields.into_iter().map(|(name, value)| (name, bounded(&value))).collect();
    Some(Walk {
        stage: stage.name.to_string(),
        run: run.to_owned(),
        built,
        outside: outside(store, stage, &fields),
        fields,
        took: None,
    })
}

/// The inputs are the last parts of a walk, in their order.
fn outside(store: &Store, stage: &Stage, fields: &[Field]) -> Vec<Outside> {
    let fields = &fields[fields.len() - stage.inputs.len()..];
    let of = |(input, (field, _)): (&smelt_plan::plan::Input, &Field)| {
        let (what, files) = match &input.from {
            From::Stage(_) => return None,
            From::Hub(pin) => {
                let file = pin.file.as_ref().map_or_else(String::new, |file| format!(":{file}"));
                (format!("hf:{}{file} at commit {}", pin.repo, pin.commit), Vec::new())
            }
            From::Path(pin) => (pin.path.display().to_string(), files(store, &pin.path)),
        };
        Some(Outside { field: field.clone(), what, files })
    };
    stage.inputs.iter().zip(fields).filter_map(of).collect()
}

fn files(store: &Store, path: &Path) -> Vec<(String, u64, String)> {
    let Ok(manifest) = store.digest_tree(path) else { return Vec::new() };
    if manifest.files().len() > FILES_MAX {
        return Vec::new();
    }
    let file = |file: &smelt_store::FileEntry| (file.path.clone(), file.size, file.sha256.short());
    manifest.files().iter().map(file).collect()
}

/// What differs between two walks of a stage, as lines a person reads.
pub(crate) fn changes(before: &Walk, now: &Walk) -> Vec<String> {
    let mut lines = Vec::new();
    for difference in differences(&before.fields, &now.fields) {
        let find = |walk: &Walk| walk.outside.iter().find(|o| o.field == difference.name).cloned();
        match (find(before), find(now)) {
            (Some(before), Some(now)) if before.what == now.what => {
                lines.extend(file_changes(&before, &now));
            }
            (Some(before), Some(now)) => {
                lines.push(format!("{}: {} -> {}", difference.name, before.what, now.what));
            }
            _ => lines.push(line(&difference)),
        }
    }
    lines
}

fn line(difference: &Difference) -> String {
    let Difference { name, before, now } = difference;
    let shown = |value: &String| match value.parse::<Digest>() {
        Ok(digest) => format!("content {}", digest.short()),
        Err(_) => value.clone(),
    };
    match (before.as_ref().map(shown), now.as_ref().map(shown)) {
        (Some(before), Some(now)) => format!("{name}: {before} -> {now}"),
        (None, Some(now)) if name.starts_with("tool ") => format!("{name}: {now} counts now"),
        (None, Some(now)) => format!("{name}: {now}, was not there"),
        (Some(before), None) => format!("{name}: was {before}, is gone"),
        (None, None) => name.clone(),
    }
}

fn file_changes(before: &Outside, now: &Outside) -> Vec<String> {
    let find = |of: &Outside, name: &str| of.files.iter().find(|file| file.0 == name).cloned();
    let mut lines = Vec::new();
    for (name, bytes, digest) in &now.files {
        match find(before, name) {
            None => lines.push(format!("{}: file {name} is new", now.what)),
            Some((_, then, old)) if old != *digest => {
                lines.push(format!("{}: file {name} changed ({then} -> {bytes} bytes)", now.what));
            }
            Some(_) => {}
        }
    }
    let gone = before.files.iter().filter(|file| find(now, &file.0).is_none());
    lines.extend(gone.map(|(name, ..)| format!("{}: file {name} is gone", now.what)));
    if lines.is_empty() {
        lines.push(format!("{}: its content changed", now.what));
    }
    lines
}

/// Notes are named after the pipeline's file, so that `--set` and edits are seen as changes.
fn name(file: &Path) -> Option<Digest> {
    let path = fs::canonicalize(file).ok()?;
    Some(Digest::of(format!("last run of {}", path.to_str()?).as_bytes()))
}
