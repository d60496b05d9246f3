//! Holds reading and writing to files that the onnx package made (`data/foreign.py`).

use std::fs;
use std::path::Path;

use smelt_onnx::{
    Attribute, AttributeValue, Data, Dim, ElementType, Graph, Initializer, Model, Node, ValueInfo,
    check, read_initializer,
};

fn data_dir() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"))
}

fn foreign() -> Model {
    Model::read(&data_dir().join("foreign.onnx")).unwrap()
}

#[test]
fn a_foreign_model_passes_the_check() {
    check(&foreign(), data_dir()).unwrap();
}

#[test]
fn a_foreign_model_reads_as_it_was_made() {
    let model = foreign();
    assert_eq!((model.ir_version, model.opset), (9, 18));
    assert_eq!(model.other_opsets, [("com.example".to_owned(), 1)]);
    assert_eq!(model.producer, "foreign");
    assert_eq!(model.metadata, [("made".to_owned(), "by hand".to_owned())]);

    let graph = model.graph;
    assert_eq!(graph.name, "foreign");
    let dims: Vec<_> = graph.inputs.iter().map(|i| (i.dtype, i.dims.clone().unwrap())).collect();
    assert_eq!(dims[0], (ElementType::F32, vec![Dim::Symbol("n".to_owned())]));
    assert_eq!(dims[1], (ElementType::Bool, vec![]));
    assert_eq!(dims[2], (ElementType::F16, vec![Dim::Unknown, Dim::Fixed(3)]));
    assert_eq!(graph.outputs[0].dims, None);

    let [clip, branch, gelu, constant, transpose] = &graph.nodes[..] else { panic!() };
    assert_eq!(clip.inputs, ["x", "", "scalar"]);
    let Some(AttributeValue::Graph(then)) = branch.attribute("then_branch") else { panic!() };
    assert_eq!(then.nodes[0].inputs, ["x", "float"]);
    assert_eq!((gelu.domain.as_str(), gelu.float("alpha")), ("com.example", Some(0.5)));
    assert_eq!(gelu.attribute("mode"), Some(&AttributeValue::Text("tanh".to_owned())));
    let Some(AttributeValue::Tensor(value)) = constant.attribute("value") else { panic!() };
    assert_eq!(value.data, Data::Inline(f32_bytes(&[1.5, -2.0, 0.25])));
    assert_eq!((transpose.domain.as_str(), transpose.ints("perm")), ("", Some(&[0][..])));
}

