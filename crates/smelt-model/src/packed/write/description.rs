//! Writes the `config.json` of a checkpoint for another tool.
//!
//! The source's configuration comes in, with it what was planned; the same configuration with a
//! `quantization_config` that describes it comes out.  Fields as AutoAWQ, GPTQModel and
//! compressed-tensors write them.  Knows no tensors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Format;
use super::plan::{Layer, Plan};
use crate::checkpoint::Checkpoint;

/// The objects of a configuration that may describe the decoder.
const NESTED: [&str; 2] = ["text_config", "llm_config"];

/// The text of the configuration.
pub(super) fn config(plan: &Plan, whole: &Checkpoint, format: Format) -> String {
    // The text was parsed when the checkpoint was opened.
    let mut config: Value = serde_json::from_str(whole.config()).unwrap_or_else(|_| json!({}));
    let section = match format {
        Format::Awq => awq(plan),
        Format::Gptq => gptq(plan),
        Format::CompressedTensors => compressed_tensors(plan),
    };
    change(&mut config, plan);
    for name in NESTED {
        change(&mut config[name], plan);
    }
    if let Some(object) = config.as_object_mut() {
        NESTED.iter().for_each(|name| {
            if object.get(*name).is_some_and(Value::is_null) {
                object.remove(*name);
            }
        });
        object.insert("quantization_config".to_owned(), section);
    }
    format!("{config:#}\n")
}

/// Removes what no longer holds.
fn change(object: &mut Value, plan: &Plan) {
    let Some(object) = object.as_object_mut() else { return };
    object.remove("quantization_config");
    object.remove("compression_config");
    if plan.is_untied && object.contains_key("tie_word_embeddings") {
        object.insert("tie_word_embeddings".to_owned(), Value::Bool(false));
    }
}

fn awq(plan: &Plan) -> Value {
    let layer = first(plan);
    json!({
        "quant_method": "awq",
        "version": "gemm",
        "bits": layer.bits,
        "group_size": size(layer),
        "zero_point": true,
        "modules_to_not_convert": kept(plan),
    })
}

fn gptq(plan: &Plan) -> Value {
    let layer = first(plan);
    let mut section = json!({
        "quant_method": "gptq",
        "bits": layer.bits,
        "group_size": size(layer),
        "sym": layer.is_symmetric,
        "desc_act": plan.has_order,
        "checkpoint_format": if layer.is_symmetric { "gptq" } else { "gptq_v2" },
        "lm_head": plan.head.is_some(),
        "modules_to_not_convert": kept(plan),
    });
    // GPTQModel's and vLLM's way to leave modules out.
    let left_out: Map<String, Value> = kept(plan)
        .iter()
        .map(|name| (format!("-:^{}", name.replace('.', "\\.")), json!({})))
        .collect();
    if !left_out.is_empty() {
        section["dynamic"] = Value::Object(left_out);
    }
    section
}

fn compressed_tensors(plan: &Plan) -> Value {
    let mut kinds: BTreeMap<Layer, Vec<&str>> = BTreeMap::new();
    for (module, layer) in &plan.packed {
        kinds.entry(*layer).or_default().push(module);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    // The kind of most modules is the rule, the others are named.
    kinds.sort_by_key(|(_, modules)| std::cmp::Reverse(modules.len()));
    let groups: Map<String, Value> = kinds
        .iter()
        .enumerate()
        .map(|(index, (layer, modules))| {
            let targets = if index == 0 { json!(["Linear"]) } else { json!(modules) };
            let group = json!({
                "targets": targets,
                "weights": weights(*layer),
                "input_activations": null,
                "output_activations": null,
                "format": "pack-quantized",
            });
            (format!("group_{index}"), group)
        })
        .collect();
    let whole: Vec<String> = kept(plan)
        .into_iter()
        .map(|name| if plan.kept.contains(&name) { name } else { format!("re:^{name}\\..*") })
        .collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": whole,
    })
}

fn weights(layer: Layer) -> Value {
    let strategy = if layer.group.is_some() { "group" } else { "channel" };
    let mut weights = json!({
        "num_bits": layer.bits,
        "type": "int",
        "symmetric": layer.is_symmetric,
        "strategy": strategy,
        "group_size": layer.group,
        "dynamic": false,
    });
    if layer.has_order {
        weights["actorder"] = json!("group");
    }
    weights
}

fn first(plan: &Plan) -> Layer {
    plan.packed.first().expect("a checkpoint without packed weights is refused before").1
}

fn size(layer: Layer) -> i64 {
    layer.group.map_or(-1, |group| group as i64)
}

/// The modules that stay floats: a first word where nothing of it is packed, else a whole name.
fn kept(plan: &Plan) -> Vec<String> {
    let word = |module: &str| module.split('.').next().unwrap_or_default().to_owned();
    let is_mixed = |word_of: &str| plan.packed.iter().any(|(module, _)| word(module) == word_of);
    let mut names: Vec<String> = Vec::new();
    for module in &plan.kept {
        let first = word(module);
        let name = if is_mixed(&first) { module.clone() } else { first };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
