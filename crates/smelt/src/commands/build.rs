//! `smelt build`: a model by its name, from nothing to what can be asked: `init`, then a run.
//!
//! A pipeline that it wrote once is run as it lies there: what was overruled is in it, and so is what somebody edited.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args as _, Command, FromArgMatches as _};
use smelt_backend::KvType;
use smelt_fit::{FitLine, Wanted, WantedDevice, gpu_refusal, table};
use smelt_plan::pipeline::{Overrides, StageSpec};
use smelt_plan::{Kind, Pipeline};
use smelt_watch::disks::Room;

use super::consent::{Consent, Cost};
use super::fit::{self, Weighed};
use super::init;
use super::run::{self, Start};
use super::target::Extent;
use crate::cards::{self, DeviceChoice, PROCESSORS};
use crate::config;
use crate::console::{tell, warn};
use crate::device_profile;
use crate::draft;
use crate::draft::Shape;
use crate::exit::{Exit, Failed};
use crate::flags::{BuildFlags, OverruleFlags, RunFlags};
use crate::last_run::LastRun;
use crate::load;
use crate::model_facts::{Headers, shape};
use crate::model_name::ModelSource;
use crate::table::{bytes, seconds};

/// What is to be built, and what is known of it before.
struct Prepared {
    file: PathBuf,
    /// The file's text, where it is still to be written.
    unwritten: Option<String>,
    pipeline: Pipeline,
    /// Bytes that are to be fetched, as far as headers tell.
    missing_bytes: u64,
    /// The settings and what they take, where headers tell.
    line: Option<FitLine>,
    why: String,
    /// Why the GPU is left out, where it is.
    without_gpu: Option<String>,
}

pub(crate) fn run(flags: &BuildFlags) -> Result<Exit, Failed> {
    let Prepared { file, pipeline, .. } =
        prepare(&flags.model, &flags.overrule, flags.out.as_deref(), Consent::Given)?;
    let run_flags = RunFlags { json: flags.json, ..run_flags(file.clone())? };
    let exit = run::run_as(&run_flags, Start::ByName)?;
    if exit == Exit::Ok {
        next(&file, &pipeline).iter().for_each(tell);
    }
    Ok(exit)
}

/// Builds a model on the way to its answer, all of its pipeline or what can be asked of it: the pipeline's file.
pub(super) fn on_the_way(model: &str, extent: Extent, consent: Consent) -> Result<PathBuf, Failed> {
    let overrule = OverruleFlags { device: device_of_question(model)?, ..OverruleFlags::default() };
    let Prepared { file, pipeline, .. } = prepare(model, &overrule, None, consent)?;
    let only = match extent {
        Extent::All => Vec::new(),
        Extent::Deployments => deployments(&pipeline),
    };
    match run::run_as(&RunFlags { only, ..run_flags(file.clone())? }, Start::OnTheWay)? {
        Exit::Ok => Ok(file),
        exit => Err(Failed::new(
            exit,
            format!("{model} is not built yet; the same command goes on where this one ended"),
        )),
    }
}

/// What a pipeline that is written on the way is for: what runs the answer.  One that lies here, or comes with smelt, is run
/// as it is.
fn device_of_question(model: &str) -> Result<DeviceChoice, Failed> {
    let source = fit::source(model)?;
    let is_there = init::file_of(&source, None).exists();
    let is_fixed = is_there || matches!(source, ModelSource::Package(_));
    Ok(if is_fixed { DeviceChoice::Auto } else { cards::wanted() })
}

/// Those of a run of the pipeline, which takes from the fleet that the environment or the configuration names.
fn run_flags(file: PathBuf) -> Result<RunFlags, Failed> {
    let run = config::get().with_defaults(RunFlags::augment_args(Command::new("run")));
    let matches = run.try_get_matches_from([OsStr::new("run"), file.as_os_str()]);
    let flags = matches.and_then(|matches| RunFlags::from_arg_matches(&matches));
    flags.map_err(|error| {
        let text = error.to_string();
        Failed::usage(text.lines().next().unwrap_or_default())
    })
}

/// The names of the stages that can be asked.
fn deployments(pipeline: &Pipeline) -> Vec<String> {
    let stages = pipeline.stages.iter().filter(|stage| stage.kind == Kind::Deployment);
    stages.map(|stage| stage.name.to_string()).collect()
}

