//! `calibrate`: prompts and pictures through the f32 reference, and what its layers were fed.
//!
//! Texts become turns of a chat where the tokenizer has one's marks, pictures one tile each with a
//! question below; the library does the rest.  The command and the stage share this.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine::vision::VisionEngine;
use smelt_model::calibrate::{Options, calibrate};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::reference::{self, Image};
use smelt_runtime::image::{Mosaic, Picture, Tiling, tiles};
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use super::deployment;
use super::request::{Request, say};
use crate::exit::Failed;

/// The prompts used where none are given: prose, code, arithmetic and questions in the languages
/// these models are asked in, about 900 tokens.
const BUILT_IN: &str = include_str!("calibrate_prompts.txt");

/// A file of prompts larger than this holds more than is ever run.
const PROMPTS_BYTES_MAX: u64 = 4 << 20;

/// What stands for a picture's embeddings.
const IMAGE_TOKEN: &str = "<IMG_CONTEXT>";

/// What to run, and what to keep.
pub(crate) struct Asked<'a> {
    /// Prompts in words.
    pub(crate) texts: Vec<String>,
    pub(crate) pictures: Vec<PathBuf>,
    /// A vision engine to see the pictures with; the reference does where there is none.
    pub(crate) vision: Option<&'a Path>,
    /// Tokens of which activations are kept.
    pub(crate) rows: usize,
}

pub(super) fn run(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let mut texts = request.texts("texts");
    if let Some(file) = request.optional_input("prompts") {
        texts.extend(prompts(file)?);
    }
    let pictures = request.optional_input("images").map(pictures).transpose()?;
    let asked = Asked {
        texts,
        pictures: pictures.unwrap_or_default(),
        vision: request.optional_input("vision"),
        rows: request.count("tokens")?,
    };
    watch(&checkpoint, &asked, &request.out, &mut say)
}

/// The prompts of a file, one a line; empty lines are none.
pub(crate) fn prompts(path: &Path) -> Result<Vec<String>, Failed> {
    let cannot = |why: String| Failed::usage(format!("prompts {}: {why}", path.display()));
    let bytes = fs::metadata(path).map_err(|error| cannot(error.to_string()))?.len();
    if bytes > PROMPTS_BYTES_MAX {
        return Err(cannot(format!("it has more than {PROMPTS_BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
    let lines = lines(&text);
    if lines.is_empty() { Err(cannot("it holds no prompt".to_owned())) } else { Ok(lines) }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// A picture, or all PNG and JPEG pictures of a directory by name.
fn pictures(path: &Path) -> Result<Vec<PathBuf>, Failed> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let cannot = |why: String| Failed::usage(format!("images {}: {why}", path.display()));
    let entries = fs::read_dir(path).map_err(|error| cannot(error.to_string()))?;
    let is_picture = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        ["png", "jpg", "jpeg"].iter().any(|known| ending.eq_ignore_ascii_case(known))
    };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(is_picture).collect();
    found.sort();
    if found.is_empty() { Err(cannot("it holds no PNG or JPEG picture".into())) } else { Ok(found) }
}

/// A prompt as the language model takes it.
struct Prompt {
    tokens: Vec<u32>,
    /// The image token, and the embeddings in its places.
    image: Option<(u32, Vec<f32>)>,
}

/// Runs what is `asked` and writes what was seen into `out`.
pub(crate) fn watch(
    checkpoint: &Checkpoint,
    asked: &Asked<'_>,
    out: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), Failed> {
    let tokenizer =
        Tokenizer::open(&checkpoint.dir().join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let is_given = !asked.texts.is_empty() || !asked.pictures.is_empty();
    let source = if is_given { "given" } else { "built-in" };
    if !is_given {
        progress("no prompts given; using the built-in ones");
    }
    let built_in = if is_given { Vec::new() } else { lines(BUILT_IN) };
    let mut all = Vec::new();
    for text in asked.texts.iter().chain(&built_in) {
        let tokens = tokenizer.encode(&chat(&tokenizer, text)).map_err(Failed::model)?;
        all.push(Prompt { tokens, image: None });
    }
    all.extend(seen(checkpoint, &tokenizer, asked, progress)?);
    let prompts: Vec<reference::Prompt<'_>> = all.iter().map(Prompt::of_reference).collect();
    let options = Options { rows: asked.rows, prompts: source };
    calibrate(checkpoint, &prompts, options, out, progress).map_err(Failed::model)
}

impl Prompt {
    fn of_reference(&self) -> reference::Prompt<'_> {
        let image = self.image.as_ref().map(|(token, embeds)| Image { token: *token, embeds });
        reference::Prompt::plain(&self.tokens, image)
    }
}

/// `text` as a user's turn where the tokenizer knows the marks of one, as it is elsewhere.
fn chat(tokenizer: &Tokenizer, text: &str) -> String {
    if tokenizer.token("<|im_start|>").is_none() {
        return text.to_owned();
    }
    format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
}

/// A prompt for each picture, seen as one tile.
fn seen(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    asked: &Asked<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Prompt>, Failed> {
    if asked.pictures.is_empty() {
        return Ok(Vec::new());
    }
    let tower = checkpoint.internvl3().map_err(Failed::model)?;
    let Tiling { image_size: side, scale, .. } = deployment::tiling(tower);
    let token = tokenizer.token(IMAGE_TOKEN).ok_or_else(|| {
        let dir = checkpoint.dir().display();
        Failed::model(format!("{dir}: {TOKENIZER_FILE} has no token {IMAGE_TOKEN}"))
    })?;
    let mut engine = asked.vision.map(VisionEngine::open).transpose().map_err(Failed::model)?;
    let question = format!(
        "<img>{}</img>\nDescribe this image in detail.",
        IMAGE_TOKEN.repeat(tower.tokens_per_tile())
    );
    let tokens = tokenizer.encode(&chat(tokenizer, &question)).map_err(Failed::model)?;
    let mut prompts = Vec::new();
    for path in &asked.pictures {
        progress(&format!("seeing {}", path.display()));
        let picture = Picture::open(path).map_err(Failed::model)?;
        let mut pixels = Vec::new();
        let tiles = tiles(&picture, Mosaic::ONE, side, 1);
        tiles.iter().for_each(|tile| scale.planes(tile, &mut pixels));
        let embeds = match &mut engine {
            Some(engine) => engine.encode(&pixels, 1).map_err(Failed::model)?,
            None => reference::vision_embeds(checkpoint, &pixels, 1).map_err(Failed::model)?,
        };
        prompts.push(Prompt { tokens: tokens.clone(), image: Some((token, embeds)) });
    }
    Ok(prompts)
}
