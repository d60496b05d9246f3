//! Writes CLIP's towers as ONNX graphs.
//!
//! Dimensions come in, graphs over the checkpoint's own tensor names come out.  Pictures have one
//! size, that of the position table given with the weights; the numbers of pictures and texts and
//! the length of texts are open.

use smelt_onnx::{Dim, ElementType, Graph, GraphBuilder, Initializer, Value};

use super::ExportError;
use super::layers::{Heads, SequenceLayout, activate, encoder_layer, hiding, norm};
use super::positions::resampled;
use super::weights::WeightStream;
use crate::families::clip::{ClipText, ClipVision, End, Tower};
use crate::grid::Lattice;

pub(super) const CLASS_EMBEDDING: &str = "vision_model.embeddings.class_embedding";
pub(super) const PATCH_WEIGHT: &str = "vision_model.embeddings.patch_embedding.weight";
/// The table that depends on the size of the pictures.
pub(super) const POSITIONS: &str = "vision_model.embeddings.position_embedding.weight";

/// The graph `pixel_values` [pictures, channels, height, width] -> `image_embeds`
/// [pictures, width] (`pooler_output` [pictures, hidden] of a tower without a projection),
/// `last_hidden_state` [pictures, 1 + patches, hidden] over `weights` and the positions of
/// `lattice`, which are put into `stream`.
pub(super) fn vision_graph(
    vision: &ClipVision,
    lattice: &Lattice,
    stream: &mut WeightStream<'_>,
    mut weights: Vec<Initializer>,
) -> Result<Graph, ExportError> {
    let tower = &vision.tower;
    let grid = [lattice.rows, lattice.columns];
    let [height, width] = grid.map(|count| count * vision.patch_size);
    weights.push(positions(vision, grid, stream)?);
    let mut g = GraphBuilder::new("clip-vision", stream.element_type(), weights);
    let batch = Dim::Symbol("batch".to_owned());
    let picture = [vision.channels, height, width].map(Dim::Fixed);
    let pixels = g.input("pixel_values", [&[batch.clone()][..], &picture].concat());
    let places = grid[0] * grid[1] + 1;
    let mut heads = Heads::new(tower.hidden, tower.heads, SequenceLayout::Fixed(places as i64));
    let x = vision_embeddings(&mut g, vision, grid, &pixels);
    let x = norm(&mut g, &x, "vision_model.pre_layrnorm", tower.eps);
    let x = layers(&mut g, tower, &mut heads, "vision_model", x, None);

    g.scope("pooled");
    let states = heads.sequences(&mut g, &x);
    let one = g.list(&[1]);
    let class = g.keep_front(&states, 1, &one);
    let class = g.reshape(&class, &[-1, heads.hidden]);
    let class = norm(&mut g, &class, "vision_model.post_layernorm", tower.eps);
    let pooled = projected(&mut g, class, tower, "visual_projection.weight");
    declare_pooled(&mut g, pooled, tower, "image_embeds");
    let dims = vec![batch, Dim::Fixed(places), Dim::Fixed(tower.hidden)];
    g.output(states, "last_hidden_state", dims);
    Ok(g.finish())
}

/// The table of positions for a grid of patches: the stored one, interpolated if it is for another.
fn positions(
    vision: &ClipVision,
    grid: [usize; 2],
    stream: &mut WeightStream<'_>,
) -> Result<Initializer, ExportError> {
    let width = vision.tower.hidden;
    if grid == [vision.grid(); 2] {
        return stream.copy(POSITIONS, &[grid[0] * grid[1] + 1, width]);
    }
    let table = stream.checkpoint().read_f32(POSITIONS)?;
    let table = resampled(&table, width, vision.grid(), grid);
    stream.constant(POSITIONS, &[table.len() / width, width], &table)
}

/// [pictures, channels, height, width] -> [pictures · places, hidden]: a class row in front of the
/// patches, positions added.  Both are padded with zero rows and added, as in InternViT.
fn vision_embeddings(
    g: &mut GraphBuilder,
    vision: &ClipVision,
    grid: [usize; 2],
    pixels: &str,
) -> Value {
    let [rows, columns] = grid.map(|count| count as i64);
    let (channels, patch) = (vision.channels as i64, vision.patch_size as i64);
    let (patches, hidden) = (rows * columns, vision.tower.hidden as i64);
    g.scope("embeddings");
    let cells = g.reshape(pixels, &[0, channels, rows, patch, columns, patch]);
    let cells = g.transpose(&cells, &[0, 2, 4, 1, 3, 5]);
    let cells = g.reshape(&cells, &[-1, channels * patch * patch]);
    let x = g.product(&cells, PATCH_WEIGHT);
    let x = g.reshape(&x, &[-1, patches, hidden]);
    let x = g.pad(&x, &[0, 1, 0], &[0, 0, 0]);
    let class = g.pad(CLASS_EMBEDDING, &[0, 0, 0], &[0, patches, 0]);
    let places = g.add(&class, POSITIONS);
    let x = g.add(&x, &places);
    g.reshape(&x, &[-1, hidden])
}

