//! `smelt serve`: answers OpenAI-style requests over HTTP.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smelt_backend::{Graph, KvOptions, MAX_SLOTS_MAX};
use smelt_exec::served;
use smelt_fleet::beat::{Deployed, Role};
use smelt_fleet::oci::reference;
use smelt_runtime::accuracy::golden;
use smelt_runtime::accuracy::question::{self, Question};
use smelt_runtime::deployment::{Deployment, Serving};
use smelt_runtime::embed::{self, EmbedService, Reader, SentenceEncoder};
use smelt_runtime::image::ImageOptions;
use smelt_runtime::score::CrossEncoder;
use smelt_runtime::service::{self, KvMemory, KvPlan, Service, StartError};
use smelt_runtime::template::Template;
use smelt_runtime::timeline::{Lane, Timeline};
use smelt_runtime::upstream;
use smelt_serve::{
    DECODING_BYTES, DeploymentInfo, Ended, Growth, Keys, LoadingStep, Options, Progress, Purpose,
    Reach, Running, ServeError, Source, TlsFiles, TraceOptions, Unfit, Upstream, bodies_bytes,
    serve,
};

use super::consent::Consent;
use super::open::{self, Does, Heading};
use super::seats::{self, EncoderSeats};
use super::target;
use crate::cards;
use crate::console::{answer, begin_log, tell, warn};
use crate::exit::{Exit, Failed};
use crate::film;
use crate::flags::{DoorFlags, LimitFlags, MemoryFlags, ServeFlags};
use crate::fleet::beating::{Beating, Deployments};
use crate::fleet::following::{self, Following};
use crate::fleet::vouched;
use crate::integrity;
use crate::leases::Leases;
use crate::loading::{Loading, WARMING_UP};
use crate::table::bytes;
use crate::telling::{Doing, Pacing};
use crate::upstream::launch;
use crate::{check, claim};

/// Answers at once, where nobody says how many.
const BATCH_USUAL: usize = 8;

/// Full contexts that keys and values have room for, for each answer at once: one it is said in, and one for earlier
/// prompts, in case that the next one begins alike.  As many prompts are kept as have place there.
const CONTEXTS_PER_ANSWER: usize = 2;

pub(crate) fn run(flags: &ServeFlags) -> Result<Exit, Failed> {
    let (mut options, warnings) = options(flags)?;
    cards::want(flags.device.first());
    check_targets(flags)?;
    let targets = flags.targets.iter().map(|target| {
        if is_delivered(target) {
            return Ok(target.clone());
        }
        let (all, consent) = (target::Extent::All, Consent::of(flags.yes));
        let built = target::build_missing(target, &flags.sets, all, consent)?;
        Ok(built.unwrap_or_else(|| target.clone()))
    });
    let targets = targets.collect::<Result<Vec<_>, Failed>>()?;
    // What is wrong with the flags is told as with those of any command; all else is the log.
    begin_log(flags.log_json);
    warnings.into_iter().for_each(warn);
    let holds = Arc::new(Leases::new(targets.len()));
    let trace = flags.trace.as_deref().map(TraceFile::create).transpose()?;
    let timeline = trace.as_ref().map(|trace| &trace.timeline);
    let every = options.watch.unwrap_or(following::EVERY);
    let mut loads = loads(flags, targets, &holds, timeline);
    for load in loads.iter_mut().filter(|load| is_delivered(&load.target)) {
        let reference = load.target.to_string_lossy().parse().map_err(Failed::usage)?;
        load.following = Some(Following::begin(&reference, every)?);
        options.watch = Some(every);
    }
    // What cannot be found is told before anything is listened to.
    let found: Vec<DeploymentInfo> = loads.iter().map(Load::find).collect::<Result<_, _>>()?;
    check_names(&found)?;
    let memory = match flags.memory.memory {
        None => memory_said(&found)?,
        said => said,
    };
    hold_to(&mut options, flags, memory);
    if options.keys.is_open() && options.key_file.is_none() && !options.addr.ip().is_loopback() {
        warn("whoever reaches this address may ask; --api-key-file names who may");
    }
    let _beating = Beating::begin(&flags.heartbeat, Role::Serve, served(&found, &holds))?;
    let sources = loads.into_iter().zip(found);
    let sources = sources.map(|(load, found)| load.source(found)).collect();
    let ended = listen(flags, options, sources, memory, &holds);
    trace.map_or(Ok(()), TraceFile::write)?;
    ended
}

