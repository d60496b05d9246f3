//! Reads the configuration of a Qwen2.5-VL model, and lists the tensors of its vision tower.
//!
//! The flat `config.json` that is published, or the nested one that transformers writes, comes in;
//! checked dimensions come out.  The tower has RMSNorms, a gated MLP and attention inside windows
//! except in some layers; the decoder is Qwen2's with three positions a token.  Knows nothing of
//! tensor files.

use serde::Deserialize;
use smelt_family::{ModelFamily, TowerInput};

use super::{Config, FamilyEntry, Vision, VisionTower, qwen_vl};
use crate::config::{ConfigProblem, List, Scope};
use crate::grid::Patching;
use crate::model::Model;
use crate::synthetic;

/// The model class.
pub const ARCHITECTURE: &str = "Qwen2_5_VLForConditionalGeneration";

/// The epsilon of the tower's norms, which no configuration names.
pub const NORM_EPS: f32 = 1e-6;

/// The vision tower with its merger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tower {
    /// How it cuts pictures.
    pub patching: Patching,
    /// Channels of a patch.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Channels of an image token: those of the language model.
    pub width: usize,
    /// Image tokens on a side of a window.
    pub window: usize,
    /// Blocks whose attention sees the whole picture.
    pub full_attention: Vec<usize>,
    /// Places in time that a second of a clip takes.
    pub places_per_second: usize,
}

impl VisionTower for Tower {
    fn list(&self, list: &mut List) {
        let Self { patching, hidden, width, .. } = *self;
        let Patching { patch, frames, channels, .. } = patching;
        list.put("visual.patch_embed.proj.weight", &[hidden, channels, frames, patch, patch]);
        for layer in 0..self.layers {
            self.list_block(&format!("visual.blocks.{layer}"), list);
        }
        let wide = hidden * patching.unit();
        list.put("visual.merger.ln_q.weight", &[hidden]);
        list.linear("visual.merger.mlp.0", wide, wide);
        list.linear("visual.merger.mlp.2", width, wide);
    }

    fn patching(&self) -> Patching {
        self.patching
    }

    fn widths(&self) -> [usize; 2] {
        [self.hidden, self.intermediate]
    }

    fn gives(&self) -> Option<[usize; 2]> {
        Some([self.width, 0])
    }

    fn input(&self) -> Option<TowerInput> {
        Some(qwen_vl::input(self.patching))
    }

    fn places_per_second(&self) -> Option<u32> {
        self.places_per_second.try_into().ok()
    }

    fn noise(&self, name: &str, shape: &[usize]) -> Option<[f64; 2]> {
        qwen_vl::noise(name, shape, self.layers)
    }
}

impl Tower {
    fn list_block(&self, block: &str, list: &mut List) {
        let Self { hidden, intermediate, .. } = *self;
        list.put(format!("{block}.norm1.weight"), &[hidden]);
        list.linear(&format!("{block}.attn.qkv"), 3 * hidden, hidden);
        list.linear(&format!("{block}.attn.proj"), hidden, hidden);
        list.put(format!("{block}.norm2.weight"), &[hidden]);
        list.linear(&format!("{block}.mlp.gate_proj"), intermediate, hidden);
        list.linear(&format!("{block}.mlp.up_proj"), intermediate, hidden);
        list.linear(&format!("{block}.mlp.down_proj"), hidden, intermediate);
    }
}

/// The fields of `vision_config` that matter here; others are free.
#[derive(Deserialize)]
struct Fields {
    depth: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_heads: usize,
    hidden_act: String,
    /// The published name; transformers writes its own beside it.
    in_chans: Option<usize>,
    in_channels: Option<usize>,
    out_hidden_size: usize,
    patch_size: usize,
    spatial_merge_size: usize,
    temporal_patch_size: usize,
    window_size: usize,
    fullatt_block_indexes: Vec<usize>,
    #[serde(default = "Fields::usual_tokens_per_second")]
    tokens_per_second: usize,
}

impl Fields {
    /// What transformers takes where the configuration does not say.
    fn usual_tokens_per_second() -> usize {
        4
    }
}

#[derive(Deserialize)]
struct File {
    vision_config: Fields,
}

const VISION: Scope = Scope("vision_config");

/// The row of this family.
pub(super) const FAMILY: FamilyEntry = FamilyEntry {
    architectures: &[ARCHITECTURE],
    words: || ARCHITECTURE.to_owned(),
    read,
    synthetic: &synthetic::qwen_vl::SIZES_2_5,
};

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let File { vision_config } = config.fields()?;
    let llm = qwen_vl::decoder(config, "qwen2", false)?;
    let tower = tower(&vision_config, llm.hidden)?;
    let vision = Some(Vision::Qwen25(tower));
    let family = ModelFamily::QWEN2_5_VL.name();
    Ok(Model { family, vision, llm: Some(llm), encoder: None, layouts: qwen_vl::LAYOUTS })
}

