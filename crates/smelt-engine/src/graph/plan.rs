//! Shows what a graph becomes for inputs of certain shapes, to back ends that execute it elsewhere than on processors.
//!
//! A [`Plan`] is the list of tasks that [`GraphEngine`] would do.  Operators that read nothing of another task but of
//! their kind (masks, embeddings of tokens) run here, on the host: what they give is small, or a table lies in the file.
//! Knows no device.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use smelt_backend::Tensor;
use smelt_tensor::dtype::Dtype;

use super::array::{Array, Value};
use super::compile::ExecutionPlan;
use super::op::Op;
use super::ops::{self, Inputs};
use super::{GraphEngine, RunError, tensor};
use crate::kernels::matrix::Elements;

pub use super::chain::{Chain, Link, LinkInput};
pub use super::compile::place::{Need, Placed, place};
pub use super::op::{Binary, Unary};
pub use super::task::{Attention, Call, Factor, Feed, Linear, Map, Norm, Sink, Task, Work};
pub use super::view::{Home, View};

/// What a graph does for inputs of certain shapes.
#[derive(Clone, Debug)]
pub struct Plan {
    plan: Arc<ExecutionPlan>,
    /// Of each task, whether the host does it.
    hosted: Arc<[bool]>,
}

/// A gather of rows: `out[i, j, k] = data[i, indices[j], k]`.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// The dimension that the indices are of.
    pub axis: i64,
    /// What is gathered.
    pub data: &'a Feed,
    /// Integers.
    pub indices: &'a Feed,
}

impl Call {
    /// What it gathers, if it is that.
    pub fn gather(&self) -> Option<Gather<'_>> {
        let Op::Gather { axis } = self.op else { return None };
        let [Some(data), Some(indices)] = &self.inputs[..] else { return None };
        Some(Gather { axis, data, indices })
    }
}

impl Plan {
    fn new(plan: Arc<ExecutionPlan>) -> Self {
        let mut of_host = vec![false; plan.buffers.len()];
        let mut hosted = Vec::with_capacity(plan.tasks.len());
        for task in &plan.tasks {
            let mut work = task.work.clone();
            let is_here = match &work {
                Work::Call(call) => call.inputs.iter().flatten().all(|feed| match feed {
                    Feed::Known(_) | Feed::Loose(_) => true,
                    Feed::View(view) => view.buffer().is_none_or(|buffer| of_host[buffer]),
                }),
                _ => false,
            };
            for buffer in work.writes().into_iter().filter_map(|view| view.buffer()) {
                of_host[buffer] = is_here;
            }
            hosted.push(is_here);
        }
        Self { plan, hosted: hosted.into() }
    }

    /// What is done, in order.
    pub fn tasks(&self) -> &[Task] {
        &self.plan.tasks
    }

    /// Whether the host does a task: [`GraphEngine::host_values`] has what it gives.
    pub fn is_hosted(&self, task: usize) -> bool {
        self.hosted[task]
    }

    /// How many numbers each buffer holds.
    pub fn buffers(&self) -> Vec<usize> {
        self.plan.buffers.iter().map(|(_, len)| *len).collect()
    }

    /// Where outputs come from, in their order.
    pub fn outputs(&self) -> &[Feed] {
        &self.plan.outputs
    }

    /// The integers of the constant at `place`.
    pub fn integers(&self, place: usize) -> Option<&[i64]> {
        match self.plan.known.get(place)?.as_ref()? {
            Value::I64(array) => Some(array.data()),
            _ => None,
        }
    }

    /// The only number of a constant of floats that has one.
    pub fn scalar(&self, place: usize) -> Option<f32> {
        match self.plan.known.get(place)?.as_ref()? {
            Value::F32(array) if array.len() == 1 => Some(array.data()[0]),
            _ => None,
        }
    }
}

/// What the host computed for a plan.
#[derive(Debug, Default)]
pub struct HostValues {
    /// Numbers that tasks put into buffers, by the task and its output.
    floats: BTreeMap<(usize, usize), Array<f32>>,
    /// Values without buffers, by their places.
    loose: BTreeMap<usize, Value>,
}

impl HostValues {
    /// What an output of a task holds.
    pub fn floats(&self, task: usize, output: usize) -> Option<&[f32]> {
        self.floats.get(&(task, output)).map(Array::data)
    }

    /// The integers of a value without a buffer.
    pub fn integers(&self, place: usize) -> Option<&[i64]> {
        match self.loose.get(&place)? {
            Value::I64(array) => Some(array.data()),
            _ => None,
        }
    }
}

impl GraphEngine {
    /// What the graph does with inputs of the shapes of `inputs`.
    ///
    /// # Errors
    /// As [`Self::survey`].
    pub fn compiled(&self, inputs: &[Tensor]) -> Result<Plan, RunError> {
        Ok(Plan::new(self.plan(inputs)?))
    }

