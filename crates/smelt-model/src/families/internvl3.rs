//! Reads the configuration of an InternVL3 or 3.5 model, and lists the tensors it calls for.
//!
//! The text of a `config.json` in the original layout or in that of transformers comes in; checked
//! dimensions come out, from which every tensor name and shape follows.  What would change the
//! arithmetic and is not built here (another norm, another rotary scaling) is refused by name.
//! Knows nothing of tensor files.

use serde::Deserialize;
use smelt_family::{ModelFamily, TowerInput};

use super::{Config, FamilyEntry, Tile, Vision, VisionTower};
use crate::config::{ConfigProblem, List, Scope};
use crate::decoder::{self, Decoder, DecoderFamily};
use crate::grid::{Grid, Patching};
use crate::model::{Layout, Model};
use crate::synthetic;

mod hf;

/// The model class of the original layout.
pub const ARCHITECTURE: &str = "InternVLChatModel";

/// The epsilon of the projector's LayerNorm: `nn.LayerNorm`'s default, which no config repeats.
pub const PROJECTOR_EPS: f32 = 1e-5;

/// What InternVL3 sees with: vision tower, pixel shuffle and projector.
#[derive(Clone, Debug, PartialEq)]
pub struct InternVl3 {
    /// The vision tower.
    pub vit: Vit,
    /// Channels of an image token: those of the language model.
    pub width: usize,
    /// Side of the token grid after the pixel shuffle, as a fraction of the patch grid: 0.5.
    pub downsample_ratio: f64,
    /// Pixels on a side of one square tile.
    pub image_size: usize,
    /// Fewest tiles a picture is cut into.
    pub min_tiles: usize,
    /// Most tiles a picture is cut into, the thumbnail apart.
    pub max_tiles: usize,
    /// Whether a picture of several tiles is also seen whole, as one more tile.
    pub use_thumbnail: bool,
    /// The name of the conversation template, for example `internvl2_5`.
    pub template: String,
}

/// The vision tower (InternViT).
#[derive(Clone, Debug, PartialEq)]
pub struct Vit {
    /// Channels of a patch.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Pixels on a side of a tile.
    pub image_size: usize,
    /// Pixels on a side of a patch.
    pub patch_size: usize,
    /// Colour channels.
    pub channels: usize,
    /// Epsilon of the encoder's norms.
    pub eps: f32,
    /// Whether the layers norm by RMSNorm (InternViT-6B) and not by LayerNorm.
    pub rms_norm: bool,
    /// Whether the whole rows of q and of k pass an RMSNorm before the heads are cut.
    pub qk_norm: bool,
    /// Whether q, k and v add a bias.
    pub qkv_bias: bool,
}

impl Vit {
    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Patches on a side of a tile.
    pub fn grid(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Patches of a tile.
    pub fn patches(&self) -> usize {
        self.grid() * self.grid()
    }
}

impl InternVl3 {
    /// Image tokens of one tile after the pixel shuffle.
    pub fn tokens_per_tile(&self) -> usize {
        self.vit.patches() / (SHUFFLE * SHUFFLE)
    }

    /// Channels of one image token before the projector: the shuffle stacks four patches.
    pub fn shuffled_width(&self) -> usize {
        self.vit.hidden * SHUFFLE * SHUFFLE
    }

    fn list_layer(&self, layer: &str, list: &mut List) {
        let Vit { hidden, intermediate, .. } = self.vit;
        self.list_norm(&format!("{layer}.norm1"), list);
        list.put(format!("{layer}.attn.qkv.weight"), &[3 * hidden, hidden]);
        if self.vit.qkv_bias {
            list.put(format!("{layer}.attn.qkv.bias"), &[3 * hidden]);
        }
        if self.vit.qk_norm {
            list.put(format!("{layer}.attn.q_norm.weight"), &[hidden]);
            list.put(format!("{layer}.attn.k_norm.weight"), &[hidden]);
        }
        list.linear(&format!("{layer}.attn.proj"), hidden, hidden);
        list.put(format!("{layer}.ls1"), &[hidden]);
        self.list_norm(&format!("{layer}.norm2"), list);
        list.linear(&format!("{layer}.mlp.fc1"), intermediate, hidden);
        list.linear(&format!("{layer}.mlp.fc2"), hidden, intermediate);
        list.put(format!("{layer}.ls2"), &[hidden]);
    }

