//! Writes a decoder as an ONNX graph: tokens upon a cache in; logits and the grown cache out.
//!
//! A decoder's facts come in, a graph over its canonical tensor names comes out.  Sequences, tokens
//! and cached tokens are open; their numbers are taken from the shapes of the inputs, once, and
//! every other size is a constant.  Activations are 2-D rows for the linear layers and 4-D in
//! attention only.  Knows nothing of checkpoints, and of families only their facts.

use smelt_onnx::{Dim, ElementType, Graph, GraphBuilder, Initializer, Value};

use super::LlmInput;
use crate::decoder::{Decoder, EMBEDDING, LM_HEAD};
use crate::model::{Model, ModelPart};

/// The tensors of the graph with their shapes, in the order they are stored.
///
/// The embedding is there where ids look rows up in it or it serves as the head.
pub(super) fn weights(model: &Model, input: LlmInput, is_tied: bool) -> Vec<(String, Vec<usize>)> {
    let parts: &[ModelPart] =
        if is_tied { &[ModelPart::Llm] } else { &[ModelPart::Llm, ModelPart::Head] };
    let mut weights = model.tensors(parts);
    if input == LlmInput::Embeds && !is_tied {
        weights.retain(|(name, _)| name != EMBEDDING);
    }
    weights
}

/// The graph of `llm` over `weights`; its inputs and outputs are those of [`super::llm`].
pub(super) fn graph(
    llm: &Decoder,
    input: LlmInput,
    is_tied: bool,
    element_type: ElementType,
    weights: Vec<Initializer>,
) -> Graph {
    let mut g = GraphBuilder::new("llm", element_type, weights);
    let axes = Axes::default();
    let mut x = embedded(&mut g, llm, input, &axes);
    let step = LayerContext::new(&mut g, llm, &axes);
    let deepstack: Vec<Value> = (0..llm.deepstack)
        .map(|n| g.input(&format!("deepstack_embeds.{n}"), axes.of_tokens(llm.hidden)))
        .collect();
    let past: Vec<[Value; 2]> = (0..llm.layers).map(|n| cache(&mut g, llm, &axes, n)).collect();
    let mut present = Vec::with_capacity(llm.layers);
    let mut net = Net { g, llm, step };
    for (layer, past) in past.iter().enumerate() {
        let (out, grown) = net.layer(layer, &x, past);
        x = out;
        if let Some(features) = deepstack.get(layer) {
            let features = net.g.reshape(features, &[-1, llm.hidden as i64]);
            x = net.g.add(&x, &features);
        }
        present.push(grown);
    }
    let logits = net.head(&x, if is_tied { EMBEDDING } else { LM_HEAD });
    let Net { mut g, .. } = net;
    g.output(logits, "logits", axes.of_tokens(llm.vocab));
    for (layer, [key, value]) in present.into_iter().enumerate() {
        g.output(key, &format!("present.{layer}.key"), axes.of_cache(llm, &axes.total));
        g.output(value, &format!("present.{layer}.value"), axes.of_cache(llm, &axes.total));
    }
    g.finish()
}

/// The open dimensions.
struct Axes {
    batch: Dim,
    tokens: Dim,
    past: Dim,
    total: Dim,
}

impl Default for Axes {
    fn default() -> Self {
        let [batch, tokens, past, total] =
            ["batch", "tokens", "past", "total"].map(|name| Dim::Symbol(name.to_owned()));
        Self { batch, tokens, past, total }
    }
}

impl Axes {
    fn of_tokens(&self, width: usize) -> Vec<Dim> {
        vec![self.batch.clone(), self.tokens.clone(), Dim::Fixed(width)]
    }

    fn of_cache(&self, llm: &Decoder, places: &Dim) -> Vec<Dim> {
        let (heads, width) = (Dim::Fixed(llm.kv_heads), Dim::Fixed(llm.head_dim));
        vec![self.batch.clone(), heads, places.clone(), width]
    }
}

/// The tokens as rows `[batch · tokens, hidden]`.
fn embedded(g: &mut GraphBuilder, llm: &Decoder, input: LlmInput, axes: &Axes) -> Value {
    g.scope("embeddings");
    let rows = match input {
        LlmInput::Embeds => g.input("inputs_embeds", axes.of_tokens(llm.hidden)),
        LlmInput::Ids => {
            let ids = g.integer_input("input_ids", vec![axes.batch.clone(), axes.tokens.clone()]);
            g.gather(EMBEDDING, &ids)
        }
    };
    g.reshape(&rows, &[-1, llm.hidden as i64])
}

/// The keys and values of earlier tokens in one layer.
fn cache(g: &mut GraphBuilder, llm: &Decoder, axes: &Axes, layer: usize) -> [Value; 2] {
    ["key", "value"].map(|part| {
        let name = format!("past_key_values.{layer}.{part}");
        g.input(&name, axes.of_cache(llm, &axes.past))
    })
}

