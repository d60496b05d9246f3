//! Holds the layout of transformers (`-hf`) to the original one: same graph, same engines.
//!
//! The tiny golden checkpoint is written again under the names that transformers saved it with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::safetensors::{Reader, TensorSpec, Writer};
use smelt_model::{export, reference};
use tempfile::TempDir;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/internvl3-tiny")
}

/// What transformers calls things, and the original's words for them.
const WORDS: [(&str, &str); 13] = [
    ("multi_modal_projector.layer_norm", "mlp1.0"),
    ("multi_modal_projector.linear_1", "mlp1.1"),
    ("multi_modal_projector.linear_2", "mlp1.3"),
    ("vision_tower.encoder.layer.", "vision_model.encoder.layers."),
    ("vision_tower.", "vision_model."),
    ("cls_token", "class_embedding"),
    ("position_embeddings", "position_embedding"),
    ("patch_embeddings.projection", "patch_embedding"),
    ("attention.projection_layer", "attn.proj"),
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    ("lambda_1", "ls1"),
    ("lambda_2", "ls2"),
];

/// The original tensor of a name transformers saved, and which third of its rows, if not all.
fn original(name: &str) -> (String, Option<usize>) {
    if name.starts_with("language_model.") {
        return (name.to_owned(), None);
    }
    let mut name = name.to_owned();
    WORDS.iter().for_each(|(theirs, ours)| name = name.replace(theirs, ours));
    for (third, part) in ["q", "k", "v"].iter().enumerate() {
        let apart = format!(".attention.{part}_proj.");
        if name.contains(&apart) {
            return (name.replace(&apart, ".attn.qkv."), Some(third));
        }
    }
    (name, None)
}

/// The name transformers 5 holds in memory for one it saves.
fn in_memory(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("language_model.model.") {
        return format!("model.language_model.{rest}");
    }
    match name.strip_prefix("language_model.") {
        Some(head) => head.to_owned(),
        None => format!("model.{name}"),
    }
}

