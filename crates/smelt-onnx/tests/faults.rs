//! Shows what a broken file or model is told.

use std::fs;
use std::path::Path;

use smelt_onnx::{
    Attribute, AttributeValue, Data, ElementType, ExternalData, Graph, GraphBuilder, Initializer,
    Model, Node, check, read_initializer,
};

fn foreign_bytes() -> Vec<u8> {
    fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/foreign.onnx")).unwrap()
}

#[track_caller]
fn check_read(bytes: &[u8], expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.onnx");
    fs::write(&path, bytes).unwrap();
    let error = Model::read(&path).unwrap_err().to_string();
    assert!(error.contains(expect), "{error}");
    assert!(error.contains("x.onnx"), "{error}");
}

#[test]
fn an_empty_file_is_no_model() {
    check_read(b"", "not an ONNX model: it has no ir_version");
}

#[test]
fn a_text_is_no_model() {
    check_read(b"version https://git-lfs.github.com/spec/v1\n", "not an ONNX model");
}

#[test]
fn a_cut_file_is_truncated() {
    let bytes = foreign_bytes();
    check_read(&bytes[..bytes.len() - 1], "truncated");
    check_read(&bytes[..20_000], "truncated");
}

#[test]
fn a_model_needs_a_graph() {
    check_read(&[8, 8], "has no graph");
}

#[test]
fn functions_are_refused() {
    check_read(&[8, 8, 0xCA, 1, 0], "model-local functions");
}

#[test]
fn a_number_without_end_is_found() {
    check_read(&[0xFF; 12], "has no end");
}

#[test]
fn a_model_over_two_gib_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.onnx");
    fs::File::create(&path).unwrap().set_len(1 << 31).unwrap();
    let error = Model::read(&path).unwrap_err().to_string();
    assert!(error.contains("external data"), "{error}");
}

#[test]
fn a_directory_and_a_missing_file_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let error = Model::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    let error = Model::read(&dir.path().join("none.onnx")).unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
}

/// A correct model of two nodes whose weight lies in `dir`.
fn sound(dir: &Path) -> Model {
    let mut data = ExternalData::create(dir).unwrap();
    let mut weight = data.tensor("w", ElementType::F32, &[2, 2]).unwrap();
    weight.write(&[0; 16]).unwrap();
    let weight = weight.finish().unwrap();
    let mut g = GraphBuilder::new("g", ElementType::F32, vec![weight]);
    let x = g.input("x", vec![]);
    let y = g.matmul(&x, "w");
    let y = g.erf(&y);
    g.output(y, "y", vec![]);
    Model {
        ir_version: 8,
        opset: 17,
        other_opsets: vec![],
        producer: String::new(),
        metadata: vec![],
        graph: g.finish(),
    }
}

#[track_caller]
fn check_broken(break_it: impl Fn(&mut Model), expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut model = sound(dir.path());
    check(&model, dir.path()).unwrap();
    break_it(&mut model);
    let error = check(&model, dir.path()).unwrap_err().to_string();
    assert!(error.contains(expect), "{error}");
}

fn weight(model: &mut Model) -> &mut Initializer {
    &mut model.graph.initializers[0]
}

fn external(location: &str, offset: u64, length: u64) -> Data {
    Data::External { location: location.to_owned(), offset, length }
}

#[test]
fn versions_outside_the_window_are_found() {
    check_broken(|m| m.opset = 8, "operator set 8 is not between 9 and 28");
    check_broken(|m| m.opset = 29, "operator set 29");
    check_broken(|m| m.ir_version = 2, "IR version 2");
    check_broken(|m| m.ir_version = 99, "IR version 99");
}

#[test]
fn broken_order_and_names_are_found() {
    check_broken(|m| m.graph.nodes.swap(0, 1), "Erf node \"/Erf\" reads \"/MatMul\"");
    check_broken(|m| m.graph.nodes.truncate(1), "output list reads \"y\"");
    check_broken(|m| m.graph.nodes[1].outputs[0] = "w".into(), "\"w\" is defined twice");
    check_broken(|m| m.graph.nodes[1].outputs[0] = "x".into(), "\"x\" is defined twice");
    check_broken(
        |m| m.graph.initializers.push(m.graph.initializers[0].clone()),
        "defined twice, the second time by an initializer",
    );
    check_broken(|m| m.graph.inputs.push(m.graph.inputs[0].clone()), "by a graph input");
    check_broken(|m| m.graph.outputs.clear(), "no outputs");
    check_broken(|m| m.graph.nodes[0].op.clear(), "has no name");
    check_broken(|m| weight(m).name.clear(), "an initializer has no name");
    check_broken(|m| m.graph.nodes[0].domain = "com.microsoft".into(), "does not import");
}

#[test]
fn a_subgraph_sees_out_but_not_ahead() {
    let branch = |reads: &str| {
        let node = Node {
            op: "Erf".into(),
            inputs: vec![reads.into()],
            outputs: vec!["inner".into()],
            ..Node::default()
        };
        let mut output = sound(tempfile::tempdir().unwrap().path()).graph.outputs.remove(0);
        output.name = "inner".into();
        let graph = Graph { nodes: vec![node], outputs: vec![output], ..Graph::default() };
        Attribute { name: "then_branch".into(), value: AttributeValue::Graph(graph) }
    };
    let dir = tempfile::tempdir().unwrap();
    let mut model = sound(dir.path());
    model.graph.nodes[1].attributes = vec![branch("/MatMul")];
    check(&model, dir.path()).unwrap();
    check_broken(|m| m.graph.nodes[0].attributes = vec![branch("/MatMul")], "reads \"/MatMul\"");
    let twice = vec![branch("x"), branch("x")];
    check_broken(|m| m.graph.nodes[0].attributes = twice.clone(), "\"then_branch\" twice");
}

