//! Reads a graph into steps: names become places, every operator is checked.
//!
//! Steps whose inputs are all known and small are computed once, here.  What a program becomes for
//! inputs of given shapes is in `compile`.  Knows nothing of files.

use std::collections::{BTreeMap, HashMap};

use super::array::Value;
use super::file::{GraphFile, NodeFile};
use super::op::Op;
use super::ops::{self, Inputs, Machine};

/// Results of more numbers than this are not computed ahead: they would stay in memory.
const FOLD_NUMBERS_MAX: usize = 1 << 16;

/// A graph, checked, for inputs of any shapes.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Instruction>,
    /// Values known before any input, by place.
    pub(crate) known: Vec<Option<Value>>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    /// What the graph calls the value of each place.
    pub(crate) names: Vec<String>,
}

/// One operator with the places it reads and writes.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    pub(crate) title: String,
    pub(crate) inputs: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
}

/// Places by name, while a program is made.
struct ValueTable<'a>(HashMap<&'a str, usize>);

impl<'a> ValueTable<'a> {
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
        graph.check_opset()?;
        let mut places = ValueTable(HashMap::new());
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
        let mut names = vec![String::new(); places.0.len()];
        places.0.iter().for_each(|(name, &place)| (*name).clone_into(&mut names[place]));
        let mut program = Self { steps, known, inputs, outputs, names };
        program.fold(machine)?;
        Ok(program)
    }

    /// Computes what follows from small constants alone, and drops those steps.
    fn fold(&mut self, machine: Machine<'_>) -> Result<(), String> {
        for step in std::mem::take(&mut self.steps) {
            if !step.fold(&mut self.known, machine)? {
                self.steps.push(step);
            }
        }
        Ok(())
    }
}

impl Instruction {
    /// Computes the step if its inputs are `known` and they and its results are small; whether it
    /// did.
    pub(crate) fn fold(
        &self,
        known: &mut [Option<Value>],
        machine: Machine<'_>,
    ) -> Result<bool, String> {
        // A weight in the file takes no memory, whichever way the graph sees it.
        let turns = matches!(self.op, Op::Transpose { .. });
        let small = |value: &Value| {
            value.len() <= FOLD_NUMBERS_MAX || (turns && matches!(value, Value::Weight(_)))
        };
        let input = |place: &Option<usize>| match place {
            None => Some(None),
            Some(place) => known[*place].clone().filter(small).map(Some),
        };
        let Some(inputs) = self.inputs.iter().map(input).collect() else { return Ok(false) };
        let results = ops::run(&self.op, Inputs(inputs), machine)
            .map_err(|problem| format!("{}: {problem}", self.title))?;
        if !results.iter().all(small) {
            return Ok(false);
        }
        for (place, value) in self.outputs.iter().zip(results) {
            if let Some(place) = place {
                known[*place] = Some(value);
            }
        }
        Ok(true)
    }
}

fn step<'a>(
    node: &'a NodeFile,
    opset: i64,
    places: &mut ValueTable<'a>,
) -> Result<Instruction, String> {
    let title = node.title();
    let op = Op::parse(node, opset).map_err(|problem| format!("{title}: {problem}"))?;
    let given = |name: &str| !name.is_empty();
    let find = |name: &String| given(name).then(|| places.find(name)).transpose();
    let inputs: Result<Vec<_>, _> = node.inputs.iter().map(find).collect();
    let inputs = inputs.map_err(|problem| format!("{title}: {problem}"))?;
    let define = |name: &'a String| given(name).then(|| places.define(name)).transpose();
    let outputs: Result<Vec<_>, _> = node.outputs.iter().map(define).collect();
    let outputs = outputs.map_err(|problem| format!("{title}: {problem}"))?;
    Ok(Instruction { op, title, inputs, outputs })
}
