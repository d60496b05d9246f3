//! Checks every operator against hand-computed values or slow, plain code.

use std::collections::BTreeMap;

use half::f16;
use smelt_random::Random;
use smelt_tensor::dtype::Dtype;
use tempfile::TempDir;

use super::super::array::{Array, Value, Weight, broadcast};
use super::super::file::{AttributeFile, NodeFile};
use super::super::op::Op;
use super::{Inputs, Machine, run};
use crate::cast::bytes_of;
use crate::engine_file::{EngineFile, EngineWriter, Layout, TensorSpec};
use crate::kernels::isa::Isa;
use crate::kernels::testing::close;
use crate::kernels::threads::Threads;

use AttributeFile::{Float, Int, Ints};

/// An engine file with the given f16 matrix, because machines read weights from one.
fn engine_file(shape: &[usize], numbers: &[u16]) -> (TempDir, EngineFile<u32>) {
    let dir = TempDir::new().unwrap();
    let mut writer = EngineWriter::create(dir.path()).unwrap();
    let (name, dtype, shape) = ("w".to_owned(), Dtype::F16, shape.to_vec());
    writer.begin(TensorSpec { name, dtype, shape, layout: Layout::Rows }).unwrap();
    writer.write(bytes_of(numbers)).unwrap();
    writer.finish("test", 0).unwrap().seal().unwrap();
    let file = EngineFile::open(dir.path(), "test").unwrap();
    (dir, file)
}

/// An operator with its attributes at an opset.
struct Case<'a>(&'a str, i64, &'a [(&'a str, AttributeFile)]);

impl Case<'_> {
    fn outputs(&self, count: usize, inputs: Vec<Option<Value>>) -> Result<Vec<Value>, String> {
        let (_dir, file) = engine_file(&[1], &[0]);
        self.outputs_on(&file, count, inputs)
    }

    fn outputs_on(
        &self,
        file: &EngineFile<u32>,
        count: usize,
        inputs: Vec<Option<Value>>,
    ) -> Result<Vec<Value>, String> {
        let name = |given: bool| if given { "i".to_owned() } else { String::new() };
        let node = NodeFile {
            name: "n".to_owned(),
            op: self.0.to_owned(),
            inputs: inputs.iter().map(|input| name(input.is_some())).collect(),
            outputs: (0..count).map(|index| index.to_string()).collect(),
            attributes: self
                .2
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.clone()))
                .collect::<BTreeMap<_, _>>(),
        };
        let op = Op::parse(&node, self.1)?;
        let machine =
            Machine { isa: Isa::detect(), threads: &Threads::new(3), weights: &file.weights };
        run(&op, Inputs(inputs), machine)
    }

    fn run(&self, inputs: &[Value]) -> Result<Value, String> {
        let mut values = self.outputs(1, inputs.iter().cloned().map(Some).collect())?;
        Ok(values.swap_remove(0))
    }

    #[track_caller]
    fn gives(&self, inputs: &[Value], expect: &Value) {
        let got = self.run(inputs).unwrap_or_else(|error| panic!("{}: {error}", self.0));
        same(&got, expect, self.0);
    }

    #[track_caller]
    fn fails(&self, inputs: &[Value], words: &str) {
        let error = self.run(inputs).unwrap_err();
        assert!(error.contains(words), "{}: {error}", self.0);
        assert!(!error.contains('\n'));
    }
}

#[track_caller]
fn same(got: &Value, expect: &Value, what: &str) {
    match (got, expect) {
        (Value::F32(got), Value::F32(expect)) => assert_eq!(got, expect, "{what}"),
        (Value::I64(got), Value::I64(expect)) => assert_eq!(got, expect, "{what}"),
        _ => panic!("{what}: {got:?} is not {expect:?}"),
    }
}

fn f(shape: &[usize], data: &[f32]) -> Value {
    Value::F32(Array::new(shape.to_vec(), data.to_vec()))
}

fn i(shape: &[usize], data: &[i64]) -> Value {
    Value::I64(Array::new(shape.to_vec(), data.to_vec()))
}

fn list(data: &[i64]) -> Value {
    i(&[data.len()], data)
}

/// 0, 1, 2 … under `shape`.
fn count(shape: &[usize]) -> Value {
    let len: usize = shape.iter().product();
    f(shape, &(0..len).map(|n| n as f32).collect::<Vec<_>>())
}

fn random_shape(random: &mut Random, rank: usize) -> Vec<usize> {
    (0..rank).map(|_| 1 + random.below(4)).collect()
}

fn random_value(random: &mut Random, shape: &[usize]) -> Array<f32> {
    Array::new(shape.to_vec(), random.noise(shape.iter().product()))
}

/// All indices of `shape` in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &dim| {
        all.iter().flat_map(|head| (0..dim).map(|i| [&head[..], &[i]].concat())).collect()
    })
}

/// The number of `array` at `index`, its dimensions of 1 repeated and missing ones left out.
fn at(array: &Array<f32>, index: &[usize]) -> f32 {
    let index = &index[index.len() - array.rank()..];
    let dims = index.iter().zip(array.shape());
    let place = dims.fold(0, |place, (&i, &dim)| place * dim + if dim == 1 { 0 } else { i });
    array.data()[place]
}

fn floats(value: Value) -> Array<f32> {
    match value {
        Value::F32(array) => array,
        other => panic!("{other:?} is no float array"),
    }
}

