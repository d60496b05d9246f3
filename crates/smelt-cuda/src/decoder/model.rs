//! Finds the weights of a decoder in an engine, and where each lies on the card.
//!
//! Names, shapes and sizes are checked when the engine is opened.  What a family lacks is a tensor that is not there: biases,
//! norms of heads.  Knows nothing of sequences.

use std::sync::Arc;

use smelt_backend::{KvType, OpenError};

use super::file::{DecoderDir, DecoderFile, LAYOUT, TensorEntry};
use super::weights::{Weights, WeightsPlace};
use crate::driver::{Driver, Stream};
use crate::kernels::form::{WeightForm, WeightPart};
use crate::kernels::layout::{STRIP_ROWS, padded_columns, padded_rows, part_bytes};
use crate::kernels::page::HeadShape;
use crate::kernels::product::{DeviceWeight, ProductShape, fits};
use crate::kernels::rows::Heads;
use crate::tactics::{ProductSize, ShapeTable, TunedCard};
use crate::{DeviceAddress, Processors};

/// The form of tensors that are plain f32.
const FLOATS: &str = "f32";
/// The form of tensors that are whole numbers of four bytes.
const WORDS: &str = "u32";

/// A linear layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    pub(super) weight: DeviceWeight,
    /// What is added to its results; no place where there is none.
    pub(super) bias: DeviceAddress,
    /// Columns that count; the weight has more.
    pub(super) columns: usize,
    /// Which input each column takes, where columns were sorted.
    pub(super) order: Option<DeviceAddress>,
}

/// Part of the queries, keys and values of a layer, which lie side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    pub(super) linear: Linear,
    /// The first of its numbers among all.
    pub(super) first: usize,
}

/// One decoder layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) input_norm: DeviceAddress,
    pub(super) projections: Vec<Projection>,
    /// Norms of heads of queries and of keys; no places where the family has none.
    pub(super) head_norms: [DeviceAddress; 2],
    pub(super) output: Linear,
    pub(super) mlp_norm: DeviceAddress,
    /// Gates and what they are multiplied with, in turns of eight rows.
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
}

/// How positions turn heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotary {
    /// Angles per position, `[head_dim / 2]`.
    pub(super) frequencies: DeviceAddress,
    /// Which position turns each: 0 time, 1 height, 2 width.
    pub(super) axes: DeviceAddress,
    /// What cosines and sines are multiplied with.
    pub(super) factor: f32,
}

/// A decoder on a card.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) sizes: DecoderFile,
    pub(super) heads: Heads,
    pub(super) embedding: Linear,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: DeviceAddress,
    pub(super) head: Linear,
    pub(super) rotary: Rotary,
    /// Which kernels multiply.
    shapes: ShapeTable,
    /// Why it does not follow the tactics that it was built with, if so.
    pub(super) untuned: Option<String>,
    /// What all the addresses are in.
    _weights: Weights,
}

impl Model {
    /// Brings the weights of `dir` to `place`, and finds them.
    ///
    /// # Errors
    /// When the engine was packed for other kernels or lacks a tensor, or the card has no room.
    pub(super) fn open(
        dir: &DecoderDir,
        driver: &Arc<dyn Driver>,
        stream: Stream,
        (kind, place): (KvType, WeightsPlace),
    ) -> Result<Self, OpenError> {
        if dir.layout != LAYOUT {
            let found = dir.layout;
            let problem =
                format!("it is packed in layout {found}, and these kernels read {LAYOUT}");
            return Err(dir.unfit("this version", problem));
        }
        let weights = Weights::bring(place, dir, driver, stream)?;
        let finder = Finder { dir, weights: &weights };
        let sizes = dir.engine.clone();
        let (hidden, vocab, pairs) = (sizes.hidden, sizes.vocab, sizes.head_dim / 2);
        let embedding = finder.linear("embedding", [vocab, hidden])?;
        let has_head = dir.tensor("head").is_some();
        let head = if has_head { finder.linear("head", [vocab, hidden])? } else { embedding };
        let layers =
            (0..sizes.layers).map(|index| finder.layer(index)).collect::<Result<_, _>>()?;
        let rotary = Rotary {
            frequencies: finder.numbers("rotary.frequencies", FLOATS, pairs)?,
            axes: finder.numbers("rotary.axes", WORDS, pairs)?,
            factor: sizes.rotary_factor,
        };
        let norm = finder.numbers("norm", FLOATS, hidden)?;
        let shape = HeadShape { dim: sizes.head_dim, kind };
        let (queries, keys) = (sizes.heads as u32, sizes.kv_heads as u32);
        let heads = Heads { queries, keys, shape };
        let here = TunedCard::of(driver.card(), dir.target);
        let untuned = dir.tactics.as_ref().and_then(|tactics| tactics.unlike(&here));
        let tactics = dir.tactics.as_ref().filter(|_| untuned.is_none());
        let shapes = tactics.map(|tactics| tactics.table().map_err(|why| dir.damaged(why)));
        let shapes = shapes.transpose()?.unwrap_or_default();
        Ok(Self {
            sizes,
            heads,
            embedding,
            layers,
            norm,
            head,
            rotary,
            shapes,
            untuned,
            _weights: weights,
        })
    }

