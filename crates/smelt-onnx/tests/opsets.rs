//! Holds `to-opset` to its meaning: random graphs go up and down and compute the same.

use std::path::Path;

use crate::world::{World, attribute, ints, same_meaning, symbol, tensor};
use smelt_onnx::surgery::{Consume, Rule, TARGET_MAX, TARGET_MIN, apply};
use smelt_onnx::{AttributeValue, Dim, ElementType, Model, Node};
use smelt_random::Random;

use ElementType::F32;

fn attributes(world: &mut World, list: &[(&str, AttributeValue)]) {
    let node = world.model.graph.nodes.last_mut().unwrap();
    node.attributes.extend(list.iter().map(|(name, value)| attribute(name, value.clone())));
}

/// A graph over `[b, 6]` of operators that changed, spelled as operator set `opset` has them.
fn changing_world(dir: &Path, opset: i64, random: &mut Random) -> Model {
    let mut world = World::new(dir);
    world.model.opset = opset;
    world.input("x", F32, &[symbol("b"), Dim::Fixed(6)]);
    world.inline("last", &ints(&[-1]));
    world.inline("sizes", &ints(&[2, 4]));
    world.inline("pads", &ints(&[0, 1, 0, 1]));
    world.weight("scale16", &tensor(random, ElementType::F16, &[6]));
    world.weight("scale32", &tensor(random, F32, &[6]));
    world.weight("codes", &tensor(random, ElementType::I8, &[6, 6]));
    let list = |values: &[i64]| AttributeValue::Ints(values.to_vec());
    let mut last = "x".to_owned();
    for step in 0..3 + random.below(6) {
        let [a, b, next] = ["a", "b", "next"].map(|part| format!("v{step}.{part}"));
        match random.below(8) {
            0 => {
                let op = ["ReduceMean", "ReduceMax", "ReduceL2"][random.below(3)];
                match opset < 18 {
                    true => {
                        world.node(op, &[&last], &a, &[]);
                        attributes(&mut world, &[("axes", list(&[-1]))]);
                    }
                    false => world.node(op, &[&last, "last"], &a, &[]),
                }
                world.node("Sub", &[&last, &a], &next, &[]);
            }
            1 => {
                world.node("Split", &[&last, "sizes"], &a, &[("axis", 1)]);
                world.model.graph.nodes.last_mut().unwrap().outputs.push(b.clone());
                world.node("Concat", &[&b, &a], &next, &[("axis", 1)]);
            }
            2 if opset < 18 => {
                world.node("Split", &[&last], &a, &[("axis", 1)]);
                world.model.graph.nodes.last_mut().unwrap().outputs.push(b.clone());
                world.node("Concat", &[&b, &a], &next, &[("axis", 1)]);
            }
            3 => {
                world.node("Pad", &[&last, "pads"], &a, &[]);
                let mode = ["reflect", "edge", "constant"][random.below(3)];
                attributes(&mut world, &[("mode", AttributeValue::Text(mode.into()))]);
                world.node("Softmax", &[&a], &b, &[]);
                world.inline(&format!("{next}.s"), &ints(&[1]));
                world.inline(&format!("{next}.e"), &ints(&[7]));
                let [s, e] = ["s", "e"].map(|end| format!("{next}.{end}"));
                world.node("Slice", &[&b, &s, &e, &s], &next, &[]);
            }
            4 if opset >= 20 => {
                world.node("Gelu", &[&last], &next, &[]);
                let form = ["tanh", "none"][random.below(2)];
                attributes(&mut world, &[("approximate", AttributeValue::Text(form.into()))]);
            }
            5 => {
                let narrow = opset >= 19 && random.coin();
                let scale = if narrow { "scale16" } else { "scale32" };
                world.node("DequantizeLinear", &["codes", scale], &a, &[("axis", 0)]);
                match narrow {
                    true => world.node("Cast", &[&a], &b, &[("to", 1), ("saturate", 1)]),
                    false => world.node("Identity", &[&a], &b, &[]),
                }
                world.node("MatMul", &[&last, &b], &next, &[]);
            }
            6 => world.node("Tanh", &[&last], &next, &[]),
            _ => world.node("Mul", &[&last, "scale32"], &next, &[]),
        }
        last = next;
    }
    world.output(&last, F32);
    world.done(dir)
}

