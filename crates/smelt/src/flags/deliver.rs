//! Declares the flags of `smelt deliver …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use smelt_fleet::oci::delivery::is_called;
use smelt_fleet::oci::reference::{NotAReference, Reference};

use super::KeyFlags;

#[derive(Debug, Subcommand)]
pub(crate) enum DeliverCommand {
    /// Put a built deployment into a registry or a directory, signed and as its next version
    Push(DeliverPushFlags),
    /// Take a deployment from there into the store, if somebody who is believed vouches for it
    Pull(DeliverPullFlags),
    /// Vouch as well for what somebody else has put there
    Sign(DeliverSignFlags),
    /// Say what is there, which version it is, and who vouches for it
    Show(DeliverShowFlags),
}

/// Where it is, and who is believed.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceFlags {
    /// oci://REGISTRY/NAME:TAG (oci+http:// without TLS), or oci:DIR:TAG for a directory
    #[arg(value_name = "PLACE", value_parser = reference)]
    pub(crate) place: Reference,
    /// What it is called, where the place does not say so: NAME:TAG
    #[arg(long, value_name = "NAME:TAG", value_parser = called)]
    pub(crate) name: Option<String>,
    /// Who is believed (default: trust.toml in ~/.config/smelt)
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_TRUST")]
    pub(crate) fleet_trust: Option<PathBuf>,
    /// A PEM file with the authority that vouches for the registry's name, where that is your own
    #[arg(long, value_name = "FILE", env = "SMELT_FLEET_CA")]
    pub(crate) fleet_ca: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeliverPushFlags {
    /// A pipeline, one of its deployments as PIPELINE#STAGE, or a deployment by the names that chat takes
    #[arg(value_name = "PIPELINE|DEPLOYMENT")]
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) place: PlaceFlags,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
    #[command(flatten)]
    pub(crate) key: KeyFlags,
}

#[derive(Debug, Args)]
pub(crate) struct DeliverPullFlags {
    #[command(flatten)]
    pub(crate) place: PlaceFlags,
    /// Take it although a newer version was taken before
    #[arg(long)]
    pub(crate) allow_older: bool,
    /// How many believed keys must vouch for it (default: `least` of `[deliveries]` in the trust file, else 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) least: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct DeliverSignFlags {
    #[command(flatten)]
    pub(crate) place: PlaceFlags,
    #[command(flatten)]
    pub(crate) key: KeyFlags,
}

#[derive(Debug, Args)]
pub(crate) struct DeliverShowFlags {
    #[command(flatten)]
    pub(crate) place: PlaceFlags,
}

fn reference(text: &str) -> Result<Reference, NotAReference> {
    text.parse()
}

fn called(text: &str) -> Result<String, String> {
    let not = || "write NAME:TAG, as in fleet/demo:prod".to_owned();
    is_called(text).then(|| text.to_owned()).ok_or_else(not)
}