#[test]
fn reshape_copies_zeros_and_finds_the_rest() {
    let plain = Case("Reshape", 13, &[]);
    let x = count(&[2, 3, 4]);
    plain.gives(&[x.clone(), list(&[4, -1])], &count(&[4, 6]));
    plain.gives(&[x.clone(), list(&[0, 0, 2, 2])], &count(&[2, 3, 2, 2]));
    plain.gives(&[x.clone(), list(&[0, -1])], &count(&[2, 12]));
    plain.gives(&[f(&[1, 1], &[5.0]), list(&[])], &f(&[], &[5.0]));
    plain.fails(&[x.clone(), list(&[5, -1])], "cannot give");
    plain.fails(&[x.clone(), list(&[-1, -1])], "cannot give");
    plain.fails(&[x.clone(), list(&[-2, 12])], "cannot give");
    plain.fails(&[x.clone(), list(&[23])], "cannot give");
    plain.fails(&[x, list(&[1, 1, 1, 0])], "cannot give");
    let zero = [("allowzero", Int(1))];
    let allow = Case("Reshape", 14, &zero);
    allow.gives(&[f(&[0, 3], &[]), list(&[3, 0])], &f(&[3, 0], &[]));
    allow.fails(&[f(&[0, 3], &[]), list(&[0, -1])], "cannot give");
}

#[test]
fn transpose_matches_indexing() {
    let mut random = Random::new(20);
    Case("Transpose", 13, &[]).gives(&[count(&[2, 3])], &f(&[3, 2], &[0., 3., 1., 4., 2., 5.]));
    Case("Transpose", 13, &[]).gives(&[f(&[], &[1.0])], &f(&[], &[1.0]));
    for _ in 0..40 {
        let rank = 1 + random.below(4);
        let shape = random_shape(&mut random, rank);
        let mut order: Vec<i64> = (0..rank as i64).collect();
        for k in (1..rank).rev() {
            order.swap(k, random.below(k + 1));
        }
        let x = random_value(&mut random, &shape);
        let attributes = [("perm", Ints(order.clone()))];
        let got = floats(Case("Transpose", 13, &attributes).run(&[Value::F32(x.clone())]).unwrap());
        for index in indices(got.shape()) {
            let mut from = vec![0; rank];
            order.iter().zip(&index).for_each(|(&axis, &i)| from[axis as usize] = i);
            assert_eq!(at(&got, &index), at(&x, &from), "{shape:?} {order:?}");
        }
    }
    let twice = [("perm", Ints(vec![0, 0]))];
    Case("Transpose", 13, &twice).fails(&[count(&[2, 3])], "does not order");
}

#[test]
fn binary_operators_broadcast() {
    let mut random = Random::new(21);
    for (op, function) in [
        ("Add", (|a, b| a + b) as fn(f32, f32) -> f32),
        ("Sub", |a, b| a - b),
        ("Mul", |a, b| a * b),
        ("Div", |a, b| a / b),
        ("Pow", f32::powf),
    ] {
        for _ in 0..40 {
            let rank = random.below(5);
            let full = random_shape(&mut random, rank);
            let shrink = |random: &mut Random| -> Vec<usize> {
                let start = random.below(rank + 1);
                full[start..]
                    .iter()
                    .map(|&dim| if random.below(3) == 0 { 1 } else { dim })
                    .collect()
            };
            let (a_shape, b_shape) = (shrink(&mut random), shrink(&mut random));
            let (a, b) = (random_value(&mut random, &a_shape), random_value(&mut random, &b_shape));
            let a = if op == "Pow" {
                Array::new(a_shape, a.data().iter().map(|v| v.abs()).collect())
            } else {
                a
            };
            // The machine may write over one that nobody else holds, so both forms are tried.
            for held in [true, false] {
                let (keep_a, keep_b) = (a.clone(), b.clone());
                let (a, b) = if held {
                    (a.clone(), b.clone())
                } else {
                    let own = |x: &Array<f32>| Array::new(x.shape().to_vec(), x.data().to_vec());
                    (own(&a), own(&b))
                };
                let inputs = vec![Some(Value::F32(a)), Some(Value::F32(b))];
                let got = floats(Case(op, 13, &[]).outputs(1, inputs).unwrap().swap_remove(0));
                assert_eq!(got.shape(), broadcast(keep_a.shape(), keep_b.shape()).unwrap());
                for index in indices(got.shape()) {
                    let expect = function(at(&keep_a, &index), at(&keep_b, &index));
                    assert_eq!(at(&got, &index), expect, "{op}");
                }
            }
        }
        Case(op, 13, &[]).fails(&[count(&[2]), count(&[3])], "do not broadcast");
    }
}

#[test]
fn large_values_are_shared_by_threads_without_a_difference() {
    let mut random = Random::new(22);
    let (a, b) = (random_value(&mut random, &[301, 1000]), random_value(&mut random, &[1000]));
    let c = random_value(&mut random, &[301, 1]);
    let sum = Case("Add", 13, &[]).run(&[Value::F32(a.clone()), Value::F32(b.clone())]).unwrap();
    let product = floats(Case("Mul", 13, &[]).run(&[Value::F32(c.clone()), sum]).unwrap());
    for index in [[0, 0], [100, 999], [300, 5], [300, 999]] {
        let expect = at(&c, &index) * (at(&a, &index) + at(&b, &index));
        assert_eq!(at(&product, &index), expect);
    }
}

