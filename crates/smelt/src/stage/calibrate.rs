//! `calibrate`: prompts and pictures through the f32 reference, and what its layers were fed.
//!
//! Texts become turns of a chat where the tokenizer has one's marks, pictures one tile each with a
//! question below; the library does the rest.  The command and the stage share this.  Of a graph, see `graph`.

pub(crate) mod graph;
mod set;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_backend::VisionEngine;
use smelt_deploy::spec::family;
use smelt_deploy::text_files::TextFiles;
use smelt_engine::vision as engines;
use smelt_model::calibrate::{Options, calibrate};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::model::Tile;
use smelt_model::price::calibrating;
use smelt_model::reference::{self, PromptEmbeds};
use smelt_plan::kind::calibrate::{Calibrate, PixelScale, RangeMethod};
use smelt_plan::plan::Stage;
use smelt_runtime::accuracy::golden::PROMPTS_FILE;
use smelt_runtime::accuracy::question;
use smelt_runtime::image::{Image, Mosaic, Scale, tiles};
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use self::graph::AskedOfGraph;
use super::Worker;
use super::request::{Request, say};
use crate::checkpoints::Checkpoints;
use crate::exit::Failed;

/// A file of prompts larger than this holds more than is ever run.
const PROMPTS_BYTES_MAX: u64 = 4 << 20;

/// Who says something in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A text that is part of no conversation.
    Nobody,
    User,
    Assistant,
}

/// What one says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    speaker: Role,
    text: String,
}

impl Turn {
    fn plain() -> Self {
        Self { speaker: Role::Nobody, text: String::new() }
    }

    fn user() -> Self {
        Self { speaker: Role::User, text: String::new() }
    }

    fn assistant() -> Self {
        Self { speaker: Role::Assistant, text: String::new() }
    }

    fn saying(self, text: &str) -> Self {
        Self { text: text.to_owned(), ..self }
    }
}

/// The most tokens of the built-in texts that are run: twice as many taught a decoder of 135M no more, and
/// take twice the work.
const BUILT_IN_TOKENS_MAX: usize = 8192;

/// What is asked of a picture that nobody asks anything of.
const DESCRIBE: &str = "Describe this image in detail.";

/// What to run, and what to keep.
pub(crate) struct Asked<'a> {
    /// Prompts in words.
    pub(crate) texts: Vec<String>,
    pub(crate) pictures: Vec<PathBuf>,
    /// A file of questions with their answers, as `smelt bench accuracy` reads it.
    pub(crate) questions: Option<PathBuf>,
    /// A vision engine to see the pictures with; the reference does where there is none.
    pub(crate) vision: Option<&'a Path>,
    /// Tokens of which activations are kept.
    pub(crate) rows: usize,
}

pub(super) const WORKER: Worker =
    Worker { executes_graphs: true, products: Some(products), ..Worker::new(run) };

