//! Runs the language model over a whole prompt in one causal pass.
//!
//! Embedding rows, decoder layers, final norm, head; only the asked positions reach the head.
//! Knows nothing of pixels or of how prompts are made.

use std::ops::Range;

use super::attention::{Heads, Projection, attend};
use super::pointwise::{add, rms_norm, rotate_half, swiglu};
use super::stream::Stream;
use super::{Effort, Prompt, ReferenceError, threads};
use crate::checkpoint::Checkpoint;
use crate::decoder::{Decoder, EMBEDDING, LM_HEAD};
use crate::position_ids::PositionId;

/// See [`super::logits`].
pub(super) fn logits(
    ckpt: &Checkpoint,
    prompt: &Prompt<'_>,
    positions: Range<usize>,
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    logits_of(&mut Stream::new(ckpt, effort), prompt, positions, progress)
}

/// The same through a stream that may look at activations.
pub(super) fn logits_of(
    stream: &mut Stream<'_>,
    prompt: &Prompt<'_>,
    positions: Range<usize>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<f32>, ReferenceError> {
    let ckpt = stream.ckpt;
    let llm = ckpt.decoder()?;
    check(prompt, &positions, llm)?;
    let mut x = embed(ckpt, prompt, llm)?;
    layers(stream, llm, std::slice::from_ref(prompt), &mut x, (progress, &mut |_, _| {}))?;
    let mut asked = x[positions.start * llm.hidden..positions.end * llm.hidden].to_vec();
    drop(x);
    rms_norm(&mut asked, &stream.vector("language_model.model.norm.weight")?, llm.eps);
    progress("reference head");
    stream.product(if ckpt.has_lm_head() { LM_HEAD } else { EMBEDDING }, &asked)
}

/// See [`super::observe`].
pub(super) fn observe(
    ckpt: &Checkpoint,
    prompts: &[Prompt<'_>],
    effort: Effort,
    progress: &mut dyn FnMut(&str),
    see: See<'_>,
) -> Result<(), ReferenceError> {
    let llm = ckpt.decoder()?;
    let mut x = Vec::new();
    for prompt in prompts {
        check(prompt, &(0..prompt.tokens.len()), llm)?;
        x.extend(embed(ckpt, prompt, llm)?);
    }
    let mut stream = Stream::new(ckpt, effort);
    layers(&mut stream, llm, prompts, &mut x, (progress, see))?;
    rms_norm(&mut x, &stream.vector("language_model.model.norm.weight")?, llm.eps);
    see("language_model.lm_head", &x);
    Ok(())
}

/// Hears the name of the first linear of those that share an input, and some rows of that input,
/// `[rows, _]`: those of one input come in order, but may alternate with those of others.
pub(super) type See<'a> = &'a mut dyn FnMut(&str, &[f32]);

/// Rows that are between two linears at once: at 2B they take 36 MiB twice.  A prompt is never cut.
const ROWS_TOGETHER: usize = 1024;

/// Runs the rows `x` of `prompts`, which see nothing of each other, through all layers in place.
fn layers(
    stream: &mut Stream<'_>,
    llm: &Decoder,
    prompts: &[Prompt<'_>],
    x: &mut [f32],
    (progress, see): (&mut dyn FnMut(&str), See<'_>),
) -> Result<(), ReferenceError> {
    for layer in 0..llm.layers {
        progress(&format!("[{layer}/{}] reference layer {}", llm.layers, layer + 1));
        let name = format!("language_model.model.layers.{layer}");
        let mut rest = &mut *x;
        for part in parts(prompts) {
            let rows = part.iter().map(|prompt| prompt.tokens.len()).sum::<usize>();
            let (rows, after) = rest.split_at_mut(rows * llm.hidden);
            attention(stream, llm, &name, part, rows, see)?;
            stream.note(&name, rows);
            mlp(stream, llm, &name, rows, see)?;
            stream.note(&name, rows);
            rest = after;
        }
        add_features(prompts, layer, llm.hidden, x);
    }
    progress(&format!("[{0}/{0}] reference layers done", llm.layers));
    Ok(())
}

/// Runs of prompts of at most [`ROWS_TOGETHER`] tokens, and at least one prompt.
fn parts<'a, 'b>(mut prompts: &'a [Prompt<'b>]) -> impl Iterator<Item = &'a [Prompt<'b>]> {
    std::iter::from_fn(move || {
        let mut rows = 0;
        let fits = |prompt: &&Prompt<'_>| {
            rows += prompt.tokens.len();
            rows <= ROWS_TOGETHER
        };
        let count = prompts.iter().take_while(fits).count().max(1).min(prompts.len());
        let (part, rest) = prompts.split_at(count);
        prompts = rest;
        (!part.is_empty()).then_some(part)
    })
}

fn check(
    prompt: &Prompt<'_>,
    positions: &Range<usize>,
    llm: &Decoder,
) -> Result<(), ReferenceError> {
    let tokens = prompt.tokens;
    if positions.is_empty() || positions.end > tokens.len() {
        let positions = positions.clone();
        return Err(ReferenceError::Positions { positions, tokens: tokens.len() });
    }
    if tokens.len() > llm.max_positions {
        return Err(ReferenceError::TooLong { tokens: tokens.len(), max: llm.max_positions });
    }
    if let Some(position_ids) =
        prompt.position_ids.filter(|position_ids| position_ids.len() != tokens.len())
    {
        return Err(ReferenceError::Places { tokens: tokens.len(), found: position_ids.len() });
    }
    let Some(image) = prompt.image else { return Ok(()) };
    if llm.rope.sections.is_some() && prompt.position_ids.is_none() {
        return Err(ReferenceError::Places { tokens: tokens.len(), found: 0 });
    }
    let wanted = vec![image.embeds.len(); llm.deepstack];
    if prompt.deepstack.iter().map(Vec::len).ne(wanted) {
        let (layers, values) = (llm.deepstack, image.embeds.len());
        return Err(ReferenceError::Deepstack { layers, values });
    }
    let count = tokens.iter().filter(|token| **token == image.token).count();
    if count * llm.hidden != image.embeds.len() {
        let (width, found) = (llm.hidden, image.embeds.len());
        return Err(ReferenceError::ImageTokens { tokens: count, width, found });
    }
    Ok(())
}

/// One row per token: its embedding, or the next image embedding.
fn embed(
    ckpt: &Checkpoint,
    prompt: &Prompt<'_>,
    llm: &Decoder,
) -> Result<Vec<f32>, ReferenceError> {
    let mut images = prompt.image.map(|image| image.embeds.chunks(llm.hidden));
    let image_token = prompt.image.map(|image| image.token);
    let mut x = Vec::with_capacity(prompt.tokens.len() * llm.hidden);
    let mut row = Vec::new();
    for (position, &token) in prompt.tokens.iter().enumerate() {
        if let Some(images) = images.as_mut().filter(|_| image_token == Some(token)) {
            x.extend(images.next().expect("there are as many embeddings as image tokens"));
            continue;
        }
        let index = token as usize;
        if index >= llm.vocab {
            return Err(ReferenceError::Token { token, position, vocab: llm.vocab });
        }
        ckpt.read_rows_f32(EMBEDDING, index..index + 1, &mut row)?;
        x.extend_from_slice(&row);
    }
    Ok(x)
}

/// Adds what a tower's block says of images (deepstack) to the rows of the tokens that stand for
/// them, behind those layers that have such.
fn add_features(prompts: &[Prompt<'_>], layer: usize, hidden: usize, x: &mut [f32]) {
    let mut rows = x.chunks_mut(hidden);
    for prompt in prompts {
        let image_token = prompt.image.map(|image| image.token);
        let own = rows.by_ref().take(prompt.tokens.len()).zip(prompt.tokens);
        let own = own.filter(|(_, token)| image_token == Some(**token)).map(|(row, _)| row);
        let features = prompt.deepstack.get(layer).map_or(&[][..], Vec::as_slice);
        // All rows are taken, so that the next prompt begins with its own.
        for (n, row) in own.enumerate() {
            if let Some(features) = features.get(n * hidden..(n + 1) * hidden) {
                add(row, features);
            }
        }
    }
}

/// `x += o(attend(rotate(q), rotate(k), v))` of the normed rows, q and k normed head by head before
/// where the family does.
fn attention(
    stream: &mut Stream<'_>,
    llm: &Decoder,
    name: &str,
    prompts: &[Prompt<'_>],
    x: &mut [f32],
    see: See<'_>,
) -> Result<(), ReferenceError> {
    let normed = normed(stream, llm, &format!("{name}.input_layernorm.weight"), x)?;
    see(&format!("{name}.self_attn.q_proj"), &normed);
    let bias = llm.qkv_bias();
    let mut q = projected(stream, bias, &format!("{name}.self_attn.q_proj"), &normed)?;
    let mut k = projected(stream, bias, &format!("{name}.self_attn.k_proj"), &normed)?;
    let v = projected(stream, bias, &format!("{name}.self_attn.v_proj"), &normed)?;
    if llm.family.qk_norm {
        rms_norm(&mut q, &stream.vector(&format!("{name}.self_attn.q_norm.weight"))?, llm.eps);
        rms_norm(&mut k, &stream.vector(&format!("{name}.self_attn.k_norm.weight"))?, llm.eps);
    }
    let mut attended = Vec::with_capacity(q.len());
    let mut first = 0;
    for prompt in prompts {
        let rows = first..first + prompt.tokens.len();
        let q = &mut q[rows.start * llm.q_width()..rows.end * llm.q_width()];
        let k = &mut k[rows.start * llm.kv_width()..rows.end * llm.kv_width()];
        let v = &v[rows.start * llm.kv_width()..rows.end * llm.kv_width()];
        attended.extend(attend_prompt(llm, prompt.position_ids, [q, k], v, stream.effort));
        first = rows.end;
    }
    see(&format!("{name}.self_attn.o_proj"), &attended);
    let output = format!("{name}.self_attn.o_proj");
    add(x, &projected(stream, llm.attention_bias, &output, &attended)?);
    Ok(())
}

/// Rotates q and k of one prompt and attends: `[tokens, heads * head_dim]`.
fn attend_prompt(
    llm: &Decoder,
    position_ids: Option<&[PositionId]>,
    [q, k]: [&mut [f32]; 2],
    v: &[f32],
    effort: Effort,
) -> Vec<f32> {
    rotate(llm, position_ids, q, llm.q_width());
    rotate(llm, position_ids, k, llm.kv_width());
    let heads =
        Heads { query: llm.heads, key_value: llm.kv_heads, width: llm.head_dim, causal: true };
    let project = |values, stride| Projection { values, stride };
    let all =
        [project(&*q, llm.q_width()), project(&*k, llm.kv_width()), project(v, llm.kv_width())];
    attend(all, q.len() / llm.q_width(), heads, effort.threads)
}

/// Turns rows of `width` by their places, or by their positions where no places are given.
fn rotate(llm: &Decoder, position_ids: Option<&[PositionId]>, x: &mut [f32], width: usize) {
    let frequencies = llm.rope.frequencies(llm.head_dim);
    let axes = llm.rope.sections.map(|sections| sections.axes());
    let place = |position: usize, pair: usize| match (position_ids, &axes) {
        (Some(position_ids), Some(axes)) => position_ids[position][axes[pair]] as f32,
        _ => position as f32,
    };
    let angle = |position, pair: usize| place(position, pair) * frequencies[pair];
    rotate_half(x, width, frequencies.len(), llm.rope.attention_factor(), angle);
}

fn projected(
    stream: &mut Stream<'_>,
    has_bias: bool,
    name: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    if has_bias {
        return stream.linear(name, x);
    }
    stream.product(&format!("{name}.weight"), x)
}

/// `x += down(silu(gate) * up)` of the normed rows.
fn mlp(
    stream: &mut Stream<'_>,
    llm: &Decoder,
    name: &str,
    x: &mut [f32],
    see: See<'_>,
) -> Result<(), ReferenceError> {
    let normed = normed(stream, llm, &format!("{name}.post_attention_layernorm.weight"), x)?;
    see(&format!("{name}.mlp.gate_proj"), &normed);
    let mut gate = stream.product(&format!("{name}.mlp.gate_proj.weight"), &normed)?;
    let up = stream.product(&format!("{name}.mlp.up_proj.weight"), &normed)?;
    threads::for_rows(stream.effort.threads, &mut gate, 1, 1, |first, gate| {
        swiglu(gate, &up[first..]);
    });
    drop(up);
    see(&format!("{name}.mlp.down_proj"), &gate);
    add(x, &stream.product(&format!("{name}.mlp.down_proj.weight"), &gate)?);
    Ok(())
}

fn normed(
    stream: &Stream<'_>,
    llm: &Decoder,
    weight: &str,
    x: &[f32],
) -> Result<Vec<f32>, ReferenceError> {
    let mut normed = x.to_vec();
    rms_norm(&mut normed, &stream.vector(weight)?, llm.eps);
    Ok(normed)
}
