//! Reads checkpoints that other tools quantised, spoils them, and writes them for other tools.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smelt_model::checkpoint::{Checkpoint, Weight};
use smelt_model::dtype::Dtype;
use smelt_model::quantize::{Options, Scheme, quantize};
use smelt_model::repacked::{Format, write};
use smelt_model::safetensors::{Reader, Tensor, TensorSpec, Writer};
use tempfile::TempDir;

type Loaded = (TensorSpec, Vec<u8>);
type Tensors = BTreeMap<String, Loaded>;

const MODULE: &str = "language_model.model.layers.0.mlp.down_proj";

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/packed").join(case)
}

/// The stored tensors of the checkpoint in `dir`, by name.
fn stored(dir: &Path) -> Tensors {
    let reader = Reader::open(&dir.join("model.safetensors")).unwrap();
    let load = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.size_bytes() as usize];
        reader.read_at(tensor, 0, &mut bytes).unwrap();
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        (name.clone(), (TensorSpec { name, dtype, shape }, bytes))
    };
    reader.tensors().map(load).collect()
}

fn save(dir: &Path, tensors: &Tensors) {
    let specs: Vec<TensorSpec> = tensors.values().map(|(spec, _)| spec.clone()).collect();
    let path = dir.join("model.safetensors");
    let mut writer = Writer::create(&path, &specs, &BTreeMap::new()).unwrap();
    tensors.values().for_each(|(_, bytes)| writer.write(bytes).unwrap());
    writer.finish().unwrap();
}

/// The tensors of a checkpoint in canonical form: type, shape and bytes by name.
fn canonical(ckpt: &Checkpoint) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let read = |weight: &Weight| {
        let size = weight.shape.iter().product::<usize>() * weight.dtype.size_bytes();
        let mut bytes = vec![0; size];
        ckpt.read_bytes(&weight.name, 0, &mut bytes).unwrap();
        (weight.name.clone(), (weight.dtype, weight.shape.clone(), bytes))
    };
    ckpt.tensors().map(read).collect()
}

/// Writes `case` in `format`, and opens the result.
fn rewritten(case: &str, format: Format) -> (TempDir, Checkpoint) {
    let (source, dir) = (Checkpoint::open(&golden(case)).unwrap(), TempDir::new().unwrap());
    write(&source, &source, format, dir.path(), &mut |_| {}).unwrap();
    let result = Checkpoint::open(dir.path()).unwrap();
    (dir, result)
}

#[test]
fn whatever_format_is_written_reads_back_as_the_same_canonical_bytes() {
    use Format::{Awq, CompressedTensors, Gptq};
    for (case, formats) in [
        ("awq", &[Awq, Gptq, CompressedTensors][..]),
        ("gptq", &[Awq, Gptq, CompressedTensors]),
        ("ct", &[Awq, Gptq, CompressedTensors]),
        ("ct-asym", &[Awq, Gptq, CompressedTensors]),
        ("gptq-v2", &[Gptq, CompressedTensors]),
        ("ct-act-order", &[Gptq, CompressedTensors]),
        ("gptq-int8", &[Gptq, CompressedTensors]),
    ] {
        let expect = canonical(&Checkpoint::open(&golden(case)).unwrap());
        for format in formats {
            let (_dir, result) = rewritten(case, *format);
            assert!(result.warnings().is_empty(), "{case} {format:?}");
            let found = canonical(&result);
            assert!(found.keys().eq(expect.keys()), "{case} {format:?}");
            for (name, tensor) in found {
                assert!(tensor == expect[&name], "{case} {format:?}: {name} differs");
            }
        }
    }
}

