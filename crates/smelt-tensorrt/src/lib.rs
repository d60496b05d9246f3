//! Asks NVIDIA's TensorRT: whether its parser takes a graph, and for a plan of one.
//!
//! The library is what this machine has; nothing of the vendor's is linked or needed to build smelt.  A small program in
//! C++ (`loader/`) loads it, compiled where it runs by the machine's own compiler.  It is a child that speaks JSON lines,
//! so that a crash, a hang or an end for want of memory is the child's alone.  Where the vendor's own program is, `trtexec`,
//! that is asked instead.  Knows nothing of pipelines, stores or what an engine's directory holds.

mod calibration_cache;
mod event;
mod library;
mod loader;
mod session;
pub mod trtexec;

pub use calibration_cache::{CALIBRATION_FILE, CacheError, CalibrationCache};
pub use event::{Log, LogSeverity, MemoryAsked, Refusal, Tensor};
pub use library::{Libraries, LibraryError, VARIABLE, find, version};
pub use loader::{COMPILER_CURE, CompileError, Loader, compiler};
pub use session::{
    BuildRequest, Built, Failure, Network, ParserAnswer, Session, SessionError, Shapes, Step,
};
