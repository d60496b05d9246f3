//! Runs the towers that take pictures of any size as rows of patches: Qwen2-VL's, Qwen2.5-VL's and Qwen3-VL's.
//!
//! Rows stay in the order of the picture; what a window is, a row finds by its own place.  Knows nothing
//! of the language model beyond the width of its tokens.

use std::collections::BTreeMap;

use super::attention::{Heads, Projection, attend};
use super::pointwise::{add, gelu, gelu_tanh, quick_gelu, rms_norm, rotate_half, swiglu};
use super::stream::Stream;
use super::{ImageFeatures, ReferenceError, threads};
use crate::families::{qwen2_5_vl, qwen2_vl, qwen3_vl};
use crate::grid::{Grid, Lattice, Patching, taps};
use crate::model::{ModelPart, Vision};

/// Base of the frequencies that rows turn by; no published configuration of these towers names another.
const THETA: f64 = 10_000.0;

/// See [`super::see`].
pub(super) fn seen(
    stream: &mut Stream<'_>,
    pixels: &[f32],
    grid: Grid,
    progress: &mut dyn FnMut(&str),
) -> Result<ImageFeatures, ReferenceError> {
    let ckpt = stream.ckpt;
    match &ckpt.model().vision {
        Some(Vision::Qwen2(tower)) => {
            let lattice = lattice(tower.patching, grid, pixels)?;
            qwen2(stream, tower, (&lattice, pixels), progress)
        }
        Some(Vision::Qwen25(tower)) => {
            let lattice = lattice(tower.patching, grid, pixels)?;
            qwen25(stream, tower, (&lattice, pixels), progress)
        }
        Some(Vision::Qwen3(tower)) => {
            let lattice = lattice(tower.patching, grid, pixels)?;
            qwen3(stream, tower, (&lattice, pixels), progress)
        }
        _ => Err(ckpt.no_part(ModelPart::Vision).into()),
    }
}

/// The patches of a picture of size `grid`, of which `pixels` must have all values.
fn lattice(patching: Patching, grid: Grid, pixels: &[f32]) -> Result<Lattice, ReferenceError> {
    let lattice = patching.lattice(grid)?;
    let (patches, values) = (lattice.patches(), patching.values());
    match pixels.len() == patches * values {
        true => Ok(lattice),
        false => Err(ReferenceError::Patches { patches, values, found: pixels.len() }),
    }
}

/// LayerNorms and a plain MLP.
fn qwen2(
    stream: &mut Stream<'_>,
    tower: &qwen2_vl::Tower,
    (lattice, pixels): (&Lattice, &[f32]),
    progress: &mut dyn FnMut(&str),
) -> Result<ImageFeatures, ReferenceError> {
    const EPS: f32 = qwen2_vl::NORM_EPS;
    let mut x = stream.product("visual.patch_embed.proj.weight", pixels)?;
    let all: Vec<Vec<usize>> = vec![(0..lattice.patches()).collect()];
    for block in 0..tower.layers {
        progress(&format!("[{block}/{}] block {block}", tower.layers));
        let name = format!("visual.blocks.{block}");
        let y = stream.layer_normed(&format!("{name}.norm1"), EPS, &x)?;
        let heads = tower.heads;
        add(&mut x, &attention(stream, &format!("{name}.attn"), y, heads, lattice, &all)?);
        let y = stream.layer_normed(&format!("{name}.norm2"), EPS, &x)?;
        let mut wide = stream.linear(&format!("{name}.mlp.fc1"), &y)?;
        wide.iter_mut().for_each(|value| *value = quick_gelu(*value));
        add(&mut x, &stream.linear(&format!("{name}.mlp.fc2"), &wide)?);
    }
    let y = stream.layer_normed("visual.merger.ln_q", EPS, &x)?;
    let embeds = mlp(stream, ["visual.merger.mlp.0", "visual.merger.mlp.2"], &y)?;
    Ok(ImageFeatures { embeds, deepstack: Vec::new() })
}

