//! Tries the native decoder against the contract of engines, with every kind of weight and of keys and values.

use std::path::{Path, PathBuf};

use smelt_backend::conformance::{self, TestImage};
use smelt_backend::{HostFeatures, KvOptions, KvType};
use smelt_engine::BACKENDS;
use smelt_engine_build::llm::{self, Limits};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::synthetic;
use tempfile::TempDir;

const LIMITS: Limits = Limits { max_seq_len: 400, max_slots: 4 };

/// Builds the decoder of a tiny model as `scheme` says.
fn built(model: &str, scheme: Scheme, dir: &Path) -> PathBuf {
    let at = |name: &str| dir.join(name);
    synthetic::write(model, &at("checkpoint"), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&at("checkpoint")).unwrap();
    quantize::quantize(&checkpoint, &Options::plain(scheme), &at("packed"), &mut |_| {}).unwrap();
    let packed = Checkpoint::open(&at("packed")).unwrap();
    llm::build(&packed, LIMITS, &at("engine"), &mut |_| {}).unwrap();
    at("engine")
}

fn check(scheme: Scheme, kind: KvType) {
    let dir = TempDir::new().unwrap();
    let engine = built("internvl3-tiny", scheme, dir.path());
    let open =
        |kv: KvOptions| BACKENDS.decoder(&engine, KvOptions { kind: Some(kind), ..kv }).unwrap();
    let hidden = open(KvOptions::default()).facts().hidden;
    let noise = |seed: usize| {
        let number = |at: usize| ((at * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0;
        let embeds = (0..3 * hidden).map(number).collect();
        HostFeatures { embeds, deepstack: Vec::new() }.into_features(3)
    };
    conformance::decoder(&open, Some(&TestImage { token: 9, features: [noise(1), noise(2)] }));
}

#[test]
fn plain_weights_conform() {
    check(Scheme::None, KvType::F32);
    check(Scheme::None, KvType::F16);
}

#[test]
fn packed_weights_conform() {
    check(Scheme::Int8, KvType::F16);
    check(Scheme::Int4G32, KvType::Int8);
}
