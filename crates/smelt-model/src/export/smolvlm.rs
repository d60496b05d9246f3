//! Writes SmolVLM's vision tower as an ONNX graph: patches, encoder, pixel shuffle, projection.
//!
//! Dimensions come in, a graph over the checkpoint's own tensor names comes out.  Only the number of tiles is open.
//! Pixels behind the last whole patch are cut off, as a convolution without padding passes over them.

use smelt_onnx::{Dim, ElementType, Graph, GraphBuilder, Initializer, Value};

use super::layers::{Heads, SequenceLayout, linear, norm};
use crate::families::smolvlm::{
    LAST_NORM, PATCH_BIAS, PATCH_WEIGHT, POSITIONS, PROJECTION, Tower, layer_name,
};
use crate::model::{Model, ModelPart};

/// The tensors of the graph and the shapes it declares for them: the patch convolution as the matrix it is, since its
/// stride is its kernel, and positions as those of one tile.
pub(super) fn weights(model: &Model) -> Vec<(String, Vec<usize>)> {
    let mut weights = model.tensors(&[ModelPart::Vision]);
    for (name, dims) in &mut weights {
        match name.as_str() {
            PATCH_WEIGHT => *dims = vec![dims[0], dims[1..].iter().product()],
            POSITIONS => dims.insert(0, 1),
            _ => {}
        }
    }
    weights
}

/// The graph `pixel_values` [tiles, channels, side, side] -> `image_embeds` [tiles, tokens, width] over `weights`.
pub(super) fn graph(tower: &Tower, element_type: ElementType, weights: Vec<Initializer>) -> Graph {
    let mut g = GraphBuilder::new("smolvlm-vision", element_type, weights);
    let tiles = Dim::Symbol("tiles".to_owned());
    let tile = [tower.channels, tower.image_size, tower.image_size].map(Dim::Fixed);
    let pixels = g.input("pixel_values", [&[tiles.clone()][..], &tile].concat());
    let patches = (tower.grid() * tower.grid()) as i64;
    let mut heads = Heads::new(tower.hidden, tower.heads, SequenceLayout::Fixed(patches));
    let mut x = embeddings(&mut g, tower, &pixels);
    for layer in 0..tower.layers {
        x = encoder_layer(&mut g, tower, &mut heads, layer, &x);
    }
    g.scope("connector");
    let x = norm(&mut g, &x, LAST_NORM, tower.eps);
    let x = pixel_shuffle(&mut g, tower, &x);
    let x = g.product(&x, PROJECTION);
    let (tokens, width) = (tower.tokens(), tower.width);
    let embeds = g.reshape(&x, &[-1, tokens as i64, width as i64]);
    g.output(embeds, "image_embeds", vec![tiles, Dim::Fixed(tokens), Dim::Fixed(width)]);
    g.finish()
}

/// [tiles, channels, side, side] -> [tiles · patches, hidden], positions added.
fn embeddings(g: &mut GraphBuilder, tower: &Tower, pixels: &str) -> Value {
    let (channels, patch, grid) =
        (tower.channels as i64, tower.patch_size as i64, tower.grid() as i64);
    let hidden = tower.hidden as i64;
    g.scope("embeddings");
    let covered = whole_patches(g, tower, pixels);
    let pixels = covered.as_deref().unwrap_or(pixels);
    let cells = g.reshape(pixels, &[0, channels, grid, patch, grid, patch]);
    let cells = g.transpose(&cells, &[0, 2, 4, 1, 3, 5]);
    let rows = g.reshape(&cells, &[-1, channels * patch * patch]);
    let rows = g.gemm(&rows, PATCH_WEIGHT, PATCH_BIAS);
    let rows = g.reshape(&rows, &[-1, grid * grid, hidden]);
    let x = g.add(&rows, POSITIONS);
    g.reshape(&x, &[-1, hidden])
}

/// The pixels of whole patches, where there are others.
fn whole_patches(g: &mut GraphBuilder, tower: &Tower, pixels: &str) -> Option<Value> {
    let covered = tower.grid() * tower.patch_size;
    if covered == tower.image_size {
        return None;
    }
    let covered = g.list(&[covered as i64]);
    let lines = g.keep_front(pixels, 2, &covered);
    Some(g.keep_front(&lines, 3, &covered))
}

/// One encoder layer: attention and MLP, each normed before and added to `x`.
fn encoder_layer(
    g: &mut GraphBuilder,
    tower: &Tower,
    heads: &mut Heads,
    layer: usize,
    x: &str,
) -> Value {
    let name = layer_name(layer);
    g.scope(&format!("layers.{layer}/attention"));
    let normed = norm(g, x, &format!("{name}.layer_norm1"), tower.eps);
    let names = ["q_proj", "k_proj", "v_proj", "out_proj"];
    let [q, k, v, out] = names.map(|linear| format!("{name}.self_attn.{linear}"));
    let branch = heads.attention(g, &normed, [&q, &k, &v], &out, None);
    let x = g.add(x, &branch);

    g.scope(&format!("layers.{layer}/mlp"));
    let normed = norm(g, &x, &format!("{name}.layer_norm2"), tower.eps);
    let wide = linear(g, &normed, &format!("{name}.mlp.fc1"));
    let wide = g.gelu_tanh(&wide);
    let branch = linear(g, &wide, &format!("{name}.mlp.fc2"));
    g.add(&x, &branch)
}

/// [tiles · patches, hidden] -> [tiles · tokens, shuffle² · hidden]: each square of patches becomes one row
/// (`Idefics3Connector.pixel_shuffle`).
fn pixel_shuffle(g: &mut GraphBuilder, tower: &Tower, x: &str) -> Value {
    let (hidden, side) = (tower.hidden as i64, tower.shuffle as i64);
    let (grid, tokens) = (tower.grid() as i64, tower.grid() as i64 / side);
    let x = g.reshape(x, &[-1, grid, tokens, side * hidden]);
    let x = g.transpose(&x, &[0, 2, 1, 3]);
    let x = g.reshape(&x, &[-1, tokens, tokens, side * side * hidden]);
    let x = g.transpose(&x, &[0, 2, 1, 3]);
    g.reshape(&x, &[-1, side * side * hidden])
}
