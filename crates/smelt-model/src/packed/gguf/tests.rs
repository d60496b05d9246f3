//! Holds the reader to every way in which a GGUF file can lie.

use std::fs;
use std::path::Path;

use super::*;

/// The bytes of a file being made.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn text(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// A metadata entry that is a number.
    fn number(self, key: &str, value: u32) -> Self {
        self.text(key).u32(4).u32(value)
    }

    /// A tensor's row, dimensions innermost first.
    fn tensor(self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        let row = self.text(name).u32(shape.len() as u32);
        shape.iter().fold(row, |row, size| row.u64(*size)).u32(kind).u64(offset)
    }
}

fn start(tensors: u64, entries: u64) -> Bytes {
    Bytes::default().raw(b"GGUF").u32(3).u64(tensors).u64(entries)
}

/// Metadata of a Qwen2 model, ten entries.
fn metadata(bytes: Bytes) -> Bytes {
    bytes
        .text("general.architecture")
        .u32(8)
        .text("qwen2")
        .number("qwen2.context_length", 64)
        .number("qwen2.embedding_length", 32)
        .number("qwen2.block_count", 1)
        .number("qwen2.feed_forward_length", 32)
        .number("qwen2.attention.head_count", 2)
        .number("qwen2.attention.head_count_kv", 1)
        .text("qwen2.attention.layer_norm_rms_epsilon")
        .u32(6)
        .raw(&1e-6_f32.to_le_bytes())
        .text("tokenizer.ggml.tokens")
        .u32(9)
        .u32(8)
        .u64(2)
        .text("a")
        .text("b")
        .text("tokenizer.ggml.scores")
        .u32(9)
        .u32(6)
        .u64(2)
        .u64(0)
}

const ENTRIES: u64 = 10;

/// A file of these tensors, `data` bytes behind them.
fn file(tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let table = metadata(start(tensors.len() as u64, ENTRIES));
    let table = tensors.iter().fold(table, |table, (name, shape, kind, offset)| {
        table.tensor(name, shape, *kind, *offset)
    });
    let mut bytes = table.0;
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

/// Two Q8_0 rows of the embedding, and a norm.
const GOOD: [(&str, &[u64], u32, u64); 2] =
    [("token_embd.weight", &[32, 2], 8, 0), ("output_norm.weight", &[32], 0, 96)];
const GOOD_DATA: usize = 96 + 128;

fn open(bytes: &[u8]) -> Result<(Gguf, Shards), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    Gguf::open(&path).map_err(|error| error.to_string())
}

#[track_caller]
fn check(bytes: &[u8], words: &str) {
    let error = open(bytes).unwrap_err();
    assert!(error.contains("x.gguf is no GGUF file that smelt reads: "), "{error}");
    assert!(error.contains(words) && !error.contains('\n'), "{error}");
}

#[test]
fn a_good_file_gives_tensors_and_a_configuration() {
    let (gguf, files) = open(&file(&GOOD, GOOD_DATA)).unwrap();
    assert_eq!(gguf.kinds["token_embd.weight"], Kind::Q8_0);
    assert_eq!(files.get("token_embd.weight").unwrap().shape, [2, 34]);
    assert_eq!(files.get("output_norm.weight").unwrap().shape, [32]);
    let config: serde_json::Value = serde_json::from_str(&gguf.config).unwrap();
    assert_eq!(config["architectures"][0], "Qwen2ForCausalLM");
    assert_eq!((&config["vocab_size"], &config["head_dim"]), (&2.into(), &16.into()));
    assert_eq!(config["rms_norm_eps"], 1e-6);
    assert_eq!(
        (&config["rope_theta"], &config["tie_word_embeddings"]),
        (&1e4.into(), &true.into())
    );
}

#[test]
fn files_cut_off_anywhere_are_refused() {
    let whole = file(&GOOD, GOOD_DATA);
    for length in 0..whole.len() {
        assert!(open(&whole[..length]).is_err(), "{length} bytes");
    }
    check(&whole[..3], "it ends inside its first bytes");
    check(&whole[..30], "it ends inside a metadata key");
    check(&whole[..whole.len() - 1], "tensor output_norm.weight ends at data byte 224, but the");
}

#[test]
fn counts_and_lengths_that_lie_cost_no_memory() {
    check(b"GGML....", "it does not begin with GGUF");
    check(&Bytes::default().raw(b"GGUF").u32(1).0, "its version is 1");
    check(&Bytes::default().raw(b"GGUF").raw(&3_u32.to_be_bytes()).0, "it is big-endian");
    check(&start(u64::MAX, 0).0, "the table of tensors has 18446744073709551615, more than");
    check(&start(0, 1 << 40).0, "the metadata has 1099511627776, more than the limit of 65536");
    check(&start(0, 1).u64(1 << 60).0, "a metadata key has 1152921504606846976, more than");
    check(&start(0, 1).text("k").u32(8).u64(1 << 19).0, "it ends inside k");
    check(&start(0, 1).text("k").u32(9).u32(4).u64(u64::MAX).0, "it ends inside k");
    check(&start(0, 1).text("k").u32(9).u32(8).u64(u64::MAX).0, "it ends inside k");
    check(&start(0, 1).text("k").u32(9).u32(9).u64(1).0, "metadata k is an array of arrays");
    check(&start(0, 1).text("k").u32(13).0, "metadata k has the unknown type 13");
    check(&start(0, 1).u64(1).raw(&[0xff]).0, "a metadata key is not UTF-8");
    check(&start(0, 2).number("k", 1).number("k", 1).0, "it names \"k\" twice");
    check(&start(0, 1).number("general.alignment", 48).0, "general.alignment is 48, but must be");
}

