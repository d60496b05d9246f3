//! Builds an engine for ONNX Runtime: keeps the graph, packs its weights, and runs it once.
//!
//! Nodes and types stay as they are; weights move to `weights.bin`, where they lie aligned and are
//! mapped, not read.  The bytes depend on the graph alone, not on the version that tries it out.

use std::fs;
use std::io;
use std::path::Path;

use smelt_backend::{GraphOutput, Tensor};
use smelt_engine::engine_file::{EngineWriter, Layout, TensorSpec, WEIGHTS_FILE};
use smelt_engine::onnxruntime::{self, KIND, MODEL_FILE, OnnxFile, OnnxruntimeEngine};
use smelt_onnx::{AttributeValue, Data, ElementType, Graph, Initializer, Model};
use smelt_tensor::dtype::Dtype;

use crate::BuildError;
use crate::graph::{input_file, tried_inputs, try_sizes};

/// Bytes of a weight held in memory at a time.
const BLOCK_BYTES: usize = 8 << 20;

/// Constants of up to this many numbers lie in the graph: shapes, axes, limits, and the scales of a Resize,
/// of which there are two for each dimension at most.  ONNX Runtime reads such while it prepares the
/// graph, and not from another file.
const KEPT_NUMBERS_MAX: usize = 16;

/// Builds an engine in `out_dir` from `model.onnx` in `onnx_dir`, and runs it once.
///
/// The same graph gives the same bytes on every machine.  `progress` hears what is being done.
///
/// # Errors
/// When ONNX Runtime is not on this machine, the graph cannot be read, writing fails, or the
/// finished engine does not run.
pub fn build(
    onnx_dir: &Path,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    onnxruntime::load()?;
    let path = onnx_dir.join(MODEL_FILE);
    let mut model = Model::read(&path)?;
    smelt_onnx::check(&model, onnx_dir)
        .map_err(|source| BuildError::Check { path: path.clone(), source })?;
    let graph_error = |problem| BuildError::Graph { path: path.clone(), backend: KIND, problem };
    let own: Vec<&str> = model.graph.initializers.iter().map(|own| own.name.as_str()).collect();
    // Old files list initializers among the inputs.
    let inputs = model.graph.inputs.iter().filter(|input| !own.contains(&input.name.as_str()));
    let inputs = inputs.map(input_file).collect::<Result<Vec<_>, _>>().map_err(graph_error)?;
    let tried = tried_inputs(&inputs).map_err(graph_error)?;
    let given = inputs.clone();

    let write_error = |source| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = EngineWriter::create(out_dir).map_err(write_error)?;
    progress(&format!("packing {} constants", model.graph.initializers.len()));
    for node in &mut model.graph.nodes {
        node.attributes
            .iter_mut()
            .try_for_each(|attribute| embed(&mut attribute.value, onnx_dir))?;
    }
    let bytes = |one: &Initializer| one.byte_len().unwrap_or(0);
    let (mut done, all) = (0, model.graph.initializers.iter().map(bytes).sum::<usize>());
    for initializer in &mut model.graph.initializers {
        progress(&format!("[{done}/{all}] packing {}", initializer.name));
        done += bytes(initializer);
        pack(initializer, onnx_dir, &mut writer, &write_error)?;
    }
    model.write_as(out_dir, MODEL_FILE)?;
    let bytes = fs::read(out_dir.join(MODEL_FILE)).map_err(write_error)?;
    let untried =
        |value: &smelt_onnx::ValueInfo| GraphOutput { name: value.name.clone(), tried: vec![] };
    let outputs = model.graph.outputs.iter().map(untried).collect();
    let file = OnnxFile::new(&bytes, inputs, outputs);
    let mut unsealed = writer.finish(KIND, file).map_err(write_error)?;

    progress("running the engine once");
    let engine = OnnxruntimeEngine::preview(&unsealed)?;
    let outputs = try_sizes(&given, tried, |inputs| engine.run(inputs))?;
    let mut numbers = outputs.iter().filter_map(Tensor::floats).flatten();
    if let Some(&found) = numbers.find(|number| !number.is_finite()) {
        return Err(BuildError::NotFinite { found, tried: "a test input" });
    }
    for (file, output) in unsealed.engine_mut().outputs.iter_mut().zip(&outputs) {
        output.shape().clone_into(&mut file.tried);
    }
    unsealed.seal().map_err(write_error)?;
    OnnxruntimeEngine::open(out_dir)?;
    Ok(())
}

