//! Finds a linear layer in an engine file, in whichever form its weight is, and multiplies by it.
//!
//! Weights are floats, or levels with scales beside them (`_scale`, `_zero`, `_order`); shapes are
//! checked when the engine is opened.  Where columns were sorted, the input is sorted alike before
//! the product.  Knows nothing of layers' places in a model.

use smelt_model::dtype::Dtype;
use smelt_model::packed::group_of;

use super::LlmFile;
use super::weights::{FLOATS, Machine};
use crate::engine_file::{EngineFile, OpenError, Stored};
use crate::kernels::grouped::{Grouped, Levels};
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::product::Product;

/// A linear layer `[outputs, inputs]`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Stored,
    shape: [usize; 2],
    packed: Option<Packed>,
    bias: Option<Vec<f32>>,
}

/// What belongs to a packed weight.
#[derive(Debug)]
struct Packed {
    scales: Stored,
    zeros: Option<Stored>,
    groups: usize,
    group: usize,
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
        let dtype = file.stored(name).map(|stored| stored.dtype);
        let (stored_shape, dtypes) = match dtype {
            Some(Dtype::U8) => ([rows, columns.div_ceil(2)], &[Dtype::U8][..]),
            Some(Dtype::I8) => (shape, &[Dtype::I8][..]),
            _ => (shape, &FLOATS[..]),
        };
        let weight = file.expect(name, &stored_shape, dtypes)?;
        let is_packed = matches!(weight.dtype, Dtype::U8 | Dtype::I8);
        let packed = is_packed.then(|| Packed::find(file, name, &weight, shape)).transpose()?;
        Ok(Self { weight, shape, packed, bias: None })
    }

    /// The same layer with `bias` `[outputs]`.
    pub(super) fn with_bias(self, bias: Option<Vec<f32>>) -> Self {
        Self { bias, ..self }
    }

    /// The weight, columns as they are stored.
    fn matrix<'a>(&self, machine: &Machine<'a>) -> Matrix<'a> {
        let [rows, columns] = self.shape;
        let weights = machine.weights;
        let checked = "the type was checked when the engine was opened";
        let Some(packed) = &self.packed else {
            return Matrix::new(weights.elements(&self.weight).expect(checked), rows, columns);
        };
        if let (Some(scales), 1, Dtype::I8) =
            (weights.floats(&packed.scales), packed.groups, self.weight.dtype)
        {
            let levels = weights.elements(&self.weight).expect(checked);
            return Matrix::new(levels, rows, columns).with_row_scales(scales);
        }
        let levels = match weights.elements(&self.weight) {
            Some(Elements::I8(bytes)) => Levels::Bytes(bytes),
            _ => Levels::Nibbles(weights.raw(&self.weight).expect(checked)),
        };
        Matrix::grouped(Grouped {
            levels,
            rows,
            columns,
            groups: packed.groups,
            group: packed.group,
            scales: weights.elements(&packed.scales).expect(checked),
            zeros: packed.zeros.as_ref().map(|zeros| weights.raw(zeros).expect(checked)),
        })
    }

    fn order(&self) -> Option<&[u32]> {
        self.packed.as_ref()?.order.as_deref()
    }

    /// Row `row` of the weight, in the order of the input channels.
    pub(super) fn widen_row(&self, row: usize, machine: &Machine<'_>, out: &mut [f32]) {
        let matrix = self.matrix(machine);
        let Some(order) = self.order() else { return matrix.widen_row(row, out) };
        let mut sorted = vec![0.0; out.len()];
        matrix.widen_row(row, &mut sorted);
        for (&channel, value) in order.iter().zip(sorted) {
            out[channel as usize] = value;
        }
    }

    /// `x` `[rows, inputs]` through the layer: `[rows, outputs]`.
    pub(super) fn apply(&self, machine: &Machine<'_>, x: Matrix<'_>) -> Vec<f32> {
        let weight = self.matrix(machine);
        let mut out = vec![0.0; x.rows() * weight.rows()];
        let sorted = self.order().map(|order| gather(x, order));
        let x = sorted
            .as_ref()
            .map_or(x, |sorted| Matrix::new(Elements::F32(sorted), x.rows(), x.columns()));
        Product::new(x, weight).run(machine.isa, machine.threads, &mut out);
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
        out
    }
}

/// The rows of `x` with their columns in `order`.
fn gather(x: Matrix<'_>, order: &[u32]) -> Vec<f32> {
    let mut line = vec![0.0; x.columns()];
    let mut out = Vec::with_capacity(x.rows() * x.columns());
    for row in 0..x.rows() {
        x.widen_row(row, &mut line);
        out.extend(order.iter().map(|&channel| line[channel as usize]));
    }
    out
}

impl Packed {
    fn find(
        file: &EngineFile<LlmFile>,
        name: &str,
        weight: &Stored,
        [rows, columns]: [usize; 2],
    ) -> Result<Self, OpenError> {
        let scale = format!("{name}_scale");
        let groups = match file.stored(&scale).map(|stored| stored.shape.as_slice()) {
            Some(&[_, groups]) => groups,
            _ => 1,
        };
        let shape = if groups == 1 { vec![rows] } else { vec![rows, groups] };
        let scales = file.expect(&scale, &shape, &FLOATS)?;
        let Some(group) = group_of(columns, groups) else {
            return Err(file.damaged(format!("tensor {scale:?} has {groups} groups of no size")));
        };
        let zero = format!("{name}_zero");
        let has_zeros = weight.dtype == Dtype::U8 && file.stored(&zero).is_some();
        let zeros =
            has_zeros.then(|| file.expect(&zero, &[rows, groups], &[Dtype::U8])).transpose()?;
        Ok(Self { scales, zeros, groups, group, order: order(file, name, columns)? })
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
    let stored = file.expect(&name, &[columns], &[Dtype::I32])?;
    let order = file.weights.channels(&stored).unwrap_or_default();
    let is_inside = |&channel: &u32| (channel as usize) < columns;
    if order.len() == columns && order.iter().all(is_inside) {
        return Ok(Some(order));
    }
    Err(file.damaged(format!("tensor {name:?} names channels there are not")))
}