/// GGUF files pack the embedding, and no other format does.
#[test]
fn gguf_is_written_for_others_with_its_integers_and_an_embedding_of_floats() {
    let embedding = "language_model.model.embed_tokens.weight";
    for (case, format, scheme) in [
        ("qwen2-q8_0.gguf", Format::Gptq, "int8-g32"),
        ("qwen2-q8_0.gguf", Format::CompressedTensors, "int8-g32"),
        ("qwen3-q4_0.gguf", Format::Awq, "int4-g32"),
        ("llama-q4_0.gguf", Format::Gptq, "int4-g32"),
    ] {
        let source = Checkpoint::open(&golden(case)).unwrap();
        let (_dir, result) = rewritten(case, format);
        assert_eq!((result.scheme_words(), result.warnings().len()), (scheme.to_owned(), 0));
        let (mut expect, mut found) = (canonical(&source), canonical(&result));
        let (mut values, mut near) = (Vec::new(), Vec::new());
        let rows = source.shape(embedding).unwrap()[0];
        source.read_rows_f32(embedding, 0..rows, &mut values).unwrap();
        result.read_rows_f32(embedding, 0..rows, &mut near).unwrap();
        assert_eq!(found[embedding].0, Dtype::F16);
        let rounded = values.iter().map(|value| half::f16::from_f32(*value).to_f32());
        assert!(rounded.eq(near), "{case} {format:?}");
        for tensors in [&mut expect, &mut found] {
            tensors.retain(|name, _| !name.starts_with(embedding));
        }
        assert!(found.keys().eq(expect.keys()), "{case} {format:?}");
        for (name, tensor) in found {
            assert!(tensor == expect[&name], "{case} {format:?}: {name} differs");
        }
    }
}

/// Blocks with minima and factors are kept by a quantiser that rounds nothing, byte for byte, and refused
/// by formats that have no place for them.
#[test]
fn blocks_are_kept_as_they_are_and_go_to_no_other_tool() {
    for form in ["q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"] {
        let source = Checkpoint::open(&golden(&format!("blocks-{form}.gguf"))).unwrap();
        let dir = TempDir::new().unwrap();
        quantize(&source, &Options::plain(Scheme::None), dir.path(), &mut |_| {}).unwrap();
        let kept = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(kept.scheme_words(), form);
        assert!(canonical(&kept) == canonical(&source), "{form}");
        for name in canonical(&source).keys().filter(|name| name.ends_with("weight")) {
            let rows = 0..source.shape(name).unwrap()[0];
            let (mut expect, mut found) = (Vec::new(), Vec::new());
            source.read_rows_f32(name, rows.clone(), &mut expect).unwrap();
            kept.read_rows_f32(name, rows, &mut found).unwrap();
            assert!(found == expect, "{form}: {name}");
        }
        for format in [Format::Awq, Format::Gptq, Format::CompressedTensors] {
            let error = write(&source, &source, format, dir.path(), &mut |_| {}).unwrap_err();
            let words = "which the format has no place for; start from the unquantised";
            assert!(error.to_string().contains(words), "{form} {format:?}: {error}");
        }
        let rounded = quantize(&source, &Options::plain(Scheme::Int8), dir.path(), &mut |_| {});
        assert!(rounded.unwrap_err().to_string().contains(form));
    }
}

/// A canonical weight whose parts make no form is refused by name.
#[test]
fn parts_that_make_no_form_are_refused() {
    let source = Checkpoint::open(&golden("blocks-q4_k.gguf")).unwrap();
    let dir = TempDir::new().unwrap();
    quantize(&source, &Options::plain(Scheme::None), dir.path(), &mut |_| {}).unwrap();
    let whole = stored(dir.path());
    let weight = "language_model.model.layers.0.mlp.up_proj.weight";
    for (part, words) in [
        ("_min", "has scales, minima and high bits that no form has"),
        ("_scale", "_scale"),
        ("_min_factor", "_min_factor"),
    ] {
        let mut tensors = whole.clone();
        tensors.remove(&format!("{weight}{part}")).unwrap();
        save(dir.path(), &tensors);
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(weight), "{part}: {error}");
    }
    let mut tensors = whole.clone();
    let factors = tensors.get_mut(&format!("{weight}_factor")).unwrap();
    factors.0.shape[1] /= 2;
    factors.1.truncate(factors.1.len() / 2);
    save(dir.path(), &tensors);
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("_factor has shape [96, 4], but must have [96, 8]"), "{error}");
}

/// The golden files were packed by the tools' own packages, or a transcription of them.
#[test]
fn what_is_written_is_byte_for_byte_what_the_tools_write() {
    for (case, format) in [
        ("awq", Format::Awq),
        ("gptq", Format::Gptq),
        ("gptq-v2", Format::Gptq),
        ("gptq-int8", Format::Gptq),
        ("ct", Format::CompressedTensors),
        ("ct-asym", Format::CompressedTensors),
        ("ct-act-order", Format::CompressedTensors),
        ("ct-int8", Format::CompressedTensors),
    ] {
        let (dir, _) = rewritten(case, format);
        let mut expect = stored(&golden(case));
        // Biases of zeros that some tools store for layers without any are left out.
        expect.retain(|name, _| case != "gptq" || !name.ends_with("_proj.bias"));
        let found = stored(dir.path());
        assert!(found.keys().eq(expect.keys()), "{case}");
        for (name, tensor) in found {
            assert!(tensor == expect[&name], "{case}: {name} differs");
        }
    }
}

