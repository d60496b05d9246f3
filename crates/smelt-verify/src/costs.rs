//! Guesses what the parts of a verification cost beside each other, so that its share grows evenly.

use smelt_model::checkpoint::Checkpoint;
use smelt_model::model::ModelPart;
use smelt_runtime::accuracy::golden::PROMPTS_FILE;
use smelt_runtime::accuracy::question;

use crate::parties::Parties;
use crate::probe::{ANSWER_TOKENS, shown, which};
use crate::verification::Verification;

/// Multiplications of the f32 reference, and of the engines, that take as long as comparing a number: of some
/// 280 million numbers a second InternVL3-1B's tower took 2.1 s for a tile and its reference 6.
const REFERENCE_PRODUCTS: f64 = 230.0;
const ENGINE_PRODUCTS: f64 = 500.0;
/// Weights that a step of a single token reads in the time of comparing a number, in floats and in integers: 16
/// steps took 3.5 s and 0.9.
const STEP_NUMBERS_IN_FLOATS: f64 = 8.0;
const STEP_NUMBERS: f64 = 32.0;
/// The same of what the reference reads of a checkpoint.
const READ_NUMBERS: f64 = 2.0;
/// Tokens of the words in a probe.
const WORDS: f64 = 20.0;
/// Patches that become one token, in every tower that is known.
const PATCHES_PER_TOKEN: f64 = 4.0;

/// The first parts: both comparisons of weights.
const COMPARISONS: usize = 2;

/// What the cost of a verification follows from.
struct Sizes {
    /// Numbers of the towers' weights and of the decoder's.
    vision: f64,
    llm: f64,
    /// Tokens of the probe's picture, and how many of them the decoder is shown.
    image_tokens: f64,
    shown_tokens: f64,
    /// Passes of the reference besides the one over the checkpoint.
    has_own: bool,
    is_packed: bool,
    prompts: f64,
}

/// What the parts of a verification of `parties` cost beside each other, in the order in which they come.
pub(crate) fn costs_of(parties: &Parties, asked: &Verification<'_>) -> Vec<f64> {
    let Parties { vision, against, weights, llm, extent, .. } = parties;
    let engine = vision.get(which(vision, *extent));
    let image_tokens = engine.map_or(0, |engine| engine.tokens_per_tile());
    let shown_tokens = engine.map_or(0, |engine| shown(engine, *extent));
    let prompts = asked.prompts;
    let prompts = prompts.and_then(|folder| question::read(&folder.join(PROMPTS_FILE), None).ok());
    let all = costs(&Sizes {
        vision: numbers(against, ModelPart::Vision),
        llm: numbers(against, ModelPart::Llm),
        image_tokens: image_tokens as f64,
        shown_tokens: shown_tokens as f64,
        has_own: weights.is_some(),
        is_packed: llm.has_integers(),
        prompts: prompts.map_or(0, |prompts| prompts.len()) as f64,
    });
    let is_compared = asked.compared.is_some();
    let is_left_out = |part| if part < COMPARISONS { is_compared } else { asked.weights_only };
    let cost = |(part, cost)| if is_left_out(part) { 0.0 } else { cost };
    all.into_iter().enumerate().map(cost).collect()
}

fn numbers(checkpoint: &Checkpoint, part: ModelPart) -> f64 {
    let tensors = checkpoint.model().tensors(&[part]);
    tensors.iter().map(|(_, shape)| shape.iter().product::<usize>() as f64).sum()
}

/// In comparisons of a number: both comparisons of weights, then tower and decoder, engine before
/// reference, then the golden prompts.
fn costs(sizes: &Sizes) -> Vec<f64> {
    let Sizes { vision, llm, image_tokens, shown_tokens, has_own, is_packed, prompts } = *sizes;
    let seen = vision * image_tokens * PATCHES_PER_TOKEN;
    let (read, said) = (llm * (shown_tokens + WORDS), llm * ANSWER_TOKENS as f64);
    let answer = |numbers: f64| read / ENGINE_PRODUCTS + said / numbers;
    let reference = llm / READ_NUMBERS + (read + said) / REFERENCE_PRODUCTS;
    let [own, packed] = [has_own, is_packed].map(|is_there| f64::from(u8::from(is_there)));
    let in_floats = if is_packed { STEP_NUMBERS_IN_FLOATS } else { STEP_NUMBERS };
    let asked = (seen + llm * (image_tokens + WORDS)) / ENGINE_PRODUCTS + said / STEP_NUMBERS;
    vec![
        vision,
        llm,
        seen / ENGINE_PRODUCTS,
        vision / READ_NUMBERS + seen / REFERENCE_PRODUCTS,
        answer(in_floats),
        own * reference,
        packed * answer(STEP_NUMBERS),
        reference,
        prompts * asked,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// InternVL3-1B.
    const PLAIN: Sizes = Sizes {
        vision: 3.1e8,
        llm: 4.9e8,
        image_tokens: 256.0,
        shown_tokens: 32.0,
        has_own: false,
        is_packed: false,
        prompts: 0.0,
    };

    #[test]
    fn the_towers_reference_costs_most_and_what_is_left_out_nothing() {
        let found = costs(&PLAIN);
        assert_eq!([found[5], found[6], found[8]], [0.0; 3]);
        assert!(found[3] > found.iter().sum::<f64>() / 3.0, "{found:?}");
        let full = costs(&Sizes { has_own: true, is_packed: true, prompts: 2.0, ..PLAIN });
        assert!(full.iter().all(|cost| *cost > 0.0), "{full:?}");
    }

    /// Seconds of each part on two cores of an EPYC, the decoder in int8.
    #[test]
    fn shares_follow_the_time_that_parts_took() {
        let took = [1.0, 2.5, 2.1, 6.0, 3.5, 1.2, 0.9, 1.2];
        let found = costs(&Sizes { has_own: true, is_packed: true, ..PLAIN });
        let all: [f64; 2] = [found.iter().sum(), took.iter().sum()];
        let (mut guessed, mut passed) = (0.0, 0.0);
        for (cost, seconds) in found.iter().zip(took) {
            guessed += cost / all[0];
            passed += seconds / all[1];
            assert!((guessed - passed).abs() < 0.06, "{found:?}: {guessed} and {passed}");
        }
    }
}
