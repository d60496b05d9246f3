//! Turns nodes into tasks: values get buffers, and what only moves numbers becomes a view.
//!
//! A value of floats whose shape is known is a view of a buffer, an input or a constant; every
//! other value is loose, and operators that have no task of their own are called on values.

use super::super::array::{Value, axis_of};
use super::super::chain::Chain;
use super::super::op::{Conv, Op};
use super::super::ops::layout::split_sizes;
use super::super::shapes::{frame_of, list, slice_of, transposition};
use super::super::task::{Attention, Call, Factor, Feed, Linear, Map, Norm, Sink, Task, Work};
use super::super::view::{Home, View};
use super::net::{self, Kind, Net, Node};

/// Tasks in order, and how many numbers each buffer holds.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) tasks: Vec<Task>,
    pub(super) buffers: Vec<usize>,
    pub(super) outputs: Vec<Feed>,
}

/// Tasks of all nodes of `net`.
pub(super) fn lower(net: &Net) -> Lowered {
    let mut lower = Lower {
        net,
        sites: vec![None; net.facts.len()],
        makers: vec![None; net.facts.len()],
        reads: reads(net),
        buffers: Vec::new(),
        tasks: Vec::new(),
    };
    lower.place_what_is_given();
    for node in &net.nodes {
        if lower.node(node).is_none() {
            lower.call(node);
        }
    }
    let outputs: Vec<Feed> = net.outputs.iter().map(|&place| lower.feed(place)).collect();
    let Lower { mut tasks, buffers, .. } = lower;
    mark_last_readers(&mut tasks, &outputs);
    Lowered { tasks, buffers, outputs }
}

/// How often each place is read, outputs of the graph counted.
fn reads(net: &Net) -> Vec<usize> {
    let mut reads = vec![0; net.facts.len()];
    let places = net.nodes.iter().flat_map(|node| node.inputs.iter().flatten());
    places.chain(&net.outputs).for_each(|&place| reads[place] += 1);
    reads
}

/// Lets each call give up the loose values that nobody reads after it.
fn mark_last_readers(tasks: &mut [Task], outputs: &[Feed]) {
    let loose = |feed: &Feed| match feed {
        Feed::Loose(place) => Some(*place),
        Feed::Known(_) | Feed::View(_) => None,
    };
    let mut later: Vec<usize> = outputs.iter().filter_map(loose).collect();
    for task in tasks.iter_mut().rev() {
        let Work::Call(call) = &mut task.work else { continue };
        for place in call.inputs.iter().flatten().filter_map(loose) {
            if !later.contains(&place) {
                later.push(place);
                call.done.push(place);
            }
        }
    }
}

struct Lower<'a> {
    net: &'a Net,
    /// Where each place of floats lies.
    sites: Vec<Option<View>>,
    /// The task that gives a place its own buffer.
    makers: Vec<Option<usize>>,
    reads: Vec<usize>,
    buffers: Vec<usize>,
    tasks: Vec<Task>,
}

