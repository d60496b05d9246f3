//! Compiles a program for inputs of given shapes: a plan of tasks over one arena.
//!
//! Shapes are worked out ([`net`]), operators become one where the data flows so ([`attention`],
//! [`norm`], [`chains`]), nodes become tasks ([`lower`]), buffers get their places ([`place`]).
//! Names play no part.  Knows nothing of how tasks are done.

mod attention;
mod chains;
mod lower;
mod net;
mod norm;
pub(super) mod place;

use std::collections::BTreeMap;

use super::array::{ELEMENTS_MAX, Value};
use super::ops::Machine;
use super::program::Program;
use super::shapes::Fact;
use super::task::{Feed, Task, Work};
use lower::Lowered;
use net::Net;
use place::Need;

/// No arena may be larger than this (4 GiB of f32): what a graph needs beside its weights at one time.
/// A board of 8 GiB has no more to give, and a graph that asks for more was made for other machines.
const ARENA_NUMBERS_MAX: usize = 1 << 30;

/// What a program does for inputs of certain shapes.
#[derive(Debug)]
pub(crate) struct ExecutionPlan {
    pub(crate) tasks: Vec<Task>,
    /// Values known before anything runs, by place.
    pub(crate) known: Vec<Option<Value>>,
    /// Places of the inputs, in their order.
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<Feed>,
    /// Where each buffer lies in the arena, and how many numbers it holds.
    pub(crate) buffers: Vec<(usize, usize)>,
    /// Numbers of the arena.
    pub(crate) arena: usize,
}

impl ExecutionPlan {
    /// Compiles `program` for inputs of which `facts` are known; the error is one line that names
    /// the node.
    pub(crate) fn new(
        program: &Program,
        facts: &[Fact],
        machine: Machine<'_>,
    ) -> Result<Self, String> {
        let mut net = Net::new(program, facts, machine)?;
        attention::fuse(&mut net);
        norm::fuse(&mut net);
        chains::fuse(&mut net);
        let Lowered { mut tasks, buffers, mut outputs } = lower::lower(&net);
        let (needs, renamed) = needs(&mut tasks, &buffers, &outputs);
        rename(&mut tasks, &mut outputs, &renamed);
        check_held(&mut tasks, &needs)?;
        let placed = place::place(&needs);
        if placed.total > ARENA_NUMBERS_MAX {
            let (total, most) = (placed.total >> 18, ARENA_NUMBERS_MAX >> 18);
            return Err(format!(
                "its results take {total} MiB at one time, and {most} are the most"
            ));
        }
        let buffers = placed.offsets.into_iter().zip(needs.iter().map(|need| need.len)).collect();
        let Net { known, inputs, .. } = net;
        Ok(Self { tasks, known, inputs, outputs, buffers, arena: placed.total })
    }

    /// How many tasks there are of each name.
    pub(crate) fn survey(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for task in &self.tasks {
            *counts.entry(task.work.name()).or_default() += 1;
        }
        counts
    }
}

/// Refuses a result of more numbers than a value may have, named by what gives it.
fn check_held(tasks: &mut [Task], needs: &[Need]) -> Result<(), String> {
    for Task { work, title } in tasks {
        for view in work.writes() {
            let numbers = view.buffer().map_or(0, |buffer| needs[buffer].len);
            if numbers > ELEMENTS_MAX {
                return Err(format!(
                    "{title}: a result has {numbers} numbers, more than {ELEMENTS_MAX}"
                ));
            }
        }
    }
    Ok(())
}

/// A buffer that needs no place.
const UNUSED: Need = Need { len: 0, first: 0, last: 0 };

/// From when to when each buffer is needed, and which buffer each became: the result of a map or a
/// norm takes the place of an operand that ends there.
fn needs(tasks: &mut [Task], buffers: &[usize], outputs: &[Feed]) -> (Vec<Need>, Vec<usize>) {
    let mut needs: Vec<Need> =
        buffers.iter().map(|&len| Need { len, first: usize::MAX, last: 0 }).collect();
    for (index, task) in tasks.iter_mut().enumerate() {
        for buffer in task.work.writes().into_iter().filter_map(|view| view.buffer()) {
            needs[buffer].first = needs[buffer].first.min(index);
            needs[buffer].last = index;
        }
        for buffer in task.work.reads().into_iter().filter_map(|view| view.buffer()) {
            needs[buffer].last = index;
        }
    }
    for feed in outputs {
        if let Feed::View(view) = feed
            && let Some(buffer) = view.buffer()
        {
            needs[buffer].last = tasks.len();
        }
    }
    // What became part of another buffer is never written.
    needs.iter_mut().filter(|need| need.first == usize::MAX).for_each(|need| *need = UNUSED);
    let mut renamed: Vec<usize> = (0..buffers.len()).collect();
    for (index, task) in tasks.iter_mut().enumerate() {
        if let Some((from, to)) = in_place(&mut task.work, index, &needs, &renamed) {
            renamed[to] = renamed[from];
            needs[renamed[from]].last = needs[to].last;
            needs[to] = UNUSED;
        }
    }
    (needs, renamed)
}

/// The operand's buffer and the result's, where one may take the other's place.
fn in_place(
    work: &mut Work,
    index: usize,
    needs: &[Need],
    renamed: &[usize],
) -> Option<(usize, usize)> {
    let out = match work {
        Work::Map(map) => map.out.clone(),
        Work::Norm(norm) => norm.out.clone(),
        _ => return None,
    };
    let to = out.buffer()?;
    let is_whole = out.is_contiguous() && out.len() == needs[to].len && needs[to].first == index;
    if !is_whole {
        return None;
    }
    let reads = work.reads();
    let from = reads.iter().find_map(|view| {
        let from = view.buffer()?;
        let need = needs[renamed[from]];
        let fits = need.last == index && need.len == out.len();
        // Every view of that buffer must see each number where the result will be.
        let alike =
            reads.iter().filter(|view| view.buffer().map(|b| renamed[b]) == Some(renamed[from]));
        let alike = alike
            .into_iter()
            .all(|view| view.start == 0 && view.is_contiguous() && view.len() == out.len());
        (fits && alike).then_some(from)
    })?;
    Some((from, to))
}

fn rename(tasks: &mut [Task], outputs: &mut [Feed], renamed: &[usize]) {
    let rename = |view: &mut super::view::View| {
        if let super::view::Home::Buffer(buffer) = &mut view.home {
            *buffer = renamed[*buffer];
        }
    };
    for task in tasks {
        task.work.reads().into_iter().for_each(rename);
        task.work.writes().into_iter().for_each(rename);
    }
    outputs.iter_mut().filter_map(Feed::view_mut).for_each(rename);
}
