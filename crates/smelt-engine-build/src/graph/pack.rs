//! Puts the constants of a graph into an engine: weights of products in stripes, others row by row.
//!
//! A weight that nothing but products reads is stored as they read it, a row for each output, and as
//! quants where the engine is to be int8.  What reads a value is followed through operators that
//! change no number; names play no part.  Numbers go through memory a block at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use half::{bf16, f16};
use smelt_engine::engine_file::{
    EngineWriter, Layout, STRIPE, TensorSpec, stripe_bytes, stripe_elements,
};
use smelt_engine::graph::{AttributeFile, GraphFile, NodeFile, ProductFile, scale_name};
use smelt_onnx::{ElementType, Initializer};
use smelt_tensor::dtype::Dtype;

use super::convert::stored_dtype;
use super::{Precision, unfit};
use crate::BuildError;

/// Bytes of a constant held in memory at a time.
const BLOCK_BYTES: usize = 8 << 20;
/// The largest quant of a weight: -127..=127 is symmetric.
const QUANT_MAX: f32 = 127.0;

/// Weights that only products read, by name.
pub(super) fn products(
    graph: &GraphFile,
    constants: &[Initializer],
) -> BTreeMap<String, ProductFile> {
    let mut uses = Uses::default();
    for constant in constants {
        let is_float = !matches!(stored_dtype(constant), Ok(Dtype::I64) | Err(_));
        let ranks = [2, 4].contains(&constant.dims.len());
        if is_float && ranks && !constant.dims.contains(&0) {
            uses.seen_as.insert(&constant.name, (&constant.name, false));
            uses.dims.insert(&constant.name, &constant.dims);
        }
    }
    graph.nodes.iter().for_each(|node| uses.node(node));
    graph.outputs.iter().for_each(|output| uses.otherwise(&output.name));
    let Uses { dims, transposed, others, .. } = uses;
    let product = |(name, transposed): (&str, bool)| {
        (name.to_owned(), ProductFile { shape: dims[name].to_vec(), transposed })
    };
    transposed.into_iter().filter(|(name, _)| !others.contains(name)).map(product).collect()
}

/// How the nodes of a graph read its constants.
#[derive(Default)]
struct Uses<'a> {
    dims: BTreeMap<&'a str, &'a [usize]>,
    /// Values that are a constant: its name, and whether they have rows and columns exchanged.
    seen_as: BTreeMap<&'a str, (&'a str, bool)>,
    /// Constants that products read: whether the graph has their outputs as columns.
    transposed: BTreeMap<&'a str, bool>,
    /// Constants that something else reads.
    others: BTreeSet<&'a str>,
}

impl<'a> Uses<'a> {
    fn node(&mut self, node: &'a NodeFile) {
        let weight = self.weight_of(node);
        let same = same_numbers(node);
        for (index, input) in node.inputs.iter().enumerate() {
            let Some(&(constant, turned)) = self.seen_as.get(input.as_str()) else { continue };
            match (same, weight) {
                (Some(turns), _) if index == 0 && (!turns || self.dims[constant].len() == 2) => {
                    self.seen_as.insert(&node.outputs[0], (constant, turned != turns));
                }
                (_, Some((place, by_rows))) if index == place => {
                    let transposed = by_rows == turned;
                    if *self.transposed.entry(constant).or_insert(transposed) != transposed {
                        self.others.insert(constant);
                    }
                }
                _ => self.otherwise(input),
            }
        }
    }

    /// Something reads `value` that is no product.
    fn otherwise(&mut self, value: &'a str) {
        if let Some(&(constant, _)) = self.seen_as.get(value) {
            self.others.insert(constant);
        }
    }

    /// Whether a convolution looks at each pixel once, and so is a product of its patches.
    fn is_product(&self, node: &NodeFile) -> bool {
        let dims = |name: &String| self.dims[self.seen_as.get(name.as_str())?.0].get(2..4);
        let kernel = node.inputs.get(1).and_then(|name| <[usize; 2]>::try_from(dims(name)?).ok());
        kernel.is_some_and(|kernel| node.is_product_of_patches(kernel))
    }