#[test]
fn a_quantised_checkpoint_keeps_its_vision_tower_when_written_for_others() {
    let original = golden("../internvl3-tiny/checkpoint");
    let (original, dir) = (Checkpoint::open(&original).unwrap(), TempDir::new().unwrap());
    let at = |name: &str| dir.path().join(name);
    quantize(&original, &Options::plain(Scheme::Int8), &at("int8"), &mut |_| {}).unwrap();
    let int8 = Checkpoint::open(&at("int8")).unwrap();
    for format in [Format::Gptq, Format::CompressedTensors] {
        let out = at(format.name());
        write(&int8, &original, format, &out, &mut |_| {}).unwrap();
        let result = Checkpoint::open(&out).unwrap();
        assert_eq!(result.scheme_words(), "int8");
        let (found, quants) = (canonical(&result), canonical(&int8));
        for (name, tensor) in canonical(&original) {
            let expect = quants.get(&name).unwrap_or(&tensor);
            assert!(found[&name] == *expect, "{format:?}: {name} differs");
        }
        assert!(out.join("tokenizer.json").exists());
    }
    let config = fs::read_to_string(at("gptq/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let section = &config["quantization_config"];
    assert_eq!(section["modules_to_not_convert"], json!(["vision_model", "mlp1"]));
    assert_eq!((&section["bits"], &section["lm_head"]), (&json!(8), &json!(true)));
}

#[test]
fn a_tied_head_that_stays_floats_is_named_to_other_tools() {
    let original = Checkpoint::open(&golden("../llama3-tied-tiny/checkpoint")).unwrap();
    let dir = TempDir::new().unwrap();
    let options = Options { head: Some(Scheme::None), ..Options::plain(Scheme::Int8) };
    quantize(&original, &options, &dir.path().join("int8"), &mut |_| {}).unwrap();
    let int8 = Checkpoint::open(&dir.path().join("int8")).unwrap();
    for (format, field) in
        [(Format::CompressedTensors, "ignore"), (Format::Gptq, "modules_to_not_convert")]
    {
        let out = dir.path().join(format.name());
        write(&int8, &original, format, &out, &mut |_| {}).unwrap();
        let config = fs::read_to_string(out.join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["quantization_config"][field], json!(["lm_head"]), "{field}");
        assert!(!Checkpoint::open(&out).unwrap().has_lm_head());
    }
}

#[test]
fn a_foreign_checkpoint_is_repacked_and_not_quantised_again() {
    for case in ["awq", "gptq-act-order", "gptq-int8", "ct"] {
        let (source, dir) = (Checkpoint::open(&golden(case)).unwrap(), TempDir::new().unwrap());
        quantize(&source, &Options::plain(Scheme::None), &dir.path().join("none"), &mut |_| {})
            .unwrap();
        let result = Checkpoint::open(&dir.path().join("none")).unwrap();
        assert_eq!(result.scheme_words(), source.scheme_words());
        let expect = canonical(&source);
        for (name, tensor) in canonical(&result) {
            assert!(tensor == expect[&name], "{case}: {name} differs");
        }
        let again = quantize(
            &source,
            &Options::plain(Scheme::Int8),
            &dir.path().join("again"),
            &mut |_| {},
        );
        let error = again.unwrap_err().to_string();
        assert!(error.contains("is already quantised (scheme int"), "{error}");
    }
}

#[test]
fn refusals_name_the_gguf_file_and_not_its_directory() {
    let (out, source) = (TempDir::new().unwrap(), Checkpoint::open(&golden("llama-q4_0.gguf")));
    let source = source.unwrap();
    let again = quantize(&source, &Options::plain(Scheme::Int8), out.path(), &mut |_| {});
    let error = again.unwrap_err().to_string();
    assert!(error.contains("llama-q4_0.gguf is already quantised (scheme int4-g32)"), "{error}");
    let error = source.internvl3().unwrap_err().to_string();
    assert!(error.contains("llama-q4_0.gguf is a llama model, which has no vision"), "{error}");
    let floats = Checkpoint::open(&golden("llama-bf16.gguf")).unwrap();
    let error = write(&floats, &floats, Format::Awq, out.path(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("llama-bf16.gguf has no packed weights"), "{error}");
}

#[test]
fn what_a_format_cannot_hold_is_refused_before_anything_is_written() {
    for (case, words) in [
        ("ct-act-order", "its columns were sorted (act-order); use gptq"),
        ("ct-int8", "it has 8 bits; use gptq or compressed-tensors"),
    ] {
        let (source, dir) = (Checkpoint::open(&golden(case)).unwrap(), TempDir::new().unwrap());
        let out = dir.path().join("out");
        let error = write(&source, &source, Format::Awq, &out, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains("the awq format cannot hold tensor language_model."));
        assert!(!out.exists());
    }
}

/// Opens `case` after a change of its tensors and configuration; the refusal must hold `words`.
#[track_caller]
fn check(case: &str, spoil: impl FnOnce(&mut Tensors, &mut Value), words: &[&str]) {
    let dir = TempDir::new().unwrap();
    let mut tensors = stored(&golden(case));
    let config = fs::read_to_string(golden(case).join("config.json")).unwrap();
    let mut config = serde_json::from_str(&config).unwrap();
    spoil(&mut tensors, &mut config);
    save(dir.path(), &tensors);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word) && !error.contains('\n'), "{word:?} is not in {error:?}");
    }
}

