//! A device that needs no GPU: it records every call, fails where it is told to, and finds what is used wrongly.
//!
//! Memory is the host's behind made-up addresses.  Work is left undone until somebody waits for it, so that whoever does not
//! wait is found out, and is then done by functions of the host, where kernels have such.  What a real device might get away
//! with is a violation here: memory that is freed while work that names it is left, places outside of what was taken, marks
//! and streams that are gone.  Tests ask [`RecordingDriver::violations`] and [`RecordingDriver::held`] at their end.

mod calls;
mod memory;
mod work;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub use calls::Call;
pub use memory::{Astray, TwinMemory};
pub use work::HostKernel;

use crate::driver::{
    CapturedGraph, Driver, DriverError, EventId, GraphExec, HostBytes, MemoryInfo, Module,
    Priority, Stream,
};
use crate::{CardFacts, DeviceAddress, Function, Launch, Sm};
use calls::Calls;
use memory::Place;
use work::{Op, Span, Work};

/// Bytes of which mapped pieces are multiples: less than on any card, so that tests take little memory.
const CHUNK_BYTES: u64 = 64 << 10;

/// What of a device nobody gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Pieces of memory: the device's, page-locked, registered and reserved.
    pub pieces: usize,
    /// Bytes of the device's memory.
    pub device_bytes: u64,
    /// Modules.
    pub modules: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Captured graphs, and what was made of them.
    pub graphs: usize,
}

/// A device that needs no GPU.
#[derive(Debug)]
pub struct RecordingDriver {
    card: CardFacts,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    calls: Calls,
    memory: TwinMemory,
    work: Work,
    violations: Vec<String>,
}

/// A made-up card with so much memory.
pub fn card(sm: Sm, memory_bytes: u64, unified: bool) -> CardFacts {
    CardFacts {
        ordinal: 0,
        name: "recording".to_owned(),
        sm,
        multiprocessors: 8,
        memory_bytes,
        unified,
        // What Hopper and Thor have, and the least that any card does.
        shared_bytes_max: if matches!(sm.0, 90 | 110) { 227 << 10 } else { 99 << 10 },
        l2_bytes: 2 << 20,
        driver: 12060,
    }
}

impl RecordingDriver {
    /// Such a device in place of `card`.
    pub fn new(card: CardFacts) -> Self {
        let memory = TwinMemory::new(card.memory_bytes);
        let (calls, work, violations) = (Calls::default(), Work::default(), Vec::new());
        Self { card, state: Mutex::new(State { calls, memory, work, violations }) }
    }

    /// Lets `kernel` do the work of `function` from now on; launches of others are recorded and do nothing.
    pub fn teach(&self, function: Function, kernel: HostKernel) {
        self.lock().work.teach(function, kernel);
    }

    /// Lets the call that is the `nth` from now on, 0 being the next, fail by `error`; one that is sticky stays.
    pub fn fail_after(&self, nth: usize, error: DriverError) {
        self.lock().calls.fail_after(nth, error);
    }

    /// Lets each mark be asked `count` times whether it is passed before it is.
    pub fn answer_late(&self, count: u32) {
        self.lock().work.lateness = count;
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.made().to_vec()
    }

    /// What was used wrongly so far, one line each.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// What nobody gave back.
    pub fn held(&self) -> Held {
        let state = self.lock();
        let (pieces, device_bytes) = state.memory.held();
        let (streams, events, graphs, modules) = state.work.held();
        Held { pieces, device_bytes, modules, streams, events, graphs }
    }

