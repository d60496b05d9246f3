//! Checks language model engines built from a synthetic checkpoint: slots, chunks, limits, damage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use smelt_engine::llm::{
    Arithmetic, ImageEmbeds, KvOptions, KvType, Limits, LlmEngine, Prompt, RunError,
};
use smelt_engine_build::{BuildError, llm};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::safetensors::{Reader, TensorSpec, Writer};
use smelt_model::synthetic;
use tempfile::TempDir;

const LIMITS: Limits = Limits { max_seq_len: 300, max_slots: 3 };

/// A synthetic checkpoint with its engines, made once for all tests.
struct Built {
    dir: TempDir,
}

static BUILT: LazyLock<Built> = LazyLock::new(|| {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    synthetic::write("internvl3-tiny", &at("checkpoint"), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&at("checkpoint")).unwrap();
    llm::build(&checkpoint, LIMITS, &at("plain"), &mut |_| {}).unwrap();
    quantize::quantize(&checkpoint, &Options::plain(Scheme::Int8), &at("quantised"), &mut |_| {})
        .unwrap();
    let quantised = Checkpoint::open(&at("quantised")).unwrap();
    llm::build(&quantised, LIMITS, &at("int8"), &mut |_| {}).unwrap();
    Built { dir }
});

fn built(name: &str) -> PathBuf {
    BUILT.dir.path().join(name)
}

fn open(name: &str) -> LlmEngine {
    with_kv(name, KvType::F32, None)
}

fn with_kv(name: &str, kind: KvType, bytes_max: Option<u64>) -> LlmEngine {
    LlmEngine::open_with(
        &built(name),
        KvOptions { kind: Some(kind), bytes_max, ..KvOptions::default() },
    )
    .unwrap()
}

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&built("checkpoint")).unwrap()
}

/// Tokens without order, the same every time.
fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|index| ((index * 7919 + 13) % vocab) as u32).collect()
}

fn text(tokens: &[u32]) -> Prompt<'_> {
    Prompt::plain(tokens, None)
}

#[track_caller]
fn close(got: &[f32], expect: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expect.len());
    let scale = expect.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
    let apart = got.iter().zip(expect).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(apart <= tolerance * scale, "off by {} of the largest", apart / scale);
}

/// Both engines, in every arithmetic and every form of keys and values.
fn all_ways() -> Vec<(String, LlmEngine)> {
    let mut all = Vec::new();
    for name in ["plain", "int8"] {
        for arithmetic in [Arithmetic::Floats, Arithmetic::Integers] {
            for kind in [KvType::F32, KvType::F16, KvType::Int8] {
                let mut engine = with_kv(name, kind, None);
                engine.set_arithmetic(arithmetic);
                all.push((format!("{name}, {arithmetic:?}, {kind:?}"), engine));
            }
        }
    }
    all
}

#[test]
fn a_prompt_in_one_go_equals_token_by_token_bit_for_bit() {
    for (what, mut engine) in all_ways() {
        // Longer than one chunk and one block of the cache.
        let tokens = tokens(150, engine.vocab());
        let whole = engine.logits_all(0, &text(&tokens)).unwrap();
        let mut expect = whole.chunks_exact(engine.vocab());
        let first = engine.prefill(1, &text(&tokens[..1])).unwrap();
        assert!(first == expect.next().unwrap(), "{what}");
        for &token in &tokens[1..] {
            let single = engine.decode(&[(1, token)]).unwrap().swap_remove(0);
            assert!(single == expect.next().unwrap(), "{what}: after {} tokens", engine.held(1));
        }
        assert_eq!((engine.held(0), engine.held(1)), (150, 150));
    }
}

#[test]
fn a_prompt_may_come_in_parts_of_any_length() {
    for (what, mut engine) in all_ways() {
        let tokens = tokens(200, engine.vocab());
        let whole = engine.prefill(0, &text(&tokens)).unwrap();
        for cut in [1, 63, 64, 65, 127, 128, 129, 199] {
            engine.prefill(1, &text(&tokens[..cut])).unwrap();
            let parts = engine.prefill(1, &text(&tokens[cut..])).unwrap();
            assert!(parts == whole, "{what}: cut at {cut}");
            engine.release(1);
        }
    }
}

