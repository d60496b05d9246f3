//! Prepares pictures for the vision engines of a deployment.
//!
//! A file becomes an [`Image`]; what the engines take ([`ImageProcessor`]) and what its sender wishes make an
//! [`ImagePlan`]; the picture is resized and cut by it into a [`View`], whose parts engines run over.
//! Everything is as the models' reference processors have it, on Pillow.  Knows nothing of prompts
//! or of engines themselves.

mod animation;
mod crop;
mod cutting;
mod decoded;
mod film;
mod image_processor;
mod jpeg;
mod media_item;
mod patches;
mod preprocessor_config;
mod resample;
pub mod route;
mod scale;
mod split;
mod tiles;
mod view;

pub use animation::Animation;
pub use crop::centre;
pub use cutting::Cutting;
pub use decoded::{FILE_BYTES_MAX, Image, ImageDecodeError, PIXELS_MAX};
pub use film::{Reel, Wanted, chosen};
pub use image_processor::{Detail, Grid, ImageOptions, ImagePlan, ImageProcessor, Scorer};
pub use media_item::{ClipError, FPS, FRAMES_MAX, MediaItem};
pub use patches::{ClipPixels, Patching, RATIO_MAX, Size, TooLong};
pub use preprocessor_config::{PROCESSOR_FILE, PreprocessorConfig, Read};
pub use resample::resize;
pub use route::{By, Router};
pub use scale::Scale;
pub use split::Splitting;
pub use tiles::{Mosaic, Tiling, tiles};
pub use view::{View, VisionInput};
