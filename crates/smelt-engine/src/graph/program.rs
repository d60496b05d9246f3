//! Turns a graph into steps that can run: names become places, every operator is checked.
//!
//! Steps whose inputs are all known and small are computed once, here.  A value is given up after
//! its last reader, so that it may be overwritten.  Knows nothing of files.

use std::collections::{BTreeMap, HashMap};

use super::array::Value;
use super::file::{GraphFile, NodeFile};
use super::op::{OPSETS, Op};
use super::ops::{self, Inputs, Machine};

/// Results of more numbers than this are not computed ahead: they would stay in memory.
const FOLD_NUMBERS_MAX: usize = 1 << 16;

/// A graph that can run.
#[derive(Debug)]
pub(crate) struct Program {
    steps: Vec<Step>,
    /// Values known before any input, by place.
    known: Vec<Option<Value>>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// One operator with the places it reads and writes.
#[derive(Debug)]
struct Step {
    op: Op,
    title: String,
    inputs: Vec<Option<usize>>,
    outputs: Vec<Option<usize>>,
    /// Places nobody reads after this step.
    done: Vec<usize>,
}

/// Places by name, while a program is made.
struct Places<'a>(HashMap<&'a str, usize>);

impl<'a> Places<'a> {
    fn define(&mut self, name: &'a str) -> Result<usize, String> {
        let place = self.0.len();
        match self.0.insert(name, place) {
            None => Ok(place),
            Some(_) => Err(format!("value {name:?} is defined twice")),
        }
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        self.0.get(name).copied().ok_or_else(|| format!("value {name:?} is not defined before it"))
    }
}

impl Program {
    /// Checks `graph` and prepares it; `constants` are its stored values by name.  The error is one
    /// line that names the node.
    pub(crate) fn new(
        graph: &GraphFile,
        constants: &BTreeMap<String, Value>,
        machine: Machine<'_>,
    ) -> Result<Self, String> {
        if !OPSETS.contains(&graph.opset) {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            let found = graph.opset;
            return Err(format!(
                "opset {found} is not in {first}..={last}; export the model again"
            ));
        }
        let mut places = Places(HashMap::new());
        let inputs = graph.inputs.iter().map(|input| places.define(&input.name));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        for name in constants.keys() {
            places.define(name)?;
        }
        let mut steps = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            steps.push(step(node, graph.opset, &mut places)?);
        }
        let outputs = graph.outputs.iter().map(|output| places.find(&output.name));
        let outputs = outputs.collect::<Result<_, _>>()?;
        // The inputs have the first places, and the constants follow in their order.
        let mut known = vec![None; inputs.len()];
        known.extend(constants.values().cloned().map(Some));
        known.resize(places.0.len(), None);
        let mut program = Self { steps, known, inputs, outputs };
        program.fold(machine)?;
        program.mark_last_readers();
        Ok(program)
    }

    /// Computes what follows from small constants alone, and drops those steps.
    fn fold(&mut self, machine: Machine<'_>) -> Result<(), String> {
        let small = |value: &Value| value.len() <= FOLD_NUMBERS_MAX;
        for step in std::mem::take(&mut self.steps) {
            let mut inputs = step.inputs.iter().flatten().map(|&place| &self.known[place]);
            if !inputs.all(|value| value.as_ref().is_some_and(small)) {
                self.steps.push(step);
                continue;
            }
            let results = step.run(&mut self.known, machine)?;
            if !results.iter().all(|(_, value)| small(value)) {
                self.steps.push(step);
                continue;
            }
            for (place, value) in results {
                self.known[place] = Some(value);
            }
        }
        Ok(())
    }

    /// Lets each step give up what no later step reads.
    fn mark_last_readers(&mut self) {
        let mut read_later = vec![false; self.known.len()];
        self.outputs.iter().for_each(|&place| read_later[place] = true);
        for step in self.steps.iter_mut().rev() {
            let places = step.inputs.iter().chain(&step.outputs).flatten();
            for &place in places {
                if !std::mem::replace(&mut read_later[place], true) {
                    step.done.push(place);
                }
            }
        }
    }

    /// Runs the graph on its inputs, in their order; gives its outputs.
    pub(crate) fn run(
        &self,
        inputs: Vec<Value>,
        machine: Machine<'_>,
    ) -> Result<Vec<Value>, String> {
        let mut values = self.known.clone();
        for (&place, input) in self.inputs.iter().zip(inputs) {
            values[place] = Some(input);
        }
        for step in &self.steps {
            for (place, value) in step.run(&mut values, machine)? {
                values[place] = Some(value);
            }
            for &place in &step.done {
                values[place] = None;
            }
        }
        let output = |&place: &usize| values[place].clone();
        let outputs = self.outputs.iter().map(output).collect::<Option<_>>();
        outputs.ok_or_else(|| "an output was never computed".to_owned())
    }
}

impl Step {
    /// Computes the step from `values`, of which it takes those it is the last to read.
    fn run(
        &self,
        values: &mut [Option<Value>],
        machine: Machine<'_>,
    ) -> Result<Vec<(usize, Value)>, String> {
        let mut inputs: Vec<Option<Value>> = Vec::with_capacity(self.inputs.len());
        for (index, &place) in self.inputs.iter().enumerate() {
            let Some(place) = place else {
                inputs.push(None);
                continue;
            };
            let again = self.inputs[index + 1..].contains(&Some(place));
            let last = self.done.contains(&place) && !again;
            let value = if last { values[place].take() } else { values[place].clone() };
            let value = value.ok_or_else(|| format!("{}: a value is missing", self.title))?;
            inputs.push(Some(value));
        }
        let results = ops::run(&self.op, Inputs(inputs), machine)
            .map_err(|problem| format!("{}: {problem}", self.title))?;
        let named = self.outputs.iter().zip(results);
        Ok(named.filter_map(|(place, value)| place.map(|place| (place, value))).collect())
    }
}

fn step<'a>(node: &'a NodeFile, opset: i64, places: &mut Places<'a>) -> Result<Step, String> {
    let title = node.title();
    let op = Op::parse(node, opset).map_err(|problem| format!("{title}: {problem}"))?;
    let given = |name: &str| !name.is_empty();
    let find = |name: &String| given(name).then(|| places.find(name)).transpose();
    let inputs: Result<Vec<_>, _> = node.inputs.iter().map(find).collect();
    let inputs = inputs.map_err(|problem| format!("{title}: {problem}"))?;
    let define = |name: &'a String| given(name).then(|| places.define(name)).transpose();
    let outputs: Result<Vec<_>, _> = node.outputs.iter().map(define).collect();
    let outputs = outputs.map_err(|problem| format!("{title}: {problem}"))?;
    Ok(Step { op, title, inputs, outputs, done: Vec::new() })
}
