//! Checks that a vision engine executes the graph it is given, and says what it cannot execute.

use std::fs;
use std::path::Path;

use smelt_engine::graph::{GraphEngine, Tensor};
use smelt_engine::vision::{self, Grid, RunError, VisionEngine};
use smelt_engine_build::BuildError;
use smelt_engine_build::graph::{self, Precision};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::model::{self, ModelPart};
use smelt_onnx::{
    Attribute, AttributeValue, Data, Dim, ElementType, Graph, Initializer, Model, Node, ValueInfo,
};
use tempfile::TempDir;

/// Pixels of the tiny picture.
const SIZE: usize = 6;
const HIDDEN: usize = 5;

fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> Node {
    Node {
        name: name.to_owned(),
        op: op.to_owned(),
        inputs: inputs.iter().map(|&s| s.to_owned()).collect(),
        outputs: outputs.iter().map(|&s| s.to_owned()).collect(),
        ..Node::default()
    }
}

fn with(mut node: Node, name: &str, value: AttributeValue) -> Node {
    node.attributes.push(Attribute { name: name.to_owned(), value });
    node
}

fn floats(name: &str, dims: &[usize], values: &[f32]) -> Initializer {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    initializer(name, ElementType::F32, dims, bytes)
}

fn initializer(name: &str, dtype: ElementType, dims: &[usize], bytes: Vec<u8>) -> Initializer {
    Initializer { name: name.to_owned(), dtype, dims: dims.to_vec(), data: Data::Inline(bytes) }
}

fn integers(name: &str, values: &[i64]) -> Initializer {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    initializer(name, ElementType::I64, &[values.len()], bytes)
}

/// Numbers without order in -1..1.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

fn value(name: &str, dims: Vec<Dim>) -> ValueInfo {
    ValueInfo { name: name.to_owned(), dtype: ElementType::F32, dims: Some(dims) }
}

fn model(opset: i64, nodes: Vec<Node>, initializers: Vec<Initializer>) -> Model {
    let fixed = |dims: &[usize]| dims.iter().copied().map(Dim::Fixed).collect::<Vec<_>>();
    Model {
        ir_version: 8,
        opset,
        other_opsets: vec![],
        producer: "test".to_owned(),
        metadata: vec![],
        graph: Graph {
            name: "tiny".to_owned(),
            inputs: vec![value(
                "pixels",
                [vec![Dim::Symbol("n".to_owned())], fixed(&[3, SIZE, SIZE])].concat(),
            )],
            outputs: vec![value("embeds", vec![Dim::Unknown, Dim::Unknown, Dim::Fixed(HIDDEN)])],
            nodes,
            initializers,
        },
    }
}

/// Patches of 2x2, a projection, a GELU from its parts, and a last product: 9 tokens of 5.
fn tiny(middle: Vec<Node>) -> Model {
    let mut nodes = vec![
        with(
            node("Conv", "patch", &["pixels", "conv.weight", "conv.bias"], &["patches"]),
            "strides",
            AttributeValue::Ints(vec![2, 2]),
        ),
        node("Reshape", "flat", &["patches", "flat_shape"], &["rows_t"]),
        with(
            node("Transpose", "turn", &["rows_t"], &["rows"]),
            "perm",
            AttributeValue::Ints(vec![0, 2, 1]),
        ),
    ];
    nodes.extend(middle);
    nodes.push(node("MatMul", "last", &["gelu", "last.weight"], &["embeds"]));
    let initializers = vec![
        floats("conv.weight", &[4, 3, 2, 2], &noise(48, 1)),
        floats("conv.bias", &[4], &noise(4, 2)),
        floats("last.weight", &[4, HIDDEN], &noise(4 * HIDDEN, 3)),
        integers("flat_shape", &[0, 0, -1]),
        floats("root2", &[], &[std::f32::consts::SQRT_2]),
        floats("one", &[], &[1.0]),
        floats("half", &[], &[0.5]),
        floats("c", &[], &[0.044_715]),
        floats("root", &[], &[(2.0 / std::f32::consts::PI).sqrt()]),
        floats("three", &[], &[3.0]),
    ];
    model(17, nodes, initializers)
}

