//! Finds how much executing vision towers will hold, before an engine of any is built.
//!
//! A plan's sources that are there are asked for their configurations; what follows from a
//! configuration and the grids of an export is the estimate of the engine that is built of it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_model::checkpoint::{CONFIG_FILE, JSON_BYTES_MAX};
use smelt_model::grid::Grid;
use smelt_model::model::{Model, Vision};
use smelt_plan::kind::onnx_export::ExportPart;
use smelt_plan::plan::Stage;
use smelt_plan::{Kind, Plan, StageId, kind};

/// Bytes by the name of the stage that builds the engine.
#[derive(Debug, Default)]
pub struct Towers(HashMap<String, u64>);

/// What is known of a stage's output.
enum Known {
    Tower(Box<Vision>),
    Graph(u64),
}

impl Towers {
    /// Of the sources whose outputs are where `path` says.
    pub fn of_plan(plan: &Plan, path: impl Fn(StageId) -> Option<PathBuf>) -> Self {
        let mut known: HashMap<StageId, Known> = HashMap::new();
        let mut found = HashMap::new();
        for (id, stage) in plan.stages() {
            let below = stage.needs().find_map(|need| known.get(&need));
            let own = match (stage.kind, below) {
                (Kind::Source, _) => path(id).and_then(|dir| tower(&dir)).map(Known::Tower),
                (Kind::OnnxExport, Some(Known::Tower(tower))) if is_vision(stage) => {
                    tower.working_bytes(&grids(stage)).map(Known::Graph)
                }
                (Kind::GraphSurgery, Some(Known::Graph(bytes))) => Some(Known::Graph(*bytes)),
                (Kind::EngineBuild, Some(Known::Graph(bytes))) => {
                    found.insert(stage.name.to_string(), *bytes);
                    None
                }
                _ => None,
            };
            known.extend(own.map(|own| (id, own)));
        }
        Self(found)
    }

    /// What executing the tower that `stage` builds holds besides weights, where that is known.
    pub fn of(&self, stage: &str) -> Option<u64> {
        self.0.get(stage).copied()
    }
}

/// The vision tower of the checkpoint in `dir`.
fn tower(dir: &Path) -> Option<Box<Vision>> {
    let path = dir.join(CONFIG_FILE);
    let is_short = fs::metadata(&path).ok()?.len() <= JSON_BYTES_MAX;
    let text = is_short.then(|| fs::read_to_string(&path).ok()).flatten()?;
    Model::parse(&text, &path).ok()?.vision.map(Box::new)
}

fn is_vision(stage: &Stage) -> bool {
    kind::param(&stage.params, "part") == Some(ExportPart::Vision)
}

/// The sizes of pictures that an export is for; one that cannot be read is told by the export.
pub fn grids(stage: &Stage) -> Vec<Grid> {
    let texts = stage.params.get("grids").and_then(Value::as_array).into_iter().flatten();
    texts.filter_map(|text| text.as_str()?.parse().ok()).collect()
}
