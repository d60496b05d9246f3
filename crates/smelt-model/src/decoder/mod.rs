//! Describes decoders: which tensors their layers have, and what a configuration says of them.
//!
//! What families differ in is in [`smelt_tensor::decoder`], which engines read too.
//! Knows nothing of tensor files or of what else a model has.

use serde::Deserialize;
use serde_json::Value;

use crate::config::{ConfigProblem, List, Scope};

mod rope;

use rope::RopeFields;
pub use rope::{Llama3, Rope, Scaling, Yarn};
pub use smelt_tensor::decoder::{DecoderFamily, Sections};

/// Where a model keeps its decoder's tensors.
pub(crate) const PREFIX: &str = "language_model.model";

/// The decoder's embedding, which serves as the head where there is none.
pub const EMBEDDING: &str = "language_model.model.embed_tokens.weight";

/// The first norm, which every decoder has and nothing packs.
pub(crate) const FIRST_NORM: &str = "language_model.model.layers.0.input_layernorm.weight";

/// The decoder's head.
pub const LM_HEAD: &str = "language_model.lm_head.weight";

/// The tensors of the first layer that some families of decoders have and others lack; with
/// `attention_bias` all have biases.
pub(crate) fn telltales(family: &DecoderFamily, attention_bias: bool) -> [(String, bool); 3] {
    let name = |part: &str| format!("{PREFIX}.layers.0.self_attn.{part}");
    let norms = ["q_norm.weight", "k_norm.weight"].map(|part| (name(part), family.qk_norm));
    let [q_norm, k_norm] = norms;
    [q_norm, k_norm, (name("q_proj.bias"), family.qkv_bias(attention_bias))]
}

/// A decoder: its family and its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// What its layers have.
    pub family: &'static DecoderFamily,
    /// Channels of a token.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head; `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Channels inside the MLP.
    pub intermediate: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Epsilon of the RMSNorms.
    pub eps: f32,
    /// How positions turn queries and keys.
    pub rope: Rope,
    /// The longest sequence the model is for.
    pub max_positions: usize,
    /// Whether the configuration gives the query, key, value and output projections a bias
    /// (`attention_bias`); a family may have the first three without.
    pub attention_bias: bool,
    /// How many of the first layers are followed by adding image features to the tokens that stand
    /// for images (deepstack).
    pub deepstack: usize,
}

impl Decoder {
    /// Whether the query, key and value projections add a bias.
    pub fn qkv_bias(&self) -> bool {
        self.family.qkv_bias(self.attention_bias)
    }

    /// Rows of the key or the value projection.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows of the query projection.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Every tensor but the head, input to output.
    pub(crate) fn list(&self, list: &mut List) {
        list.put(EMBEDDING, &[self.vocab, self.hidden]);
        for layer in 0..self.layers {
            self.list_layer(&format!("{PREFIX}.layers.{layer}"), list);
        }
        list.put(format!("{PREFIX}.norm.weight"), &[self.hidden]);
    }

    /// The head, present only where it is not tied to the embedding.
    pub(crate) fn list_head(&self, list: &mut List) {
        list.put(LM_HEAD, &[self.vocab, self.hidden]);
    }

    fn list_layer(&self, layer: &str, list: &mut List) {
        let Self { hidden, intermediate, .. } = *self;
        list.put(format!("{layer}.input_layernorm.weight"), &[hidden]);
        let rows = [("q", self.q_width()), ("k", self.kv_width()), ("v", self.kv_width())];
        for (part, rows) in rows {
            let name = format!("{layer}.self_attn.{part}_proj");
            list_projection(&name, [rows, hidden], self.qkv_bias(), list);
        }
        if self.family.qk_norm {
            list.put(format!("{layer}.self_attn.q_norm.weight"), &[self.head_dim]);
            list.put(format!("{layer}.self_attn.k_norm.weight"), &[self.head_dim]);
        }
        let output = format!("{layer}.self_attn.o_proj");
        list_projection(&output, [hidden, self.q_width()], self.attention_bias, list);
        list.put(format!("{layer}.post_attention_layernorm.weight"), &[hidden]);
        list.put(format!("{layer}.mlp.gate_proj.weight"), &[intermediate, hidden]);
        list.put(format!("{layer}.mlp.up_proj.weight"), &[intermediate, hidden]);
        list.put(format!("{layer}.mlp.down_proj.weight"), &[hidden, intermediate]);
    }
}

