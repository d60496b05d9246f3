//! Reads the configuration of CLIP or of one of its towers, and lists the tensors it calls for.
//!
//! Two transformers of the same layers, normed before attention and MLP: one over a class row and
//! the patches of a picture, one, causal, over a text.  Each ends in one row, which a projection
//! may take into the common space (Radford et al. 2021).  Knows nothing of tensor files.

use serde::Deserialize;
use smelt_family::TowerInput;

use super::{Config, FamilyEntry, Vision, VisionTower};
use crate::config::{ConfigProblem, List, Scope};
use crate::grid::{Grid, Patching};
use crate::model::{Encoder, Layout, Model};

/// What the towers have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Tower {
    /// Channels of a place.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Epsilon of the LayerNorms.
    pub eps: f32,
    /// What the MLP applies.
    pub act: Act,
    /// Channels of the common space, where the tower has a projection into it.
    pub projection: Option<usize>,
}

/// The function inside the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// GELU by erf.
    Gelu,
    /// x · sigmoid(1.702 x).
    QuickGelu,
}

/// The vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipVision {
    /// Its layers.
    pub tower: Tower,
    /// Pixels on a side of the pictures it was trained on.
    pub image_size: usize,
    /// Pixels on a side of a patch.
    pub patch_size: usize,
    /// Colour channels.
    pub channels: usize,
}

/// The text tower.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipText {
    /// Its layers.
    pub tower: Tower,
    /// Tokens.
    pub vocab: usize,
    /// Places a text may have.
    pub positions: usize,
    /// The place whose row stands for the text.
    pub end: End,
}

/// How the end of a text is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first place of the largest token: what `eos_token_id` 2 of early configurations means.
    LargestToken,
    /// The first place of this token.
    Token(i64),
}

const VISION_PREFIX: &str = "vision_model.";
const TEXT_PREFIX: &str = "text_model.";

impl ClipVision {
    /// Patches on a side of the pictures it was trained on.
    pub fn grid(&self) -> usize {
        self.image_size / self.patch_size
    }
}

impl VisionTower for ClipVision {
    fn list(&self, list: &mut List) {
        let (hidden, patch) = (self.tower.hidden, self.patch_size);
        list.put("vision_model.embeddings.class_embedding", &[hidden]);
        let patches = [hidden, self.channels, patch, patch];
        list.put("vision_model.embeddings.patch_embedding.weight", &patches);
        let positions = self.grid() * self.grid() + 1;
        list.put("vision_model.embeddings.position_embedding.weight", &[positions, hidden]);
        // The name is misspelt in every checkpoint.
        list.norm("vision_model.pre_layrnorm", hidden);
        self.tower.list(VISION_PREFIX, list);
        list.norm("vision_model.post_layernorm", hidden);
        if let Some(width) = self.tower.projection {
            list.put("visual_projection.weight", &[width, hidden]);
        }
    }

    /// Every patch is a place of its own.
    fn patching(&self) -> Patching {
        Patching { patch: self.patch_size, merge: 1, frames: 1, channels: self.channels }
    }

    fn widths(&self) -> [usize; 2] {
        [self.tower.hidden, self.tower.intermediate]
    }

    fn gives(&self) -> Option<[usize; 2]> {
        None
    }

    fn input(&self) -> Option<TowerInput> {
        None
    }

    fn usual_grids(&self) -> Vec<Grid> {
        vec![Grid { height: self.image_size, width: self.image_size }]
    }

    /// Forecasts go by the pictures that it was trained on.
    fn rows(&self, _named: &[Grid]) -> Option<usize> {
        Some(self.grid() * self.grid())
    }
}

