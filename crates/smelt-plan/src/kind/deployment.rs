//! `deployment`: engines, tokenizer and preprocessing in the shape `chat` loads.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, Takes, field};
use super::words::KvForm;
use super::{
    ANY_CHECKPOINT, CHECKPOINT, ENGINES, FOREIGN, LLM_ENGINES, PROOF, SEQ_LEN_MAX, SLOTS_MAX,
};

/// More tiles of one picture than models are trained with (InternVL's 12, its video's 40).
const TILES_MAX: u64 = 64;
/// More frames of one clip than processors of published models take.
const FRAMES_MAX: u64 = 768;
/// No prompt has more tokens than this of one picture.
const IMAGE_TOKENS_MAX: u64 = SEQ_LEN_MAX;
/// How answers are served where nobody says otherwise: what an encoder, which gives none, knows nothing of.
const ANSWERING: [&str; 5] = ["max-seq-len", "slots", "tiles", "frames", "kv"];
/// The longest start of a server: a large model on a slow card.
const START_S_MAX: u64 = 3600;
/// What is said of another program's server.
const SERVER: [&str; 6] = ["engine", "server", "health", "start-seconds", "fields", "prompts"];
/// What a CLIP beside a deployment is made of.
const CLIP: [&str; 3] = ["clip", "clip-vision", "clip-text"];

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Deployment {
    /// What the model is called.
    pub model: String,
    /// Tokens of a prompt with its answer; else what the engine was built for.
    pub max_seq_len: Option<usize>,
    /// Answers at once.
    pub slots: Option<usize>,
    /// Most tiles of a picture, the thumbnail apart.
    pub tiles: Option<usize>,
    /// Most frames of a clip.
    pub frames: Option<usize>,
    /// The form of keys and values; else the usual one.
    pub kv: Option<KvForm>,
    /// Bytes that whoever serves it may take, all of its process.
    pub memory: Option<u64>,
    /// Numbers, as texts, by which a router decides how closely each tile is looked at.
    #[serde(default)]
    pub thresholds: Vec<String>,
    /// Most image tokens of a picture, to which a router keeps.
    pub image_tokens: Option<usize>,
    /// Another program's server that answers, and its words; none where smelt does.
    #[serde(default)]
    pub server: Vec<String>,
    /// Where that says that it is well.
    pub health: Option<String>,
    /// Within how many seconds of its start.
    pub start_seconds: Option<u64>,
    /// Fields of requests that change answers, which it knows.
    #[serde(default)]
    pub fields: Vec<String>,
}

const FIELDS: &[Field] = &[
    field("model", Takes::Text, Absent::Word("internvl3")),
    field("checkpoint", ANY_CHECKPOINT, Absent::Nothing),
    field("vision", ENGINES, Absent::Nothing),
    field("llm", LLM_ENGINES, Absent::Nothing),
    field("encoder", ENGINES, Absent::Nothing),
    field("engine", FOREIGN, Absent::Nothing),
    field("server", Takes::Texts, Absent::Nothing),
    field("health", Takes::Text, Absent::Nothing),
    field("start-seconds", Takes::Count(1, START_S_MAX), Absent::Nothing),
    field("fields", Takes::Texts, Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    field("max-seq-len", Takes::Count(2, SEQ_LEN_MAX), Absent::Nothing),
    field("slots", Takes::Count(1, SLOTS_MAX), Absent::Nothing),
    field("tiles", Takes::Count(1, TILES_MAX), Absent::Nothing),
    field("frames", Takes::Count(1, FRAMES_MAX), Absent::Nothing),
    field("kv", Takes::Choice(KvForm::WORDS), Absent::Nothing),
    field("memory", Takes::Bytes, Absent::Nothing),
    field("thresholds", Takes::Texts, Absent::Nothing),
    field("image-tokens", Takes::Count(1, IMAGE_TOKENS_MAX), Absent::Nothing),
    field("clip", CHECKPOINT, Absent::Nothing),
    field("clip-vision", ENGINES, Absent::Nothing),
    field("clip-text", ENGINES, Absent::Nothing),
    field("verified", PROOF, Absent::Nothing),
];

/// Version 5: deployment.json says how it is served; what is deployed was opened, and has said a word.
pub(super) const KIND: Definition = Definition {
    by_path: &["vision", "llm", "encoder", "engine", "clip-vision", "clip-text"],
    fault,
    ..Definition::new("deployment", 5, FIELDS)
};

fn fault(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    if SERVER.into_iter().any(is_given) {
        return of_server(is_given);
    }
    if !is_given("checkpoint") {
        return Some(
            "needs the key \"checkpoint\", or \"engine\" and \"server\" where another program's server answers",
        );
    }
    if is_given("encoder") {
        let others = ["vision", "llm", "verified", "thresholds", "image-tokens"];
        return others.into_iter().chain(ANSWERING).chain(CLIP).any(is_given).then_some(
            "\"encoder\" stands alone; leave out \"vision\", \"llm\", \"verified\", \"max-seq-len\", \"slots\", \"tiles\", \"frames\", \"kv\", \"thresholds\", \"image-tokens\" and \"clip\"",
        );
    }
    if !is_given("llm") {
        return Some("needs the key \"llm\", with \"vision\" where it sees, or \"encoder\" alone");
    }
    if !is_given("vision") {
        let sight = ["tiles", "frames", "thresholds", "image-tokens"];
        return sight.into_iter().chain(CLIP).any(is_given).then_some(
            "without \"vision\" it reads text alone; leave out \"tiles\", \"frames\", \"thresholds\", \"image-tokens\" and \"clip\"",
        );
    }
    if !CLIP.into_iter().any(is_given) {
        return None;
    }
    let is_routed = is_given("thresholds") || is_given("image-tokens");
    (!is_routed || !CLIP.into_iter().all(is_given)).then_some(
        "a CLIP is \"clip\", \"clip-vision\" and \"clip-text\" together, with \"thresholds\" or \"image-tokens\"",
    )
}

/// What is wrong with the fields of a deployment that another program's server answers.
fn of_server(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    if !["model", "engine", "server"].into_iter().all(is_given) {
        return Some(
            "another program's server needs the keys \"model\", \"engine\" and \"server\"",
        );
    }
    let own = ["checkpoint", "vision", "llm", "encoder", "thresholds", "image-tokens"];
    let own = own.into_iter().chain(["max-seq-len", "tiles", "frames", "kv"]).chain(CLIP);
    own.into_iter().any(is_given).then_some(
        "what another program's server answers has \"model\", \"engine\", \"server\", \"health\", \"start-seconds\", \"fields\", \"prompts\", \"verified\", \"slots\" and \"memory\" alone",
    )
}
