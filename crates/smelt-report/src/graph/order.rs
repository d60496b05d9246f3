//! Puts stages into layers and orders each layer so that few edges cross.
//!
//! Layers are those of the longest path; a stage that needs nothing stands just before its first
//! reader.  An edge that spans layers passes through a joint in each layer between, and all edges
//! of one stage share them.  Order is by barycentres, swept both ways (Sugiyama, Tagawa and Toda,
//! 1981); the best order seen is kept.

use std::collections::BTreeMap;

use super::Drawing;

/// More sweeps than this change nothing any more on any pipeline we have.
const SWEEPS: usize = 24;

/// A place in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// A stage, by position.
    Stage(usize),
    /// Where the edges of a stage pass through a layer.
    Joint {
        /// The stage.
        of: usize,
        /// The layer.
        layer: usize,
    },
}

/// Layers from left to right, each from top to bottom.
#[derive(Debug, Default)]
pub(super) struct Layering {
    /// Nodes, by index.
    pub(super) nodes: Vec<Node>,
    /// Indices of nodes.
    pub(super) layers: Vec<Vec<usize>>,
    /// For each node those of the layer before that lead to it.
    pub(super) before: Vec<Vec<usize>>,
    /// For each node those of the layer after that it leads to.
    pub(super) after: Vec<Vec<usize>>,
}

/// Orders the picture.
pub(super) fn order(picture: &Drawing) -> Layering {
    let mut order = place(picture, &layers(picture));
    let mut best = order.layers.clone();
    let mut fewest = order.crossings();
    for sweep in 0..SWEEPS {
        if fewest == 0 {
            break;
        }
        order.sweep(sweep % 2 == 0);
        let crossings = order.crossings();
        if crossings < fewest {
            (fewest, best) = (crossings, order.layers.clone());
        }
    }
    order.layers = best;
    order
}

/// The layer of each stage.
fn layers(picture: &Drawing) -> Vec<usize> {
    let mut layers = vec![0; picture.boxes.len()];
    for (at, stage) in picture.boxes.iter().enumerate() {
        layers[at] = stage.needs.iter().map(|&need| layers[need] + 1).max().unwrap_or(0);
    }
    let mut first_reader = vec![usize::MAX; layers.len()];
    for (at, stage) in picture.boxes.iter().enumerate() {
        for &need in &stage.needs {
            first_reader[need] = first_reader[need].min(layers[at]);
        }
    }
    for (at, stage) in picture.boxes.iter().enumerate() {
        if stage.needs.is_empty() && first_reader[at] != usize::MAX {
            layers[at] = first_reader[at] - 1;
        }
    }
    layers
}

/// Stages and joints in their layers, in the order of the plan.
fn place(picture: &Drawing, layer_of: &[usize]) -> Layering {
    let mut order = Layering::default();
    let mut index = BTreeMap::new();
    for (at, &layer) in layer_of.iter().enumerate() {
        order.add(&mut index, Node::Stage(at), layer);
    }
    for (at, stage) in picture.boxes.iter().enumerate() {
        for &need in &stage.needs {
            let mut from = Node::Stage(need);
            for layer in layer_of[need] + 1..layer_of[at] {
                let joint = Node::Joint { of: need, layer };
                order.add(&mut index, joint, layer);
                order.join(index[&from], index[&joint]);
                from = joint;
            }
            order.join(index[&from], index[&Node::Stage(at)]);
        }
    }
    order
}

