//! Answers for the commands that build, in a smelt that only serves.

use crate::exit::Failed;
#[cfg(not(feature = "build"))]
use crate::{exit::Exit, flags::ModelCommand, flags::PipelineCommand};

#[cfg(not(feature = "build"))]
pub(crate) fn pipeline(command: &PipelineCommand) -> Result<Exit, Failed> {
    Err(refused(command.name()))
}

#[cfg(not(feature = "build"))]
pub(crate) fn model(command: &ModelCommand) -> Result<Exit, Failed> {
    Err(refused(command.name()))
}

/// Why a command is not here, and what to do.
pub(crate) fn refused(name: &str) -> Failed {
    Failed::usage(format!(
        "this smelt only serves and has no `{name}`; take one that builds, as cargo makes it without --no-default-features"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn what_is_not_here_is_refused_as_a_wrong_command_line() {
        let failed = refused("run");
        assert_eq!(failed.exit, Exit::Usage);
        let message = failed.to_string();
        assert!(message.contains("`run`") && !message.contains('\n'), "{message}");
    }
}
