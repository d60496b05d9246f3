//! Carries the pipelines that smelt ships, as the table of the models that it knows by name.
//!
//! What a model is called, where its checkpoint comes from and which precisions there are is read from the files
//! themselves, so that there is no second list.

use std::sync::LazyLock;

use smelt_hub::Address;
use smelt_plan::pipeline::{Overrides, StageSpec};
use smelt_plan::{Kind, Pipeline};

/// A pipeline file that smelt carries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShippedPipeline {
    /// The file's name without its ending.
    pub(crate) name: &'static str,
    /// Its text.
    pub(crate) text: &'static str,
}

/// A model that smelt knows by name.
#[derive(Debug)]
pub(crate) struct ShippedModel {
    /// What its pipelines are called, without a precision.
    pub(crate) name: &'static str,
    /// What its deployments are called.
    pub(crate) deployment: String,
    /// What else it is called: its deployments, its repository.
    pub(crate) aliases: Vec<String>,
    /// Its checkpoint at a hub; nothing of one that a program fetches.
    pub(crate) address: Option<Address>,
    /// The pipelines that build it, by name.
    pub(crate) pipelines: Vec<&'static ShippedPipeline>,
}

macro_rules! carry {
    ($($name:literal),* $(,)?) => {
        [$(ShippedPipeline {
            name: $name,
            text: include_str!(concat!("../../../pipelines/", $name, ".toml")),
        }),*]
    };
}

/// The pipelines of models that somebody asks for by name, by name.
pub(crate) static PIPELINES: [ShippedPipeline; 18] = carry![
    "cosmos-reason2-2b-int8",
    "internvl3-1b-bf16",
    "internvl3-1b-int4",
    "internvl3-1b-int8",
    "internvl3-2b-int4",
    "internvl3-2b-int8",
    "internvl3_5-1b-int8",
    "minilm",
    "qwen2-vl-2b-int4",
    "qwen2_5-vl-3b-awq",
    "qwen2_5-vl-3b-gptq",
    "qwen2_5-vl-3b-int4",
    "qwen3-vl-2b-int4",
    "qwen3-vl-2b-int8",
    "reranker",
    "smollm2",
    "smolvlm2-256m-int8",
    "smolvlm2-500m-int4",
];

/// What a pipeline's name may end with, where it builds one precision of several.
const PRECISIONS: [&str; 4] = ["bf16", "f32", "int8", "int4"];

static MODELS: LazyLock<Vec<ShippedModel>> = LazyLock::new(table);

/// The models that smelt knows by name.
pub(crate) fn models() -> &'static [ShippedModel] {
    &MODELS
}

impl ShippedPipeline {
    /// Its name without the precision, and that.
    pub(crate) fn parts(&self) -> (&'static str, Option<&'static str>) {
        let split = self.name.rsplit_once('-');
        let split = split.filter(|(_, last)| PRECISIONS.contains(last));
        split.map_or((self.name, None), |(name, precision)| (name, Some(precision)))
    }

    /// It, read.
    fn pipeline(&self) -> Option<Pipeline> {
        let file = format!("{}.toml", self.name);
        Pipeline::parse(&file, self.text, &Overrides::default()).ok()
    }
}

impl ShippedModel {
    /// Whether somebody means it by `text`, in which case and dots make no difference.
    pub(crate) fn is_called(&self, text: &str) -> bool {
        let text = plain(text);
        self.names().any(|name| plain(name) == text)
    }

    /// Every name of it, its own first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name).chain(self.aliases.iter().map(String::as_str))
    }
}

/// A name as it is compared: people write `Qwen2.5-VL-3B` for `qwen2_5-vl-3b`.
fn plain(name: &str) -> String {
    name.to_lowercase().replace('.', "_")
}

fn table() -> Vec<ShippedModel> {
    let mut models: Vec<ShippedModel> = Vec::new();
    for shipped in &PIPELINES {
        let Some(pipeline) = shipped.pipeline() else { continue };
        let (name, _) = shipped.parts();
        match models.iter_mut().find(|model| model.name == name) {
            Some(model) => model.pipelines.push(shipped),
            None => models.push(of_pipeline(name, shipped, &pipeline)),
        }
    }
    without_doubles(&mut models);
    models
}

