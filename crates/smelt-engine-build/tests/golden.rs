//! Holds the engines to numbers that transformers computed for tiny models of every family.
//!
//! The whole native path runs: checkpoint, export, quantisation, build, open, encode, prefill,
//! decode.

use std::path::{Path, PathBuf};

use smelt_engine::llm::{ImageEmbeds, KvOptions, KvType, Limits, LlmEngine, Prompt, RunError};
use smelt_engine::vision::{self, VisionEngine};
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::position_ids::PositionId;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::reference;
use smelt_model::safetensors::Reader;
use tempfile::TempDir;

/// `<IMG_CONTEXT>` of the tiny tokenizer.
pub(super) const IMAGE_TOKEN: u32 = 383;
/// Largest error of f32 arithmetic, as a part of the largest value.
const F32_TOLERANCE: f32 = 5e-5;
pub(super) const LIMITS: Limits = Limits { max_seq_len: 128, max_slots: 2 };

/// The folders of the two families of decoders.
const QWEN2: &str = "internvl3-tiny";
const QWEN3: &str = "internvl3_5-tiny";

pub(super) fn golden_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

/// Numbers of a golden, and the checkpoint that they are of.
pub(super) struct Golden {
    file: Reader,
    pub(super) checkpoint: Checkpoint,
    pub(super) dir: TempDir,
}

impl Golden {
    pub(super) fn open(name: &str) -> Self {
        Self::open_file(name, "golden.safetensors")
    }

    pub(super) fn open_file(name: &str, file: &str) -> Self {
        let file = Reader::open(&golden_dir(name).join(file)).unwrap();
        let checkpoint = Checkpoint::open(&golden_dir(name).join("checkpoint")).unwrap();
        Self { file, checkpoint, dir: TempDir::new().unwrap() }
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let tensor = self.file.get(name).unwrap();
        let count: usize = tensor.shape.iter().product();
        let mut bytes = vec![0; count * tensor.dtype.size_bytes()];
        self.file.read_at(tensor, 0, &mut bytes).unwrap();
        bytes
    }

    pub(super) fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    pub(super) fn ids(&self, name: &str) -> Vec<u32> {
        let bytes = self.bytes(name);
        let ids = bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b));
        ids.map(|id| u32::try_from(id).unwrap()).collect()
    }

    fn vision(&self, dtype: Dtype) -> VisionEngine {
        self.vision_as(dtype, Precision::F32)
    }

    fn vision_as(&self, dtype: Dtype, precision: Precision) -> VisionEngine {
        let (onnx, engine) = (self.dir.path().join("onnx"), self.dir.path().join("vision"));
        export::vision(&self.checkpoint, dtype, &onnx, &mut |_| {}).unwrap();
        graph::build(&onnx, precision, &engine, &mut |_| {}).unwrap();
        vision::open(&engine).unwrap()
    }

    fn llm(&self) -> LlmEngine {
        let engine = self.dir.path().join("llm");
        llm::build(&self.checkpoint, LIMITS, &engine, &mut |_| {}).unwrap();
        exact(&engine)
    }

    fn llm_int8(&self) -> LlmEngine {
        let (quantised, engine) = (self.dir.path().join("int8"), self.dir.path().join("llm-int8"));
        quantize::quantize(
            &self.checkpoint,
            &Options::plain(Scheme::Int8),
            &quantised,
            &mut |_| {},
        )
        .unwrap();
        let checkpoint = Checkpoint::open(&quantised).unwrap();
        llm::build(&checkpoint, LIMITS, &engine, &mut |_| {}).unwrap();
        exact(&engine)
    }
}

/// An engine that keeps keys and values as they are.
fn exact(dir: &Path) -> LlmEngine {
    with_kv(dir, KvType::F32)
}

fn with_kv(dir: &Path, kind: KvType) -> LlmEngine {
    LlmEngine::open_with(dir, KvOptions { kind: Some(kind), ..KvOptions::default() }).unwrap()
}

