//! Runs a graph operator by operator, and shows what every one gives.
//!
//! An engine joins operators, so that most of what they give each other is never held.  Who wants to know which numbers
//! flow through a graph sees them here: nothing is joined, and a value goes with its last reader.

use super::array::Value;
use super::ops::{self, Inputs};
use super::program::Program;
use super::{GraphEngine, RunError, tensor};
use smelt_backend::{GraphInput, Tensor};

impl GraphEngine {
    /// Runs the graph on `inputs`, in the order of [`Self::inputs`]; `see` is shown the floats of each input and of what
    /// each operator gives, by the names that the graph has for them.  What follows from constants alone is not shown.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn observe(
        &self,
        inputs: Vec<Tensor>,
        see: &mut dyn FnMut(&str, &[f32]),
    ) -> Result<(), RunError> {
        GraphInput::check_all(self.inputs(), &inputs)?;
        let program = &self.program;
        let mut held = program.known.clone();
        for (&place, input) in program.inputs.iter().zip(inputs) {
            let value = tensor::into_value(input);
            show(&program.names[place], &value, see);
            held[place] = Some(value);
        }
        let done = last_reads(program);
        for (at, step) in program.steps.iter().enumerate() {
            let inputs = step.inputs.iter().map(|place| held[(*place)?].clone()).collect();
            for &place in &done[at] {
                held[place] = None;
            }
            let results = ops::run(&step.op, Inputs(inputs), self.machine())
                .map_err(|problem| RunError::Graph(format!("{}: {problem}", step.title)))?;
            for (place, value) in step.outputs.iter().zip(results) {
                let Some(place) = *place else { continue };
                show(&program.names[place], &value, see);
                held[place] = Some(value);
            }
        }
        Ok(())
    }
}

fn show(name: &str, value: &Value, see: &mut dyn FnMut(&str, &[f32])) {
    if let Value::F32(array) = value {
        see(name, array.data());
    }
}

/// For each step, the places that no later one reads; constants may be read again by the next run.
fn last_reads(program: &Program) -> Vec<Vec<usize>> {
    let mut done = vec![Vec::new(); program.steps.len()];
    let mut is_read = vec![false; program.known.len()];
    for (at, step) in program.steps.iter().enumerate().rev() {
        for place in step.inputs.iter().flatten().copied() {
            let is_last = !std::mem::replace(&mut is_read[place], true);
            done[at].extend(is_last.then_some(place));
        }
    }
    done
}
