//! `smelt worker --session`: builds one piece of work for who has logged in, by the standard input and output.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Stdin, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use smelt_fleet::statement::Provenance;
use smelt_plan::{Digest, StageId};
use smelt_store::bundle::BundledOutput;
use smelt_store::{Holder, Wait};

use super::running::{Lines, Outcome, Place, Running, cannot};
use super::{TICK, facts, is_for};
use crate::console::warn;
use crate::exit::{Exit, Failed};
use crate::flags::{PipelineFlags, WorkerFlags};
use crate::fleet::incoming::{self, Incoming};
use crate::fleet::outgoing::{Leaving, outputs};
use crate::fleet::push::provenance;
use crate::fleet::session::{
    Greeting, Saying, SessionError, SessionOutcome, SessionWork, greet, hear, say,
};
use crate::fleet::stream::{self, Part};
use crate::fleet::vouched::{self, Origin};
use crate::load::{self, Access, Loaded, Part as Built};

/// How often the host hears that it goes on, however silent the stage is.
const ALIVE: Duration = Duration::from_secs(60);

/// Hears what the host lacks of what was built.
type Lacks = Receiver<Vec<Part>>;

pub(super) fn run(flags: &WorkerFlags, stop: &Arc<AtomicBool>) -> Result<Exit, Failed> {
    let (mut from, mut to) = (BufReader::new(stdin()), stdout().lock());
    let greeting = Greeting { version: crate::version::TEXT.to_owned(), facts: facts() };
    greet(&mut to, &greeting).map_err(|error| lost(&error.into()))?;
    // Whoever only looks asks for nothing.
    let Some(work) = hear::<SessionWork>(&mut from).map_err(|error| lost(&error))? else {
        return Ok(Exit::Ok);
    };
    let served = serve(flags, &work, (from, &mut to), stop);
    let Served { outcome, back } = served.unwrap_or_else(|failed| Outcome::refused(&failed).into());
    say(&mut to, &Saying::Ended(Box::new(outcome))).map_err(|error| lost(&error.into()))?;
    if let Some(Back { outputs, lacks, .. }) = back
        && let Ok(parts) = lacks.recv()
    {
        stream::send(&outputs, &parts, &mut to, &mut |_| {})?;
    }
    Ok(Exit::Ok)
}

/// What came of the work.
struct Served {
    outcome: SessionOutcome,
    back: Option<Back>,
}

/// What goes back.
struct Back {
    /// Each with its folder.
    outputs: Vec<(BundledOutput, PathBuf)>,
    lacks: Lacks,
    /// Until then nobody collects them.
    _holder: Holder,
}

impl From<Outcome> for Served {
    fn from(Outcome { exit, told, log, took }: Outcome) -> Self {
        let outcome = SessionOutcome { exit, told, log, took, ..SessionOutcome::default() };
        Self { outcome, back: None }
    }
}

/// Takes what the work is made of, and builds it.
fn serve(
    flags: &WorkerFlags,
    work: &SessionWork,
    (mut from, to): (BufReader<Stdin>, &mut impl Write),
    stop: &Arc<AtomicBool>,
) -> Result<Served, Failed> {
    is_for(&work.request, &facts())?;
    if let Some(problem) = work.problem() {
        return Err(Failed::new(Exit::StageFailed, problem));
    }
    let (store, trust) = (incoming::store()?, vouched::believed()?);
    // Until the end nobody collects them.
    let incoming = Incoming::begin(&store, &work.outputs, &|_| {}, &trust)?;
    incoming.has_room("built from", incoming.kept_bytes()?)?;
    let parts = stream::missing(&incoming)?;
    say(to, &Saying::Lacks(parts.clone())).map_err(|error| lost(&error.into()))?;
    stream::receive(&incoming, &parts, &mut from, &mut |_| {})?;
    let said = heard_by(from);
    let place = Place::new(&work.request, work.pipeline.as_bytes());
    let place = place.map_err(|error| cannot(&error))?;
    let outcome = build(flags, work, (&place, &said), to, stop)?;
    let Some(key) = outcome.told.key else { return Ok(outcome.into()) };
    let holder = store.begin_hold(SystemTime::now())?;
    holder.hold(&[key])?;
    let (output, provenance) = built(work, &place, key, stop)?;
    let Served { outcome, .. } = outcome.into();
    let (outputs, provenance) = (vec![output.0.clone()], Some(provenance));
    let outcome = SessionOutcome { outputs, provenance, ..outcome };
    let back = Back { outputs: vec![output], lacks: said, _holder: holder };
    Ok(Served { outcome, back: Some(back) })
}

