//! Exports parts of a checkpoint as ONNX models with external data.
//!
//! A checkpoint and an element type come in; `model.onnx` and `model.onnx.data` come out, the
//! same bytes on every machine.  Weights pass through in blocks; the graph is written by hand,
//! not traced, so nothing is executed.  Knows nothing of engines.

mod bert;
mod clip;
#[cfg(test)]
mod grid_tests;
mod grids;
mod layers;
mod llm;
#[cfg(test)]
mod llm_tests;
mod patches;
mod positions;
pub mod probe;
mod qwen2_5_vl;
mod qwen2_vl;
mod qwen3_vl;
mod smolvlm;
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
use crate::grid::{Grid, GridError};
use crate::model::{Encoder, Model as Description, ModelPart, Vision};
use crate::reference::ReferenceError;
use grids::GridGraph;
use weights::WeightStream;

pub use grids::{GRIDS_FILE, GridList, GridsError};

/// What is added to the score of what must not be seen: no exponential is left of it beside any score
/// a model gives, and f16 holds it together with them.
const HIDDEN_SCORE: f32 = -30_000.0;

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
    /// The grids asked for do not fit the tower.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The tower takes square tiles.
    #[error("grid {grid}: the tower takes square tiles; name grids such as 224x224")]
    NotSquare {
        /// The grid.
        grid: Grid,
    },
    /// The tower takes tiles of one size.
    #[error("the tower takes tiles of {side}x{side} alone; leave \"grids\" out")]
    OneSize {
        /// Pixels on a side of a tile.
        side: usize,
    },
    /// The list of grids cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
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
    /// An activation of the probe has no f16 value.
    #[error(
        "an activation of block {block} reaches {value}, beyond f16's 65504; export in bf16 or f32"
    )]
    ActivationBeyondF16 {
        /// The block.
        block: String,
        /// The largest activation.
        value: f32,
    },
    /// The reference has no such part.
    #[error("the probe runs the f32 reference, which has no encoders of texts; leave it out")]
    NoProbe,
    /// The reference cannot run the model.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
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

/// Exports the vision tower of `checkpoint`, with what leads to the space of what follows, to
/// `out_dir`.
///
/// InternVL's and SmolVLM's models map `pixel_values` [tiles, channels, side, side] to `image_embeds`
/// [tiles, tokens, hidden]; CLIP's maps `pixel_values` [pictures, channels, height, width] to
/// `image_embeds` [pictures, width] (`pooler_output` [pictures, hidden] without a projection) and
/// `last_hidden_state` [pictures, 1 + patches, hidden].  Those of Qwen-VL are exported for a usual
/// list of grids, see [`vision_on`].  All is of type `dtype`; `progress` is told each weight.
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
    vision_on(checkpoint, &[], dtype, out_dir, progress)
}

/// [`vision`] for pictures of the sizes `grids`, of a tower that takes any (Qwen2-VL, Qwen2.5-VL,
/// Qwen3-VL), or with interpolated positions (CLIP, and InternVL's square tiles).
///
/// For each grid there is a model.  Qwen-VL's map `pixel_values` [patches, values], flattened as the
/// family's image processor does, to `image_embeds` [tokens, hidden] and, where the family has
/// them, `deepstack_{i}` of the same shape.  One grid makes `model.onnx`, several make
/// `grid-HEIGHTxWIDTH.onnx` each over one `model.onnx.data`; [`GRIDS_FILE`] lists them.
///
/// # Errors
/// Those of [`vision`], and [`ExportError::Grid`], [`ExportError::NotSquare`] or [`ExportError::OneSize`] when
/// the grids do not fit the tower.
pub fn vision_on(
    checkpoint: &Checkpoint,
    grids: &[Grid],
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let model = checkpoint.model();
    let Some(tower) = &model.vision else {
        return Err(checkpoint.no_part(ModelPart::Vision).into());
    };
    if !checkpoint.has(ModelPart::Vision) {
        return Err(ExportError::NoVision { dir: checkpoint.dir().to_owned() });
    }
    let on_grids = |graph: &GridGraph<'_>, out: &mut dyn FnMut(&str)| {
        grids::export(checkpoint, (tower, graph), grids, dtype, out_dir, out)
    };
    match tower {
        // A tile of the size that the model was made for needs no list of sizes.
        Vision::InternVit(tower) if grids.is_empty() => {
            let weights = vision::weights(model);
            write(checkpoint, dtype, &weights, out_dir, progress, |element_type, weights| {
                vision::graph(tower, element_type, weights)
            })
        }
        Vision::InternVit(tower) => on_grids(
            &|lattice, stream, weights| vision::grid_graph(tower, lattice, stream, weights),
            progress,
        ),
        Vision::Qwen2(tower) => on_grids(
            &|lattice, stream, weights| qwen2_vl::graph(tower, lattice, stream, weights),
            progress,
        ),
        Vision::Qwen25(tower) => on_grids(
            &|lattice, stream, weights| qwen2_5_vl::graph(tower, lattice, stream, weights),
            progress,
        ),
        Vision::Qwen3(tower) => on_grids(
            &|lattice, stream, weights| qwen3_vl::graph(tower, lattice, stream, weights),
            progress,
        ),
        Vision::SmolVlm(tower) if grids.is_empty() => {
            let weights = smolvlm::weights(model);
            write(checkpoint, dtype, &weights, out_dir, progress, |element_type, weights| {
                smolvlm::graph(tower, element_type, weights)
            })
        }
        Vision::SmolVlm(tower) => Err(ExportError::OneSize { side: tower.image_size }),
        Vision::Clip(tower) => on_grids(
            &|lattice, stream, weights| clip::vision_graph(tower, lattice, stream, weights),
            progress,
        ),
    }
}

