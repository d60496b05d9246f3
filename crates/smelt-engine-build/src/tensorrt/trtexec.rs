//! By `trtexec`, TensorRT's own program, on the GPU that the engine is for.
//!
//! A plan counts if the program says that it passed, named the GPU that was asked for, and left as many bytes as it said.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use smelt_onnx::{Dim, Model, ValueInfo};
use smelt_tensorrt::trtexec::{Dla, Precision, TrtexecReport, TrtexecRequest, run};
use smelt_tensorrt::{CALIBRATION_FILE, CalibrationCache};

use super::{
    EngineFile, PlanFile, PlanSettings, Port, Source, TensorRtError, inputs, shaped, write_error,
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
    /// Its version, where that is known.
    pub version: Option<&'a str>,
    /// What was measured by an engine before.
    pub timing: Option<PathBuf>,
    /// The scales of a graph that has none of its own.
    pub calibration: Option<CalibrationCache>,
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
    settings: &PlanSettings,
    options: &Options,
    tools: &Tools<'_>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<PathBuf>, TensorRtError> {
    let sources = shaped(onnx_dir, settings)?;
    for source in &sources {
        check(&source.model, options, tools.calibration.as_ref())?;
        warnings(source, options).iter().for_each(|warning| progress(warning));
    }
    let calibration = tools.calibration.as_ref();
    let calibration =
        calibration.map(|cache| calibrated(cache, &sources, tools, progress)).transpose()?;
    let timing = out_dir.join(TIMING_FILE);
    if let Some(before) = &tools.timing {
        // A file of its own: what is sealed may be read alone, and so may a copy of it.
        let written = fs::read(before).and_then(|bytes| fs::write(&timing, bytes));
        written.map_err(write_error(out_dir))?;
    }
    let (mut plans, mut last) = (Vec::new(), TrtexecReport::default());
    for source in &sources {
        let path = out_dir.join(&source.plan);
        let request =
            request(source, settings, options, ([&path, &timing], calibration.as_deref()));
        let report = run_one(&request, tools, progress)?;
        let bytes = fs::metadata(&path).map(|meta| meta.len()).ok();
        if let Some(fault) = report.fault(bytes, settings.target.0, options.dla.is_some()) {
            return Err(fault.into());
        }
        plans.push(plan(source, options, bytes.unwrap_or_default(), &report));
        last = report;
    }
    let files = plans.iter().map(|plan| out_dir.join(&plan.file)).collect();
    let measured = (timing.exists(), tools.calibration.as_ref());
    let made = Made::new(&last, settings, options, measured);
    EngineFile::new(KIND, settings, made, plans).write(out_dir)?;
    Ok(files)
}