    /// The kernel for a product of so many tokens, on a card of such processors.
    pub(super) fn shape(
        &self,
        weight: &DeviceWeight,
        tokens: u32,
        processors: Processors,
    ) -> ProductShape {
        self.shapes.shape(size(weight), tokens, processors)
    }

    /// The same of one that norms the state of one token itself; nothing where none does.
    pub(super) fn shape_of_state(
        &self,
        weight: &DeviceWeight,
        multiprocessors: u32,
    ) -> Option<ProductShape> {
        self.shapes.of_state(size(weight), multiprocessors)
    }

    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.heads.group() as usize
    }

    /// Numbers of queries, keys and values of a token.
    pub(super) fn projected(&self) -> usize {
        (self.sizes.heads + 2 * self.sizes.kv_heads) * self.sizes.head_dim
    }

    /// Numbers of the queries of a token.
    pub(super) fn attended(&self) -> usize {
        self.sizes.heads * self.sizes.head_dim
    }

    /// Bytes of a page of all layers.
    pub(super) fn page_bytes(&self) -> u64 {
        self.heads.shape.page_bytes(self.sizes.layers, self.sizes.kv_heads) as u64
    }

    /// Bytes before the keys and values of a layer in a page.
    pub(super) fn layer_start(&self, layer: usize) -> u64 {
        self.heads.shape.layer_start(layer, self.sizes.kv_heads) as u64
    }

    /// Every product.
    pub(super) fn linears(&self) -> impl Iterator<Item = &Linear> {
        let layers = self.layers.iter().flat_map(|layer| {
            let projections = layer.projections.iter().map(|projection| &projection.linear);
            projections.chain([&layer.output, &layer.gate_up, &layer.down])
        });
        layers.chain([&self.head])
    }
}

fn size(&DeviceWeight { form, rows, columns, .. }: &DeviceWeight) -> ProductSize {
    ProductSize { form, rows, columns }
}

/// Looks for tensors.
struct Finder<'a> {
    dir: &'a DecoderDir,
    weights: &'a Weights,
}