fn erf_gelu() -> Vec<Node> {
    vec![
        node("Div", "div", &["rows", "root2"], &["scaled"]),
        node("Erf", "erf", &["scaled"], &["erfed"]),
        node("Add", "add", &["erfed", "one"], &["gate"]),
        node("Mul", "mul", &["rows", "gate"], &["gated"]),
        node("Mul", "halve", &["gated", "half"], &["gelu"]),
    ]
}

fn tanh_gelu() -> Vec<Node> {
    vec![
        node("Pow", "pow", &["rows", "three"], &["cube"]),
        node("Mul", "scale", &["cube", "c"], &["small"]),
        node("Add", "sum", &["rows", "small"], &["inner"]),
        node("Mul", "rooted", &["inner", "root"], &["angle"]),
        node("Tanh", "tanh", &["angle"], &["tanned"]),
        node("Add", "add", &["tanned", "one"], &["gate"]),
        node("Mul", "mul", &["rows", "gate"], &["gated"]),
        node("Mul", "halve", &["gated", "half"], &["gelu"]),
    ]
}

fn try_build(model: &Model, dir: &Path) -> Result<VisionEngine, BuildError> {
    try_build_as(model, Precision::F32, dir)
}

fn try_build_as(
    model: &Model,
    precision: Precision,
    dir: &Path,
) -> Result<VisionEngine, BuildError> {
    let (onnx, engine) = (dir.join("onnx"), dir.join("engine"));
    fs::create_dir_all(&onnx).unwrap();
    model.write(&onnx).unwrap();
    graph::build(&onnx, precision, &engine, &mut |_| {})?;
    Ok(vision::open(&engine).unwrap())
}

/// What was built in `dir`, with so many threads.
fn with_threads(dir: &Path, count: usize) -> VisionEngine {
    let graph = GraphEngine::open(&dir.join("engine")).unwrap().with_threads(count);
    VisionEngine::new(Box::new(graph), None).unwrap()
}

fn answer(model: &Model) -> Vec<f32> {
    let dir = TempDir::new().unwrap();
    let engine = try_build(model, dir.path()).unwrap();
    engine.encode(&noise(2 * 3 * SIZE * SIZE, 9), 2).unwrap()
}

/// The tiny graph by hand, in f64.
fn by_hand(pixels: &[f32], gelu: fn(f64) -> f64) -> Vec<f64> {
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let (filter, bias) = (wide(noise(48, 1)), wide(noise(4, 2)));
    let last = wide(noise(4 * HIDDEN, 3));
    let mut out = Vec::new();
    for patch in 0..9 {
        let (top, left) = (patch / 3 * 2, patch % 3 * 2);
        let mut row = bias.clone();
        for (kernel, sum) in row.iter_mut().enumerate() {
            for (index, weight) in filter[kernel * 12..][..12].iter().enumerate() {
                let (channel, y, x) = (index / 4, top + index / 2 % 2, left + index % 2);
                *sum += weight * f64::from(pixels[(channel * SIZE + y) * SIZE + x]);
            }
        }
        for column in 0..HIDDEN {
            let products =
                row.iter().enumerate().map(|(k, &v)| gelu(v) * last[k * HIDDEN + column]);
            out.push(products.sum());
        }
    }
    out
}

