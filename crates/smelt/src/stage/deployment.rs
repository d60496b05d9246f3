//! `deployment`: engines, tokenizer, chat template and preprocessing in the shape `chat` loads.
//!
//! Engines are gigabytes and immutable, so they are named, not copied: sealed outputs lie beside
//! each other, and a relative path from one to the next holds wherever the store is.  What was written is
//! opened as `chat` opens it, engines compared with their digests, and does once what an answer takes: what does not
//! fit together is never sealed.

use std::path::{Path, PathBuf};

use smelt_backend::{Backends, KvOptions, KvType};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::families::bert::Bert;
use smelt_model::model::{Encoder, ModelPart, Vision};
use smelt_plan::kind::deployment::Deployment as Params;
use smelt_plan::kind::words::KvForm;
use smelt_runtime::deployment::{
    self, Deployment, FORMAT, ModelFamily, Serving, Spec, Verified, eos_tokens,
};
use smelt_runtime::embed::{self, Recipe, SentenceEncoder};
use smelt_runtime::engine_dirs::EngineDirs;
use smelt_runtime::generate::try_once;
use smelt_runtime::image::{
    By, Cutting, ImageOptions, ImageProcessor, PreprocessorConfig, Router, Scale,
};
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::score::{self, CrossEncoder};
use smelt_runtime::similarity;
use smelt_runtime::template::TOOLS_FILE;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};
use smelt_runtime::vision;

use super::request::{Request, say};
use super::{Worker, refusal};
use crate::atomic_dir::AtomicDir;
use crate::checkpoint::{Beside, MADE_DIR};
use crate::device::{BACKENDS, LOOKING};
use crate::exit::{Exit, Failed};
use crate::loading::Loading;
use crate::proof::{self, Half, Part};
use crate::seeing::cutting_by;
use crate::{integrity, photographs};

/// Files of a checkpoint that a deployment carries, where the checkpoint has them.
const FILES: [&str; 4] =
    [TOKENIZER_FILE, "tokenizer_config.json", "chat_template.jinja", "chat_template.json"];

pub(super) const WORKER: Worker =
    Worker { executes_graphs: true, refusal: Some(refusal::of_deployment), ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    deploy(request).map_err(|why| of_own_files(why, request))
}

fn deploy(request: &Request) -> Result<(), Failed> {
    // What no engine fits is told before anything is made.
    for field in ["vision", "llm", "clip-vision", "clip-text"] {
        chosen(request, field)?;
    }
    match chosen(request, "encoder")? {
        Some(engine) if score::is_with_head(LOOKING, &engine).map_err(Failed::model)? => {
            cross_encoder(request, &engine)
        }
        Some(engine) => encoder(request, &engine),
        None => chat(request),
    }
}

/// Of the engines that a field names the one that is tried, since this device runs it.
fn chosen(request: &Request, field: &str) -> Result<Option<PathBuf>, Failed> {
    let dirs = request.inputs_of(field);
    if dirs.is_empty() {
        return Ok(None);
    }
    let file = request.out.join(deployment::DEPLOYMENT_FILE);
    LOOKING.choose(&file, &dirs).map(|dir| Some(dir.to_owned())).map_err(Failed::model)
}

/// What opens the engines, which this device runs all or looks at: those of other devices are tried where they run.
fn backends(dirs: &[impl AsRef<Path>]) -> Result<(Backends, bool), Failed> {
    for dir in dirs {
        if !BACKENDS.runs(dir.as_ref()).map_err(Failed::model)? {
            say("an engine is for a card that is not here: it is tried where it runs");
            return Ok((LOOKING, false));
        }
    }
    Ok((BACKENDS, true))
}

/// The engines that a field names, as the deployment will name them.
fn engine_dirs(request: &Request, field: &str) -> Result<EngineDirs, Failed> {
    let dirs = request.inputs_of(field);
    let dirs = dirs.iter().map(|dir| beside(dir)).collect::<Result<Vec<_>, _>>()?;
    Ok(dirs.into())
}

