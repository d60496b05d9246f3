//! `deployment`: engines, tokenizer, chat template and preprocessing in the shape `chat` loads.
//!
//! Engines are gigabytes and immutable, so they are named, not copied: sealed outputs lie beside
//! each other, and a relative path from one to the next holds wherever the store is.  What was written is
//! opened as `chat` opens it, engines compared with their digests, and does once what an answer takes: what does not
//! fit together is never sealed.

use std::path::{Path, PathBuf};

use smelt_backend::{Backends, KvOptions, KvType};
use smelt_deploy::photographs;
use smelt_deploy::spec::{self, ChatEngines};
use smelt_deploy::text_files::{MADE_DIR, TextFiles};
use smelt_model::checkpoint::Checkpoint;
use smelt_plan::kind::deployment::Deployment as Params;
use smelt_plan::kind::words::KvForm;
use smelt_runtime::deployment::{self, Deployment, Serving, Spec, Verified};
use smelt_runtime::embed::SentenceEncoder;
use smelt_runtime::engine_dirs::EngineDirs;
use smelt_runtime::generate::try_once;
use smelt_runtime::image::{ImageOptions, ImageProcessor};
use smelt_runtime::proof::{Half, Part};
use smelt_runtime::score::{self, CrossEncoder};
use smelt_runtime::similarity;
use smelt_runtime::template::TOOLS_FILE;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};
use smelt_runtime::upstream as server;
use smelt_runtime::vision;
use smelt_serve::Upstream;

use super::request::{Request, say};
use super::{Worker, refusal};
use crate::device::{BACKENDS, LOOKING};
use crate::exit::{Exit, Failed};
use crate::loading::Loading;
use crate::{integrity, upstream};

/// Where most servers say that they are well, and how long they may take until they are.
const HEALTH_USUAL: &str = "/health";
const START_S_USUAL: u64 = 300;

/// Files of a checkpoint that a deployment carries, where the checkpoint has them.
const FILES: [&str; 4] =
    [TOKENIZER_FILE, "tokenizer_config.json", "chat_template.jinja", "chat_template.json"];

pub(super) const WORKER: Worker =
    Worker { executes_graphs: true, refusal: Some(refusal::of_deployment), ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    deploy(request).map_err(|why| of_own_files(why, request))
}

fn deploy(request: &Request) -> Result<(), Failed> {
    if let Some(engine) = request.optional_input("engine") {
        return relay(request, engine);
    }
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
    Ok(spec::engine_dirs(&request.inputs_of(field))?)
}

/// What a deployment of `checkpoint` called `model` says, and its tokenizer, which is in `dir`; its engines are those that the
/// request names as `llm` and, where it sees, as `vision`.
pub(super) fn chat_spec(
    request: &Request,
    checkpoint: &Checkpoint,
    dir: &Path,
    model: &str,
) -> Result<(Spec, Tokenizer), Failed> {
    let vision = request.optional_input("vision");
    let vision = vision.map(|_| engine_dirs(request, "vision")).transpose()?;
    let engines = ChatEngines { vision, llm: engine_dirs(request, "llm")? };
    Ok(spec::chat(checkpoint, dir, model, engines)?)
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
    let Params { model, memory, .. } = request.typed()?;
    let mut spec = spec::encoder(&checkpoint, &model, engine_dirs(request, "encoder")?)?;
    spec.memory_bytes_max = memory;
    let tokenizer = checkpoint.dir().join(TOKENIZER_FILE);
    spec.write(&request.out, &tokenizer).map_err(Failed::model)?;
    let (out, at, mut told) = (&request.out, place(engine), say);
    let mut loading = Loading::new(integrity::bytes(&[engine.to_owned()]), &mut told);
    loading.opens();
    let (backends, is_here) = backends(&[engine])?;
    let encoder = SentenceEncoder::open_at(backends, out, &at).map_err(Failed::model)?;
    loading.compares();
    encoder
        .verify_digest(&mut request.witness(|bytes| loading.has_read(bytes)))
        .map_err(Failed::invalid)?;
    if !is_here {
        return Ok(());
    }
    loading.runs(0.0, "reading a word");
    encoder.embed("Hello").map(drop).map_err(Failed::model)
}

