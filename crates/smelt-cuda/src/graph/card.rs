//! Runs lowered plans on a card: memory, constants, launches, what comes in and what goes out.
//!
//! A run is one stream's work from the first copy to the last, and is waited for; runs of the graphs of a directory take
//! turns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use bytemuck::{cast_slice, cast_slice_mut};
use smelt_backend::Tensor;
use smelt_engine::graph::GraphEngine;
use smelt_engine::graph::plan::{HostValues, Plan};

use super::GraphFault;
use super::constants::{Bringing, Constants, kind_of};
use super::lower::{
    Becomes, HeadsAt, HeadsIn, Integers, Lowered, Output, Spot, Step, WeightKey, lower,
};
use crate::decoder::memory::Arena;
use crate::driver::{Driver, DriverError, Priority};
use crate::kernels::form::WeightForm;
use crate::kernels::graph::{
    self, AttendAll, GatherNumbers, HeadBlocks, HeadsView, Map, NormNumbers, Numbers,
};
use crate::kernels::layout::padded_columns;
use crate::kernels::product::{Activations, DeviceWeight, Outcome, default_shape, product};
use crate::kernels::rows::NumberKind;
use crate::kernels::source::graph_head;
use crate::owned::{DeviceBuffer, HostBuffer, OwnedModule, OwnedStream};
use crate::{DeviceAddress, Launch};

/// Plans that are kept, of all graphs together: one for each size of pictures that comes often.
const PLANS_MAX: usize = 16;
/// Memory for values grows to whole multiples of this, so that it rarely does.
const STEP_BYTES: u64 = 1 << 20;
/// So many numbers are worth a thread: to begin one takes longer than to move a part of them.  More than some are no faster
/// than memory.
const SHARE: usize = 1 << 20;
const SHARES_MAX: usize = 8;
/// Numbers that are on their way to the card while others are staged.
const SLAB: usize = 1 << 16;

/// A card with the kernels of a directory's graphs.
#[derive(Debug)]
pub(super) struct Card {
    // What work names is given back before the stream.
    plans: VecDeque<Compiled>,
    lasting: Constants,
    space: Option<DeviceBuffer>,
    host: Option<HostBuffer>,
    module: OwnedModule,
    stream: OwnedStream,
    driver: Arc<dyn Driver>,
    head: usize,
    /// Why the device does nothing more, if so.
    lost: Option<DriverError>,
}

/// What a graph is for inputs of certain shapes.
#[derive(Debug)]
struct Compiled {
    graph: usize,
    shapes: Vec<Vec<usize>>,
    plan: Plan,
    lowered: Lowered,
    /// Constants that are its own.
    own: Constants,
    /// Words of its chains, and where each begins.
    programs: DeviceBuffer,
    starts: Vec<u64>,
}

