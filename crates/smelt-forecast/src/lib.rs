//! Says what a stage is expected to take: what it took the last time, what one like it took, what its inputs tell, or at
//! least what it may; and whether a device has it.
//!
//! What is forecast is memory that the kernel cannot drop.  An engine that maps gigabytes of weights needs little of it, and
//! runs on a board with less than its resident memory elsewhere.

#![forbid(unsafe_code)]

mod alike;
mod forecast;
mod needs;
mod tensors;
mod towers;

pub use alike::Alike;
pub use forecast::Forecasts;
pub use needs::{Fits, Needs};
pub use tensors::LargestTensor;
pub use towers::{Towers, grids};
