//! Holds what the Qwen-VL families read and check alike: decoders, layouts, how pictures are cut.
//!
//! Each family's own file says what only it has.

use serde::Deserialize;
use smelt_family::TowerInput;

use super::{Config, unreadable, unscaled};
use crate::config::{ConfigProblem, Scope};
use crate::decoder::{self, Decoder, DecoderFamily, Sections};
use crate::grid::Patching;
use crate::model::Layout;
use crate::synthetic;

/// The decoder's fields of a Qwen-VL configuration and where they are: an object of their own, or
/// the top of the file.
fn text_fields(config: Config<'_>) -> Result<(decoder::Fields, Scope), ConfigProblem> {
    match config.tree.get("text_config") {
        Some(text) => Ok((decoder::Fields::deserialize(text).map_err(unreadable)?, NESTED)),
        None => Ok((config.fields()?, Scope(""))),
    }
}

const NESTED: Scope = Scope("text_config");

/// The one stored name of a Qwen-VL tensor where the tower's begin with `visual` and the decoder's
/// with `text`; the head stands alone.
pub(super) fn names(name: &str, visual: &str, text: &str) -> Vec<String> {
    let place = |start: &str, here: &str| Some(format!("{here}{}", name.strip_prefix(start)?));
    let stored = place("language_model.model.", text)
        .or_else(|| place("language_model.", ""))
        .or_else(|| place("model.visual.", visual))
        .or_else(|| place("visual.", visual));
    vec![stored.unwrap_or_else(|| name.to_owned())]
}

/// What is published of a Qwen2-VL or Qwen2.5-VL; what transformers 5 holds in memory, and some tools write; the
/// canonical names of the decoder.
pub(super) const LAYOUTS: &[Layout] = &[
    Layout { sources: |name| names(name, "visual.", "model."), ..Layout::CANONICAL },
    Layout {
        sources: |name| names(name, "model.visual.", "model.language_model."),
        ..Layout::CANONICAL
    },
    Layout::CANONICAL,
];

/// The decoder of a Qwen-VL configuration, of the family called `family`: its tokens have three positions, whose
/// frequencies take turns (`is_interleaved`) or lie one after another.
pub(super) fn decoder(
    config: Config<'_>,
    family: &str,
    is_interleaved: bool,
) -> Result<Decoder, ConfigProblem> {
    let (text, scope) = text_fields(config)?;
    let family = DecoderFamily::named(family).expect("Qwen-VL's decoders are families of decoders");
    let llm = text.decoder(family, scope)?;
    let found = match llm.rope.sections {
        None => "missing",
        Some(Sections { is_interleaved: true, .. }) => "interleaved",
        Some(Sections { is_interleaved: false, .. }) => "not interleaved",
    };
    let (word, supported) = match is_interleaved {
        true => ("interleaved", "three numbers, interleaved"),
        false => ("not interleaved", "three numbers, not interleaved"),
    };
    scope.only("mrope_section", found, supported, found == word)?;
    Ok(llm)
}

/// How a Qwen-VL tower cuts pictures: the sizes of its fields `patch_size`, `spatial_merge_size` and
/// `temporal_patch_size`, and the field that names colour channels.
pub(super) fn patching(
    scope: Scope,
    [patch, merge, frames]: [usize; 3],
    (field, channels): (&str, usize),
) -> Result<Patching, ConfigProblem> {
    Ok(Patching {
        patch: scope.size("patch_size", patch)?,
        merge: scope.size("spatial_merge_size", merge)?,
        frames: scope.size("temporal_patch_size", frames)?,
        channels: scope.size(field, channels)?,
    })
}

/// Colour channels where no field names them.
pub(super) const RGB: usize = 3;

/// What a deployment of a Qwen-VL model cuts pictures for.
pub(super) fn input(Patching { patch, merge, frames, .. }: Patching) -> TowerInput {
    TowerInput::Patches { patch, merge, frames }
}

/// Refuses a Qwen-VL tower whose `heads` do not share its width in whole pairs for rows and columns,
/// or whose image tokens are not as wide as the decoder's.  Both widths stand beside their fields' names.
pub(super) fn sizes(
    scope: Scope,
    (hidden_field, hidden, heads): (&str, usize, usize),
    (out_field, out, width): (&str, usize, usize),
) -> Result<(), ConfigProblem> {
    if !hidden.is_multiple_of(heads * 4) {
        let rule = "the heads must share it, each a multiple of 4";
        return scope.bad(hidden_field, hidden, rule);
    }
    if out != width {
        return scope.bad(out_field, out, "it must be the hidden_size of the decoder");
    }
    Ok(())
}

/// Mean and deviation of synthetic weights of a Qwen-VL model whose tower has so many layers: of the tower, and of the
/// norm before a head that is tied.
pub(super) fn noise(name: &str, shape: &[usize], layers: usize) -> Option<[f64; 2]> {
    if name == "model.norm.weight" || name == "model.language_model.norm.weight" {
        // The head is the embedding: logits of deviation 3, as untied heads give.
        let scale = 3.0 / (synthetic::EMBEDDING * (shape[0] as f64).sqrt());
        return Some([scale, 0.03 * scale]);
    }
    let (_, tower) = name.split_once("visual.")?;
    let is = |endings: &[&str]| endings.iter().any(|ending| tower.ends_with(ending));
    if is(&["norm.weight", "ln_q.weight"]) {
        Some([1.0, 0.03])
    } else if is(&["pos_embed.weight"]) {
        Some([0.0, 0.2])
    } else if is(&["attn.proj.weight", "mlp.down_proj.weight", "mlp.linear_fc2.weight"]) {
        Some([0.0, unscaled(layers, shape)])
    } else {
        None
    }
}
