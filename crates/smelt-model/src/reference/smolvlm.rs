//! Runs SmolVLM's vision tower and its connector, one tile at a time.
//!
//! Patches, encoder layers, a norm, pixel shuffle, projection.  Knows nothing of the language model beyond the width of
//! its tokens.

use super::attention::{Heads, Projection, attend};
use super::pointwise::{gelu_tanh, layer_norm};
use super::stream::Stream;
use super::{ReferenceError, threads};
use crate::families::smolvlm::{LAST_NORM, POSITIONS, PROJECTION, Tower, layer_name};

/// See [`super::vision_embeds`]; the stream may look at activations.
pub(super) fn embeds_of(
    stream: &mut Stream<'_>,
    tower: &Tower,
    (pixels, tiles): (&[f32], usize),
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    let per_tile = tower.channels * tower.image_size * tower.image_size;
    if tiles.checked_mul(per_tile) != Some(pixels.len()) {
        return Err(ReferenceError::Pixels { tiles, per_tile, found: pixels.len() });
    }
    let mut embeds = Vec::new();
    for (at, tile) in pixels.chunks(per_tile).enumerate() {
        let all = tiles * tower.layers;
        let mut told =
            |layer| progress(&format!("[{}/{all}] block {layer}", at * tower.layers + layer));
        embeds.extend(tile_embeds(stream, tower, tile, &mut told)?);
    }
    Ok(embeds)
}

fn tile_embeds(
    stream: &mut Stream<'_>,
    tower: &Tower,
    tile: &[f32],
    told: &mut dyn FnMut(usize),
) -> Result<Vec<f32>, ReferenceError> {
    let mut x = stream.linear("vision_model.embeddings.patch_embedding", &unfold(tile, tower))?;
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
    let x = normed(stream, tower, LAST_NORM, &x)?;
    stream.product(PROJECTION, &shuffle(&x, tower.grid(), tower.hidden, tower.shuffle))
}

/// `[channels, side, side]` to `[patches, channels * patch * patch]`, patches row by row; pixels behind the last whole
/// patch are passed over.
fn unfold(tile: &[f32], tower: &Tower) -> Vec<f32> {
    let (side, patch, grid) = (tower.image_size, tower.patch_size, tower.grid());
    let mut rows = Vec::with_capacity(tile.len());
    for (top, left) in (0..grid).flat_map(|row| (0..grid).map(move |column| (row, column))) {
        for channel in tile.chunks(side * side) {
            for line in channel.chunks(side).skip(top * patch).take(patch) {
                rows.extend_from_slice(&line[left * patch..][..patch]);
            }
        }
    }
    rows
}

/// `out_proj(attend(q(y), k(y), v(y)))` of `y = layer_norm1(x)`.
fn attention(
    stream: &mut Stream<'_>,
    tower: &Tower,
    name: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let y = normed(stream, tower, &format!("{name}.layer_norm1"), x)?;
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
    let y = normed(stream, tower, &format!("{name}.layer_norm2"), x)?;
    let mut wide = stream.linear(&format!("{name}.mlp.fc1"), &y)?;
    threads::for_rows(stream.effort.threads, &mut wide, 1, 1, |_, values| {
        values.iter_mut().for_each(|value| *value = gelu_tanh(*value));
    });
    stream.linear(&format!("{name}.mlp.fc2"), &wide)
}

fn normed(
    stream: &Stream<'_>,
    tower: &Tower,
    name: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let weight = stream.vector(&format!("{name}.weight"))?;
    let bias = stream.vector(&format!("{name}.bias"))?;
    let mut normed = x.to_vec();
    layer_norm(&mut normed, &weight, &bias, tower.eps);
    Ok(normed)
}

fn add(x: &mut [f32], branch: &[f32]) {
    x.iter_mut().zip(branch).for_each(|(x, branch)| *x += branch);
}

/// `[grid, grid, width]` to `[tokens, side * side * width]`, where a token holds its square of patches row by row.
fn shuffle(x: &[f32], grid: usize, width: usize, side: usize) -> Vec<f32> {
    let mut tokens = Vec::with_capacity(x.len());
    for (row, column) in (0..grid)
        .step_by(side)
        .flat_map(|row| (0..grid).step_by(side).map(move |column| (row, column)))
    {
        for line in row..row + side {
            tokens.extend_from_slice(&x[(line * grid + column) * width..][..side * width]);
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_of_any_side_are_gathered() {
        let x: Vec<f32> = (0..9 * 2).map(|at| at as f32).collect();
        assert_eq!(shuffle(&x, 3, 2, 3), x);
        let x: Vec<f32> = (0..16).map(|at| at as f32).collect();
        assert_eq!(shuffle(&x, 4, 1, 2)[4..8], [2.0, 3.0, 6.0, 7.0]);
    }
}