    /// What the device's memory holds at a place, whatever is still to be done.
    ///
    /// # Errors
    /// [`Astray`] where it is not all taken.
    pub fn peek(&self, at: DeviceAddress, bytes: u64) -> Result<Vec<u8>, Astray> {
        Ok(self.lock().memory.read(at, bytes)?.to_vec())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that may not be made while the thread captures.
    fn call<T>(
        &self,
        call: Call,
        act: impl FnOnce(&mut State) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let state = &mut *self.lock();
        let name = call.name;
        state.calls.begin(call)?;
        if state.work.captures(thread::current().id()) {
            state.violations.push(format!("{name} while the thread captures"));
            return Err(refused(name, "the thread captures a stream"));
        }
        act(state)
    }

    /// Makes a call that waits for work, which the device does whatever the call says.
    fn wait_for(&self, call: Call, until: Until) -> Result<(), DriverError> {
        let state = &mut *self.lock();
        let name = call.name;
        let begun = state.calls.begin(call);
        // A capture ends with its device.
        if state.calls.is_lost() {
            return begun;
        }
        if state.work.captures(thread::current().id()) {
            state.violations.push(format!("{name} while the thread captures"));
            return Err(refused(name, "the thread captures a stream"));
        }
        let did = state.run(name, until);
        begun.and(did)
    }

    /// Makes a call that puts something on a stream.
    fn put(&self, call: Call, stream: Stream, op: Op) -> Result<(), DriverError> {
        let state = &mut *self.lock();
        let name = call.name;
        state.calls.begin(call)?;
        if let Err(problem) = state.work.put(stream, op) {
            return Err(state.wrong(name, problem));
        }
        Ok(())
    }

    /// Makes a call that gives something back: it is gone whatever the call says, since nobody can do more.
    fn give_back(
        &self,
        call: Call,
        act: impl FnOnce(&mut State) -> Result<(), String>,
    ) -> Result<(), DriverError> {
        let state = &mut *self.lock();
        let name = call.name;
        let begun = state.calls.begin(call);
        if state.calls.is_lost() {
            state.work.forget_all();
        }
        let did = act(state).map_err(|problem| state.wrong(name, problem));
        begun.and(did)
    }
}

impl State {
    /// A use that no device has to bear.
    fn wrong(&mut self, call: &'static str, problem: String) -> DriverError {
        let error = refused(call, &problem);
        self.violations.push(format!("{call}: {problem}"));
        error
    }

    /// Notes that work which names a piece of memory is left.
    fn still_named(&mut self, call: &'static str, address: DeviceAddress) {
        if self.memory.piece(address).is_some_and(|piece| self.work.names(piece)) {
            self.violations.push(format!("{call}: work that names {address} is left"));
        }
    }

    /// Does the work of a stream, all or as far as a mark.
    fn run(&mut self, call: &'static str, until: Until) -> Result<(), DriverError> {
        let did = match until {
            Until::All(stream) => self.work.run_all(stream, &mut self.memory),
            Until::Mark(event) => self.work.run_to(event, &mut self.memory),
        };
        did.map_err(|Astray(problem)| {
            self.violations.push(problem.clone());
            self.calls.lose(DriverError::DeviceLost { call, problem })
        })
    }
}

/// How far work is done.
enum Until {
    All(Stream),
    Mark(EventId),
}

fn refused(call: &'static str, problem: &str) -> DriverError {
    DriverError::Refused { call, problem: problem.to_owned() }
}

/// A copy by the host that goes astray.
fn astray(call: &'static str) -> impl FnOnce(Astray) -> DriverError {
    move |Astray(problem)| DriverError::Refused { call, problem }
}

impl Driver for RecordingDriver {
    fn card(&self) -> &CardFacts {
        &self.card
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.call(Call::named("memory_info"), |state| Ok(state.memory.info()))
    }

    fn held_bytes(&self) -> u64 {
        self.held().device_bytes
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        self.call(Call::named("allocate"), |state| state.memory.take(Place::Device, bytes))
    }

    fn free(&self, address: DeviceAddress) -> Result<(), DriverError> {
        self.give_back(Call::named("free"), |state| {
            state.still_named("free", address);
            state.memory.give_back(Place::Device, address)
        })
    }

    fn reserve(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        self.call(Call::named("reserve"), |state| match bytes % CHUNK_BYTES {
            0 => state.memory.take(Place::Reserved, bytes),
            _ => Err(state.wrong("reserve", format!("{bytes} bytes are no whole chunks"))),
        })
    }

    fn unreserve(&self, address: DeviceAddress, _bytes: u64) -> Result<(), DriverError> {
        self.give_back(Call::named("unreserve"), |state| {
            state.memory.give_back(Place::Reserved, address)
        })
    }

    fn chunk_bytes(&self) -> u64 {
        CHUNK_BYTES
    }

