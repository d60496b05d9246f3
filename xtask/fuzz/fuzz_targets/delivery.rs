//! Feeds libFuzzer's bytes to `targets::delivery`.

#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::delivery(data));