/// The same failure by the names of the files that were copied: the copies are gone when somebody reads it.
fn of_own_files(why: Failed, request: &Request) -> Failed {
    let in_out = |name: &str| request.out.join(name).display().to_string();
    let own = |field: &str| request.optional_input(field).unwrap_or(&request.out).display();
    let why = why.renamed(in_out(MADE_DIR), own("checkpoint"));
    let clip = format!("{}/{TOKENIZER_FILE}", own("clip"));
    let why = why.renamed(in_out(similarity::TOKENIZER), clip);
    // What does not fit together is of no file that was copied.
    let why = why.renamed(in_out(deployment::DEPLOYMENT_FILE) + ": ", "");
    why.renamed(request.out.display(), own("checkpoint"))
}

/// An encoder that embeds sentences, by the checkpoint's own recipe.
fn encoder(request: &Request, engine: &Path) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let dir = checkpoint.dir();
    let has_recipe = dir.join(embed::MODULES_FILE).exists();
    if !has_recipe && checkpoint.has(ModelPart::Classifier) {
        let why = "has a classification head and no modules.json: to score pairs by it, export part = \"classifier\"";
        return Err(Failed::model(format!("{} {why}", dir.display())));
    }
    let recipe = Recipe::of_checkpoint(dir).map_err(Failed::model)?;
    let places = bert(&checkpoint)?.positions;
    let spec = embed::Spec {
        format: FORMAT,
        family: embed::FAMILY.to_owned(),
        model: request.typed::<Params>()?.model,
        encoder: engine_dirs(request, "encoder")?,
        max_tokens: recipe.max_tokens.unwrap_or(places).min(places),
        pooling: recipe.pooling,
        normalize: recipe.normalize,
    };
    spec.write(&request.out, &dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let (out, at, mut told) = (&request.out, place(engine), say);
    let mut loading = Loading::new(integrity::bytes(&[engine.to_owned()]), &mut told);
    loading.opens();
    let (backends, is_here) = backends(&[engine])?;
    let encoder = SentenceEncoder::open_at(backends, out, &at).map_err(Failed::model)?;
    loading.compares();
    encoder.verify_digest(&mut |bytes| loading.has_read(bytes)).map_err(Failed::invalid)?;
    if !is_here {
        return Ok(());
    }
    loading.runs(0.0, "reading a word");
    encoder.embed("Hello").map(drop).map_err(Failed::model)
}

/// An encoder with a head that scores pairs or classifies texts, by the checkpoint's own recipe.
fn cross_encoder(request: &Request, engine: &Path) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let (dir, bert) = (checkpoint.dir(), bert(&checkpoint)?);
    let bad = |why: String| Failed::model(format!("{}: {why}", dir.display()));
    let labels = bert.labels.unwrap_or_default();
    if !(1..=score::LABELS_MAX).contains(&labels) {
        let max = score::LABELS_MAX;
        return Err(bad(format!("its head has {labels} labels, not between 1 and {max}")));
    }
    let recipe = score::Recipe::of_checkpoint(dir, labels).map_err(Failed::model)?;
    if recipe.kinds && bert.types < 2 {
        return Err(bad("type_vocab_size is 1, but pairs have two kinds of tokens".to_owned()));
    }
    let places = bert.positions.min(embed::TOKENS_MAX);
    let spec = score::Spec {
        format: FORMAT,
        family: score::FAMILY.to_owned(),
        model: request.typed::<Params>()?.model,
        encoder: engine_dirs(request, "encoder")?,
        max_tokens: recipe.max_tokens.unwrap_or(places).min(places),
        activation: recipe.activation,
        kinds: recipe.kinds,
        labels: recipe.labels,
    };
    spec.write(&request.out, &dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let (out, at, mut told) = (&request.out, place(engine), say);
    let mut loading = Loading::new(integrity::bytes(&[engine.to_owned()]), &mut told);
    loading.opens();
    let (backends, is_here) = backends(&[engine])?;
    let encoder = CrossEncoder::open_at(backends, out, &at).map_err(Failed::model)?;
    loading.compares();
    encoder.verify_digest(&mut |bytes| loading.has_read(bytes)).map_err(Failed::invalid)?;
    if !is_here {
        return Ok(());
    }
    loading.runs(0.0, "reading a pair of words");
    let scores = encoder.scores(["Hello", "Hello"]).map_err(Failed::model)?;
    let (max, activation) = (spec.max_tokens, format!("{:?}", spec.activation).to_lowercase());
    say(&match spec.labels.len() {
        0 => format!(
            "scores pairs of up to {max} tokens ({activation}); two equal words: {}",
            scores[0]
        ),
        count => format!("classifies texts of up to {max} tokens by {count} labels ({activation})"),
    });
    Ok(())
}

