//! Holds checkpoints that other tools quantised to what transformers computes with the same
//! weights: read, through the reference, and through an engine.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine::llm::{Arithmetic, KvOptions, KvType, Limits, LlmEngine, Prompt};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::reference;
use smelt_model::safetensors::Reader;
use tempfile::TempDir;

/// Largest error of f32 arithmetic, as a part of the largest value.
const TOLERANCE: f32 = 5e-5;

const LIMITS: Limits = Limits { max_seq_len: 32, max_slots: 1 };

const K_PROJ: &str = "language_model.model.layers.0.self_attn.k_proj.weight";

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/packed")
}

/// The bytes of a golden tensor; cases of blocks have a file of their own.
fn bytes(name: &str) -> Vec<u8> {
    let file = if name.starts_with("blocks") { "blocks.safetensors" } else { "golden.safetensors" };
    let file = Reader::open(&golden_dir().join(file)).unwrap();
    let tensor = file.get(name).unwrap();
    let mut bytes = vec![0; tensor.size_bytes() as usize];
    file.read_at(tensor, 0, &mut bytes).unwrap();
    bytes
}

fn floats(name: &str) -> Vec<f32> {
    bytes(name).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn tokens() -> Vec<u32> {
    bytes("tokens").as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as u32).collect()
}

#[track_caller]
fn close(found: &[f32], expect: &[f32], what: &str) {
    assert_eq!(found.len(), expect.len(), "{what}");
    let scale = expect.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let apart = found.iter().zip(expect).fold(0.0_f32, |most, (f, e)| most.max((f - e).abs()));
    assert!(apart <= TOLERANCE * scale, "{what}: {:e} of the largest", apart / scale);
}

/// Rows of 32 whose activations were rounded to 8 bits.
#[track_caller]
fn near(found: &[f32], expect: &[f32], what: &str) {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    for (found, expect) in found.chunks_exact(32).zip(expect.chunks_exact(32)) {
        let cosine = dot(found, expect) / (dot(found, found) * dot(expect, expect)).sqrt();
        assert!(cosine > 0.998, "{what}: cosine {cosine}");
    }
}

/// The checkpoint at `path` must have the weights, and give the logits, of `case`.
#[track_caller]
fn check(path: &Path, case: &str, scheme: &str) -> Checkpoint {
    let checkpoint = Checkpoint::open(path).unwrap();
    assert_eq!(checkpoint.scheme_words(), scheme, "{case}");
    let expect = floats(&format!("{case}/k_proj"));
    let mut found = Vec::new();
    checkpoint.read_rows_f32(K_PROJ, 0..16, &mut found).unwrap();
    assert!(found == expect, "{case}: k_proj differs");
    // Rows that share words with rows that were not asked for.
    checkpoint.read_rows_f32(K_PROJ, 3..14, &mut found).unwrap();
    assert!(found == expect[3 * 64..14 * 64], "{case}: part of k_proj differs");

    let (tokens, expect) = (tokens(), floats(&format!("{case}/logits")));
    let all = 0..tokens.len();
    let found = reference::logits(&checkpoint, &tokens, None, all, &mut |_| {}).unwrap();
    close(&found, &expect, &format!("{case}: reference"));

    let dir = TempDir::new().unwrap();
    llm::build(&checkpoint, LIMITS, dir.path(), &mut |_| {}).unwrap();
    check_engine(dir.path(), case, &tokens, &expect);
    checkpoint
}

