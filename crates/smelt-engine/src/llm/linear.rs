//! Finds a linear layer in an engine file, in whichever form its weight is, and multiplies by it.
//!
//! Weights are floats, or quants with scales beside them (`_scale`, `_zero`, `_order`), or quants in
//! a form of ggml's blocks (`block`); shapes are checked when the engine is opened.  Where columns were sorted, the input is sorted alike before
//! the product.  Knows nothing of layers' places in a model.

use smelt_tensor::dtype::Dtype;
use smelt_tensor::packed::group_of;

use super::LlmFile;
use super::block::Block;
use super::weights::{FLOATS, Machine};
use crate::engine_file::{EngineFile, Layout, OpenError, Stored, Weights};
use crate::kernels::striped::{
    Bits, Input, Job, QuantizedStripes, RUN, Rounding, Striped, multiply,
};

/// A linear layer `[outputs, inputs]`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Stored,
    shape: [usize; 2],
    packed: Option<QuantizedWeight>,
    bias: Option<Vec<f32>>,
}

/// What belongs to a weight that is no floats.
#[derive(Debug)]
enum QuantizedWeight {
    Quants(Packed),
    Block(Box<Block>),
}

/// What belongs to a packed weight.
#[derive(Debug)]
struct Packed {
    bits: Bits,
    scales: Stored,
    zeros: Option<Stored>,
    group_runs: usize,
    /// The input channel of each column, where columns were sorted.
    order: Option<Vec<u32>>,
}

impl Linear {
    /// Finds the weight `name` of `shape`, without a bias.
    pub(super) fn find(
        file: &EngineFile<LlmFile>,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Self, OpenError> {
        let [rows, columns] = shape;
        let expect =
            |columns, dtypes: &[Dtype], layout| file.expect(name, &[rows, columns], dtypes, layout);
        let (weight, bits) = match file.stored(name).map(|stored| stored.dtype) {
            Some(Dtype::U8) => {
                (expect(columns.div_ceil(2), &[Dtype::U8], Layout::Quads)?, Some(Bits::Four))
            }
            Some(Dtype::I8) => (expect(columns, &[Dtype::I8], Layout::Quads)?, Some(Bits::Eight)),
            _ => (expect(columns, &FLOATS, Layout::Stripes)?, None),
        };
        let packed = match (bits, Block::find(file, name, shape)?) {
            (Some(Bits::Four), Some(block)) => Some(QuantizedWeight::Block(Box::new(block))),
            (Some(bits), _) => {
                Some(QuantizedWeight::Quants(Packed::find(file, name, bits, shape)?))
            }
            (None, _) => None,
        };
        Ok(Self { weight, shape, packed, bias: None })
    }

    /// The same layer with `bias` `[outputs]`.
    pub(super) fn with_bias(self, bias: Option<Vec<f32>>) -> Self {
        Self { bias, ..self }
    }

    /// Numbers that the layer gives for a token.
    pub(super) fn outputs(&self) -> usize {
        self.shape[0]
    }

    /// The weight, columns as they are stored.
    fn view<'a>(&self, weights: &'a Weights) -> Striped<'a> {
        let [rows, columns] = self.shape;
        let checked = "the type was checked when the engine was opened";
        let packed = match &self.packed {
            Some(QuantizedWeight::Quants(packed)) => packed,
            Some(QuantizedWeight::Block(block)) => {
                let nibbles = weights.raw(&self.weight).expect(checked);
                return Striped::blocks(block.view(nibbles, weights), rows, columns);
            }
            None => {
                let elements = weights.elements(&self.weight).expect(checked);
                return Striped::floats(elements, rows, columns);
            }
        };
        let quants = QuantizedStripes {
            bits: packed.bits,
            quants: weights.raw(&self.weight).expect(checked),
            group_runs: packed.group_runs,
            scales: weights.elements(&packed.scales).expect(checked),
            zeros: packed.zeros.as_ref().map(|zeros| weights.raw(zeros).expect(checked)),
        };
        Striped::quants(quants, rows, columns)
    }

    fn order(&self) -> Option<&[u32]> {
        match self.packed.as_ref()? {
            QuantizedWeight::Quants(packed) => packed.order.as_deref(),
            QuantizedWeight::Block(_) => None,
        }
    }

    /// Row `row` of the weight, in the order of the input channels.
    pub(super) fn widen_row(&self, row: usize, weights: &Weights, out: &mut [f32]) {
        let weight = self.view(weights);
        let Some(order) = self.order() else { return weight.widen_row(row, out) };
        let mut sorted = vec![0.0; out.len()];
        weight.widen_row(row, &mut sorted);
        for (&channel, value) in order.iter().zip(sorted) {
            out[channel as usize] = value;
        }
    }

    fn rounding(&self, machine: Machine<'_>) -> Rounding {
        self.view(machine.weights).rounding(machine.arithmetic)
    }
}

