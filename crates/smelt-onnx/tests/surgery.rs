//! Holds every rule to its meaning: both models are evaluated on random inputs and compared.

#![allow(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use smelt_onnx::eval::{Tensor, evaluate, load};
use smelt_onnx::surgery::{Consume, Parts, Report, Rule, apply, weights};
use smelt_onnx::{
    Attribute, AttributeValue, Data, Dim, ElementType, ExternalData, Graph, Initializer, Model,
    Node, ValueInfo, check, inspect,
};

/// A splitmix64 sequence: the same worlds every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn chance(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn tensor(&mut self, dtype: ElementType, dims: &[usize]) -> Tensor {
        let count = dims.iter().product();
        if dtype.is_float() {
            let values = (0..count).map(|_| self.below(2001) as f64 / 1000.0 - 1.0).collect();
            return Tensor::floats(dtype, dims, values);
        }
        Tensor::ints(dtype, dims, (0..count).map(|_| self.below(5) as i64).collect())
    }
}

/// A model under construction in a directory.
struct World {
    data: ExternalData,
    model: Model,
}

impl World {
    fn new(dir: &Path) -> Self {
        let data = ExternalData::create(dir).unwrap();
        let model = Model {
            ir_version: 8,
            opset: 17,
            other_opsets: vec![],
            producer: "test".into(),
            metadata: vec![],
            graph: Graph { name: "g".into(), ..Graph::default() },
        };
        Self { data, model }
    }

    fn input(&mut self, name: &str, dtype: ElementType, dims: &[Dim]) {
        let info = ValueInfo { name: name.into(), dtype, dims: Some(dims.to_vec()) };
        self.model.graph.inputs.push(info);
    }

    fn output(&mut self, name: &str, dtype: ElementType) {
        let info = ValueInfo { name: name.into(), dtype, dims: None };
        self.model.graph.outputs.push(info);
    }

    fn weight(&mut self, name: &str, tensor: &Tensor) {
        let mut writer = self.data.tensor(name, tensor.dtype(), tensor.dims()).unwrap();
        writer.write(&tensor.to_bytes()).unwrap();
        self.model.graph.initializers.push(writer.finish().unwrap());
    }

    fn inline(&mut self, name: &str, tensor: &Tensor) {
        self.model.graph.initializers.push(Initializer {
            name: name.into(),
            dtype: tensor.dtype(),
            dims: tensor.dims().to_vec(),
            data: Data::Inline(tensor.to_bytes()),
        });
    }

    fn node(&mut self, op: &str, inputs: &[&str], output: &str, ints: &[(&str, i64)]) {
        let attribute = |(name, value): &(&str, i64)| attribute(name, AttributeValue::Int(*value));
        self.model.graph.nodes.push(Node {
            name: format!("n{}", self.model.graph.nodes.len()),
            op: op.into(),
            inputs: inputs.iter().map(|name| (*name).to_owned()).collect(),
            outputs: vec![output.into()],
            attributes: ints.iter().map(attribute).collect(),
            ..Node::default()
        });
    }

    fn done(self, dir: &Path) -> Model {
        check(&self.model, dir).unwrap();
        self.model.write(dir).unwrap();
        self.model
    }
}

fn attribute(name: &str, value: AttributeValue) -> Attribute {
    Attribute { name: name.into(), value }
}

fn symbol(name: &str) -> Dim {
    Dim::Symbol(name.into())
}

fn random_inputs(model: &Model, random: &mut Random, batch: usize) -> BTreeMap<String, Tensor> {
    let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { batch };
    let given = model.graph.inputs.iter().map(|info| {
        let dims: Vec<usize> = info.dims.iter().flatten().map(size).collect();
        (info.name.clone(), random.tensor(info.dtype, &dims))
    });
    given.collect()
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::ints(ElementType::I64, &[values.len()], values.to_vec())
}

