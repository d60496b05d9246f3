//! By TensorRT for RTX, whose libraries are loaded by a child and need no GPU.
//!
//! A plan counts as soon as it is as long as the builder said.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;
use smelt_tensorrt::{
    BuildRequest, Built, Failure, Libraries, Loader, Refusal, Session, Step, Tensor,
};

use super::{EngineFile, PlanFile, PlanSettings, Port, TensorRtError, shaped, write_error};

/// What `engine.json` calls such engines.
pub const KIND: &str = "tensorrt-rtx";
/// Refusals that a message names; the others follow from the first most often.
const NAMED_MAX: usize = 3;

/// What the engine is built with, of this machine.
pub struct Tools<'a> {
    /// TensorRT.
    pub libraries: &'a Libraries,
    /// Its version.
    pub version: String,
    /// Where the program that loads it is compiled.
    pub scratch: &'a Path,
    /// The folders of compilers, as in `PATH`.
    pub path: &'a std::ffi::OsStr,
}

/// Builds an engine in `out_dir` from the graphs in `onnx_dir`; gives the files of its plans.  `progress` hears what is
/// being done.
///
/// # Errors
/// When a library or compiler is not here, a graph is refused, sizes are missing, the builder fails, or writing does.
pub fn build(
    onnx_dir: &Path,
    settings: &PlanSettings,
    tools: &Tools<'_>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<PathBuf>, TensorRtError> {
    let sources = shaped(onnx_dir, settings)?;
    progress("compiling the program that loads TensorRT");
    let loader = Loader::compile(tools.scratch, tools.path)?;
    let mut plans = Vec::new();
    for source in sources {
        let path = out_dir.join(&source.plan);
        let request = BuildRequest {
            onnx: &source.path,
            plan: &path,
            target: Some(settings.target.0),
            workspace_bytes: settings.workspace_bytes,
            level: settings.level,
            memory_bytes: None,
            shapes: source.shapes,
        };
        // Each in a process of its own: what one has built before shows in the bytes of its next plan.
        let mut session = Session::open(&loader, tools.libraries)?;
        let built = build_one(&mut session, &request, progress)?;
        let found = fs::metadata(&path).map_err(write_error(out_dir))?.len();
        if found != built.bytes {
            return Err(TensorRtError::Short { path, found, given: built.bytes });
        }
        let port = |tensor: &Tensor| {
            let shapes = request.shapes.get(&tensor.name);
            Port::new(&tensor.name, tensor.dtype_word(), tensor.sizes.clone(), shapes)
        };
        plans.push(PlanFile {
            file: source.plan.clone(),
            bytes: built.bytes,
            grid: source.grid.map(|grid| [grid.height, grid.width]),
            layers: Some(built.network.layers),
            inputs: built.network.inputs.iter().map(port).collect(),
            outputs: built.network.outputs.iter().map(port).collect(),
        });
    }
    let files = plans.iter().map(|plan| out_dir.join(&plan.file)).collect();
    let made = Made {
        version: tools.version.clone(),
        workspace_bytes: settings.workspace_bytes,
        level: settings.level,
    };
    EngineFile::new(KIND, settings, made, plans).write(out_dir)?;
    Ok(files)
}

/// What built an engine, and how.
#[derive(Serialize)]
struct Made {
    /// The version that built it, which must run it.
    #[serde(rename = "tensorrt-rtx")]
    version: String,
    #[serde(rename = "workspace-bytes", skip_serializing_if = "Option::is_none")]
    workspace_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
}

fn build_one(
    session: &mut Session,
    request: &BuildRequest<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Built, TensorRtError> {
    progress(&format!("parsing {}", request.onnx.display()));
    let mut tell = |step: Option<Step<'_>>| {
        if let Some(Step { phase, done, all }) = step {
            // A share of what nobody counted is none.
            let share = if all > 0 { format!("[{done}/{all}] ") } else { String::new() };
            progress(&format!("{share}{phase}"));
        }
        ControlFlow::Continue(())
    };
    let built = session.build(request, &mut tell)?;
    let built = built.map_err(|failure| error_of(failure, request, progress))?;
    built.logs.iter().for_each(|log| progress(&format!("TensorRT warns: {}", log.text)));
    Ok(built)
}

/// Errors go to the log whole, since what is known of failures looks there.
fn error_of(
    failure: Failure,
    request: &BuildRequest<'_>,
    progress: &mut dyn FnMut(&str),
) -> TensorRtError {
    match failure {
        Failure::Refused(refusals) => {
            TensorRtError::Refused { path: request.onnx.to_owned(), what: named(&refusals) }
        }
        Failure::Setting(why) => TensorRtError::Setting(why),
        Failure::Builder { why, errors, memory } => {
            errors.iter().for_each(|error| progress(&format!("TensorRT says: {error}")));
            let first = errors.into_iter().next().map_or(why, |first| first);
            let refused = match memory.refused_largest {
                0 => String::new(),
                bytes => format!("; a request for {bytes} bytes of the GPU's memory was refused"),
            };
            TensorRtError::Builder(first + &refused)
        }
        Failure::Write(why) => TensorRtError::Write {
            dir: request.plan.parent().unwrap_or(request.plan).to_owned(),
            source: io::Error::other(why),
        },
        Failure::Cancelled => TensorRtError::Builder("it was told to end".to_owned()),
    }
}

/// The first refusals, and how many more there are.
fn named(refusals: &[Refusal]) -> String {
    let named: Vec<String> = refusals.iter().take(NAMED_MAX).map(Refusal::to_string).collect();
    let more = match refusals.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    if named.is_empty() { "it does not say why".to_owned() } else { named.join("; ") + &more }
}
