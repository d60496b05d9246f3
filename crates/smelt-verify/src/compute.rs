//! Compares what engines compute with what the reference does.

use std::path::Path;

use smelt_backend::{HostFeatures, VisionEngine};
use smelt_deploy::DeployError;
use smelt_engine::llm::Arithmetic;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::reference;
use smelt_model::reference::compare::compare;

use crate::bounds::{Bound, Finding, Kept, ROUNDED_DECODER};
use crate::course::Course;
use crate::parties::Parties;
use crate::probe::{self, Probe};
use crate::record::Record;
use crate::weights::Weights;

/// What the engine saw and what the reference did.
type Seen = (HostFeatures, reference::ImageFeatures);

/// Has the engines of `parties`, whose tokenizer and template are in `texts`, compute, and records how far they are from the
/// reference.
pub(crate) fn compute(
    parties: &mut Parties,
    texts: &Path,
    record: &mut Record,
    course: &mut Course<'_>,
) -> Result<(), DeployError> {
    let is_plain = parties.is_plain();
    // Of a model that reads text alone, one pass serves both comparisons where the integers are the same.
    let is_own = parties.weights.is_none() && !is_plain && parties.own()?.is_some();
    let decoder = parties.against.decoder().map_err(DeployError::model)?;
    let (vocab, hidden) = (decoder.vocab, decoder.hidden);
    let which = probe::which(&parties.vision, parties.extent);
    let kept = parties.vision.get(which);
    let kept = kept.map(|_| record.weights.first().map_or(Kept::Rounded, Weights::kept));
    let bound = parties.vision_bound(kept);
    let Parties { vision, llm, against, weights, extent, .. } = parties;
    let engine = vision.get(which);
    let room = llm.limits().max_seq_len;
    let probe = match &engine {
        Some(engine) => Probe::new(against, texts, engine, *extent)?,
        None => Probe::of_text(texts, room)?,
    };
    probe.check_room(room)?;
    let mut found = |finding: Finding, course: &Course<'_>| {
        course.say(&finding.line());
        record.findings.push(finding);
    };
    let ((seen, expected), findings) = look(&probe, engine, against, (bound, hidden), course)?;
    findings.into_iter().for_each(|finding| found(finding, course));

    course.goes_on("decoder");
    llm.set_arithmetic(Arithmetic::Floats);
    let told = &mut |line: &str| course.hears(line);
    let (answer, mut logits) = probe.answer(llm.decoder()?, &seen, &[], told)?;
    course.goes_on("decoder's reference");
    let mut scored = None;
    if let Some(own) = weights.as_ref().or(is_own.then_some(against)) {
        let given = reference::ImageFeatures {
            embeds: seen.embeds.clone(),
            deepstack: seen.deepstack.clone(),
        };
        let told = &mut |line: &str| course.hears(line);
        let expected = probe.logits(own, &answer, &given, told)?;
        let same = compare(&expected, &logits, vocab).map_err(DeployError::engine)?;
        let what = "logits against the engine's own weights";
        found(Finding::new(what, llm.same_weights(), &same), course);
        scored = (is_own && engine.is_none()).then_some(expected);
    }
    course.goes_on("decoder in integers");
    if llm.has_integers() {
        llm.set_arithmetic(Arithmetic::Integers);
        let told = &mut |line: &str| course.hears(line);
        let (_, rounded) = probe.answer(llm.decoder()?, &seen, &answer, told)?;
        let same = compare(&logits, &rounded, vocab).map_err(DeployError::engine)?;
        let what = "logits in integers against those in f32";
        found(Finding::new(what, ROUNDED_DECODER, &same), course);
        // What the engine answers with from now on is what the checkpoint is compared with.
        logits = rounded;
    }
    course.goes_on("the checkpoint's reference");
    let told = &mut |line: &str| course.hears(line);
    let expected = match scored {
        Some(expected) => expected,
        None => probe.logits(against, &answer, &expected, told)?,
    };
    let whole = compare(&expected, &logits, vocab).map_err(DeployError::engine)?;
    let bound = match is_own {
        // The weights are the checkpoint's own: nothing but activations is rounded.
        true => llm.same_integers(),
        false if is_plain => llm.plain(kept),
        false => llm.quantised(),
    };
    found(Finding::new("logits against the checkpoint", bound, &whole), course);
    record.answer = answer;
    Ok(())
}

/// Compares what the vision engine says of the probe's picture with what the reference says, in rows of `hidden` numbers;
/// gives both, and what was found: nothing of a model that reads text alone.
fn look(
    probe: &Probe,
    engine: Option<&VisionEngine>,
    against: &Checkpoint,
    (bound, hidden): (Bound, usize),
    course: &mut Course<'_>,
) -> Result<(Seen, Vec<Finding>), DeployError> {
    let Some(engine) = engine else {
        // Two parts without work.
        (0..2).for_each(|_| course.passes_over());
        return Ok(Default::default());
    };
    course.goes_on("vision engine");
    let seen = engine.features(probe.pixels().to_vec()).and_then(|features| features.to_host());
    let seen = seen.map_err(DeployError::engine)?;
    course.goes_on("vision reference");
    let expected = probe.seen(against, &mut |line| course.hears(line))?;
    let same = compare(&expected.embeds, &seen.embeds, hidden).map_err(DeployError::engine)?;
    let mut findings = vec![Finding::new("image embeddings", bound, &same)];
    if !expected.deepstack.is_empty() {
        let [told, heard] = [&expected.deepstack, &seen.deepstack].map(|all| all.concat());
        let same = compare(&told, &heard, hidden).map_err(DeployError::engine)?;
        findings.push(Finding::new("features of earlier blocks", bound, &same));
    }
    Ok(((seen, expected), findings))
}
