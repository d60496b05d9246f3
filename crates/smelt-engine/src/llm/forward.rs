//! Computes a decoder over a few tokens of one or more slots.
//!
//! Embedded tokens in, hidden states out; keys and values go to the slots on the way.  The layers
//! are RMSNorm, grouped-query attention with rotary positions, SwiGLU; heads are normed where the
//! family norms them.  Callers have checked tokens, slots and lengths.

use std::ops::Range;

use smelt_backend::position_ids::PositionId;

use super::LlmFile;
use super::kv::Cache;
use super::linear::apply;
use super::weights::{Decoder, Layer, Machine};
use crate::kernels::norm::rms_norm;
use crate::kernels::rope::{CosSin, RotaryEmbedding};
use crate::kernels::striped::Input;
use crate::kernels::swiglu::swiglu;

/// Neighbouring tokens of one slot, and the rows where they lie.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) slot: usize,
    pub(super) rows: Range<usize>,
    /// Position of the first of them.
    pub(super) start: usize,
    /// Where each stands in time, height and width.
    pub(super) position_ids: Vec<PositionId>,
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
    pub(super) rotary: &'a RotaryEmbedding,
}

/// What a pass computes in, kept from pass to pass for its memory.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    input: Input,
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// What goes back to the hidden states.
    out: Vec<f32>,
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
        buffers: &mut Buffers,
    ) {
        let position_ids = spans.iter().flat_map(|span| &span.position_ids);
        let cos_sins: Vec<CosSin> =
            position_ids.map(|position_id| CosSin::new(*position_id, self.rotary)).collect();
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            self.project(layer, x, &cos_sins, buffers);
            self.store(index, spans, cache, buffers);
            let attended = self.attend_stored(index, &buffers.q, spans, cache);
            let Buffers { input, out, .. } = buffers;
            apply(&mut [(&layer.o, out)], &attended, input, self.machine);
            add(x, &buffers.out);
            self.feed_forward(layer, x, buffers);
            features.add(index, x, self.sizes.hidden);
        }
        for span in spans {
            cache.advance(span.slot, &span.position_ids);
        }
    }

    /// Writes the logits `[rows, vocab]` of hidden states `[rows, hidden]`.
    pub(super) fn logits(&self, x: &[f32], buffers: &mut Buffers, logits: &mut Vec<f32>) {
        self.norm(x, &self.decoder.norm, &mut buffers.normed);
        let Buffers { input, normed, .. } = buffers;
        apply(&mut [(&self.decoder.head, logits)], normed, input, self.machine);
    }

    /// Norms each row of `x` into `out`.
    fn norm(&self, x: &[f32], weight: &[f32], out: &mut Vec<f32>) {
        out.resize(x.len(), 0.0);
        let hidden = self.sizes.hidden;
        for (row, out) in x.chunks_exact(hidden).zip(out.chunks_exact_mut(hidden)) {
            rms_norm(row, weight, self.sizes.eps, out);
        }
    }

    /// Norms each head of `heads` in place.
    fn norm_heads(&self, heads: &mut [f32], weight: &[f32]) {
        let mut normed = vec![0.0; weight.len()];
        for head in heads.chunks_exact_mut(weight.len()) {
            rms_norm(head, weight, self.sizes.eps, &mut normed);
            head.copy_from_slice(&normed);
        }
    }

    /// Queries, keys and values of one layer, queries and keys turned to their positions.
    fn project(&self, layer: &Layer, x: &[f32], cos_sins: &[CosSin], buffers: &mut Buffers) {
        self.norm(x, &layer.input_norm, &mut buffers.normed);
        let Buffers { input, normed, q, k, v, .. } = buffers;
        apply(&mut [(&layer.q, q), (&layer.k, k), (&layer.v, v)], normed, input, self.machine);
        if let Some(norms) = &layer.head_norms {
            self.norm_heads(q, &norms.q);
            self.norm_heads(k, &norms.k);
        }
        let LlmFile { heads, kv_heads, head_dim: dim, .. } = *self.sizes;
        for (numbers, heads) in [(q, heads), (k, kv_heads)] {
            for (row, cos_sin) in numbers.chunks_exact_mut(heads * dim).zip(cos_sins) {
                row.chunks_exact_mut(dim).for_each(|head| cos_sin.apply(head));
            }
        }
    }

    /// Gives keys and values to the slots.
    fn store(&self, layer: usize, spans: &[Span], cache: &mut Cache, buffers: &Buffers) {
        let width = self.sizes.kv_heads * self.sizes.head_dim;
        for span in spans {
            for (position, row) in (span.start..).zip(span.rows.clone()) {
                let row = row * width..(row + 1) * width;
                let (keys, values) = (&buffers.k[row.clone()], &buffers.v[row]);
                cache.store(span.slot, layer, position, keys, values);
            }
        }
    }

    /// SwiGLU of one layer, added to `x`.
    fn feed_forward(&self, layer: &Layer, x: &mut [f32], buffers: &mut Buffers) {
        self.norm(x, &layer.mlp_norm, &mut buffers.normed);
        let Buffers { input, normed, gate, up, out, .. } = buffers;
        apply(&mut [(&layer.gate, gate), (&layer.up, up)], normed, input, self.machine);
        let (isa, width) = (self.machine.isa, self.sizes.intermediate);
        /// A number takes about as long as this many products.
        const NUMBER_WORK: usize = 4;
        let team = self.machine.threads.for_work(gate.len() * NUMBER_WORK);
        team.rows(gate, width, |first, rows| {
            swiglu(isa, rows, &up[first * width..][..rows.len()]);
        });
        apply(&mut [(&layer.down, out)], gate, input, self.machine);
        add(x, out);
    }
}

fn add(x: &mut [f32], more: &[f32]) {
    x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
}
