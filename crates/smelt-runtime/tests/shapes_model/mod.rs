//! Deploys a checkpoint that was trained on shapes, and asks what its goldens ask.

pub(crate) mod spec;

use std::path::{Path, PathBuf};

use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_runtime::deployment::{Deployment, eos_tokens};
use smelt_runtime::image::Image;
use smelt_runtime::tokenizer::Tokenizer;
use smelt_shapes::{Sample, SampleLayout, Split};

/// Questions asked of each sample: as many as `smelt-shapes prompts` writes.
const QUESTIONS: usize = 2;

/// Where the checkpoint and its answers are.
pub(crate) fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Builds engines in f32 of the weights as they are, and gives the deployment's directory.
pub(crate) fn deploy(from: &Path, dir: &Path, max_slots: usize) -> PathBuf {
    let ckpt = Checkpoint::open(from).unwrap();
    let quiet = &mut |_: &str| {};
    export::vision(&ckpt, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    graph::build(&dir.join("onnx"), Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 320, max_slots };
    llm::build(&ckpt, limits, &dir.join("llm"), quiet).unwrap();
    let files = ["tokenizer.json", "tokenizer_config.json"].map(|name| from.join(name));
    let eos = eos_tokens(from, &Tokenizer::open(&files[0]).unwrap()).unwrap();
    let spec = spec::internvl("shapes-vl", 96, eos);
    Deployment::write(&dir.join("deployment"), &spec, &files).unwrap();
    dir.join("deployment")
}

/// The held-out samples' pictures and questions, in the order of `smelt-shapes prompts`.
pub(crate) fn prompts() -> impl Iterator<Item = (Vec<Image>, String)> {
    (0..).flat_map(|index| {
        let sample = Sample::new(Split::HeldOut, index, SampleLayout::of(index));
        let picture = |canvas: &smelt_shapes::Canvas| {
            Image::from_rgb(canvas.width, canvas.height, canvas.rgb.clone()).unwrap()
        };
        let pictures: Vec<Image> = sample.pictures.iter().map(picture).collect();
        let questions = sample.questions.into_iter().take(QUESTIONS);
        questions.map(move |question| (pictures.clone(), question.text)).collect::<Vec<_>>()
    })
}