impl ClipText {
    /// Every tensor, input to output.
    pub(crate) fn list(&self, list: &mut List) {
        let hidden = self.tower.hidden;
        list.put("text_model.embeddings.token_embedding.weight", &[self.vocab, hidden]);
        list.put("text_model.embeddings.position_embedding.weight", &[self.positions, hidden]);
        self.tower.list(TEXT_PREFIX, list);
        list.norm("text_model.final_layer_norm", hidden);
        if let Some(width) = self.tower.projection {
            list.put("text_projection.weight", &[width, hidden]);
        }
    }
}

impl Tower {
    fn list(&self, prefix: &str, list: &mut List) {
        let Self { hidden, intermediate, .. } = *self;
        for layer in 0..self.layers {
            let layer = format!("{prefix}encoder.layers.{layer}");
            list.norm(&format!("{layer}.layer_norm1"), hidden);
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                list.linear(&format!("{layer}.self_attn.{part}"), hidden, hidden);
            }
            list.norm(&format!("{layer}.layer_norm2"), hidden);
            list.linear(&format!("{layer}.mlp.fc1"), intermediate, hidden);
            list.linear(&format!("{layer}.mlp.fc2"), hidden, intermediate);
        }
    }
}

/// The fields of a whole CLIP that matter here.
#[derive(Deserialize)]
struct Both {
    text_config: TextFields,
    vision_config: VisionFields,
    /// What transformers takes instead of the above where it is given: early configurations.
    text_config_dict: Option<TextFields>,
    vision_config_dict: Option<VisionFields>,
    #[serde(default = "common_width")]
    projection_dim: usize,
}

fn common_width() -> usize {
    512
}

/// The fields of a text tower; what transformers leaves out is its default, that of ViT-B/32.
#[derive(Deserialize)]
#[serde(default)]
struct TextFields {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    layer_norm_eps: f64,
    hidden_act: String,
    projection_dim: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    eos_token_id: i64,
}

impl Default for TextFields {
    fn default() -> Self {
        Self {
            hidden_size: 512,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            intermediate_size: 2048,
            layer_norm_eps: 1e-5,
            hidden_act: "quick_gelu".to_owned(),
            projection_dim: common_width(),
            vocab_size: 49_408,
            max_position_embeddings: 77,
            eos_token_id: 49_407,
        }
    }
}

/// The fields of a vision tower; what transformers leaves out is its default, that of ViT-B/32.
#[derive(Deserialize)]
#[serde(default)]
struct VisionFields {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    layer_norm_eps: f64,
    hidden_act: String,
    projection_dim: usize,
    image_size: usize,
    patch_size: usize,
    num_channels: usize,
}

impl Default for VisionFields {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            layer_norm_eps: 1e-5,
            hidden_act: "quick_gelu".to_owned(),
            projection_dim: common_width(),
            image_size: 224,
            patch_size: 32,
            num_channels: 3,
        }
    }
}

const BOTH: &str = "CLIPModel";
const VISION: &str = "CLIPVisionModel";
const VISION_PROJECTED: &str = "CLIPVisionModelWithProjection";
const TEXT: &str = "CLIPTextModel";
const TEXT_PROJECTED: &str = "CLIPTextModelWithProjection";

/// Both towers, or one of them with or without its projection.
pub(super) const CLIP: FamilyEntry = FamilyEntry {
    architectures: &[BOTH, VISION, VISION_PROJECTED, TEXT, TEXT_PROJECTED],
    words: || format!("{BOTH}, {VISION} and {TEXT} (alone or …WithProjection)"),
    read,
    synthetic: &[],
};

/// With and without the prefix of the tower, which newer versions leave out for a tower alone.
const LAYOUTS: &[Layout] =
    &[Layout { ignores, ..Layout::CANONICAL }, Layout { sources: bare, ignores }];

fn bare(name: &str) -> Vec<String> {
    let bare = [VISION_PREFIX, TEXT_PREFIX].iter().find_map(|prefix| name.strip_prefix(prefix));
    vec![bare.unwrap_or(name).to_owned()]
}