fn request<'a>(
    source: &'a Source,
    settings: &PlanSettings,
    options: &'a Options,
    ([plan, timing], calibration): ([&'a Path; 2], Option<&'a Path>),
) -> TrtexecRequest<'a> {
    TrtexecRequest {
        onnx: &source.path,
        plan,
        timing,
        shapes: &source.shapes,
        precision: options.precision,
        calibration,
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
    request: &TrtexecRequest<'_>,
    tools: &Tools<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<TrtexecReport, TensorRtError> {
    let arguments = request.arguments().map_err(TensorRtError::Unfit)?;
    if let Some(why) = arguments.iter().find_map(|argument| (tools.refuses)(argument)) {
        return Err(TensorRtError::Flag(why));
    }
    progress(&format!("{} {}", tools.program.display(), arguments.join(" ")));
    let ended = run(tools.program, &arguments, tools.scratch, progress);
    // TensorRT holds its lock for the file of measurements and leaves it there (common/fileLock.cpp).
    let lock = format!("{}.lock", request.timing.display());
    let _ = fs::remove_file(lock);
    ended.map_err(|source| TensorRtError::Start { program: tools.program.to_owned(), source })
}

/// The scales in a file for the version that is here; says how many of them the graphs know.
fn calibrated(
    cache: &CalibrationCache,
    sources: &[Source],
    tools: &Tools<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, TensorRtError> {
    for source in sources {
        let graph = &source.model.graph;
        let given = graph.nodes.iter().flat_map(|node| &node.outputs);
        let values = given.chain(graph.inputs.iter().map(|input| &input.name));
        let known = values.filter(|name| cache.has(name)).count();
        if known == 0 {
            let why = format!(
                "\"calibration\" has scales for no value of {}: calibrate this graph",
                source.path.display()
            );
            return Err(TensorRtError::Unfit(why));
        }
        progress(&format!("{known} values have scales, of {} that were calibrated", cache.len()));
    }
    let path = tools.scratch.join(CALIBRATION_FILE);
    fs::write(&path, cache.text(tools.version)).map_err(write_error(tools.scratch))?;
    Ok(path)
}

/// What would be built and be worth nothing.
fn check(
    model: &Model,
    options: &Options,
    calibration: Option<&CalibrationCache>,
) -> Result<(), TensorRtError> {
    let is_scaled = |op: &str| ["QuantizeLinear", "DequantizeLinear"].contains(&op);
    let has_scales = model.graph.nodes.iter().any(|node| is_scaled(&node.op));
    let why = match (options.precision, has_scales, calibration) {
        (Precision::Int8, false, None) => Some(
            "\"precision\" is int8, and the graph has no QuantizeLinear: trtexec would make up scales, and the engine would \
             answer nonsense; name a \"calibration\", quantise the graph (rule insert-qdq), or build it as f16",
        ),
        (Precision::Int8, true, Some(_)) => Some(
            "the graph has QuantizeLinear, whose scales count alone (TensorRT asks no calibrator then): leave out \"calibration\"",
        ),
        _ => None,
    };
    if let Some(why) = why {
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
fn warnings(source: &Source, options: &Options) -> Option<String> {
    options.dla?;
    let batch = |input: &ValueInfo| match (source.shapes.get(&input.name), input.dims.as_deref()) {
        (Some(shapes), _) => shapes.opt.first().copied(),
        (None, Some([Dim::Fixed(batch), ..])) => Some(*batch as i64),
        _ => None,
    };
    let least =
        inputs(&source.model).filter_map(batch).min().filter(|&batch| batch < DLA_BATCH_MIN)?;
    Some(format!(
        "warning: the accelerator is fast from {DLA_BATCH_MIN} pictures at once on, and this is for {least}"
    ))
}

/// The plan of a graph, by what the graph says of its inputs and outputs.
fn plan(source: &Source, options: &Options, bytes: u64, report: &TrtexecReport) -> PlanFile {
    let port = |value: &ValueInfo, format: Option<&str>| {
        let dims = value.dims.iter().flatten();
        let sizes = dims.map(|dim| match dim {
            Dim::Fixed(size) => *size as i64,
            Dim::Symbol(_) | Dim::Unknown => -1,
        });
        let dtype =
            format.and_then(dtype_of).map_or_else(|| value.dtype.to_string(), str::to_owned);
        Port::new(&value.name, dtype, sizes.collect(), source.shapes.get(&value.name))
    };
    let ports = |values: Vec<&ValueInfo>, formats: &[String]| -> Vec<Port> {
        // One is for all of them.
        let format = |at: usize| formats.get(at).or(formats.first()).map(String::as_str);
        values.into_iter().enumerate().map(|(at, value)| port(value, format(at))).collect()
    };
    // It lists them where some may run elsewhere.
    let layers = report.layers.iter().sum::<usize>();
    PlanFile {
        file: source.plan.clone(),
        bytes,
        grid: source.grid.map(|grid| [grid.height, grid.width]),
        layers: (layers > 0).then_some(layers as i64),
        inputs: ports(inputs(&source.model).collect(), &options.input_formats),
        outputs: ports(source.model.graph.outputs.iter().collect(), &options.output_formats),
    }
}

/// The type of `fp16:chw`, by its word here; of others the graph's own counts.
fn dtype_of(format: &str) -> Option<&'static str> {
    const WORDS: [(&str, &str); 7] = [
        ("fp32", "f32"),
        ("fp16", "f16"),
        ("bf16", "bf16"),
        ("int8", "i8"),
        ("int32", "i32"),
        ("int64", "i64"),
        ("uint8", "u8"),
    ];
    let kind = format.split(':').next()?;
    WORDS.iter().find(|(word, _)| *word == kind).map(|(_, dtype)| *dtype)
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
    #[serde(rename = "input-formats", skip_serializing_if = "Vec::is_empty")]
    input_formats: Vec<String>,
    #[serde(rename = "output-formats", skip_serializing_if = "Vec::is_empty")]
    output_formats: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dla: Option<u32>,
    #[serde(rename = "gpu-fallback", skip_serializing_if = "Option::is_none")]
    gpu_fallback: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<&'static str>,
    /// How many values had scales of a calibration.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated: Option<usize>,
}

impl Made {
    fn new(
        report: &TrtexecReport,
        settings: &PlanSettings,
        options: &Options,
        (has_timing, calibration): (bool, Option<&CalibrationCache>),
    ) -> Self {
        // From 11 on every network has the types of its graph.
        let is_typed = report.major().is_some_and(|major| major >= 11);
        Self {
            tensorrt: report.version.clone(),
            precision: match options.precision {
                _ if is_typed => "strongly-typed",
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
            input_formats: options.input_formats.clone(),
            output_formats: options.output_formats.clone(),
            dla: options.dla.map(|dla| dla.core),
            gpu_fallback: options.dla.map(|dla| dla.gpu_fallback),
            timing: has_timing.then_some(TIMING_FILE),
            calibrated: calibration.map(CalibrationCache::len),
        }
    }
}
