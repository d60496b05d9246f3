//! Finds the deployments that a command asks: by what a person calls a model, directories, outputs of a pipeline's stages.
//!
//! `PIPELINE` stands for its deployment stage, `PIPELINE#STAGE` for one of several.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use smelt_plan::{Digest, Kind, Plan, StageId};
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_store::{Store, Wait};

#[cfg(not(feature = "build"))]
use super::absent;
#[cfg(feature = "build")]
use super::build;
use super::consent::Consent;
use crate::built::{self, Built};
use crate::carried;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::PipelineFlags;
use crate::fleet;
use crate::fleet::outgoing::Leaving;
use crate::load::{self, Access, Loaded, Looked};
use crate::model_name::{ModelName, ModelSource, Place, Present, is_gguf};
use crate::pins;

/// The model that smelt carries is built wherever it is asked for.
const DEMO: &str = "demo";

/// A deployment and what to call it.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    /// The stages it was made by, its own among them; none of a directory that was given.
    pub(super) stages: Vec<String>,
}

/// What somebody means by a target.
enum Meant {
    /// The deployment in a directory, in the store or elsewhere.
    Here(PathBuf),
    /// A pipeline's file, with a stage or without.
    Pipeline(PathBuf),
    /// A model of which nothing is built.
    Missing(ModelSource),
}

/// The one deployment that `target` names: its directory.
pub(super) fn directory(target: &Path, sets: &[String]) -> Result<PathBuf, Failed> {
    let dir = match meant(target)? {
        Meant::Here(dir) => dir,
        Meant::Pipeline(pipeline) => {
            let found = in_pipeline(&pipeline, sets);
            found.map_err(|failed| failed.or(&instead(&pipeline)))?
        }
        Meant::Missing(source) => return Err(not_built(target, &source)),
    };
    vouched(dir)
}

/// A deployment's directory, if what of it came from a fleet is vouched for.
fn vouched(dir: PathBuf) -> Result<PathBuf, Failed> {
    fleet::vouched::check(&dir)?;
    Ok(dir)
}

/// How much of a model is built that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All that its pipeline has.
    All,
    /// What can be asked; what is verified behind that is left to whoever asks.
    Deployments,
}

/// The same of a command that answers itself: a model of which nothing is built is built first, as far as it is asked.
pub(super) fn ready(target: &Path, sets: &[String], consent: Consent) -> Result<PathBuf, Failed> {
    let built = build_missing(target, sets, Extent::Deployments, consent)?;
    let Some(pipeline) = built else { return directory(target, sets) };
    #[cfg(feature = "build")]
    crate::stop::listen_no_more()?;
    vouched(in_pipeline(&pipeline, sets)?)
}

/// Builds the model that `target` names, where nothing is built of it: the pipeline's file.
pub(super) fn build_missing(
    target: &Path,
    sets: &[String],
    extent: Extent,
    consent: Consent,
) -> Result<Option<PathBuf>, Failed> {
    let (Some(text), Meant::Missing(source)) = (target.to_str(), meant(target)?) else {
        return Ok(None);
    };
    if is_nothing(&source) {
        return Err(not_built(target, &source));
    }
    if !sets.is_empty() {
        let why = format!("nothing is built of {text}, and --set is for pipelines; leave it out");
        return Err(Failed::usage(why));
    }
    tell(format_args!(
        "nothing is built of {text} yet, so it is built first, as by: smelt build {text}"
    ));
    on_the_way(text, extent, consent).map(Some)
}

#[cfg(feature = "build")]
fn on_the_way(model: &str, extent: Extent, consent: Consent) -> Result<PathBuf, Failed> {
    build::on_the_way(model, extent, consent)
}

/// What only serves builds nothing.
#[cfg(not(feature = "build"))]
fn on_the_way(_: &str, _: Extent, _: Consent) -> Result<PathBuf, Failed> {
    Err(absent::refused("build"))
}

/// Whether `target` names something that can be asked or built.
pub(super) fn is_known(target: &Path) -> bool {
    meant(target).is_ok()
}

