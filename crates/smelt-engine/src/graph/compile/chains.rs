//! Puts operators that look at one number of each input at a time into chains.
//!
//! A chain gives one value; whatever is read by the chain alone never leaves the first cache.

use std::collections::BTreeSet;

use super::super::chain::{Chain, Link, LinkInput};
use super::super::op::{CastTo, Op};
use super::net::{FusedNode, Kind, Net, Node, Wires};

/// More links than this would leave the first cache.
const LINKS_MAX: usize = 12;

/// Makes one node of operators that follow each other.
pub(super) fn fuse(net: &mut Net) {
    let wires = Wires::new(net);
    let mut taken = vec![false; net.nodes.len()];
    let mut found = Vec::new();
    for index in (0..net.nodes.len()).rev() {
        if taken[index] || !is_link(&wires, index) {
            continue;
        }
        let parts = gather(&wires, index);
        parts.iter().for_each(|&part| taken[part] = true);
        found.push(chained(&wires, parts));
    }
    net.replace(found);
}

/// Whether a node is of floats and can be part of a chain.
fn is_link(wires: &Wires<'_>, index: usize) -> bool {
    let node = &wires.net.nodes[index];
    let is_kind = matches!(
        node.kind,
        Kind::One(Op::Unary(_) | Op::Binary(_) | Op::Cast { to: CastTo::F16 | CastTo::Bf16 })
    );
    let mut places = node.inputs.iter().chain(&node.outputs).flatten();
    is_kind && places.all(|&place| wires.shape(place).is_some())
}

/// The nodes of the chain that ends with `last`, in order.
fn gather(wires: &Wires<'_>, last: usize) -> Vec<usize> {
    let shape = wires.net.nodes[last].outputs[0].and_then(|place| wires.shape(place));
    let makers = |index: usize| {
        let inputs = wires.net.nodes[index].inputs.iter().flatten();
        inputs.filter_map(|&place| wires.maker(place)).collect::<Vec<_>>()
    };
    let mut parts = vec![last];
    let mut open: BTreeSet<usize> = makers(last).into_iter().collect();
    // Readers come later than what they read, so the last candidate has all its readers decided.
    while let Some(index) = open.pop_last() {
        let place = wires.net.nodes[index].outputs[0];
        let fits = is_link(wires, index)
            && parts.len() < LINKS_MAX
            && place.is_some_and(|place| {
                wires.shape(place) == shape && wires.read_among(place, &parts)
            });
        if fits {
            parts.push(index);
            open.extend(makers(index));
        }
    }
    parts.reverse();
    parts
}

/// The chain of the nodes `parts`.
fn chained(wires: &Wires<'_>, parts: Vec<usize>) -> FusedNode {
    let nodes: Vec<&Node> = parts.iter().map(|&part| &wires.net.nodes[part]).collect();
    let mut operands: Vec<Option<usize>> = Vec::new();
    let mut links = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let mut source = |input: usize| {
            let place = node.inputs[input];
            let link = nodes[..index].iter().position(|node| node.outputs[0] == place);
            link.map(LinkInput::Link).unwrap_or_else(|| {
                let operand = operands.iter().position(|&operand| operand == place);
                LinkInput::Operand(operand.unwrap_or_else(|| {
                    operands.push(place);
                    operands.len() - 1
                }))
            })
        };
        links.push(match &node.kind {
            Kind::One(Op::Unary(kind)) => Link::Unary(*kind, source(0)),
            Kind::One(Op::Binary(kind)) => Link::Binary(*kind, source(0), source(1)),
            Kind::One(Op::Cast { to: CastTo::F16 }) => Link::RoundF16(source(0)),
            _ => Link::RoundBf16(source(0)),
        });
    }
    let last = nodes[nodes.len() - 1];
    let node = Node {
        kind: Kind::Chain(Chain { links }),
        title: last.title.clone(),
        inputs: operands,
        outputs: last.outputs.clone(),
    };
    FusedNode { node, parts }
}
