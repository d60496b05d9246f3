//! Lists the families of models, and finds the one a configuration belongs to.
//!
//! A family is one file that reads like the model's description: the fields of its configuration,
//! its sizes, its tensors, how its checkpoints name them.  Adding one is that file and a row here; of a family
//! that sees, its tower is a row of [`Vision`], too.  What all models of a family share is in `smelt-family`.

use serde_json::Value;
pub use smelt_family::TowerInput;

use crate::config::{ConfigProblem, List};
use crate::grid::{Grid, GridError, Patching};
use crate::model::Model;
use crate::synthetic;

pub mod bert;
pub mod clip;
#[cfg(test)]
mod golden;
pub mod internvl3;
#[cfg(test)]
mod layout_tests;
pub mod qwen2_5_vl;
pub mod qwen2_vl;
pub mod qwen3_vl;
mod qwen_vl;
pub mod smolvlm;
mod text;
mod tower;

pub use tower::Tile;
pub(crate) use tower::VisionTower;

/// A vision tower with its way into the space of what follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Vision {
    /// InternViT, pixel shuffle and projector.
    InternVit(internvl3::InternVl3),
    /// The tower of Qwen2-VL.
    Qwen2(qwen2_vl::Tower),
    /// The tower of Qwen2.5-VL.
    Qwen25(qwen2_5_vl::Tower),
    /// The tower of Qwen3-VL.
    Qwen3(qwen3_vl::Tower),
    /// The tower of SmolVLM.
    SmolVlm(smolvlm::Tower),
    /// CLIP's ViT with its projection, if it has one.
    Clip(clip::ClipVision),
}

impl Vision {
    /// What it tells of itself.
    fn tower(&self) -> &dyn VisionTower {
        match self {
            Self::InternVit(tower) => tower,
            Self::Qwen2(tower) => tower,
            Self::Qwen25(tower) => tower,
            Self::Qwen3(tower) => tower,
            Self::SmolVlm(tower) => tower,
            Self::Clip(tower) => tower,
        }
    }

    /// Every tensor, input to output.
    pub(crate) fn list(&self, list: &mut List) {
        self.tower().list(list);
    }

    /// Channels of a patch, and those inside the MLP.
    pub(crate) fn widths(&self) -> [usize; 2] {
        self.tower().widths()
    }

    /// Rows of patches of the largest of `grids`, or of the usual pictures; nothing where a grid does not fit.
    pub(crate) fn rows(&self, grids: &[Grid]) -> Option<usize> {
        self.tower().rows(grids)
    }

    /// Mean and deviation of a synthetic weight, where the tower has its own.
    pub(crate) fn noise(&self, name: &str, shape: &[usize]) -> Option<[f64; 2]> {
        self.tower().noise(name, shape)
    }

    /// How it cuts pictures.
    pub fn patching(&self) -> Patching {
        self.tower().patching()
    }

    /// Numbers of an image token, and how many blocks tell more of it (deepstack); nothing of a tower before no
    /// decoder.
    pub fn gives(&self) -> Option<[usize; 2]> {
        self.tower().gives()
    }

    /// What a deployment cuts pictures for; nothing of a tower before no decoder.
    pub fn input(&self) -> Option<TowerInput> {
        self.tower().input()
    }

    /// The tile, of a tower that takes tiles of one size before a decoder.
    pub fn tile(&self) -> Option<Tile> {
        self.tower().tile()
    }

    /// The sizes of pictures that an export for `named` grids takes, and image tokens of each; the usual ones where
    /// none are named.
    ///
    /// # Errors
    /// [`GridError`] if a grid does not fit.
    pub fn grids(&self, named: &[Grid]) -> Result<Vec<(Grid, usize)>, GridError> {
        self.tower().grids(named)
    }

    /// Places in time that a second of a clip takes, of a decoder that counts them.
    pub fn places_per_second(&self) -> Option<u32> {
        self.tower().places_per_second()
    }
}

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
    /// Its models that are written without a download.
    synthetic: &'static [synthetic::Size],
}

static ALL: [FamilyEntry; 9] = [
    internvl3::ORIGINAL,
    internvl3::HF,
    qwen2_5_vl::FAMILY,
    qwen3_vl::FAMILY,
    smolvlm::FAMILY,
    qwen2_vl::FAMILY,
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

/// Every model that is written without a download, family by family.
pub(crate) fn synthetic() -> impl Iterator<Item = &'static synthetic::Size> {
    ALL.iter().flat_map(|family| family.synthetic)
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

/// The deviation of what ends a branch where no layer scales it as InternViT's do: all blocks together add about what
/// came in.
fn unscaled(layers: usize, shape: &[usize]) -> f64 {
    let inputs: usize = shape.iter().skip(1).product();
    1.0 / ((2 * layers * inputs) as f64).sqrt()
}

fn unreadable(error: serde_json::Error) -> ConfigProblem {
    ConfigProblem::Unreadable(error.to_string())
}