    /// A norm of a layer; only LayerNorms have a bias.
    fn list_norm(&self, name: &str, list: &mut List) {
        list.put(format!("{name}.weight"), &[self.vit.hidden]);
        if !self.vit.rms_norm {
            list.put(format!("{name}.bias"), &[self.vit.hidden]);
        }
    }
}

impl VisionTower for InternVl3 {
    fn list(&self, list: &mut List) {
        let Vit { hidden, patch_size: patch, channels, .. } = self.vit;
        let embeddings = "vision_model.embeddings";
        list.put(format!("{embeddings}.class_embedding"), &[1, 1, hidden]);
        list.put(format!("{embeddings}.patch_embedding.weight"), &[hidden, channels, patch, patch]);
        list.put(format!("{embeddings}.patch_embedding.bias"), &[hidden]);
        let positions = self.vit.patches() + 1;
        list.put(format!("{embeddings}.position_embedding"), &[1, positions, hidden]);
        for layer in 0..self.vit.layers {
            self.list_layer(&format!("vision_model.encoder.layers.{layer}"), list);
        }
        let (wide, out) = (self.shuffled_width(), self.width);
        list.norm("mlp1.0", wide);
        list.linear("mlp1.1", out, wide);
        list.linear("mlp1.3", out, out);
    }

    /// The shuffle is the merge.
    fn patching(&self) -> Patching {
        let Vit { patch_size: patch, channels, .. } = self.vit;
        Patching { patch, merge: SHUFFLE, frames: 1, channels }
    }

    fn widths(&self) -> [usize; 2] {
        [self.vit.hidden, self.vit.intermediate]
    }

    fn gives(&self) -> Option<[usize; 2]> {
        Some([self.width, 0])
    }

    fn input(&self) -> Option<TowerInput> {
        let Self { image_size: side, min_tiles, max_tiles, use_thumbnail, .. } = *self;
        Some(TowerInput::Mosaic { side, min_tiles, max_tiles, use_thumbnail })
    }

    fn tile(&self) -> Option<Tile> {
        let (channels, side) = (self.vit.channels, self.image_size);
        Some(Tile { channels, side, tokens: self.tokens_per_tile() })
    }

    fn usual_grids(&self) -> Vec<Grid> {
        vec![Grid { height: self.image_size, width: self.image_size }]
    }
}

/// Patches on a side that the pixel shuffle makes one token of: the inverse of the ratio 0.5.
pub(crate) const SHUFFLE: usize = 2;

/// The fields of `config.json` that matter here; others are free.
#[derive(Deserialize)]
struct File {
    vision_config: VisionFields,
    llm_config: decoder::Fields,
    downsample_ratio: f64,
    ps_version: String,
    #[serde(default = "last_layer")]
    select_layer: i64,
    force_image_size: Option<usize>,
    #[serde(default)]
    template: String,
    #[serde(default = "one")]
    min_dynamic_patch: usize,
    max_dynamic_patch: usize,
    #[serde(default)]
    use_thumbnail: bool,
}

#[derive(Deserialize)]
struct VisionFields {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    image_size: usize,
    patch_size: usize,
    #[serde(default = "rgb")]
    num_channels: usize,
    layer_norm_eps: f64,
    qkv_bias: bool,
    norm_type: String,
    qk_normalization: bool,
    hidden_act: String,
}

fn last_layer() -> i64 {
    -1
}

fn one() -> usize {
    1
}

fn rgb() -> usize {
    3
}

const TOP: Scope = Scope("");
const VISION: Scope = Scope("vision_config");
const LLM: Scope = Scope("llm_config");

/// The layout that OpenGVLab publishes.
pub(super) const ORIGINAL: FamilyEntry = FamilyEntry {
    architectures: &[ARCHITECTURE],
    words: supported,
    read,
    synthetic: &synthetic::internvl3::SIZES,
};

/// The layout of transformers.
pub(super) const HF: FamilyEntry = FamilyEntry {
    architectures: &[hf::ARCHITECTURE],
    words: supported,
    read: hf::read,
    synthetic: &[],
};

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let family = family(config)?;
    let file: File = config.fields()?;
    check_arithmetic(&file)?;
    let llm = file.llm_config.decoder(family, LLM)?;
    let tower = InternVl3 {
        vit: vit(&file.vision_config)?,
        width: llm.hidden,
        downsample_ratio: file.downsample_ratio,
        image_size: file.vision_config.image_size,
        min_tiles: TOP.size("min_dynamic_patch", file.min_dynamic_patch)?,
        max_tiles: TOP.size("max_dynamic_patch", file.max_dynamic_patch)?,
        use_thumbnail: file.use_thumbnail,
        template: file.template,
    };
    if tower.min_tiles > tower.max_tiles {
        let rule = "it must not exceed max_dynamic_patch";
        return TOP.bad("min_dynamic_patch", tower.min_tiles, rule);
    }
    Ok(model(tower, llm, &[Layout::CANONICAL]))
}

