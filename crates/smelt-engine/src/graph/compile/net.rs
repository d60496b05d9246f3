//! Holds a graph for inputs of known shapes while it is compiled.
//!
//! Shapes are worked out here, what follows from them is computed, operators that change nothing
//! leave.  What remains are nodes, which passes put together.  Knows nothing of buffers.

use super::super::array::{Array, Value};
use super::super::chain::Chain;
use super::super::op::{CastTo, Op};
use super::super::ops::Machine;
use super::super::program::{Instruction, Program};
use super::super::shapes::{Fact, InputFact, infer};

/// Nodes in the order they run, and what is known of the places they read and write.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) nodes: Vec<Node>,
    pub(super) facts: Vec<Option<Fact>>,
    pub(super) known: Vec<Option<Value>>,
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<usize>,
}

/// One operator, or several that became one.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) title: String,
    pub(super) inputs: Vec<Option<usize>>,
    pub(super) outputs: Vec<Option<usize>>,
}

/// What a node computes.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// An operator of the graph.
    One(Op),
    /// Operators that look at one number of each input at a time.
    Chain(Chain),
    /// softmax(q · k · scale + mask) · v of inputs q, k, v and perhaps a mask; k as the product
    /// reads it, `[…, depth, keys]`.
    Attention { scale: f32 },
    /// LayerNorm or RMSNorm over the last dimension of the first input; scale and bias follow, each
    /// perhaps left out.
    Norm(Norm),
}

/// How rows are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norm {
    /// Whether the mean is taken away first.
    pub(crate) centred: bool,
    pub(crate) eps: f32,
}

/// The fact of a value that is there.
fn fact_of(value: &Value) -> Fact {
    Fact { integer: matches!(value, Value::I64(_)), shape: value.shape().to_vec() }
}

impl Net {
    /// The program for inputs of which `facts` are known.
    pub(super) fn new(
        program: &Program,
        facts: &[Fact],
        machine: Machine<'_>,
    ) -> Result<Self, String> {
        let known = program.known.clone();
        let mut net = Self {
            nodes: Vec::with_capacity(program.steps.len()),
            facts: known.iter().map(|value| value.as_ref().map(fact_of)).collect(),
            known,
            inputs: program.inputs.clone(),
            outputs: program.outputs.clone(),
        };
        for (&place, fact) in program.inputs.iter().zip(facts) {
            net.facts[place] = Some(fact.clone());
        }
        // Where a value has another name, the place of the first.
        let mut same: Vec<usize> = (0..net.facts.len()).collect();
        for step in &program.steps {
            let mut step = step.clone();
            step.inputs.iter_mut().flatten().for_each(|place| *place = same[*place]);
            if let (true, &[Some(from)], &[Some(to)]) =
                (net.changes_nothing(&step), &step.inputs[..], &step.outputs[..])
            {
                same[to] = from;
                continue;
            }
            net.take(step, machine)?;
        }
        net.outputs.iter_mut().for_each(|place| *place = same[*place]);
        net.sweep();
        Ok(net)
    }

    /// Whether `step` gives its input again.
    fn changes_nothing(&self, step: &Instruction) -> bool {
        match step.op {
            Op::Identity => true,
            Op::Cast { to: CastTo::F32 } => {
                let fact = step.inputs[0].and_then(|place| self.facts[place].as_ref());
                fact.is_some_and(|fact| !fact.integer)
            }
            _ => false,
        }
    }

    /// Computes a step whose inputs are known, or makes a node of it.
    fn take(&mut self, step: Instruction, machine: Machine<'_>) -> Result<(), String> {
        if self.take_shape(&step) {
            return Ok(());
        }
        if step.fold(&mut self.known, machine)? {
            for &place in step.outputs.iter().flatten() {
                self.facts[place] = self.known[place].as_ref().map(fact_of);
            }
            return Ok(());
        }
        let facts = self.infer(&step).unwrap_or_default();
        for (place, fact) in step.outputs.iter().zip(facts) {
            if let Some(place) = place {
                self.facts[*place] = Some(fact);
            }
        }
        let Instruction { op, title, inputs, outputs } = step;
        self.nodes.push(Node { kind: Kind::One(op), title, inputs, outputs });
        Ok(())
    }

