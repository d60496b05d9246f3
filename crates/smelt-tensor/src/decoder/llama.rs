//! Describes the decoder of Llama 2 and 3: no biases, no norms on heads, heads that share the width.

use super::DecoderFamily;

pub(super) const LLAMA: DecoderFamily = DecoderFamily {
    name: "llama",
    architecture: "LlamaForCausalLM",
    qkv_bias: false,
    qk_norm: false,
    head_dim_default: None,
    max_positions_default: 2048,
    rope_theta_default: Some(10000.0),
};
