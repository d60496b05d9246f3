//! Decides how the tensors of a decoder lie in an engine, and lays them out.
//!
//! A checkpoint's tensors in, those of the engine out, a stripe at a time.  Linear weights lie in
//! stripes, packed or as floats; norms, biases and orders as they are.  Knows nothing of files.

use std::borrow::Cow;

use smelt_engine::engine_file::{
    Layout, RUN, STRIPE, TensorSpec, stripe_bytes, stripe_elements, stripe_nibbles,
};
use smelt_model::checkpoint::{Checkpoint, CheckpointError, Weight};
use smelt_model::decoder::LM_HEAD;
use smelt_model::model::ModelPart;
use smelt_tensor::dtype::Dtype;
use smelt_tensor::packed::group_of;

/// Bytes of a tensor read at a time.
const BLOCK_BYTES: usize = 8 << 20;

/// A tensor of an engine, and how it comes of the checkpoint's tensor of its name.
pub(super) struct Packed {
    pub(super) spec: TensorSpec,
    form: Repacking,
}

enum Repacking {
    /// The same bytes.
    Same,
    /// Rows of elements: floats, or what stands beside quants.
    Stripes,
    /// Rows of signed bytes, or of nibbles.
    Quads,
    /// Rows multiplied out: groups that no run of activations fits.
    Wide,
}

/// Every tensor of an engine of `checkpoint`, what belongs to a packed weight right behind it.
pub(super) fn tensors(checkpoint: &Checkpoint) -> Result<Vec<Packed>, CheckpointError> {
    let mut parts = vec![ModelPart::Llm];
    if checkpoint.has_lm_head() {
        parts.push(ModelPart::Head);
    }
    let mut all = Vec::new();
    for (name, shape) in checkpoint.model().tensors(&parts) {
        all.extend(of_tensor(checkpoint, &name, &shape)?);
    }
    debug_assert!(all.iter().any(|one| one.spec.name == LM_HEAD) == checkpoint.has_lm_head());
    Ok(all)
}

/// The tensors of the engine that tensor `name` of `shape` becomes.
fn of_tensor(
    checkpoint: &Checkpoint,
    name: &str,
    shape: &[usize],
) -> Result<Vec<Packed>, CheckpointError> {
    let parts = checkpoint.parts(name)?;
    let is_vector = shape.len() == 1;
    let has_form = checkpoint.form(name)?.is_some();
    if !is_vector
        && !has_form
        && has_split_runs(shape, parts.get(1).map(|scale| scale.shape.as_slice()))
    {
        let (name, shape, layout) = (name.to_owned(), shape.to_vec(), Layout::Stripes);
        let spec = TensorSpec { name, dtype: Dtype::F32, shape, layout };
        return Ok(vec![Packed { spec, form: Repacking::Wide }]);
    }
    let packed = parts.len() > 1;
    let pack = |(index, part): (usize, &&Weight)| {
        let (form, layout) = match (is_vector || part.dtype == Dtype::I32, index) {
            (true, _) => (Repacking::Same, Layout::Rows),
            (false, 0) if packed => (Repacking::Quads, Layout::Quads),
            (false, _) => (Repacking::Stripes, Layout::Stripes),
        };
        let (name, dtype, shape) = (part.name.clone(), part.dtype, part.shape.clone());
        Packed { spec: TensorSpec { name, dtype, shape, layout }, form }
    };
    Ok(parts.iter().enumerate().map(pack).collect())
}

/// Whether scales of `scales` `[rows, groups]` change within a run of activations.
fn has_split_runs(shape: &[usize], scales: Option<&[usize]>) -> bool {
    let (&[_, columns], Some(&[_, groups])) = (shape, scales) else { return false };
    groups > 1 && group_of(columns, groups).is_none_or(|group| !group.is_multiple_of(RUN))
}

/// The packed weights of a checkpoint that an engine of it would hold as f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// How many they are.
    pub tensors: usize,
    /// The first of them.
    pub first: String,
    /// Bytes that they take in the engine.
    pub bytes: u64,
}

/// What an engine of `checkpoint` would hold as f32 although it is packed, because activations, of
/// which 32 share a scale, do not meet its groups; nothing where all stay as they are.
///
/// # Errors
/// When the checkpoint lacks a tensor.
pub fn unpacked(checkpoint: &Checkpoint) -> Result<Option<Unpacked>, CheckpointError> {
    let all = tensors(checkpoint)?;
    let wide: Vec<&TensorSpec> =
        all.iter().filter(|one| one.is_widened()).map(|one| &one.spec).collect();
    let first = wide.first().map(|spec| spec.name.clone());
    let bytes = wide.iter().filter_map(|spec| spec.bytes()).sum();
    Ok(first.map(|first| Unpacked { tensors: wide.len(), first, bytes }))
}

impl Packed {
    /// Whether a packed weight is stored as floats, which takes more room.
    pub(super) fn is_widened(&self) -> bool {
        matches!(self.form, Repacking::Wide)
    }

    /// Sends the bytes of the tensor on, a block at a time.
    pub(super) fn write<E: From<CheckpointError>>(
        &self,
        checkpoint: &Checkpoint,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let TensorSpec { name, dtype, shape, .. } = &self.spec;
        let rows = shape.first().copied().unwrap_or(1);
        let row_bytes = shape.iter().skip(1).product::<usize>() * dtype.size_bytes();
        let block = (BLOCK_BYTES / row_bytes.max(1)).next_multiple_of(STRIPE);
        let (mut bytes, mut wide) = (Vec::new(), Vec::new());
        for first in (0..rows).step_by(block) {
            let own = first..(first + block).min(rows);
            if let Repacking::Wide = self.form {
                checkpoint.read_rows_f32(name, own, &mut wide)?;
                bytes.clear();
                bytes.extend(wide.iter().flat_map(|number| number.to_le_bytes()));
            } else {
                bytes.resize(own.len() * row_bytes, 0);
                checkpoint.read_bytes(name, (first * row_bytes) as u64, &mut bytes)?;
            }
            bytes
                .chunks((STRIPE * row_bytes).max(1))
                .try_for_each(|rows| write(&self.lay(rows)))?;
        }
        Ok(())
    }

    /// The rows of one stripe, as they lie in the engine.
    fn lay<'a>(&self, rows: &'a [u8]) -> Cow<'a, [u8]> {
        let TensorSpec { dtype, shape, .. } = &self.spec;
        let columns = shape.iter().skip(1).product::<usize>();
        match (&self.form, dtype) {
            (Repacking::Same, _) => Cow::Borrowed(rows),
            (Repacking::Stripes | Repacking::Wide, _) => {
                Cow::Owned(stripe_elements(rows, columns, dtype.size_bytes()))
            }
            (Repacking::Quads, Dtype::U8) => Cow::Owned(stripe_nibbles(rows, columns * 2)),
            (Repacking::Quads, _) => Cow::Owned(stripe_bytes(rows, columns)),
        }
    }
}
