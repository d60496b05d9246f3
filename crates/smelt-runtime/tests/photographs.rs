//! Shows thirty pictures of all shapes and forms to a tiny model of every family that sees, in a context that
//! holds the largest and in one that holds next to nothing: each must be answered.

use crate::shapes_model::spec;
use std::path::{Path, PathBuf};

use crate::thirty::{encoded, pictures, slopes};
use image::ImageFormat;
use smelt_engine::BACKENDS;
use smelt_engine::llm::KvOptions;
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::{export, synthetic};
use smelt_runtime::deployment::{Deployment, ModelFamily, eos_tokens};
use smelt_runtime::generate::{Request, SamplingParams, generate};
use smelt_runtime::image::{Cutting, Image, MediaItem, Patching, Scale};
use smelt_runtime::prepare::Question;
use smelt_runtime::prompt::Turn;
use smelt_runtime::template::Context;
use smelt_runtime::tokenizer::Tokenizer;
use tempfile::TempDir;

/// Tokens of each answer.
const ANSWER: usize = 4;

/// Pictures that are shown together, under a name.
pub(crate) type Asked<'a> = (&'a str, Vec<&'a Image>);

/// Asks about pictures in a context of so many tokens; gives how many of them were shown smaller.
pub(crate) fn ask(deployed: &Path, context: Option<usize>, asked: &[Asked<'_>]) -> usize {
    let kv = KvOptions { max_seq_len: context, ..KvOptions::default() };
    let mut deployment = Deployment::open_with(BACKENDS, deployed, kv).unwrap();
    let context = deployment.text.max_seq_len;
    let sampling_params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(ANSWER) };
    let mut smaller = 0;
    for (name, shown) in asked {
        let turns = [Turn::from_marked("user", "w1", shown.len()).unwrap()];
        let shown: Vec<MediaItem> =
            shown.iter().map(|one| MediaItem::from((*one).clone())).collect();
        let (turns, shown, told) = (&turns, &shown, &Context::default());
        let request =
            Request { turns, shown, context: told, sampling_params: &sampling_params, now_s: 0 };
        let said = generate(&mut deployment, &request, &mut |_| {});
        let said = said.unwrap_or_else(|error| panic!("{name} in {context}: {error}"));
        assert_eq!(said.tokens.len(), ANSWER, "{name} in {context} has room for its answer");
        assert!(said.prompt_tokens + ANSWER <= context, "{name} in {context}");
        let seen = said.seen;
        assert_eq!(seen.smaller > 0, seen.tokens < seen.wished, "{name}: {seen:?}");
        assert_eq!(seen.notice(context).is_some(), seen.smaller > 0);
        smaller += seen.smaller;
    }
    smaller
}

/// What so many pictures of the least size take with the shortest question and an answer.
fn least(deployed: &Path, smallest: &Image, count: usize) -> usize {
    let deployment = Deployment::open(BACKENDS, deployed).unwrap();
    let turns = [Turn::from_marked("user", "w1", count).unwrap()];
    let shown = vec![MediaItem::from(smallest.clone()); count];
    let (turns, shown, context) = (&turns, &shown, &Context::default());
    let answer_max = Some(ANSWER);
    let question = Question { turns, shown, context, answer_max, now_s: 0, reuse: None };
    deployment.text.prepare(&question).unwrap().tokens.len() + ANSWER
}

#[track_caller]
fn check(deployed: &Path, decoded: &[(String, Image)]) {
    let all: Vec<Asked<'_>> =
        decoded.iter().map(|(name, picture)| (&name[..], vec![picture])).collect();
    let six = decoded.iter().skip(5).step_by(2).take(6).map(|(_, picture)| picture).collect();
    let six = [("six", six)];
    assert_eq!(ask(deployed, None, &all), 0, "the usual context holds each");
    assert_eq!(ask(deployed, None, &six), 0, "and six");
    // One of the least size has room, and nothing more.
    let smaller = ask(deployed, Some(least(deployed, &decoded[0].1, 1)), &all);
    assert!(smaller > 15, "{smaller}");
    assert!(ask(deployed, Some(least(deployed, &decoded[0].1, 6)), &six) > 3);
}