#[test]
fn a_tiny_graph_gives_what_it_says() {
    let dir = TempDir::new().unwrap();
    let engine = try_build(&tiny(tanh_gelu()), dir.path()).unwrap();
    assert_eq!(
        (engine.grid().unwrap().width, engine.tokens_per_tile(), engine.hidden()),
        (SIZE, 9, HIDDEN)
    );
    let pixels = noise(2 * 3 * SIZE * SIZE, 9);
    let got = engine.encode(&pixels, 2).unwrap();
    let gelu = |x: f64| {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
    };
    let tiles = pixels.chunks_exact(3 * SIZE * SIZE);
    let expect: Vec<f64> = tiles.flat_map(|tile| by_hand(tile, gelu)).collect();
    assert_eq!(got.len(), expect.len());
    for (got, expect) in got.iter().zip(&expect) {
        assert!((f64::from(*got) - expect).abs() < 2e-6, "{got} {expect}");
    }
}

#[test]
fn renaming_changes_no_bit() {
    let plain = tiny(erf_gelu());
    let mut renamed = plain.clone();
    let rename = |name: &mut String| {
        if !name.is_empty() {
            *name = format!("zz/{name}/{}", name.len());
        }
    };
    for node in &mut renamed.graph.nodes {
        rename(&mut node.name);
        node.inputs.iter_mut().chain(&mut node.outputs).for_each(rename);
    }
    renamed.graph.initializers.iter_mut().for_each(|tensor| rename(&mut tensor.name));
    for value in renamed.graph.inputs.iter_mut().chain(&mut renamed.graph.outputs) {
        rename(&mut value.name);
    }
    assert_eq!(answer(&plain), answer(&renamed));
}

#[test]
fn identities_anywhere_change_no_bit() {
    let plain = tiny(erf_gelu());
    let expect = answer(&plain);
    for (index, original) in plain.graph.nodes.iter().enumerate() {
        for input in 0..original.inputs.len() {
            let mut changed = plain.clone();
            let read = changed.graph.nodes[index].inputs[input].clone();
            "same".clone_into(&mut changed.graph.nodes[index].inputs[input]);
            changed.graph.nodes.insert(index, node("Identity", "same", &[&read], &["same"]));
            assert_eq!(answer(&changed), expect, "before input {input} of node {index}");
        }
    }
}

#[test]
fn the_tanh_form_of_gelu_changes_exactly_the_answer() {
    let (erf, tanh) = (answer(&tiny(erf_gelu())), answer(&tiny(tanh_gelu())));
    assert_ne!(erf, tanh);
    let apart = erf.iter().zip(&tanh).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(apart > 1e-5 && apart < 1e-2, "the two forms are {apart} apart");
}

#[test]
fn weights_read_back_as_the_graph_has_them() {
    // One weight has a row for each output, the other a column; both lie in stripes.
    let given = [("conv.weight", noise(48, 1)), ("last.weight", noise(4 * HIDDEN, 3))];
    for (precision, dtype, quants) in
        [(Precision::F32, Dtype::F32, f32::INFINITY), (Precision::Int8, Dtype::I8, 127.0)]
    {
        let dir = TempDir::new().unwrap();
        let engine = try_build_as(&tiny(erf_gelu()), precision, dir.path()).unwrap();
        for (name, expect) in &given {
            let constant = engine.constant(name).unwrap();
            assert_eq!((constant.count(), constant.dtype()), (expect.len(), dtype.name()));
            for (start, len) in [(0, expect.len()), (3, 11), (expect.len() - 1, 1)] {
                let mut found = vec![9.0; len];
                constant.widen(start, &mut found);
                for (found, expect) in found.iter().zip(&expect[start..]) {
                    // Numbers are below 1, so half a quant is, too.
                    assert!((found - expect).abs() <= 0.5001 / quants, "{name} from {start}");
                }
            }
        }
    }
}

