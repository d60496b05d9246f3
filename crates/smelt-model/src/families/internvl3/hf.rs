//! Reads InternVL in the layout of transformers (`-hf` checkpoints), and names its tensors there.
//!
//! The same model under other field and tensor names; only the vision tower's fused qkv is three
//! tensors here, whose rows one after another are the fused one's.  Knows nothing of files.

use serde::Deserialize;
use serde_json::Value;

use super::{Config, InternVl3, TOP, VISION, VisionFields, check_norm, model, supported, vit};
use crate::config::{ConfigProblem, Scope};
use crate::decoder::{self, DecoderFamily};
use crate::model::{Layout, Model};

/// The model class of this layout.
pub(super) const ARCHITECTURE: &str = "InternVLForConditionalGeneration";

const TEXT: Scope = Scope("text_config");

/// The two ways transformers names the tensors of this layout: what it saves
/// (`language_model.model.…`, `vision_tower.…`), and what version 5 holds in memory, and some tools
/// write (`model.language_model.…`).
const LAYOUTS: &[Layout] = &[
    Layout { sources: saved, ..Layout::CANONICAL },
    Layout { sources: in_memory, ..Layout::CANONICAL },
];

/// Words of the original names and what this layout has for them.
const RENAMED: [(&str, &str); 14] = [
    ("vision_model.embeddings.class_embedding", "vision_tower.embeddings.cls_token"),
    ("vision_model.embeddings.position_embedding", "vision_tower.embeddings.position_embeddings"),
    (".patch_embedding.", ".patch_embeddings.projection."),
    ("vision_model.encoder.layers.", "vision_tower.encoder.layer."),
    ("vision_model.", "vision_tower."),
    (".attn.proj.", ".attention.projection_layer."),
    (".attn.q_norm.", ".attention.q_norm."),
    (".attn.k_norm.", ".attention.k_norm."),
    (".norm1.", ".layernorm_before."),
    (".norm2.", ".layernorm_after."),
    ("mlp1.0.", "multi_modal_projector.layer_norm."),
    ("mlp1.1.", "multi_modal_projector.linear_1."),
    ("mlp1.3.", "multi_modal_projector.linear_2."),
    (".ls", ".lambda_"),
];

fn saved(name: &str) -> Vec<String> {
    if name.starts_with("language_model.") { vec![name.to_owned()] } else { of_vision(name) }
}

fn in_memory(name: &str) -> Vec<String> {
    if let Some(rest) = name.strip_prefix("language_model.model.") {
        return vec![format!("model.language_model.{rest}")];
    }
    if let Some(head) = name.strip_prefix("language_model.") {
        return vec![head.to_owned()];
    }
    of_vision(name).into_iter().map(|name| format!("model.{name}")).collect()
}

/// The one fused tensor of q, k and v is three here.
fn of_vision(name: &str) -> Vec<String> {
    let rename = |name: String, (original, here): &(&str, &str)| name.replace(original, here);
    let name = RENAMED.iter().fold(name.to_owned(), rename);
    if !name.contains(".attn.qkv.") {
        return vec![name];
    }
    let part = |part: &str| name.replace(".attn.qkv.", &format!(".attention.{part}_proj."));
    ["q", "k", "v"].map(part).to_vec()
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
pub(super) fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let family = family(&config.tree["text_config"])?;
    let file: File = config.fields()?;
    check_arithmetic(&file)?;
    let vit = vit(&file.vision_config.original()?)?;
    let llm = file.text_config.decoder(family, TEXT)?;
    let tower = InternVl3 {
        image_size: vit.image_size,
        vit,
        width: llm.hidden,
        downsample_ratio: file.downsample_ratio,
        min_tiles: 1,
        max_tiles: TILES_MAX,
        use_thumbnail: true,
        template: "internvl2_5".to_owned(),
    };
    Ok(model(tower, llm, LAYOUTS))
}

/// The decoder by its class, which saved configurations may lack, or by its type.
fn family(text: &Value) -> Result<&'static DecoderFamily, ConfigProblem> {
    let class = text["architectures"][0].as_str();
    let kind = text["model_type"].as_str();
    let by_class = class.and_then(DecoderFamily::of_architecture);
    let found = if class.is_some() { by_class } else { kind.and_then(DecoderFamily::named) };
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
    check_norm(&tower.norm_type)?;
    // The norms of q and k take this epsilon whatever the configuration says.
    let (eps, same) = (tower.layer_norm_eps, !tower.use_qk_norm || tower.layer_norm_eps == 1e-6);
    VISION.only("layer_norm_eps", eps, "1e-6 where use_qk_norm is true", same)?;
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
