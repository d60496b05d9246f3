//! Runs SmolVLM's vision tower and its connector, one tile at a time.
//!
//! Patches, encoder layers, a norm, pixel shuffle, projection.  Knows nothing of the language model beyond the width of
//! its tokens.

use super::attention::{Heads, Projection, attend};
use super::pointwise::{add, gelu_tanh};
use super::stream::Stream;
use super::tiles::{each_tile, shuffle, unfold};
use super::{ReferenceError, threads};
use crate::families::smolvlm::{LAST_NORM, POSITIONS, PROJECTION, Tower, layer_name};

/// See [`super::vision_embeds`]; the stream may look at activations.
pub(super) fn embeds_of(
    stream: &mut Stream<'_>,
    tower: &Tower,
    tiles: (&[f32], usize),
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    let per_tile = tower.channels * tower.image_size * tower.image_size;
    each_tile(tiles, per_tile, tower.layers, progress, |tile, told| {
        tile_embeds(stream, tower, tile, told)
    })
}

fn tile_embeds(
    stream: &mut Stream<'_>,
    tower: &Tower,
    tile: &[f32],
    told: &mut dyn FnMut(usize),
) -> Result<Vec<f32>, ReferenceError> {
    let rows = unfold(tile, tower.image_size, tower.patch_size);
    let mut x = stream.linear("vision_model.embeddings.patch_embedding", &rows)?;
    add(&mut x, &stream.vector(POSITIONS)?);
    for layer in 0..tower.layers {
        told(layer);
        let name = layer_name(layer);
        let branch = attention(stream, tower, &name, &x)?;
        add(&mut x, &branch);
        stream.note(&name, &x);
        let branch = mlp(stream, tower, &name, &x)?;
        add(&mut x, &branch);
        stream.note(&name, &x);
    }
    let x = stream.layer_normed(LAST_NORM, tower.eps, &x)?;
    stream.product(PROJECTION, &shuffle(&x, tower.grid(), tower.hidden, tower.shuffle))
}

/// `out_proj(attend(q(y), k(y), v(y)))` of `y = layer_norm1(x)`.
fn attention(
    stream: &mut Stream<'_>,
    tower: &Tower,
    name: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let y = stream.layer_normed(&format!("{name}.layer_norm1"), tower.eps, x)?;
    let mut project = |part: &str| stream.linear(&format!("{name}.self_attn.{part}_proj"), &y);
    let (q, k, v) = (project("q")?, project("k")?, project("v")?);
    let part = |values| Projection { values, stride: tower.hidden };
    let width = tower.hidden / tower.heads;
    let heads = Heads { query: tower.heads, key_value: tower.heads, width, causal: false };
    let rows = x.len() / tower.hidden;
    let mixed = attend([part(&q), part(&k), part(&v)], rows, heads, stream.effort.threads);
    stream.linear(&format!("{name}.self_attn.out_proj"), &mixed)
}

/// `fc2(gelu(fc1(layer_norm2(x))))`.
fn mlp(
    stream: &mut Stream<'_>,
    tower: &Tower,
    name: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let y = stream.layer_normed(&format!("{name}.layer_norm2"), tower.eps, x)?;
    let mut wide = stream.linear(&format!("{name}.mlp.fc1"), &y)?;
    threads::for_rows(stream.effort.threads, &mut wide, 1, 1, |_, values| {
        values.iter_mut().for_each(|value| *value = gelu_tanh(*value));
    });
    stream.linear(&format!("{name}.mlp.fc2"), &wide)
}
