//! Holds one tensor of a model: its type, its shapes, where its bytes come from.
//!
//! Floats are the rows of stored tensors; packed weights are made by a recipe, and have companions
//! (scales, zeros, an order) that are tensors of their own.  [`Packed`] widens rows of quants.
//! Knows nothing of configurations.

use std::sync::Arc;

use smelt_tensor::packed::BlockForm;

use crate::dtype::Dtype;
use crate::packed::present::{MIDDLE, Recipe, inverse};
use crate::safetensors::{SafetensorsError, Shards, Tensor};

/// A tensor of the model.
#[derive(Debug)]
pub struct Weight {
    /// The canonical name.
    pub name: String,
    /// The element type in canonical form.
    pub dtype: Dtype,
    /// The dimensions of the canonical form, outermost first: 4-bit weights are `[out, in/2]`.
    pub shape: Vec<usize>,
    /// The dimensions that the model calls for.
    pub(super) logical: Vec<usize>,
    pub(super) source: Source,
    /// How quants become numbers, if these are quants.
    pub(super) packed: Option<Packed>,
}

/// Where the bytes of a tensor come from.
#[derive(Debug)]
pub(super) enum Source {
    /// The rows of stored tensors, one after another; at least one.
    Pieces(Vec<Tensor>),
    /// Rows made of other bytes.
    Made(Recipe),
}

/// How the quants of a weight become numbers.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// Bits of a quant: 4 or 8.
    pub(super) bits: u32,
    /// Columns that share a scale.
    pub(super) group: usize,
    /// Whether groups have zeros.
    pub(super) has_zeros: bool,
    /// The input channel of each column, if columns were sorted.
    pub(super) order: Option<Arc<[u32]>>,
    /// What there is beside scales and zeros.
    pub(super) form: Option<BlockForm>,
}

/// How a weight is packed, for those who write it for other tools.
#[derive(Clone, Debug)]
pub(crate) struct PackedFacts {
    /// `[out, in]`.
    pub(crate) shape: [usize; 2],
    /// Bits of a quant: 4 or 8.
    pub(crate) bits: u32,
    /// Groups of a row.
    pub(crate) groups: usize,
    /// Columns of a group.
    pub(crate) group: usize,
    /// Whether groups have zeros.
    pub(crate) has_zeros: bool,
    /// The input channel of each column, if columns were sorted.
    pub(crate) order: Option<Arc<[u32]>>,
    /// The column of each input channel, if columns were sorted.
    pub(crate) places: Option<Arc<[u32]>>,
    /// The form, where quants have more beside them than scales and zeros.
    pub(crate) form: Option<BlockForm>,
}

impl PackedFacts {
    pub(super) fn of(packed: &Packed, shape: [usize; 2]) -> Self {
        let Packed { bits, group, has_zeros, ref order, form } = *packed;
        let groups = shape[1].div_ceil(group).max(1);
        let places = order.as_deref().map(inverse);
        Self { shape, bits, groups, group, has_zeros, order: order.clone(), places, form }
    }
}

impl Weight {
    /// A tensor of floats: the rows of `pieces`.
    pub(super) fn of_pieces(
        name: &str,
        dtype: Dtype,
        shape: Vec<usize>,
        pieces: Vec<Tensor>,
    ) -> Self {
        let (logical, source) = (shape.clone(), Source::Pieces(pieces));
        Self { name: name.to_owned(), dtype, shape, logical, source, packed: None }
    }

    /// Whether it is made of other bytes, so that no reader knows where it ends.
    pub(super) fn is_made(&self) -> bool {
        matches!(self.source, Source::Made(_))
    }

    /// Whether it is only described, and no byte of it is here.
    pub(super) fn is_described(&self) -> bool {
        matches!(&self.source, Source::Pieces(pieces) if pieces.is_empty())
    }

    /// Bytes of a row of the first dimension.
    pub(super) fn row_bytes(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>() * self.dtype.size_bytes()
    }

