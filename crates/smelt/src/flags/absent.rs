//! The names of the commands that build, in a smelt that only serves: it knows them, whatever follows, to say that it lacks
//! them.

use std::ffi::OsString;

use clap::Args;

/// Whatever somebody says to a command that is not here.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Whatever {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum PipelineCommand {
    #[command(hide = true)]
    Fit(Whatever),
    #[command(hide = true)]
    Init(Whatever),
    #[command(hide = true)]
    Build(Whatever),
    #[command(hide = true)]
    Run(Whatever),
    #[command(hide = true)]
    Resume(Whatever),
    #[command(hide = true)]
    Plan(Whatever),
    #[command(hide = true)]
    Worker(Whatever),
}

impl PipelineCommand {
    /// As one types it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fit(_) => "fit",
            Self::Init(_) => "init",
            Self::Build(_) => "build",
            Self::Run(_) => "run",
            Self::Resume(_) => "resume",
            Self::Plan(_) => "plan",
            Self::Worker(_) => "worker",
        }
    }
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ModelCommand {
    #[command(hide = true)]
    Export(Whatever),
    #[command(hide = true)]
    Calibrate(Whatever),
    #[command(hide = true)]
    Quantize(Whatever),
    #[command(hide = true)]
    Onnx(Whatever),
}

impl ModelCommand {
    /// As one types it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Export(_) => "export",
            Self::Calibrate(_) => "calibrate",
            Self::Quantize(_) => "quantize",
            Self::Onnx(_) => "onnx",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    /// A smelt that only serves, as far as it is about what it lacks.
    #[derive(Debug, Parser)]
    struct Lean {
        #[command(subcommand)]
        command: Lacking,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Lacking {
        #[command(flatten)]
        Pipeline(PipelineCommand),
        #[command(flatten)]
        Model(ModelCommand),
    }

    #[test]
    fn what_builds_is_known_by_its_name_whatever_follows_and_listed_nowhere() {
        let lean = Lean::command();
        let names: Vec<&str> = lean.get_subcommands().map(clap::Command::get_name).collect();
        let pipelines = ["fit", "init", "build", "run", "resume", "plan", "worker"];
        let models = ["export", "calibrate", "quantize", "onnx"];
        assert_eq!(names, [&pipelines[..], &models].concat());
        assert!(lean.get_subcommands().all(clap::Command::is_hide_set));
        for name in names {
            for arguments in [&[][..], &["--help"], &["a.toml", "--jobs", "2", "-x", "--", "y"]] {
                let line = [&["smelt", name], arguments].concat();
                let found = match Lean::try_parse_from(&line).unwrap().command {
                    Lacking::Pipeline(command) => command.name(),
                    Lacking::Model(command) => command.name(),
                };
                assert_eq!(found, name, "{line:?}");
            }
        }
    }

    #[test]
    fn it_lacks_what_the_other_smelt_has() {
        let whole = crate::flags::command();
        for command in Lean::command().get_subcommands() {
            let name = command.get_name();
            assert!(whole.get_subcommands().any(|one| one.get_name() == name), "{name}");
        }
    }
}
