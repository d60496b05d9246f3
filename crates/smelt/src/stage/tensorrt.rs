//! `engine-build` by TensorRT: finds what it needs, builds, and looks at every plan.

use std::env;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, raise};
use smelt_cuda::Sm;
use smelt_engine_build::tensorrt::{PlanSettings, TensorRtError, rtx, trtexec};
use smelt_exec::file_fault;
use smelt_plan::kind;
use smelt_plan::kind::engine_build::{EngineBuild, GraphBackend, GraphPrecision, SizeRange};
use smelt_plan::plan::Stage;
use smelt_plan::validity::{FileFormat, Validity};
use smelt_tensorrt::trtexec::{Dla, Fault, Precision};
use smelt_tensorrt::{
    CALIBRATION_FILE, CalibrationCache, CompileError, SessionError, find, version,
};
use smelt_watch::Machine;

use super::request::{Request, say};
use crate::checkpoints::Checkpoints;
use crate::exit::{Exit, Failed};
use crate::tools::parts::{Parts, VendorTool};
use crate::{device, tools};

/// A line of some hundred bytes for each value of the largest graph.
const CALIBRATION_BYTES_MAX: u64 = 64 << 20;

/// Builds an engine; `target` is the GPU's compute capability.
pub(super) fn run(request: &Request, params: &EngineBuild, target: u32) -> Result<(), Failed> {
    if request.optional_input("tactics").is_some() {
        let why = "\"tactics\" are for backend = \"native\"; leave them out";
        return Err(Failed::new(Exit::BadPipeline, why));
    }
    let settings = settings(params, target)?;
    let plans = match params.backend {
        GraphBackend::TensorRt => by_program(request, params, settings)?,
        _ => by_libraries(request, &settings)?,
    };
    let plan = Validity { form: FileFormat::Plan, bytes_min: 1 };
    for path in plans {
        if let Some(fault) = file_fault(&path, &plan) {
            let name = path.file_name().unwrap_or_default().display();
            return Err(Failed::invalid(format_args!("{name}: {fault}")));
        }
    }
    Ok(())
}

fn by_libraries(request: &Request, settings: &PlanSettings) -> Result<Vec<PathBuf>, Failed> {
    let libraries = find(&|name| env::var_os(name)).map_err(|error| failed(error.into()))?;
    let version = version(&libraries.core).ok().flatten();
    let tools = rtx::Tools {
        libraries: &libraries,
        version: version.unwrap_or_else(|| "unknown".to_owned()),
        scratch: &env::temp_dir(),
        path: &env::var_os("PATH").unwrap_or_default(),
    };
    say(&format!("TensorRT for RTX {} of {}", tools.version, libraries.core.display()));
    rtx::build(request.input("onnx")?, settings, &tools, &request.out, &mut say).map_err(failed)
}

fn by_program(
    request: &Request,
    params: &EngineBuild,
    settings: PlanSettings,
) -> Result<Vec<PathBuf>, Failed> {
    let program = tools::builder()
        .ok_or_else(|| Failed::new(Exit::DoesNotFit, "trtexec is not here any more"))?;
    let version = version_of(&program);
    let here = device::seen();
    if let Some(Sm(sm)) = here.filter(|Sm(sm)| *sm != settings.target.0) {
        return Err(failed(Fault::OtherGpu(sm, settings.target.0).into()));
    }
    let timing = request.optional_input("timing").map(|dir| dir.join(trtexec::TIMING_FILE));
    if let Some(lacks) = timing.as_ref().filter(|file| !file.exists()) {
        let why = format!(
            "\"timing\": there is no {}; name an engine of backend = \"tensorrt\"",
            lacks.display()
        );
        return Err(Failed::new(Exit::BadPipeline, why));
    }
    let calibration = request.optional_input("calibration").map(calibration).transpose()?;
    let (options, scratch) = (options(params), env::temp_dir());
    let settings =
        PlanSettings { workspace_bytes: settings.workspace_bytes.or_else(workspace), ..settings };
    let refuses = |argument: &str| refused(argument, version.as_deref());
    let tools = trtexec::Tools {
        program: &program,
        scratch: &scratch,
        version: version.as_deref(),
        timing,
        calibration,
        refuses: &refuses,
    };
    trtexec::build(request.input("onnx")?, &settings, &options, &tools, &request.out, &mut say)
        .map_err(|error| {
            end_alike(&error);
            failed(error)
        })
}