/// What a node of `opset` must not look like.
fn is_misspelled(node: &Node, opset: i64) -> bool {
    let has = |name| node.attribute(name).is_some();
    match node.op.as_str() {
        "Gelu" => opset < 20,
        "Cast" => opset < 19 && has("saturate"),
        "Split" if node.inputs.len() < 2 => has("num_outputs") != (opset >= 18),
        op if op.starts_with("Reduce") => (opset >= 18) == has("axes"),
        _ => false,
    }
}

#[test]
fn graphs_say_the_same_in_other_operator_sets() {
    let mut random = Random::new(43);
    let mut changed = 0;
    for from in 13..=21 {
        for to in TARGET_MIN..=TARGET_MAX {
            for _ in 0..6 {
                let dir = tempfile::tempdir().unwrap();
                changing_world(dir.path(), from, &mut random);
                let rule = Rule::ToOpset { version: to };
                let (next, report) = same_meaning(dir.path(), &rule, &mut random, 1e-5);
                assert_eq!(report.summary.is_none(), from == to);
                assert_eq!(next.opset, to);
                let wrong = next.graph.nodes.iter().find(|node| is_misspelled(node, to));
                assert_eq!(wrong, None, "from {from} to {to}");
                changed += report.nodes[1].abs_diff(report.nodes[0]);
            }
        }
    }
    assert!(changed > 100, "{changed}");
}

#[track_caller]
fn refused(from: i64, to: i64, op: &str, list: &[(&str, AttributeValue)], expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.model.opset = from;
    world.input("x", F32, &[symbol("b"), Dim::Fixed(6)]);
    world.input("ids", ElementType::I64, &[Dim::Fixed(1)]);
    world.input("half", ElementType::F16, &[Dim::Fixed(6)]);
    world.weight("codes", &tensor(&mut Random::new(1), ElementType::I8, &[6]));
    let inputs: &[&str] = match op {
        "DequantizeLinear" => &["codes", "half"],
        "QuantizeLinear" => &["half", "half"],
        "Pad" => &["x", "ids", "", "ids"],
        _ => &["x", "ids"],
    };
    world.node(op, inputs, "y", &[]);
    attributes(&mut world, list);
    world.output("y", F32);
    world.done(dir.path());
    let rule = Rule::ToOpset { version: to };
    let error = apply(dir.path(), &rule, &dir.path().join("out"), Consume::Yes).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(expect), "{error}");
    assert!(error.contains(op) || expect.starts_with("it converts"), "{error}");
}

#[test]
fn what_cannot_be_said_is_refused_by_name() {
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    let int = AttributeValue::Int;
    refused(17, 22, "Tanh", &[], "it converts to operator sets 17 to 21, not to 22");
    refused(12, 17, "Tanh", &[], "it converts from operator sets 13 to 21, not from 12");
    refused(17, 18, "Attention", &[], "do not have it");
    refused(18, 17, "Mish", &[], "begins with operator set 18");
    refused(18, 17, "Pad", &[], "it names axes");
    refused(19, 18, "Pad", &[("mode", text("wrap"))], "\"wrap\"");
    refused(18, 17, "ReduceMean", &[], "its axes \"ids\" are no constant");
    refused(18, 17, "Split", &[("num_outputs", int(1))], "give the sizes");
    refused(18, 17, "Resize", &[("antialias", int(1))], "\"antialias\" is not in");
    refused(21, 20, "DequantizeLinear", &[("block_size", int(2))], "\"block_size\" is not in");
    refused(19, 18, "QuantizeLinear", &[], "is not f32");
    refused(20, 21, "GroupNormalization", &[], "its meaning differs");
    refused(20, 19, "DFT", &[], "its meaning differs");
    refused(18, 17, "ScatterND", &[("reduction", text("max"))], "begins with set 18");
}

#[test]
fn four_bit_weights_stay_in_set_21() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.model.opset = 21;
    world.input("x", F32, &[symbol("b"), Dim::Fixed(2)]);
    world.weight("w4", &tensor(&mut Random::new(1), ElementType::I4, &[4]));
    world.node("Identity", &["x"], "y", &[]);
    world.output("y", F32);
    world.done(dir.path());
    let rule = Rule::ToOpset { version: 20 };
    let error = apply(dir.path(), &rule, &dir.path().join("out"), Consume::No).unwrap_err();
    assert!(error.to_string().contains("\"w4\" has 4-bit numbers"), "{error}");
}
