//! Turns the tasks of a plan into steps of a card: kernels and copies over places in one piece of memory.
//!
//! A plan in, plain data out: no driver, no addresses.  What a card cannot do is refused here, before anything runs.

use std::collections::BTreeSet;

use smelt_engine::graph::plan::{
    Attention, Binary, Call, Factor, Feed, Home, Linear, Link, LinkInput, Map, Need, Norm, Plan,
    Sink, Task, Unary, View, Work, place,
};

use super::fused::Fused;
use super::values::{ValueId, Values, head_columns};
use crate::kernels::graph::{Chain, Form, HeadColumns, LinkOp, LinkSource, Operand, Program};
use crate::kernels::layout::{activation_len, padded_columns};
use crate::kernels::product::Turn;
use crate::kernels::rows::NumberKind;
use crate::kernels::source::graph_head;

/// Units in which memory is placed, so that values begin at multiples of 256 bytes.
const UNIT: usize = 16;

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// A value, so many numbers of four bytes behind its beginning.
    Value(ValueId, usize),
    /// A constant, so many numbers behind its beginning.
    Constant(usize, usize),
}

/// A constant that products take as their weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WeightKey {
    /// Its place among constants.
    pub(super) place: usize,
    /// The first number.
    pub(super) start: usize,
    /// Outputs and columns.
    pub(super) shape: [u32; 2],
    /// Numbers from one to the next of each.
    pub(super) steps: [u64; 2],
}

/// Heads of numbers `[batch, heads, rows, numbers]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadsAt {
    pub(super) at: Spot,
    pub(super) kind: NumberKind,
    pub(super) shape: [u32; 4],
    pub(super) steps: [u64; 4],
}

/// Heads in activations of so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadsIn {
    pub(super) value: ValueId,
    pub(super) rows: u32,
    pub(super) columns: HeadColumns,
}

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
    /// f32 side by side.
    Rows(Spot),
    /// Such, added to such that lie elsewhere; a constant is what they are multiplied with before.
    Sum { out: Spot, before: Spot, gains: Option<usize> },
    /// Activations.
    Halves { out: ValueId, turn: Turn },
}

/// What a card does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// An input comes from the host.
    Input {
        index: usize,
        to: ValueId,
    },
    /// What the host computed for an output of a task.
    Hosted {
        task: usize,
        output: usize,
        to: ValueId,
    },
    /// Indices that the host has, each below `size`.
    Indices {
        from: Integers,
        size: usize,
        count: usize,
        to: ValueId,
    },
    /// All bytes of a value become zero.
    Clear {
        value: ValueId,
    },
    Norm {
        x: Spot,
        out: Spot,
        form: Form,
        scale: Option<usize>,
        bias: Option<usize>,
        rows: u32,
        width: u32,
        centred: bool,
        eps: f32,
    },
    /// Activations times a weight.
    Product {
        x: ValueId,
        weight: WeightKey,
        bias: Option<usize>,
        rows: u32,
        into: Becomes,
    },
    /// Heads become activations.
    Arrange {
        from: HeadsAt,
        out: ValueId,
    },
    Attend {
        /// Queries, keys and values.
        parts: [HeadsIn; 3],
        mask: Option<HeadsAt>,
        scale: f32,
        heads: [u32; 2],
        rows: [u32; 2],
        numbers: [u32; 2],
        out: Spot,
        form: Form,
    },
    /// Operators on single numbers; `program` is an index of [`Lowered::programs`].
    Map {
        program: usize,
        operands: Vec<Option<Spot>>,
        out: Spot,
        form: Form,
    },
    Gather {
        from: Spot,
        kind: NumberKind,
        indices: ValueId,
        sizes: [u32; 4],
        out: Spot,
    },
}

/// Where integers of the host are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Integers {
    /// A constant.
    Known(usize),
    /// A value of the host.
    Loose(usize),
}

/// Where an output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// On the card, f32 side by side.
    Card { at: Spot, shape: Vec<usize> },
    /// The host has it.
    Host,
}