/// The engine in `dir` must give the logits of `case`, `expect`.
#[track_caller]
fn check_engine(dir: &Path, case: &str, tokens: &[u32], expect: &[f32]) {
    let mut engine =
        LlmEngine::open_with(dir, KvOptions { kind: Some(KvType::F32), ..KvOptions::default() })
            .unwrap();
    let prompt = Prompt::plain(tokens, None);
    let rounded = engine.logits_all(0, &prompt).unwrap();
    near(&rounded, expect, &format!("{case}: engine in integers"));
    engine.release(0);
    engine.set_arithmetic(Arithmetic::Floats);
    let found = engine.logits_all(0, &prompt).unwrap();
    close(&found, expect, &format!("{case}: engine"));
    engine.release(0);
    // Token by token, which takes the path of few rows.
    engine.prefill(0, &Prompt::plain(&tokens[..1], None)).unwrap();
    for (index, &token) in tokens.iter().enumerate().skip(1) {
        let found = engine.decode(&[(0, token)]).unwrap().swap_remove(0);
        close(&found, &expect[index * 32..(index + 1) * 32], &format!("{case}: step {index}"));
    }
}

#[test]
fn awq_runs_as_its_dequantised_weights_do() {
    let checkpoint = check(&golden_dir().join("awq"), "awq", "int4-g32-asym");
    assert!(checkpoint.warnings().is_empty());
    assert!(checkpoint.has_lm_head() && checkpoint.is_packed());
}

#[test]
fn gptq_of_both_versions_runs_as_its_dequantised_weights_do() {
    for (case, scheme) in [
        ("gptq", "int4-g32"),
        ("gptq-act-order", "int4-g32-asym"),
        ("gptq-v2", "int4-g32-asym"),
        ("gptq-int8", "int8"),
    ] {
        assert!(check(&golden_dir().join(case), case, scheme).warnings().is_empty());
    }
}

#[test]
fn compressed_tensors_run_as_their_dequantised_weights_do() {
    for (case, scheme) in [
        ("ct", "int4-g32"),
        ("ct-asym", "int4-g32-asym"),
        ("ct-act-order", "int4-g32-asym"),
        ("ct-int8", "int8"),
    ] {
        assert!(check(&golden_dir().join(case), case, scheme).warnings().is_empty());
    }
}

/// A copy of `case` whose configuration was changed.
fn changed(case: &str, from: &str, to: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    let source = golden_dir().join(case);
    fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(dir.path().join("config.json"), text.replacen(from, to, 1)).unwrap();
    dir
}

#[test]
fn zeros_of_version_1_under_the_label_of_version_2_are_read_rightly_and_said() {
    let dir = changed("gptq", "\"gptq\"\n", "\"gptq_v2\"\n");
    let checkpoint = check(dir.path(), "gptq", "int4-g32");
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.contains("model.safetensors: the zeros are those of GPTQ version 1"));
}

#[test]
fn asymmetric_zeros_follow_the_label() {
    let dir = changed("gptq-v2", "\"gptq_v2\"", "\"gptq\"");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut found = Vec::new();
    checkpoint.read_rows_f32(K_PROJ, 0..16, &mut found).unwrap();
    assert!(found != floats("gptq-v2/k_proj") && checkpoint.warnings().is_empty());
}

