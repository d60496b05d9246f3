//! Writes the `config.json` of a checkpoint for another tool.
//!
//! The source's configuration comes in, with it what was planned; the same configuration with a
//! `quantization_config` that describes it comes out.  Fields as AutoAWQ, GPTQModel and
//! compressed-tensors write them.  Knows no tensors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Format;
use super::plan::{Layer, WritePlan};
use crate::checkpoint::Checkpoint;

/// The objects of a configuration that may describe the decoder.
const NESTED: [&str; 2] = ["text_config", "llm_config"];

/// Where the layers of a decoder begin in a module's path.
const LAYERS: &str = "layers.";

/// The field that says whether the head is the embedding.
const TIE: &str = "tie_word_embeddings";

/// The head's module where nothing lies around it.
const HEAD: &str = "lm_head";

/// The text of the configuration.
pub(super) fn config(plan: &WritePlan, whole: &Checkpoint, format: Format) -> String {
    // The text was parsed when the checkpoint was opened.
    let mut config: Value = serde_json::from_str(whole.config()).unwrap_or_else(|_| json!({}));
    // Code beside a checkpoint has a tree of its own.
    let is_nested = config["auto_map"].is_null();
    let section = match format {
        Format::Awq => awq(plan, is_nested),
        Format::Gptq => gptq(plan, is_nested),
        Format::CompressedTensors => compressed_tensors(plan),
    };
    settle(&mut config, plan);
    if let Some(object) = config.as_object_mut() {
        object.insert("quantization_config".to_owned(), section);
    }
    format!("{config:#}\n")
}

/// Has every object say what holds now.
fn settle(config: &mut Value, plan: &WritePlan) {
    change(config, plan);
    if let (true, Some(object)) = (plan.has_head, config.as_object_mut()) {
        // Where nothing is said transformers 5 ties some models' heads to the embedding.
        object.insert(TIE.to_owned(), Value::Bool(false));
    }
    for name in NESTED {
        if let Some(object) = config.get_mut(name) {
            change(object, plan);
        }
    }
}

/// Removes what no longer holds.
fn change(object: &mut Value, plan: &WritePlan) {
    let Some(object) = object.as_object_mut() else { return };
    object.remove("quantization_config");
    object.remove("compression_config");
    if plan.has_head && object.contains_key(TIE) {
        object.insert(TIE.to_owned(), Value::Bool(false));
    }
}

fn awq(plan: &WritePlan, is_nested: bool) -> Value {
    let layer = first(plan);
    json!({
        "quant_method": "awq",
        "version": "gemm",
        "bits": layer.bits,
        "group_size": size(layer),
        "zero_point": true,
        "modules_to_not_convert": listed(plan, is_nested),
    })
}

fn gptq(plan: &WritePlan, is_nested: bool) -> Value {
    let layer = first(plan);
    let mut section = json!({
        "quant_method": "gptq",
        "bits": layer.bits,
        "group_size": size(layer),
        "sym": layer.is_symmetric,
        "desc_act": plan.has_order,
        "checkpoint_format": if layer.is_symmetric { "gptq" } else { "gptq_v2" },
        "lm_head": plan.head.is_some(),
        "modules_to_not_convert": listed(plan, is_nested),
    });
    // GPTQModel's and vLLM's way to leave modules out.
    let left_out: Map<String, Value> =
        kept(plan).iter().map(|one| (format!("-:{}", expression(one)), json!({}))).collect();
    if !left_out.is_empty() {
        section["dynamic"] = Value::Object(left_out);
    }
    if let Some(layers) = unusual_layers(plan) {
        section["block_name_to_quantize"] = json!(layers);
    }
    section
}

/// Where the decoder's layers lie, if optimum, by which transformers opens GPTQ, does not look there by itself: SmolVLM's
/// (`BLOCK_PATTERNS` of its `gptq/constants.py`).
fn unusual_layers(plan: &WritePlan) -> Option<&str> {
    let mut places =
        plan.packed.iter().filter_map(|(module, _)| Some((module, module.find(LAYERS)?)));
    let (module, before) = places.next()?;
    let path = &module[..before + LAYERS.len() - 1];
    path.split('.').any(|part| part == "text_model").then_some(path)
}

fn compressed_tensors(plan: &WritePlan) -> Value {
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
            let named = || modules.iter().map(|module| target(module)).collect::<Vec<_>>();
            let targets = if index == 0 { json!(["Linear"]) } else { json!(named()) };
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
    let ignored = |one: Kept| match one {
        Kept::Below(word) if word == HEAD && plan.kept.iter().any(|name| name == HEAD) => word,
        one => format!("re:{}", expression(&one)),
    };
    let whole: Vec<String> = kept(plan).into_iter().map(ignored).collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": whole,
    })
}

/// A packed module as compressed-tensors finds it in any tree.
fn target(module: &str) -> String {
    if module == HEAD { module.to_owned() } else { format!("re:{}", anywhere(module)) }
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

fn first(plan: &WritePlan) -> Layer {
    plan.packed.first().expect("a checkpoint without packed weights is refused before").1
}

fn size(layer: Layer) -> i64 {
    layer.group.map_or(-1, |group| group as i64)
}

/// What stays floats, by a word that no packed module has in its name, else one module by its whole name.
///
/// Other tools call a module by the path that it has in their own tree, which may begin otherwise than the name of its
/// weight: `visual.…` is `model.visual.…` in transformers, `language_model.lm_head` is `lm_head`.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Below(String),
    Module(String),
}

