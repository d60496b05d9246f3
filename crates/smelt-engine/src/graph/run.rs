//! Does the tasks of a plan: slices of the arena, of inputs and of constants go to the kernels.
//!
//! Every result has its place before anything runs; only operators without a task of their own hold
//! values beside the arena, while they run.  Knows nothing of how the plan was made.

#![allow(unsafe_code)]

use super::arena::{Arena, ArenaSlice};
use super::array::{Array, Value};
use super::chain::{Lane, PIECE};
use super::compile::ExecutionPlan;
use super::constant;
use super::ops::{self, Inputs, Machine};
use super::task::{Attention, Call, Factor, Feed, Linear, Map, Norm, Sink, Task, Work};
use super::view::{Home, View};
use super::walk::Walk;
use crate::kernels::full_attention::{self, Rows};
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::norm;
use crate::kernels::product::Product;
use crate::kernels::striped::{Arithmetic, Input, Job, multiply};

/// One number's cost in multiplications, roughly, in a link of a chain.
const LINK_WORK: usize = 4;
/// One number's cost in a norm.
const NORM_WORK: usize = 8;

/// A plan while it runs.
pub(crate) struct ExecutionContext<'a> {
    plan: &'a ExecutionPlan,
    machine: Machine<'a>,
    inputs: Vec<Option<Array<f32>>>,
    loose: Vec<Option<Value>>,
    arena: Arena,
    /// Activations as products take them, kept for its memory.
    input: Input,
}

impl<'a> ExecutionContext<'a> {
    /// Runs `plan` on `inputs` of the shapes it was made for, and calls `before` with each task; gives its
    /// outputs.  The error is one line that names the node.
    pub(crate) fn all(
        plan: &'a ExecutionPlan,
        inputs: Vec<Value>,
        machine: Machine<'a>,
        before: &mut dyn FnMut(&Task),
    ) -> Result<Vec<Value>, String> {
        let mut loose = vec![None; plan.known.len()];
        let mut floats = Vec::with_capacity(inputs.len());
        for (&place, input) in plan.inputs.iter().zip(inputs) {
            floats.push(match input {
                Value::F32(array) => Some(array),
                other => {
                    loose[place] = Some(other);
                    None
                }
            });
        }
        let arena = Arena::new(plan.arena);
        let mut run = Self { plan, machine, inputs: floats, loose, arena, input: Input::default() };
        for task in &plan.tasks {
            before(task);
            run.task(&task.work).map_err(|problem| format!("{}: {problem}", task.title))?;
        }
        plan.outputs.iter().map(|feed| run.value(feed)).collect()
    }

    fn task(&mut self, work: &Work) -> Result<(), String> {
        match work {
            Work::Linear(linear) => self.linear(linear),
            Work::Attention(attention) => self.attention(attention),
            Work::Norm(norm) => self.norm(norm),
            Work::Map(map) => self.map(map),
            Work::Fill { out, value } => self.open(&[], out).1.whole().fill(*value),
            Work::Call(call) => return self.call(call),
        }
        Ok(())
    }

    /// What `reads` see, each from its first number on, and the part of the arena that `out` spans.
    /// A read of the buffer that is written has no numbers of its own: the part is both.
    fn open(&mut self, reads: &[&View], out: &View) -> (Vec<Elements<'_>>, ArenaSlice<'_>) {
        let Self { plan, machine, inputs, arena, .. } = self;
        let span = |view: &View| {
            let Home::Buffer(buffer) = view.home else { return 0..0 };
            let (offset, _) = plan.buffers[buffer];
            let span = view.span();
            offset + span.start..offset + span.end
        };
        let is_own = |view: &View| view.home == out.home;
        let spans = reads.iter().map(|view| if is_own(view) { 0..0 } else { span(view) });
        let (slices, part) = arena.open(spans.collect(), span(out));
        let numbers = reads.iter().zip(slices).map(|(view, slice)| match view.home {
            Home::Buffer(_) => Elements::F32(slice),
            Home::Input(index) => {
                let array = inputs[index].as_ref().expect("views see inputs of floats");
                Elements::F32(&array.data()[view.span()])
            }
            Home::Constant(place) => {
                let all = constant(plan, machine, place);
                let span = view.span();
                all.part(span.start, span.len())
            }
        });
        (numbers.collect(), part)
    }

    fn linear(&mut self, linear: &Linear) {
        match &linear.weight {
            Factor::Striped(place) => self.striped(linear, *place),
            Factor::View(weight) => self.plain(linear, weight),
        }
    }