/// An encoder with a head that scores pairs or classifies texts, by the checkpoint's own recipe.
fn cross_encoder(request: &Request, engine: &Path) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let Params { model, memory, .. } = request.typed()?;
    let mut spec = spec::cross_encoder(&checkpoint, &model, engine_dirs(request, "encoder")?)?;
    spec.memory_bytes_max = memory;
    let tokenizer = checkpoint.dir().join(TOKENIZER_FILE);
    spec.write(&request.out, &tokenizer).map_err(Failed::model)?;
    let (out, at, mut told) = (&request.out, place(engine), say);
    let mut loading = Loading::new(integrity::bytes(&[engine.to_owned()]), &mut told);
    loading.opens();
    let (backends, is_here) = backends(&[engine])?;
    let encoder = CrossEncoder::open_at(backends, out, &at).map_err(Failed::model)?;
    loading.compares();
    encoder
        .verify_digest(&mut request.witness(|bytes| loading.has_read(bytes)))
        .map_err(Failed::invalid)?;
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

/// What another program's server answers: it is started, must be well in its time, and answers something short.
fn relay(request: &Request, engine: &Path) -> Result<(), Failed> {
    let engine_name = format!("../{}", spec::sealed_name(engine)?);
    let mut spec = server_spec(request.typed()?, engine_name);
    let mut told = say;
    let mut loading = Loading::new(integrity::bytes(&[engine.to_owned()]), &mut told);
    loading.compares();
    let files =
        server::EngineFile::all(engine, &mut request.witness(|bytes| loading.has_read(bytes)));
    spec.files = files.map_err(Failed::invalid)?;
    spec.write(&request.out).map_err(|why| Failed::new(Exit::BadPipeline, why))?;
    let launch = upstream::launch(spec, engine.to_owned(), 0);
    let started = Upstream::start(launch, &mut say).map_err(Failed::invalid)?;
    let path = started.try_once().map_err(Failed::invalid)?;
    say(&format!("the server answers at {path}"));
    match request.optional_input("prompts") {
        Some(folder) => upstream::all_right(&started, folder, &say),
        None => Ok(()),
    }
}

/// A language model, which sees where it has a vision engine.
fn chat(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let params: Params = request.typed()?;
    let texts = TextFiles::of(&checkpoint, &request.out, &say)?;
    let dir = texts.dir();
    let (mut spec, tokenizer) = chat_spec(request, &checkpoint, dir, &params.model)?;
    spec.serving = serving(&params);
    spec::check_serving(&spec.serving, &checkpoint)?;
    if let Some(tiles) = spec.serving.tiles {
        spec::allow_tiles(&mut spec.image, tiles)?;
    }
    let has_clip = request.optional_input("clip").is_some();
    spec.router = spec::router(&params.thresholds, params.image_tokens, has_clip)?;
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
    let places = [request.out.as_path(), &at];
    let opened = Deployment::open_at(backends, places, KvOptions::default(), tokenizer);
    let mut opened = opened.map_err(Failed::model)?;
    // `verify` may be of other engines, and knows no CLIP.
    loading.compares();
    opened
        .verify_digests(&mut request.witness(|bytes| loading.has_read(bytes)))
        .map_err(Failed::invalid)?;
    if !is_here {
        return Ok(());
    }
    try_once(&mut opened, &mut |done, what| loading.runs(done, what)).map_err(Failed::model)
}

/// Where a deployment will lie whose engine lies here: sealed outputs lie beside each other.
fn place(engine: &Path) -> PathBuf {
    engine.with_file_name("deployment")
}

/// What a deployment says that another program's server answers, which reads `engine`.
pub(super) fn server_spec(params: Params, engine: String) -> server::Spec {
    let Params { model, server, health, slots, fields, start_seconds, memory, .. } = params;
    server::Spec {
        format: deployment::FORMAT,
        family: server::FAMILY.to_owned(),
        model,
        engine,
        server,
        health: health.unwrap_or_else(|| HEALTH_USUAL.to_owned()),
        // Some engines answer nonsense where they are asked two things at once.
        slots: slots.unwrap_or(1),
        fields: fields.into_iter().collect(),
        start_s: start_seconds.unwrap_or(START_S_USUAL),
        memory_bytes_max: memory,
        files: Vec::new(),
    }
}

/// The CLIP that says how near tiles are to the question.
fn clip(request: &Request) -> Result<Option<similarity::Spec>, Failed> {
    if request.optional_input("clip").is_none() {
        return Ok(None);
    }
    let checkpoint = request.checkpoint("clip")?;
    let engines = [engine_dirs(request, "clip-vision")?, engine_dirs(request, "clip-text")?];
    Ok(Some(spec::clip(&checkpoint, engines)?))
}

/// How the deployment is served where nobody says otherwise.
fn serving(params: &Params) -> Serving {
    let &Params { max_seq_len, slots, tiles, frames, kv, memory, .. } = params;
    let (kv, memory_bytes_max) = (kv.map(kv_type), memory);
    Serving { max_seq_len, slots, tiles, frames, kv, memory_bytes_max }
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
