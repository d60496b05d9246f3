//! Attends over what slots hold, several tokens of several slots in one pass.
//!
//! Queries `[rows, heads * head_dim]` in, as many numbers out.  Work is cut into tasks of one key
//! head and a few tokens, which threads share.  Keys and values were stored before.

use super::forward::{Pass, Span};
use super::kv::Cache;
use crate::kernels::cached_attention::Rows;

/// Tokens of one attention task: with the seven query heads a key head usually has, 224 rows.
const TASK_TOKENS: usize = 32;

/// Some tokens of one slot, for one key head.
struct Task {
    slot: usize,
    kv_head: usize,
    /// The first of its rows.
    row: usize,
    tokens: usize,
    /// Position of the first token.
    start: usize,
    /// `[tokens, group, head_dim]`
    out: Vec<f32>,
}

impl Task {
    /// Positions that the last of its tokens sees.
    fn end(&self) -> usize {
        self.start + self.tokens
    }
}

impl Pass<'_> {
    /// Attention of `q` in `layer` over what the slots hold.
    pub(super) fn attend_stored(
        &self,
        layer: usize,
        q: &[f32],
        spans: &[Span],
        cache: &Cache,
    ) -> Vec<f32> {
        let mut tasks = self.tasks(spans);
        let part = self.group() * self.sizes.head_dim;
        let work = tasks.iter().map(|task| task.end() * task.tokens * part).sum();
        self.machine.threads.for_work(work).rows(&mut tasks, 1, |_, tasks| {
            for task in tasks {
                self.attend_task(layer, q, task, cache);
            }
        });
        let width = self.sizes.heads * self.sizes.head_dim;
        let mut out = vec![0.0; q.len()];
        for task in &tasks {
            for (row, numbers) in (task.row..).zip(task.out.chunks_exact(part)) {
                let start = row * width + task.kv_head * part;
                out[start..start + part].copy_from_slice(numbers);
            }
        }
        out
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.sizes.heads / self.sizes.kv_heads
    }

    /// Cuts the spans into tasks, the longest contexts first, so that no thread is left with one.
    fn tasks(&self, spans: &[Span]) -> Vec<Task> {
        let mut tasks = Vec::new();
        for span in spans {
            for first in span.rows.clone().step_by(TASK_TOKENS) {
                let tokens = TASK_TOKENS.min(span.rows.end - first);
                let start = span.start + (first - span.rows.start);
                tasks.extend((0..self.sizes.kv_heads).map(|kv_head| Task {
                    slot: span.slot,
                    kv_head,
                    row: first,
                    tokens,
                    start,
                    out: Vec::new(),
                }));
            }
        }
        tasks.sort_by_key(|task| std::cmp::Reverse(task.end() * task.tokens));
        tasks
    }

    /// `softmax(q kᵀ / √head_dim) v` for the query heads of one key head.
    fn attend_task(&self, layer: usize, q: &[f32], task: &mut Task, cache: &Cache) {
        let (dim, group) = (self.sizes.head_dim, self.group());
        let queries = self.queries(q, task);
        let rows = Rows { queries: &queries, dim, group, start: task.start };
        task.out.resize(queries.len(), 0.0);
        let mut blocks = cache.head(task.slot, layer, task.kv_head, task.end());
        rows.attend(self.machine.isa, &mut blocks, &mut task.out);
    }

    /// The queries of a task, scaled: `[tokens, group, head_dim]`.
    fn queries(&self, q: &[f32], task: &Task) -> Vec<f32> {
        let part = self.group() * self.sizes.head_dim;
        let width = self.sizes.heads * self.sizes.head_dim;
        let scale = (self.sizes.head_dim as f32).sqrt().recip();
        let mut queries = Vec::with_capacity(task.tokens * part);
        for row in task.row..task.row + task.tokens {
            let start = row * width + task.kv_head * part;
            queries.extend(q[start..start + part].iter().map(|value| value * scale));
        }
        queries
    }
}
