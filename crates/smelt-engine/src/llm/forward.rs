//! Computes a decoder over a few tokens of one or more slots.
//!
//! Embedded tokens in, hidden states out; keys and values go to the slots on the way.  The layers
//! are RMSNorm, grouped-query attention with rotary positions, SwiGLU; heads are normed where the
//! family norms them.  Callers have checked tokens, slots and lengths.

use std::ops::Range;

use super::LlmFile;
use super::kv::{Kind, Slot};
use super::linear::apply;
use super::weights::{Decoder, Layer, Machine};
use crate::kernels::activation::swiglu;
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::norm::rms_norm;
use crate::kernels::product::{Panels, Product};
use crate::kernels::rope::{Rotation, frequencies};
use crate::kernels::softmax::softmax;
use crate::kernels::striped::Input;

/// Tokens of one attention task: with the seven query heads a key head usually has, 224 rows of
/// scores.
const TASK_TOKENS: usize = 32;

/// Neighbouring tokens of one slot, and the rows where they lie.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) slot: usize,
    pub(super) rows: Range<usize>,
    /// Position of the first of them.
    pub(super) start: usize,
}

/// A decoder with all it needs for one forward pass.
pub(super) struct Pass<'a> {
    pub(super) sizes: &'a LlmFile,
    pub(super) decoder: &'a Decoder,
    pub(super) machine: Machine<'a>,
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
        slots: &mut [Slot],
        buffers: &mut Buffers,
    ) {
        let positions = spans.iter().flat_map(|span| span.start..span.start + span.rows.len());
        let LlmFile { head_dim, rope_theta, rope_scaling, .. } = *self.sizes;
        let frequencies = frequencies(head_dim, rope_theta, rope_scaling);
        let rotations: Vec<Rotation> =
            positions.map(|position| Rotation::new(position, &frequencies)).collect();
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            self.project(layer, x, &rotations, buffers);
            self.store(index, spans, slots, buffers);
            let attended = self.attend_stored(index, &buffers.q, spans, slots);
            let Buffers { input, out, .. } = buffers;
            apply(&mut [(&layer.o, out)], &attended, input, self.machine);
            add(x, &buffers.out);
            self.feed_forward(layer, x, buffers);
        }
        for span in spans {
            slots[span.slot].advance(span.rows.len());
        }
    }

    /// Logits `[rows, vocab]` of hidden states `[rows, hidden]`.
    pub(super) fn logits(&self, x: &[f32], buffers: &mut Buffers) -> Vec<f32> {
        self.norm(x, &self.decoder.norm, &mut buffers.normed);
        let mut logits = Vec::new();
        let Buffers { input, normed, .. } = buffers;
        apply(&mut [(&self.decoder.head, &mut logits)], normed, input, self.machine);
        logits
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
    fn project(&self, layer: &Layer, x: &[f32], rotations: &[Rotation], buffers: &mut Buffers) {
        self.norm(x, &layer.input_norm, &mut buffers.normed);
        let Buffers { input, normed, q, k, v, .. } = buffers;
        apply(&mut [(&layer.q, q), (&layer.k, k), (&layer.v, v)], normed, input, self.machine);
        if let Some(norms) = &layer.head_norms {
            self.norm_heads(q, &norms.q);
            self.norm_heads(k, &norms.k);
        }
        let LlmFile { heads, kv_heads, head_dim: dim, .. } = *self.sizes;
        for (numbers, heads) in [(q, heads), (k, kv_heads)] {
            for (row, rotation) in numbers.chunks_exact_mut(heads * dim).zip(rotations) {
                row.chunks_exact_mut(dim).for_each(|head| rotation.apply(head));
            }
        }
    }

    /// Gives keys and values to the slots.
    fn store(&self, layer: usize, spans: &[Span], slots: &mut [Slot], buffers: &Buffers) {
        let width = self.sizes.kv_heads * self.sizes.head_dim;
        for span in spans {
            let slot = &mut slots[span.slot];
            for (offset, row) in span.rows.clone().enumerate() {
                let row = row * width..(row + 1) * width;
                let position = span.start + offset;
                slot.store(layer, Kind::Keys, position, &buffers.k[row.clone()]);
                slot.store(layer, Kind::Values, position, &buffers.v[row]);
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
        const NUMBER_WORK: usize = 16;
        let team = self.machine.threads.for_work(gate.len() * NUMBER_WORK);
        team.rows(gate, width, |first, rows| {
            let up = &up[first * width..][..rows.len()];
            isa.vectorised(|| swiglu(rows, up));
        });
        apply(&mut [(&layer.down, out)], gate, input, self.machine);
        add(x, out);
    }

    /// Attention of `q` over what the slots hold.
    fn attend_stored(&self, layer: usize, q: &[f32], spans: &[Span], slots: &[Slot]) -> Vec<f32> {
        let mut tasks = self.tasks(spans);
        let work = tasks.iter().map(|task| task.end() * task.rows.len() * self.sizes.head_dim);
        let work = work.sum::<usize>() * self.sizes.heads / self.sizes.kv_heads;
        self.machine.threads.for_work(work).rows(&mut tasks, 1, |_, tasks| {
            let mut panels = Panels::default();
            for task in tasks {
                task.out = self.attend_task(layer, q, task, &slots[task.slot], &mut panels);
            }
        });
        let width = self.sizes.heads * self.sizes.head_dim;
        let mut out = vec![0.0; q.len()];
        for task in &tasks {
            let group_width = self.group() * self.sizes.head_dim;
            for (row, numbers) in task.rows.clone().zip(task.out.chunks_exact(group_width)) {
                let start = row * width + task.kv_head * group_width;
                out[start..start + group_width].copy_from_slice(numbers);
            }
        }
        out
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.sizes.heads / self.sizes.kv_heads
    }

    /// Cuts the spans into tasks, one a key head and up to `TASK_TOKENS` tokens.
    fn tasks(&self, spans: &[Span]) -> Vec<Task> {
        let mut tasks = Vec::new();
        for span in spans {
            for kv_head in 0..self.sizes.kv_heads {
                for first in span.rows.clone().step_by(TASK_TOKENS) {
                    let rows = first..(first + TASK_TOKENS).min(span.rows.end);
                    let start = span.start + (first - span.rows.start);
                    tasks.push(Task { slot: span.slot, kv_head, rows, start, out: Vec::new() });
                }
            }
        }
        tasks
    }

    /// `softmax(q kᵀ / √head_dim) v` for the query heads of one key head, `[tokens, group,
    /// head_dim]`.
    fn attend_task(
        &self,
        layer: usize,
        q: &[f32],
        task: &Task,
        slot: &Slot,
        panels: &mut Panels,
    ) -> Vec<f32> {
        let (dim, group, isa) = (self.sizes.head_dim, self.group(), self.machine.isa);
        let (count, end) = (task.rows.len() * group, task.end());
        let queries = self.queries(q, task);
        let queries = matrix(&queries, dim);
        let mut scores = vec![0.0; count * end];
        for (range, keys) in slot.head(layer, Kind::Keys, task.kv_head, end) {
            let product = Product { out_stride: end, ..Product::new(queries, keys) };
            product.run_here(isa, panels, &mut scores[range.start..]);
        }
        for (row, scores) in scores.chunks_exact_mut(end).enumerate() {
            let visible = task.start + row / group + 1;
            softmax(&mut scores[..visible]);
            scores[visible..].fill(0.0);
        }
        let mut out = vec![0.0; count * dim];
        for (range, values) in slot.head(layer, Kind::Values, task.kv_head, end) {
            let part = Elements::F32(&scores[range.start..]);
            let part = Matrix::strided(part, count, range.len(), [end, 1]);
            let product = Product { accumulate: true, ..Product::new(part, values.transposed()) };
            product.run_here(isa, panels, &mut out);
        }
        out
    }

    /// The queries of a task, scaled: `[tokens, group, head_dim]`.
    fn queries(&self, q: &[f32], task: &Task) -> Vec<f32> {
        let (width, part) =
            (self.sizes.heads * self.sizes.head_dim, self.group() * self.sizes.head_dim);
        let scale = (self.sizes.head_dim as f32).sqrt().recip();
        let rows = task.rows.clone().flat_map(|row| {
            let start = row * width + task.kv_head * part;
            &q[start..start + part]
        });
        rows.map(|value| value * scale).collect()
    }
}

/// Some tokens of one slot, for one key head.
struct Task {
    slot: usize,
    kv_head: usize,
    rows: Range<usize>,
    /// Position of the first token.
    start: usize,
    out: Vec<f32>,
}

impl Task {
    /// Positions that the last of its tokens sees.
    fn end(&self) -> usize {
        self.start + self.rows.len()
    }
}

fn matrix(numbers: &[f32], columns: usize) -> Matrix<'_> {
    Matrix::new(Elements::F32(numbers), numbers.len() / columns, columns)
}

fn add(x: &mut [f32], more: &[f32]) {
    x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
}
