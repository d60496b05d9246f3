//! Describes the decoder of Qwen3: no biases, an RMSNorm on each head of q and k before they are
//! rotated, and heads of a width of their own.

use super::DecoderFamily;

pub(super) const QWEN3: DecoderFamily = DecoderFamily {
    name: "qwen3",
    architecture: "Qwen3ForCausalLM",
    qkv_bias: false,
    qk_norm: true,
    head_dim_default: Some(128),
    max_positions_default: 32768,
    rope_theta_default: None,
};
