//! Finds the device that `fit` is for: this one, one that is known by name, or one whose files were captured.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;
use std::time::Duration;

use smelt_doctor::Outline;
use smelt_engine::tactics::ProductRates;
use smelt_fit::{DeviceProfile, Gpu, Rate, RateBasis};
use smelt_model::price::bytes_a_second;
use smelt_watch::Machine;

use crate::cards::DeviceChoice;
use crate::exit::Failed;
use crate::gpu_profile;

/// What is read to measure memory: beyond the caches, and no load on a small board.
const BUFFER_BYTES_MIN: usize = 128 << 20;
/// For each core: what is given to a few cores of a large machine takes longer than all else that `fit` does.
const BUFFER_CORE_BYTES_MAX: usize = 128 << 20;
/// Times the largest cache.
const BUFFER_CACHES: usize = 2;
/// Others take the bus for a while.
const READ_TIME: Duration = Duration::from_millis(200);

/// The device that `word` names; this one, with the card that is `wanted`, where there is no word.
///
/// # Errors
/// Where there is no such device, or here no such card.
pub(crate) fn find(word: Option<&str>, wanted: DeviceChoice) -> Result<DeviceProfile, Failed> {
    let Some(word) = word else { return this(wanted) };
    let path = Path::new(word);
    match DeviceProfile::named(word) {
        Some(device) => {
            let gpu = device.gpu.map(gpu_profile::with_engines);
            Ok(DeviceProfile { gpu, ..device })
        }
        None if path.is_dir() => captured(path),
        None => Err(Failed::usage(format!(
            "--for {word}: no such device; write a size as 8GB, a directory of a captured device, or one of {}",
            DeviceProfile::names().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// This device, as the control groups above us let it be seen.
fn this(wanted: DeviceChoice) -> Result<DeviceProfile, Failed> {
    let machine = Machine::left_to_us(Path::new("/"));
    let name = Outline::of(Path::new("/")).name;
    let memory = [machine.mem_total_bytes, machine.swap_total_bytes].map(Option::unwrap_or_default);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let board = DeviceProfile::of_board(name.as_deref(), memory, Some(cores));
    Ok(DeviceProfile {
        name: name.unwrap_or_else(|| "this device".to_owned()),
        memory_rate: None,
        core_rate: None,
        integer_rate: None,
        gpu: gpu_profile::here(wanted, board.gpu)?,
        ..board
    })
}

/// This device with what its memory and its cores do, measured in some tenths of a second.
pub(crate) fn measured(this: DeviceProfile) -> DeviceProfile {
    let cores = this.cores;
    let buffer = buffer_bytes(largest_cache(Path::new("/")).unwrap_or(0), cores);
    let rate = |per_second| Some(Rate { per_second, basis: RateBasis::Measured });
    let memory_rate = rate(bytes_a_second(cores, buffer, READ_TIME));
    // Cores slow each other, so all of them are measured together.
    let products = ProductRates::measure(cores);
    let of_core = |of_all: f64| rate(of_all / cores as f64);
    let [core_rate, integer_rate] = [products.floats, products.integers].map(of_core);
    // What shares the memory reads it as fast, where its maker says no more.
    let shared = |gpu: Gpu| match gpu.unified {
        true => Gpu { memory_rate: gpu.memory_rate.or(memory_rate), ..gpu },
        false => gpu,
    };
    let gpu = this.gpu.map(shared);
    DeviceProfile { memory_rate, core_rate, integer_rate, gpu, ..this }
}

/// What so many cores read to measure memory behind a cache of so many bytes.
fn buffer_bytes(cache_bytes: usize, cores: usize) -> usize {
    let most = cores.saturating_mul(BUFFER_CORE_BYTES_MAX).max(BUFFER_BYTES_MIN);
    cache_bytes.saturating_mul(BUFFER_CACHES).clamp(BUFFER_BYTES_MIN, most)
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
    let device = DeviceProfile::of_board(name.as_deref(), memory, cores);
    let gpu = gpu_profile::captured(root, device.gpu);
    Ok(DeviceProfile { gpu, ..device })
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
        assert_eq!(buffer_bytes(cache, 16), 600 << 20);
        assert_eq!(
            buffer_bytes(cache, 2),
            256 << 20,
            "of a large machine's cache two cores have a part"
        );
        assert_eq!(buffer_bytes(0, 0), 128 << 20);
    }
}