/// Engines of an InternVL that is made of random numbers, of so many pixels on a side of a tile and so many
/// tiles at most, and the deployment's directory.
fn internvl(name: &str, [side, most]: [usize; 2], dir: &Path) -> PathBuf {
    let from = dir.join("checkpoint");
    let quiet = &mut |_: &str| {};
    synthetic::write(name, &from, quiet).unwrap();
    let checkpoint = Checkpoint::open(&from).unwrap();
    export::vision(&checkpoint, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    graph::build(&dir.join("onnx"), Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 856, max_slots: 1 };
    llm::build(&checkpoint, limits, &dir.join("llm"), quiet).unwrap();
    let files = ["tokenizer.json", "tokenizer_config.json"].map(|file| from.join(file));
    let eos = eos_tokens(&from, &Tokenizer::open(&files[0]).unwrap()).unwrap();
    let mut spec = spec::internvl(name, side, eos);
    if let Some(Cutting::Tiles(tiling)) = &mut spec.image {
        tiling.max_tiles = most;
    }
    Deployment::write(&dir.join("deployment"), &spec, &files).unwrap();
    dir.join("deployment")
}

pub(crate) fn decoded() -> Vec<(String, Image)> {
    let files = pictures();
    assert_eq!(files.len(), 30);
    let decode = |(name, bytes): (String, Vec<u8>)| match Image::decode(&bytes) {
        Ok(picture) => (name, picture),
        Err(error) => panic!("{name}: {error}"),
    };
    files.into_iter().map(decode).collect()
}

#[test]
fn every_internvl_answers_pictures_of_all_shapes() {
    let decoded = decoded();
    for name in ["internvl3-tiny", "internvl3_5-tiny"] {
        let dir = TempDir::new().unwrap();
        check(&internvl(name, [56, 4], dir.path()), &decoded);
    }
}

#[test]
fn every_qwen_vl_answers_pictures_of_all_shapes() {
    let decoded = decoded();
    let grids = ["8x8", "24x40", "40x24", "40x40", "64x64"].map(|grid| grid.parse().unwrap());
    for (name, family) in [
        ("qwen2_vl-tiny", ModelFamily::QWEN2_VL),
        ("qwen2_5_vl-tiny", ModelFamily::QWEN2_5_VL),
        ("qwen3_vl-tiny", ModelFamily::QWEN3_VL),
    ] {
        let dir = TempDir::new().unwrap();
        check(&crate::tiny::qwen(name, family, &grids, dir.path()), &decoded);
    }
}

/// What a Qwen-VL made of random numbers is, and the pictures it sees.
struct QwenVl {
    name: &'static str,
    family: ModelFamily,
    /// Pixels on a side of a patch.
    patch: usize,
    /// One picture of the least size, one of another shape, and the largest.
    grids: [&'static str; 3],
}

const QWEN_VL: [QwenVl; 5] = [
    QwenVl {
        name: "qwen2_vl-tiny",
        family: ModelFamily::QWEN2_VL,
        patch: 14,
        grids: ["56x56", "56x112", "112x112"],
    },
    QwenVl {
        name: "qwen2_5_vl-tiny",
        family: ModelFamily::QWEN2_5_VL,
        patch: 14,
        grids: ["56x56", "56x112", "112x112"],
    },
    QwenVl {
        name: "qwen3_vl-tiny",
        family: ModelFamily::QWEN3_VL,
        patch: 16,
        grids: ["64x64", "64x128", "128x128"],
    },
    QwenVl {
        name: "qwen2_5_vl-3b",
        family: ModelFamily::QWEN2_5_VL,
        patch: 14,
        grids: ["224x224", "336x560", "448x448"],
    },
    QwenVl {
        name: "qwen3_vl-2b",
        family: ModelFamily::QWEN3_VL,
        patch: 16,
        grids: ["256x256", "384x640", "512x512"],
    },
];

impl QwenVl {
    /// Engines in int8, as its pipeline builds them, and the deployment's directory.
    fn deployed(&self, dir: &Path) -> PathBuf {
        let (from, quantised) = (dir.join("checkpoint"), dir.join("int8"));
        let quiet = &mut |_: &str| {};
        synthetic::write(self.name, &from, quiet).unwrap();
        let checkpoint = Checkpoint::open(&from).unwrap();
        let grids = self.grids.map(|grid| grid.parse().unwrap());
        export::vision_on(&checkpoint, &grids, Dtype::F16, &dir.join("onnx"), quiet).unwrap();
        graph::build(&dir.join("onnx"), Precision::Int8, &dir.join("vision"), quiet).unwrap();
        quantize::quantize(&checkpoint, &Options::plain(Scheme::Int8), &quantised, quiet).unwrap();
        let limits = llm::Limits { max_seq_len: 512, max_slots: 1 };
        let packed = Checkpoint::open(&quantised).unwrap();
        llm::build(&packed, limits, &dir.join("llm"), quiet).unwrap();
        let files = ["tokenizer.json", "tokenizer_config.json"].map(|file| from.join(file));
        let eos = eos_tokens(&from, &Tokenizer::open(&files[0]).unwrap()).unwrap();
        let spec = crate::tiny::spec(self.family, eos, self.patching());
        Deployment::write(&dir.join("deployment"), &spec, &files).unwrap();
        dir.join("deployment")
    }

    fn patching(&self) -> Patching {
        let scale = if self.family == ModelFamily::QWEN3_VL { Scale::HALVES } else { Scale::CLIP };
        let side = 4 * self.patch;
        Patching {
            patch: self.patch,
            merge: 2,
            frames: 2,
            min_pixels: side * side,
            max_pixels: 4 << 20,
            clip: None,
            scale,
        }
    }
}

#[test]
fn every_synthetic_qwen_vl_answers_pictures_of_all_shapes() {
    let decoded = decoded();
    for model in QWEN_VL.iter().filter(|model| model.name.ends_with("tiny")) {
        let dir = TempDir::new().unwrap();
        check(&model.deployed(dir.path()), &decoded);
    }
}

/// Asks each picture in a context that holds one of the least size, `larger` of which would be seen larger, and a
/// photograph in one that holds the largest.
fn check_true_size(
    deployed: &Path,
    decoded: &[(String, Image)],
    context: Option<usize>,
    larger: usize,
) {
    let all: Vec<Asked<'_>> =
        decoded.iter().map(|(name, picture)| (&name[..], vec![picture])).collect();
    let smaller = ask(deployed, context, &all);
    assert!(smaller >= larger, "{smaller} in a context of one tile, or one small grid");
    let photograph = decoded.iter().find(|(name, _)| name == "4032x3024.png").unwrap();
    let whole = [("a photograph", vec![&photograph.1])];
    assert_eq!(ask(deployed, Some(4096), &whole), 0);
}

/// As pipelines have them whose context is meant for one tile; `cargo xtask soak` asks for it.
#[test]
#[ignore = "minutes to hours, and up to 15 GB of disk"]
fn models_of_true_size_answer_pictures_of_all_shapes() {
    let decoded = decoded();
    for name in ["internvl3-1b", "internvl3_5-1b", "internvl3-2b", "internvl3_5-2b"] {
        let dir = TempDir::new().unwrap();
        check_true_size(&internvl(name, [448, 12], dir.path()), &decoded, None, 16);
    }
}

/// `cargo xtask soak` asks for it.
#[test]
#[ignore = "an hour, and up to 20 GB of disk"]
fn qwen_vls_of_true_size_answer_pictures_of_all_shapes() {
    let decoded = decoded();
    for model in QWEN_VL.iter().filter(|model| !model.name.ends_with("tiny")) {
        let dir = TempDir::new().unwrap();
        let deployed = model.deployed(dir.path());
        let context = least(&deployed, &decoded[0].1, 1);
        // Most of the thirty are no larger than the least grid; from 640x480 on they are.
        check_true_size(&deployed, &decoded, Some(context), 5);
    }
}

#[test]
fn a_line_of_pixels_is_refused_in_one_line() {
    let refused = Image::decode(&encoded(slopes(1, 201), ImageFormat::Png)).unwrap_err();
    let line = refused.to_string();
    assert!(line.contains("more than 200 times") && line.lines().count() == 1, "{line}");
}
