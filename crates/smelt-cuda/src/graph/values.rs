//! Finds which values the buffers of a plan hold one after another, and in which form each lies on a card.
//!
//! A buffer whose numbers are replaced holds another value from then on.  A value that nothing but products and heads read lies
//! as they take it: whoever writes it rounds it to halves, as they would.  Knows no addresses.

use smelt_engine::graph::plan::{Feed, Home, Plan, View, Work};

use super::fused::{Fused, fused};
use crate::kernels::graph::{Form, HeadColumns};

/// A value, by its number.
pub(super) type ValueId = usize;

/// What is known of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// Numbers of it.
    pub(super) len: usize,
    pub(super) form: Form,
    /// Whether anything on the card reads it.
    pub(super) is_read: bool,
}

/// The values that tasks read and write.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) all: Vec<Value>,
    /// The value of each input of the graph.
    pub(super) inputs: Vec<ValueId>,
    /// Of each task, the values of the views that it reads, in their order; none of constants.
    pub(super) reads: Vec<Vec<Option<ValueId>>>,
    /// The same of those it writes.
    pub(super) writes: Vec<Vec<Option<ValueId>>>,
    /// The same of the outputs that are views.
    pub(super) outputs: Vec<Option<ValueId>>,
    /// Of each task that is a product, what the task behind it does with its results, if both are one step.
    pub(super) fused: Vec<Option<Fused>>,
}

/// How a value is used.
#[derive(Clone, Debug, Default)]
struct Use {
    writers: usize,
    /// Rows and columns of what writes it whole, if that can be activations.
    written: Option<[usize; 2]>,
    readers: usize,
    /// Rows and columns for every product and all heads that read it, where they are the same and nothing else reads it.
    blocks: Option<[usize; 2]>,
    is_otherwise_read: bool,
    /// Whether it is an output, or an input.
    is_told: bool,
}

impl Values {
    /// The values of a plan whose inputs have so many numbers; `is_f32` says of a constant whether kernels read it as that.
    pub(super) fn of(plan: &Plan, inputs: &[usize], is_f32: &dyn Fn(usize) -> bool) -> Self {
        let (buffers, mut found) = (plan.buffers(), Self::default());
        let mut uses = Vec::new();
        for &len in inputs {
            let id = found.add(len, &mut uses);
            (uses[id].is_otherwise_read, uses[id].is_told) = (true, true);
            found.inputs.push(id);
        }
        let mut current: Vec<Option<ValueId>> = vec![None; buffers.len()];
        for (index, task) in plan.tasks().iter().enumerate() {
            let mut work = task.work.clone();
            let reads: Vec<View> = work.reads().into_iter().map(|view| view.clone()).collect();
            let read = reads.iter().map(|view| found.seen(view, &current)).collect::<Vec<_>>();
            if !plan.is_hosted(index) {
                for (at, (view, id)) in reads.iter().zip(&read).enumerate() {
                    if let Some(id) = *id {
                        uses[id].read(&work, at, view, found.all[id].len);
                    }
                }
            }
            let writes: Vec<View> = work.writes().into_iter().map(|view| view.clone()).collect();
            let mut written = Vec::new();
            for view in &writes {
                written.push(view.buffer().map(|buffer| {
                    let is_whole = view.is_contiguous() && view.len() == buffers[buffer];
                    let id = match current[buffer] {
                        Some(id) if !is_whole => id,
                        _ => found.add(buffers[buffer], &mut uses),
                    };
                    current[buffer] = Some(id);
                    uses[id].write(&work, is_whole);
                    id
                }));
            }
            found.reads.push(read);
            found.writes.push(written);
        }
        for feed in plan.outputs() {
            let id = match feed {
                Feed::View(view) => found.seen(view, &current),
                Feed::Known(_) | Feed::Loose(_) => None,
            };
            if let Some(id) = id {
                (uses[id].is_otherwise_read, uses[id].is_told) = (true, true);
            }
            found.outputs.push(id);
        }
        for (value, own) in found.all.iter_mut().zip(&uses) {
            value.form = own.form();
            value.is_read = own.readers > 0 || own.is_otherwise_read;
        }
        found.fuse(plan, &uses, is_f32);
        found
    }

    /// Finds products whose results go through one more task alone, the next.
    fn fuse(&mut self, plan: &Plan, uses: &[Use], is_f32: &dyn Fn(usize) -> bool) {
        self.fused = vec![None; plan.tasks().len()];
        for (index, pair) in plan.tasks().windows(2).enumerate() {
            let (Work::Linear(linear), Work::Map(map)) = (&pair[0].work, &pair[1].work) else {
                continue;
            };
            let (Some(result), Some(out)) = (self.writes[index][0], self.writes[index + 1][0])
            else {
                continue;
            };
            let is_between = uses[result].readers == 1 && !uses[result].is_told;
            let is_one = uses[result].writers == 1 && uses[out].writers == 1;
            let at = self.reads[index + 1].iter().position(|value| *value == Some(result));
            if let (true, Some(at)) = (is_between && is_one, at) {
                self.fused[index] = fused(plan, linear, map, at, self.all[out].form, is_f32);
            }
        }
    }

    /// What the task before `index` does of it, if it is one step with that.
    pub(super) fn is_done_before(&self, index: usize) -> bool {
        index > 0 && self.fused[index - 1].is_some()
    }

