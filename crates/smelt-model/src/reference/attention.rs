//! Attends: scores of queries against keys, softmax, weighted sums of values.
//!
//! One thread takes whole heads; a head's scores exist for [`QUERIES`] rows at a time.
//! Reads no files.

use super::matmul::{Panels, Target, View};
use super::pointwise::softmax;
use super::threads;

/// Queries scored at once: 64 rows of a 4096-token prompt are 1 MiB of scores a thread.
const QUERIES: usize = 64;

/// Heads and what they may see.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Query heads.
    pub(super) query: usize,
    /// Key and value heads; each serves `query / key_value` query heads in a row.
    pub(super) key_value: usize,
    /// Width of one head.
    pub(super) width: usize,
    /// Whether a row sees only itself and the rows before it.
    pub(super) causal: bool,
}

/// Rows of `stride` values, of which the heads lie side by side from the first on.
#[derive(Clone, Copy)]
pub(super) struct Projection<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
}

impl<'a> Projection<'a> {
    fn head(self, heads: Heads, index: usize) -> View<'a> {
        View::rows(&self.values[index * heads.width..], self.stride)
    }
}

/// `softmax(q kᵀ / sqrt(width)) v` for each head: `[rows, query * width]`, heads side by side.
pub(super) fn attend(
    [q, k, v]: [Projection<'_>; 3],
    rows: usize,
    heads: Heads,
    threads: usize,
) -> Vec<f32> {
    let mut by_head = vec![0.0; heads.query * rows * heads.width];
    threads::for_rows(threads, &mut by_head, rows * heads.width, 1, |first, outs| {
        let (mut keys, mut values) = (Panels::default(), Panels::default());
        let mut scores = Vec::new();
        for (index, out) in outs.chunks_mut(rows * heads.width).enumerate() {
            let head = first + index;
            let shared = head / (heads.query / heads.key_value);
            keys.pack(k.head(heads, shared), rows, heads.width, 1);
            values.pack(v.head(heads, shared).transposed(), heads.width, rows, 1);
            attend_head(q.head(heads, head), [&keys, &values], heads, &mut scores, out);
        }
    });
    side_by_side(&by_head, rows, heads)
}

fn attend_head(
    q: View<'_>,
    [keys, values]: [&Panels; 2],
    heads: Heads,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let rows = out.len() / heads.width;
    let scale = (heads.width as f32).sqrt().recip();
    for (chunk, out) in out.chunks_mut(QUERIES * heads.width).enumerate() {
        let first = chunk * QUERIES;
        scores.clear();
        scores.resize(out.len() / heads.width * rows, 0.0);
        let mut target = Target { values: scores, stride: rows, column: 0 };
        keys.add_product(q.skip_rows(first), &mut target);
        for (index, row) in scores.chunks_mut(rows).enumerate() {
            let visible = if heads.causal { first + index + 1 } else { rows };
            softmax(row, visible, scale);
        }
        let mut target = Target { values: out, stride: heads.width, column: 0 };
        values.add_product(View::rows(scores, rows), &mut target);
    }
}

/// `[heads, rows, width]` to `[rows, heads * width]`.
fn side_by_side(by_head: &[f32], rows: usize, heads: Heads) -> Vec<f32> {
    let mut out = vec![0.0; by_head.len()];
    let row = heads.query * heads.width;
    for (head, values) in by_head.chunks(rows * heads.width).enumerate() {
        for (out, values) in out.chunks_mut(row).zip(values.chunks(heads.width)) {
            out[head * heads.width..][..heads.width].copy_from_slice(values);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    /// The definition, in f64, one score at a time.
    fn exact(q: &[f32], k: &[f32], v: &[f32], rows: usize, heads: Heads) -> Vec<f64> {
        let group = heads.query / heads.key_value;
        let at = |x: &[f32], count: usize, row: usize, head: usize, i: usize| {
            f64::from(x[(row * count + head) * heads.width + i])
        };
        let mut out = vec![0.0; rows * heads.query * heads.width];
        for row in 0..rows {
            for head in 0..heads.query {
                let seen = if heads.causal { row + 1 } else { rows };
                let score = |other| {
                    let terms = (0..heads.width).map(|i| {
                        at(q, heads.query, row, head, i)
                            * at(k, heads.key_value, other, head / group, i)
                    });
                    (terms.sum::<f64>() / (heads.width as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = (0..seen).map(score).collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..heads.width {
                    let weighted = weights.iter().enumerate();
                    out[(row * heads.query + head) * heads.width + i] = weighted
                        .map(|(other, w)| w / sum * at(v, heads.key_value, other, head / group, i))
                        .sum();
                }
            }
        }
        out
    }

    #[track_caller]
    fn check(rows: usize, heads: Heads) {
        let (query, shared) = (heads.query * heads.width, heads.key_value * heads.width);
        let (q, k, v) =
            (wave(rows * query, 0.7), wave(rows * shared, 1.3), wave(rows * shared, 0.4));
        let project = |values, stride| Projection { values, stride };
        let all = [project(&*q, query), project(&*k, shared), project(&*v, shared)];
        let one = attend(all, rows, heads, 1);
        assert_eq!(one, attend(all, rows, heads, 3), "threads change nothing");
        for (found, exact) in one.iter().zip(exact(&q, &k, &v, rows, heads)) {
            assert!((f64::from(*found) - exact).abs() < 1e-5, "{found} {exact}");
        }
    }

    #[test]
    fn rows_see_all_rows_or_only_those_before_them() {
        check(5, Heads { query: 2, key_value: 2, width: 4, causal: false });
        check(70, Heads { query: 3, key_value: 3, width: 6, causal: false });
        check(70, Heads { query: 3, key_value: 3, width: 6, causal: true });
    }

    #[test]
    fn query_heads_share_key_heads_in_runs() {
        check(9, Heads { query: 6, key_value: 2, width: 8, causal: true });
    }
}
