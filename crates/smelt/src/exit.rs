//! Says how smelt ended, as an exit code and one line.  Scripts depend on the table.

use std::fmt;
use std::process::ExitCode;

use smelt_backend::OpenError;
#[cfg(feature = "build")]
use smelt_deploy::{Blame, DeployError};
use smelt_exec::ExecError;
use smelt_exec::classify::INVALID_PREFIX;
use smelt_plan::PipelineError;
use smelt_plan::pipeline::ParseError;
use smelt_runtime::deployment::DeploymentError;
use smelt_store::StoreError;

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Ok = 0,
    /// A stage failed, what was asked for is not there, or what was examined is not sound.
    StageFailed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The pipeline file is wrong.
    BadPipeline = 3,
    /// A model or graph file is wrong.
    BadModel = 4,
    /// It does not fit this device.
    DoesNotFit = 5,
    /// The user stopped it.
    Interrupted = 6,
    /// Another run holds the store or a key.
    Held = 7,
    /// It could not be looked at, so nothing is known of it.
    NotSeen = 8,
    /// A bug in smelt.
    Bug = 70,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command ended without its answer: one line, and the code.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) exit: Exit,
    message: String,
}

impl Failed {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        // Whatever a library's error or a name in a file holds, the user gets one line of text.
        let message = message.to_string().replace('\n', "; ");
        let message = message.replace(char::is_control, "\u{FFFD}");
        Self { exit, message }
    }

    /// The same with more to say, where what was asked for is not there.
    pub(crate) fn or(self, more: &str) -> Self {
        match self.exit {
            Exit::StageFailed | Exit::BadPipeline => Self::new(self.exit, self.message + more),
            _ => self,
        }
    }

    /// The same with another name for `made`, a place that is gone when somebody reads it.
    pub(crate) fn renamed(self, made: impl fmt::Display, own: impl fmt::Display) -> Self {
        let message = self.message.replace(&made.to_string(), &own.to_string());
        Self { message, ..self }
    }

    /// The user asked to stop before anything was started.
    pub(crate) fn stopped() -> Self {
        Self::new(Exit::Interrupted, "stopped; what was sealed is kept")
    }

    pub(crate) fn model(message: impl fmt::Display) -> Self {
        Self::new(Exit::BadModel, message)
    }

    /// What was made does not hold what it must.
    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(Exit::StageFailed, format!("{INVALID_PREFIX}{message}"))
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<DeploymentError> for Failed {
    fn from(error: DeploymentError) -> Self {
        match error {
            DeploymentError::Engine(OpenError::Library(why)) => Self::new(Exit::DoesNotFit, why),
            DeploymentError::Engine(error @ OpenError::TooLong { .. }) => Self::usage(error),
            DeploymentError::Engine(
                error @ (OpenError::OtherDevice { .. } | OpenError::NoEngine { .. }),
            ) => Self::new(Exit::DoesNotFit, error),
            error => Self::model(error),
        }
    }
}

#[cfg(feature = "build")]
impl From<DeployError> for Failed {
    fn from(error: DeployError) -> Self {
        match error.blame {
            Blame::Model => Self::model(error),
            Blame::Engine => Self::invalid(error),
            Blame::Pipeline => Self::new(Exit::BadPipeline, error),
            Blame::Given => Self::usage(error),
            Blame::Device => Self::new(Exit::DoesNotFit, error),
            Blame::Disk => Self::new(Exit::StageFailed, error),
        }
    }
}

impl From<PipelineError> for Failed {
    fn from(error: PipelineError) -> Self {
        Self::new(Exit::BadPipeline, error)
    }
}

impl From<ParseError> for Failed {
    fn from(error: ParseError) -> Self {
        let exit = match error {
            ParseError::File(_) => Exit::BadPipeline,
            ParseError::Set(_) => Exit::Usage,
        };
        Self::new(exit, error)
    }
}

impl From<smelt_plan::plan::UnknownStage> for Failed {
    fn from(error: smelt_plan::plan::UnknownStage) -> Self {
        Self::usage(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        let exit = match &error {
            StoreError::Held { .. } => Exit::Held,
            error if error.is_stopped() => return Self::stopped(),
            _ => Exit::StageFailed,
        };
        Self::new(exit, error)
    }
}

impl From<ExecError> for Failed {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::Store(error) => error.into(),
            ExecError::Process(_) => Self::new(Exit::StageFailed, error),
        }
    }
}