fn tower(fields: &Fields, width: usize) -> Result<Tower, ConfigProblem> {
    let act = &fields.hidden_act;
    VISION.only("hidden_act", act, "silu", act == "silu")?;
    let channels = fields.in_chans.or(fields.in_channels).unwrap_or(qwen_vl::RGB);
    let sides = [fields.patch_size, fields.spatial_merge_size, fields.temporal_patch_size];
    let patching = qwen_vl::patching(VISION, sides, ("in_chans", channels))?;
    let tower = Tower {
        patching,
        hidden: VISION.size("hidden_size", fields.hidden_size)?,
        layers: VISION.layers("depth", fields.depth)?,
        heads: VISION.size("num_heads", fields.num_heads)?,
        intermediate: VISION.size("intermediate_size", fields.intermediate_size)?,
        width,
        window: VISION.size("window_size", fields.window_size)? / (patching.patch * patching.merge),
        full_attention: fields.fullatt_block_indexes.clone(),
        places_per_second: fields.tokens_per_second,
    };
    let (hidden, out) = (tower.hidden, fields.out_hidden_size);
    qwen_vl::sizes(VISION, ("hidden_size", hidden, tower.heads), ("out_hidden_size", out, width))?;
    if tower.window * patching.patch * patching.merge != fields.window_size {
        let rule = "it must be a multiple of patch_size times spatial_merge_size";
        return VISION.bad("window_size", fields.window_size, rule);
    }
    if let Some(block) = tower.full_attention.iter().find(|block| **block >= tower.layers) {
        return VISION.bad("fullatt_block_indexes", block, "there is no such block");
    }
    Ok(tower)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::golden::{Golden, check_refusal, parameters};
    use super::*;
    use crate::decoder;

    const GOLDEN: Golden = Golden("qwen2_5_vl-tiny");

    fn tower_of(model: &Model) -> &Tower {
        let Some(Vision::Qwen25(tower)) = &model.vision else { panic!("{model:?}") };
        tower
    }

    #[test]
    fn the_flat_configuration_and_the_nested_one_are_one_model() {
        let flat = GOLDEN.parse(&GOLDEN.config("checkpoint")).unwrap();
        let nested = GOLDEN.parse(&GOLDEN.config("nested")).unwrap();
        assert_eq!(
            (flat.family, &flat.llm, &flat.vision),
            ("qwen2_5_vl", &nested.llm, &nested.vision)
        );
        let (tower, llm) = (tower_of(&flat), flat.llm.as_ref().unwrap());
        assert_eq!((tower.window, &tower.full_attention[..]), (3, &[1, 3][..]));
        assert_eq!(tower.places_per_second, 2);
        let sections = decoder::Sections { sizes: [2, 3, 3], is_interleaved: false };
        assert_eq!(
            (llm.rope.sections, llm.deepstack, llm.family.name),
            (Some(sections), 0, "qwen2")
        );
    }

    #[test]
    fn the_class_may_be_named_with_the_decoder() {
        let mut config: Value = serde_json::from_str(&GOLDEN.config("nested")).unwrap();
        config["text_config"]["architectures"] = config["architectures"].take();
        assert_eq!(GOLDEN.parse(&config.to_string()).unwrap().family, "qwen2_5_vl");
    }

    #[test]
    fn the_published_3b_has_its_parameters() {
        let sizes = [
            ("\"depth\": 4", "\"depth\": 32"),
            ("\"hidden_size\": 32", "\"hidden_size\": 1280"),
            ("\"intermediate_size\": 42", "\"intermediate_size\": 3420"),
            ("\"num_heads\": 2", "\"num_heads\": 16"),
            ("\"out_hidden_size\": 64", "\"out_hidden_size\": 2048"),
            ("\"patch_size\": 4", "\"patch_size\": 14"),
            ("\"window_size\": 24", "\"window_size\": 112"),
            ("\"hidden_size\": 64", "\"hidden_size\": 2048"),
            ("\"intermediate_size\": 104", "\"intermediate_size\": 11008"),
            ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 36"),
            ("\"num_attention_heads\": 4", "\"num_attention_heads\": 16"),
            ("\"vocab_size\": 256", "\"vocab_size\": 151936"),
            ("2,\n      3,\n      3\n", "16,\n      24,\n      24\n"),
        ];
        assert_eq!(parameters(&GOLDEN.changed(&sizes)), 3_754_622_976);
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        let check = |from: &str, to: &str, words: &[&str]| check_refusal(GOLDEN, from, to, words);
        let act = "\"hidden_act\": \"silu\",\n    \"hidden_size\": 32";
        let gelu = act.replace("silu", "gelu");
        check(act, &gelu, &["vision_config.hidden_act is gelu"]);
        check("\"window_size\": 24", "\"window_size\": 20", &["vision_config.window_size is 20"]);
        check("\"num_heads\": 2", "\"num_heads\": 3", &["vision_config.hidden_size is 32"]);
        check("\"num_heads\": 2", "\"num_heads\": 16", &["vision_config.hidden_size is 32"]);
        check("_hidden_size\": 64", "_hidden_size\": 65", &["vision_config.out_hidden_size is 65"]);
        check("\"depth\": 4", "\"depth\": 3", &["fullatt_block_indexes is 3", "no such block"]);
        check("\"type\": \"mrope\"", "\"type\": \"longrope\"", &["rope_scaling is", "longrope"]);
        check("mrope_section", "section", &["mrope_section is missing"]);
        check("\"type\"", "\"mrope_interleaved\": true, \"type\"", &["mrope_section is interl"]);
        check("\"patch_size\": 4,", "", &["missing field `patch_size`"]);
        check("\"vocab_size\": 256", "\"vocab_size\": 0", &["vocab_size is 0"]);
    }
}