/// `x` `[tokens, inputs]` through several layers, in one go where they take it in the same form.
/// Each output `[tokens, outputs]` is resized.
pub(super) fn apply(
    layers: &mut [(&Linear, &mut Vec<f32>)],
    x: &[f32],
    input: &mut Input,
    machine: Machine<'_>,
) {
    let Some((first, _)) = layers.first() else { return };
    let (columns, order, rounding) = (first.shape[1], first.order(), first.rounding(machine));
    let alike = |(layer, _): &&mut (&Linear, &mut Vec<f32>)| {
        layer.order() == order && layer.rounding(machine) == rounding
    };
    let count = layers.iter_mut().take_while(alike).count();
    let (now, later) = layers.split_at_mut(count);
    let sorted = order.map(|order| gather(x, columns, order));
    let own = sorted.as_deref().unwrap_or(x);
    input.fill(own, columns, rounding, machine.isa, machine.threads);
    let jobs = now.iter_mut().map(|(layer, out)| {
        let stride = layer.outputs();
        out.resize(input.tokens() * stride, 0.0);
        Job { weight: layer.view(machine.weights), bias: layer.bias.as_deref(), out, stride }
    });
    multiply(input, jobs.collect(), machine.isa, machine.threads);
    apply(later, x, input, machine);
}

/// The rows of `x` with their columns in `order`.
fn gather(x: &[f32], columns: usize, order: &[u32]) -> Vec<f32> {
    let row = |row: &[f32]| order.iter().map(|&channel| row[channel as usize]).collect::<Vec<_>>();
    x.chunks_exact(columns).flat_map(row).collect()
}

impl Packed {
    fn find(
        file: &EngineFile<LlmFile>,
        name: &str,
        bits: Bits,
        [rows, columns]: [usize; 2],
    ) -> Result<Self, OpenError> {
        let scale = format!("{name}_scale");
        let groups = match file.stored(&scale).map(|stored| stored.shape.as_slice()) {
            Some(&[_, groups]) => groups,
            _ => 1,
        };
        let shape = if groups == 1 { vec![rows] } else { vec![rows, groups] };
        let scales = file.expect(&scale, &shape, &FLOATS, Layout::Stripes)?;
        let group = match group_of(columns, groups) {
            Some(_) if groups == 1 => columns.next_multiple_of(RUN),
            Some(group) if group.is_multiple_of(RUN) => group,
            _ => {
                let problem = format!("tensor {scale:?} has {groups} groups of no size");
                return Err(file.damaged(problem));
            }
        };
        let zero = format!("{name}_zero");
        let has_zeros = bits == Bits::Four && file.stored(&zero).is_some();
        let zeros = || file.expect(&zero, &[rows, groups], &[Dtype::U8], Layout::Stripes);
        let zeros = has_zeros.then(zeros).transpose()?;
        let (group_runs, order) = (group / RUN, order(file, name, columns)?);
        Ok(Self { bits, scales, zeros, group_runs, order })
    }
}

/// The order of the columns of weight `name`, if they were sorted.
fn order(
    file: &EngineFile<LlmFile>,
    name: &str,
    columns: usize,
) -> Result<Option<Vec<u32>>, OpenError> {
    let name = format!("{name}_order");
    if file.stored(&name).is_none() {
        return Ok(None);
    }
    let stored = file.expect(&name, &[columns], &[Dtype::I32], Layout::Rows)?;
    let order = file.weights.channels(&stored).unwrap_or_default();
    let is_inside = |&channel: &u32| (channel as usize) < columns;
    if order.len() == columns && order.iter().all(is_inside) {
        return Ok(Some(order));
    }
    Err(file.damaged(format!("tensor {name:?} names channels there are not")))
}