/// The graph `input_ids`, `attention_mask` [texts, places] -> `last_hidden_state`
/// [texts, places, hidden], `text_embeds` [texts, width] (`pooler_output` [texts, hidden] of a
/// tower without a projection) over `weights`.
pub(super) fn text_graph(
    text: &ClipText,
    element_type: ElementType,
    weights: Vec<Initializer>,
) -> Graph {
    let tower = &text.tower;
    let mut g = GraphBuilder::new("clip-text", element_type, weights);
    let open = ["batch", "sequence"].map(|name| Dim::Symbol(name.to_owned()));
    let ids = g.integer_input("input_ids", open.to_vec());
    let seen = g.integer_input("attention_mask", open.to_vec());
    let mut heads = Heads::new(tower.hidden, tower.heads, SequenceLayout::Of(ids.to_string()));

    g.scope("embeddings");
    let tokens = g.gather("text_model.embeddings.token_embedding.weight", &ids);
    let length = g.sizes(&ids, &[1]);
    let table = g.keep_front("text_model.embeddings.position_embedding.weight", 0, &length);
    let x = g.add(&tokens, &table);
    let x = g.reshape(&x, &[-1, heads.hidden]);
    let places = places(&mut g, &ids);
    let mask = causal_mask(&mut g, &places, &seen, element_type);
    let x = layers(&mut g, tower, &mut heads, "text_model", x, Some(&mask));

    g.scope("pooled");
    let x = norm(&mut g, &x, "text_model.final_layer_norm", tower.eps);
    let states = heads.sequences(&mut g, &x);
    let end = end_of(&mut g, text.end, &ids);
    let last = row_at(&mut g, &states, &end, &places, element_type);
    let last = g.reshape(&last, &[-1, heads.hidden]);
    let dims = [&open[..], &[Dim::Fixed(tower.hidden)]].concat();
    let pooled = projected(&mut g, last, tower, "text_projection.weight");
    g.output(states, "last_hidden_state", dims);
    declare_pooled(&mut g, pooled, tower, "text_embeds");
    g.finish()
}

/// 0, 1, … for the places of `ids`.
fn places(g: &mut GraphBuilder, ids: &str) -> Value {
    let (start, end) = (g.integer(0), g.size(ids, 1));
    g.range(&start, &end)
}

/// [texts, 1, places, places] to add to scores: a place sees those before it and itself, as far as
/// they are `seen`.
fn causal_mask(g: &mut GraphBuilder, places: &str, seen: &str, element_type: ElementType) -> Value {
    g.scope("mask");
    let rows = g.unsqueeze(places, &[1]);
    let causal = g.at_least(&rows, places);
    let causal = g.cast(&causal, element_type);
    let seen = g.cast(seen, element_type);
    let seen = g.unsqueeze(&seen, &[1, 2]);
    let seen = g.mul(&seen, &causal);
    hiding(g, &seen)
}

/// The place of each text's end, [texts, 1].  Tokens are compared in f32, which holds all of them.
fn end_of(g: &mut GraphBuilder, end: End, ids: &str) -> Value {
    let ranked = match end {
        End::LargestToken => g.cast(ids, ElementType::F32),
        End::Token(token) => {
            let token = g.integer(token);
            let found = g.equal(ids, &token);
            g.cast(&found, ElementType::F32)
        }
    };
    g.arg_max(&ranked, 1)
}

/// The row of `states` [texts, places, hidden] at each text's place: a product with 1 there and 0
/// elsewhere, which is exact.
fn row_at(
    g: &mut GraphBuilder,
    states: &str,
    at: &str,
    places: &str,
    element_type: ElementType,
) -> Value {
    let chosen = g.equal(places, at);
    let chosen = g.cast(&chosen, element_type);
    let chosen = g.unsqueeze(&chosen, &[1]);
    g.matmul(&chosen, states)
}

/// All layers over rows: attention and MLP, each normed before and added.
fn layers(
    g: &mut GraphBuilder,
    tower: &Tower,
    heads: &mut Heads,
    part: &str,
    mut x: Value,
    mask: Option<&str>,
) -> Value {
    for layer in 0..tower.layers {
        let name = format!("{part}.encoder.layers.{layer}");
        let act = |g: &mut GraphBuilder, x: &str| activate(g, x, tower.act);
        x = encoder_layer(g, heads, (&name, layer), tower.eps, act, &x, mask);
    }
    x
}

/// `row` in the common space, where the tower has a projection.
fn projected(g: &mut GraphBuilder, row: Value, tower: &Tower, weight: &str) -> Value {
    match tower.projection {
        Some(_) => g.product(&row, weight),
        None => row,
    }
}

/// Declares the one row of each input, as `name` if it is in the common space.
fn declare_pooled(g: &mut GraphBuilder, row: Value, tower: &Tower, name: &str) {
    let batch = Dim::Symbol("batch".to_owned());
    match tower.projection {
        Some(width) => g.output(row, name, vec![batch, Dim::Fixed(width)]),
        None => g.output(row, "pooler_output", vec![batch, Dim::Fixed(tower.hidden)]),
    }
}