    /// A product with a weight in stripes.
    fn striped(&mut self, linear: &Linear, place: usize) {
        let Machine { isa, threads, weights } = self.machine;
        let weight = match &self.plan.known[place] {
            Some(Value::Weight(weight)) => constant::striped(weights, weight),
            _ => None,
        };
        let weight = weight.expect("compiling found stripes there");
        let bias = linear.bias.map(|place| floats(self.plan, place));
        let mut input = std::mem::take(&mut self.input);
        let (numbers, part) = self.open(&[&linear.x], &linear.out);
        let columns = linear.x.shape[1];
        let mut wide = Vec::new();
        let x = match numbers[0] {
            Elements::F32(x) => x,
            stored => {
                wide.resize(stored.len(), 0.0);
                stored.widen(0, &mut wide);
                &wide
            }
        };
        let rounding = weight.rounding(Arithmetic::Integers);
        input.fill(x, columns, rounding, isa, threads);
        let job = Job { weight, bias, out: part.whole(), stride: weight.rows() };
        multiply(&input, vec![job], isa, threads);
        self.input = input;
    }

    /// A product with a constant as it is.
    fn plain(&mut self, linear: &Linear, weight: &View) {
        let machine = self.machine;
        let bias = linear.bias.map(|place| floats(self.plan, place));
        let (numbers, part) = self.open(&[&linear.x, weight], &linear.out);
        let out = part.whole();
        let &[rows, columns] = &linear.x.shape[..] else { unreachable!("x is a matrix") };
        let &[outputs, _] = &weight.shape[..] else { unreachable!("weights are matrices") };
        let &[by_row, by_column] = &weight.steps[..] else { unreachable!("as its shape") };
        let x = Matrix::new(numbers[0], rows, columns);
        let weight = Matrix::strided(numbers[1], outputs, columns, [by_row, by_column]);
        Product::new(x, weight).run(machine.isa, machine.threads, out);
        if let Some(bias) = bias {
            machine.threads.for_work(rows * outputs).rows(out, outputs, |_, rows| {
                machine.isa.vectorised(|| {
                    for row in rows.chunks_exact_mut(outputs) {
                        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
                    }
                });
            });
        }
    }

    fn attention(&mut self, attention: &Attention) {
        let Machine { isa, threads, .. } = self.machine;
        let Attention { q, k, v, mask, scale, out } = attention;
        let reads: Vec<&View> = [q, k, v].into_iter().chain(mask).collect();
        let (numbers, part) = self.open(&reads, out);
        let rows = |index: usize| {
            let steps = reads[index].steps[..].try_into().expect("heads have four dimensions");
            Rows { numbers: numbers[index], steps }
        };
        let (shape, keys) = (&q.shape, &v.shape);
        full_attention::Attention {
            batch: shape[0],
            heads: shape[1],
            queries: shape[2],
            keys: keys[2],
            depth: shape[3],
            width: keys[3],
            scale: *scale,
            q: rows(0),
            k: rows(1),
            v: rows(2),
            mask: mask.is_some().then(|| rows(3)),
        }
        .run(isa, threads, part.whole());
    }

    fn norm(&mut self, norm: &Norm) {
        let Machine { isa, threads, .. } = self.machine;
        let width = norm.out.shape[1];
        let ones = vec![1.0; width];
        let vector = |place: Option<usize>| place.map(|place| floats(self.plan, place));
        let (scale, bias) = (vector(norm.scale).unwrap_or(&ones), vector(norm.bias));
        let (numbers, part) = self.open(&[&norm.x], &norm.out);
        let own = norm.x.home == norm.out.home;
        let work = norm.out.len() * NORM_WORK;
        threads.for_work(work).rows(part.whole(), width, |first, rows| {
            let mut line = vec![0.0; width];
            for (index, row) in rows.chunks_exact_mut(width).enumerate() {
                if own {
                    line.copy_from_slice(row);
                } else {
                    numbers[0].widen((first + index) * width, &mut line);
                }
                isa.vectorised(|| match norm.centred {
                    true => {
                        row.copy_from_slice(&line);
                        norm::layer_norm(row, scale, bias, norm.eps);
                    }
                    false => norm::rms_norm(&line, scale, norm.eps, row),
                });
            }
        });
    }

