//! Keeps work on streams until somebody waits for it, then does it in its order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use super::memory::{Astray, TwinMemory};
use crate::driver::{CapturedGraph, EventId, GraphExec, Module, Stream};
use crate::{DeviceAddress, Function, Launch};

/// Does on the host what a kernel does.
pub type HostKernel = Arc<dyn Fn(&mut TwinMemory, &Launch) -> Result<(), Astray> + Send + Sync>;

/// Something on a stream.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Copy {
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    },
    Set {
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    },
    Launch {
        module: Module,
        launch: Launch,
    },
    /// The event's mark of this count is passed.
    Record(EventId, u64),
    /// Goes on when the event's mark of this count is passed.
    Wait(EventId, u64),
}

/// Some bytes of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Where the piece begins that they are in.
    pub(super) piece: u64,
}

impl Span {
    /// A piece of `bytes` bytes.
    pub(super) const fn new(at: DeviceAddress, bytes: u64) -> Self {
        Self { from: at.0, to: at.0 + bytes, piece: at.0 }
    }

    const fn overlaps(self, at: DeviceAddress, bytes: u64) -> bool {
        at.0 < self.to && self.from < at.0 + bytes
    }
}

impl Op {
    /// Whether it reads or writes some of the bytes.
    fn names(&self, span: Span) -> bool {
        let reads = match self {
            Self::Copy { from, bytes, .. } => span.overlaps(*from, *bytes),
            _ => false,
        };
        reads || self.writes(span)
    }

    /// Whether it may write some of the bytes: a kernel what it is given, and all that lies behind in the same piece.
    fn writes(&self, span: Span) -> bool {
        match self {
            Self::Copy { to, bytes, .. } | Self::Set { to, bytes, .. } => {
                span.overlaps(*to, *bytes)
            }
            Self::Launch { launch, .. } => {
                launch.args.addresses().any(|at| (span.piece..span.to).contains(&at.0))
            }
            Self::Record(..) | Self::Wait(..) => false,
        }
    }
}

#[derive(Debug, Default)]
struct Line {
    left: VecDeque<Op>,
    /// What is captured, and by whom.
    captured: Option<(ThreadId, Vec<Op>)>,
}

#[derive(Debug, Default)]
struct Mark {
    /// How often it was recorded, and how many of those are passed.
    recorded: u64,
    passed: u64,
    /// Where it was recorded last.
    stream: Option<Stream>,
    /// When it was passed last.
    at: u64,
    /// How often it was asked for in vain.
    asked: u32,
}

/// What a device has to do.
#[derive(Default)]
pub(super) struct Work {
    kernels: BTreeMap<Function, HostKernel>,
    modules: BTreeSet<Module>,
    streams: BTreeMap<Stream, Line>,
    events: BTreeMap<EventId, Mark>,
    graphs: BTreeMap<CapturedGraph, Vec<Op>>,
    execs: BTreeMap<GraphExec, Vec<Op>>,
    /// The last id that was given.
    last: u64,
    /// Ops that were done: the clock.
    done: u64,
    /// How often a mark is asked for in vain.
    pub(super) lateness: u32,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { streams, events, .. } = self;
        f.debug_struct("Work").field("streams", streams).field("events", events).finish()
    }
}

impl Work {
    pub(super) fn teach(&mut self, function: Function, kernel: HostKernel) {
        self.kernels.insert(function, kernel);
    }

    /// Streams, events, graphs of both kinds, and modules.
    pub(super) fn held(&self) -> (usize, usize, usize, usize) {
        let graphs = self.graphs.len() + self.execs.len();
        (self.streams.len(), self.events.len(), graphs, self.modules.len())
    }

    fn id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn load(&mut self) -> Module {
        let module = Module(self.id());
        self.modules.insert(module);
        module
    }

    pub(super) fn unload(&mut self, module: Module) -> Result<(), String> {
        let uses = |op: &Op| matches!(op, Op::Launch { module: own, .. } if *own == module);
        if self.left().any(uses) {
            return Err(format!("work of {module:?} is left"));
        }
        self.modules.remove(&module).then_some(()).ok_or_else(|| gone(&module))
    }

    pub(super) fn add_stream(&mut self) -> Stream {
        let stream = Stream(self.id());
        self.streams.insert(stream, Line::default());
        stream
    }