/// Buffers that old versions saved, and the temperature of the training.
fn ignores(name: &str) -> bool {
    name == "logit_scale" || name.ends_with("embeddings.position_ids")
}

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let class = config.architecture().unwrap_or_default();
    let (mut vision, mut encoder) = (None, None);
    if class == BOTH {
        let both: Both = config.fields()?;
        let width = Scope("").size("projection_dim", both.projection_dim)?;
        let (text, picture) = (Scope("text_config"), Scope("vision_config"));
        let fields = both.text_config_dict.unwrap_or(both.text_config);
        encoder = Some(fields.tower(text, Some(width))?);
        let fields = both.vision_config_dict.unwrap_or(both.vision_config);
        vision = Some(fields.tower(picture, Some(width))?);
    } else if [VISION, VISION_PROJECTED].contains(&class) {
        let fields: VisionFields = config.fields()?;
        let width = (class == VISION_PROJECTED).then_some(fields.projection_dim);
        vision = Some(fields.tower(Scope(""), width)?);
    } else {
        let fields: TextFields = config.fields()?;
        let width = (class == TEXT_PROJECTED).then_some(fields.projection_dim);
        encoder = Some(fields.tower(Scope(""), width)?);
    }
    let (vision, encoder) = (vision.map(Vision::Clip), encoder.map(Encoder::ClipText));
    Ok(Model { family: "clip", vision, llm: None, encoder, layouts: LAYOUTS })
}

impl TextFields {
    fn tower(&self, scope: Scope, projection: Option<usize>) -> Result<ClipText, ConfigProblem> {
        let end = match self.eos_token_id {
            2 => End::LargestToken,
            token => End::Token(token),
        };
        let tower = Tower {
            hidden: scope.size("hidden_size", self.hidden_size)?,
            layers: scope.layers("num_hidden_layers", self.num_hidden_layers)?,
            heads: scope.size("num_attention_heads", self.num_attention_heads)?,
            intermediate: scope.size("intermediate_size", self.intermediate_size)?,
            eps: scope.epsilon("layer_norm_eps", self.layer_norm_eps)?,
            act: act(scope, &self.hidden_act)?,
            projection: projection.map(|width| scope.size("projection_dim", width)).transpose()?,
        };
        check_heads(scope, &tower)?;
        let vocab = scope.size("vocab_size", self.vocab_size)?;
        let positions = scope.size("max_position_embeddings", self.max_position_embeddings)?;
        if !(0..vocab as i64).contains(&self.eos_token_id) {
            return scope.bad("eos_token_id", self.eos_token_id, "it must be a token");
        }
        Ok(ClipText { tower, vocab, positions, end })
    }
}

impl VisionFields {
    fn tower(&self, scope: Scope, projection: Option<usize>) -> Result<ClipVision, ConfigProblem> {
        let tower = Tower {
            hidden: scope.size("hidden_size", self.hidden_size)?,
            layers: scope.layers("num_hidden_layers", self.num_hidden_layers)?,
            heads: scope.size("num_attention_heads", self.num_attention_heads)?,
            intermediate: scope.size("intermediate_size", self.intermediate_size)?,
            eps: scope.epsilon("layer_norm_eps", self.layer_norm_eps)?,
            act: act(scope, &self.hidden_act)?,
            projection: projection.map(|width| scope.size("projection_dim", width)).transpose()?,
        };
        check_heads(scope, &tower)?;
        let image_size = scope.size("image_size", self.image_size)?;
        let patch_size = scope.size("patch_size", self.patch_size)?;
        let channels = scope.size("num_channels", self.num_channels)?;
        if !image_size.is_multiple_of(patch_size) {
            return scope.bad("image_size", image_size, "it must hold whole patches");
        }
        Ok(ClipVision { tower, image_size, patch_size, channels })
    }
}

fn act(scope: Scope, name: &str) -> Result<Act, ConfigProblem> {
    match name {
        "gelu" => Ok(Act::Gelu),
        name => {
            scope.only("hidden_act", name, "gelu or quick_gelu", name == "quick_gelu")?;
            Ok(Act::QuickGelu)
        }
    }
}