/// Largest error as a part of the largest expected value.
pub(super) fn error(got: &[f32], expect: &[f32]) -> f32 {
    assert_eq!(got.len(), expect.len());
    let scale = expect.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
    let apart = got.iter().zip(expect).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, f32::max) / scale
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn greedy(engine: &mut LlmEngine, prompt: &Prompt<'_>, count: usize) -> Vec<u32> {
    let best = |logits: &[f32]| {
        let top = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        u32::try_from(top.0).unwrap()
    };
    let mut tokens = vec![best(&engine.prefill(0, prompt).unwrap())];
    while tokens.len() < count {
        let logits = engine.decode(&[(0, tokens[tokens.len() - 1])]).unwrap();
        tokens.push(best(&logits[0]));
    }
    engine.release(0);
    tokens
}

#[track_caller]
fn check_vision(name: &str, hidden: usize) {
    let golden = Golden::open(name);
    let (pixels, expect) = (golden.floats("pixel_values"), golden.floats("image_embeds"));
    let engine = golden.vision(Dtype::F32);
    assert_eq!(
        (engine.grid().unwrap().width, engine.tokens_per_tile(), engine.hidden()),
        (56, 4, hidden)
    );
    let found = error(&engine.encode(&pixels, 2).unwrap(), &expect);
    assert!(found <= F32_TOLERANCE, "f32 is off by {found}");
    // Both narrow types hold these bf16 weights (f16 nearly), and arithmetic stays f32: what
    // differs is the graph's scalars, such as √2 in GELU.
    for dtype in [Dtype::F16, Dtype::BF16] {
        let found = error(&golden.vision(dtype).encode(&pixels, 2).unwrap(), &expect);
        assert!(found <= 1e-4, "{dtype} is off by {found}");
    }
}

#[test]
fn image_embeddings_in_eight_bits_stay_close_to_transformers() {
    for (name, hidden) in [(QWEN2, 80), (QWEN3, 64)] {
        let golden = Golden::open(name);
        let (pixels, expect) = (golden.floats("pixel_values"), golden.floats("image_embeds"));
        let got = golden.vision_as(Dtype::F32, Precision::Int8).encode(&pixels, 2).unwrap();
        for (got, expect) in got.chunks_exact(hidden).zip(expect.chunks_exact(hidden)) {
            let cosine = cosine(got, expect);
            println!("{name} image_embeds: cosine {cosine:.5}");
            assert!(cosine >= 0.995, "{name}: cosine {cosine}");
        }
    }
}

#[test]
fn image_embeddings_match_transformers() {
    check_vision(QWEN2, 80);
    check_vision(QWEN3, 64);
}

#[track_caller]
fn check_logits(name: &str) {
    let golden = Golden::open(name);
    let mut engine = golden.llm();
    let embeds = golden.floats("image_embeds");
    let image = Some(ImageEmbeds { token: IMAGE_TOKEN, embeds: &embeds });
    for (ids, logits, image) in
        [("text_ids", "text_logits", None), ("image_ids", "image_logits", image)]
    {
        let ids = golden.ids(ids);
        let prompt = Prompt::plain(&ids, image);
        let found = error(&engine.logits_all(0, &prompt).unwrap(), &golden.floats(logits));
        engine.release(0);
        assert!(found <= F32_TOLERANCE, "{name}: {logits} are off by {found}");
    }
}

#[test]
fn logits_match_transformers_at_every_position() {
    check_logits(QWEN2);
    check_logits(QWEN3);
}

#[track_caller]
fn check_greedy(golden: &Golden, engine: &mut LlmEngine) {
    let embeds = golden.floats("image_embeds");
    let image = Some(ImageEmbeds { token: IMAGE_TOKEN, embeds: &embeds });
    for (ids, expect, image) in
        [("text_ids", "greedy_text_ids", None), ("image_ids", "greedy_image_ids", image)]
    {
        let tokens = golden.ids(ids);
        let prompt = Prompt::plain(&tokens, image);
        assert_eq!(greedy(engine, &prompt, 16), golden.ids(expect), "{ids}");
    }
}

