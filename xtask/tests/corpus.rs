//! Replays the fuzzer's corpus on stable Rust: every file that was ever nasty, through the same
//! functions.

#![allow(clippy::unwrap_used, reason = "a failure is a panic")]

#[path = "../fuzz/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What reading any bad file may take, the whole process together.
const MEMORY_KIB_MAX: u64 = 300 << 10;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn no_file_of_the_corpus_breaks_a_reader() {
    for (name, target) in targets::ALL {
        let folder = fuzz().join("corpus").join(name);
        let files = names(&folder);
        assert!(files.len() > 10, "{name} has a corpus of {} files", files.len());
        for file in files {
            // Seen only when the next line panics.
            eprintln!("{name}/{file}");
            target(&fs::read(folder.join(file)).unwrap());
        }
    }
    targets::clean_up();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let peak: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < MEMORY_KIB_MAX, "{peak} KiB");
}

#[test]
fn every_target_has_a_corpus_and_a_fuzzer() {
    let all: BTreeSet<String> = targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz().join("corpus")), all);
    let fuzzers = names(&fuzz().join("fuzz_targets"));
    assert_eq!(fuzzers, all.iter().map(|name| format!("{name}.rs")).collect());
}