    fn map(&mut self, map: &Map) {
        let machine = self.machine;
        let views: Vec<&View> = [&map.out].into_iter().chain(&map.operands).collect();
        let walk = Walk::new(&views);
        let (numbers, part) = self.open(&views[1..], &map.out);
        let own: Vec<bool> = map.operands.iter().map(|view| view.home == map.out.home).collect();
        let work = walk.len() * (map.chain.links.len() + 1) * LINK_WORK;
        let granule = if walk.run_len() > PIECE { PIECE } else { walk.run_len() };
        machine.threads.for_work(work).ranges(walk.len(), granule, |range| {
            let mut space = vec![0.0; map.chain.space()];
            let mut held = vec![0.0; map.operands.len() * PIECE];
            walk.pieces(range, PIECE, |starts, len| {
                // SAFETY: the out view shows each number once, and ranges do not overlap.
                let out = unsafe { part.slice(starts[0]..starts[0] + len) };
                let lines = held.chunks_exact_mut(PIECE);
                let steps = &walk.run_steps()[1..];
                let operands = numbers.iter().zip(&own).zip(starts[1..].iter().zip(steps));
                let lanes = operands.zip(lines).map(|(((all, &own), (&start, &step)), line)| {
                    let line = &mut line[..len];
                    match own {
                        true => {
                            line.copy_from_slice(out);
                            Lane::Many(line)
                        }
                        false => lane(all, start, step, line),
                    }
                });
                let lanes: Vec<Lane<'_>> = lanes.collect();
                map.chain.run(machine.isa, &lanes, &mut space, out);
            });
        });
    }

    fn call(&mut self, call: &Call) -> Result<(), String> {
        let mut inputs = Vec::with_capacity(call.inputs.len());
        for feed in &call.inputs {
            inputs.push(feed.as_ref().map(|feed| self.value(feed)).transpose()?);
        }
        for &place in &call.done {
            self.loose[place] = None;
        }
        let results = ops::run(&call.op, Inputs(inputs), self.machine)?;
        for (sink, value) in call.outputs.iter().zip(results) {
            match sink {
                None => {}
                Some(Sink::Loose(place)) => self.loose[*place] = Some(value),
                Some(Sink::View(view)) => {
                    let value = self.machine.floats(value)?;
                    let (_, part) = self.open(&[], view);
                    part.whole().copy_from_slice(value.data());
                }
            }
        }
        Ok(())
    }

    /// A value of its own.
    fn value(&mut self, feed: &Feed) -> Result<Value, String> {
        let value = match feed {
            Feed::Known(place) => self.plan.known[*place].clone(),
            Feed::Loose(place) => self.loose[*place].clone(),
            Feed::View(view) => Some(Value::F32(self.collected(view))),
        };
        value.ok_or_else(|| "a value was never computed".to_owned())
    }

    /// The numbers of `view` in its order.
    fn collected(&mut self, view: &View) -> Array<f32> {
        let whole = View::whole(Home::Input(usize::MAX), view.shape.clone());
        let walk = Walk::new(&[&whole, view]);
        let mut out = vec![0.0; view.len()];
        let (numbers, _) = self.open(&[view], &View::whole(Home::Constant(usize::MAX), vec![0]));
        let step = walk.run_steps()[1];
        walk.pieces(0..walk.len(), PIECE, |starts, len| {
            let line = &mut out[starts[0]..starts[0] + len];
            match step {
                1 => numbers[0].widen(starts[1], line),
                _ => spread(&numbers[0], starts[1], step, line),
            }
        });
        Array::new(view.shape.clone(), out)
    }
}

/// Numbers of an operand for a piece: where they lie if they can be read there, else in `line`.
fn lane<'a>(all: &Elements<'a>, start: usize, step: usize, line: &'a mut [f32]) -> Lane<'a> {
    match (all, step) {
        (_, 0) => {
            let mut one = [0.0];
            all.widen(start, &mut one);
            Lane::One(one[0])
        }
        (&Elements::F32(all), 1) => Lane::Many(&all[start..start + line.len()]),
        (_, 1) => {
            all.widen(start, line);
            Lane::Many(line)
        }
        _ => {
            spread(all, start, step, line);
            Lane::Many(line)
        }
    }
}

/// Every `step`-th number from `start`.
fn spread(all: &Elements<'_>, start: usize, step: usize, line: &mut [f32]) {
    if let Elements::F32(all) = all {
        let numbers = all[start..].iter().step_by(step.max(1));
        return line.iter_mut().zip(numbers).for_each(|(to, from)| *to = *from);
    }
    for (index, value) in line.iter_mut().enumerate() {
        all.widen(start + index * step, std::slice::from_mut(value));
    }
}

/// The floats of a constant that lies in memory.
fn floats(plan: &ExecutionPlan, place: usize) -> &[f32] {
    match &plan.known[place] {
        Some(Value::F32(array)) => array.data(),
        _ => unreachable!("compiling found floats there"),
    }
}

/// The numbers of a constant, as they are stored.
fn constant<'a>(plan: &'a ExecutionPlan, machine: &Machine<'a>, place: usize) -> Elements<'a> {
    match &plan.known[place] {
        Some(Value::F32(array)) => Elements::F32(array.data()),
        Some(Value::Weight(weight)) => machine.elements(weight),
        _ => unreachable!("views see floats"),
    }
}
