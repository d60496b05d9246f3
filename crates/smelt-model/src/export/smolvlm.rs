//! Writes SmolVLM's vision tower as an ONNX graph: patches, encoder, pixel shuffle, projection.
//!
//! Dimensions come in, a graph over the checkpoint's own tensor names comes out.  Only the number of tiles is open.
//! Pixels behind the last whole patch are cut off, as a convolution without padding passes over them.

use smelt_onnx::{Dim, ElementType, Graph, GraphBuilder, Initializer, Value};

use super::layers::{Heads, SequenceLayout, encoder_layer, norm, pixel_shuffle};
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
        let (name, act) = (layer_name(layer), GraphBuilder::gelu_tanh);
        x = encoder_layer(&mut g, &mut heads, (&name, layer), tower.eps, act, &x, None);
    }
    g.scope("connector");
    let x = norm(&mut g, &x, LAST_NORM, tower.eps);
    // `Idefics3Connector.pixel_shuffle`.
    let sizes = [tower.grid(), tower.hidden, tower.shuffle].map(|size| size as i64);
    let x = pixel_shuffle(&mut g, &x, sizes);
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
