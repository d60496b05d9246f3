//! Reads the configuration of an InternVL3 model, and lists the tensors it calls for.
//!
//! The text of a `config.json` in the original layout comes in; checked dimensions come out, from
//! which every tensor name and shape follows.  What would change the arithmetic and is not built
//! here (another norm, another rotary scaling) is refused by name.  Knows nothing of tensor files.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// The model class this module reads.
pub const ARCHITECTURE: &str = "InternVLChatModel";

/// The language model class this module reads.
pub const LLM_ARCHITECTURE: &str = "Qwen2ForCausalLM";

/// The largest size of any one dimension.  Real ones stay below 2^20; the bound keeps products of
/// three of them inside 64 bits.
pub const DIMENSION_MAX: usize = 1 << 21;

/// The most layers of one tower; the largest published model of the family has 80.
pub const LAYERS_MAX: usize = 1024;

/// The epsilon of the projector's LayerNorm: `nn.LayerNorm`'s default, which no config repeats.
pub const PROJECTOR_EPS: f32 = 1e-5;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ConfigProblem,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    /// It is not JSON, or a field is missing or of the wrong type.
    #[error("not a usable model configuration: {0}")]
    Unreadable(String),
    /// A model class nobody here knows.
    #[error(
        "unknown architecture {found:?}; supported: {ARCHITECTURE} with {LLM_ARCHITECTURE} (InternVL3, original layout)"
    )]
    UnknownArchitecture {
        /// The class the file names.
        found: String,
    },
    /// A field has a value that means arithmetic not built here.
    #[error("{field} is {found}, but only {supported} is supported")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The values that work.
        supported: &'static str,
    },
    /// A number is zero, too large, or does not fit another.
    #[error("{field} is {found}: {rule}")]
    BadNumber {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        rule: &'static str,
    },
}

/// A part of the model that has tensors of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The vision tower and the projector into the language model's space.
    Vision,
    /// The language model without its head.
    Llm,
    /// The language model's head, present only where it is not tied to the embedding.
    Head,
}

/// An InternVL3 model: vision tower, projector and language model.
#[derive(Clone, Debug, PartialEq)]
pub struct InternVl3 {
    /// The vision tower.
    pub vision: Vision,
    /// The language model.
    pub llm: Qwen2,
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
pub struct Vision {
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
    /// Epsilon of the encoder's LayerNorms.
    pub eps: f32,
}

/// The language model (Qwen2).
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen2 {
    /// Channels of a token.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Epsilon of the RMSNorms.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The longest sequence the rotary table is plain for.
    pub max_positions: usize,
}

impl Vision {
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

impl Qwen2 {
    /// Rows of the key or the value projection.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows of the query projection.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl InternVl3 {
    /// Reads the text of the `config.json` at `path`; the path is for messages only.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, its value and what would work.
    pub fn parse(json: &str, path: &Path) -> Result<Self, ConfigError> {
        read(json).map_err(|problem| ConfigError { path: path.into(), problem })
    }

    /// Image tokens of one tile after the pixel shuffle.
    pub fn tokens_per_tile(&self) -> usize {
        self.vision.patches() / (SHUFFLE * SHUFFLE)
    }

    /// Channels of one image token before the projector: the shuffle stacks four patches.
    pub fn shuffled_width(&self) -> usize {
        self.vision.hidden * SHUFFLE * SHUFFLE
    }

    /// Every tensor of `parts` with its shape, in a fixed order: input to output, layer by layer.
    pub fn tensors(&self, parts: &[Part]) -> Vec<(String, Vec<usize>)> {
        let mut list = List::default();
        for part in parts {
            match part {
                Part::Vision => self.list_vision(&mut list),
                Part::Llm => self.list_llm(&mut list),
                Part::Head => {
                    list.put("language_model.lm_head.weight", &[self.llm.vocab, self.llm.hidden]);
                }
            }
        }
        list.0
    }

