//! Opens golden checkpoints under other names, in several files, and with tensors that do not
//! belong.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::checkpoint::{CONFIG_FILE, Checkpoint, INDEX_FILE, WEIGHTS_FILE};
use crate::golden::Golden;
use crate::sample::{Loaded, load, save};

/// A golden checkpoint whose tensors `change` has made others.
fn changed(name: &str, change: impl FnOnce(Vec<Loaded>) -> Vec<Loaded>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Golden::open(name).copy_checkpoint(dir.path());
    let weights = dir.path().join(WEIGHTS_FILE);
    let tensors = change(load(&weights));
    save(&weights, &tensors);
    dir
}

fn renamed(name: &str, rules: &[(&str, &str)]) -> TempDir {
    changed(name, |mut tensors| {
        for (spec, _) in &mut tensors {
            let rule = rules.iter().find(|(from, _)| spec.name.starts_with(from));
            let (from, to) = rule.expect("every tensor is named anew");
            spec.name = spec.name.replacen(from, to, 1);
        }
        tensors
    })
}

#[track_caller]
fn check_same(name: &str, dir: &Path) {
    let (whole, other) = (Golden::open(name).checkpoint(), Checkpoint::open(dir).unwrap());
    assert_eq!(whole.tensors().count(), other.tensors().count());
    for tensor in whole.tensors() {
        let (one, two) = (whole.read_f32(&tensor.name), other.read_f32(&tensor.name));
        assert!(one.unwrap() == two.unwrap(), "{}", tensor.name);
    }
    assert!(!other.has_lm_head());
}

#[test]
fn qwen_vl_is_read_under_every_prefix() {
    for name in ["qwen2_vl-tiny", "qwen2_5_vl-tiny"] {
        for rules in [
            [("visual.", "model.visual."), ("model.", "model.language_model.")],
            [("visual.", "visual."), ("model.", "language_model.model.")],
        ] {
            check_same(name, renamed(name, &rules).path());
        }
    }
    let name = "qwen3_vl-tiny";
    for rules in [
        [("model.visual.", "visual."), ("model.language_model.", "model.")],
        [("model.visual.", "model.visual."), ("model.language_model.", "language_model.model.")],
    ] {
        check_same(name, renamed(name, &rules).path());
    }
}

