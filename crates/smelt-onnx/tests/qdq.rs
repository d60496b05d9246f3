//! Holds the rule that has products multiply integers to what that means, number by number, and to what it leaves alone.

use std::collections::BTreeMap;
use std::path::Path;

use crate::world::{World, close, random_inputs, same_meaning, symbol, tensor};
use smelt_onnx::eval::{Tensor, evaluate};
use smelt_onnx::surgery::{Consume, Rule, apply};
use smelt_onnx::{Dim, ElementType, Model, ValueInfo};
use smelt_random::Random;

use ElementType::{F16, F32, I8};

/// A convolution, a product of each kind, one of two values that flow, and one whose weight is also looked up.
fn detector(dir: &Path, random: &mut Random) -> Model {
    let mut world = World::new(dir);
    world.input("x", F32, &[symbol("b"), Dim::Fixed(2), Dim::Fixed(5), Dim::Fixed(5)]);
    for (name, dims) in [
        ("kernels", &[4, 2, 3, 3][..]),
        ("bias", &[4]),
        ("rows", &[6, 36]),
        ("columns", &[6, 6]),
        ("turned", &[5, 6]),
    ] {
        world.weight(name, &tensor(random, F32, dims));
    }
    world.node("Conv", &["x", "kernels", "bias"], "seen", &[]);
    world.node("Relu", &["seen"], "lit", &[]);
    world.node("Flatten", &["lit"], "flat", &[]);
    world.node("Gemm", &["flat", "rows"], "hidden", &[("transB", 1)]);
    world.node("MatMul", &["hidden", "columns"], "more", &[]);
    world.node("Transpose", &["more"], "across", &[]);
    world.node("MatMul", &["more", "across"], "scores", &[]);
    world.node("MatMul", &["scores", "more"], "mixed", &[]);
    world.node("Transpose", &["turned"], "weight", &[]);
    world.node("MatMul", &["mixed", "weight"], "y", &[]);
    world.node("MatMul", &["hidden", "weight"], "z", &[]);
    world.output("y", F32);
    world.output("z", F32);
    world.done(dir)
}

/// The largest magnitudes of all values, as a calibration sees them.
fn thresholds(
    model: &Model,
    dir: &Path,
    inputs: &BTreeMap<String, Tensor>,
) -> BTreeMap<String, f32> {
    let mut all = model.clone();
    let names = all.graph.nodes.iter().flat_map(|node| &node.outputs).cloned();
    let info = |name| ValueInfo { name, dtype: F32, dims: None };
    all.graph.outputs = names.map(info).collect();
    let values = evaluate(&all, dir, inputs).unwrap();
    let named = all.graph.outputs.iter().map(|info| info.name.clone()).zip(values);
    let largest = |value: Tensor| {
        let floats = value.as_floats().unwrap();
        floats.iter().fold(0.0f64, |most, number| most.max(number.abs())) as f32
    };
    named.chain(inputs.clone()).map(|(name, value)| (name, largest(value))).collect()
}

fn rule(thresholds: &BTreeMap<String, f32>, except: &[&str]) -> Rule {
    let except = except.iter().map(|word| (*word).to_owned()).collect();
    Rule::InsertQdq { thresholds: thresholds.clone(), except }
}

fn count(model: &Model, op: &str) -> usize {
    model.graph.nodes.iter().filter(|node| node.op == op).count()
}

#[test]
fn a_graph_that_multiplies_integers_says_nearly_the_same() {
    let mut random = Random::new(23);
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let model = detector(dir.path(), &mut random);
        // The widest of several inputs, as same_meaning draws its own.
        let mut widest = BTreeMap::new();
        for _ in 0..20 {
            let inputs = random_inputs(&model, &mut random, 2);
            for (name, seen) in thresholds(&model, dir.path(), &inputs) {
                let most = widest.entry(name).or_insert(0.0f32);
                *most = most.max(seen);
            }
        }
        let reach = f64::from(widest["y"].max(widest["z"]));
        let (next, report) =
            same_meaning(dir.path(), &rule(&widest, &[]), &mut random, 0.08 * reach);
        assert_eq!(report.summary.unwrap(), "5 products multiply integers of 8 bits");
        // A value that two read is rounded once, and so is a weight.
        assert_eq!((count(&next, "QuantizeLinear"), count(&next, "DequantizeLinear")), (4, 8));
        let left = next.graph.initializers.iter().filter(|it| it.dtype == F32 && it.dims.len() > 1);
        assert_eq!(left.count(), 0, "no weight stays as it was");
        // ONNX Runtime asks for zero points of a Gemm's weight, as many as scales.
        let zeros = next.graph.initializers.iter().filter(|it| it.dtype == I8 && it.dims == [6]);
        assert_eq!(zeros.map(|it| it.name.as_str()).collect::<Vec<_>>(), ["rows_zero"]);
    }
}