    fn list_vision(&self, list: &mut List) {
        let Vision { hidden, patch_size: patch, channels, .. } = self.vision;
        let embeddings = "vision_model.embeddings";
        list.put(format!("{embeddings}.class_embedding"), &[1, 1, hidden]);
        list.put(format!("{embeddings}.patch_embedding.weight"), &[hidden, channels, patch, patch]);
        list.put(format!("{embeddings}.patch_embedding.bias"), &[hidden]);
        let positions = self.vision.patches() + 1;
        list.put(format!("{embeddings}.position_embedding"), &[1, positions, hidden]);
        for layer in 0..self.vision.layers {
            self.list_vision_layer(&format!("vision_model.encoder.layers.{layer}"), list);
        }
        let (wide, out) = (self.shuffled_width(), self.llm.hidden);
        list.put("mlp1.0.weight", &[wide]);
        list.put("mlp1.0.bias", &[wide]);
        list.linear("mlp1.1", out, wide);
        list.linear("mlp1.3", out, out);
    }

    fn list_vision_layer(&self, layer: &str, list: &mut List) {
        let Vision { hidden, intermediate, .. } = self.vision;
        list.put(format!("{layer}.norm1.weight"), &[hidden]);
        list.put(format!("{layer}.norm1.bias"), &[hidden]);
        list.linear(&format!("{layer}.attn.qkv"), 3 * hidden, hidden);
        list.linear(&format!("{layer}.attn.proj"), hidden, hidden);
        list.put(format!("{layer}.ls1"), &[hidden]);
        list.put(format!("{layer}.norm2.weight"), &[hidden]);
        list.put(format!("{layer}.norm2.bias"), &[hidden]);
        list.linear(&format!("{layer}.mlp.fc1"), intermediate, hidden);
        list.linear(&format!("{layer}.mlp.fc2"), hidden, intermediate);
        list.put(format!("{layer}.ls2"), &[hidden]);
    }

    fn list_llm(&self, list: &mut List) {
        let Qwen2 { hidden, vocab, .. } = self.llm;
        list.put("language_model.model.embed_tokens.weight", &[vocab, hidden]);
        for layer in 0..self.llm.layers {
            self.list_llm_layer(&format!("language_model.model.layers.{layer}"), list);
        }
        list.put("language_model.model.norm.weight", &[hidden]);
    }

    fn list_llm_layer(&self, layer: &str, list: &mut List) {
        let Qwen2 { hidden, intermediate, .. } = self.llm;
        let (q_width, kv_width) = (self.llm.q_width(), self.llm.kv_width());
        list.put(format!("{layer}.input_layernorm.weight"), &[hidden]);
        list.linear(&format!("{layer}.self_attn.q_proj"), q_width, hidden);
        list.linear(&format!("{layer}.self_attn.k_proj"), kv_width, hidden);
        list.linear(&format!("{layer}.self_attn.v_proj"), kv_width, hidden);
        list.put(format!("{layer}.self_attn.o_proj.weight"), &[hidden, q_width]);
        list.put(format!("{layer}.post_attention_layernorm.weight"), &[hidden]);
        list.put(format!("{layer}.mlp.gate_proj.weight"), &[intermediate, hidden]);
        list.put(format!("{layer}.mlp.up_proj.weight"), &[intermediate, hidden]);
        list.put(format!("{layer}.mlp.down_proj.weight"), &[hidden, intermediate]);
    }
}

/// The block a tensor belongs to: `vision_model.encoder.layers.3`, or the first two words of a name
/// outside the layers.
pub(crate) fn block_of(name: &str) -> &str {
    let words = if name.contains(".layers.") { 4 } else { 2 };
    let end = name.match_indices('.').nth(words - 1).map_or(name.len(), |(at, _)| at);
    &name[..end]
}

/// Patches on a side that the pixel shuffle makes one token of: the inverse of the ratio 0.5.
const SHUFFLE: usize = 2;

/// Tensor names and shapes being listed.
#[derive(Default)]
struct List(Vec<(String, Vec<usize>)>);

impl List {
    fn put(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.0.push((name.into(), shape.to_vec()));
    }

