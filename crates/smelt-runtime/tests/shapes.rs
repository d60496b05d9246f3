//! Asks the models of shapes what PyTorch was asked, and wants the same answers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_engine::{llm, vision};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_runtime::deployment::{Deployment, FORMAT, Family, Spec, eos_tokens};
use smelt_runtime::generate::{Manner, Request, generate};
use smelt_runtime::image::{self, Cutting, Picture, Scale, Tiling};
use smelt_runtime::prompt::{ImageTokens, Turn};
use smelt_runtime::template::Context;
use smelt_runtime::tokenizer::Tokenizer;
use smelt_shapes::{Sample, Shown, Split};

/// Questions asked of each sample: as many as `smelt-shapes prompts` writes.
const QUESTIONS: usize = 2;

/// Prompts of each model where `SMELT_SOAK` does not ask for all 500.
const PROMPTS: usize = 40;

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Engines in f32 of the weights as they are.
fn deploy(from: &Path, dir: &Path) -> Deployment {
    let ckpt = Checkpoint::open(from).unwrap();
    let quiet = &mut |_: &str| {};
    export::vision(&ckpt, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    vision::build(&dir.join("onnx"), vision::Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 320, max_slots: 1 };
    llm::build(&ckpt, limits, &dir.join("llm"), quiet).unwrap();
    let files = ["tokenizer.json", "tokenizer_config.json"].map(|name| from.join(name));
    let spec = Spec {
        format: FORMAT,
        family: Family::InternVl3,
        model: "shapes-vl".to_owned(),
        vision: "../vision".to_owned(),
        llm: "../llm".to_owned(),
        image: Cutting::Tiles(Tiling {
            image_size: 96,
            min_tiles: 1,
            max_tiles: 4,
            use_thumbnail: true,
            scale: Scale::IMAGENET,
        }),
        router: None,
        image_tokens: ImageTokens {
            start: "<img>".to_owned(),
            image: "<IMG_CONTEXT>".to_owned(),
            end: "</img>".to_owned(),
            video: None,
        },
        places_per_second: None,
        eos: eos_tokens(from, &Tokenizer::open(&files[0]).unwrap()).unwrap(),
    };
    Deployment::write(&dir.join("deployment"), &spec, &files).unwrap();
    Deployment::open(&dir.join("deployment")).unwrap()
}

/// The held-out samples' pictures and questions, in the order of `smelt-shapes prompts`.
fn prompts() -> impl Iterator<Item = (Vec<Picture>, String)> {
    (0..).flat_map(|index| {
        let sample = Sample::new(Split::HeldOut, index, Shown::of(index));
        let picture = |canvas: &smelt_shapes::Canvas| {
            Picture::from_rgb(canvas.width, canvas.height, canvas.rgb.clone()).unwrap()
        };
        let pictures: Vec<Picture> = sample.pictures.iter().map(picture).collect();
        let questions = sample.questions.into_iter().take(QUESTIONS);
        questions.map(move |question| (pictures.clone(), question.text)).collect::<Vec<_>>()
    })
}

#[track_caller]
fn answers_are_those_of_pytorch(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = deploy(&checkpoint(name), dir.path());
    let golden = fs::read_to_string(checkpoint(name).join("answers.jsonl")).unwrap();
    let count = if std::env::var_os("SMELT_SOAK").is_some() { usize::MAX } else { PROMPTS };
    let mut asked = 0;
    for (line, (pictures, question)) in golden.lines().zip(prompts()).take(count) {
        let golden: Value = serde_json::from_str(line).unwrap();
        assert_eq!(golden["question"], question);
        let turns = [Turn::from_marked("user", &question, pictures.len()).unwrap()];
        let manner = Manner::greedy(64);
        let shown: Vec<_> = pictures.into_iter().map(image::Shown::from).collect();
        let (context, manner) = (&Context::default(), &manner);
        let request = Request { turns: &turns, shown: &shown, context, manner, now_s: 0 };
        let said = generate(&mut deployment, &request, &mut |_| {}).unwrap();
        assert_eq!(golden["tokens"], serde_json::json!(said.tokens), "{question} {}", said.text);
        asked += 1;
    }
    assert!(asked >= PROMPTS && golden.lines().count() == 500);
}

#[test]
fn in_the_layout_of_internvl3() {
    answers_are_those_of_pytorch("shapes-vl");
}

#[test]
fn in_the_layout_of_internvl3_5() {
    answers_are_those_of_pytorch("shapes-vl-3_5");
}