/// Writes or finds the pipeline of a model, and tells what it takes.
fn prepare(
    model: &str,
    overrule: &OverruleFlags,
    out: Option<&Path>,
    consent: Consent,
) -> Result<Prepared, Failed> {
    let source = fit::source(model)?;
    let file = init::file_of(&source, out);
    let prepared = match file.exists() {
        true => again(source, overrule, file)?,
        false => anew(source, overrule, file)?,
    };
    consent.obtain(model, &prepared.cost())?;
    if let Some(text) = &prepared.unwritten {
        init::write(&prepared.file, text)?;
    }
    prepared.words().iter().chain(&prepared.without_gpu).for_each(tell);
    Ok(prepared)
}

/// Drafts the pipeline.
fn anew(source: ModelSource, overrule: &OverruleFlags, file: PathBuf) -> Result<Prepared, Failed> {
    let (text, weighed) = init::drafted(source, overrule, None, &file)?;
    let (line, why, without_gpu, missing_bytes) = match weighed {
        Some(Weighed { table, headers, .. }) => {
            let line = table.lines.into_iter().next();
            (line, table.why, table.without_gpu, headers.missing_bytes)
        }
        None => (None, "its pipeline comes with smelt".to_owned(), None, 0),
    };
    let tight = line.as_ref().and_then(|line| tight(line.disk_bytes, free_bytes()?));
    tight.iter().for_each(warn);
    let pipeline = parse(&text, &file)?;
    Ok(Prepared { file, unwritten: Some(text), pipeline, missing_bytes, line, why, without_gpu })
}

/// That a disk with so much room may not hold what a build takes, if so: some of it may be there already.
fn tight(needed_bytes: u64, free_bytes: u64) -> Option<String> {
    (free_bytes < needed_bytes).then(|| {
        format!(
            "the store's disk has {} free, and all that is made and fetched takes {}: set SMELT_CACHE and HF_HOME to a larger disk, or free some by smelt rm and smelt cache gc",
            bytes(free_bytes),
            bytes(needed_bytes)
        )
    })
}

/// The room on the disk where the store lies or will lie.
fn free_bytes() -> Option<u64> {
    let root = std::path::absolute(load::root().ok()?).ok()?;
    let room = Room::read(root.ancestors().find(|place| place.exists())?)?;
    Some(room.free_bytes)
}

/// Takes the pipeline that was written before, if it is one of that model, written with the same words.
fn again(source: ModelSource, overrule: &OverruleFlags, file: PathBuf) -> Result<Prepared, Failed> {
    let text = load::read(&file)?;
    let shown = file.display();
    let Some(command) = draft::command_of(&text) else { return Err(init::there_already(&file)) };
    let (model, flags) = command.split_once(' ').unwrap_or((command, ""));
    if model != init::canonical(&source) {
        return Err(Failed::usage(format!(
            "{shown} is the pipeline of {model}; name another file by --out FILE"
        )));
    }
    let asked = overrule.words();
    if !asked.is_empty() && asked.trim() != flags {
        let with = if flags.is_empty() { "no such flag" } else { flags };
        return Err(Failed::usage(format!(
            "{shown} was written with {with}; edit it, or remove it and build again, or name another file by --out FILE"
        )));
    }
    let pipeline = parse(&text, &file)?;
    // What it takes is told where its headers are at hand; the run itself says why they are not.
    let headers = Headers::of(&source).ok();
    let line = headers.as_ref().and_then(|headers| line_of(&source, headers, &pipeline));
    let missing_bytes = headers.map_or(0, |headers| headers.missing_bytes);
    let why = "its pipeline was written before".to_owned();
    let (unwritten, without_gpu) = (None, None);
    Ok(Prepared { file, unwritten, pipeline, missing_bytes, line, why, without_gpu })
}