#[test]
fn slots_do_not_disturb_each_other() {
    let mut engine = open("int8");
    let (a, b) = (tokens(70, engine.vocab()), tokens(33, 101));
    let steps = [5u32, 17, 2, 90];
    let alone = |engine: &mut LlmEngine, prompt: &[u32]| {
        engine.prefill(0, &text(prompt)).unwrap();
        let logits: Vec<Vec<f32>> =
            steps.iter().map(|&step| engine.decode(&[(0, step)]).unwrap().swap_remove(0)).collect();
        engine.release(0);
        logits
    };
    let (alone_a, alone_b) = (alone(&mut engine, &a), alone(&mut engine, &b));
    engine.prefill(2, &text(&a)).unwrap();
    engine.prefill(1, &text(&b)).unwrap();
    for (index, &step) in steps.iter().enumerate() {
        let both = engine.decode(&[(1, step), (2, step)]).unwrap();
        assert_eq!(both[0], alone_b[index], "the same bits as alone");
        assert_eq!(both[1], alone_a[index], "the same bits as alone");
    }
}

#[test]
fn a_released_slot_starts_anew() {
    let mut engine = open("plain");
    let prompt = tokens(20, engine.vocab());
    let first = engine.prefill(0, &text(&prompt)).unwrap();
    engine.release(0);
    assert_eq!(engine.held(0), 0);
    assert_eq!(engine.prefill(0, &text(&prompt)).unwrap(), first);
    engine.release(99);
}

#[test]
fn a_truncated_slot_goes_on_from_what_is_left() {
    let mut engine = open("int8");
    let tokens = tokens(9, engine.vocab());
    let straight = engine.prefill(0, &text(&tokens[..6])).unwrap();
    engine.prefill(0, &text(&tokens[6..])).unwrap();
    engine.truncate(0, 5);
    assert_eq!(engine.held(0), 5);
    engine.truncate(0, 7);
    engine.truncate(99, 0);
    assert_eq!(engine.held(0), 5, "nothing comes back");
    let again = engine.decode(&[(0, tokens[5])]).unwrap().remove(0);
    close(&again, &straight, 1e-5);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let prompt = tokens(140, 200);
    let run = |threads: usize| {
        let mut engine = open("int8").with_threads(threads);
        let mut logits = engine.logits_all(0, &text(&prompt)).unwrap();
        logits.extend(engine.decode(&[(0, 3)]).unwrap().concat());
        logits
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(7));
}

#[test]
fn int8_stays_close_to_the_checkpoint() {
    let (mut plain, mut int8) = (open("plain"), open("int8"));
    let prompt = tokens(60, plain.vocab());
    let expect = plain.logits_all(0, &text(&prompt)).unwrap();
    let got = int8.logits_all(0, &text(&prompt)).unwrap();
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    for (a, b) in got.chunks_exact(plain.vocab()).zip(expect.chunks_exact(plain.vocab())) {
        let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        assert!(cosine >= 0.995, "cosine {cosine}");
    }
    assert_ne!(got, expect, "int8 is another engine");
}

#[test]
fn image_embeddings_take_the_places_of_their_tokens() {
    let mut engine = open("plain");
    let hidden = engine.hidden();
    let mark = 7;
    // The embeddings of two real tokens, found through the checkpoint, must act as those tokens.
    let mut rows = Vec::new();
    let name = "language_model.model.embed_tokens.weight";
    checkpoint().read_rows_f32(name, 40..42, &mut rows).unwrap();
    let plain = engine.prefill(0, &text(&[1, 40, 2, 41, 3])).unwrap();
    let tokens = [1, mark, 2, mark, 3];
    let prompt = |embeds| Prompt::plain(&tokens, Some(ImageEmbeds { token: mark, embeds }));
    assert_eq!(engine.prefill(1, &prompt(&rows)).unwrap(), plain);
    let swapped = [&rows[hidden..], &rows[..hidden]].concat();
    assert_ne!(engine.prefill(2, &prompt(&swapped)).unwrap(), plain);
    let error = engine.prefill(1, &prompt(&rows[1..])).unwrap_err();
    assert_eq!(error, RunError::ImageCount { places: 2, numbers: 2 * hidden - 1, hidden });
    assert_eq!(engine.held(1), 5, "a refused prompt leaves the slot alone");
}

