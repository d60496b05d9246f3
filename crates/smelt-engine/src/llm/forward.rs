//! Computes a decoder over a few tokens of one or more slots.
//!
//! Embedded tokens in, hidden states out; keys and values go to the slots on the way.  The layers
//! are RMSNorm, grouped-query attention with rotary positions, SwiGLU; heads are normed where the
//! family norms them.  Callers have checked tokens, slots and lengths.

use std::ops::Range;

use smelt_model::places::Place;

use super::LlmFile;
use super::kv::Cache;
use super::weights::{Decoder, Layer, Machine};
use crate::kernels::activation::swiglu;
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::norm::rms_norm;
use crate::kernels::rope::{Rotation, Turns};

/// Neighbouring tokens of one slot, and the rows where they lie.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) slot: usize,
    pub(super) rows: Range<usize>,
    /// Position of the first of them.
    pub(super) start: usize,
    /// Where each stands in time, height and width.
    pub(super) places: Vec<Place>,
}

/// What a tower's blocks say of images, added to their rows behind the first layers (deepstack).
#[derive(Clone, Copy, Default)]
pub(super) struct Features<'a> {
    /// For each of the first layers `[images, hidden]`.
    pub(super) layers: &'a [Vec<f32>],
    /// The row of the pass, and the row of the features, of each image token.
    pub(super) rows: &'a [(usize, usize)],
}

impl Features<'_> {
    fn add(&self, layer: usize, x: &mut [f32], hidden: usize) {
        let Some(features) = self.layers.get(layer) else { return };
        for &(row, image) in self.rows {
            let features = &features[image * hidden..(image + 1) * hidden];
            add(&mut x[row * hidden..(row + 1) * hidden], features);
        }
    }
}

/// A decoder with all it needs for one forward pass.
pub(super) struct Pass<'a> {
    pub(super) sizes: &'a LlmFile,
    pub(super) decoder: &'a Decoder,
    pub(super) machine: Machine<'a>,
    pub(super) turns: &'a Turns,
}

impl Pass<'_> {
    /// Runs all layers over `x` `[rows, hidden]` in place; the slots have room, and count the
    /// tokens afterwards.
    pub(super) fn layers(
        &self,
        x: &mut [f32],
        spans: &[Span],
        features: Features<'_>,
        cache: &mut Cache,
    ) {
        let places = spans.iter().flat_map(|span| &span.places);
        let rotations: Vec<Rotation> =
            places.map(|place| Rotation::new(*place, self.turns)).collect();
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            let attended = self.attend(index, layer, x, spans, &rotations, cache);
            add(x, &self.machine.apply(&layer.o, self.rows(&attended)));
            let normed = self.normed(x, &layer.mlp_norm);
            let mut gate = self.machine.apply(&layer.gate, self.rows_of(&normed));
            let up = self.machine.apply(&layer.up, self.rows_of(&normed));
            let width = self.sizes.intermediate;
            let threads = self.machine.threads.for_work(gate.len() * 16);
            threads.rows(&mut gate, width, |first, rows| {
                swiglu(rows, &up[first * width..first * width + rows.len()]);
            });
            add(x, &self.machine.apply(&layer.down, matrix(&gate, width)));
            features.add(index, x, self.sizes.hidden);
        }
        for span in spans {
            cache.advance(span.slot, &span.places);
        }
    }

    /// Logits `[rows, vocab]` of hidden states `[rows, hidden]`.
    pub(super) fn logits(&self, x: &[f32]) -> Vec<f32> {
        let normed = self.normed(x, &self.decoder.norm);
        self.machine.apply(&self.decoder.head, self.rows_of(&normed))
    }

    fn rows_of<'b>(&self, x: &'b [f32]) -> Matrix<'b> {
        matrix(x, self.sizes.hidden)
    }

    fn rows<'b>(&self, attended: &'b [f32]) -> Matrix<'b> {
        matrix(attended, self.sizes.heads * self.sizes.head_dim)
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        let hidden = self.sizes.hidden;
        for (row, out) in x.chunks_exact(hidden).zip(out.chunks_exact_mut(hidden)) {
            rms_norm(row, weight, self.sizes.eps, out);
        }
        out
    }

    /// Norms each head of `heads` in place.
    fn norm_heads(&self, heads: &mut [f32], weight: &[f32]) {
        let mut normed = vec![0.0; weight.len()];
        for head in heads.chunks_exact_mut(weight.len()) {
            rms_norm(head, weight, self.sizes.eps, &mut normed);
            head.copy_from_slice(&normed);
        }
    }

    /// Attention of one layer, before its output projection: `[rows, heads * head_dim]`.
    fn attend(
        &self,
        index: usize,
        layer: &Layer,
        x: &[f32],
        spans: &[Span],
        rotations: &[Rotation],
        cache: &mut Cache,
    ) -> Vec<f32> {
        let normed = self.normed(x, &layer.input_norm);
        let mut q = self.machine.apply(&layer.q, self.rows_of(&normed));
        let mut k = self.machine.apply(&layer.k, self.rows_of(&normed));
        let v = self.machine.apply(&layer.v, self.rows_of(&normed));
        let (dim, kv_width) = (self.sizes.head_dim, self.sizes.kv_heads * self.sizes.head_dim);
        let q_width = self.sizes.heads * dim;
        if let Some(norms) = &layer.head_norms {
            self.norm_heads(&mut q, &norms.q);
            self.norm_heads(&mut k, &norms.k);
        }
        for (row, rotation) in rotations.iter().enumerate() {
            let heads = q[row * q_width..(row + 1) * q_width].chunks_exact_mut(dim);
            heads.for_each(|head| rotation.apply(head));
            let heads = k[row * kv_width..(row + 1) * kv_width].chunks_exact_mut(dim);
            heads.for_each(|head| rotation.apply(head));
        }
        for span in spans {
            for (position, row) in (span.start..).zip(span.rows.clone()) {
                let row = row * kv_width..(row + 1) * kv_width;
                cache.store(span.slot, index, position, &k[row.clone()], &v[row]);
            }
        }
        self.attend_stored(index, &q, spans, cache)
    }
}

fn matrix(numbers: &[f32], columns: usize) -> Matrix<'_> {
    Matrix::new(Elements::F32(numbers), numbers.len() / columns, columns)
}

fn add(x: &mut [f32], more: &[f32]) {
    x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
}