/// RMSNorms, a gated MLP, and attention inside windows except in some blocks.
fn qwen25(
    stream: &mut Stream<'_>,
    tower: &qwen2_5_vl::Tower,
    (lattice, pixels): (&Lattice, &[f32]),
    progress: &mut dyn FnMut(&str),
) -> Result<ImageFeatures, ReferenceError> {
    let mut x = stream.product("visual.patch_embed.proj.weight", pixels)?;
    let all: Vec<Vec<usize>> = vec![(0..lattice.patches()).collect()];
    let windows = windows(lattice, tower.window);
    let normed = |stream: &Stream<'_>, name: &str, x: &[f32]| {
        let mut normed = x.to_vec();
        rms_norm(&mut normed, &stream.vector(&format!("{name}.weight"))?, qwen2_5_vl::NORM_EPS);
        Ok::<_, ReferenceError>(normed)
    };
    for block in 0..tower.layers {
        progress(&format!("[{block}/{}] block {block}", tower.layers));
        let name = format!("visual.blocks.{block}");
        let parts = if tower.full_attention.contains(&block) { &all } else { &windows };
        let y = normed(stream, &format!("{name}.norm1"), &x)?;
        let heads = tower.heads;
        add(&mut x, &attention(stream, &format!("{name}.attn"), y, heads, lattice, parts)?);
        let y = normed(stream, &format!("{name}.norm2"), &x)?;
        let mut gate = stream.linear(&format!("{name}.mlp.gate_proj"), &y)?;
        let up = stream.linear(&format!("{name}.mlp.up_proj"), &y)?;
        swiglu(&mut gate, &up);
        add(&mut x, &stream.linear(&format!("{name}.mlp.down_proj"), &gate)?);
    }
    let y = normed(stream, "visual.merger.ln_q", &x)?;
    let embeds = mlp(stream, ["visual.merger.mlp.0", "visual.merger.mlp.2"], &y)?;
    Ok(ImageFeatures { embeds, deepstack: Vec::new() })
}

/// LayerNorms, learned positions, and features of some blocks besides the last.
fn qwen3(
    stream: &mut Stream<'_>,
    tower: &qwen3_vl::Tower,
    (lattice, pixels): (&Lattice, &[f32]),
    progress: &mut dyn FnMut(&str),
) -> Result<ImageFeatures, ReferenceError> {
    let mut x = stream.linear("model.visual.patch_embed.proj", pixels)?;
    add_positions(stream, tower, lattice, &mut x)?;
    let all: Vec<Vec<usize>> = vec![(0..lattice.patches()).collect()];
    let mut deepstack = Vec::new();
    for block in 0..tower.layers {
        progress(&format!("[{block}/{}] block {block}", tower.layers));
        let name = format!("model.visual.blocks.{block}");
        let y = stream.layer_normed(&format!("{name}.norm1"), qwen3_vl::NORM_EPS, &x)?;
        let heads = tower.heads;
        add(&mut x, &attention(stream, &format!("{name}.attn"), y, heads, lattice, &all)?);
        let y = stream.layer_normed(&format!("{name}.norm2"), qwen3_vl::NORM_EPS, &x)?;
        let mut wide = stream.linear(&format!("{name}.mlp.linear_fc1"), &y)?;
        wide.iter_mut().for_each(|value| *value = gelu_tanh(*value));
        add(&mut x, &stream.linear(&format!("{name}.mlp.linear_fc2"), &wide)?);
        if let Some(index) = tower.deepstack.iter().position(|found| *found == block) {
            // Normed token by token, where the last merger norms patch by patch.
            let name = format!("model.visual.deepstack_merger_list.{index}");
            deepstack.push(merged(stream, &name, &x)?);
        }
    }
    Ok(ImageFeatures { embeds: merged(stream, "model.visual.merger", &x)?, deepstack })
}

/// The merger `name`: a norm over as many values as it has weights, then its MLP over whole tokens.
fn merged(stream: &mut Stream<'_>, name: &str, x: &[f32]) -> Result<Vec<f32>, ReferenceError> {
    let y = stream.layer_normed(&format!("{name}.norm"), qwen3_vl::NORM_EPS, x)?;
    let [first, second] = ["linear_fc1", "linear_fc2"].map(|linear| format!("{name}.{linear}"));
    mlp(stream, [&first, &second], &y)
}

