//! Builds the tiny checkpoint's engines, deploys them, and compares answers with transformers'.

use crate::shapes_model::spec;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_backend::{HostFeatures, KvOptions, KvType};
use smelt_engine::{BACKENDS, vision};
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::grid::Grid;
use smelt_model::safetensors::Reader;
use smelt_runtime::deployment::{Deployment, ModelFamily, Serving, Spec, eos_tokens};
use smelt_runtime::generate::{
    Answer, Encoded, Finish, GenerateError, Request, SamplingParams, answer, generate,
};
use smelt_runtime::image::{
    By, Cutting, Detail, Image, ImageOptions, MediaItem, Router, Tiling, VisionInput,
};
use smelt_runtime::prepare::{PrepareError, Question};
use smelt_runtime::prompt::Turn;
use smelt_runtime::sampling::Settings as Sampling;
use smelt_runtime::service::{Options, Service, StartError, give_what_is_left};
use smelt_runtime::template::{Context, Ending};
use smelt_runtime::tokenizer::Tokenizer;
use smelt_runtime::vision::Embedded;

const MAX_SEQ_LEN: usize = 64;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/internvl3-tiny").join(name)
}

fn spec() -> Spec {
    spec::internvl("internvl3-tiny", 56, vec![380])
}

fn side_files() -> Vec<PathBuf> {
    ["tokenizer.json", "tokenizer_config.json"].map(|name| golden("checkpoint").join(name)).to_vec()
}

/// Engines and a deployment of the tiny checkpoint, in a directory of their own.
fn deploy(dir: &Path) -> PathBuf {
    deploy_on(dir, &[], &spec())
}

fn deploy_on(dir: &Path, grids: &[Grid], spec: &Spec) -> PathBuf {
    let ckpt = Checkpoint::open(&golden("checkpoint")).unwrap();
    let quiet = &mut |_: &str| {};
    export::vision_on(&ckpt, grids, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    graph::build(&dir.join("onnx"), Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: MAX_SEQ_LEN, max_slots: 1 };
    llm::build(&ckpt, limits, &dir.join("llm"), quiet).unwrap();
    let deployed = dir.join("deployment");
    Deployment::write(&deployed, spec, &side_files()).unwrap();
    deployed
}

fn bytes(name: &str) -> Vec<u8> {
    let reader = Reader::open(&golden("golden.safetensors")).unwrap();
    let tensor = reader.get(name).unwrap();
    let mut bytes = vec![0; tensor.elements() * tensor.dtype.size_bytes()];
    reader.read_at(tensor, 0, &mut bytes).unwrap();
    bytes
}

fn floats(name: &str) -> Vec<f32> {
    bytes(name).as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn tokens(name: &str) -> Vec<u32> {
    let words = bytes(name);
    words.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word) as u32).collect()
}

/// What a template is told beside the turns: nothing.
static CONTEXT: Context = Context {
    tools: None,
    documents: None,
    variables: BTreeMap::new(),
    is_markup: false,
    ending: Ending::Reply,
};

fn request<'a>(
    turns: &'a [Turn],
    shown: &'a [MediaItem],
    sampling_params: &'a SamplingParams,
) -> Request<'a> {
    Request { turns, shown, context: &CONTEXT, sampling_params, now_s: 0 }
}

#[test]
fn answers_are_those_of_transformers() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let turns = [Turn::from_marked("user", "Name the shapes and colours.", 0).unwrap()];
    let expect = tokens("greedy_text_ids");
    // Twice: the first answer leaves nothing behind.
    for _ in 0..2 {
        let mut heard = String::new();
        let said = generate(
            &mut deployment,
            &request(&turns, &[], &SamplingParams::greedy(16)),
            &mut |piece| heard += piece,
        )
        .unwrap();
        assert_eq!((said.tokens, said.finish), (expect.clone(), Finish::Length));
        assert_eq!(said.prompt_tokens, tokens("text_ids").len());
        assert_eq!(said.text, deployment.text.tokenizer.decode(&expect, true).unwrap());
        assert_eq!((heard, said.timing.decode_steps), (said.text, 15));
    }
    let engine = vision::open(&dir.path().join("vision")).unwrap();
    let embeds = engine.encode(&floats("pixel_values"), 2).unwrap();
    let features = HostFeatures { embeds, deepstack: Vec::new() }.into_features(8);
    let images = Embedded::from(features);
    let encoded = Encoded { tokens: tokens("image_ids"), images, tiles: 2, ..Encoded::default() };
    let said = answer(&mut deployment, &encoded, &SamplingParams::greedy(16), &mut |_| {}).unwrap();
    assert_eq!(said.tokens, tokens("greedy_image_ids"));
}

