//! `smelt serve`: answers OpenAI-style requests over HTTP.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine::llm::KvOptions;
use smelt_runtime::accuracy::{golden, question};
use smelt_runtime::deployment::{self, Deployment, Spec};
use smelt_runtime::service::{self, KvMemory, KvPlan, Service, StartError};
use smelt_serve::{
    Ended, Found, Keys, Options, Progress, Purpose, Reach, ServeError, Source, log_to_stderr,
    serve, tls,
};

use super::target;
use crate::exit::{Exit, Failed};
use crate::flags::{DoorFlags, LimitFlags, MemoryFlags, ServeFlags};
use crate::say::{answer, tell};
use crate::whole;

/// Slots for each answer at once: one it is said in, and one that keeps an earlier prompt, in case that the
/// next one begins alike.
const SLOTS_PER_ANSWER: usize = 2;

pub(crate) fn run(flags: &ServeFlags) -> Result<Exit, Failed> {
    let options = options(flags)?;
    if flags.model_name.len() > flags.targets.len() {
        return Err(Failed::usage("--model-name is given more often than there are models"));
    }
    let names = flags.model_name.iter().cloned().map(Some).chain(std::iter::repeat(None));
    let loads: Vec<Load> = flags
        .targets
        .iter()
        .zip(names)
        .map(|(target, name)| Load {
            target: target.clone(),
            sets: flags.sets.clone(),
            name,
            kv: kv(&flags.memory, &flags.limits),
            limits: limits(flags),
            golden: flags.golden.clone(),
        })
        .collect();
    // What cannot be found is told before anything is listened to.
    let found: Vec<Found> = loads.iter().map(Load::find).collect::<Result<_, _>>()?;
    let names: Vec<&str> = found.iter().map(|found| &found.name[..]).collect();
    if let Some(twice) = names.iter().find(|name| names.iter().filter(|n| n == name).count() > 1) {
        let why = format!("two models are called {twice:?}; tell them apart by --model-name");
        return Err(Failed::usage(why));
    }
    if options.keys.is_open() && !options.addr.ip().is_loopback() {
        tell("warning: whoever reaches this address may ask; --api-key-file names who may");
    }
    log_to_stderr(flags.log_json);
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut told = Ok(());
    let sources = loads.into_iter().map(Load::source).collect();
    let ended = serve(options, sources, |addr| told = answer(format_args!("{scheme}://{addr}\n")));
    told?;
    match ended {
        Ok(Ended::Drained) => Ok(Exit::Ok),
        Ok(Ended::BrokenOff) => Ok(Exit::Interrupted),
        Err(ServeError::Load(failed)) => Err(failed),
        Err(error) => Err(Failed::new(Exit::StageFailed, error)),
    }
}

/// How a model is found and loaded.
#[derive(Clone)]
struct Load {
    target: PathBuf,
    sets: Vec<String>,
    name: Option<String>,
    kv: KvOptions,
    limits: service::Options,
    golden: Option<PathBuf>,
}

impl Load {
    fn source(self) -> Source<Failed> {
        let find = self.clone();
        Source {
            find: Box::new(move || find.find()),
            open: Box::new(move |found, purpose, progress| {
                self.open(&found.dir, purpose, progress)
            }),
        }
    }

    /// Where the deployment is now.
    fn find(&self) -> Result<Found, Failed> {
        let dir = target::directory(&self.target, &self.sets)?;
        let spec = deployment::read_spec(&dir)?;
        let sizes = engines(&spec, &dir).into_iter().flat_map(fs::read_dir).flatten().flatten();
        let bytes = sizes.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        let name = self.name.clone().unwrap_or(spec.model);
        Ok(Found { dir, name, bytes })
    }

    /// Opens, checks and warms up the deployment in `dir`.
    fn open(&self, dir: &Path, purpose: Purpose, progress: &Progress) -> Result<Service, Failed> {
        progress.doing("opening the engines (1 of 3)");
        let mut deployment = Deployment::open_with(dir, self.kv)?;
        let engines = engines(&deployment.text.spec, dir);
        progress.doing("comparing the engines with their digests (2 of 3)");
        whole::once_a_boot(&engines, || deployment.verify_digests())?;
        if let Some(why) = deployment.vision.untuned().or(deployment.llm.untuned()) {
            tell(format_args!("warning: {why}; it runs untuned"));
        }
        if let (Purpose::Swap, Some(golden)) = (purpose, &self.golden) {
            progress.doing("asking golden prompts");
            all_right(&mut deployment, golden)?;
        }
        progress.doing("running every size of work once (3 of 3)");
        let service = Service::start(deployment, self.limits).map_err(failed)?;
        tell(fits(&service.plan()));
        Ok(service)
    }
}

