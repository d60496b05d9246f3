//! One model that every target takes, and for every rule a change that breaks it alone.

use std::path::PathBuf;

use super::*;
use crate::model::{Attribute, AttributeValue, Data, Dim, Initializer, ValueInfo};
use crate::{ElementType, ExternalData};
use ElementType::{Bf16, F16, F32, F64, I4, I8, I64, U8, U16};

struct World {
    dir: tempfile::TempDir,
    model: Model,
}

/// A sound vision graph: a quantised product, a LayerNormalization, a Slice.
fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let mut data = ExternalData::create(dir.path()).unwrap();
    let mut held = Vec::new();
    for (name, dtype, dims, bytes) in [
        ("codes", I8, vec![2, 4], vec![3; 8]),
        ("scale", F32, vec![2], [1.0f32, 0.5].map(f32::to_le_bytes).concat()),
        ("zero", I8, vec![2], vec![0; 2]),
        ("gain", F32, vec![2], [1.0f32, 1.0].map(f32::to_le_bytes).concat()),
        ("bias", F32, vec![2], [0.0f32, 65000.0].map(f32::to_le_bytes).concat()),
        ("begin", I64, vec![1], [0i64].map(i64::to_le_bytes).concat()),
        ("end", I64, vec![1], [1i64].map(i64::to_le_bytes).concat()),
        ("axes", I64, vec![1], [1i64].map(i64::to_le_bytes).concat()),
    ] {
        let mut writer = data.tensor(name, dtype, &dims).unwrap();
        writer.write(&bytes).unwrap();
        held.push(writer.finish().unwrap());
    }
    let info = |name: &str, dims: &[Dim]| ValueInfo {
        name: name.into(),
        dtype: F32,
        dims: Some(dims.to_vec()),
    };
    let batch = Dim::Symbol("batch".into());
    let graph = Graph {
        name: "g".into(),
        inputs: vec![info("pixel_values", &[batch.clone(), Dim::Fixed(4)])],
        outputs: vec![info("image_embeds", &[batch, Dim::Fixed(1)])],
        nodes: vec![
            node("DequantizeLinear", &["codes", "scale", "zero"], "weight", &[("axis", 0)]),
            node("Gemm", &["pixel_values", "weight"], "product", &[("transB", 1)]),
            node("LayerNormalization", &["product", "gain", "bias"], "normal", &[]),
            node("Slice", &["normal", "begin", "end", "axes"], "image_embeds", &[]),
        ],
        initializers: held,
    };
    let model = Model {
        ir_version: 8,
        opset: 17,
        other_opsets: vec![],
        producer: "test".into(),
        metadata: vec![],
        graph,
    };
    World { dir, model }
}

fn node(op: &str, inputs: &[&str], output: &str, ints: &[(&str, i64)]) -> Node {
    Node {
        name: output.to_uppercase(),
        op: op.into(),
        inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
        outputs: vec![output.into()],
        attributes: ints.iter().map(|(name, value)| Attribute::int(name, *value)).collect(),
        ..Node::default()
    }
}

impl World {
    fn path(&self) -> PathBuf {
        self.dir.path().join("model.onnx")
    }

    fn at(&mut self, op: &str) -> &mut Node {
        self.model.graph.nodes.iter_mut().find(|node| node.op == op).unwrap()
    }

