//! Runs the vision tower and the projector, one tile at a time.
//!
//! Patches, encoder layers, pixel shuffle, projector.  Knows nothing of the language model beyond
//! the width of its tokens.

use super::attention::{Heads, Projection, attend};
use super::pointwise::{gelu, layer_norm, rms_norm};
use super::stream::Stream;
use super::{Effort, ReferenceError, threads};
use crate::families::internvl3::{PROJECTOR_EPS, Vit};

/// See [`super::vision_embeds`]; the stream may look at activations.
pub(super) fn embeds_of(
    stream: &mut Stream<'_>,
    pixels: &[f32],
    tiles: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    let vit = &stream.ckpt.internvl3()?.vit;
    let per_tile = vit.channels * vit.image_size * vit.image_size;
    if tiles.checked_mul(per_tile) != Some(pixels.len()) {
        return Err(ReferenceError::Pixels { tiles, per_tile, found: pixels.len() });
    }
    let mut embeds = Vec::new();
    for (at, tile) in pixels.chunks(per_tile).enumerate() {
        let all = tiles * vit.layers;
        let mut told =
            |layer| progress(&format!("[{}/{all}] block {layer}", at * vit.layers + layer));
        embeds.extend(tile_embeds(stream, vit, tile, &mut told)?);
    }
    Ok(embeds)
}

fn tile_embeds(
    stream: &mut Stream<'_>,
    vit: &Vit,
    tile: &[f32],
    told: &mut dyn FnMut(usize),
) -> Result<Vec<f32>, ReferenceError> {
    let mut x = embed_patches(stream, vit, tile)?;
    for layer in 0..vit.layers {
        told(layer);
        let name = format!("vision_model.encoder.layers.{layer}");
        attention(stream, vit, &name, &mut x)?;
        stream.note(&name, &x);
        mlp(stream, vit, &name, &mut x)?;
        stream.note(&name, &x);
    }
    let shuffled = shuffle(&x[vit.hidden..], vit.grid(), vit.hidden);
    project(stream, shuffled)
}

/// The class embedding and one row per patch, each plus its position: `[1 + patches, hidden]`.
fn embed_patches(
    stream: &mut Stream<'_>,
    vit: &Vit,
    tile: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let mut x = stream.vector("vision_model.embeddings.class_embedding")?;
    let name = "vision_model.embeddings.patch_embedding";
    x.extend(stream.linear(name, &unfold(tile, vit))?);
    let positions = "vision_model.embeddings.position_embedding";
    for (x, position) in x.iter_mut().zip(stream.vector(positions)?) {
        *x += position;
    }
    Ok(x)
}

