//! `verify`: engines against the f32 reference, on a picture and a prompt.
//!
//! The engines answer with 16 tokens; the reference, which shares no arithmetic with them, scores
//! prompt and answer in one teacher-forced pass that streams the checkpoint.  Three comparisons
//! are made, each with its own bound: the vision engine, the decoder against the very weights it
//! was built from (tight: only rounding may differ), and the whole against the checkpoint (loose:
//! quantisation may cost something).

use std::fs;
use std::path::Path;

use serde::Serialize;
use smelt_engine::llm::{ImageEmbeds, LlmEngine, Prompt};
use smelt_engine::vision::VisionEngine;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::decoder::Decoder;
use smelt_model::families::internvl3::InternVl3;
use smelt_model::reference::compare::{Comparison, compare};
use smelt_model::reference::{self, Image};
use smelt_runtime::tokenizer::Tokenizer;

use super::request::{Request, say};
use crate::exit::{Exit, Failed};

/// Tokens the engine answers with.
const ANSWER_TOKENS: usize = 16;

/// What a comparison must reach.
#[derive(Debug, Clone, Copy, Serialize)]
struct Bound {
    /// Lowest cosine of any row.
    cosine_min: f64,
    /// Largest error of any value, as a fraction of its row's largest.
    error_max_of_scale: f64,
}

/// f32 arithmetic over weights that the export may have rounded: f16 of bf16 weights measures 7e-5
/// at 24 layers, bf16 of f32 weights could reach 4e-3.
const VISION: Bound = Bound { cosine_min: 0.9999, error_max_of_scale: 5e-3 };
/// The same weights in another order of summation: only rounding differs, 2e-6 at 28 layers.
const SAME_WEIGHTS: Bound = Bound { cosine_min: 0.999_999, error_max_of_scale: 1e-4 };
/// int8 measures 0.9993 and better on random weights; the error of a single logit says little
/// about it.
const INT8: Bound = Bound { cosine_min: 0.995, error_max_of_scale: 0.25 };
/// int4 measures 0.70 and better, and 1.3 of scale, on random weights 64 wide, the worst case: nothing
/// in them is redundant.  Logits that have nothing to do with each other have a cosine near 0.
const INT4: Bound = Bound { cosine_min: 0.5, error_max_of_scale: 2.0 };

/// What quantisation may cost a decoder of `scheme`.
fn quantised(scheme: &str) -> Bound {
    if scheme.starts_with("int4") { INT4 } else { INT8 }
}

/// One comparison as the artifact records it.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    bound: Bound,
    cosine_min: f64,
    error_max_of_scale: f64,
    worst_position: usize,
    certain: usize,
    agreed: usize,
}

/// The artifact: `verify.json`.
#[derive(Debug, Serialize)]
struct Record {
    format: u32,
    answer: Vec<u32>,
    findings: Vec<Finding>,
}

