//! Holds the rules of the vocabulary product to their meaning: splitting it and rounding it.

use std::fs;
use std::path::Path;

use crate::world::{World, ints, same_meaning, symbol, tensor};
use smelt_onnx::eval::Tensor;
use smelt_onnx::surgery::{Consume, HeadScheme, Parts, Rule, apply};
use smelt_onnx::{AttributeValue, Data, Dim, ElementType, Graph, Model, Node, ValueInfo};
use smelt_random::Random;

/// How a random head stores its weight.
const HEADS: [&str; 7] =
    ["gemm-rows", "gemm-columns", "matmul", "tied", "dequantised", "cast", "dequantised-tied"];

/// A graph with a head of `kind`, and after it whatever may stand between it and the output.
fn head_world(dir: &Path, kind: &str, random: &mut Random) -> Model {
    use ElementType::{F16, F32, I8, I64};
    let (hidden, vocab) = (1 + random.below(6), 5 + random.below(12));
    let mut world = World::new(dir);
    let pad = [1 + random.below(9)];
    world.weight("pad", &tensor(random, F32, &pad));
    world.input("x", F32, &[symbol("b"), Dim::Fixed(hidden)]);
    let (rows, columns) = ([vocab, hidden], [hidden, vocab]);
    let out = "head";
    match kind {
        "gemm-rows" => {
            world.weight("w", &tensor(random, F32, &rows));
            let bias: &[&[usize]] = &[&[vocab], &[1, vocab], &[], &[1], &[2, vocab], &[2, 1]];
            let bias = bias[random.below(6)];
            world.weight("c", &tensor(random, F32, bias));
            world.node("Gemm", &["x", "w", "c"], out, &[("transB", 1)]);
        }
        "gemm-columns" => {
            world.weight("w", &tensor(random, F32, &columns));
            world.node("Gemm", &["x", "w"], out, &[]);
        }
        "matmul" => {
            let tensor = tensor(random, F32, &columns);
            if random.coin() {
                world.weight("w", &tensor)
            } else {
                world.inline("w", &tensor)
            }
            world.node("MatMul", &["x", "w"], out, &[]);
        }
        "tied" => {
            world.weight("w", &tensor(random, F32, &rows));
            world.input("ids", I64, &[symbol("b")]);
            world.node("Gather", &["w", "ids"], "tokens", &[]);
            world.node("Add", &["x", "tokens"], "sum", &[]);
            world.node("Transpose", &["w"], "turned", &[]);
            world.node("MatMul", &["sum", "turned"], out, &[]);
        }
        "cast" => {
            world.weight("w", &tensor(random, F16, &columns));
            world.node("Cast", &["w"], "wide", &[("to", 1)]);
            world.node("MatMul", &["x", "wide"], out, &[]);
        }
        _ => {
            let axis = i64::from(random.coin());
            world.weight("w", &tensor(random, I8, &rows));
            let count = if axis == 0 { vocab } else { hidden };
            world.weight("s", &tensor(random, F32, &[count]));
            world.weight("z", &tensor(random, I8, &[count]));
            world.node("DequantizeLinear", &["w", "s", "z"], "real", &[("axis", axis)]);
            if kind == "dequantised-tied" {
                world.input("ids", I64, &[symbol("b")]);
                world.node("Gather", &["real", "ids"], "tokens", &[]);
                world.output("tokens", F32);
            }
            world.node("Gemm", &["x", "real"], out, &[("transB", 1)]);
        }
    }
    let mut last = out.to_owned();
    for step in 0..random.below(4) {
        let next = format!("after{step}");
        match random.below(4) {
            0 => world.node("Identity", &[&last], &next, &[]),
            1 => world.node("Cast", &[&last], &next, &[("to", 1)]),
            2 => {
                world.weight(&next.replace("after", "bias"), &tensor(random, F32, &[1]));
                world.node("Add", &[&next.replace("after", "bias"), &last], &next, &[]);
            }
            _ => {
                world.inline(&next.replace("after", "dims"), &ints(&[0, 0]));
                world.node("Reshape", &[&last, &next.replace("after", "dims")], &next, &[]);
            }
        }
        last = next;
    }
    if random.coin() {
        world.node("Exp", &[out], "second", &[]);
        world.output("second", F32);
    }
    // The output is the head itself, or what stands behind it.
    world.node("Identity", &[&last], "logits", &[]);
    if random.coin() {
        world.output(out, F32);
    }
    world.output("logits", F32);
    world.done(dir)
}

