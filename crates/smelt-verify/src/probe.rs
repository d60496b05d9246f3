//! Makes what every model can be asked: a picture of whole numbers, if it sees, a prompt, 16 tokens of
//! answer.

use std::path::Path;

use smelt_backend::{
    Decoder, FeatureSpan, Features, HostFeatures, ImageEmbeds, LogitRows, SlotInput, Takes,
    VisionEngine,
};
use smelt_deploy::DeployError;
use smelt_deploy::spec::family;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::grid::{Grid, Lattice, Patching};
use smelt_model::model::{Tile, TowerInput};
use smelt_model::position_ids::{MediaGrid, PositionId, rope_index, with_text};
use smelt_model::reference::{self, PromptEmbeds};
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

/// Tokens the engine answers with.
pub(crate) const ANSWER_TOKENS: usize = 16;

/// The most image tokens of a probe, where there is a choice: what the reference computes takes time with
/// the square of the patches.
const IMAGE_TOKENS_MAX: usize = 300;

/// Image tokens of a tile that the decoder is shown where the reference samples: every layer, head and weight
/// takes part in each token's sum, so a few show what all would, in a fraction of the time.
const IMAGE_TOKENS_SAMPLED: usize = 32;

/// How much the reference computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The smallest grid, and of a tile some of its tokens.
    Sampled,
    /// As much as is no trouble.
    Full,
}

/// What is said to models that read text alone.
const WORDS: &str = "The capital of France is Paris. Water boils at 100 degrees, and 2 + 2 = 4.\n\
    Once upon a time there was a small house at the edge of a wood, in which";

/// A prompt, about a picture where the model sees.
pub(crate) struct Probe {
    tokens: Vec<u32>,
    picture: Option<ProbeImage>,
    /// The places of the tokens, of decoders that take three of a token.
    position_ids: Option<Vec<PositionId>>,
}

/// What a probe shows.
struct ProbeImage {
    /// The tokens that the tower makes of it, and how many of these the decoder is shown.
    made: usize,
    shown: usize,
    /// What the vision engine is given.
    pixels: Vec<f32>,
    /// The token that stands for it.
    token: u32,
    /// Its size.
    grid: Grid,
}

/// Which of the engines, from few pixels to many, is looked at: of tiles the model's own, which is the last;
/// of pictures of any size the smallest, or the largest that is no trouble.
pub(crate) fn which(engines: &[VisionEngine], extent: Extent) -> usize {
    let takes_any_size =
        engines.iter().any(|engine| matches!(engine.takes(), Takes::Patches { .. }));
    if takes_any_size && extent == Extent::Sampled {
        return 0;
    }
    let last = engines.len().saturating_sub(1);
    let is_easy = |engine: &VisionEngine| match engine.takes() {
        Takes::Tile { .. } => true,
        Takes::Patches { .. } => engine.tokens_per_tile() <= IMAGE_TOKENS_MAX,
    };
    engines.iter().rposition(is_easy).unwrap_or(0).min(last)
}

/// How many of the tokens that `engine` makes of a picture the decoder is shown.
pub(crate) fn shown(engine: &VisionEngine, extent: Extent) -> usize {
    let made = engine.tokens_per_tile();
    match (extent, engine.takes()) {
        (Extent::Sampled, Takes::Tile { .. }) => made.min(IMAGE_TOKENS_SAMPLED),
        _ => made,
    }
}

