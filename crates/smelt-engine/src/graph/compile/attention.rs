//! Finds attention: a softmax between two products, scale and mask on the way.

use super::super::op::{Binary, Op};
use super::net::{FusedNode, Kind, Net, Node, Wires};

/// Makes one node of each softmax(q · k · scale + mask) · v.
pub(super) fn fuse(net: &mut Net) {
    let wires = Wires::new(net);
    let found = (0..net.nodes.len()).filter_map(|index| Search::new(&wires).from(index)).collect();
    net.replace(found);
}

/// What was found of one attention so far.
struct Search<'a> {
    wires: &'a Wires<'a>,
    parts: Vec<usize>,
    scale: f32,
}

impl<'a> Search<'a> {
    fn new(wires: &'a Wires<'a>) -> Self {
        Self { wires, parts: Vec::new(), scale: 1.0 }
    }

    /// Looks around the softmax at `index`.
    fn from(mut self, index: usize) -> Option<FusedNode> {
        let wires = self.wires;
        let node = &wires.net.nodes[index];
        let Kind::One(Op::Softmax { axis }) = node.kind else { return None };
        let (scores, shares) = (node.inputs[0]?, node.outputs[0]?);
        let rank = wires.shape(scores)?.len();
        if !(2..=4).contains(&rank) || !(axis == -1 || axis == rank as i64 - 1) {
            return None;
        }
        self.parts.push(index);
        let (scores, mask) = self.unmasked(scores)?;
        let scores = self.unscaled(scores);
        let (first, op, product) = wires.op(scores)?;
        if *op != Op::MatMul || wires.only_reader(scores).is_none() {
            return None;
        }
        let (q, k) = (product.inputs[0]?, product.inputs[1]?);
        let (q, k) = (self.unscaled(q), self.unscaled(k));
        let last = wires.only_reader(shares)?;
        let mix = &wires.net.nodes[last];
        if !matches!(mix.kind, Kind::One(Op::MatMul)) || mix.inputs[0] != Some(shares) {
            return None;
        }
        let v = mix.inputs[1]?;
        let fits = [q, k, v]
            .iter()
            .all(|&place| wires.shape(place).is_some_and(|shape| (2..=4).contains(&shape.len())));
        if !fits || wires.shape(mix.outputs[0]?)?.len() > 4 {
            return None;
        }
        self.parts.extend([first, last]);
        let node = Node {
            kind: Kind::Attention { scale: self.scale },
            title: mix.title.clone(),
            inputs: vec![Some(q), Some(k), Some(v), mask],
            outputs: mix.outputs.clone(),
        };
        Some(FusedNode { node, parts: self.parts })
    }

    /// The scores before a mask was added, and the mask.
    fn unmasked(&mut self, scores: usize) -> Option<(usize, Option<usize>)> {
        let wires = self.wires;
        wires.only_reader(scores)?;
        let Some((index, Op::Binary(Binary::Add), node)) = wires.op(scores) else {
            return Some((scores, None));
        };
        let (a, b) = (node.inputs[0]?, node.inputs[1]?);
        let is_product = |place: usize| {
            let inner = self.scaled(place).map_or(place, |(_, inner, _)| inner);
            let product = matches!(wires.op(inner), Some((_, Op::MatMul, _)));
            // A mask may be computed too: what makes the scores has their shape.
            product && wires.shape(place) == wires.shape(scores)
        };
        let (inner, mask) = if is_product(a) { (a, b) } else { (b, a) };
        if !is_product(inner) || wires.only_reader(inner).is_none() {
            return None;
        }
        wires.shape(mask)?;
        self.parts.push(index);
        Some((inner, Some(mask)))
    }

    /// What `place` is a multiple of, the factor kept; the place itself where it is none.
    fn unscaled(&mut self, place: usize) -> usize {
        let Some((index, inner, factor)) = self.scaled(place) else { return place };
        if self.wires.only_reader(place).is_none() {
            return place;
        }
        self.parts.push(index);
        self.scale *= factor;
        inner
    }

    /// The node, the place and the factor where `place` is another times a constant number.
    fn scaled(&self, place: usize) -> Option<(usize, usize, f32)> {
        let wires = self.wires;
        let (index, op, node) = wires.op(place)?;
        let &Op::Binary(kind) = op else { return None };
        let (a, b) = (node.inputs[0]?, node.inputs[1]?);
        let (inner, factor) = match (kind, wires.scalar(a), wires.scalar(b)) {
            (Binary::Mul, _, Some(factor)) => (a, factor),
            (Binary::Mul, Some(factor), _) => (b, factor),
            (Binary::Div, _, Some(divisor)) => (a, 1.0 / divisor),
            _ => return None,
        };
        (wires.shape(inner)? == wires.shape(place)?).then_some((index, inner, factor))
    }
}