/// What is served now, under the names that clients know.
fn served(found: &[DeploymentInfo], holds: &Arc<Leases>) -> Deployments {
    let names: Vec<String> = found.iter().map(|found| found.name.clone()).collect();
    let holds = Arc::clone(holds);
    Box::new(move || {
        let all = names.iter().zip(holds.served());
        all.filter_map(|(name, tree)| Some(Deployed { name: name.clone(), tree: tree? })).collect()
    })
}

/// Serves `sources` until the server is to end.
fn listen(
    flags: &ServeFlags,
    options: Options,
    sources: Vec<Source<Failed>>,
    memory: Option<u64>,
    holds: &Leases,
) -> Result<Exit, Failed> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut told = Ok(());
    // What requests took is others' when they are done.
    smelt_engine::memory::keep_little();
    let ended = serve(options, sources, |addr| {
        let addr = format!("{scheme}://{addr}");
        told = answer(format_args!("{addr}\n"));
        growth(&addr, flags, memory)
    });
    holds.end();
    told?;
    match ended {
        Ok(Ended::Drained) => Ok(Exit::Ok),
        Ok(Ended::BrokenOff) => Ok(Exit::Interrupted),
        Err(ServeError::Load(failed)) => Err(failed),
        Err(error) => Err(Failed::new(Exit::StageFailed, error)),
    }
}

/// Refuses flags that do not go with the targets.
fn check_targets(flags: &ServeFlags) -> Result<(), Failed> {
    if flags.model_name.len() > flags.targets.len() {
        return Err(Failed::usage("--model-name is given more often than there are models"));
    }
    if let (Some(dir), true) =
        (flags.targets.iter().find(|target| target.is_dir()), flags.watch.is_some())
    {
        return Err(Failed::usage(format!(
            "--watch: nothing newer can come of a directory; name the pipeline that makes {}",
            dir.display()
        )));
    }
    if let Some(folder) = &flags.golden {
        golden_questions(folder)?;
    }
    Ok(())
}

/// How each of the targets is found and loaded.
fn loads(
    flags: &ServeFlags,
    targets: Vec<PathBuf>,
    holds: &Arc<Leases>,
    timeline: Option<&Arc<Timeline>>,
) -> Vec<Load> {
    let names = flags.model_name.iter().cloned().map(Some).chain(std::iter::repeat(None));
    let load = |(at, (target, name))| Load {
        at,
        holds: Arc::clone(holds),
        target,
        sets: flags.sets.clone(),
        name,
        kv: kv(&flags.memory),
        others: flags.device.others().to_vec(),
        timeline: timeline.map(Arc::clone),
        limits: limits(flags),
        batch: flags.limits.batch,
        image_options: flags.image_options.wanted(),
        golden: flags.golden.clone(),
        template: flags.chat_template.clone(),
        allow_program: flags.allow_program,
        following: None,
    };
    targets.into_iter().zip(names).enumerate().map(load).collect()
}

/// Whether a target is a place of deliveries.
fn is_delivered(target: &Path) -> bool {
    target.to_str().is_some_and(reference::is_meant)
}

/// Refuses two models of one name.
fn check_names(found: &[DeploymentInfo]) -> Result<(), Failed> {
    let names: Vec<&str> = found.iter().map(|found| &found.name[..]).collect();
    match names.iter().find(|name| names.iter().filter(|n| n == name).count() > 1) {
        Some(twice) => Err(Failed::usage(format!(
            "two models are called {twice:?}; tell them apart by --model-name"
        ))),
        None => Ok(()),
    }
}

/// The least that one of the deployments says a server may take.
fn memory_said(found: &[DeploymentInfo]) -> Result<Option<u64>, Failed> {
    let said = |found: &DeploymentInfo| Ok(open::heading(&found.dir)?.serving.memory_bytes_max);
    let said = found.iter().map(said).collect::<Result<Vec<_>, Failed>>()?;
    Ok(said.into_iter().flatten().min())
}

