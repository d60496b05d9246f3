//! Finds which values the buffers of a plan hold one after another, and in which form each lies on a card.
//!
//! A buffer whose numbers are replaced holds another value from then on.  A value that nothing but products read lies as they
//! take it: whoever writes it rounds it to halves, as the product would.  Knows no addresses.

use smelt_engine::graph::plan::{Feed, Home, Plan, View, Work};

use crate::kernels::graph::Form;

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
}

/// How a value is used.
#[derive(Clone, Debug, Default)]
struct Use {
    writers: usize,
    /// Rows and columns of what writes it whole, if that can be activations.
    written: Option<[usize; 2]>,
    readers: usize,
    /// Rows and columns of every product that reads it, where they are the same and nothing else reads it.
    products: Option<[usize; 2]>,
    is_otherwise_read: bool,
}

impl Values {
    /// The values of a plan whose inputs have so many numbers.
    pub(super) fn of(plan: &Plan, inputs: &[usize]) -> Self {
        let (buffers, mut found) = (plan.buffers(), Self::default());
        let mut uses = Vec::new();
        for &len in inputs {
            let id = found.add(len, &mut uses);
            uses[id].is_otherwise_read = true;
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
                uses[id].is_otherwise_read = true;
            }
            found.outputs.push(id);
        }
        for (value, own) in found.all.iter_mut().zip(&uses) {
            value.form = own.form();
            value.is_read = own.readers > 0 || own.is_otherwise_read;
        }
        found
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
            _ => None,
        };
        let is_same = self.readers == 0 || self.products == shape;
        self.is_otherwise_read |= shape.is_none() || !is_same;
        self.products = shape;
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
            Work::Linear(_) | Work::Fill { .. } | Work::Call(_) => None,
        };
    }

    /// Activations where one task writes it so, and products alone read it.
    fn form(&self) -> Form {
        let (Some([rows, columns]), Some(written)) = (self.products, self.written) else {
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
