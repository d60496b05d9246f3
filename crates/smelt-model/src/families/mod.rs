//! Lists the families of models, and finds the one a configuration belongs to.
//!
//! A family is one file that reads like the model's description: the fields of its configuration,
//! its sizes, its tensors, how its checkpoints name them.  Adding one is that file and a row here.

use serde_json::Value;

use crate::config::ConfigProblem;
use crate::model::Model;

pub mod internvl3;
mod text;

/// A `config.json`, as text (whose errors have a place) and as a tree.
#[derive(Clone, Copy)]
pub(crate) struct Config<'a> {
    text: &'a str,
    tree: &'a Value,
}

impl<'a> Config<'a> {
    /// The whole configuration as the fields of `T`.
    fn fields<T: serde::de::DeserializeOwned>(self) -> Result<T, ConfigProblem> {
        serde_json::from_str(self.text).map_err(unreadable)
    }

    /// The first class it names.
    fn architecture(self) -> Option<&'a str> {
        self.tree["architectures"][0].as_str()
    }
}

/// One family: the classes whose configurations it reads.
struct Family {
    architectures: &'static [&'static str],
    /// What of them is supported, for the refusal of others.
    words: fn() -> String,
    read: fn(Config<'_>) -> Result<Model, ConfigProblem>,
}

const ALL: [Family; 3] = [internvl3::ORIGINAL, internvl3::HF, text::TEXT];

/// The model that the text of a configuration describes.
pub(crate) fn read(text: &str) -> Result<Model, ConfigProblem> {
    let tree: Value = serde_json::from_str(text).map_err(unreadable)?;
    let config = Config { text, tree: &tree };
    let class = config.architecture();
    let family = class.and_then(|class| ALL.iter().find(|f| f.architectures.contains(&class)));
    match family {
        Some(family) => (family.read)(config),
        None => Err(unknown(&config)),
    }
}

/// Names the class before anything else, so that another model is named, not a missing field.
fn unknown(config: &Config<'_>) -> ConfigProblem {
    let found = config.architecture().map_or_else(
        || format!("(model_type {})", config.tree["model_type"].as_str().unwrap_or("none named")),
        str::to_owned,
    );
    ConfigProblem::UnknownArchitecture { found, supported: supported() }
}

/// Every class there is, in words.
fn supported() -> String {
    let mut words: Vec<String> = ALL.iter().map(|family| (family.words)()).collect();
    words.dedup();
    words.join("; ")
}

fn unreadable(error: serde_json::Error) -> ConfigProblem {
    ConfigProblem::Unreadable(error.to_string())
}
