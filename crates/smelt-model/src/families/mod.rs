//! Lists the families of models, and finds the one a configuration belongs to.
//!
//! A family is one file that reads like the model's description: the fields of its configuration,
//! its sizes, its tensors, how its checkpoints name them.  Adding one is that file and a row here.

use serde::Deserialize;
use serde_json::Value;

use crate::config::{ConfigProblem, Scope};
use crate::decoder;
use crate::model::Model;

pub mod bert;
pub mod clip;
#[cfg(test)]
mod golden;
pub mod internvl3;
#[cfg(test)]
mod layout_tests;
pub mod qwen2_5_vl;
pub mod qwen3_vl;
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

    /// The first class it names.  transformers 4.57 writes that of a Qwen2.5-VL into `text_config` alone.
    fn architecture(self) -> Option<&'a str> {
        let of_whole = |class: &&str| class.ends_with("ForConditionalGeneration");
        let nested = || self.tree["text_config"]["architectures"][0].as_str().filter(of_whole);
        self.tree["architectures"][0].as_str().or_else(nested)
    }
}

/// One family: the classes whose configurations it reads.
struct FamilyEntry {
    architectures: &'static [&'static str],
    /// What of them is supported, for the refusal of others.
    words: fn() -> String,
    read: fn(Config<'_>) -> Result<Model, ConfigProblem>,
}

const ALL: [FamilyEntry; 7] = [
    internvl3::ORIGINAL,
    internvl3::HF,
    qwen2_5_vl::FAMILY,
    qwen3_vl::FAMILY,
    text::TEXT,
    bert::BERT,
    clip::CLIP,
];

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

/// The decoder's fields of a Qwen-VL configuration and where they are: an object of their own, or
/// the top of the file.
fn text_fields(config: Config<'_>) -> Result<(decoder::Fields, Scope), ConfigProblem> {
    match config.tree.get("text_config") {
        Some(text) => Ok((decoder::Fields::deserialize(text).map_err(unreadable)?, NESTED)),
        None => Ok((config.fields()?, Scope(""))),
    }
}

const NESTED: Scope = Scope("text_config");

/// The one stored name of a Qwen-VL tensor where the tower's begin with `visual` and the decoder's
/// with `text`; the head stands alone.
fn vl_names(name: &str, visual: &str, text: &str) -> Vec<String> {
    let place = |start: &str, here: &str| Some(format!("{here}{}", name.strip_prefix(start)?));
    let stored = place("language_model.model.", text)
        .or_else(|| place("language_model.", ""))
        .or_else(|| place("model.visual.", visual))
        .or_else(|| place("visual.", visual));
    vec![stored.unwrap_or_else(|| name.to_owned())]
}

/// Refuses a Qwen-VL tower whose heads do not share its width in whole pairs for rows and columns,
/// or whose image tokens are not as wide as the decoder's.
fn vl_sizes(
    scope: Scope,
    [hidden, heads]: [usize; 2],
    [out, width]: [usize; 2],
) -> Result<(), ConfigProblem> {
    if !hidden.is_multiple_of(heads * 4) {
        let rule = "the heads must share it, each a multiple of 4";
        return scope.bad("hidden_size", hidden, rule);
    }
    if out != width {
        return scope.bad("out_hidden_size", out, "it must be the hidden_size of the decoder");
    }
    Ok(())
}

fn unreadable(error: serde_json::Error) -> ConfigProblem {
    ConfigProblem::Unreadable(error.to_string())
}
