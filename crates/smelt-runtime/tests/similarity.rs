//! Compares what a CLIP's engines say of pictures and words with what transformers' CLIP says, and routes
//! tiles by it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use smelt_engine::BACKENDS;
use smelt_engine_build::graph::{Precision, build};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_runtime::deployment::copy;
use smelt_runtime::image::{Image, Scale};
use smelt_runtime::similarity::{Asked, Similarity, Spec, TOKENIZER};
use smelt_runtime::tokenizer::Tokenizer;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Engines of the towers of `name` in `dir`, which becomes what is beside a deployment.
fn engines(name: &str, dir: &Path) {
    let checkpoint = Checkpoint::open(&data("golden").join(name).join("checkpoint")).unwrap();
    let quiet = &mut |_: &str| {};
    let (pictures, words) = (dir.join("pictures"), dir.join("words"));
    export::vision(&checkpoint, Dtype::F32, &pictures, quiet).unwrap();
    build(&pictures, Precision::F32, &dir.join("vision"), quiet).unwrap();
    if export::encoder(&checkpoint, Dtype::F32, &words, quiet).is_ok() {
        build(&words, Precision::F32, &dir.join("text"), quiet).unwrap();
    }
}

fn spec() -> Spec {
    let (vision, text) = ("../vision".into(), "../text".into());
    Spec { vision, text, max_tokens: 16, scale: Scale::CLIP }
}

/// The tiny CLIP, its tokenizer where a deployment has it.
fn similarity(dir: &Path) -> Similarity {
    engines("clip-tiny", dir);
    let deployed = dir.join("deployment");
    fs::create_dir(&deployed).unwrap();
    copy(&tokenizer(), &deployed.join(TOKENIZER)).unwrap();
    Similarity::open(BACKENDS, &deployed, &spec()).unwrap()
}

fn tokenizer() -> PathBuf {
    data("golden/clip-tiny/checkpoint/tokenizer.json")
}

/// What transformers says.
#[derive(Deserialize)]
struct Golden {
    /// Left, top and side of each square of the picture.
    squares: Vec<[usize; 3]>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    /// Of each square.
    cosines: Vec<f32>,
}

fn golden() -> Golden {
    let text = fs::read_to_string(data("golden/clip-tiny/similarity.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn square(picture: &Image, [left, top, side]: [usize; 3]) -> Vec<u8> {
    let lines = picture.rgb().chunks_exact(picture.width() * 3).skip(top).take(side);
    lines.flat_map(|line| &line[left * 3..][..side * 3]).copied().collect()
}

#[test]
fn texts_become_the_same_tokens() {
    let tokenizer = Tokenizer::open(&tokenizer()).unwrap().for_whole();
    for case in golden().cases {
        assert_eq!(tokenizer.encode_cut(&case.text, 16).unwrap(), case.ids, "{}", case.text);
    }
}

#[test]
fn pictures_and_words_are_as_near_as_transformers_finds_them() {
    let dir = tempfile::tempdir().unwrap();
    let similarity = similarity(dir.path());
    let picture = Image::open(&data("picture.png")).unwrap();
    let golden = golden();
    // Twice: what is kept is the same.
    for case in golden.cases.iter().chain(&golden.cases) {
        for (square_of, expect) in golden.squares.iter().zip(&case.cosines) {
            let tile = square(&picture, *square_of);
            let asked = Asked { words: &case.text, reuse: None };
            let found = similarity.of(&[tile], square_of[2], asked).unwrap()[0];
            assert!((found - expect).abs() < 1e-4, "{found} is not {expect}: {square_of:?}");
        }
    }
}

#[test]
fn what_is_no_clip_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    drop(similarity(dir.path()));
    let deployed = dir.path().join("deployment");
    let refused = |vision: &str, text: &str| {
        let spec = Spec { vision: vision.into(), text: text.into(), ..spec() };
        let error = Similarity::open(BACKENDS, &deployed, &spec).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    assert!(refused("../text", "../text").contains("does not read pixel_values alone"));
    assert!(
        refused("../vision", "../vision").contains("it does not read input_ids and attention_mask")
    );
    assert!(refused("../none", "../text").contains("cannot read"));
    let alone = dir.path().join("alone");
    fs::create_dir(&alone).unwrap();
    engines("clip-vision-tiny", &alone);
    assert!(refused("../alone/vision", "../text").contains("gives no image_embeds"));
}