    pub(super) fn remove_stream(&mut self, stream: Stream) -> Result<(), String> {
        let line = self.streams.remove(&stream).ok_or_else(|| gone(&stream))?;
        if line.captured.is_some() || !line.left.is_empty() {
            return Err(format!("work is left on {stream:?}"));
        }
        Ok(())
    }

    pub(super) fn add_event(&mut self) -> EventId {
        let event = EventId(self.id());
        self.events.insert(event, Mark::default());
        event
    }

    pub(super) fn remove_event(&mut self, event: EventId) -> Result<(), String> {
        let waits = |op: &Op| matches!(op, Op::Wait(own, _) | Op::Record(own, _) if *own == event);
        if self.left().any(waits) {
            return Err(format!("work that waits for {event:?}, or reaches it, is left"));
        }
        self.events.remove(&event).map(drop).ok_or_else(|| gone(&event))
    }

    /// All work that is left.
    fn left(&self) -> impl Iterator<Item = &Op> {
        self.streams.values().flat_map(|line| &line.left)
    }

    /// Whether work that is left reads or writes some of the bytes.
    pub(super) fn names(&self, span: Span) -> bool {
        self.left().any(|op| op.names(span))
    }

    /// Whether work that is left may write some of the bytes.
    pub(super) fn writes(&self, span: Span) -> bool {
        self.left().any(|op| op.writes(span))
    }

    /// Forgets all work: a lost device does none.
    pub(super) fn forget_all(&mut self) {
        for line in self.streams.values_mut() {
            *line = Line::default();
        }
    }

    fn line(&mut self, stream: Stream) -> Result<&mut Line, String> {
        self.streams.get_mut(&stream).ok_or_else(|| gone(&stream))
    }

    /// Puts something on a stream, or into what is captured of it.
    pub(super) fn put(&mut self, stream: Stream, op: Op) -> Result<(), String> {
        if let Op::Launch { module, .. } = &op
            && !self.modules.contains(module)
        {
            return Err(gone(module));
        }
        let line = self.line(stream)?;
        match &mut line.captured {
            Some((_, ops)) => ops.push(op),
            None => line.left.push_back(op),
        }
        Ok(())
    }

    /// Whether the thread captures a stream.
    pub(super) fn captures(&self, thread: ThreadId) -> bool {
        let mut captured = self.streams.values().filter_map(|line| line.captured.as_ref());
        captured.any(|(own, _)| *own == thread)
    }

    pub(super) fn begin_capture(&mut self, stream: Stream, thread: ThreadId) -> Result<(), String> {
        let line = self.line(stream)?;
        if line.captured.is_some() {
            return Err(format!("{stream:?} is captured already"));
        }
        line.captured = Some((thread, Vec::new()));
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: Stream) -> Result<Vec<Op>, String> {
        let captured = self.line(stream)?.captured.take();
        captured.map(|(_, ops)| ops).ok_or_else(|| format!("{stream:?} is not captured"))
    }

    pub(super) fn add_graph(&mut self, ops: Vec<Op>) -> CapturedGraph {
        let graph = CapturedGraph(self.id());
        self.graphs.insert(graph, ops);
        graph
    }

    pub(super) fn remove_graph(&mut self, graph: CapturedGraph) -> Result<(), String> {
        self.graphs.remove(&graph).map(drop).ok_or_else(|| gone(&graph))
    }

    pub(super) fn instantiate(&mut self, graph: CapturedGraph) -> Result<GraphExec, String> {
        let ops = self.graphs.get(&graph).cloned().ok_or_else(|| gone(&graph))?;
        let exec = GraphExec(self.id());
        self.execs.insert(exec, ops);
        Ok(exec)
    }

    pub(super) fn remove_exec(&mut self, exec: GraphExec) -> Result<(), String> {
        self.execs.remove(&exec).map(drop).ok_or_else(|| gone(&exec))
    }

    pub(super) fn launch_graph(&mut self, stream: Stream, exec: GraphExec) -> Result<(), String> {
        let ops = self.execs.get(&exec).cloned().ok_or_else(|| gone(&exec))?;
        ops.into_iter().try_for_each(|op| self.put(stream, op))
    }