    /// The input of a product that is a weight of the rank it takes, and whether its rows are the
    /// outputs.
    fn weight_of(&self, node: &NodeFile) -> Option<(usize, bool)> {
        let rank = self.dims[self.seen_as.get(node.inputs.get(1)?.as_str())?.0].len();
        let flag = |name: &str| matches!(node.attributes.get(name), Some(AttributeFile::Int(1)));
        match (node.op.as_str(), rank) {
            ("MatMul", 2) => Some((1, false)),
            ("Gemm", 2) => Some((1, flag("transB"))),
            ("Conv", 4) if self.is_product(node) => Some((1, true)),
            _ => None,
        }
    }
}

/// Whether `node` gives its first input again, with rows and columns exchanged or not.
fn same_numbers(node: &NodeFile) -> Option<bool> {
    let order = match node.attributes.get("perm") {
        Some(AttributeFile::Ints(order)) => Some(&order[..]),
        _ => None,
    };
    match (node.op.as_str(), order, node.attributes.get("to")) {
        ("Identity", ..) => Some(false),
        ("Cast", _, Some(AttributeFile::Int(1))) => Some(false),
        ("Transpose", None | Some([1, 0]), _) => Some(true),
        _ => None,
    }
}

/// A constant that is put into an engine.
pub(super) struct Packing<'a> {
    pub(super) constant: &'a Initializer,
    /// The graph's directory.
    pub(super) dir: &'a Path,
    pub(super) product: Option<&'a ProductFile>,
    pub(super) precision: Precision,
}

