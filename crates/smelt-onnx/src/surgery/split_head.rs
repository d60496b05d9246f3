//! Cuts the vocabulary product into parts, so that no single kernel needs the whole pool.
//!
//! Walks back from the output to the last MatMul or Gemm, cuts its weight along the
//! vocabulary and joins the parts' results under the old name, so that whoever reads it,
//! once or twice or from outside, reads the same.  Rows of a `[vocab, hidden]` weight are
//! two ranges of one file; columns of a `[hidden, vocab]` weight are copied in one pass.

use super::patch::{ColumnCut, Patch};
use super::survey::{Survey, free_location};
use super::{Parts, RuleError};
use crate::TENSOR_ALIGNMENT_BYTES;
use crate::model::{Attribute, AttributeValue, Data, Initializer, Model, Node};

/// Most parts of a head: each is a node, and more than this serves no memory pool.
pub const PARTS_MAX: usize = 256;

/// Output that is taken for the head's when none is named.
const LOGITS: &str = "logits";

/// Splits the product that gives `output` (`logits`, or the only output, when not named).
///
/// # Errors
/// When the output or a splittable product behind it is not found.
pub fn split_head(
    model: &Model,
    output: Option<&str>,
    parts: Parts,
) -> Result<Option<Patch>, RuleError> {
    let survey = Survey::new(&model.graph);
    let head = find_head(&survey, head_output(&survey, output)?)?;
    let weight = Weight::find(&survey, head)?;
    let Some(cuts) = weight.cuts(parts)? else { return Ok(None) };
    Split { survey: &survey, head, weight, cuts, patch: Patch::default() }.patch(model).map(Some)
}

fn head_output<'m>(survey: &Survey<'m>, named: Option<&'m str>) -> Result<&'m str, RuleError> {
    let outputs = &survey.graph.outputs;
    match (named, &outputs[..]) {
        (Some(name), _) if survey.knows(name) => Ok(name),
        (Some(name), _) => Err(refuse(format!("the graph has no value {name:?}"))),
        (None, [only]) => Ok(&only.name),
        (None, _) => outputs
            .iter()
            .map(|info| info.name.as_str())
            .find(|name| *name == LOGITS)
            .ok_or_else(|| refuse(format!("no output is called {LOGITS:?}; name the output"))),
    }
}

/// The index of the product behind `value`.
fn find_head(survey: &Survey<'_>, value: &str) -> Result<usize, RuleError> {
    let mut value = value;
    loop {
        let Some(at) = survey.producer(value) else {
            return Err(refuse(format!("walking back ends at {value:?}, which no node gives")));
        };
        let node = &survey.graph.nodes[at];
        let step = match node.op.as_str() {
            _ if !node.domain.is_empty() => None,
            "MatMul" | "Gemm" => return Ok(at),
            "Cast" | "Identity" | "Reshape" | "Transpose" => node.inputs.first(),
            "Add" => {
                let mut moving = node.inputs.iter().filter(|name| {
                    survey.constant(name).is_none() && constant_node(survey, name).is_none()
                });
                moving.next().filter(|_| moving.next().is_none())
            }
            _ => None,
        };
        value = step.ok_or_else(|| {
            refuse(format!(
                "walking back ends at {}, which is no product",
                crate::check::label(node)
            ))
        })?;
    }
}

fn constant_node(survey: &Survey<'_>, value: &str) -> Option<usize> {
    survey.producer(value).filter(|at| survey.graph.nodes[*at].op == "Constant")
}

/// The head's weight and the nodes between it and the product, weight first.
struct Weight<'m> {
    tensor: &'m Initializer,
    chain: Vec<usize>,
    /// The vocabulary's dimension in the stored tensor.
    axis: usize,
}

impl<'m> Weight<'m> {
    fn find(survey: &Survey<'m>, head: usize) -> Result<Self, RuleError> {
        let node = &survey.graph.nodes[head];
        let mut name = node.inputs.get(1).ok_or_else(|| refuse("the head has no weight".into()))?;
        let mut axis =
            if node.op == "Gemm" && node.int("transB").unwrap_or(0) != 0 { 0 } else { 1 };
        let mut chain = Vec::new();
        let tensor = loop {
            if let Some(tensor) = survey.constant(name) {
                break tensor;
            }
            let producer = survey.producer(name);
            let step = producer.map(|at| &survey.graph.nodes[at]).filter(|n| n.domain.is_empty());
            let Some(step) = step.filter(|node| carries_weight(node)) else {
                return Err(refuse(format!("the head's weight {name:?} is no initializer")));
            };
            if step.op == "Transpose" && step.ints("perm") != Some(&[0, 1]) {
                axis = 1 - axis;
            }
            chain.extend(producer);
            name = &step.inputs[0];
        };
        if tensor.dims.len() != 2 {
            let dims = &tensor.dims;
            return Err(refuse(format!("the head's weight has shape {dims:?}, not a matrix's")));
        }
        chain.reverse();
        Ok(Self { tensor, chain, axis })
    }