#[test]
fn sixteen_greedy_tokens_match_transformers() {
    let (qwen2, qwen3) = (Golden::open(QWEN2), Golden::open(QWEN3));
    check_greedy(&qwen2, &mut qwen2.llm());
    check_greedy(&qwen3, &mut qwen3.llm());
    // Only Qwen2's answers lead by more than eight bits cost.
    check_greedy(&qwen2, &mut qwen2.llm_int8());
}

#[track_caller]
fn check_int8(name: &str) {
    let golden = Golden::open(name);
    let mut engine = golden.llm_int8();
    let ids = golden.ids("text_ids");
    let prompt = Prompt::plain(&ids, None);
    let got = engine.logits_all(0, &prompt).unwrap();
    let expect = golden.floats("text_logits");
    let vocab = engine.vocab();
    for (position, (got, expect)) in
        got.chunks_exact(vocab).zip(expect.chunks_exact(vocab)).enumerate()
    {
        let cosine = cosine(got, expect);
        assert!(cosine >= 0.995, "{name}, position {position}: cosine {cosine}");
    }
}

#[test]
fn int8_logits_stay_close_to_transformers() {
    check_int8(QWEN2);
    check_int8(QWEN3);
}

#[test]
fn the_whole_path_from_pixels_gives_the_same_tokens() {
    for name in [QWEN2, QWEN3] {
        let golden = Golden::open(name);
        let embeds = golden.vision(Dtype::F32).encode(&golden.floats("pixel_values"), 2).unwrap();
        let image = Some(ImageEmbeds { token: IMAGE_TOKEN, embeds: &embeds });
        let ids = golden.ids("image_ids");
        let prompt = Prompt::plain(&ids, image);
        assert_eq!(greedy(&mut golden.llm(), &prompt, 16), golden.ids("greedy_image_ids"));
    }
}

#[test]
fn the_engine_names_its_family() {
    for (name, family) in [(QWEN2, "qwen2"), (QWEN3, "qwen3")] {
        let golden = Golden::open(name);
        golden.llm();
        let text = std::fs::read_to_string(golden.dir.path().join("llm/engine.json")).unwrap();
        assert!(text.contains(&format!("\"family\": \"{family}\"")), "{text}");
    }
}

/// The text-only checkpoints.
pub(super) const TEXT: [&str; 9] = [
    "qwen2-tiny",
    "qwen2_5-tiny",
    "qwen3-tiny",
    "qwen3-tied-tiny",
    "llama3-tiny",
    "llama3-tied-tiny",
    "qwen3-yarn-tiny",
    "qwen2-yarn-tiny",
    "llama-linear-tiny",
];

#[test]
fn text_models_give_the_logits_of_transformers_prompt_and_step() {
    for name in TEXT {
        let golden = Golden::open_file(name, "cases.safetensors");
        let mut engine = golden.llm();
        for case in ["llm", "llm-step"] {
            let (ids, logits) = (format!("{case}/in/input_ids"), format!("{case}/out/logits"));
            // The second sequence is padded, which engines never are.
            let half = |len: usize| len / 2;
            let (ids, expect) = (golden.ids(&ids), golden.floats(&logits));
            let prompt = Prompt::plain(&ids[..half(ids.len())], None);
            let found = engine.logits_all(0, &prompt).unwrap();
            let off = error(&found, &expect[..half(expect.len())]);
            assert!(off <= F32_TOLERANCE, "{name}: {case} is off by {off}");
        }
    }
}