    fn add(&mut self, len: usize, uses: &mut Vec<Use>) -> ValueId {
        self.all.push(Value { len, form: Form::Rows, is_read: false });
        uses.push(Use::default());
        self.all.len() - 1
    }

    fn seen(&self, view: &View, current: &[Option<ValueId>]) -> Option<ValueId> {
        match view.home {
            Home::Buffer(buffer) => current[buffer],
            Home::Input(index) => self.inputs.get(index).copied(),
            Home::Constant(_) => None,
        }
    }
}

impl Use {
    fn read(&mut self, work: &Work, at: usize, view: &View, len: usize) {
        let shape = match (work, &view.shape[..]) {
            (Work::Linear(_), &[rows, columns]) if at == 0 && view.is_contiguous() => {
                (view.start == 0 && rows * columns == len).then_some([rows, columns])
            }
            (Work::Attention(_), _) if at < 3 => head_columns(view, len).map(|(shape, _)| shape),
            _ => None,
        };
        let is_same = self.readers == 0 || self.blocks == shape;
        self.is_otherwise_read |= shape.is_none() || !is_same;
        self.blocks = shape;
        self.readers += 1;
    }

    fn write(&mut self, work: &Work, is_whole: bool) {
        self.writers += 1;
        self.written = match work {
            _ if !is_whole => None,
            Work::Norm(norm) => norm.out.shape[..].try_into().ok(),
            Work::Map(map) => Some([map.out.len(), 1]),
            Work::Attention(attention) => match attention.out.shape[..] {
                [batch, queries, heads, width] => Some([batch * queries, heads * width]),
                _ => None,
            },
            Work::Linear(linear) => linear.out.shape[..].try_into().ok(),
            Work::Fill { .. } | Work::Call(_) => None,
        };
    }

    /// Activations where one task writes it so, and products and heads alone read it.
    fn form(&self) -> Form {
        let (Some([rows, columns]), Some(written)) = (self.blocks, self.written) else {
            return Form::Rows;
        };
        // Numbers of a map are in rows of any length.
        let fits = written == [rows, columns] || written == [rows * columns, 1];
        let is_small = u32::try_from(rows * columns).is_ok();
        if self.writers != 1 || self.is_otherwise_read || !fits || !is_small {
            return Form::Rows;
        }
        Form::Activations { rows: rows as u32, columns: columns as u32 }
    }
}

/// Rows and columns of all numbers of a value of which heads `[batch, heads, rows, numbers]` are columns, and which they are;
/// none where heads do not lie in whole blocks of eight numbers.
pub(super) fn head_columns(view: &View, len: usize) -> Option<([usize; 2], HeadColumns)> {
    let (&[batch, heads, rows, numbers], &[by_batch, by_head, columns, by_number]) =
        (&view.shape[..], &view.steps[..])
    else {
        return None;
    };
    let by_head = if heads == 1 { numbers } else { by_head };
    let is_rows = by_number == 1 && (batch == 1 || by_batch == rows * columns);
    let is_all = batch * rows * columns == len && rows > 1;
    let is_inside = view.start + (heads - 1) * by_head + numbers <= columns;
    let is_whole = [view.start, by_head, numbers].iter().all(|number| number.is_multiple_of(8));
    let narrow = |number: usize| u32::try_from(number).ok();
    let of = HeadColumns { first: narrow(view.start)?, by_head: narrow(by_head)? };
    (is_rows && is_all && is_inside && is_whole).then_some(([batch * rows, columns], of))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where heads of a buffer of `len` numbers are columns.
    fn found(start: usize, shape: [usize; 4], steps: [usize; 4], len: usize) -> Option<[usize; 4]> {
        let (shape, steps) = (shape.to_vec(), steps.to_vec());
        let view = View { home: Home::Buffer(0), start, shape, steps };
        let ([rows, columns], HeadColumns { first, by_head }) = head_columns(&view, len)?;
        Some([rows, columns, first as usize, by_head as usize])
    }

    #[test]
    fn heads_of_a_fused_projection_are_columns() {
        // Keys of two pictures of 5 rows: 3 heads of 16 numbers behind those of queries.
        let (shape, steps, len) = ([2, 3, 5, 16], [5 * 144, 16, 144, 1], 2 * 5 * 144);
        assert_eq!(found(48, shape, steps, len), Some([10, 144, 48, 16]));
        assert_eq!(found(48, [1, 3, 5, 16], [0, 16, 144, 1], 5 * 144), Some([5, 144, 48, 16]));
        assert_eq!(found(0, [1, 1, 5, 16], [80, 7, 16, 1], 80), Some([5, 16, 0, 16]));
    }

    #[test]
    fn heads_that_are_no_whole_blocks_of_columns_are_arranged() {
        let (shape, steps, len) = ([2, 3, 5, 16], [5 * 144, 16, 144, 1], 2 * 5 * 144);
        assert_eq!(found(4, shape, steps, len), None, "they begin inside of a block");
        assert_eq!(found(48, [2, 3, 5, 12], [5 * 144, 12, 144, 1], len), None, "they end in one");
        assert_eq!(found(48, shape, steps, 2 * len), None, "others lie there too");
        assert_eq!(found(0, shape, [240, 80, 16, 1], 480), None, "heads are rows");
        assert_eq!(found(0, shape, [240, 80, 1, 5], 480), None, "numbers lie apart");
    }
}