    fn vocab(&self) -> usize {
        self.tensor.dims[self.axis]
    }

    /// Bits that one token takes.
    fn token_bits(&self) -> usize {
        self.tensor.dims[1 - self.axis] * self.tensor.dtype.bits()
    }

    /// Where the parts begin, and the end; `None` when one part is enough.
    fn cuts(&self, parts: Parts) -> Result<Option<Vec<usize>>, RuleError> {
        let (vocab, bytes) = (self.vocab(), self.token_bits().div_ceil(8).max(1));
        let grain = self.grain()?;
        let size = match parts {
            Parts::Count(count) if count <= 1 => return Ok(None),
            Parts::Count(count) if count > vocab => {
                return Err(refuse(format!("{vocab} tokens cannot make {count} parts")));
            }
            Parts::Count(count) => vocab / count,
            Parts::MaxBytes(most) => usize::try_from(most).unwrap_or(usize::MAX) / bytes,
        };
        if size >= vocab {
            return Ok(None);
        }
        if size == 0 || vocab / size > PARTS_MAX {
            return Err(refuse(format!(
                "that makes more than {PARTS_MAX} parts of {vocab} tokens"
            )));
        }
        let grain = if size >= grain { grain } else { 1 };
        let mut cuts: Vec<usize> = match parts {
            Parts::Count(count) => {
                (0..count).map(|at| at * vocab / count / grain * grain).collect()
            }
            Parts::MaxBytes(_) => (0..vocab).step_by(size / grain * grain).collect(),
        };
        cuts.push(vocab);
        Ok(Some(cuts))
    }

    /// Tokens after which a part may begin so that it begins on a page, or on a whole byte.
    fn grain(&self) -> Result<usize, RuleError> {
        if self.axis == 1 {
            return match self.tensor.dtype.bits() % 8 {
                0 => Ok(1),
                _ => Err(refuse("columns of nibbles cannot be cut; store the head by rows".into())),
            };
        }
        if !self.token_bits().is_multiple_of(8) {
            return Err(refuse("its rows do not end on whole bytes".into()));
        }
        let row = self.token_bits() as u64 / 8;
        let shared = 1u64 << row.trailing_zeros().min(TENSOR_ALIGNMENT_BYTES.trailing_zeros());
        Ok((TENSOR_ALIGNMENT_BYTES / shared) as usize)
    }
}

/// Nodes that may stand between a stored weight and the product.
fn carries_weight(node: &Node) -> bool {
    match node.op.as_str() {
        "Cast" | "Identity" | "DequantizeLinear" => !node.inputs.is_empty(),
        "Transpose" => {
            !node.inputs.is_empty() && matches!(node.ints("perm"), None | Some([0, 1] | [1, 0]))
        }
        _ => false,
    }
}

struct Split<'s, 'm> {
    survey: &'s Survey<'m>,
    head: usize,
    weight: Weight<'m>,
    cuts: Vec<usize>,
    patch: Patch,
}

impl Split<'_, '_> {
    fn patch(mut self, model: &Model) -> Result<Patch, RuleError> {
        let head = &self.survey.graph.nodes[self.head];
        let count = self.cuts.len() - 1;
        let weights = self.cut_weight(model)?;
        let mut chains = vec![weights; 1];
        for at in self.weight.chain.clone() {
            let before = chains.last().expect("the weights are there");
            let after = self.cut_step(at, before)?;
            chains.push(after);
        }
        let last = chains.pop().expect("the weights are there");
        let (bias, late_bias) = self.cut_bias(head)?;
        let joined = match late_bias {
            true => self.survey.free_name(&format!("{}.joined", head.outputs[0])),
            false => head.outputs[0].clone(),
        };
        let mut results = Vec::with_capacity(count);
        for part in 0..count {
            let result = self.part_name(&head.outputs[0], part);
            let mut node = head.clone();
            node.name = if head.name.is_empty() {
                String::new()
            } else {
                format!("{}.part{part}", head.name)
            };
            node.inputs.truncate(2);
            node.inputs[1].clone_from(&last[part]);
            node.inputs.extend(bias.as_ref().map(|bias| bias[part].clone()));
            node.outputs = vec![result.clone()];
            self.patch.insert_nodes.push((self.head, node));
            results.push(result);
        }
        self.join(head, results, joined, late_bias);
        self.patch.remove_nodes.insert(self.head);
        self.drop_unread();
        self.patch.summary = format!(
            "{} is cut into {count} parts of at most {} tokens",
            crate::check::label(head),
            self.cuts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
        );
        Ok(self.patch)
    }