/// The directories of a deployment's engines.
fn engines(spec: &Spec, dir: &Path) -> [PathBuf; 2] {
    [&spec.vision, &spec.llm].map(|engine| dir.join(engine))
}

/// Whether the prompts in `folder` are all answered right.
fn all_right(deployment: &mut Deployment, folder: &Path) -> Result<(), Failed> {
    let questions =
        question::read(&folder.join(golden::PROMPTS_FILE), None).map_err(Failed::usage)?;
    for (number, question) in (1..).zip(&questions) {
        let given = golden::ask(deployment, question, folder);
        let given = given.map_err(|why| Failed::model(format!("golden prompt {number}: {why}")))?;
        if !given.is_right {
            let (prompt, answer, text) = (question.prompt(), &question.answer, given.text);
            return Err(Failed::model(format!(
                "golden prompt {number}, {prompt:?}, is answered {text:?} and not {answer:?}"
            )));
        }
    }
    Ok(())
}

fn options(flags: &ServeFlags) -> Result<Options, Failed> {
    let DoorFlags { tls_cert, tls_key, cors_origin, .. } = &flags.doors;
    let LimitFlags { max_images, max_body, max_connections, .. } = flags.limits;
    let tls = match (tls_cert, tls_key) {
        (Some(certificates), Some(key)) => Some(tls(certificates, key).map_err(Failed::usage)?),
        _ => None,
    };
    Ok(Options {
        addr: flags.addr,
        keys: keys(&flags.doors)?,
        cors_origins: cors_origin.clone(),
        tls,
        remote_images: reach(&flags.doors),
        images_max: max_images,
        body_bytes_max: max_body,
        connections_max: max_connections,
        drain_time_max: flags.drain,
        slow: flags.slow,
        watch: flags.watch,
    })
}

fn keys(flags: &DoorFlags) -> Result<Keys, Failed> {
    let keys = Keys::new(&flags.api_key).map_err(Failed::usage)?;
    match &flags.api_key_file {
        Some(path) => Keys::read(path).and_then(|read| keys.and(read)).map_err(Failed::usage),
        None => Ok(keys),
    }
}

fn reach(flags: &DoorFlags) -> Option<Reach> {
    let reach = if flags.allow_private_images { Reach::Anywhere } else { Reach::Public };
    flags.allow_remote_images.then_some(reach)
}

fn kv(memory: &MemoryFlags, limits: &LimitFlags) -> KvOptions {
    KvOptions {
        kind: memory.kv,
        max_slots: Some(usize::from(limits.batch) * SLOTS_PER_ANSWER),
        max_seq_len: memory.max_seq_len.map(|tokens| tokens as usize),
        ..KvOptions::default()
    }
}

fn limits(flags: &ServeFlags) -> service::Options {
    service::Options {
        queue_max: flags.limits.queue,
        running_max: usize::from(flags.limits.batch),
        memory_max: flags.memory.memory,
        kv: flags.memory.kv_memory.unwrap_or(KvMemory::Free),
        ..service::Options::default()
    }
}

fn failed(error: StartError) -> Failed {
    match error {
        StartError::DoesNotFit(why) => Failed::new(Exit::DoesNotFit, why),
        StartError::Warm(why) => Failed::model(format!("the engines do not run: {why}")),
        StartError::Thread(why) => {
            Failed::new(Exit::StageFailed, format!("cannot start a thread: {why}"))
        }
    }
}

/// What keys and values take, and what fits.
fn fits(plan: &KvPlan) -> String {
    let KvPlan { bytes, token_bytes, tokens, context_max, batch_max } = plan;
    format!(
        "keys and values: {:.1} MiB, {token_bytes} bytes a token, {tokens} tokens; a context of {context_max} tokens fits {batch_max} times",
        *bytes as f64 / f64::from(1 << 20),
    )
}