/// All bytes of a tensor of the foreign model, read in two pieces.
#[track_caller]
fn check_bytes(name: &str, dtype: ElementType, expect: &[u8]) {
    let model = foreign();
    let tensor = model.graph.initializers.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(tensor.dtype, dtype);
    let mut bytes = vec![0xAA; expect.len()];
    let (head, tail) = bytes.split_at_mut(expect.len() / 2);
    read_initializer(data_dir(), tensor, 0, head).unwrap();
    read_initializer(data_dir(), tensor, head.len() as u64, tail).unwrap();
    assert_eq!(bytes, expect);
    let mut one = [0];
    read_initializer(data_dir(), tensor, expect.len() as u64, &mut one).unwrap_err();
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn every_way_to_store_a_tensor_reads_as_bytes() {
    use ElementType::*;
    check_bytes("float", F32, &f32_bytes(&[1.5, -2.0, 0.25]));
    check_bytes("double", F64, &[0.1f64.to_le_bytes(), (-3.0f64).to_le_bytes()].concat());
    check_bytes("int64", I64, &[-1, 0, 1i64 << 40].map(i64::to_le_bytes).concat());
    check_bytes("int32", I32, &[-7, 7].map(i32::to_le_bytes).concat());
    check_bytes("int8", I8, &[0x80, 0x7F]);
    check_bytes("uint8", U8, &[0, 255]);
    check_bytes("bool", Bool, &[1, 0]);
    check_bytes("half", F16, &[0x00, 0x3C, 0x00, 0xC0]);
    check_bytes("brain", Bf16, &[0x80, 0x3F, 0x00, 0xC0]);
    check_bytes("uint32", U32, &[0, 0, 0, 0, 255, 255, 255, 255]);
    check_bytes("uint64", U64, &[255; 8]);
    check_bytes("raw", F32, &f32_bytes(&[4.0, 8.0]));
    check_bytes("scalar", F32, &f32_bytes(&[9.0]));
    check_bytes("empty", F32, &[]);
    let ramp: Vec<f32> = (0..5000).map(|i| i as f32).collect();
    check_bytes("large_raw", F32, &f32_bytes(&ramp));
    check_bytes("large_float", F32, &f32_bytes(&ramp.iter().map(|v| -v).collect::<Vec<_>>()));
    check_bytes("outside", F32, &f32_bytes(&[3.0, 4.0]));
    check_bytes("outside_all", F32, &f32_bytes(&[1.0, 2.0, 3.0, 4.0]));
}

#[test]
fn large_embedded_tensors_stay_in_the_file() {
    for name in ["large_raw", "large_float"] {
        let model = foreign();
        let tensor = model.graph.initializers.iter().find(|tensor| tensor.name == name).unwrap();
        let Data::External { location, length, .. } = &tensor.data else { panic!("{name}") };
        assert_eq!((location.as_str(), *length), ("foreign.onnx", 20_000));
    }
}

fn attribute(name: &str, value: AttributeValue) -> Attribute {
    Attribute { name: name.to_owned(), value }
}

/// The model of `wire.onnx`, field by field.
fn wire() -> Model {
    let tensor = |name: &str, dtype, dims: &[usize], data| Initializer {
        name: name.to_owned(),
        dtype,
        dims: dims.to_vec(),
        data,
    };
    let value = |name: &str, dtype, dims| ValueInfo { name: name.to_owned(), dtype, dims };
    let two = [1, 2i64].map(i64::to_le_bytes).concat();
    let node = Node {
        name: "node".to_owned(),
        op: "Everything".to_owned(),
        domain: "com.example".to_owned(),
        inputs: vec!["x".to_owned(), "w".to_owned()],
        outputs: vec!["y".to_owned()],
        attributes: vec![
            attribute("f", AttributeValue::Float(0.0)),
            attribute("fs", AttributeValue::Floats(vec![1.0, 2.0])),
            attribute("i", AttributeValue::Int(0)),
            attribute("is_", AttributeValue::Ints(vec![0, -1, 300])),
            attribute("s", AttributeValue::Text("text".to_owned())),
            attribute("ss", AttributeValue::Texts(vec!["a".to_owned(), "b".to_owned()])),
            attribute(
                "t",
                AttributeValue::Tensor(tensor("t", ElementType::I64, &[2], Data::Inline(two))),
            ),
        ],
    };
    let dims = vec![Dim::Symbol("n".to_owned()), Dim::Fixed(0), Dim::Unknown];
    let outside =
        Data::External { location: "model.onnx.data".to_owned(), offset: 4096, length: 84 };
    Model {
        ir_version: 8,
        opset: 17,
        other_opsets: vec![("com.example".to_owned(), 3)],
        producer: "wire".to_owned(),
        metadata: vec![("k".to_owned(), "v".to_owned())],
        graph: Graph {
            name: "wire".to_owned(),
            inputs: vec![value("x", ElementType::F32, Some(dims))],
            outputs: vec![value("y", ElementType::Bf16, None)],
            nodes: vec![node],
            initializers: vec![
                tensor("w", ElementType::F16, &[2, 1], Data::Inline(vec![1, 2, 3, 4])),
                tensor("e", ElementType::F32, &[7, 3], outside),
            ],
        },
    }
}

#[test]
fn the_onnx_package_and_we_mean_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    wire().write(dir.path()).unwrap();
    let theirs = fs::read(data_dir().join("wire.onnx")).unwrap();
    assert_eq!(fs::read(dir.path().join("model.onnx")).unwrap(), theirs);
    assert_eq!(Model::read(&data_dir().join("wire.onnx")).unwrap(), wire());
}

#[test]
fn what_is_written_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = foreign();
    let embedded = model.write(dir.path());
    assert!(embedded.is_ok(), "foreign.onnx is not the file being overwritten");
    assert_eq!(Model::read(&dir.path().join("model.onnx")).unwrap(), model);

    model.graph.initializers[0].data =
        Data::External { location: "model.onnx".to_owned(), offset: 0, length: 12 };
    let error = model.write(dir.path()).unwrap_err().to_string();
    assert!(error.contains("\"float\" lies inside"), "{error}");
}