    /// Bytes in canonical form.
    pub(super) fn size_bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size_bytes()) as u64
    }

    /// Fills `out` with the canonical bytes from `at` on, which must lie in the tensor.
    pub(super) fn read_at(
        &self,
        files: &Shards,
        at: u64,
        out: &mut [u8],
    ) -> Result<(), SafetensorsError> {
        match &self.source {
            Source::Pieces(pieces) => read_pieces(pieces, files, at, out),
            Source::Made(recipe) => recipe.read(files, self.row_bytes().max(1), at, out),
        }
    }
}

/// Fills `out` from the pieces that hold the bytes from `at` on.
fn read_pieces(
    pieces: &[Tensor],
    files: &Shards,
    at: u64,
    out: &mut [u8],
) -> Result<(), SafetensorsError> {
    let (mut at, mut out) = (at, out);
    let (last, others) = pieces.split_last().expect("a weight has a piece");
    for piece in others {
        let left = piece.size_bytes().saturating_sub(at);
        let here = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (now, later) = out.split_at_mut(here);
        if here > 0 {
            files.read_at(piece, at, now)?;
        }
        (at, out) = (at.saturating_sub(piece.size_bytes()), later);
    }
    files.read_at(last, at, out)
}

/// What belongs to the groups of one row.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    /// The scales, products multiplied out.
    pub(super) scales: &'a [f32],
    /// The quants that mean 0.
    pub(super) zeros: Option<&'a [u8]>,
    /// The minima, products multiplied out.
    pub(super) mins: Option<&'a [f32]>,
    /// What is above four bits of the quants; empty where there is nothing.
    pub(super) high: &'a [u8],
}

/// The numbers of a row in `form`.  A scale times a quant is exact, so nothing but a minimum rounds.
fn widen_blocks(form: BlockForm, nibbles: &[u8], groups: &Groups<'_>, out: &mut [f32]) {
    let middle = i16::from(form.middle());
    let numbers = out.chunks_mut(form.group).zip(groups.scales);
    for (group, (out, scale)) in numbers.enumerate() {
        let min = groups.mins.map(|mins| mins[group]);
        let number = |quant: u8| {
            let product = f32::from(i16::from(quant) - middle) * scale;
            min.map_or(product, |min| product - min)
        };
        let first = group * form.group;
        if form.high_bits() == 0 {
            // Two columns a byte.
            for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(&nibbles[first / 2..]) {
                *pair = [byte & 15, byte >> 4].map(number);
            }
        } else {
            let columns = (first..).zip(out);
            columns.for_each(|(at, out)| *out = number(form.quant(nibbles, groups.high, at)));
        }
    }
}

impl Packed {
    /// Appends `columns` numbers, in the order of the input channels, made of a row's canonical
    /// `quants` and what its `groups` have: `(quant - zero) * scale`, or `quant * scale - min`.
    pub(super) fn widen_row(
        &self,
        quants: &[u8],
        columns: usize,
        groups: &Groups<'_>,
        out: &mut Vec<f32>,
    ) {
        let start = out.len();
        out.resize(start + columns, 0.0);
        let out = &mut out[start..];
        if let Some(form) = self.form {
            return widen_blocks(form, quants, groups, out);
        }
        for (group, &scale) in groups.scales.iter().enumerate() {
            let zero = f32::from(groups.zeros.map_or(MIDDLE, |zeros| zeros[group]));
            let first = group * self.group;
            for column in first..columns.min(first + self.group) {
                let quant = match self.bits {
                    4 => f32::from((quants[column / 2] >> (4 * (column % 2))) & 15) - zero,
                    _ => f32::from(quants[column].cast_signed()),
                };
                let channel = self.order.as_ref().map_or(column, |order| order[column] as usize);
                out[channel] = quant * scale;
            }
        }
    }

    /// The word for the scheme, as flags and engines have it; ggml's for its forms.
    pub(super) fn words(&self, columns: usize) -> String {
        if let Some(form) = self.form {
            return form.name.to_owned();
        }
        let (bits, group) = (self.bits, self.group);
        let size = if group >= columns { String::new() } else { format!("-g{group}") };
        format!("int{bits}{size}{}", if self.has_zeros { "-asym" } else { "" })
    }
}