/// The BERT of a checkpoint.
fn bert(checkpoint: &Checkpoint) -> Result<&Bert, Failed> {
    match &checkpoint.model().encoder {
        Some(Encoder::Bert(bert)) => Ok(bert),
        _ => {
            let dir = checkpoint.dir().display();
            Err(Failed::model(format!("{dir} is no checkpoint of a sentence encoder")))
        }
    }
}

/// A language model, which sees where it has a vision engine.
fn chat(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let params: Params = request.typed()?;
    let beside = Beside::of(&checkpoint, &request.out)?;
    let dir = beside.dir();
    let mut spec = spec(request, &checkpoint, dir, &params.model)?;
    spec.serving = serving(&params, &checkpoint)?;
    if let Some(tiles) = spec.serving.tiles {
        allow_tiles(&mut spec.image, tiles)?;
    }
    spec.router = router(request, &params)?;
    costs(request, &checkpoint, &spec).iter().flatten().for_each(|line| say(line));
    spec.clip = clip(request)?;
    let proof = request.optional_input("verified").and_then(Half::read);
    let is_half = proof.is_some_and(|half| half.part == Part::Weights);
    spec.verified = is_half.then_some(Verified::Weights);
    let files: Vec<PathBuf> =
        FILES.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect();
    Deployment::write(&request.out, &spec, &files).map_err(Failed::model)?;
    let tools =
        Some(dir.join(TOOLS_FILE)).filter(|path| path.exists()).map(|path| (path, TOOLS_FILE));
    let clip = request.optional_input("clip");
    let clip = clip.map(|clip| (clip.join(TOKENIZER_FILE), similarity::TOKENIZER));
    for (from, name) in tools.into_iter().chain(clip) {
        deployment::copy(&from, &request.out.join(name)).map_err(Failed::model)?;
    }
    let engines = ["vision", "llm", "clip-vision", "clip-text"];
    let engines = engines.iter().filter_map(|field| chosen(request, field).ok().flatten());
    let engines: Vec<_> = engines.collect();
    let (bytes, mut told) = (integrity::bytes(&engines), say);
    let mut loading = Loading::new(bytes, &mut told);
    loading.opens();
    let at = place(request.input("llm")?);
    let (backends, is_here) = backends(&engines)?;
    let opened = Deployment::open_at(backends, [&request.out, &at], KvOptions::default());
    let mut opened = opened.map_err(Failed::model)?;
    // `verify` may be of other engines, and knows no CLIP.
    loading.compares();
    opened.verify_digests(&mut |bytes| loading.has_read(bytes)).map_err(Failed::invalid)?;
    if !is_here {
        return Ok(());
    }
    try_once(&mut opened, &mut |done, what| loading.runs(done, what)).map_err(Failed::model)
}

/// Where a deployment will lie whose engine lies here: sealed outputs lie beside each other.
fn place(engine: &Path) -> PathBuf {
    engine.with_file_name("deployment")
}

/// What of the checkpoint at `path` a deployment would be refused for, which sees or reads text alone: all that
/// its files tell before anything is built of them.
pub(super) fn foresee(path: &Path, sees: bool) -> Result<(), Failed> {
    let checkpoint = Checkpoint::open(path).map_err(Failed::model)?;
    let scratch = AtomicDir::scratch(&std::env::temp_dir().join("smelt-plan"))?;
    let beside = Beside::of(&checkpoint, scratch.path())?;
    let own = checkpoint.path().display();
    let seen = foresee_in(beside.dir(), &checkpoint, sees);
    seen.map_err(|why| why.renamed(beside.dir().display(), own))
}

