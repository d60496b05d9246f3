//! Reads the configuration of SmolVLM, SmolVLM2 and Idefics3, and lists the tensors it calls for.
//!
//! A tower of SigLIP's kind (no class row, a norm behind the layers), a pixel shuffle with one linear layer, and a
//! Llama.  Checked dimensions come out.  Published configurations leave out what transformers has as a default.
//! Knows nothing of tensor files.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use smelt_family::{ModelFamily, TowerInput};

use super::{Config, FamilyEntry, Tile, Vision, VisionTower, unreadable, unscaled};
use crate::config::{ConfigProblem, List, Scope};
use crate::decoder::{self, Decoder, DecoderFamily};
use crate::grid::{Grid, GridError, Patching};
use crate::model::{Layout, Model};

mod synthetic;

/// The model class of SmolVLM2.
pub const ARCHITECTURE: &str = "SmolVLMForConditionalGeneration";

/// The model class of the first SmolVLM and of Idefics3.
const IDEFICS3: &str = "Idefics3ForConditionalGeneration";

/// The vision tower with its connector.
#[derive(Clone, Debug, PartialEq)]
pub struct Tower {
    /// Channels of a patch.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Epsilon of the LayerNorms.
    pub eps: f32,
    /// Pixels on a side of a tile; those behind its last whole patch are not looked at.
    pub image_size: usize,
    /// Pixels on a side of a patch.
    pub patch_size: usize,
    /// Colour channels.
    pub channels: usize,
    /// Patches on a side that the pixel shuffle makes one token of.
    pub shuffle: usize,
    /// Channels of an image token: those of the language model.
    pub width: usize,
}

impl Tower {
    /// Patches on a side of a tile.
    pub fn grid(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Image tokens of a tile.
    pub fn tokens(&self) -> usize {
        (self.grid() / self.shuffle).pow(2)
    }

    /// Channels of an image token before the projection.
    pub fn shuffled_width(&self) -> usize {
        self.hidden * self.shuffle * self.shuffle
    }

    fn list_layer(&self, layer: &str, list: &mut List) {
        let Self { hidden, intermediate, .. } = *self;
        list.norm(&format!("{layer}.layer_norm1"), hidden);
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            list.linear(&format!("{layer}.self_attn.{part}"), hidden, hidden);
        }
        list.norm(&format!("{layer}.layer_norm2"), hidden);
        list.linear(&format!("{layer}.mlp.fc1"), intermediate, hidden);
        list.linear(&format!("{layer}.mlp.fc2"), hidden, intermediate);
    }

    /// The size of its tiles.
    fn size(&self) -> Grid {
        Grid { height: self.image_size, width: self.image_size }
    }
}

impl VisionTower for Tower {
    fn list(&self, list: &mut List) {
        let Self { hidden, patch_size: patch, channels, .. } = *self;
        list.put(PATCH_WEIGHT, &[hidden, channels, patch, patch]);
        list.put(PATCH_BIAS, &[hidden]);
        list.put(POSITIONS, &[self.grid() * self.grid(), hidden]);
        for layer in 0..self.layers {
            self.list_layer(&layer_name(layer), list);
        }
        list.norm(LAST_NORM, hidden);
        list.put(PROJECTION, &[self.width, self.shuffled_width()]);
    }

    /// The shuffle is the merge.
    fn patching(&self) -> Patching {
        let Self { patch_size: patch, shuffle: merge, channels, .. } = *self;
        Patching { patch, merge, frames: 1, channels }
    }

    fn widths(&self) -> [usize; 2] {
        [self.hidden, self.intermediate]
    }

    fn gives(&self) -> Option<[usize; 2]> {
        Some([self.width, 0])
    }

    fn input(&self) -> Option<TowerInput> {
        Some(TowerInput::Tile { side: self.image_size })
    }

    fn tile(&self) -> Option<Tile> {
        let (channels, side) = (self.channels, self.image_size);
        Some(Tile { channels, side, tokens: self.tokens() })
    }

    /// Tiles have one size, which need not be one of whole patches.
    fn grids(&self, _named: &[Grid]) -> Result<Vec<(Grid, usize)>, GridError> {
        Ok(vec![(self.size(), self.tokens())])
    }

    fn rows(&self, _named: &[Grid]) -> Option<usize> {
        Some(self.grid() * self.grid())
    }

    fn noise(&self, name: &str, shape: &[usize]) -> Option<[f64; 2]> {
        let (_, tower) = name.split_once("vision_model.")?;
        match tower {
            "embeddings.position_embedding.weight" => Some([0.0, 0.2]),
            _ if tower.ends_with("out_proj.weight") || tower.ends_with("fc2.weight") => {
                Some([0.0, unscaled(self.layers, shape)])
            }
            _ => None,
        }
    }
}

/// Names of the tower's tensors.
pub(crate) const PATCH_WEIGHT: &str = "vision_model.embeddings.patch_embedding.weight";
pub(crate) const PATCH_BIAS: &str = "vision_model.embeddings.patch_embedding.bias";
pub(crate) const POSITIONS: &str = "vision_model.embeddings.position_embedding.weight";
pub(crate) const LAST_NORM: &str = "vision_model.post_layernorm";
pub(crate) const PROJECTION: &str = "connector.modality_projection.proj.weight";

