//! Says why stages will be refused, by what configurations, tokenizers and chat templates say before anything is built.
//!
//! Read are the small files of checkpoints that are here or on a hub, never a weight.  What cannot be read yet is no
//! reason to refuse.

use std::fs;
use std::path::Path;

use smelt_cuda::CudaTarget;
use smelt_cuda::kernels::page::HeadShape;
use smelt_deploy::foresee;
use smelt_deploy::seeing::Unseen;
use smelt_model::checkpoint::{Checkpoint, INDEX_FILE, WEIGHTS_FILE};
use smelt_model::model::Model;
use smelt_model::quantize::check_unpacked;
use smelt_plan::kind::deployment::Deployment;
use smelt_plan::kind::engine_build::{EngineBuild, GraphBackend};
use smelt_plan::kind::llm_engine_build::LlmEngineBuild;
use smelt_plan::kind::quantize::Quantize;
use smelt_plan::kind::verify::Verify;
use smelt_plan::kind::words::KvForm;
use smelt_plan::plan::{HubPin, Stage};
use smelt_plan::{Kind, Plan, StageId, kind};
use smelt_runtime::deployment::{ModelFamily, TEXT_FILES};
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use super::request::say;
use super::{deployment, quantize, runtime};
use crate::atomic_dir::AtomicDir;
use crate::checkpoint::check;
use crate::checkpoints::{Checkpoints, count, input};
use crate::exit::{Exit, Failed};
use crate::sees::{image_processor_of, tower_of};

/// Why the engine of a decoder will be refused.
pub(super) fn of_decoder(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    match opened(checkpoints, stage) {
        Some(Err(why)) => Some(why),
        _ => {
            let model = checkpoints.model(stage).ok()??;
            too_long(stage, &model).or_else(|| too_wide(stage, &model))
        }
    }
}

/// Why a checkpoint will not be rounded.
pub(super) fn of_rounding(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    match opened(checkpoints, stage)? {
        Ok(checkpoint) => packed(stage, &checkpoint).or_else(|| unheld(stage, &checkpoint)),
        Err(why) => Some(why),
    }
}

/// Why a deployment will be refused; one without a decoder has no chat template and no context.
pub(super) fn of_deployment(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    if let Some(why) = unrun(checkpoints.plan, stage) {
        return Some(why);
    }
    if let Some((_, engine)) = input(checkpoints.plan, stage, "engine") {
        let params = kind::typed(&stage.params).ok()?;
        return deployment::server_spec(params, format!("../{}", engine.name)).fault();
    }
    input(checkpoints.plan, stage, "llm")?;
    let known = || checkpoints.model(stage).ok().flatten();
    let of_model =
        |model: &Model| too_long(stage, model).or_else(|| apart(checkpoints, stage, model));
    let of_own = || of_texts(checkpoints, stage).or_else(|| unkept(checkpoints.plan, stage));
    of_own().or_else(|| of_model(&known()?))
}

/// The checkpoint of a stage, or why it cannot be read; nothing where it is not here, or another stage makes it.
fn opened(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<Result<Checkpoint, String>> {
    let (id, source) = input(checkpoints.plan, stage, "checkpoint")?;
    let dir = checkpoints.dir(id).filter(|_| source.kind == Kind::Source)?;
    Some(Checkpoint::open(dir).map_err(|error| error.to_string()))
}

/// Weights that are integers already, where the stage does not say that they may be rounded once more.
fn packed(stage: &Stage, checkpoint: &Checkpoint) -> Option<String> {
    let options = quantize::options(kind::typed(&stage.params).ok()?);
    check_unpacked(checkpoint, &options).err().map(|error| error.to_string())
}

/// Weights that the stage's format has no place for.
fn unheld(stage: &Stage, checkpoint: &Checkpoint) -> Option<String> {
    let params: Quantize = kind::typed(&stage.params).ok()?;
    let form = quantize::form(params.format);
    check(checkpoint, &quantize::options(params), form).err().map(|error| error.to_string())
}

/// A runtime that nobody can ask, or a tokenizer that nobody can use, with which `verify` asks.
pub(super) fn of_verify(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    let words = kind::typed::<Verify>(&stage.params).ok()?.runtime;
    if !words.is_empty() {
        return runtime::fault(&words);
    }
    let (id, _) = input(checkpoints.plan, stage, "against")?;
    let file = checkpoints.dir(id)?.join(TOKENIZER_FILE);
    // A GGUF file may have its own inside.
    let opened = file.exists().then(|| Tokenizer::open(&file))?;
    opened.err().map(|error| error.to_string())
}

/// A context that the model has no positions for.
fn too_long(stage: &Stage, model: &Model) -> Option<String> {
    const NAME: &str = "max-seq-len";
    let (asked, positions) = (count(stage, NAME)?, model.llm.as_ref()?.max_positions);
    (asked > positions)
        .then(|| format!("\"{NAME}\" is {asked}, more than the model's {positions} positions"))
}

/// Heads that no kernel of the engine's target takes.
fn too_wide(stage: &Stage, model: &Model) -> Option<String> {
    let target = kind::typed::<LlmEngineBuild>(&stage.params).ok()?.target;
    CudaTarget::parse(target.word())?;
    HeadShape::check(model.llm.as_ref()?.head_dim).err()
}

/// An engine that smelt has built, and that nothing of it runs.
fn unrun(plan: &Plan, stage: &Stage) -> Option<String> {
    let unrun = |field: &'static str| {
        let (_, engine) = input(plan, stage, field)?;
        let backend = kind::typed::<EngineBuild>(&engine.params).ok()?.backend;
        let is_unrun = matches!(backend, GraphBackend::TensorRtRtx | GraphBackend::TensorRt);
        is_unrun.then_some((field, backend))
    };
    let (field, backend) = ["vision", "encoder"].into_iter().find_map(unrun)?;
    Some(format!(
        "the {field} engine is of backend = \"{}\", whose plans smelt builds and does not run yet",
        backend.word()
    ))
}