/// The same of a checkpoint whose tokenizer and chat template are in `dir`.
fn foresee_in(dir: &Path, checkpoint: &Checkpoint, sees: bool) -> Result<(), Failed> {
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let family = family(checkpoint)?;
    if sees {
        cutting(checkpoint)?;
    }
    let words = ImageTokens::of(family).filter(|_| sees);
    let words = words.iter().flat_map(|words| [&words.start, &words.image, &words.end]);
    let bad = |why: String| Failed::model(format!("{}: {why}", dir.join(TOKENIZER_FILE).display()));
    for word in words {
        if tokenizer.token(word).is_none() {
            return Err(bad(format!("has no token {word:?}, which stands for pictures")));
        }
    }
    let (known, has) = (checkpoint.decoder().map_err(Failed::model)?.vocab, tokenizer.vocab());
    if has > known {
        return Err(bad(format!("has {has} tokens, but the model knows {known}")));
    }
    eos_tokens(dir, &tokenizer).map_err(Failed::model)?;
    foresee_texts(dir)
}

/// The same of the texts in `dir` alone, without a tokenizer.
pub(super) fn foresee_texts(dir: &Path) -> Result<(), Failed> {
    deployment::check_texts(dir).map_err(Failed::model)
}

/// The router of the thresholds or image tokens that are given; by similarity where there is a CLIP.
fn router(request: &Request, params: &Params) -> Result<Option<Router>, Failed> {
    let number = |text: &String| {
        let why = || format!("\"thresholds\": {text:?} is no number");
        text.parse::<f32>().map_err(|_| Failed::new(Exit::BadPipeline, why()))
    };
    let thresholds = params.thresholds.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let tokens_max = params.image_tokens;
    let is_there = !thresholds.is_empty() || tokens_max.is_some();
    let by = match request.optional_input("clip") {
        Some(_) => By::Similarity,
        None => By::Texture,
    };
    Ok(is_there.then_some(Router { by, thresholds, tokens_max }))
}

/// The CLIP that says how near tiles are to the question, by its checkpoint's own numbers.
fn clip(request: &Request) -> Result<Option<similarity::Spec>, Failed> {
    if request.optional_input("clip").is_none() {
        return Ok(None);
    }
    let checkpoint = request.checkpoint("clip")?;
    let Some(Encoder::ClipText(text)) = &checkpoint.model().encoder else {
        let dir = checkpoint.dir().display();
        return Err(Failed::model(format!(
            "\"clip\": {dir} is no checkpoint of a CLIP that reads"
        )));
    };
    let processor = PreprocessorConfig::of_checkpoint(checkpoint.dir()).map_err(Failed::model)?;
    Ok(Some(similarity::Spec {
        vision: engine_dirs(request, "clip-vision")?,
        text: engine_dirs(request, "clip-text")?,
        max_tokens: text.positions,
        scale: processor.scale.unwrap_or(Scale::CLIP),
    }))
}

/// What a deployment of `checkpoint` called `model` says, its tokenizer in `dir`, its engines those that the request
/// names as `llm` and, where it sees, as `vision`.
pub(super) fn spec(
    request: &Request,
    checkpoint: &Checkpoint,
    dir: &Path,
    model: &str,
) -> Result<Spec, Failed> {
    let vision = request.optional_input("vision");
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let family = family(checkpoint)?;
    Ok(Spec {
        format: FORMAT,
        family,
        model: model.to_owned(),
        vision: vision.map(|_| engine_dirs(request, "vision")).transpose()?,
        llm: engine_dirs(request, "llm")?,
        image: vision.map(|_| cutting(checkpoint)).transpose()?,
        router: None,
        clip: None,
        image_tokens: vision.and_then(|_| ImageTokens::of(family)),
        places_per_second: vision
            .and(checkpoint.model().vision.as_ref())
            .and_then(Vision::places_per_second),
        eos: eos_tokens(dir, &tokenizer).map_err(Failed::model)?,
        serving: Serving::default(),
        verified: None,
    })
}

