//! Reads the configuration of a Qwen3-VL model (Cosmos-Reason2 is one), and lists the tensors of
//! its vision tower.
//!
//! A `config.json` comes in; checked dimensions come out.  The tower has LayerNorms, learned
//! positions that are resampled to each grid, and gives features of some of its blocks (deepstack)
//! besides the last; the decoder is Qwen3's with three positions a token, taking turns.  Knows
//! nothing of tensor files.

use serde::Deserialize;
use smelt_family::{ModelFamily, TowerInput};

use super::{Config, FamilyEntry, Vision, VisionTower, qwen_vl};
use crate::config::{ConfigProblem, List, Scope};
use crate::decoder::Decoder;
use crate::grid::Patching;
use crate::model::{Layout, Model};
use crate::synthetic;

/// The model class.
pub const ARCHITECTURE: &str = "Qwen3VLForConditionalGeneration";

/// The epsilon of the tower's norms, which no configuration names.
pub const NORM_EPS: f32 = 1e-6;

/// The vision tower with its mergers.
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
    /// Learned positions on a side of their square.
    pub positions_side: usize,
    /// Blocks whose features are given too, ascending.
    pub deepstack: Vec<usize>,
}

impl VisionTower for Tower {
    fn list(&self, list: &mut List) {
        let Self { patching, hidden, .. } = *self;
        let Patching { patch, frames, channels, .. } = patching;
        let embed = "model.visual.patch_embed.proj";
        list.put(format!("{embed}.weight"), &[hidden, channels, frames, patch, patch]);
        list.put(format!("{embed}.bias"), &[hidden]);
        let positions = self.positions_side * self.positions_side;
        list.put("model.visual.pos_embed.weight", &[positions, hidden]);
        for layer in 0..self.layers {
            self.list_block(&format!("model.visual.blocks.{layer}"), list);
        }
        self.list_merger("model.visual.merger", hidden, list);
        for index in 0..self.deepstack.len() {
            let merger = format!("model.visual.deepstack_merger_list.{index}");
            self.list_merger(&merger, hidden * patching.unit(), list);
        }
    }

    fn patching(&self) -> Patching {
        self.patching
    }

    fn widths(&self) -> [usize; 2] {
        [self.hidden, self.intermediate]
    }

    fn gives(&self) -> Option<[usize; 2]> {
        Some([self.width, self.deepstack.len()])
    }

    fn input(&self) -> Option<TowerInput> {
        Some(qwen_vl::input(self.patching))
    }

    fn noise(&self, name: &str, shape: &[usize]) -> Option<[f64; 2]> {
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
        list.linear(&format!("{block}.mlp.linear_fc1"), intermediate, hidden);
        list.linear(&format!("{block}.mlp.linear_fc2"), hidden, intermediate);
    }

    fn list_merger(&self, merger: &str, normed: usize, list: &mut List) {
        let wide = self.hidden * self.patching.unit();
        list.norm(&format!("{merger}.norm"), normed);
        list.linear(&format!("{merger}.linear_fc1"), wide, wide);
        list.linear(&format!("{merger}.linear_fc2"), self.width, wide);
    }
}

/// What is published, which is what transformers holds in memory; the shorter names that some
/// tools write; the canonical names of the decoder.
const LAYOUTS: &[Layout] = &[
    Layout {
        sources: |name| qwen_vl::names(name, "model.visual.", "model.language_model."),
        ..Layout::CANONICAL
    },
    Layout { sources: |name| qwen_vl::names(name, "visual.", "model."), ..Layout::CANONICAL },
    Layout::CANONICAL,
];

/// The fields of `vision_config` that matter here; others are free.
#[derive(Deserialize)]
struct Fields {
    depth: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_heads: usize,
    hidden_act: String,
    #[serde(default = "rgb")]
    in_channels: usize,
    out_hidden_size: usize,
    patch_size: usize,
    spatial_merge_size: usize,
    temporal_patch_size: usize,
    num_position_embeddings: usize,
    deepstack_visual_indexes: Vec<usize>,
}

fn rgb() -> usize {
    3
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
    synthetic: &synthetic::qwen_vl::SIZES_3,
};

fn read(config: Config<'_>) -> Result<Model, ConfigProblem> {
    let File { vision_config } = config.fields()?;
    let mut llm = qwen_vl::decoder(config, "qwen3", true)?;
    let tower = tower(&vision_config, &llm)?;
    llm.deepstack = tower.deepstack.len();
    let vision = Some(Vision::Qwen3(tower));
    let family = ModelFamily::QWEN3_VL.name();
    Ok(Model { family, vision, llm: Some(llm), encoder: None, layouts: LAYOUTS })
}