#[test]
fn integers_are_exact_and_say_when_they_overflow() {
    let a = list(&[7, -7, 2]);
    Case("Add", 13, &[]).gives(&[a.clone(), i(&[], &[1])], &list(&[8, -6, 3]));
    Case("Div", 14, &[]).gives(&[a.clone(), i(&[], &[2])], &list(&[3, -3, 1]));
    Case("Pow", 15, &[]).gives(&[a.clone(), i(&[], &[2])], &list(&[49, 49, 4]));
    Case("Neg", 13, &[]).gives(std::slice::from_ref(&a), &list(&[-7, 7, -2]));
    Case("Div", 14, &[]).fails(&[a.clone(), i(&[], &[0])], "no 64-bit integer");
    Case("Mul", 14, &[]).fails(&[a.clone(), i(&[], &[i64::MAX])], "no 64-bit integer");
    Case("Add", 13, &[]).fails(&[a, count(&[3])], "integers");
    let base = f(&[2], &[3.0, 0.5]);
    Case("Pow", 15, &[]).gives(&[base, i(&[], &[4])], &f(&[2], &[81.0, 0.0625]));
}

#[test]
fn functions_match_their_definitions() {
    let x: Vec<f32> = (-40..=40).map(|n| n as f32 / 8.0).collect();
    let check = |op, function: fn(f64) -> f64, tolerance: f64| {
        let input = f(&[x.len()], &x);
        let got = floats(Case(op, 13, &[]).run(&[input]).unwrap());
        let expect: Vec<f64> = x.iter().map(|&x| function(f64::from(x))).collect();
        for (got, expect) in got.data().iter().zip(expect) {
            let bound = tolerance * (1.0 + expect.abs());
            let both_nan = got.is_nan() && expect.is_nan();
            assert!(both_nan || (f64::from(*got) - expect).abs() <= bound, "{op}: {got} {expect}");
        }
    };
    check("Sqrt", f64::sqrt, 1e-7);
    check("Tanh", f64::tanh, 2e-7);
    check("Exp", f64::exp, 2e-7);
    check("Neg", |x| -x, 0.0);
    check("Sigmoid", |x| 1.0 / (1.0 + (-x).exp()), 2e-7);
    let erf = [(0.5, 0.520_499_9), (-2.0, -0.995_322_3), (0.0, 0.0)];
    for (x, expect) in erf {
        let got = floats(Case("Erf", 13, &[]).run(&[f(&[1], &[x])]).unwrap());
        assert!((got.data()[0] - expect).abs() < 1e-6);
    }
}

#[test]
fn both_gelus_of_opset_20_exist_and_differ() {
    let x = f(&[1], &[1.0]);
    let exact = floats(Case("Gelu", 20, &[]).run(std::slice::from_ref(&x)).unwrap());
    let tanh = [("approximate", AttributeFile::Text("tanh".to_owned()))];
    let tanh = floats(Case("Gelu", 20, &tanh).run(&[x]).unwrap());
    assert!((exact.data()[0] - 0.841_344_8).abs() < 1e-6);
    assert!((tanh.data()[0] - 0.841_192).abs() < 1e-6);
}

#[test]
fn casts_round_and_truncate() {
    let cast = |to: i64, input: Value| Case("Cast", 13, &[("to", Int(to))]).run(&[input]).unwrap();
    let x = f(&[4], &[1.7, -1.7, 2049.0, 1e6]);
    same(&cast(1, x.clone()), &x, "f32");
    same(
        &cast(10, x.clone()),
        &f(&[4], &[1.700_195_3, -1.700_195_3, 2048.0, f32::INFINITY]),
        "f16",
    );
    same(&cast(16, x.clone()), &f(&[4], &[1.703_125, -1.703_125, 2048.0, 999_424.0]), "bf16");
    same(&cast(7, x), &list(&[1, -1, 2049, 1_000_000]), "i64");
    same(&cast(1, list(&[3, -4])), &f(&[2], &[3.0, -4.0]), "float");
    same(&cast(6, list(&[1 << 32, -1])), &list(&[0, -1]), "i32 wraps");
}

#[test]
fn softmax_works_along_any_axis() {
    let mut random = Random::new(23);
    for _ in 0..30 {
        let rank = 1 + random.below(4);
        let shape = random_shape(&mut random, rank);
        let axis = random.below(rank);
        let signed = axis as i64 - if random.below(2) == 0 { rank as i64 } else { 0 };
        let x = random_value(&mut random, &shape);
        let attributes = [("axis", Int(signed))];
        let got = floats(Case("Softmax", 13, &attributes).run(&[Value::F32(x.clone())]).unwrap());
        let expect: Vec<f64> = indices(&shape)
            .into_iter()
            .map(|index| {
                let term = |i| {
                    let mut index = index.clone();
                    index[axis] = i;
                    f64::from(at(&x, &index)).exp()
                };
                term(index[axis]) / (0..shape[axis]).map(term).sum::<f64>()
            })
            .collect();
        close(got.data(), &expect, 1e-6, &format!("softmax {shape:?} axis {axis}"));
    }
    Case("Softmax", 13, &[("axis", Int(1))]).fails(&[count(&[3])], "axis 1 is outside");
}

