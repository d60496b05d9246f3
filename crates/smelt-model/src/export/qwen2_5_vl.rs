//! Writes Qwen2.5-VL's vision tower as an ONNX graph for one grid.
//!
//! Rows are put in the order of the windows after the patch embedding and back before the merger's
//! MLP.  Windows cut short are filled with rows that a mask hides, so that all have one shape;
//! where every window is whole there is no mask.  All sizes are constants.

use smelt_onnx::{Dim, Graph, GraphBuilder, Initializer, Value};

use super::patches::{AttentionMask, Heads, TABLES, attention, linear};
use super::weights::WeightStream;
use super::{ExportError, HIDDEN_SCORE};
use crate::families::qwen2_5_vl::{NORM_EPS, Tower};
use crate::grid::{Lattice, Windows, rotary};

/// Qwen2-VL's, too.
pub(super) const PATCH_WEIGHT: &str = "visual.patch_embed.proj.weight";
const ORDER: &str = "/grid/order";
const PLACES: &str = "/grid/places";
const WINDOW_MASK: &str = "/grid/window_mask";
const FULL_MASK: &str = "/grid/full_mask";

/// The graph `pixel_values` [patches, values] -> `image_embeds` [tokens, width] over `weights`,
/// whose constants go to `stream`.
pub(super) fn graph(
    tower: &Tower,
    lattice: &Lattice,
    stream: &mut WeightStream<'_>,
    mut weights: Vec<Initializer>,
) -> Result<Graph, ExportError> {
    let windows = Windows::new(lattice, tower.window);
    weights.extend(constants(tower, lattice, &windows, stream)?);
    let g = GraphBuilder::new("qwen2_5_vl-vision", stream.element_type(), weights);
    Ok(Writer { g, tower, lattice, windows }.graph())
}

/// The tables of one grid, rows in the order of the windows.
fn constants(
    tower: &Tower,
    lattice: &Lattice,
    windows: &Windows,
    stream: &mut WeightStream<'_>,
) -> Result<Vec<Initializer>, ExportError> {
    let unit = tower.patching.unit();
    let half = tower.hidden / tower.heads / 2;
    let rows = windows.tokens.len() * unit;
    let mut all = vec![
        stream.integers(ORDER, &windows.order())?,
        stream.integers(PLACES, &windows.places_of_tokens())?,
    ];
    for (name, table) in TABLES.into_iter().zip(rotary(lattice, 2 * half)) {
        let row = unit * half;
        let tokens = windows.tokens.iter().map(|token| token.unwrap_or(0));
        let ordered: Vec<f32> =
            tokens.flat_map(|token| table[token * row..][..row].iter().copied()).collect();
        all.push(stream.constant(name, &[rows, 1, half], &ordered)?);
    }
    if !windows.are_whole() {
        let score = |token: &Option<usize>| if token.is_some() { 0.0 } else { HIDDEN_SCORE };
        let mask: Vec<f32> =
            windows.tokens.iter().flat_map(|token| vec![score(token); unit]).collect();
        let dims = [windows.count, 1, 1, windows.places * unit];
        all.push(stream.constant(WINDOW_MASK, &dims, &mask)?);
        all.push(stream.constant(FULL_MASK, &[1, 1, 1, rows], &mask)?);
    }
    Ok(all)
}

struct Writer<'a> {
    g: GraphBuilder,
    tower: &'a Tower,
    lattice: &'a Lattice,
    windows: Windows,
}

impl Writer<'_> {
    fn graph(mut self) -> Graph {
        let Tower { patching, width, .. } = *self.tower;
        let dims = [self.lattice.patches(), patching.values()].map(Dim::Fixed);
        let pixels = self.g.input("pixel_values", dims.to_vec());
        let mut x = self.embeddings(&pixels);
        for block in 0..self.tower.layers {
            x = self.block(block, &x);
        }
        let embeds = self.merger(&x);
        let dims = [self.lattice.tokens(), width].map(Dim::Fixed);
        self.g.output(embeds, "image_embeds", dims.to_vec());
        self.g.finish()
    }

    /// [patches, values] -> [rows, hidden], in the order of the windows.
    fn embeddings(&mut self, pixels: &str) -> Value {
        let (hidden, unit) = (self.tower.hidden as i64, self.tower.patching.unit() as i64);
        let g = &mut self.g;
        g.scope("patch_embed");
        let rows = g.product(pixels, PATCH_WEIGHT);
        let tokens = g.reshape(&rows, &[-1, unit * hidden]);
        let tokens = g.gather(&tokens, ORDER);
        g.reshape(&tokens, &[-1, hidden])
    }

    /// One block: attention and gated MLP, each normed before and added to `x`.
    fn block(&mut self, block: usize, x: &str) -> Value {
        let name = format!("visual.blocks.{block}");
        let (g, tower) = (&mut self.g, self.tower);
        let is_masked = !self.windows.are_whole();
        let attention_mask = if tower.full_attention.contains(&block) {
            AttentionMask { parts: 1, mask: is_masked.then_some(FULL_MASK) }
        } else {
            AttentionMask { parts: self.windows.count, mask: is_masked.then_some(WINDOW_MASK) }
        };
        let rows = self.windows.tokens.len() * tower.patching.unit();
        let heads = Heads { hidden: tower.hidden, heads: tower.heads, rows };

        g.scope(&format!("blocks.{block}/attn"));
        let normed = g.rms_norm(x, &format!("{name}.norm1.weight"), NORM_EPS);
        let branch = attention(g, &normed, &format!("{name}.attn"), &heads, &attention_mask);
        let x = g.add(x, &branch);

        g.scope(&format!("blocks.{block}/mlp"));
        let normed = g.rms_norm(&x, &format!("{name}.norm2.weight"), NORM_EPS);
        let gate = linear(g, &normed, &format!("{name}.mlp.gate_proj"));
        let gate = g.silu(&gate);
        let up = linear(g, &normed, &format!("{name}.mlp.up_proj"));
        let wide = g.mul(&gate, &up);
        let branch = linear(g, &wide, &format!("{name}.mlp.down_proj"));
        g.add(&x, &branch)
    }

    /// [rows, hidden] -> [tokens, width], in the order of the picture.
    fn merger(&mut self, x: &str) -> Value {
        let wide = (self.tower.hidden * self.tower.patching.unit()) as i64;
        let g = &mut self.g;
        g.scope("merger");
        let x = g.rms_norm(x, "visual.merger.ln_q.weight", NORM_EPS);
        let x = g.reshape(&x, &[-1, wide]);
        let x = g.gather(&x, PLACES);
        let x = linear(g, &x, "visual.merger.mlp.0");
        let x = g.gelu(&x);
        linear(g, &x, "visual.merger.mlp.2")
    }
}
