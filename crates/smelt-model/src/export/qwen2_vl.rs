//! Writes Qwen2-VL's vision tower as an ONNX graph for one grid.
//!
//! Rows stay in the order of the picture, which is that of image tokens; every row sees all others.  All sizes are
//! constants.

use smelt_onnx::{Dim, Graph, GraphBuilder, Initializer, Value};

use super::ExportError;
use super::layers::norm;
use super::patches::{AttentionMask, Heads, TABLES, attention, linear};
use super::qwen2_5_vl::PATCH_WEIGHT;
use super::weights::WeightStream;
use crate::families::qwen2_vl::{NORM_EPS, Tower};
use crate::grid::{Lattice, rotary};

/// The graph `pixel_values` [patches, values] -> `image_embeds` [tokens, width] over `weights`,
/// whose constants go to `stream`.
pub(super) fn graph(
    tower: &Tower,
    lattice: &Lattice,
    stream: &mut WeightStream<'_>,
    mut weights: Vec<Initializer>,
) -> Result<Graph, ExportError> {
    let (rows, head) = (lattice.patches(), tower.hidden / tower.heads);
    for (name, table) in TABLES.into_iter().zip(rotary(lattice, head)) {
        weights.push(stream.constant(name, &[rows, 1, head / 2], &table)?);
    }
    let mut g = GraphBuilder::new("qwen2_vl-vision", stream.element_type(), weights);
    let dims = [rows, tower.patching.values()].map(Dim::Fixed);
    let pixels = g.input("pixel_values", dims.to_vec());
    g.scope("patch_embed");
    let mut x = g.product(&pixels, PATCH_WEIGHT);
    let heads = Heads { hidden: tower.hidden, heads: tower.heads, rows };
    for layer in 0..tower.layers {
        x = block(&mut g, &heads, layer, &x);
    }
    let embeds = merger(&mut g, tower, &x);
    let dims = [lattice.tokens(), tower.width].map(Dim::Fixed);
    g.output(embeds, "image_embeds", dims.to_vec());
    Ok(g.finish())
}

/// One block: attention and MLP, each normed before and added to `x`.
fn block(g: &mut GraphBuilder, heads: &Heads, layer: usize, x: &str) -> Value {
    let name = format!("visual.blocks.{layer}");
    g.scope(&format!("blocks.{layer}/attn"));
    let normed = norm(g, x, &format!("{name}.norm1"), NORM_EPS);
    let attention_mask = AttentionMask { parts: 1, mask: None };
    let branch = attention(g, &normed, &format!("{name}.attn"), heads, &attention_mask);
    let x = g.add(x, &branch);

    g.scope(&format!("blocks.{layer}/mlp"));
    let normed = norm(g, &x, &format!("{name}.norm2"), NORM_EPS);
    let wide = linear(g, &normed, &format!("{name}.mlp.fc1"));
    let wide = g.quick_gelu(&wide);
    let branch = linear(g, &wide, &format!("{name}.mlp.fc2"));
    g.add(&x, &branch)
}

/// [patches, hidden] -> [tokens, width]: normed patch by patch, then put together by tokens.
fn merger(g: &mut GraphBuilder, tower: &Tower, x: &str) -> Value {
    let wide = (tower.hidden * tower.patching.unit()) as i64;
    g.scope("merger");
    let x = norm(g, x, "visual.merger.ln_q", NORM_EPS);
    let x = g.reshape(&x, &[-1, wide]);
    let x = linear(g, &x, "visual.merger.mlp.0");
    let x = g.gelu(&x);
    linear(g, &x, "visual.merger.mlp.2")
}