    fn tensor(&mut self, name: &str) -> &mut Initializer {
        self.model.graph.initializers.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    /// Brings a node whose result nothing reads.
    fn add(&mut self, op: &str, inputs: &[&str], ints: &[(&str, i64)]) -> &mut Node {
        self.model.graph.nodes.push(node(op, inputs, "extra", ints));
        self.model.graph.nodes.last_mut().unwrap()
    }

    fn inline(&mut self, name: &str, dtype: ElementType, dims: &[usize], bytes: Vec<u8>) {
        let data = Data::Inline(bytes);
        let tensor = Initializer { name: name.into(), dtype, dims: dims.to_vec(), data };
        self.model.graph.initializers.push(tensor);
    }

    fn input(&mut self, name: &str, dtype: ElementType, dims: Option<Vec<Dim>>) {
        self.model.graph.inputs.push(ValueInfo { name: name.into(), dtype, dims });
    }
}

fn text(name: &str, value: &str) -> Attribute {
    Attribute { name: name.into(), value: AttributeValue::Text(value.into()) }
}

/// The change is found by that rule alone, at that place, in those words.
#[track_caller]
fn finds(
    target: Target,
    change: impl FnOnce(&mut World),
    severity: Severity,
    rule: &str,
    place: &str,
    words: &str,
) {
    let mut world = world();
    change(&mut world);
    let found = findings(&world.model, &world.path(), target).unwrap();
    let texts: Vec<String> = found.iter().map(Finding::to_string).collect();
    assert!(!found.is_empty(), "nothing is found");
    for finding in &found {
        assert_eq!((finding.rule, finding.severity), (rule, severity), "{texts:#?}");
        assert!(!finding.remedy.is_empty());
    }
    assert!(found.iter().any(|f| f.place.contains(place) && f.what.contains(words)), "{texts:#?}");
}

#[track_caller]
fn error(change: impl FnOnce(&mut World), rule: &str, place: &str, words: &str) {
    finds(Target::TensorRt10_3, change, Severity::Error, rule, place, words);
}

#[track_caller]
fn warning(change: impl FnOnce(&mut World), rule: &str, place: &str, words: &str) {
    finds(Target::TensorRt10_3, change, Severity::Warning, rule, place, words);
}

#[test]
fn a_good_model_has_no_findings() {
    let world = world();
    crate::check(&world.model, world.dir.path()).unwrap();
    for (_, target) in Target::ALL {
        assert_eq!(findings(&world.model, &world.path(), target).unwrap(), []);
    }
}

#[test]
fn versions_and_domains() {
    error(|w| w.model.opset = 21, "opset", "model", "set 21 is not between 9 and 20");
    error(|w| w.model.opset = 8, "opset", "model", "set 8");
    let nibbles = |w: &mut World| {
        w.model.opset = 21;
        w.inline("w4", I4, &[2, 4], vec![0; 4]);
        w.add("DequantizeLinear", &["w4", "scale"], &[("axis", 0)]);
    };
    warning(nibbles, "opset", "model", "set 21");
    warning(|w| w.model.ir_version = 11, "ir-version", "model", "11 is newer than 10");
    let foreign = |w: &mut World| w.add("MatMulNBits", &[], &[]).domain = "com.microsoft".into();
    error(foreign, "domain", "MatMulNBits node \"EXTRA\"", "\"com.microsoft\"");
}

#[test]
fn operators() {
    let add = |op: &'static str| move |w: &mut World| drop(w.add(op, &["normal"], &[]).clone());
    error(add("Attention"), "operator", "Attention node \"EXTRA\"", "does not have");
    error(add("RMSNormalization"), "operator", "RMSNormalization", "does not have");
    error(add("BitShift"), "operator", "BitShift", "does not have");
    for op in ["NonZero", "Loop", "If", "Scan", "Unique", "NonMaxSuppression"] {
        error(add(op), "data-dependent-shape", op, "depends on data");
    }
    let inner = |w: &mut World| {
        let graph =
            Graph { nodes: vec![node("NonZero", &["normal"], "n", &[])], ..Graph::default() };
        let value = AttributeValue::Graph(graph);
        let relu = w.add("Relu", &["normal"], &[]);
        relu.attributes.push(Attribute { name: "body".into(), value });
    };
    error(inner, "data-dependent-shape", "NonZero node \"N\"", "depends on data");
}

#[test]
fn element_types() {
    error(|w| w.inline("t", U16, &[1], vec![0; 2]), "element-type", "value \"t\"", "u16");
    error(
        |w| w.inline("t", U8, &[1], vec![0; 1]),
        "element-type",
        "value \"t\"",
        "input and output",
    );
    warning(|w| w.inline("t", F64, &[1], vec![0; 8]), "element-type", "value \"t\"", "f64");
    let narrow = |w: &mut World| {
        w.input("image", Bf16, Some(vec![Dim::Fixed(1), Dim::Fixed(3)]));
        w.add("Cos", &["image"], &[]);
    };
    warning(narrow, "element-type", "Cos node \"EXTRA\"", "no bf16 Cos");
}

#[test]
fn inputs_that_must_be_constant() {
    let moving = |w: &mut World| {
        w.input("moving", I64, Some(vec![Dim::Fixed(1)]));
        w.at("Slice").inputs[3] = "moving".into();
    };
    error(moving, "constant-input", "Slice node \"IMAGE_EMBEDS\"", "its axes \"moving\"");
    let reduce = |w: &mut World| drop(w.add("ReduceMax", &["normal", "product"], &[]).clone());
    error(reduce, "constant-input", "ReduceMax", "its axes \"product\"");
    let scale = |w: &mut World| w.at("DequantizeLinear").inputs[1] = "pixel_values".into();
    error(scale, "constant-input", "DequantizeLinear", "its scale");
}

#[test]
fn layer_norms() {
    let short = |w: &mut World| w.at("LayerNormalization").inputs.truncate(2);
    error(short, "layer-norm", "LayerNormalization node \"NORMAL\"", "missing scale or bias");
    let stash = |w: &mut World| {
        w.at("LayerNormalization").attributes.push(Attribute::int("stash_type", 10));
    };
    error(stash, "layer-norm", "NORMAL", "in its own type");
    let outputs = |w: &mut World| w.at("LayerNormalization").outputs.push("mean".into());
    error(outputs, "layer-norm", "NORMAL", "are outputs");
}

#[test]
fn quantised_weights() {
    let zero = |w: &mut World| w.tensor("zero").data = Data::Inline(vec![0, 1]);
    error(zero, "quantisation", "DequantizeLinear node \"WEIGHT\"", "\"zero\" is not zero");
    let moving = |w: &mut World| w.at("DequantizeLinear").inputs[2] = "moving".into();
    let declared = |w: &mut World| {
        moving(w);
        w.input("moving", I8, Some(vec![Dim::Fixed(2)]));
    };
    error(declared, "quantisation", "WEIGHT", "\"moving\" is no initializer");
    let nibbles = |w: &mut World| {
        w.inline("w4", I4, &[2, 4], vec![0; 4]);
        w.add("DequantizeLinear", &["w4", "scale"], &[("axis", 0)]);
    };
    error(nibbles, "quantisation", "EXTRA", "begin with operator set 21");
    let blocks = |w: &mut World| {
        w.at("DequantizeLinear").attributes.push(Attribute::int("block_size", 2));
    };
    error(blocks, "quantisation", "WEIGHT", "blocks of 8-bit");
    let bare = |w: &mut World| drop(w.add("QuantizeLinear", &["normal", "scale"], &[]).clone());
    let mut world = world();
    bare(&mut world);
    let found = findings(&world.model, &world.path(), Target::TensorRt10_3).unwrap();
    assert!(found.iter().any(|f| f.rule == "quantisation" && f.what.contains("gives u8")));
}

#[test]
fn resampling() {
    let cubic = |w: &mut World| {
        w.add("Resize", &["normal"], &[]).attributes.push(text("mode", "cubic"));
    };
    error(cubic, "resize", "Resize node \"EXTRA\"", "cubic");
    let smooth = |w: &mut World| drop(w.add("Resize", &["normal"], &[("antialias", 1)]).clone());
    error(smooth, "resize", "EXTRA", "antialiasing");
}

#[test]
fn dynamic_dimensions() {
    let wide = |w: &mut World| {
        let width = Dim::Symbol("width".into());
        w.model.graph.inputs[0].dims = Some(vec![Dim::Fixed(1), width]);
    };
    error(wide, "dynamic-dims", "input \"pixel_values\"", "dimension 1 is \"width\"");
    let unknown = |w: &mut World| {
        w.model.graph.inputs[0].dims = Some(vec![Dim::Fixed(1), Dim::Unknown]);
    };
    error(unknown, "dynamic-dims", "pixel_values", "dimension 1 is not declared");
    error(|w| w.model.graph.inputs[0].dims = None, "dynamic-dims", "pixel_values", "no shape");
    let mut text = world();
    text.input("input_ids", I64, Some(vec![Dim::Symbol("b".into()), Dim::Symbol("t".into())]));
    assert_eq!(findings(&text.model, &text.path(), Target::TensorRt10_3).unwrap(), []);
}

#[test]
fn ranges_of_numbers() {
    let square = |w: &mut World| {
        w.input("image", F16, Some(vec![Dim::Fixed(1), Dim::Fixed(3)]));
        w.add("Pow", &["image", "image"], &[]);
    };
    warning(square, "f16-range", "Pow node \"EXTRA\"", "squares or sums in f16");
    let infinite = |w: &mut World| w.inline("t", F16, &[2], vec![0, 0, 0, 0x7C]);
    error(infinite, "weight-range", "tensor \"t\"", "NaN or infinity");
    let nan = |w: &mut World| {
        w.tensor("gain").data = Data::Inline([1.0, f32::NAN].map(f32::to_le_bytes).concat())
    };
    error(nan, "weight-range", "tensor \"gain\"", "NaN");
    let large = |w: &mut World| w.inline("t", F32, &[1], 70000f32.to_le_bytes().to_vec());
    warning(large, "weight-range", "tensor \"t\"", "7e4, which is infinite in f16");
    let large = |w: &mut World| w.inline("t", Bf16, &[1], vec![0x00, 0x48]);
    warning(large, "weight-range", "tensor \"t\"", "1.31072e5");
}

#[test]
fn types_that_do_not_mix() {
    let half = |w: &mut World| w.inline("half", F16, &[2], vec![0; 4]);
    for op in ["MatMul", "Add", "Mul", "Sub", "Div", "Gemm", "Conv", "Less", "Concat", "Max"] {
        let mixed = |w: &mut World| {
            half(w);
            w.add(op, &["normal", "half"], &[]);
        };
        let words = "\"normal\" is f32 and \"half\" is f16, and it takes one type";
        error(mixed, "mixed-types", &format!("{op} node \"EXTRA\""), words);
    }
    let integers = |w: &mut World| {
        w.inline("short", ElementType::I32, &[1], vec![0; 4]);
        w.add("Add", &["begin", "short"], &[]);
    };
    error(integers, "mixed-types", "Add node \"EXTRA\"", "\"begin\" is i64 and \"short\" is i32");
    let bias = |w: &mut World| {
        half(w);
        w.at("Gemm").inputs.push("half".to_owned());
    };
    error(bias, "mixed-types", "Gemm node \"PRODUCT\"", "\"half\" is f16");
    // The parser casts what Pow reads, and the truths of Where are no values.
    let mut sound = world();
    half(&mut sound);
    sound.add("Pow", &["normal", "half"], &[]);
    sound.model.graph.nodes.push(node("Greater", &["normal", "gain"], "truth", &[]));
    sound.model.graph.nodes.push(node("Where", &["truth", "normal", "gain"], "chosen", &[]));
    assert_eq!(findings(&sound.model, &sound.path(), Target::TensorRt10_3).unwrap(), []);
}

#[test]
fn attention_scaled_on_both_sides() {
    let attend = |both: bool| {
        move |w: &mut World| {
            w.inline("root", F32, &[], 0.5f32.to_le_bytes().to_vec());
            let keys = if both { "keys.scaled" } else { "product" };
            w.model.graph.nodes.extend([
                node("Mul", &["normal", "root"], "queries", &[]),
                node("Mul", &["product", "root"], "keys.scaled", &[]),
                node("Transpose", &[keys], "turned", &[]),
                node("MatMul", &["queries", "turned"], "scores", &[]),
                node("Add", &["scores", "root"], "masked", &[]),
                node("Softmax", &["masked"], "chances", &[]),
            ]);
        }
    };
    warning(attend(true), "attention-scale", "MatMul node \"SCORES\"", "both scaled");
    let mut once = world();
    attend(false)(&mut once);
    assert_eq!(findings(&once.model, &once.path(), Target::TensorRt10_3).unwrap(), []);
}

#[test]
fn products_that_are_one_large_request() {
    let large = |w: &mut World| {
        // Codes of no byte's value matter here, so the range is of zeros, and sparse.
        let file = std::fs::File::create(w.dir.path().join("large.data")).unwrap();
        file.set_len(400 << 20).unwrap();
        let data = Data::External { location: "large.data".into(), offset: 0, length: 400 << 20 };
        let dims = vec![400 << 10, 1024];
        w.model.graph.initializers.push(Initializer { name: "head".into(), dtype: I8, dims, data });
        w.input("rows", I8, Some(vec![Dim::Fixed(1), Dim::Fixed(4)]));
        w.add("MatMul", &["rows", "head"], &[]);
    };
    warning(large, "large-product", "MatMul node \"EXTRA\"", "\"head\" of 419430400 bytes");
}

#[test]
fn places_of_data() {
    let embed = |w: &mut World| {
        let path = w.path();
        std::fs::File::create(path).unwrap().set_len(3 << 29).unwrap();
        let data = Data::External { location: "model.onnx".into(), offset: 7, length: 3 << 29 };
        let dims = vec![3 << 29];
        w.model.graph.initializers.push(Initializer { name: "big".into(), dtype: I8, dims, data });
    };
    warning(embed, "protobuf-size", "model file", "1610612736 bytes");
    let shift = |w: &mut World| {
        if let Data::External { offset, .. } = &mut w.tensor("codes").data {
            *offset += 8;
        }
    };
    warning(shift, "data-alignment", "model.onnx.data", "\"codes\" begins at byte 8, as do 1");
    let twice = |w: &mut World| {
        let data = w.dir.path().join("model.onnx.data");
        std::fs::hard_link(data, w.dir.path().join("other")).unwrap();
    };
    warning(twice, "data-links", "model.onnx.data", "2 names");
    let link = |w: &mut World| {
        let data = w.dir.path().join("model.onnx.data");
        std::fs::rename(&data, w.dir.path().join("blob")).unwrap();
        std::os::unix::fs::symlink("blob", data).unwrap();
    };
    warning(link, "data-links", "model.onnx.data", "symbolic link");
}

#[test]
fn types_that_an_operator_does_not_take() {
    const RULE: &str = "operand-type";
    let truth = |w: &mut World| w.inline("truth", ElementType::Bool, &[1], vec![0]);
    let of_truths = |w: &mut World| {
        truth(w);
        w.add("Mul", &["truth", "truth"], &[]);
    };
    error(of_truths, RULE, "Mul node \"EXTRA\"", "\"truth\" is bool, and it takes numbers");
    let of_numbers = |w: &mut World| {
        truth(w);
        w.add("And", &["truth", "begin"], &[]);
    };
    error(of_numbers, RULE, "And node", "\"begin\" is i64, and it takes bool");
    let places = |w: &mut World| {
        w.add("Gather", &["begin", "normal"], &[]);
    };
    error(places, RULE, "Gather node", "\"normal\" is f32, and it takes i32 or i64");
    let integers = |w: &mut World| {
        w.add("Softmax", &["begin"], &[]);
    };
    error(integers, RULE, "Softmax node", "it takes floats");
    let narrow = |w: &mut World| {
        w.input("narrow", F16, Some(vec![Dim::Fixed(1)]));
        w.add("Mod", &["narrow", "narrow"], &[("fmod", 0)]);
    };
    error(narrow, RULE, "Mod node", "without fmod");
    let nothing = |w: &mut World| {
        w.add("Cast", &["normal"], &[("to", 99)]);
    };
    error(nothing, RULE, "Cast node", "type 99");
    let mut sound = world();
    sound.add("Mod", &["normal", "normal"], &[("fmod", 1)]);
    assert_eq!(findings(&sound.model, &sound.path(), Target::TensorRt10_3).unwrap(), []);
}

#[test]
fn windows_with_gaps() {
    let pool = |gap: i64| {
        move |w: &mut World| {
            let value = AttributeValue::Ints(vec![1, gap]);
            let gaps = Attribute { name: "dilations".into(), value };
            w.add("MaxPool", &["normal"], &[]).attributes.push(gaps);
        }
    };
    error(pool(2), "pool-dilation", "MaxPool node \"EXTRA\"", "gaps");
    let mut sound = world();
    pool(1)(&mut sound);
    assert_eq!(findings(&sound.model, &sound.path(), Target::TensorRt10_3).unwrap(), []);
}

#[test]
fn onnxruntime_on_a_cpu() {
    let target = Target::OnnxRuntimeCpu;
    let product = |w: &mut World| {
        w.input("x", Bf16, Some(vec![Dim::Fixed(1), Dim::Fixed(2)]));
        w.add("MatMul", &["x", "x"], &[]);
    };
    finds(
        target,
        product,
        Severity::Error,
        "bf16-kernel",
        "MatMul node \"EXTRA\"",
        "no CPU kernel",
    );
    finds(target, |w| w.model.opset = 22, Severity::Warning, "opset", "model", "newer than 21");
    let foreign = |w: &mut World| w.add("Thing", &[], &[]).domain = "trt".into();
    finds(target, foreign, Severity::Error, "domain", "Thing node", "\"trt\"");
}

#[test]
fn words_name_targets() {
    for (word, target) in Target::ALL {
        assert_eq!(Target::parse(word), Some(target));
    }
    assert_eq!(Target::parse("tensorrt-8"), None);
}