    /// Computes a Shape of a value whose shape is known.
    fn take_shape(&mut self, step: &Instruction) -> bool {
        let (&Op::Shape { start, end }, &[Some(from)], &[Some(to)]) =
            (&step.op, &step.inputs[..], &step.outputs[..])
        else {
            return false;
        };
        let Some(fact) = &self.facts[from] else { return false };
        let rank = fact.shape.len() as i64;
        let held = |i: i64| (if i < 0 { i + rank } else { i }).clamp(0, rank) as usize;
        let (start, end) = (held(start), held(end.unwrap_or(rank)));
        let dims = &fact.shape[start..end.max(start)];
        let dims: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
        let value = Value::I64(Array::new(vec![dims.len()], dims));
        self.facts[to] = Some(fact_of(&value));
        self.known[to] = Some(value);
        true
    }

    fn infer(&self, step: &Instruction) -> Option<Vec<Fact>> {
        infer(&step.op, &self.given(&step.inputs)?)
    }

    /// What is known of `places`, if it is something of each.
    pub(super) fn given(&self, places: &[Option<usize>]) -> Option<Vec<Option<InputFact<'_>>>> {
        let given = |place: &Option<usize>| match *place {
            None => Some(None),
            Some(place) => {
                let fact = self.facts[place].as_ref()?;
                Some(Some(InputFact { fact, known: self.known[place].as_ref() }))
            }
        };
        places.iter().map(given).collect()
    }

    /// Removes nodes whose results nobody reads.
    pub(super) fn sweep(&mut self) {
        let mut read = vec![false; self.facts.len()];
        self.outputs.iter().for_each(|&place| read[place] = true);
        let mut kept = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.outputs.iter().flatten().any(|&place| read[place]) {
                node.inputs.iter().flatten().for_each(|&place| read[place] = true);
                kept.push(node);
            }
        }
        kept.reverse();
        self.nodes = kept;
    }

    /// Puts each node of `whole` in the place of the last of the nodes it stands for.
    pub(super) fn replace(&mut self, whole: Vec<FusedNode>) {
        let mut nodes: Vec<Option<Node>> =
            std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        for FusedNode { node, parts } in whole {
            parts.iter().for_each(|&part| nodes[part] = None);
            let last = parts.into_iter().max().expect("something was found");
            nodes[last] = Some(node);
        }
        self.nodes = nodes.into_iter().flatten().collect();
    }
}

/// A node that stands for several, and which.
pub(super) struct FusedNode {
    pub(super) node: Node,
    pub(super) parts: Vec<usize>,
}

/// Who makes and who reads each place of a net.
pub(super) struct Wires<'a> {
    pub(super) net: &'a Net,
    maker: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
    given: Vec<bool>,
}

impl<'a> Wires<'a> {
    pub(super) fn new(net: &'a Net) -> Self {
        let count = net.facts.len();
        let (mut maker, mut readers) = (vec![None; count], vec![Vec::new(); count]);
        let mut given = vec![false; count];
        for (index, node) in net.nodes.iter().enumerate() {
            node.outputs.iter().flatten().for_each(|&place| maker[place] = Some(index));
            node.inputs.iter().flatten().for_each(|&place| readers[place].push(index));
        }
        net.outputs.iter().for_each(|&place| given[place] = true);
        Self { net, maker, readers, given }
    }

    /// The operator that makes `place`, and the index of its node.
    pub(super) fn op(&self, place: usize) -> Option<(usize, &'a Op, &'a Node)> {
        let index = self.maker[place]?;
        let node = &self.net.nodes[index];
        match &node.kind {
            Kind::One(op) => Some((index, op, node)),
            _ => None,
        }
    }

    /// The one node that reads `place`, which is no output of the graph.
    pub(super) fn only_reader(&self, place: usize) -> Option<usize> {
        match self.readers[place][..] {
            [reader] if !self.given[place] => Some(reader),
            _ => None,
        }
    }

    /// Whether nodes of `among` alone read `place`, which is no output of the graph.
    pub(super) fn read_among(&self, place: usize, among: &[usize]) -> bool {
        !self.given[place] && self.readers[place].iter().all(|reader| among.contains(reader))
    }

    pub(super) fn maker(&self, place: usize) -> Option<usize> {
        self.maker[place]
    }

    /// The dimensions of a place of floats.
    pub(super) fn shape(&self, place: usize) -> Option<&'a [usize]> {
        let fact = self.net.facts[place].as_ref().filter(|fact| !fact.integer)?;
        Some(&fact.shape)
    }

    /// The one number of a constant.
    pub(super) fn scalar(&self, place: usize) -> Option<f32> {
        match self.net.known[place].as_ref()? {
            Value::F32(array) if array.len() == 1 => Some(array.data()[0]),
            _ => None,
        }
    }
}