#[test]
fn layer_normalization_gives_its_moments_too() {
    let x = f(&[2, 2, 2], &[1.0, 3.0, -1.0, 1.0, 0.0, 0.0, 4.0, -4.0]);
    let scale = f(&[2], &[1.0, 2.0]);
    let attributes = [("epsilon", Float(0.0)), ("axis", Int(-1)), ("stash_type", Int(1))];
    let layer = Case("LayerNormalization", 17, &attributes);
    let inputs = vec![Some(x.clone()), Some(scale), Some(f(&[2], &[0.0, 10.0]))];
    let outputs = layer.outputs(3, inputs).unwrap();
    let y = floats(outputs[0].clone());
    assert_eq!(y.data()[..4], [-1.0, 12.0, -1.0, 12.0]);
    assert_eq!(y.data()[6..], [1.0, 8.0]);
    let mean = floats(outputs[1].clone());
    assert_eq!((mean.shape(), mean.data()), (&[2, 2, 1][..], &[2.0, 0.0, 0.0, 0.0][..]));
    assert_eq!(floats(outputs[2].clone()).data()[3], 0.25);
    // Over two dimensions, with a scale that broadcasts and no bias.
    let attributes = [("axis", Int(1))];
    let layer = Case("LayerNormalization", 17, &attributes);
    let y = floats(layer.run(&[x.clone(), f(&[2, 1], &[1.0, 10.0])]).unwrap());
    let deviation = (2.0f32 + 1e-5).sqrt();
    for (got, expect) in y.data().iter().zip([0.0, 2.0, -20.0, 0.0]) {
        assert!((got - expect / deviation).abs() < 1e-5);
    }
    layer.fails(&[x, f(&[3], &[0.0; 3])], "broadcast");
}

#[test]
fn means_reduce_any_axes_in_both_forms() {
    let x = count(&[2, 3]);
    let old = |attributes: &[(&str, AttributeFile)], expect: &Value| {
        Case("ReduceMean", 13, attributes).gives(&[count(&[2, 3])], expect);
    };
    old(&[("axes", Ints(vec![-1]))], &f(&[2, 1], &[1.0, 4.0]));
    old(&[("axes", Ints(vec![0])), ("keepdims", Int(0))], &f(&[3], &[1.5, 2.5, 3.5]));
    old(&[], &f(&[1, 1], &[2.5]));
    old(&[("keepdims", Int(0))], &f(&[], &[2.5]));
    let new = Case("ReduceMean", 18, &[]);
    new.gives(&[x.clone(), list(&[1])], &f(&[2, 1], &[1.0, 4.0]));
    new.gives(&[x.clone(), list(&[])], &f(&[1, 1], &[2.5]));
    Case("ReduceMean", 18, &[("noop_with_empty_axes", Int(1))]).gives(std::slice::from_ref(&x), &x);
    new.fails(&[x, list(&[2])], "axis 2 is outside");
}

#[test]
fn slices_follow_the_standard() {
    let slice = Case("Slice", 13, &[]);
    let x = count(&[2, 4]);
    let part = |starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]| {
        slice.run(&[x.clone(), list(starts), list(ends), list(axes), list(steps)])
    };
    same(&part(&[1], &[3], &[1], &[1]).unwrap(), &f(&[2, 2], &[1., 2., 5., 6.]), "middle");
    same(&part(&[0, 1], &[1, i64::MAX], &[0, -1], &[1, 2]).unwrap(), &f(&[1, 2], &[1., 3.]), "two");
    let turned = f(&[2, 4], &[3., 2., 1., 0., 7., 6., 5., 4.]);
    same(&part(&[-1], &[i64::MIN], &[1], &[-1]).unwrap(), &turned, "backwards");
    same(&part(&[100], &[-100], &[1], &[-3]).unwrap(), &f(&[2, 2], &[3., 0., 7., 4.]), "held");
    same(&part(&[3], &[1], &[1], &[1]).unwrap(), &f(&[2, 0], &[]), "nothing");
    same(&part(&[1], &[4], &[1], &[i64::MAX]).unwrap(), &f(&[2, 1], &[1., 5.]), "huge step");
    slice.gives(&[x.clone(), list(&[1]), list(&[2])], &f(&[1, 4], &[4., 5., 6., 7.]));
    slice.gives(&[list(&[5, 6, 7]), list(&[-2]), list(&[-1])], &list(&[6]));
    assert!(part(&[0], &[1], &[0], &[0]).unwrap_err().contains("step 0"));
    assert!(part(&[0], &[1], &[2], &[1]).unwrap_err().contains("axis 2"));
    slice.fails(&[x.clone(), list(&[0, 0]), list(&[1])], "differ in length");
}

#[test]
fn split_and_concat_are_inverse() {
    let x = count(&[2, 5]);
    let split = |opset, count: usize, inputs: Vec<Value>| {
        let inputs = inputs.into_iter().map(Some).collect();
        Case("Split", opset, &[("axis", Int(-1))]).outputs(count, inputs)
    };
    let parts = split(13, 3, vec![x.clone(), list(&[2, 0, 3])]).unwrap();
    same(&parts[0], &f(&[2, 2], &[0., 1., 5., 6.]), "first");
    same(&parts[1], &f(&[2, 0], &[]), "empty");
    Case("Concat", 13, &[("axis", Int(1))]).gives(&parts, &x);
    let halves = split(18, 2, vec![x.clone()]).unwrap();
    assert_eq!((halves[0].shape(), halves[1].shape()), (&[2, 3][..], &[2, 2][..]));
    assert!(split(13, 2, vec![x.clone(), list(&[2, 2])]).unwrap_err().contains("do not split"));
    let join = Case("Concat", 13, &[("axis", Int(0))]);
    join.gives(&[list(&[1]), list(&[2, 3])], &list(&[1, 2, 3]));
    join.fails(&[x, count(&[2, 4])], "cannot join");
    join.fails(&[list(&[1]), count(&[1])], "integers");
}

