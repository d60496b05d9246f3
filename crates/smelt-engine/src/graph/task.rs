//! Names what a compiled graph does, one task after another, and the numbers each reads and writes.
//!
//! Knows nothing of how tasks were found or how they are done.

use super::chain::Chain;
use super::op::Op;
use super::view::{Home, View};

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) work: Work,
    /// The node that gives its result, for messages.
    pub(crate) title: String,
}

/// What is done.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Linear(Linear),
    Attention(Attention),
    Norm(Norm),
    Map(Map),
    Fill { out: View, value: f32 },
    Call(Call),
}

/// `out = x · weightᵀ + bias`
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// `[rows, columns]`, contiguous.
    pub(crate) x: View,
    pub(crate) weight: Factor,
    /// The place of a constant of `outputs` floats.
    pub(crate) bias: Option<usize>,
    /// `[rows, outputs]`, contiguous.
    pub(crate) out: View,
}

/// A weight `[outputs, columns]`.
#[derive(Clone, Debug)]
pub(crate) enum Factor {
    /// The place of a constant in stripes.
    Striped(usize),
    /// A view of a constant.
    View(View),
}

/// softmax(q · kᵀ · scale + mask) · v
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    /// `[batch, heads, queries, depth]`
    pub(crate) q: View,
    /// `[batch, heads, keys, depth]`
    pub(crate) k: View,
    /// `[batch, heads, keys, width]`
    pub(crate) v: View,
    /// `[batch, heads, queries, keys]`
    pub(crate) mask: Option<View>,
    pub(crate) scale: f32,
    /// `[batch, queries, heads, width]`, contiguous.
    pub(crate) out: View,
}

/// Rows normalised, then perhaps scaled and moved.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    /// Whether the mean is taken away first.
    pub(crate) centred: bool,
    pub(crate) eps: f32,
    /// `[rows, width]`, contiguous, as is `out`.
    pub(crate) x: View,
    /// Places of constants of `width` floats.
    pub(crate) scale: Option<usize>,
    pub(crate) bias: Option<usize>,
    pub(crate) out: View,
}

/// A chain over operands that are repeated to the shape of `out`; without links, a copy.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) chain: Chain,
    pub(crate) operands: Vec<View>,
    pub(crate) out: View,
}

/// An operator on values of its own.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) inputs: Vec<Option<Feed>>,
    pub(crate) outputs: Vec<Option<Sink>>,
    /// Loose places that nobody reads afterwards.
    pub(crate) done: Vec<usize>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(crate) enum Feed {
    /// A constant's place.
    Known(usize),
    /// The place of a value whose shape or numbers no buffer was made for.
    Loose(usize),
    View(View),
}

/// Where a value goes.
#[derive(Clone, Debug)]
pub(crate) enum Sink {
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
    pub(crate) fn reads(&mut self) -> Vec<&mut View> {
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
    pub(crate) fn writes(&mut self) -> Vec<&mut View> {
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
    pub(crate) fn buffer(&self) -> Option<usize> {
        match self.home {
            Home::Buffer(buffer) => Some(buffer),
            Home::Input(_) | Home::Constant(_) => None,
        }
    }
}
