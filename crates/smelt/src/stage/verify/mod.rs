//! `verify`: engines against the f32 reference and the weights they were built from, and golden
//! prompts.
//!
//! Cheapest first, and what is wrong is named as closely as it can be: digests; then sizes and every
//! weight, beside the checkpoint's own ([`weights`]); then what the engines compute.  They answer a
//! built-in prompt ([`probe`]) with 16 tokens; the reference, which shares no arithmetic with them,
//! scores prompt and answer in one teacher-forced pass that streams the checkpoint: the vision
//! engine, if there is one, the decoder against the very weights it was built from (tight: only rounding may differ),
//! and the whole against the checkpoint (loose: quantisation may cost something).  Last, golden
//! prompts go the way of a conversation and must be answered as expected ([`golden`]).
//!
//! Every weight is compared, always.  What the reference computes is sampled, since it took three quarters of a
//! build: some tokens of the picture, the smallest of several grids.  `full = true` computes all.
//!
//! A decoder for GPUs has its weights compared on any machine; what it computes is asked of a card that agrees, and where
//! there is none one line says so.
//!
//! The two halves may be stages of their own: one with `weights-only`, behind which a deployment may be asked already,
//! and one that names it as `compared` and does the rest.  Either records which engines it is of ([`crate::proof`]).

mod bounds;
mod costs;
mod decoder;
mod golden;
#[cfg(test)]
mod on_a_twin;
mod probe;
mod weights;

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_backend::{Heading, HostFeatures, VisionEngine};
use smelt_cuda::CudaTarget;
use smelt_engine::llm::Arithmetic;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::reference;
use smelt_model::reference::compare::compare;
use smelt_plan::kind::verify::Verify;

use super::request::{Request, say};
use super::{Worker, refusal};
use crate::checkpoint::Beside;
use crate::device::{BACKENDS, LOOKING};
use crate::exit::{Exit, Failed};
use crate::load;
use crate::phases::Phases;
use crate::proof::{self, Half, NamedEngines, Part};
use bounds::{Bound, Finding, Kept, ROUNDED_DECODER};
use decoder::Verified;
use golden::Prompted;
use probe::{Extent, Probe};
use weights::Weights;

/// The artifact: `verify.json`.
#[derive(Debug, Default, Serialize)]
struct Record {
    format: u32,
    /// Which half of a verification it is, and of which engines; none of a whole one.
    #[serde(flatten)]
    half: Option<Half>,
    weights: Vec<Weights>,
    answer: Vec<u32>,
    findings: Vec<Finding>,
    prompts: Vec<Prompted>,
}

/// What a stage says of itself that compared weights alone: as much as another goes on from.
#[derive(Deserialize)]
struct Compared {
    #[serde(flatten)]
    half: Half,
    weights: Vec<Weights>,
}

/// The engines, and what they are compared with.
struct Parties {
    /// One for each grid, from few pixels to many: the last is the model's own.  None of a model that reads
    /// text alone.
    vision: Vec<VisionEngine>,
    /// Whether the tower is for a card, whose products take halves.
    sees_in_halves: bool,
    llm: Verified,
    /// The f32 reference.
    against: Checkpoint,
    /// Its tokenizer and chat template.
    words: Beside,
    /// What the decoder was built from, where that is named.
    weights: Option<Checkpoint>,
    /// How much the reference computes.
    extent: Extent,
}

impl Parties {
    /// Whether the decoder has the very weights of the reference.
    fn is_plain(&self) -> bool {
        !self.against.is_quantized() && !self.llm.is_packed()
    }

    /// The checkpoint that the decoder was built from, as far as that is known: what is named, or the
    /// reference itself, of plain weights or of those very integers.
    fn own(&self) -> Result<Option<&Checkpoint>, Failed> {
        let Self { against, weights, .. } = self;
        if weights.is_some() || self.is_plain() {
            return Ok(weights.as_ref().or(Some(against)));
        }
        let is_same = against.is_packed() && self.llm.unlike(against)?.is_none();
        Ok(is_same.then_some(against))
    }
}

pub(super) const WORKER: Worker =
    Worker { executes_graphs: true, refusal: Some(refusal::of_verify), ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let Verify { weights_only, .. } = request.typed()?;
    let compared = request.optional_input("compared");
    let mut parties = open(request)?;
    let half = half(request, weights_only)?;
    let mut record = Record { format: 2, half, ..Record::default() };
    let phases = &mut costs::phases(&parties, request);
    match compared {
        Some(dir) => {
            record.weights = weights_of(dir, record.half.as_ref())?;
            // The tower's weights are a phase without work, as are the decoder's.
            phases.next("");
        }
        None => record.weights = compare_weights(&parties, phases)?,
    }
    for weights in &record.weights {
        say(&weights.line());
    }
    conclude(&request.out, &record, record.weights.iter().filter_map(Weights::complaint))?;
    if weights_only {
        return write(&request.out, &record);
    }

    compute(&mut parties, &mut record, phases)?;
    let wrong: Vec<String> = record.findings.iter().filter_map(Finding::complaint).collect();
    let hint = record.weights.iter().find_map(|weights| weights.elsewhere().first());
    let hint = hint.map(|name| format!("; no node reads {name}")).unwrap_or_default();
    conclude(&request.out, &record, wrong.into_iter().map(|wrong| wrong + &hint))?;

    if let Some(folder) = request.optional_input("prompts") {
        say(&phases.next("golden prompts"));
        let told: &dyn Fn(&str) = &|line| say(&phases.line(line));
        let complaints = golden::ask(request, parties, (folder, told), &mut record.prompts)?;
        conclude(&request.out, &record, complaints)?;
    }
    write(&request.out, &record)
}

