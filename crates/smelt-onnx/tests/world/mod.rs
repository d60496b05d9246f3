//! Random models in directories, and what a rule must not change about them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Two programs of tests use a part of it each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use smelt_onnx::eval::{Tensor, evaluate, load};
use smelt_onnx::surgery::{Consume, Report, Rule, apply, weights};
use smelt_onnx::{
    Attribute, AttributeValue, Data, Dim, ElementType, ExternalData, Graph, Initializer, Model,
    Node, ValueInfo, check,
};
use smelt_random::Random;

/// A tensor of random numbers: floats from -1 to 1 of three decimals, or ints from 0 to 4.
pub fn tensor(random: &mut Random, dtype: ElementType, dims: &[usize]) -> Tensor {
    let count = dims.iter().product();
    if dtype.is_float() {
        let values = (0..count).map(|_| random.below(2001) as f64 / 1000.0 - 1.0).collect();
        return Tensor::floats(dtype, dims, values);
    }
    Tensor::ints(dtype, dims, (0..count).map(|_| random.below(5) as i64).collect())
}

/// A model under construction in a directory.
pub struct World {
    pub data: ExternalData,
    pub model: Model,
}

impl World {
    pub fn new(dir: &Path) -> Self {
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

    pub fn input(&mut self, name: &str, dtype: ElementType, dims: &[Dim]) {
        let info = ValueInfo { name: name.into(), dtype, dims: Some(dims.to_vec()) };
        self.model.graph.inputs.push(info);
    }

    pub fn output(&mut self, name: &str, dtype: ElementType) {
        let info = ValueInfo { name: name.into(), dtype, dims: None };
        self.model.graph.outputs.push(info);
    }

    pub fn weight(&mut self, name: &str, tensor: &Tensor) {
        let mut writer = self.data.tensor(name, tensor.dtype(), tensor.dims()).unwrap();
        writer.write(&tensor.to_bytes()).unwrap();
        self.model.graph.initializers.push(writer.finish().unwrap());
    }

    pub fn inline(&mut self, name: &str, tensor: &Tensor) {
        self.model.graph.initializers.push(Initializer {
            name: name.into(),
            dtype: tensor.dtype(),
            dims: tensor.dims().to_vec(),
            data: Data::Inline(tensor.to_bytes()),
        });
    }

    pub fn node(&mut self, op: &str, inputs: &[&str], output: &str, ints: &[(&str, i64)]) {
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

    pub fn done(self, dir: &Path) -> Model {
        check(&self.model, dir).unwrap();
        self.model.write(dir).unwrap();
        self.model
    }
}

pub fn attribute(name: &str, value: AttributeValue) -> Attribute {
    Attribute { name: name.into(), value }
}

pub fn symbol(name: &str) -> Dim {
    Dim::Symbol(name.into())
}

pub fn random_inputs(model: &Model, random: &mut Random, batch: usize) -> BTreeMap<String, Tensor> {
    let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { batch };
    let given = model.graph.inputs.iter().map(|info| {
        let dims: Vec<usize> = info.dims.iter().flatten().map(size).collect();
        (info.name.clone(), tensor(random, info.dtype, &dims))
    });
    given.collect()
}

pub fn ints(values: &[i64]) -> Tensor {
    Tensor::ints(ElementType::I64, &[values.len()], values.to_vec())
}

/// Applies `rule` both ways (copying, consuming) and holds both results to the old meaning.
#[track_caller]
pub fn same_meaning(
    dir: &Path,
    rule: &Rule,
    random: &mut Random,
    tolerance: f64,
) -> (Model, Report) {
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
pub fn close(got: &Tensor, expect: &Tensor, tolerance: f64) {
    assert_eq!((got.dtype(), got.dims()), (expect.dtype(), expect.dims()));
    assert_eq!(got.as_ints(), expect.as_ints());
    let pairs = got.as_floats().into_iter().flatten().zip(expect.as_floats().into_iter().flatten());
    for (got, expect) in pairs {
        let room = tolerance * (1.0 + expect.abs());
        assert!((got - expect).abs() <= room, "{got} is not {expect}");
    }
}

pub fn listing(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