impl Probe {
    /// Of the model of `checkpoint`, whose tokenizer is in `dir` and whose pictures `engine` takes.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        dir: &Path,
        engine: &VisionEngine,
        extent: Extent,
    ) -> Result<Self, DeployError> {
        let made = engine.tokens_per_tile();
        let shown = shown(engine, extent);
        let (tokens, token) = tokens(checkpoint, dir, shown)?;
        let Some(grid) = engine.grid() else {
            return Err(DeployError::engine("the vision engine does not say for which size it is"));
        };
        let vision = checkpoint.vision().map_err(DeployError::model)?;
        let Some(TowerInput::Patches { .. }) = vision.input() else {
            let Tile { channels, side, .. } = checkpoint.tile().map_err(DeployError::model)?;
            let pixels = tile(channels, side);
            let picture = Some(ProbeImage { made, shown, pixels, token, grid });
            return Ok(Self { tokens, picture, position_ids: None });
        };
        let patching = vision.patching();
        let lattice = patching.lattice(grid).map_err(DeployError::engine)?;
        let position_ids = rope_index(&tokens, token, &[MediaGrid::still(lattice)]);
        let position_ids = Some(position_ids.map_err(DeployError::engine)?.tokens);
        let pixels = patches(patching, &lattice);
        let picture = Some(ProbeImage { made, shown, pixels, token, grid });
        Ok(Self { tokens, picture, position_ids })
    }

    /// Of words alone by the tokenizer in `dir`, for an engine that holds `room` tokens with the answer.
    pub(crate) fn of_text(dir: &Path, room: usize) -> Result<Self, DeployError> {
        let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(DeployError::model)?;
        let mut tokens = tokenizer.encode_whole(WORDS).map_err(DeployError::model)?;
        tokens.truncate(room.saturating_sub(ANSWER_TOKENS).max(1));
        if tokens.is_empty() {
            // A vocabulary that has none of these words has a first one.
            tokens.push(0);
        }
        Ok(Self { tokens, picture: None, position_ids: None })
    }

    /// Whether an engine that holds `room` tokens has place for it with the answer.
    ///
    /// # Errors
    /// How many tokens it has, in the words of who asks too much.
    pub(crate) fn check_room(&self, room: usize) -> Result<(), DeployError> {
        let tokens = self.tokens.len();
        // Nothing follows the last token, so it is never read.
        match tokens + ANSWER_TOKENS - 1 > room {
            true => Err(DeployError::engine(format!(
                "the prompt is too long: it has {tokens} tokens, but the engine holds {room} with the answer; raise max-seq-len of the engine"
            ))),
            false => Ok(()),
        }
    }

    /// What the vision engine is given: nothing where the model reads text alone.
    pub(crate) fn pixels(&self) -> &[f32] {
        self.picture.as_ref().map_or(&[], |picture| &picture.pixels)
    }

    /// What the reference sees.
    pub(crate) fn seen(
        &self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(&str),
    ) -> Result<reference::ImageFeatures, DeployError> {
        let Some(ProbeImage { pixels, grid, .. }) = &self.picture else {
            return Ok(reference::ImageFeatures::default());
        };
        reference::see(checkpoint, pixels, *grid, progress).map_err(DeployError::model)
    }

    /// Of the embeddings of all tokens those that the decoder is shown, equally far apart.
    fn shown(&self, embeds: &[f32]) -> Vec<f32> {
        let Some(ProbeImage { made, shown, .. }) = self.picture else { return embeds.to_vec() };
        if shown == made {
            return embeds.to_vec();
        }
        let rows: Vec<&[f32]> = embeds.chunks(embeds.len() / made).collect();
        (0..shown).flat_map(|at| rows[at * made / shown]).copied().collect()
    }

    /// What the decoder is shown of what was `seen`, and the token that stands for it.
    fn features(&self, seen: &HostFeatures) -> Option<(u32, Features)> {
        let ProbeImage { shown, token, .. } = self.picture.as_ref()?;
        let (embeds, deepstack) = (self.shown(&seen.embeds), seen.deepstack.clone());
        Some((*token, HostFeatures { embeds, deepstack }.into_features(*shown)))
    }

    fn image_token(&self) -> Option<u32> {
        self.picture.as_ref().map(|picture| picture.token)
    }

    /// The engine's answer to the prompt about what was `seen`, greedy behind the tokens of `given`, and the
    /// logits before each token: `[16, vocab]`.
    pub(crate) fn answer(
        &self,
        llm: &mut dyn Decoder,
        seen: &HostFeatures,
        given: &[u32],
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Vec<u32>, Vec<f32>), DeployError> {
        let features = self.features(seen);
        let span = features
            .as_ref()
            .map(|(_, features)| FeatureSpan { features, tokens: 0..features.tokens });
        let spans: Vec<FeatureSpan<'_>> = span.into_iter().collect();
        let image =
            features.as_ref().map(|(token, _)| ImageEmbeds { token: *token, features: &spans });
        let position_ids = self.position_ids.as_deref();
        let prompt = SlotInput { image, position_ids, ..SlotInput::new(0, &self.tokens) };
        let mut logits = last_logits(llm, prompt)?;
        let (mut answer, mut all) = (Vec::new(), Vec::new());
        loop {
            let said = || argmax(&logits, self.image_token());
            let token = given.get(answer.len()).copied().unwrap_or_else(said);
            answer.push(token);
            all.append(&mut logits);
            progress(&format!("[{}/{ANSWER_TOKENS}] decoder's answer", answer.len()));
            if answer.len() == ANSWER_TOKENS {
                // Who asks next begins with nothing.
                llm.release(0);
                return Ok((answer, all));
            }
            logits = last_logits(llm, SlotInput::new(0, &[token]))?;
        }
    }

    /// The reference's logits before each token of `answer`: `[16, vocab]`.
    pub(crate) fn logits(
        &self,
        checkpoint: &Checkpoint,
        answer: &[u32],
        seen: &reference::ImageFeatures,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<f32>, DeployError> {
        let last = self.tokens.len() - 1;
        let tokens = [&self.tokens, answer].concat();
        let position_ids =
            self.position_ids.as_ref().map(|position_ids| with_text(position_ids, answer.len()));
        let embeds = &self.shown(&seen.embeds);
        let prompt = reference::Prompt {
            tokens: &tokens,
            image: self.image_token().map(|token| PromptEmbeds { token, embeds }),
            position_ids: position_ids.as_deref(),
            deepstack: &seen.deepstack,
        };
        // The last answered token is scored by nothing.
        let positions = last..last + ANSWER_TOKENS;
        reference::logits_after(checkpoint, &prompt, positions, progress)
            .map_err(DeployError::model)
    }
}

