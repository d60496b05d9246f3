//! Names what a compiled graph does, one task after another, and the numbers each reads and writes.
//!
//! Knows nothing of how tasks were found or how they are done.

use super::chain::Chain;
use super::op::Op;
use super::view::{Home, View};

/// One thing to do.
#[derive(Clone, Debug)]
pub struct Task {
    /// What is done.
    pub work: Work,
    /// The node that gives its result, for messages.
    pub title: String,
}

/// What is done.
#[derive(Clone, Debug)]
pub enum Work {
    /// A product with a constant.
    Linear(Linear),
    /// Heads that attend.
    Attention(Attention),
    /// Rows that are normalised.
    Norm(Norm),
    /// Operators that look at one number of each operand at a time, or a copy.
    Map(Map),
    /// Every number becomes the same.
    Fill {
        /// The numbers.
        out: View,
        /// What they become.
        value: f32,
    },
    /// An operator that has no work of its own.
    Call(Call),
}

/// `out = x · weightᵀ + bias`
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[rows, columns]`, contiguous.
    pub x: View,
    /// What it is multiplied with.
    pub weight: Factor,
    /// The place of a constant of `outputs` floats.
    pub bias: Option<usize>,
    /// `[rows, outputs]`, contiguous.
    pub out: View,
}

/// A weight `[outputs, columns]`.
#[derive(Clone, Debug)]
pub enum Factor {
    /// The place of a constant in stripes.
    Striped(usize),
    /// A view of a constant.
    View(View),
}

/// softmax(q · kᵀ · scale + mask) · v
#[derive(Clone, Debug)]
pub struct Attention {
    /// `[batch, heads, queries, depth]`
    pub q: View,
    /// `[batch, heads, keys, depth]`
    pub k: View,
    /// `[batch, heads, keys, width]`
    pub v: View,
    /// `[batch, heads, queries, keys]`
    pub mask: Option<View>,
    /// What scores are multiplied with.
    pub scale: f32,
    /// `[batch, queries, heads, width]`, contiguous.
    pub out: View,
}

/// Rows normalised, then perhaps scaled and moved.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Whether the mean is taken away first.
    pub centred: bool,
    /// Added to the mean of squares.
    pub eps: f32,
    /// `[rows, width]`, contiguous, as is `out`.
    pub x: View,
    /// The place of a constant of `width` floats.
    pub scale: Option<usize>,
    /// The same.
    pub bias: Option<usize>,
    /// `[rows, width]`.
    pub out: View,
}

/// A chain over operands that are repeated to the shape of `out`; without links, a copy.
#[derive(Clone, Debug)]
pub struct Map {
    /// What is computed of each number.
    pub chain: Chain,
    /// What it reads.
    pub operands: Vec<View>,
    /// Each number of it is written once.
    pub out: View,
}

/// An operator on values of its own.
#[derive(Clone, Debug)]
pub struct Call {
    pub(crate) op: Op,
    /// What it reads.
    pub inputs: Vec<Option<Feed>>,
    /// Where what it gives goes.
    pub outputs: Vec<Option<Sink>>,
    /// Loose places that nobody reads afterwards.
    pub done: Vec<usize>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Feed {
    /// A constant's place.
    Known(usize),
    /// The place of a value whose shape or numbers no buffer was made for.
    Loose(usize),
    /// Numbers of floats.
    View(View),
}

/// Where a value goes.
#[derive(Clone, Debug)]
pub enum Sink {
    /// The place of a value that has no buffer.
    Loose(usize),
    /// A whole buffer, row-major.
    View(View),
}

/// Multiplications that take as long as a number which is looked at by itself.
const NUMBER_PRODUCTS: usize = 16;

impl Work {
    /// What it costs beside other work, roughly, in multiplications.
    pub(crate) fn price(&self) -> usize {
        let of = |view: &View| view.len() * NUMBER_PRODUCTS;
        match self {
            Self::Linear(Linear { x, out, .. }) => {
                x.len() * out.shape.last().copied().unwrap_or(1) + of(out)
            }
            Self::Attention(Attention { q, k, v, out, .. }) => {
                // Every query meets every key, and what a value adds.
                let keys = k.shape.get(2).copied().unwrap_or(1);
                q.len() * keys + out.len() * v.shape.get(2).copied().unwrap_or(1)
            }
            Self::Norm(Norm { out, .. }) | Self::Map(Map { out, .. }) | Self::Fill { out, .. } => {
                of(out)
            }
            Self::Call(Call { outputs, .. }) => {
                let sink = |sink: &Sink| match sink {
                    Sink::View(view) => of(view),
                    Sink::Loose(_) => NUMBER_PRODUCTS,
                };
                outputs.iter().flatten().map(sink).sum()
            }
        }
    }

    /// The views that are read.
    pub fn reads(&mut self) -> Vec<&mut View> {
        match self {
            Self::Linear(Linear { x, weight: Factor::View(weight), .. }) => vec![x, weight],
            Self::Linear(Linear { x, .. }) => vec![x],
            Self::Attention(Attention { q, k, v, mask, .. }) => {
                [q, k, v].into_iter().chain(mask).collect()
            }
            Self::Norm(Norm { x, .. }) => vec![x],
            Self::Map(Map { operands, .. }) => operands.iter_mut().collect(),
            Self::Fill { .. } => vec![],
            Self::Call(Call { inputs, .. }) => {
                inputs.iter_mut().flatten().filter_map(Feed::view_mut).collect()
            }
        }
    }

    /// The views that are written.
    pub fn writes(&mut self) -> Vec<&mut View> {
        match self {
            Self::Linear(Linear { out, .. })
            | Self::Attention(Attention { out, .. })
            | Self::Norm(Norm { out, .. })
            | Self::Map(Map { out, .. })
            | Self::Fill { out, .. } => vec![out],
            Self::Call(Call { outputs, .. }) => outputs
                .iter_mut()
                .flatten()
                .filter_map(|sink| match sink {
                    Sink::View(view) => Some(view),
                    Sink::Loose(_) => None,
                })
                .collect(),
        }
    }

    /// What a survey calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Linear(_) => "linear",
            Self::Attention(_) => "attention",
            Self::Norm(_) => "norm",
            Self::Map(Map { chain, .. }) if chain.links.is_empty() => "copy",
            Self::Map(_) => "map",
            Self::Fill { .. } => "fill",
            Self::Call(_) => "operator",
        }
    }
}

impl Feed {
    pub(crate) fn view_mut(&mut self) -> Option<&mut View> {
        match self {
            Self::View(view) => Some(view),
            Self::Known(_) | Self::Loose(_) => None,
        }
    }
}

impl View {
    /// The arena's buffer it sees, if it sees one.
    pub fn buffer(&self) -> Option<usize> {
        match self.home {
            Home::Buffer(buffer) => Some(buffer),
            Home::Input(_) | Home::Constant(_) => None,
        }
    }
}