fn of_pipeline(
    name: &'static str,
    shipped: &'static ShippedPipeline,
    pipeline: &Pipeline,
) -> ShippedModel {
    let address = pipeline.hubs().first().and_then(|text| text.parse::<Address>().ok());
    let repository = address.as_ref().and_then(|address| address.repo.as_str().split_once('/'));
    let repository = repository.map(|(_, name)| name.to_owned());
    let deployed = deployed(pipeline);
    let deployment = deployed.first().map_or(name, String::as_str).to_owned();
    let aliases = deployed.into_iter().chain(repository).collect();
    ShippedModel { name, deployment, aliases, address, pipelines: vec![shipped] }
}

/// What the pipeline's deployments call their model.
fn deployed(pipeline: &Pipeline) -> Vec<String> {
    let deployments = pipeline.stages.iter().filter(|stage| stage.kind == Kind::Deployment);
    let word = |stage: &StageSpec| Some(stage.params.get("model")?.as_str()?.to_owned());
    deployments.filter_map(word).collect()
}

/// Takes aliases away that another model is called by, so that every name means one model.
fn without_doubles(models: &mut [ShippedModel]) {
    let mut taken: Vec<String> = models.iter().map(|model| plain(model.name)).collect();
    for model in models {
        let is_new = |alias: &String| {
            let alias = plain(alias);
            let is_new = !taken.contains(&alias);
            taken.push(alias);
            is_new
        };
        model.aliases.retain(is_new);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use smelt_plan::pipeline::InputRef;

    use super::*;

    fn hub_of(stage: &StageSpec) -> Option<&str> {
        stage.inputs.iter().find_map(|input| match &input.from {
            InputRef::Hub(address) => Some(address.as_str()),
            InputRef::Stage(_) | InputRef::Path(_) => None,
        })
    }

    fn called(text: &str) -> Vec<&'static str> {
        models().iter().filter(|model| model.is_called(text)).map(|model| model.name).collect()
    }

    #[test]
    fn models_are_called_as_their_pipelines_deployments_and_repositories_are() {
        for (text, name) in [
            ("internvl3-1b", "internvl3-1b"),
            ("InternVL3-2B", "internvl3-2b"),
            ("qwen2.5-vl-3b", "qwen2_5-vl-3b"),
            ("Qwen2.5-VL-3B-Instruct-AWQ", "qwen2_5-vl-3b-awq"),
            ("Qwen2.5-VL-3B-Instruct-GPTQ-Int4", "qwen2_5-vl-3b-gptq"),
            ("smollm2", "smollm2"),
            ("smollm2-135m-instruct", "smollm2"),
            ("all-minilm-l6-v2", "minilm"),
            ("ms-marco-minilm-l6-v2", "reranker"),
        ] {
            assert_eq!(called(text), [name], "{text}");
        }
        assert_eq!(called("internvl4"), [""; 0]);
    }

    #[test]
    fn every_name_means_one_model_and_every_pipeline_is_read() {
        let names: Vec<String> = models().iter().flat_map(ShippedModel::names).map(plain).collect();
        let once: BTreeSet<&String> = names.iter().collect();
        assert_eq!(once.len(), names.len(), "{names:?}");
        let built: usize = models().iter().map(|model| model.pipelines.len()).sum();
        assert_eq!(built, PIPELINES.len());
        let internvl3 = models().iter().find(|model| model.name == "internvl3-1b").unwrap();
        let precisions: Vec<_> = internvl3.pipelines.iter().map(|p| p.parts().1).collect();
        assert_eq!(precisions, [Some("bf16"), Some("int4"), Some("int8")]);
    }

    #[test]
    fn a_model_is_where_the_file_s_source_is() {
        for model in models() {
            let pipeline = model.pipelines[0].pipeline().unwrap();
            let from = pipeline.stages.iter().find_map(hub_of);
            let repo = model.address.as_ref().map(|address| address.repo.as_str());
            assert_eq!(repo, from, "{}", model.name);
        }
    }

    #[test]
    fn every_pipeline_file_of_a_model_that_is_asked_for_by_name_is_carried() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pipelines");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let stem =
            |path: std::path::PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        // Those compare variants, belong to tests, or have another program answer.
        let is_for_others = |name: &String| {
            let is_told_apart = ["-accuracy", "-server"].iter().any(|end| name.ends_with(end));
            name.starts_with("shapes-") || is_told_apart || name == "demo"
        };
        let mut found: Vec<String> = files.map(stem).filter(|name| !is_for_others(name)).collect();
        found.sort();
        let carried: Vec<&str> = PIPELINES.iter().map(|shipped| shipped.name).collect();
        assert_eq!(found, carried);
    }
}