impl Lower<'_> {
    fn place_what_is_given(&mut self) {
        for (place, value) in self.net.known.iter().enumerate() {
            let transposed = match value {
                None | Some(Value::I64(_)) => continue,
                Some(Value::F32(_)) => false,
                // In stripes there is nothing to view.
                Some(Value::Weight(weight)) if !weight.is_by_rows() => continue,
                Some(Value::Weight(weight)) => weight.transposed,
            };
            let shape = value.as_ref().expect("it is known").shape();
            let home = Home::Constant(place);
            self.sites[place] = Some(match (transposed, shape) {
                (true, &[rows, columns]) => {
                    View::whole(home, vec![columns, rows]).transposed(&[1, 0])
                }
                _ => View::whole(home, shape.to_vec()),
            });
        }
        for (index, &place) in self.net.inputs.iter().enumerate() {
            self.sites[place] =
                self.shape(place).map(|shape| View::whole(Home::Input(index), shape));
        }
    }

    /// The dimensions of a place of floats.
    fn shape(&self, place: usize) -> Option<Vec<usize>> {
        let fact = self.net.facts[place].as_ref().filter(|fact| !fact.integer)?;
        Some(fact.shape.clone())
    }

    fn site(&self, place: Option<usize>) -> Option<View> {
        self.sites[place?].clone()
    }

    /// The integers of a known list.
    fn list(&self, place: Option<usize>) -> Option<Vec<i64>> {
        list(self.net.known[place?].as_ref()?)
    }

    fn feed(&self, place: usize) -> Feed {
        if self.net.known[place].is_some() {
            return Feed::Known(place);
        }
        self.sites[place].clone().map_or(Feed::Loose(place), Feed::View)
    }

    /// A new buffer of `shape`.
    fn buffer(&mut self, shape: Vec<usize>) -> View {
        self.buffers.push(shape.iter().product());
        View::whole(Home::Buffer(self.buffers.len() - 1), shape)
    }

    fn push(&mut self, node: &Node, work: Work) {
        self.tasks.push(Task { work, title: node.title.clone() });
    }

    /// The same numbers side by side.
    fn contiguous(&mut self, node: &Node, view: View) -> View {
        if view.is_contiguous() {
            return view;
        }
        let out = self.buffer(view.shape.clone());
        self.copy(node, view, out.clone());
        out
    }

    fn copy(&mut self, node: &Node, from: View, out: View) {
        let chain = Chain { links: vec![] };
        self.push(node, Work::Map(Map { chain, operands: vec![from], out }));
    }

    /// `view` under another shape, copied only if it must be.
    fn reshaped(&mut self, node: &Node, view: View, shape: &[usize]) -> View {
        if let Some(view) = view.reshaped(shape) {
            return view;
        }
        let whole = self.contiguous(node, view);
        whole.reshaped(shape).expect("numbers side by side take any shape")
    }

    /// Gives the first output of `node` its site.
    fn give(&mut self, node: &Node, view: View) -> Option<()> {
        let place = node.outputs[0]?;
        self.sites[place] = Some(view);
        Some(())
    }

    /// Makes tasks of `node`; `None` where it has to be called.
    fn node(&mut self, node: &Node) -> Option<()> {
        let shape = self.shape(node.outputs[0]?)?;
        match &node.kind {
            Kind::Chain(chain) => self.map(node, chain, shape),
            Kind::Attention { scale } => self.attention(node, *scale, &shape),
            Kind::Norm(norm) => self.norm(node, *norm, &shape),
            Kind::One(op) => self.one(node, op, shape),
        }
    }

    fn map(&mut self, node: &Node, chain: &Chain, shape: Vec<usize>) -> Option<()> {
        let operand = |place: &Option<usize>| self.site(*place)?.repeated(&shape);
        let operands = node.inputs.iter().map(operand).collect::<Option<Vec<_>>>()?;
        let out = self.buffer(shape);
        self.makers[node.outputs[0]?] = Some(self.tasks.len());
        self.push(node, Work::Map(Map { chain: chain.clone(), operands, out: out.clone() }));
        self.give(node, out)
    }

    fn norm(&mut self, node: &Node, norm: net::Norm, shape: &[usize]) -> Option<()> {
        let x = self.site(node.inputs[0])?;
        let x = self.contiguous(node, x);
        let width = *shape.last()?;
        let rows = [shape[..shape.len() - 1].iter().product(), width];
        let x = x.reshaped(&rows).expect("it is contiguous");
        let out = self.buffer(rows.to_vec());
        let net::Norm { centred, eps } = norm;
        let (scale, bias) = (node.inputs[1], node.inputs[2]);
        self.push(node, Work::Norm(Norm { centred, eps, x, scale, bias, out: out.clone() }));
        self.give(node, out.reshaped(shape).expect("it is contiguous"))
    }

    fn attention(&mut self, node: &Node, scale: f32, shape: &[usize]) -> Option<()> {
        let four = |dims: &[usize]| [&[1, 1, 1, 1][dims.len()..], dims].concat();
        let &[batch, heads, queries, width] = &four(shape)[..] else { return None };
        let q = self.site(node.inputs[0])?;
        let depth = *q.shape.last()?;
        let q = q.repeated(&[batch, heads, queries, depth])?;
        let k = self.site(node.inputs[1])?;
        let keys = *k.shape.last()?;
        let k = k.repeated(&[batch, heads, depth, keys])?.transposed(&[0, 1, 3, 2]);
        let v = self.site(node.inputs[2])?.repeated(&[batch, heads, keys, width])?;
        let mask = match node.inputs[3] {
            None => None,
            mask => Some(self.site(mask)?.repeated(&[batch, heads, queries, keys])?),
        };
        let out = self.buffer(vec![batch, queries, heads, width]);
        let work = Attention { q, k, v, mask, scale, out: out.clone() };
        self.push(node, Work::Attention(work));
        let rows = out.transposed(&[0, 2, 1, 3]).reshaped(shape);
        self.give(node, rows.expect("leading dimensions of 1 go without a copy"))
    }

    fn one(&mut self, node: &Node, op: &Op, shape: Vec<usize>) -> Option<()> {
        match op {
            Op::MatMul => return self.mat_mul(node, shape),
            Op::Gemm { .. } => return self.gemm(node, op, shape),
            Op::Conv(conv) => return self.conv(node, conv, &shape),
            Op::Concat { axis } => return self.concat(node, *axis, shape),
            Op::Pad => return self.pad(node, shape),
            Op::Split { axis, parts } => return self.split(node, *axis, *parts),
            _ => {}
        }
        let view = self.site(node.inputs[0])?;
        let view = match op {
            Op::Reshape { .. } | Op::Flatten { .. } | Op::Squeeze | Op::Unsqueeze => {
                self.reshaped(node, view, &shape)
            }
            Op::Transpose { order } => {
                let order = transposition(order.as_deref(), view.shape.len())?;
                view.transposed(&order)
            }
            Op::Expand => view.repeated(&shape)?,
            Op::Slice => {
                let cut = slice_of(&view.shape, &self.net.given(&node.inputs)?)?;
                let mut view = view;
                for (axis, &step) in cut.steps.iter().enumerate() {
                    let step = usize::try_from(step).ok()?;
                    view = view.cut(axis, cut.first[axis], cut.shape[axis], step);
                }
                view
            }
            _ => return None,
        };
        self.give(node, view)
    }

    fn split(&mut self, node: &Node, axis: i64, parts: usize) -> Option<()> {
        let view = self.site(node.inputs[0])?;
        let axis = axis_of(axis, view.shape.len()).ok()?;
        let sizes = match node.inputs.get(1).copied().flatten() {
            None => None,
            sizes => Some(self.list(sizes)?),
        };
        let mut first = 0;
        for (place, size) in
            node.outputs.iter().zip(split_sizes(view.shape[axis], parts, sizes).ok()?)
        {
            if let Some(place) = place {
                self.sites[*place] = Some(view.cut(axis, first, size, 1));
            }
            first += size;
        }
        Some(())
    }

    /// Lets what makes the parts write them where they belong, or copies them there.
    fn concat(&mut self, node: &Node, axis: i64, shape: Vec<usize>) -> Option<()> {
        let axis = axis_of(axis, shape.len()).ok()?;
        let parts =
            node.inputs.iter().map(|place| self.site(*place)).collect::<Option<Vec<_>>>()?;
        let out = self.buffer(shape);
        let mut first = 0;
        for (place, part) in node.inputs.iter().zip(parts) {
            let size = part.shape[axis];
            let to = out.cut(axis, first, size, 1);
            first += size;
            match self.own_map((*place)?) {
                Some(map) => map.out = to,
                None => self.copy(node, part, to),
            }
        }
        self.give(node, out)
    }

    /// The map that gives `place`, if it may give it elsewhere: nobody else reads the place.
    fn own_map(&mut self, place: usize) -> Option<&mut Map> {
        let task = self.makers[place].filter(|_| self.reads[place] == 1)?;
        match &mut self.tasks[task].work {
            Work::Map(map) => Some(map),
            _ => None,
        }
    }

    fn pad(&mut self, node: &Node, shape: Vec<usize>) -> Option<()> {
        let view = self.site(node.inputs[0])?;
        let given = self.net.given(&node.inputs)?;
        let frame = frame_of(&view.shape, &given)?;
        let value = match node.inputs.get(2).copied().flatten() {
            None => 0.0,
            Some(place) => match self.net.known[place].as_ref()? {
                Value::F32(array) if array.len() == 1 => array.data()[0],
                _ => return None,
            },
        };
        let (mut from, mut to) = (view, self.buffer(shape));
        let out = to.clone();
        for axis in 0..out.shape.len() {
            let len = frame.cut.shape[axis];
            from = from.cut(axis, frame.cut.first[axis], len, 1);
            to = to.cut(axis, frame.to[axis], len, 1);
        }
        self.push(node, Work::Fill { out: out.clone(), value });
        self.copy(node, from, to);
        self.give(node, out)
    }

    fn mat_mul(&mut self, node: &Node, shape: Vec<usize>) -> Option<()> {
        let (weight, _) = self.factor(node.inputs[1], false)?;
        let x = self.site(node.inputs[0]).filter(|x| x.shape.len() >= 2)?;
        self.linear(node, x, weight, None, &shape)
    }

    fn gemm(&mut self, node: &Node, op: &Op, shape: Vec<usize>) -> Option<()> {
        let &Op::Gemm { alpha, beta, transpose_a: false, transpose_b } = op else { return None };
        let bias = node.inputs.get(2).copied().flatten();
        let scaled = alpha != 1.0 || (bias.is_some() && beta != 1.0);
        if scaled || !self.is_bias(bias, shape[1]) {
            return None;
        }
        let (weight, _) = self.factor(node.inputs[1], transpose_b)?;
        let x = self.site(node.inputs[0])?;
        self.linear(node, x, weight, bias, &shape)
    }

    /// The constant `place` as a matrix with a row for each output, and its shape for the graph;
    /// `by_rows` says whether the graph has its first dimension for the outputs.
    fn factor(&self, place: Option<usize>, by_rows: bool) -> Option<(Factor, Vec<usize>)> {
        let place = place?;
        if let Some(Value::Weight(weight)) = &self.net.known[place]
            && !weight.is_by_rows()
        {
            let fits = by_rows != weight.transposed;
            return fits.then(|| (Factor::Striped(place), weight.shape.clone()));
        }
        let view = self.site(Some(place)).filter(|view| matches!(view.home, Home::Constant(_)))?;
        let shape = view.shape.clone();
        let rows = match (by_rows, &shape[..]) {
            (true, [outputs, rest @ ..]) => view.reshaped(&[*outputs, rest.iter().product()])?,
            (false, [_, _]) => view.transposed(&[1, 0]),
            _ => return None,
        };
        Some((Factor::View(rows), shape))
    }

    /// Whether `bias` is none, or a constant of one float for each of `outputs`.
    fn is_bias(&self, bias: Option<usize>, outputs: usize) -> bool {
        let Some(place) = bias else { return true };
        let value = self.net.known[place].as_ref();
        value.is_some_and(|value| match value {
            Value::F32(array) => array.len() == outputs && array.shape().last() == Some(&outputs),
            _ => false,
        })
    }

    fn linear(
        &mut self,
        node: &Node,
        x: View,
        weight: Factor,
        bias: Option<usize>,
        shape: &[usize],
    ) -> Option<()> {
        let (outer, outputs) = (&shape[..shape.len() - 1], *shape.last()?);
        let rows = outer.iter().product();
        let columns = *x.shape.last()?;
        let x = self.contiguous(node, x);
        let x = x.reshaped(&[rows, columns]).expect("it is contiguous");
        let out = self.buffer(vec![rows, outputs]);
        self.push(node, Work::Linear(Linear { x, weight, bias, out: out.clone() }));
        self.give(node, out.reshaped(shape).expect("it is contiguous"))
    }

    /// A convolution whose windows lie side by side is a product of its patches.
    fn conv(&mut self, node: &Node, conv: &Conv, shape: &[usize]) -> Option<()> {
        let (weight, dims) = self.factor(node.inputs[1], true)?;
        let &[kernels, channels, high, wide] = &dims[..] else { return None };
        let bias = node.inputs.get(2).copied().flatten();
        let is_patches = conv.windows.is_tiling([high, wide]) && conv.groups == 1;
        if !is_patches || !self.is_bias(bias, kernels) {
            return None;
        }
        let image = self.site(node.inputs[0])?;
        let &[batch, _, down, across] = shape else { return None };
        // Pixels beyond the last whole window are never seen.
        let image = image.cut(2, 0, down * high, 1).cut(3, 0, across * wide, 1);
        let cells = image.reshaped(&[batch, channels, down, high, across, wide])?;
        let cells = cells.transposed(&[0, 2, 4, 1, 3, 5]);
        let x = self.contiguous(node, cells);
        let x = x.reshaped(&[batch * down * across, channels * high * wide])?;
        let out = self.buffer(vec![x.shape[0], kernels]);
        self.push(node, Work::Linear(Linear { x, weight, bias, out: out.clone() }));
        let places = out.reshaped(&[batch, down, across, kernels]).expect("it is contiguous");
        self.give(node, places.transposed(&[0, 3, 1, 2]))
    }

    /// Lets the operator of `node` run on values of its own.
    fn call(&mut self, node: &Node) {
        let Kind::One(op) = &node.kind else {
            unreachable!("what passes put together has known shapes")
        };
        let inputs = node.inputs.iter().map(|place| place.map(|place| self.feed(place))).collect();
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for &place in &node.outputs {
            outputs.push(place.map(|place| match self.shape(place) {
                Some(shape) => {
                    let view = self.buffer(shape);
                    self.sites[place] = Some(view.clone());
                    Sink::View(view)
                }
                None => Sink::Loose(place),
            }));
        }
        self.push(node, Work::Call(Call { op: op.clone(), inputs, outputs, done: vec![] }));
    }
}