fn meant(target: &Path) -> Result<Meant, Failed> {
    let Some(text) = target.to_str() else { return Ok(Meant::Pipeline(target.to_owned())) };
    let place = Present::of(text, &[]).place;
    let is_pipeline = place == Place::File && !is_gguf(target);
    // What lies here needs no store.
    let needs_store = !is_pipeline && place != Place::Deployment;
    let all = if needs_store { built::all()? } else { Vec::new() };
    if text == DEMO && place == Place::Nothing && built::meant(&all, text).is_empty() {
        return Ok(Meant::Here(carried::unpack()?.deployment));
    }
    Ok(match ModelName::read(text, &Present { place, built: &all })? {
        ModelName::Deployment(dir) => Meant::Here(dir),
        ModelName::Pipeline(pipeline) => Meant::Pipeline(pipeline),
        ModelName::Built(dir) => {
            let found = built::meant(&all, text);
            Meant::Here(found.first().map_or(Ok(dir), |last| of_store(last, &found))?)
        }
        ModelName::Model(source) => {
            let found = made_of(&all, &source);
            match built::only(&found, text)? {
                Some(last) => Meant::Here(of_store(last, &found)?),
                None => Meant::Missing(source),
            }
        }
    })
}

/// Whether a directory or a file is nothing that could be built.
fn is_nothing(source: &ModelSource) -> bool {
    let ModelSource::Path(path) = source else { return false };
    !pins::may_be_checkpoint(path).unwrap_or(false)
}

/// That nothing is built of a model, and how to change that.
fn not_built(target: &Path, source: &ModelSource) -> Failed {
    if let (true, ModelSource::Path(path)) = (is_nothing(source), source) {
        return Failed::usage(format!(
            "{} is no deployment: it has no {DEPLOYMENT_FILE}, and nothing of a checkpoint either; name a pipeline, a model, or a deployment's directory",
            path.display()
        ));
    }
    let target = target.display();
    let why = format!("nothing is built of {target}; build it with: smelt build {target}");
    Failed::new(Exit::StageFailed, why)
}

/// The deployments whose model comes from `source`: of a pipeline that was named only its own.
pub(super) fn made_of<'a>(all: &'a [Built], source: &ModelSource) -> Vec<&'a Built> {
    let from = match source {
        ModelSource::Path(path) => {
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            Some(format!("path:{}", real.display()))
        }
        other => other.from(),
    };
    let choice = source.choice();
    let is_of = |built: &&Built| match (&from, choice) {
        (Some(from), _) => built.from.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(from)),
        (None, Some(choice)) => built.model == choice.model.deployment,
        (None, None) => false,
    };
    let named = choice.and_then(|choice| choice.pipeline);
    let is_named = |built: &&Built| named.is_none_or(|named| built.pipeline == named.name);
    all.iter().filter(is_of).filter(is_named).collect()
}

/// The directory of a deployment of the store, of which it is noted that it was used.  Of one that was built again and
/// again it is what its pipeline leads to now, else the `last` that was used.
fn of_store(last: &Built, all: &[&Built]) -> Result<PathBuf, Failed> {
    let built = match all {
        [_] => last,
        _ => as_it_is_now(last, all).unwrap_or_else(|| {
            let (model, digest) = (&last.model, last.tree.short());
            tell(format_args!("{model} was built several times; {digest}, used last, is asked"));
            last
        }),
    };
    // No look-up finds it, which would write that down; on a read-only disk nobody can.
    if let Ok(store) = Store::open(&load::root()?, Wait::No) {
        store.note_used(&built.tree);
    }
    Ok(built.dir.clone())
}

/// The one that the pipeline's stage leads to now, if that is built.
fn as_it_is_now<'a>(last: &Built, all: &[&'a Built]) -> Option<&'a Built> {
    let file = last.file.as_ref().filter(|file| file.is_file())?;
    let target = format!("{}#{}", file.to_str()?, last.stage);
    let dir = in_pipeline(Path::new(&target), &last.sets).ok()?;
    all.iter().copied().find(|built| built.dir.file_name() == dir.file_name())
}