/// What a plan is for a card.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) steps: Vec<Step>,
    pub(super) programs: Vec<Program>,
    pub(super) outputs: Vec<Output>,
    /// Where each value begins, in bytes.
    pub(super) offsets: Vec<u64>,
    /// Bytes of each value.
    pub(super) bytes: Vec<u64>,
    /// Bytes of all memory together.
    pub(super) total: u64,
}

/// Numbers of the largest head of a plan's attention; 16 where nothing attends.
pub fn head_of(plan: &Plan) -> usize {
    let heads = plan.tasks().iter().filter_map(|task| match &task.work {
        Work::Attention(attention) => attention.q.shape.last().max(attention.v.shape.last()),
        _ => None,
    });
    heads.copied().max().unwrap_or(0).max(16)
}

/// The steps of `plan` with heads of up to `head` numbers; `inputs` are the numbers of each input of floats, and `kind_of`
/// says how a constant is kept.  The error is one line that names the node.
pub(super) fn lower(
    plan: &Plan,
    inputs: &[usize],
    head: usize,
    kind_of: &dyn Fn(usize) -> Option<NumberKind>,
) -> Result<Lowered, String> {
    let values = Values::of(plan, inputs, &|place| kind_of(place) == Some(NumberKind::F32));
    let spans = vec![None; values.all.len()];
    let bytes = values.all.iter().map(|value| value_bytes(value.len, value.form)).collect();
    let (steps, programs) = (Vec::new(), Vec::new());
    let mut lower = Lower { plan, values, kind_of, head, steps, programs, bytes, spans };
    for (index, &to) in lower.values.inputs.clone().iter().enumerate() {
        if inputs[index] > 0 {
            lower.push(Step::Input { index, to });
        }
    }
    for (index, task) in plan.tasks().iter().enumerate() {
        lower.task(index, task).map_err(|problem| format!("{}: {problem}", task.title))?;
    }
    let outputs = lower.outputs()?;
    lower.placed(outputs)
}

fn value_bytes(len: usize, form: Form) -> u64 {
    match form {
        Form::Rows => len as u64 * 4,
        Form::Activations { rows, columns } => activation_bytes(rows, columns),
    }
}

fn activation_bytes(rows: u32, columns: u32) -> u64 {
    activation_len(rows as usize, padded_columns(columns as usize)) as u64 * 2
}

struct Lower<'a> {
    plan: &'a Plan,
    values: Values,
    kind_of: &'a dyn Fn(usize) -> Option<NumberKind>,
    head: usize,
    steps: Vec<Step>,
    programs: Vec<Program>,
    bytes: Vec<u64>,
    /// The first and the last step that names each value.
    spans: Vec<Option<[usize; 2]>>,
}

