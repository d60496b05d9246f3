//! Why a checkpoint and engines make no deployment, or why engines are not the checkpoint's.

use std::fmt;
use std::io;
use std::path::Path;

use smelt_backend::OpenError;
use smelt_runtime::deployment::DeploymentError;

/// What is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The checkpoint, or what lies beside it.
    Model,
    /// An engine: it does not hold what it must.
    Engine,
    /// The pipeline: it asks for what this model cannot do, or names what is of something else.
    Pipeline,
    /// A file that is given, which is not what it should be.
    Given,
    /// This device: what would run it is not here.
    Device,
    /// The disk.
    Disk,
}

/// What is at fault and why, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DeployError {
    /// What is at fault.
    pub blame: Blame,
    why: String,
}

impl DeployError {
    /// Something is at fault.
    pub fn new(blame: Blame, why: impl fmt::Display) -> Self {
        Self { blame, why: why.to_string() }
    }

    /// The checkpoint is at fault.
    pub fn model(why: impl fmt::Display) -> Self {
        Self::new(Blame::Model, why)
    }

    /// An engine is at fault.
    pub fn engine(why: impl fmt::Display) -> Self {
        Self::new(Blame::Engine, why)
    }

    /// The pipeline is at fault.
    pub fn pipeline(why: impl fmt::Display) -> Self {
        Self::new(Blame::Pipeline, why)
    }

    /// A file that is given is at fault.
    pub fn given(why: impl fmt::Display) -> Self {
        Self::new(Blame::Given, why)
    }

    /// A file cannot be read or written, which `verb` says.
    #[must_use]
    pub fn disk(verb: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(Blame::Disk, format!("cannot {verb} {}: {error}", path.display()))
    }

    /// The same with another name for `made`, a place that is gone when somebody reads it.
    #[must_use]
    pub fn renamed(self, made: &Path, own: &Path) -> Self {
        let [made, own] = [made, own].map(|path| path.display().to_string());
        Self { why: self.why.replace(&made, &own), ..self }
    }
}

impl From<DeploymentError> for DeployError {
    fn from(error: DeploymentError) -> Self {
        Self::model(error)
    }
}

impl From<OpenError> for DeployError {
    /// What runs elsewhere says nothing of the engine.
    fn from(error: OpenError) -> Self {
        use OpenError::{Library, NoEngine, OtherDevice};
        let is_of_device = matches!(error, OtherDevice { .. } | NoEngine { .. } | Library(_));
        Self::new(if is_of_device { Blame::Device } else { Blame::Engine }, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_card_is_no_fault_of_the_engine() {
        let blame = |error: OpenError| DeployError::from(error).blame;
        let other =
            |why: &str| OpenError::OtherDevice { path: "engine.json".into(), why: why.into() };
        assert_eq!(blame(other("it is for cuda-sm90, and no driver is here")), Blame::Device);
        assert_eq!(
            blame(OpenError::Library("libonnxruntime.so is not here".into())),
            Blame::Device
        );
        let worn = OpenError::Damaged { path: "weights.bin".into(), problem: "it was cut".into() };
        assert_eq!(blame(worn), Blame::Engine);
    }
}
