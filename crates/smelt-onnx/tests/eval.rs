//! Holds the evaluator to results worked out by hand from the ONNX standard.

use std::collections::BTreeMap;
use std::path::Path;

use smelt_onnx::eval::{Tensor, evaluate};
use smelt_onnx::{Attribute, AttributeValue, Dim, ElementType, Graph, Model, Node, ValueInfo};

use ElementType::{Bf16, Bool, F16, F32, I8, I32, I64};

fn floats(dims: &[usize], values: &[f64]) -> Tensor {
    Tensor::floats(F32, dims, values.to_vec())
}

fn ints(dims: &[usize], values: &[i64]) -> Tensor {
    Tensor::ints(I64, dims, values.to_vec())
}

/// Runs one node of operator set 17 over `inputs`.
fn run(
    op: &str,
    attributes: &[(&str, AttributeValue)],
    inputs: &[Tensor],
) -> Result<Tensor, String> {
    let name = |at: usize| format!("i{at}");
    let info = |name: String, dtype, dims: Option<Vec<Dim>>| ValueInfo { name, dtype, dims };
    let attribute = |(name, value): &(&str, AttributeValue)| Attribute {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    let node = Node {
        op: op.to_owned(),
        inputs: (0..inputs.len()).map(name).collect(),
        outputs: vec!["o".to_owned()],
        attributes: attributes.iter().map(attribute).collect(),
        ..Node::default()
    };
    let declared = inputs.iter().enumerate().map(|(at, t)| info(name(at), t.dtype(), None));
    let graph = Graph {
        inputs: declared.collect(),
        outputs: vec![info("o".to_owned(), F32, None)],
        nodes: vec![node],
        ..Graph::default()
    };
    let model = Model {
        ir_version: 8,
        opset: 17,
        other_opsets: vec![],
        producer: String::new(),
        metadata: vec![],
        graph,
    };
    let given: BTreeMap<String, Tensor> =
        inputs.iter().enumerate().map(|(at, tensor)| (name(at), tensor.clone())).collect();
    let outputs = evaluate(&model, Path::new(""), &given).map_err(|error| error.to_string())?;
    Ok(outputs[0].clone())
}

#[track_caller]
fn check(op: &str, attributes: &[(&str, AttributeValue)], inputs: &[Tensor], expect: &Tensor) {
    let got = run(op, attributes, inputs).unwrap();
    assert_eq!((got.dtype(), got.dims()), (expect.dtype(), expect.dims()));
    assert_eq!(got.as_ints(), expect.as_ints());
    let pairs = got.as_floats().into_iter().flatten().zip(expect.as_floats().into_iter().flatten());
    for (got, expect) in pairs {
        assert!((got - expect).abs() < 1e-6 * (1.0 + expect.abs()), "{got} is not {expect}");
    }
}

fn int(value: i64) -> AttributeValue {
    AttributeValue::Int(value)
}

fn list(values: &[i64]) -> AttributeValue {
    AttributeValue::Ints(values.to_vec())
}

#[test]
fn products() {
    let a = floats(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let b = floats(&[3, 2], &[1., 0., 2., 1., 0., 3.]);
    check("MatMul", &[], &[a.clone(), b.clone()], &floats(&[2, 2], &[5., 11., 14., 23.]));
    let turned = floats(&[2, 3], &[1., 2., 0., 0., 1., 3.]);
    let half = AttributeValue::Float(0.5);
    let c = floats(&[2], &[10., 20.]);
    let expect = floats(&[2, 2], &[12.5, 25.5, 17., 31.5]);
    check("Gemm", &[("transB", int(1)), ("alpha", half)], &[a.clone(), turned, c], &expect);
    check("MatMul", &[], &[floats(&[3], &[1., 1., 1.]), b], &floats(&[2], &[3., 4.]));
    let batch = floats(&[2, 1, 1, 2], &[1., 2., 3., 4.]);
    let other = floats(&[1, 2, 2, 1], &[1., 1., 0., 1.]);
    check("MatMul", &[], &[batch, other], &floats(&[2, 2, 1, 1], &[3., 2., 7., 4.]));
    assert!(run("MatMul", &[], &[a.clone(), a]).unwrap_err().contains("do not multiply"));
}

#[test]
fn convolutions() {
    let image = floats(&[1, 1, 3, 3], &[1., 2., 3., 4., 5., 6., 7., 8., 9.]);
    let kernel = floats(&[1, 1, 2, 2], &[1., 0., 0., 1.]);
    check(
        "Conv",
        &[],
        &[image.clone(), kernel.clone()],
        &floats(&[1, 1, 2, 2], &[6., 8., 12., 14.]),
    );
    let around = [("pads", list(&[1, 1, 0, 0])), ("strides", list(&[2, 2]))];
    let biased = [image, kernel, floats(&[1], &[0.5])];
    check("Conv", &around, &biased, &floats(&[1, 1, 2, 2], &[1.5, 3.5, 7.5, 14.5]));
    let pair = floats(&[1, 2, 2], &[1., 2., 3., 4.]);
    let groups = floats(&[2, 1, 1], &[10., 100.]);
    let expect = floats(&[1, 2, 2], &[10., 20., 300., 400.]);
    check("Conv", &[("group", int(2))], &[pair, groups], &expect);
}

#[test]
fn numbers() {
    let x = floats(&[2], &[0.0, 1.0]);
    check("Softmax", &[], std::slice::from_ref(&x), &floats(&[2], &[0.268_941_42, 0.731_058_58]));
    let column = floats(&[2, 2], &[0.0, 5.0, 1.0, 5.0]);
    let expect = floats(&[2, 2], &[0.268_941_42, 0.5, 0.731_058_58, 0.5]);
    check("Softmax", &[("axis", int(0))], &[column], &expect);
    check("Sigmoid", &[], std::slice::from_ref(&x), &floats(&[2], &[0.5, 0.731_058_58]));
    check("Erf", &[], std::slice::from_ref(&x), &floats(&[2], &[0.0, 0.842_700_79]));
    check("Cos", &[], &[x], &floats(&[2], &[1.0, 0.540_302_3]));
    let row = floats(&[1, 2], &[1., 3.]);
    let norm = [row, floats(&[2], &[2., 2.]), floats(&[2], &[0., 1.])];
    check("LayerNormalization", &[], &norm, &floats(&[1, 2], &[-1.99999, 2.99999]));
    let table = floats(&[2, 2], &[1., 2., 3., 4.]);
    let flat = [("axes", list(&[0])), ("keepdims", int(0))];
    check("ReduceMean", &flat, std::slice::from_ref(&table), &floats(&[2], &[2., 3.]));
    check("ReduceMax", &[("axes", list(&[-1]))], &[table], &floats(&[2, 1], &[2., 4.]));
    check("Div", &[], &[ints(&[2], &[-7, 7]), ints(&[], &[2])], &ints(&[2], &[-3, 3]));
    check("Mod", &[], &[ints(&[2], &[-7, 7]), ints(&[], &[3])], &ints(&[2], &[2, 1]));
    let flags = Tensor::ints(Bool, &[2], vec![1, 0]);
    check("Equal", &[], &[ints(&[2], &[3, 4]), ints(&[1], &[3])], &flags);
    let choices = [flags, floats(&[], &[9.]), floats(&[2, 1], &[1., 2.])];
    check("Where", &[], &choices, &floats(&[2, 2], &[9., 1., 9., 2.]));
    let mixed = run("Add", &[], &[ints(&[1], &[1]), floats(&[1], &[1.])]);
    assert!(mixed.unwrap_err().contains("mixes i64 and f32"));
    assert!(
        run("Nonsense", &[], &[ints(&[1], &[1]), ints(&[1], &[1])])
            .unwrap_err()
            .contains("Nonsense")
    );
}

#[test]
fn types() {
    let x = floats(&[3], &[1.001, -2.7, 1e-8]);
    check(
        "Cast",
        &[("to", int(10))],
        std::slice::from_ref(&x),
        &Tensor::floats(F16, &[3], vec![1.001, -2.7, 0.]),
    );
    check(
        "Cast",
        &[("to", int(16))],
        std::slice::from_ref(&x),
        &Tensor::floats(Bf16, &[3], vec![1., -2.703125, 1.001e-8]),
    );
    check("Cast", &[("to", int(6))], &[x], &Tensor::ints(I32, &[3], vec![1, -2, 0]));
    let codes = Tensor::ints(I8, &[2, 2], vec![1, -1, 2, 3]);
    let (scale, zero) = (floats(&[2], &[0.5, 10.]), Tensor::ints(I8, &[2], vec![0, 1]));
    let dequantise = |axis, expect: &[f64]| {
        let inputs = [codes.clone(), scale.clone(), zero.clone()];
        check("DequantizeLinear", &[("axis", int(axis))], &inputs, &floats(&[2, 2], expect));
    };
    dequantise(0, &[0.5, -0.5, 10., 20.]);
    dequantise(1, &[0.5, -20., 1., 20.]);
    let to = Tensor::ints(I8, &[], vec![0]);
    let inputs = [floats(&[3], &[0.25, 0.75, 1000.]), floats(&[], &[0.5]), to];
    check("QuantizeLinear", &[], &inputs, &Tensor::ints(I8, &[3], vec![0, 2, 127]));
}

#[test]
fn layouts() {
    let x = ints(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    check("Transpose", &[], std::slice::from_ref(&x), &ints(&[3, 2], &[1, 4, 2, 5, 3, 6]));
    check("Reshape", &[], &[x.clone(), ints(&[2], &[-1, 2])], &ints(&[3, 2], &[1, 2, 3, 4, 5, 6]));
    check(
        "Reshape",
        &[],
        &[x.clone(), ints(&[3], &[0, 1, -1])],
        &ints(&[2, 1, 3], &[1, 2, 3, 4, 5, 6]),
    );
    let back = [ints(&[1], &[-1]), ints(&[1], &[i64::MIN]), ints(&[1], &[1]), ints(&[1], &[-2])];
    let [a, b, c, d] = back;
    check("Slice", &[], &[x.clone(), a, b, c, d], &ints(&[2, 2], &[3, 1, 6, 4]));
    check(
        "Gather",
        &[("axis", int(1))],
        &[x.clone(), ints(&[2], &[-1, 0])],
        &ints(&[2, 2], &[3, 1, 6, 4]),
    );
    check("Gather", &[], &[x.clone(), ints(&[], &[1])], &ints(&[3], &[4, 5, 6]));
    check(
        "Concat",
        &[("axis", int(1))],
        &[x.clone(), ints(&[2, 1], &[7, 8])],
        &ints(&[2, 4], &[1, 2, 3, 7, 4, 5, 6, 8]),
    );
    check(
        "Pad",
        &[],
        &[ints(&[2], &[1, 2]), ints(&[2], &[1, -1]), ints(&[], &[9])],
        &ints(&[2], &[9, 1]),
    );
    check(
        "Expand",
        &[],
        &[ints(&[2, 1], &[1, 2]), ints(&[3], &[2, 1, 2])],
        &ints(&[2, 2, 2], &[1, 1, 2, 2, 1, 1, 2, 2]),
    );
    check(
        "Trilu",
        &[("upper", int(0))],
        std::slice::from_ref(&x),
        &ints(&[2, 3], &[1, 0, 0, 4, 5, 0]),
    );
    check("Trilu", &[], &[x.clone(), ints(&[], &[1])], &ints(&[2, 3], &[0, 2, 3, 0, 0, 6]));
    check("Shape", &[("start", int(-1))], std::slice::from_ref(&x), &ints(&[1], &[3]));
    check(
        "Unsqueeze",
        &[],
        &[x.clone(), ints(&[2], &[0, -1])],
        &ints(&[1, 2, 3, 1], &[1, 2, 3, 4, 5, 6]),
    );
    check("Flatten", &[], &[ints(&[1, 2, 1], &[1, 2])], &ints(&[1, 2], &[1, 2]));
    check(
        "Range",
        &[],
        &[ints(&[], &[5]), ints(&[], &[0]), ints(&[], &[-2])],
        &ints(&[3], &[5, 3, 1]),
    );
    let none = ints(&[0], &[]);
    check("Pad", &[], &[ints(&[1], &[1]), ints(&[2], &[1, 0]), none], &ints(&[2], &[0, 1]));
    let far = [ints(&[1], &[1]), ints(&[2], &[i64::MAX, i64::MAX])];
    assert!(run("Pad", &[], &far).unwrap_err().contains("over the limit"));
    let ends = [ints(&[], &[i64::MIN]), ints(&[], &[i64::MAX]), ints(&[], &[i64::MAX])];
    check("Range", &[], &ends, &ints(&[3], &[i64::MIN, -1, i64::MAX - 1]));
    let huge = run("Expand", &[], &[x, ints(&[3], &[1 << 40, 1, 1])]).unwrap_err();
    assert!(huge.contains("over the limit"), "{huge}");
}