#[test]
fn a_picture_becomes_image_tokens_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    // The golden prompt has two tiles of four tokens; a picture of one tile has four fewer tokens.
    let picture = Image::from_rgb(56, 56, vec![90; 56 * 56 * 3]).unwrap();
    let turns = [Turn::from_marked("user", "What is in this picture?", 1).unwrap()];
    let pictures = [MediaItem::from(picture)];
    let said = generate(
        &mut deployment,
        &request(&turns, &pictures, &SamplingParams::greedy(16)),
        &mut |_| {},
    )
    .unwrap();
    assert_eq!((said.tiles, said.prompt_tokens), (1, tokens("image_ids").len() - 4));
}

/// A router of two engines by detail.
fn texture(threshold: f32) -> Router {
    Router { thresholds: vec![threshold], ..Router::default() }
}

/// A picture of two tiles: one of a single colour, one of noise.
fn half_noise() -> Image {
    let noise = |at: usize| ((at * 7919) % 251) as u8;
    let pixel = |at: usize| if at % 112 < 56 { [90; 3] } else { [noise(at); 3] };
    Image::from_rgb(112, 56, (0..112 * 56).flat_map(pixel).collect()).unwrap()
}

#[test]
fn tiles_go_to_the_grids_they_are_worth() {
    let dir = tempfile::tempdir().unwrap();
    let grids = ["28x28", "56x56"].map(|grid| grid.parse().unwrap());
    let spec = Spec { router: Some(texture(20.0)), ..spec() };
    let deployed = deploy_on(dir.path(), &grids, &spec);
    let mut deployment = Deployment::open(BACKENDS, &deployed).unwrap();
    let turns = [Turn::from_marked("user", "What is it?", 1).unwrap()];
    let grids_of = |deployment: &Deployment, image_options: ImageOptions| {
        let shown = [MediaItem::from(half_noise()).with(image_options)];
        let question = Question {
            turns: &turns,
            shown: &shown,
            context: &CONTEXT,
            answer_max: None,
            now_s: 0,
            reuse: None,
        };
        let prepared = deployment.text.prepare(&question).unwrap();
        let places =
            prepared.tokens.iter().filter(|token| Some(**token) == deployment.text.image_token);
        assert_eq!(places.count(), prepared.views.iter().map(|view| view.tokens).sum::<usize>());
        let parts = prepared.views.iter().flat_map(|view| &view.parts);
        parts.map(|part| part.grid).collect::<Vec<_>>()
    };
    let image_options =
        |detail, tokens_max| ImageOptions { detail, tokens_max, ..ImageOptions::default() };
    let sees =
        |image_options, expect: &[usize]| assert_eq!(grids_of(&deployment, image_options), expect);
    // The flat tile, the noise, and both as a thumbnail; a small tile has 1 token, a large one 4.
    sees(image_options(Detail::Auto, None), &[0, 1, 1]);
    sees(image_options(Detail::High, None), &[1, 1, 1]);
    sees(image_options(Detail::Low, None), &[0]);
    sees(image_options(Detail::High, Some(9)), &[0, 1, 1]);
    sees(image_options(Detail::Auto, Some(7)), &[0, 0, 1]);
    sees(ImageOptions { tiles_max: Some(1), ..image_options(Detail::High, None) }, &[1]);
    let shown = [MediaItem::from(half_noise())];
    let said = generate(
        &mut deployment,
        &request(&turns, &shown, &SamplingParams::greedy(4)),
        &mut |_| {},
    );
    assert_eq!(said.unwrap().tokens.len(), 4);
    // The large engine is the one that is alone in other deployments.
    let alone = tempfile::tempdir().unwrap();
    let mut other = Deployment::open(BACKENDS, &deploy(alone.path())).unwrap();
    let part =
        |grid| VisionInput { grid, frames: vec![half_noise().rgb()[..56 * 56 * 3].to_vec()] };
    let [found, expect] = [(&mut deployment, 1), (&mut other, 0)]
        .map(|(deployment, grid)| deployment.vision.as_mut().unwrap().encode(&part(grid)).unwrap());
    let [found, expect] = [found, expect].map(|features| features.to_host().unwrap());
    assert_eq!(found, expect);
}

