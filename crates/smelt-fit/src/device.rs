//! Describes devices: memory, processors, and how fast both are, as far as that is known.

use serde::Serialize;

use crate::gpu::Gpu;
use crate::rate::{Rate, RateBasis};

/// What a device has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceProfile {
    /// What a person calls it.
    pub name: String,
    /// Bytes of memory that its kernel hands out.
    pub memory_bytes: u64,
    /// Bytes of swap.
    pub swap_bytes: u64,
    /// Its processors' cores.
    pub cores: usize,
    /// Bytes that all cores together read from memory in a second.
    pub memory_rate: Option<Rate>,
    /// Multiplications of f32 that one core does in a second.
    pub core_rate: Option<Rate>,
    /// The same of quants by rounded activations.
    pub integer_rate: Option<Rate>,
    /// Its GPU, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
}

/// A device that is known by name: name, GB, cores, and GB a second as its maker states them.
type Known = (&'static str, u64, usize, f64);

/// Devices that are asked for by name.
const KNOWN: [Known; 8] = [
    ("orin-nano-4gb", 4, 6, 34.0),
    ("orin-nano-8gb", 8, 6, 68.0),
    ("orin-nx-8gb", 8, 6, 102.0),
    ("orin-nx-16gb", 16, 8, 102.0),
    ("agx-orin-32gb", 32, 8, 204.0),
    ("agx-orin-64gb", 64, 12, 204.0),
    ("raspberry-pi-5-4gb", 4, 4, 17.0),
    ("raspberry-pi-5-8gb", 8, 4, 17.0),
];

/// Of a module's memory the kernel hands out so many hundredths: the rest is the firmware's and its own.
const HANDED_OUT_PERCENT: u64 = 93;
/// What a core with vectors of four numbers multiplies in a second.
const CORE_OF_BOARD: f64 = 10e9;
/// How many integer products a core does for one of f32 where nobody measured it: 3.8 and 5.8 were measured of two servers.
const INTEGERS_OF_BOARD: f64 = 4.0;
/// The least memory that is asked for by its size.
const GB_MIN: f64 = 0.25;
/// The most.
const GB_MAX: f64 = 16_384.0;

/// What the system and other programs keep of a device's memory: a tenth, and a service or two.
const OTHERS_BYTES: u64 = 384 << 20;

impl DeviceProfile {
    /// The device of a word: a name of the table, or a size as `8GB`.
    pub fn named(word: &str) -> Option<Self> {
        let lower = word.to_lowercase();
        let known = KNOWN.iter().find(|(name, ..)| *name == lower);
        known.map(of_table).or_else(|| of_size(word, &lower))
    }

    /// A device whose own files were read: its board's name, memory, swap and cores.  Its rates are those that makers state,
    /// where it is a board of the table.
    pub fn of_board(
        board: Option<&str>,
        [memory_bytes, swap_bytes]: [u64; 2],
        cores: Option<usize>,
    ) -> Self {
        let lower = board.unwrap_or_default().to_lowercase();
        let is_board = |known: &&Known| {
            let (words, _) = known.0.rsplit_once('-').unwrap_or_default();
            lower.contains(&words.replace('-', " "))
        };
        let size = |known: &&Known| of_table(known).memory_bytes.abs_diff(memory_bytes);
        let known = KNOWN.iter().filter(is_board).min_by_key(size).map(of_table);
        Self {
            name: board.unwrap_or("an unknown device").to_owned(),
            memory_bytes,
            swap_bytes,
            cores: cores.or(known.as_ref().map(|known| known.cores)).unwrap_or(0),
            memory_rate: known.as_ref().and_then(|known| known.memory_rate),
            core_rate: known.as_ref().and_then(|known| known.core_rate),
            integer_rate: known.as_ref().and_then(|known| known.integer_rate),
            gpu: known.and_then(|known| Some(Gpu { memory_bytes, ..known.gpu? })),
        }
    }

    /// The names that [`Self::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, ..)| *name)
    }

    /// What a model may hold of its memory.
    pub fn budget_bytes(&self) -> u64 {
        (self.memory_bytes - self.memory_bytes / 10).saturating_sub(OTHERS_BYTES)
    }

    /// The same where a model may hold no more than so many bytes, of a GPU's own memory either.
    pub(crate) fn held_to(&self, bytes_max: Option<u64>) -> Self {
        let mut held = self.clone();
        if let (Some(most), Some(gpu)) = (bytes_max, &mut held.gpu) {
            gpu.free_bytes = gpu.budget_bytes().map(|budget| budget.min(most)).or(gpu.free_bytes);
        }
        held
    }

    /// The memory that a device needs so that a model may hold so many bytes.
    pub fn memory_for(held_bytes: u64) -> u64 {
        (held_bytes.saturating_add(OTHERS_BYTES) as f64 / 0.9) as u64
    }
}