fn tower(fields: &Fields, llm: &Decoder) -> Result<Tower, ConfigProblem> {
    let act = &fields.hidden_act;
    VISION.only("hidden_act", act, "gelu_pytorch_tanh", act == "gelu_pytorch_tanh")?;
    let positions = VISION.size("num_position_embeddings", fields.num_position_embeddings)?;
    let sides = [fields.patch_size, fields.spatial_merge_size, fields.temporal_patch_size];
    let tower = Tower {
        patching: qwen_vl::patching(VISION, sides, ("in_channels", fields.in_channels))?,
        hidden: VISION.size("hidden_size", fields.hidden_size)?,
        layers: VISION.layers("depth", fields.depth)?,
        heads: VISION.size("num_heads", fields.num_heads)?,
        intermediate: VISION.size("intermediate_size", fields.intermediate_size)?,
        width: llm.hidden,
        positions_side: positions.isqrt(),
        deepstack: fields.deepstack_visual_indexes.clone(),
    };
    let (hidden, out) = (tower.hidden, fields.out_hidden_size);
    qwen_vl::sizes(
        VISION,
        ("hidden_size", hidden, tower.heads),
        ("out_hidden_size", out, llm.hidden),
    )?;
    if tower.positions_side * tower.positions_side != positions {
        return VISION.bad("num_position_embeddings", positions, "it must be a square");
    }
    check_deepstack(&tower, llm)?;
    Ok(tower)
}

fn check_deepstack(tower: &Tower, llm: &Decoder) -> Result<(), ConfigProblem> {
    let blocks = &tower.deepstack;
    let field = "deepstack_visual_indexes";
    if let Some(block) = blocks.iter().find(|block| **block >= tower.layers) {
        return VISION.bad(field, block, "there is no such block");
    }
    if !blocks.is_sorted_by(|first, second| first < second) {
        return VISION.bad(field, format!("{blocks:?}"), "it must be ascending");
    }
    if blocks.len() > llm.layers {
        return VISION.bad(field, format!("{blocks:?}"), "the decoder has fewer layers than that");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::golden::{Golden, check_refusal, parameters};
    use super::*;
    use crate::decoder;

    const GOLDEN: Golden = Golden("qwen3_vl-tiny");

    #[test]
    fn the_published_configuration_and_that_of_transformers_are_one_model() {
        let published = GOLDEN.parse(&GOLDEN.config("checkpoint")).unwrap();
        let saved = GOLDEN.parse(&GOLDEN.config("nested")).unwrap();
        assert_eq!((&published.llm, &published.vision), (&saved.llm, &saved.vision));
        let llm = published.llm.unwrap();
        let sections = decoder::Sections { sizes: [6, 3, 3], is_interleaved: true };
        assert_eq!((llm.rope.sections, llm.deepstack, llm.head_dim), (Some(sections), 2, 24));
        let Some(Vision::Qwen3(tower)) = published.vision else { panic!("{saved:?}") };
        assert_eq!((tower.positions_side, &tower.deepstack[..]), (6, &[0, 2][..]));
    }

    #[test]
    fn the_published_2b_has_its_parameters() {
        let sizes = [
            ("\"depth\": 4", "\"depth\": 24"),
            ("0,\n      2\n", "5,\n      11,\n      17\n"),
            ("\"hidden_size\": 32", "\"hidden_size\": 1024"),
            ("\"intermediate_size\": 56", "\"intermediate_size\": 4096"),
            ("\"num_heads\": 2", "\"num_heads\": 16"),
            ("\"num_position_embeddings\": 36", "\"num_position_embeddings\": 2304"),
            ("\"out_hidden_size\": 64", "\"out_hidden_size\": 2048"),
            ("\"patch_size\": 4", "\"patch_size\": 16"),
            ("\"hidden_size\": 64", "\"hidden_size\": 2048"),
            ("\"intermediate_size\": 104", "\"intermediate_size\": 6144"),
            ("\"head_dim\": 24", "\"head_dim\": 128"),
            ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 28"),
            ("\"num_attention_heads\": 4", "\"num_attention_heads\": 16"),
            ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 8"),
            ("\"vocab_size\": 256", "\"vocab_size\": 151936"),
            ("6,\n        3,\n        3\n", "24,\n        20,\n        20\n"),
        ];
        assert_eq!(parameters(&GOLDEN.changed(&sizes)), 2_127_532_032);
    }

    #[test]
    fn other_arithmetic_is_refused_by_field() {
        let check = |from: &str, to: &str, words: &[&str]| check_refusal(GOLDEN, from, to, words);
        check("gelu_pytorch_tanh", "gelu", &["vision_config.hidden_act is gelu"]);
        let positions = "num_position_embeddings";
        check("_embeddings\": 36", "_embeddings\": 35", &[positions, "is 35", "a square"]);
        check("\"num_heads\": 2", "\"num_heads\": 5", &["vision_config.hidden_size is 32"]);
        check("_hidden_size\": 64", "_hidden_size\": 65", &["vision_config.out_hidden_size is 65"]);
        check("\"depth\": 4", "\"depth\": 2", &["deepstack_visual_indexes is 2", "no such block"]);
        check("0,\n      2\n", "2,\n      0\n", &["deepstack_visual_indexes is [2, 0]"]);
        check("0,\n      2\n", "0, 1, 2, 3\n", &["deepstack_visual_indexes is", "fewer layers"]);
        check("_interleaved\": true", "_interleaved\": false", &["mrope_section is not interl"]);
        check("mrope_section", "section", &["text_config.mrope_section is missing"]);
        check("6,\n        3,", "7,\n        3,", &["text_config.mrope_section is [7,3,3]"]);
        check("\"default\"", "\"longrope\"", &["text_config.rope_scaling is", "longrope"]);
    }
}
