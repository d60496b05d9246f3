//! Tries decoders on a card: engines that were written into a folder on a machine that needs none.
//!
//! `cargo xtask cuda` has the folder made; what needs a card is ignored elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use smelt_backend::conformance::{self, TestImage};
use smelt_backend::{
    Decoder, FeatureSpan, HostFeatures, ImageEmbeds, KvOptions, KvType, SlotInput,
};
use smelt_cuda::decoder::{CudaDecoder, KernelImage};
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::{KernelSet, source};
use smelt_cuda::nvrtc::{Source, compile};
use smelt_cuda::{CudaTarget, Driver};
use smelt_engine_build::llm::{self, Limits};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::reference;
use smelt_model::synthetic;
use tempfile::TempDir;

use super::golden::{greedy, logits};
use super::graphs;
use crate::golden::{Golden, IMAGE_TOKEN, golden_dir};

/// The variable that names the folder of engines.
const FOLDER: &str = "SMELT_CUDA_ENGINES";
const LIMITS: Limits = Limits { max_seq_len: 400, max_slots: 4 };
/// What the card is asked for: engines of other cards are made likewise.
const TARGET: CudaTarget = CudaTarget::Sm90;
/// How far logits may be from the reference's, as a part of the largest: products take halves.
const TOLERANCE: f32 = 1e-2;
/// What says what an engine has to answer.
const CASES: &str = "cases.json";

pub(super) fn engines() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).unwrap_or_else(|| panic!("{FOLDER} names no folder")))
}

fn compiled(set: &KernelSet) -> Vec<u8> {
    let text = Source { name: "decoder.cu".to_owned(), text: source(set), defines: Vec::new() };
    let kept = std::env::temp_dir().join("smelt-cubins");
    compile(&text, TARGET, Some(&kept)).unwrap().image
}

/// Builds an engine with its kernels for the card, and the answers that it has to give.
fn write(checkpoint: &Checkpoint, name: &str, cases: &Value) {
    let set = llm::kernel_set(checkpoint, KvType::F16).unwrap();
    let bytes = HeadShape { kind: KvType::Int8, ..set.head };
    let (image, int8) = (compiled(&set), compiled(&KernelSet { forms: Vec::new(), head: bytes }));
    let kernels = KernelImage { target: TARGET, image: &image, int8: Some(&int8), tactics: None };
    let dir = engines().join(name);
    llm::build_for_card(checkpoint, LIMITS, kernels, &dir, &mut |_| {}).unwrap();
    fs::write(dir.join(CASES), cases.to_string()).unwrap();
}

/// What the reference says behind each token of a text, and what transformers answers to a picture.
fn cases(checkpoint: &Checkpoint, golden: Option<&Golden>) -> Value {
    let config = checkpoint.decoder().unwrap();
    let text: Vec<u32> = match golden {
        Some(golden) => golden.ids("text_ids"),
        None => (0..40).map(|at| (at * 37 + 5) % config.vocab as u32).collect(),
    };
    let all = 0..text.len();
    let logits = reference::logits(checkpoint, &text, None, all, &mut |_| {}).unwrap();
    let mut all = json!({ "text": text, "logits": logits, "hidden": config.hidden });
    if let Some(golden) = golden {
        all["image"] = json!({
            "ids": golden.ids("image_ids"),
            "greedy": golden.ids("greedy_image_ids"),
            "embeds": golden.floats("image_embeds"),
        });
    }
    all
}

#[test]
#[ignore = "compiles kernels; `cargo xtask cuda` names the folder"]
fn engines_for_cards_are_written() {
    graphs::write_all(&engines());
    let dir = TempDir::new().unwrap();
    for name in ["internvl3-tiny", "internvl3_5-tiny"] {
        let golden = Golden::open(name);
        write(&golden.checkpoint, name, &cases(&golden.checkpoint, Some(&golden)));
    }
    for name in ["llama3-tiny", "qwen3-yarn-tiny"] {
        let checkpoint = Checkpoint::open(&golden_dir(name).join("checkpoint")).unwrap();
        write(&checkpoint, name, &cases(&checkpoint, None));
    }
    synthetic::write("internvl3-tiny", &dir.path().join("plain"), &mut |_| {}).unwrap();
    let plain = Checkpoint::open(&dir.path().join("plain")).unwrap();
    for scheme in [Scheme::Int8, Scheme::Int4G32, Scheme::Int4G128] {
        let at = dir.path().join(scheme.name());
        quantize::quantize(&plain, &Options::plain(scheme), &at, &mut |_| {}).unwrap();
        let packed = Checkpoint::open(&at).unwrap();
        let name = if scheme == Scheme::Int4G32 { "small" } else { scheme.name() };
        write(&packed, name, &cases(&packed, None));
    }
}