#[test]
fn weights_that_are_not_where_they_say_are_found() {
    let file = "model.onnx.data";
    check_broken(|m| weight(m).dims = vec![2, 3], "f32 [2, 3] takes 24 bytes and has 16");
    check_broken(|m| weight(m).data = Data::Inline(vec![0; 15]), "and has 15");
    check_broken(|m| weight(m).dims = vec![usize::MAX, 2], "overflows");
    check_broken(|m| weight(m).data = external(file, 1, 16), "beyond \"model.onnx.data\"");
    check_broken(|m| weight(m).data = external(file, u64::MAX, 16), "beyond");
    check_broken(|m| weight(m).data = external(file, 0, 8), "and has 8");
    check_broken(|m| weight(m).data = external("/etc/passwd", 0, 16), "not inside");
    check_broken(|m| weight(m).data = external("a/../../b", 0, 16), "not inside");
    check_broken(|m| weight(m).data = external("", 0, 16), "not inside");
    check_broken(|m| weight(m).data = external("gone.data", 0, 16), "No such file");
}

#[test]
fn reading_never_leaves_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = sound(dir.path());
    weight(&mut model).data = external("../x", 0, 16);
    let error = read_initializer(dir.path(), weight(&mut model), 0, &mut [0; 4]).unwrap_err();
    assert!(error.to_string().contains("not inside"), "{error}");
}

/// The first four bytes of the sound model's weight, whose file is moved to `target` and linked to
/// from `dir`, both below one folder.
fn read_linked(dir: &str, target: &str) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    let (dir, target) = (root.path().join(dir), root.path().join(target));
    for folder in [&dir, target.parent().unwrap()] {
        fs::create_dir_all(folder).unwrap();
    }
    let mut model = sound(&dir);
    let file = dir.join("model.onnx.data");
    fs::rename(&file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    let checked = check(&model, &dir).map_err(|error| error.to_string());
    let read = read_initializer(&dir, weight(&mut model), 0, &mut [0; 4]);
    assert_eq!(checked, read.map_err(|error| error.to_string()));
    checked
}

#[test]
fn data_is_read_through_links_that_stay_in_the_directory_or_lead_to_blobs() {
    assert_eq!(read_linked("model", "model/data/part"), Ok(()));
    let repo = "hub/models--org--name";
    for view in ["snapshots/c0ffee", "smelt/c0ffee", "snapshots/c0ffee/onnx/f16"] {
        assert_eq!(read_linked(&format!("{repo}/{view}"), &format!("{repo}/blobs/ab")), Ok(()));
    }
}

#[test]
fn data_is_not_read_through_links_to_elsewhere() {
    let repo = "hub/models--org--name";
    for (dir, target) in [
        ("model", "secret"),
        ("model", "model-2/part"),
        ("snapshots/c0ffee", "blobs/ab"),
        (&format!("{repo}/snapshots/c0ffee"), "hub/models--org--other/blobs/ab"),
        (&format!("{repo}/snapshots/c0ffee"), &format!("{repo}/refs/main")),
        (&format!("{repo}/elsewhere/c0ffee"), &format!("{repo}/blobs/ab")),
    ] {
        let error = read_linked(dir, target).unwrap_err();
        assert!(error.contains("is a link to /") && error.contains(target), "{dir}: {error}");
    }
    // A folder on the way may be the link.
    let root = tempfile::tempdir().unwrap();
    let mut model = sound(root.path());
    let inner = root.path().join("inner");
    fs::create_dir(&inner).unwrap();
    std::os::unix::fs::symlink(root.path(), inner.join("up")).unwrap();
    weight(&mut model).data = external("up/model.onnx.data", 0, 16);
    let error = check(&model, &inner).unwrap_err().to_string();
    assert!(error.contains("is a link to /"), "{error}");
}

#[test]
fn tensors_lie_on_pages_with_zeros_between() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = ExternalData::create(dir.path()).unwrap();
    for (name, byte) in [("a", 1), ("b", 2), ("none", 0), ("c", 3)] {
        let dims = [if byte == 0 { 0 } else { 5 }];
        let mut tensor = data.tensor(name, ElementType::U8, &dims).unwrap();
        tensor.write(&vec![byte; dims[0]]).unwrap();
        let Data::External { offset, .. } = tensor.finish().unwrap().data else { panic!() };
        assert_eq!(offset % 4096, 0);
    }
    let mut expect = vec![0; 2 * 4096 + 5];
    expect[..5].fill(1);
    expect[4096..4101].fill(2);
    expect[8192..].fill(3);
    assert_eq!(fs::read(dir.path().join("model.onnx.data")).unwrap(), expect);
}

#[test]
fn a_tensor_gets_exactly_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = ExternalData::create(dir.path()).unwrap();
    let mut tensor = data.tensor("t", ElementType::U8, &[3]).unwrap();
    tensor.write(&[1, 2]).unwrap();
    let error = tensor.write(&[3, 4]).unwrap_err().to_string();
    assert_eq!(error, "tensor \"t\" takes 3 bytes and 4 were written");
    let error = tensor.finish().unwrap_err().to_string();
    assert_eq!(error, "tensor \"t\" takes 3 bytes and 2 were written");
}
