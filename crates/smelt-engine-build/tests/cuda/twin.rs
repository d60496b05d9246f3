//! Tries the decoder for GPUs against the contract of engines, on a device that needs none.

use std::fs;
use std::sync::Arc;

use smelt_backend::conformance::{self, TestImage};
use smelt_backend::{Decoder, HostFeatures, KvOptions, KvType, LogitRows, RunError, SlotInput};
use smelt_cuda::CudaTarget;
use smelt_cuda::decoder::{CudaDecoder, KernelImage, WeightsPlace};
use smelt_cuda::driver::Driver;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::recording::{Held, RecordingDriver};
use smelt_engine_build::llm::{self, Limits};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::Scheme;
use tempfile::TempDir;

use super::made::{self, OnTwin};
use crate::golden::golden_dir;

const LIMITS: Limits = Limits { max_seq_len: 400, max_slots: 4 };

#[track_caller]
fn check(scheme: Scheme, kind: KvType) {
    let dir = TempDir::new().unwrap();
    let checkpoint = made::packed("internvl3-tiny", scheme, dir.path());
    let (dim, hidden) = {
        let llm = checkpoint.decoder().unwrap();
        (llm.head_dim, llm.hidden)
    };
    let engine = made::engine(&checkpoint, LIMITS, dir.path());
    let device = made::device_of(HeadShape { dim, kind }, 1 << 30, false);
    let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&device);
    let open = |kv: KvOptions| {
        let kv = KvOptions { kind, ..kv };
        Box::new(CudaDecoder::open(&engine, &driver, kv).unwrap()) as Box<dyn Decoder>
    };
    let noise = |seed: usize| {
        let number = |at: usize| ((at * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0;
        let embeds = (0..3 * hidden).map(number).collect();
        HostFeatures { embeds, deepstack: Vec::new() }.into_features(3)
    };
    conformance::decoder(&open, Some(&TestImage { token: 9, features: [noise(1), noise(2)] }));
    assert_eq!(device.violations(), [""; 0]);
    assert_eq!(device.held(), Held::default(), "nothing is left when decoders are gone");
}

#[test]
fn plain_weights_conform() {
    check(Scheme::None, KvType::F16);
}

#[test]
fn packed_weights_conform() {
    check(Scheme::Int4G32, KvType::Int8);
}

#[test]
fn heads_that_no_kernel_takes_become_no_engine() {
    let dir = TempDir::new().unwrap();
    let from = golden_dir("llama3-tiny").join("checkpoint");
    fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let wide = config.replacen('{', "{\"head_dim\": 130,", 1);
    fs::write(dir.path().join("config.json"), wide).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let kernels = KernelImage { target: CudaTarget::Sm90, image: b"none", int8: None };
    let engine = dir.path().join("cuda");
    let refused = llm::build_for_card(&checkpoint, LIMITS, kernels, &engine, &mut |_| {});
    let told = refused.unwrap_err().to_string();
    assert!(told.starts_with("heads have 130 numbers") && told.lines().count() == 1, "{told}");
    assert!(!engine.exists(), "nothing was begun");
}

/// An engine of the tiny model, and the numbers of its heads.
fn tiny(dir: &TempDir, limits: Limits) -> (std::path::PathBuf, usize, usize) {
    let checkpoint = made::packed("internvl3-tiny", Scheme::Int8, dir.path());
    let llm = checkpoint.decoder().unwrap();
    (made::engine(&checkpoint, limits, dir.path()), llm.head_dim, llm.vocab)
}

#[test]
fn a_prompt_longer_than_a_pass_is_read_in_several() {
    let dir = TempDir::new().unwrap();
    let limits = Limits { max_seq_len: 700, max_slots: 1 };
    let (engine, dim, vocab) = tiny(&dir, limits);
    let tokens: Vec<u32> = (0..600).map(|at| at * 31 % vocab as u32).collect();
    // Where memory is the host's, passes are of 512 rows.
    let last = |unified: bool, cut: usize| {
        let device = made::device(dim, 1 << 30, unified);
        let mut on = OnTwin::open_on(device, &engine, KvOptions::default());
        let mut found = Vec::new();
        for part in tokens.chunks(cut) {
            let run = SlotInput::new(0, part).showing(LogitRows::Last);
            found = on.decoder.step(&[run]).unwrap().remove(0).logits;
        }
        found
    };
    let whole = last(true, 600);
    assert_eq!(whole.len(), vocab);
    assert!(whole == last(false, 600), "in one pass");
    assert!(whole == last(true, 100), "a hundred at a time");
}

#[test]
fn memory_that_others_take_is_no_memory_and_nothing_is_lost() {
    let dir = TempDir::new().unwrap();
    let (engine, dim, _) = tiny(&dir, LIMITS);
    let device = made::device(dim, 1 << 30, false);
    let mut on = OnTwin::open_on(Arc::clone(&device), &engine, KvOptions::default());
    let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&device);
    let tokens: Vec<u32> = (0..200).collect();
    on.decoder.step(&[SlotInput::new(0, &tokens[..70])]).unwrap();
    let before = (on.decoder.held(0), on.decoder.kv_usage());
    let free = driver.memory_info().unwrap().free_bytes;
    let all = driver.allocate(free).unwrap();
    let run = [SlotInput::new(1, &tokens)];
    let refused = on.decoder.step(&run).unwrap_err();
    assert!(matches!(refused, RunError::NoMemory { .. }), "{refused}");
    assert_eq!((on.decoder.held(0), on.decoder.kv_usage()), before);
    assert_eq!(on.decoder.held(1), 0);
    driver.free(all).unwrap();
    on.decoder.step(&run).unwrap();
    assert_eq!(on.decoder.held(1), 200);
}

#[test]
fn weights_that_stay_in_their_file_are_the_same_weights() {
    let dir = TempDir::new().unwrap();
    let (engine, dim, _) = tiny(&dir, LIMITS);
    let logits = |place: WeightsPlace| {
        let device = made::device(dim, 1 << 30, true);
        let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&device);
        let kv = KvOptions::default();
        let mut decoder = CudaDecoder::open_with(&engine, &driver, kv, place).unwrap();
        let held = device.held().device_bytes;
        let run = SlotInput::new(0, &[5, 6, 7]).showing(LogitRows::All);
        let found = decoder.step(&[run]).unwrap().remove(0).logits;
        drop(decoder);
        assert_eq!((device.violations(), device.held()), (Vec::new(), Held::default()));
        (found, held)
    };
    let (uploaded, registered) = (logits(WeightsPlace::Uploaded), logits(WeightsPlace::Registered));
    assert!(uploaded.0 == registered.0);
    assert!(uploaded.1 > registered.1, "they take no memory of the device");
}

#[test]
fn a_batch_that_comes_again_is_captured_once() {
    let dir = TempDir::new().unwrap();
    let (engine, dim, _) = tiny(&dir, LIMITS);
    let mut on = OnTwin::open(&engine, dim, KvOptions::default());
    let count =
        |on: &OnTwin, name: &str| on.device.calls().iter().filter(|call| call.name == name).count();
    for slot in 0..3 {
        on.decoder.step(&[SlotInput::new(slot, &[1, 2, 3, 4, 5, 6, 7, 8, 9])]).unwrap();
    }
    let begun = count(&on, "begin_capture");
    for token in 0..10 {
        let token = [token];
        let runs: Vec<_> = (0..3).map(|slot| SlotInput::new(slot, &token)).collect();
        on.decoder.step(&runs).unwrap();
    }
    assert_eq!(count(&on, "begin_capture"), begun + 1);
    assert!(count(&on, "launch_graph") >= 10);
}
