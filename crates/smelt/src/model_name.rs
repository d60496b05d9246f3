//! Reads what a person calls a model: an address of a hub, a directory, a file, a name of the table, or what is built.
//!
//! A plain function over the text and what exists; [`Present::of`] alone looks.

use std::path::{Path, PathBuf};

use smelt_hub::Address;
#[cfg(feature = "build")]
use smelt_model::synthetic;
use smelt_plan::text::near;
use smelt_runtime::deployment::DEPLOYMENT_FILE;

use crate::built::{self, Built};
use crate::exit::Failed;
use crate::hub;
use crate::shipped::{self, ShippedModel, ShippedPipeline};

/// Names that an error offers.
const OFFERED_MAX: usize = 3;
/// Where pages of models are, as browsers and other tools name them.
const PAGES: [&str; 2] = ["huggingface.co/", "hf.co/"];
/// The branch that is meant where none is named.
const MAIN: &str = "main";

/// What a person means by the name of a model.
#[derive(Debug, PartialEq)]
pub(crate) enum ModelName {
    /// A deployment that the store holds: its directory.
    Built(PathBuf),
    /// A deployment's directory outside of the store.
    Deployment(PathBuf),
    /// A pipeline's file; `#STAGE` may follow it.
    Pipeline(PathBuf),
    /// A model that can be built.
    Model(ModelSource),
}

/// Where the checkpoint of a model comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ModelSource {
    /// A commit of a hub, with the shipped model that it is, if it is one.
    Hub(Address, Option<ShippedChoice>),
    /// A directory, or a GGUF file.
    Path(PathBuf),
    /// Random weights of a real size, by the name of the synthetic model.
    Synthetic(&'static str),
    /// What a shipped pipeline fetches by a program of its own.
    Package(ShippedChoice),
}

/// A shipped model, and the one of its pipelines that was named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShippedChoice {
    pub(crate) model: &'static ShippedModel,
    pub(crate) pipeline: Option<&'static ShippedPipeline>,
}

impl PartialEq for ShippedChoice {
    fn eq(&self, other: &Self) -> bool {
        (self.model.name, self.pipeline) == (other.model.name, other.pipeline)
    }
}

/// What is there of a name.
pub(crate) struct Present<'a> {
    /// What lies at that path.
    pub(crate) place: Place,
    /// The deployments of the store.
    pub(crate) built: &'a [Built],
}

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Nothing,
    File,
    Directory,
    /// A directory with a deployment's own file.
    Deployment,
}

impl<'a> Present<'a> {
    /// Looks at the path that `text` may be.
    pub(crate) fn of(text: &str, built: &'a [Built]) -> Self {
        let path = Path::new(text.strip_prefix("path:").unwrap_or(text));
        let place = match (path.is_dir(), path.exists()) {
            (true, _) if path.join(DEPLOYMENT_FILE).exists() => Place::Deployment,
            (true, _) => Place::Directory,
            (false, true) => Place::File,
            (false, false) => Place::Nothing,
        };
        Self { place, built }
    }
}

impl ModelName {
    /// What `text` means where this is present.  What lies here goes before what is built, what is built before names of
    /// the table, and those before a hub's.
    ///
    /// # Errors
    /// What cannot be read, with the nearest names that exist.
    pub(crate) fn read(text: &str, present: &Present<'_>) -> Result<Self, Failed> {
        if let Some(page) = page(text) {
            return of_page(text, page).map(Self::Model);
        }
        if let Some((scheme, rest)) = text.split_once(':') {
            match scheme {
                "hf" => return hub_model(rest).map(Self::Model),
                "synthetic" => return synthetic_model(rest).map(Self::Model),
                "path" => return at_path(rest, present.place),
                _ => {}
            }
        }
        if present.place != Place::Nothing || is_path(text) {
            return at_path(text, present.place);
        }
        if is_pipeline(text) {
            return Ok(Self::Pipeline(text.into()));
        }
        if let Some(built) = built::named(present.built, text)? {
            return Ok(Self::Built(built.dir.clone()));
        }
        if let Some(choice) = of_table(text) {
            return Ok(Self::Model(choice.source()));
        }
        match text.contains('/') {
            true => hub_model(text).map(Self::Model),
            false => Err(unknown(text, present.built)),
        }
    }
}