impl Lower<'_> {
    fn push(&mut self, step: Step) {
        let index = self.steps.len();
        for value in step.values() {
            let [first, _] = self.spans[value].unwrap_or([index, index]);
            self.spans[value] = Some([first, index]);
        }
        self.steps.push(step);
    }

    /// A value for a moment.
    fn scratch(&mut self, bytes: u64) -> ValueId {
        self.bytes.push(bytes.max(1));
        self.spans.push(None);
        self.bytes.len() - 1
    }

    fn kind(&self, place: usize) -> Result<NumberKind, String> {
        (self.kind_of)(place).ok_or_else(|| "it reads a constant that is no floats".to_owned())
    }

    /// Where a view that a task reads begins, and how it is kept.
    fn spot(&self, view: &View, value: Option<ValueId>) -> Result<(Spot, NumberKind), String> {
        match (view.home, value) {
            (Home::Constant(place), _) => {
                Ok((Spot::Constant(place, view.start), self.kind(place)?))
            }
            (_, Some(value)) => Ok((Spot::Value(value, view.start), NumberKind::F32)),
            (_, None) => Err("it reads what nothing wrote".to_owned()),
        }
    }

    fn task(&mut self, index: usize, task: &Task) -> Result<(), String> {
        let (reads, writes) = (self.values.reads[index].clone(), self.values.writes[index].clone());
        if self.plan.is_hosted(index) {
            for (output, value) in sinks(&task.work).zip(writes) {
                if let Some(to) = value.filter(|value| self.values.all[*value].is_read) {
                    self.push(Step::Hosted { task: index, output, to });
                }
            }
            return Ok(());
        }
        if self.values.is_done_before(index) {
            return Ok(());
        }
        let out = writes.first().copied().flatten().ok_or("it gives nothing")?;
        match &task.work {
            Work::Linear(linear) => {
                let into = self.into(index, linear, out)?;
                self.linear(linear, &reads, into)
            }
            Work::Attention(attention) => self.attention(attention, &reads, out),
            Work::Norm(norm) => self.norm(norm, &reads, out),
            Work::Map(map) => self.map(map, &reads, out),
            Work::Fill { out: view, value } => {
                let operands = vec![Operand::Number(*value)];
                let chain = Chain {
                    shape: view.shape.clone(),
                    steps: view.steps.clone(),
                    operands,
                    links: Vec::new(),
                };
                self.chain(&chain, vec![None], Spot::Value(out, view.start), Form::Rows)
            }
            Work::Call(call) => self.gather(call, &reads, out),
        }
    }

    /// What becomes of the product that is task `index`.
    fn into(&mut self, index: usize, linear: &Linear, own: ValueId) -> Result<Becomes, String> {
        let Some(fused) = self.values.fused[index] else {
            let form = self.values.all[own].form;
            self.fill_up(own, form);
            return Ok(match form {
                Form::Rows => Becomes::Rows(Spot::Value(own, linear.out.start)),
                Form::Activations { .. } => Becomes::Halves { out: own, turn: Turn::None },
            });
        };
        let next = index + 1;
        let (Work::Map(map), Some(out)) =
            (&self.plan.tasks()[next].work, self.values.writes[next][0])
        else {
            return Err("what is behind it is no map".to_owned());
        };
        match fused {
            Fused::Turned(turn) => {
                self.fill_up(out, self.values.all[out].form);
                Ok(Becomes::Halves { out, turn })
            }
            Fused::Sum { before, gains } => {
                let value = self.values.reads[next][before];
                let (before, _) = self.spot(&map.operands[before], value)?;
                let constant = |gains: usize| match map.operands[gains].home {
                    Home::Constant(place) => Some(place),
                    Home::Buffer(_) | Home::Input(_) => None,
                };
                let out = Spot::Value(out, map.out.start);
                Ok(Becomes::Sum { out, before, gains: gains.and_then(constant) })
            }
        }
    }

    fn linear(
        &mut self,
        linear: &Linear,
        reads: &[Option<ValueId>],
        into: Becomes,
    ) -> Result<(), String> {
        let (&[rows, columns], &[_, outputs]) = (&linear.x.shape[..], &linear.out.shape[..]) else {
            return Err("its product is of no matrix".to_owned());
        };
        let size = |number: usize| u32::try_from(number).map_err(|_| too_large());
        let Factor::View(View { home: Home::Constant(place), start, steps, .. }) = &linear.weight
        else {
            return Err("its weight lies in stripes, as processors read it".to_owned());
        };
        let weight = WeightKey {
            place: *place,
            start: *start,
            shape: [size(outputs)?, size(columns)?],
            steps: [steps[0] as u64, steps[1] as u64],
        };
        let form = reads[0].map_or(Form::Rows, |value| self.values.all[value].form);
        let x = match (form, reads[0]) {
            (Form::Activations { .. }, Some(value)) => value,
            _ => self.activations(&linear.x, reads[0], [size(rows)?, size(columns)?])?,
        };
        self.push(Step::Product { x, weight, bias: linear.bias, rows: size(rows)?, into });
        Ok(())
    }

    /// Rows as activations.
    fn activations(
        &mut self,
        view: &View,
        value: Option<ValueId>,
        [rows, columns]: [u32; 2],
    ) -> Result<ValueId, String> {
        let (from, kind) = self.spot(view, value)?;
        let out = self.scratch(activation_bytes(rows, columns));
        let form = Form::Activations { rows, columns };
        let chain = copy(view, kind);
        self.fill_up(out, form);
        self.chain(&chain, vec![Some(from)], Spot::Value(out, 0), form)?;
        Ok(out)
    }

    /// Clears activations of which what comes writes fewer columns than a product reads.
    fn fill_up(&mut self, value: ValueId, form: Form) {
        if let Form::Activations { columns, .. } = form
            && padded_columns(columns as usize) > columns as usize
        {
            self.push(Step::Clear { value });
        }
    }

    fn attention(
        &mut self,
        attention: &Attention,
        reads: &[Option<ValueId>],
        out: ValueId,
    ) -> Result<(), String> {
        let head = graph_head(self.head);
        let parts = [&attention.q, &attention.k, &attention.v];
        let views = [0, 1, 2].map(|part| self.heads(parts[part], reads[part]));
        let [q, k, v] = views;
        let (q, k, v) = (q?, k?, v?);
        let mask = attention.mask.as_ref().map(|mask| self.heads(mask, reads[3])).transpose()?;
        let ([batch, heads, queries, depth], [_, _, keys, width]) = (q.shape, v.shape);
        if depth.max(width) as usize > head.padded() {
            return Err(format!(
                "heads of {depth} and {width} numbers are more than the {} its kernels are for",
                head.dim
            ));
        }
        if width == 0 || keys == 0 || batch > u16::MAX.into() || heads > u16::MAX.into() {
            return Err(format!("a card does not attend with {batch} times {heads} heads at once"));
        }
        if attention.scale < 0.0 {
            return Err("a card does not attend to what is least alike".to_owned());
        }
        let mut blocks = Vec::new();
        for (at, view) in [q, k, v].into_iter().enumerate() {
            blocks.push(self.head_blocks(parts[at], reads[at], view)?);
        }
        let parts = blocks.try_into().map_err(|_| too_large())?;
        let form = self.values.all[out].form;
        self.fill_up(out, form);
        self.push(Step::Attend {
            parts,
            mask,
            scale: attention.scale,
            heads: [batch, heads],
            rows: [queries, keys],
            numbers: [depth, width],
            out: Spot::Value(out, attention.out.start),
            form,
        });
        Ok(())
    }

    /// Heads as activations: where they lie so already, or brought there.
    fn head_blocks(
        &mut self,
        view: &View,
        value: Option<ValueId>,
        heads: HeadsAt,
    ) -> Result<HeadsIn, String> {
        if let Some(value) = value
            && let Form::Activations { rows, .. } = self.values.all[value].form
        {
            let (_, columns) =
                head_columns(view, self.values.all[value].len).ok_or("its heads are no columns")?;
            return Ok(HeadsIn { value, rows, columns });
        }
        let ([batch, count, rows, _], padded) =
            (heads.shape, graph_head(self.head).padded() as u32);
        let all = [batch.checked_mul(rows), count.checked_mul(padded)];
        let [Some(rows), Some(columns)] = all else { return Err(too_large()) };
        if rows.checked_mul(columns).is_none() {
            return Err(too_large());
        }
        let value = self.scratch(activation_bytes(rows, columns));
        self.push(Step::Arrange { from: heads, out: value });
        Ok(HeadsIn { value, rows, columns: HeadColumns { first: 0, by_head: padded } })
    }

    fn heads(&self, view: &View, value: Option<ValueId>) -> Result<HeadsAt, String> {
        let (at, kind) = self.spot(view, value)?;
        let shape: Option<Vec<u32>> =
            view.shape.iter().map(|&len| u32::try_from(len).ok()).collect();
        let shape = shape.and_then(|shape| shape.try_into().ok()).ok_or_else(too_large)?;
        let steps: Vec<u64> = view.steps.iter().map(|&step| step as u64).collect();
        let steps = steps.try_into().map_err(|_| too_large())?;
        Ok(HeadsAt { at, kind, shape, steps })
    }

    fn norm(&mut self, norm: &Norm, reads: &[Option<ValueId>], out: ValueId) -> Result<(), String> {
        let (x, kind) = self.spot(&norm.x, reads[0])?;
        let (&[rows, width], NumberKind::F32) = (&norm.x.shape[..], kind) else {
            return Err("a card norms rows of f32 alone".to_owned());
        };
        let size = |number: usize| u32::try_from(number).map_err(|_| too_large());
        self.push(Step::Norm {
            x,
            out: Spot::Value(out, norm.out.start),
            form: self.values.all[out].form,
            scale: norm.scale,
            bias: norm.bias,
            rows: size(rows)?,
            width: size(width)?,
            centred: norm.centred,
            eps: norm.eps,
        });
        Ok(())
    }

    fn map(&mut self, map: &Map, reads: &[Option<ValueId>], out: ValueId) -> Result<(), String> {
        let (mut operands, mut spots) = (Vec::new(), Vec::new());
        for (view, value) in map.operands.iter().zip(reads) {
            let number = match view.home {
                Home::Constant(place) => self.plan.scalar(place),
                Home::Buffer(_) | Home::Input(_) => None,
            };
            if let Some(number) = number {
                operands.push(Operand::Number(number));
                spots.push(None);
                continue;
            }
            let (spot, kind) = self.spot(view, *value)?;
            operands.push(Operand::Numbers { kind, steps: view.steps.clone() });
            spots.push(Some(spot));
        }
        let links = map.chain.links.iter().map(|link| link_of(*link)).collect();
        let (shape, steps) = (map.out.shape.clone(), map.out.steps.clone());
        let form = self.values.all[out].form;
        self.fill_up(out, form);
        let chain = Chain { shape, steps, operands, links };
        self.chain(&chain, spots, Spot::Value(out, map.out.start), form)
    }

    fn chain(
        &mut self,
        chain: &Chain,
        operands: Vec<Option<Spot>>,
        out: Spot,
        form: Form,
    ) -> Result<(), String> {
        let program = chain.program()?;
        if program.count == 0 {
            return Ok(());
        }
        let known = self.programs.iter().position(|own| *own == program);
        let program = known.unwrap_or_else(|| {
            self.programs.push(program);
            self.programs.len() - 1
        });
        self.push(Step::Map { program, operands, out, form });
        Ok(())
    }

    fn gather(
        &mut self,
        call: &Call,
        reads: &[Option<ValueId>],
        out: ValueId,
    ) -> Result<(), String> {
        let refused = || {
            "engines for cards do not have this operator; backend = \"onnxruntime\" may".to_owned()
        };
        let gather = call.gather().ok_or_else(refused)?;
        let (Feed::View(view), Some(Some(Sink::View(to)))) = (gather.data, call.outputs.first())
        else {
            return Err(refused());
        };
        let from = match gather.indices {
            Feed::Known(place) => Integers::Known(*place),
            Feed::Loose(place) => Integers::Loose(*place),
            Feed::View(_) => return Err(refused()),
        };
        let rank = view.shape.len() as i64;
        let axis = if gather.axis < 0 { gather.axis + rank } else { gather.axis };
        if !view.is_contiguous() || !(0..rank).contains(&axis) {
            return Err(refused());
        }
        let axis = axis as usize;
        let outer: usize = view.shape[..axis].iter().product();
        let inner: usize = view.shape[axis + 1..].iter().product();
        let size = view.shape[axis];
        let count = to.len() / (outer * inner).max(1);
        let sizes: Vec<u32> = [outer, size, count, inner]
            .into_iter()
            .map(|size| u32::try_from(size).map_err(|_| too_large()))
            .collect::<Result<_, _>>()?;
        let sizes = sizes.try_into().map_err(|_| too_large())?;
        let (from_at, kind) = self.spot(view, reads.first().copied().flatten())?;
        let indices = self.scratch(count as u64 * 4);
        self.push(Step::Indices { from, size, count, to: indices });
        let out = Spot::Value(out, to.start);
        self.push(Step::Gather { from: from_at, kind, indices, sizes, out });
        Ok(())
    }

    /// Where outputs are when all is done, side by side.
    fn outputs(&mut self) -> Result<Vec<Output>, String> {
        let feeds = self.plan.outputs().to_vec();
        let mut outputs = Vec::new();
        for (feed, value) in feeds.iter().zip(self.values.outputs.clone()) {
            let Feed::View(view) = feed else {
                outputs.push(Output::Host);
                continue;
            };
            let (from, kind) = self.spot(view, value)?;
            let shape = view.shape.clone();
            if let (Spot::Value(..), true) = (from, view.is_contiguous()) {
                outputs.push(Output::Card { at: from, shape });
                continue;
            }
            let out = self.scratch(view.len() as u64 * 4);
            let at = Spot::Value(out, 0);
            self.chain(&copy(view, kind), vec![Some(from)], at, Form::Rows)?;
            outputs.push(Output::Card { at, shape });
        }
        Ok(outputs)
    }

    /// Places values so that those of one moment lie apart.
    fn placed(mut self, outputs: Vec<Output>) -> Result<Lowered, String> {
        for output in &outputs {
            if let Output::Card { at: Spot::Value(value, _), .. } = output {
                let end = self.steps.len();
                let [first, _] = self.spans[*value].unwrap_or([end, end]);
                self.spans[*value] = Some([first, end]);
            }
        }
        let need = |(bytes, span): (&u64, &Option<[usize; 2]>)| match span {
            None => Need { len: 0, first: 0, last: 0 },
            Some([first, last]) => {
                let len = (*bytes as usize).div_ceil(UNIT).max(1);
                Need { len, first: *first, last: *last }
            }
        };
        let needs: Vec<Need> = self.bytes.iter().zip(&self.spans).map(need).collect();
        let placed = place(&needs);
        let offset = |offset: usize| (offset * UNIT) as u64;
        Ok(Lowered {
            steps: self.steps,
            programs: self.programs,
            outputs,
            offsets: placed.offsets.into_iter().map(offset).collect(),
            bytes: self.bytes,
            total: offset(placed.total),
        })
    }
}