/// What all layers share.
struct LayerContext {
    /// The numbers of sequences and of tokens: a list of two.
    sizes: Value,
    /// Shapes `[batch, tokens, heads, head_dim]` of queries, and of keys and values.
    of_queries: Value,
    of_keys: Value,
    /// `[batch, 1, tokens, head_dim]`, in the type of the graph.
    cos: Value,
    sin: Value,
    /// What is added to scores: 0 where a token sees a place, hiding where not.
    /// `[batch, 1, tokens, total]`.
    mask: Value,
}

impl LayerContext {
    fn new(g: &mut GraphBuilder, llm: &Decoder, axes: &Axes) -> Self {
        g.scope("step");
        let (batch, tokens) = (axes.batch.clone(), axes.tokens.clone());
        let is_three = llm.rope.sections.is_some();
        let places = if is_three { vec![Dim::Fixed(3)] } else { vec![] };
        let positions = g.integer_input("position_ids", [places, vec![batch, tokens]].concat());
        let mask_dims = vec![axes.batch.clone(), axes.total.clone()];
        let attended = g.integer_input("attention_mask", mask_dims);
        let first = i64::from(is_three);
        let sizes = g.sizes(&positions, &[first, first + 1]);
        let shape = |g: &mut GraphBuilder, heads: usize| {
            let head = g.list(&[heads as i64, llm.head_dim as i64]);
            g.concat(&[&sizes, &head], 0)
        };
        let (of_queries, of_keys) = (shape(g, llm.heads), shape(g, llm.kv_heads));
        let [cos, sin] = turns(g, llm, &positions);
        let tokens = g.size(&positions, first + 1);
        let mask = mask(g, &attended, &tokens);
        Self { sizes, of_queries, of_keys, cos, sin, mask }
    }
}

/// Cosine and sine of each token's angles, computed in f32: `[batch, 1, tokens, head_dim]`.
///
/// Angles are products and a sum, not a matrix product, which back ends may compute in TF32: a
/// position would keep three digits.
fn turns(g: &mut GraphBuilder, llm: &Decoder, positions: &str) -> [Value; 2] {
    let frequencies = llm.rope.frequencies(llm.head_dim);
    let half = frequencies.len();
    let positions = g.cast(positions, ElementType::F32);
    let positions = g.unsqueeze(&positions, &[-1]);
    let angles = match llm.rope.sections {
        None => {
            let frequencies = g.floats("frequencies", &[1, 1, half], &frequencies);
            g.mul(&positions, &frequencies)
        }
        Some(sections) => {
            let axes = sections.axes();
            let of_axis = |axis| {
                let own = axes.iter().zip(&frequencies);
                own.map(move |(turner, f)| if *turner == axis { *f } else { 0.0 })
            };
            let table: Vec<f32> = (0..3).flat_map(of_axis).collect();
            let table = g.floats("frequencies", &[3, 1, 1, half], &table);
            let angles = g.mul(&positions, &table);
            g.sum(&angles, 0)
        }
    };
    let angles = g.unsqueeze(&angles, &[1]);
    let (cos, sin) = (g.cos(&angles), g.sin(&angles));
    let factor = llm.rope.attention_factor();
    [cos, sin].map(|turn| {
        let turn = match factor {
            1.0 => turn,
            _ => {
                let factor = g.floats("attention_factor", &[], &[factor]);
                g.mul(&turn, &factor)
            }
        };
        let turn = g.concat(&[&turn, &turn], -1);
        g.narrowed(&turn)
    })
}

/// A token sees the attended places up to its own.
fn mask(g: &mut GraphBuilder, attended: &str, tokens: &str) -> Value {
    let (zero, total) = (g.integer(0), g.size(attended, 1));
    let past = g.sub(&total, tokens);
    let places = g.range(&zero, &total);
    let own = g.range(&past, &total);
    let own = g.unsqueeze(&own, &[1]);
    let is_before = g.at_least(&own, &places);
    let attended = g.cast(attended, ElementType::Bool);
    let attended = g.unsqueeze(&attended, &[1, 2]);
    let seen = g.both(&is_before, &attended);
    let (shown, hidden) = (g.scalar(0.0), g.scalar(super::HIDDEN_SCORE));
    g.choose(&seen, &shown, &hidden)
}

/// A decoder being written.
struct Net<'a> {
    g: GraphBuilder,
    llm: &'a Decoder,
    step: LayerContext,
}