/// Which half of a verification is asked for, and of which engines; none of a whole one.
fn half(request: &Request, weights_only: bool) -> Result<Option<Half>, Failed> {
    let part = match (weights_only, request.optional_input("compared")) {
        (true, _) => Part::Weights,
        (false, Some(_)) => Part::Reference,
        (false, None) => return Ok(None),
    };
    let vision = request.optional_input("vision").map(proof::name).transpose()?;
    let llm = proof::name(request.input("llm")?)?;
    Ok(Some(Half { part, engines: NamedEngines { vision, llm } }))
}

/// What the stage in `dir` found that compared the weights of the same engines.
fn weights_of(dir: &Path, half: Option<&Half>) -> Result<Vec<Weights>, Failed> {
    let path = dir.join(proof::FILE);
    let bad = |why: String| {
        Failed::new(Exit::BadPipeline, format!("\"compared\": {}: {why}", path.display()))
    };
    let text = load::read_within(&path, "the comparison", proof::BYTES_MAX)?;
    let compared: Compared = serde_json::from_str(&text)
        .map_err(|error| bad(format!("it is of no stage with \"weights-only\" ({error})")))?;
    let is_same = half.is_some_and(|half| half.engines == compared.half.engines);
    match is_same && compared.half.part == Part::Weights {
        true => Ok(compared.weights),
        false => Err(bad("it compared the weights of other engines".to_owned())),
    }
}

/// Opens everything; an engine that does not open or has another digest is damaged.
fn open(request: &Request) -> Result<Parties, Failed> {
    let against = request.checkpoint("against")?;
    let weights = request.optional_input("weights").map(Checkpoint::open).transpose();
    let weights = weights.map_err(Failed::model)?;
    let Verify { full, weights_only, .. } = request.typed()?;
    // Weights are compared where no card is, too.
    let backends = if weights_only { LOOKING } else { BACKENDS };
    let vision_dir = request.optional_input("vision");
    let vision = vision_dir.map(|dir| backends.vision(dir)).transpose();
    let mut vision = vision.map_err(Failed::invalid)?.unwrap_or_default();
    vision.sort_by_key(|engine| engine.takes().numbers());
    let heading = vision_dir.map(Heading::read).transpose().map_err(Failed::invalid)?;
    let is_for_card = |heading: &Heading| CudaTarget::parse(&heading.target).is_some();
    let sees_in_halves = heading.as_ref().is_some_and(is_for_card);
    let llm = Verified::open(request.input("llm")?, weights_only, &decoder::open_card)?;
    say("checking digests");
    // The engines of one directory share one file.
    let told = &mut |_: u64| {};
    let whole = vision.first().map_or(Ok(()), |engine| engine.verify_digest(told));
    whole.map_err(Failed::invalid)?;
    llm.verify_digest(told)?;
    let words = Beside::of(&against, &request.out)?;
    let extent = if full { Extent::Full } else { Extent::Sampled };
    Ok(Parties { vision, sees_in_halves, llm, against, words, weights, extent })
}

fn compare_weights(parties: &Parties, phases: &mut Phases) -> Result<Vec<Weights>, Failed> {
    let Parties { vision, llm, against, .. } = parties;
    say(&phases.begin("comparing the tower's weights"));
    let told = |line: &str| say(&phases.line(line));
    let compared = vision.iter().rev().map(|engine| weights::vision(engine, against, &told));
    let mut compared = compared.take(1).collect::<Result<Vec<_>, _>>()?;
    say(&phases.next("comparing the decoder's weights"));
    let Some(own) = parties.own()? else {
        say("the decoder's weights are not compared one by one: \"weights\" does not name them");
        return Ok(compared);
    };
    if let Some(why) = llm.unlike(own)? {
        let path = own.path().display();
        return Err(Failed::invalid(format!("the llm engine was not built from {path}: {why}")));
    }
    compared.push(llm.compare(own, &|line| say(&phases.line(line)))?);
    Ok(compared)
}