/// `dynamic` stretches frequencies by the length of the text where that is longer than the model's positions, so
/// what earlier tokens were told would change; engines refuse such texts, and below they are plain.
#[test]
fn dynamic_frequencies_are_those_of_transformers_as_far_as_the_positions_go() {
    let golden = Golden::open_file("llama-dynamic-tiny", "cases.safetensors");
    let dir = golden.dir.path().join("llm");
    let build = |max_seq_len| {
        let limits = Limits { max_seq_len, max_slots: 1 };
        llm::build(&golden.checkpoint, limits, &dir, &mut |_| {}).map_err(|e| e.to_string())
    };
    let refused = build(13).unwrap_err();
    assert!(refused.contains("max_seq_len 13 is more than the model's 12 positions"), "{refused}");
    build(12).unwrap();
    let mut engine = exact(&dir);
    for case in ["llm", "llm-step"] {
        let ids = golden.ids(&format!("{case}/in/input_ids"));
        let expect = golden.floats(&format!("{case}/out/logits"));
        let prompt = Prompt::plain(&ids[..ids.len() / 2], None);
        let off = error(&engine.logits_all(0, &prompt).unwrap(), &expect[..expect.len() / 2]);
        assert!(off <= F32_TOLERANCE, "{case} is off by {off}");
    }
    let beyond = engine.decode(&[(0, 1)]).unwrap_err().to_string();
    assert!(beyond.contains("12"), "{beyond}");
}

#[test]
fn keys_and_values_of_fewer_bits_stay_close_to_transformers() {
    for name in TEXT {
        let golden = Golden::open_file(name, "cases.safetensors");
        golden.llm();
        let ids = golden.ids("llm/in/input_ids");
        let ids = &ids[..ids.len() / 2];
        let expect = golden.floats("llm/out/logits");
        for (kind, tolerance) in [(KvType::F16, 2e-3), (KvType::Int8, 4e-2)] {
            let mut engine = with_kv(&golden.dir.path().join("llm"), kind);
            let found = engine.logits_all(0, &Prompt::plain(ids, None)).unwrap();
            let off = error(&found, &expect[..expect.len() / 2]);
            assert!(off > 0.0 && off <= tolerance, "{name}: {kind:?} is off by {off}");
        }
    }
}

/// A Qwen-VL golden: a prompt with two pictures, whose embeddings come from the tower's cases.
struct ImagePrompt {
    golden: Golden,
    tokens: Vec<u32>,
    image_token: u32,
    embeds: Vec<f32>,
    position_ids: Vec<PositionId>,
    deepstack: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

impl ImagePrompt {
    fn open(name: &str, grids: [&str; 2], blocks: usize) -> Self {
        let golden = Golden::open_file(name, "cases.safetensors");
        let text = std::fs::read_to_string(golden_dir(name).join("prompts.json")).unwrap();
        let prompts: serde_json::Value = serde_json::from_str(&text).unwrap();
        let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let ids = prompts["prompts"][0]["ids"].as_array().unwrap();
        let tokens: Vec<u32> = ids.iter().map(number).collect();
        let rows = |output: &str| -> Vec<f32> {
            grids.map(|grid| golden.floats(&format!("vision-{grid}/out/{output}"))).concat()
        };
        let (embeds, count) = (rows("image_embeds"), tokens.len());
        let deepstack = (0..blocks).map(|block| rows(&format!("deepstack_{block}"))).collect();
        let ids = golden.ids("llm/in/position_ids");
        let position_ids =
            (0..count).map(|at| [0, 1, 2].map(|axis| ids[axis * count + at])).collect();
        let logits = golden.floats("llm/out/logits");
        let image_token = number(&prompts["image_token"]);
        Self { golden, tokens, image_token, embeds, position_ids, deepstack, logits }
    }

    fn prompt(&self) -> Prompt<'_> {
        let image = ImageEmbeds { token: self.image_token, embeds: &self.embeds };
        Prompt {
            tokens: &self.tokens,
            image: Some(image),
            position_ids: Some(&self.position_ids),
            deepstack: &self.deepstack,
        }
    }
}