/// Holds what requests take to what the whole server may take.
fn hold_to(options: &mut Options, flags: &ServeFlags, memory: Option<u64>) {
    let bodies = bodies_bytes(flags.limits.max_body) as u64;
    options.bodies_bytes_max = service::preparing(bodies, memory) as usize;
    options.decoding_bytes_max = service::preparing(DECODING_BYTES, memory);
}

/// Leaves runs of this machine a note of what the server may hold: the `cap` that it was given, then what its models need.
fn growth(addr: &str, flags: &ServeFlags, cap: Option<u64>) -> Growth {
    let given = cap.or(match flags.memory.kv_memory {
        Some(KvMemory::Bytes(bytes)) => Some(bytes),
        Some(KvMemory::Free | KvMemory::Part(_)) | None => None,
    });
    let (addr, mut claim) = (addr.to_owned(), None);
    Box::new(move |may_take| {
        let claim = claim.get_or_insert_with(|| claim::open(&addr, given.unwrap_or(0)));
        let (Some(claim), Some(may_take)) = (claim, may_take) else { return };
        claim.says(served::own_bytes().saturating_add(may_take).min(cap.unwrap_or(u64::MAX)));
    })
}

/// A file that is written when the server ends.
struct TraceFile {
    path: PathBuf,
    file: File,
    timeline: Arc<Timeline>,
}

impl TraceFile {
    /// Makes the file, so that what is wrong with it is told at once.
    fn create(path: &Path) -> Result<Self, Failed> {
        let file = File::create(path);
        let file = file.map_err(|error| Failed::usage(format!("--trace: {error}")))?;
        Ok(Self { path: path.to_owned(), file, timeline: Arc::default() })
    }

    fn write(self) -> Result<(), Failed> {
        let written = self.timeline.write(&mut BufWriter::new(&self.file));
        written.map_err(|error| {
            let path = self.path.display();
            Failed::new(Exit::StageFailed, format!("--trace: cannot write {path}: {error}"))
        })
    }
}

/// How a model is found and loaded.
#[derive(Clone)]
struct Load {
    /// Which of the targets it is.
    at: usize,
    holds: Arc<Leases>,
    target: PathBuf,
    sets: Vec<String>,
    name: Option<String>,
    kv: KvOptions,
    /// Cards that answer beside the first.
    others: Vec<u32>,
    /// Where it is kept what is done when.
    timeline: Option<Arc<Timeline>>,
    limits: service::Options,
    /// Answers at once, where the command line says so.
    batch: Option<u16>,
    /// How closely pictures are looked at whose senders say nothing.
    image_options: ImageOptions,
    golden: Option<PathBuf>,
    template: Option<PathBuf>,
    /// Whether a directory's deployment may start the program that it names.
    allow_program: bool,
    /// Where newer versions come from, of a target that is delivered.
    following: Option<Arc<Following>>,
}

impl Load {
    /// What can be loaded; `known` is where it is now.
    fn source(self, known: DeploymentInfo) -> Source<Failed> {
        let find = self.clone();
        Source {
            known,
            find: Box::new(move || find.find()),
            device_room: Box::new(|found| open::device_room(&found.dir)),
            check: Box::new(|dir| check::of_dir(dir).map(|(check, _)| check.word())),
            open: Box::new(move |found, purpose, progress| {
                let opened = self.open(&found.dir, purpose, progress);
                if let (Some(following), Err(Unfit::Broken(why))) = (&self.following, &opened) {
                    following.refused(&found.dir, why);
                }
                let running = opened?;
                if let Some(following) = &self.following {
                    following.ran(&found.dir);
                }
                self.holds.loaded(self.at, &found.dir)?;
                Ok(running)
            }),
        }
    }

    /// Has an encoder read, and the same one on other devices, within the memory that it may take.
    fn reading<E: Reader>(
        &self,
        dir: &Path,
        (encoder, seats): (E, EncoderSeats),
        beside: impl Fn(&E, Box<dyn Graph>) -> E,
        serving: &Serving,
    ) -> Result<EmbedService<E>, Unfit<Failed>> {
        let EncoderSeats { own, others } = seats;
        let others = others.into_iter().map(|(name, engine)| (name, beside(&encoder, engine)));
        let others = others.collect();
        let service = EmbedService::start((own, encoder), others, self.limits.queue_max);
        let service = service.map_err(encoder_failed)?;
        self.holds_encoder(dir, serving)?;
        Ok(service)
    }

