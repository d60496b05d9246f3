//! Names the tensors of a decoder as llama.cpp does.
//!
//! A canonical name comes in, the name in a GGUF file goes out.
//! Source: `gguf-py/gguf/constants.py` of llama.cpp, `TENSOR_NAMES`.  Knows nothing of files.

use crate::decoder::{EMBEDDING, LM_HEAD};
use crate::model::Layout;

/// GGUF's names.
pub(crate) const LAYOUT: Layout = Layout { sources, ignores };

/// Parts of a layer, canonical and in GGUF.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

fn sources(name: &str) -> Vec<String> {
    vec![source(name).unwrap_or_else(|| name.to_owned())]
}

fn source(name: &str) -> Option<String> {
    match name {
        EMBEDDING => return Some("token_embd.weight".to_owned()),
        LM_HEAD => return Some("output.weight".to_owned()),
        "language_model.model.norm.weight" => return Some("output_norm.weight".to_owned()),
        _ => {}
    }
    let rest = name.strip_prefix("language_model.model.layers.")?;
    let (layer, rest) = rest.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, here) = PARTS.iter().find(|(canonical, _)| *canonical == part)?;
    Some(format!("blk.{layer}.{here}.{kind}"))
}

/// Frequencies that the configuration gives as well; `config` holds the two against each other.
fn ignores(name: &str) -> bool {
    name == super::config::ROPE_FACTORS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_of_a_layer_has_a_name() {
        let layer = "language_model.model.layers.12";
        for (canonical, here) in [
            (EMBEDDING.to_owned(), "token_embd.weight"),
            (LM_HEAD.to_owned(), "output.weight"),
            ("language_model.model.norm.weight".to_owned(), "output_norm.weight"),
            (format!("{layer}.self_attn.q_proj.bias"), "blk.12.attn_q.bias"),
            (format!("{layer}.self_attn.k_norm.weight"), "blk.12.attn_k_norm.weight"),
            (format!("{layer}.mlp.down_proj.weight"), "blk.12.ffn_down.weight"),
            ("vision_model.x".to_owned(), "vision_model.x"),
        ] {
            assert_eq!(sources(&canonical), [here]);
        }
    }
}
