//! The flags of `smelt cache …`.

use std::time::Duration;

use clap::Args;
use smelt_plan::quantity;

use super::{FleetFlags, PushFlags, ShareFlags};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum CacheCommand {
    /// Say how much the store holds, and how much of it runs need
    Du(DuFlags),
    /// List the sealed outputs, those unused for the longest time last
    Ls(LsFlags),
    /// Remove what is not needed, beside running builds
    Gc(GcFlags),
    /// Read every byte that was sealed, and move what is damaged away
    Fsck(FsckFlags),
    /// Keep outputs, whatever collections are told, until they are unpinned
    Pin(PinFlags),
    /// Let collections take outputs again
    Unpin(PinFlags),
    /// List the outputs that are pinned
    Pins(PinsFlags),
    /// Publish outputs of a pipeline to the fleet, signed
    Push(PushFlags),
    /// Take from the fleet what a pipeline would else build, only as far as something needs it
    Pull(ShareFlags),
}

#[derive(Debug, Args)]
pub(crate) struct PinFlags {
    /// The digest of an output, the beginning of it, or the path that `smelt out` says
    #[arg(required = true, value_name = "OUTPUT")]
    pub(crate) outputs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PinsFlags {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DuFlags {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsFlags {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GcFlags {
    /// Remove what was unused for the longest time until this much is left, as in 20GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_size: Option<u64>,
    /// Remove what has not been used for so long, as in 30d or 12h
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub(crate) max_age: Option<Duration>,
    /// Take what runs made that failed or did not end, too; `smelt resume` then begins anew
    #[arg(long)]
    pub(crate) unfinished: bool,
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FsckFlags {
    /// Make the action log anew and clear away what cannot be read; waits until no run is alive
    #[arg(long)]
    pub(crate) repair: bool,
    /// Exit with 7 instead of waiting for running builds
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `0B` is everything that can go.
fn size(text: &str) -> Result<u64, String> {
    if text == "0" || text == "0B" {
        return Ok(0);
    }
    quantity::bytes(text).map_err(|error| error.to_string())
}

/// Ages are longer than what stages take, so days count too.
fn age(text: &str) -> Result<Duration, String> {
    if let Some(days) = text.strip_suffix('d') {
        let seconds = days.parse().ok().and_then(|days: u64| days.checked_mul(24 * 3600));
        let is_digits = !days.is_empty() && days.bytes().all(|byte| byte.is_ascii_digit());
        return seconds.filter(|_| is_digits).map(Duration::from_secs).ok_or_else(|| {
            format!("\"{text}\" is no number of days: write a whole number, as in \"30d\"")
        });
    }
    quantity::duration(text)
        .map_err(|_| format!("\"{text}\" is not an age: write a whole number and d, h, m or s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes() {
        assert_eq!(age("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(age("0d"), Ok(Duration::ZERO));
        assert_eq!(age("12h"), Ok(Duration::from_secs(43_200)));
        assert_eq!(size("20GiB"), Ok(20 << 30));
        assert_eq!(size("0"), Ok(0));
        for text in ["", "d", "-1d", "+1d", "1.5d", "99999999999999999999d", "month"] {
            assert!(age(text).is_err(), "{text}");
        }
        assert!(size("20G").is_err());
    }
}