#[test]
fn requests_that_cannot_be_served_say_why() {
    let mut engine = open("plain");
    let vocab = engine.vocab();
    assert_eq!(engine.limits(), LIMITS);
    let unknown_slot = RunError::UnknownSlot { slot: 3, max_slots: 3 };
    assert_eq!(engine.prefill(3, &text(&[1])), Err(unknown_slot));
    assert_eq!(engine.prefill(0, &text(&[])), Err(RunError::EmptyPrompt));
    let token = vocab as u32;
    assert_eq!(engine.prefill(0, &text(&[1, token])), Err(RunError::UnknownToken { token, vocab }));
    assert_eq!(engine.decode(&[(0, 1)]), Err(RunError::EmptySlot { slot: 0 }));
    engine.prefill(0, &text(&vec![1; 299])).unwrap();
    let too_long = |held| RunError::TooLong { slot: 0, held, more: 2, max_seq_len: 300 };
    assert_eq!(engine.prefill(0, &text(&[1, 2])), Err(too_long(299)));
    assert_eq!(engine.decode(&[(0, 1), (0, 1)]), Err(RunError::SlotTwice { slot: 0 }));
    engine.decode(&[(0, 1)]).unwrap();
    assert!(matches!(engine.decode(&[(0, 1)]), Err(RunError::TooLong { held: 300, more: 1, .. })));
    assert_eq!(engine.decode(&[]).unwrap(), Vec::<Vec<f32>>::new());
    let message = too_long(299).to_string();
    assert!(message.contains("299") && message.contains("300") && !message.contains('\n'));
}