    /// Refuses an encoder that has read its longest text where this process then holds more than it may.
    fn holds_encoder(&self, dir: &Path, serving: &Serving) -> Result<(), Unfit<Failed>> {
        let cap = self.limits.memory_max.or(serving.memory_bytes_max);
        let held = open::held_bytes(dir);
        match cap.filter(|cap| held > *cap) {
            None => Ok(()),
            Some(cap) => {
                let [held, cap] = [held, cap].map(bytes);
                let why = format!(
                    "{}: with its longest text read, the server holds {held} where memory = {cap}: raise --memory",
                    self.target.display()
                );
                Err(Unfit::Shortage(Failed::new(Exit::DoesNotFit, why)))
            }
        }
    }

    /// Keeps how long a part of the load took.
    fn did(&self, name: &'static str, begun: Instant) {
        if let Some(timeline) = &self.timeline {
            timeline.add((Lane::Load, name), begun, begun.elapsed(), None);
        }
    }

    /// Where the deployment is now; held from then on.
    fn find(&self) -> Result<DeploymentInfo, Failed> {
        let dir = match &self.following {
            Some(following) => {
                let dir = following.dir();
                vouched::check(&dir)?;
                dir
            }
            None => target::directory(&self.target, &self.sets)?,
        };
        self.holds.found(self.at, &dir)?;
        let Heading { model, engines, does, .. } = open::heading(&dir)?;
        if does == Does::Relays {
            self.may_start(&dir)?;
        }
        let (apart, others): (Vec<PathBuf>, Vec<PathBuf>) =
            engines.into_iter().partition(|dir| open::is_apart(dir));
        let device_bytes = integrity::bytes(&apart);
        let bytes = device_bytes + integrity::bytes(&others);
        let name = self.name.clone().unwrap_or(model);
        let is_upstream = does == Does::Relays;
        Ok(DeploymentInfo { dir, name, bytes, device_bytes, is_upstream })
    }

    /// Refuses the program of a deployment that was given by its directory: whoever made the directory chose the program, and
    /// only the flag says that he is trusted.  Of a pipeline and of a name whoever built it has written the program down.
    fn may_start(&self, dir: &Path) -> Result<(), Failed> {
        if self.allow_program || !self.target.is_dir() {
            return Ok(());
        }
        let program = upstream::Spec::read(dir)?.server.join(" ");
        Err(Failed::usage(format!(
            "{}: serving it starts a program with your rights, which it names: {program}; if you trust whoever made it, add \
             --allow-program",
            self.target.display()
        )))
    }

