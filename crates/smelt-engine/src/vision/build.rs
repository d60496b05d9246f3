//! Builds a vision engine from an ONNX graph: packs it, then loads it and runs it once.
//!
//! The graph is judged before a weight is read; weights then go to `weights.bin` in blocks, in
//! their own type.  Image size, tokens and width come from the graph.  Knows nothing of
//! checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use smelt_model::dtype::Dtype;
use smelt_onnx::{ElementType, Initializer, Model};

use super::array::Array;
use super::graph::{Converted, GraphFile, convert, stored_dtype};
use super::op::{OPSETS, Op};
use super::{KIND, RunError, VisionEngine, VisionFile};
use crate::engine_file::{EngineWriter, OpenError, TensorSpec};

/// The graph's file in its directory.
const MODEL_FILE: &str = "model.onnx";
/// Bytes of a weight held in memory at a time.
const BLOCK_BYTES: usize = 8 << 20;
/// A tile larger than this is a broken graph (the largest vision towers take 1792 pixels).
const IMAGE_SIZE_MAX: usize = 1 << 14;

/// Why a graph could not become an engine.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The model file cannot be read.
    #[error(transparent)]
    Read(#[from] smelt_onnx::ReadError),
    /// The model file breaks the standard's rules.
    #[error("{} is no valid graph: {source}", path.display())]
    Check {
        /// The model file.
        path: PathBuf,
        /// The first broken rule.
        source: smelt_onnx::CheckError,
    },
    /// The native engine cannot execute the graph.
    #[error("{} cannot become a native engine: {problem}", path.display())]
    Graph {
        /// The model file.
        path: PathBuf,
        /// The node and what is wrong with it.
        problem: String,
    },
    /// A weight cannot be read.
    #[error(transparent)]
    Weight(#[from] smelt_onnx::DataError),
    /// The engine cannot be written.
    #[error("cannot write the engine in {}: {source}", dir.display())]
    Write {
        /// The engine's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The finished engine does not open.
    #[error("the engine does not open: {0}")]
    Open(#[from] OpenError),
    /// The finished engine does not run.
    #[error("the engine does not run: {0}")]
    Run(#[from] RunError),
    /// The finished engine gives numbers that are no numbers.
    #[error("the engine gives {found} for a test picture; the weights are not usable in f32")]
    NotFinite {
        /// The first such number.
        found: f32,
    },
}

/// Builds an engine in `out_dir` from `model.onnx` in `onnx_dir`, and runs it once.
///
/// The same graph gives the same bytes on every machine.  `progress` hears what is being done.
///
/// # Errors
/// When the graph cannot be read or holds what the engine does not have (the message names the
/// node), when writing fails, or when the finished engine does not run.
pub fn build(
    onnx_dir: &Path,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let path = onnx_dir.join(MODEL_FILE);
    let model = Model::read(&path)?;
    smelt_onnx::check(&model, onnx_dir)
        .map_err(|source| BuildError::Check { path: path.clone(), source })?;
    let graph_error = |problem| BuildError::Graph { path: path.clone(), problem };
    let converted = convert(model).map_err(graph_error)?;
    judge(&converted.graph).map_err(graph_error)?;
    let (channels, image_size) = image_of(&converted.input_dims).map_err(graph_error)?;
    let Converted { graph, constants, .. } = converted;

    let write_error = |source| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = EngineWriter::create(out_dir).map_err(write_error)?;
    progress(&format!("packing {} constants", constants.len()));
    for constant in &constants {
        let dtype = stored_dtype(constant).map_err(graph_error)?;
        let (name, shape) = (constant.name.clone(), constant.dims.clone());
        writer.begin(TensorSpec { name, dtype, shape }).map_err(write_error)?;
        pack(constant, dtype, onnx_dir, &mut |bytes| writer.write(bytes).map_err(write_error))?;
    }
    let file = VisionFile { channels, image_size, tokens_per_tile: 0, hidden: 0, graph };
    let mut unsealed = writer.finish(KIND, file).map_err(write_error)?;

    progress("running the engine once");
    let output = try_out(&VisionEngine::new(unsealed.preview()?)?)?;
    let engine = unsealed.engine_mut();
    (engine.tokens_per_tile, engine.hidden) = tokens_of(output.shape()).map_err(graph_error)?;
    unsealed.seal().map_err(write_error)?;
    VisionEngine::open(out_dir)?;
    Ok(())
}

/// Finds operators that the engine does not have before any weight is read.
fn judge(graph: &GraphFile) -> Result<(), String> {
    if !OPSETS.contains(&graph.opset) {
        let (first, last) = (OPSETS.start(), OPSETS.end());
        let found = graph.opset;
        return Err(format!("opset {found} is not in {first}..={last}; export the model again"));
    }
    for node in &graph.nodes {
        Op::parse(node, graph.opset).map_err(|problem| format!("{}: {problem}", node.title()))?;
    }
    Ok(())
}

/// Channels and image size of an input `[batch, channels, size, size]`.
fn image_of(dims: &[Option<usize>]) -> Result<(usize, usize), String> {
    match *dims {
        [None | Some(1), Some(channels), Some(height), Some(width)]
            if height == width
                && (1..=IMAGE_SIZE_MAX).contains(&width)
                && (1..=4).contains(&channels) =>
        {
            Ok((channels, width))
        }
        _ => Err(format!(
            "its input is {dims:?}, not [batch, channels, size, size] with a batch of 1 or any"
        )),
    }
}

/// Tokens and hidden size of an output `[…, tokens, hidden]` of one tile.
fn tokens_of(shape: &[usize]) -> Result<(usize, usize), String> {
    match shape {
        [outer @ .., hidden] if !outer.is_empty() && shape.iter().all(|&dim| dim > 0) => {
            Ok((outer.iter().product(), *hidden))
        }
        _ => Err(format!("its output is {shape:?} for one tile, not [tokens, hidden]")),
    }
}

/// Sends the bytes of a constant on, a block at a time.
fn pack(
    constant: &Initializer,
    dtype: Dtype,
    dir: &Path,
    write: &mut dyn FnMut(&[u8]) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let total = constant.byte_len().expect("the check multiplied every shape") as u64;
    let mut block = vec![0; (BLOCK_BYTES as u64).min(total) as usize];
    let mut at = 0;
    while at < total {
        let len = (BLOCK_BYTES as u64).min(total - at) as usize;
        smelt_onnx::read_initializer(dir, constant, at, &mut block[..len])?;
        at += len as u64;
        if dtype == Dtype::I64 && constant.dtype == ElementType::I32 {
            let quads = block[..len].as_chunks::<4>().0;
            let wide =
                quads.iter().flat_map(|&quad| i64::from(i32::from_le_bytes(quad)).to_le_bytes());
            write(&wide.collect::<Vec<u8>>())?;
        } else {
            write(&block[..len])?;
        }
    }
    Ok(())
}

/// Encodes a test picture; every number has to be finite.
fn try_out(engine: &VisionEngine) -> Result<Array<f32>, BuildError> {
    let VisionFile { channels, image_size, .. } = engine.file.engine;
    let count = channels * image_size * image_size;
    // A ramp with jumps, in the range of normalised pixels.
    let pixels = (0..count).map(|index| (index % 251) as f32 / 62.5 - 2.0).collect();
    let output = engine.run(Array::new(vec![1, channels, image_size, image_size], pixels))?;
    match output.data().iter().find(|value| !value.is_finite()) {
        Some(&found) => Err(BuildError::NotFinite { found }),
        None => Ok(output),
    }
}
