//! Reads InternVL in the layout of transformers (`-hf` checkpoints), and names its tensors there.
//!
//! The same model under other field and tensor names; only the vision tower's fused qkv is three
//! tensors here, whose rows one after another are the fused one's.  Knows nothing of files.

use serde::Deserialize;
use serde_json::Value;

use super::{InternVl3, TOP, VISION, VisionFields, supported, vision};
use crate::config::{ConfigProblem, Scope};
use crate::decoder::{self, Family};

/// The model class of this layout.
pub(super) const ARCHITECTURE: &str = "InternVLForConditionalGeneration";

const TEXT: Scope = Scope("text_config");

/// The two ways transformers names the tensors of this layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// What it saves: `language_model.model.…`, `vision_tower.…`.
    Saved,
    /// What version 5 holds in memory, and some tools write: `model.language_model.…`.
    InMemory,
}

/// Words of the original names and what this layout has for them.
const RENAMED: [(&str, &str); 12] = [
    ("vision_model.embeddings.class_embedding", "vision_tower.embeddings.cls_token"),
    ("vision_model.embeddings.position_embedding", "vision_tower.embeddings.position_embeddings"),
    (".patch_embedding.", ".patch_embeddings.projection."),
    ("vision_model.encoder.layers.", "vision_tower.encoder.layer."),
    ("vision_model.", "vision_tower."),
    (".attn.proj.", ".attention.projection_layer."),
    (".norm1.", ".layernorm_before."),
    (".norm2.", ".layernorm_after."),
    ("mlp1.0.", "multi_modal_projector.layer_norm."),
    ("mlp1.1.", "multi_modal_projector.linear_1."),
    ("mlp1.3.", "multi_modal_projector.linear_2."),
    (".ls", ".lambda_"),
];

impl Names {
    /// The tensors whose rows, one after another, are those of the original layout's `name`.
    pub(crate) fn sources(self, name: &str) -> Vec<String> {
        if let Some(rest) = name.strip_prefix("language_model.") {
            return vec![self.of_decoder(rest)];
        }
        let mut name = name.to_owned();
        for (original, here) in RENAMED {
            name = name.replace(original, here);
        }
        if self == Self::InMemory {
            name.insert_str(0, "model.");
        }
        if !name.contains(".attn.qkv.") {
            return vec![name];
        }
        ["q", "k", "v"]
            .map(|part| name.replace(".attn.qkv.", &format!(".attention.{part}_proj.")))
            .to_vec()
    }

    fn of_decoder(self, rest: &str) -> String {
        match (self, rest.strip_prefix("model.")) {
            (Self::Saved, _) => format!("language_model.{rest}"),
            (Self::InMemory, Some(inner)) => format!("model.language_model.{inner}"),
            (Self::InMemory, None) => rest.to_owned(),
        }
    }
}

/// The fields of `config.json` that matter here; what transformers leaves out is its default.
#[derive(Deserialize)]
struct File {
    vision_config: Fields,
    text_config: decoder::Fields,
    #[serde(default = "half")]
    downsample_ratio: f64,
    #[serde(default = "last_layer")]
    vision_feature_layer: i64,
    #[serde(default = "without_class")]
    vision_feature_select_strategy: String,
    #[serde(default = "gelu")]
    projector_hidden_act: String,
}

#[derive(Deserialize)]
struct Fields {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    image_size: Value,
    patch_size: Value,
    #[serde(default = "rgb")]
    num_channels: usize,
    layer_norm_eps: f64,
    attention_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
    norm_type: String,
    hidden_act: String,
    #[serde(default)]
    use_mask_token: bool,
    #[serde(default = "yes")]
    use_absolute_position_embeddings: bool,
    #[serde(default = "yes")]
    use_mean_pooling: bool,
}

fn half() -> f64 {
    0.5
}

fn last_layer() -> i64 {
    -1
}

fn without_class() -> String {
    "default".to_owned()
}

fn gelu() -> String {
    "gelu".to_owned()
}

fn rgb() -> usize {
    3
}

fn yes() -> bool {
    true
}

/// How pictures are cut is not in this layout's configuration; every published model of the family
/// cuts them into up to 12 tiles and a thumbnail.
const TILES_MAX: usize = 12;

