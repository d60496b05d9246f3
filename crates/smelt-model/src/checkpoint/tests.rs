//! Opens checkpoints, whole and spoilt in one place.

use super::*;
use crate::decoder::EMBEDDING;
use crate::safetensors::TensorSpec;
use crate::sample::{Loaded, Sample, named};

const GATE: &str = "language_model.model.layers.1.mlp.gate_proj.weight";

fn refusal(dir: &Path) -> String {
    Checkpoint::open(dir).unwrap_err().to_string()
}

/// Spoils the tensors of the tiny model; the refusal must hold all `words`.
#[track_caller]
fn check(spoil: impl FnOnce(&mut Vec<Loaded>), words: &[&str]) {
    let error = refusal(Sample::changed(spoil).dir());
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
}

#[test]
fn a_synthetic_checkpoint_opens() {
    let sample = Sample::tiny();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    assert!(ckpt.has_lm_head() && ckpt.has(ModelPart::Vision));
    assert_eq!((ckpt.scheme(), ckpt.dir()), (Scheme::None, sample.dir()));
    assert_eq!(ckpt.shape(GATE).unwrap(), [160, 64]);
    assert_eq!(ckpt.dtype(GATE).unwrap(), Dtype::BF16);
    assert_eq!(ckpt.tensors().count(), 77);
}

#[test]
fn a_checkpoint_without_a_head_is_tied_whatever_its_configuration_says() {
    let sample = Sample::tied();
    assert!(
        fs::read_to_string(sample.dir().join(CONFIG_FILE))
            .unwrap()
            .contains("\"tie_word_embeddings\": false")
    );
    assert!(!Checkpoint::open(sample.dir()).unwrap().has_lm_head());
}

#[test]
fn rows_are_the_stored_values_widened() {
    let sample = Sample::tiny();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let whole = ckpt.read_f32(GATE).unwrap();
    assert_eq!(whole.len(), 160 * 64);
    let mut stored = [0; 2];
    ckpt.read_bytes(GATE, 2 * (7 * 64 + 5), &mut stored).unwrap();
    assert_eq!(whole[7 * 64 + 5], half::bf16::from_le_bytes(stored).to_f32());
    let mut rows = vec![9.0; 3];
    ckpt.read_rows_f32(GATE, 7..9, &mut rows).unwrap();
    assert_eq!(rows, whole[7 * 64..9 * 64]);
    ckpt.read_rows_f32(GATE, 160..160, &mut rows).unwrap();
    assert!(rows.is_empty());
    let patches = "vision_model.embeddings.patch_embedding.weight";
    ckpt.read_rows_f32(patches, 1..3, &mut rows).unwrap();
    assert_eq!(rows.len(), 2 * 3 * 14 * 14);
}

#[test]
fn rows_wider_than_a_chunk_are_whole() {
    let sample = Sample::tiny();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let name = "vision_model.embeddings.patch_embedding.weight";
    let tensor = ckpt.tensor(name).unwrap();
    let mut out = Vec::new();
    let end = tensor.shape.iter().product::<usize>() - 1;
    ckpt.read_elements(tensor, 3..end, &mut Vec::new(), &mut out).unwrap();
    assert_eq!(out, ckpt.read_f32(name).unwrap()[3..end]);
}

#[test]
fn rows_and_tensors_there_are_not_are_named() {
    let sample = Sample::tiny();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let error = ckpt.read_rows_f32(GATE, 159..161, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("has 160 rows, not rows 159..161"), "{error}");
    let error = ckpt.read_f32("nobody.weight").unwrap_err().to_string();
    assert!(error.ends_with("has no tensor nobody.weight"), "{error}");
    let error = ckpt.read_bytes(GATE, 160 * 64 * 2, &mut [0]).unwrap_err().to_string();
    assert!(error.contains(GATE), "{error}");
}

#[test]
fn tensors_that_contradict_the_configuration_are_named() {
    check(|all| all.retain(|(spec, _)| spec.name != GATE), &["lacks", GATE, "[160, 64]"]);
    let extra = "language_model.model.layers.1.self_attn.q_norm.weight";
    let spec = TensorSpec { name: extra.to_owned(), dtype: Dtype::F16, shape: vec![2] };
    check(|all| all.push((spec, vec![0; 4])), &[extra, "[2]", "does not call for"]);
    let turn = |all: &mut Vec<Loaded>| named(all, GATE).0.shape.reverse();
    check(turn, &[GATE, "has shape [64, 160]", "calls for [160, 64]"]);
    let recast = |all: &mut Vec<Loaded>| named(all, GATE).0.dtype = Dtype::I16;
    check(recast, &[GATE, "is I16, but must be F32, F16 or BF16"]);
}

#[test]
fn another_models_configuration_names_the_first_tensor_that_differs() {
    let sample = Sample::tiny();
    let path = sample.dir().join(CONFIG_FILE);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"vocab_size\": 512", "\"vocab_size\": 513")).unwrap();
    let error = refusal(sample.dir());
    assert!(error.contains(EMBEDDING) && error.contains("[512, 64]"), "{error}");
    assert!(error.contains("calls for [513, 64]"), "{error}");
}

