//! Prepares the ladders of a run's stages: warm-ups as programs, and how far earlier runs have climbed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;
use smelt_exec::{FirstFailure, ProcessSpec, RunReport, RunStatus};
use smelt_plan::pipeline::Overrides;
use smelt_plan::{Digest, Earlier, Pipeline, Plan, WarmUp};
use smelt_store::Store;

use crate::config;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::leftovers::finish;
use crate::load;
use crate::unfinished::{Left, RESUMES_MAX};

/// Whether any stage is tried more than once.
pub(crate) fn is_any(plan: &Plan) -> bool {
    plan.stages().any(|(_, stage)| stage.retry.attempts_max > 1)
}

/// A warm-up that cannot be had is found before hours are spent, not after.
pub(crate) fn check_warm_ups(pipeline: &Path, plan: &Plan) -> Result<(), Failed> {
    let folder = pipeline.parent().unwrap_or_else(|| Path::new(""));
    for (_, stage) in plan.stages() {
        let Some(warm_up) = &stage.retry.warm_up else { continue };
        let path = folder.join(&warm_up.pipeline);
        let file = path.display().to_string();
        let other = Pipeline::parse(&file, &load::read(&path)?, &Overrides::default())?;
        let name = &warm_up.stage;
        if !other.stages.iter().any(|other| other.name == *name) {
            let message = format!(
                "{}: the warm-up of stage \"{}\": no stage \"{name}\" in {file}",
                pipeline.display(),
                stage.name
            );
            return Err(Failed::new(Exit::BadPipeline, message));
        }
    }
    Ok(())
}

/// Smelt itself, building a stage of another pipeline into this store; it waits for nobody, since it
/// may be us whom it would wait for.
pub(crate) fn warm_up(warm_up: &WarmUp, folder: &Path, store: &Store) -> ProcessSpec {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let pipeline = text(&absolute(&folder.join(&warm_up.pipeline)));
    let stage = warm_up.stage.to_string();
    let own = std::env::vars().filter(|(name, _)| name != "SMELT_CACHE");
    let config =
        config::get().named.as_deref().map(|file| (config::VARIABLE.to_owned(), text(file)));
    let cache = ("SMELT_CACHE".to_owned(), text(&absolute(store.root())));
    ProcessSpec {
        argv: ["/proc/self/exe", "run", &pipeline, "--only", &stage, "--force", &stage]
            .into_iter()
            .chain(["--no-wait", "--warm-up"])
            .map(str::to_owned)
            .collect(),
        env: own.chain([cache]).chain(config).collect(),
        dir: std::env::current_dir().unwrap_or_default(),
        input: String::new(),
        listed: None,
        outputs: Vec::new(),
        validate: Vec::new(),
        // It confines its own stages.
        writes: vec!["/".into()],
        capabilities: Vec::new(),
        strict: None,
        secrets: Vec::new(),
    }
}

/// How far earlier runs have climbed, told of where the board was reset.
pub(crate) fn earlier(plan: &Plan, left: &Left) -> BTreeMap<Digest, Earlier> {
    let ladders = left.ladders();
    for (name, earlier) in ladders.values() {
        let Ok(id) = plan.find(name) else { continue };
        let (n, max) = (earlier.attempts, plan.stage(id).retry.attempts_max);
        let class = earlier.class.name();
        let next =
            if n < max { format!("goes on with attempt {}", n + 1) } else { "begins anew".into() };
        tell(format_args!(
            "smelt: stage {name}: attempt {n} of {max} ended in another run ({class}); it {next}"
        ));
    }
    ladders.into_iter().map(|(key, (_, earlier))| (key, earlier)).collect()
}

/// Why a run is not to go on by itself, if so.
pub(crate) fn used_up(plan: &Plan, left: &Left) -> Option<String> {
    if left.count() >= RESUMES_MAX {
        return Some(format!("{RESUMES_MAX} runs in a row did not end; start it yourself"));
    }
    left.ladders().values().find_map(|(name, earlier)| {
        let max = plan.stage(plan.find(name).ok()?).retry.attempts_max;
        let class = earlier.class.name();
        (earlier.attempts >= max).then(|| {
            format!("stage {name}: its attempts ({max}) are used up, the last one ended as {class}; start it yourself to begin anew")
        })
    })
}

/// A run that ends before it begins, so that no boot goes on with it again.
pub(crate) fn give_up(
    store: &Store,
    plan: &Plan,
    command: &Value,
    message: &str,
) -> Result<Exit, Failed> {
    let run = store.begin_run(SystemTime::now())?;
    let failure = FirstFailure { stage: String::new(), exit: None, message: message.to_owned() };
    let report = RunReport {
        run: run.id().to_string(),
        pipeline: plan.name.clone(),
        status: RunStatus::Failed,
        wall_s: 0.0,
        first_failure: Some(failure),
        not_written: None,
        is_damaged: false,
        stages: Vec::new(),
    };
    smelt_exec::journal_without_news(&run, &report, command)?;
    finish(run);
    tell(format_args!("smelt: {message}"));
    Ok(Exit::StageFailed)
}