impl Card {
    /// A card with these kernels, for heads of up to `head` numbers and weights of so many bytes.
    pub(super) fn new(
        driver: &Arc<dyn Driver>,
        kernels: &[u8],
        head: usize,
        weights_bytes: u64,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            plans: VecDeque::new(),
            lasting: Constants::new(driver, weights_bytes),
            space: None,
            host: None,
            module: OwnedModule::new(driver, kernels)?,
            stream: OwnedStream::new(driver, Priority::Low)?,
            driver: Arc::clone(driver),
            head,
            lost: None,
        })
    }

    /// Makes ready what a graph needs for inputs of such shapes.
    pub(super) fn prepare(
        &mut self,
        graph: usize,
        engine: &GraphEngine,
        inputs: &[Tensor],
    ) -> Result<(), GraphFault> {
        let at = self.compiled(graph, engine, inputs)?;
        let mut compiled = self.plans.remove(at).expect("it was found");
        let did = self.bring(engine, &mut compiled);
        self.plans.push_back(compiled);
        did
    }

    /// Runs a graph.
    pub(super) fn run(
        &mut self,
        graph: usize,
        engine: &GraphEngine,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, GraphFault> {
        if let Some(error) = &self.lost {
            return Err(error.clone().into());
        }
        let at = self.compiled(graph, engine, &inputs)?;
        let mut compiled = self.plans.remove(at).expect("it was found");
        let ran = self.run_compiled(engine, &mut compiled, inputs);
        self.plans.push_back(compiled);
        ran.inspect_err(|fault| self.fault(fault))
    }

    /// Takes note of an error of the device, and waits for what is still on the stream.
    fn fault(&mut self, fault: &GraphFault) {
        let later = settle(&self.stream).err();
        let first = match fault {
            GraphFault::Driver(error) => Some(error.clone()),
            GraphFault::Graph(_) => None,
        };
        let sticky = first.into_iter().chain(later).find(DriverError::is_sticky);
        self.lost = self.lost.take().or(sticky);
    }

    /// Which of the plans is for such inputs; it is made if there is none.
    fn compiled(
        &mut self,
        graph: usize,
        engine: &GraphEngine,
        inputs: &[Tensor],
    ) -> Result<usize, GraphFault> {
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|input| input.shape().to_vec()).collect();
        let is_own = |own: &Compiled| own.graph == graph && own.shapes == shapes;
        if let Some(at) = self.plans.iter().position(is_own) {
            return Ok(at);
        }
        let told = |error: smelt_backend::GraphError| GraphFault::Graph(error.to_string());
        let plan = engine.compiled(inputs).map_err(told)?;
        let numbers: Vec<usize> =
            inputs.iter().map(|input| input.floats().map_or(0, <[f32]>::len)).collect();
        let kinds = |place| kind_of(engine, &plan, place);
        let lowered = lower(&plan, &numbers, self.head, &kinds).map_err(GraphFault::Graph)?;
        let (programs, starts) = self.programs(&lowered)?;
        let own = Constants::new(&self.driver, own_bytes(engine, &plan, &lowered));
        if self.plans.len() == PLANS_MAX {
            self.plans.pop_front();
        }
        self.plans.push_back(Compiled { graph, shapes, plan, lowered, own, programs, starts });
        Ok(self.plans.len() - 1)
    }

    /// Brings the words of all chains.
    fn programs(&self, lowered: &Lowered) -> Result<(DeviceBuffer, Vec<u64>), DriverError> {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for program in &lowered.programs {
            starts.push(bytes.len() as u64);
            bytes.extend(program.words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let buffer = DeviceBuffer::new(&self.driver, bytes.len().max(4) as u64)?;
        if !bytes.is_empty() {
            self.driver.copy_to_device(self.stream.id(), buffer.address(), &bytes)?;
        }
        Ok((buffer, starts))
    }

    /// Brings the constants of a plan.
    fn bring(&mut self, engine: &GraphEngine, compiled: &mut Compiled) -> Result<(), GraphFault> {
        let steps = compiled.lowered.steps.clone();
        let mut at = Places { card: self, engine, compiled };
        for step in &steps {
            at.bring(step)?;
        }
        Ok(())
    }

    fn run_compiled(
        &mut self,
        engine: &GraphEngine,
        compiled: &mut Compiled,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, GraphFault> {
        let told = |error: smelt_backend::GraphError| GraphFault::Graph(error.to_string());
        let values = engine.host_values(&compiled.plan, &inputs).map_err(told)?;
        self.make_room(&compiled.lowered, &inputs)?;
        let steps = compiled.lowered.steps.clone();
        let mut staged = 0;
        for step in &steps {
            match step {
                Step::Input { index, to } => {
                    let numbers = inputs[*index].floats().unwrap_or_default();
                    let to = self.value(&compiled.lowered, *to, 0);
                    staged = self.send(staged, to, numbers)?;
                }
                Step::Hosted { task, output, to } => {
                    let numbers = values.floats(*task, *output).unwrap_or_default();
                    let to = self.value(&compiled.lowered, *to, 0);
                    self.driver.copy_to_device(self.stream.id(), to, cast_slice(numbers))?;
                }
                Step::Indices { from, size, count, to } => {
                    let words = indices(&compiled.plan, &values, *from, [*size, *count])?;
                    let to = self.value(&compiled.lowered, *to, 0);
                    self.driver.copy_to_device(self.stream.id(), to, &words)?;
                }
                Step::Clear { value } => {
                    let bytes = compiled.lowered.bytes[*value];
                    let at = self.value(&compiled.lowered, *value, 0);
                    self.driver.memset(self.stream.id(), at, 0, bytes)?;
                }
                step => Places { card: self, engine, compiled }.launch(step)?,
            }
        }
        // The card is at work meanwhile.
        drop(inputs);
        self.outputs(engine, compiled, &values)
    }

    /// Takes memory for the values of a plan, and page-locked memory for what comes in and goes out.
    fn make_room(&mut self, lowered: &Lowered, inputs: &[Tensor]) -> Result<(), DriverError> {
        if self.space.as_ref().is_none_or(|space| space.bytes() < lowered.total) {
            self.space = None;
            let bytes = lowered.total.max(1).next_multiple_of(STEP_BYTES);
            self.space = Some(DeviceBuffer::new(&self.driver, bytes)?);
        }
        let comes: u64 = inputs.iter().map(|input| input.bytes() as u64 + 64).sum();
        let goes = lowered.outputs.iter().map(|output| match output {
            Output::Card { shape, .. } => shape.iter().product::<usize>() as u64 * 4,
            Output::Host => 0,
        });
        let bytes = comes.max(goes.sum());
        if self.host.as_ref().is_none_or(|host| host.bytes() < bytes) {
            self.host = None;
            let bytes = bytes.max(1).next_multiple_of(STEP_BYTES);
            self.host = Some(HostBuffer::new(&self.driver, bytes)?);
        }
        Ok(())
    }

    /// Puts the copy of an input on the stream, which is staged from byte `at` on; where the next may be.
    fn send(&self, at: u64, to: DeviceAddress, numbers: &[f32]) -> Result<u64, DriverError> {
        let Some(host) = &self.host else { return Ok(at) };
        let share = share_of(numbers.len());
        let parts = numbers.chunks(share).zip((0..).step_by(share * 4));
        let put = |(part, first): (&[f32], u64)| {
            for (slab, first) in part.chunks(SLAB).zip((first..).step_by(SLAB * 4)) {
                host.write(at + first, cast_slice(slab))?;
                let (from, bytes) = (host.address().offset(at + first), slab.len() as u64 * 4);
                self.driver.copy(self.stream.id(), to.offset(first), from, bytes)?;
            }
            Ok(())
        };
        at_once(parts, &put)?;
        Ok((at + numbers.len() as u64 * 4).next_multiple_of(64))
    }

    /// Waits for a run, and reads what it gives.
    fn outputs(
        &self,
        engine: &GraphEngine,
        compiled: &Compiled,
        values: &HostValues,
    ) -> Result<Vec<Tensor>, GraphFault> {
        let (mut at, mut rooms) = (0, Vec::new());
        for output in &compiled.lowered.outputs {
            let mut room = (at, Vec::new());
            if let (Output::Card { at: from, shape }, Some(host)) = (output, &self.host) {
                let count = shape.iter().product::<usize>();
                let (from, bytes) = (self.spot(&compiled.lowered, *from), count as u64 * 4);
                self.driver.copy(self.stream.id(), host.address().offset(at), from, bytes)?;
                // The system gives the memory while the card is at work.
                room.1.resize(count, 0.0);
                at += bytes;
            }
            rooms.push(room);
        }
        self.stream.synchronize()?;
        let mut outputs = Vec::new();
        let feeds = compiled.plan.outputs();
        for ((output, feed), (at, mut data)) in
            compiled.lowered.outputs.iter().zip(feeds).zip(rooms)
        {
            outputs.push(match (output, &self.host) {
                (Output::Card { shape, .. }, Some(host)) => {
                    receive(host, at, &mut data)?;
                    Tensor::F32 { shape: shape.clone(), data }
                }
                _ => {
                    let told = |error: smelt_backend::GraphError| error.to_string();
                    let output = engine.host_output(&compiled.plan, feed, values);
                    output.map_err(|error| GraphFault::Graph(told(error)))?
                }
            });
        }
        Ok(outputs)
    }

    /// Where number `number` of a value lies.
    fn value(&self, lowered: &Lowered, value: usize, number: usize) -> DeviceAddress {
        let space = self.space.as_ref().map_or(DeviceAddress::NULL, DeviceBuffer::address);
        space.offset(lowered.offsets[value] + number as u64 * 4)
    }

    /// The same of a spot that is no constant's.
    fn spot(&self, lowered: &Lowered, spot: Spot) -> DeviceAddress {
        match spot {
            Spot::Value(value, number) => self.value(lowered, value, number),
            Spot::Constant(..) => DeviceAddress::NULL,
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // Nothing may be left that names memory which goes; a device that is lost does nothing.
        let _ = settle(&self.stream);
    }
}

/// Waits until nothing is left on a stream, in any case.
pub(super) fn settle(stream: &OwnedStream) -> Result<(), DriverError> {
    stream.synchronize().or_else(|first| stream.synchronize().and(Err(first)))
}

/// Indices as a card takes them, each inside its dimension.
fn indices(
    plan: &Plan,
    values: &HostValues,
    from: Integers,
    [size, count]: [usize; 2],
) -> Result<Vec<u8>, GraphFault> {
    let fault = |problem: String| GraphFault::Graph(problem);
    let numbers = match from {
        Integers::Known(place) => plan.integers(place),
        Integers::Loose(place) => values.integers(place),
    };
    let numbers = numbers.filter(|numbers| numbers.len() == count);
    let numbers = numbers.ok_or_else(|| fault("indices were never computed".to_owned()))?;
    let mut bytes = Vec::with_capacity(count * 4);
    for &number in numbers {
        let index = if number < 0 { number + size as i64 } else { number };
        let index = u32::try_from(index).ok().filter(|index| (*index as usize) < size);
        let index = index.ok_or_else(|| fault(format!("index {number} is not of {size}")))?;
        bytes.extend(index.to_le_bytes());
    }
    Ok(bytes)
}

/// Bytes of the constants of a plan that are its own, as they come to lie on the card.
fn own_bytes(engine: &GraphEngine, plan: &Plan, lowered: &Lowered) -> u64 {
    let is_own = |place: usize| engine.lasting(plan, place).is_none();
    let stored = |place: usize| {
        let bytes = engine.stored(plan, place).map_or(0, |(_, bytes)| bytes.len());
        Arena::aligned(bytes as u64)
    };
    let packed = |key: &WeightKey| Arena::aligned(graph::packed_halves(key.shape) * 2);
    let (numbers, weights) = lowered.constants();
    let numbers = numbers.into_iter().filter(|place| is_own(*place)).map(stored);
    let weights = weights.into_iter().filter(|key| is_own(key.place)).map(packed);
    numbers.sum::<u64>() + weights.sum::<u64>()
}

/// Numbers of each thread that moves some of `count`.
fn share_of(count: usize) -> usize {
    count.div_ceil(count.div_ceil(SHARE).clamp(1, SHARES_MAX)).max(1)
}

/// Reads numbers from byte `at` of page-locked memory on: little-endian, as hosts with cards are.
fn receive(host: &HostBuffer, at: u64, numbers: &mut [f32]) -> Result<(), DriverError> {
    let share = share_of(numbers.len());
    let parts = numbers.chunks_mut(share).zip((at..).step_by(share * 4));
    at_once(parts, &|(part, at)| host.read(at, cast_slice_mut(part)))
}

/// Does something with each part in a thread of its own, the last here.
fn at_once<T: Send>(
    parts: impl Iterator<Item = T>,
    each: &(impl Fn(T) -> Result<(), DriverError> + Sync),
) -> Result<(), DriverError> {
    let mut parts: Vec<T> = parts.collect();
    let Some(last) = parts.pop() else { return Ok(()) };
    thread::scope(|scope| {
        let others: Vec<_> =
            parts.into_iter().map(|part| scope.spawn(move || each(part))).collect();
        let own = each(last);
        let all = others.into_iter().map(|other| other.join().expect("moving does not panic"));
        all.fold(own, Result::and)
    })
}

/// A plan whose constants are found, or brought where they are not there yet.
struct Places<'a> {
    card: &'a mut Card,
    engine: &'a GraphEngine,
    compiled: &'a mut Compiled,
}

impl Places<'_> {
    fn numbers(&mut self, place: usize) -> Result<Numbers, GraphFault> {
        let Self { card, engine, compiled } = self;
        let Card { driver, stream, module, lasting, .. } = &mut **card;
        let Compiled { plan, own, .. } = &mut **compiled;
        let bringing = Bringing { driver, stream, module, engine, plan };
        match engine.lasting(plan, place) {
            Some(key) => lasting.numbers(bringing, key, place),
            None => own.numbers(bringing, place, place),
        }
    }

    fn weight(&mut self, key: &WeightKey) -> Result<DeviceAddress, GraphFault> {
        let Self { card, engine, compiled } = self;
        let Card { driver, stream, module, lasting, .. } = &mut **card;
        let Compiled { plan, own, .. } = &mut **compiled;
        let bringing = Bringing { driver, stream, module, engine, plan };
        match engine.lasting(plan, key.place) {
            Some(file) => {
                let shared = WeightKey { place: file, ..key.clone() };
                lasting.weight(bringing, shared, key.place)
            }
            None => own.weight(bringing, key.clone(), key.place),
        }
    }

    /// Where a vector of f32 lies; no place for none.
    fn vector(&mut self, place: Option<usize>) -> Result<DeviceAddress, GraphFault> {
        let Some(place) = place else { return Ok(DeviceAddress::NULL) };
        let numbers = self.numbers(place)?;
        match numbers.kind {
            NumberKind::F32 => Ok(numbers.at),
            NumberKind::F16 | NumberKind::Bf16 => {
                Err(GraphFault::Graph("a vector is no f32".to_owned()))
            }
        }
    }

    fn spot(&mut self, spot: Spot) -> Result<DeviceAddress, GraphFault> {
        match spot {
            Spot::Value(value, number) => {
                Ok(self.card.value(&self.compiled.lowered, value, number))
            }
            Spot::Constant(place, number) => {
                let numbers = self.numbers(place)?;
                Ok(numbers.at.offset((number * numbers.kind.bytes()) as u64))
            }
        }
    }

    fn heads(&mut self, heads: &HeadsAt) -> Result<HeadsView, GraphFault> {
        let from = Numbers { at: self.spot(heads.at)?, kind: heads.kind };
        Ok(HeadsView { from, shape: heads.shape, steps: heads.steps })
    }

    fn head_blocks(&self, heads: HeadsIn) -> HeadBlocks {
        let halves = self.card.value(&self.compiled.lowered, heads.value, 0);
        HeadBlocks { halves, eights: heads.rows.div_ceil(8), columns: heads.columns }
    }

    fn outcome(&mut self, into: Becomes, stride: u32) -> Result<Outcome, GraphFault> {
        Ok(match into {
            Becomes::Rows(out) => Outcome::Store { out: self.spot(out)?, stride },
            Becomes::Sum { out, before, gains } => Outcome::Sum {
                out: self.spot(out)?,
                before: self.spot(before)?,
                gains: self.vector(gains)?,
                stride,
            },
            Becomes::Halves { out, turn } => {
                Outcome::Halves { out: self.spot(Spot::Value(out, 0))?, turn }
            }
        })
    }

    /// A product by the kernel that takes the least time for its sizes.
    fn product(
        &mut self,
        x: usize,
        weight: &WeightKey,
        bias: Option<usize>,
        tokens: u32,
        into: Becomes,
    ) -> Result<Launch, GraphFault> {
        let [outputs, columns] = weight.shape;
        let columns = padded_columns(columns as usize) as u32;
        let levels = self.weight(weight)?;
        let device = DeviceWeight::of_levels(WeightForm::OF_GRAPHS, outputs, columns, levels);
        let bias = self.vector(bias)?;
        let halves = self.spot(Spot::Value(x, 0))?;
        let x = Activations { halves, sums: DeviceAddress::NULL, tokens };
        let outcome = self.outcome(into, outputs)?;
        let processors = self.card.driver.card().processors();
        let shape = default_shape(device.form, [outputs, columns], tokens, processors);
        Ok(product(&device, bias, x, outcome, (shape, processors)))
    }

    /// Brings the constants of a step.
    fn bring(&mut self, step: &Step) -> Result<(), GraphFault> {
        for place in step.constants() {
            self.numbers(place)?;
        }
        if let Step::Product { weight, .. } = step {
            self.weight(weight)?;
        }
        Ok(())
    }

    /// Puts a kernel on the stream.
    fn launch(&mut self, step: &Step) -> Result<(), GraphFault> {
        let launch = match step {
            Step::Norm { x, out, form, scale, bias, rows, width, centred, eps } => {
                graph::norm(NormNumbers {
                    out: self.spot(*out)?,
                    form: *form,
                    x: self.spot(*x)?,
                    scale: self.vector(*scale)?,
                    bias: self.vector(*bias)?,
                    rows: *rows,
                    width: *width,
                    centred: *centred,
                    eps: *eps,
                })
            }
            Step::Product { x, weight, bias, rows, into } => {
                self.product(*x, weight, *bias, *rows, *into)?
            }
            Step::Arrange { from, out } => {
                let out = self.spot(Spot::Value(*out, 0))?;
                graph::arrange(out, self.heads(from)?, graph_head(self.card.head))
            }
            Step::Attend { parts, mask, scale, heads, rows, numbers, out, form } => {
                let mask = mask.as_ref().map(|mask| self.heads(mask)).transpose()?;
                let [queries, keys, values] = parts.map(|part| self.head_blocks(part));
                let attend = AttendAll {
                    out: self.spot(*out)?,
                    form: *form,
                    queries,
                    keys,
                    values,
                    mask,
                    scale: *scale,
                    heads: *heads,
                    rows: *rows,
                    numbers: *numbers,
                    head: graph_head(self.card.head),
                };
                graph::attend(attend, self.card.driver.card().processors())
            }
            Step::Map { program, operands, out, form } => {
                let mut places = Vec::with_capacity(operands.len());
                for operand in operands {
                    let place = operand.map(|spot| self.spot(spot)).transpose()?;
                    places.push(place.unwrap_or(DeviceAddress::NULL));
                }
                let out = self.spot(*out)?;
                let Compiled { programs, starts, lowered, .. } = &*self.compiled;
                graph::map(&Map {
                    out,
                    form: *form,
                    operands: places,
                    program_at: programs.address().offset(starts[*program]),
                    program: &lowered.programs[*program],
                })
            }
            Step::Gather { from, kind, indices, sizes, out } => {
                let [outer, size, count, inner] = *sizes;
                graph::gather(GatherNumbers {
                    out: self.spot(*out)?,
                    from: Numbers { at: self.spot(*from)?, kind: *kind },
                    indices: self.spot(Spot::Value(*indices, 0))?,
                    outer,
                    size,
                    count,
                    inner,
                })
            }
            Step::Input { .. }
            | Step::Hosted { .. }
            | Step::Indices { .. }
            | Step::Clear { .. } => {
                return Ok(());
            }
        };
        Ok(self.card.module.launch(self.card.stream.id(), &launch)?)
    }
}