#[test]
fn shapes_gain_and_lose_dimensions() {
    let x = count(&[1, 3, 1]);
    Case("Squeeze", 13, &[]).gives(std::slice::from_ref(&x), &count(&[3]));
    Case("Squeeze", 13, &[]).gives(&[x.clone(), list(&[-1])], &count(&[1, 3]));
    Case("Squeeze", 13, &[]).fails(&[x.clone(), list(&[1])], "cannot squeeze");
    Case("Unsqueeze", 13, &[]).gives(&[count(&[3]), list(&[0, -1])], &x);
    Case("Unsqueeze", 13, &[]).fails(&[count(&[3]), list(&[0, 0])], "twice");
    Case("Flatten", 13, &[]).gives(&[count(&[2, 3, 4])], &count(&[2, 12]));
    Case("Flatten", 13, &[("axis", Int(-1))]).gives(&[count(&[2, 3, 4])], &count(&[6, 4]));
    Case("Flatten", 13, &[("axis", Int(3))]).gives(&[count(&[2, 3, 4])], &count(&[24, 1]));
    Case("Flatten", 13, &[("axis", Int(0))]).gives(&[count(&[2])], &count(&[1, 2]));
    Case("Shape", 13, &[]).gives(std::slice::from_ref(&x), &list(&[1, 3, 1]));
    let part = [("start", Int(-2)), ("end", Int(-1))];
    Case("Shape", 15, &part).gives(std::slice::from_ref(&x), &list(&[3]));
    Case("Identity", 13, &[]).gives(std::slice::from_ref(&x), &x);
}

#[test]
fn expand_repeats_and_constants_fill() {
    let expand = Case("Expand", 13, &[]);
    let column = f(&[2, 1], &[1.0, 2.0]);
    expand.gives(&[column.clone(), list(&[3])], &f(&[2, 3], &[1., 1., 1., 2., 2., 2.]));
    expand.gives(&[column.clone(), list(&[1, 1, 1])], &f(&[1, 2, 1], &[1., 2.]));
    expand.fails(&[column, list(&[3, 1])], "do not broadcast");
    expand.fails(&[count(&[1]), list(&[1 << 40])], "more than");
    let fill = Case("ConstantOfShape", 13, &[]);
    fill.gives(&[list(&[2])], &f(&[2], &[0.0, 0.0]));
    fill.gives(&[list(&[2, 1]), list(&[7])], &i(&[2, 1], &[7, 7]));
    fill.fails(&[list(&[-1])], "no size");
}

#[test]
fn gather_picks_along_an_axis() {
    let x = count(&[2, 3]);
    let indices = i(&[1, 2], &[-1, 0]);
    Case("Gather", 13, &[]).gives(&[x.clone(), list(&[1])], &f(&[1, 3], &[3., 4., 5.]));
    let columns = [("axis", Int(1))];
    Case("Gather", 13, &columns).gives(&[x.clone(), indices], &f(&[2, 1, 2], &[2., 0., 5., 3.]));
    Case("Gather", 13, &[]).gives(&[list(&[8, 9]), i(&[], &[1])], &i(&[], &[9]));
    Case("Gather", 13, &[]).fails(&[x, list(&[2])], "index 2 is outside");
}

#[test]
fn pad_adds_and_crops() {
    let pad = Case("Pad", 13, &[]);
    let x = count(&[2, 2]);
    let framed = f(&[3, 4], &[9., 9., 9., 9., 9., 0., 1., 9., 9., 2., 3., 9.]);
    pad.gives(&[x.clone(), list(&[1, 1, 0, 1]), f(&[], &[9.0])], &framed);
    pad.gives(&[x.clone(), list(&[0, -1, 0, 2])], &f(&[2, 3], &[1., 0., 0., 3., 0., 0.]));
    pad.gives(&[x.clone(), list(&[-1, 0, 0, -1])], &f(&[1, 1], &[2.0]));
    pad.gives(&[list(&[5]), list(&[1, 0])], &list(&[0, 5]));
    let inputs = [x.clone(), list(&[1, 0]), f(&[], &[7.0]), list(&[-1])];
    Case("Pad", 18, &[]).gives(&inputs, &f(&[2, 3], &[7., 0., 1., 7., 2., 3.]));
    pad.fails(&[x.clone(), list(&[1, 1])], "do not fit 2 axes");
    pad.fails(&[x, list(&[-2, 0, -2, 0])], "do not fit 2");
}

fn naive_mat_mul(a: &Array<f32>, b: &Array<f32>) -> (Vec<usize>, Vec<f64>) {
    let (a_rank, b_rank) = (a.rank(), b.rank());
    let (m, k, n) = (a.shape()[a_rank - 2], a.shape()[a_rank - 1], b.shape()[b_rank - 1]);
    let batch = broadcast(&a.shape()[..a_rank - 2], &b.shape()[..b_rank - 2]).unwrap();
    let shape = [&batch[..], &[m, n]].concat();
    let sum = |index: Vec<usize>| {
        let (head, last) = index.split_at(batch.len());
        let number = |array: &Array<f32>, r: usize, c: usize| {
            let index = [head, &[r, c]].concat();
            f64::from(at(array, &index[index.len() - array.rank()..]))
        };
        (0..k).map(|p| number(a, last[0], p) * number(b, p, last[1])).sum()
    };
    let numbers = indices(&shape).into_iter().map(sum).collect();
    (shape, numbers)
}

