//! Writes Qwen3-VL's vision tower as an ONNX graph for one grid.
//!
//! The learned positions are mixed to the grid while exporting, so the graph adds one table.
//! Besides the last block's, the features of some blocks go through mergers of their own
//! (`deepstack_{i}`).  All sizes are constants.

use smelt_onnx::{Dim, Graph, GraphBuilder, Initializer, Value};

use super::ExportError;
use super::patches::{AttentionMask, Heads, TABLES, attention, linear};
use super::weights::WeightStream;
use crate::checkpoint::Checkpoint;
use crate::families::qwen3_vl::{NORM_EPS, Tower};
use crate::grid::{Lattice, Tap, rotary, taps};

pub(super) const PATCH_WEIGHT: &str = "model.visual.patch_embed.proj.weight";
/// Learned positions, of which the graph holds the mix for its grid.
pub(super) const POSITIONS: &str = "model.visual.pos_embed.weight";
const PLACED: &str = "/grid/positions";

/// The graph `pixel_values` [patches, values] -> `image_embeds` [tokens, width] and
/// `deepstack_{i}` of the same shape over `weights`, whose constants go to `stream`.
pub(super) fn graph(
    tower: &Tower,
    lattice: &Lattice,
    stream: &mut WeightStream<'_>,
    mut weights: Vec<Initializer>,
) -> Result<Graph, ExportError> {
    let head = tower.hidden / tower.heads;
    for (name, table) in TABLES.into_iter().zip(rotary(lattice, head)) {
        weights.push(stream.constant(name, &[lattice.patches(), 1, head / 2], &table)?);
    }
    weights.push(positions(tower, lattice, stream)?);
    let g = GraphBuilder::new("qwen3_vl-vision", stream.element_type(), weights);
    Ok(Writer { g, tower, lattice }.graph())
}

/// The position of every patch, `[patches, hidden]`, a row at a time.
fn positions(
    tower: &Tower,
    lattice: &Lattice,
    stream: &mut WeightStream<'_>,
) -> Result<Initializer, ExportError> {
    let taps = taps(lattice, tower.positions_side);
    let checkpoint = stream.checkpoint();
    let (mut learned, dims) = (Vec::new(), [taps.len(), tower.hidden]);
    stream.rows(PLACED, &dims, |row, out| mix(checkpoint, &taps[row], &mut learned, out))
}

/// The sum of the rows of four taps by their shares.
fn mix(
    checkpoint: &Checkpoint,
    taps: &[Tap; 4],
    learned: &mut Vec<f32>,
    out: &mut Vec<f32>,
) -> Result<(), ExportError> {
    out.clear();
    for tap in taps {
        checkpoint.read_rows_f32(POSITIONS, tap.row..tap.row + 1, learned)?;
        if let Some(at) = learned.iter().position(|value| !value.is_finite()) {
            let (tensor, value) = (POSITIONS.to_owned(), learned[at]);
            let element = (tap.row * learned.len() + at) as u64;
            return Err(ExportError::NotFinite { tensor, value, element });
        }
        out.resize(learned.len(), 0.0);
        for (out, learned) in out.iter_mut().zip(&*learned) {
            *out += tap.share * learned;
        }
    }
    Ok(())
}

struct Writer<'a> {
    g: GraphBuilder,
    tower: &'a Tower,
    lattice: &'a Lattice,
}

impl Writer<'_> {
    fn graph(mut self) -> Graph {
        let dims = [self.lattice.patches(), self.tower.patching.values()].map(Dim::Fixed);
        let pixels = self.g.input("pixel_values", dims.to_vec());
        self.g.scope("patch_embed");
        let rows = linear(&mut self.g, &pixels, PATCH_WEIGHT.trim_end_matches(".weight"));
        let mut x = self.g.add(&rows, PLACED);
        let mut features = Vec::new();
        for block in 0..self.tower.layers {
            x = self.block(block, &x);
            if let Some(index) = self.tower.deepstack.iter().position(|found| *found == block) {
                features.push((self.deepstack(index, &x), format!("deepstack_{index}")));
            }
        }
        let embeds = self.merger(&x);
        features.insert(0, (embeds, "image_embeds".to_owned()));
        let dims = [self.lattice.tokens(), self.tower.width].map(Dim::Fixed);
        for (value, name) in features {
            self.g.output(value, &name, dims.to_vec());
        }
        self.g.finish()
    }

    /// One block: attention and MLP, each normed before and added to `x`.
    fn block(&mut self, block: usize, x: &str) -> Value {
        let name = format!("model.visual.blocks.{block}");
        let (g, tower) = (&mut self.g, self.tower);
        let rows = self.lattice.patches();
        let heads = Heads { hidden: tower.hidden, heads: tower.heads, rows };

        g.scope(&format!("blocks.{block}/attn"));
        let normed = norm(g, x, &format!("{name}.norm1"));
        let attention_mask = AttentionMask { parts: 1, mask: None };
        let branch = attention(g, &normed, &format!("{name}.attn"), &heads, &attention_mask);
        let x = g.add(x, &branch);

        g.scope(&format!("blocks.{block}/mlp"));
        let normed = norm(g, &x, &format!("{name}.norm2"));
        let wide = linear(g, &normed, &format!("{name}.mlp.linear_fc1"));
        let wide = g.gelu_tanh(&wide);
        let branch = linear(g, &wide, &format!("{name}.mlp.linear_fc2"));
        g.add(&x, &branch)
    }

    /// The last block's features, normed patch by patch, then put together by tokens.
    fn merger(&mut self, x: &str) -> Value {
        let name = "model.visual.merger";
        self.g.scope("merger");
        let x = norm(&mut self.g, x, &format!("{name}.norm"));
        let x = self.tokens(&x);
        self.widened(&x, name)
    }

    /// The features of a block on the way, put together by tokens, then normed.
    fn deepstack(&mut self, index: usize, x: &str) -> Value {
        let name = format!("model.visual.deepstack_merger_list.{index}");
        self.g.scope(&format!("deepstack.{index}"));
        let x = self.tokens(x);
        let x = norm(&mut self.g, &x, &format!("{name}.norm"));
        self.widened(&x, &name)
    }

    /// [patches, hidden] -> [tokens, unit · hidden].
    fn tokens(&mut self, x: &str) -> Value {
        let wide = self.tower.hidden * self.tower.patching.unit();
        self.g.reshape(x, &[-1, wide as i64])
    }

    /// The MLP of the merger `name`.
    fn widened(&mut self, x: &str, name: &str) -> Value {
        let g = &mut self.g;
        let x = linear(g, x, &format!("{name}.linear_fc1"));
        let x = g.gelu(&x);
        linear(g, &x, &format!("{name}.linear_fc2"))
    }
}

fn norm(g: &mut GraphBuilder, x: &str, name: &str) -> Value {
    g.layer_norm(x, &format!("{name}.weight"), &format!("{name}.bias"), NORM_EPS)
}