fn pictures() -> [ImagePrompt; 2] {
    [
        ImagePrompt::open("qwen2_5_vl-tiny", ["40x56", "16x32"], 0),
        ImagePrompt::open("qwen3_vl-tiny", ["24x40", "48x16"], 2),
    ]
}

#[test]
fn tokens_of_three_positions_and_deepstack_are_those_of_transformers() {
    for case in pictures() {
        let mut engine = case.golden.llm();
        let found = engine.logits_all(0, &case.prompt()).unwrap();
        let off = error(&found, &case.logits);
        assert!(off <= F32_TOLERANCE, "off by {off}");
    }
}

/// The reference of smelt-model scores the prompt and a step behind it in one pass.
#[test]
fn a_step_behind_pictures_stands_where_the_largest_place_ends() {
    for case in pictures() {
        let mut engine = case.golden.llm();
        engine.prefill(0, &case.prompt()).unwrap();
        let found = engine.decode(&[(0, 5)]).unwrap().concat();
        let tokens = [&case.tokens[..], &[5]].concat();
        let next = case.position_ids.iter().flatten().max().unwrap() + 1;
        assert!((next as usize) < case.tokens.len(), "pictures take fewer places than tokens");
        let position_ids = [&case.position_ids[..], &[[next; 3]]].concat();
        let prompt = reference::Prompt {
            tokens: &tokens,
            image: Some(reference::PromptEmbeds { token: case.image_token, embeds: &case.embeds }),
            position_ids: Some(&position_ids),
            deepstack: &case.deepstack,
        };
        let last = tokens.len() - 1..tokens.len();
        let expect =
            reference::logits_after(&case.golden.checkpoint, &prompt, last, &mut |_| {}).unwrap();
        let off = error(&found, &expect);
        assert!(off <= F32_TOLERANCE, "off by {off}");
    }
}

#[test]
fn a_prompt_with_pictures_in_two_parts_or_forked_is_the_same() {
    for case in pictures() {
        let mut engine = case.golden.llm();
        let whole = engine.prefill(0, &case.prompt()).unwrap();
        let text = case.tokens.iter().rposition(|token| *token == case.image_token).unwrap() + 1;
        let head = Prompt {
            tokens: &case.tokens[..text],
            position_ids: Some(&case.position_ids[..text]),
            ..case.prompt()
        };
        engine.prefill(1, &head).unwrap();
        engine.fork(1, 0, text).unwrap();
        for slot in [0, 1] {
            let parts = engine.prefill(slot, &Prompt::plain(&case.tokens[text..], None)).unwrap();
            let off = error(&parts, &whole);
            assert!(off <= F32_TOLERANCE, "slot {slot}: off by {off}");
        }
    }
}

#[test]
fn pictures_without_places_or_features_are_refused() {
    for case in pictures() {
        let mut engine = case.golden.llm();
        let (prompt, tokens) = (case.prompt(), case.tokens.len());
        let mut refused = |prompt: Prompt<'_>| engine.prefill(0, &prompt).unwrap_err();
        let found = refused(Prompt { position_ids: None, ..prompt });
        assert_eq!(found, RunError::PlaceCount { tokens, found: 0 });
        let found = refused(Prompt { position_ids: Some(&case.position_ids[1..]), ..prompt });
        assert_eq!(found, RunError::PlaceCount { tokens, found: tokens - 1 });
        let mut far = case.position_ids.clone();
        far[3][1] = u32::MAX;
        let found = refused(Prompt { position_ids: Some(&far), ..prompt }).to_string();
        assert!(found.contains("place 4294967295 of token 3"), "{found}");
        let (layers, numbers) = (case.deepstack.len(), case.embeds.len());
        let short = vec![vec![0.0; numbers]; layers + 1];
        let found = refused(Prompt { deepstack: &short, ..prompt });
        assert_eq!(
            found,
            RunError::FeatureCount { layers, numbers, found: vec![numbers; layers + 1] }
        );
        assert_eq!(engine.held(0), 0);
    }
}