fn open(dir: &Path, driver: &Arc<dyn Driver>, kv: KvOptions) -> CudaDecoder {
    CudaDecoder::open(dir, driver, kv).unwrap_or_else(|error| panic!("{error}"))
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|one| one.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|one| one.as_f64().unwrap() as f32).collect()
}

/// Logits of rows of `vocab` against the reference's: so near that tokens which lead by twice as much are the same.
fn compare(dir: &Path, found: &[f32], expected: &[f32], vocab: usize) {
    assert_eq!(found.len(), expected.len(), "{}", dir.display());
    let mut farthest = 0.0_f32;
    for (found, expected) in found.chunks_exact(vocab).zip(expected.chunks_exact(vocab)) {
        let scale = expected.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
        for (found, expected) in found.iter().zip(expected) {
            let off = (found - expected).abs() / scale;
            assert!(off <= TOLERANCE, "{}: {found} for {expected}", dir.display());
            farthest = farthest.max(off);
        }
    }
    println!("logits are off by {farthest} of the largest");
}

/// The engine in `dir` against the contract, and against what it has to answer.
fn try_engine(dir: &Path, driver: &Arc<dyn Driver>) {
    let text = fs::read_to_string(dir.join(CASES)).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    let hidden = cases["hidden"].as_u64().unwrap() as usize;
    let mut decoder = open(dir, driver, KvOptions::default());
    let text = numbers(&cases["text"]);
    let found = logits(&mut decoder, SlotInput::new(0, &text));
    compare(dir, &found, &floats(&cases["logits"]), found.len() / text.len());
    if let Some(image) = cases.get("image") {
        let embeds = floats(&image["embeds"]);
        let tokens = embeds.len() / hidden;
        let features = HostFeatures { embeds, deepstack: Vec::new() }.into_features(tokens);
        let spans = [FeatureSpan { features: &features, tokens: 0..tokens }];
        let image_own = Some(ImageEmbeds { token: IMAGE_TOKEN, features: &spans });
        let ids = numbers(&image["ids"]);
        let run = SlotInput { image: image_own, ..SlotInput::new(0, &ids) };
        let found = greedy(&mut decoder, run, 16);
        assert_eq!(found, numbers(&image["greedy"]), "{}: a picture", dir.display());
    }
    drop(decoder);
    let noise = |seed: usize| {
        let number = |at: usize| ((at * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0;
        let embeds = (0..3 * hidden).map(number).collect();
        HostFeatures { embeds, deepstack: Vec::new() }.into_features(3)
    };
    for kind in [KvType::F16, KvType::Int8] {
        let opened = |kv: KvOptions| {
            Box::new(open(dir, driver, KvOptions { kind: Some(kind), ..kv })) as Box<dyn Decoder>
        };
        let features = [noise(1), noise(2)];
        conformance::decoder(&opened, Some(&TestImage { token: 9, features }));
    }
}

#[test]
#[ignore = "needs a card"]
fn on_a_card_every_engine_conforms_and_answers_as_the_reference_does() {
    let driver = smelt_cuda::open(0).unwrap_or_else(|error| panic!("{error}"));
    let all = fs::read_dir(engines()).unwrap().map(|entry| entry.unwrap().path());
    let mut dirs: Vec<PathBuf> = all.filter(|dir| !graphs::is_graph(dir)).collect();
    dirs.sort();
    for dir in &dirs {
        println!("{}", dir.display());
        try_engine(dir, &driver);
    }
    assert!(!dirs.is_empty());
}

mod on_a_card {
    use super::*;

    /// What a sanitizer looks at: everything that a decoder does, once.
    #[test]
    #[ignore = "needs a card"]
    fn small_engine_steps() {
        let driver = smelt_cuda::open(0).unwrap_or_else(|error| panic!("{error}"));
        let mut decoder = open(&engines().join("small"), &driver, KvOptions::default());
        let prompt: Vec<u32> = (0..70).collect();
        let first = greedy(&mut decoder, SlotInput::new(0, &prompt), 3);
        assert_eq!(greedy(&mut decoder, SlotInput::new(1, &prompt), 3), first);
    }
}
