//! Finds the constants of a graph in its engine file, whatever way they lie there.
//!
//! Knows nothing of what reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use smelt_tensor::dtype::Dtype;

use super::array::{Array, Value, Weight};
use super::file::{GraphFile, ProductFile};
use super::ops::Machine;
use crate::engine_file::{EngineFile, Layout, OpenError, Stored, Weights};
use crate::kernels::matrix::Elements;
use crate::kernels::striped::{Bits, QuantizedStripes, RUN, Striped};

/// Float constants of up to this many numbers (norms, biases) are widened when the engine is
/// opened.
const WIDE_NUMBERS_MAX: usize = 1 << 14;

/// What the scales of a weight's rows are called.
pub fn scale_name(weight: &str) -> String {
    format!("{weight}#scale")
}

/// All constants by name, checked.
pub(super) fn load(
    file: &EngineFile<GraphFile>,
    machine: Machine<'_>,
) -> Result<BTreeMap<String, Value>, OpenError> {
    let mut constants = BTreeMap::new();
    let products = &file.engine.products;
    let is_scale =
        |name: &str| name.rsplit_once('#').is_some_and(|(weight, _)| products.contains_key(weight));
    for name in file.names() {
        let stored = file.stored(name).expect("the name came from the file");
        let value = if let Some(product) = products.get(name) {
            Value::Weight(product_weight(file, name, product)?)
        } else if is_scale(name) {
            continue;
        } else {
            by_rows(file, name, stored, machine)?
        };
        constants.insert(name.to_owned(), value);
    }
    Ok(constants)
}

/// A constant that lies row after row.
fn by_rows(
    file: &EngineFile<GraphFile>,
    name: &str,
    stored: &Stored,
    machine: Machine<'_>,
) -> Result<Value, OpenError> {
    let shape = stored.shape.clone();
    if stored.layout != Layout::Rows {
        return Err(file.damaged(format!("tensor {name:?} lies in {:?}", stored.layout)));
    }
    if let Some(numbers) = file.weights.integers(stored) {
        return Ok(Value::I64(Array::new(shape, numbers.to_vec())));
    }
    if file.weights.elements(stored).is_none() || stored.dtype == Dtype::I8 {
        return Err(file.damaged(format!("tensor {name:?} has dtype {}", stored.dtype)));
    }
    let small = shape.iter().product::<usize>() <= WIDE_NUMBERS_MAX;
    let stored = Arc::new(stored.clone());
    let weight = Weight { stored, scale: None, shape, transposed: false };
    Ok(if small { Value::F32(machine.widen(&weight)) } else { Value::Weight(weight) })
}

/// A weight that lies in stripes.
fn product_weight(
    file: &EngineFile<GraphFile>,
    name: &str,
    product: &ProductFile,
) -> Result<Weight, OpenError> {
    let shape = product.stored_shape();
    let floats = [Dtype::F32, Dtype::F16, Dtype::BF16];
    let is_quantized = file.stored(name).is_some_and(|stored| stored.dtype == Dtype::I8);
    let stored = if is_quantized {
        file.expect(name, &shape, &[Dtype::I8], Layout::Quads)?
    } else {
        file.expect(name, &shape, &floats, Layout::Stripes)?
    };
    let scale = |name: &str| file.expect(name, &shape[..1], &[Dtype::F32], Layout::Stripes);
    let scale = is_quantized.then(|| scale(&scale_name(name))).transpose()?;
    Ok(Weight {
        stored: Arc::new(stored),
        scale: scale.map(Arc::new),
        shape: product.shape.clone(),
        transposed: product.transposed,
    })
}

/// The stripes of a weight, where it lies so.
pub(super) fn striped<'a>(weights: &'a Weights, weight: &Weight) -> Option<Striped<'a>> {
    let stored = &weight.stored;
    let &[rows, columns] = &stored.shape[..] else { return None };
    let elements = |stored: &Stored| weights.elements(stored).expect("loading checked the types");
    match (stored.layout, &weight.scale) {
        (Layout::Stripes, None) => Some(Striped::floats(elements(stored), rows, columns)),
        (Layout::Quads, Some(scale)) => {
            let quants = QuantizedStripes {
                bits: Bits::Eight,
                quants: weights.raw(stored).expect("levels are bytes"),
                group_runs: columns.div_ceil(RUN).max(1),
                scales: elements(scale),
                zeros: None,
            };
            Some(Striped::quants(quants, rows, columns))
        }
        _ => None,
    }
}