/// As [`check`], with one tensor of [`MODULE`] changed.
#[track_caller]
fn check_part(case: &str, part: &str, spoil: impl FnOnce(&mut Loaded), words: &[&str]) {
    let name = format!("{MODULE}.{part}");
    let spoil = |all: &mut Tensors, _: &mut Value| spoil(all.get_mut(&name).unwrap());
    check(case, spoil, &[&[name.as_str()], words].concat());
}

/// As [`check`], with one tensor gone.
#[track_caller]
fn check_without(case: &str, part: &str, words: &[&str]) {
    let name = format!("{MODULE}.{part}");
    let lose = |all: &mut Tensors, _: &mut Value| {
        all.remove(&name);
    };
    check(case, lose, words);
}

#[test]
fn packed_tensors_of_a_wrong_shape_or_type_are_named() {
    let turn = |tensor: &mut Loaded| tensor.0.shape.reverse();
    let retype = |tensor: &mut Loaded| tensor.0.dtype = Dtype::F32;
    check_part("awq", "qweight", turn, &["has shape [8, 96]", "must have [96, 8]"]);
    check_part("awq", "qweight", retype, &["is F32, but must be I32"]);
    check_part("awq", "qzeros", turn, &["has shape [8, 3]", "must have [3, 8]"]);
    check_part("awq", "scales", turn, &["has shape [64, 3]", "must have [3, 64]"]);
    check_part("gptq", "qweight", turn, &["has shape [64, 12]", "must have [12, 64]"]);
    let int16 = |tensor: &mut Loaded| tensor.0.dtype = Dtype::I16;
    check_part("gptq", "scales", int16, &["is I16, but must be F16, BF16 or F32"]);
    check_part("ct", "weight_packed", turn, &["has shape [12, 64]", "must have [64, 12]"]);
    check_part("ct-asym", "weight_zero_point", turn, &["has shape [3, 8]"]);
    let other = |tensor: &mut Loaded| tensor.1[0] ^= 1;
    check_part("ct", "weight_shape", other, &["says [65, 96], but the model calls for [64, 96]"]);
}

#[test]
fn packed_tensors_that_are_missing_are_named_with_their_weight() {
    for (case, part, beside) in [
        ("awq", "qzeros", "qweight"),
        ("gptq", "scales", "qweight"),
        ("ct", "weight_scale", "weight_packed"),
        ("ct-asym", "weight_zero_point", "weight_packed"),
        ("ct", "weight_shape", "weight_packed"),
    ] {
        let (name, weight) = (format!("{MODULE}.{part}"), format!("weight {MODULE}.{beside}"));
        check_without(case, part, &["lacks tensor", &name, &weight]);
    }
    let weight = format!("{MODULE}.weight");
    check_without("awq", "qweight", &["lacks tensor", &weight, "[64, 96]"]);
}

