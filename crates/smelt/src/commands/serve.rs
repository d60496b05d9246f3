//! `smelt serve`: answers OpenAI-style requests over HTTP.

use std::path::Path;

use smelt_engine::llm::KvOptions;
use smelt_runtime::deployment::Deployment;
use smelt_runtime::service::{self, KvMemory, KvPlan, Service, StartError};
use smelt_serve::{Ended, Keys, Options, Progress, Reach, ServeError, log_to_stderr, serve, tls};

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
    let dir = target::directory(&flags.target, &flags.sets)?;
    if options.keys.is_open() && !options.addr.ip().is_loopback() {
        tell("warning: whoever reaches this address may ask; --api-key-file names who may");
    }
    log_to_stderr(flags.log_json);
    let (kv, limits) = (kv(&flags.memory, &flags.limits), limits(flags));
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut told = Ok(());
    let ended = serve(
        options,
        move |progress| load(&dir, kv, limits, progress),
        |addr| told = answer(format_args!("{scheme}://{addr}\n")),
    );
    told?;
    match ended {
        Ok(Ended::Drained) => Ok(Exit::Ok),
        Ok(Ended::BrokenOff) => Ok(Exit::Interrupted),
        Err(ServeError::Load(failed)) => Err(failed),
        Err(error) => Err(Failed::new(Exit::StageFailed, error)),
    }
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
        model_name: flags.model_name.clone(),
        keys: keys(&flags.doors)?,
        cors_origins: cors_origin.clone(),
        tls,
        remote_images: reach(&flags.doors),
        images_max: max_images,
        body_bytes_max: max_body,
        connections_max: max_connections,
        drain_time_max: flags.drain,
        slow: flags.slow,
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

/// Opens, checks and warms up the deployment in `dir`.
fn load(
    dir: &Path,
    kv: KvOptions,
    limits: service::Options,
    progress: &Progress,
) -> Result<Service, Failed> {
    progress.doing("opening the engines (1 of 3)");
    let deployment = Deployment::open_with(dir, kv)?;
    let spec = &deployment.text.spec;
    let engines = [&spec.vision, &spec.llm].map(|engine| dir.join(engine));
    progress.doing("comparing the engines with their digests (2 of 3)");
    whole::once_a_boot(&engines, || deployment.verify_digests())?;
    if let Some(why) = deployment.vision.untuned().or(deployment.llm.untuned()) {
        tell(format_args!("warning: {why}; it runs untuned"));
    }
    progress.doing("running every size of work once (3 of 3)");
    let service = Service::start(deployment, limits).map_err(failed)?;
    tell(fits(&service.plan()));
    Ok(service)
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