#[test]
fn an_answer_ends_where_the_engine_does_and_a_longer_prompt_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let prompt = |count| Encoded { tokens: vec![5; count], ..Encoded::default() };
    let said =
        answer(&mut deployment, &prompt(MAX_SEQ_LEN - 2), &SamplingParams::greedy(16), &mut |_| {})
            .unwrap();
    assert_eq!((said.tokens.len(), said.finish), (3, Finish::Full));
    let said =
        answer(&mut deployment, &prompt(MAX_SEQ_LEN), &SamplingParams::greedy(16), &mut |_| {})
            .unwrap();
    assert_eq!((said.tokens.len(), said.finish), (1, Finish::Full));
    let turns = [Turn::from_marked("user", &"word ".repeat(100), 0).unwrap()];
    let error =
        generate(&mut deployment, &request(&turns, &[], &SamplingParams::greedy(16)), &mut |_| {})
            .unwrap_err();
    assert!(
        matches!(error, GenerateError::Prepare(PrepareError::TooLong { max: MAX_SEQ_LEN, .. })),
        "{error}"
    );
    assert!(error.to_string().ends_with("shorten it"), "it shows nothing: {error}");
}

#[test]
fn a_prompt_that_memory_does_not_hold_is_refused_before_pictures_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    deployment.llm.set_kv_bytes_max(0);
    let turns = [Turn::from_marked("user", "a", 0).unwrap()];
    let (sampling_params, heard) = (SamplingParams::greedy(16), &mut |text: &str| panic!("{text}"));
    let error =
        generate(&mut deployment, &request(&turns, &[], &sampling_params), heard).unwrap_err();
    assert!(matches!(error, GenerateError::NoRoom { room: 0, .. }), "{error}");
    assert!(give_what_is_left(&mut *deployment.llm, Some(1)).is_err(), "a cap counts");
    assert!(give_what_is_left(&mut *deployment.llm, None).is_ok(), "a machine has this much");
    assert!(
        generate(&mut deployment, &request(&turns, &[], &sampling_params), &mut |_| {}).is_ok()
    );
}

#[test]
fn a_deployment_is_opened_as_it_says_that_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let kv = Some(KvType::Int8);
    // A service wants room for two blocks, and the engine has one sequence of one.
    let slots = Some(2);
    let serving = Serving { kv, slots, memory_bytes_max: Some(1), ..Serving::default() };
    let deployed = deploy_on(dir.path(), &[], &Spec { serving, ..spec() });
    let opened = |kind| {
        let kv = KvOptions { kind, ..KvOptions::default() };
        Deployment::open_with(BACKENDS, &deployed, kv).unwrap()
    };
    assert_eq!(opened(None).llm.facts().kv, KvType::Int8);
    assert_eq!(opened(Some(KvType::F32)).llm.facts().kv, KvType::F32, "who says so goes before");
    let started = |deployment, memory_max| {
        Service::start(deployment, Options { memory_max, ..Options::default() })
    };
    assert!(matches!(started(opened(None), None), Err(StartError::DoesNotFit(_))));
    assert!(started(opened(None), Some(1 << 40)).is_ok(), "who says so goes before");
    let held = opened(None).with_memory_max(Some(1 << 40));
    assert!(started(held, None).is_ok(), "and whoever opens it");
}

#[test]
fn a_text_far_too_long_is_refused_before_it_is_encoded() {
    let dir = tempfile::tempdir().unwrap();
    let deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let bytes = deployment.text.tokenizer.bytes_max(MAX_SEQ_LEN) + 1;
    let (text, context) = ("a".repeat(bytes), &Context::default());
    let turns = [Turn::from_marked("user", &text, 0).unwrap()];
    let question =
        Question { turns: &turns, shown: &[], context, answer_max: None, now_s: 0, reuse: None };
    let chat = deployment.text.prepare(&question).unwrap_err();
    for error in [chat, deployment.text.prepare_text(&text).unwrap_err()] {
        assert!(matches!(error, PrepareError::TextTooLong { max: MAX_SEQ_LEN, .. }), "{error}");
    }
    assert!(deployment.text.encode(&text[1..], false).is_ok());
}

/// What is said to a fixed prompt as the parameters say, and what was heard of it.
fn said(deployment: &mut Deployment, sampling_params: SamplingParams) -> (Answer, String) {
    let turns = [Turn::from_marked("user", "Name the shapes and colours.", 0).unwrap()];
    let request = request(&turns, &[], &sampling_params);
    let mut heard = String::new();
    let said = generate(deployment, &request, &mut |piece| heard += piece).unwrap();
    (said, heard)
}