/// Reads the configuration of a model whose first architecture is [`ARCHITECTURE`].
pub(super) fn read(config: &Value) -> Result<InternVl3, ConfigProblem> {
    let family = family(&config["text_config"])?;
    let file =
        File::deserialize(config).map_err(|error| ConfigProblem::Unreadable(error.to_string()))?;
    check_arithmetic(&file)?;
    let vision = vision(&file.vision_config.original()?)?;
    Ok(InternVl3 {
        image_size: vision.image_size,
        vision,
        llm: file.text_config.decoder(family, TEXT)?,
        downsample_ratio: file.downsample_ratio,
        min_tiles: 1,
        max_tiles: TILES_MAX,
        use_thumbnail: true,
        template: "internvl2_5".to_owned(),
        is_hf: true,
    })
}

/// The decoder by its class, which saved configurations may lack, or by its type.
fn family(text: &Value) -> Result<&'static Family, ConfigProblem> {
    let class = text["architectures"][0].as_str();
    let kind = text["model_type"].as_str();
    let by_class = class.and_then(Family::of_architecture);
    let found = if class.is_some() { by_class } else { kind.and_then(Family::named) };
    found.ok_or_else(|| {
        let found = format!("{ARCHITECTURE} with {}", class.or(kind).unwrap_or("(none named)"));
        ConfigProblem::UnknownArchitecture { found, supported: supported() }
    })
}

/// Refuses every setting that means other arithmetic than the one built here.
fn check_arithmetic(file: &File) -> Result<(), ConfigProblem> {
    let tower = &file.vision_config;
    let ratio = file.downsample_ratio;
    TOP.only("downsample_ratio", ratio, "0.5", ratio == 0.5)?;
    let layer = file.vision_feature_layer;
    TOP.only("vision_feature_layer", layer, "-1", layer == -1)?;
    let rows = &file.vision_feature_select_strategy;
    TOP.only("vision_feature_select_strategy", rows, "default", rows == "default")?;
    let act = &file.projector_hidden_act;
    TOP.only("projector_hidden_act", act, "gelu", act == "gelu")?;
    VISION.only("attention_bias", tower.attention_bias, "true", tower.attention_bias)?;
    VISION.only("use_qk_norm", tower.use_qk_norm, "false", !tower.use_qk_norm)?;
    VISION.only("norm_type", &tower.norm_type, "layer_norm", tower.norm_type == "layer_norm")?;
    VISION.only("hidden_act", &tower.hidden_act, "gelu", tower.hidden_act == "gelu")?;
    VISION.only("use_mask_token", tower.use_mask_token, "false", !tower.use_mask_token)?;
    let placed = tower.use_absolute_position_embeddings;
    VISION.only("use_absolute_position_embeddings", placed, "true", placed)?;
    // Without pooling the tower ends in a norm that the original has not.
    VISION.only("use_mean_pooling", tower.use_mean_pooling, "true", tower.use_mean_pooling)
}

impl Fields {
    /// The same fields under the original layout's names.
    fn original(&self) -> Result<VisionFields, ConfigProblem> {
        Ok(VisionFields {
            hidden_size: self.hidden_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            intermediate_size: self.intermediate_size,
            image_size: side("image_size", &self.image_size)?,
            patch_size: side("patch_size", &self.patch_size)?,
            num_channels: self.num_channels,
            layer_norm_eps: self.layer_norm_eps,
            qkv_bias: self.attention_bias,
            norm_type: self.norm_type.clone(),
            qk_normalization: self.use_qk_norm,
            hidden_act: self.hidden_act.clone(),
        })
    }
}

/// The side of a square, written as a number or as height and width.
fn side(name: &str, value: &Value) -> Result<usize, ConfigProblem> {
    let both = match value.as_array().map(Vec::as_slice) {
        Some([height, width]) => [height, width],
        _ => [value, value],
    };
    match both.map(Value::as_u64) {
        [Some(height), Some(width)] if height == width => {
            Ok(usize::try_from(height).unwrap_or(usize::MAX))
        }
        _ => VISION.bad(name, value, "it must be one number, or the same one twice"),
    }
}