#[test]
fn tensors_that_lie_are_named() {
    let one = |shape: &[u64], kind: u32, offset: u64| file(&[("t", shape, kind, offset)], 64);
    check(&one(&[40], 8, 0), "tensor t has rows of 40 elements, but Q8_0 has blocks of 32");
    check(&one(&[4], 0, 8), "tensor t begins at 8, which is no multiple of 32");
    check(&one(&[32], 0, 0), "tensor t ends at data byte 128, but the file has 64");
    check(&one(&[u64::MAX], 0, 0), "tensor t has the shape [18446744073709551615], whose size");
    check(&one(&[1 << 40, 1 << 40], 1, 0), "whose size in bytes overflows");
    check(&one(&[], 0, 0), "tensor t has 0 dimensions");
    check(&one(&[1; 17], 0, 0), "tensor t has 17 dimensions");
    check(&one(&[128], 12, 0), "tensor t has rows of 128 elements, but Q4_K has blocks of 256");
    check(&one(&[256], 14, 0), "tensor t ends at data byte 210, but the file has 64");
    check(&one(&[32], 10, 0), "tensor t is Q2_K, which is not read; F32, F16, BF16, Q8_0, Q4_0");
    check(&one(&[32], 99, 0), "tensor t is of type 99, which is not read");
    let twice = [("t", &[8][..], 0, 0), ("t", &[8][..], 0, 32)];
    check(&file(&twice, 64), "it names \"t\" twice");
    let overlap = [("a", &[16][..], 0, 0), ("b", &[8][..], 0, 32)];
    check(&file(&overlap, 64), "tensors a and b overlap");
    check(&file(&[], 0), "metadata token_embd.weight is missing, but must be a tensor");
}

#[test]
fn models_that_are_not_read_are_named() {
    let swap = |from: &str, to: &str| {
        let bytes = file(&GOOD, GOOD_DATA);
        let at = bytes.windows(from.len()).position(|here| here == from.as_bytes()).unwrap();
        [&bytes[..at], to.as_bytes(), &bytes[at + to.len()..]].concat()
    };
    check(&swap("qwen2", "gemma"), "general.architecture is \"gemma\", but must be qwen2, qwen3");
    check(&swap("qwen2.block", "qwen2.blocc"), "metadata qwen2.block_count is missing, but must");
    let llama3 = [GOOD[0], GOOD[1], ("rope_freqs.weight", &[8][..], 0, 224)];
    check(&file(&llama3, 256), "rope_freqs.weight is a tensor of other factors, but must be the");
}

/// A good file with `more` entries.
fn with_entries(count: u64, more: impl Fn(Bytes) -> Bytes) -> Vec<u8> {
    let table = more(metadata(start(GOOD.len() as u64, ENTRIES + count)));
    let table = GOOD.iter().fold(table, |table, (name, shape, kind, offset)| {
        table.tensor(name, shape, *kind, *offset)
    });
    let mut bytes = table.0;
    bytes.resize(bytes.len().next_multiple_of(32) + GOOD_DATA, 0);
    bytes
}

#[test]
fn stretched_frequencies_come_out_of_the_metadata() {
    let kind = |bytes: Bytes, word: &str| bytes.text("qwen2.rope.scaling.type").u32(8).text(word);
    let float = |bytes: Bytes, key: &str, value: f32| {
        bytes.text(&format!("qwen2.rope.{key}")).u32(6).raw(&value.to_le_bytes())
    };
    let scaling = |bytes: &[u8]| {
        let (gguf, _) = open(bytes)?;
        let config: serde_json::Value = serde_json::from_str(&gguf.config).unwrap();
        Ok::<_, String>(config["rope_scaling"].clone())
    };
    let linear = with_entries(2, |b| float(kind(b, "linear"), "scaling.factor", 2.5));
    let expect = serde_json::json!({ "rope_type": "linear", "factor": 2.5 });
    assert_eq!(scaling(&linear), Ok(expect.clone()));
    assert_eq!(scaling(&with_entries(1, |b| float(b, "scale_linear", 2.5))), Ok(expect));
    assert_eq!(scaling(&with_entries(1, |b| kind(b, "none"))), Ok(serde_json::Value::Null));
    let yarn = with_entries(4, |b| {
        let bytes = float(kind(b, "yarn"), "scaling.factor", 4.0);
        let bytes = bytes.number("qwen2.rope.scaling.original_context_length", 16);
        float(bytes, "scaling.attn_factor", 2.0)
    });
    let yarn = scaling(&yarn).unwrap();
    assert_eq!(
        (&yarn["factor"], &yarn["original_max_position_embeddings"]),
        (&4.0.into(), &16.into())
    );
    let factor = yarn["attention_factor"].as_f64().unwrap();
    assert!((factor - 2.0 * 1.138_629_436).abs() < 1e-9, "{factor}");
    check(&with_entries(1, |b| kind(b, "longrope")), "scaling.type is \"longrope\", but must be");
    check(&with_entries(1, |b| kind(b, "yarn")), "qwen2.rope.scaling.factor is missing");
    let negative = with_entries(2, |b| float(kind(b, "linear"), "scaling.factor", -1.0));
    check(&negative, "qwen2.rope.scaling.factor is -1, but must be a positive float");
    let mixed = with_entries(3, |b| {
        float(float(kind(b, "yarn"), "scaling.factor", 4.0), "scaling.yarn_log_multiplier", 0.1)
    });
    check(&mixed, "yarn_log_multiplier is 0.1");
}

/// The same file after any one change of a byte opens or is refused, and does not panic.
#[test]
fn no_mutation_panics() {
    let whole = file(&GOOD, GOOD_DATA);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    for at in 0..whole.len() - GOOD_DATA {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            fs::write(&path, &bytes).unwrap();
            if let Err(error) = Gguf::open(Path::new(&path)) {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
}