    pub(super) fn record(&mut self, event: EventId, stream: Stream) -> Result<(), String> {
        let mark = self.events.get_mut(&event).ok_or_else(|| gone(&event))?;
        mark.recorded += 1;
        (mark.stream, mark.asked) = (Some(stream), 0);
        let count = mark.recorded;
        self.put(stream, Op::Record(event, count))
    }

    pub(super) fn wait(&mut self, stream: Stream, event: EventId) -> Result<(), String> {
        let count = self.events.get(&event).ok_or_else(|| gone(&event))?.recorded;
        self.put(stream, Op::Wait(event, count))
    }

    /// Whether a mark that is not passed is asked for too early; it counts.
    pub(super) fn is_late(&mut self, event: EventId) -> bool {
        let lateness = self.lateness;
        let Some(mark) = self.events.get_mut(&event) else { return false };
        let is_late = mark.passed < mark.recorded && mark.asked < lateness;
        mark.asked += u32::from(is_late);
        is_late
    }

    /// The time between two marks, a microsecond for each thing that was done.
    pub(super) fn between(&self, from: EventId, to: EventId) -> Result<Duration, String> {
        let passed = |event: EventId| {
            let mark = self.events.get(&event).ok_or_else(|| gone(&event))?;
            let is_passed = mark.recorded > 0 && mark.passed == mark.recorded;
            is_passed.then_some(mark.at).ok_or_else(|| format!("{event:?} is not passed"))
        };
        Ok(Duration::from_micros(passed(to)?.saturating_sub(passed(from)?)))
    }

    /// Does all work of a stream.
    pub(super) fn run_all(
        &mut self,
        stream: Stream,
        memory: &mut TwinMemory,
    ) -> Result<(), Astray> {
        self.line(stream).map_err(Astray)?;
        while let Some(op) = self.next(stream) {
            self.act(op, memory)?;
        }
        Ok(())
    }

    /// Does work until the last mark of an event is passed.
    pub(super) fn run_to(&mut self, event: EventId, memory: &mut TwinMemory) -> Result<(), Astray> {
        let mark = self.events.get(&event).ok_or_else(|| Astray(gone(&event)))?;
        self.reach(event, mark.recorded, memory)
    }

    fn reach(&mut self, event: EventId, count: u64, memory: &mut TwinMemory) -> Result<(), Astray> {
        let stream = self.events.get(&event).and_then(|mark| mark.stream);
        while self.events.get(&event).is_some_and(|mark| mark.passed < count) {
            let op = stream.and_then(|stream| self.next(stream));
            let op = op.ok_or_else(|| Astray(format!("{event:?} is never reached")))?;
            self.act(op, memory)?;
        }
        Ok(())
    }

    fn next(&mut self, stream: Stream) -> Option<Op> {
        self.streams.get_mut(&stream)?.left.pop_front()
    }

    fn act(&mut self, op: Op, memory: &mut TwinMemory) -> Result<(), Astray> {
        self.done += 1;
        match op {
            Op::Copy { to, from, bytes } => memory.copy(to, from, bytes),
            Op::Set { to, byte, bytes } => {
                memory.write(to, bytes)?.fill(byte);
                Ok(())
            }
            Op::Launch { launch, .. } => self.compute(&launch, memory),
            Op::Record(event, count) => {
                let at = self.done;
                if let Some(mark) = self.events.get_mut(&event) {
                    (mark.passed, mark.at) = (count, at);
                }
                Ok(())
            }
            Op::Wait(event, count) => self.reach(event, count, memory),
        }
    }

    /// Runs a kernel's function of the host; what it names has to be there in any case.
    fn compute(&self, launch: &Launch, memory: &mut TwinMemory) -> Result<(), Astray> {
        let told = |Astray(problem)| Astray(format!("{}: {problem}", launch.function));
        for address in launch.args.addresses() {
            memory.read(address, 1).map_err(told)?;
        }
        let kernel = self.kernels.get(&launch.function).map(Arc::clone);
        kernel.map_or(Ok(()), |kernel| kernel(memory, launch).map_err(told))
    }
}

/// The use of something that is not there any more.
fn gone(id: &dyn fmt::Debug) -> String {
    format!("{id:?} was given back, or never given")
}
