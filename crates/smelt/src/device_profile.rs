//! Finds the device that `fit` is for: this one, one that is known by name, or one whose files were captured.

use std::fs;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread;

use smelt_doctor::Outline;
use smelt_engine::tactics::ProductRates;
use smelt_fit::{DeviceProfile, Rate, RateBasis};
use smelt_model::price::bytes_a_second;
use smelt_watch::Machine;

use crate::exit::Failed;

/// What is read to measure memory: beyond the caches, and no load on a small board.
const BUFFER_BYTES: RangeInclusive<usize> = 128 << 20..=1 << 30;
/// Times the largest cache.
const BUFFER_CACHES: usize = 2;
/// Over two tenths of a second on most machines, since others take the bus for a while.
const READ_BYTES: usize = 2 << 30;
/// Large caches are of servers: of few passes over much memory none is as fast as those of an engine.
const LEAST_PASSES: usize = 16;

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
    let buffer = buffer_bytes(largest_cache(Path::new("/")).unwrap_or(0));
    let passes = (READ_BYTES / buffer).max(LEAST_PASSES);
    let memory_rate = is_measured.then(|| bytes_a_second(cores, buffer, passes));
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

/// What is read to measure memory behind a cache of so many bytes.
fn buffer_bytes(cache_bytes: usize) -> usize {
    cache_bytes.saturating_mul(BUFFER_CACHES).clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end())
}

/// Bytes of the last cache of the first core, where the kernel tells them.
fn largest_cache(root: &Path) -> Option<usize> {
    let caches = root.join("sys/devices/system/cpu/cpu0/cache");
    let size = |index: usize| {
        let text = fs::read_to_string(caches.join(format!("index{index}/size"))).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
    };
    (0..4).filter_map(size).max()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_does_not_fit_the_largest_cache() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(largest_cache(root.path()), None);
        for (index, size) in ["48K", "32K", "2048K", "307200K"].into_iter().enumerate() {
            let cache = root.path().join(format!("sys/devices/system/cpu/cpu0/cache/index{index}"));
            fs::create_dir_all(&cache).unwrap();
            fs::write(cache.join("size"), format!("{size}\n")).unwrap();
        }
        let cache = largest_cache(root.path()).unwrap();
        assert_eq!(cache, 300 << 20);
        assert_eq!(buffer_bytes(cache), 600 << 20);
        assert_eq!(buffer_bytes(0), 128 << 20);
        assert_eq!(buffer_bytes(usize::MAX), 1 << 30);
    }
}