#[test]
fn eight_bits_cost_little_and_change_no_bit_between_threads() {
    let dir = TempDir::new().unwrap();
    let engine = try_build_as(&tiny(erf_gelu()), Precision::Int8, dir.path()).unwrap();
    let got = engine.encode(&noise(2 * 3 * SIZE * SIZE, 9), 2).unwrap();
    let expect = answer(&tiny(erf_gelu()));
    assert_ne!(got, expect);
    for (got, expect) in got.iter().zip(&expect) {
        assert!((got - expect).abs() < 0.05, "{got} {expect}");
    }
    let engine = with_threads(dir.path(), 3);
    assert_eq!(engine.encode(&noise(2 * 3 * SIZE * SIZE, 9), 2).unwrap(), got);
    let mut broken = tiny(erf_gelu());
    broken.graph.initializers[2] = floats("last.weight", &[4, HIDDEN], &[f32::INFINITY; 20]);
    let error = try_build_as(&broken, Precision::Int8, &dir.path().join("broken")).unwrap_err();
    assert!(error.to_string().contains("\"last.weight\" holds what is no number"), "{error}");
}

#[test]
fn threads_change_no_bit() {
    let dir = TempDir::new().unwrap();
    let engine = try_build(&tiny(erf_gelu()), dir.path()).unwrap();
    let pixels = noise(3 * SIZE * SIZE, 4);
    let expect = engine.encode(&pixels, 1).unwrap();
    for threads in [1, 3, 8] {
        let engine = with_threads(dir.path(), threads);
        assert_eq!(engine.encode(&pixels, 1).unwrap(), expect);
    }
}

#[test]
fn constant_nodes_and_computed_shapes_are_followed() {
    // The tiny graph with its reshape computed from Shape, and a constant from a node.
    let mut changed = tiny(erf_gelu());
    let shape = vec![
        node("Shape", "shape", &["patches"], &["dims"]),
        with(
            node("Constant", "two", &[], &["two"]),
            "value_ints",
            AttributeValue::Ints(vec![0, 1]),
        ),
        node("Gather", "pick", &["dims", "two"], &["head"]),
        with(
            node("Constant", "rest", &[], &["rest"]),
            "value_ints",
            AttributeValue::Ints(vec![-1]),
        ),
        with(
            node("Concat", "join", &["head", "rest"], &["computed"]),
            "axis",
            AttributeValue::Int(0),
        ),
    ];
    let at = changed.graph.nodes.iter().position(|node| node.op == "Reshape").unwrap();
    "computed".clone_into(&mut changed.graph.nodes[at].inputs[1]);
    changed.graph.nodes.splice(at..at, shape);
    assert_eq!(answer(&changed), answer(&tiny(erf_gelu())));
}

#[track_caller]
fn refused(model: &Model, words: &[&str]) {
    let dir = TempDir::new().unwrap();
    let error = try_build(model, dir.path()).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "{error}");
    }
    assert!(!error.contains('\n'), "{error}");
    assert!(!dir.path().join("engine/engine.json").exists(), "nothing is sealed");
}

#[test]
fn what_cannot_run_is_refused_when_it_is_built() {
    let mut relu = tiny(erf_gelu());
    "Relu".clone_into(&mut relu.graph.nodes[4].op);
    refused(
        &relu,
        &["model.onnx", "node \"erf\" (Relu)", "does not have this operator", "onnxruntime"],
    );
    let mut old = tiny(erf_gelu());
    old.opset = 12;
    refused(&old, &["opset 12"]);
    let mut odd = tiny(erf_gelu());
    odd.graph.initializers[2] = floats("last.weight", &[3, HIDDEN], &noise(15, 3));
    refused(&odd, &["node \"last\" (MatMul)", "cannot multiply"]);
    let mut foreign = tiny(erf_gelu());
    foreign.graph.nodes[4].domain = "com.example".to_owned();
    foreign.other_opsets.push(("com.example".to_owned(), 1));
    refused(&foreign, &["node \"erf\" (Erf)", "com.example"]);
    let mut wide = tiny(erf_gelu());
    wide.graph.initializers[5] =
        initializer("one", ElementType::F64, &[], 1f64.to_le_bytes().to_vec());
    refused(&wide, &["constant \"one\" is f64"]);
    let mut two = tiny(erf_gelu());
    two.graph.outputs.clear();
    refused(&two, &["has no output"]);
    let mut flat = tiny(erf_gelu());
    flat.graph.inputs[0].dims = None;
    refused(&flat, &["\"pixels\" has no declared dimensions"]);
    flat.graph.inputs[0].dims = Some(vec![Dim::Fixed(1 << 40), Dim::Fixed(3)]);
    refused(&flat, &["\"pixels\"", "cannot be tried"]);
    let mut wide = tiny(erf_gelu());
    wide.graph.inputs[0].dtype = ElementType::F64;
    refused(&wide, &["input \"pixels\" is f64"]);
    let mut huge = tiny(erf_gelu());
    huge.graph.initializers[4] = floats("root2", &[], &[0.0]);
    huge.graph.initializers[2] = floats("last.weight", &[4, HIDDEN], &[f32::NAN; 20]);
    refused(&huge, &["for a test input"]);
}

