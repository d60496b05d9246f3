//! Declares the flags of `smelt doctor`.

use std::path::PathBuf;

#[cfg(feature = "build")]
use smelt_plan::Side;

#[cfg(feature = "build")]
use crate::flags::PipelineFlags;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DoctorFlags {
    /// Say of each stage of this pipeline what it needs, and whether that is here
    #[cfg(feature = "build")]
    pub(crate) pipeline: Option<PathBuf>,
    /// Override a param of the pipeline
    #[cfg(feature = "build")]
    #[arg(long = "set", value_name = "NAME=VALUE", requires = "pipeline")]
    pub(crate) sets: Vec<String>,
    /// Only the stages that this side, host or device, may build
    #[cfg(feature = "build")]
    #[arg(long, value_name = "SIDE", value_parser = super::side, requires = "pipeline")]
    pub(crate) on: Option<Side>,
    /// Examine a captured tree of another device's files (its /proc, /sys, /etc, …) instead
    #[arg(long, value_name = "DIR")]
    #[cfg_attr(feature = "build", arg(conflicts_with = "pipeline"))]
    pub(crate) root: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Offer each cure that can be applied here, and run those that are agreed to
    #[arg(long, conflicts_with_all = ["root", "json"])]
    #[cfg_attr(feature = "build", arg(conflicts_with = "pipeline"))]
    pub(crate) fix: bool,
}

#[cfg(feature = "build")]
impl DoctorFlags {
    /// The pipeline that is asked about.
    pub(crate) fn asked(&self) -> Option<PipelineFlags> {
        let pipeline = self.pipeline.clone()?;
        Some(PipelineFlags { pipeline, sets: self.sets.clone() })
    }
}
