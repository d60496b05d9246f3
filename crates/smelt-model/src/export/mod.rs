//! Exports parts of a checkpoint as ONNX models with external data.
//!
//! A checkpoint and an element type come in; `model.onnx` and `model.onnx.data` come out, the
//! same bytes on every machine.  Weights pass through in blocks; the graph is written by hand,
//! not traced, so nothing is executed.  Knows nothing of engines.

mod bert;
mod clip;
mod layers;
mod positions;
#[cfg(test)]
mod tests;
mod vision;
mod weights;

use std::io;
use std::path::{Path, PathBuf};

use smelt_onnx::{
    CheckError, DataError, ElementType, Graph, IR_VERSION, Initializer, Model, OPSET, WriteError,
    check,
};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::dtype::Dtype;
use crate::families::clip::ClipVision;
use crate::families::internvl3::InternVl3;
use crate::model::{Encoder, Part, Vision};
use weights::WeightStream;

/// Why a checkpoint could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint holds the language model only.
    #[error(
        "{} has no vision tower: it was quantised; export from the checkpoint it was made of",
        dir.display()
    )]
    NoVision {
        /// The checkpoint.
        dir: PathBuf,
    },
    /// The pictures asked for do not fit the tower.
    #[error("pictures of {}x{} pixels do not fit: {rule}", size[0], size[1])]
    Size {
        /// Height and width.
        size: [usize; 2],
        /// What they must be.
        rule: String,
    },
    /// Graphs compute in floats.
    #[error("cannot export a graph in {dtype}; use f32, f16 or bf16")]
    NotFloat {
        /// The type asked for.
        dtype: Dtype,
    },
    /// A weight is NaN or infinite.
    #[error(
        "tensor {tensor} holds {value} at element {element}; every answer would be NaN, so fetch the checkpoint again"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// NaN or an infinity.
        value: f32,
        /// The index of the first such element, counted through the tensor.
        element: u64,
    },
    /// A weight has no f16 value.
    #[error("tensor {tensor} holds {value}, beyond f16's 65504; export in bf16 or f32")]
    BeyondF16 {
        /// The tensor.
        tensor: String,
        /// The first such value.
        value: f32,
    },
    /// The output directory cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    CreateDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The weights cannot be written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The graph cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What was written is no sound model: a bug, or a disk that lost bytes.
    #[error("the exported model is unsound: {0}")]
    Unsound(#[from] CheckError),
}

/// The most patches of one picture: a table of their positions is made in memory (64 MiB at CLIP's
/// widest 1024 channels).
const PATCHES_MAX: usize = 1 << 14;

/// Exports the vision tower of `checkpoint`, with what leads to the space of what follows, to
/// `out_dir`.
///
/// InternViT's model maps `pixel_values` [tiles, channels, side, side] to `image_embeds`
/// [tiles, tokens, hidden]; CLIP's maps `pixel_values` [pictures, channels, height, width] to
/// `image_embeds` [pictures, width] (`pooler_output` [pictures, hidden] without a projection) and
/// `last_hidden_state` [pictures, 1 + patches, hidden]; all of type `dtype`.  `progress` is told
/// each weight.
///
/// # Errors
/// When there is no tower, `dtype` is no float the graph can have, a weight does not fit it, or a
/// file cannot be read or written.
pub fn vision(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    vision_sized(checkpoint, dtype, None, out_dir, progress)
}

/// [`vision`] for pictures of another height and width than the tower was trained on, where it
/// takes such: CLIP's positions are then interpolated.
///
/// # Errors
/// Those of [`vision`], and [`ExportError::Size`] when `size` does not fit the tower.
pub fn vision_sized(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    size: Option<[usize; 2]>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let Some(tower) = &checkpoint.model().vision else {
        return Err(checkpoint.no_part(Part::Vision).into());
    };
    if !checkpoint.has(Part::Vision) {
        return Err(ExportError::NoVision { dir: checkpoint.dir().to_owned() });
    }
    match tower {
        Vision::InternVit(tower) => {
            check_native(tower, size)?;
            let mut export = Export::begin(checkpoint, dtype, out_dir)?;
            let weights = export.copy_all(vision::weights(checkpoint.model()), progress)?;
            let graph = vision::graph(tower, export.stream.element_type(), weights);
            export.finish(graph)
        }
        Vision::Clip(tower) => {
            let size = size.unwrap_or([tower.image_size; 2]);
            check_size(tower, size)?;
            let mut export = Export::begin(checkpoint, dtype, out_dir)?;
            let weights = export.clip_weights(tower, size, progress)?;
            let graph = clip::vision_graph(tower, size, export.stream.element_type(), weights);
            export.finish(graph)
        }
    }
}

