//! Adds to a graph what the towers over fixed grids share: patch rows, rotated attention.
//!
//! Activations are rows of patches, one image at a time; tables of the grid are initialisers.
//! Knows no family.

use smelt_onnx::{GraphBuilder, Value};

/// Heads of attention over rows of patches.
pub(super) struct Heads {
    pub(super) hidden: usize,
    pub(super) heads: usize,
    /// Rows of the picture.
    pub(super) rows: usize,
}

/// What attention of one kind sees.
pub(super) struct AttentionMask<'a> {
    /// Equal parts the rows are cut into; a row sees those of its part.
    pub(super) parts: usize,
    /// What is added to the scores of each part, `[parts, 1, 1, rows / parts]`, if anything.
    pub(super) mask: Option<&'a str>,
}

/// The names of the grid's rotary tables, `[rows, 1, head / 2]` each.
pub(super) const TABLES: [&str; 2] = ["/grid/cos", "/grid/sin"];

/// softmax(q · head^-½ · kᵀ + mask) · v of rotated q and k, then the projection `name.proj`;
/// `x` `[rows, hidden]` as is what returns.
pub(super) fn attention(
    g: &mut GraphBuilder,
    x: &str,
    name: &str,
    heads: &Heads,
    attention_mask: &AttentionMask<'_>,
) -> Value {
    let Heads { hidden, heads, rows } = *heads;
    let head = hidden / heads;
    let [n, h, d] = [rows, heads, head].map(|size| size as i64);
    let (parts, part) = (attention_mask.parts as i64, (rows / attention_mask.parts) as i64);

    let qkv = linear(g, x, &format!("{name}.qkv"));
    let [q, k, v] = g.split(&qkv, 1, hidden);
    let [q, k] = [q, k].map(|part| {
        let heads = g.reshape(&part, &[n, h, d]);
        g.rotate_half(&heads, head, TABLES)
    });
    let [q, k, v] = [q, k, v].map(|rows| g.reshape(&rows, &[parts, part, h, d]));
    let q = g.transpose(&q, &[0, 2, 1, 3]);
    let k = g.transpose(&k, &[0, 2, 3, 1]);
    let v = g.transpose(&v, &[0, 2, 1, 3]);
    let scale = g.scalar((head as f64).sqrt().recip() as f32);
    let q = g.mul(&q, &scale);
    let mut scores = g.matmul(&q, &k);
    if let Some(mask) = attention_mask.mask {
        scores = g.add(&scores, mask);
    }
    let shares = g.softmax(&scores);
    let mixed = g.matmul(&shares, &v);
    let mixed = g.transpose(&mixed, &[0, 2, 1, 3]);
    let mixed = g.reshape(&mixed, &[n, hidden as i64]);
    linear(g, &mixed, &format!("{name}.proj"))
}

/// `x` through the layer `name` and its bias.
pub(super) fn linear(g: &mut GraphBuilder, x: &str, name: &str) -> Value {
    g.gemm(x, &format!("{name}.weight"), &format!("{name}.bias"))
}
