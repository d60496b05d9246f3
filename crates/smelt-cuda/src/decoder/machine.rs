//! Does passes on the card: copies what they tell, launches them, and reads what they give.
//!
//! What is launched is decided elsewhere; here it is put on the one stream that a decoder has.  A pass of a small batch is
//! captured the first time.

use std::sync::Arc;
use std::time::Duration;

use smelt_backend::{DecoderFacts, OpenError, RunError, SlotInput};

use super::buffers::Buffers;
use super::choices::Choices;
use super::features;
use super::file::DecoderDir;
use super::graphs::{Graphs, bucket};
use super::inputs::{self, Shape};
use super::launches::{self, Op, Place};
use super::memory::PagePool;
use super::model::Model;
use super::modules::Modules;
use super::pages::{PageCopy, Pages, Taken};
use super::plan::PassPlan;
use super::staging::Staging;
use super::step::{HeadPart, Step};
use super::weights::{WeightsPlace, refused};
use crate::driver::{Driver, DriverError, MemoryInfo, Priority, Stream};
use crate::kernels::choose::{RESULT_BYTES, choose};
use crate::owned::{HostBuffer, OwnedEvent, OwnedStream};
use crate::{CardFacts, DeviceAddress};

/// Rows of logits computed at once, and tokens chosen: 20 MB of a large vocabulary each.
const HEAD_ROWS: usize = 32;
/// Rows of a pass on cards with memory of their own; prompts are read so many tokens at a time.
const ROWS_MAX: usize = 2048;
/// The same where memory is the host's, and there is less of it.
const ROWS_MAX_UNIFIED: usize = 512;

/// A pass that waits to be put on the stream.
#[derive(Clone, Copy, Debug)]
struct Staged {
    shape: Shape,
    /// Whether the shape is a bucket, whose work is captured.
    is_bucket: bool,
}

/// A card with a model on it.
#[derive(Debug)]
pub(super) struct Machine {
    // What work names is given back before the stream, and graphs before what they name.
    graphs: Graphs,
    inputs: Staging,
    features: Staging,
    choices: Staging,
    /// What the device told of the logits that were computed last.
    results: HostBuffer,
    buffers: Buffers,
    model: Model,
    modules: Modules,
    /// Where a step began on the stream and where it ended, where steps are timed.
    marks: Option<[OwnedEvent; 2]>,
    stream: OwnedStream,
    driver: Arc<dyn Driver>,
    /// Passes of the step that is under way, and what is asked of each part of logits.
    staged: Vec<Staged>,
    asked: Vec<Choices>,
    /// Where keys and values lie.
    pool: DeviceAddress,
}

impl Machine {
    /// Brings the weights of an engine to `place`, and takes the memory that passes compute in.
    ///
    /// # Errors
    /// When the engine lacks a tensor, or the card has no room.
    pub(super) fn open(
        dir: &DecoderDir,
        driver: &Arc<dyn Driver>,
        facts: &DecoderFacts,
        place: WeightsPlace,
    ) -> Result<Self, OpenError> {
        let refused = |error| refused(dir, &error);
        let stream = OwnedStream::new(driver, Priority::High).map_err(refused)?;
        let modules = Modules::load(driver, dir, facts.kv).map_err(refused)?;
        let model = Model::open(dir, driver, stream.id(), (facts.kv, place))?;
        let rows_max = rows_max(driver.card(), facts);
        let buffers = Buffers::new(driver, &model, rows_max, HEAD_ROWS, facts.limits.max_seq_len);
        let buffers = buffers.map_err(refused)?;
        let cleared = buffers.clear(&**driver, stream.id());
        settle(&stream).and(cleared).map_err(refused)?;
        let results = (HEAD_ROWS * RESULT_BYTES) as u64;
        Ok(Self {
            graphs: Graphs::default(),
            inputs: Staging::new(driver),
            features: Staging::new(driver),
            choices: Staging::new(driver),
            results: HostBuffer::new(driver, results).map_err(refused)?,
            buffers,
            model,
            modules,
            marks: None,
            stream,
            driver: Arc::clone(driver),
            staged: Vec::new(),
            asked: Vec::new(),
            pool: DeviceAddress::NULL,
        })
    }

    /// Why tactics are not followed, if there are some and they are not.
    pub(super) fn untuned(&self) -> Option<&str> {
        self.model.untuned.as_deref()
    }

    /// From now on steps are timed.
    pub(super) fn time_steps(&mut self) -> Result<(), DriverError> {
        self.marks = Some([OwnedEvent::new(&self.driver)?, OwnedEvent::new(&self.driver)?]);
        Ok(())
    }

    /// A step begins on the stream.
    pub(super) fn mark_begin(&self) -> Result<(), DriverError> {
        self.mark(0)
    }