impl Net<'_> {
    /// One layer: attention and MLP, each normed before and added to `x`; also its grown cache.
    fn layer(&mut self, layer: usize, x: &str, past: &[Value; 2]) -> (Value, [Value; 2]) {
        let name = format!("language_model.model.layers.{layer}");

        self.g.scope(&format!("layers.{layer}/attn"));
        let normed = self.norm(x, &format!("{name}.input_layernorm"));
        let (branch, grown) = self.attention(&normed, &format!("{name}.self_attn"), past);
        let x = self.g.add(x, &branch);

        self.g.scope(&format!("layers.{layer}/mlp"));
        let normed = self.norm(&x, &format!("{name}.post_attention_layernorm"));
        let gate = self.g.product(&normed, &format!("{name}.mlp.gate_proj.weight"));
        let up = self.g.product(&normed, &format!("{name}.mlp.up_proj.weight"));
        let gate = self.g.silu(&gate);
        let wide = self.g.mul(&gate, &up);
        let branch = self.g.product(&wide, &format!("{name}.mlp.down_proj.weight"));
        (self.g.add(&x, &branch), grown)
    }

    /// softmax(q · head_dim^-½ · kᵀ + mask) · v over the cache and the tokens behind it.
    fn attention(&mut self, x: &str, name: &str, past: &[Value; 2]) -> (Value, [Value; 2]) {
        let q = self.heads(x, &format!("{name}.q"), true);
        let k = self.heads(x, &format!("{name}.k"), false);
        let v = self.heads(x, &format!("{name}.v"), false);
        let (q, k) = (self.rotated(&q), self.rotated(&k));
        let keys = self.g.concat(&[&past[0], &k], 2);
        let values = self.g.concat(&[&past[1], &v], 2);

        let (k, v) = (self.shared(&keys), self.shared(&values));
        let g = &mut self.g;
        let k = g.transpose(&k, &[0, 1, 3, 2]);
        let scale = g.scalar((self.llm.head_dim as f64).sqrt().recip() as f32);
        let q = g.mul(&q, &scale);
        let scores = g.matmul(&q, &k);
        let scores = g.add(&scores, &self.step.mask);
        let shares = g.softmax(&scores);
        let mixed = g.matmul(&shares, &v);
        let mixed = g.transpose(&mixed, &[0, 2, 1, 3]);
        let rows = g.reshape(&mixed, &[-1, self.llm.q_width() as i64]);
        let out = self.projection(&rows, &format!("{name}.o"), self.llm.attention_bias);
        (out, [keys, values])
    }

    /// The projection `name` (`….q`, `….k`, `….v`) of rows as heads, normed where the family norms
    /// them: `[batch, heads, tokens, head_dim]`.
    fn heads(&mut self, x: &str, name: &str, is_query: bool) -> Value {
        let rows = self.projection(x, name, self.llm.qkv_bias());
        let shape = if is_query { &self.step.of_queries } else { &self.step.of_keys };
        let mut heads = self.g.reshape_to(&rows, shape);
        if self.llm.family.qk_norm && !name.ends_with(".v") {
            heads = self.norm(&heads, &format!("{name}_norm"));
        }
        self.g.transpose(&heads, &[0, 2, 1, 3])
    }

    /// The rows `x` through the projection `name` (`….q`, `….o`).
    fn projection(&mut self, x: &str, name: &str, has_bias: bool) -> Value {
        let weight = format!("{name}_proj.weight");
        if has_bias {
            self.g.gemm(x, &weight, &format!("{name}_proj.bias"))
        } else {
            self.g.product(x, &weight)
        }
    }

    /// `x` turned by its positions: the pair (i, i + half) by the angle of frequency i.
    fn rotated(&mut self, x: &str) -> Value {
        let LayerContext { cos, sin, .. } = &self.step;
        let g = &mut self.g;
        let [low, high] = g.split(x, 3, self.llm.head_dim / 2);
        let high = g.neg(&high);
        let crossed = g.concat(&[&high, &low], 3);
        let (straight, crossed) = (g.mul(x, cos), g.mul(&crossed, sin));
        g.add(&straight, &crossed)
    }

    /// Key or value heads, each repeated for the query heads in a row that share it.
    fn shared(&mut self, x: &Value) -> Value {
        let (heads, width) = (self.llm.heads as i64, self.llm.head_dim as i64);
        let group = heads / self.llm.kv_heads as i64;
        if group == 1 {
            return x.clone();
        }
        let x = self.g.unsqueeze(x, &[2]);
        let x = self.g.expand(&x, &[1, 1, group, 1, 1]);
        self.g.reshape(&x, &[0, heads, -1, width])
    }

    /// Logits `[batch, tokens, vocab]` of the rows.
    fn head(&mut self, x: &str, weight: &str) -> Value {
        self.g.scope("head");
        let normed = self.norm(x, "language_model.model.norm");
        let logits = self.g.product(&normed, weight);
        let vocab = self.g.list(&[self.llm.vocab as i64]);
        let shape = self.g.concat(&[&self.step.sizes, &vocab], 0);
        self.g.reshape_to(&logits, &shape)
    }

    fn norm(&mut self, x: &str, name: &str) -> Value {
        self.g.rms_norm(x, &format!("{name}.weight"), self.llm.eps)
    }
}
