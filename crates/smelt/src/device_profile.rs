//! Finds the device that `fit` is for: this one, one that is known by name, or one whose files were captured.

use std::num::NonZero;
use std::path::Path;
use std::thread;

use smelt_doctor::Outline;
use smelt_engine::tactics::ProductRates;
use smelt_fit::{DeviceProfile, Rate, RateBasis};
use smelt_model::price::bytes_a_second;
use smelt_watch::Machine;

use crate::exit::Failed;

/// What is read to measure memory: beyond the caches of most machines, and no load on a small board.
const BUFFER_BYTES: usize = 128 << 20;
/// Over two tenths of a second on most machines, since others take the bus for a while.
const PASSES: usize = 16;

/// Whether this device's memory and cores are measured, which takes some tenths of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Rates,
    Nothing,
}

/// The device that `word` names; this one where there is no word.
pub(crate) fn find(word: Option<&str>, measure: Measure) -> Result<DeviceProfile, Failed> {
    let Some(word) = word else { return Ok(this(measure)) };
    let path = Path::new(word);
    match DeviceProfile::named(word) {
        Some(device) => Ok(device),
        None if path.is_dir() => captured(path),
        None => Err(Failed::usage(format!(
            "--for {word}: no such device; write a size as 8GB, a directory of a captured device, or one of {}",
            DeviceProfile::names().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// This device, as the control groups above us let it be seen.
fn this(measure: Measure) -> DeviceProfile {
    let machine = Machine::left_to_us(Path::new("/"));
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let measured = |per_second| Rate { per_second, basis: RateBasis::Measured };
    let is_measured = measure == Measure::Rates;
    let memory_rate = is_measured.then(|| bytes_a_second(cores, BUFFER_BYTES, PASSES));
    // Cores slow each other, so all of them are measured together.
    let products = is_measured.then(|| ProductRates::measure(cores));
    let of_core = |rate: f64| measured(rate / cores as f64);
    DeviceProfile {
        name: Outline::of(Path::new("/")).name.unwrap_or_else(|| "this device".to_owned()),
        memory_bytes: machine.mem_total_bytes.unwrap_or_default(),
        swap_bytes: machine.swap_total_bytes.unwrap_or_default(),
        cores,
        memory_rate: memory_rate.map(measured),
        core_rate: products.map(|products| of_core(products.floats)),
        integer_rate: products.map(|products| of_core(products.integers)),
    }
}

fn captured(root: &Path) -> Result<DeviceProfile, Failed> {
    let Outline { name, memory_bytes, swap_bytes, cores } = Outline::of(root);
    let Some(memory_bytes) = memory_bytes else {
        return Err(Failed::usage(format!(
            "--for {}: it is no capture of a device: its proc/meminfo says no memory",
            root.display()
        )));
    };
    let memory = [memory_bytes, swap_bytes.unwrap_or_default()];
    Ok(DeviceProfile::of_board(name.as_deref(), memory, cores))
}
