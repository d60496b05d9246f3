//! Declares the flags of `smelt bundle` and `smelt unbundle`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct BundleFlags {
    /// Pipelines, single stages as PIPELINE#STAGE, or deployments by the names that chat takes
    #[arg(required = true, value_name = "PIPELINE|DEPLOYMENT")]
    pub(crate) targets: Vec<PathBuf>,
    /// The file to write; half of one is gone on with
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Take all that is built of a pipeline, and not its deployments alone
    #[arg(long)]
    pub(crate) all: bool,
    /// Override a param of the pipelines
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UnbundleFlags {
    /// A file that smelt bundle wrote
    pub(crate) bundle: PathBuf,
    /// Put the outputs into this directory, where they run without a store
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Only say what is in it
    #[arg(long, conflicts_with = "to")]
    pub(crate) list: bool,
    /// Print what is in it, or what was unpacked, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
