//! Gives every node of an ordered picture its place on the paper.
//!
//! Layers are columns.  Within one, nodes go as near as they can to the middle of their neighbours
//! without changing order or touching: a least-squares problem that pooling solves exactly
//! (isotonic regression).

use super::Drawing;
use super::order::{Layering, Node};

/// The height of a box and of a joint, and the space between two.
pub(super) const BOX_HEIGHT: f64 = 40.0;
const JOINT_HEIGHT: f64 = 4.0;
const GAP: f64 = 12.0;
/// Between columns, for the edges.
const COLUMN_GAP: f64 = 56.0;
const MARGIN: f64 = 12.0;
/// Of the font the picture asks for; 0.6 em is the width of monospaced letters.
const LETTER_WIDTH: f64 = 7.8;
const PADDING: f64 = 12.0;
/// Positions settle geometrically; this is far beyond what is seen.
const PASSES: usize = 16;

/// Where everything is.
#[derive(Debug, PartialEq)]
pub(super) struct Layout {
    /// The left edge and the middle of each node.
    pub(super) at: Vec<(f64, f64)>,
    /// The width of each node: its column's.
    pub(super) widths: Vec<f64>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Lays the picture out.
pub(super) fn layout(picture: &Drawing, order: &Layering) -> Layout {
    let heights: Vec<f64> = order.nodes.iter().map(height).collect();
    let middles = middles(order, &heights);
    let mut layout = Layout {
        at: vec![(0.0, 0.0); order.nodes.len()],
        widths: vec![0.0; order.nodes.len()],
        width: MARGIN,
        height: 0.0,
    };
    for layer in &order.layers {
        let width =
            layer.iter().map(|&node| box_width(picture, order.nodes[node])).fold(0.0, f64::max);
        for &node in layer {
            layout.at[node] = (layout.width, middles[node]);
            layout.widths[node] = width;
            layout.height = layout.height.max(middles[node] + heights[node] / 2.0 + MARGIN);
        }
        layout.width += width + COLUMN_GAP;
    }
    layout.width += MARGIN - COLUMN_GAP;
    layout
}

fn height(node: &Node) -> f64 {
    match node {
        Node::Stage(_) => BOX_HEIGHT,
        Node::Joint { .. } => JOINT_HEIGHT,
    }
}

fn box_width(picture: &Drawing, node: Node) -> f64 {
    let Node::Stage(at) = node else { return 0.0 };
    let stage = &picture.boxes[at];
    let letters = stage.name.chars().count().max(stage.kind.len());
    letters as f64 * LETTER_WIDTH + 2.0 * PADDING
}

/// The middle of each node, the topmost box at the margin.
fn middles(order: &Layering, heights: &[f64]) -> Vec<f64> {
    let mut middles = vec![0.0; order.nodes.len()];
    for layer in &order.layers {
        settle(layer, heights, &mut middles, |_| None);
    }
    for pass in 0..PASSES {
        let count = order.layers.len();
        for step in 0..count {
            let forward = pass % 2 == 0;
            let layer = &order.layers[if forward { step } else { count - 1 - step }];
            let now = middles.clone();
            let near = |node: usize| {
                // Towards the side swept from; a node with nothing there follows the other side.
                let (one, other) = if forward {
                    (&order.before[node], &order.after[node])
                } else {
                    (&order.after[node], &order.before[node])
                };
                let near = if one.is_empty() { other } else { one };
                let sum: f64 = near.iter().map(|&node| now[node]).sum();
                (!near.is_empty()).then(|| sum / near.len() as f64)
            };
            settle(layer, heights, &mut middles, near);
        }
    }
    let top = middles.iter().zip(heights).map(|(y, height)| y - height / 2.0);
    let top = top.fold(f64::INFINITY, f64::min);
    middles.iter().map(|y| y - top + MARGIN).collect()
}

/// Moves a layer's nodes as near to where they want to be as order and gaps allow.
fn settle(
    layer: &[usize],
    heights: &[f64],
    middles: &mut [f64],
    wish: impl Fn(usize) -> Option<f64>,
) {
    let mut offset = 0.0;
    let mut offsets = Vec::with_capacity(layer.len());
    for (at, &node) in layer.iter().enumerate() {
        if at > 0 {
            offset += (heights[layer[at - 1]] + heights[node]) / 2.0 + GAP;
        }
        offsets.push(offset);
    }
    let wishes = layer
        .iter()
        .zip(&offsets)
        .map(|(&node, offset)| wish(node).unwrap_or(middles[node]) - offset);
    let settled = isotonic(wishes);
    for ((&node, offset), place) in layer.iter().zip(&offsets).zip(settled) {
        middles[node] = place + offset;
    }
}

/// The non-decreasing values nearest to `values` by least squares: neighbours that disagree are
/// pooled at their mean.
fn isotonic(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in values {
        let mut pool = (value, 1);
        while let Some(&(before, count)) = pools.last().filter(|last| last.0 > pool.0) {
            pools.pop();
            let all = pool.1 + count;
            pool = ((pool.0 * pool.1 as f64 + before * count as f64) / all as f64, all);
        }
        pools.push(pool);
    }
    pools.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::super::order::order;
    use super::super::testing::picture;
    use super::*;

    #[test]
    fn pooling_keeps_what_is_in_order_and_averages_what_is_not() {
        let check = |values: &[f64], expect: &[f64]| {
            assert_eq!(isotonic(values.iter().copied()), expect);
        };
        check(&[], &[]);
        check(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
        check(&[3.0, 1.0], &[2.0, 2.0]);
        check(&[5.0, 4.0, 0.0, 9.0], &[3.0, 3.0, 3.0, 9.0]);
    }

    /// A picture of `count` stages, each needing some before it.
    fn random(seed: u64, count: usize) -> Drawing {
        let mut random = Random::new(seed);
        let needs: Vec<Vec<usize>> = (0..count)
            .map(|at| {
                let mut needs: Vec<usize> =
                    (0..random.below(4)).filter(|_| at > 0).map(|_| random.below(at)).collect();
                needs.sort_unstable();
                needs.dedup();
                needs
            })
            .collect();
        picture(&needs.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    #[test]
    fn nothing_touches_and_edges_go_right() {
        for seed in 0..300 {
            let picture = random(seed, 2 + seed as usize % 60);
            let order = order(&picture);
            let layout = layout(&picture, &order);
            for layer in &order.layers {
                for pair in layer.windows(2) {
                    let [a, b] = [pair[0], pair[1]]
                        .map(|node| (layout.at[node].1, height(&order.nodes[node])));
                    let gap = b.0 - b.1 / 2.0 - (a.0 + a.1 / 2.0);
                    assert!(gap >= GAP - 1e-6, "seed {seed}: {gap}");
                }
            }
            for (from, after) in order.after.iter().enumerate() {
                for &to in after {
                    let end = layout.at[from].0 + layout.widths[from];
                    assert!(layout.at[to].0 >= end + COLUMN_GAP - 1e-6, "seed {seed}");
                }
            }
            let inside = |&(x, y): &(f64, f64)| {
                x >= MARGIN - 1e-6 && x < layout.width && y > 0.0 && y < layout.height
            };
            assert!(layout.at.iter().all(inside), "seed {seed}");
            assert_eq!(layout, super::layout(&picture, &super::super::order::order(&picture)));
        }
    }

    #[test]
    fn a_chain_is_straight() {
        let picture = picture(&[&[], &[0], &[1]]);
        let layout = layout(&picture, &order(&picture));
        assert!(layout.at.iter().all(|&(_, y)| y == layout.at[0].1), "{layout:?}");
    }
}