/// A form of keys and values that the engine's target does not keep.
fn unkept(plan: &Plan, stage: &Stage) -> Option<String> {
    let form = kind::typed::<Deployment>(&stage.params).ok()?.kv?;
    let (_, engine) = input(plan, stage, "llm")?;
    let target = kind::typed::<LlmEngineBuild>(&engine.params).ok()?.target;
    CudaTarget::parse(target.word())?;
    matches!(form, KvForm::F32)
        .then(|| "\"kv\" is f32, and GPUs keep keys and values as f16 or int8".to_owned())
}

/// A tower that gives what the decoder does not take, or takes other pictures than the checkpoint cuts.
fn apart(checkpoints: &Checkpoints<'_>, stage: &Stage, model: &Model) -> Option<String> {
    let plan = checkpoints.plan;
    let model_of = |stage: &Stage| checkpoints.model(stage).ok().flatten();
    if let Err(Unseen::Refused(why)) = image_processor_of(checkpoints, stage, model) {
        return Some(why);
    }
    let (tower, decoder) = (tower_of(plan, stage)?, input(plan, stage, "llm")?.1);
    let [given, told] = model_of(tower)?.vision?.gives()?;
    let llm = model_of(decoder)?.llm?;
    let (taken, heard) = (llm.hidden, llm.deepstack);
    if given != taken {
        return Some(format!(
            "the vision engine gives embeddings of {given}, but the llm engine takes {taken}"
        ));
    }
    (told != heard).then(|| {
        format!(
            "the vision engine tells of {told} blocks (deepstack), but the llm engine hears of {heard}"
        )
    })
}

/// Texts that no deployment can use: tokenizer, chat template, tokens that end an answer.
fn of_texts(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<String> {
    let plan = checkpoints.plan;
    let given = || input(plan, stage, "checkpoint").map(|(id, _)| id);
    let source = checkpoints.source(stage).or_else(given)?;
    let refused = match (checkpoints.dir(source), plan.stage(source).fetched()) {
        (Some(dir), _) => foreseen(dir, input(plan, stage, "vision").is_some()),
        // A GGUF file has its texts inside.
        (None, Some(HubPin { file: Some(_), .. })) | (None, None) => Ok(()),
        (None, Some(pin)) => of_hub(checkpoints, source, pin, stage)?,
    };
    refused.err().filter(is_of_model).map(|why| why.to_string())
}

/// What of the checkpoint at `path` a deployment would be refused for, which sees or reads text alone.
fn foreseen(path: &Path, sees: bool) -> Result<(), Failed> {
    let checkpoint = Checkpoint::open(path).map_err(Failed::model)?;
    let scratch = AtomicDir::scratch(&std::env::temp_dir().join("smelt-plan"))?;
    Ok(foresee::check(&checkpoint, scratch.path(), sees, &say)?)
}

/// Whether it is the model's fault, and not this machine's.
fn is_of_model(failed: &Failed) -> bool {
    matches!(failed.exit, Exit::BadModel | Exit::BadPipeline)
}

/// The same by the files of a hub, but the tokenizer's, which is large; nothing where they cannot be read.
fn of_hub(
    checkpoints: &Checkpoints<'_>,
    source: StageId,
    pin: &HubPin,
    stage: &Stage,
) -> Option<Result<(), Failed>> {
    let name = format!("hf:{}", pin.repo);
    let refused = |why: &str| Some(Err(Failed::model(format!("{name} {why}"))));
    let family = checkpoints.model(stage).ok()??.family;
    if ModelFamily::named(family).is_none() {
        return refused(&format!("is of {family}, which does not speak"));
    }
    let has = |file: &str| checkpoints.of_hub(pin, |hub, repo, at| hub.lists(repo, at, file)).ok();
    // Other weights may have all of it inside, as GGUF does.
    if !has(WEIGHTS_FILE)? && !has(INDEX_FILE)? {
        return None;
    }
    if !has(TOKENIZER_FILE)? {
        return refused(&format!("has no {TOKENIZER_FILE}"));
    }
    let scratch = AtomicDir::scratch(&std::env::temp_dir().join("smelt-plan")).ok()?;
    for file in TEXT_FILES.iter().filter(|file| **file != TOKENIZER_FILE) {
        let Some(text) = checkpoints.file(source, file).ok()? else { continue };
        put(&scratch.path().join(file), &text)?;
    }
    let seen = foresee::check_texts(scratch.path());
    Some(seen.map_err(|why| Failed::from(why.renamed(scratch.path(), Path::new(&name)))))
}

fn put(path: &Path, text: &str) -> Option<()> {
    fs::create_dir_all(path.parent()?).ok()?;
    fs::write(path, text).ok()
}
