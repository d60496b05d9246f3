//! Builds tiny SmolVLM2 models from their checkpoints, deploys them, and wants the tiles and the answers of
//! transformers.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use smelt_backend::{KvOptions, KvType};
use smelt_engine::BACKENDS;
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::safetensors::Reader;
use smelt_model::{export, synthetic};
use smelt_runtime::deployment::{Deployment, FORMAT, ModelFamily, Serving, Spec, eos_tokens};
use smelt_runtime::generate::{Request, SamplingParams, generate};
use smelt_runtime::image::{
    By, Cutting, Detail, Grid, Image, ImageOptions, ImageProcessor, MediaItem, PreprocessorConfig,
    Size, TooLong,
};
use smelt_runtime::prepare::Question;
use smelt_runtime::prompt::{ImageTokens, PromptPart, Turn};
use smelt_runtime::sampling::Settings;
use smelt_runtime::template::Context;
use smelt_runtime::tokenizer::Tokenizer;
use tempfile::TempDir;

use crate::frames::frames;
use crate::photographs::{Asked, ask, decoded};

/// Largest error of a logarithm.
const TOLERANCE: f32 = 1e-4;

/// What the published template does of pictures and clips, and nothing else.
const TEMPLATE: &str = "{%- for message in messages -%}{%- for part in message.content -%}\
    {%- if part.type == 'image' -%}<image>{%- elif part.type == 'video' -%}<video>\
    {%- else -%}{{ part.text }} {% endif -%}{%- endfor -%}{%- endfor -%}";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