#[test]
fn qwen_vl_is_read_from_two_files() {
    let name = "qwen2_5_vl-tiny";
    let dir = tempfile::tempdir().unwrap();
    Golden::open(name).copy_checkpoint(dir.path());
    let tensors = load(&dir.path().join(WEIGHTS_FILE));
    let mut places = BTreeMap::new();
    for (n, shard) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", n + 1);
        save(&dir.path().join(&file), shard);
        places.extend(shard.iter().map(|(spec, _)| (spec.name.clone(), file.clone())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": places });
    fs::write(dir.path().join(INDEX_FILE), index.to_string()).unwrap();
    fs::remove_file(dir.path().join(WEIGHTS_FILE)).unwrap();
    check_same(name, dir.path());
}

#[test]
fn saved_frequencies_are_passed_over() {
    let check = |name: &str, stored: &[&str]| {
        let dir = changed(name, |mut tensors| {
            let (spec, bytes) = tensors.iter().find(|(spec, _)| spec.shape.len() == 1).unwrap();
            let copies: Vec<Loaded> = stored
                .iter()
                .map(|name| {
                    let mut spec = spec.clone();
                    spec.name = (*name).to_owned();
                    (spec, bytes.clone())
                })
                .collect();
            tensors.extend(copies);
            tensors
        });
        Checkpoint::open(dir.path()).map(|_| ()).map_err(|error| error.to_string())
    };
    let each = "language_model.model.layers.1.self_attn.rotary_emb.inv_freq";
    assert_eq!(
        check("internvit6b-tiny", &[each, "language_model.model.rotary_emb.inv_freq"]),
        Ok(())
    );
    let shared = "model.language_model.rotary_emb.inv_freq";
    assert_eq!(check("qwen3_vl-tiny", &[shared, "model.visual.rotary_pos_emb.inv_freq"]), Ok(()));
    let error = check("internvit6b-tiny", &["language_model.model.rotary_emb.freq"]).unwrap_err();
    assert!(error.contains("rotary_emb.freq"), "{error}");
}

#[test]
fn tensors_of_another_tower_are_refused_by_name() {
    let refusal = |name, change: fn(Vec<Loaded>) -> Vec<Loaded>| {
        Checkpoint::open(changed(name, change).path()).unwrap_err().to_string()
    };
    let lost = refusal("qwen3_vl-tiny", |mut tensors| {
        tensors.retain(|(spec, _)| !spec.name.ends_with("deepstack_merger_list.1.norm.bias"));
        tensors
    });
    assert!(lost.contains("lacks tensor model.visual.deepstack_merger_list.1.norm.bias"), "{lost}");
    let extra = refusal("qwen2_5_vl-tiny", |mut tensors| {
        let mut bias = tensors.iter().find(|(spec, _)| spec.name.ends_with("ln_q.weight")).cloned();
        bias.iter_mut().for_each(|(spec, _)| spec.name = "visual.merger.ln_q.bias".to_owned());
        tensors.extend(bias);
        tensors
    });
    assert!(extra.contains("visual.merger.ln_q.bias") && extra.contains("never aligns"), "{extra}");
    let shape = refusal("qwen3_vl-tiny", |mut tensors| {
        let named = |(spec, _): &&mut Loaded| spec.name.ends_with("pos_embed.weight");
        tensors.iter_mut().find(named).unwrap().0.shape = vec![32, 36];
        tensors
    });
    assert!(shape.contains("pos_embed.weight has shape [32, 36]"), "{shape}");
}

/// Words of the original names of InternVL and what transformers saves for them.
const SAVED: [(&str, &str); 15] = [
    ("vision_model.embeddings.class_embedding", "vision_tower.embeddings.cls_token"),
    ("vision_model.embeddings.position_embedding", "vision_tower.embeddings.position_embeddings"),
    ("patch_embedding.", "patch_embeddings.projection."),
    ("vision_model.encoder.layers", "vision_tower.encoder.layer"),
    ("vision_model", "vision_tower"),
    ("attn.q_norm", "attention.q_norm"),
    ("attn.k_norm", "attention.k_norm"),
    ("attn.proj", "attention.projection_layer"),
    ("norm1", "layernorm_before"),
    ("norm2", "layernorm_after"),
    ("ls1", "lambda_1"),
    ("ls2", "lambda_2"),
    ("mlp1.0", "multi_modal_projector.layer_norm"),
    ("mlp1.1", "multi_modal_projector.linear_1"),
    ("mlp1.3", "multi_modal_projector.linear_2"),
];

/// The tensors that transformers saves for an original one.
fn saved((mut spec, bytes): Loaded) -> Vec<Loaded> {
    for (from, to) in SAVED {
        spec.name = spec.name.replace(from, to);
    }
    if !spec.name.contains("attn.qkv") {
        return vec![(spec, bytes)];
    }
    spec.shape[0] /= 3;
    let parts = ["q", "k", "v"].into_iter().zip(bytes.chunks(bytes.len() / 3));
    let part = |(part, bytes): (&str, &[u8])| {
        let mut spec = spec.clone();
        spec.name = spec.name.replace("attn.qkv", &format!("attention.{part}_proj"));
        (spec, bytes.to_vec())
    };
    parts.map(part).collect()
}

#[test]
fn the_large_intern_vit_is_read_in_the_layout_of_transformers() {
    let name = "internvit6b-tiny";
    let dir = changed(name, |tensors| tensors.into_iter().flat_map(saved).collect());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
    let config = root.join(name).join("hf").join(CONFIG_FILE);
    fs::copy(config, dir.path().join(CONFIG_FILE)).unwrap();
    let (whole, other) = (Golden::open(name).checkpoint(), Checkpoint::open(dir.path()).unwrap());
    for tensor in whole.tensors() {
        let (one, two) = (whole.read_f32(&tensor.name), other.read_f32(&tensor.name));
        assert!(one.unwrap() == two.unwrap(), "{}", tensor.name);
    }
    let facts = |checkpoint: &Checkpoint| checkpoint.internvl3().unwrap().vit.clone();
    assert_eq!(facts(&whole), facts(&other));
}