    /// A linear layer with a bias.
    fn linear(&mut self, name: &str, rows: usize, columns: usize) {
        self.put(format!("{name}.weight"), &[rows, columns]);
        self.put(format!("{name}.bias"), &[rows]);
    }
}

/// The fields of `config.json` that matter here; others are free.
#[derive(Deserialize)]
struct File {
    vision_config: VisionFields,
    llm_config: LlmFields,
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

#[derive(Deserialize)]
struct LlmFields {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    rms_norm_eps: f64,
    rope_theta: f64,
    hidden_act: String,
    max_position_embeddings: Option<usize>,
    rope_scaling: Option<Value>,
    #[serde(default)]
    use_sliding_window: bool,
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

/// What Qwen2 configs leave out when it is this.
const MAX_POSITIONS_DEFAULT: usize = 32768;

fn read(json: &str) -> Result<InternVl3, ConfigProblem> {
    let unreadable = |error: serde_json::Error| ConfigProblem::Unreadable(error.to_string());
    check_architectures(&serde_json::from_str(json).map_err(unreadable)?)?;
    let file: File = serde_json::from_str(json).map_err(unreadable)?;
    check_arithmetic(&file)?;
    let model = InternVl3 {
        vision: vision(&file.vision_config)?,
        llm: llm(&file.llm_config)?,
        downsample_ratio: file.downsample_ratio,
        image_size: file.vision_config.image_size,
        min_tiles: size("min_dynamic_patch", file.min_dynamic_patch)?,
        max_tiles: size("max_dynamic_patch", file.max_dynamic_patch)?,
        use_thumbnail: file.use_thumbnail,
        template: file.template,
    };
    if model.min_tiles > model.max_tiles {
        return bad("min_dynamic_patch", model.min_tiles, "it must not exceed max_dynamic_patch");
    }
    Ok(model)
}

/// Asks for the classes before anything else, so that another model is named, not a missing field.
fn check_architectures(config: &Value) -> Result<(), ConfigProblem> {
    let first = |config: &Value| config["architectures"][0].as_str().map(str::to_owned);
    let found = first(config).unwrap_or_else(|| {
        let kind = config["model_type"].as_str().unwrap_or("none named");
        format!("(model_type {kind})")
    });
    if found != ARCHITECTURE {
        return Err(ConfigProblem::UnknownArchitecture { found });
    }
    let llm = first(&config["llm_config"]).unwrap_or_else(|| "(none named)".to_owned());
    if llm != LLM_ARCHITECTURE {
        let found = format!("{ARCHITECTURE} with {llm}");
        return Err(ConfigProblem::UnknownArchitecture { found });
    }
    Ok(())
}

/// Refuses every setting that means other arithmetic than the one built here.
fn check_arithmetic(file: &File) -> Result<(), ConfigProblem> {
    let (vision, llm) = (&file.vision_config, &file.llm_config);
    only("downsample_ratio", file.downsample_ratio, "0.5", file.downsample_ratio == 0.5)?;
    only("ps_version", &file.ps_version, "v2", file.ps_version == "v2")?;
    only("select_layer", file.select_layer, "-1", file.select_layer == -1)?;
    only("vision_config.qkv_bias", vision.qkv_bias, "true", vision.qkv_bias)?;
    let norm = &vision.norm_type;
    only("vision_config.norm_type", norm, "layer_norm", norm == "layer_norm")?;
    let normed = vision.qk_normalization;
    only("vision_config.qk_normalization", normed, "false", !normed)?;
    let gelu = vision.hidden_act == "gelu";
    only("vision_config.hidden_act", &vision.hidden_act, "gelu", gelu)?;
    only("llm_config.hidden_act", &llm.hidden_act, "silu", llm.hidden_act == "silu")?;
    let sliding = llm.use_sliding_window;
    only("llm_config.use_sliding_window", sliding, "false", !sliding)?;
    let forced = file.force_image_size.unwrap_or(vision.image_size);
    let same = forced == vision.image_size;
    only("force_image_size", forced, "the value of vision_config.image_size", same)?;
    check_rope_scaling(llm.rope_scaling.as_ref())
}

/// Dynamic scaling leaves every position below `max_position_embeddings` as it is, so it is the
/// one kind that needs no arithmetic of its own.
fn check_rope_scaling(scaling: Option<&Value>) -> Result<(), ConfigProblem> {
    let Some(scaling) = scaling.filter(|scaling| !scaling.is_null()) else { return Ok(()) };
    let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str);
    let plain = matches!(kind, Some("default" | "dynamic"));
    only("llm_config.rope_scaling", scaling, "null, \"default\" or \"dynamic\"", plain)
}

fn vision(fields: &VisionFields) -> Result<Vision, ConfigProblem> {
    let vision = Vision {
        hidden: size("vision_config.hidden_size", fields.hidden_size)?,
        layers: layers("vision_config.num_hidden_layers", fields.num_hidden_layers)?,
        heads: size("vision_config.num_attention_heads", fields.num_attention_heads)?,
        intermediate: size("vision_config.intermediate_size", fields.intermediate_size)?,
        image_size: size("vision_config.image_size", fields.image_size)?,
        patch_size: size("vision_config.patch_size", fields.patch_size)?,
        channels: size("vision_config.num_channels", fields.num_channels)?,
        eps: epsilon("vision_config.layer_norm_eps", fields.layer_norm_eps)?,
    };
    if !vision.hidden.is_multiple_of(vision.heads) {
        return bad("vision_config.hidden_size", vision.hidden, "the heads do not divide it");
    }
    if !vision.image_size.is_multiple_of(vision.patch_size * SHUFFLE) {
        let rule = "it must hold an even number of patches on a side";
        return bad("vision_config.image_size", vision.image_size, rule);
    }
    Ok(vision)
}

fn llm(fields: &LlmFields) -> Result<Qwen2, ConfigProblem> {
    let hidden = size("llm_config.hidden_size", fields.hidden_size)?;
    let heads = size("llm_config.num_attention_heads", fields.num_attention_heads)?;
    let positions = fields.max_position_embeddings.unwrap_or(MAX_POSITIONS_DEFAULT);
    let llm = Qwen2 {
        hidden,
        layers: layers("llm_config.num_hidden_layers", fields.num_hidden_layers)?,
        heads,
        kv_heads: size("llm_config.num_key_value_heads", fields.num_key_value_heads)?,
        head_dim: size("llm_config.head_dim", fields.head_dim.unwrap_or(hidden / heads))?,
        intermediate: size("llm_config.intermediate_size", fields.intermediate_size)?,
        vocab: size("llm_config.vocab_size", fields.vocab_size)?,
        eps: epsilon("llm_config.rms_norm_eps", fields.rms_norm_eps)?,
        rope_theta: fields.rope_theta,
        max_positions: size("llm_config.max_position_embeddings", positions)?,
    };
    if fields.head_dim.is_none() && !hidden.is_multiple_of(heads) {
        return bad("llm_config.hidden_size", hidden, "the heads do not divide it");
    }
    if !heads.is_multiple_of(llm.kv_heads) {
        return bad("llm_config.num_key_value_heads", llm.kv_heads, "it must divide the heads");
    }
    if !llm.head_dim.is_multiple_of(2) {
        return bad("llm_config.head_dim", llm.head_dim, "rotary positions need an even number");
    }
    if !(llm.rope_theta.is_finite() && llm.rope_theta > 0.0) {
        return bad("llm_config.rope_theta", llm.rope_theta, "it must be positive");
    }
    Ok(llm)
}

fn size(field: &'static str, found: usize) -> Result<usize, ConfigProblem> {
    if (1..=DIMENSION_MAX).contains(&found) {
        return Ok(found);
    }
    bad(field, found, "it must be between 1 and 2097152")
}

fn layers(field: &'static str, found: usize) -> Result<usize, ConfigProblem> {
    if (1..=LAYERS_MAX).contains(&found) {
        return Ok(found);
    }
    bad(field, found, "it must be between 1 and 1024")
}

fn epsilon(field: &'static str, found: f64) -> Result<f32, ConfigProblem> {
    if found > 0.0 && found < 1.0 {
        return Ok(found as f32);
    }
    bad(field, found, "it must be between 0 and 1")
}

fn only(
    field: &'static str,
    found: impl ToString,
    supported: &'static str,
    holds: bool,
) -> Result<(), ConfigProblem> {
    if holds {
        return Ok(());
    }
    Err(ConfigProblem::Unsupported { field, found: found.to_string(), supported })
}

fn bad<T>(
    field: &'static str,
    found: impl ToString,
    rule: &'static str,
) -> Result<T, ConfigProblem> {
    Err(ConfigProblem::BadNumber { field, found: found.to_string(), rule })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn parse(json: &str) -> Result<InternVl3, ConfigError> {
        InternVl3::parse(json, Path::new("dir/config.json"))
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
        assert_eq!((model.vision.patches(), model.tokens_per_tile()), (16, 4));
        assert_eq!((model.vision.head_dim(), model.shuffled_width()), (16, 256));
        assert_eq!((model.llm.head_dim, model.llm.q_width(), model.llm.kv_width()), (12, 48, 24));
        assert_eq!((model.vision.eps, model.llm.rope_theta), (1e-6, 1e6));
        assert_eq!((model.min_tiles, model.max_tiles, model.use_thumbnail), (1, 4, true));
    }

    #[test]
    fn other_models_are_named_with_what_is_supported() {
        let supported = "InternVLChatModel with Qwen2ForCausalLM";
        check("[\"InternVLChatModel\"]", "[\"LlavaModel\"]", &["\"LlavaModel\"", supported]);
        check("[\"InternVLChatModel\"]", "[]", &["model_type internvl_chat", supported]);
        check("Qwen2ForCausalLM", "Qwen3ForCausalLM", &["Qwen3ForCausalLM", supported]);
        let error = parse("{}").unwrap_err().to_string();
        assert!(error.contains("(model_type none named)"), "{error}");
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        check("0.5", "0.25", &["downsample_ratio is 0.25", "only 0.5"]);
        check("\"v2\"", "\"v1\"", &["ps_version is v1", "only v2"]);
        check("-1", "-4", &["select_layer is -4"]);
        check("\"qkv_bias\": true", "\"qkv_bias\": false", &["vision_config.qkv_bias is false"]);
        check("layer_norm\"", "rms_norm\"", &["vision_config.norm_type is rms_norm"]);
        check("_normalization\": false", "_normalization\": true", &["qk_normalization is true"]);
        check("\"gelu\"", "\"quick_gelu\"", &["vision_config.hidden_act is quick_gelu"]);
        check("\"silu\"", "\"relu\"", &["llm_config.hidden_act is relu"]);
        check("\"dynamic\"", "\"yarn\"", &["llm_config.rope_scaling is", "yarn"]);
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
        let list = model.tensors(&[Part::Vision, Part::Llm, Part::Head]);
        let names: std::collections::BTreeSet<_> = list.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), list.len());
        assert_eq!(list.last().unwrap().0, "language_model.lm_head.weight");
        assert!(!model.tensors(&[Part::Llm]).iter().any(|(name, _)| name.contains("lm_head")));
        let shape = |name: &str| list.iter().find(|(n, _)| n == name).unwrap().1.clone();
        let layer = "language_model.model.layers.2";
        assert_eq!(shape(&format!("{layer}.self_attn.k_proj.weight")), [24, 48]);
        assert_eq!(shape(&format!("{layer}.mlp.down_proj.weight")), [48, 160]);
        assert_eq!(shape("vision_model.encoder.layers.1.attn.qkv.weight"), [192, 64]);
        assert_eq!(shape("vision_model.embeddings.position_embedding"), [1, 17, 64]);
        assert_eq!(shape("mlp1.1.weight"), [48, 256]);
    }

    #[test]
    fn blocks_are_layers_or_the_first_two_words() {
        for (name, block) in [
            ("vision_model.encoder.layers.3.attn.qkv.weight", "vision_model.encoder.layers.3"),
            ("language_model.model.layers.10.mlp.up_proj.weight", "language_model.model.layers.10"),
            ("language_model.lm_head.weight", "language_model.lm_head"),
            ("mlp1.0.bias", "mlp1.0"),
        ] {
            assert_eq!(block_of(name), block);
        }
    }
}
