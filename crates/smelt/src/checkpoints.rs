//! Reads the small files of a plan's checkpoints, wherever they are: in a directory, in the hub's cache, on the hub
//! itself (nothing is written), or as a synthetic model has them.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use smelt_hub::{Commit, Hub, HubError, Repo};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::model::Model;
use smelt_model::synthetic;
use smelt_plan::plan::{From, HubPin, Stage};
use smelt_plan::{Plan, StageId, kind};

use crate::story::Story;

/// The file that says what a model is.
const CONFIG: &str = "config.json";

/// Configurations take a few KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The checkpoints of a plan: their small files are read once, whoever asks, since a hub may have them.
pub(crate) struct Checkpoints<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) story: &'a Story<'a>,
    hub: OnceCell<Result<Hub, String>>,
    read: RefCell<BTreeMap<(StageId, String), Read>>,
}

/// The text of a file, if there is one; or why that is not known.
pub(crate) type Read = Result<Option<String>, String>;

impl<'a> Checkpoints<'a> {
    pub(crate) fn of(plan: &'a Plan, story: &'a Story<'a>) -> Self {
        Self { plan, story, hub: OnceCell::new(), read: RefCell::default() }
    }

    /// The source that a stage's checkpoint comes from, however it was quantised on the way.
    pub(crate) fn source(&self, stage: &Stage) -> Option<StageId> {
        self.plan.source_of(stage)
    }

    /// Where a source's files are, if they are here.
    pub(crate) fn dir(&self, source: StageId) -> Option<&Path> {
        self.story.path(source).or_else(|| Some(self.plan.stage(source).given()?.path.as_path()))
    }

    /// A small file of what a source gives.
    pub(crate) fn file(&self, source: StageId, file: &str) -> Read {
        let mut read = self.read.borrow_mut();
        let known = read.entry((source, file.to_owned()));
        known.or_insert_with(|| self.read_file(source, file)).clone()
    }

    fn read_file(&self, source: StageId, file: &str) -> Read {
        let stage = self.plan.stage(source);
        if let Some(name) = kind::source::synthetic(&stage.params) {
            return Ok(synthetic::configuration(name, file));
        }
        match (stage.fetched(), self.dir(source)) {
            (Some(pin), _) => {
                self.of_hub(pin, |hub, repo, commit| hub.small_file(repo, commit, file))
            }
            (None, Some(dir)) => in_dir(&dir.join(file)),
            (None, None) => Err("its checkpoint is not there".to_owned()),
        }
    }

    /// What the hub says of a commit.
    pub(crate) fn of_hub<T>(
        &self,
        pin: &HubPin,
        ask: impl FnOnce(&Hub, &Repo, &Commit) -> Result<T, HubError>,
    ) -> Result<T, String> {
        let words = |error: HubError| error.to_string();
        let commit =
            Commit::parse(&pin.commit).ok_or_else(|| format!("{} is no commit", pin.commit))?;
        let repo = pin.repo.parse::<Repo>().map_err(words)?;
        let hub = self.hub.get_or_init(|| Hub::from_env().map_err(words)).as_ref();
        ask(hub.map_err(Clone::clone)?, &repo, &commit).map_err(words)
    }

    /// The model of a stage's checkpoint, where a source gives it; why it is not known yet otherwise.
    pub(crate) fn model(&self, stage: &Stage) -> Result<Option<Model>, String> {
        let Some(source) = self.source(stage) else { return Ok(None) };
        let parse = |config: &str| Model::parse(config, Path::new(CONFIG));
        match self.file(source, CONFIG)? {
            Some(config) => parse(&config).map(Some).map_err(|error| error.to_string()),
            // A GGUF file says itself what it is.
            None => {
                let opened = self.dir(source).and_then(|dir| Checkpoint::open(dir).ok());
                let model = opened.map(|checkpoint| checkpoint.model().clone());
                model.map(Some).ok_or_else(|| format!("it has no {CONFIG}"))
            }
        }
    }
}

/// The stage that a field of another one names.
pub(crate) fn input<'a>(
    plan: &'a Plan,
    stage: &Stage,
    field: &str,
) -> Option<(StageId, &'a Stage)> {
    let input = stage.inputs.iter().find(|input| input.field == field)?;
    match input.from {
        From::Stage(id) => Some((id, plan.stage(id))),
        From::Path(_) | From::Hub(_) => None,
    }
}

/// A param that is a number.
pub(crate) fn count(stage: &Stage, name: &str) -> Option<usize> {
    stage.params.get(name)?.as_u64()?.try_into().ok()
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
