//! Finds the deployments that a command asks: directories, or outputs of a pipeline's stages.
//!
//! `PIPELINE` stands for its deployment stage, `PIPELINE#STAGE` for one of several.

use std::path::{Path, PathBuf};

use smelt_plan::{Kind, Plan, StageId};
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_store::{Store, Wait};

use crate::built;
use crate::exit::{Exit, Failed};
use crate::flags::PipelineFlags;
use crate::load::{self, Access, Loaded};

/// A deployment and what to call it.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    /// The stages it was made by, its own among them; none of a directory that was given.
    pub(super) stages: Vec<String>,
}

/// The one deployment that `target` names: its directory.
pub(super) fn directory(target: &Path, sets: &[String]) -> Result<PathBuf, Failed> {
    if target.is_dir() {
        return given(target);
    }
    if let Some(built) = listed(target)? {
        return Ok(built);
    }
    let found = in_pipeline(target, sets);
    found.map_err(|failed| failed.or(&instead(target)))
}

/// The deployment that the store lists by that name, if no file has it.
fn listed(target: &Path) -> Result<Option<PathBuf>, Failed> {
    let text = target.to_str().filter(|text| !target.exists() && !text.contains(['/', '#']));
    let (Some(text), true) = (text, load::root()?.exists()) else { return Ok(None) };
    let all = built::all()?;
    let Some(built) = built::named(&all, text)? else { return Ok(None) };
    // No look-up finds it, which would write that down; on a read-only disk nobody can.
    if let Ok(store) = Store::open(&load::root()?, Wait::No) {
        store.note_used(&built.tree);
    }
    Ok(Some(built.dir.clone()))
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
        if target.is_dir() {
            let name = target.display().to_string();
            found.push((name.clone(), Target { name, dir: given(target)?, stages: Vec::new() }));
            continue;
        }
        let asked = Asked::new(target, sets)?;
        for stage in asked.stages()? {
            let name = asked.name(stage);
            let full = format!("{}#{name}", asked.flags.pipeline.display());
            let (dir, stages) = (asked.output(stage)?, asked.made_by(stage));
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

/// A directory, which must be a deployment.
fn given(dir: &Path) -> Result<PathBuf, Failed> {
    if dir.join(DEPLOYMENT_FILE).exists() {
        return Ok(dir.to_owned());
    }
    Err(Failed::usage(format!(
        "{} is no deployment: it has no {DEPLOYMENT_FILE}; name a pipeline or a deployment's directory",
        dir.display()
    )))
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

    /// The names of `stage` and of all it needs.
    fn made_by(&self, stage: StageId) -> Vec<String> {
        let (mut seen, mut open) = (vec![stage], vec![stage]);
        while let Some(stage) = open.pop() {
            for need in self.loaded.plan.stage(stage).needs() {
                if !seen.contains(&need) {
                    seen.push(need);
                    open.push(need);
                }
            }
        }
        seen.into_iter().map(|stage| self.name(stage)).collect()
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