#[test]
fn a_graph_of_something_else_is_no_vision_engine() {
    let opened = |model: &Model| {
        let dir = TempDir::new().unwrap();
        let (onnx, engine) = (dir.path().join("onnx"), dir.path().join("engine"));
        fs::create_dir_all(&onnx).unwrap();
        model.write(&onnx).unwrap();
        graph::build(&onnx, Precision::F32, &engine, &mut |_| {}).unwrap();
        vision::open(&engine).unwrap_err().to_string()
    };
    let ids = ElementType::I64;
    let mut texts = model(17, vec![node("Identity", "same", &["ids"], &["out"])], vec![]);
    texts.graph.inputs = vec![ValueInfo { name: "ids".to_owned(), dtype: ids, dims: Some(vec![]) }];
    texts.graph.outputs = vec![value("out", vec![])];
    let error = opened(&texts);
    assert!(error.contains("no engine for pictures: its input is []"), "{error}");
    texts.graph.inputs.push(value("mask", vec![Dim::Fixed(1)]));
    let error = opened(&texts);
    assert!(error.contains("one input for them, this graph has [ids, mask]"), "{error}");
}

#[test]
fn pixels_that_do_not_fill_the_tiles_are_refused() {
    let dir = TempDir::new().unwrap();
    let engine = try_build(&tiny(erf_gelu()), dir.path()).unwrap();
    let error = engine.encode(&[0.0; 100], 1).unwrap_err();
    assert!(matches!(error, RunError::Pixels { tiles: 1, per_tile: 108, found: 100 }));
    assert!(engine.encode(&[], usize::MAX).is_err());
    assert_eq!(engine.encode(&[], 0).unwrap(), Vec::<f32>::new());
}

#[test]
fn two_builds_give_the_same_bytes_and_damage_is_found() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    try_build(&tiny(erf_gelu()), one.path()).unwrap().verify_digest(&mut |_| {}).unwrap();
    try_build(&tiny(erf_gelu()), two.path()).unwrap();
    for name in ["engine/engine.json", "engine/weights.bin"] {
        let read = |dir: &TempDir| fs::read(dir.path().join(name)).unwrap();
        assert!(read(&one) == read(&two), "{name} differs");
    }
    let engine = one.path().join("engine");
    let text = fs::read_to_string(engine.join("engine.json")).unwrap();
    for (from, to, words) in [
        ("\"Erf\"", "\"Urf\"", "node \"erf\" (Urf)"),
        ("\"opset\": 17", "\"opset\": 3", "opset 3"),
        ("\"name\": \"conv.bias\"", "\"name\": \"conv.bios\"", "\"conv.bias\" is not defined"),
        ("\"name\": \"pixels\"", "\"name\": \"pixel\"", "\"pixels\" is not defined"),
        ("\"name\": \"pixels\"", "\"name\": \"erfed\"", "\"pixels\" is not defined"),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(engine.join("engine.json"), text.replacen(from, to, 1)).unwrap();
        let error = vision::open(&engine).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }
    fs::write(engine.join("engine.json"), &text).unwrap();
    let bytes = fs::read(engine.join("weights.bin")).unwrap();
    fs::write(engine.join("weights.bin"), &bytes[..bytes.len() / 2]).unwrap();
    let error = vision::open(&engine).unwrap_err().to_string();
    assert!(error.contains("weights.bin is damaged"), "{error}");
}

