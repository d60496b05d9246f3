//! By `trtexec`, TensorRT's own program, on the GPU that the engine is for.
//!
//! A plan counts if the program says that it passed, named the GPU that was asked for, and left as many bytes as it said.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use smelt_onnx::{Dim, Model, ValueInfo};
use smelt_tensorrt::Shapes;
use smelt_tensorrt::trtexec::{Dla, Precision, Report, Request, run};

use super::{
    EngineFile, PlanFile, Port, Settings, Source, TensorRtError, inputs, shaped, write_error,
};

/// What `engine.json` calls such engines.
pub const KIND: &str = "tensorrt";
/// What was measured while an engine was built, with which the next one is built sooner.
pub const TIMING_FILE: &str = "timing.cache";
/// Fewer pictures at once leave the accelerator waiting for its transfers (NVIDIA's DLA guide).
const DLA_BATCH_MIN: i64 = 4;

/// What is built, besides what any builder is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The types of products.
    pub precision: Precision,
    /// Streams besides the first.
    pub aux_streams: Option<u32>,
    /// Libraries of kernels that are looked at or left out, as `-CUDNN`.
    pub tactic_sources: Vec<String>,
    /// Types and layouts of inputs, as `fp16:chw`: one for all, or one for each.
    pub input_formats: Vec<String>,
    /// The same of outputs.
    pub output_formats: Vec<String>,
    /// What runs it, where not the GPU.
    pub dla: Option<Dla>,
}

/// What the engine is built with, of this machine.
pub struct Tools<'a> {
    /// `trtexec`.
    pub program: &'a Path,
    /// A folder that it may write to.
    pub scratch: &'a Path,
    /// What was measured by an engine before.
    pub timing: Option<PathBuf>,
    /// Why its version does not take an argument, if so.
    pub refuses: &'a dyn Fn(&str) -> Option<String>,
}

/// Builds an engine in `out_dir` from the graphs in `onnx_dir`; gives the files of its plans.  `progress` hears what is
/// being done, and every line of the program.
///
/// # Errors
/// When a graph cannot be read, sizes or settings do not go with it, the program fails, or what it left counts for nothing.
pub fn build(
    onnx_dir: &Path,
    settings: &Settings,
    options: &Options,
    tools: &Tools<'_>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<PathBuf>, TensorRtError> {
    let sources = shaped(onnx_dir, settings)?;
    for (source, shapes) in &sources {
        check(&source.model, options)?;
        warnings(&source.model, shapes, options).iter().for_each(|warning| progress(warning));
    }
    let timing = out_dir.join(TIMING_FILE);
    if let Some(before) = &tools.timing {
        // A file of its own: what is sealed may be read alone, and so may a copy of it.
        let written = fs::read(before).and_then(|bytes| fs::write(&timing, bytes));
        written.map_err(write_error(out_dir))?;
    }
    let (mut plans, mut version) = (Vec::new(), None);
    for (source, shapes) in &sources {
        let path = out_dir.join(&source.plan);
        let request = request(source, shapes, settings, options, [&path, &timing]);
        let report = run_one(&request, tools, progress)?;
        let bytes = fs::metadata(&path).map(|meta| meta.len()).ok();
        if let Some(fault) = report.fault(bytes, settings.target.0, options.dla.is_some()) {
            return Err(fault.into());
        }
        version = report.version.clone();
        plans.push(plan(source, shapes, bytes.unwrap_or_default(), &report));
    }
    let files = plans.iter().map(|plan| out_dir.join(&plan.file)).collect();
    let made = Made::new(version, settings, options, timing.exists());
    EngineFile::new(KIND, settings, made, plans).write(out_dir)?;
    Ok(files)
}

fn request<'a>(
    source: &'a Source,
    shapes: &'a BTreeMap<String, Shapes>,
    settings: &Settings,
    options: &'a Options,
    [plan, timing]: [&'a Path; 2],
) -> Request<'a> {
    Request {
        onnx: &source.path,
        plan,
        timing,
        shapes,
        precision: options.precision,
        workspace_bytes: settings.workspace_bytes,
        level: settings.level,
        aux_streams: options.aux_streams,
        tactic_sources: &options.tactic_sources,
        input_formats: &options.input_formats,
        output_formats: &options.output_formats,
        dla: options.dla,
    }
}

