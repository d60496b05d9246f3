//! Cuts the vocabulary product into parts, so that no single kernel needs the whole pool.
//!
//! Walks back from the output to the last MatMul or Gemm, cuts its weight along the
//! vocabulary and joins the parts' results under the old name, so that whoever reads it,
//! once or twice or from outside, reads the same.  Rows of a `[vocab, hidden]` weight are
//! two ranges of one file; columns of a `[hidden, vocab]` weight are copied in one pass.

use super::head::{self, Weight};
use super::new_file::NewFile;
use super::patch::{ColumnCut, Making, Patch};
use super::{Parts, RuleError};
use crate::TENSOR_ALIGNMENT_BYTES;
use crate::model::{Attribute, AttributeValue, Data, Initializer, Model, Node};
use crate::survey::Survey;

/// Most parts of a head: each is a node, and more than this serves no memory pool.
pub const PARTS_MAX: usize = 256;

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
    let products = head::output(&survey, output)
        .and_then(|output| head::products(&survey, output))
        .map_err(refuse)?;
    let &[head] = &products[..] else {
        return Err(refuse(format!("the head is in {} parts already", products.len())));
    };
    let weight = Weight::find(&survey, head).map_err(refuse)?;
    let Some(cuts) = Cutter { weight: &weight }.cuts(parts)? else { return Ok(None) };
    let (file, patch) = (NewFile::beside(model), Patch::default());
    Split { survey: &survey, head, weight, cuts, file, patch }.patch().map(Some)
}

/// Where a head may be cut.
struct Cutter<'w, 'm> {
    weight: &'w Weight<'m>,
}

impl Cutter<'_, '_> {
    /// Bits that one token takes.
    fn token_bits(&self) -> usize {
        self.weight.tensor.dims[1 - self.weight.axis] * self.weight.tensor.dtype.bits()
    }

    /// Where the parts begin, and the end; `None` when one part is enough.
    fn cuts(&self, parts: Parts) -> Result<Option<Vec<usize>>, RuleError> {
        let (vocab, bytes) = (self.weight.vocab(), self.token_bits().div_ceil(8).max(1));
        let [must, wish] = self.grains()?;
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
        if size < must || vocab / size > PARTS_MAX {
            return Err(refuse(format!(
                "that makes more than {PARTS_MAX} parts of {vocab} tokens"
            )));
        }
        let grain = if size >= wish { wish } else { must };
        let mut cuts: Vec<usize> = match parts {
            Parts::Count(count) => {
                (0..count).map(|at| at * vocab / count / grain * grain).collect()
            }
            Parts::MaxBytes(_) => (0..vocab).step_by(size / grain * grain).collect(),
        };
        cuts.push(vocab);
        Ok(Some(cuts))
    }

    /// Tokens after which a part may begin so that it begins on a whole byte, and on a page.
    fn grains(&self) -> Result<[usize; 2], RuleError> {
        let weight = self.weight;
        if weight.axis == 1 {
            let row_bits = weight.vocab() * weight.tensor.dtype.bits();
            return match (weight.tensor.dtype.bits() % 8, row_bits % 8) {
                (0, _) => Ok([1, 1]),
                (_, 0) => Ok([2, 2]),
                _ => Err(refuse("its rows do not end on whole bytes".into())),
            };
        }
        if !self.token_bits().is_multiple_of(8) {
            return Err(refuse("its rows do not end on whole bytes".into()));
        }
        let row = self.token_bits() as u64 / 8;
        let shared = 1u64 << row.trailing_zeros().min(TENSOR_ALIGNMENT_BYTES.trailing_zeros());
        Ok([1, (TENSOR_ALIGNMENT_BYTES / shared) as usize])
    }
}

struct Split<'s, 'm> {
    survey: &'s Survey<'m>,
    head: usize,
    weight: Weight<'m>,
    cuts: Vec<usize>,
    file: NewFile,
    patch: Patch,
}

impl Split<'_, '_> {
    fn patch(mut self) -> Result<Patch, RuleError> {
        let head = &self.survey.graph.nodes[self.head];
        let count = self.cuts.len() - 1;
        let weights = self.cut_tensor(self.weight.tensor, self.weight.axis)?;
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
        self.weight.drop_unread(self.survey, self.head, &mut self.patch);
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

    /// Cuts a tensor along one of its axes: by rows where it lies, by columns into a new file.
    fn cut_tensor(&mut self, tensor: &Initializer, axis: usize) -> Result<Vec<String>, RuleError> {
        if axis == 0 || matches!(tensor.data, Data::Inline(_)) {
            return self.cut_along(tensor, axis);
        }
        let mut parts = Vec::new();
        for part in 0..self.cuts.len() - 1 {
            let dims = vec![tensor.dims[0], self.cuts[part + 1] - self.cuts[part]];
            let name = self.part_name(&tensor.name, part);
            let part = self.file.tensor(name, tensor.dtype, dims);
            parts.push(part.ok_or_else(|| refuse("it overflows".into()))?);
        }
        self.patch.add_initializers.extend(parts.iter().cloned());
        let names = parts.iter().map(|part| part.name.clone()).collect();
        self.patch.makings.push(Making::Columns(ColumnCut { from: tensor.clone(), parts }));
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
                if axis != self.weight.axis_at(self.survey, at) {
                    Ok(shared)
                } else if *count == self.weight.vocab() {
                    self.cut_along(tensor, 0)
                } else {
                    Err(refuse(format!("{name:?} does not have one number for every token")))
                }
            }
            [_, _] if node.int("block_size").unwrap_or(0) > 0 => {
                let axis = self.weight.axis_at(self.survey, at);
                if tensor.dims[axis] == self.weight.vocab() {
                    self.cut_tensor(tensor, axis)
                } else {
                    Err(refuse(format!("the blocks of {name:?} go along the vocabulary")))
                }
            }
            dims => Err(refuse(format!("scales of shape {dims:?} cannot be cut"))),
        }
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
}

fn refuse(why: String) -> RuleError {
    RuleError { rule: "split-head", why }
}