#[test]
fn a_seed_draws_the_same_answer_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let mut tokens = |temperature, seed| {
        let sampling = Sampling { temperature, seed, top_p: 0.9, ..Sampling::default() };
        said(&mut deployment, SamplingParams { sampling, ..SamplingParams::greedy(16) }).0.tokens
    };
    let first = tokens(1.0, 7);
    assert_eq!(tokens(1.0, 7), first);
    assert_ne!(tokens(1.0, 8), first);
    assert_eq!(tokens(0.0, 8), tokens(0.0, 7));
}

#[test]
fn an_answer_ends_before_a_stop_string_and_at_a_stop_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let (all, _) = said(&mut deployment, SamplingParams::greedy(16));
    // Every stretch of the text in turn, so that some begin and end inside of tokens.
    let chars: Vec<char> = all.text.chars().collect();
    assert!(chars.len() > 8, "{:?}", all.text);
    for stretch in chars.windows(4) {
        let stops = [stretch.iter().collect::<String>()];
        let sampling_params =
            SamplingParams { stop_strings: stops.to_vec(), ..SamplingParams::greedy(16) };
        let (answer, heard) = said(&mut deployment, sampling_params);
        let end = all.text.find(&stops[0]).unwrap();
        assert_eq!((&answer.text[..], answer.finish), (&all.text[..end], Finish::Text(0)));
        assert_eq!(heard, answer.text);
        assert_eq!(answer.tokens, all.tokens[..answer.tokens.len()]);
    }
    let stop = all.tokens[5];
    let first = all.tokens.iter().position(|token| *token == stop).unwrap();
    let sampling_params = SamplingParams { stop_tokens: vec![stop], ..SamplingParams::greedy(16) };
    let (answer, _) = said(&mut deployment, sampling_params);
    assert_eq!((&answer.tokens[..], answer.finish), (&all.tokens[..first], Finish::Stop));
}

#[test]
fn logprobs_are_told_of_every_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let sampling = Sampling { top_logprobs: Some(2), ..Sampling::default() };
    let (answer, _) =
        said(&mut deployment, SamplingParams { sampling, ..SamplingParams::greedy(16) });
    assert_eq!(answer.logprobs.len(), answer.tokens.len());
    for (token, told) in answer.tokens.iter().zip(&answer.logprobs) {
        assert_eq!(told.top[0], (*token, told.chosen));
        assert!(told.top[1].1 <= told.chosen && told.chosen < 0.0);
    }
}

#[test]
fn a_manner_that_has_no_meaning_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment = Deployment::open(BACKENDS, &deploy(dir.path())).unwrap();
    let mut refused = |sampling_params: SamplingParams| {
        let encoded = Encoded { tokens: vec![5; 4], ..Encoded::default() };
        answer(&mut deployment, &encoded, &sampling_params, &mut |_| {}).unwrap_err().to_string()
    };
    let sampling = Sampling { logit_bias: vec![(384, 1.0)], ..Sampling::default() };
    let error = refused(SamplingParams { sampling, ..SamplingParams::greedy(1) });
    assert_eq!(error, "logit_bias names token 384, but the model has 384");
    let stops = [String::new()];
    let error =
        refused(SamplingParams { stop_strings: stops.to_vec(), ..SamplingParams::greedy(1) });
    assert_eq!(error, "a stop string must not be empty");
    let (answer, _) = said(&mut deployment, SamplingParams::greedy(2));
    assert_eq!(answer.tokens.len(), 2, "the slot is free again");
}