impl Layering {
    fn add(&mut self, index: &mut BTreeMap<Node, usize>, node: Node, layer: usize) {
        if index.contains_key(&node) {
            return;
        }
        index.insert(node, self.nodes.len());
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Vec::new);
        }
        self.layers[layer].push(self.nodes.len());
        self.nodes.push(node);
        self.before.push(Vec::new());
        self.after.push(Vec::new());
    }

    fn join(&mut self, from: usize, to: usize) {
        if !self.after[from].contains(&to) {
            self.after[from].push(to);
            self.before[to].push(from);
        }
    }

    /// Where each node is in its layer.
    fn ranks(&self) -> Vec<usize> {
        let mut ranks = vec![0; self.nodes.len()];
        for layer in &self.layers {
            layer.iter().enumerate().for_each(|(rank, &node)| ranks[node] = rank);
        }
        ranks
    }

    /// Orders every layer by the mean rank of the neighbours on one side.
    fn sweep(&mut self, forward: bool) {
        let mut ranks = self.ranks();
        let count = self.layers.len();
        let neighbours = if forward { &self.before } else { &self.after };
        for step in 0..count {
            let layer = &mut self.layers[if forward { step } else { count - 1 - step }];
            let mean = |node: usize| {
                let near = &neighbours[node];
                let sum: usize = near.iter().map(|&near| ranks[near]).sum();
                if near.is_empty() { ranks[node] as f64 } else { sum as f64 / near.len() as f64 }
            };
            let mut keyed: Vec<(f64, usize)> =
                layer.iter().map(|&node| (mean(node), node)).collect();
            // Stable, so that equals stay as they are.
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            *layer = keyed.into_iter().map(|(_, node)| node).collect();
            layer.iter().enumerate().for_each(|(rank, &node)| ranks[node] = rank);
        }
    }

    /// How many pairs of edges cross.
    pub(super) fn crossings(&self) -> usize {
        let ranks = self.ranks();
        let between = |layer: &Vec<usize>| {
            let mut ends: Vec<usize> = Vec::new();
            for &node in layer {
                let mut own: Vec<usize> = self.after[node].iter().map(|&to| ranks[to]).collect();
                own.sort_unstable();
                ends.extend(own);
            }
            inversions(&mut ends)
        };
        self.layers.iter().map(between).sum()
    }
}

/// How many pairs are in the wrong order; sorts by merging.
fn inversions(ends: &mut Vec<usize>) -> usize {
    if ends.len() < 2 {
        return 0;
    }
    let mut right = ends.split_off(ends.len() / 2);
    let mut count = inversions(ends) + inversions(&mut right);
    let left = std::mem::take(ends);
    let mut right = right.into_iter().peekable();
    let total = left.len();
    for (at, value) in left.into_iter().enumerate() {
        while let Some(smaller) = right.next_if(|&smaller| smaller < value) {
            ends.push(smaller);
            count += total - at;
        }
        ends.push(value);
    }
    ends.extend(right);
    count
}

#[cfg(test)]
mod tests {
    use super::super::testing::picture;
    use super::*;

    #[test]
    fn a_source_stands_before_its_first_reader() {
        // 0 -> 1 -> 2 <- 3, and 4 alone.
        assert_eq!(layers(&picture(&[&[], &[0], &[], &[1, 2], &[]])), [0, 1, 1, 2, 0]);
    }

    #[test]
    fn long_edges_of_one_stage_share_their_joints() {
        // 0 is read in layers 1, 2 and 3.
        let order = order(&picture(&[&[], &[0], &[0, 1], &[0, 2]]));
        let joints: Vec<_> =
            order.nodes.iter().filter(|node| matches!(node, Node::Joint { .. })).collect();
        assert_eq!(joints, [&Node::Joint { of: 0, layer: 1 }, &Node::Joint { of: 0, layer: 2 }]);
    }

    #[test]
    fn what_can_be_untangled_is() {
        // Three chains whose second stages the file gives in the opposite order.
        let order = order(&picture(&[&[], &[], &[], &[2], &[1], &[0], &[5], &[4], &[3]]));
        assert_eq!(order.crossings(), 0);
    }

    #[test]
    fn crossings_are_counted() {
        let mut ends = vec![2, 1, 0];
        assert_eq!(inversions(&mut ends), 3);
        assert_eq!(ends, [0, 1, 2]);
        assert_eq!(inversions(&mut vec![1, 1, 2]), 0);
        // Two stages that both read two others cross once, however they are ordered.
        assert_eq!(order(&picture(&[&[], &[], &[0, 1], &[0, 1]])).crossings(), 1);
    }
}