fn kept(plan: &WritePlan) -> Vec<Kept> {
    let mut all = Vec::new();
    for module in &plan.kept {
        let is_packed = |word: &&str| {
            plan.packed.iter().any(|(packed, _)| packed.split('.').any(|part| part == *word))
        };
        let is_number = |word: &&str| word.bytes().all(|b| b.is_ascii_digit());
        let word = module.split('.').find(|word| !is_packed(word) && !is_number(word));
        let one = match word {
            Some(word) => Kept::Below(word.to_owned()),
            None => Kept::Module(module.clone()),
        };
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// The modules that stay floats as AWQ and GPTQ list them: servers look for such a word anywhere, transformers at the
/// beginning or the end of a path in its own tree (`is_nested`: there parts lie in `model`).
fn listed(plan: &WritePlan, is_nested: bool) -> Vec<String> {
    let holds = |word: &str| {
        let inner = |module: &String| module.split('.').rev().skip(1).any(|part| part == word);
        plan.kept.iter().any(inner)
    };
    let names = |one: Kept| match one {
        Kept::Below(word) if is_nested && holds(&word) => {
            vec![format!("model.{word}"), word]
        }
        Kept::Below(name) | Kept::Module(name) => vec![name],
    };
    kept(plan).into_iter().flat_map(names).collect()
}

/// The expression, from the beginning of a path, of what stays floats.
fn expression(one: &Kept) -> String {
    match one {
        Kept::Below(word) => format!("(.*\\.)?{}(\\..*)?$", word.replace('.', "\\.")),
        Kept::Module(name) => anywhere(name),
    }
}

/// The expression of a module's path behind what may begin otherwise: from its layers, or its last word.
fn anywhere(module: &str) -> String {
    let inner = module.find(LAYERS).map(|at| &module[at..]);
    let inner = inner.or_else(|| module.rsplit('.').next()).unwrap_or(module);
    format!("(.*\\.)?{}$", inner.replace('.', "\\."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(packed: &[&str], kept: &[&str]) -> WritePlan {
        let layer = Layer { bits: 4, group: Some(32), is_symmetric: true, has_order: false };
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        let packed: Vec<String> = names(packed);
        WritePlan {
            items: Vec::new(),
            packed: packed.into_iter().map(|name| (name, layer)).collect(),
            kept: names(kept),
            head: None,
            has_head: false,
            has_order: false,
        }
    }

    fn ignored(plan: &WritePlan) -> Value {
        compressed_tensors(plan)["ignore"].clone()
    }

    #[test]
    fn towers_are_left_out_wherever_other_tools_have_them() {
        let qwen = plan(
            &["model.layers.0.mlp.down_proj"],
            &["visual.blocks.0.mlp.down_proj", "visual.merger.mlp.0", "lm_head"],
        );
        assert_eq!(listed(&qwen, true), ["model.visual", "visual", "lm_head"]);
        assert_eq!(ignored(&qwen), json!(["re:(.*\\.)?visual(\\..*)?$", "lm_head"]));
        let nested = plan(
            &["model.language_model.layers.0.mlp.down_proj"],
            &["model.visual.blocks.0.mlp.down_proj"],
        );
        assert_eq!(listed(&nested, true), ["model.visual", "visual"]);
        let own = plan(&["language_model.model.layers.0.mlp.down_proj"], &["mlp1.1"]);
        assert_eq!(listed(&own, false), ["mlp1"]);
        let dynamic = &gptq(&own, false)["dynamic"];
        assert_eq!(dynamic, &json!({"-:(.*\\.)?mlp1(\\..*)?$": {}}));
    }

    #[test]
    fn a_decoder_where_gptqs_reader_does_not_look_is_named() {
        let of = |module: &str| {
            gptq(&plan(&["lm_head", module], &[]), true)["block_name_to_quantize"].clone()
        };
        assert_eq!(of("model.text_model.layers.0.mlp.up_proj"), json!("model.text_model.layers"));
        assert_eq!(of("model.language_model.layers.0.mlp.up_proj"), Value::Null);
        assert_eq!(of("model.layers.0.mlp.up_proj"), Value::Null);
    }

    #[test]
    fn a_head_of_its_own_is_never_tied() {
        let said = |has_head: bool, config: &str| {
            let plan = WritePlan { has_head, ..plan(&[], &[]) };
            let mut config: Value = serde_json::from_str(config).unwrap();
            settle(&mut config, &plan);
            config["tie_word_embeddings"].clone()
        };
        assert_eq!(said(true, "{}"), json!(false));
        assert_eq!(said(false, "{}"), Value::Null);
        assert_eq!(said(true, r#"{"tie_word_embeddings": true}"#), json!(false));
        assert_eq!(said(false, r#"{"tie_word_embeddings": true}"#), json!(true));
    }

    #[test]
    fn a_module_among_packed_ones_is_named_from_its_layer_on() {
        let one = plan(
            &["model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj"],
            &["model.layers.1.mlp.down_proj"],
        );
        assert_eq!(ignored(&one), json!(["re:(.*\\.)?layers\\.1\\.mlp\\.down_proj$"]));
        assert_eq!(listed(&one, true), ["model.layers.1.mlp.down_proj"]);
        let layer = plan(&["model.layers.0.mlp.down_proj"], &["model.layers.7.mlp.down_proj"]);
        assert_eq!(kept(&layer), [Kept::Module("model.layers.7.mlp.down_proj".to_owned())]);
    }

    #[test]
    fn the_head_of_another_kind_is_found_in_every_tree() {
        assert_eq!(target("lm_head"), "lm_head");
        assert_eq!(target("language_model.lm_head"), "re:(.*\\.)?lm_head$");
        assert_eq!(target("model.layers.0.mlp.up_proj"), "re:(.*\\.)?layers\\.0\\.mlp\\.up_proj$");
    }
}
