//! Says what machine the figures are of.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Features that the kernels of any side choose by.
const FEATURES: [&str; 12] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
];

/// Processor, features, cores, memory and load, as the kernel tells them now.
pub(super) fn facts() -> Result<Value> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
    let cpu = read("/proc/cpuinfo")?;
    let flags = field(&cpu, "flags").or_else(|| field(&cpu, "Features")).unwrap_or_default();
    let has = |feature: &&str| flags.split_whitespace().any(|flag| flag == *feature);
    let memory = read("/proc/meminfo")?;
    let mib = |name: &str| {
        let kib: Option<u64> = field(&memory, name)?.split_whitespace().next()?.parse().ok();
        kib.map(|kib| kib / 1024)
    };
    Ok(json!({
        "processor": field(&cpu, "model name").unwrap_or_default(),
        "features": FEATURES.into_iter().filter(|feature| has(feature)).collect::<Vec<_>>(),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_mib": mib("MemTotal"),
        "available_mib": mib("MemAvailable"),
        "load": load()?,
        "kernel": read("/proc/sys/kernel/osrelease")?.trim(),
    }))
}

/// How many processes wanted a processor in the last minute.
pub(super) fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.context("/proc/loadavg is no list of numbers")
}

/// What stands behind `name` and a colon, in the first line that begins so.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 2\nmodel name\t: AMD EPYC\nflags : fpu avx2\n";
        assert_eq!(field(text, "model name"), Some("AMD EPYC"));
        assert_eq!(field(text, "flags"), Some("fpu avx2"));
        assert_eq!(field(text, "name"), None);
    }
}
