//! Holds every rule to its meaning: both models are evaluated on random inputs and compared.

use std::fs;
use std::path::Path;

use crate::world::{World, close, ints, listing, random_inputs, same_meaning, symbol, tensor};
use smelt_onnx::eval::{evaluate, load};
use smelt_onnx::surgery::{Consume, Parts, Rule, apply, apply_heard, weights};
use smelt_onnx::{Dim, ElementType, Model, ValueInfo, inspect};
use smelt_random::Random;

#[track_caller]
fn refused(rule: &Rule, change: impl Fn(&mut World), expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
    world.weight("w", &tensor(&mut Random::new(5), ElementType::F32, &[8, 4]));
    change(&mut world);
    world.done(dir.path());
    let before: Vec<_> = listing(dir.path());
    for consume in [Consume::No, Consume::Yes] {
        let error = apply(dir.path(), rule, &dir.path().join("out"), consume).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
        assert_eq!(listing(dir.path()), before, "nothing is left behind");
    }
}

fn gemm(world: &mut World) {
    world.node("Gemm", &["x", "w"], "logits", &[("transB", 1)]);
    world.output("logits", ElementType::F32);
}

/// The shares of a rule over `gemm`, and what is done in each.
fn shares(rule: &Rule) -> Vec<(f64, String)> {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
    world.weight("w", &tensor(&mut Random::new(5), ElementType::F32, &[8, 4]));
    gemm(&mut world);
    world.done(dir.path());
    let mut heard = Vec::new();
    let hear = &mut |line: &str| heard.push(line.to_owned());
    apply_heard(dir.path(), rule, &dir.path().join("out"), Consume::No, hear).unwrap();
    let share = |line: &String| {
        let (share, what) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        let (done, all) = share.split_once('/').unwrap();
        (done.parse::<f64>().unwrap() / all.parse::<f64>().unwrap(), what.to_owned())
    };
    heard.iter().map(share).collect()
}

#[test]
fn the_share_that_is_written_is_told() {
    let copied = shares(&Rule::SetBatch { size: 2 });
    assert!(copied.len() == 1 && copied[0].1.starts_with("copying "), "{copied:?}");
    let cut = shares(&Rule::SplitHead { output: None, parts: Parts::Count(2) });
    assert!(cut.is_sorted_by(|a, b| a.0 <= b.0), "{cut:?}");
    assert!(cut.iter().all(|(share, _)| (0.0..=1.0).contains(share)), "{cut:?}");
}

#[test]
fn what_a_rule_does_not_fit_is_refused_in_words() {
    let split = |parts| Rule::SplitHead { output: None, parts };
    refused(&split(Parts::Count(9)), gemm, "8 tokens cannot make 9 parts");
    refused(&split(Parts::MaxBytes(15)), gemm, "makes more than 256 parts");
    let named = Rule::SplitHead { output: Some("z".into()), parts: Parts::Count(2) };
    refused(&named, gemm, "no value \"z\"");
    let exp = |world: &mut World| {
        world.node("Exp", &["x"], "y", &[]);
        world.output("y", ElementType::F32);
    };
    refused(&split(Parts::Count(2)), exp, "Exp node \"n0\", which is no product");
    refused(&Rule::SetBatch { size: 0 }, gemm, "batch of 0");
    let fixed = |world: &mut World| {
        gemm(world);
        world.model.graph.inputs[0].dims = Some(vec![Dim::Fixed(3), Dim::Fixed(4)]);
    };
    refused(&Rule::SetBatch { size: 2 }, fixed, "no input has a symbolic first dimension");
    let unneeded = Rule::Extract { inputs: vec!["logits".into()], outputs: vec!["x".into()] };
    refused(&unneeded, gemm, "do not need \"logits\"");
    let cast = Rule::InsertCast { nodes: "Softmax".into(), to: ElementType::F16 };
    refused(&cast, gemm, "no node is called \"Softmax\"");
    refused(&Rule::Externalize { names: vec!["v".into()] }, gemm, "no weight \"v\"");
}

#[test]
fn a_failed_write_leaves_source_and_target_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
    world.weight("w", &tensor(&mut Random::new(5), ElementType::F32, &[8, 4]));
    gemm(&mut world);
    world.done(dir.path());
    fs::create_dir(dir.path().join("out")).unwrap();
    fs::write(dir.path().join("out/old"), "old").unwrap();
    let before = listing(dir.path());
    let error = apply(dir.path(), &Rule::Dedupe, &dir.path().join("out"), Consume::Yes);
    assert!(error.unwrap_err().to_string().contains("not an empty directory"));
    assert_eq!(
        (listing(dir.path()), listing(&dir.path().join("out"))),
        (before, vec!["old".into()])
    );
    let error = apply(dir.path(), &Rule::Dedupe, &dir.path().join("none/out"), Consume::Yes);
    assert!(error.unwrap_err().to_string().contains("cannot create"));
    fs::remove_file(dir.path().join("out/old")).unwrap();
    apply(dir.path(), &Rule::Dedupe, &dir.path().join("out"), Consume::Yes).unwrap();
    assert_eq!(listing(dir.path()), ["out"], "an empty directory is taken, the source used up");
}

