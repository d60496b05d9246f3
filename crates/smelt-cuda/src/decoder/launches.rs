//! Says what a pass over the layers launches, and what the logits behind it do.
//!
//! A model, its buffers and the shape of a pass in, work in its order out: plain data, the same for every pass of a shape.
//! Norms, rotation, the cache and SwiGLU are in kernels beside or inside of the products.  Knows no driver.

use super::buffers::Buffers;
use super::inputs::{Places, RUN_WORDS, Shape};
use super::model::{Layer, Linear, Model};
use crate::kernels::attention::{self, Attend, Partials};
use crate::kernels::layout::activation_len;
use crate::kernels::product::{self, Activations, Outcome, ProductShape, State};
use crate::kernels::rows::{
    self, LayerPages, Norm, NumberKind, Reorder, Rotate, Rotations, Scatter,
};
use crate::{DeviceAddress, Launch, Processors};

/// Something to put on a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    /// A kernel.
    Launch(Launch),
    /// Bytes become zero.
    Clear { at: DeviceAddress, bytes: u64 },
}

/// Where a pass finds what the host told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The lists of [`inputs`](super::inputs).
    pub(super) inputs: DeviceAddress,
    /// `[1 + deepstack, rows of images, hidden]` floats.
    pub(super) features: DeviceAddress,
    /// Keys and values.
    pub(super) pool: DeviceAddress,
}

/// Writes the work of a pass down.
struct Pass<'a> {
    model: &'a Model,
    buffers: &'a Buffers,
    place: Place,
    shape: &'a Shape,
    places: Places,
    processors: Processors,
    ops: Vec<Op>,
}

/// The work of a pass of a shape over all layers, on a card of such processors.
pub(super) fn pass(
    model: &Model,
    buffers: &Buffers,
    place: Place,
    shape: &Shape,
    processors: Processors,
) -> Vec<Op> {
    let places = shape.places();
    let mut pass = Pass { model, buffers, place, shape, places, processors, ops: Vec::new() };
    pass.begin();
    for (index, layer) in model.layers.iter().enumerate() {
        pass.attention(index, layer);
        pass.feed_forward(layer);
        if index < model.sizes.deepstack {
            pass.images(index + 1, true);
        }
    }
    pass.ops
}

/// The work of the logits behind `count` rows of the pass before, whose numbers lie at `wanted`.
pub(super) fn head(
    model: &Model,
    buffers: &Buffers,
    wanted: DeviceAddress,
    count: usize,
    processors: Processors,
) -> Vec<Op> {
    let none = DeviceAddress::NULL;
    let place = Place { inputs: none, features: none, pool: none };
    let shape = &Shape { rows: count, ..Shape::default() };
    let places = shape.places();
    let mut pass = Pass { model, buffers, place, shape, places, processors, ops: Vec::new() };
    pass.norm(model.norm, wanted);
    let outcome = Outcome::Store { out: buffers.logits, stride: model.sizes.vocab as u32 };
    pass.product(&model.head, buffers.normed, outcome, &mut None);
    pass.ops
}

/// What was made of activations for a product, so that the next one of the same need not make it again: the order of
/// their columns, and the groups that were added up.
type Prepared = Option<(Option<DeviceAddress>, Option<usize>)>;