impl Lowered {
    /// Places of constants that are read as they are stored, and those that are weights.
    pub(super) fn constants(&self) -> (BTreeSet<usize>, BTreeSet<&WeightKey>) {
        let (mut numbers, mut weights) = (BTreeSet::new(), BTreeSet::new());
        for step in &self.steps {
            numbers.extend(step.constants());
            if let Step::Product { weight, .. } = step {
                weights.insert(weight);
            }
        }
        (numbers, weights)
    }
}

impl Step {
    /// Places of constants that it reads as they are stored.
    pub(super) fn constants(&self) -> Vec<usize> {
        let of = |spot: &Spot| match spot {
            Spot::Constant(place, _) => Some(*place),
            Spot::Value(..) => None,
        };
        match self {
            Self::Norm { x, scale, bias, .. } => {
                of(x).into_iter().chain(*scale).chain(*bias).collect()
            }
            Self::Product { bias, into, .. } => {
                let gains = match into {
                    Becomes::Sum { gains, .. } => *gains,
                    Becomes::Rows(_) | Becomes::Halves { .. } => None,
                };
                bias.iter().copied().chain(gains).collect()
            }
            Self::Arrange { from, .. } => of(&from.at).into_iter().collect(),
            Self::Attend { mask, .. } => mask.iter().filter_map(|mask| of(&mask.at)).collect(),
            Self::Map { operands, .. } => operands.iter().flatten().filter_map(of).collect(),
            Self::Gather { from, .. } => of(from).into_iter().collect(),
            Self::Input { .. }
            | Self::Hosted { .. }
            | Self::Indices { .. }
            | Self::Clear { .. } => Vec::new(),
        }
    }