/// A random graph of matrices `[b, n]`, with repeated weights, shape arithmetic and casts.
fn random_world(dir: &Path, random: &mut Random) -> Model {
    use ElementType::F32;
    let n = 1 + random.below(5);
    let mut world = World::new(dir);
    world.input("x", F32, &[symbol("b"), Dim::Fixed(n)]);
    let (square, row) = (tensor(random, F32, &[n, n]), tensor(random, F32, &[n]));
    for copy in 0..3 {
        world.weight(&format!("square{copy}"), &square);
        world.weight(&format!("row{copy}"), &row);
    }
    world.inline("two", &ints(&[2]));
    world.inline("n", &ints(&[n as i64]));
    world.inline("one", &ints(&[1]));
    world.inline("zero", &ints(&[0]));
    let mut values = vec!["x".to_owned()];
    for step in 0..4 + random.below(8) {
        let from = values[random.below(values.len())].clone();
        let other = values[random.below(values.len())].clone();
        let copy = random.below(3);
        let name = format!("v{step}");
        match random.below(7) {
            0 => world.node("MatMul", &[&from, &format!("square{copy}")], &name, &[]),
            1 => world.node("Add", &[&from, &format!("row{copy}")], &name, &[]),
            2 => world.node("Mul", &[&from, &other], &name, &[]),
            3 => world.node("Softmax", &[&from], &name, &[]),
            4 => world.node("Tanh", &[&from], &name, &[]),
            5 => world.node("Sin", &[&from], &name, &[]),
            _ => {
                let [a, b, c, d] = ["a", "b", "c", "d"].map(|part| format!("{name}.{part}"));
                world.node("Mul", &["two", "n"], &a, &[]);
                world.node("Div", &[&a, "two"], &b, &[]);
                world.node("Concat", &["zero", &b], &c, &[("axis", 0)]);
                world.node("Reshape", &[&from, &c], &d, &[]);
                world.node("Sub", &[&d, &other], &name, &[]);
            }
        }
        values.push(name);
    }
    world.output(values.last().unwrap(), F32);
    world.done(dir)
}

#[test]
fn equal_weights_are_stored_once_and_mean_the_same() {
    let mut random = Random::new(11);
    let mut merged = 0;
    for _ in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        random_world(dir.path(), &mut random);
        let (next, _) = same_meaning(dir.path(), &Rule::Dedupe, &mut random, 0.0);
        let weights = next.graph.initializers.iter().filter(|t| t.dtype == ElementType::F32);
        merged += 6 - weights.count();
    }
    assert_eq!(merged, 60 * 4, "six weights are two");
}

#[test]
fn folded_constants_mean_the_same() {
    let mut random = Random::new(13);
    let mut folded = 0;
    for _ in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        random_world(dir.path(), &mut random);
        let (next, report) = same_meaning(dir.path(), &Rule::FoldConstants, &mut random, 0.0);
        folded += report.nodes[0] - report.nodes[1];
        assert!(next.graph.nodes.iter().all(|node| node.op != "Concat"));
    }
    assert!(folded > 60, "{folded}");
}

#[test]
fn a_fixed_batch_makes_shapes_constant() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(3)]);
    world.input("y", ElementType::F32, &[symbol("b"), symbol("t")]);
    world.node("Shape", &["x"], "dims", &[]);
    world.node("Reshape", &["x", "dims"], "z", &[]);
    world.output("z", ElementType::F32);
    world.model.graph.outputs[0].dims = Some(vec![symbol("b"), Dim::Fixed(3)]);
    world.done(dir.path());
    let out = dir.path().join("fixed");
    apply(dir.path(), &Rule::SetBatch { size: 2 }, &out, Consume::No).unwrap();
    let model = Model::read(&out.join("model.onnx")).unwrap();
    let dims = |info: &ValueInfo| info.dims.clone().unwrap();
    assert_eq!(dims(&model.graph.inputs[0]), [Dim::Fixed(2), Dim::Fixed(3)]);
    assert_eq!(dims(&model.graph.inputs[1]), [Dim::Fixed(2), symbol("t")]);
    assert_eq!(dims(&model.graph.outputs[0]), [Dim::Fixed(2), Dim::Fixed(3)]);
    let again = apply(&out, &Rule::SetBatch { size: 2 }, &dir.path().join("x"), Consume::No);
    assert_eq!(again.unwrap().summary, None);
    let (next, _) = same_meaning(&out, &Rule::FoldConstants, &mut Random::new(1), 0.0);
    assert_eq!(next.graph.nodes.len(), 1);
    let unfixed = same_meaning(dir.path(), &Rule::SetBatch { size: 2 }, &mut Random::new(1), 0.0);
    assert_eq!(unfixed.0, model);
}

