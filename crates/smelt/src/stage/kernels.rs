//! Compiles kernels for stages that build engines for GPUs.

use smelt_cuda::CudaTarget;
use smelt_cuda::nvrtc::{self, CompileError, Source};

use crate::exit::{Exit, Failed};

/// The code of the source `text` for a card; messages call it `name`.
pub(super) fn compiled(name: &str, text: String, target: CudaTarget) -> Result<Vec<u8>, Failed> {
    let text = Source { name: name.to_owned(), text, defines: Vec::new() };
    Ok(nvrtc::compile(&text, target, None).map_err(not_compiled)?.image)
}

/// A compiler that is not here can be installed; kernels that it refuses are a fault of smelt's.
fn not_compiled(error: CompileError) -> Failed {
    let exit = match error {
        CompileError::NoCompiler(_) => Exit::DoesNotFit,
        CompileError::Refused { .. } | CompileError::Slow { .. } | CompileError::Odd { .. } => {
            Exit::StageFailed
        }
    };
    Failed::new(exit, error)
}

/// The refusal of tactics for a graph that no processor runs.
pub(super) fn no_tactics() -> Failed {
    let why = "\"tactics\" of GPUs are those of decoders; leave them out of the engine of a graph";
    Failed::new(Exit::BadPipeline, why)
}