/// What could be named instead; nothing where nobody knows.
fn instead(target: &Path) -> String {
    let (pipeline, _) = split(target);
    built::instead(&built::all().unwrap_or_default(), &pipeline)
}

fn in_pipeline(target: &Path, sets: &[String]) -> Result<PathBuf, Failed> {
    let asked = Asked::new(target, sets)?;
    match asked.stages()?.as_slice() {
        [stage] => asked.output(*stage),
        several => {
            let names: Vec<String> = several.iter().map(|&stage| asked.name(stage)).collect();
            Err(Failed::usage(format!(
                "{file} has several deployments ({}); name one as {file}#{}",
                names.join(", "),
                names[0],
                file = asked.flags.pipeline.display(),
            )))
        }
    }
}

/// All deployments that `targets` name.  They are called by their stages where that tells them
/// apart.
pub(super) fn all(targets: &[PathBuf], sets: &[String]) -> Result<Vec<Target>, Failed> {
    let mut found = Vec::new();
    for target in targets {
        let pipeline = match meant(target)? {
            Meant::Pipeline(pipeline) => pipeline,
            Meant::Missing(source) => return Err(not_built(target, &source)),
            Meant::Here(dir) => {
                let name = target.display().to_string();
                let dir = vouched(dir)?;
                found.push((name.clone(), Target { name, dir, stages: Vec::new() }));
                continue;
            }
        };
        let asked = Asked::new(&pipeline, sets)?;
        for stage in asked.stages()? {
            let name = asked.name(stage);
            let full = format!("{}#{name}", asked.flags.pipeline.display());
            let (dir, stages) = (vouched(asked.output(stage)?)?, asked.made_by(stage));
            found.push((full, Target { name, dir, stages }));
        }
    }
    let is_twice = |name: &str| found.iter().filter(|(_, other)| other.name == name).count() > 1;
    let twice: Vec<bool> = found.iter().map(|(_, target)| is_twice(&target.name)).collect();
    let called = |((full, target), is_twice)| match is_twice {
        true => Target { name: full, ..target },
        false => target,
    };
    Ok(found.into_iter().zip(twice).map(called).collect())
}

/// The outputs of the store that `target` names: of a pipeline its deployments, what nobody in it needs where it has none, and
/// with `is_all` whatever of it is built.
pub(super) fn sealed(target: &Path, sets: &[String], is_all: bool) -> Result<Vec<Leaving>, Failed> {
    match meant(target)? {
        Meant::Pipeline(pipeline) => Asked::new(&pipeline, sets)?.sealed(is_all),
        Meant::Missing(source) => Err(not_built(target, &source)),
        Meant::Here(dir) => {
            let tree = in_store(&dir, &load::root()?).ok_or_else(|| {
                Failed::usage(format!(
                    "{} is in no store, so nothing is known of it",
                    dir.display()
                ))
            })?;
            Ok(vec![Leaving { tree, recipes: Vec::new() }])
        }
    }
}

/// The name of an output in the store at `root`.
fn in_store(path: &Path, root: &Path) -> Option<Digest> {
    let (path, out) = (path.canonicalize().ok()?, root.join("out").canonicalize().ok()?);
    path.strip_prefix(out).ok()?.to_str()?.parse().ok()
}

/// A pipeline that was asked for, and perhaps one of its stages.
struct Asked {
    flags: PipelineFlags,
    stage: Option<String>,
    loaded: Loaded,
}

impl Asked {
    fn new(target: &Path, sets: &[String]) -> Result<Self, Failed> {
        let (pipeline, stage) = split(target);
        let flags = PipelineFlags { pipeline, sets: sets.to_vec() };
        let loaded = load::plan(&flags, Access::Use)?;
        Ok(Self { flags, stage, loaded })
    }

    fn name(&self, stage: StageId) -> String {
        self.loaded.plan.stage(stage).name.to_string()
    }

