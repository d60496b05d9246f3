//! Reads the configuration of a Qwen2-VL model, and lists the tensors of its vision tower.
//!
//! The flat `config.json` that is published, or the nested one that transformers writes, comes in;
//! checked dimensions come out.  The tower has LayerNorms, a plain MLP with the quick GELU, and attention over the whole
//! picture; the decoder is Qwen2's with three positions a token.  Knows nothing of tensor files.

use serde::Deserialize;
use smelt_family::{ModelFamily, TowerInput};

use super::{Config, FamilyEntry, Vision, VisionTower, qwen_vl, unscaled};
use crate::config::{ConfigProblem, List, Scope};
use crate::grid::Patching;
use crate::model::Model;

mod synthetic;

/// The model class.
pub const ARCHITECTURE: &str = "Qwen2VLForConditionalGeneration";

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
        list.norm("visual.merger.ln_q", hidden);
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

    fn noise(&self, name: &str, shape: &[usize]) -> Option<[f64; 2]> {
        if name.ends_with("mlp.fc2.weight") {
            return Some([0.0, unscaled(self.layers, shape)]);
        }
        qwen_vl::noise(name, shape, self.layers)
    }
}

impl Tower {
    fn list_block(&self, block: &str, list: &mut List) {
        let Self { hidden, intermediate, .. } = *self;
        list.norm(&format!("{block}.norm1"), hidden);
        list.linear(&format!("{block}.attn.qkv"), 3 * hidden, hidden);
        list.linear(&format!("{block}.attn.proj"), hidden, hidden);
        list.norm(&format!("{block}.norm2"), hidden);
        list.linear(&format!("{block}.mlp.fc1"), intermediate, hidden);
        list.linear(&format!("{block}.mlp.fc2"), hidden, intermediate);
    }
}

/// The fields of `vision_config` that matter here; others are free.
#[derive(Deserialize)]
struct Fields {
    depth: usize,
    embed_dim: usize,
    /// Channels of an image token.
    hidden_size: usize,
    mlp_ratio: f64,
    num_heads: usize,
    #[serde(default = "Fields::usual_act")]
    hidden_act: String,
    /// The published name; transformers writes its own beside it.
    in_chans: Option<usize>,
    in_channels: Option<usize>,
    patch_size: usize,
    spatial_merge_size: usize,
    temporal_patch_size: usize,
}

impl Fields {
    /// What transformers takes where the configuration does not say.
    fn usual_act() -> String {
        QUICK_GELU.to_owned()
    }
}

const QUICK_GELU: &str = "quick_gelu";

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
    synthetic: &synthetic::SIZES,
};

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let File { vision_config } = config.fields()?;
    let llm = qwen_vl::decoder(config, "qwen2", false)?;
    let vision = Some(Vision::Qwen2(tower(&vision_config, llm.hidden)?));
    let family = ModelFamily::QWEN2_VL.name();
    Ok(Model { family, vision, llm: Some(llm), encoder: None, layouts: qwen_vl::LAYOUTS })
}

fn tower(fields: &Fields, width: usize) -> Result<Tower, ConfigProblem> {
    let act = &fields.hidden_act;
    VISION.only("hidden_act", act, QUICK_GELU, act == QUICK_GELU)?;
    let hidden = VISION.size("embed_dim", fields.embed_dim)?;
    // As Python's `int` cuts it off; what is no number becomes 0 and is refused.
    let intermediate = (hidden as f64 * fields.mlp_ratio) as usize;
    let channels = fields.in_chans.or(fields.in_channels).unwrap_or(qwen_vl::RGB);
    let sides = [fields.patch_size, fields.spatial_merge_size, fields.temporal_patch_size];
    let patching = qwen_vl::patching(VISION, sides, ("in_chans", channels))?;
    let tower = Tower {
        patching,
        hidden,
        layers: VISION.layers("depth", fields.depth)?,
        heads: VISION.size("num_heads", fields.num_heads)?,
        intermediate: VISION.size("embed_dim times mlp_ratio", intermediate)?,
        width,
    };
    let (hidden, out) = (tower.hidden, fields.hidden_size);
    qwen_vl::sizes(VISION, ("embed_dim", hidden, tower.heads), ("hidden_size", out, width))?;
    Ok(tower)
}

#[cfg(test)]
mod tests {
    use super::super::golden::{Golden, check_refusal, parameters};
    use super::*;
    use crate::decoder;

    const GOLDEN: Golden = Golden("qwen2_vl-tiny");

    #[test]
    fn the_flat_configuration_and_the_nested_one_are_one_model() {
        let flat = GOLDEN.parse(&GOLDEN.config("checkpoint")).unwrap();
        let nested = GOLDEN.parse(&GOLDEN.config("nested")).unwrap();
        assert_eq!(flat.family, "qwen2_vl");
        assert_eq!((&flat.llm, &flat.vision), (&nested.llm, &nested.vision));
        let Some(Vision::Qwen2(tower)) = &flat.vision else { panic!("{flat:?}") };
        assert_eq!((tower.intermediate, tower.places_per_second()), (64, None));
        let sections = decoder::Sections { sizes: [2, 3, 3], is_interleaved: false };
        let llm = flat.llm.as_ref().unwrap();
        assert_eq!((llm.rope.sections, llm.family.name), (Some(sections), "qwen2"));
    }

    #[test]
    fn the_published_2b_has_its_parameters() {
        let sizes = [
            ("\"depth\": 4", "\"depth\": 32"),
            ("\"embed_dim\": 32", "\"embed_dim\": 1280"),
            ("\"mlp_ratio\": 2", "\"mlp_ratio\": 4"),
            ("\"num_heads\": 2", "\"num_heads\": 16"),
            ("\"patch_size\": 4", "\"patch_size\": 14"),
            ("\"hidden_size\": 64", "\"hidden_size\": 1536"),
            ("\"hidden_size\": 64", "\"hidden_size\": 1536"),
            ("\"intermediate_size\": 104", "\"intermediate_size\": 8960"),
            ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 28"),
            ("\"num_attention_heads\": 4", "\"num_attention_heads\": 12"),
            ("\"vocab_size\": 256", "\"vocab_size\": 151936"),
            ("2,\n      3,\n      3\n", "16,\n      24,\n      24\n"),
        ];
        assert_eq!(parameters(&GOLDEN.changed(&sizes)), 2_208_985_600);
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        let check = |from: &str, to: &str, words: &[&str]| check_refusal(GOLDEN, from, to, words);
        let act = "\"hidden_act\": \"gelu\", \"mlp_ratio\"";
        check("\"mlp_ratio\"", act, &["vision_config.hidden_act is gelu", "only quick_gelu"]);
        check("\"mlp_ratio\": 2", "\"mlp_ratio\": -2", &["embed_dim times mlp_ratio is 0"]);
        check("\"num_heads\": 2", "\"num_heads\": 3", &["vision_config.embed_dim is 32"]);
        check("\"num_heads\": 2", "\"num_heads\": 16", &["vision_config.embed_dim is 32"]);
        let width = "\"in_chans\": 3,\n    \"hidden_size\": 64";
        let other = width.replace("64", "65");
        check(width, &other, &["vision_config.hidden_size is 65", "of the decoder"]);
        check("mrope_section", "section", &["mrope_section is missing"]);
        check("\"patch_size\": 4,", "", &["missing field `patch_size`"]);
    }
}
