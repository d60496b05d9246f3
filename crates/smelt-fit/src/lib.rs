//! Says what of a model a device can hold and do: sizes in, a table of choices with one that is advised out.
//!
//! Everything here is a plain function over numbers.  Who reads headers, devices and stores hands in what they say;
//! knows nothing of files, checkpoints, engines or pipelines.

#![forbid(unsafe_code)]

mod accuracy;
mod advice;
pub mod building;
mod device;
mod forecast;
mod gpu;
mod history;
mod model;
mod rate;
mod settings;

pub use accuracy::{MeasuredCost, measured};
pub use advice::{FitTable, Instead, gpu_refusal, table};
pub use device::DeviceProfile;
pub use forecast::{FitLine, Speed};
pub use gpu::Gpu;
pub use history::MeasuredAnswer;
pub use model::{DecoderOption, GpuWays, KvSize, ModelFacts, PhotographCost, TowerOption};
pub use rate::{Rate, RateBasis};
pub use settings::{FitSettings, Wanted, WantedDevice};