    fn part_name(&self, base: &str, part: usize) -> String {
        self.survey.free_name(&format!("{base}.part{part}"))
    }

    fn join(&mut self, head: &Node, parts: Vec<String>, joined: String, late_bias: bool) {
        let axis = Attribute { name: "axis".into(), value: AttributeValue::Int(-1) };
        let name = |what: &str| {
            if head.name.is_empty() { String::new() } else { format!("{}.{what}", head.name) }
        };
        self.patch.insert_nodes.push((
            self.head,
            Node {
                name: name("join"),
                op: "Concat".into(),
                inputs: parts,
                outputs: vec![joined.clone()],
                attributes: vec![axis],
                ..Node::default()
            },
        ));
        if late_bias {
            self.patch.insert_nodes.push((
                self.head,
                Node {
                    name: name("bias"),
                    op: "Add".into(),
                    inputs: vec![joined, head.inputs[2].clone()],
                    outputs: head.outputs.clone(),
                    ..Node::default()
                },
            ));
        }
    }

    /// Names of the parts of the stored weight.
    fn cut_weight(&mut self, model: &Model) -> Result<Vec<String>, RuleError> {
        let tensor = self.weight.tensor;
        if self.weight.axis == 0 || matches!(tensor.data, Data::Inline(_)) {
            return self.cut_along(tensor, self.weight.axis);
        }
        let location = free_location(model);
        let mut end = 0u64;
        let mut parts = Vec::new();
        for part in 0..self.cuts.len() - 1 {
            let dims = vec![tensor.dims[0], self.cuts[part + 1] - self.cuts[part]];
            let length =
                tensor.dtype.byte_len(&dims).ok_or_else(|| refuse("it overflows".into()))?;
            let offset = end.next_multiple_of(TENSOR_ALIGNMENT_BYTES);
            end = offset + length as u64;
            let data = Data::External { location: location.clone(), offset, length: length as u64 };
            let name = self.part_name(&tensor.name, part);
            parts.push(Initializer { name, dtype: tensor.dtype, dims, data });
        }
        self.patch.add_initializers.extend(parts.iter().cloned());
        let names = parts.iter().map(|part| part.name.clone()).collect();
        self.patch.cuts.push(ColumnCut { from: tensor.clone(), parts });
        Ok(names)
    }

    /// Cuts a tensor along an axis that has only ones before it, or that is held inline.
    fn cut_along(&mut self, tensor: &Initializer, axis: usize) -> Result<Vec<String>, RuleError> {
        let (outer, inner): (usize, usize) =
            (tensor.dims[..axis].iter().product(), tensor.dims[axis + 1..].iter().product());
        let row_bits = inner * tensor.dtype.bits();
        let whole = self.cuts.iter().all(|cut| (cut * row_bits).is_multiple_of(8));
        if !whole {
            return Err(refuse(format!("{:?} does not divide into whole bytes", tensor.name)));
        }
        let mut names = Vec::new();
        for part in 0..self.cuts.len() - 1 {
            let [begin, end] = [self.cuts[part], self.cuts[part + 1]].map(|cut| cut * row_bits / 8);
            let data = match &tensor.data {
                Data::Inline(bytes) => {
                    let line = self.weight.vocab() * row_bits / 8;
                    let cut = |row: usize| &bytes[row * line + begin..row * line + end];
                    Data::Inline((0..outer).flat_map(cut).copied().collect())
                }
                Data::External { .. } if outer != 1 => {
                    return Err(refuse(format!("{:?} is not cut by rows", tensor.name)));
                }
                Data::External { location, offset, .. } => Data::External {
                    location: location.clone(),
                    offset: offset + begin as u64,
                    length: (end - begin) as u64,
                },
            };
            let mut dims = tensor.dims.clone();
            dims[axis] = self.cuts[part + 1] - self.cuts[part];
            let name = self.part_name(&tensor.name, part);
            names.push(name.clone());
            self.patch.add_initializers.push(Initializer { name, dtype: tensor.dtype, dims, data });
        }
        Ok(names)
    }