/// Reads the scales of a graph: what a `calibrate` stage made, or TensorRT by another's hand.
fn calibration(dir: &Path) -> Result<CalibrationCache, Failed> {
    let path = dir.join(CALIBRATION_FILE);
    let cannot = |why: String| Failed::model(format!("{}: {why}", path.display()));
    let mut text = String::new();
    let file = File::open(&path).map_err(|error| cannot(error.to_string()))?;
    let read = file.take(CALIBRATION_BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(|error| cannot(error.to_string()))? as u64 > CALIBRATION_BYTES_MAX {
        return Err(cannot(format!("it has more than {CALIBRATION_BYTES_MAX} bytes")));
    }
    CalibrationCache::parse(&text).map_err(|error| cannot(error.to_string()))
}

/// Ends as the program was ended from outside, by SIGKILL or SIGTERM: whether that was for want of memory, the supervisor
/// knows better.
fn end_alike(error: &TensorRtError) {
    let TensorRtError::Fault(Fault::Killed(signal)) = error else { return };
    let signal = Signal::try_from(*signal).ok();
    if let Some(signal @ (Signal::SIGKILL | Signal::SIGTERM)) = signal {
        say(&error.to_string());
        let _ = raise(signal);
    }
}

/// Half of what is free, where the GPU has the machine's memory: by itself TensorRT takes all of it for kernels to try.
fn workspace() -> Option<u64> {
    const STEP: u64 = 64 << 20;
    let available = Machine::read(Path::new("/")).mem_available_bytes?;
    device::has_unified_memory().then(|| (available / 2 / STEP * STEP).max(STEP))
}

fn settings(params: &EngineBuild, target: u32) -> Result<PlanSettings, Failed> {
    let range = |(name, text): (&String, &String)| {
        let SizeRange { min, opt, max } = SizeRange::parse(text).map_err(Failed::usage)?;
        Ok((name.clone(), [min, opt, max]))
    };
    Ok(PlanSettings {
        target: (target, params.target.word().to_owned()),
        sizes: params.sizes.iter().map(range).collect::<Result<_, Failed>>()?,
        workspace_bytes: params.workspace,
        level: params.level,
    })
}

fn options(params: &EngineBuild) -> trtexec::Options {
    trtexec::Options {
        precision: precision(params.precision),
        aux_streams: params.aux_streams,
        tactic_sources: params.tactic_sources.clone(),
        input_formats: params.input_formats.clone(),
        output_formats: params.output_formats.clone(),
        dla: params.dla.map(|core| Dla { core, gpu_fallback: params.gpu_fallback }),
    }
}

fn precision(word: GraphPrecision) -> Precision {
    match word {
        GraphPrecision::F32 => Precision::F32,
        GraphPrecision::F16 => Precision::F16,
        GraphPrecision::Bf16 => Precision::Bf16,
        GraphPrecision::Int8 => Precision::Int8,
        GraphPrecision::StronglyTyped => Precision::StronglyTyped,
    }
}

/// Why a calibration that is named is of no use.
pub(super) fn no_calibration(params: &EngineBuild, is_given: bool) -> Option<&'static str> {
    let is_read =
        (params.backend, params.precision) == (GraphBackend::TensorRt, GraphPrecision::Int8);
    (is_given && !is_read).then_some(
        "\"calibration\" is of backend = \"tensorrt\" with precision = \"int8\"; other back ends take scales from the graph (rule insert-qdq)",
    )
}

/// Why the version that is here does not build this, by what the file says.
pub(super) fn refusal(_: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    let params: EngineBuild = kind::typed(&stage.params).ok()?;
    let is_calibrated = stage.inputs.iter().any(|input| input.field == "calibration");
    if let Some(why) = no_calibration(&params, is_calibrated) {
        return Some(why.to_owned());
    }
    let is_by_program = params.backend == GraphBackend::TensorRt;
    let program = is_by_program.then(tools::builder).flatten()?;
    let version = version_of(&program);
    let flags = ["--skipInference"].iter().chain(precision(params.precision).flags());
    flags.into_iter().find_map(|flag| refused(flag, version.as_deref()))
}

fn version_of(program: &Path) -> Option<String> {
    Parts::of(program, env::var("LD_LIBRARY_PATH").ok().as_deref()).version
}

/// Why a version of the program does not take an argument, if so.
fn refused(argument: &str, version: Option<&str>) -> Option<String> {
    let version = version?;
    let why = VendorTool::of(tools::BUILDER)?.refuses(argument, version)?;
    Some(format!("{} {version} {why}", tools::BUILDER))
}

fn failed(error: TensorRtError) -> Failed {
    let exit = match &error {
        TensorRtError::Fault(Fault::Killed(_) | Fault::Failed(..)) => Exit::StageFailed,
        TensorRtError::Fault(Fault::OtherGpu(..)) | TensorRtError::Flag(_) => Exit::DoesNotFit,
        TensorRtError::Fault(_) => return Failed::invalid(error),
        TensorRtError::Library(_)
        | TensorRtError::Compile(CompileError::NoCompiler | CompileError::Refused { .. })
        | TensorRtError::Session(SessionError::Library { .. })
        | TensorRtError::Setting(_) => Exit::DoesNotFit,
        TensorRtError::Read(_)
        | TensorRtError::Grids(_)
        | TensorRtError::Check { .. }
        | TensorRtError::Refused { .. } => Exit::BadModel,
        TensorRtError::Unfit(_) => Exit::BadPipeline,
        TensorRtError::Short { .. } => return Failed::invalid(error),
        TensorRtError::Compile(CompileError::Io { .. })
        | TensorRtError::Session(_)
        | TensorRtError::Builder(_)
        | TensorRtError::Start { .. }
        | TensorRtError::Write { .. } => Exit::StageFailed,
    };
    Failed::new(exit, error)
}
