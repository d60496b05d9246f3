//! Crosses one change of one operator: each function takes a node of one side and gives the
//! nodes of the other, or says why it cannot.

use half::{bf16, f16};

use super::Conversion;
use crate::ElementType;
use crate::model::{Attribute, AttributeValue, Node};

/// A crossing.
pub(super) type ConvertFn = fn(&mut Conversion<'_, '_>, Node) -> Result<Vec<Node>, String>;

type Crossed = Result<Vec<Node>, String>;

/// Nothing shows.
pub(super) fn same(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    Ok(vec![node])
}

/// Its meaning changed.
pub(super) fn never(_: &mut Conversion<'_, '_>, _: Node) -> Crossed {
    Err("its meaning differs between the two operator sets; write it in primitives".to_owned())
}

/// Training outputs differ; inference has one output.
pub(super) fn one_output(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match &node.outputs[..] {
        [_] => Ok(vec![node]),
        _ => Err("its training outputs differ between the two operator sets".to_owned()),
    }
}

/// Set 16 shifts regions by half a pixel unless told otherwise.
pub(super) fn roi_align_16(_: &mut Conversion<'_, '_>, mut node: Node) -> Crossed {
    let value = AttributeValue::Text("output_half_pixel".to_owned());
    let name = "coordinate_transformation_mode".to_owned();
    node.attributes.push(Attribute { name, value });
    Ok(vec![node])
}

pub(super) fn lp_pool_below_18(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    without(node, &[("ceil_mode", plain_zero), ("dilations", plain_ones)])
}

pub(super) fn average_pool_below_19(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    without(node, &[("dilations", plain_ones)])
}

pub(super) fn pad_below_18(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match node.inputs.get(3).is_some_and(|axes| !axes.is_empty()) {
        true => Err("it names axes; give pads for all of them".to_owned()),
        false => Ok(vec![node]),
    }
}

pub(super) fn pad_below_19(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match is_text(&node, "mode", "wrap") {
        true => Err("its mode is \"wrap\", which begins with set 19".to_owned()),
        false => Ok(vec![node]),
    }
}

/// Axes become an input.
pub(super) fn reduce_18(conversion: &mut Conversion<'_, '_>, mut node: Node) -> Crossed {
    let Some(axes) = node.ints("axes").map(<[i64]>::to_vec) else { return Ok(vec![node]) };
    node.attributes.retain(|attribute| attribute.name != "axes");
    let name = conversion.integers(&format!("{}.axes", node.outputs[0]), &axes);
    node.inputs.truncate(1);
    node.inputs.push(name);
    Ok(vec![node])
}

/// Axes become an attribute.
pub(super) fn reduce_below_18(conversion: &mut Conversion<'_, '_>, mut node: Node) -> Crossed {
    let axes = node.inputs.get(1).filter(|name| !name.is_empty()).cloned();
    let axes = match axes {
        None => Vec::new(),
        Some(name) => conversion
            .constant_integers(&name)
            .ok_or_else(|| format!("its axes {name:?} are no constant"))?,
    };
    let noop = node.int("noop_with_empty_axes").unwrap_or(0) != 0;
    node.attributes.retain(|attribute| attribute.name != "noop_with_empty_axes");
    if axes.is_empty() && noop {
        return Ok(vec![Node {
            op: "Identity".to_owned(),
            inputs: vec![node.inputs[0].clone()],
            attributes: Vec::new(),
            ..node
        }]);
    }
    node.inputs.truncate(1);
    if !axes.is_empty() {
        let value = AttributeValue::Ints(axes);
        node.attributes.push(Attribute { name: "axes".to_owned(), value });
    }
    Ok(vec![node])
}

/// Flags are reduced from set 20 on.
pub(super) fn reduce_below_20(conversion: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match node.inputs.first().and_then(|name| conversion.types.get(name.as_str())) {
        Some(ElementType::Bool) => Err("it reduces flags, which begins with set 20".to_owned()),
        _ => Ok(vec![node]),
    }
}

pub(super) fn resize_below_18(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    if node.ints("axes").is_some() {
        return Err("it names axes; give sizes for all of them".to_owned());
    }
    if !is_text(&node, "keep_aspect_ratio_policy", "stretch")
        && node.attribute("keep_aspect_ratio_policy").is_some()
    {
        return Err("it keeps the aspect ratio, which begins with set 18".to_owned());
    }
    let stretches = |value: &AttributeValue| matches!(value, AttributeValue::Text(_));
    without(node, &[("antialias", plain_zero), ("keep_aspect_ratio_policy", stretches)])
}