#[test]
fn each_device_opens_the_engine_that_was_built_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let deployed = deploy(dir.path());
    let alone = fs::read_to_string(deployed.join("deployment.json")).unwrap();
    let mut one = Deployment::open(BACKENDS, &deployed).unwrap();
    let expect = said(&mut one, SamplingParams::greedy(8)).0.tokens;
    fs::create_dir(dir.path().join("gpu")).unwrap();
    let heading = r#"{"format": 1, "kind": "llm", "target": "cuda", "device": {"sm": "87"}}"#;
    fs::write(dir.path().join("gpu/engine.json"), heading).unwrap();
    let write = |llm: &[&str]| {
        let llm = llm.iter().map(|dir| (*dir).to_owned()).collect::<Vec<_>>().into();
        Deployment::write(&deployed, &Spec { llm, ..spec() }, &side_files()).unwrap();
    };
    write(&["../gpu", "../llm"]);
    let mut several = Deployment::open(BACKENDS, &deployed).unwrap();
    assert_eq!(said(&mut several, SamplingParams::greedy(8)).0.tokens, expect);
    assert_eq!(several.engines, one.engines, "what slots keep is of the engine that answered");
    let engines = several.text.spec.engines(BACKENDS, &deployed).unwrap();
    assert!(engines.llm.ends_with("llm") && engines.vision.unwrap().ends_with("vision"));
    write(&["../gpu", "../gpu"]);
    let error = Deployment::open(BACKENDS, &deployed).unwrap_err().to_string();
    let words = "deployment.json: the engines are for cuda, cuda, and this device runs cpu; build one for it";
    assert!(error.ends_with(words), "{error}");
    write(&["../llm"]);
    assert_eq!(fs::read_to_string(deployed.join("deployment.json")).unwrap(), alone);
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let deployed = deploy(dir.path());
    let check = |change: &dyn Fn(&mut Spec), words: &str| {
        let mut spec = spec();
        change(&mut spec);
        let text = serde_json::to_string(&spec).unwrap();
        fs::write(deployed.join("deployment.json"), text).unwrap();
        let error = Deployment::open(BACKENDS, &deployed).unwrap_err().to_string();
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    };
    check(&|spec| spec.format = 1, "format 1 is not 2; deploy again");
    check(&|spec| spec.family = ModelFamily::QWEN3_VL, "pictures of qwen3_vl are not cut so");
    check(&|spec| spec.llm = "/llm".into(), "must be a relative directory");
    check(&|spec| spec.llm = "../vision".into(), "is of kind \"graph\"");
    check(&|spec| spec.vision = Some("../none".into()), "cannot read");
    let tiled = |spec: &mut Spec, change: &dyn Fn(&mut Tiling)| match &mut spec.image {
        Some(Cutting::Tiles(tiling)) => change(tiling),
        _ => unreachable!(),
    };
    check(
        &|spec| tiled(spec, &|tiling| tiling.image_size = 448),
        "image_size is 448, but the vision engine takes 56",
    );
    check(&|spec| tiled(spec, &|tiling| tiling.max_tiles = 0), "image: tiles must obey");
    check(
        &|spec| spec.router = Some(texture(1.0)),
        "1 thresholds do not choose between 1 vision engines",
    );
    check(
        &|spec| spec.router = Some(Router { by: By::Similarity, ..texture(1.0) }),
        "a router by similarity and a clip go together",
    );
    check(
        &|spec| spec.image_tokens.as_mut().unwrap().image = "<x>".to_owned(),
        "has no token \"<x>\"",
    );
    check(&|spec| spec.vision = None, "vision, image and image_tokens go together");
    check(&|spec| spec.family = ModelFamily::LLAMA, "models of llama read text alone");
    check(&|spec| spec.eos = vec![384], "eos token 384 is outside");
    check(&|spec| spec.eos.clear(), "eos is empty");
    fs::write(deployed.join("deployment.json"), "{\"format\": 2, \"speed\": 2}").unwrap();
    let error = Deployment::open(BACKENDS, &deployed).unwrap_err().to_string();
    assert!(error.contains("unknown field `speed`"), "{error}");
}

#[test]
fn a_wrong_spec_or_a_double_name_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = Spec { eos: Vec::new(), ..spec() };
    assert!(Deployment::write(dir.path(), &wrong, &[]).is_err());
    assert!(!dir.path().join("deployment.json").exists());
    let twice = [side_files(), side_files()].concat();
    assert!(Deployment::write(dir.path(), &spec(), &twice).is_err());
    assert!(!dir.path().join("deployment.json").exists());
}

#[test]
fn end_tokens_come_from_tokenizer_and_generation_config() {
    let dir = tempfile::tempdir().unwrap();
    for file in side_files() {
        fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let tokenizer = Tokenizer::open(&dir.path().join("tokenizer.json")).unwrap();
    let check = |config: Option<&str>, expect: Result<Vec<u32>, &str>| {
        let path = dir.path().join("generation_config.json");
        _ = fs::remove_file(&path);
        if let Some(text) = config {
            fs::write(&path, text).unwrap();
        }
        let found = eos_tokens(dir.path(), &tokenizer).map_err(|error| error.to_string());
        match expect {
            Ok(tokens) => assert_eq!(found, Ok(tokens)),
            Err(words) => assert!(found.unwrap_err().contains(words)),
        }
    };
    check(None, Ok(vec![380]));
    check(Some("{}"), Ok(vec![380]));
    check(Some(r#"{"eos_token_id": 378}"#), Ok(vec![378, 380]));
    check(Some(r#"{"eos_token_id": [378, 380]}"#), Ok(vec![378, 380]));
    check(Some(r#"{"eos_token_id": "x"}"#), Err("eos_token_id \"x\" is no token"));
    fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
    check(None, Err("names no eos_token"));
}