/// By hand: codes of the value and of each column, multiplied, times both scales.
#[test]
fn the_numbers_are_those_of_codes_and_scales() {
    let mut random = Random::new(5);
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", F32, &[symbol("b"), Dim::Fixed(7)]);
    let weight = tensor(&mut random, F32, &[7, 3]);
    world.weight("w", &weight);
    world.node("MatMul", &["x", "w"], "y", &[]);
    world.output("y", F32);
    let model = world.done(dir.path());
    let inputs = random_inputs(&model, &mut random, 4);
    let reach = 0.6f32;
    let out = dir.path().join("out");
    let rule = rule(&BTreeMap::from([("x".to_owned(), reach)]), &[]);
    apply(dir.path(), &rule, &out, Consume::No).unwrap();
    let next = Model::read(&out.join("model.onnx")).unwrap();
    let found = evaluate(&next, &out, &inputs).unwrap();

    let (x, w) = (inputs["x"].as_floats().unwrap(), weight.as_floats().unwrap());
    let code =
        |value: f64, scale: f32| (value / f64::from(scale)).round_ties_even().clamp(-128.0, 127.0);
    let x_scale = reach / 127.0;
    let column = |at: usize| (0..7).map(move |row| w[row * 3 + at]);
    let mut expect = Vec::new();
    for row in 0..4 {
        for at in 0..3 {
            let w_scale = column(at).fold(0.0f64, |most, it| most.max(it.abs())) as f32 / 127.0;
            let pairs = x[row * 7..][..7].iter().zip(column(at));
            let sum: f64 = pairs.map(|(x, w)| code(*x, x_scale) * code(w, w_scale)).sum();
            expect.push(sum * f64::from(x_scale) * f64::from(w_scale));
        }
    }
    close(&found[0], &Tensor::floats(F32, &[4, 3], expect), 1e-5);
}

#[test]
fn what_is_rounded_or_excepted_stays_as_it_is() {
    let mut random = Random::new(3);
    let dir = tempfile::tempdir().unwrap();
    let model = detector(dir.path(), &mut random);
    let inputs = random_inputs(&model, &mut random, 2);
    let seen = thresholds(&model, dir.path(), &inputs);
    let out = |name: &str| dir.path().join(name);
    let but = rule(&seen, &["Conv", "z"]);
    apply(dir.path(), &but, &out("but"), Consume::No).unwrap();
    let next = Model::read(&out("but").join("model.onnx")).unwrap();
    assert_eq!(count(&next, "QuantizeLinear"), 3);
    assert_eq!(next.graph.nodes[0].inputs[1], "kernels");
    // The weight of `z` is read as it was by `z` alone.
    assert!(next.graph.initializers.iter().any(|it| it.name == "turned" && it.dtype == F32));
    // Again: only the rest is left to do, and then nothing.
    apply(&out("but"), &rule(&seen, &[]), &out("all"), Consume::No).unwrap();
    let all = Model::read(&out("all").join("model.onnx")).unwrap();
    assert_eq!(count(&all, "QuantizeLinear"), 4 + 1, "the second reader of a value has its own");
    let again = apply(&out("all"), &rule(&seen, &[]), &out("again"), Consume::No).unwrap();
    assert_eq!(again.summary, None);
}

#[test]
fn what_the_rule_does_not_fit_is_refused_in_words() {
    let mut random = Random::new(9);
    let dir = tempfile::tempdir().unwrap();
    detector(dir.path(), &mut random);
    let refused = |thresholds: &[(&str, f32)], except: &[&str], words: &str| {
        let thresholds = thresholds.iter().map(|(name, most)| ((*name).to_owned(), *most));
        let rule = rule(&thresholds.collect(), except);
        let error = apply(dir.path(), &rule, &dir.path().join("out"), Consume::No).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(&[("other", 1.0)], &[], "its 5 products of stored weights read values without a range");
    refused(&[("x", 1.0)], &["Softmax"], "no node is called \"Softmax\"");

    let halves = tempfile::tempdir().unwrap();
    let mut world = World::new(halves.path());
    world.input("x", F16, &[symbol("b"), Dim::Fixed(7)]);
    world.weight("w", &tensor(&mut random, F16, &[7, 3]));
    world.node("MatMul", &["x", "w"], "y", &[]);
    world.output("y", F16);
    world.done(halves.path());
    let of_halves = rule(&BTreeMap::from([("x".to_owned(), 1.0)]), &[]);
    let error = apply(halves.path(), &of_halves, &halves.path().join("out"), Consume::No);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("needs operator set 19 and the model has 17; apply to-opset 19"),
        "{error}"
    );
    let newer = halves.path().join("newer");
    apply(halves.path(), &Rule::ToOpset { version: 19 }, &newer, Consume::No).unwrap();
    same_meaning(&newer, &of_halves, &mut random, 0.1);
}

/// One that never is anything but zero, and one of the smallest numbers, have scales that are more than nothing.
#[test]
fn no_scale_is_nothing() {
    for (dtype, reach) in [(F32, 0.0), (F32, 1e-44), (F16, 1e-7), (F16, 0.0)] {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::new(dir.path());
        world.model.opset = 19;
        world.input("x", dtype, &[symbol("b"), Dim::Fixed(4)]);
        world.weight(
            "w",
            &Tensor::floats(dtype, &[4, 2], vec![0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 0.0, 3.0]),
        );
        world.node("MatMul", &["x", "w"], "y", &[]);
        world.output("y", dtype);
        world.done(dir.path());
        let out = dir.path().join("out");
        let rule = rule(&BTreeMap::from([("x".to_owned(), reach)]), &[]);
        apply(dir.path(), &rule, &out, Consume::No).unwrap();
        let next = Model::read(&out.join("model.onnx")).unwrap();
        let zeros = Tensor::floats(dtype, &[1, 4], vec![0.0; 4]);
        let found = evaluate(&next, &out, &BTreeMap::from([("x".to_owned(), zeros)])).unwrap();
        assert_eq!(found[0].as_floats().unwrap(), [0.0; 2]);
    }
}