pub(crate) fn run(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("against")?;
    let weights = request.optional_input("weights").map(Checkpoint::open).transpose();
    let weights = weights.map_err(Failed::model)?;
    let mut vision = VisionEngine::open(request.input("vision")?).map_err(Failed::model)?;
    let mut llm = LlmEngine::open(request.input("llm")?).map_err(Failed::model)?;
    say("checking digests");
    vision.verify_digest().map_err(Failed::model)?;
    llm.verify_digest().map_err(Failed::model)?;

    let mut findings = Vec::new();
    let (tower, decoder) = facts(&checkpoint)?;
    let pixels = picture(tower);
    say("vision engine");
    let embeds = vision.encode(&pixels, 1).map_err(Failed::model)?;
    say("vision reference");
    let embeds_reference =
        reference::vision_embeds(&checkpoint, &pixels, 1).map_err(Failed::model)?;
    let seen = compare(&embeds_reference, &embeds, decoder.hidden).map_err(Failed::model)?;
    findings.push(finding("image embeddings", VISION, &seen));

    let prompt = tokens(&checkpoint)?;
    say("decoder");
    let (answer, logits) = answer(&mut llm, &prompt, &embeds)?;
    let last = prompt.tokens.len() - 1;
    let all = [prompt.tokens.as_slice(), &answer].concat();
    // The last answered token is scored by nothing.
    let positions = last..last + ANSWER_TOKENS;
    if let Some(weights) = &weights {
        let image = Image { token: prompt.image_token, embeds: &embeds };
        let expected = reference::logits(weights, &all, Some(image), positions.clone(), &mut say);
        let same = compare(&expected.map_err(Failed::model)?, &logits, decoder.vocab);
        findings.push(finding(
            "logits against the engine's own weights",
            SAME_WEIGHTS,
            &same.map_err(Failed::model)?,
        ));
    }
    let image = Image { token: prompt.image_token, embeds: &embeds_reference };
    let expected = reference::logits(&checkpoint, &all, Some(image), positions, &mut say);
    let whole = compare(&expected.map_err(Failed::model)?, &logits, decoder.vocab);
    findings.push(finding(
        "logits against the checkpoint",
        quantised(llm.scheme()),
        &whole.map_err(Failed::model)?,
    ));
    finish(&request.out, Record { format: 1, answer, findings })
}

fn facts(checkpoint: &Checkpoint) -> Result<(&InternVl3, &Decoder), Failed> {
    let tower = checkpoint.internvl3().map_err(Failed::model)?;
    Ok((tower, checkpoint.decoder().map_err(Failed::model)?))
}

/// Writes the record, then says the first thing that is wrong, if anything is.
fn finish(out: &Path, record: Record) -> Result<(), Failed> {
    let text = serde_json::to_string_pretty(&record).expect("a record holds only plain data");
    let path = out.join("verify.json");
    fs::write(&path, text + "\n").map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", path.display()))
    })?;
    let wrong: Vec<String> = record.findings.iter().filter_map(complaint).collect();
    match wrong.first() {
        None => Ok(()),
        Some(first) => Err(Failed::new(Exit::StageFailed, first)),
    }
}

fn finding(what: &'static str, bound: Bound, comparison: &Comparison) -> Finding {
    let top1 = comparison.top1(bound.error_max_of_scale);
    let finding = Finding {
        what,
        bound,
        cosine_min: comparison.cosine_min,
        error_max_of_scale: comparison.error_max_of_scale,
        worst_position: comparison.worst_position,
        certain: top1.certain,
        agreed: top1.agreed,
    };
    say(&format!(
        "{what}: cosine {:.7}, largest error {:.2e} of scale",
        finding.cosine_min, finding.error_max_of_scale
    ));
    finding
}

/// What a person reads when a finding breaks its bound.
fn complaint(finding: &Finding) -> Option<String> {
    let Finding { what, bound, cosine_min, error_max_of_scale, worst_position, .. } = finding;
    // Written so that a NaN fails too.
    let good = *cosine_min >= bound.cosine_min && *error_max_of_scale <= bound.error_max_of_scale;
    (!good).then(|| {
        format!(
            "the engine differs from the f32 reference: {what} have cosine {cosine_min:.6} (at least {}) and an error of {error_max_of_scale:.2e} of scale (at most {:e}), worst at row {worst_position}; build the engine again with --force",
            bound.cosine_min, bound.error_max_of_scale
        )
    })
}

/// A picture of a colour wash with a bright disc, from whole numbers only, in the range the
/// preprocessing gives: `[1, channels, side, side]`.
fn picture(tower: &InternVl3) -> Vec<f32> {
    let side = tower.image_size;
    let pixel = |channel: usize, y: usize, x: usize| {
        let wash = (x * (channel + 1) + y * (3 - channel.min(2))) * 255 / (side * 4);
        let from_centre = (2 * x).abs_diff(side).pow(2) + (2 * y).abs_diff(side).pow(2);
        let level = if from_centre < side * side / 4 { 255 - wash } else { wash };
        (level as f32 - 120.0) / 58.0
    };
    let pixels = (0..tower.vit.channels).flat_map(|channel| {
        (0..side).flat_map(move |y| (0..side).map(move |x| pixel(channel, y, x)))
    });
    pixels.collect()
}