#[test]
fn a_split_head_means_the_same() {
    let mut random = Random::new(1);
    let mut small = 0;
    for round in 0..210 {
        let dir = tempfile::tempdir().unwrap();
        let kind = HEADS[round % HEADS.len()];
        head_world(dir.path(), kind, &mut random);
        let row = (1 + random.below(3)) as u64 * 24;
        let rule = if random.coin() || kind.starts_with("dequantised") {
            Rule::SplitHead { output: None, parts: Parts::Count(2 + random.below(4)) }
        } else {
            Rule::SplitHead { output: Some("head".into()), parts: Parts::MaxBytes(row) }
        };
        // Only an addend that is added after the parts are joined is rounded on its own.
        let (next, report) = same_meaning(dir.path(), &rule, &mut random, 1e-6);
        if report.summary.is_none() {
            small += 1;
            continue;
        }
        let joined = next.graph.nodes.iter().filter(|node| node.op == "Concat").count();
        assert_eq!(joined, 1, "{kind}: {report:?}");
    }
    assert!(small < 40, "{small} heads were too small to split");
}

#[test]
fn rows_of_a_head_are_split_without_a_copy_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(256)]);
    world.weight("w", &tensor(&mut Random::new(3), ElementType::F32, &[64, 256]));
    world.node("Gemm", &["x", "w"], "logits", &[("transB", 1)]);
    world.output("logits", ElementType::F32);
    world.done(dir.path());
    let before = fs::read(dir.path().join("model.onnx.data")).unwrap();
    let rule = Rule::SplitHead { output: None, parts: Parts::Count(3) };
    let out = dir.path().join("out");
    let report = apply(dir.path(), &rule, &out, Consume::No).unwrap();
    assert_eq!((report.nodes, report.initializers), ([1, 4], [1, 3]));
    assert_eq!(fs::read(out.join("model.onnx.data")).unwrap(), before);
    let model = Model::read(&out.join("model.onnx")).unwrap();
    let places: Vec<_> = model.graph.initializers.iter().map(|t| (&t.dims[..], &t.data)).collect();
    let at = |offset, length| Data::External { location: "model.onnx.data".into(), offset, length };
    assert_eq!(
        places,
        [
            (&[20, 256][..], &at(0, 20_480)),
            (&[20, 256], &at(20_480, 20_480)),
            (&[24, 256], &at(40_960, 24_576))
        ],
        "parts begin on pages"
    );
}

/// What the rounding of a weight may change of one logit, |x| and |w| being at most 1.
fn rounding_room(hidden: usize, codes: f64) -> f64 {
    // Half a step a product, and a little for scales that were rounded themselves.
    hidden as f64 * 0.5 / codes * 1.1
}

fn hidden(model: &Model) -> usize {
    match model.graph.inputs[0].dims.as_deref() {
        Some([_, Dim::Fixed(hidden)]) => *hidden,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rounded_head_means_nearly_the_same() {
    let mut random = Random::new(31);
    for round in 0..180 {
        let dir = tempfile::tempdir().unwrap();
        let kind = ["gemm-rows", "gemm-columns", "matmul", "tied", "cast"][round % 5];
        let mut model = head_world(dir.path(), kind, &mut random);
        let (scheme, codes) = match random.below(3) {
            0 => (HeadScheme::Int8, 127.0),
            1 => (HeadScheme::Int4(2), 7.0),
            _ => (HeadScheme::Int4(32), 7.0),
        };
        model.opset = if scheme == HeadScheme::Int8 { [17, 21][random.below(2)] } else { 21 };
        model.write(dir.path()).unwrap();
        // Exp of the head is another output; its slope is below 2000 at these magnitudes.
        if model.graph.nodes.iter().any(|node| node.op == "Exp") {
            continue;
        }
        let rule = Rule::QuantizeHead { output: None, scheme };
        let room = rounding_room(hidden(&model), codes);
        let (next, report) = same_meaning(dir.path(), &rule, &mut random, room);
        assert!(report.summary.unwrap().contains("1 weights of the head are rounded"), "{kind}");
        let joins = next.graph.nodes.iter().filter(|node| node.op == "DequantizeLinear").count();
        assert_eq!(joins, 1);
        let stays = next.graph.initializers.iter().any(|tensor| tensor.name == "w");
        assert_eq!(stays, kind == "tied", "the float weight stays only for the token embedding");
    }
}

#[test]
fn rounding_and_splitting_go_together_both_ways() {
    let mut random = Random::new(37);
    let mut blocks = 0;
    for round in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let kind = ["gemm-rows", "gemm-columns", "matmul", "tied"][round % 4];
        let mut model = head_world(dir.path(), kind, &mut random);
        model.opset = 21;
        model.write(dir.path()).unwrap();
        let scheme = [HeadScheme::Int8, HeadScheme::Int4(2)][random.below(2)];
        let quantize = Rule::QuantizeHead { output: None, scheme };
        let split = Rule::SplitHead { output: None, parts: Parts::Count(2) };
        let out = |name: &str| dir.path().join(name);
        apply(dir.path(), &quantize, &out("rounded"), Consume::No).unwrap();
        let nibbles_end_inside_bytes =
            apply(&out("rounded"), &split, &out("both"), Consume::No).is_err();
        if !nibbles_end_inside_bytes {
            blocks += usize::from(scheme != HeadScheme::Int8);
            // Only the order of the sums may differ.
            same_meaning(&out("rounded"), &split, &mut random, 1e-6);
        }
        assert!(!nibbles_end_inside_bytes || scheme != HeadScheme::Int8, "{kind}");
        if apply(dir.path(), &split, &out("split"), Consume::No).unwrap().summary.is_some() {
            let report = apply(&out("split"), &quantize, &out("split-rounded"), Consume::No);
            let summary = report.unwrap().summary.unwrap();
            assert!(summary.contains("2 weights of the head are rounded"), "{kind}: {summary}");
            let model = Model::read(&out("split-rounded").join("model.onnx")).unwrap();
            smelt_onnx::check(&model, &out("split-rounded")).unwrap();
        }
    }
    assert!(blocks > 5, "{blocks} heads of 4 bits were split");
}

#[test]
fn weights_that_are_multiples_of_a_scale_are_rounded_to_themselves() {
    for (scheme, top) in [(HeadScheme::Int8, 127), (HeadScheme::Int4(4), 7)] {
        for columns in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut world = World::new(dir.path());
            world.model.opset = 21;
            world.input("x", ElementType::F16, &[symbol("b"), Dim::Fixed(8)]);
            let value = |token: usize, channel: usize| match channel % 4 {
                0 => f64::from(top),
                other => (token * 5 + other) as f64 % 7.0 - 3.0,
            };
            let dims = if columns { [8, 16] } else { [16, 8] };
            let at = |at: usize| match columns {
                true => value(at % 16, at / 16),
                false => value(at / 8, at % 8),
            };
            let values = (0..128).map(|flat| at(flat) / 64.0).collect();
            world.weight("w", &Tensor::floats(ElementType::F16, &dims, values));
            world.node("Gemm", &["x", "w"], "logits", &[("transB", i64::from(!columns))]);
            world.output("logits", ElementType::F16);
            world.done(dir.path());
            let rule = Rule::QuantizeHead { output: None, scheme };
            let (next, report) = same_meaning(dir.path(), &rule, &mut Random::new(5), 0.0);
            let codes = if scheme == HeadScheme::Int8 { 128 } else { 64 };
            let scales = if scheme == HeadScheme::Int8 { 32 } else { 64 };
            assert_eq!(report.bytes_written, codes + scales, "{next:?}");
            let again =
                apply(&dir.path().join("copied"), &rule, &dir.path().join("x"), Consume::No);
            let error = again.unwrap_err().to_string();
            assert!(error.contains("is i8 already") || error.contains("is i4 already"), "{error}");
        }
    }
}

