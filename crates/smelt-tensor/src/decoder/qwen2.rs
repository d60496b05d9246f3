//! Describes the decoder of Qwen2 and Qwen2.5: biases on q, k and v, heads that share the width.

use super::DecoderFamily;

pub(super) const QWEN2: DecoderFamily = DecoderFamily {
    name: "qwen2",
    architecture: "Qwen2ForCausalLM",
    qkv_bias: true,
    qk_norm: false,
    head_dim_default: None,
    max_positions_default: 32768,
    rope_theta_default: None,
};