struct PromptTokens {
    tokens: Vec<u32>,
    image_token: u32,
}

/// The prompt as the family's chat format writes it, with the tokens of one tile.
fn tokens(checkpoint: &Checkpoint) -> Result<PromptTokens, Failed> {
    let tokenizer =
        Tokenizer::open(&checkpoint.dir().join("tokenizer.json")).map_err(Failed::model)?;
    let context = "<IMG_CONTEXT>";
    let text = format!(
        "<|im_start|>user\n<img>{}</img>\nDescribe this image.<|im_end|>\n<|im_start|>assistant\n",
        context.repeat(facts(checkpoint)?.0.tokens_per_tile())
    );
    let image_token = tokenizer.token(context).ok_or_else(|| {
        Failed::model(format!(
            "{}: tokenizer.json has no token {context}",
            checkpoint.dir().display()
        ))
    })?;
    Ok(PromptTokens { tokens: tokenizer.encode(&text).map_err(Failed::model)?, image_token })
}

/// The engine's greedy answer, and the logits that chose each token: `[16, vocab]`.
fn answer(
    llm: &mut LlmEngine,
    prompt: &PromptTokens,
    embeds: &[f32],
) -> Result<(Vec<u32>, Vec<f32>), Failed> {
    let image = ImageEmbeds { token: prompt.image_token, embeds };
    let prompt = Prompt { tokens: &prompt.tokens, image: Some(image) };
    let mut logits = llm.prefill(0, &prompt).map_err(Failed::model)?;
    let (mut answer, mut all) = (Vec::new(), Vec::new());
    loop {
        let token = argmax(&logits);
        answer.push(token);
        all.append(&mut logits);
        if answer.len() == ANSWER_TOKENS {
            return Ok((answer, all));
        }
        let mut rows = llm.decode(&[(0, token)]).map_err(Failed::model)?;
        logits = rows.swap_remove(0);
    }
}

/// The first of the largest; NaN never wins.
fn argmax(logits: &[f32]) -> u32 {
    let better =
        |best: usize, (at, logit): (usize, &f32)| if *logit > logits[best] { at } else { best };
    logits.iter().enumerate().fold(0, better) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding_of(cosine_min: f64, error_max_of_scale: f64) -> Finding {
        Finding {
            what: "logits",
            bound: SAME_WEIGHTS,
            cosine_min,
            error_max_of_scale,
            worst_position: 3,
            certain: 0,
            agreed: 0,
        }
    }

    #[test]
    fn bounds_hold_for_numbers_that_are_none() {
        assert_eq!(complaint(&finding_of(1.0, 0.0)), None);
        assert!(complaint(&finding_of(0.99, 0.0)).is_some());
        assert!(complaint(&finding_of(1.0, 0.1)).is_some());
        assert!(complaint(&finding_of(f64::NAN, 0.0)).is_some());
        assert!(complaint(&finding_of(1.0, f64::NAN)).is_some());
    }

    #[test]
    fn four_bits_may_cost_more_than_eight() {
        for scheme in smelt_model::quantize::Scheme::WORDS {
            let is_int4 = scheme.starts_with("int4");
            assert_eq!(quantised(scheme).cosine_min < INT8.cosine_min, is_int4, "{scheme}");
        }
    }

    #[test]
    fn the_largest_logit_wins() {
        assert_eq!(argmax(&[0.0, 2.0, 1.0, 2.0]), 1);
        assert_eq!(argmax(&[f32::NEG_INFINITY, -1.0]), 1);
    }
}