/// How tokens enter the graph of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LlmInput {
    /// `input_ids`; the graph looks their embeddings up.
    Ids,
    /// `inputs_embeds`, of which some may be those of images.
    Embeds,
}

impl LlmInput {
    /// Ids for a model of text alone; embeddings for one that sees.
    pub fn usual(model: &Description) -> Self {
        if model.vision.is_some() { Self::Embeds } else { Self::Ids }
    }
}

/// Exports the decoder of `checkpoint` with its head to `out_dir`.
///
/// With B sequences, T new tokens, P cached ones, S = P + T, L layers, K key heads of width D:
///
/// | input | shape | |
/// |---|---|---|
/// | `input_ids` or `inputs_embeds` | `[B, T]` or `[B, T, hidden]` | as `input` says |
/// | `position_ids` | `[B, T]`, `[3, B, T]` with M-RoPE | of the new tokens |
/// | `attention_mask` | `[B, S]` | 1 for tokens, 0 for padding |
/// | `deepstack_embeds.{i}` | `[B, T, hidden]` | only where the family has them; zero but at images |
/// | `past_key_values.{i}.key`, `.value` | `[B, K, P, D]` | P may be 0 |
///
/// give `logits` `[B, T, vocab]` and `present.{i}.key`, `.value` `[B, K, S, D]`.  Ids, positions and
/// mask are i64, all else is of type `dtype`; B, T, P and S are open.  A head that is tied to the
/// embedding is the same tensor, stored once.  Quantised weights are exported as the floats they
/// stand for.  `progress` is told each weight.
///
/// # Errors
/// When the model has no decoder, `dtype` is no float the graph can have, a weight does not fit it
/// or is no number, or a file cannot be read or written.
pub fn llm(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    input: LlmInput,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let decoder = checkpoint.decoder()?;
    let is_tied = !checkpoint.has_lm_head();
    let weights = llm::weights(checkpoint.model(), input, is_tied);
    write(checkpoint, dtype, &weights, out_dir, progress, |element_type, initializers| {
        llm::graph(decoder, input, is_tied, element_type, initializers)
    })
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
        return Err(checkpoint.no_part(ModelPart::Encoder).into());
    };
    let weights = checkpoint.model().tensors(&[ModelPart::Encoder]);
    write(checkpoint, dtype, &weights, out_dir, progress, |element_type, weights| match encoder {
        Encoder::Bert(bert) => bert::graph(bert, element_type, weights),
        Encoder::ClipText(tower) => clip::text_graph(tower, element_type, weights),
    })
}

/// Exports the text encoder of `checkpoint` with its classification head to `out_dir`.
///
/// The model maps `input_ids`, `attention_mask` and `token_type_ids` [texts, places], integers, to
/// `logits` [texts, labels] of type `dtype`; kinds of tokens are 0, and 1 in the second text of a pair.
/// `progress` is told each weight.
///
/// # Errors
/// Those of [`encoder`], and when the head is not stored.
pub fn classifier(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let (Some(Encoder::Bert(bert)), true) =
        (&checkpoint.model().encoder, checkpoint.has(ModelPart::Classifier))
    else {
        return Err(checkpoint.no_part(ModelPart::Classifier).into());
    };
    let weights = checkpoint.model().tensors(&[ModelPart::Encoder, ModelPart::Classifier]);
    write(checkpoint, dtype, &weights, out_dir, progress, |element_type, weights| {
        bert::classifier_graph(bert, element_type, weights)
    })
}

/// Streams `weights` to the data file, then writes and checks the graph that is made over them.
fn write(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    weights: &[(String, Vec<usize>)],
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
    graph: impl FnOnce(ElementType, Vec<Initializer>) -> Graph,
) -> Result<(), ExportError> {
    let mut stream = WeightStream::create(checkpoint, dtype, out_dir)?;
    let is_bert = matches!(checkpoint.model().encoder, Some(Encoder::Bert(_)));
    let mut initializers = Vec::with_capacity(weights.len());
    let numbers = |dims: &[usize]| dims.iter().product::<usize>();
    let (mut done, all) = (0, weights.iter().map(|(_, dims)| numbers(dims)).sum::<usize>());
    for (name, dims) in weights {
        progress(&format!("[{done}/{all}] weight {name}"));
        done += numbers(dims);
        let is_wide = is_bert && bert::is_wide(name);
        let element_type = if is_wide { ElementType::F32 } else { stream.element_type() };
        initializers.push(stream.copy_as(name, dims, element_type)?);
    }
    let model = Model {
        ir_version: IR_VERSION,
        opset: OPSET,
        other_opsets: vec![],
        producer: "smelt".to_owned(),
        metadata: vec![],
        graph: graph(stream.element_type(), initializers),
    };
    model.write(out_dir)?;
    Ok(check(&model, out_dir)?)
}