fn list_projection(name: &str, shape: [usize; 2], has_bias: bool, list: &mut List) {
    let [rows, columns] = shape;
    if has_bias {
        list.linear(name, rows, columns);
    } else {
        list.put(format!("{name}.weight"), &[rows, columns]);
    }
}

/// The fields of a decoder's configuration that matter here; others are free.
#[derive(Deserialize)]
pub(crate) struct Fields {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    hidden_act: String,
    max_position_embeddings: Option<usize>,
    rope_scaling: Option<Value>,
    /// What transformers 5 writes in the place of `rope_theta` and `rope_scaling`.
    rope_parameters: Option<Value>,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

impl Fields {
    /// Checks the fields of the object `scope` as a decoder of `family`.
    pub(crate) fn decoder(
        &self,
        family: &'static DecoderFamily,
        scope: Scope,
    ) -> Result<Decoder, ConfigProblem> {
        self.check_arithmetic(scope)?;
        let hidden = scope.size("hidden_size", self.hidden_size)?;
        let heads = scope.size("num_attention_heads", self.num_attention_heads)?;
        let own_dim = self.head_dim.or(family.head_dim_default);
        let positions = self.max_position_embeddings.unwrap_or(family.max_positions_default);
        let positions = scope.size("max_position_embeddings", positions)?;
        let head_dim = scope.size("head_dim", own_dim.unwrap_or(hidden / heads))?;
        let rope = self.rope(family, head_dim, positions, scope)?;
        let decoder = Decoder {
            family,
            hidden,
            layers: scope.layers("num_hidden_layers", self.num_hidden_layers)?,
            heads,
            kv_heads: scope.size("num_key_value_heads", self.num_key_value_heads)?,
            head_dim,
            intermediate: scope.size("intermediate_size", self.intermediate_size)?,
            vocab: scope.size("vocab_size", self.vocab_size)?,
            eps: scope.epsilon("rms_norm_eps", self.rms_norm_eps)?,
            max_positions: scope.size("max_position_embeddings", rope.positions(positions))?,
            rope,
            // Where the family has biases of its own, transformers reads no such field.
            attention_bias: self.attention_bias && !family.qkv_bias(false),
            deepstack: 0,
        };
        if own_dim.is_none() && !hidden.is_multiple_of(heads) {
            return scope.bad("hidden_size", hidden, "the heads do not divide it");
        }
        if !heads.is_multiple_of(decoder.kv_heads) {
            return scope.bad("num_key_value_heads", decoder.kv_heads, "it must divide the heads");
        }
        if !decoder.head_dim.is_multiple_of(2) {
            let rule = "rotary positions need an even number";
            return scope.bad("head_dim", decoder.head_dim, rule);
        }
        Ok(decoder)
    }

    /// Refuses every setting that means other arithmetic than the one built here.
    fn check_arithmetic(&self, scope: Scope) -> Result<(), ConfigProblem> {
        scope.only("hidden_act", &self.hidden_act, "silu", self.hidden_act == "silu")?;
        let sliding = self.use_sliding_window;
        scope.only("use_sliding_window", sliding, "false", !sliding)?;
        scope.only("mlp_bias", self.mlp_bias, "false", !self.mlp_bias)
    }

    fn rope(
        &self,
        family: &DecoderFamily,
        head_dim: usize,
        positions: usize,
        scope: Scope,
    ) -> Result<Rope, ConfigProblem> {
        let fields = RopeFields {
            theta: self.rope_theta,
            theta_default: family.rope_theta_default,
            scaling: self.rope_scaling.as_ref(),
            parameters: self.rope_parameters.as_ref(),
            positions,
        };
        fields.rope(head_dim, scope)
    }
}