/// Applies `rule` both ways (copying, consuming) and holds both results to the old meaning.
#[track_caller]
fn same_meaning(dir: &Path, rule: &Rule, random: &mut Random, tolerance: f64) -> (Model, Report) {
    let model = Model::read(&dir.join("model.onnx")).unwrap();
    let inputs = random_inputs(&model, random, 2);
    let expect = evaluate(&model, dir, &inputs).unwrap();
    let (copied, consumed) = (dir.join("copied"), dir.join("consumed"));
    let report = apply(dir, rule, &copied, Consume::No).unwrap();
    apply(dir, rule, &consumed, Consume::Yes).unwrap();
    assert!(!dir.join("model.onnx").exists(), "the source is used up");
    let mut next = None;
    for out in [&copied, &consumed] {
        let model = Model::read(&out.join("model.onnx")).unwrap();
        check(&model, out).unwrap();
        let mut inputs = inputs.clone();
        for weight in weights(&model) {
            inputs.insert(weight.name.clone(), load(out, &weight).unwrap());
        }
        let got = evaluate(&model, out, &inputs).unwrap();
        assert_eq!(got.len(), expect.len());
        for (got, expect) in got.iter().zip(&expect) {
            close(got, expect, tolerance);
        }
        next.get_or_insert(model);
    }
    (next.unwrap(), report)
}

#[track_caller]
fn close(got: &Tensor, expect: &Tensor, tolerance: f64) {
    assert_eq!((got.dtype(), got.dims()), (expect.dtype(), expect.dims()));
    assert_eq!(got.as_ints(), expect.as_ints());
    let pairs = got.as_floats().into_iter().flatten().zip(expect.as_floats().into_iter().flatten());
    for (got, expect) in pairs {
        let room = tolerance * (1.0 + expect.abs());
        assert!((got - expect).abs() <= room, "{got} is not {expect}");
    }
}

/// How a random head stores its weight.
const HEADS: [&str; 7] =
    ["gemm-rows", "gemm-columns", "matmul", "tied", "dequantised", "cast", "dequantised-tied"];

/// A graph with a head of `kind`, and after it whatever may stand between it and the output.
fn head_world(dir: &Path, kind: &str, random: &mut Random) -> Model {
    use ElementType::{F16, F32, I8, I64};
    let (hidden, vocab) = (1 + random.below(6), 5 + random.below(12));
    let mut world = World::new(dir);
    let pad = [1 + random.below(9)];
    world.weight("pad", &random.tensor(F32, &pad));
    world.input("x", F32, &[symbol("b"), Dim::Fixed(hidden)]);
    let (rows, columns) = ([vocab, hidden], [hidden, vocab]);
    let out = "head";
    match kind {
        "gemm-rows" => {
            world.weight("w", &random.tensor(F32, &rows));
            let bias: &[&[usize]] = &[&[vocab], &[1, vocab], &[], &[1], &[2, vocab], &[2, 1]];
            let bias = bias[random.below(6)];
            world.weight("c", &random.tensor(F32, bias));
            world.node("Gemm", &["x", "w", "c"], out, &[("transB", 1)]);
        }
        "gemm-columns" => {
            world.weight("w", &random.tensor(F32, &columns));
            world.node("Gemm", &["x", "w"], out, &[]);
        }
        "matmul" => {
            let tensor = random.tensor(F32, &columns);
            if random.chance() {
                world.weight("w", &tensor)
            } else {
                world.inline("w", &tensor)
            }
            world.node("MatMul", &["x", "w"], out, &[]);
        }
        "tied" => {
            world.weight("w", &random.tensor(F32, &rows));
            world.input("ids", I64, &[symbol("b")]);
            world.node("Gather", &["w", "ids"], "tokens", &[]);
            world.node("Add", &["x", "tokens"], "sum", &[]);
            world.node("Transpose", &["w"], "turned", &[]);
            world.node("MatMul", &["sum", "turned"], out, &[]);
        }
        "cast" => {
            world.weight("w", &random.tensor(F16, &columns));
            world.node("Cast", &["w"], "wide", &[("to", 1)]);
            world.node("MatMul", &["x", "wide"], out, &[]);
        }
        _ => {
            let axis = i64::from(random.chance());
            world.weight("w", &random.tensor(I8, &rows));
            let count = if axis == 0 { vocab } else { hidden };
            world.weight("s", &random.tensor(F32, &[count]));
            world.weight("z", &random.tensor(I8, &[count]));
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
                world.weight(&next.replace("after", "bias"), &random.tensor(F32, &[1]));
                world.node("Add", &[&next.replace("after", "bias"), &last], &next, &[]);
            }
            _ => {
                world.inline(&next.replace("after", "dims"), &ints(&[0, 0]));
                world.node("Reshape", &[&last, &next.replace("after", "dims")], &next, &[]);
            }
        }
        last = next;
    }
    if random.chance() {
        world.node("Exp", &[out], "second", &[]);
        world.output("second", F32);
    }
    // The output is the head itself, or what stands behind it.
    world.node("Identity", &[&last], "logits", &[]);
    if random.chance() {
        world.output(out, F32);
    }
    world.output("logits", F32);
    world.done(dir)
}