#[test]
fn what_is_extracted_computes_what_it_did_inside() {
    let mut random = Random::new(17);
    for _ in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let model = random_world(dir.path(), &mut random);
        let inputs = random_inputs(&model, &mut random, 2);
        let outputs = [model.graph.nodes[random.below(model.graph.nodes.len())].outputs[0].clone()];
        let middle = Rule::Extract { inputs: vec![], outputs: outputs.to_vec() };
        let first = dir.path().join("first");
        apply(dir.path(), &middle, &first, Consume::No).unwrap();
        let front = Model::read(&first.join("model.onnx")).unwrap();
        let between = evaluate(&front, &first, &inputs).unwrap();
        // The rest of the graph, from that value on, gives the old outputs.
        let last = model.graph.outputs[0].name.clone();
        let rest = Rule::Extract { inputs: outputs.to_vec(), outputs: vec![last.clone()] };
        let second = dir.path().join("second");
        let Ok(report) = apply(dir.path(), &rest, &second, Consume::No) else { continue };
        assert!(report.nodes[1] <= report.nodes[0]);
        let back = Model::read(&second.join("model.onnx")).unwrap();
        let mut inputs = inputs.clone();
        inputs.insert(outputs[0].clone(), between[0].clone());
        let expect = evaluate(&model, dir.path(), &inputs).unwrap();
        close(&evaluate(&back, &second, &inputs).unwrap()[0], &expect[0], 0.0);
    }
}

#[test]
fn dead_weights_are_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
    world.weight("big", &tensor(&mut Random::new(1), ElementType::F32, &[4, 9000]));
    world.weight("small", &tensor(&mut Random::new(2), ElementType::F32, &[4, 3]));
    world.node("MatMul", &["x", "small"], "y", &[]);
    world.node("MatMul", &["x", "big"], "z", &[]);
    world.output("y", ElementType::F32);
    world.output("z", ElementType::F32);
    let model = world.done(dir.path());
    let rule = Rule::Extract { inputs: vec![], outputs: vec!["y".into()] };
    let out = dir.path().join("out");
    let report = apply(dir.path(), &rule, &out, Consume::No).unwrap();
    assert_eq!((report.bytes_written, report.bytes_dead), (48, 0));
    let inputs = random_inputs(&model, &mut Random::new(3), 2);
    let expect = evaluate(&model, dir.path(), &inputs).unwrap();
    let next = Model::read(&out.join("model.onnx")).unwrap();
    close(&evaluate(&next, &out, &inputs).unwrap()[0], &expect[0], 0.0);
}

#[test]
fn weights_as_inputs_are_found_again_after_more_surgery() {
    let mut random = Random::new(19);
    for _ in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        random_world(dir.path(), &mut random);
        let rule = Rule::Externalize { names: vec![] };
        let (next, _) = same_meaning(dir.path(), &rule, &mut random, 0.0);
        assert_eq!(weights(&next).len(), 6);
        let copied = dir.path().join("copied");
        let out = dir.path().join("twice");
        apply(&copied, &Rule::FoldConstants, &out, Consume::No).unwrap();
        let twice = Model::read(&out.join("model.onnx")).unwrap();
        for (a, b) in weights(&next).iter().zip(weights(&twice)) {
            assert_eq!(load(&copied, a).unwrap(), load(&out, &b).unwrap());
        }
    }
}

#[test]
fn nodes_cast_to_another_type_differ_by_rounding_only() {
    let mut random = Random::new(23);
    for (to, tolerance) in [(ElementType::F64, 1e-5), (ElementType::F16, 0.2)] {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let model = random_world(dir.path(), &mut random);
            let nodes = model.graph.nodes.iter().rfind(|n| n.inputs[0] != "two").unwrap();
            let rule = Rule::InsertCast { nodes: nodes.name.clone(), to };
            let (next, report) = same_meaning(dir.path(), &rule, &mut random, tolerance);
            assert!(report.nodes[1] >= report.nodes[0] + 2, "{report:?}");
            assert!(next.graph.nodes.iter().any(|node| node.op == "Cast"));
        }
    }
}

#[test]
fn embedded_weights_move_out_and_subgraphs_keep_their_own_names() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/foreign.onnx"));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    apply(source, &Rule::Dedupe, &out, Consume::No).unwrap();
    let (old, new) = (Model::read(source).unwrap(), Model::read(&out.join("model.onnx")).unwrap());
    for tensor in &new.graph.initializers {
        let before = old.graph.initializers.iter().find(|t| t.name == tensor.name).unwrap();
        assert_eq!(load(&out, tensor).ok(), load(source.parent().unwrap(), before).ok());
    }
    assert!(!listing(&out).contains(&"foreign.onnx".to_owned()));
}

#[test]
fn a_model_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
    world.weight("w", &tensor(&mut Random::new(5), ElementType::F32, &[8, 4]));
    gemm(&mut world);
    let text = inspect(&world.done(dir.path())).to_string();
    for line in [
        "opset 17, IR version 8, made by test",
        "  x  f32  [b, 4]",
        "  logits  f32  of any shape",
        "nodes 1",
        "  Gemm  1",
        "tensors 1, 128 B",
        "  f32  1  128 B",
        "  128 B  w  f32 [8, 4]  model.onnx.data at 0",
    ] {
        assert!(text.lines().any(|got| got == line), "{line:?} is not in\n{text}");
    }
}