#[test]
fn mat_mul_broadcasts_batches() {
    let mut random = Random::new(24);
    let cases: [(&[usize], &[usize]); 8] = [
        (&[3, 4], &[4, 5]),
        (&[2, 3, 4], &[4, 5]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 1, 3, 4], &[3, 4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[1, 70, 30], &[2, 30, 41]),
        (&[4, 9, 16], &[1, 16, 33]),
        (&[2, 3, 1], &[2, 1, 3]),
    ];
    for (a_shape, b_shape) in cases {
        let (a, b) = (random_value(&mut random, a_shape), random_value(&mut random, b_shape));
        let (shape, expect) = naive_mat_mul(&a, &b);
        let got = floats(Case("MatMul", 13, &[]).run(&[Value::F32(a), Value::F32(b)]).unwrap());
        assert_eq!(got.shape(), shape);
        close(got.data(), &expect, 1e-6, &format!("{a_shape:?} @ {b_shape:?}"));
    }
    let product = Case("MatMul", 13, &[]);
    product.gives(&[count(&[2]), count(&[2, 3])], &f(&[3], &[3., 4., 5.]));
    product.gives(&[count(&[3, 2]), count(&[2])], &f(&[3], &[1., 3., 5.]));
    product.gives(&[count(&[2]), count(&[2])], &f(&[], &[1.0]));
    product.gives(&[f(&[0, 2], &[]), count(&[2, 3])], &f(&[0, 3], &[]));
    product.gives(&[f(&[2, 0], &[]), f(&[0, 1], &[])], &f(&[2, 1], &[0.0, 0.0]));
    product.fails(&[count(&[2, 3]), count(&[2, 3])], "cannot multiply");
    product.fails(&[count(&[]), count(&[1])], "cannot multiply");
}

#[test]
fn gemm_scales_transposes_and_adds() {
    let mut random = Random::new(25);
    for case in 0..16 {
        let (m, k, n) = (1 + random.below(20), 1 + random.below(40), 1 + random.below(50));
        let (ta, tb) = (case & 1 == 1, case & 2 == 2);
        let a = random_value(&mut random, &[m, k]);
        let b = random_value(&mut random, &[k, n]);
        let c_shape = &[vec![n], vec![m, 1], vec![1], vec![m, n]][case / 4];
        let c = random_value(&mut random, c_shape);
        let (_, product) = naive_mat_mul(&a, &b);
        let expect: Vec<f64> = indices(&[m, n])
            .iter()
            .zip(product)
            .map(|(index, sum)| 0.5 * sum + 2.0 * f64::from(at(&c, index)))
            .collect();
        let turn = |x: &Array<f32>, turn: bool| {
            let x = Value::F32(x.clone());
            if turn { Case("Transpose", 13, &[]).run(&[x]).unwrap() } else { x }
        };
        let attributes = [
            ("alpha", Float(0.5)),
            ("beta", Float(2.0)),
            ("transA", Int(ta.into())),
            ("transB", Int(tb.into())),
        ];
        let inputs = [turn(&a, ta), turn(&b, tb), Value::F32(c)];
        let got = floats(Case("Gemm", 13, &attributes).run(&inputs).unwrap());
        close(got.data(), &expect, 2e-6, &format!("gemm {m}x{k}x{n} {ta} {tb}"));
    }
    let gemm = Case("Gemm", 13, &[]);
    gemm.gives(&[count(&[1, 2]), count(&[2, 1])], &f(&[1, 1], &[1.0]));
    gemm.fails(&[count(&[1, 2]), count(&[3, 1])], "columns of 3");
    gemm.fails(&[count(&[2]), count(&[2, 1])], "not two matrices");
    gemm.fails(&[count(&[1, 2]), count(&[2, 1]), count(&[2, 1])], "cannot add");
}

#[test]
fn conv_matches_its_sum() {
    let mut random = Random::new(26);
    for _ in 0..20 {
        let (batch, channels, kernels) =
            (1 + random.below(2), 1 + random.below(3), 1 + random.below(5));
        let (kh, kw) = (1 + random.below(3), 1 + random.below(3));
        let (h, w) = (kh + random.below(6), kw + random.below(6));
        let strides = [1 + random.below(3), 1 + random.below(3)];
        let pads: Vec<usize> = (0..4).map(|_| random.below(3)).collect();
        let x = random_value(&mut random, &[batch, channels, h, w]);
        let weight = random_value(&mut random, &[kernels, channels, kh, kw]);
        let bias = random_value(&mut random, &[kernels]);
        let rows = (h + pads[0] + pads[2] - kh) / strides[0] + 1;
        let columns = (w + pads[1] + pads[3] - kw) / strides[1] + 1;
        let pixel = |b: usize, c: usize, y: usize, x_at: usize| {
            let inside = y >= pads[0] && y < h + pads[0] && x_at >= pads[1] && x_at < w + pads[1];
            if inside { f64::from(at(&x, &[b, c, y - pads[0], x_at - pads[1]])) } else { 0.0 }
        };
        let shape = [batch, kernels, rows, columns];
        let expect: Vec<f64> = indices(&shape)
            .iter()
            .map(|o| {
                let window = indices(&[channels, kh, kw]);
                let sum: f64 = window
                    .iter()
                    .map(|i| {
                        let (y, x) = (o[2] * strides[0] + i[1], o[3] * strides[1] + i[2]);
                        pixel(o[0], i[0], y, x) * f64::from(at(&weight, &[o[1], i[0], i[1], i[2]]))
                    })
                    .sum();
                sum + f64::from(bias.data()[o[1]])
            })
            .collect();
        let ints = |values: &[usize]| Ints(values.iter().map(|&v| v as i64).collect());
        let attributes = [("strides", ints(&strides)), ("pads", ints(&pads))];
        let inputs = [Value::F32(x.clone()), Value::F32(weight), Value::F32(bias)];
        let got = floats(Case("Conv", 13, &attributes).run(&inputs).unwrap());
        assert_eq!(got.shape(), shape);
        close(got.data(), &expect, 2e-6, "conv");
    }
    let conv = Case("Conv", 13, &[]);
    conv.fails(&[count(&[1, 2, 3, 3]), count(&[1, 1, 2, 2])], "cannot convolve");
    conv.fails(&[count(&[1, 1, 2, 2]), count(&[1, 1, 3, 3])], "cannot convolve");
    conv.fails(&[count(&[1, 1, 2, 2]), count(&[1, 1, 1, 1]), count(&[2])], "bias");
}