pub(super) fn resize_below_19(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match is_text(&node, "coordinate_transformation_mode", "half_pixel_symmetric") {
        true => Err("its coordinates are \"half_pixel_symmetric\" of set 19".to_owned()),
        false => Ok(vec![node]),
    }
}

pub(super) fn scatter_below_18(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match is_text(&node, "reduction", "max") || is_text(&node, "reduction", "min") {
        true => Err("its reduction begins with set 18".to_owned()),
        false => Ok(vec![node]),
    }
}

/// Set 18 wants sizes or a number of parts.
pub(super) fn split_18(_: &mut Conversion<'_, '_>, mut node: Node) -> Crossed {
    if node.inputs.get(1).is_none_or(String::is_empty) {
        node.attributes.push(Attribute::int("num_outputs", node.outputs.len() as i64));
    }
    Ok(vec![node])
}

/// Below 18 parts without sizes are equal, which here only the writer of the graph knows.
pub(super) fn split_below_18(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    match node.attribute("num_outputs") {
        None => Ok(vec![node]),
        Some(_) => Err("its parts may be of unequal size; give the sizes".to_owned()),
    }
}

pub(super) fn cast_below_19(_: &mut Conversion<'_, '_>, mut node: Node) -> Crossed {
    // It concerns 8-bit floats only, which begin with set 19 themselves.
    node.attributes.retain(|attribute| attribute.name != "saturate");
    Ok(vec![node])
}

/// Below 19 scales are f32 and so is the result: the types around them are cast.
pub(super) fn dequantize_below_19(conversion: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    let scale = node.inputs.get(1).ok_or("it has no scale")?;
    let dtype = *conversion
        .types
        .get(scale.as_str())
        .ok_or_else(|| format!("the element type of its scale {scale:?} is not known"))?;
    if dtype == ElementType::F32 {
        return Ok(vec![node]);
    }
    let (output, mut inner) = (node.outputs[0].clone(), node.clone());
    inner.inputs[1] = conversion.free_name(&format!("{output}.scale"));
    inner.outputs[0] = conversion.free_name(&format!("{output}.f32"));
    let wide = cast(scale, &inner.inputs[1], ElementType::F32);
    let narrow = cast(&inner.outputs[0], &output, dtype);
    Ok(vec![wide, inner, narrow])
}

pub(super) fn quantize_below_19(conversion: &mut Conversion<'_, '_>, mut node: Node) -> Crossed {
    node.attributes.retain(|attribute| attribute.name != "saturate");
    let scale = node.inputs.get(1).ok_or("it has no scale")?;
    match conversion.types.get(scale.as_str()) {
        Some(ElementType::F32) => Ok(vec![node]),
        _ => Err(format!("its scale {scale:?} is not f32")),
    }
}

pub(super) fn blocks_below_21(conversion: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    let typed = |name: &String| conversion.types.get(name.as_str()).copied();
    let wide = |dtype| matches!(dtype, Some(ElementType::I16 | ElementType::U16));
    if node.inputs.iter().any(|name| wide(typed(name))) {
        return Err("its codes have 16 bits, which begin with set 21".to_owned());
    }
    let plain = |value: &AttributeValue| {
        matches!(value, AttributeValue::Int(0)) || *value == AttributeValue::Int(2)
    };
    without(node, &[("block_size", plain_zero), ("output_dtype", plain)])
}

/// Set 20 renamed the modes.
pub(super) fn grid_sample_20(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    Ok(vec![renamed(node, &[("bilinear", "linear"), ("bicubic", "cubic")])])
}

pub(super) fn grid_sample_below_20(_: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    Ok(vec![renamed(node, &[("linear", "bilinear"), ("cubic", "bicubic")])])
}

fn renamed(mut node: Node, names: &[(&str, &str)]) -> Node {
    for attribute in node.attributes.iter_mut().filter(|attribute| attribute.name == "mode") {
        if let AttributeValue::Text(mode) = &mut attribute.value
            && let Some((_, new)) = names.iter().find(|(old, _)| old == mode)
        {
            (*new).clone_into(mode);
        }
    }
    node
}