/// A copy of `case` after a change of its tensors.
fn changed(case: &str, change: impl Fn(&str, &mut Vec<u8>)) -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut tensors = stored(&golden(case));
    tensors.iter_mut().for_each(|(name, tensor)| change(name, &mut tensor.1));
    save(dir.path(), &tensors);
    fs::copy(golden(case).join("config.json"), dir.path().join("config.json")).unwrap();
    dir
}

/// What GPTQModel has done: vllm#38966.
#[test]
fn zeros_of_version_2_under_the_label_of_version_1_are_read_rightly_and_said() {
    let dir = changed("gptq", |name, bytes| {
        if name.ends_with("qzeros") {
            assert!(bytes.iter().all(|&byte| byte == 0x77));
            bytes.fill(0x88);
        }
    });
    let found = Checkpoint::open(dir.path()).unwrap();
    let [warning] = found.warnings() else { panic!("{:?}", found.warnings()) };
    assert!(warning.contains("the zeros are those of GPTQ version 2 although"), "{warning}");
    assert!(canonical(&found) == canonical(&Checkpoint::open(&golden("gptq")).unwrap()));
}

#[test]
fn groups_that_lie_are_named() {
    let set =
        |value: i32| move |tensor: &mut Loaded| tensor.1[..4].copy_from_slice(&value.to_le_bytes());
    check_part("gptq", "g_idx", set(3), &["names group 3, but there are 3"]);
    check_part("gptq", "g_idx", set(-1), &["names group -1"]);
    check_part("gptq", "g_idx", set(1), &["does not give each group 32 input channels"]);
}

#[test]
fn modules_that_stay_floats_and_biases_that_add_are_held_to_it() {
    let list = |_: &mut Tensors, config: &mut Value| {
        config["quantization_config"]["modules_to_not_convert"] = json!(["down_proj"]);
    };
    check("awq", list, &["lacks tensor", &format!("{MODULE}.weight")]);
    let bias = format!("{MODULE}.bias");
    let add = |all: &mut Tensors, _: &mut Value| all.get_mut(&bias).unwrap().1[3] = 60;
    check("gptq", add, &[&bias, "does not call for"]);
    let size = |_: &mut Tensors, config: &mut Value| {
        config["quantization_config"]["group_size"] = json!(64);
    };
    check("awq", size, &["self_attn.q_proj.scales", "has shape [2, 64], but must have [1, 64]"]);
}

#[test]
fn every_byte_range_of_a_packed_tensor_is_a_part_of_the_whole() {
    for case in ["awq", "gptq-act-order", "ct-asym", "gptq-int8"] {
        let ckpt = Checkpoint::open(&golden(case)).unwrap();
        for (name, (_, _, whole)) in canonical(&ckpt) {
            for start in (0..whole.len()).step_by(whole.len() / 7 + 1) {
                let end = (start + 45).min(whole.len());
                let mut part = vec![0; end - start];
                ckpt.read_bytes(&name, start as u64, &mut part).unwrap();
                assert!(part == whole[start..end], "{case} {name} {start}");
            }
            assert!(ckpt.read_bytes(&name, whole.len() as u64, &mut [0]).is_err());
        }
    }
}

#[test]
fn a_scale_that_is_not_finite_is_refused_in_every_format() {
    let dir = TempDir::new().unwrap();
    for entry in fs::read_dir(golden("awq")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let mut tensors = stored(dir.path());
    let (spec, bytes) = tensors.get_mut(&format!("{MODULE}.scales")).unwrap();
    assert_eq!(spec.dtype, Dtype::F16);
    bytes[2 * 7..][..2].copy_from_slice(&0x7E00_u16.to_le_bytes());
    save(dir.path(), &tensors);
    let source = Checkpoint::open(dir.path()).unwrap();
    let named = |error: String| {
        let says_why = error.contains("not finite") || error.contains("NaN");
        assert!(error.contains("down_proj") && says_why, "{error}");
    };
    for format in Format::ALL {
        let out = dir.path().join(format.name());
        named(write(&source, &source, format, &out, &mut |_| {}).unwrap_err().to_string());
        assert!(Checkpoint::open(&out).is_err());
    }
    let out = dir.path().join("smelt");
    let made = quantize(&source, &Options::plain(Scheme::None), &out, &mut |_| {});
    named(made.unwrap_err().to_string());
}