/// Exports the text encoder of `checkpoint` to `out_dir`.
///
/// The model maps `input_ids` and `attention_mask` [texts, places], integers, to
/// `last_hidden_state` [texts, places, hidden] of type `dtype`; CLIP's also to `text_embeds`
/// [texts, width] (`pooler_output` [texts, hidden] without a projection).  `progress` is told each
/// weight.
///
/// # Errors
/// When there is no encoder, `dtype` is no float the graph can have, a weight does not fit it, or a
/// file cannot be read or written.
pub fn encoder(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let Some(encoder) = &checkpoint.model().encoder else {
        return Err(checkpoint.no_part(Part::Encoder).into());
    };
    let mut export = Export::begin(checkpoint, dtype, out_dir)?;
    let weights = export.copy_all(checkpoint.model().tensors(&[Part::Encoder]), progress)?;
    let element_type = export.stream.element_type();
    export.finish(match encoder {
        Encoder::Bert(bert) => bert::graph(bert, element_type, weights),
        Encoder::ClipText(tower) => clip::text_graph(tower, element_type, weights),
    })
}

/// InternViT takes tiles of one size, whatever the picture.
fn check_native(tower: &InternVl3, size: Option<[usize; 2]>) -> Result<(), ExportError> {
    let side = tower.image_size;
    match size.filter(|size| *size != [side; 2]) {
        None => Ok(()),
        Some(size) => {
            let rule = format!("this tower takes tiles of {side}x{side}; leave the size out");
            Err(ExportError::Size { size, rule })
        }
    }
}

fn check_size(tower: &ClipVision, size: [usize; 2]) -> Result<(), ExportError> {
    let patch = tower.patch_size;
    if size.iter().any(|side| *side == 0 || !side.is_multiple_of(patch)) {
        let rule = format!("both sides must be multiples of a patch's {patch} pixels");
        return Err(ExportError::Size { size, rule });
    }
    let patches = (size[0] / patch).saturating_mul(size[1] / patch);
    if patches > PATCHES_MAX {
        let rule = format!("they have {patches} patches, more than {PATCHES_MAX}");
        return Err(ExportError::Size { size, rule });
    }
    Ok(())
}

/// A model being written.
struct Export<'a> {
    checkpoint: &'a Checkpoint,
    out_dir: &'a Path,
    stream: WeightStream<'a>,
}

impl<'a> Export<'a> {
    fn begin(
        checkpoint: &'a Checkpoint,
        dtype: Dtype,
        out_dir: &'a Path,
    ) -> Result<Self, ExportError> {
        let stream = WeightStream::create(checkpoint, dtype, out_dir)?;
        Ok(Self { checkpoint, out_dir, stream })
    }

    /// Stores `weights`, each declared with its shape.
    fn copy_all(
        &mut self,
        weights: Vec<(String, Vec<usize>)>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<Initializer>, ExportError> {
        let is_bert = matches!(self.checkpoint.model().encoder, Some(Encoder::Bert(_)));
        let mut initializers = Vec::with_capacity(weights.len());
        for (n, (name, dims)) in weights.iter().enumerate() {
            progress(&format!("weight {} of {}: {name}", n + 1, weights.len()));
            initializers.push(if is_bert && bert::is_wide(name) {
                self.stream.copy_as(name, dims, ElementType::F32)?
            } else {
                self.stream.copy(name, dims)?
            });
        }
        Ok(initializers)
    }

    /// Stores the weights of CLIP's vision tower for pictures of `size`.
    fn clip_weights(
        &mut self,
        tower: &ClipVision,
        size: [usize; 2],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<Initializer>, ExportError> {
        let native = size == [tower.image_size; 2];
        let mut weights = self.checkpoint.model().tensors(&[Part::Vision]);
        weights.retain(|(name, _)| native || name != clip::POSITION_EMBEDDING);
        let declared = |(name, dims): (String, _)| {
            let dims = clip::declared(&name, dims);
            (name, dims)
        };
        let weights = weights.into_iter().map(declared).collect();
        let mut stored = self.copy_all(weights, progress)?;
        if !native {
            progress("interpolating positions");
            let table = self.checkpoint.read_f32(clip::POSITION_EMBEDDING)?;
            let (width, to) = (tower.tower.hidden, size.map(|side| side / tower.patch_size));
            let table = positions::resampled(&table, width, tower.grid(), to);
            let dims = [table.len() / width, width];
            stored.push(self.stream.put(clip::POSITION_EMBEDDING, &dims, &table)?);
        }
        Ok(stored)
    }

    /// Writes the graph and checks what was written.
    fn finish(self, graph: Graph) -> Result<(), ExportError> {
        let model = Model {
            ir_version: IR_VERSION,
            opset: OPSET,
            other_opsets: vec![],
            producer: "smelt".to_owned(),
            metadata: vec![],
            graph,
        };
        model.write(self.out_dir)?;
        Ok(check(&model, self.out_dir)?)
    }
}