/// Compares what the engines compute with what the reference does.
fn compute(parties: &mut Parties, record: &mut Record, phases: &mut Phases) -> Result<(), Failed> {
    let is_plain = parties.is_plain();
    // Of a model that reads text alone, one pass serves both comparisons where the integers are the same.
    let is_own = parties.weights.is_none() && !is_plain && parties.own()?.is_some();
    let Parties { vision, sees_in_halves, llm, against, words, weights, extent } = parties;
    let decoder = against.decoder().map_err(Failed::model)?;
    let mut found = |finding: Finding| {
        say(&finding.line());
        record.findings.push(finding);
    };
    let which = probe::which(vision, *extent);
    let mut engine = vision.get_mut(which);
    let kept = || record.weights.first().map_or(Kept::Rounded, Weights::kept);
    let kept = engine.as_ref().map(|_| kept());
    let room = llm.limits().max_seq_len;
    let probe = match &engine {
        Some(engine) => Probe::new(against, words.dir(), engine, *extent)?,
        None => Probe::of_text(words.dir(), room)?,
    };
    probe.check_room(room)?;
    let (seen, expected) = match &mut engine {
        Some(engine) => {
            let bound = match sees_in_halves {
                true => bounds::HALVES,
                false => bounds::vision(kept.unwrap_or(Kept::Rounded)),
            };
            look((&probe, engine, against), bound, &mut found, phases)?
        }
        None => {
            // Two phases without work.
            for _ in 0..2 {
                phases.next("");
            }
            (HostFeatures::default(), reference::ImageFeatures::default())
        }
    };

    say(&phases.next("decoder"));
    llm.set_arithmetic(Arithmetic::Floats);
    let (answer, mut logits) =
        probe.answer(llm.decoder()?, &seen, &[], &mut |line| say(&phases.line(line)))?;
    say(&phases.next("decoder's reference"));
    let mut scored = None;
    if let Some(own) = weights.as_ref().or(is_own.then_some(against)) {
        let given = reference::ImageFeatures {
            embeds: seen.embeds.clone(),
            deepstack: seen.deepstack.clone(),
        };
        let told = &mut |line: &str| say(&phases.line(line));
        let expected = probe.logits(own, &answer, &given, told)?;
        let same = compare(&expected, &logits, decoder.vocab).map_err(Failed::invalid)?;
        found(Finding::new("logits against the engine's own weights", llm.same_weights(), &same));
        scored = (is_own && engine.is_none()).then_some(expected);
    }
    say(&phases.next("decoder in integers"));
    if llm.has_integers() {
        llm.set_arithmetic(Arithmetic::Integers);
        let told = &mut |line: &str| say(&phases.line(line));
        let (_, rounded) = probe.answer(llm.decoder()?, &seen, &answer, told)?;
        let same = compare(&logits, &rounded, decoder.vocab).map_err(Failed::invalid)?;
        found(Finding::new("logits in integers against those in f32", ROUNDED_DECODER, &same));
        // What the engine answers with from now on is what the checkpoint is compared with.
        logits = rounded;
    }
    say(&phases.next("the checkpoint's reference"));
    let told = &mut |line: &str| say(&phases.line(line));
    let expected = match scored {
        Some(expected) => expected,
        None => probe.logits(against, &answer, &expected, told)?,
    };
    let whole = compare(&expected, &logits, decoder.vocab).map_err(Failed::invalid)?;
    let bound = match is_own {
        // The weights are the checkpoint's own: nothing but activations is rounded.
        true => llm.same_integers(),
        false if is_plain => llm.plain(kept),
        false => llm.quantised(),
    };
    found(Finding::new("logits against the checkpoint", bound, &whole));
    record.answer = answer;
    Ok(())
}

/// Compares what the vision engine says of the probe's picture with what the reference says; gives both.
fn look(
    (probe, engine, against): (&Probe, &VisionEngine, &Checkpoint),
    bound: Bound,
    found: &mut impl FnMut(Finding),
    phases: &mut Phases,
) -> Result<(HostFeatures, reference::ImageFeatures), Failed> {
    let hidden = against.decoder().map_err(Failed::model)?.hidden;
    say(&phases.next("vision engine"));
    let seen = engine.features(probe.pixels().to_vec()).and_then(|features| features.to_host());
    let seen = seen.map_err(Failed::invalid)?;
    say(&phases.next("vision reference"));
    let expected = probe.seen(against, &mut |line| say(&phases.line(line)))?;
    let same = compare(&expected.embeds, &seen.embeds, hidden).map_err(Failed::invalid)?;
    found(Finding::new("image embeddings", bound, &same));
    if !expected.deepstack.is_empty() {
        let [told, heard] = [&expected.deepstack, &seen.deepstack].map(|all| all.concat());
        let same = compare(&told, &heard, hidden).map_err(Failed::invalid)?;
        found(Finding::new("features of earlier blocks", bound, &same));
    }
    Ok((seen, expected))
}

/// Where something is wrong: says all of it, keeps the record, and fails with the first.
fn conclude(
    out: &Path,
    record: &Record,
    complaints: impl IntoIterator<Item = String>,
) -> Result<(), Failed> {
    let complaints: Vec<String> = complaints.into_iter().collect();
    let Some(first) = complaints.first() else { return Ok(()) };
    complaints.iter().for_each(|complaint| say(complaint));
    write(out, record)?;
    Err(Failed::invalid(format!("{first}; build the engine again with --force")))
}

fn write(out: &Path, record: &Record) -> Result<(), Failed> {
    let text = serde_json::to_string_pretty(record).expect("a record holds only plain data");
    let path = out.join(proof::FILE);
    fs::write(&path, text + "\n").map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", path.display()))
    })
}
