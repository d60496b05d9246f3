//! The flags of the commands that show something: `runs`, `ls` and `rm`, `report`, `graph`, `completions`, `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::PipelineFlags;

/// As many as fit a screen.
const RUNS_SHOWN: usize = 20;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RunsFlags {
    #[command(subcommand)]
    pub(crate) command: Option<RunsCommand>,
    /// Show the last N
    #[arg(long, value_name = "N", default_value_t = RUNS_SHOWN)]
    pub(crate) last: usize,
    /// Show all
    #[arg(long, conflicts_with = "last")]
    pub(crate) all: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RunsCommand {
    /// Go on with these runs no more, and let collections take what they made
    Forget(ForgetFlags),
}

#[derive(Debug, Args)]
pub(crate) struct ForgetFlags {
    /// The runs, or parts of their names
    #[arg(required_unless_present = "all", value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Every run that failed or did not end
    #[arg(long, conflicts_with = "runs")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListFlags {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RmFlags {
    /// Names that `smelt ls` lists: of a deployment, or of its model where no other has it
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeFlags {
    /// Only what a boot ended, and nothing whose attempts are used up: for a unit or crontab
    #[arg(long)]
    pub(crate) after_boot: bool,
    /// List them, and go on with none
    #[arg(long)]
    pub(crate) list: bool,
    /// With --list: print one JSON document
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportFlags {
    /// The run, as `smelt runs` names it, or a part of its name that no other has; the last run when
    /// not given
    pub(crate) run: Option<String>,
    /// Compare, over all runs, retries with each rung of their ladder and without it: success rates by
    /// stage and class
    #[arg(long, conflicts_with_all = ["run", "html", "trace"])]
    pub(crate) arms: bool,
    /// Print what `smelt run --json` printed
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one self-contained page: timeline, curves of memory, table, failures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write Chrome trace events, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GraphFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// What to draw it as
    #[arg(long, value_enum, default_value = "dot")]
    pub(crate) format: GraphFormat,
}

/// The languages of graphs.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum GraphFormat {
    /// For Graphviz
    Dot,
    /// For Markdown
    Mermaid,
    /// A picture
    Svg,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigFlags {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsFlags {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManFlags {
    /// The command the page is of, as in `smelt man onnx check`; smelt itself when not given
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