impl ModelSource {
    /// What a pipeline's `from` says of it; a path is written from the pipeline's folder by whoever writes it.  Nothing
    /// of what a program fetches.
    pub(crate) fn from(&self) -> Option<String> {
        match self {
            Self::Hub(address, _) => Some(format!("hf:{}", short(address))),
            Self::Path(path) => Some(format!("path:{}", path.display())),
            Self::Synthetic(name) => Some(format!("synthetic:{name}")),
            Self::Package(_) => None,
        }
    }

    /// What a deployment of it is called: a word for people, which `chat` and `serve` take.
    pub(crate) fn word(&self) -> String {
        let word = match self {
            Self::Hub(_, Some(choice)) | Self::Package(choice) => choice.model.deployment.clone(),
            Self::Hub(Address { repo, file, .. }, None) => match file {
                Some(file) => stem(Path::new(file.as_str())),
                None => repo.as_str().rsplit('/').next().unwrap_or_default().to_owned(),
            },
            Self::Path(path) => stem(path),
            Self::Synthetic(name) => (*name).to_owned(),
        };
        word.to_lowercase()
    }

    /// The shipped model that it is.
    pub(crate) fn choice(&self) -> Option<ShippedChoice> {
        match self {
            Self::Hub(_, choice) => *choice,
            Self::Package(choice) => Some(*choice),
            Self::Path(_) | Self::Synthetic(_) => None,
        }
    }
}

impl ShippedChoice {
    /// What it is called: as its pipeline, where one was named, else as the model.
    pub(crate) fn name(self) -> &'static str {
        self.pipeline.map_or(self.model.name, |pipeline| pipeline.name)
    }

    fn source(self) -> ModelSource {
        match &self.model.address {
            Some(address) => ModelSource::Hub(address.clone(), Some(self)),
            None => ModelSource::Package(self),
        }
    }
}

/// A name as an error's advice lists them: the nearest first, then those that it begins.
pub(crate) fn nearest_names(text: &str, built: &[Built]) -> Vec<String> {
    let built = built.iter().map(|built| built.model.as_str());
    let tabled = shipped::models().iter().flat_map(ShippedModel::names);
    let known: Vec<&str> = built.chain(tabled).collect();
    let last = text.rsplit('/').next().unwrap_or(text).to_lowercase();
    let lower: Vec<String> = known.iter().map(|name| name.to_lowercase()).collect();
    let mut found: Vec<String> =
        near(&last, lower.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
    let begun = lower.iter().filter(|name| !last.is_empty() && name.starts_with(&last));
    for name in begun {
        if !found.contains(name) {
            found.push(name.clone());
        }
    }
    found.truncate(OFFERED_MAX);
    found
}

/// The shipped model that `text` names, as itself or as one of its pipelines.
fn of_table(text: &str) -> Option<ShippedChoice> {
    let whole = shipped::models().iter().find(|model| model.is_called(text));
    if let Some(model) = whole {
        return Some(ShippedChoice { model, pipeline: None });
    }
    shipped::models().iter().find_map(|model| {
        let pipeline = model.pipelines.iter().copied().find(|pipeline| pipeline.name == text)?;
        Some(ShippedChoice { model, pipeline: Some(pipeline) })
    })
}

/// The path of a page of the hub.
fn page(text: &str) -> Option<&str> {
    let text = text.strip_prefix("https://").unwrap_or(text);
    let path = PAGES.iter().find_map(|hub| text.strip_prefix(hub))?;
    path.split(['?', '#']).next().map(|path| path.trim_end_matches('/'))
}

/// The model whose page, or a file there, somebody copied out of a browser.
fn of_page(text: &str, path: &str) -> Result<ModelSource, Failed> {
    let address = match path.split('/').collect::<Vec<_>>()[..] {
        [org, name] => format!("{org}/{name}"),
        [org, name, "tree", revision] => format!("{org}/{name}@{revision}"),
        [org, name, "blob" | "resolve", revision, ref file @ ..] => {
            format!("{org}/{name}@{revision}:{}", file.join("/"))
        }
        _ => {
            let why = format!("{text} is no model's page; name the model as hf:ORG/NAME");
            return Err(Failed::usage(why));
        }
    };
    hub_model(&address)
}

fn hub_model(text: &str) -> Result<ModelSource, Failed> {
    let address: Address = text.parse().map_err(|error| hub::failed(&error))?;
    let is_it = |model: &&ShippedModel| model.address.as_ref() == Some(&address);
    let model = shipped::models().iter().find(is_it);
    let choice = model.map(|model| ShippedChoice { model, pipeline: None });
    Ok(ModelSource::Hub(address, choice))
}

/// Random weights are made by the half that builds.
#[cfg(not(feature = "build"))]
fn synthetic_model(name: &str) -> Result<ModelSource, Failed> {
    Err(Failed::usage(format!("this smelt only serves and makes no synthetic:{name}")))
}

#[cfg(feature = "build")]
fn synthetic_model(name: &str) -> Result<ModelSource, Failed> {
    let known = synthetic::names().find(|known| *known == name);
    known.map(ModelSource::Synthetic).ok_or_else(|| {
        let known: Vec<&str> = synthetic::names().collect();
        let near = near(name, known.iter().copied());
        let offered = if near.is_empty() { known } else { near };
        Failed::usage(format!(
            "no synthetic model is called \"{name}\"; there is {}",
            offered.join(", ")
        ))
    })
}

fn at_path(text: &str, place: Place) -> Result<ModelName, Failed> {
    let path = PathBuf::from(text);
    match place {
        Place::Deployment => Ok(ModelName::Deployment(path)),
        Place::Directory => Ok(ModelName::Model(ModelSource::Path(path))),
        Place::File if is_gguf(&path) => Ok(ModelName::Model(ModelSource::Path(path))),
        Place::File => Ok(ModelName::Pipeline(path)),
        Place::Nothing if is_pipeline(text) => Ok(ModelName::Pipeline(path)),
        Place::Nothing => Err(Failed::usage(format!(
            "{text} is not there; name a checkpoint's directory, a GGUF file, hf:ORG/NAME, or a name that `smelt ls` lists"
        ))),
    }
}

/// Whether a text is a path and nothing else.
fn is_path(text: &str) -> bool {
    text.starts_with(['/', '.', '~']) || is_gguf(Path::new(text)) && !text.contains(':')
}

/// Whether a file is a model by itself, by its name.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gguf")
}