/// `second(gelu(first(x)))` of a merger.
fn mlp(
    stream: &mut Stream<'_>,
    [first, second]: [&str; 2],
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let mut wide = stream.linear(first, x)?;
    threads::for_rows(stream.effort.threads, &mut wide, 1, 1, |_, values| gelu(values));
    stream.linear(second, &wide)
}

/// Adds to every patch the learned positions around its place, by their shares.
fn add_positions(
    stream: &Stream<'_>,
    tower: &qwen3_vl::Tower,
    lattice: &Lattice,
    x: &mut [f32],
) -> Result<(), ReferenceError> {
    let learned = stream.vector("model.visual.pos_embed.weight")?;
    let places = taps(lattice, tower.positions_side);
    for (x, taps) in x.chunks_mut(tower.hidden).zip(places) {
        for tap in taps {
            let position = &learned[tap.row * tower.hidden..][..tower.hidden];
            x.iter_mut().zip(position).for_each(|(x, position)| *x += tap.share * position);
        }
    }
    Ok(())
}

/// The rows of each window of `side` by `side` image tokens.
fn windows(lattice: &Lattice, side: usize) -> Vec<Vec<usize>> {
    let step = side * lattice.merge;
    let mut windows: BTreeMap<[usize; 2], Vec<usize>> = BTreeMap::new();
    for (row, place) in lattice.places().into_iter().enumerate() {
        windows.entry(place.map(|at| at / step)).or_default().push(row);
    }
    windows.into_values().collect()
}

/// `proj(attend(rotate(q), rotate(k), v))` of the normed rows `x`, of which each sees those of its part.
fn attention(
    stream: &mut Stream<'_>,
    name: &str,
    x: Vec<f32>,
    heads: usize,
    lattice: &Lattice,
    parts: &[Vec<usize>],
) -> Result<Vec<f32>, ReferenceError> {
    let qkv = stream.linear(&format!("{name}.qkv"), &x)?;
    let mut attended = x;
    let hidden = attended.len() / lattice.patches();
    let all = lattice.places();
    for part in parts {
        let places: Vec<[usize; 2]> = part.iter().map(|row| all[*row]).collect();
        let column = |index: usize| -> Vec<f32> {
            let rows = part.iter().map(|row| &qkv[(row * 3 + index) * hidden..][..hidden]);
            rows.flatten().copied().collect()
        };
        let [mut q, mut k, v] = [column(0), column(1), column(2)];
        let width = hidden / heads;
        rotate(&mut q, hidden, width, &places);
        rotate(&mut k, hidden, width, &places);
        let project = |values| Projection { values, stride: hidden };
        let heads = Heads { query: heads, key_value: heads, width, causal: false };
        let all = [project(&q), project(&k), project(&v)];
        let mixed = attend(all, part.len(), heads, stream.effort.threads);
        for (row, mixed) in part.iter().zip(mixed.chunks(hidden)) {
            attended[row * hidden..][..hidden].copy_from_slice(mixed);
        }
    }
    stream.linear(&format!("{name}.proj"), &attended)
}

/// Turns the first half of each head's pairs by the patch's row, the second by its column.  Frequencies and
/// angles are in f32, as the models were trained.
fn rotate(x: &mut [f32], hidden: usize, width: usize, places: &[[usize; 2]]) {
    let quarter = width / 4;
    let frequency = |at: usize| THETA.powf(-(at as f64) / quarter as f64) as f32;
    let frequencies: Vec<f32> = (0..quarter).map(frequency).collect();
    let angle =
        |row: usize, pair: usize| places[row][pair / quarter] as f32 * frequencies[pair % quarter];
    rotate_half(x, hidden, 2 * quarter, 1.0, angle);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_at_the_edges_are_cut_short() {
        // Three by three tokens of one patch, windows of two by two.
        let lattice = Lattice { rows: 3, columns: 3, merge: 1 };
        let expect: [&[usize]; 4] = [&[0, 1, 3, 4], &[2, 5], &[6, 7], &[8]];
        assert_eq!(windows(&lattice, 2), expect);
        // Two patches on a side: the first token's are the first four rows.
        let lattice = Lattice { rows: 2, columns: 4, merge: 2 };
        assert_eq!(windows(&lattice, 1), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    }
}
