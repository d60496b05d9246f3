//! Guesses what the parts of a verification cost beside each other, so that its share grows evenly.

use smelt_model::checkpoint::Checkpoint;
use smelt_model::model::Part;
use smelt_runtime::accuracy::golden::PROMPTS_FILE;
use smelt_runtime::accuracy::question;

use super::Parties;
use super::probe::{ANSWER_TOKENS, which};
use crate::stage::phases::Phases;
use crate::stage::request::Request;

/// Multiplications of the f32 reference, and of the engines, that take as long as comparing a number.
const REFERENCE_PRODUCTS: f64 = 20.0;
const ENGINE_PRODUCTS: f64 = 80.0;
/// Patches that become one token, in every tower that is known.
const PATCHES_PER_TOKEN: f64 = 4.0;

/// What the cost of a verification follows from.
struct Sizes {
    /// Numbers of the towers' weights and of the decoder's.
    vision: f64,
    llm: f64,
    image_tokens: f64,
    /// Passes of the reference besides the one over the checkpoint.
    has_own: bool,
    is_packed: bool,
    prompts: f64,
}

/// The parts of a verification of `parties`, in the order in which they come.
pub(super) fn phases(parties: &Parties, request: &Request) -> Phases {
    let Parties { vision, against, weights, llm, extent, .. } = parties;
    let image_tokens =
        vision.get(which(vision, *extent)).map_or(0, |engine| engine.tokens_per_tile());
    let folder = request.optional_input("prompts");
    let prompts = folder.and_then(|folder| question::read(&folder.join(PROMPTS_FILE), None).ok());
    Phases::new(costs(&Sizes {
        vision: numbers(against, Part::Vision),
        llm: numbers(against, Part::Llm),
        image_tokens: image_tokens as f64,
        has_own: weights.is_some(),
        is_packed: llm.is_packed(),
        prompts: prompts.map_or(0, |prompts| prompts.len()) as f64,
    }))
}

fn numbers(checkpoint: &Checkpoint, part: Part) -> f64 {
    let tensors = checkpoint.model().tensors(&[part]);
    tensors.iter().map(|(_, shape)| shape.iter().product::<usize>() as f64).sum()
}

/// In comparisons of a number: both comparisons of weights, then tower and decoder, engine before
/// reference, then the golden prompts.
fn costs(sizes: &Sizes) -> Vec<f64> {
    let Sizes { vision, llm, image_tokens, has_own, is_packed, prompts } = *sizes;
    let seen = vision * image_tokens * PATCHES_PER_TOKEN;
    let read = llm * (image_tokens + ANSWER_TOKENS as f64);
    let reference = llm + read / REFERENCE_PRODUCTS;
    let [own, packed] = [has_own, is_packed].map(|is_there| f64::from(u8::from(is_there)));
    vec![
        vision,
        llm,
        seen / ENGINE_PRODUCTS,
        vision + seen / REFERENCE_PRODUCTS,
        read / ENGINE_PRODUCTS,
        own * reference,
        packed * read / ENGINE_PRODUCTS,
        reference,
        prompts * (seen + read) / ENGINE_PRODUCTS,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_costs_most_and_what_is_left_out_nothing() {
        let plain = Sizes {
            vision: 3e8,
            llm: 6e8,
            image_tokens: 256.0,
            has_own: false,
            is_packed: false,
            prompts: 0.0,
        };
        let found = costs(&plain);
        assert_eq!([found[5], found[6], found[8]], [0.0; 3]);
        assert!(found[3] + found[7] > found.iter().sum::<f64>() / 2.0, "{found:?}");
        let full = costs(&Sizes { has_own: true, is_packed: true, prompts: 2.0, ..plain });
        assert!(full.iter().all(|cost| *cost > 0.0), "{full:?}");
    }
}