#[test]
fn a_forced_mismatch_of_decoders_is_refused() {
    let (qwen2, qwen3) = (Sample::tiny(), Sample::named("internvl3_5-tiny"));
    let swap = |sample: &Sample| fs::read_to_string(sample.dir().join(CONFIG_FILE)).unwrap();
    let (config2, config3) = (swap(&qwen2), swap(&qwen3));
    fs::write(qwen2.dir().join(CONFIG_FILE), config3).unwrap();
    fs::write(qwen3.dir().join(CONFIG_FILE), config2).unwrap();
    let layer = "tensor language_model.model.layers.0.self_attn";
    for (sample, tensor, found, named) in [
        (qwen3, "q_norm.weight", "Qwen3ForCausalLM", "Qwen2ForCausalLM"),
        (qwen2, "q_proj.bias", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    ] {
        let error = refusal(sample.dir());
        let words = format!("{layer}.{tensor} is present, as in {found}, but");
        assert!(error.contains(&words), "{error}");
        assert!(error.contains(&format!("names {named}; smelt never aligns")), "{error}");
    }
}

#[test]
fn every_head_norm_is_called_for_and_every_other_family_s_tensor_refused() {
    let without = |lost: &str| {
        let sample = Sample::named("internvl3_5-tiny");
        let mut all = crate::sample::load(&sample.weights());
        all.retain(|(spec, _)| spec.name != lost);
        crate::sample::save(&sample.weights(), &all);
        refusal(sample.dir())
    };
    for lost in ["0.self_attn.q_norm", "0.self_attn.k_norm", "2.self_attn.k_norm"] {
        let lost = format!("language_model.model.layers.{lost}.weight");
        let error = without(&lost);
        assert!(error.contains("lacks") && error.contains(&lost), "{error}");
    }
    let sample = Sample::named("internvl3_5-tiny");
    let mut all = crate::sample::load(&sample.weights());
    let extra = "language_model.model.layers.1.self_attn.q_proj.bias";
    let spec = TensorSpec { name: extra.to_owned(), dtype: Dtype::F16, shape: vec![2] };
    all.push((spec, vec![0; 4]));
    crate::sample::save(&sample.weights(), &all);
    let error = refusal(sample.dir());
    assert!(error.contains(extra) && error.contains("never aligns"), "{error}");
}

#[test]
fn weights_in_other_forms_are_refused_by_name() {
    let sample = Sample::tiny();
    let touch = |name: &str| fs::write(sample.dir().join(name), "x").unwrap();
    fs::remove_file(sample.weights()).unwrap();
    assert!(refusal(sample.dir()).contains("has no model.safetensors"));
    touch("pytorch_model.bin");
    touch("a.pt");
    assert!(refusal(sample.dir()).contains("pickled weights (a.pt)"));
    touch(INDEX_FILE);
    assert!(refusal(sample.dir()).contains("model.safetensors.index.json: it is no index"));
}

#[test]
fn a_sharded_checkpoint_reads_as_the_whole_one() {
    let (whole, cut) = (Sample::tiny(), Sample::tiny());
    cut.shard(3);
    let (whole, cut) = (whole.dir(), cut.dir());
    let (whole, cut) = (Checkpoint::open(whole).unwrap(), Checkpoint::open(cut).unwrap());
    assert_eq!(whole.tensors().count(), cut.tensors().count());
    for tensor in whole.tensors() {
        let (one, other) = (whole.read_f32(&tensor.name), cut.read_f32(&tensor.name));
        assert!(one.unwrap() == other.unwrap(), "{}", tensor.name);
    }
}

#[test]
fn a_sharded_checkpoint_that_lacks_a_shard_is_refused() {
    let sample = Sample::tiny();
    sample.shard(3);
    fs::remove_file(sample.dir().join("model-2.safetensors")).unwrap();
    let error = refusal(sample.dir());
    assert!(error.contains("shard model-2.safetensors is missing"), "{error}");
}

#[test]
fn directories_that_are_no_checkpoint_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).contains("config.json: No such file"));
    let config = dir.path().join(CONFIG_FILE);
    fs::write(&config, b"\xff{}").unwrap();
    assert!(refusal(dir.path()).contains("not UTF-8"));
    fs::write(&config, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    assert!(refusal(dir.path()).contains("config.json: it is a git-lfs pointer"));
    fs::write(&config, "<!DOCTYPE html><html></html>").unwrap();
    assert!(refusal(dir.path()).contains("config.json: it is a web page"));
    fs::File::create(&config).unwrap().set_len(JSON_BYTES_MAX + 1).unwrap();
    assert!(refusal(dir.path()).contains("no file of at most 4194304 bytes"));
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    assert!(refusal(dir.path()).contains("no file of at most"));
}

#[test]
fn a_wrong_mark_is_refused() {
    let sample = Sample::tiny();
    fs::write(sample.dir().join(scheme::MARK_FILE), "{}").unwrap();
    let error = refusal(sample.dir());
    assert!(error.contains("smelt-quantize.json: missing field `format`"), "{error}");
}