    fn map(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError> {
        self.call(Call::named("map"), |state| match state.memory.map(address, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(DriverError::NoMemory { bytes }),
            Err(problem) => Err(state.wrong("map", problem)),
        })
    }

    fn unmap(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError> {
        self.give_back(Call::named("unmap"), |state| {
            if state.work.names(Span::new(address, bytes)) {
                state.violations.push(format!("unmap: work that names {address} is left"));
            }
            state.memory.unmap(address, bytes)
        })
    }

    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        self.call(Call::named("allocate_host"), |state| state.memory.take(Place::Host, bytes))
    }

    fn free_host(&self, address: DeviceAddress) -> Result<(), DriverError> {
        self.give_back(Call::named("free_host"), |state| {
            state.still_named("free_host", address);
            state.memory.give_back(Place::Host, address)
        })
    }

    fn write_host(&self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DriverError> {
        let name = "write_host";
        self.call(Call::named(name), |state| {
            if state.work.names(state.memory.span(to, bytes.len() as u64)) {
                return Err(state.wrong(name, format!("work that names {to} is left")));
            }
            match state.memory.host(to, bytes.len() as u64) {
                Ok(place) => place.copy_from_slice(bytes),
                Err(Astray(problem)) => return Err(state.wrong(name, problem)),
            }
            Ok(())
        })
    }

    fn read_host(&self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DriverError> {
        let name = "read_host";
        self.call(Call::named(name), |state| {
            if state.work.writes(state.memory.span(from, bytes.len() as u64)) {
                return Err(state.wrong(name, format!("work that writes {from} is left")));
            }
            match state.memory.host(from, bytes.len() as u64) {
                Ok(place) => bytes.copy_from_slice(place),
                Err(Astray(problem)) => return Err(state.wrong(name, problem)),
            }
            Ok(())
        })
    }

    fn register_host(&self, bytes: HostBytes) -> Result<DeviceAddress, DriverError> {
        self.call(Call::named("register_host"), |state| Ok(state.memory.register(bytes)))
    }

    fn unregister_host(&self, address: DeviceAddress) -> Result<(), DriverError> {
        self.give_back(Call::named("unregister_host"), |state| {
            state.still_named("unregister_host", address);
            state.memory.give_back(Place::Registered, address)
        })
    }

    fn copy_to_device(
        &self,
        stream: Stream,
        to: DeviceAddress,
        bytes: &[u8],
    ) -> Result<(), DriverError> {
        let name = "copy_to_device";
        self.call(Call::on(name, stream), |state| {
            state.run(name, Until::All(stream))?;
            let place = state.memory.write(to, bytes.len() as u64).map_err(astray(name));
            place.map(|place| place.copy_from_slice(bytes)).inspect_err(|error| {
                state.violations.push(error.to_string());
            })
        })
    }

    fn copy_to_host(
        &self,
        stream: Stream,
        bytes: &mut [u8],
        from: DeviceAddress,
    ) -> Result<(), DriverError> {
        let name = "copy_to_host";
        self.call(Call::on(name, stream), |state| {
            state.run(name, Until::All(stream))?;
            let place = state.memory.read(from, bytes.len() as u64).map_err(astray(name));
            place.map(|place| bytes.copy_from_slice(place)).inspect_err(|error| {
                state.violations.push(error.to_string());
            })
        })
    }

    fn copy(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.put(Call::on("copy", stream), stream, Op::Copy { to, from, bytes })
    }

    fn memset(
        &self,
        stream: Stream,
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.put(Call::on("memset", stream), stream, Op::Set { to, byte, bytes })
    }

    fn load_module(&self, _image: &[u8]) -> Result<Module, DriverError> {
        self.call(Call::named("load_module"), |state| Ok(state.work.load()))
    }

    fn unload_module(&self, module: Module) -> Result<(), DriverError> {
        self.give_back(Call::named("unload_module"), |state| state.work.unload(module))
    }

    fn launch(&self, stream: Stream, module: Module, launch: &Launch) -> Result<(), DriverError> {
        if let Err(problem) = fits(launch, &self.card) {
            let state = &mut *self.lock();
            state.calls.begin(Call::launching(stream, launch))?;
            let function = launch.function;
            return Err(DriverError::LaunchRefused { function, problem });
        }
        let op = Op::Launch { module, launch: launch.clone() };
        self.put(Call::launching(stream, launch), stream, op)
    }

    fn stream(&self, _priority: Priority) -> Result<Stream, DriverError> {
        self.call(Call::named("stream"), |state| Ok(state.work.add_stream()))
    }

    fn free_stream(&self, stream: Stream) -> Result<(), DriverError> {
        self.give_back(Call::on("free_stream", stream), |state| state.work.remove_stream(stream))
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        self.wait_for(Call::on("synchronize", stream), Until::All(stream))
    }

    fn event(&self) -> Result<EventId, DriverError> {
        self.call(Call::named("event"), |state| Ok(state.work.add_event()))
    }

    fn free_event(&self, event: EventId) -> Result<(), DriverError> {
        self.give_back(Call::named("free_event"), |state| state.work.remove_event(event))
    }

    fn record(&self, event: EventId, stream: Stream) -> Result<(), DriverError> {
        let name = "record";
        self.call(Call::on(name, stream), |state| {
            state.work.record(event, stream).map_err(|problem| state.wrong(name, problem))
        })
    }

    fn wait(&self, stream: Stream, event: EventId) -> Result<(), DriverError> {
        let name = "wait";
        self.call(Call::on(name, stream), |state| {
            state.work.wait(stream, event).map_err(|problem| state.wrong(name, problem))
        })
    }

    fn query(&self, event: EventId) -> Result<bool, DriverError> {
        let name = "query";
        self.call(Call::named(name), |state| {
            if state.work.is_late(event) {
                return Ok(false);
            }
            state.run(name, Until::Mark(event)).map(|()| true)
        })
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), DriverError> {
        self.wait_for(Call::named("synchronize_event"), Until::Mark(event))
    }

    fn elapsed(&self, from: EventId, to: EventId) -> Result<Duration, DriverError> {
        let name = "elapsed";
        self.call(Call::named(name), |state| {
            state.work.between(from, to).map_err(|problem| state.wrong(name, problem))
        })
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), DriverError> {
        let name = "begin_capture";
        self.call(Call::on(name, stream), |state| {
            let begun = state.work.begin_capture(stream, thread::current().id());
            begun.map_err(|problem| state.wrong(name, problem))
        })
    }

    fn end_capture(&self, stream: Stream) -> Result<CapturedGraph, DriverError> {
        let name = "end_capture";
        let state = &mut *self.lock();
        let begun = state.calls.begin(Call::on(name, stream));
        if state.calls.is_lost() {
            begun.clone()?;
        }
        // Whatever the call says, the stream works as before.
        let captured = state.work.end_capture(stream);
        let ops = captured.map_err(|problem| state.wrong(name, problem));
        begun?;
        Ok(state.work.add_graph(ops?))
    }

    fn free_graph(&self, graph: CapturedGraph) -> Result<(), DriverError> {
        self.give_back(Call::named("free_graph"), |state| state.work.remove_graph(graph))
    }

    fn instantiate(&self, graph: CapturedGraph) -> Result<GraphExec, DriverError> {
        let name = "instantiate";
        self.call(Call::named(name), |state| {
            state.work.instantiate(graph).map_err(|problem| state.wrong(name, problem))
        })
    }

    fn free_exec(&self, exec: GraphExec) -> Result<(), DriverError> {
        self.give_back(Call::named("free_exec"), |state| state.work.remove_exec(exec))
    }

    fn launch_graph(&self, stream: Stream, exec: GraphExec) -> Result<(), DriverError> {
        let name = "launch_graph";
        self.call(Call::on(name, stream), |state| {
            state.work.launch_graph(stream, exec).map_err(|problem| state.wrong(name, problem))
        })
    }
}

/// Threads of a block at most, on any card.
const THREADS_MAX: u32 = 1024;
/// Blocks of a cluster at most, on any card that has some.
const CLUSTER_MAX: u32 = 8;

/// Whether a card could run a launch at all.
fn fits(launch: &Launch, card: &CardFacts) -> Result<(), String> {
    let threads = launch.block.iter().try_fold(1_u32, |product, &n| product.checked_mul(n));
    if !matches!(threads, Some(1..=THREADS_MAX)) {
        return Err(format!("a block of {:?} threads", launch.block));
    }
    if launch.grid.contains(&0) || launch.grid[1] > 0xffff || launch.grid[2] > 0xffff {
        return Err(format!("a grid of {:?} blocks", launch.grid));
    }
    let clusters_max = if card.processors().has_clusters() { CLUSTER_MAX } else { 1 };
    if !(1..=clusters_max).contains(&launch.cluster)
        || !launch.grid[0].is_multiple_of(launch.cluster)
    {
        return Err(format!("clusters of {} of {:?} blocks", launch.cluster, launch.grid));
    }
    if launch.shared_bytes > card.shared_bytes_max {
        let (asked, most) = (launch.shared_bytes, card.shared_bytes_max);
        return Err(format!("{asked} bytes of shared memory where a block has {most}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