/// The family that a checkpoint's deployment is of.
pub(super) fn family(checkpoint: &Checkpoint) -> Result<ModelFamily, Failed> {
    let name = checkpoint.model().family;
    ModelFamily::named(name).ok_or_else(|| {
        let dir = checkpoint.dir().display();
        Failed::model(format!("{dir} is of {name}, which does not speak"))
    })
}

/// A family's preprocessing, by the checkpoint's own numbers.
pub(super) fn cutting(checkpoint: &Checkpoint) -> Result<Cutting, Failed> {
    let dir = checkpoint.dir();
    let processor = PreprocessorConfig::of_checkpoint(dir).map_err(Failed::model)?;
    let clips = PreprocessorConfig::of_clips(dir).map_err(Failed::model)?;
    let found = cutting_by(checkpoint.model(), &processor, &clips);
    found.ok_or_else(|| Failed::model(format!("{} does not see and speak", dir.display())))
}

/// How the deployment is served where nobody says otherwise.
fn serving(params: &Params, checkpoint: &Checkpoint) -> Result<Serving, Failed> {
    let &Params { max_seq_len, slots, tiles, frames, kv, memory, .. } = params;
    let (kv, memory_bytes_max) = (kv.map(kv_type), memory);
    let serving = Serving { max_seq_len, slots, tiles, frames, kv, memory_bytes_max };
    let positions = checkpoint.decoder().map_err(Failed::model)?.max_positions;
    match serving.max_seq_len {
        Some(asked) if asked > positions => Err(Failed::new(
            Exit::BadPipeline,
            format!("\"max-seq-len\" is {asked}, more than the model's {positions} positions"),
        )),
        _ => Ok(serving),
    }
}

/// The form of keys and values that a pipeline's word means.
fn kv_type(form: KvForm) -> KvType {
    match form {
        KvForm::F32 => KvType::F32,
        KvForm::F16 => KvType::F16,
        KvForm::Int8 => KvType::Int8,
    }
}

/// What photographs will cost, where the engines can be opened here.
fn costs(request: &Request, checkpoint: &Checkpoint, spec: &Spec) -> Option<Vec<String>> {
    let engines = BACKENDS.vision(&chosen(request, "vision").ok()??).ok()?;
    let vision = vision::Vision::new(spec.image.clone()?, engines).ok()?;
    let built_for = || {
        let dir = chosen(request, "llm").ok()??;
        let engine = LOOKING.decoder(&dir, KvOptions::default()).ok()?;
        Some(engine.facts().built_for.max_seq_len)
    };
    let context = spec.serving.max_seq_len.or_else(built_for)?;
    let (cutting, router) = (spec.image.clone()?, spec.router.clone());
    let image_processor = ImageProcessor { cutting, grids: vision.grids(), router };
    let image_options = ImageOptions { tiles_max: spec.serving.tiles, ..ImageOptions::default() };
    let positions = checkpoint.decoder().ok()?.max_positions;
    image_processor
        .fault()
        .is_none()
        .then(|| photographs::lines(&image_processor, &image_options, [context, positions]))
}

/// Lets pictures have so many tiles, the thumbnail not counted.
fn allow_tiles(image: &mut Option<Cutting>, tiles: usize) -> Result<(), Failed> {
    if image.as_mut().is_none_or(|image| image.allow_tiles(tiles)) {
        return Ok(());
    }
    let why = "\"tiles\" are of models that see tiles; this one sees patches, leave them out";
    Err(Failed::new(Exit::BadPipeline, why))
}

/// The path of a sealed output as seen from another one.
fn beside(sealed: &Path) -> Result<String, Failed> {
    Ok(format!("../{}", proof::name(sealed)?))
}
