//! Tries the decoder for GPUs against the contract of engines, on a device that needs none.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use smelt_backend::conformance::{self, TestImage};
use smelt_backend::{Decoder, HostFeatures, KvOptions, KvType, LogitRows, RunError, SlotInput};
use smelt_cuda::CudaTarget;
use smelt_cuda::decoder::{CudaDecoder, KernelImage, WeightsPlace};
use smelt_cuda::driver::Driver;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::recording::{Held, RecordingDriver};
use smelt_cuda::tactics::{CardTactics, TunedCard};
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
        let kv = KvOptions { kind: Some(kind), ..kv };
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

/// A Llama of one layer whose weights are zero and whose heads have 130 numbers.
fn wide_heads(dir: &Path) -> Checkpoint {
    let config = fs::read_to_string(golden_dir("llama3-tiny").join("checkpoint/config.json"));
    let mut config: Value = serde_json::from_str(&config.unwrap()).unwrap();
    (config["head_dim"], config["num_hidden_layers"]) = (json!(130), json!(1));
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let of_layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![160, 64]),
        ("model.norm.weight".to_owned(), vec![64]),
        ("lm_head.weight".to_owned(), vec![160, 64]),
        (of_layer("input_layernorm"), vec![64]),
        (of_layer("post_attention_layernorm"), vec![64]),
        (of_layer("self_attn.q_proj"), vec![520, 64]),
        (of_layer("self_attn.k_proj"), vec![260, 64]),
        (of_layer("self_attn.v_proj"), vec![260, 64]),
        (of_layer("self_attn.o_proj"), vec![64, 520]),
        (of_layer("mlp.gate_proj"), vec![80, 64]),
        (of_layer("mlp.up_proj"), vec![80, 64]),
        (of_layer("mlp.down_proj"), vec![64, 80]),
    ];
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let end = at + shape.iter().product::<usize>() * 2;
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.resize(file.len() + at, 0);
    fs::write(dir.join("model.safetensors"), file).unwrap();
    Checkpoint::open(dir).unwrap()
}

#[test]
fn heads_that_no_kernel_takes_become_no_engine() {
    let dir = TempDir::new().unwrap();
    let checkpoint = wide_heads(dir.path());
    let kernels =
        KernelImage { target: CudaTarget::Sm90, image: b"none", int8: None, tactics: None };
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
fn tactics_change_kernels_and_no_bit() {
    let dir = TempDir::new().unwrap();
    let checkpoint = made::packed("internvl3-tiny", Scheme::Int4G32, dir.path());
    let dim = checkpoint.decoder().unwrap().head_dim;
    let sizes: Vec<_> = llm::products(&checkpoint).unwrap().into_iter().collect();
    let here = TunedCard::of(made::device(dim, 1 << 30, false).card(), CudaTarget::Sm90);
    // Each kernel is said to be faster than the one before it.
    let mut timed = 0.0;
    let mut time = |_, _, _| {
        timed += 1.0;
        Ok::<_, Infallible>(Some(1.0 / timed))
    };
    let tactics = CardTactics::tune(here, &sizes, &mut time).unwrap();
    let mut elsewhere = tactics.clone();
    elsewhere.card.name = "another card".to_owned();
    let answered = |tactics: Option<&CardTactics>| {
        let engine = made::tuned_engine(&checkpoint, LIMITS, &dir.path().join("cuda"), tactics);
        let mut on = OnTwin::open(&engine, dim, KvOptions::default());
        let mut logits = Vec::new();
        let prompt: Vec<u32> = (1..40).collect();
        for tokens in [&prompt[..], &[7], &[8, 9]] {
            let run = SlotInput::new(0, tokens).showing(LogitRows::All);
            logits.extend(on.decoder.step(&[run]).unwrap().remove(0).logits);
        }
        let launches = on.device.calls().into_iter().filter_map(|call| call.launch);
        let kernels: Vec<_> = launches.map(|launch| launch.function).collect();
        (logits, kernels, on.decoder.untuned().map(str::to_owned))
    };
    let plain = answered(None);
    let (logits, kernels, untuned) = answered(Some(&tactics));
    assert!(logits == plain.0, "to the bit");
    assert_ne!(kernels, plain.1);
    assert_eq!((untuned, &plain.2), (None, &None));
    let (logits, kernels, untuned) = answered(Some(&elsewhere));
    assert!(logits == plain.0 && kernels == plain.1);
    assert!(untuned.unwrap().contains("for a card of the name another card"));
}

#[test]
fn steps_are_timed_where_that_is_wanted_and_answer_the_same() {
    let dir = TempDir::new().unwrap();
    let (engine, dim, _) = tiny(&dir, LIMITS);
    let mut on = OnTwin::open(&engine, dim, KvOptions::default());
    let mut answered = Vec::new();
    for slot in 0..3 {
        let run = SlotInput::new(slot, &[1, 2, 3]).showing(LogitRows::Last);
        answered.push(on.decoder.step(&[run]).unwrap().remove(0).logits);
        assert_eq!(on.decoder.step_time().is_some(), slot > 0);
        on.decoder.time_steps();
    }
    assert!(answered.windows(2).all(|two| two[0] == two[1]));
    let marks = on.device.calls().iter().filter(|call| call.name == "elapsed").count();
    assert_eq!(marks, 2, "once for each step that is timed");
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