#[test]
fn heads_that_cannot_be_rounded_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(2)]);
    let weight = Tensor::floats(ElementType::F32, &[2, 2], vec![1.0, 2.0, f64::NAN, 4.0]);
    world.weight("w", &weight);
    world.node("Gemm", &["x", "w"], "logits", &[("transB", 1)]);
    world.output("logits", ElementType::F32);
    world.done(dir.path());
    let before = crate::world::listing(dir.path());
    let refused = |scheme, expect: &str| {
        let rule = Rule::QuantizeHead { output: None, scheme };
        let error = apply(dir.path(), &rule, &dir.path().join("out"), Consume::Yes).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
        assert_eq!(crate::world::listing(dir.path()), before);
    };
    refused(HeadScheme::Int8, "tensor \"w\": row 1 holds NaN");
    refused(HeadScheme::Int4(32), "apply to-opset 21 first");
}

/// A head whose weight and result are read inside the branches of an If as well.
#[test]
fn a_head_that_subgraphs_read_means_the_same() {
    let mut random = Random::new(41);
    for flag in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::new(dir.path());
        world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
        world.weight("w", &tensor(&mut random, ElementType::F32, &[4, 6]));
        world.inline("flag", &Tensor::ints(ElementType::Bool, &[], vec![flag]));
        world.node("MatMul", &["x", "w"], "logits", &[]);
        let branch = |op: &str, inputs: &[&str], output: &str| Graph {
            name: output.into(),
            nodes: vec![Node {
                op: op.into(),
                inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
                outputs: vec![output.into()],
                ..Node::default()
            }],
            outputs: vec![ValueInfo { name: output.into(), dtype: ElementType::F32, dims: None }],
            ..Graph::default()
        };
        world.node("If", &["flag"], "second", &[]);
        let attributes = &mut world.model.graph.nodes.last_mut().unwrap().attributes;
        let then = branch("Exp", &["logits"], "then");
        attributes.push(crate::world::attribute("then_branch", AttributeValue::Graph(then)));
        let other = branch("MatMul", &["x", "w"], "else");
        attributes.push(crate::world::attribute("else_branch", AttributeValue::Graph(other)));
        world.output("second", ElementType::F32);
        world.output("logits", ElementType::F32);
        world.done(dir.path());
        let rule = Rule::SplitHead { output: None, parts: Parts::Count(3) };
        let (next, _) = same_meaning(dir.path(), &rule, &mut random, 1e-6);
        let stays = next.graph.initializers.iter().any(|tensor| tensor.name == "w");
        assert!(stays, "the branch still reads it");
    }
}