    /// Opens, checks and warms up the deployment in `dir`.
    fn open(
        &self,
        dir: &Path,
        purpose: Purpose,
        progress: &Progress,
    ) -> Result<Running, Unfit<Failed>> {
        if let Some(failed) = check::of_dir(dir).and_then(|(check, _)| check.refusal()) {
            return Err(failed.into());
        }
        let (began, mut pacing) = (Instant::now(), Pacing::default());
        let mut say = |line: &str| {
            let at = began.elapsed();
            let is_news = pacing.hear(at, line);
            progress.tell(step(pacing.doing(), at), is_news);
        };
        let loading = &mut Loading::new(open::bytes(dir), &mut say);
        let Heading { does, serving, .. } = open::heading(dir)?;
        if does == Does::Relays {
            let spec = open::relay(dir, loading)?;
            let engine = spec.engine_dir(dir);
            let launch = launch(spec, engine, self.limits.queue_max);
            let started = Upstream::start(launch, &mut |line| loading.runs(0.0, line));
            let started = started.map_err(|error| Failed::new(Exit::StageFailed, error))?;
            return Ok(Running::Relays(started));
        }
        if does == Does::Embeds {
            let encoder = open::encoder(dir, loading)?;
            loading.runs(0.0, WARMING_UP);
            let seats = seats::of_encoder(dir, encoder.engine(), &self.others)?;
            let reading = self.reading(dir, (encoder, seats), SentenceEncoder::beside, &serving)?;
            return Ok(Running::Embeds(reading));
        }
        if does == Does::Scores {
            let encoder = open::cross_encoder(dir, loading)?;
            loading.runs(0.0, WARMING_UP);
            let seats = seats::of_encoder(dir, encoder.engine(), &self.others)?;
            let reading = self.reading(dir, (encoder, seats), CrossEncoder::beside, &serving)?;
            return Ok(Running::Scores(reading));
        }
        let batch = self.batch.map(usize::from).or(serving.slots).unwrap_or(BATCH_USUAL);
        let kv = KvOptions { max_slots: Some(MAX_SLOTS_MAX), ..self.kv };
        let contexts_max = Some(batch * CONTEXTS_PER_ANSWER);
        let limits = service::Options { running_max: batch, contexts_max, ..self.limits };
        let begun = Instant::now();
        let deployment = open::deployment(dir, kv, loading)?;
        self.did("load", begun);
        let deployment = match &self.timeline {
            Some(timeline) => deployment.with_timeline(timeline),
            None => deployment,
        };
        let deployment = deployment.with_image_options(&self.image_options);
        let mut deployment = deployment.map_err(|why| Failed::usage(format!("--tiles: {why}")))?;
        if let Some(file) = &self.template {
            let template = Template::open_file(file, dir).map_err(Failed::usage)?;
            deployment = deployment.with_template(template);
        }
        if let (Purpose::Swap, Some(golden)) = (purpose, &self.golden) {
            loading.runs(0.0, "asking golden prompts");
            all_right(&mut deployment, golden)?;
        }
        // Engines that say how long they may be were asked when they were opened.
        let built_for = match deployment.llm.facts().positions {
            Some(positions) => positions,
            None => deployment.llm.facts().built_for.max_seq_len,
        };
        let told = &mut |done| loading.runs(done, WARMING_UP);
        let seat = seats::own(dir, kv)?;
        let others = seats::others(dir, kv, &self.others)?;
        let begun = Instant::now();
        let service = Service::start_replicas(deployment, seat, others, limits, told);
        let service = service.map_err(failed)?;
        self.did("warming up", begun);
        let max_seq_len = service.text().max_seq_len;
        tell(fits(&service.plan()));
        let doubts = [cut(&service.plan(), max_seq_len), stretched(max_seq_len, built_for)];
        doubts.into_iter().flatten().for_each(warn);
        Ok(Running::Speaks(service))
    }
}

/// How far a load is, as clients are told.
fn step(doing: &Doing, at: Duration) -> LoadingStep {
    let left_s = doing.left(at).map(|left| left.as_secs());
    LoadingStep { words: doing.words(at), done: doing.done(), left_s }
}

/// The golden prompts in `folder`.
fn golden_questions(folder: &Path) -> Result<Vec<Question>, Failed> {
    let read = question::read(&folder.join(golden::PROMPTS_FILE), None);
    read.map_err(|why| Failed::usage(format!("--golden: {why}")))
}

/// Whether the prompts in `folder` are all answered right.
fn all_right(deployment: &mut Deployment, folder: &Path) -> Result<(), Failed> {
    for (number, question) in (1..).zip(&golden_questions(folder)?) {
        let given = golden::ask(deployment, question, folder);
        let given = given.map_err(|why| Failed::model(format!("golden prompt {number}: {why}")))?;
        if !given.is_right {
            return Err(Failed::model(question.complaint(number, &given.text)));
        }
    }
    Ok(())
}

/// How the server is run, and what is passed over of what was said.
fn options(flags: &ServeFlags) -> Result<(Options, Vec<String>), Failed> {
    let DoorFlags { tls_cert, tls_key, cors_origin, .. } = &flags.doors;
    let LimitFlags { max_images, max_frames, max_body, max_connections, .. } = flags.limits;
    let tls = match (tls_cert, tls_key) {
        (Some(certificates), Some(key)) => {
            Some(TlsFiles { certificates: certificates.clone(), key: key.clone() })
        }
        _ => None,
    };
    let variable = |name: &str| std::env::var(name).ok();
    let (traces, warnings) =
        TraceOptions::read(flags.otlp_endpoint.as_deref(), variable).map_err(Failed::usage)?;
    let options = Options {
        addr: flags.addr,
        keys: Keys::new(&flags.doors.api_key).map_err(Failed::usage)?,
        key_file: flags.doors.api_key_file.clone(),
        is_cache_shared: flags.doors.share_cache,
        hosts: flags.doors.allow_host.clone(),
        cors_origins: cors_origin.clone(),
        tls,
        remote_images: reach(&flags.doors),
        films: film::COMMAND.map(OsString::from).into(),
        images_max: max_images,
        frames_max: max_frames.into(),
        body_bytes_max: max_body,
        bodies_bytes_max: bodies_bytes(max_body),
        decoding_bytes_max: DECODING_BYTES,
        free_memory: smelt_engine::memory::give_back,
        connections_max: max_connections,
        drain_time_max: flags.drain,
        slow: flags.slow,
        watch: flags.watch,
        are_slots_listed: flags.limits.slots,
        slot_files: flags
            .limits
            .slot_save_path
            .clone()
            .map(|dir| (dir, flags.limits.slot_save_max)),
        traces,
    };
    // What is wrong with files is told before anything is listened to.
    options.all_keys().map_err(Failed::usage)?;
    options.tls.as_ref().map(TlsFiles::read).transpose().map_err(Failed::usage)?;
    Ok((options, warnings))
}

