//! Makes what every model can be asked: a picture of whole numbers, a prompt, 16 tokens of answer.

use smelt_engine::llm::{ImageEmbeds, LlmEngine, Prompt};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::families::internvl3::InternVl3;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use crate::exit::Failed;

/// Tokens the engine answers with.
pub(super) const ANSWER_TOKENS: usize = 16;

/// A picture of a colour wash with a bright disc, from whole numbers only, in the range the
/// preprocessing gives: `[1, channels, side, side]`.
pub(super) fn picture(tower: &InternVl3) -> Vec<f32> {
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

/// A prompt and what stands for its picture.
pub(super) struct PromptTokens {
    pub(super) tokens: Vec<u32>,
    pub(super) image_token: u32,
}

/// The prompt as the family's chat format writes it, with the tokens of one tile.
pub(super) fn tokens(checkpoint: &Checkpoint) -> Result<PromptTokens, Failed> {
    let tower = checkpoint.internvl3().map_err(Failed::model)?;
    let tokenizer =
        Tokenizer::open(&checkpoint.dir().join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let context = "<IMG_CONTEXT>";
    let text = format!(
        "<|im_start|>user\n<img>{}</img>\nDescribe this image.<|im_end|>\n<|im_start|>assistant\n",
        context.repeat(tower.tokens_per_tile())
    );
    let image_token = tokenizer.token(context).ok_or_else(|| {
        Failed::model(format!(
            "{}: tokenizer.json has no token {context}",
            checkpoint.dir().display()
        ))
    })?;
    Ok(PromptTokens { tokens: tokenizer.encode(&text).map_err(Failed::model)?, image_token })
}

/// The engine's answer, greedy behind the tokens of `given`, and the logits before each token:
/// `[16, vocab]`.
pub(super) fn answer(
    llm: &mut LlmEngine,
    prompt: &PromptTokens,
    embeds: &[f32],
    given: &[u32],
) -> Result<(Vec<u32>, Vec<f32>), Failed> {
    let image = ImageEmbeds { token: prompt.image_token, embeds };
    let prompt = Prompt::plain(&prompt.tokens, Some(image));
    llm.release(0);
    let mut logits = llm.prefill(0, &prompt).map_err(Failed::invalid)?;
    let (mut answer, mut all) = (Vec::new(), Vec::new());
    loop {
        let token = given.get(answer.len()).copied().unwrap_or_else(|| argmax(&logits));
        answer.push(token);
        all.append(&mut logits);
        if answer.len() == ANSWER_TOKENS {
            return Ok((answer, all));
        }
        let mut rows = llm.decode(&[(0, token)]).map_err(Failed::invalid)?;
        logits = rows.swap_remove(0);
    }
}

/// The first of the largest; NaN never wins.
pub(super) fn argmax(logits: &[f32]) -> u32 {
    let better =
        |best: usize, (at, logit): (usize, &f32)| if *logit > logits[best] { at } else { best };
    logits.iter().enumerate().fold(0, better) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logit_wins() {
        assert_eq!(argmax(&[0.0, 2.0, 1.0, 2.0]), 1);
        assert_eq!(argmax(&[f32::NEG_INFINITY, -1.0]), 1);
    }
}