/// What the settings that a pipeline names take on this device.
fn line_of(source: &ModelSource, headers: &Headers, pipeline: &Pipeline) -> Option<FitLine> {
    let scheme = said(pipeline, Kind::Quantize, "scheme");
    let scheme = scheme.or_else(|| (!headers.checkpoint.is_packed()).then(|| "none".to_owned()));
    let wants = scheme.as_deref().and_then(smelt_model::quantize::Scheme::parse);
    let facts = headers.facts(&source.word(), wants).ok()?;
    let number = |name| said(pipeline, Kind::Deployment, name)?.parse().ok();
    let is_encoder = matches!(shape(&headers.checkpoint), Shape::Embeds | Shape::Scores);
    let target = |kind| said(pipeline, kind, "target");
    let target = target(Kind::LlmEngineBuild).or_else(|| target(Kind::EngineBuild));
    let wanted = Wanted {
        device: match target.as_deref() {
            None | Some(PROCESSORS) => WantedDevice::Processors,
            Some(_) => WantedDevice::Gpu,
        },
        scheme: scheme.filter(|_| !is_encoder),
        context: number("max-seq-len"),
        tiles: number("tiles"),
        // What says nothing is served in the usual form.
        kv: (!is_encoder).then(|| {
            let said = said(pipeline, Kind::Deployment, "kv");
            said.unwrap_or_else(|| KvType::default().word().to_owned())
        }),
        memory_bytes: said(pipeline, Kind::Deployment, "memory").and_then(|it| it.parse().ok()),
    };
    let device = device_profile::find(None, DeviceChoice::Auto).ok()?;
    // What another device's GPU holds is said in the pipeline's comments.
    let is_elsewhere = || gpu_refusal(&facts, &device, &wanted).is_some();
    if wanted.device == WantedDevice::Gpu && is_elsewhere() {
        return None;
    }
    table(&facts, &device, &wanted, &[]).lines.into_iter().next()
}