fn run_one(
    request: &Request<'_>,
    tools: &Tools<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, TensorRtError> {
    let unfit = |name: String| {
        TensorRtError::Unfit(format!(
            "trtexec's arguments cannot hold {name:?}: give it a name without quotes, commas and stars"
        ))
    };
    let arguments = request.arguments().map_err(unfit)?;
    if let Some(why) = arguments.iter().find_map(|argument| (tools.refuses)(argument)) {
        return Err(TensorRtError::Flag(why));
    }
    progress(&format!("{} {}", tools.program.display(), arguments.join(" ")));
    let ended = run(tools.program, &arguments, tools.scratch, progress);
    ended.map_err(|source| TensorRtError::Start { program: tools.program.to_owned(), source })
}

/// What would be built and be worth nothing.
fn check(model: &Model, options: &Options) -> Result<(), TensorRtError> {
    let is_scaled = |op: &str| ["QuantizeLinear", "DequantizeLinear"].contains(&op);
    let has_scales = model.graph.nodes.iter().any(|node| is_scaled(&node.op));
    if options.precision == Precision::Int8 && !has_scales {
        let why = "\"precision\" is int8, and the graph has no QuantizeLinear: trtexec would make up scales, and the engine would \
                   answer nonsense; quantise the graph, or build it as f16";
        return Err(TensorRtError::Unfit(why.to_owned()));
    }
    let count = |field: &str, given: usize, has: usize| {
        (given > 1 && given != has).then(|| {
            TensorRtError::Unfit(format!(
                "\"{field}\" has {given} formats, and the graph {has}: write one for all, or one for each"
            ))
        })
    };
    let of_inputs = || count("input-formats", options.input_formats.len(), inputs(model).count());
    let of_outputs =
        || count("output-formats", options.output_formats.len(), model.graph.outputs.len());
    of_inputs().or_else(of_outputs).map_or(Ok(()), Err)
}

/// What the builder will not say.
fn warnings(model: &Model, shapes: &BTreeMap<String, Shapes>, options: &Options) -> Option<String> {
    options.dla?;
    let batch = |input: &ValueInfo| match (shapes.get(&input.name), input.dims.as_deref()) {
        (Some(shapes), _) => shapes.opt.first().copied(),
        (None, Some([Dim::Fixed(batch), ..])) => Some(*batch as i64),
        _ => None,
    };
    let least = inputs(model).filter_map(batch).min().filter(|&batch| batch < DLA_BATCH_MIN)?;
    Some(format!(
        "warning: the accelerator is fast from {DLA_BATCH_MIN} pictures at once on, and this is for {least}"
    ))
}

/// The plan of a graph, by what the graph says of its inputs and outputs.
fn plan(
    source: &Source,
    shapes: &BTreeMap<String, Shapes>,
    bytes: u64,
    report: &Report,
) -> PlanFile {
    let port = |value: &ValueInfo| {
        let dims = value.dims.iter().flatten();
        let sizes = dims.map(|dim| match dim {
            Dim::Fixed(size) => *size as i64,
            Dim::Symbol(_) | Dim::Unknown => -1,
        });
        Port::new(&value.name, value.dtype, sizes.collect(), shapes.get(&value.name))
    };
    // It lists them where some may run elsewhere.
    let layers = report.layers.iter().sum::<usize>();
    PlanFile {
        file: source.plan.clone(),
        bytes,
        grid: source.grid.map(|grid| [grid.height, grid.width]),
        layers: (layers > 0).then_some(layers as i64),
        inputs: inputs(&source.model).map(port).collect(),
        outputs: source.model.graph.outputs.iter().map(port).collect(),
    }
}

/// What built an engine, and how.
#[derive(Serialize)]
struct Made {
    /// The version that built it, which must run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensorrt: Option<String>,
    precision: &'static str,
    #[serde(rename = "workspace-bytes", skip_serializing_if = "Option::is_none")]
    workspace_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
    #[serde(rename = "aux-streams", skip_serializing_if = "Option::is_none")]
    aux_streams: Option<u32>,
    #[serde(rename = "tactic-sources", skip_serializing_if = "Vec::is_empty")]
    tactic_sources: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dla: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<&'static str>,
}

impl Made {
    fn new(
        version: Option<String>,
        settings: &Settings,
        options: &Options,
        has_timing: bool,
    ) -> Self {
        Self {
            tensorrt: version,
            precision: match options.precision {
                Precision::F32 => "f32",
                Precision::F16 => "f16",
                Precision::Bf16 => "bf16",
                Precision::Int8 => "int8",
                Precision::StronglyTyped => "strongly-typed",
            },
            workspace_bytes: settings.workspace_bytes,
            level: settings.level,
            aux_streams: options.aux_streams,
            tactic_sources: options.tactic_sources.clone(),
            dla: options.dla.map(|dla| dla.core),
            timing: has_timing.then_some(TIMING_FILE),
        }
    }
}