/// Moves a constant to `weights.bin`, if it is large; the graph then names its range there.
fn pack(
    initializer: &mut Initializer,
    onnx_dir: &Path,
    writer: &mut EngineWriter,
    write_error: &dyn Fn(io::Error) -> BuildError,
) -> Result<(), BuildError> {
    let numbers: usize = initializer.dims.iter().product();
    let is_list = matches!(initializer.data, Data::Inline(_)) && !initializer.dtype.is_float();
    if is_list || numbers <= KEPT_NUMBERS_MAX {
        return embed_tensor(initializer, onnx_dir);
    }
    let length = initializer.byte_len().expect("the check multiplied every shape") as u64;
    writer.begin(spec(initializer, length)).map_err(write_error)?;
    let offset = writer.at();
    let mut block = vec![0; (BLOCK_BYTES as u64).min(length) as usize];
    let mut at = 0;
    while at < length {
        let len = (BLOCK_BYTES as u64).min(length - at) as usize;
        smelt_onnx::read_initializer(onnx_dir, initializer, at, &mut block[..len])?;
        writer.write(&block[..len]).map_err(write_error)?;
        at += len as u64;
    }
    initializer.data = Data::External { location: WEIGHTS_FILE.to_owned(), offset, length };
    Ok(())
}

/// How `engine.json` lists a constant; nibbles are bytes there.
fn spec(initializer: &Initializer, length: u64) -> TensorSpec {
    let layout = Layout::Rows;
    let dtype = match initializer.dtype {
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::F64 => Dtype::F64,
        ElementType::I8 => Dtype::I8,
        ElementType::I16 => Dtype::I16,
        ElementType::I32 => Dtype::I32,
        ElementType::I64 => Dtype::I64,
        ElementType::U8 | ElementType::Bool => Dtype::U8,
        ElementType::U16 => Dtype::U16,
        ElementType::U32 => Dtype::U32,
        ElementType::U64 => Dtype::U64,
        ElementType::U4 | ElementType::I4 => {
            let shape = vec![length as usize];
            return TensorSpec { name: initializer.name.clone(), dtype: Dtype::U8, shape, layout };
        }
    };
    TensorSpec { name: initializer.name.clone(), dtype, shape: initializer.dims.clone(), layout }
}

/// Takes the tensors of an attribute into the model file, since the directory they lie in is not
/// the engine's.
fn embed(value: &mut AttributeValue, onnx_dir: &Path) -> Result<(), BuildError> {
    match value {
        AttributeValue::Tensor(tensor) => embed_tensor(tensor, onnx_dir),
        AttributeValue::Graph(graph) => embed_graph(graph, onnx_dir),
        _ => Ok(()),
    }
}

fn embed_graph(graph: &mut Graph, onnx_dir: &Path) -> Result<(), BuildError> {
    graph.initializers.iter_mut().try_for_each(|tensor| embed_tensor(tensor, onnx_dir))?;
    let mut attributes = graph.nodes.iter_mut().flat_map(|node| &mut node.attributes);
    attributes.try_for_each(|attribute| embed(&mut attribute.value, onnx_dir))
}

fn embed_tensor(tensor: &mut Initializer, onnx_dir: &Path) -> Result<(), BuildError> {
    if matches!(tensor.data, Data::External { .. }) {
        let length = tensor.byte_len().expect("the check multiplied every shape");
        let mut bytes = vec![0; length];
        smelt_onnx::read_initializer(onnx_dir, tensor, 0, &mut bytes)?;
        tensor.data = Data::Inline(bytes);
    }
    Ok(())
}