/// The products of the built-in texts; of what was given the words are not counted yet.
fn products(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<f64> {
    let gives_files = stage.inputs.iter().any(|input| ["prompts", "images"].contains(&input.field));
    if gives_files || stage.params.contains_key("texts") {
        return None;
    }
    let llm = checkpoints.model(stage).ok()??.llm?;
    Some(calibrating(&llm, BUILT_IN_TOKENS_MAX))
}

fn run(request: &Request) -> Result<(), Failed> {
    let params: Calibrate = request.typed()?;
    if request.optional_input("onnx").is_some() {
        return of_graph(request, &params);
    }
    let checkpoint = request.checkpoint("checkpoint")?;
    let Calibrate { mut texts, tokens, .. } = params;
    let given = request.optional_input("prompts");
    let questions = given.filter(|path| path.is_dir()).map(|path| path.join(PROMPTS_FILE));
    if let Some(file) = given.filter(|path| !path.is_dir()) {
        texts.extend(prompts(file)?);
    }
    let pictures = request.optional_input("images").map(pictures).transpose()?;
    let asked = Asked {
        texts,
        pictures: pictures.unwrap_or_default(),
        questions,
        vision: request.optional_input("vision"),
        rows: tokens,
    };
    watch(&checkpoint, &asked, &request.out, &mut say)
}

fn of_graph(request: &Request, params: &Calibrate) -> Result<(), Failed> {
    let model = request.only_graph("one is calibrated")?;
    let &Calibrate { method, pixels, side, .. } = params;
    let method = method.unwrap_or(RangeMethod::Entropy);
    let pixels = pixels.unwrap_or(PixelScale::Unit);
    let pictures = pictures(request.input("images")?)?;
    let asked = AskedOfGraph { model, pictures, method, pixels, side };
    graph::watch(&asked, &env::temp_dir(), &request.out, &mut say)
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
pub(crate) fn pictures(path: &Path) -> Result<Vec<PathBuf>, Failed> {
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
    let texts = TextFiles::of(checkpoint, out, &say)?;
    let tokenizer = Tokenizer::open(&texts.dir().join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let is_given =
        !asked.texts.is_empty() || !asked.pictures.is_empty() || asked.questions.is_some();
    let source = if is_given { "given" } else { "built-in" };
    if !is_given {
        progress("no prompts given; using the built-in set of texts and pictures");
    }
    let built_in = if is_given { Vec::new() } else { set::texts() };
    let given = asked.texts.iter().map(|text| vec![Turn::user().saying(text)]);
    let positions = checkpoint.decoder().map_err(Failed::model)?.max_positions;
    let mut all = Vec::new();
    for turns in given.chain(built_in) {
        // A question alone is followed by the place of its answer, a conversation has it.
        let open = turns.len() == 1 && turns[0].speaker == Role::User;
        let mut tokens =
            tokenizer.encode(&chat(&tokenizer, &turns, open)).map_err(Failed::model)?;
        // What was given must fit; of what is ours a beginning will do.
        if !is_given {
            tokens.truncate(positions);
        }
        all.push(Prompt { tokens, image: None });
    }
    if !is_given {
        all = thinned(all, BUILT_IN_TOKENS_MAX);
    }
    let seen = seen(checkpoint, &tokenizer, asked, is_given, progress)?;
    all.extend(seen.into_iter().filter(|prompt| is_given || prompt.tokens.len() <= positions));
    let prompts: Vec<reference::Prompt<'_>> = all.iter().map(Prompt::of_reference).collect();
    let options = Options { rows: asked.rows, prompts: source };
    calibrate(checkpoint, &prompts, options, out, progress).map_err(Failed::model)
}

/// As many of `prompts`, spread evenly over them, as have about `tokens_max` tokens together; all of them
/// where they have no more.
fn thinned(prompts: Vec<Prompt>, tokens_max: usize) -> Vec<Prompt> {
    let total: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let share = |n: usize| n * tokens_max / total.max(tokens_max);
    let numbered = prompts.into_iter().enumerate();
    numbered.filter(|(n, _)| share(n + 1) > share(*n)).map(|(_, prompt)| prompt).collect()
}

impl Prompt {
    fn of_reference(&self) -> reference::Prompt<'_> {
        let image =
            self.image.as_ref().map(|(token, embeds)| PromptEmbeds { token: *token, embeds });
        reference::Prompt::plain(&self.tokens, image)
    }
}

/// `turns` with the marks of a chat where the tokenizer knows some, one after another elsewhere; where it
/// is `open`, the answer's place follows.
fn chat(tokenizer: &Tokenizer, turns: &[Turn], open: bool) -> String {
    let knows = |mark: &str| tokenizer.token(mark).is_some();
    let marks = if knows("<|im_start|>") {
        Some(("<|im_start|>", "\n", "<|im_end|>\n"))
    } else if knows("<|start_header_id|>") {
        Some(("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"))
    } else {
        None
    };
    written(turns, open, marks)
}

/// The same with what begins a turn before and behind its speaker, and what ends it.
fn written(turns: &[Turn], open: bool, marks: Option<(&str, &str, &str)>) -> String {
    let name = |turn: &Turn| match turn.speaker {
        Role::Nobody => None,
        Role::User => Some("user"),
        Role::Assistant => Some("assistant"),
    };
    let mut text = String::new();
    for turn in turns {
        match (marks, name(turn)) {
            (Some((before, behind, end)), Some(name)) => {
                text.extend([before, name, behind, &turn.text, end]);
            }
            _ if text.is_empty() => text.push_str(&turn.text),
            _ => text.extend(["\n", &turn.text]),
        }
    }
    if let (Some((before, behind, _)), true) = (marks, open) {
        text.extend([before, "assistant", behind]);
    }
    text
}

/// Pictures to see, if any: what they are called, what is asked of them, and what is answered.
struct ImagePrompt {
    name: String,
    pictures: Vec<Image>,
    question: String,
    answer: Option<String>,
}

/// The pictures and questions that were given, or the built-in ones where nothing was and the model has eyes.
fn image_prompts(
    checkpoint: &Checkpoint,
    asked: &Asked<'_>,
    is_given: bool,
) -> Result<Vec<ImagePrompt>, Failed> {
    if !is_given {
        let drawn = if checkpoint.tile().is_ok() { &set::PICTURES[..] } else { &[] };
        let image_prompt = |drawn: &set::Drawn| {
            let picture = Image::decode(drawn.png).map_err(Failed::model)?;
            let (name, question) = (drawn.name.to_owned(), drawn.question.to_owned());
            let answer = Some(drawn.answer.to_owned());
            Ok(ImagePrompt { name, pictures: vec![picture], question, answer })
        };
        return drawn.iter().map(image_prompt).collect();
    }
    let image_prompt = |path: &PathBuf| {
        let picture = Image::open(path).map_err(Failed::model)?;
        let (name, question) = (path.display().to_string(), DESCRIBE.to_owned());
        Ok(ImagePrompt { name, pictures: vec![picture], question, answer: None })
    };
    let mut image_prompts: Vec<ImagePrompt> =
        asked.pictures.iter().map(image_prompt).collect::<Result<_, Failed>>()?;
    if let Some(file) = &asked.questions {
        image_prompts.extend(questions(file)?);
    }
    Ok(image_prompts)
}

/// The questions of `file`, the pictures of which lie beside it.
fn questions(file: &Path) -> Result<Vec<ImagePrompt>, Failed> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let image_prompt = |(number, asked): (usize, question::Question)| {
        let pictures = asked.images.iter().map(|image| Image::open(&folder.join(image)));
        let pictures = pictures.collect::<Result<_, _>>().map_err(Failed::model)?;
        let (name, question) = (format!("question {}", number + 1), asked.prompt());
        Ok(ImagePrompt { name, pictures, question, answer: Some(asked.answer) })
    };
    let all = question::read(file, None).map_err(Failed::usage)?;
    all.into_iter().enumerate().map(image_prompt).collect()
}

/// A prompt for each of what there is to see, a picture as one tile.
fn seen(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    asked: &Asked<'_>,
    is_given: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Prompt>, Failed> {
    let image_prompts = image_prompts(checkpoint, asked, is_given)?;
    let mut image_encoder = None;
    let mut prompts = Vec::new();
    for (number, image_prompt) in image_prompts.iter().enumerate() {
        progress(&format!(
            "seeing {} ({} of {})",
            image_prompt.name,
            number + 1,
            image_prompts.len()
        ));
        let mut marks = String::new();
        let mut image = None;
        if !image_prompt.pictures.is_empty() {
            let image_encoder = match &mut image_encoder {
                Some(image_encoder) => image_encoder,
                none => none.insert(ImageEncoder::open(checkpoint, asked.vision)?),
            };
            let word = &image_encoder.words.image;
            let Some(token) = tokenizer.token(word) else {
                if !is_given {
                    return Ok(Vec::new());
                }
                let dir = checkpoint.dir().display();
                let why = format!("{dir}: {TOKENIZER_FILE} has no token {word}");
                return Err(Failed::model(why));
            };
            marks = image_encoder.mark().repeat(image_prompt.pictures.len());
            image = Some((token, image_encoder.embeds(&image_prompt.pictures)?));
        }
        let mut turns = vec![Turn::user().saying(&format!("{marks}{}", image_prompt.question))];
        let answer = image_prompt.answer.as_ref();
        turns.extend(answer.map(|answer| Turn::assistant().saying(answer)));
        let text = chat(tokenizer, &turns, answer.is_none());
        let tokens = tokenizer.encode(&text).map_err(Failed::model)?;
        prompts.push(Prompt { tokens, image });
    }
    Ok(prompts)
}

/// What pictures are seen with.
struct ImageEncoder<'a> {
    checkpoint: &'a Checkpoint,
    /// The reference sees where there is none.
    engine: Option<VisionEngine>,
    tile: Tile,
    scale: Scale,
    words: ImageTokens,
    /// What stands before the image tokens of a whole picture.
    label: &'static str,
}

impl<'a> ImageEncoder<'a> {
    fn open(checkpoint: &'a Checkpoint, vision: Option<&Path>) -> Result<Self, Failed> {
        let tile = checkpoint.tile().map_err(Failed::model)?;
        let family = family(checkpoint)?;
        let facts = family.images().zip(ImageTokens::of(family));
        let (images, words) = facts.expect("families whose towers stand before a decoder see");
        let engine = vision.map(engines::open).transpose().map_err(Failed::model)?;
        let (scale, label) = (images.normalization.into(), images.label());
        Ok(Self { checkpoint, engine, tile, scale, words, label })
    }

    /// What a picture is in a prompt.
    fn mark(&self) -> String {
        let ImageTokens { start, image, end, .. } = &self.words;
        format!("{start}{}{}{end}\n", self.label, image.repeat(self.tile.tokens))
    }

    /// What `pictures` are to the language model, one after another.
    fn embeds(&mut self, pictures: &[Image]) -> Result<Vec<f32>, Failed> {
        let mut embeds = Vec::new();
        for picture in pictures {
            let mut pixels = Vec::new();
            let tiles = tiles(picture, Mosaic::ONE, self.tile.side, 1);
            tiles.iter().for_each(|tile| self.scale.planes(tile, &mut pixels));
            embeds.extend(match &self.engine {
                Some(engine) => engine.encode(&pixels, 1).map_err(Failed::model)?,
                None => {
                    reference::vision_embeds(self.checkpoint, &pixels, 1).map_err(Failed::model)?
                }
            });
        }
        Ok(embeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_thinned_evenly() {
        let prompts = |count: usize| -> Vec<Prompt> {
            (0..count).map(|n| Prompt { tokens: vec![n as u32; 100], image: None }).collect()
        };
        let first = |prompts: Vec<Prompt>| -> Vec<u32> {
            prompts.iter().map(|prompt| prompt.tokens[0]).collect()
        };
        assert_eq!(first(thinned(prompts(8), 400)), [1, 3, 5, 7]);
        assert_eq!(first(thinned(prompts(3), 300)), [0, 1, 2]);
        assert_eq!(first(thinned(prompts(3), 9000)), [0, 1, 2]);
    }

    #[test]
    fn conversations_have_the_marks_of_the_model() {
        let turns = [Turn::user().saying("Hi"), Turn::assistant().saying("Hello.")];
        let marks = Some(("<|im_start|>", "\n", "<|im_end|>\n"));
        let expect = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n";
        assert_eq!(written(&turns, false, marks), expect);
        let open = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(written(&turns[..1], true, marks), open);
        assert_eq!(written(&turns, false, None), "Hi\nHello.");
        assert_eq!(written(&[Turn::plain().saying("fn main() {}")], false, marks), "fn main() {}");
    }
}
