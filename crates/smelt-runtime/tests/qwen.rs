//! Builds tiny Qwen-VL models from their checkpoints, deploys them over several grids, and wants the
//! answers of transformers about pictures and a clip.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod frames;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use smelt_engine::{llm, vision};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::grid::Grid;
use smelt_runtime::deployment::{Deployment, FORMAT, Family, Spec};
use smelt_runtime::generate::{Manner, Request, generate};
use smelt_runtime::image::{Cutting, Patching, Picture, Scale, Shown};
use smelt_runtime::prepare::Question;
use smelt_runtime::prompt::{ImageTokens, Part, Turn};
use smelt_runtime::sampling::Settings;
use smelt_runtime::service::{Event, Options, Priority, Request as Asked, Service};
use smelt_runtime::speaker::Form;
use smelt_runtime::template::Context;

use frames::frames;

/// Largest error of a logarithm.
const TOLERANCE: f32 = 2e-3;

#[derive(Clone, Deserialize)]
struct Golden {
    #[serde(default)]
    pictures: Vec<String>,
    clip: Option<String>,
    #[serde(default)]
    frames: usize,
    #[serde(default)]
    fps: f64,
    sizes: Vec<[usize; 2]>,
    ids: Vec<u32>,
    said: Vec<u32>,
    top: Vec<Vec<(u32, f32)>>,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

fn goldens(name: &str) -> Vec<Golden> {
    let text = fs::read_to_string(data(name).join("answers.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What Qwen's template does of pictures, and nothing else.
const TEMPLATE: &str = "{%- for message in messages -%}{%- for part in message.content -%}\
    {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>\
    {%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>\
    {%- else -%}{{ part.text }} {% endif -%}{%- endfor -%}{%- endfor -%}";

fn spec(family: Family) -> Spec {
    let word = |word: &str| format!("<|{word}|>");
    let scale = if family == Family::Qwen3Vl { Scale::HALVES } else { Scale::CLIP };
    Spec {
        format: FORMAT,
        family,
        model: "qwen-tiny".to_owned(),
        vision: "../vision".to_owned(),
        llm: "../llm".to_owned(),
        image: Cutting::Patches(Patching {
            patch: 4,
            merge: 2,
            frames: 2,
            min_pixels: 256,
            max_pixels: 1600,
            clip: None,
            scale,
        }),
        router: None,
        clip: None,
        image_tokens: ImageTokens {
            start: word("vision_start"),
            image: word("image_pad"),
            end: word("vision_end"),
            video: Some(word("video_pad")),
        },
        places_per_second: (family == Family::Qwen25Vl).then_some(2),
        eos: vec![249],
    }
}

/// Engines of one set of weights for all sizes of the goldens, and two that nothing asks for.
fn deploy(name: &str, family: Family, dir: &Path) -> PathBuf {
    let checkpoint = Checkpoint::open(&data(name).join("checkpoint")).unwrap();
    let mut grids = vec![Grid { height: 8, width: 8 }, Grid { height: 64, width: 64 }];
    for [height, width] in goldens(name).into_iter().flat_map(|golden| golden.sizes) {
        let grid = Grid { height, width };
        if !grids.contains(&grid) {
            grids.push(grid);
        }
    }
    let quiet = &mut |_: &str| {};
    export::vision_on(&checkpoint, &grids, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    vision::build(&dir.join("onnx"), vision::Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 256, max_slots: 4 };
    llm::build(&checkpoint, limits, &dir.join("llm"), quiet).unwrap();
    // Words `w0` to `w248`, and the special tokens of pictures where the models have them.
    let words = fs::read_to_string(data("qwen-words.json")).unwrap();
    let files = [("tokenizer.json", words), ("chat_template.jinja", TEMPLATE.to_owned())];
    let files = files.map(|(file, text)| {
        fs::write(dir.join(file), text).unwrap();
        dir.join(file)
    });
    Deployment::write(&dir.join("deployment"), &spec(family), &files).unwrap();
    dir.join("deployment")
}

fn picture(name: &str) -> Picture {
    Picture::open(&data("preprocess").join(name)).unwrap()
}

/// The turn and what it shows.
fn conversation(golden: &Golden) -> (Turn, Vec<Shown>) {
    if let Some(clip) = &golden.clip {
        let clip = Shown::clip(frames(&picture(clip), golden.frames), golden.fps).unwrap();
        let parts = [Part::Text("w7"), Part::Clip, Part::Text("w100")];
        return (Turn::from_parts("user", &parts).unwrap(), vec![clip]);
    }
    let mut parts = vec![Part::Text("w7 w9")];
    for _ in &golden.pictures {
        parts.extend([Part::Picture, Part::Text("w30")]);
    }
    parts.push(Part::Text("w100 w101"));
    let shown = golden.pictures.iter().map(|name| picture(name).into()).collect();
    (Turn::from_parts("user", &parts).unwrap(), shown)
}

fn manner() -> Manner {
    let sampling = Settings { top_logprobs: Some(5), ..Settings::GREEDY };
    Manner { sampling, ignore_eos: true, ..Manner::greedy(12) }
}

#[track_caller]
fn check(name: &str, family: Family) {
    let dir = tempfile::tempdir().unwrap();
    let deployed = deploy(name, family, dir.path());
    let mut deployment = Deployment::open(&deployed).unwrap();
    deployment.verify_digests().unwrap();
    let context = &Context::default();
    for golden in goldens(name) {
        let (turn, shown) = conversation(&golden);
        let (turns, manner) = (&[turn], &manner());
        let question = Question { turns, shown: &shown, context, now_s: 0 };
        assert_eq!(deployment.text.prepare(&question).unwrap().tokens, golden.ids);
        let request = Request { turns, shown: &shown, context, manner, now_s: 0 };
        let answer = generate(&mut deployment, &request, &mut |_| {}).unwrap();
        assert_eq!(answer.tokens, golden.said, "{name}");
        for (found, expect) in answer.logprobs.iter().zip(&golden.top) {
            for ((_, found), (_, expect)) in found.top.iter().zip(expect) {
                assert!((found - expect).abs() < TOLERANCE, "{name}: {found} and {expect}");
            }
        }
    }
    served(&deployed, &goldens(name));
}

/// A service reads prompts in pieces and shares their beginnings; it must say the same.
fn served(deployed: &Path, goldens: &[Golden]) {
    let deployment = Deployment::open(deployed).unwrap();
    let service = Service::start(deployment, Options::default()).unwrap();
    let context = &Context::default();
    let ask = |golden: &Golden| {
        let (turn, shown) = conversation(golden);
        let question = Question { turns: &[turn], shown: &shown, context, now_s: 0 };
        let prepared = service.text().prepare(&question).unwrap();
        let (form, priority) = (Form::default(), Priority::Normal);
        let manners = vec![manner()];
        service
            .submit(Asked { prepared, manners, form, priority, deadline: None, scored: None })
            .unwrap()
    };
    for _ in 0..2 {
        let tickets: Vec<_> = goldens.iter().map(ask).collect();
        for (mut ticket, golden) in tickets.into_iter().zip(goldens) {
            let mut said = Vec::new();
            while let Some(event) = ticket.wait() {
                match event {
                    Event::Said { tokens, .. } => said.extend(tokens.iter().map(|t| t.token)),
                    Event::Failed(failure) => panic!("{failure}"),
                    Event::Read { .. } | Event::Scored { .. } | Event::Ended { .. } => {}
                }
            }
            assert_eq!(said, golden.said);
        }
    }
}

#[test]
fn qwen2_5_vl_answers_as_transformers_does() {
    check("qwen2_5_vl-tiny", Family::Qwen25Vl);
}

#[test]
fn qwen3_vl_answers_as_transformers_does() {
    check("qwen3_vl-tiny", Family::Qwen3Vl);
}
