//! Prepares pictures for a vision engine.
//!
//! A file becomes a [`Picture`], a picture is resized to the grid of tiles that distorts it least
//! and cut, tiles become normalised numbers.  Knows nothing of tokens or engines.

mod picture;
mod resample;
mod tiles;
mod view;

pub use picture::{FILE_BYTES_MAX, PIXELS_MAX, Picture, PictureError};
pub use tiles::{Grid, Settings, Tiles, tile_count, tiles};
pub use view::{Part, View};