    /// What is on the stream may be all of the step.
    pub(super) fn mark_end(&self) -> Result<(), DriverError> {
        self.mark(1)
    }

    fn mark(&self, which: usize) -> Result<(), DriverError> {
        match &self.marks {
            Some(marks) => self.driver.record(marks[which].id(), self.stream.id()),
            None => Ok(()),
        }
    }

    /// What the last step took, where it is timed.  No work may be left.
    pub(super) fn step_time(&self) -> Result<Option<Duration>, DriverError> {
        let took =
            self.marks.as_ref().map(|[begin, end]| self.driver.elapsed(begin.id(), end.id()));
        took.transpose()
    }

    /// Most rows of a pass.
    pub(super) fn rows_max(&self) -> usize {
        self.buffers.rows_max
    }

    /// Most rows of logits at once.
    pub(super) fn head_rows(&self) -> usize {
        HEAD_ROWS
    }

    /// Bytes of a page of keys and values of all layers.
    pub(super) fn page_bytes(&self) -> u64 {
        self.model.page_bytes()
    }

    /// What is true of the card.
    pub(super) fn card(&self) -> &CardFacts {
        self.driver.card()
    }

    /// Memory of the card at this moment.
    pub(super) fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.driver.memory_info()
    }

    /// Bytes of the card that this program holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.driver.held_bytes()
    }

    /// Waits until nothing is left on the stream.
    pub(super) fn synchronize(&mut self) -> Result<(), DriverError> {
        self.stream.synchronize()?;
        self.graphs.settle();
        Ok(())
    }

    /// Waits until nothing is left that may meet memory which is given back: a wait that fails is tried once more.
    pub(super) fn settle(&mut self) -> Result<(), DriverError> {
        settle(&self.stream)?;
        self.graphs.settle();
        Ok(())
    }

    /// Copies pages that a step writes and others read, and clears those that nobody held: what somebody else left there
    /// must not go out with them.
    pub(super) fn prepare_pages(&self, pool: &PagePool, taken: &Taken) -> Result<(), DriverError> {
        let (stream, bytes) = (self.stream.id(), pool.page_bytes());
        for page in &taken.fresh {
            self.driver.memset(stream, pool.address(*page), 0, bytes)?;
        }
        for PageCopy { from, to } in &taken.copies {
            self.driver.copy(stream, pool.address(*to), pool.address(*from), bytes)?;
        }
        Ok(())
    }

    /// Lays out what all passes of a step tell.  No work may be left that reads what the last step told.
    ///
    /// # Errors
    /// When there is no memory for it, or features of images cannot be read.
    pub(super) fn stage(
        &mut self,
        runs: &[SlotInput<'_>],
        step: &Step,
        pages: &Pages,
        pool: DeviceAddress,
    ) -> Result<(), StageError> {
        let (passes, mut told) = (&step.plan.passes, Vec::new());
        self.staged.clear();
        for pass in passes {
            let (staged, bytes) = self.lay_out(pass, pages);
            self.staged.push(staged);
            told.push(bytes);
        }
        let features = passes.iter().map(|pass| features::bytes(runs, pass));
        let features: Vec<Vec<u8>> = features.collect::<Result<_, _>>().map_err(StageError::Run)?;
        let moved = self.inputs.fill(&told)?;
        if moved || pool != self.pool {
            self.graphs.clear();
        }
        self.pool = pool;
        self.features.fill(&features)?;
        let vocab = self.model.sizes.vocab;
        self.asked = step.wanted().map(|wanted| Choices::of(wanted, vocab)).collect();
        let asked: Vec<Vec<u8>> = self.asked.iter_mut().map(Choices::take_bytes).collect();
        self.choices.fill(&asked)?;
        Ok(())
    }

    /// The shape of a pass, and what it tells.
    fn lay_out(&self, pass: &PassPlan, pages: &Pages) -> (Staged, Vec<u8>) {
        let (group, parts) = (self.model.group(), self.buffers.parts_rows);
        let attending = inputs::attending(pass, |piece| inputs::is_few(piece, pass, group, parts));
        let exact = inputs::exact(pass, &attending, group);
        let bucket = bucket(&exact, group, parts);
        let shape = bucket.unwrap_or(exact);
        let bytes = inputs::bytes(pass, &attending, &shape, pages, PagePool::NUMBERS);
        (Staged { shape, is_bucket: bucket.is_some() }, bytes)
    }

    /// Puts a pass over the layers on the stream.
    pub(super) fn put_pass(&mut self, pass: usize) -> Result<(), DriverError> {
        let stream = self.stream.id();
        self.inputs.put(stream, pass)?;
        self.features.put(stream, pass)?;
        let Staged { shape, is_bucket } = self.staged[pass];
        let (inputs, features) = (self.inputs.address(), self.features.address());
        let place = Place { inputs, features, pool: self.pool };
        let processors = self.driver.card().processors();
        // What was captured need not be written down again.
        let put = |stream: Stream| {
            let ops = launches::pass(&self.model, &self.buffers, place, &shape, processors);
            put(&*self.driver, &self.modules, stream, &ops)
        };
        if is_bucket { self.graphs.launch(&shape, &self.stream, put) } else { put(stream) }
    }

    /// Puts the copy of what is asked of a part of logits on the stream.
    pub(super) fn put_asked(&self, index: usize) -> Result<(), DriverError> {
        match self.asked[index].asked.count {
            0 => Ok(()),
            _ => self.choices.put(self.stream.id(), index),
        }
    }

    /// Puts the logits of a part on the stream, the choices from them, and the copy of what came of those to the host.
    pub(super) fn put_head(&self, index: usize, head: &HeadPart) -> Result<(), DriverError> {
        let (stream, wanted) = (self.stream.id(), &head.wanted);
        let at = self.staged[head.pass].shape.places().wanted + wanted.start * size_of::<u32>();
        let rows = self.inputs.address().offset(at as u64);
        self.put(stream, &self.head_ops(rows, wanted.len()))?;
        let asked = self.asked[index].asked;
        if asked.count == 0 {
            return Ok(());
        }
        let places = self.asked[index].places(self.choices.address());
        let buffers = self.buffers.choosing(places);
        let vocab = self.model.sizes.vocab;
        let ops: Vec<Op> = choose(buffers, asked, vocab).into_iter().map(Op::Launch).collect();
        self.put(stream, &ops)?;
        let bytes = u64::from(asked.count) * RESULT_BYTES as u64;
        self.driver.copy(stream, self.results.address(), buffers.results, bytes)
    }

    /// What the device told of the choices of the part that was put last.  No work may be left.
    pub(super) fn results(&self, index: usize) -> Result<Vec<u8>, DriverError> {
        let mut bytes = vec![0; self.asked[index].asked.count as usize * RESULT_BYTES];
        self.results.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// A row of the logits that were computed last.  No work may be left.
    pub(super) fn logits(&self, row: usize) -> Result<Vec<f32>, DriverError> {
        let bytes = (self.model.sizes.vocab * size_of::<f32>()) as u64;
        let bytes = self.read(self.buffers.logits.offset(row as u64 * bytes), bytes)?;
        let (numbers, _) = bytes.as_chunks::<4>();
        Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }

    /// Reads memory of the card, and waits for it.
    pub(super) fn read(&self, from: DeviceAddress, bytes: u64) -> Result<Vec<u8>, DriverError> {
        let mut out = vec![0; bytes as usize];
        self.driver.copy_to_host(self.stream.id(), &mut out, from)?;
        Ok(out)
    }

    /// Writes memory of the card, and waits for it.
    pub(super) fn write(&self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DriverError> {
        self.driver.copy_to_device(self.stream.id(), to, bytes)
    }

    fn put(&self, stream: Stream, ops: &[Op]) -> Result<(), DriverError> {
        put(&*self.driver, &self.modules, stream, ops)
    }

    fn head_ops(&self, wanted: DeviceAddress, count: usize) -> Vec<Op> {
        let processors = self.card().processors();
        launches::head(&self.model, &self.buffers, wanted, count, processors)
    }
}

/// Why what a step tells could not be laid out.
#[derive(Debug)]
pub(super) enum StageError {
    /// The device refused.
    Driver(DriverError),
    /// What a run brought cannot be read.
    Run(RunError),
}

impl From<DriverError> for StageError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// Rows of a pass on such a card: no more than all slots could ever want.
fn rows_max(card: &CardFacts, facts: &DecoderFacts) -> usize {
    let most = if card.unified { ROWS_MAX_UNIFIED } else { ROWS_MAX };
    let limits = facts.limits;
    most.min((limits.max_slots * limits.max_seq_len).next_multiple_of(8))
}

/// Waits until nothing is left on a stream, in any case.
fn settle(stream: &OwnedStream) -> Result<(), DriverError> {
    stream.synchronize().or_else(|first| stream.synchronize().and(Err(first)))
}

/// Puts work on a stream, in its order.
fn put(
    driver: &dyn Driver,
    modules: &Modules,
    stream: Stream,
    ops: &[Op],
) -> Result<(), DriverError> {
    ops.iter().try_for_each(|op| match op {
        Op::Launch(launch) => modules.launch(stream, launch),
        Op::Clear { at, bytes } => driver.memset(stream, *at, 0, *bytes),
    })
}
