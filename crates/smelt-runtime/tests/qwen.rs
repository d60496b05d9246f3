//! Builds tiny Qwen-VL models from their checkpoints, deploys them over several grids, and wants the
//! answers of transformers about pictures and a clip.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use smelt_engine::BACKENDS;
use smelt_model::grid::Grid;
use smelt_runtime::deployment::{Deployment, ModelFamily};
use smelt_runtime::generate::{Request, SamplingParams, generate};
use smelt_runtime::generation::Constraint;
use smelt_runtime::image::{Image, MediaItem};
use smelt_runtime::prepare::Question;
use smelt_runtime::prompt::{PromptPart, Turn};
use smelt_runtime::sampling::Settings;
use smelt_runtime::service::{Client, Event, Options, Priority, Request as Asked, Service};
use smelt_runtime::template::Context;

use crate::frames::frames;

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

/// Engines of one set of weights for all sizes of the goldens, and two that nothing asks for.
fn deploy(name: &str, family: ModelFamily, dir: &Path) -> PathBuf {
    let mut grids = vec![Grid { height: 8, width: 8 }, Grid { height: 64, width: 64 }];
    for [height, width] in goldens(name).into_iter().flat_map(|golden| golden.sizes) {
        let grid = Grid { height, width };
        if !grids.contains(&grid) {
            grids.push(grid);
        }
    }
    crate::tiny::qwen(name, family, &grids, dir)
}

fn picture(name: &str) -> Image {
    Image::open(&data("preprocess").join(name)).unwrap()
}

/// The turn and what it shows.
fn conversation(golden: &Golden) -> (Turn, Vec<MediaItem>) {
    if let Some(clip) = &golden.clip {
        let clip = MediaItem::clip(frames(&picture(clip), golden.frames), golden.fps).unwrap();
        let parts = [PromptPart::Text("w7"), PromptPart::Clip, PromptPart::Text("w100")];
        return (Turn::from_parts("user", &parts).unwrap(), vec![clip]);
    }
    let mut parts = vec![PromptPart::Text("w7 w9")];
    for _ in &golden.pictures {
        parts.extend([PromptPart::Image, PromptPart::Text("w30")]);
    }
    parts.push(PromptPart::Text("w100 w101"));
    let shown = golden.pictures.iter().map(|name| picture(name).into()).collect();
    (Turn::from_parts("user", &parts).unwrap(), shown)
}

fn sampling_params() -> SamplingParams {
    let sampling = Settings { top_logprobs: Some(5), ..Settings::GREEDY };
    SamplingParams { sampling, ignore_eos: true, ..SamplingParams::greedy(12) }
}

#[track_caller]
fn check(name: &str, family: ModelFamily) {
    let dir = tempfile::tempdir().unwrap();
    let deployed = deploy(name, family, dir.path());
    let mut deployment = Deployment::open(BACKENDS, &deployed).unwrap();
    deployment.verify_digests(&mut |_| {}).unwrap();
    let context = &Context::default();
    for golden in goldens(name) {
        let (turn, shown) = conversation(&golden);
        let (turns, sampling_params) = (&[turn], &sampling_params());
        let question =
            Question { turns, shown: &shown, context, answer_max: None, now_s: 0, reuse: None };
        assert_eq!(deployment.text.prepare(&question).unwrap().tokens, golden.ids);
        let request = Request { turns, shown: &shown, context, sampling_params, now_s: 0 };
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
    let deployment = Deployment::open(BACKENDS, deployed).unwrap();
    let service = Service::start(deployment, Options::default()).unwrap();
    let context = &Context::default();
    let ask = |golden: &Golden| {
        let (turn, shown) = conversation(golden);
        let question = Question {
            turns: &[turn],
            shown: &shown,
            context,
            answer_max: None,
            now_s: 0,
            reuse: None,
        };
        let prepared = service.text().prepare(&question).unwrap();
        let (constraint, priority) = (Constraint::default(), Priority::Normal);
        let choice_params = vec![sampling_params()];
        service
            .submit(Asked {
                client: Client::default(),
                prepared,
                choice_params,
                constraint,
                priority,
                deadline: None,
                scored: None,
            })
            .unwrap()
    };
    for _ in 0..2 {
        let event_streams: Vec<_> = goldens.iter().map(ask).collect();
        for (mut events, golden) in event_streams.into_iter().zip(goldens) {
            let mut said = Vec::new();
            while let Some(event) = events.wait() {
                match event {
                    Event::Emitted { tokens, .. } => said.extend(tokens.iter().map(|t| t.token)),
                    Event::Failed(failure) => panic!("{failure}"),
                    Event::Looking { .. }
                    | Event::Read { .. }
                    | Event::Scored { .. }
                    | Event::Ended { .. } => {}
                }
            }
            assert_eq!(said, golden.said);
        }
    }
}

#[test]
fn qwen2_vl_answers_as_transformers_does() {
    check("qwen2_vl-tiny", ModelFamily::QWEN2_VL);
}

#[test]
fn qwen2_5_vl_answers_as_transformers_does() {
    check("qwen2_5_vl-tiny", ModelFamily::QWEN2_5_VL);
}

#[test]
fn qwen3_vl_answers_as_transformers_does() {
    check("qwen3_vl-tiny", ModelFamily::QWEN3_VL);
}