    /// The floats of the constant at `place` of a plan as they are stored, little-endian.
    pub fn stored<'a>(&'a self, plan: &'a Plan, place: usize) -> Option<(Dtype, Cow<'a, [u8]>)> {
        match plan.plan.known.get(place)?.as_ref()? {
            Value::F32(array) => {
                let bytes = array.data().iter().flat_map(|number| number.to_le_bytes()).collect();
                Some((Dtype::F32, Cow::Owned(bytes)))
            }
            Value::Weight(weight) if weight.is_by_rows() => {
                let bytes = self.file.weights.bytes(&weight.stored);
                Some((weight.stored.dtype, Cow::Borrowed(bytes)))
            }
            Value::Weight(_) | Value::I64(_) => None,
        }
    }

    /// A number that is the constant's alone at `place`, in every plan and for every engine over the same weights; none of
    /// those that lie in memory.
    pub fn lasting(&self, plan: &Plan, place: usize) -> Option<usize> {
        match plan.plan.known.get(place)?.as_ref()? {
            Value::Weight(weight) => Some(weight.stored.start),
            Value::F32(_) | Value::I64(_) => None,
        }
    }

    /// Does the tasks of a plan that are the host's.
    ///
    /// # Errors
    /// When an operator fails.
    pub fn host_values(&self, plan: &Plan, inputs: &[Tensor]) -> Result<HostValues, RunError> {
        let mut values = HostValues::default();
        for (&place, input) in plan.plan.inputs.iter().zip(inputs) {
            if let Tensor::I64 { .. } = input {
                values.loose.insert(place, tensor::into_value(input.clone()));
            }
        }
        let mut buffers = BTreeMap::new();
        for (index, task) in plan.tasks().iter().enumerate() {
            let (Work::Call(call), true) = (&task.work, plan.is_hosted(index)) else { continue };
            let results = self.call(plan, call, (inputs, &values, &buffers));
            let told = |problem| RunError::Graph(format!("{}: {problem}", task.title));
            for (output, (sink, value)) in
                call.outputs.iter().zip(results.map_err(told)?).enumerate()
            {
                match sink {
                    None => {}
                    Some(Sink::Loose(place)) => {
                        values.loose.insert(*place, value);
                    }
                    Some(Sink::View(view)) => {
                        let array = self.machine().floats(value).map_err(told)?;
                        if let Some(buffer) = view.buffer() {
                            buffers.insert(buffer, array.clone());
                        }
                        values.floats.insert((index, output), array);
                    }
                }
            }
        }
        Ok(values)
    }

    /// What an operator gives whose inputs the host has.
    fn call(
        &self,
        plan: &Plan,
        call: &Call,
        (inputs, values, buffers): (&[Tensor], &HostValues, &BTreeMap<usize, Array<f32>>),
    ) -> Result<Vec<Value>, String> {
        let value = |feed: &Feed| match feed {
            Feed::Known(place) => plan.plan.known[*place].clone(),
            Feed::Loose(place) => values.loose.get(place).cloned(),
            Feed::View(view) => match view.home {
                Home::Input(index) => seen(view, Elements::F32(inputs[index].floats()?)),
                Home::Buffer(buffer) => seen(view, Elements::F32(buffers.get(&buffer)?.data())),
                Home::Constant(place) => match plan.plan.known[place].as_ref()? {
                    Value::F32(array) => seen(view, Elements::F32(array.data())),
                    Value::Weight(weight) => seen(view, self.machine().elements(weight)),
                    Value::I64(_) => None,
                },
            },
        };
        let given = |feed: &Option<Feed>| match feed {
            None => Ok(None),
            Some(feed) => value(feed).map(Some).ok_or("a value was never computed".to_owned()),
        };
        let given = call.inputs.iter().map(given).collect::<Result<Vec<_>, _>>()?;
        ops::run(&call.op, Inputs(given), self.machine())
    }

    /// What an output is that no device has.
    ///
    /// # Errors
    /// When nothing computed it.
    pub fn host_output(
        &self,
        plan: &Plan,
        feed: &Feed,
        values: &HostValues,
    ) -> Result<Tensor, RunError> {
        let value = match feed {
            Feed::Known(place) => plan.plan.known[*place].clone(),
            Feed::Loose(place) => values.loose.get(place).cloned(),
            Feed::View(_) => None,
        };
        let value = value.ok_or_else(|| RunError::Graph("an output was never computed".into()))?;
        Ok(tensor::from_value(value, self.machine()))
    }
}

/// The numbers that a view shows of `all`, in its order.
fn seen(view: &View, all: Elements<'_>) -> Option<Value> {
    let steps = super::array::strides_of(&view.shape);
    let place = |index: usize| -> usize {
        let dims = steps.iter().zip(&view.shape).zip(&view.steps);
        view.start + dims.map(|((by, dim), step)| index / by % dim * step).sum::<usize>()
    };
    let mut numbers = vec![0.0; view.len()];
    for (index, number) in numbers.iter_mut().enumerate() {
        all.widen(place(index), std::slice::from_mut(number));
    }
    Some(Value::F32(Array::new(view.shape.clone(), numbers)))
}