/// A checkpoint of Qwen2.5-VL whose tower has one block of 16 heads of 4 channels.
fn tower_of_many_heads(dir: &Path) -> Checkpoint {
    let golden = "../../tests/data/golden/qwen2_5_vl-tiny/checkpoint/config.json";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(golden)).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (name, size) in [("depth", 1), ("hidden_size", 64), ("num_heads", 16)] {
        config["vision_config"][name] = size.into();
    }
    config["vision_config"]["fullatt_block_indexes"] = [0].into();
    let path = dir.join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let model = model::Model::parse(&config.to_string(), &path).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (seed, (name, shape)) in
        model.tensors(&[ModelPart::Vision, ModelPart::Llm]).into_iter().enumerate()
    {
        let numbers = noise(shape.iter().product(), seed).into_iter().map(|value| value / 8.0);
        let start = data.len();
        data.extend(numbers.flat_map(f32::to_le_bytes));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]
        });
        header.insert(name, entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &data].concat();
    fs::write(dir.join("model.safetensors"), file).unwrap();
    Checkpoint::open(dir).unwrap()
}

#[test]
fn what_attention_never_holds_limits_no_tower() {
    // 16 heads of 5120 x 5120 scores are 419 million numbers.
    const GRID: Grid = Grid { height: 64 * 4, width: 80 * 4 };
    let dir = TempDir::new().unwrap();
    let checkpoint = tower_of_many_heads(dir.path());
    let (onnx, engine) = (dir.path().join("onnx"), dir.path().join("engine"));
    export::vision_on(&checkpoint, &[GRID], Dtype::F32, &onnx, &mut |_| {}).unwrap();
    // Building runs it once, and every number must be finite.
    graph::build(&onnx, Precision::F32, &engine, &mut |_| {}).unwrap();
    let opened = vision::open(&engine).unwrap();
    assert_eq!((opened.tokens_per_tile(), opened.grid()), (1280, Some(GRID)));
    let (shape, data) = (vec![5120, 96], vec![0.5; 5120 * 96]);
    let survey =
        GraphEngine::open(&engine).unwrap().survey(&[Tensor::F32 { shape, data }]).unwrap();
    assert_eq!(survey.tasks["attention"], 1);
    // What is forecast before anything is built is no less, and not twice as much.
    let vision = checkpoint.model().vision.as_ref().unwrap();
    let forecast = vision.working_bytes(&[GRID]).unwrap();
    let held = (survey.arena_bytes + 5120 * 96 * 4) as u64;
    assert!((held..2 * held).contains(&forecast), "{forecast} for {held}");
}

#[test]
fn results_that_no_machine_holds_are_refused_by_node() {
    let large = |shape: &[i64]| {
        let nodes = vec![
            node("ReduceMean", "one", &["pixels"], &["one"]),
            node("Expand", "grow", &["one", "shape"], &["grown"]),
            node("Exp", "exponentials", &["grown"], &["large"]),
            node("ReduceMean", "mean", &["large"], &["low"]),
            node("Add", "last", &["low", "pixels"], &["embeds"]),
        ];
        model(17, nodes, vec![integers("shape", shape)])
    };
    let words = ["node \"exponentials\" (Exp)", "536870912 numbers"];
    refused(&large(&[1, 1, 1 << 15, 1 << 14]), &words);
    refused(&large(&[1, 1, 1 << 40, 1 << 40]), &["node \"grow\" (Expand)", "too many numbers"]);
}
