//! `engine-build` by TensorRT for RTX: finds what it needs, builds, and looks at every plan.

use std::env;

use smelt_engine_build::tensorrt::{Options, TensorRtError, Tools, build};
use smelt_exec::file_fault;
use smelt_plan::kind::engine_build::{EngineBuild, SizeRange};
use smelt_plan::validity::{FileFormat, Validity};
use smelt_tensorrt::{CompileError, SessionError, find, version};

use super::request::{Request, say};
use crate::exit::{Exit, Failed};

/// Builds an engine; `target` is the GPU's compute capability.
pub(super) fn run(request: &Request, params: &EngineBuild, target: u32) -> Result<(), Failed> {
    if request.optional_input("tactics").is_some() {
        let why = "\"tactics\" are for backend = \"native\"; leave them out";
        return Err(Failed::new(Exit::BadPipeline, why));
    }
    let options = options(params, target)?;
    let libraries = find(&|name| env::var_os(name)).map_err(|error| failed(error.into()))?;
    let version = version(&libraries.core).ok().flatten();
    let tools = Tools {
        libraries: &libraries,
        version: version.unwrap_or_else(|| "unknown".to_owned()),
        scratch: &env::temp_dir(),
        path: &env::var_os("PATH").unwrap_or_default(),
    };
    say(&format!("TensorRT for RTX {} of {}", tools.version, libraries.core.display()));
    let plans = build(request.input("onnx")?, &options, &tools, &request.out, &mut say);
    let plan = Validity { form: FileFormat::Plan, bytes_min: 1 };
    for path in plans.map_err(failed)? {
        if let Some(fault) = file_fault(&path, &plan) {
            let name = path.file_name().unwrap_or_default().display();
            return Err(Failed::invalid(format_args!("{name}: {fault}")));
        }
    }
    Ok(())
}

fn options(params: &EngineBuild, target: u32) -> Result<Options, Failed> {
    let range = |(name, text): (&String, &String)| {
        let SizeRange { min, opt, max } = SizeRange::parse(text).map_err(Failed::usage)?;
        Ok((name.clone(), [min, opt, max]))
    };
    Ok(Options {
        target: (target, params.target.word().to_owned()),
        sizes: params.sizes.iter().map(range).collect::<Result<_, Failed>>()?,
        workspace_bytes: params.workspace,
        level: params.level,
    })
}

fn failed(error: TensorRtError) -> Failed {
    let exit = match &error {
        TensorRtError::Library(_)
        | TensorRtError::Compile(CompileError::NoCompiler | CompileError::Refused { .. })
        | TensorRtError::Session(SessionError::Library { .. })
        | TensorRtError::Setting(_) => Exit::DoesNotFit,
        TensorRtError::Read(_)
        | TensorRtError::Grids(_)
        | TensorRtError::Check { .. }
        | TensorRtError::Refused { .. } => Exit::BadModel,
        TensorRtError::Sizes(_) => Exit::BadPipeline,
        TensorRtError::Short { .. } => return Failed::invalid(error),
        TensorRtError::Compile(CompileError::Io { .. })
        | TensorRtError::Session(_)
        | TensorRtError::Builder(_)
        | TensorRtError::Write { .. } => Exit::StageFailed,
    };
    Failed::new(exit, error)
}