/// The logits behind the last token of a run.
fn last_logits(llm: &mut dyn Decoder, run: SlotInput<'_>) -> Result<Vec<f32>, DeployError> {
    let answers = llm.step(&[run.showing(LogitRows::Last)]).map_err(DeployError::engine)?;
    let missing = || DeployError::engine("the llm engine gave no answer");
    Ok(answers.into_iter().next().ok_or_else(missing)?.logits)
}

/// A colour wash with a bright disc, from whole numbers only, in the range the preprocessing gives.
fn pixel(side: [usize; 2], channel: usize, [y, x]: [usize; 2]) -> f32 {
    let [height, width] = side;
    let wash = (x * (channel + 1) + y * (3 - channel.min(2))) * 255 / (width.max(height) * 4);
    let from_centre = (2 * x).abs_diff(width).pow(2) + (2 * y).abs_diff(height).pow(2);
    let level = if from_centre < height * width / 4 { 255 - wash } else { wash };
    (level as f32 - 120.0) / 58.0
}

/// The picture as `[1, channels, side, side]`.
fn tile(channels: usize, side: usize) -> Vec<f32> {
    let lines = (0..channels).flat_map(|channel| (0..side).map(move |y| (channel, y)));
    let line = |(channel, y)| (0..side).map(move |x| pixel([side; 2], channel, [y, x]));
    lines.flat_map(line).collect()
}

/// The picture as `[patches, channels * frames * patch * patch]`, all frames alike.
fn patches(patching: Patching, lattice: &Lattice) -> Vec<f32> {
    let Patching { patch, frames, channels, .. } = patching;
    let side = [lattice.rows * patch, lattice.columns * patch];
    let mut numbers = Vec::with_capacity(lattice.patches() * patching.values());
    for [row, column] in lattice.places() {
        for channel in (0..channels).flat_map(|channel| std::iter::repeat_n(channel, frames)) {
            for y in row * patch..(row + 1) * patch {
                let line = column * patch..(column + 1) * patch;
                numbers.extend(line.map(|x| pixel(side, channel, [y, x])));
            }
        }
    }
    numbers
}

/// A prompt as the family's chat format writes it, with so many image tokens, and which token these are.
fn tokens(
    checkpoint: &Checkpoint,
    dir: &Path,
    count: usize,
) -> Result<(Vec<u32>, u32), DeployError> {
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(DeployError::model)?;
    let family = family(checkpoint)?;
    let words = ImageTokens::of(family).ok_or_else(|| {
        let (dir, family) = (dir.display(), family.name());
        DeployError::model(format!(
            "{dir} is of {family}, which reads text alone; leave out \"vision\""
        ))
    })?;
    let image_token = tokenizer.token(&words.image).ok_or_else(|| {
        let (dir, word) = (dir.display(), &words.image);
        DeployError::model(format!("{dir}: tokenizer.json has no token {word}"))
    })?;
    let label = family.images().map_or("", |images| images.label());
    let picture = format!("{label}{}", words.image.repeat(count));
    let text = format!(
        "<|im_start|>user\n{}{picture}{}\nDescribe this image.<|im_end|>\n<|im_start|>assistant\n",
        words.start, words.end
    );
    Ok((tokenizer.encode(&text).map_err(DeployError::model)?, image_token))
}

/// The first of the largest, the token `but` left out, which would stand for a picture; NaN never wins.
pub(crate) fn argmax(logits: &[f32], but: Option<u32>) -> u32 {
    let others = logits.iter().enumerate().filter(|(at, _)| but != Some(*at as u32));
    let better = |best: (usize, f32), (at, logit): (usize, &f32)| {
        if *logit > best.1 { (at, *logit) } else { best }
    };
    others.fold((0, f32::NEG_INFINITY), better).0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logit_wins() {
        assert_eq!(argmax(&[0.0, 2.0, 1.0, 2.0], None), 1);
        assert_eq!(argmax(&[0.0, 2.0, 1.0, 2.0], Some(1)), 3);
        assert_eq!(argmax(&[f32::NEG_INFINITY, -1.0], None), 1);
    }
}
