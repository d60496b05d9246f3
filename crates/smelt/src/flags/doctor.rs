//! Declares the flags of `smelt doctor`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DoctorFlags {
    /// Examine a captured tree of another device's files (its /proc, /sys, /etc, …) instead
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Offer each cure that can be applied here, and run those that are agreed to
    #[arg(long, conflicts_with_all = ["root", "json"])]
    pub(crate) fix: bool,
}