#[test]
fn limits_that_make_no_engine_are_refused() {
    let dir = TempDir::new().unwrap();
    for (max_seq_len, max_slots, word) in
        [(0, 1, "max_seq_len 0"), (8, 0, "max_slots 0"), (1 << 19, 1, "positions")]
    {
        let limits = Limits { max_seq_len, max_slots };
        let error = llm::build(&checkpoint(), limits, dir.path(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, BuildError::Limits { .. }));
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(!dir.path().join("engine.json").exists());
}

/// Copies the checkpoint, its head left out or made of the embedding.
fn with_head_from(head: Option<&str>, to: &Path) -> Checkpoint {
    const HEAD: &str = "language_model.lm_head.weight";
    let from = built("checkpoint");
    fs::create_dir_all(to).unwrap();
    fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let reader = Reader::open(&from.join("model.safetensors")).unwrap();
    let tensors: Vec<_> =
        reader.tensors().filter(|tensor| tensor.name != HEAD || head.is_some()).collect();
    let specs: Vec<TensorSpec> = tensors
        .iter()
        .map(|t| TensorSpec { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() })
        .collect();
    let path = to.join("model.safetensors");
    let mut writer = Writer::create(&path, &specs, &BTreeMap::new()).unwrap();
    for tensor in tensors {
        let source = if tensor.name == HEAD { head.unwrap() } else { &tensor.name };
        let source = reader.get(source).unwrap();
        let count: usize = source.shape.iter().product();
        let mut bytes = vec![0; count * source.dtype.size_bytes()];
        reader.read_at(source, 0, &mut bytes).unwrap();
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(to).unwrap()
}

#[test]
fn without_a_head_the_embedding_is_the_head() {
    let dir = TempDir::new().unwrap();
    let prompt = tokens(10, 100);
    let run = |name: &str, checkpoint: &Checkpoint| {
        let engine = dir.path().join(name);
        llm::build(checkpoint, LIMITS, &engine, &mut |_| {}).unwrap();
        LlmEngine::open(&engine).unwrap().logits_all(0, &text(&prompt)).unwrap()
    };
    let tied = with_head_from(None, &dir.path().join("tied"));
    assert!(!tied.has_lm_head());
    let embedding = Some("language_model.model.embed_tokens.weight");
    let copied = with_head_from(embedding, &dir.path().join("copied"));
    let logits = run("tied-engine", &tied);
    assert_eq!(logits, run("copied-engine", &copied));
    assert_ne!(logits, run("own-engine", &checkpoint()), "the checkpoint's own head is another");
    // Quantised, a tied head gets an int8 copy of its own.
    let quantised = dir.path().join("tied-int8");
    quantize::quantize(&tied, &Options::plain(Scheme::Int8), &quantised, &mut |_| {}).unwrap();
    let int8 = run("int8-engine", &Checkpoint::open(&quantised).unwrap());
    assert_ne!(int8, logits);
    close(&int8, &logits, 0.1);
}

/// Copies the quantised checkpoint `from`, every scale written twice, for half as many columns each.
fn with_halved_groups(from: &Path, to: &Path) -> Checkpoint {
    fs::create_dir_all(to).unwrap();
    for name in ["config.json", "smelt-quantize.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let reader = Reader::open(&from.join("model.safetensors")).unwrap();
    let halved = |name: &str| name.ends_with("_scale");
    let specs = reader.tensors().map(|t| {
        let mut shape = t.shape.clone();
        shape.iter_mut().skip(1).filter(|_| halved(&t.name)).for_each(|groups| *groups *= 2);
        TensorSpec { name: t.name.clone(), dtype: t.dtype, shape }
    });
    let specs: Vec<TensorSpec> = specs.collect();
    let mut writer =
        Writer::create(&to.join("model.safetensors"), &specs, &BTreeMap::new()).unwrap();
    for tensor in reader.tensors() {
        let count: usize = tensor.shape.iter().product();
        let mut bytes = vec![0; count * tensor.dtype.size_bytes()];
        reader.read_at(tensor, 0, &mut bytes).unwrap();
        if halved(&tensor.name) && tensor.shape.len() == 2 {
            let pairs = bytes.as_chunks::<2>().0.iter().flat_map(|scale| [*scale, *scale]);
            bytes = pairs.flatten().collect();
        }
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(to).unwrap()
}

#[test]
fn groups_that_no_run_fits_are_multiplied_out() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let options = Options::plain(Scheme::Int4G32);
    quantize::quantize(&checkpoint(), &options, &at("g32"), &mut |_| {}).unwrap();
    let mut said = Vec::new();
    let mut run = |name: &str, checkpoint: &Checkpoint| {
        let mut progress = |line: &str| said.push(line.to_owned());
        llm::build(checkpoint, LIMITS, &at(name), &mut progress).unwrap();
        let mut engine = LlmEngine::open(&at(name)).unwrap();
        assert_eq!(llm::unlike(&engine, checkpoint).unwrap(), None);
        engine.set_arithmetic(Arithmetic::Floats);
        engine.logits_all(0, &text(&tokens(40, 100))).unwrap()
    };
    let expect = run("g32-engine", &Checkpoint::open(&at("g32")).unwrap());
    let halved = with_halved_groups(&at("g32"), &at("g16"));
    assert_eq!(halved.scheme_words(), "int4-g16");
    assert_eq!(llm::unpacked(&Checkpoint::open(&at("g32")).unwrap()).unwrap(), None);
    let wide = llm::unpacked(&halved).unwrap().unwrap();
    close(&run("g16-engine", &halved), &expect, 1e-5);
    let linears = halved.tensors().filter(|tensor| tensor.name.ends_with("_proj.weight")).count();
    assert_eq!(wide.tensors, linears);
    let floats: usize = (halved.tensors().filter(|tensor| tensor.name.ends_with("_proj.weight")))
        .map(|tensor| halved.shape(&tensor.name).unwrap().iter().product::<usize>())
        .sum();
    // Rows of every weight here fill their stripes.
    assert_eq!(wide.bytes, floats as u64 * 4);
    let name = "layers.0.mlp.gate_proj.weight";
    let said = said.iter().rfind(|line| line.contains(name)).unwrap();
    assert!(said.contains("as f32: its groups are no multiple of 32"), "{said}");
}

fn copy(from: &Path, to: &Path) {
    for name in ["engine.json", "weights.bin"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[test]
fn two_builds_give_the_same_bytes() {
    let dir = TempDir::new().unwrap();
    let checkpoint = Checkpoint::open(&built("quantised")).unwrap();
    llm::build(&checkpoint, LIMITS, dir.path(), &mut |_| {}).unwrap();
    for name in ["engine.json", "weights.bin"] {
        let (one, two) = (built("int8").join(name), dir.path().join(name));
        assert!(fs::read(one).unwrap() == fs::read(two).unwrap(), "{name} differs");
    }
    open("int8").verify_digest(&mut |_| {}).unwrap();
}

#[test]
fn damaged_engines_do_not_open() {
    let check = |from: &str, to: &str, words: &str| {
        let dir = TempDir::new().unwrap();
        copy(&built("int8"), dir.path());
        let path = dir.path().join("engine.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = LlmEngine::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    };
    check("\"format\": 3", "\"format\": 9", "format 9");
    check("\"family\": \"qwen2\"", "\"family\": \"qwen9\"", "qwen9");
    check("\"family\": \"qwen2\"", "\"family\": \"qwen3\"", "q_norm.weight");
    check("\"max_slots\": 3", "\"max_slots\": 0", "max_slots 0");
    check("\"kv_heads\": 2", "\"kv_heads\": 3", "key heads");
    check("\"layers\": 3", "\"layers\": 4", "layers.3");
    check("\"layers\": 3", "\"layers\": 0", "not those of a decoder");
    check("input_layernorm", "input_layernorn", "is missing");
    check("\"i8\"", "\"u8\"", "has shape [64, 64], not [64, 32]");
    check("\"kind\": \"llm\"", "\"kind\": \"graph\"", "is of kind \"graph\", not \"llm\"");
}

#[test]
fn a_vision_engine_does_not_open_as_a_language_model_and_back() {
    let error = smelt_engine::vision::open(&built("plain")).unwrap_err().to_string();
    assert!(error.contains("is of kind \"llm\", not \"graph\""), "{error}");
    let error = LlmEngine::open(&built("checkpoint")).unwrap_err().to_string();
    assert!(error.contains("cannot read") && error.contains("engine.json"), "{error}");
}

#[test]
fn a_fork_goes_on_as_its_source_would_and_changes_nothing_there() {
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
        let mut engine = with_kv("int8", kind, None);
        let tokens = tokens(130, engine.vocab());
        engine.prefill(0, &text(&tokens)).unwrap();
        // Within a block, at its border, behind it.
        for len in [1, 63, 64, 65, 130] {
            engine.prefill(1, &text(&[9; 70])).unwrap();
            engine.fork(0, 1, len).unwrap();
            engine.prefill(2, &text(&tokens[..len])).unwrap();
            assert_eq!((engine.held(1), engine.held(2)), (len, len));
            for step in [3, 4, 5] {
                let both = engine.decode(&[(1, step), (2, step)]).unwrap();
                assert!(both[0] == both[1], "{kind:?}: {len} tokens");
            }
            engine.release(1);
            engine.release(2);
        }
        let straight = engine.decode(&[(0, 7)]).unwrap();
        engine.prefill(1, &text(&tokens)).unwrap();
        assert_eq!(
            engine.decode(&[(1, 7)]).unwrap(),
            straight,
            "{kind:?}: the source is as it was"
        );
    }
}

#[test]
fn forks_share_memory_until_they_write() {
    let mut engine = open("plain");
    let held = |engine: &LlmEngine| engine.kv_usage().blocks_held;
    engine.prefill(0, &text(&[1; 100])).unwrap();
    engine.fork(0, 1, 100).unwrap();
    engine.fork(0, 2, 64).unwrap();
    assert_eq!(held(&engine), 2);
    engine.decode(&[(0, 1), (1, 1)]).unwrap();
    assert_eq!(held(&engine), 3, "one of two writers gets a copy");
    engine.decode(&[(0, 1), (1, 1), (2, 1)]).unwrap();
    assert_eq!(held(&engine), 4);
    engine.truncate(2, 64);
    assert_eq!(held(&engine), 3);
    (0..3).for_each(|slot| engine.release(slot));
    assert_eq!(held(&engine), 0);
    let usage = engine.kv_usage();
    assert_eq!((usage.blocks_total, usage.blocks_free()), (3 * 300usize.div_ceil(64), 15));
    let error = engine.fork(0, 1, 1).unwrap_err();
    assert_eq!(error, RunError::NotHeld { slot: 0, held: 0, len: 1 });
    assert_eq!(engine.fork(0, 0, 0), Err(RunError::SlotTwice { slot: 0 }));
    assert_eq!(engine.fork(0, 3, 0), Err(RunError::UnknownSlot { slot: 3, max_slots: 3 }));
}

#[test]
fn fewer_bits_take_less_memory() {
    let bytes = |kind| with_kv("plain", kind, None).kv_usage().bytes_per_token();
    let (whole, half) = (bytes(KvType::F32), bytes(KvType::F16));
    assert_eq!(whole, 2 * half);
    assert!((half / 2 + 1..half).contains(&bytes(KvType::Int8)), "levels and their scales");
    assert_eq!(LlmEngine::open(&built("plain")).unwrap().kv_usage().bytes_per_token(), half);
}

#[test]
fn a_budget_holds_and_refusals_change_nothing() {
    let block = with_kv("plain", KvType::F16, None).kv_usage().block_bytes;
    let mut engine = with_kv("plain", KvType::F16, Some(3 * block as u64 + 5));
    engine.prefill(0, &text(&[1; 64])).unwrap();
    engine.prefill(1, &text(&[1; 64])).unwrap();
    let full = |more, held| RunError::KvFull { more, held, total: 3 };
    assert_eq!(engine.prefill(2, &text(&[1; 65])), Err(full(2, 2)));
    assert_eq!(engine.decode(&[(0, 1), (1, 1)]), Err(full(2, 2)));
    assert_eq!((engine.held(0), engine.held(1), engine.held(2)), (64, 64, 0));
    engine.decode(&[(0, 1)]).unwrap();
    let error = engine.decode(&[(1, 1)]).unwrap_err();
    assert_eq!(error, full(1, 3));
    assert!(error.to_string().contains("3 of 3 are held") && !error.to_string().contains('\n'));
    engine.release(0);
    engine.decode(&[(1, 1)]).unwrap();
}