/// Floats that a graph holds.
#[derive(Clone, Copy, Debug)]
pub struct Constant<'a> {
    numbers: Numbers<'a>,
    dtype: Dtype,
}

#[derive(Clone, Copy, Debug)]
enum Numbers<'a> {
    Rows(Elements<'a>),
    /// Stripes, and whether the graph has their rows as columns.
    Striped(Striped<'a>, bool),
}

impl<'a> Constant<'a> {
    /// The constant `name`, if the engine has it and it is of floats.
    pub(super) fn find(file: &'a EngineFile<GraphFile>, name: &str) -> Option<Self> {
        let stored = file.stored(name)?;
        let dtype = stored.dtype;
        if let Some(product) = file.engine.products.get(name) {
            let weight = product_weight(file, name, product).ok()?;
            let striped = striped(&file.weights, &weight)?;
            return Some(Self { numbers: Numbers::Striped(striped, product.transposed), dtype });
        }
        let elements = file.weights.elements(stored)?;
        (dtype != Dtype::I8).then_some(Self::of_rows(elements, dtype))
    }

    /// Floats that lie row after row.
    pub(crate) fn of_rows(elements: Elements<'a>, dtype: Dtype) -> Self {
        Self { numbers: Numbers::Rows(elements), dtype }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match self.numbers {
            Numbers::Rows(elements) => elements.len(),
            Numbers::Striped(striped, _) => striped.rows() * striped.columns(),
        }
    }

    /// The type they are stored in; I8 stands for quants, of which each output has 127 on either
    /// side of 0 for its largest number.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Fills `out` with the numbers from `start`, in the graph's order.  Panics where they end
    /// before that.
    pub fn widen(&self, start: usize, out: &mut [f32]) {
        match self.numbers {
            Numbers::Rows(elements) => elements.widen(start, out),
            Numbers::Striped(striped, false) => widen_rows(&striped, start, out),
            Numbers::Striped(striped, true) => widen_columns(&striped, start, out),
        }
    }
}

/// Numbers from `start` of the rows one after another.
fn widen_rows(striped: &Striped<'_>, start: usize, out: &mut [f32]) {
    let columns = striped.columns();
    let mut line = vec![0.0; columns];
    let mut at = start;
    let mut rest = out;
    while !rest.is_empty() {
        striped.widen_row(at / columns, &mut line);
        let part = &line[at % columns..];
        let len = part.len().min(rest.len());
        let (here, after) = rest.split_at_mut(len);
        here.copy_from_slice(&part[..len]);
        (at, rest) = (at + len, after);
    }
}

/// Numbers from `start` of the columns one after another.
fn widen_columns(striped: &Striped<'_>, start: usize, out: &mut [f32]) {
    let (rows, columns) = (striped.rows(), striped.columns());
    assert!(start + out.len() <= rows * columns, "numbers past the last one");
    let mut line = vec![0.0; columns];
    for row in 0..rows {
        striped.widen_row(row, &mut line);
        // The first place at or behind the start that is of this row.
        let first = (start + rows - 1 - row) / rows;
        let places = out.iter_mut().skip(first * rows + row - start).step_by(rows);
        places.zip(&line[first.min(columns)..]).for_each(|(place, value)| *place = *value);
    }
}

impl Machine<'_> {
    /// A stored weight in f32, in the order the graph sees, if it lies in stripes.
    pub(super) fn unstriped(self, weight: &Weight) -> Option<Array<f32>> {
        let striped = striped(self.weights, weight)?;
        let mut data = vec![0.0; striped.rows() * striped.columns()];
        if weight.transposed {
            widen_columns(&striped, 0, &mut data);
        } else {
            widen_rows(&striped, 0, &mut data);
        }
        Some(Array::new(weight.shape.clone(), data))
    }
}
