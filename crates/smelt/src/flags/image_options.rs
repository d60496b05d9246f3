//! The flags that say how closely pictures are looked at.

use clap::Args;
use smelt_runtime::image::{Detail, ImageOptions, Tiling};

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ImageFlags {
    /// Most tiles of a picture, the thumbnail apart, of models that see tiles (default: what the
    /// deployment says, else as many as the model sees); what does not fit is shown with fewer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=Tiling::TILES_MAX as i64))]
    pub(crate) tiles: Option<u16>,
    /// How closely pictures are looked at: low (once), high, or auto
    #[arg(long, value_name = "WORD", default_value = "auto", value_parser = detail)]
    pub(crate) detail: Detail,
}

impl ImageFlags {
    /// What they wish of pictures whose senders say nothing.
    pub(crate) fn wanted(self) -> ImageOptions {
        let Self { tiles, detail } = self;
        ImageOptions { detail, tiles_max: tiles.map(usize::from), ..ImageOptions::default() }
    }
}

fn detail(text: &str) -> Result<Detail, String> {
    match text {
        "low" => Ok(Detail::Low),
        "high" => Ok(Detail::High),
        "auto" => Ok(Detail::Auto),
        _ => Err("low, high or auto".to_owned()),
    }
}