#[test]
fn gguf_runs_as_its_dequantised_weights_do() {
    for (case, scheme) in [
        ("qwen2-q8_0", "int8-g32"),
        ("qwen3-q4_0", "int4-g32"),
        ("llama-q4_0", "int4-g32"),
        ("llama-bf16", "none"),
    ] {
        check(&golden_dir().join(format!("{case}.gguf")), case, scheme);
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Every kind of block is read to the bits that the gguf package gives, stays packed in an engine that
/// is hardly larger than the file, and gives transformers' logits.
#[test]
fn blocks_with_minima_and_factors_run_as_the_floats_they_stand_for() {
    for form in ["q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"] {
        let case = format!("blocks-{form}");
        let path = golden_dir().join(format!("{case}.gguf"));
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.scheme_words(), form);
        let dir = TempDir::new().unwrap();
        llm::build(&checkpoint, LIMITS, dir.path(), &mut |note| assert!(!note.contains("f32")))
            .unwrap();
        let engine = LlmEngine::open(dir.path()).unwrap();
        assert!(engine.is_packed() && llm::unlike(&engine, &checkpoint).unwrap().is_none());
        for (name, golden) in [
            ("language_model.model.embed_tokens.weight", "embed_tokens"),
            (K_PROJ, "k_proj"),
            ("language_model.model.layers.0.mlp.down_proj.weight", "down_proj"),
        ] {
            let expect = floats(&format!("{case}/{golden}"));
            let shape = checkpoint.shape(name).unwrap().to_vec();
            let rows = expect.len() / shape[1];
            let mut found = Vec::new();
            checkpoint.read_rows_f32(name, 0..rows, &mut found).unwrap();
            assert!(bits(&found) == bits(&expect), "{case}: {golden} differs");
            let (tensor, mut row) = (engine.tensor(name, &shape).unwrap(), vec![0.0; shape[1]]);
            for (index, expect) in expect.chunks(shape[1]).enumerate() {
                tensor.row(index, &mut row);
                assert!(bits(&row) == bits(expect), "{case}: row {index} of {golden} differs");
            }
        }
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        let (own, file) = (size(&dir.path().join("weights.bin")), size(&path));
        assert!(own * 10 <= file * 11, "{case}: {own} bytes of {file}");
        let (tokens, expect) = (tokens(), floats(&format!("{case}/logits")));
        let all = 0..tokens.len();
        let found = reference::logits(&checkpoint, &tokens, None, all, &mut |_| {}).unwrap();
        close(&found, &expect, &format!("{case}: reference"));
        check_engine(dir.path(), &case, &tokens, &expect);
    }
}

/// A bit that changes in any part of a packed weight shows in a row of it, by which `verify` names it.
#[test]
fn a_changed_bit_of_any_part_of_a_block_shows_in_its_weight() {
    for form in ["q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"] {
        let path = golden_dir().join(format!("blocks-{form}.gguf"));
        let (checkpoint, dir) = (Checkpoint::open(&path).unwrap(), TempDir::new().unwrap());
        llm::build(&checkpoint, LIMITS, dir.path(), &mut |_| {}).unwrap();
        let header = fs::read(dir.path().join("engine.json")).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&header).unwrap();
        let weights = fs::read(dir.path().join("weights.bin")).unwrap();
        let parts = header["tensors"].as_array().unwrap().iter().filter(|tensor| {
            let name = tensor["name"].as_str().unwrap();
            name.starts_with(K_PROJ) || name.contains("down_proj")
        });
        let mut seen = 0;
        for tensor in parts {
            let (name, at) = (tensor["name"].as_str().unwrap(), tensor["offset"].as_u64().unwrap());
            let mut damaged = weights.clone();
            damaged[at as usize + 1] ^= 4;
            fs::write(dir.path().join("weights.bin"), damaged).unwrap();
            let engine = LlmEngine::open(dir.path()).unwrap();
            let weight = format!("{}.weight", name.split(".weight").next().unwrap());
            let shape = checkpoint.shape(&weight).unwrap().to_vec();
            let mut expect = Vec::new();
            checkpoint.read_rows_f32(&weight, 0..shape[0], &mut expect).unwrap();
            let (own, mut row) = (engine.tensor(&weight, &shape).unwrap(), vec![0.0; shape[1]]);
            let differs = expect.chunks(shape[1]).enumerate().any(|(index, expect)| {
                own.row(index, &mut row);
                row != expect
            });
            assert!(differs, "{form}: {name}");
            seen += 1;
        }
        assert!(seen >= 4, "{form} has {seen} parts");
    }
}

#[test]
fn a_directory_means_its_only_gguf_file() {
    let dir = TempDir::new().unwrap();
    let source = golden_dir().join("qwen3-q4_0.gguf");
    fs::copy(&source, dir.path().join("a.gguf")).unwrap();
    check(dir.path(), "qwen3-q4_0", "int4-g32");
    fs::copy(&source, dir.path().join("b.gguf")).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("several .gguf files (a.gguf, b.gguf)"), "{error}");
}
