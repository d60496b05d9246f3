//! Decides how the tensors of a decoder lie in an engine, and lays them out.
//!
//! A checkpoint's tensors in, those of the engine out, a stripe at a time.  Linear weights lie in
//! stripes, packed or as floats; norms, biases and orders as they are.  Knows nothing of files.

use std::borrow::Cow;
use std::num::NonZero;
use std::ops::Range;
use std::thread;

use smelt_engine::engine_file::{
    Layout, RUN, STRIPE, TensorSpec, stripe_bytes, stripe_elements, stripe_nibbles,
};
use smelt_model::checkpoint::{Checkpoint, CheckpointError, Weight};
use smelt_model::decoder::LM_HEAD;
use smelt_model::in_order::in_order;
use smelt_model::model::ModelPart;
use smelt_tensor::dtype::Dtype;
use smelt_tensor::packed::group_of;

/// Bytes of a tensor that a thread reads at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Threads that lay tensors out: the disk takes what two of them make.
const THREADS_MAX: usize = 4;

/// A tensor of an engine, and how it comes of the checkpoint's tensor of its name.
pub(super) struct Packed {
    pub(super) spec: TensorSpec,
    form: Repacking,
}

/// Some rows of a tensor on their way into the engine.
#[derive(Default)]
struct Block {
    index: usize,
    stored: Vec<u8>,
    wide: Vec<f32>,
    laid: Vec<u8>,
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

/// Sends the bytes of all tensors on in their order, a block at a time; `write` hears with the first of each that it begins.
///
/// Threads share the blocks of all of them: those of a small model have one each.
pub(super) fn write_each<E: From<CheckpointError> + Send>(
    packed: &[Packed],
    checkpoint: &Checkpoint,
    mut write: impl FnMut(&Packed, Part<'_>) -> Result<(), E> + Send,
) -> Result<(), E> {
    let blocks: Vec<(&Packed, Range<usize>)> =
        packed.iter().flat_map(|one| one.blocks().map(move |rows| (one, rows))).collect();
    let make = |made: &mut Block, index: usize| {
        let (one, rows) = &blocks[index];
        made.index = index;
        Ok(one.read(checkpoint, rows.clone(), made)?)
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    in_order(blocks.len(), threads, make, |made| {
        let (one, rows) = &blocks[made.index];
        write(one, Part { is_first: rows.start == 0, bytes: &made.laid })
    })
}

/// Some bytes of a tensor.
pub(super) struct Part<'a> {
    pub(super) is_first: bool,
    pub(super) bytes: &'a [u8],
}

impl Packed {
    /// Whether a packed weight is stored as floats, which takes more room.
    pub(super) fn is_widened(&self) -> bool {
        matches!(self.form, Repacking::Wide)
    }

    /// The rows of its blocks.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let rows = self.spec.shape.first().copied().unwrap_or(1);
        let block = (BLOCK_BYTES / self.row_bytes().max(1)).max(1).next_multiple_of(STRIPE);
        (0..rows.max(1)).step_by(block).map(move |first| first..rows.min(first + block))
    }

    /// Reads some rows, the first of a stripe first, and lays them out.
    fn read(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
        Block { stored, wide, laid, .. }: &mut Block,
    ) -> Result<(), CheckpointError> {
        let row_bytes = self.row_bytes();
        if let Repacking::Wide = self.form {
            checkpoint.read_rows_f32(&self.spec.name, rows, wide)?;
            stored.clear();
            stored.extend(wide.iter().flat_map(|number| number.to_le_bytes()));
        } else {
            stored.resize(rows.len() * row_bytes, 0);
            checkpoint.read_bytes(&self.spec.name, (rows.start * row_bytes) as u64, stored)?;
        }
        laid.clear();
        let stripes = stored.chunks((STRIPE * row_bytes).max(1));
        stripes.for_each(|rows| laid.extend_from_slice(&self.lay(rows)));
        Ok(())
    }

    fn row_bytes(&self) -> usize {
        let TensorSpec { dtype, shape, .. } = &self.spec;
        shape.iter().skip(1).product::<usize>() * dtype.size_bytes()
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
