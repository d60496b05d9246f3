//! Has the products of stored weights read and multiply integers of 8 bits (explicit quantisation).
//!
//! What a product reads is rounded by QuantizeLinear, with one scale and no zero point, and made real again by
//! DequantizeLinear; its weight becomes codes with a scale for each of its outputs.  A builder that knows the pattern, as
//! TensorRT and ONNX Runtime do, multiplies the integers; any other computes the same in floats.  Products of two values
//! that flow stay as they are.

use std::collections::BTreeMap;

use super::RuleError;
use super::head::Weight;
use super::insert_cast::is_called;
use super::patch::Patch;
use super::quantise::{scale, scale_bytes};
use super::quantize_head::HeadScheme;
use super::rounding::{OPSET_AXIS, OPSET_FLOAT_TYPES, Rounding};
use crate::ElementType;
use crate::model::{Data, Initializer, Model};
use crate::survey::Survey;

/// The largest magnitude of a signed byte.
const CODE_MAX: f32 = 127.0;

/// Rounds what the products of stored weights read, where `thresholds` has the magnitude that 8 bits shall say, and their
/// weights; nodes called by a word of `except` (name, first output or operator) stay as they are.
///
/// # Errors
/// When no product reads a value with a threshold, nothing is called by a word, or the operator set is too old.
pub fn insert_qdq(
    model: &Model,
    thresholds: &BTreeMap<String, f32>,
    except: &[String],
) -> Result<Option<Patch>, RuleError> {
    patch(model, thresholds, except).map_err(|why| RuleError { rule: "insert-qdq", why })
}

fn patch(
    model: &Model,
    thresholds: &BTreeMap<String, f32>,
    except: &[String],
) -> Result<Option<Patch>, String> {
    let nodes = &model.graph.nodes;
    if let Some(word) = except.iter().find(|word| !nodes.iter().any(|node| is_called(node, word))) {
        return Err(format!("no node is called {word:?}"));
    }
    let survey = Survey::new(&model.graph);
    let types = survey.types();
    let mut rounded = Rounded { rounding: Rounding::new(model, &survey), real: BTreeMap::new() };
    let (mut products, mut unknown) = (0, 0);
    for (at, node) in nodes.iter().enumerate() {
        let Some(weight) = weight_of(&survey, at) else { continue };
        if except.iter().any(|word| is_called(node, word)) || is_rounded(&survey, &node.inputs[0]) {
            continue;
        }
        let read = &node.inputs[0];
        let (Some(&threshold), Some(&dtype)) = (thresholds.get(read), types.get(read.as_str()))
        else {
            unknown += 1;
            continue;
        };
        check_opset(model.opset, dtype)?;
        products += 1;
        let mut copy = node.clone();
        copy.inputs[0] = rounded.value(at, read, threshold, dtype);
        rounded.rounding.product(at, copy, &weight, HeadScheme::Int8)?;
    }
    let mut patch = rounded.rounding.patch;
    if products == 0 {
        let why = match unknown {
            0 => return Ok(None),
            1 => "its product of a stored weight reads a value".to_owned(),
            count => format!("its {count} products of stored weights read values"),
        };
        return Err(format!(
            "{why} without a range: calibrate this graph, before other rules give its values other names"
        ));
    }
    let others = match unknown {
        0 => String::new(),
        count => format!("; {count} read values without a range and stay"),
    };
    patch.summary = format!("{products} products multiply integers of 8 bits{others}");
    Ok(Some(patch))
}

/// The stored weight of node `at`, if it is a product of one.
fn weight_of<'m>(survey: &Survey<'m>, at: usize) -> Option<Weight<'m>> {
    let node = &survey.graph.nodes[at];
    if !node.domain.is_empty() {
        return None;
    }
    let weight = match node.op.as_str() {
        "MatMul" => Weight::find(survey, at).ok()?,
        "Gemm" if node.int("transA").unwrap_or(0) == 0 => Weight::find(survey, at).ok()?,
        "Conv" => {
            let tensor = survey.constant(node.inputs.get(1)?).filter(|it| it.dims.len() > 2)?;
            Weight { tensor, chain: Vec::new(), axis: 0 }
        }
        _ => return None,
    };
    weight.tensor.dtype.is_float().then_some(weight)
}

fn is_rounded(survey: &Survey<'_>, value: &str) -> bool {
    let producer = survey.producer(value).map(|at| &survey.graph.nodes[at]);
    producer.is_some_and(|node| node.op == "DequantizeLinear")
}

fn check_opset(opset: i64, dtype: ElementType) -> Result<(), String> {
    let needed = if dtype == ElementType::F32 { OPSET_AXIS } else { OPSET_FLOAT_TYPES };
    if opset >= needed {
        return Ok(());
    }
    Err(format!(
        "rounding {dtype} needs operator set {needed} and the model has {opset}; apply to-opset {needed} first"
    ))
}

struct Rounded<'s, 'm> {
    rounding: Rounding<'s, 'm>,
    /// What stands for a value that was rounded.
    real: BTreeMap<&'m str, String>,
}

impl<'m> Rounded<'_, 'm> {
    /// The rounded `value`, for node `at` and those behind it.
    fn value(&mut self, at: usize, value: &'m str, threshold: f32, dtype: ElementType) -> String {
        if let Some(real) = self.real.get(value) {
            return real.clone();
        }
        // Of what is always zero any range will do.
        let reach = if threshold > 0.0 { threshold } else { 1.0 };
        let scale = scale_bytes(dtype, &[scale(dtype, reach, CODE_MAX)]);
        let scale = self.constant(format!("{value}_scale"), dtype, scale);
        let zero = self.constant(format!("{value}_zero"), ElementType::I8, vec![0]);
        let [codes, real] =
            ["int8", "real"].map(|word| self.rounding.free_name(&format!("{value}_{word}")));
        let by = |from: String| vec![from, scale.clone(), zero.clone()];
        self.rounding.insert(at, "QuantizeLinear", by(value.to_owned()), &codes, Vec::new());
        self.rounding.insert(at, "DequantizeLinear", by(codes), &real, Vec::new());
        self.real.insert(value, real.clone());
        real
    }

    /// Brings a constant of one number.
    fn constant(&mut self, name: String, dtype: ElementType, bytes: Vec<u8>) -> String {
        let name = self.rounding.free_name(&name);
        let tensor =
            Initializer { name: name.clone(), dtype, dims: Vec::new(), data: Data::Inline(bytes) };
        self.rounding.patch.add_initializers.push(tensor);
        name
    }
}
