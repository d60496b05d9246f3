//! Deploys the tiny Qwen-VL checkpoints over some grids.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::grid::Grid;
use smelt_runtime::deployment::{Deployment, FORMAT, ModelFamily, Serving, Spec};
use smelt_runtime::image::{Cutting, Patching, Scale};
use smelt_runtime::prompt::ImageTokens;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

/// What Qwen's template does of pictures, and nothing else.
const TEMPLATE: &str = "{%- for message in messages -%}{%- for part in message.content -%}\
    {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>\
    {%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>\
    {%- else -%}{{ part.text }} {% endif -%}{%- endfor -%}{%- endfor -%}";

/// What a deployment of a Qwen-VL is, whose engines lie beside it.
pub(crate) fn spec(family: ModelFamily, eos: Vec<u32>, patching: Patching) -> Spec {
    let word = |word: &str| format!("<|{word}|>");
    Spec {
        format: FORMAT,
        family,
        model: "qwen-tiny".to_owned(),
        vision: Some("../vision".into()),
        llm: "../llm".into(),
        image: Some(Cutting::Patches(patching)),
        router: None,
        clip: None,
        image_tokens: Some(ImageTokens {
            start: word("vision_start"),
            image: word("image_pad"),
            end: word("vision_end"),
            video: Some(word("video_pad")),
        }),
        places_per_second: (family == ModelFamily::QWEN2_5_VL).then_some(2),
        eos,
        serving: Serving::default(),
        verified: None,
    }
}

/// How the golden models cut pictures.
fn patching(family: ModelFamily) -> Patching {
    let scale = if family == ModelFamily::QWEN3_VL { Scale::HALVES } else { Scale::CLIP };
    let (min_pixels, max_pixels) = (256, 1600);
    Patching { patch: 4, merge: 2, frames: 2, min_pixels, max_pixels, clip: None, scale }
}

/// Engines of one set of weights, one for each grid, and the deployment's directory.
pub(crate) fn qwen(name: &str, family: ModelFamily, grids: &[Grid], dir: &Path) -> PathBuf {
    let checkpoint = Checkpoint::open(&data(name).join("checkpoint")).unwrap();
    let quiet = &mut |_: &str| {};
    export::vision_on(&checkpoint, grids, Dtype::F32, &dir.join("onnx"), quiet).unwrap();
    graph::build(&dir.join("onnx"), Precision::F32, &dir.join("vision"), quiet).unwrap();
    let limits = llm::Limits { max_seq_len: 256, max_slots: 4 };
    llm::build(&checkpoint, limits, &dir.join("llm"), quiet).unwrap();
    // Words `w0` to `w248`, and the special tokens of pictures where the models have them.
    let words = fs::read_to_string(data("qwen-words.json")).unwrap();
    let files = [("tokenizer.json", words), ("chat_template.jinja", TEMPLATE.to_owned())];
    let files = files.map(|(file, text)| {
        fs::write(dir.join(file), text).unwrap();
        dir.join(file)
    });
    Deployment::write(&dir.join("deployment"), &spec(family, vec![249], patching(family)), &files)
        .unwrap();
    dir.join("deployment")
}
