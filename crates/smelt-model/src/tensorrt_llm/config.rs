//! Writes the `config.json` of a checkpoint for TensorRT-LLM 0.12.
//!
//! Fields as `PretrainedConfig`, `QWenConfig` and `LLaMAConfig` of its `models` read them; what they add
//! by themselves (no experts, one GPU) is left to them where it is not asked for.
//! Knows no tensors.

use serde_json::{Map, Value, json};

use super::plan::{Kind, WritePlan};
use crate::decoder::{Decoder, Scaling};
use crate::dtype::Dtype;

/// The text of the configuration.
pub(super) fn text(llm: &Decoder, plan: &WritePlan) -> String {
    let mut config = json!({
        "architecture": llm.family.architecture,
        "dtype": dtype(plan.dtype),
        "logits_dtype": "float32",
        "vocab_size": llm.vocab,
        "hidden_size": llm.hidden,
        "intermediate_size": llm.intermediate,
        "num_hidden_layers": llm.layers,
        "num_attention_heads": llm.heads,
        "num_key_value_heads": llm.kv_heads,
        "head_size": llm.head_dim,
        "hidden_act": "silu",
        "norm_epsilon": shortest(llm.eps),
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": llm.max_positions,
        "rotary_base": llm.rope.theta,
        "rotary_scaling": scaling(llm.rope.scaling),
        "attn_bias": llm.qkv_bias(),
        "mlp_bias": false,
        "use_parallel_embedding": false,
        "embedding_sharding_dim": 0,
        "share_embedding_table": false,
        "disable_weight_only_quant_plugin": false,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": quantization(plan.kind),
    });
    if let (Some(object), true) = (config.as_object_mut(), is_qwen(llm)) {
        object.extend(of_qwen());
    }
    format!("{config:#}\n")
}

/// Whether its class reads the fields of Qwen's configurations.
pub(super) fn is_qwen(llm: &Decoder) -> bool {
    llm.family.architecture == "Qwen2ForCausalLM"
}

fn of_qwen() -> Map<String, Value> {
    let fields = [
        ("qwen_type", json!("qwen2")),
        ("moe_intermediate_size", json!(0)),
        ("moe_shared_expert_intermediate_size", json!(0)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn dtype(dtype: Dtype) -> &'static str {
    if dtype == Dtype::BF16 { "bfloat16" } else { "float16" }
}

/// The number that people wrote: the shortest that is the same in f32.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

fn scaling(scaling: Option<Scaling>) -> Value {
    match scaling {
        Some(Scaling::Linear(factor)) => json!({"type": "linear", "factor": factor}),
        // The others are refused by the plan.
        Some(Scaling::Llama3(_) | Scaling::Yarn(_)) | None => Value::Null,
    }
}

fn quantization(kind: Kind) -> Value {
    let mut section = json!({"quant_algo": kind.algorithm(), "kv_cache_quant_algo": null});
    if let Kind::Int4Groups = kind {
        section["group_size"] = json!(super::plan::GROUP);
        section["has_zero_point"] = json!(true);
        section["pre_quant_scale"] = json!(false);
    }
    section
}
