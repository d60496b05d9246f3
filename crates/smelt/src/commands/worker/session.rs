//! `smelt worker --session`: builds one piece of work for who has logged in, by the standard input and output.

use std::io::{BufReader, Stdin, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use smelt_fleet::statement::Provenance;
use smelt_fleet::work::WorkRequest;
use smelt_plan::Digest;
use smelt_store::bundle::BundledOutput;

use super::running::{Outcome, Place, Running, cannot};
use super::{TICK, facts, is_for};
use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::{PipelineFlags, WorkerFlags};
use crate::fleet::incoming::{self, Incoming};
use crate::fleet::outgoing::{Leaving, outputs};
use crate::fleet::push::Shelf;
use crate::fleet::session::{
    Greeting, Saying, SessionError, SessionOutcome, SessionWork, greet, hear, say,
};
use crate::fleet::stream::{self, Part};
use crate::fleet::turn::own_name;
use crate::fleet::vouched;
use crate::load::{self, Access};

/// What goes back, each output with its folder.
type Back = Vec<(BundledOutput, PathBuf)>;
/// Hears what the host lacks of that.
type Lacks = Receiver<Vec<Part>>;

pub(super) fn run(flags: &WorkerFlags, stop: &Arc<AtomicBool>) -> Result<Exit, Failed> {
    let (mut from, mut to) = (BufReader::new(stdin()), stdout().lock());
    let greeting =
        Greeting { version: crate::version::TEXT.to_owned(), name: own_name(), facts: facts() };
    greet(&mut to, &greeting).map_err(|error| lost(&error.into()))?;
    // Whoever only looks asks for nothing.
    let Some(work) = hear::<SessionWork>(&mut from).map_err(|error| lost(&error))? else {
        return Ok(Exit::Ok);
    };
    let (outcome, back, from) = match serve(flags, &work, (from, &mut to), stop) {
        Ok(built) => built,
        Err(failed) => (ended(Outcome::refused(&failed)), Vec::new(), None),
    };
    let is_built = !back.is_empty();
    let ended = Saying::Ended(Box::new(outcome));
    say(&mut to, &ended).map_err(|error| lost(&error.into()))?;
    let Some(parts) = from.filter(|_| is_built).and_then(|from| from.recv().ok()) else {
        return Ok(Exit::Ok);
    };
    stream::send(&back, &parts, &mut to, &mut |_| {})?;
    Ok(Exit::Ok)
}

/// Takes what the work is made of, builds it, and says what came of that; what goes back, and by what the host says what it
/// lacks of that.
fn serve(
    flags: &WorkerFlags,
    work: &SessionWork,
    (mut from, to): (BufReader<Stdin>, &mut impl Write),
    stop: &Arc<AtomicBool>,
) -> Result<(SessionOutcome, Back, Option<Lacks>), Failed> {
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
    tell(format_args!("builds {}", work.request.stage));
    let said = heard_by(from);
    let place = Place::new(&work.request, work.pipeline.as_bytes());
    let place = place.map_err(|error| cannot(&error))?;
    let outcome = build(flags, work, (&place, &said), to, stop)?;
    let Some(key) = outcome.told.key else { return Ok((ended(outcome), Vec::new(), None)) };
    let (back, provenance) = built(&work.request, &place, key)?;
    let outputs = back.iter().map(|(output, _)| output.clone()).collect();
    let outcome = SessionOutcome { outputs, provenance: Some(provenance), ..ended(outcome) };
    Ok((outcome, back, Some(said)))
}

/// Runs it, as long as somebody waits for it.
fn build(
    flags: &WorkerFlags,
    work: &SessionWork,
    (place, said): (&Place, &Lacks),
    to: &mut impl Write,
    stop: &Arc<AtomicBool>,
) -> Result<Outcome, Failed> {
    let mut running =
        Running::start(&place.flags(&work.request, flags)).map_err(|error| cannot(&error))?;
    let mut told = String::new();
    loop {
        let line = running.line();
        if line != told {
            told.clone_from(&line);
            say(to, &Saying::Line(line)).map_err(|error| lost(&error.into()))?;
        }
        match running.child.try_wait() {
            Ok(Some(status)) => return Ok(running.outcome(&work.request, status.code())),
            Ok(None) => thread::sleep(TICK),
            Err(error) => return Err(cannot(&error)),
        }
        let is_gone = said.try_recv() == Err(TryRecvError::Disconnected);
        if is_gone || stop.load(Ordering::Relaxed) {
            warn(format_args!("nobody wants {} any more", work.request.stage));
            running.end();
            return Err(Failed::stopped());
        }
    }
}

/// What the host says it lacks, as soon as it does; nothing comes of a stream that has ended.
fn heard_by(mut from: BufReader<Stdin>) -> Lacks {
    let (to, said) = channel();
    thread::spawn(move || {
        while let Ok(Some(parts)) = hear::<Vec<Part>>(&mut from) {
            if to.send(parts).is_err() {
                return;
            }
        }
    });
    said
}

/// The output of that key with all that it refers to, and what led to it.
fn built(request: &WorkRequest, place: &Place, key: Digest) -> Result<(Back, Provenance), Failed> {
    let gone = || Failed::new(Exit::StageFailed, "what was built is not here any more");
    let flags = PipelineFlags { pipeline: place.pipeline(), sets: request.sets.clone() };
    let loaded = load::plan(&flags, Access::Look)?;
    let id = loaded.plan.find(&request.stage)?;
    let (found, provenance) =
        Shelf::of(&loaded, &vouched::believed()?)?.led(id).ok_or_else(gone)?;
    let output = loaded.store.lookup(&key)?.hit().filter(|_| found == key).ok_or_else(gone)?;
    let leaving = [Leaving { tree: output.digest, recipes: Vec::new() }];
    let mut back = outputs(&loaded.store, &leaving)?;
    for (output, _) in &mut back {
        let at = output.keys.iter().position(|it| it.key == key).unwrap_or(0);
        output.keys = vec![output.keys.swap_remove(at)];
    }
    Ok((back, provenance))
}

fn ended(Outcome { exit, told, log, took }: Outcome) -> SessionOutcome {
    SessionOutcome { exit, told, log, took, ..SessionOutcome::default() }
}

fn lost(error: &SessionError) -> Failed {
    Failed::new(Exit::NotSeen, format!("whoever asked is gone: {error}"))
}
