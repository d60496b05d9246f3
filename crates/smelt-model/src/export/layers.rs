//! Builds what the layers of encoders share: linear layers, norms, attention over named weights.
//!
//! Activations are rows, [texts · places, hidden], outside attention.  Knows no family.

use smelt_onnx::{GraphBuilder, Value};

use super::HIDDEN_SCORE;
use crate::families::clip::Act;

/// How rows fall into sequences.
pub(super) enum SequenceLayout {
    /// So many places each.
    Fixed(i64),
    /// As in the token ids of that name, [texts, places].
    Of(String),
}

/// Attention heads over rows.
pub(super) struct Heads {
    pub(super) hidden: i64,
    heads: i64,
    head: i64,
    places: SequenceLayout,
    /// [texts, places, heads, head], computed once.
    split: Option<Value>,
}

impl Heads {
    pub(super) fn new(hidden: usize, heads: usize, places: SequenceLayout) -> Self {
        let head = (hidden / heads) as i64;
        Self { hidden: hidden as i64, heads: heads as i64, head, places, split: None }
    }

    /// softmax(q · head^-½ · kᵀ + mask) · v over the places of each sequence, then `out`; rows in
    /// and out, `names` are the linear layers of q, k and v.
    pub(super) fn attention(
        &mut self,
        g: &mut GraphBuilder,
        x: &str,
        names: [&str; 3],
        out: &str,
        mask: Option<&str>,
    ) -> Value {
        let [q, k, v] = names.map(|name| {
            let rows = linear(g, x, name);
            self.split(g, &rows)
        });
        let q = g.transpose(&q, &[0, 2, 1, 3]);
        let k = g.transpose(&k, &[0, 2, 3, 1]);
        let v = g.transpose(&v, &[0, 2, 1, 3]);
        let scale = g.scalar((self.head as f64).sqrt().recip() as f32);
        let q = g.mul(&q, &scale);
        let mut scores = g.matmul(&q, &k);
        if let Some(mask) = mask {
            scores = g.add(&scores, mask);
        }
        let shares = g.softmax(&scores);
        let mixed = g.matmul(&shares, &v);
        let mixed = g.transpose(&mixed, &[0, 2, 1, 3]);
        let rows = g.reshape(&mixed, &[-1, self.hidden]);
        linear(g, &rows, out)
    }

    /// Rows to [texts, places, heads, head].
    fn split(&mut self, g: &mut GraphBuilder, rows: &str) -> Value {
        match &self.places {
            SequenceLayout::Fixed(places) => g.reshape(rows, &[-1, *places, self.heads, self.head]),
            SequenceLayout::Of(ids) => {
                let dims = match &self.split {
                    Some(dims) => dims.clone(),
                    None => {
                        let dims = sizes_and(g, ids, &[self.heads, self.head]);
                        self.split.insert(dims).clone()
                    }
                };
                g.reshape_to(rows, &dims)
            }
        }
    }

    /// Rows to [texts, places, hidden].
    pub(super) fn sequences(&self, g: &mut GraphBuilder, rows: &str) -> Value {
        match &self.places {
            SequenceLayout::Fixed(places) => g.reshape(rows, &[-1, *places, self.hidden]),
            SequenceLayout::Of(ids) => {
                let dims = sizes_and(g, ids, &[self.hidden]);
                g.reshape_to(rows, &dims)
            }
        }
    }
}

/// One layer of CLIP's kind, whose tensors' names begin with `name`: attention and MLP, each normed before and added to
/// the rows `x`.
pub(super) fn encoder_layer(
    g: &mut GraphBuilder,
    heads: &mut Heads,
    (name, layer): (&str, usize),
    eps: f32,
    act: impl FnOnce(&mut GraphBuilder, &str) -> Value,
    x: &str,
    mask: Option<&str>,
) -> Value {
    g.scope(&format!("layers.{layer}/attention"));
    let normed = norm(g, x, &format!("{name}.layer_norm1"), eps);
    let names = ["q_proj", "k_proj", "v_proj", "out_proj"];
    let [q, k, v, out] = names.map(|linear| format!("{name}.self_attn.{linear}"));
    let branch = heads.attention(g, &normed, [&q, &k, &v], &out, mask);
    let x = g.add(x, &branch);

    g.scope(&format!("layers.{layer}/mlp"));
    let normed = norm(g, &x, &format!("{name}.layer_norm2"), eps);
    let wide = linear(g, &normed, &format!("{name}.mlp.fc1"));
    let wide = act(g, &wide);
    let branch = linear(g, &wide, &format!("{name}.mlp.fc2"));
    g.add(&x, &branch)
}

/// [tiles · grid², width] -> [tiles · tokens, side² · width]: each square of `side` by `side` patches becomes one row,
/// in which they lie row by row.
pub(super) fn pixel_shuffle(g: &mut GraphBuilder, x: &str, [grid, width, side]: [i64; 3]) -> Value {
    let tokens = grid / side;
    let x = g.reshape(x, &[-1, grid, tokens, side * width]);
    let x = g.transpose(&x, &[0, 2, 1, 3]);
    let x = g.reshape(&x, &[-1, tokens, tokens, side * side * width]);
    let x = g.transpose(&x, &[0, 2, 1, 3]);
    g.reshape(&x, &[-1, side * side * width])
}

/// The two sizes of `ids` and then `more`, as a list.
fn sizes_and(g: &mut GraphBuilder, ids: &str, more: &[i64]) -> Value {
    let (sizes, more) = (g.sizes(ids, &[0, 1]), g.list(more));
    g.concat(&[&sizes, &more], 0)
}

/// What is added to the scores: 0 where `seen`, of the graph's type, is 1, and a number that hides
/// where it is 0.
pub(super) fn hiding(g: &mut GraphBuilder, seen: &str) -> Value {
    let (one, hidden) = (g.scalar(1.0), g.scalar(HIDDEN_SCORE));
    let unseen = g.sub(&one, seen);
    g.mul(&unseen, &hidden)
}

pub(super) fn linear(g: &mut GraphBuilder, x: &str, name: &str) -> Value {
    g.gemm(x, &format!("{name}.weight"), &format!("{name}.bias"))
}

pub(super) fn norm(g: &mut GraphBuilder, x: &str, name: &str, epsilon: f32) -> Value {
    g.layer_norm(x, &format!("{name}.weight"), &format!("{name}.bias"), epsilon)
}

pub(super) fn activate(g: &mut GraphBuilder, x: &str, act: Act) -> Value {
    match act {
        Act::Gelu => g.gelu(x),
        Act::QuickGelu => g.quick_gelu(x),
    }
}
