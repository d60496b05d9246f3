//! Runs the vision tower and the projector, one tile at a time.
//!
//! Patches, encoder layers, pixel shuffle, projector.  Knows nothing of the language model beyond
//! the width of its tokens.

use super::attention::{Heads, Projection, attend};
use super::pointwise::{gelu, rms_norm};
use super::stream::Stream;
use super::tiles::{each_tile, shuffle, unfold};
use super::{Effort, ReferenceError, threads};
use crate::families::internvl3::{PROJECTOR_EPS, SHUFFLE, Vit};

/// See [`super::vision_embeds`]; the stream may look at activations.
pub(super) fn embeds_of(
    stream: &mut Stream<'_>,
    pixels: &[f32],
    tiles: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    let vit = &stream.ckpt.internvl3()?.vit;
    let per_tile = vit.channels * vit.image_size * vit.image_size;
    each_tile((pixels, tiles), per_tile, vit.layers, progress, |tile, told| {
        tile_embeds(stream, vit, tile, told)
    })
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
    let shuffled = shuffle(&x[vit.hidden..], vit.grid(), vit.hidden, SHUFFLE);
    project(stream, &shuffled)
}

/// The class embedding and one row per patch, each plus its position: `[1 + patches, hidden]`.
fn embed_patches(
    stream: &mut Stream<'_>,
    vit: &Vit,
    tile: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let mut x = stream.vector("vision_model.embeddings.class_embedding")?;
    let name = "vision_model.embeddings.patch_embedding";
    x.extend(stream.linear(name, &unfold(tile, vit.image_size, vit.patch_size))?);
    let positions = "vision_model.embeddings.position_embedding";
    for (x, position) in x.iter_mut().zip(stream.vector(positions)?) {
        *x += position;
    }
    Ok(x)
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
    if !vit.rms_norm {
        return stream.layer_normed(name, vit.eps, x);
    }
    let mut normed = x.to_vec();
    rms_norm(&mut normed, &stream.vector(&format!("{name}.weight"))?, vit.eps);
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

/// `mlp1`: LayerNorm, linear, GELU, linear.
fn project(stream: &mut Stream<'_>, x: &[f32]) -> Result<Vec<f32>, ReferenceError> {
    let x = stream.layer_normed("mlp1.0", PROJECTOR_EPS, x)?;
    let mut x = stream.linear("mlp1.1", &x)?;
    activate(&mut x, stream.effort);
    stream.linear("mlp1.3", &x)
}