    /// Values that it reads or writes.
    fn values(&self) -> Vec<ValueId> {
        let of = |spot: &Spot| match spot {
            Spot::Value(value, _) => Some(*value),
            Spot::Constant(..) => None,
        };
        match self {
            Self::Input { to, .. } | Self::Hosted { to, .. } | Self::Indices { to, .. } => {
                vec![*to]
            }
            Self::Clear { value } => vec![*value],
            Self::Norm { x, out, .. } => of(x).into_iter().chain(of(out)).collect(),
            Self::Product { x, into, .. } => {
                let [out, before] = match into {
                    Becomes::Rows(out) => [of(out), None],
                    Becomes::Sum { out, before, .. } => [of(out), of(before)],
                    Becomes::Halves { out, .. } => [Some(*out), None],
                };
                out.into_iter().chain(before).chain([*x]).collect()
            }
            Self::Arrange { from, out, .. } => of(&from.at).into_iter().chain([*out]).collect(),
            Self::Attend { parts, mask, out, .. } => {
                let mask = mask.as_ref().and_then(|mask| of(&mask.at));
                parts.iter().map(|part| part.value).chain(mask).chain(of(out)).collect()
            }
            Self::Map { operands, out, .. } => {
                operands.iter().flatten().chain([out]).filter_map(of).collect()
            }
            Self::Gather { from, indices, out, .. } => {
                of(from).into_iter().chain([*indices]).chain(of(out)).collect()
            }
        }
    }
}