/// Runs it, as long as somebody waits for it.
fn build(
    flags: &WorkerFlags,
    work: &SessionWork,
    (place, said): (&Place, &Lacks),
    to: &mut impl Write,
    stop: &Arc<AtomicBool>,
) -> Result<Outcome, Failed> {
    let mut running = Running::start(&place.flags(&work.request, flags), Lines::Kept)
        .map_err(|error| cannot(&error))?;
    let (mut told, mut said_at) = (String::new(), Instant::now());
    loop {
        let line = running.line();
        if line != told || said_at.elapsed() > ALIVE {
            said_at = Instant::now();
            told.clone_from(&line);
            say(to, &Saying::Line(line)).map_err(|error| lost(&error.into()))?;
        }
        match running.ended() {
            Ok(Some(status)) => return Ok(running.outcome(&work.request, status.code())),
            Ok(None) => thread::sleep(TICK),
            Err(error) => return Err(cannot(&error)),
        }
        let is_gone = said.try_recv() == Err(TryRecvError::Disconnected);
        if is_gone || stop.load(Ordering::Relaxed) {
            warn(format_args!("nobody wants {} any more", work.request.stage));
            return Err(Failed::stopped());
        }
    }
}

/// What the host says it lacks, once; nothing comes of a stream that has ended.
fn heard_by(mut from: BufReader<Stdin>) -> Lacks {
    let (to, said) = sync_channel(1);
    thread::spawn(move || {
        if let Ok(Some(parts)) = hear::<Vec<Part>>(&mut from) {
            let _ = to.send(parts);
            // Whoever asks may end the stream now.
            let _ = io::copy(&mut from, &mut io::sink());
        }
    });
    said
}

/// The output of that key, and what led to it; what it refers to the host has.
fn built(
    work: &SessionWork,
    place: &Place,
    key: Digest,
    stop: &Arc<AtomicBool>,
) -> Result<((BundledOutput, PathBuf), Provenance), Failed> {
    let request = &work.request;
    let gone = || Failed::new(Exit::StageFailed, "what was built is not here any more");
    let flags = PipelineFlags { pipeline: place.pipeline(), sets: request.sets.clone() };
    // As the run was: what the inputs were made of need not be here.
    let given = request.inputs.keys().cloned().collect();
    let part = Built::Behind { only: vec![request.stage.clone()], given };
    let loaded = load::plan(&flags, Access::Build(Wait::Yes, stop.clone(), part))?;
    let (plan, store) = (&loaded.plan, &loaded.store);
    let found = store.lookup(&key)?.hit().ok_or_else(gone)?;
    let leaving = [Leaving { tree: found.digest, recipes: Vec::new() }];
    let (mut output, folder) = outputs(store, &leaving)?.pop().ok_or_else(gone)?;
    let at = output.keys.iter().position(|it| it.key == key).unwrap_or(0);
    output.keys = vec![output.keys.swap_remove(at)];
    let said = match Origin::of(&found.record) {
        // Whoever built it for a fleet has said what is true of it.
        Some(origin) => origin.and_then(|origin| origin.said()).map(|said| said.provenance),
        None => Ok(provenance(
            plan,
            plan.stage(plan.find(&request.stage)?),
            &trees(&loaded, work)?,
            &found.record,
        )),
    };
    let said = said.map_err(|why| Failed::new(Exit::StageFailed, why))?;
    Ok(((output, folder), said))
}

/// What the stage was made of: what was sent, and what this machine had of a hub.
fn trees(loaded: &Loaded, work: &SessionWork) -> Result<BTreeMap<StageId, Digest>, Failed> {
    let (plan, store) = (&loaded.plan, &loaded.store);
    let mut trees = BTreeMap::new();
    for need in plan.stage(plan.find(&work.request.stage)?).needs() {
        let stage = plan.stage(need);
        let sent = work.request.inputs.get(stage.name.as_str()).map(|input| input.tree);
        let own =
            || Some(store.lookup(&store.resolve(&stage.recipe_key).ok()??).ok()?.hit()?.digest);
        if let Some(tree) = sent.or_else(own) {
            trees.insert(need, tree);
        }
    }
    Ok(trees)
}

fn lost(error: &SessionError) -> Failed {
    Failed::new(Exit::NotSeen, format!("whoever asked is gone: {error}"))
}