impl Finder<'_> {
    fn layer(&self, index: usize) -> Result<Layer, OpenError> {
        let sizes = &self.dir.engine;
        let (hidden, intermediate, dim) = (sizes.hidden, sizes.intermediate, sizes.head_dim);
        let name = |part: &str| format!("layers.{index}.{part}");
        let floats = |part: &str, len| self.numbers(&name(part), FLOATS, len);
        Ok(Layer {
            input_norm: floats("input_norm", hidden)?,
            projections: self.projections(index)?,
            head_norms: [
                self.optional(&name("q_norm"), dim)?,
                self.optional(&name("k_norm"), dim)?,
            ],
            output: self.linear(&name("output"), [hidden, sizes.heads * dim])?,
            mlp_norm: floats("mlp_norm", hidden)?,
            gate_up: self
                .linear(&name("gate_up"), [2 * intermediate.next_multiple_of(8), hidden])?,
            down: self.linear(&name("down"), [hidden, intermediate])?,
        })
    }

    /// Queries, keys and values: of one form they are one weight, else three.
    fn projections(&self, index: usize) -> Result<Vec<Projection>, OpenError> {
        let sizes = &self.dir.engine;
        let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        let find = |part: &str, rows: usize, first: usize| -> Result<Projection, OpenError> {
            let linear = self.linear(&format!("layers.{index}.{part}"), [rows, sizes.hidden])?;
            Ok(Projection { linear, first })
        };
        if self.dir.tensor(&format!("layers.{index}.qkv")).is_some() {
            return Ok(vec![find("qkv", q + 2 * kv, 0)?]);
        }
        Ok(vec![find("q", q, 0)?, find("k", kv, q)?, find("v", kv, q + kv)?])
    }

    /// The weight called `name`, with its bias if it has one.
    fn linear(&self, name: &str, [rows, columns]: [usize; 2]) -> Result<Linear, OpenError> {
        let entry = self.entry(name)?;
        let form = WeightForm::parse(&entry.form);
        let form = form.ok_or_else(|| self.wrong(name, &format!("is of form {:?}", entry.form)))?;
        if !fits(form, padded_columns(columns)) {
            return Err(self.wrong(name, &format!("of form {} has {columns} columns", form.name)));
        }
        let part = |part: WeightPart| self.part(name, form, part, [rows, columns]);
        let weight = DeviceWeight {
            form,
            rows: rows as u32,
            columns: padded_columns(columns) as u32,
            levels: part(WeightPart::Levels)?,
            scales: part(WeightPart::Scales)?,
            zeros: part(WeightPart::Zeros)?,
            mins: part(WeightPart::Mins)?,
            spans: part(WeightPart::Spans)?,
            min_spans: part(WeightPart::MinSpans)?,
            row_scales: part(WeightPart::RowScales)?,
        };
        let bias = self.optional(&format!("{name}_bias"), rows)?;
        let order = format!("{name}_order");
        let has_order = self.dir.tensor(&order).is_some();
        let order = has_order.then(|| self.numbers(&order, WORDS, columns)).transpose()?;
        Ok(Linear { weight, bias, columns, order })
    }

    /// A part of a packed weight; no place for one that its form has not.
    fn part(
        &self,
        name: &str,
        form: WeightForm,
        part: WeightPart,
        [rows, columns]: [usize; 2],
    ) -> Result<DeviceAddress, OpenError> {
        if !form.parts().contains(&part) {
            return Ok(DeviceAddress::NULL);
        }
        let strips = padded_rows(rows) / STRIP_ROWS;
        let bytes = strips * part_bytes(form, part, padded_columns(columns));
        let name = format!("{name}{}", part.suffix());
        self.expect(&name, form.name, &[rows, columns], bytes)
    }

    /// Numbers of four bytes.
    fn numbers(&self, name: &str, form: &str, len: usize) -> Result<DeviceAddress, OpenError> {
        self.expect(name, form, &[len], len * 4)
    }

    /// Floats that are added or multiplied where they are there; else no place.
    fn optional(&self, name: &str, len: usize) -> Result<DeviceAddress, OpenError> {
        match self.dir.tensor(name) {
            Some(_) => self.numbers(name, FLOATS, len),
            None => Ok(DeviceAddress::NULL),
        }
    }

    fn expect(
        &self,
        name: &str,
        form: &str,
        shape: &[usize],
        bytes: usize,
    ) -> Result<DeviceAddress, OpenError> {
        let entry = self.entry(name)?;
        let (own, wanted) = ((&entry.form[..], &entry.shape[..]), (form, shape));
        if own != wanted {
            return Err(self.wrong(name, &format!("is {own:?}, not {wanted:?}")));
        }
        if entry.bytes != bytes as u64 {
            return Err(self.wrong(name, &format!("has {} bytes, not {bytes}", entry.bytes)));
        }
        self.weights.address(name).ok_or_else(|| self.wrong(name, "was not uploaded"))
    }

    fn entry(&self, name: &str) -> Result<&TensorEntry, OpenError> {
        self.dir.tensor(name).ok_or_else(|| self.wrong(name, "is missing"))
    }

    fn wrong(&self, name: &str, problem: &str) -> OpenError {
        self.dir.damaged(format!("tensor {name:?} {problem}"))
    }
}