fn model(tower: InternVl3, llm: Decoder, layouts: &'static [Layout]) -> Model {
    let vision = Some(Vision::InternVit(tower));
    Model { family: ModelFamily::INTERNVL3.name(), vision, llm: Some(llm), encoder: None, layouts }
}

/// The decoder's class, asked for before the fields, so that another is named, not a missing field.
fn family(config: Config<'_>) -> Result<&'static DecoderFamily, ConfigProblem> {
    let found = config.tree["llm_config"]["architectures"][0].as_str().unwrap_or("(none named)");
    DecoderFamily::of_architecture(found).ok_or_else(|| ConfigProblem::UnknownArchitecture {
        found: format!("{ARCHITECTURE} with {found}"),
        supported: supported(),
    })
}

fn supported() -> String {
    let families = DecoderFamily::ALL.map(|family| family.architecture).join(" or ");
    format!("{ARCHITECTURE} with {families} (InternVL3 and 3.5, original and -hf layouts)")
}

/// Refuses every setting that means other arithmetic than the one built here.
fn check_arithmetic(file: &File) -> Result<(), ConfigProblem> {
    let vision = &file.vision_config;
    TOP.only("downsample_ratio", file.downsample_ratio, "0.5", file.downsample_ratio == 0.5)?;
    TOP.only("ps_version", &file.ps_version, "v2", file.ps_version == "v2")?;
    TOP.only("select_layer", file.select_layer, "-1", file.select_layer == -1)?;
    check_norm(&vision.norm_type)?;
    let gelu = vision.hidden_act == "gelu";
    VISION.only("hidden_act", &vision.hidden_act, "gelu", gelu)?;
    let forced = file.force_image_size.unwrap_or(vision.image_size);
    let same = forced == vision.image_size;
    TOP.only("force_image_size", forced, "the value of vision_config.image_size", same)
}

fn check_norm(norm: &str) -> Result<(), ConfigProblem> {
    let known = ["layer_norm", RMS_NORM].contains(&norm);
    VISION.only("norm_type", norm, "layer_norm or rms_norm", known)
}

/// The norm of InternViT-6B.
const RMS_NORM: &str = "rms_norm";

fn vit(fields: &VisionFields) -> Result<Vit, ConfigProblem> {
    let vit = Vit {
        hidden: VISION.size("hidden_size", fields.hidden_size)?,
        layers: VISION.layers("num_hidden_layers", fields.num_hidden_layers)?,
        heads: VISION.size("num_attention_heads", fields.num_attention_heads)?,
        intermediate: VISION.size("intermediate_size", fields.intermediate_size)?,
        image_size: VISION.size("image_size", fields.image_size)?,
        patch_size: VISION.size("patch_size", fields.patch_size)?,
        channels: VISION.size("num_channels", fields.num_channels)?,
        eps: VISION.epsilon("layer_norm_eps", fields.layer_norm_eps)?,
        rms_norm: fields.norm_type == RMS_NORM,
        qk_norm: fields.qk_normalization,
        qkv_bias: fields.qkv_bias,
    };
    if !vit.hidden.is_multiple_of(vit.heads) {
        return VISION.bad("hidden_size", vit.hidden, "the heads do not divide it");
    }
    if !vit.image_size.is_multiple_of(vit.patch_size * SHUFFLE) {
        let rule = "it must hold an even number of patches on a side";
        return VISION.bad("image_size", vit.image_size, rule);
    }
    Ok(vit)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::ConfigError;
    use crate::model::ModelPart;

    const TINY: &str = r#"{
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat",
        "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1, "template": "internvl2_5",
        "min_dynamic_patch": 1, "max_dynamic_patch": 4, "use_thumbnail": true,
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 128, "image_size": 56, "patch_size": 14, "num_channels": 3,
            "layer_norm_eps": 1e-6, "qkv_bias": true, "norm_type": "layer_norm",
            "qk_normalization": false, "hidden_act": "gelu"},
        "llm_config": {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 48,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 160, "vocab_size": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0, "tie_word_embeddings": false, "hidden_act": "silu",
            "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    }"#;

    fn parse(json: &str) -> Result<Model, ConfigError> {
        Model::parse(json, Path::new("dir/config.json"))
    }

    fn parts(model: &Model) -> (&InternVl3, &Decoder) {
        let Some(Vision::InternVit(tower)) = &model.vision else { panic!("{model:?}") };
        (tower, model.llm.as_ref().unwrap())
    }

    /// Replaces `from` by `to` in a good configuration; the refusal must hold all `words`.
    #[track_caller]
    fn check(from: &str, to: &str, words: &[&str]) {
        assert_eq!(TINY.matches(from).count(), 1, "{from:?} must be there once");
        let error = parse(&TINY.replace(from, to)).unwrap_err().to_string();
        assert!(error.starts_with("dir/config.json: "), "{error}");
        for word in words {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
    }

    #[test]
    fn a_good_configuration_gives_the_dimensions() {
        let model = parse(TINY).unwrap();
        let (tower, llm) = parts(&model);
        assert_eq!((tower.vit.patches(), tower.tokens_per_tile()), (16, 4));
        assert_eq!((tower.vit.head_dim(), tower.shuffled_width()), (16, 256));
        assert_eq!((llm.head_dim, llm.q_width(), llm.kv_width()), (12, 48, 24));
        assert_eq!((tower.vit.eps, llm.rope.theta), (1e-6, 1e6));
        assert_eq!((tower.min_tiles, tower.max_tiles, tower.use_thumbnail), (1, 4, true));
    }

    #[test]
    fn other_models_are_named_with_what_is_supported() {
        let supported = "InternVLChatModel with Qwen2ForCausalLM or Qwen3ForCausalLM";
        check("[\"InternVLChatModel\"]", "[\"LlavaModel\"]", &["\"LlavaModel\"", supported]);
        check("[\"InternVLChatModel\"]", "[]", &["model_type internvl_chat", supported]);
        check("Qwen2ForCausalLM", "InternLM2ForCausalLM", &["InternLM2ForCausalLM", supported]);
        let error = parse("{}").unwrap_err().to_string();
        assert!(error.contains("(model_type none named)"), "{error}");
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        check("0.5", "0.25", &["downsample_ratio is 0.25", "only 0.5"]);
        check("\"v2\"", "\"v1\"", &["ps_version is v1", "only v2"]);
        check("-1", "-4", &["select_layer is -4"]);
        check("layer_norm\"", "batch_norm\"", &["vision_config.norm_type is batch_norm"]);
        check("\"gelu\"", "\"quick_gelu\"", &["vision_config.hidden_act is quick_gelu"]);
        check("\"silu\"", "\"relu\"", &["llm_config.hidden_act is relu"]);
        check("\"dynamic\"", "\"longrope\"", &["llm_config.rope_scaling is", "longrope"]);
        let forced = "\"force_image_size\": 448, \"ps_version\"";
        check("\"ps_version\"", forced, &["force_image_size is 448"]);
        let sliding = "\"use_sliding_window\": true, \"vocab_size\"";
        check("\"vocab_size\"", sliding, &["llm_config.use_sliding_window is true"]);
    }

    #[test]
    fn numbers_that_fit_nothing_are_refused_by_field() {
        check("\"vocab_size\": 512", "\"vocab_size\": 0", &["llm_config.vocab_size is 0"]);
        check("512", "99999999999", &["llm_config.vocab_size is 99999999999", "2097152"]);
        check("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000", &["vision_config.num_h"]);
        check("\"image_size\": 56", "\"image_size\": 57", &["vision_config.image_size", "even"]);
        check("\"hidden_size\": 64", "\"hidden_size\": 66", &["vision_config.hidden_size is 66"]);
        check("\"hidden_size\": 48", "\"hidden_size\": 50", &["llm_config.hidden_size is 50"]);
        check("\"hidden_size\": 48", "\"hidden_size\": 44", &["llm_config.head_dim is 11"]);
        check("_value_heads\": 2", "_value_heads\": 3", &["num_key_value_heads is 3", "divide"]);
        check("1000000.0", "-1.0", &["rope_theta is -1"]);
        check("\"rms_norm_eps\": 1e-6", "\"rms_norm_eps\": 0", &["rms_norm_eps is 0"]);
        check("\"min_dynamic_patch\": 1", "\"min_dynamic_patch\": 9", &["min_dynamic_patch is 9"]);
    }

    #[test]
    fn broken_json_is_refused_with_its_place() {
        check("\"intermediate_size\": 128,", "", &["missing field `intermediate_size`", "line"]);
        check("\"vocab_size\": 512", "\"vocab_size\": -1", &["-1", "line"]);
        check("\"downsample_ratio\"", "\"", &["line 3"]);
    }

    #[test]
    fn tensor_names_differ_and_the_head_is_a_part_of_its_own() {
        let model = parse(TINY).unwrap();
        let list = model.tensors(&[ModelPart::Vision, ModelPart::Llm, ModelPart::Head]);
        let names: std::collections::BTreeSet<_> = list.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), list.len());
        assert_eq!(list.last().unwrap().0, "language_model.lm_head.weight");
        assert!(!model.tensors(&[ModelPart::Llm]).iter().any(|(name, _)| name.contains("lm_head")));
        let shape = |name: &str| list.iter().find(|(n, _)| n == name).unwrap().1.clone();
        let layer = "language_model.model.layers.2";
        assert_eq!(shape(&format!("{layer}.self_attn.k_proj.weight")), [24, 48]);
        assert_eq!(shape(&format!("{layer}.mlp.down_proj.weight")), [48, 160]);
        assert_eq!(shape("vision_model.encoder.layers.1.attn.qkv.weight"), [192, 64]);
        assert_eq!(shape("vision_model.embeddings.position_embedding"), [1, 17, 64]);
        assert_eq!(shape("mlp1.1.weight"), [48, 256]);
    }

    #[test]
    fn the_large_tower_has_other_norms_and_no_bias_on_q_k_v() {
        let large = TINY
            .replace("\"layer_norm\"", "\"rms_norm\"")
            .replace("\"qk_normalization\": false", "\"qk_normalization\": true")
            .replace("\"qkv_bias\": true", "\"qkv_bias\": false");
        let list = parse(&large).unwrap().tensors(&[ModelPart::Vision]);
        let layer = "vision_model.encoder.layers.1.";
        let names: Vec<&str> =
            list.iter().filter_map(|(name, _)| name.strip_prefix(layer)).collect();
        let expect = "norm1.weight attn.qkv.weight attn.q_norm.weight attn.k_norm.weight \
                      attn.proj.weight attn.proj.bias ls1 norm2.weight mlp.fc1.weight mlp.fc1.bias \
                      mlp.fc2.weight mlp.fc2.bias ls2";
        assert_eq!(names.join(" "), expect);
    }

    fn qwen3() -> String {
        let family = TINY.replace("Qwen2ForCausalLM", "Qwen3ForCausalLM");
        family.replace("\"vocab_size\"", "\"attention_bias\": false, \"vocab_size\"")
    }

    #[test]
    fn qwen3_has_heads_of_their_own_width_norms_and_no_biases() {
        let model = parse(&qwen3()).unwrap();
        let llm = parts(&model).1;
        assert_eq!((llm.family.name, llm.head_dim, llm.q_width()), ("qwen3", 128, 512));
        let own = qwen3().replace("\"vocab_size\"", "\"head_dim\": 20, \"vocab_size\"");
        let list = parse(&own).unwrap().tensors(&[ModelPart::Llm]);
        let shape = |part: &str| {
            let name = format!("language_model.model.layers.1.self_attn.{part}");
            list.iter().find(|(n, _)| *n == name).map(|(_, shape)| shape.clone())
        };
        assert_eq!(shape("q_proj.weight"), Some(vec![80, 48]));
        assert_eq!(shape("o_proj.weight"), Some(vec![48, 80]));
        assert_eq!(shape("q_norm.weight"), Some(vec![20]));
        assert_eq!(shape("k_norm.weight"), Some(vec![20]));
        assert_eq!((shape("q_proj.bias"), list.len()), (None, 1 + 3 * 11 + 1));
    }

    #[test]
    fn qwen3_has_biases_where_the_configuration_says_so() {
        let biased = qwen3().replace("attention_bias\": false", "attention_bias\": true");
        let list = parse(&biased).unwrap().tensors(&[ModelPart::Llm]);
        let has = |name: &str| list.iter().any(|(n, _)| n.ends_with(name));
        assert!(has(".0.self_attn.o_proj.bias") && has(".0.self_attn.q_proj.bias"));
        assert_eq!(list.len(), 1 + 3 * 15 + 1);
    }
}
