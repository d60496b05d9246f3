//! Finds the tensors of a decoder in an engine file.
//!
//! Names and shapes are checked when the engine is opened; norms and biases, which are small, are
//! widened then.  Knows nothing of sequences.

use smelt_tensor::dtype::Dtype;

use super::LlmFile;
use super::linear::Linear;
use crate::engine_file::{EngineFile, Layout, OpenError, Weights};
use crate::kernels::isa::Isa;
use crate::kernels::striped::Arithmetic;
use crate::kernels::threads::Threads;

/// Types of norms, biases and embeddings.
pub(super) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// The embedding, one row a token.
pub(super) const EMBEDDING: &str = "language_model.model.embed_tokens.weight";
/// The head; without it the embedding is the head.
pub(super) const HEAD: &str = "language_model.lm_head.weight";

/// What products run on.
#[derive(Clone, Copy)]
pub(super) struct Machine<'a> {
    pub(super) isa: Isa,
    pub(super) threads: &'a Threads,
    pub(super) weights: &'a Weights,
    pub(super) arithmetic: Arithmetic,
}

/// The RMSNorms over single heads, `[head_dim]` each.
#[derive(Debug)]
pub(super) struct HeadNorms {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
}

/// One decoder layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) input_norm: Vec<f32>,
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    /// The norms of each head of q and of k, where the family has them.
    pub(super) head_norms: Option<HeadNorms>,
    pub(super) o: Linear,
    pub(super) mlp_norm: Vec<f32>,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// All tensors of a decoder.
#[derive(Debug)]
pub(super) struct Decoder {
    embedding: Linear,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    pub(super) head: Linear,
}

impl Decoder {
    /// Finds every tensor that the sizes of `file` call for.
    pub(super) fn find(file: &EngineFile<LlmFile>) -> Result<Self, OpenError> {
        let sizes = &file.engine;
        let (hidden, vocab) = (sizes.hidden, sizes.vocab);
        let head = if file.stored(HEAD).is_some() { HEAD } else { EMBEDDING };
        Ok(Self {
            embedding: Linear::find(file, EMBEDDING, [vocab, hidden])?,
            layers: (0..sizes.layers).map(|index| layer(file, index)).collect::<Result<_, _>>()?,
            norm: vector(file, "language_model.model.norm.weight", hidden)?,
            head: Linear::find(file, head, [vocab, hidden])?,
        })
    }

    /// Writes the embedding of `token` to `out`.
    pub(super) fn embed(&self, token: usize, weights: &Weights, out: &mut [f32]) {
        self.embedding.widen_row(token, weights, out);
    }
}

fn layer(file: &EngineFile<LlmFile>, index: usize) -> Result<Layer, OpenError> {
    let sizes = &file.engine;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let (q_width, kv_width) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
    let name = |rest: &str| format!("language_model.model.layers.{index}.{rest}");
    let family = sizes.family();
    let attention = |rest: &str| name(&format!("self_attn.{rest}"));
    let biased = |part: &str, shape: [usize; 2], has_bias: bool| -> Result<Linear, OpenError> {
        let plain = Linear::find(file, &attention(&format!("{part}.weight")), shape)?;
        let bias = || vector(file, &attention(&format!("{part}.bias")), shape[0]);
        Ok(plain.with_bias(has_bias.then(bias).transpose()?))
    };
    let of_input = family.qkv_bias(sizes.attention_bias);
    let projection = |part: &str, rows: usize| biased(part, [rows, hidden], of_input);
    let head_norms = || -> Result<HeadNorms, OpenError> {
        let norm = |part: &str| vector(file, &attention(part), sizes.head_dim);
        Ok(HeadNorms { q: norm("q_norm.weight")?, k: norm("k_norm.weight")? })
    };
    Ok(Layer {
        input_norm: vector(file, &name("input_layernorm.weight"), hidden)?,
        q: projection("q_proj", q_width)?,
        k: projection("k_proj", kv_width)?,
        v: projection("v_proj", kv_width)?,
        head_norms: family.qk_norm.then(head_norms).transpose()?,
        o: biased("o_proj", [hidden, q_width], sizes.attention_bias)?,
        mlp_norm: vector(file, &name("post_attention_layernorm.weight"), hidden)?,
        gate: Linear::find(file, &name("mlp.gate_proj.weight"), [intermediate, hidden])?,
        up: Linear::find(file, &name("mlp.up_proj.weight"), [intermediate, hidden])?,
        down: Linear::find(file, &name("mlp.down_proj.weight"), [hidden, intermediate])?,
    })
}

/// The floats of tensor `name` `[len]`, widened.
pub(super) fn vector(
    file: &EngineFile<LlmFile>,
    name: &str,
    len: usize,
) -> Result<Vec<f32>, OpenError> {
    let stored = file.expect(name, &[len], &FLOATS, Layout::Rows)?;
    let elements = file.weights.elements(&stored).expect("floats were asked for");
    let mut numbers = vec![0.0; len];
    elements.widen(0, &mut numbers);
    Ok(numbers)
}