/// Whether a text is a pipeline's file, there or not, or a stage of one.
fn is_pipeline(text: &str) -> bool {
    text.contains('#') || Path::new(text).extension().is_some_and(|ending| ending == "toml")
}

/// An address as people write it: without the branch that is meant anyhow.
fn short(address: &Address) -> String {
    let Address { repo, revision, file } = address;
    let revision = match revision.as_str() {
        MAIN => String::new(),
        other => format!("@{other}"),
    };
    let file = file.as_ref().map(|file| format!(":{}", file.as_str()));
    format!("{}{revision}{}", repo.as_str(), file.unwrap_or_default())
}

/// The last name of a path without what tells its form.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

fn unknown(text: &str, built: &[Built]) -> Failed {
    let near = nearest_names(text, built);
    let offered = match near.is_empty() {
        true => String::new(),
        false => format!("; there is {}", near.join(", ")),
    };
    Failed::usage(format!(
        "no model is called \"{text}\"{offered}; hf:ORG/NAME, a checkpoint's directory or a GGUF file do as well, and `smelt ls` lists what is built"
    ))
}

#[cfg(test)]
mod tests {
    use smelt_plan::Digest;

    use super::*;

    fn read(text: &str, place: Place, built: &[Built]) -> Result<ModelName, String> {
        ModelName::read(text, &Present { place, built }).map_err(|failed| failed.to_string())
    }

