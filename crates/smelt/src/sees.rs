//! Finds out before a build how the deployments of a plan will see pictures, from small files alone.
//!
//! Read are the configuration and what is said of pictures: of a directory, of the hub's cache, of the hub
//! itself (nothing is written), or as a synthetic model has them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use smelt_hub::{Commit, Hub, Repo};
use smelt_model::grid::Grid as Picture;
use smelt_model::model::{Model, Vision};
use smelt_model::synthetic;
use smelt_plan::plan::{From, HubPin, Stage};
use smelt_plan::{Kind, Plan, StageId};
use smelt_runtime::deployment::DeploymentError;
use smelt_runtime::image::{Cutting, Eyes, Grid, Processor, Size, Wish};

use crate::commands::explain::Story;
use crate::load::Standing;
use crate::photographs;
use crate::stage::deployment::cutting_by;

/// The file that says what a model is.
const CONFIG: &str = "config.json";

/// Configurations take a few KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What photographs will cost each deployment of a model that sees and speaks.
pub(crate) fn lines(checkpoints: &Checkpoints<'_>) -> Vec<String> {
    let stages = checkpoints.plan.stages();
    let deployments = stages.filter(|(_, stage)| stage.kind == Kind::Deployment);
    let told = deployments.flat_map(|(_, stage)| {
        let lines = of_deployment(checkpoints, stage);
        let lines = lines.unwrap_or_else(|why| {
            vec![format!("what photographs cost in tokens is not known yet: {why}")]
        });
        lines.into_iter().map(move |line| match line.strip_prefix("warning: ") {
            Some(warning) => format!("warning: {}: {warning}", stage.name),
            None => format!("{}: {line}", stage.name),
        })
    });
    told.collect()
}

/// The checkpoints of a plan: their small files are read once, whoever asks, since a hub may have them.
pub(crate) struct Checkpoints<'a> {
    plan: &'a Plan,
    story: &'a Story<'a>,
    read: RefCell<BTreeMap<(StageId, String), Read>>,
}

/// The text of a file, if there is one; or why that is not known.
type Read = Result<Option<String>, String>;

impl<'a> Checkpoints<'a> {
    pub(crate) fn of(plan: &'a Plan, story: &'a Story<'a>) -> Self {
        Self { plan, story, read: RefCell::default() }
    }

    /// The source that gives a stage's checkpoint.
    fn source(&self, stage: &Stage) -> Option<StageId> {
        let (id, source) = input(self.plan, stage, "checkpoint")?;
        (source.kind == Kind::Source).then_some(id)
    }

    /// A small file of what a source gives.
    fn file(&self, source: StageId, file: &str) -> Read {
        let mut read = self.read.borrow_mut();
        let known = read.entry((source, file.to_owned()));
        known.or_insert_with(|| self.read_file(source, file)).clone()
    }

    fn read_file(&self, source: StageId, file: &str) -> Read {
        let built = match &self.story.standings[source.index()].0 {
            Standing::Hit { path, .. } => Some(path.as_path()),
            Standing::Miss(_) | Standing::Unknown { .. } => None,
        };
        file_of(self.plan.stage(source), built, file)
    }

    /// The model of a stage's checkpoint, where a source gives it; why it is not known yet otherwise.
    pub(crate) fn model(&self, stage: &Stage) -> Result<Option<Model>, String> {
        let Some(source) = self.source(stage) else { return Ok(None) };
        let config = self.file(source, CONFIG)?;
        let config = config.ok_or_else(|| format!("it has no {CONFIG}"))?;
        Model::parse(&config, Path::new(CONFIG)).map(Some).map_err(|error| error.to_string())
    }
}

/// The stage that a field of another one names.
fn input<'a>(plan: &'a Plan, stage: &Stage, field: &str) -> Option<(StageId, &'a Stage)> {
    let input = stage.inputs.iter().find(|input| input.field == field)?;
    match input.from {
        From::Stage(id) => Some((id, plan.stage(id))),
        From::Path(_) | From::Hub(_) => None,
    }
}

fn count(stage: &Stage, name: &str) -> Option<usize> {
    stage.params.get(name)?.as_u64()?.try_into().ok()
}