impl Packing<'_> {
    /// Writes the constant under `name`, and scales behind it where it becomes quants.  Messages are
    /// about the graph and the engine's directory that are given.
    pub(super) fn put(
        &self,
        name: &str,
        (graph, out_dir): (&Path, &Path),
        writer: &mut EngineWriter,
    ) -> Result<(), BuildError> {
        let damaged = |problem| unfit(graph, problem);
        let failed = |source| BuildError::Write { dir: out_dir.to_owned(), source };
        let dtype = stored_dtype(self.constant).map_err(damaged)?;
        self.write(name.to_owned(), dtype, writer, &failed, &damaged)
    }

    fn write(
        &self,
        name: String,
        dtype: Dtype,
        writer: &mut EngineWriter,
        failed: &impl Fn(std::io::Error) -> BuildError,
        damaged: &impl Fn(String) -> BuildError,
    ) -> Result<(), BuildError> {
        let Some(product) = self.product else {
            let (shape, layout) = (self.constant.dims.clone(), Layout::Rows);
            writer.begin(TensorSpec { name, dtype, shape, layout }).map_err(failed)?;
            return self.as_it_is(dtype, &mut |bytes| writer.write(bytes).map_err(failed));
        };
        let shape = product.stored_shape();
        let is_quantized = self.precision == Precision::Int8;
        let (stored, layout) =
            if is_quantized { (Dtype::I8, Layout::Quads) } else { (dtype, Layout::Stripes) };
        let spec = TensorSpec { name: name.clone(), dtype: stored, shape: shape.to_vec(), layout };
        writer.begin(spec).map_err(failed)?;
        let mut scales: Vec<f32> = Vec::new();
        self.by_stripes(product, dtype, &mut |rows| {
            if !is_quantized {
                let bytes = stripe_elements(rows, shape[1], dtype.size_bytes());
                return writer.write(&bytes).map_err(failed);
            }
            let mut quants = Vec::with_capacity(rows.len());
            for row in rows.chunks_exact(shape[1] * dtype.size_bytes()) {
                let row = widened(row, dtype);
                let Some(scale) = round(&row, &mut quants) else {
                    return Err(damaged(format!("constant {name:?} holds what is no number")));
                };
                scales.push(scale);
            }
            writer.write(&stripe_bytes(&quants, shape[1])).map_err(failed)
        })?;
        if is_quantized {
            let (name, dtype, layout) = (scale_name(&name), Dtype::F32, Layout::Stripes);
            let spec = TensorSpec { name, dtype, shape: vec![shape[0]], layout };
            writer.begin(spec).map_err(failed)?;
            scales.resize(shape[0].next_multiple_of(STRIPE), 0.0);
            let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            writer.write(&bytes).map_err(failed)?;
        }
        Ok(())
    }

    /// Sends the bytes on, a block at a time.
    fn as_it_is(
        &self,
        dtype: Dtype,
        write: &mut dyn FnMut(&[u8]) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let constant = self.constant;
        let total = constant.byte_len().expect("the check multiplied every shape") as u64;
        let mut block = vec![0; (BLOCK_BYTES as u64).min(total) as usize];
        let mut at = 0;
        while at < total {
            let len = (BLOCK_BYTES as u64).min(total - at) as usize;
            smelt_onnx::read_initializer(self.dir, constant, at, &mut block[..len])?;
            at += len as u64;
            match (dtype, constant.dtype) {
                (Dtype::I64, ElementType::I32) => {
                    let quads = block[..len].as_chunks::<4>().0;
                    let wide = quads.iter().map(|&quad| i64::from(i32::from_le_bytes(quad)));
                    write(&bytes_of(wide))?;
                }
                (Dtype::I64, ElementType::Bool) => {
                    write(&bytes_of(block[..len].iter().map(|&byte| i64::from(byte != 0))))?;
                }
                _ => write(&block[..len])?,
            }
        }
        Ok(())
    }

    /// Sends the bytes of every sixteen rows of a weight on, as products read them.
    fn by_stripes(
        &self,
        product: &ProductFile,
        dtype: Dtype,
        write: &mut dyn FnMut(&[u8]) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let ([rows, columns], width) = (product.stored_shape(), dtype.size_bytes());
        let block = (BLOCK_BYTES / (columns * width)).next_multiple_of(STRIPE);
        for first in (0..rows).step_by(block) {
            let count = block.min(rows - first);
            let mut bytes = vec![0; count * columns * width];
            let read = |at: usize, out: &mut [u8]| {
                smelt_onnx::read_initializer(self.dir, self.constant, (at * width) as u64, out)
            };
            if product.transposed {
                let mut line = vec![0; count * width];
                for column in 0..columns {
                    read(column * rows + first, &mut line)?;
                    for (row, element) in line.chunks_exact(width).enumerate() {
                        bytes[(row * columns + column) * width..][..width].copy_from_slice(element);
                    }
                }
            } else {
                read(first * columns, &mut bytes)?;
            }
            bytes.chunks(STRIPE * columns * width).try_for_each(&mut *write)?;
        }
        Ok(())
    }
}

fn bytes_of(numbers: impl Iterator<Item = i64>) -> Vec<u8> {
    numbers.flat_map(i64::to_le_bytes).collect()
}

/// Stored floats in f32.
fn widened(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter().map(|&pair| u16::from_le_bytes(pair));
    match dtype {
        Dtype::F16 => pairs().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&quad| f32::from_le_bytes(quad)).collect(),
    }
}

/// Adds a row's quants, signed bytes, to `quants`; gives its scale, the largest number / 127, or
/// `None` where one is infinite or none.
fn round(row: &[f32], quants: &mut Vec<u8>) -> Option<f32> {
    if !row.iter().all(|value| value.is_finite()) {
        return None;
    }
    let scale = row.iter().fold(0.0f32, |most, value| most.max(value.abs())) / QUANT_MAX;
    let quant = |&value: &f32| if scale == 0.0 { 0.0 } else { value / scale };
    quants.extend(row.iter().map(|value| {
        let quant = quant(value).round_ties_even().clamp(-QUANT_MAX, QUANT_MAX);
        (quant as i8).cast_unsigned()
    }));
    Some(scale)
}