    /// What a pipeline would say of the model that `text` names.
    fn from(text: &str, place: Place) -> String {
        match read(text, place, &[]) {
            Ok(ModelName::Model(source)) => source.from().unwrap_or_else(|| source.word()),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn addresses_paths_and_names_are_told_apart() {
        use Place::{Directory, File, Nothing};
        for (text, place, expect) in [
            ("hf:Org/Name", Nothing, "hf:Org/Name"),
            ("hf:Org/Name@v1:m-Q4_0.gguf", Nothing, "hf:Org/Name@v1:m-Q4_0.gguf"),
            ("Org/Name", Nothing, "hf:Org/Name"),
            ("https://huggingface.co/Org/Name", Nothing, "hf:Org/Name"),
            ("hf.co/Org/Name", Nothing, "hf:Org/Name"),
            ("https://huggingface.co/Org/Name/tree/main?x=1", Nothing, "hf:Org/Name"),
            (
                "https://huggingface.co/Org/Name/blob/v1/m-Q4_0.gguf",
                Nothing,
                "hf:Org/Name@v1:m-Q4_0.gguf",
            ),
            ("Org/Name:m-Q4_0.gguf", Nothing, "hf:Org/Name:m-Q4_0.gguf"),
            ("Org/Name", Directory, "path:Org/Name"),
            ("path:x", Directory, "path:x"),
            ("x", Directory, "path:x"),
            ("m.gguf", File, "path:m.gguf"),
            ("synthetic:internvl3-1b", Nothing, "synthetic:internvl3-1b"),
            ("internvl3-1b", Nothing, "hf:OpenGVLab/InternVL3-1B"),
            ("InternVL3-1B", Nothing, "hf:OpenGVLab/InternVL3-1B"),
            ("internvl3-1b-int8", Nothing, "hf:OpenGVLab/InternVL3-1B"),
            ("internvl3-1b", Directory, "path:internvl3-1b"),
            ("smollm2", Nothing, "smollm2-135m-instruct"),
        ] {
            assert_eq!(from(text, place), expect, "{text}");
        }
    }

    #[test]
    fn pipelines_and_deployments_are_what_they_were() {
        let pipeline = |text: &str| Ok(ModelName::Pipeline(text.into()));
        assert_eq!(read("p.toml", Place::Nothing, &[]), pipeline("p.toml"));
        assert_eq!(read("p.toml", Place::File, &[]), pipeline("p.toml"));
        assert_eq!(read("p.toml#int8", Place::Nothing, &[]), pipeline("p.toml#int8"));
        assert_eq!(read("d", Place::Deployment, &[]), Ok(ModelName::Deployment("d".into())));
    }

    #[test]
    fn what_is_built_is_meant_before_what_could_be() {
        let built = [built::of_model("internvl3-1b", Digest::from_bytes([7; 32]))];
        let found = read("internvl3-1b", Place::Nothing, &built);
        assert_eq!(found, Ok(ModelName::Built(built[0].dir.clone())));
        assert!(matches!(read("internvl3-2b", Place::Nothing, &built), Ok(ModelName::Model(_))));
        assert!(matches!(
            read("hf:OpenGVLab/InternVL3-1B", Place::Nothing, &built),
            Ok(ModelName::Model(_))
        ));
    }

    #[test]
    fn a_shipped_precision_is_remembered() {
        let choice = |text: &str| match read(text, Place::Nothing, &[]) {
            Ok(ModelName::Model(source)) => source
                .choice()
                .map(|choice| (choice.model.name, choice.pipeline.map(|pipeline| pipeline.name))),
            other => panic!("{other:?}"),
        };
        assert_eq!(choice("internvl3-1b-int4"), Some(("internvl3-1b", Some("internvl3-1b-int4"))));
        assert_eq!(choice("internvl3-1b"), Some(("internvl3-1b", None)));
        assert_eq!(choice("hf:OpenGVLab/InternVL3-1B"), Some(("internvl3-1b", None)));
        assert_eq!(choice("hf:OpenGVLab/InternVL3-1B@v2"), None);
        assert_eq!(choice("minilm"), Some(("minilm", None)));
    }

    #[test]
    fn what_is_misspelt_is_told_with_what_is_near() {
        let error = |text: &str| read(text, Place::Nothing, &[]).unwrap_err();
        let internvl = error("intrnvl3-1b");
        assert!(internvl.contains("\"intrnvl3-1b\"; there is internvl3-1b, "), "{internvl}");
        assert!(error("qwen2").contains("qwen2-vl-2b"), "{}", error("qwen2"));
        assert!(error("synthetic:internvl3-1").contains("there is internvl3-1b"));
        assert!(!error("zzzzzzzzzz").contains("there is"));
        assert!(error("./absent").starts_with("./absent is not there;"));
        assert!(error("absent.gguf").starts_with("absent.gguf is not there;"));
        assert!(error("hf:nobody").contains("ORG/NAME"));
        assert!(error("a/b/c/d").contains("ORG"), "{}", error("a/b/c/d"));
    }

    #[test]
    fn a_model_has_a_word_for_people() {
        let word = |text: &str, place| match read(text, place, &[]) {
            Ok(ModelName::Model(source)) => source.word(),
            other => panic!("{other:?}"),
        };
        assert_eq!(word("hf:OpenGVLab/InternVL3-1B", Place::Nothing), "internvl3-1b");
        assert_eq!(word("hf:Qwen/Qwen2.5-VL-3B-Instruct", Place::Nothing), "qwen2.5-vl-3b");
        assert_eq!(word("Org/Some-Model", Place::Nothing), "some-model");
        assert_eq!(word("x/Model.Q4_K.gguf", Place::File), "model.q4_k");
        assert_eq!(word("/models/Mine/", Place::Directory), "mine");
    }
}