/// Nothing where there are no pictures, or where another program makes what would tell.
fn of_deployment(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Result<Vec<String>, String> {
    let plan = checkpoints.plan;
    let tower = input(plan, stage, "vision").and_then(|(_, engine)| graph(plan, engine));
    let decoder = input(plan, stage, "llm").map(|(_, engine)| engine);
    let (Some(tower), Some(decoder), Some(source)) = (tower, decoder, checkpoints.source(stage))
    else {
        return Ok(Vec::new());
    };
    let Some(model) = checkpoints.model(stage)? else { return Ok(Vec::new()) };
    let read = |file: &str| checkpoints.file(source, file);
    let tiles_max = count(stage, "tiles");
    let Some(eyes) = eyes(&model, tower, tiles_max, &read)? else { return Ok(Vec::new()) };
    let positions = model.llm.as_ref().map_or(usize::MAX, |llm| llm.max_positions);
    let context = count(stage, "max-seq-len").or_else(|| count(decoder, "max-seq-len"));
    let wish = Wish { tiles_max, ..Wish::default() };
    Ok(photographs::lines(&eyes, &wish, [context.unwrap_or(positions), positions]))
}

/// The export of a tower from whose graph an engine is built.
fn graph<'a>(plan: &'a Plan, engine: &'a Stage) -> Option<&'a Stage> {
    let mut stage = engine;
    // A chain of stages is no longer than the plan.
    for _ in 0..plan.len() {
        if stage.kind == Kind::OnnxExport {
            return Some(stage);
        }
        stage = input(plan, stage, "onnx")?.1;
    }
    None
}

/// How a model will see, whose tower is exported as the stage says, and which is shown so many tiles.
fn eyes(
    model: &Model,
    tower: &Stage,
    tiles: Option<usize>,
    read: &dyn Fn(&str) -> Result<Option<String>, String>,
) -> Result<Option<Eyes>, String> {
    let bad = |file: &str, why: String| DeploymentError::Bad { path: PathBuf::from(file), why };
    let text = |file: &str| {
        let text = read(file).map_err(|why| bad(file, why))?;
        Ok(text.map(|text| (PathBuf::from(file), text)))
    };
    let processor = Processor::of_pictures(&text).map_err(|error| error.to_string())?;
    // What is said of clips is of no use for photographs.
    let Some(mut cutting) = cutting_by(model, &processor, &processor) else { return Ok(None) };
    if let (Cutting::Tiles(tiling), Some(tiles)) = (&mut cutting, tiles) {
        tiling.max_tiles = tiling.max_tiles.max(tiles);
    }
    let patching = match &model.vision {
        Some(Vision::InternVit(tower)) => tower.patching(),
        Some(Vision::Qwen25(tower)) => tower.patching,
        Some(Vision::Qwen3(tower)) => tower.patching,
        Some(Vision::Clip(_)) | None => return Ok(None),
    };
    let named = tower.params.get("grids").and_then(|grids| grids.as_array()).into_iter().flatten();
    let named = named.filter_map(|grid| grid.as_str()?.parse().ok());
    let mut sizes: Vec<Picture> = named.collect();
    if sizes.is_empty() {
        sizes = match &cutting {
            Cutting::Tiles(tiling) => {
                vec![Picture { height: tiling.image_size, width: tiling.image_size }]
            }
            Cutting::Patches(_) => patching.default_grids(),
        };
    }
    let lattices = patching.lattices(&sizes).map_err(|error| error.to_string())?;
    let grid = |(Picture { height, width }, tokens)| Grid { size: Size { height, width }, tokens };
    let lattices = lattices.into_iter().map(|(grid, lattice)| (grid, lattice.tokens()));
    let mut grids: Vec<Grid> = lattices.map(grid).collect();
    grids.sort_by_key(|grid| (grid.size.pixels(), grid.size.height));
    let eyes = Eyes { cutting, grids, router: None };
    match eyes.fault() {
        Some(why) => Err(why),
        None => Ok(Some(eyes)),
    }
}

/// A small file of a checkpoint, wherever that is; nothing where it has no such file.
fn file_of(source: &Stage, built: Option<&Path>, file: &str) -> Result<Option<String>, String> {
    let made = source.params.get("from").and_then(|from| from.as_str()?.strip_prefix("synthetic:"));
    if let Some(name) = made {
        return Ok(synthetic::configuration(name, file));
    }
    match (source.fetched(), built.or(source.given().map(|pin| pin.path.as_path()))) {
        (Some(pin), _) => of_hub(pin, file),
        (None, Some(dir)) => in_dir(&dir.join(file)),
        (None, None) => Err("its checkpoint is not there".to_owned()),
    }
}

fn of_hub(pin: &HubPin, file: &str) -> Result<Option<String>, String> {
    let words = |error: smelt_hub::HubError| error.to_string();
    let commit =
        Commit::parse(&pin.commit).ok_or_else(|| format!("{} is no commit", pin.commit))?;
    let repo = pin.repo.parse::<Repo>().map_err(words)?;
    Hub::from_env().map_err(words)?.small_file(&repo, &commit, file).map_err(words)
}

fn in_dir(path: &Path) -> Result<Option<String>, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    match fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
        Ok(opened) => {
            let mut text = String::new();
            opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
            match text.len() as u64 > FILE_BYTES_MAX {
                true => Err(format!("{} is longer than {FILE_BYTES_MAX} bytes", path.display())),
                false => Ok(Some(text)),
            }
        }
    }
}