fn golden<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let text = fs::read_to_string(data("smolvlm-tiny").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn picture(name: &str) -> Image {
    Image::open(&data("preprocess").join(name)).unwrap()
}

/// How the models of `checkpoint` cut pictures, as a deployment of it says.
fn cutting(checkpoint: &Checkpoint, config: &PreprocessorConfig) -> Cutting {
    let input = checkpoint.vision().unwrap().input().unwrap();
    Cutting::of_model(ModelFamily::SMOLVLM, input, config, config).unwrap()
}

fn spec(image: Cutting, eos: Vec<u32>) -> Spec {
    Spec {
        format: FORMAT,
        family: ModelFamily::SMOLVLM,
        model: "smolvlm-tiny".to_owned(),
        vision: Some("../vision".into()),
        llm: "../llm".into(),
        image: Some(image),
        router: None,
        clip: None,
        image_tokens: ImageTokens::of(ModelFamily::SMOLVLM),
        places_per_second: None,
        eos,
        serving: Serving::default(),
        verified: None,
    }
}

/// Engines of the golden model in f32, whose pictures have so many tiles along an edge, and the deployment's directory.
fn deploy(along: usize, dir: &Path) -> PathBuf {
    let checkpoint = Checkpoint::open(&data("smolvlm-tiny").join("checkpoint")).unwrap();
    let quiet = &mut |_: &str| {};
    export::vision(&checkpoint, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    graph::build(&dir.join("onnx"), Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 512, max_slots: 1 };
    llm::build(&checkpoint, limits, &dir.join("llm"), quiet).unwrap();
    let words = fs::read_to_string(data("smolvlm-tiny").join("words.json")).unwrap();
    let files = [("tokenizer.json", words), ("chat_template.jinja", TEMPLATE.to_owned())];
    let files = files.map(|(file, text)| {
        fs::write(dir.join(file), text).unwrap();
        dir.join(file)
    });
    let longest_edge = Some(along * 18);
    let config = PreprocessorConfig { longest_edge, ..PreprocessorConfig::default() };
    let spec = spec(cutting(&checkpoint, &config), vec![249]);
    Deployment::write(&dir.join("deployment"), &spec, &files).unwrap();
    dir.join("deployment")
}

#[derive(Deserialize)]
struct Answer {
    pictures: Vec<String>,
    ids: Vec<u32>,
    said: Vec<u32>,
    top: Vec<Vec<(u32, f32)>>,
}

#[test]
fn smolvlm_answers_as_transformers_does() {
    let dir = TempDir::new().unwrap();
    let kv = KvOptions { kind: Some(KvType::F32), ..KvOptions::default() };
    let mut deployment = Deployment::open_with(BACKENDS, &deploy(2, dir.path()), kv).unwrap();
    deployment.verify_digests(&mut |_| {}).unwrap();
    let context = &Context::default();
    let answers: Vec<Answer> = golden("answers.json");
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let mut parts = vec![PromptPart::Text("w7 w9")];
        for _ in &answer.pictures {
            parts.extend([PromptPart::Image, PromptPart::Text("w30")]);
        }
        parts.push(PromptPart::Text("w100 w101"));
        let turns = &[Turn::from_parts("user", &parts).unwrap()];
        let shown: Vec<MediaItem> =
            answer.pictures.iter().map(|name| picture(name).into()).collect();
        let question =
            Question { turns, shown: &shown, context, answer_max: None, now_s: 0, reuse: None };
        assert_eq!(deployment.text.prepare(&question).unwrap().tokens, answer.ids);
        let sampling = Settings { top_logprobs: Some(5), ..Settings::GREEDY };
        let sampling_params =
            &SamplingParams { sampling, ignore_eos: true, ..SamplingParams::greedy(12) };
        let request = Request { turns, shown: &shown, context, sampling_params, now_s: 0 };
        let found = generate(&mut deployment, &request, &mut |_| {}).unwrap();
        assert_eq!(found.tokens, answer.said);
        for (found, expect) in found.logprobs.iter().zip(&answer.top) {
            for ((_, found), (_, expect)) in found.top.iter().zip(expect) {
                assert!((found - expect).abs() < TOLERANCE, "{found} and {expect}");
            }
        }
    }
}

#[derive(Deserialize)]
struct Split {
    tensor: String,
    file: String,
    side: usize,
    along: usize,
    rows: usize,
    columns: usize,
}

fn floats(name: &str) -> Vec<f32> {
    let reader = Reader::open(&data("smolvlm-tiny").join("split.safetensors")).unwrap();
    let tensor = reader.get(name).unwrap();
    let mut bytes = vec![0; tensor.elements() * 4];
    reader.read_at(tensor, 0, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn pictures_become_the_same_tiles_to_the_bit() {
    let checkpoint = Checkpoint::open(&data("smolvlm-tiny").join("checkpoint")).unwrap();
    let table: Vec<Split> = golden("split.json");
    assert_eq!(table.len(), 12);
    for Split { tensor, file, side, along, rows, columns } in table {
        let longest_edge = Some(along * side);
        let config = PreprocessorConfig { longest_edge, ..PreprocessorConfig::default() };
        let size = Size { height: side, width: side };
        let image_processor = ImageProcessor {
            cutting: cutting(&checkpoint, &config),
            grids: vec![Grid { size, tokens: 4 }],
            router: None,
        };
        assert_eq!(image_processor.fault(), None);
        let picture = picture(&file);
        let score =
            &|_: By, _: &[Vec<u8>], _: usize| -> Result<Vec<f32>, TooLong> { unreachable!() };
        let options = ImageOptions::default();
        let plan = image_processor.plan(&picture, &options, score).unwrap();
        let view = image_processor.view(&picture, &plan);
        assert_eq!(view.parts.len(), rows * columns + 1, "{tensor}");
        assert_eq!(view.tokens, 4 * view.parts.len(), "{tensor}");
        let numbers =
            view.parts.iter().flat_map(|part| part.numbers(&image_processor.cutting, size));
        assert!(numbers.collect::<Vec<f32>>() == floats(&tensor), "{tensor}");

        // Fewer tokens from one wish to the next, down to the picture by itself.
        assert_eq!(image_processor.cost(picture.size(), &options), Ok(view.tokens));
        let mut tokens = view.tokens;
        for (options, fewer) in image_processor.lower(picture.size(), &options, &plan) {
            assert!(fewer < tokens, "{tensor}");
            let plan = image_processor.plan(&picture, &options, score).unwrap();
            assert_eq!(image_processor.tokens(&plan), fewer, "{tensor}");
            tokens = fewer;
        }
        assert_eq!(tokens, 4, "{tensor}");
        let low = ImageOptions { detail: Detail::Low, ..options };
        assert_eq!(image_processor.cost(picture.size(), &low), Ok(4));
    }
}

#[test]
fn clips_are_told_of_and_their_frames_have_times() {
    let dir = TempDir::new().unwrap();
    let deployment = Deployment::open(BACKENDS, &deploy(2, dir.path())).unwrap();
    let frames = frames(&picture("lettering-300x80.png"), 3);
    let clip = MediaItem::clip(frames, 0.5).unwrap();
    let parts = [PromptPart::Text("w7"), PromptPart::Clip, PromptPart::Text("w100")];
    let (turns, context) = (&[Turn::from_parts("user", &parts).unwrap()], &Context::default());
    let question =
        Question { turns, shown: &[clip], context, answer_max: None, now_s: 0, reuse: None };
    let prepared = deployment.text.prepare(&question).unwrap();
    let seen: Vec<usize> = prepared.views.iter().map(|view| view.tokens).collect();
    assert_eq!((seen, prepared.seen.tokens), (vec![4; 3], 12));
    let tokenizer = &deployment.text.tokenizer;
    let intro =
        "You are provided the following series of three frames from a 0:00:06 [H:MM:SS] video.\n";
    let frame = |at: &str| {
        let image = "<image>".repeat(4);
        let mark = "<fake_token_around_image>";
        format!("\nFrame from {at}:{mark}<global-img>{image}{mark}")
    };
    let all = ["00:00", "00:02", "00:04"].map(frame).concat();
    let expect = tokenizer.encode(&format!("w7 {intro}{all}\n\nw100 ")).unwrap();
    assert_eq!(prepared.tokens, expect);
}

#[test]
fn a_synthetic_smolvlm_in_eight_bits_answers_pictures_of_all_shapes() {
    let dir = TempDir::new().unwrap();
    let (from, quantised) = (dir.path().join("checkpoint"), dir.path().join("int8"));
    let quiet = &mut |_: &str| {};
    synthetic::write("smolvlm-tiny", &from, quiet).unwrap();
    let checkpoint = Checkpoint::open(&from).unwrap();
    let at = |name: &str| dir.path().join(name);
    export::vision(&checkpoint, Dtype::F16, &at("onnx"), quiet).unwrap();
    graph::build(&at("onnx"), Precision::Int8, &at("vision"), quiet).unwrap();
    quantize::quantize(&checkpoint, &Options::plain(Scheme::Int8), &quantised, quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 1536, max_slots: 1 };
    llm::build(&Checkpoint::open(&quantised).unwrap(), limits, &at("llm"), quiet).unwrap();
    let files = ["tokenizer.json", "tokenizer_config.json"].map(|file| from.join(file));
    let eos = eos_tokens(&from, &Tokenizer::open(&files[0]).unwrap()).unwrap();
    let config = PreprocessorConfig::of_checkpoint(&from).unwrap();
    let spec = spec(cutting(&checkpoint, &config), eos);
    Deployment::write(&at("deployment"), &spec, &files).unwrap();

    let decoded = decoded();
    let all: Vec<Asked<'_>> =
        decoded.iter().map(|(name, picture)| (&name[..], vec![picture])).collect();
    assert_eq!(ask(&at("deployment"), None, &all), 0, "the usual context holds each");
    let smaller = ask(&at("deployment"), Some(64), &all);
    assert!(smaller > 15, "{smaller}");
}