#[test]
fn stored_weights_give_the_same_bits_as_widened_ones() {
    let mut random = Random::new(27);
    let (rows, columns) = (37, 70);
    let bits: Vec<u16> =
        random.noise(rows * columns).iter().map(|&v| f16::from_f32(v).to_bits()).collect();
    let wide: Vec<f32> = bits.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect();
    let (_dir, file) = engine_file(&[rows, columns], &bits);
    let stored = std::sync::Arc::new(file.stored("w").unwrap().clone());
    let shape = vec![rows, columns];
    let weight = Value::Weight(Weight { stored, scale: None, shape, transposed: false });
    let wide = f(&[rows, columns], &wide);
    let transpose = Case("Transpose", 13, &[]);
    let one = |case: &Case<'_>, inputs: &[&Value]| {
        let inputs = inputs.iter().map(|&input| Some(input.clone())).collect();
        case.outputs_on(&file, 1, inputs).unwrap().swap_remove(0)
    };
    let (weight_t, wide_t) = (one(&transpose, &[&weight]), one(&transpose, &[&wide]));
    assert!(matches!(weight_t, Value::Weight(_)), "a stored matrix turns without moving");
    for m in [1, 3, 20] {
        let x = Value::F32(random_value(&mut random, &[m, rows]));
        let x_t = Value::F32(random_value(&mut random, &[m, columns]));
        let product = Case("MatMul", 13, &[]);
        same(&one(&product, &[&x, &weight]), &one(&product, &[&x, &wide]), "weight");
        if m > 4 {
            // Fewer rows take dot products where rows lie together, and tiles where they do not.
            same(&one(&product, &[&x_t, &weight_t]), &one(&product, &[&x_t, &wide_t]), "turned");
        }
        let gemm = Case("Gemm", 13, &[("transB", Int(1))]);
        same(&one(&gemm, &[&x_t, &weight]), &one(&gemm, &[&x_t, &wide]), "gemm");
    }
    let shape = list(&[rows as i64 * 2, -1]);
    let (reshape, negate) = (Case("Reshape", 13, &[]), Case("Neg", 13, &[]));
    for (weight, wide) in [(&weight, &wide), (&weight_t, &wide_t)] {
        let got = one(&negate, &[&one(&reshape, &[weight, &shape])]);
        same(&got, &one(&negate, &[&one(&reshape, &[wide, &shape])]), "reshaped");
    }
    same(&one(&Case("Cast", 13, &[("to", Int(10))]), &[&weight]), &wide, "already f16");
}

#[test]
fn truth_is_zero_or_one() {
    let (a, b) = (f(&[2, 1], &[1.0, 3.0]), f(&[3], &[1.0, 2.0, 3.0]));
    let gives = |op, truths: &[i64]| {
        Case(op, 17, &[]).gives(&[a.clone(), b.clone()], &i(&[2, 3], truths));
    };
    gives("Equal", &[1, 0, 0, 0, 0, 1]);
    gives("Less", &[0, 1, 1, 0, 0, 0]);
    gives("LessOrEqual", &[1, 1, 1, 0, 0, 1]);
    gives("Greater", &[0, 0, 0, 1, 1, 0]);
    gives("GreaterOrEqual", &[1, 0, 0, 1, 1, 1]);
    let (x, y) = (list(&[0, 0, 5, 1]), list(&[0, 2, 0, 1]));
    Case("And", 17, &[]).gives(&[x.clone(), y.clone()], &list(&[0, 0, 0, 1]));
    Case("Or", 17, &[]).gives(&[x.clone(), y.clone()], &list(&[0, 1, 1, 1]));
    Case("Equal", 17, &[]).gives(&[x.clone(), y], &list(&[1, 0, 0, 1]));
    Case("Not", 17, &[]).gives(std::slice::from_ref(&x), &list(&[1, 1, 0, 0]));
    Case("Cast", 17, &[("to", Int(9))]).gives(&[x], &list(&[0, 0, 1, 1]));
    Case("Cast", 17, &[("to", Int(9))]).gives(&[f(&[2], &[0.0, -0.5])], &list(&[0, 1]));
    Case("And", 17, &[]).fails(&[a.clone(), b.clone()], "as integers");
    Case("Equal", 17, &[]).fails(&[a, list(&[1])], "as floats");
}