fn of_table(&(name, gb, cores, gb_per_s): &Known) -> DeviceProfile {
    let rate = |per_second, basis| Some(Rate { per_second, basis });
    let memory_bytes = (gb << 30) / 100 * HANDED_OUT_PERCENT;
    let bandwidth = Rate { per_second: gb_per_s * 1e9, basis: RateBasis::Stated };
    DeviceProfile {
        name: name.to_owned(),
        memory_bytes,
        swap_bytes: 0,
        cores,
        memory_rate: Some(bandwidth),
        core_rate: rate(CORE_OF_BOARD, RateBasis::Estimated),
        integer_rate: rate(CORE_OF_BOARD * INTEGERS_OF_BOARD, RateBasis::Estimated),
        gpu: Gpu::of_board(name, memory_bytes, bandwidth),
    }
}

/// A device of which nothing but the size of its memory is known.
fn of_size(word: &str, lower: &str) -> Option<DeviceProfile> {
    let number = ["gib", "gb", "g"].iter().find_map(|unit| lower.strip_suffix(unit))?;
    let gb: f64 = number.trim().parse().ok()?;
    (GB_MIN..=GB_MAX).contains(&gb).then(|| DeviceProfile {
        name: format!("a device with {word}"),
        memory_bytes: (gb * (1u64 << 30) as f64) as u64 / 100 * HANDED_OUT_PERCENT,
        swap_bytes: 0,
        cores: 0,
        memory_rate: None,
        core_rate: None,
        integer_rate: None,
        gpu: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1u64 << 30) as f64;

    #[test]
    fn devices_are_known_by_name_and_by_size() {
        let orin = DeviceProfile::named("Orin-Nano-8GB").unwrap();
        assert_eq!((orin.cores, orin.memory_bytes >> 20), (6, 7618));
        for (word, gib) in [("8GB", 7.44), ("4 GiB", 3.72), ("16g", 14.88), ("0.5GB", 0.465)] {
            let device = DeviceProfile::named(word).unwrap();
            let found = device.memory_bytes as f64 / GIB;
            assert!((found - gib).abs() < 0.01, "{word}: {found}");
            assert_eq!((device.cores, device.memory_rate), (0, None), "nothing else is known");
        }
        for word in ["", "GB", "8", "8TB", "-1GB", "nanGB", "infgb", "0.1GB", "1e9GB", "orin"] {
            assert_eq!(DeviceProfile::named(word), None, "{word}");
        }
        assert!(DeviceProfile::names().all(|name| DeviceProfile::named(name).is_some()));
    }

    #[test]
    fn a_board_has_its_maker_s_rates_and_its_own_memory() {
        let name = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super";
        let orin = DeviceProfile::of_board(Some(name), [7_802_868 << 10, 0], None);
        assert_eq!((orin.cores, orin.memory_bytes), (6, 7_802_868 << 10));
        assert_eq!(orin.memory_rate.unwrap().per_second, 68e9, "the larger of two");
        let gpu = orin.gpu.unwrap();
        assert_eq!((gpu.sm, gpu.multiprocessors, gpu.unified), (87, Some(8), true));
        assert_eq!((gpu.memory_bytes, gpu.budget_bytes()), (7_802_868 << 10, None), "the host's");
        let products = gpu.product_rate.unwrap();
        assert_eq!((products.per_second, products.basis), (5.12e12, RateBasis::Projected));
        let server = DeviceProfile::of_board(Some("AMD EPYC"), [128 << 30, 0], Some(16));
        assert_eq!((server.cores, server.memory_rate, server.gpu), (16, None, None));
    }

    #[test]
    fn a_part_is_left_to_others_and_a_larger_device_has_it_too() {
        let device = DeviceProfile::named("8GB").unwrap();
        let budget = device.budget_bytes();
        assert!((6.2..6.4).contains(&(budget as f64 / GIB)), "{budget}");
        let needed = DeviceProfile::memory_for(budget);
        assert!(needed.abs_diff(device.memory_bytes) < 1 << 20, "{needed}");
        let tiny = DeviceProfile { memory_bytes: 1 << 20, ..device };
        assert_eq!(tiny.budget_bytes(), 0);
    }
}