/// `[channels, side, side]` to `[patches, channels * patch * patch]`, patches row by row.
fn unfold(tile: &[f32], vit: &Vit) -> Vec<f32> {
    let (side, patch, grid) = (vit.image_size, vit.patch_size, vit.grid());
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

/// `x += ls1 * proj(attend(qkv(norm1(x))))`.
fn attention(
    stream: &mut Stream<'_>,
    vit: &Vit,
    name: &str,
    x: &mut [f32],
) -> Result<(), ReferenceError> {
    let normed = normed(stream, vit, &format!("{name}.norm1"), x)?;
    let mut qkv = if vit.qkv_bias {
        stream.linear(&format!("{name}.attn.qkv"), &normed)?
    } else {
        stream.product(&format!("{name}.attn.qkv.weight"), &normed)?
    };
    drop(normed);
    let width = vit.hidden;
    if vit.qk_norm {
        norm_q_and_k(stream, vit, name, &mut qkv)?;
    }
    let part = |index| Projection { values: &qkv[index * width..], stride: 3 * width };
    let heads =
        Heads { query: vit.heads, key_value: vit.heads, width: vit.head_dim(), causal: false };
    let rows = x.len() / width;
    let attended = attend([part(0), part(1), part(2)], rows, heads, stream.effort.threads);
    drop(qkv);
    let branch = stream.linear(&format!("{name}.attn.proj"), &attended)?;
    add_scaled(x, &branch, &stream.vector(&format!("{name}.ls1"))?);
    Ok(())
}

/// The RMSNorms of q and of k over whole rows, in rows of q, k and v.
fn norm_q_and_k(
    stream: &Stream<'_>,
    vit: &Vit,
    name: &str,
    qkv: &mut [f32],
) -> Result<(), ReferenceError> {
    let q_norm = stream.vector(&format!("{name}.attn.q_norm.weight"))?;
    let k_norm = stream.vector(&format!("{name}.attn.k_norm.weight"))?;
    for row in qkv.chunks_mut(3 * vit.hidden) {
        let (q, kv) = row.split_at_mut(vit.hidden);
        rms_norm(q, &q_norm, vit.eps);
        rms_norm(&mut kv[..vit.hidden], &k_norm, vit.eps);
    }
    Ok(())
}

/// `x += ls2 * fc2(gelu(fc1(norm2(x))))`.
fn mlp(
    stream: &mut Stream<'_>,
    vit: &Vit,
    name: &str,
    x: &mut [f32],
) -> Result<(), ReferenceError> {
    let normed = normed(stream, vit, &format!("{name}.norm2"), x)?;
    let mut wide = stream.linear(&format!("{name}.mlp.fc1"), &normed)?;
    activate(&mut wide, stream.effort);
    let branch = stream.linear(&format!("{name}.mlp.fc2"), &wide)?;
    add_scaled(x, &branch, &stream.vector(&format!("{name}.ls2"))?);
    Ok(())
}

fn normed(
    stream: &Stream<'_>,
    vit: &Vit,
    name: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let weight = stream.vector(&format!("{name}.weight"))?;
    let mut normed = x.to_vec();
    if vit.rms_norm {
        rms_norm(&mut normed, &weight, vit.eps);
        return Ok(normed);
    }
    let bias = stream.vector(&format!("{name}.bias"))?;
    layer_norm(&mut normed, &weight, &bias, vit.eps);
    Ok(normed)
}

fn activate(values: &mut [f32], effort: Effort) {
    threads::for_rows(effort.threads, values, 1, 1, |_, values| gelu(values));
}

/// `x += scale * branch`, with one scale per channel.
fn add_scaled(x: &mut [f32], branch: &[f32], scale: &[f32]) {
    for (x, branch) in x.chunks_mut(scale.len()).zip(branch.chunks(scale.len())) {
        for (x, (branch, scale)) in x.iter_mut().zip(branch.iter().zip(scale)) {
            *x += branch * scale;
        }
    }
}

/// The pixel shuffle of `ps_version` v2 by 0.5: `[grid, grid, width]` to
/// `[grid/2, grid/2, 4 * width]`, where a token holds its square of patches row by row.
fn shuffle(x: &[f32], grid: usize, width: usize) -> Vec<f32> {
    let mut tokens = Vec::with_capacity(x.len());
    for (row, column) in
        (0..grid).step_by(2).flat_map(|row| (0..grid).step_by(2).map(move |column| (row, column)))
    {
        for line in [row, row + 1] {
            tokens.extend_from_slice(&x[(line * grid + column) * width..][..2 * width]);
        }
    }
    tokens
}

/// `mlp1`: LayerNorm, linear, GELU, linear.
fn project(stream: &mut Stream<'_>, mut x: Vec<f32>) -> Result<Vec<f32>, ReferenceError> {
    let (weight, bias) = (stream.vector("mlp1.0.weight")?, stream.vector("mlp1.0.bias")?);
    layer_norm(&mut x, &weight, &bias, PROJECTOR_EPS);
    let mut x = stream.linear("mlp1.1", &x)?;
    activate(&mut x, stream.effort);
    stream.linear("mlp1.3", &x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shuffle as the model's own code writes it: two views, two permutations.
    fn shuffle_by_views(x: &[f32], grid: usize, width: usize) -> Vec<f32> {
        let half = grid / 2;
        // [h, w, C] viewed as [h, w/2, 2C], then [w/2, h, 2C].
        let mut first = vec![0.0; x.len()];
        for h in 0..grid {
            for w in 0..half {
                for c in 0..2 * width {
                    first[(w * grid + h) * 2 * width + c] = x[(h * half + w) * 2 * width + c];
                }
            }
        }
        // Viewed as [w/2, h/2, 4C], then [h/2, w/2, 4C].
        let mut second = vec![0.0; x.len()];
        for w in 0..half {
            for h in 0..half {
                for c in 0..4 * width {
                    second[(h * half + w) * 4 * width + c] = first[(w * half + h) * 4 * width + c];
                }
            }
        }
        second
    }

    #[test]
    fn the_shuffle_gathers_squares_of_patches() {
        let x: Vec<f32> = (0..6 * 6 * 3).map(|i| i as f32).collect();
        assert_eq!(shuffle(&x, 6, 3), shuffle_by_views(&x, 6, 3));
    }

    #[test]
    fn patches_unfold_channel_by_channel() {
        let vit = Vit {
            hidden: 1,
            layers: 1,
            heads: 1,
            intermediate: 1,
            image_size: 4,
            patch_size: 2,
            channels: 2,
            eps: 1e-6,
            rms_norm: false,
            qk_norm: false,
            qkv_bias: true,
        };
        let tile: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let rows = unfold(&tile, &vit);
        assert_eq!(rows[..8], [0.0, 1.0, 4.0, 5.0, 16.0, 17.0, 20.0, 21.0]);
        assert_eq!(rows[24..], [10.0, 11.0, 14.0, 15.0, 26.0, 27.0, 30.0, 31.0]);
    }
}