#[test]
fn where_chooses_and_broadcasts_all_three() {
    let plain = Case("Where", 17, &[]);
    let condition = i(&[2, 1], &[1, 0]);
    let (a, b) = (f(&[3], &[1.0, 2.0, 3.0]), f(&[], &[9.0]));
    plain.gives(&[condition.clone(), a.clone(), b], &f(&[2, 3], &[1.0, 2.0, 3.0, 9.0, 9.0, 9.0]));
    plain.gives(&[condition.clone(), list(&[4]), list(&[5])], &i(&[2, 1], &[4, 5]));
    plain.fails(&[condition, a, f(&[2], &[0.0; 2])], "broadcast");
}

#[test]
fn the_largest_is_found_along_any_axis() {
    let x = f(&[2, 3], &[1.0, 5.0, 5.0, 7.0, 0.0, 2.0]);
    Case("ArgMax", 17, &[("axis", Int(1))]).gives(std::slice::from_ref(&x), &i(&[2, 1], &[1, 0]));
    let last = [("axis", Int(-1)), ("select_last_index", Int(1)), ("keepdims", Int(0))];
    Case("ArgMax", 17, &last).gives(std::slice::from_ref(&x), &list(&[2, 0]));
    Case("ArgMax", 17, &[("keepdims", Int(0))]).gives(std::slice::from_ref(&x), &list(&[1, 0, 0]));
    Case("ArgMax", 17, &[]).gives(&[i(&[3], &[4, 9, 9])], &list(&[1]));
    Case("ArgMax", 17, &[("axis", Int(2))]).fails(&[x], "axis 2");
}

#[test]
fn sums_and_extremes_reduce_like_means() {
    let x = f(&[2, 3], &[1.0, -5.0, 4.0, 7.0, 0.0, 2.0]);
    let axis = [("axes", Ints(vec![1])), ("keepdims", Int(0))];
    Case("ReduceMax", 17, &axis).gives(std::slice::from_ref(&x), &f(&[2], &[4.0, 7.0]));
    Case("ReduceMin", 17, &axis).gives(std::slice::from_ref(&x), &f(&[2], &[-5.0, 0.0]));
    // ReduceSum has had its axes as an input since opset 13, the others since 18.
    Case("ReduceSum", 17, &[]).gives(&[x.clone(), list(&[0])], &f(&[1, 3], &[8.0, -5.0, 6.0]));
    Case("ReduceMax", 18, &[]).gives(&[x.clone(), list(&[0])], &f(&[1, 3], &[7.0, 0.0, 4.0]));
    Case("ReduceSum", 17, &[]).gives(&[i(&[2, 2], &[1, 2, 3, 4])], &i(&[1, 1], &[10]));
    Case("ReduceMax", 17, &[]).gives(&[list(&[3, -4])], &list(&[3]));
    Case("ReduceMean", 17, &[]).fails(&[list(&[3, -4])], "mean of integers");
}

#[test]
fn ranges_running_sums_and_triangles() {
    let one = |value: i64| i(&[], &[value]);
    Case("Range", 17, &[]).gives(&[one(2), one(9), one(3)], &list(&[2, 5, 8]));
    Case("Range", 17, &[]).gives(&[one(3), one(0), one(-1)], &list(&[3, 2, 1]));
    Case("Range", 17, &[]).fails(&[one(3), one(9), one(0)], "step is 0");
    Case("Range", 17, &[]).fails(&[one(0), one(1 << 40), one(1)], "more than");
    let x = i(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    Case("CumSum", 17, &[]).gives(&[x.clone(), one(1)], &i(&[2, 3], &[1, 3, 6, 4, 9, 15]));
    let other = [("exclusive", Int(1)), ("reverse", Int(1))];
    Case("CumSum", 17, &other).gives(&[x.clone(), one(1)], &i(&[2, 3], &[5, 3, 0, 11, 6, 0]));
    Case("CumSum", 17, &[]).gives(&[x.clone(), one(0)], &i(&[2, 3], &[1, 2, 3, 5, 7, 9]));
    Case("Trilu", 17, &[]).gives(std::slice::from_ref(&x), &i(&[2, 3], &[1, 2, 3, 0, 5, 6]));
    let lower = [("upper", Int(0))];
    Case("Trilu", 17, &lower).gives(&[x.clone(), one(0)], &i(&[2, 3], &[1, 0, 0, 4, 5, 0]));
    Case("Trilu", 17, &[]).gives(&[x, one(2)], &i(&[2, 3], &[0, 0, 3, 0, 0, 0]));
}

#[test]
fn rows_are_gathered_from_a_stored_weight_where_it_lies() {
    let halves: Vec<u16> = (0..6).map(|n| f16::from_f32(n as f32).to_bits()).collect();
    let (_dir, file) = engine_file(&[3, 2], &halves);
    let stored = std::sync::Arc::new(file.stored("w").unwrap().clone());
    let weight = |transposed| {
        let shape = if transposed { vec![2, 3] } else { vec![3, 2] };
        Some(Value::Weight(Weight { stored: stored.clone(), scale: None, shape, transposed }))
    };
    let picks = Some(i(&[2, 1], &[2, -3]));
    let gathered = |value| {
        let mut values = Case("Gather", 17, &[]).outputs_on(&file, 1, vec![value, picks.clone()]);
        values.as_mut().map(|values| values.swap_remove(0)).map_err(|error| error.clone())
    };
    same(&gathered(weight(false)).unwrap(), &f(&[2, 1, 2], &[4.0, 5.0, 0.0, 1.0]), "rows");
    assert!(gathered(weight(true)).unwrap_err().contains("outside 2"));
}
