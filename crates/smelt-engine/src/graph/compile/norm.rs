//! Finds layer norms: as one operator, or LayerNorm and RMSNorm from their parts.

use super::super::array::Value;
use super::super::op::{Binary, Op, Unary};
use super::super::shapes::is_row_mean;
use super::net::{FusedNode, Kind, Net, Node, Norm, Wires};

/// Makes one node of each norm over the last dimension.
pub(super) fn fuse(net: &mut Net) {
    let wires = Wires::new(net);
    let one = |index| whole(&wires, index).or_else(|| Search::new(&wires).from(index));
    let found = (0..net.nodes.len()).filter_map(one).collect();
    net.replace(found);
}

/// A LayerNormalization over the last dimension of which only the result is read.
fn whole(wires: &Wires<'_>, index: usize) -> Option<FusedNode> {
    let node = &wires.net.nodes[index];
    let Kind::One(Op::LayerNormalization { axis, eps }) = node.kind else { return None };
    let rank = wires.shape(node.inputs[0]?)?.len();
    let more = node.outputs.iter().skip(1).flatten();
    let unread = more.clone().all(|&place| wires.read_among(place, &[]));
    let width = *wires.shape(node.inputs[0]?)?.last()?;
    let fits = node.inputs[1..].iter().flatten().all(|&place| is_vector(wires, place, width));
    if !unread || !fits || !(axis == -1 || axis == rank as i64 - 1) {
        return None;
    }
    let mut inputs = node.inputs.clone();
    inputs.resize(3, None);
    let node = Node {
        kind: Kind::Norm(Norm { centred: true, eps }),
        title: node.title.clone(),
        inputs,
        outputs: node.outputs[..1].to_vec(),
    };
    Some(FusedNode { node, parts: vec![index] })
}

/// Whether `place` is a constant of `width` numbers along the last dimension.
fn is_vector(wires: &Wires<'_>, place: usize, width: usize) -> bool {
    let value = wires.net.known[place].as_ref();
    value.is_some_and(|value| match value {
        Value::F32(array) => array.len() == width && array.shape().last() == Some(&width),
        _ => false,
    })
}

/// What was found of one norm so far.
struct Search<'a> {
    wires: &'a Wires<'a>,
    parts: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(wires: &'a Wires<'a>) -> Self {
        Self { wires, parts: Vec::new() }
    }

    /// Looks around the mean of squares at `index`.
    fn from(mut self, index: usize) -> Option<FusedNode> {
        let wires = self.wires;
        let node = &wires.net.nodes[index];
        let Kind::One(op) = &node.kind else { return None };
        let squares = node.inputs[0]?;
        let rank = wires.shape(squares)?.len();
        if !is_row_mean(op, &wires.net.given(&node.inputs)?, rank) {
            return None;
        }
        self.parts.push(index);
        let x = self.root_of(squares)?;
        let (root, eps) = self.deviation(node.outputs[0]?)?;
        let mut result = self.divided(x, root)?;
        let (x, centred) = self.uncentred(x).map_or((x, false), |from| (from, true));
        let width = *wires.shape(x)?.last()?;
        let scale = self.follower(&mut result, Binary::Mul, width);
        let bias = if centred { self.follower(&mut result, Binary::Add, width) } else { None };
        let last = wires.maker(result)?;
        let node = Node {
            kind: Kind::Norm(Norm { centred, eps }),
            title: wires.net.nodes[last].title.clone(),
            inputs: vec![Some(x), scale, bias],
            outputs: vec![Some(result)],
        };
        Some(FusedNode { node, parts: self.parts })
    }

    /// What `squares` are the squares of.
    fn root_of(&mut self, squares: usize) -> Option<usize> {
        let wires = self.wires;
        wires.only_reader(squares)?;
        let (index, op, node) = wires.op(squares)?;
        let (a, b) = (node.inputs.first().copied()??, node.inputs.get(1).copied()??);
        let is_square = match op {
            Op::Binary(Binary::Mul) => a == b,
            Op::Binary(Binary::Pow) => wires.scalar(b) == Some(2.0),
            _ => false,
        };
        self.parts.push(index);
        (is_square && wires.shape(a) == wires.shape(squares)).then_some(a)
    }

    /// The place of √(mean + eps), and eps.
    fn deviation(&mut self, mean: usize) -> Option<(usize, f32)> {
        let wires = self.wires;
        let index = wires.only_reader(mean)?;
        let node = &wires.net.nodes[index];
        let Kind::One(Op::Binary(Binary::Add)) = node.kind else { return None };
        let (a, b) = (node.inputs[0]?, node.inputs[1]?);
        let eps = wires.scalar(if a == mean { b } else { a })?;
        let sum = node.outputs[0]?;
        let root = wires.only_reader(sum)?;
        let Kind::One(Op::Unary(Unary::Sqrt)) = wires.net.nodes[root].kind else { return None };
        self.parts.extend([index, root]);
        Some((wires.net.nodes[root].outputs[0]?, eps))
    }

    /// The place of `x` / `root`, written so or as a product with the reciprocal.
    fn divided(&mut self, x: usize, root: usize) -> Option<usize> {
        let wires = self.wires;
        let mut index = wires.only_reader(root)?;
        let mut node = &wires.net.nodes[index];
        let (kind, mut by) = (&node.kind, root);
        self.parts.push(index);
        let wanted = if matches!(kind, Kind::One(Op::Unary(Unary::Reciprocal))) {
            by = node.outputs[0]?;
            index = wires.only_reader(by)?;
            node = &wires.net.nodes[index];
            self.parts.push(index);
            Binary::Mul
        } else {
            Binary::Div
        };
        let is_last = matches!(node.kind, Kind::One(Op::Binary(kind)) if kind == wanted);
        let pair = (node.inputs[0]?, node.inputs.get(1).copied()??);
        let fits = pair == (x, by) || (wanted == Binary::Mul && pair == (by, x));
        (is_last && fits).then_some(node.outputs[0]?)
    }

    /// What `x` is minus its mean, if it is that and nobody else reads it.
    fn uncentred(&mut self, x: usize) -> Option<usize> {
        let wires = self.wires;
        let (index, op, node) = wires.op(x)?;
        let (from, mean) = (node.inputs.first().copied()??, node.inputs.get(1).copied()??);
        if *op != Op::Binary(Binary::Sub) || !wires.read_among(x, &self.parts) {
            return None;
        }
        let (mean_index, op, mean_node) = wires.op(mean)?;
        let rank = wires.shape(from)?.len();
        let fits = mean_node.inputs[0] == Some(from)
            && wires.only_reader(mean) == Some(index)
            && is_row_mean(op, &wires.net.given(&mean_node.inputs)?, rank);
        if fits {
            self.parts.extend([index, mean_index]);
        }
        fits.then_some(from)
    }

    /// The constant vector that the one reader of `result` puts to it by `kind`; the result moves
    /// on.
    fn follower(&mut self, result: &mut usize, kind: Binary, width: usize) -> Option<usize> {
        let wires = self.wires;
        let index = wires.only_reader(*result)?;
        let node = &wires.net.nodes[index];
        if !matches!(node.kind, Kind::One(Op::Binary(found)) if found == kind) {
            return None;
        }
        let (a, b) = (node.inputs[0]?, node.inputs[1]?);
        let vector = if a == *result { b } else { a };
        let next = node.outputs[0]?;
        if !is_vector(wires, vector, width) || wires.shape(next) != wires.shape(*result) {
            return None;
        }
        self.parts.push(index);
        *result = next;
        Some(vector)
    }
}