impl Pass<'_> {
    fn launch(&mut self, launch: Launch) {
        self.ops.push(Op::Launch(launch));
    }

    fn rows(&self) -> u32 {
        self.shape.rows as u32
    }

    /// Where a list lies.
    fn input(&self, at: usize) -> DeviceAddress {
        self.place.inputs.offset(at as u64)
    }

    /// States become embeddings and features of images; places become cosines and sines.
    fn begin(&mut self) {
        let (sizes, states) = (&self.model.sizes, self.buffers.states);
        let out = (states, sizes.hidden as u32);
        let ids = self.input(self.places.ids);
        self.launch(product::widen(&self.model.embedding.weight, ids, self.rows(), out));
        self.images(0, false);
        let rotary = self.model.rotary;
        self.launch(rows::rotations(Rotations {
            cosines: self.buffers.cosines,
            sines: self.buffers.sines,
            places: self.input(self.places.places),
            frequencies: rotary.frequencies,
            axes: rotary.axes,
            tokens: self.rows(),
            pairs: (sizes.head_dim / 2) as u32,
            factor: rotary.factor,
        }));
    }

    /// Puts features `layer` in the rows of images, or adds them.
    fn images(&mut self, layer: usize, adds: bool) {
        let (count, hidden) = (self.shape.images, self.model.sizes.hidden);
        if count == 0 {
            return;
        }
        let from = self.place.features.offset((layer * count * hidden * size_of::<f32>()) as u64);
        self.launch(rows::scatter(Scatter {
            x: self.buffers.states,
            from,
            kind: NumberKind::F32,
            rows: self.input(self.places.image_rows),
            sources: self.input(self.places.image_sources),
            count: count as u32,
            hidden: hidden as u32,
            adds,
        }));
    }

    /// Norms states, of the rows that are listed or of all, into what products take.
    fn norm(&mut self, weight: DeviceAddress, listed: DeviceAddress) {
        let sizes = &self.model.sizes;
        let columns = self.model.head.weight.columns;
        self.launch(rows::norm(Norm {
            out: self.buffers.normed,
            x: self.buffers.states,
            weight,
            rows: listed,
            tokens: self.rows(),
            hidden: sizes.hidden as u32,
            columns,
            eps: sizes.eps,
        }));
    }

    /// A product of activations, sorted and added up as its weight wants them.
    fn product(
        &mut self,
        linear: &Linear,
        halves: DeviceAddress,
        outcome: Outcome,
        prepared: &mut Prepared,
    ) {
        let (weight, rows) = (&linear.weight, self.rows());
        let group = weight.form.has_mins.then_some(weight.form.group);
        let halves_own = if linear.order.is_some() { self.buffers.sorted } else { halves };
        if *prepared != Some((linear.order, group)) {
            self.prepare(linear, halves, halves_own);
            *prepared = Some((linear.order, group));
        }
        let sums = if group.is_some() { self.buffers.sums } else { DeviceAddress::NULL };
        let x = Activations { halves: halves_own, sums, tokens: rows };
        let shape = self.model.shape(weight, rows, self.processors);
        let by = (shape, self.processors);
        self.launch(product::product(weight, linear.bias, x, outcome, by));
    }

    /// The shapes in which these products norm the state of a pass of one row themselves, which saves a launch.
    fn norming<'b>(&self, linears: impl Iterator<Item = &'b Linear>) -> Option<Vec<ProductShape>> {
        if self.rows() != 1 {
            return None;
        }
        let shape = |linear: &Linear| {
            let Linear { weight, order: None, .. } = linear else { return None };
            self.model.shape_of_state(weight, self.processors.count)
        };
        linears.map(shape).collect()
    }

    /// A product of the only row's state, which it norms.
    fn product_of_state(
        &mut self,
        linear: &Linear,
        norm: DeviceAddress,
        outcome: Outcome,
        shape: ProductShape,
    ) {
        let Model { sizes, .. } = self.model;
        let (hidden, eps) = (sizes.hidden as u32, sizes.eps);
        let state = State { numbers: self.buffers.states, norm, hidden, eps };
        self.launch(product::product_of_state(&linear.weight, linear.bias, state, outcome, shape));
    }

    /// Sorts columns, and adds up groups, where a weight wants that.
    fn prepare(&mut self, linear: &Linear, halves: DeviceAddress, own: DeviceAddress) {
        let (weight, tokens) = (&linear.weight, self.rows());
        if let Some(order) = linear.order {
            self.launch(rows::reorder(Reorder {
                out: own,
                x: halves,
                order,
                tokens,
                columns: linear.columns as u32,
                padded_columns: weight.columns,
            }));
        }
        if weight.form.has_mins {
            let (sums, group) = (self.buffers.sums, weight.form.group as u32);
            self.launch(rows::group_sums(sums, own, tokens, weight.columns, group));
        }
    }

    /// Queries, keys and values of normed states.
    fn project(&mut self, layer: &Layer, stride: u32) {
        let outcome = |first: usize| {
            let out = self.buffers.projected.offset((first * size_of::<f32>()) as u64);
            Outcome::Store { out, stride }
        };
        let linears = layer.projections.iter().map(|projection| &projection.linear);
        if let Some(shapes) = self.norming(linears) {
            for (projection, shape) in layer.projections.iter().zip(shapes) {
                let outcome = outcome(projection.first);
                self.product_of_state(&projection.linear, layer.input_norm, outcome, shape);
            }
            return;
        }
        self.norm(layer.input_norm, DeviceAddress::NULL);
        let mut prepared = None;
        for projection in &layer.projections {
            let outcome = outcome(projection.first);
            self.product(&projection.linear, self.buffers.normed, outcome, &mut prepared);
        }
    }

    /// Attention of one layer, added to the states.
    fn attention(&mut self, index: usize, layer: &Layer) {
        let (model, buffers) = (self.model, self.buffers);
        let stride = model.projected() as u32;
        self.project(layer, stride);
        let pages = LayerPages {
            pool: self.place.pool.offset(model.layer_start(index)),
            tables: self.input(self.places.tables),
            page_bytes: model.page_bytes(),
        };
        let rotate = Rotate {
            queries: buffers.queries,
            all: buffers.projected,
            stride,
            query_norm: layer.head_norms[0],
            key_norm: layer.head_norms[1],
            cosines: buffers.cosines,
            sines: buffers.sines,
            row_tables: self.input(self.places.row_tables),
            row_positions: self.input(self.places.positions),
            pages,
            tokens: self.rows(),
            heads: model.heads,
            eps: model.sizes.eps,
        };
        self.fill_up(buffers.attended, model.attended(), layer.output.weight.columns);
        self.attend(rotate);
        let outcome = self.added();
        self.product(&layer.output, buffers.attended, outcome, &mut None);
    }

    /// Clears activations of which what comes writes fewer columns than a product reads.
    fn fill_up(&mut self, at: DeviceAddress, written: usize, columns: u32) {
        if written < columns as usize {
            let bytes = (activation_len(self.shape.rows, columns as usize) * 2) as u64;
            self.ops.push(Op::Clear { at, bytes });
        }
    }

    /// What adds a product to the states.
    fn added(&self) -> Outcome {
        Outcome::Add { out: self.buffers.states, stride: self.model.sizes.hidden as u32 }
    }

    /// Attention over pages, into which keys and values of the pass go: in one launch where that is better; else runs of few rows
    /// as many at once as partial results have room for, then those of many.
    fn attend(&mut self, rotate: Rotate) {
        let Shape { few, few_rows, few_pages, many, many_rows, .. } = *self.shape;
        let pages = rotate.pages;
        let group = self.model.group().max(1);
        let attend = |pass: &Self, first: usize, count: usize, rows: usize| Attend {
            out: pass.buffers.attended,
            queries: pass.buffers.queries,
            runs: pass.input(pass.places.runs + first * RUN_WORDS * size_of::<u32>()),
            count: count as u32,
            tokens_max: rows.div_ceil(group) as u32,
            pages,
            tokens: pass.rows(),
            heads: pass.model.heads,
        };
        if many == 0 {
            let (own, longest) =
                (attend(self, 0, few, few_rows), (few_pages as u32, few_rows as u32));
            let together = attention::attend_together(own, rotate, longest, self.processors);
            if let Some(launch) = together {
                return self.launch(launch);
            }
        }
        self.launch(rows::rotate_and_keep(rotate));
        let at_once = (self.buffers.parts_rows / (few_rows * few_pages).max(1)).max(1);
        for first in (0..few).step_by(at_once) {
            let own = attend(self, first, at_once.min(few - first), few_rows);
            let (parts, marks) = (self.buffers.parts, self.buffers.marks);
            let (pages, rows) = (few_pages as u32, few_rows as u32);
            let partials = Partials { parts, marks, pages, rows };
            let launches = attention::attend_pages(own, partials, self.processors.count);
            launches.into_iter().for_each(|launch| self.launch(launch));
        }
        if many > 0 {
            let own = attend(self, few, many, many_rows);
            self.launch(attention::attend_prompt(own, self.processors));
        }
    }

    /// SwiGLU of one layer, added to the states.
    fn feed_forward(&mut self, layer: &Layer) {
        let buffers = self.buffers;
        let written = layer.gate_up.weight.rows.next_multiple_of(64) as usize / 2;
        self.fill_up(buffers.middle, written, layer.down.weight.columns);
        let outcome = Outcome::Swiglu { out: buffers.middle };
        match self.norming(std::iter::once(&layer.gate_up)).as_deref() {
            Some(&[shape]) => self.product_of_state(&layer.gate_up, layer.mlp_norm, outcome, shape),
            _ => {
                self.norm(layer.mlp_norm, DeviceAddress::NULL);
                self.product(&layer.gate_up, buffers.normed, outcome, &mut None);
            }
        }
        let outcome = self.added();
        self.product(&layer.down, buffers.middle, outcome, &mut None);
    }
}