/// What the names of a layer's tensors begin with.
pub(crate) fn layer_name(layer: usize) -> String {
    format!("vision_model.encoder.layers.{layer}")
}

/// What transformers saves, and what every published checkpoint has.
const LAYOUTS: &[Layout] = &[Layout { sources: stored, ..Layout::CANONICAL }];

fn stored(name: &str) -> Vec<String> {
    let decoder = name.strip_prefix("language_model.model.");
    let head = name.strip_prefix("language_model.").filter(|_| decoder.is_none());
    vec![match (decoder, head) {
        (Some(rest), _) => format!("model.text_model.{rest}"),
        (None, Some(head)) => head.to_owned(),
        (None, None) => format!("model.{name}"),
    }]
}

/// The fields of `config.json` that matter here; others are free.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    vision_config: Fields,
    text_config: Map<String, Value>,
    #[serde(default = "two")]
    scale_factor: usize,
}

fn two() -> usize {
    2
}

/// The fields of the tower; what configurations leave out is transformers' default.
#[derive(Deserialize)]
#[serde(default)]
struct Fields {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_channels: usize,
    image_size: usize,
    patch_size: usize,
    hidden_act: String,
    layer_norm_eps: f64,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            hidden_size: 1152,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 16,
            num_channels: 3,
            image_size: 224,
            patch_size: 32,
            hidden_act: GELU_TANH.to_owned(),
            layer_norm_eps: 1e-6,
        }
    }
}

const GELU_TANH: &str = "gelu_pytorch_tanh";
const TOP: Scope = Scope("");
const VISION: Scope = Scope("vision_config");
const TEXT: Scope = Scope("text_config");

/// The row of this family.
pub(super) const FAMILY: FamilyEntry = FamilyEntry {
    architectures: &[ARCHITECTURE, IDEFICS3],
    words: || format!("{ARCHITECTURE} and Idefics3For…"),
    read,
    synthetic: &synthetic::SIZES,
};

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let file: File = config.fields()?;
    let llm = decoder(file.text_config)?;
    let tower = tower(&file.vision_config, file.scale_factor, llm.hidden)?;
    let (family, vision) = (ModelFamily::SMOLVLM.name(), Some(Vision::SmolVlm(tower)));
    Ok(Model { family, vision, llm: Some(llm), encoder: None, layouts: LAYOUTS })
}

/// A Llama, whatever its class calls itself.
fn decoder(mut text: Map<String, Value>) -> Result<Decoder, ConfigProblem> {
    let kind = text.get("model_type").and_then(Value::as_str).unwrap_or("llama");
    let llama = DecoderFamily::named(kind).filter(|family| family.name == "llama");
    let llama = llama.ok_or_else(|| ConfigProblem::UnknownArchitecture {
        found: format!("{ARCHITECTURE} with {kind}"),
        supported: (FAMILY.words)(),
    })?;
    let heads =
        text.get("num_attention_heads").cloned().map(|heads| ("num_key_value_heads", heads));
    let usual = [("hidden_act", json!("silu")), ("rms_norm_eps", json!(1e-6))];
    for (field, value) in usual.into_iter().chain(heads) {
        text.entry(field).or_insert(value);
    }
    let fields = decoder::Fields::deserialize(Value::Object(text)).map_err(unreadable)?;
    fields.decoder(llama, TEXT)
}

fn tower(fields: &Fields, shuffle: usize, width: usize) -> Result<Tower, ConfigProblem> {
    let act = &fields.hidden_act;
    VISION.only("hidden_act", act, GELU_TANH, act == GELU_TANH)?;
    let tower = Tower {
        hidden: VISION.size("hidden_size", fields.hidden_size)?,
        layers: VISION.layers("num_hidden_layers", fields.num_hidden_layers)?,
        heads: VISION.size("num_attention_heads", fields.num_attention_heads)?,
        intermediate: VISION.size("intermediate_size", fields.intermediate_size)?,
        eps: VISION.epsilon("layer_norm_eps", fields.layer_norm_eps)?,
        image_size: VISION.size("image_size", fields.image_size)?,
        patch_size: VISION.size("patch_size", fields.patch_size)?,
        channels: VISION.size("num_channels", fields.num_channels)?,
        shuffle: TOP.size("scale_factor", shuffle)?,
        width,
    };
    if !tower.hidden.is_multiple_of(tower.heads) {
        return VISION.bad("hidden_size", tower.hidden, "the heads do not divide it");
    }
    if tower.tokens() == 0 || !tower.grid().is_multiple_of(tower.shuffle) {
        let rule = "its patches on a side must be a multiple of scale_factor";
        return VISION.bad("image_size", tower.image_size, rule);
    }
    Ok(tower)
}

#[cfg(test)]
mod tests {
    use super::super::golden::{Golden, check_refusal};
    use super::*;
    use crate::model::ModelPart;

    const GOLDEN: Golden = Golden("smolvlm-tiny");