/// Writes the golden checkpoint as transformers does, tensors called what `rename` makes of the
/// saved names.
fn write_hf(dir: &Path, rename: fn(&str) -> String) -> Checkpoint {
    fs::create_dir_all(dir).unwrap();
    fs::copy(golden().join("hf/config.json"), dir.join("config.json")).unwrap();
    let shapes = fs::read_to_string(golden().join("hf/tensors.json")).unwrap();
    let shapes: BTreeMap<String, Vec<usize>> = serde_json::from_str(&shapes).unwrap();
    let spec = |(name, shape): (&String, &Vec<usize>)| TensorSpec {
        name: rename(name),
        dtype: Dtype::BF16,
        shape: shape.clone(),
    };
    let specs: Vec<_> = shapes.iter().map(spec).collect();
    let path = dir.join("model.safetensors");
    let mut writer = Writer::create(&path, &specs, &BTreeMap::new()).unwrap();
    let reader = Reader::open(&golden().join("checkpoint/model.safetensors")).unwrap();
    for (name, shape) in &shapes {
        let (source, third) = original(name);
        let source = reader.get(&source).unwrap();
        let mut bytes = vec![0; shape.iter().product::<usize>() * 2];
        reader.read_at(source, (third.unwrap_or(0) * bytes.len()) as u64, &mut bytes).unwrap();
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(dir).unwrap()
}

/// Every file under `dir` with its bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(
                files(&path)
                    .into_iter()
                    .map(|(name, bytes)| (Path::new(path.file_name().unwrap()).join(name), bytes)),
            );
        } else {
            found.insert(path.file_name().unwrap().into(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Exports, quantises and builds all that a pipeline does with `checkpoint`; the files by name.
fn everything(checkpoint: &Checkpoint) -> BTreeMap<PathBuf, Vec<u8>> {
    let (out, quantised) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let at = |name: &str| out.path().join(name);
    let limits = llm::Limits { max_seq_len: 64, max_slots: 1 };
    for dtype in [Dtype::F32, Dtype::BF16] {
        export::vision(checkpoint, dtype, &at(dtype.name()), &mut |_| {}).unwrap();
    }
    graph::build(&at("F32"), Precision::F32, &at("vision"), &mut |_| {}).unwrap();
    llm::build(checkpoint, limits, &at("llm"), &mut |_| {}).unwrap();
    quantize::quantize(checkpoint, &Options::plain(Scheme::Int8), quantised.path(), &mut |_| {})
        .unwrap();
    let int8 = Checkpoint::open(quantised.path()).unwrap();
    llm::build(&int8, limits, &at("int8"), &mut |_| {}).unwrap();
    files(out.path())
}

#[test]
fn both_namings_give_the_same_bytes_as_the_original() {
    let dir = TempDir::new().unwrap();
    let expect = everything(&Checkpoint::open(&golden().join("checkpoint")).unwrap());
    assert_eq!(expect.len(), 5 * 2);
    let saved: fn(&str) -> String = str::to_owned;
    for (name, rename) in [("saved", saved), ("in-memory", in_memory)] {
        let found = everything(&write_hf(&dir.path().join(name), rename));
        assert!(found.keys().eq(expect.keys()), "{name}");
        for (file, bytes) in found {
            assert!(bytes == expect[&file], "{name}: {} differs", file.display());
        }
    }
}

#[test]
fn the_reference_reads_three_tensors_as_the_fused_one() {
    let dir = TempDir::new().unwrap();
    let whole = Checkpoint::open(&golden().join("checkpoint")).unwrap();
    let split = write_hf(dir.path(), str::to_owned);
    let pixels: Vec<f32> = (0..3 * 56 * 56).map(|i| (i as f32 * 0.37).sin()).collect();
    let embeds = |checkpoint| reference::vision_embeds(checkpoint, &pixels, 1).unwrap();
    assert!(embeds(&whole) == embeds(&split));
    let name = "vision_model.encoder.layers.1.attn.qkv.weight";
    let (mut one, mut other) = (Vec::new(), Vec::new());
    // Rows on both sides of the seams at 48 and 96, and a read that spans all three.
    for rows in [0..144, 47..49, 40..100, 96..97, 143..144, 48..48] {
        whole.read_rows_f32(name, rows.clone(), &mut one).unwrap();
        split.read_rows_f32(name, rows, &mut other).unwrap();
        assert_eq!(one, other);
    }
    let (size, mut byte) = (144 * 48 * 2, [0]);
    split.read_bytes(name, size - 1, &mut byte).unwrap();
    let error = split.read_bytes(name, size, &mut byte).unwrap_err().to_string();
    assert!(error.contains("v_proj.weight"), "{error}");
}

/// Spoils one line of the configuration, or one tensor's name; the refusal must hold all `words`.
#[track_caller]
fn check(from: &str, to: &str, words: &[&str]) {
    let dir = TempDir::new().unwrap();
    write_hf(dir.path(), str::to_owned);
    let (config, weights) = (dir.path().join("config.json"), dir.path().join("model.safetensors"));
    let text = fs::read_to_string(&config).unwrap();
    if text.contains(from) {
        fs::write(&config, text.replacen(from, to, 1)).unwrap();
    } else {
        assert_eq!(from.len(), to.len());
        let bytes = fs::read(&weights).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        fs::write(&weights, [&bytes[..at], to.as_bytes(), &bytes[at + to.len()..]].concat())
            .unwrap();
    }
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word) && !error.contains('\n'), "{word:?} is not in {error:?}");
    }
}

#[test]
fn what_is_wrong_is_named_as_the_checkpoint_names_it() {
    check("\"qwen2\"", "\"gemma\"", &["InternVLForConditionalGeneration with gemma"]);
    check(
        "\"hidden_size\": 80",
        "\"hidden_size\": 100",
        &["multi_modal_projector.linear_1.weight", "[100, 192]"],
    );
    check(
        "\"num_attention_heads\": 10",
        "\"num_attention_heads\": 3",
        &["text_config.hidden_size"],
    );
    check(
        "\"use_qk_norm\": false",
        "\"use_qk_norm\": true",
        &["lacks tensor", "attention.q_norm.weight"],
    );
    check("\"use_mean_pooling\": true", "\"use_mean_pooling\": false", &["use_mean_pooling"]);
    check("\"dynamic\"", "\"longrope\"", &["text_config.rope_parameters is", "longrope"]);
    check("\"projector_hidden_act\": \"gelu\"", "\"projector_hidden_act\": \"relu\"", &["relu"]);
    check("\"downsample_ratio\": 0.5", "\"downsample_ratio\": 0.25", &["downsample_ratio is 0.25"]);
    check("      56,", "      70,", &["vision_config.image_size is [70,56]"]);
    let layer = "vision_tower.encoder.layer.2.attention";
    let (k, lost) = (format!("{layer}.k_proj.weight"), format!("{layer}.K_proj.weight"));
    check(&k, &lost, &["lacks tensor", &k, "[48, 48]"]);
}

#[test]
fn a_decoder_of_another_family_is_refused_here_too() {
    let (from, to) = ("\"model_type\": \"qwen2\"", "\"model_type\": \"qwen3\"");
    let tensor = "language_model.model.layers.0.self_attn.q_proj.bias";
    check(from, to, &[tensor, "as in Qwen2ForCausalLM", "names Qwen3ForCausalLM", "never aligns"]);
}