    /// Repeats one node of the weight's chain for every part.
    fn cut_step(&mut self, at: usize, weights: &[String]) -> Result<Vec<String>, RuleError> {
        let node = &self.survey.graph.nodes[at];
        let mut columns: Vec<Vec<String>> = vec![weights.to_vec()];
        for extra in node.inputs.iter().skip(1) {
            columns.push(self.cut_scale(node, at, extra)?);
        }
        let mut results = Vec::new();
        for part in 0..weights.len() {
            let mut copy = node.clone();
            copy.name = if node.name.is_empty() {
                String::new()
            } else {
                format!("{}.part{part}", node.name)
            };
            copy.inputs = columns.iter().map(|column| column[part].clone()).collect();
            copy.outputs = vec![self.part_name(&node.outputs[0], part)];
            results.push(copy.outputs[0].clone());
            self.patch.insert_nodes.push((self.head, copy));
        }
        Ok(results)
    }

    /// A scale or zero point for every part: cut where it goes along the vocabulary.
    fn cut_scale(&mut self, node: &Node, at: usize, name: &str) -> Result<Vec<String>, RuleError> {
        let shared = vec![name.to_owned(); self.cuts.len() - 1];
        let Some(tensor) = self.survey.constant(name) else {
            return if name.is_empty() {
                Ok(shared)
            } else {
                Err(refuse(format!("the scale {name:?} of the head is no initializer")))
            };
        };
        match &tensor.dims[..] {
            [] => Ok(shared),
            [count] => {
                let axis = node.int("axis").unwrap_or(1).rem_euclid(2) as usize;
                if axis != self.axis_at(at) {
                    Ok(shared)
                } else if *count == self.weight.vocab() {
                    self.cut_along(tensor, 0)
                } else {
                    Err(refuse(format!("{name:?} does not have one number for every token")))
                }
            }
            dims => Err(refuse(format!("scales of shape {dims:?} cannot be cut"))),
        }
    }

    /// The vocabulary's dimension where node `at` of the chain reads the weight.
    fn axis_at(&self, at: usize) -> usize {
        let before = self.weight.chain.iter().take_while(|step| **step != at);
        let turns = before.filter(|step| {
            let node = &self.survey.graph.nodes[**step];
            node.op == "Transpose" && node.ints("perm") != Some(&[0, 1])
        });
        (self.weight.axis + turns.count()) % 2
    }

    /// The addend of a Gemm for every part, or whether it is added after the parts are joined.
    fn cut_bias(&mut self, head: &Node) -> Result<(Option<Vec<String>>, bool), RuleError> {
        let Some(name) = head.inputs.get(2).filter(|name| !name.is_empty()) else {
            return Ok((None, false));
        };
        let parts = self.cuts.len() - 1;
        if let Some(tensor) = self.survey.constant(name) {
            match &tensor.dims[..] {
                [] | [1] | [_, 1] => return Ok((Some(vec![name.clone(); parts]), false)),
                [_] => return Ok((Some(self.cut_along(tensor, 0)?), false)),
                [1, _] => return Ok((Some(self.cut_along(tensor, 1)?), false)),
                _ => {}
            }
        }
        if head.float("beta").unwrap_or(1.0) != 1.0 {
            return Err(refuse(format!("the addend {name:?} is scaled and cannot be cut")));
        }
        Ok((None, true))
    }

    /// Removes nodes and tensors that only the old head read.
    fn drop_unread(&mut self) {
        let mut left = Vec::new();
        let gone = |patch: &Patch, survey: &Survey<'_>, value: &str| {
            let dropped = patch.remove_nodes.iter().map(|at| {
                let inputs = &survey.graph.nodes[*at].inputs;
                inputs.iter().filter(|name| *name == value).count()
            });
            let kept = survey.reads(value) > dropped.sum();
            let reread =
                patch.insert_nodes.iter().any(|(_, n)| n.inputs.iter().any(|i| i == value));
            !kept && !reread && !survey.is_output(value)
        };
        for at in self.weight.chain.iter().rev() {
            let node = &self.survey.graph.nodes[*at];
            left.extend(node.inputs.iter().cloned());
            if gone(&self.patch, self.survey, &node.outputs[0]) {
                self.patch.remove_nodes.insert(*at);
            }
        }
        left.extend(self.survey.graph.nodes[self.head].inputs.iter().skip(1).cloned());
        for name in left {
            if self.survey.constant(&name).is_some() && gone(&self.patch, self.survey, &name) {
                self.patch.remove_initializers.insert(name);
            }
        }
    }
}

fn refuse(why: String) -> RuleError {
    RuleError { rule: "split-head", why }
}