fn check_heads(scope: Scope, tower: &Tower) -> Result<(), ConfigProblem> {
    if tower.hidden.is_multiple_of(tower.heads) {
        return Ok(());
    }
    scope.bad("hidden_size", tower.hidden, "the heads do not divide it")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::ModelPart;

    #[track_caller]
    fn check(json: &str, words: &[&str]) {
        let error = Model::parse(json, Path::new("dir/config.json")).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
    }

    fn model(json: &str) -> Model {
        Model::parse(json, Path::new("dir/config.json")).unwrap()
    }

    fn weights(model: &Model, part: ModelPart) -> usize {
        let sizes = model.tensors(&[part]);
        sizes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    #[test]
    fn what_is_left_out_is_vit_b_32() {
        let clip = model(
            r#"{"architectures": ["CLIPModel"], "text_config": {"eos_token_id": 2},
                "vision_config": {}, "text_config_dict": null}"#,
        );
        assert_eq!(clip.parts(), [ModelPart::Vision, ModelPart::Encoder]);
        // 151,277,313 published, one of them the temperature.
        let both = weights(&clip, ModelPart::Vision) + weights(&clip, ModelPart::Encoder);
        assert_eq!(both, 151_277_312);
        let Some(Encoder::ClipText(text)) = &clip.encoder else { panic!("{clip:?}") };
        assert_eq!((text.end, text.tower.act), (End::LargestToken, Act::QuickGelu));
    }

    #[test]
    fn towers_alone_have_a_projection_only_where_the_class_says_so() {
        let vision = |class| model(&format!(r#"{{"architectures": ["{class}"]}}"#));
        let (plain, projected) = (vision(VISION), vision(VISION_PROJECTED));
        let apart = weights(&projected, ModelPart::Vision) - weights(&plain, ModelPart::Vision);
        assert_eq!((apart, plain.parts()), (768 * 512, vec![ModelPart::Vision]));
        let (plain, projected) = (vision(TEXT), vision(TEXT_PROJECTED));
        let apart = weights(&projected, ModelPart::Encoder) - weights(&plain, ModelPart::Encoder);
        assert_eq!((apart, plain.parts()), (512 * 512, vec![ModelPart::Encoder]));
    }

    #[test]
    fn the_table_of_early_configurations_counts_where_it_is_given() {
        let clip = model(
            r#"{"architectures": ["CLIPModel"], "text_config": {"hidden_size": 64},
                "vision_config": {}, "vision_config_dict": {"patch_size": 16}}"#,
        );
        let (Some(Vision::Clip(vision)), Some(Encoder::ClipText(text))) =
            (&clip.vision, &clip.encoder)
        else {
            panic!("{clip:?}")
        };
        assert_eq!((vision.grid(), text.tower.hidden), (14, 64));
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        let vision =
            |fields: &str| format!(r#"{{"architectures": ["CLIPVisionModel"], {fields}}}"#);
        check(&vision("\"hidden_act\": \"relu\""), &["hidden_act is relu", "gelu or quick_gelu"]);
        check(&vision("\"image_size\": 225"), &["image_size is 225", "whole patches"]);
        check(&vision("\"num_attention_heads\": 7"), &["hidden_size is 768", "divide"]);
        check(&vision("\"layer_norm_eps\": 1.0"), &["layer_norm_eps is 1"]);
        let both = r#"{"architectures": ["CLIPModel"], "vision_config": {},
            "text_config": {"eos_token_id": 50000}}"#;
        check(both, &["text_config.eos_token_id is 50000", "token"]);
        check(r#"{"architectures": ["CLIPModel"]}"#, &["missing field `text_config`"]);
        check(r#"{"architectures": ["SiglipModel"]}"#, &["\"SiglipModel\"", "CLIPVisionModel"]);
    }
}