    fn tower_of(model: &Model) -> &Tower {
        let Some(Vision::SmolVlm(tower)) = &model.vision else { panic!("{model:?}") };
        tower
    }

    #[test]
    fn the_published_configuration_and_that_of_transformers_are_one_model() {
        let published = GOLDEN.parse(&GOLDEN.config("checkpoint")).unwrap();
        let saved = GOLDEN.parse(&GOLDEN.config("nested")).unwrap();
        assert_eq!(published.family, "smolvlm");
        assert_eq!((&published.llm, &published.vision), (&saved.llm, &saved.vision));
        let (tower, llm) = (tower_of(&published), published.llm.as_ref().unwrap());
        assert_eq!((tower.grid(), tower.tokens(), tower.shuffled_width()), (4, 4, 128));
        assert_eq!((llm.family.name, llm.head_dim, llm.rope.theta), ("llama", 16, 1e5));
        assert_eq!((tower.eps, llm.eps), (1e-6, 1e-5));
    }

    #[test]
    fn the_first_generation_is_the_same_under_its_class() {
        let second = GOLDEN.config("checkpoint");
        let first = second.replace(ARCHITECTURE, IDEFICS3).replace("smolvlm", "idefics3");
        let [first, second] = [first, second].map(|json| GOLDEN.parse(&json).unwrap());
        assert_eq!((first.family, &first.llm), (second.family, &second.llm));
        assert_eq!(first.vision, second.vision);
    }

    #[test]
    fn the_published_2_2b_has_its_parameters() {
        let model = GOLDEN.changed(&[
            ("\"scale_factor\": 2", "\"scale_factor\": 3"),
            ("\"head_dim\": 16", "\"head_dim\": 64"),
            ("\"hidden_size\": 64", "\"hidden_size\": 2048"),
            ("\"intermediate_size\": 104", "\"intermediate_size\": 8192"),
            ("\"num_attention_heads\": 4", "\"num_attention_heads\": 32"),
            ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 24"),
            ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 32"),
            ("\"vocab_size\": 256", "\"vocab_size\": 49280"),
            ("\"hidden_size\": 32", "\"hidden_size\": 1152"),
            ("\"image_size\": 18", "\"image_size\": 384"),
            ("\"intermediate_size\": 56", "\"intermediate_size\": 4304"),
            ("\"num_attention_heads\": 2", "\"num_attention_heads\": 16"),
            ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 27"),
            ("\"patch_size\": 4", "\"patch_size\": 14"),
        ]);
        let all = model.tensors(&[ModelPart::Vision, ModelPart::Llm, ModelPart::Head]);
        let weights: usize = all.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!((all.len(), weights), (657, 2_246_784_880));
        // 27 patches of 14 leave six of 384 pixels.
        assert_eq!((tower_of(&model).grid(), tower_of(&model).tokens()), (27, 81));
    }

    #[test]
    fn what_configurations_leave_out_is_a_default() {
        let config = GOLDEN.config("checkpoint");
        let without = |from: &str| {
            assert!(config.contains(from), "{from:?} is not there");
            GOLDEN.parse(&config.replacen(from, "", 1)).unwrap()
        };
        assert_eq!(without("\"scale_factor\": 2,").vision, GOLDEN.parse(&config).unwrap().vision);
        assert_eq!(tower_of(&without("\"intermediate_size\": 56,")).intermediate, 3072);
        assert_eq!(without("\"rms_norm_eps\": 1e-05,").llm.unwrap().eps, 1e-6);
        assert_eq!(without("\"num_key_value_heads\": 2,").llm.unwrap().kv_heads, 4);
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        let check = |from: &str, to: &str, words: &[&str]| check_refusal(GOLDEN, from, to, words);
        let act = "\"hidden_act\": \"gelu\", \"image_size\"";
        check(
            "\"image_size\"",
            act,
            &["vision_config.hidden_act is gelu", "only gelu_pytorch_tanh"],
        );
        check("\"llama\"", "\"mistral\"", &["with mistral", "supported: SmolVLM"]);
        check("\"image_size\": 18", "\"image_size\": 20", &["image_size is 20", "scale_factor"]);
        check("\"image_size\": 18", "\"image_size\": 3", &["image_size is 3", "scale_factor"]);
        check("\"num_attention_heads\": 2", "\"num_attention_heads\": 3", &["hidden_size is 32"]);
        check("\"scale_factor\": 2", "\"scale_factor\": 0", &["scale_factor is 0"]);
        check("\"vocab_size\": 256", "\"vocab_size\": 0", &["text_config.vocab_size is 0"]);
        let relu = "\"hidden_act\": \"relu\", \"head_dim\"";
        check("\"head_dim\"", relu, &["text_config.hidden_act is relu"]);
    }

    #[test]
    fn tensors_are_stored_under_one_prefix() {
        let names = [
            ("language_model.model.norm.weight", "model.text_model.norm.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            (PROJECTION, "model.connector.modality_projection.proj.weight"),
        ];
        for (canonical, name) in names {
            assert_eq!(stored(canonical), [name]);
        }
    }
}