/// What the first stage of a kind says of a field.
fn said(pipeline: &Pipeline, kind: Kind, field: &str) -> Option<String> {
    let stage = pipeline.stages.iter().find(|stage: &&StageSpec| stage.kind == kind)?;
    let value = stage.params.get(field)?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn parse(text: &str, file: &Path) -> Result<Pipeline, Failed> {
    Ok(Pipeline::parse(&file.display().to_string(), text, &Overrides::default())?)
}

impl Prepared {
    /// What it takes before it can be asked.
    fn cost(&self) -> Cost {
        let fetched_bytes = self.missing_bytes;
        let disk_bytes = self.line.as_ref().map_or(fetched_bytes, |line| line.disk_bytes);
        Cost { fetched_bytes, disk_bytes, free_bytes: free_bytes() }
    }

    /// Five lines: what was chosen, what it will hold, what it leaves, what pictures cost, how long it took.
    fn words(&self) -> Vec<String> {
        let file = self.file.display();
        let took = self.took();
        let Some(line) = &self.line else {
            return vec![
                format!("{file}: {}", self.why),
                "what it holds and leaves is said in its comments".to_owned(),
                took,
            ];
        };
        vec![
            format!("{file}: {}, since {}", settings(line), self.why),
            format!(
                "memory: {} while it is built, {} while it answers in a full context",
                bytes(line.building_bytes),
                bytes(line.serving_bytes)
            ),
            format!(
                "disk: {} of engines, {} with what they are made of",
                bytes(line.engines_bytes),
                bytes(line.disk_bytes)
            ),
            match line.image_tokens {
                Some(tokens) => format!("a 4:3 photograph has {tokens} image tokens"),
                None => "it reads text alone".to_owned(),
            },
            took,
        ]
    }

    /// How long the stages took that this pipeline built last.
    fn took(&self) -> String {
        let unknown = || "how long it takes is not known: it was not built here yet".to_owned();
        // A store that is not there yet, or is new, knows of no run.
        let Ok(store) = load::store_to_read() else { return unknown() };
        let last = LastRun::read(&store, &self.file);
        let of = |stage: &StageSpec| Some(last.of(stage.name.as_str())?.took?.wall_s);
        let walls: Vec<f64> = self.pipeline.stages.iter().filter_map(of).collect();
        match walls.len() {
            0 => unknown(),
            _ => {
                format!("its stages took {} when they were built last", seconds(walls.iter().sum()))
            }
        }
    }
}

fn settings(line: &FitLine) -> String {
    let settings = &line.settings;
    let decoder = settings.scheme.as_ref().map(|scheme| match settings.method {
        Some("best") => format!("decoder in {scheme}, calibrated"),
        _ => format!("decoder in {scheme}"),
    });
    let vision = settings.vision.filter(|_| settings.scheme.is_some());
    let kv = settings.kv.filter(|kv| *kv != KvType::default().word());
    let target = settings.target.as_ref().filter(|target| *target != PROCESSORS);
    let parts = [
        target.map(|target| format!("engines for {target}")),
        decoder,
        vision.map(|precision| format!("tower in {precision}")),
        settings.context.map(|context| format!("{context} tokens")),
        settings.tiles.map(|tiles| format!("{tiles} tiles")),
        kv.map(|kv| format!("keys and values in {kv}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "an encoder in f32".to_owned() } else { parts.join(", ") }
}

/// The two commands to go on with.
fn next(file: &Path, pipeline: &Pipeline) -> [String; 2] {
    let file = file.display();
    let has = |field: &str| {
        let deployments = pipeline.stages.iter().filter(|stage| stage.kind == Kind::Deployment);
        deployments.flat_map(|stage| &stage.inputs).any(|input| input.field == field)
    };
    let parts = |stage: &StageSpec| {
        stage.params.get("part").and_then(|part| part.as_str()) == Some("classifier")
    };
    let ask = match (has("encoder"), has("vision")) {
        (true, _) if pipeline.stages.iter().any(parts) => {
            format!("smelt rerank {file} \"query\" \"text\" \"another text\"")
        }
        (true, _) => format!("smelt embed {file} \"text\""),
        (false, true) => format!("smelt chat {file} --image photo.jpg \"Describe this image.\""),
        (false, false) => format!("smelt chat {file} \"Complete: The capital of France is\""),
    };
    [format!("ask it:   {ask}"), format!("serve it: smelt serve {file}")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    #[test]
    fn the_commands_to_go_on_with_are_those_of_what_was_built() {
        let asked = |name: &str| {
            let shipped = shipped::PIPELINES.iter().find(|shipped| shipped.name == name).unwrap();
            let pipeline = parse(shipped.text, Path::new("p.toml")).unwrap();
            next(Path::new("p.toml"), &pipeline)[0].clone()
        };
        assert!(asked("internvl3-1b-int8").contains("smelt chat p.toml --image"));
        assert!(asked("smollm2").contains("smelt chat p.toml \""));
        assert!(asked("minilm").contains("smelt embed p.toml"));
        assert!(asked("reranker").contains("smelt rerank p.toml"));
    }

    #[test]
    fn a_disk_that_is_too_small_is_told_of_before_it_is_full() {
        assert_eq!(tight(1 << 30, 1 << 30), None);
        let told = tight(3 << 30, 1 << 30).unwrap();
        assert!(told.contains("1.00 GiB free") && told.contains("takes 3.00 GiB"), "{told}");
        assert!(free_bytes().is_some_and(|free| free > 0));
    }

    #[test]
    fn a_pipeline_that_somebody_edited_is_told_by_what_it_says() {
        let source = fit::source("synthetic:internvl3-1b").unwrap();
        let flags = OverruleFlags::default();
        let file = Path::new("m.toml");
        let (text, _) = init::drafted(source.clone(), &flags, Some("64GB"), file).unwrap();
        let headers = Headers::of(&source).unwrap();
        let line = line_of(&source, &headers, &parse(&text, file).unwrap()).unwrap();
        assert_eq!(
            (line.settings.scheme.as_deref(), line.settings.context),
            (Some("int8"), Some(4096))
        );
        let edited = text.replace("max_seq_len = 4096", "max_seq_len = 2048");
        let line = line_of(&source, &headers, &parse(&edited, file).unwrap()).unwrap();
        assert_eq!((line.settings.context, line.settings.kv), (Some(2048), Some("f16")));
        let held = text.replace("slots = 8", "slots = 8\nkv = \"int8\"");
        let held = held.replace("slots = \"${slots}\"", "slots = \"${slots}\"\nkv = \"${kv}\"");
        let line = line_of(&source, &headers, &parse(&held, file).unwrap()).unwrap();
        assert_eq!(line.settings.kv, Some("int8"));
        assert!(settings(&line).ends_with("keys and values in int8"), "{}", settings(&line));
    }
}