fn reach(flags: &DoorFlags) -> Option<Reach> {
    let reach = if flags.allow_private_images { Reach::Anywhere } else { Reach::Public };
    flags.allow_remote_images.then_some(reach)
}

fn kv(memory: &MemoryFlags) -> KvOptions {
    KvOptions {
        kind: memory.kv,
        max_seq_len: memory.max_seq_len.map(|tokens| tokens as usize),
        ..KvOptions::default()
    }
}

fn limits(flags: &ServeFlags) -> service::Options {
    service::Options {
        queue_max: flags.limits.queue,
        preparing_bytes: bodies_bytes(flags.limits.max_body) as u64,
        memory_max: flags.memory.memory,
        kv: flags.memory.kv_memory.unwrap_or(KvMemory::Free),
        ..service::Options::default()
    }
}

fn encoder_failed(error: embed::StartError) -> Failed {
    match error {
        embed::StartError::Warm(_) => Failed::model(error),
        embed::StartError::Thread(_) => Failed::new(Exit::StageFailed, error),
    }
}

fn failed(error: StartError) -> Unfit<Failed> {
    match error {
        StartError::DoesNotFit(why) => Unfit::Shortage(Failed::new(Exit::DoesNotFit, why)),
        StartError::OverCap(why) => Unfit::Shortage(Failed::new(Exit::DoesNotFit, why)),
        StartError::Warm(why) => Failed::model(format!("the engines do not run: {why}")).into(),
        StartError::Thread(why) => {
            Failed::new(Exit::StageFailed, format!("cannot start a thread: {why}")).into()
        }
    }
}

/// That less fits than the longest context that was asked for, if so.
fn cut(plan: &KvPlan, max_seq_len: usize) -> Option<String> {
    let context_max = plan.context_max;
    (context_max < max_seq_len as u64).then(|| {
        format!(
            "a prompt with its answer has room for {context_max} tokens, not for {max_seq_len}: raise --memory or --kv-memory, use --kv int8, or say --max-seq-len {context_max}, and larger pictures are shown smaller"
        )
    })
}

/// That contexts may be longer than anybody meant when the engine was built, if so.
fn stretched(max_seq_len: usize, built_for: usize) -> Option<String> {
    (max_seq_len > built_for).then(|| {
        format!(
            "--max-seq-len {max_seq_len} is more than the {built_for} tokens that the engine was built for: make sure that the model knows so many positions (max_position_embeddings of its config.json)"
        )
    })
}

/// What keys and values take, and what fits.
fn fits(plan: &KvPlan) -> String {
    let KvPlan { bytes, token_bytes, tokens, context_max, batch_max } = plan;
    format!(
        "keys and values: {:.1} MiB, {token_bytes} bytes a token, {tokens} tokens; a context of {context_max} tokens fits {batch_max} times",
        *bytes as f64 / f64::from(1 << 20),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_does_not_fit_is_told_of() {
        let plan = KvPlan { bytes: 1, token_bytes: 1, tokens: 320, context_max: 320, batch_max: 1 };
        assert_eq!((cut(&plan, 320), stretched(320, 320)), (None, None));
        assert!(stretched(321, 320).unwrap().contains("321 is more than the 320 tokens"));
        assert!(cut(&plan, 512).unwrap().contains("320 tokens, not for 512"));
    }
}
