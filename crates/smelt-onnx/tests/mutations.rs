//! Feeds the reader damaged models: it may refuse them, but neither panics nor swells.

#![allow(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::fs;
use std::path::Path;

use smelt_onnx::{Model, check, read_initializer};
use smelt_random::Random;

const MUTATIONS: u64 = 2_000;
/// Far above what models of 41 KB need, far below what a believed length field would take.
const MEMORY_KIB_MAX: u64 = 64 << 10;

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        // Structure is dense where weights are not: half of the hits go to the first bytes.
        let range = if random.coin() { bytes.len().min(1200) } else { bytes.len() };
        let at = random.below(range);
        // Most keep the length, so that the lengths around them still hold.
        match random.below(12) {
            0..5 => bytes[at] ^= 1 << random.below(8),
            5..7 => bytes[at] = random.below(256) as u8,
            7 => bytes[at] = 0xFF,
            8 => bytes.insert(at, random.below(256) as u8),
            9 => drop(bytes.remove(at)),
            10 => bytes.truncate(at.max(1)),
            _ => {
                let piece = bytes[at..(at + 40).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn damaged_models_neither_panic_nor_swell() {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"));
    let dir = tempfile::tempdir().unwrap();
    fs::copy(data.join("foreign.bin"), dir.path().join("foreign.bin")).unwrap();
    let whole = fs::read(data.join("foreign.onnx")).unwrap();
    let before = peak_memory_kib();
    let (mut refused, mut unsound, mut sound) = (0, 0, 0);
    for seed in 1..=MUTATIONS {
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut Random::new(seed));
        // A new file each time: rewriting one in place makes ext4 flush it.
        let path = dir.path().join("foreign.onnx");
        let _ = fs::remove_file(&path);
        fs::write(&path, &bytes).unwrap();
        let Ok(model) = Model::read(&path) else {
            refused += 1;
            continue;
        };
        match check(&model, dir.path()) {
            Ok(()) => sound += 1,
            Err(_) => unsound += 1,
        }
        for tensor in &model.graph.initializers {
            let _ = read_initializer(dir.path(), tensor, 0, &mut [0; 64]);
        }
    }
    let grown = peak_memory_kib() - before;
    assert!(grown < MEMORY_KIB_MAX, "memory grew by {grown} KiB");
    let counts = [refused, unsound, sound];
    assert!(counts.iter().all(|count| *count > 20), "mutations too tame or too wild: {counts:?}");
    eprintln!("refused, unsound, sound: {counts:?}; grew {grown} KiB");
}
