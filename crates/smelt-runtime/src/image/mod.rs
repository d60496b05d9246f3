//! Prepares pictures for the vision engines of a deployment.
//!
//! A file becomes a [`Picture`]; what the engines take ([`Eyes`]) and what its sender wishes make a
//! [`Plan`]; the picture is resized and cut by it into a [`View`], whose parts engines run over.
//! Everything is as the models' reference processors have it, on Pillow.  Knows nothing of prompts
//! or of engines themselves.

mod animation;
mod crop;
mod eyes;
mod film;
mod jpeg;
mod patches;
mod picture;
mod processor;
mod resample;
pub mod route;
mod scale;
mod shown;
mod tiles;
mod view;

pub use animation::Animation;
pub use crop::centre;
pub use eyes::{Cutting, Detail, Eyes, Grid, Plan, Scorer, Wish};
pub use film::{Reel, Wanted, chosen};
pub use patches::{ClipPixels, Patching, RATIO_MAX, Size, TooLong};
pub use picture::{FILE_BYTES_MAX, PIXELS_MAX, Picture, PictureError};
pub use processor::{PROCESSOR_FILE, Processor, Read};
pub(crate) use resample::resize;
pub use route::{By, Router};
pub use scale::Scale;
pub use shown::{ClipError, FPS, FRAMES_MAX, Shown};
pub use tiles::{Mosaic, Tiling, tiles};
pub use view::{Part, View};