    /// The deployment stages that are meant, at least one.
    fn stages(&self) -> Result<Vec<StageId>, Failed> {
        let all = deployments(&self.loaded.plan);
        let file = self.flags.pipeline.display();
        if all.is_empty() {
            let message = format!("{file} has no stage of kind \"deployment\"");
            return Err(Failed::new(Exit::BadPipeline, message));
        }
        let Some(wanted) = &self.stage else { return Ok(all) };
        let found = all.iter().copied().find(|&stage| self.name(stage) == *wanted);
        found.map(|stage| vec![stage]).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|&stage| self.name(stage)).collect();
            Failed::usage(format!(
                "{file} has no deployment \"{wanted}\", but {}",
                names.join(", ")
            ))
        })
    }

    /// What is sealed of it, as [`sealed`] says.
    fn sealed(&self, is_all: bool) -> Result<Vec<Leaving>, Failed> {
        let (plan, root) = (&self.loaded.plan, self.loaded.store.root());
        let mut wanted = match (&self.stage, is_all) {
            (Some(name), _) => vec![plan.find(name)?],
            (None, true) => plan.stages().map(|(id, _)| id).collect(),
            (None, false) => deployments(plan),
        };
        if wanted.is_empty() {
            wanted = last(plan);
        }
        let Looked { standings, shared, .. } = load::look(&self.loaded, None)?;
        let outputs = load::outputs_of(&self.loaded, standings)?;
        let of = |stage: StageId| {
            let tree = in_store(outputs[stage.index()].as_ref()?, root)?;
            let recipe = plan.stage(stage).recipe_key;
            let recipes = [recipe].into_iter().chain(shared[stage.index()]).collect();
            Some(Leaving { tree, recipes })
        };
        if is_all {
            return Ok(wanted.into_iter().filter_map(of).collect());
        }
        let of_wanted = |stage: StageId| {
            let path = self.output(stage)?;
            let outside = || {
                let name = self.name(stage);
                Failed::usage(format!(
                    "stage \"{name}\" stands for {}, which is not in the store",
                    path.display()
                ))
            };
            of(stage).ok_or_else(outside)
        };
        wanted.into_iter().map(of_wanted).collect()
    }

    /// The names of `stage` and of all it needs.
    fn made_by(&self, stage: StageId) -> Vec<String> {
        let needed = self.loaded.plan.closure(&[stage]);
        needed.into_iter().map(|stage| self.name(stage)).collect()
    }

    fn output(&self, stage: StageId) -> Result<PathBuf, Failed> {
        load::output(&self.flags, &self.loaded, stage)
    }
}

/// The pipeline and the stage in `PIPELINE#STAGE`; a file that has the whole name is a pipeline.
fn split(target: &Path) -> (PathBuf, Option<String>) {
    let parts = target.to_str().filter(|_| !target.exists()).and_then(|text| text.rsplit_once('#'));
    match parts {
        Some((pipeline, stage)) => (pipeline.into(), Some(stage.to_owned())),
        None => (target.to_owned(), None),
    }
}

/// The stages that no other one needs.
fn last(plan: &Plan) -> Vec<StageId> {
    let needed: BTreeSet<StageId> = plan.stages().flat_map(|(_, stage)| stage.needs()).collect();
    plan.stages().map(|(id, _)| id).filter(|id| !needed.contains(id)).collect()
}

fn deployments(plan: &Plan) -> Vec<StageId> {
    let is_deployment = |(id, stage): (StageId, &smelt_plan::plan::Stage)| {
        (stage.kind == Kind::Deployment).then_some(id)
    };
    plan.stages().filter_map(is_deployment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_follows_the_last_hash_unless_the_file_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(split(&path("p.toml")), (path("p.toml"), None));
        assert_eq!(split(&path("a#b.toml#int8")), (path("a#b.toml"), Some("int8".to_owned())));
        std::fs::write(path("p#1.toml"), "").unwrap();
        assert_eq!(split(&path("p#1.toml")), (path("p#1.toml"), None));
    }
}
