//! Verifies decoders for GPUs on a device that needs none: whole ones pass, damaged ones do not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use smelt_backend::{KvType, Limits};
use smelt_cuda::decoder::KernelImage;
use smelt_cuda::kernels::form::WeightForm;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::KernelSet;
use smelt_cuda::kernels::twin;
use smelt_cuda::recording::{RecordingDriver, card};
use smelt_cuda::{CudaTarget, Driver, Sm};
use smelt_deploy::DeployError;
use smelt_deploy::text_files::TextFiles;
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{self, Options, Scheme};
use tempfile::TempDir;

use crate::bounds::Finding;
use crate::compute::compute;
use crate::course::Course;
use crate::decoder::VerifiedDecoder;
use crate::parties::Parties;
use crate::probe::Extent;
use crate::record::Record;
use crate::weights::Weights;

const LIMITS: Limits = Limits { max_seq_len: 128, max_slots: 1 };

/// A golden's decoder with words, its rounded weights, and the engine of those.
struct Made {
    dir: TempDir,
}

impl Made {
    fn new(scheme: Scheme) -> Self {
        let made = Self { dir: TempDir::new().unwrap() };
        let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/golden/qwen2-tiny/checkpoint");
        fs::create_dir(made.path("checkpoint")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            fs::copy(golden.join(name), made.path("checkpoint").join(name)).unwrap();
        }
        let vocab: serde_json::Map<String, Value> =
            (0..160).map(|at| (format!("w{at}"), at.into())).collect();
        let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w7"}});
        fs::write(made.path("checkpoint/tokenizer.json"), tokenizer.to_string()).unwrap();
        let plain = made.checkpoint("checkpoint");
        let options = Options::plain(scheme);
        quantize::quantize(&plain, &options, &made.path("packed"), &mut |_| {}).unwrap();
        let packed = made.checkpoint("packed");
        let kernels = KernelImage {
            target: CudaTarget::Sm90,
            image: b"none",
            int8: Some(b"none"),
            tactics: None,
        };
        let engine = made.path("engine");
        llm::build_for_card(&packed, LIMITS, kernels, &engine, &mut |_| {}).unwrap();
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn checkpoint(&self, name: &str) -> Checkpoint {
        Checkpoint::open(&self.path(name)).unwrap()
    }

    /// All that is verified, on a device of its own.
    fn parties(&self, weights_only: bool) -> Parties {
        let against = self.checkpoint("checkpoint");
        let dim = against.decoder().unwrap().head_dim;
        let open = |_: CudaTarget| -> Result<Arc<dyn Driver>, DeployError> {
            let driver = Arc::new(RecordingDriver::new(card(Sm(90), 1 << 30, false)));
            let head = HeadShape { dim, kind: KvType::F16 };
            twin::teach(&driver, &KernelSet { forms: WeightForm::ALL.to_vec(), head });
            Ok(driver as Arc<dyn Driver>)
        };
        let llm = VerifiedDecoder::open(&self.path("engine"), weights_only, &open).unwrap();
        llm.verify_digest(&mut |_| {}).unwrap();
        Parties {
            vision: Vec::new(),
            sees_in_halves: false,
            llm,
            against,
            weights: Some(self.checkpoint("packed")),
            extent: Extent::Sampled,
        }
    }

    /// What the comparison of weights says, without any card.
    fn of_weights(&self) -> Option<String> {
        let parties = self.parties(true);
        match parties.compare_weights(&mut Course::new(Vec::new(), &|_| {})) {
            Ok(weights) => weights.iter().find_map(Weights::complaint),
            Err(failed) => Some(failed.to_string()),
        }
    }

    /// What is said of what the engine computes.
    fn of_computing(&self) -> Vec<String> {
        let mut record = Record::new(None);
        let course = &mut Course::new(Vec::new(), &|_| {});
        let mut parties = self.parties(false);
        let texts = TextFiles::of(&parties.against, self.dir.path(), &|_| {}).unwrap();
        compute(&mut parties, texts.dir(), &mut record, course).unwrap();
        assert_eq!(record.findings.len(), 2, "its own weights, and the checkpoint");
        record.findings.iter().filter_map(Finding::complaint).collect()
    }

    /// Changes what the engine's files hold, as if the builder had made it so.
    fn damage(&self, change: impl FnOnce(&mut Value, &mut [u8])) {
        let (header, file) = (self.path("engine/engine.json"), self.path("engine/weights.bin"));
        let mut said: Value = serde_json::from_str(&fs::read_to_string(&header).unwrap()).unwrap();
        let mut weights = fs::read(&file).unwrap();
        change(&mut said, &mut weights);
        let digest = Sha256::digest(&weights);
        said["weights"]["sha256"] = json!(smelt_backend::files::hex(&digest));
        fs::write(&header, said.to_string()).unwrap();
        fs::write(&file, weights).unwrap();
    }
}

/// Where a tensor lies.
fn range(said: &Value, name: &str) -> std::ops::Range<usize> {
    let all = said["tensors"].as_array().unwrap();
    let tensor = all.iter().find(|tensor| tensor["name"] == name).unwrap();
    let number = |field: &str| tensor[field].as_u64().unwrap() as usize;
    number("offset")..number("offset") + number("bytes")
}

#[test]
fn whole_engines_pass_both_halves() {
    for scheme in [Scheme::None, Scheme::Int8, Scheme::Int4G32] {
        let made = Made::new(scheme);
        assert_eq!(made.of_weights(), None, "{}", scheme.name());
        assert_eq!(made.of_computing(), [""; 0], "{}", scheme.name());
    }
}

#[test]
fn damaged_numbers_are_named() {
    for (scheme, tensor, scales) in [
        (Scheme::None, "layers.1.down", "layers.0.qkv_row"),
        (Scheme::Int8, "layers.0.gate_up", "layers.1.output_row"),
        (Scheme::Int4G32, "layers.1.qkv", "layers.1.down_scale"),
    ] {
        let made = Made::new(scheme);
        made.damage(|said, weights| {
            let own = range(said, tensor);
            weights[own.start + 100..own.start + 400].fill(0);
        });
        let told = made.of_weights().unwrap();
        assert!(told.contains(&format!("{tensor} in ")), "{}: {told}", scheme.name());
        let made = Made::new(scheme);
        made.damage(|said, weights| {
            let own = &mut weights[range(said, scales)];
            let size = if scales.ends_with("_row") { 4 } else { 2 };
            let other = (1..own.len() / size).find(|at| own[..size] != own[at * size..][..size]);
            let other = other.unwrap() * size;
            (0..size).for_each(|at| own.swap(at, other + at));
        });
        let told = made.of_weights().unwrap();
        let (weight, _) = scales.rsplit_once('_').unwrap();
        assert!(told.contains(&format!("{weight} in ")), "{}: {told}", scheme.name());
    }
}

#[test]
fn a_dropped_layer_is_named_and_shows_in_what_is_computed() {
    let made = Made::new(Scheme::Int8);
    made.damage(|said, _| {
        said["engine"]["layers"] = json!(1);
        let tensors = said["tensors"].as_array_mut().unwrap();
        tensors.retain(|tensor| !tensor["name"].as_str().unwrap().starts_with("layers.0."));
        for tensor in tensors {
            let name = tensor["name"].as_str().unwrap().replace("layers.1.", "layers.0.");
            tensor["name"] = json!(name);
        }
    });
    let told = made.of_weights().unwrap();
    assert!(told.contains("its layers is 1, not 2"), "{told}");
    let told = made.of_computing();
    assert!(told.iter().any(|line| line.contains("the engine's own weights")), "{told:?}");
}

#[test]
fn a_zeroed_half_of_a_layer_shows_in_what_is_computed() {
    let made = Made::new(Scheme::Int8);
    made.damage(|said, weights| {
        let own = range(said, "layers.0.down_row");
        weights[own].fill(0);
    });
    assert!(made.of_computing().iter().any(|line| line.contains("own weights")));
}