/// GELU in primitives: x/2 · (1 + erf(x/√2)), or its tanh form (Hendrycks & Gimpel 2016).
pub(super) fn gelu_below_20(conversion: &mut Conversion<'_, '_>, node: Node) -> Crossed {
    let (input, output) = (node.inputs[0].clone(), node.outputs[0].clone());
    let dtype = conversion.types.get(input.as_str()).copied();
    let dtype = dtype.ok_or_else(|| format!("the element type of {input:?} is not known"))?;
    let mut chain = Chain { conversion, base: output.clone(), dtype, nodes: Vec::new() };
    let inner = if is_text(&node, "approximate", "tanh") {
        let squared = chain.node("Mul", &[&input, &input]);
        let cubed = chain.node("Mul", &[&squared, &input]);
        let small = chain.scalar(0.044_715)?;
        let small = chain.node("Mul", &[&cubed, &small]);
        let sum = chain.node("Add", &[&input, &small]);
        let root = chain.scalar((2.0 / std::f64::consts::PI).sqrt())?;
        let scaled = chain.node("Mul", &[&sum, &root]);
        chain.node("Tanh", &[&scaled])
    } else {
        let root = chain.scalar(std::f64::consts::SQRT_2)?;
        let scaled = chain.node("Div", &[&input, &root]);
        chain.node("Erf", &[&scaled])
    };
    let (one, half) = (chain.scalar(1.0)?, chain.scalar(0.5)?);
    let gate = chain.node("Add", &[&inner, &one]);
    let gated = chain.node("Mul", &[&input, &gate]);
    let last = chain.node("Mul", &[&gated, &half]);
    let mut nodes = chain.nodes;
    if let Some(node) = nodes.last_mut().filter(|node| node.outputs[0] == last) {
        node.outputs[0] = output;
    }
    Ok(nodes)
}

/// Nodes that take the place of one.
struct Chain<'c, 's, 'm> {
    conversion: &'c mut Conversion<'s, 'm>,
    base: String,
    dtype: ElementType,
    nodes: Vec<Node>,
}

impl Chain<'_, '_, '_> {
    fn node(&mut self, op: &str, inputs: &[&str]) -> String {
        let name = self.conversion.free_name(&format!("{}.{op}", self.base));
        self.nodes.push(Node {
            name: name.clone(),
            op: op.to_owned(),
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs: vec![name.clone()],
            ..Node::default()
        });
        name
    }

    fn scalar(&mut self, value: f64) -> Result<String, String> {
        let bytes = match self.dtype {
            ElementType::F64 => value.to_le_bytes().to_vec(),
            ElementType::F32 => (value as f32).to_le_bytes().to_vec(),
            ElementType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            ElementType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            other => return Err(format!("it computes in {other}")),
        };
        let base = format!("{}.{value:.3}", self.base);
        Ok(self.conversion.constant(&base, self.dtype, vec![], bytes))
    }
}

fn cast(from: &str, into: &str, to: ElementType) -> Node {
    Node {
        name: into.to_owned(),
        op: "Cast".to_owned(),
        inputs: vec![from.to_owned()],
        outputs: vec![into.to_owned()],
        attributes: vec![Attribute::int("to", to.number().into())],
        ..Node::default()
    }
}

/// Whether an attribute says what its absence says.
type IsPlain = fn(&AttributeValue) -> bool;

/// The node without attributes that the other set does not have; each must be plain.
fn without(mut node: Node, plain: &[(&str, IsPlain)]) -> Crossed {
    for (name, is_plain) in plain {
        if node.attribute(name).is_some_and(|value| !is_plain(value)) {
            return Err(format!("its attribute {name:?} is not in the other operator set"));
        }
        node.attributes.retain(|attribute| attribute.name != *name);
    }
    Ok(vec![node])
}

fn plain_zero(value: &AttributeValue) -> bool {
    *value == AttributeValue::Int(0)
}

fn plain_ones(value: &AttributeValue) -> bool {
    matches!(value, AttributeValue::Ints(values) if values.iter().all(|value| *value == 1))
}

fn is_text(node: &Node, name: &str, text: &str) -> bool {
    matches!(node.attribute(name), Some(AttributeValue::Text(value)) if value == text)
}