/// The outputs of a call that go to buffers, by their numbers.
fn sinks(work: &Work) -> impl Iterator<Item = usize> + '_ {
    let outputs = match work {
        Work::Call(call) => &call.outputs[..],
        _ => &[],
    };
    let all = outputs.iter().enumerate();
    all.filter(|(_, sink)| matches!(sink, Some(Sink::View(_)))).map(|(output, _)| output)
}

/// A view's numbers side by side.
fn copy(view: &View, kind: NumberKind) -> Chain {
    let shape = view.shape.clone();
    let whole = View::side_by_side(&shape);
    let operands = vec![Operand::Numbers { kind, steps: view.steps.clone() }];
    Chain { shape, steps: whole, operands, links: Vec::new() }
}

fn too_large() -> String {
    "it is larger than a card's kernels take".to_owned()
}

fn link_of(link: Link) -> (LinkOp, LinkSource, LinkSource) {
    let of = |source: LinkInput| match source {
        LinkInput::Operand(at) => LinkSource::Operand(at),
        LinkInput::Link(at) => LinkSource::Link(at),
    };
    match link {
        Link::Unary(op, a) => (unary(op), of(a), of(a)),
        Link::Binary(op, a, b) => (binary(op), of(a), of(b)),
        Link::RoundF16(a) => (LinkOp::RoundF16, of(a), of(a)),
        Link::RoundBf16(a) => (LinkOp::RoundBf16, of(a), of(a)),
    }
}

fn unary(op: Unary) -> LinkOp {
    match op {
        Unary::Abs => LinkOp::Abs,
        Unary::Sqrt => LinkOp::Sqrt,
        Unary::Reciprocal => LinkOp::Reciprocal,
        Unary::Cos => LinkOp::Cos,
        Unary::Sin => LinkOp::Sin,
        Unary::Erf => LinkOp::Erf,
        Unary::Tanh => LinkOp::Tanh,
        Unary::Sigmoid => LinkOp::Sigmoid,
        Unary::Exp => LinkOp::Exp,
        Unary::Neg => LinkOp::Neg,
        Unary::GeluErf => LinkOp::GeluErf,
        Unary::GeluTanh => LinkOp::GeluTanh,
    }
}

fn binary(op: Binary) -> LinkOp {
    match op {
        Binary::Add => LinkOp::Add,
        Binary::Sub => LinkOp::Sub,
        Binary::Mul => LinkOp::Mul,
        Binary::Div => LinkOp::Div,
        Binary::Pow => LinkOp::Pow,
        Binary::Min => LinkOp::Min,
        Binary::Max => LinkOp::Max,
    }
}