#[test]
fn a_split_head_means_the_same() {
    let mut random = Random(1);
    let mut small = 0;
    for round in 0..210 {
        let dir = tempfile::tempdir().unwrap();
        let kind = HEADS[round % HEADS.len()];
        head_world(dir.path(), kind, &mut random);
        let row = (1 + random.below(3)) as u64 * 24;
        let rule = if random.chance() || kind.starts_with("dequantised") {
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
    world.weight("w", &Random(3).tensor(ElementType::F32, &[64, 256]));
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

#[track_caller]
fn refused(rule: &Rule, change: impl Fn(&mut World), expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    world.input("x", ElementType::F32, &[symbol("b"), Dim::Fixed(4)]);
    world.weight("w", &Random(5).tensor(ElementType::F32, &[8, 4]));
    change(&mut world);
    world.done(dir.path());
    let before: Vec<_> = listing(dir.path());
    for consume in [Consume::No, Consume::Yes] {
        let error = apply(dir.path(), rule, &dir.path().join("out"), consume).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
        assert_eq!(listing(dir.path()), before, "nothing is left behind");
    }
}

fn listing(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn gemm(world: &mut World) {
    world.node("Gemm", &["x", "w"], "logits", &[("transB", 1)]);
    world.output("logits", ElementType::F32);
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
    world.weight("w", &Random(5).tensor(ElementType::F32, &[8, 4]));
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
    let (square, row) = (random.tensor(F32, &[n, n]), random.tensor(F32, &[n]));
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
    let mut random = Random(11);
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
    let mut random = Random(13);
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
    let (next, _) = same_meaning(&out, &Rule::FoldConstants, &mut Random(1), 0.0);
    assert_eq!(next.graph.nodes.len(), 1);
    let unfixed = same_meaning(dir.path(), &Rule::SetBatch { size: 2 }, &mut Random(1), 0.0);
    assert_eq!(unfixed.0, model);
}

#[test]
fn what_is_extracted_computes_what_it_did_inside() {
    let mut random = Random(17);
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
    world.weight("big", &Random(1).tensor(ElementType::F32, &[4, 9000]));
    world.weight("small", &Random(2).tensor(ElementType::F32, &[4, 3]));
    world.node("MatMul", &["x", "small"], "y", &[]);
    world.node("MatMul", &["x", "big"], "z", &[]);
    world.output("y", ElementType::F32);
    world.output("z", ElementType::F32);
    let model = world.done(dir.path());
    let rule = Rule::Extract { inputs: vec![], outputs: vec!["y".into()] };
    let out = dir.path().join("out");
    let report = apply(dir.path(), &rule, &out, Consume::No).unwrap();
    assert_eq!((report.bytes_written, report.bytes_dead), (48, 0));
    let inputs = random_inputs(&model, &mut Random(3), 2);
    let expect = evaluate(&model, dir.path(), &inputs).unwrap();
    let next = Model::read(&out.join("model.onnx")).unwrap();
    close(&evaluate(&next, &out, &inputs).unwrap()[0], &expect[0], 0.0);
}

#[test]
fn weights_as_inputs_are_found_again_after_more_surgery() {
    let mut random = Random(19);
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
    let mut random = Random(23);
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
    world.weight("w", &Random(5).tensor(ElementType::F32, &[8, 4]));
    gemm(&mut world);
    let text = inspect(&world.done(dir.path()));
    for line in [
        "opset 17, IR version 8",
        "input x f32 [b, 4]",
        "output logits f32 of any shape",
        "       1 Gemm",
        "       1 f32, 128 bytes",
        "           128 w f32 [8, 4], model.onnx.data at 0",
    ] {
        assert!(text.lines().any(|got| got == line), "{line:?} is not in\n{text}");
    }
}
