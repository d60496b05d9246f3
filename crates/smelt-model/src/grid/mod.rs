//! Computes what follows from the size of pictures alone: rotary tables, positions, windows.
//!
//! Towers that take pictures of any size (Qwen2.5-VL, Qwen3-VL) are exported for a list of sizes, and all
//! of this becomes constants.  Knows nothing of tensors or graphs.

mod interpolation;
mod rotary;
mod windows;

pub(crate) use interpolation::{Tap, taps};
pub(crate) use rotary::rotary;
pub use smelt_backend::grid::*;
pub(crate) use windows::Windows;
