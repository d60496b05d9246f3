//! Generates text on a GPU: a decoder with paged keys and values for several sequences.
//!
//! A step is planned as data (`plan`), laid out for the device (`inputs`), launched (`launches`), and waited for.  Slots are
//! tables of pages (`pages`) that lie in memory taken a piece at a time (`memory`).  After an error that is sticky the
//! decoder only says so; another one, opened on a fresh driver, goes on.  Knows nothing of checkpoints, text, requests or
//! pictures.

mod buffers;
mod check;
mod choices;
mod described;
mod fault;
mod features;
pub(crate) mod file;
mod graphs;
mod inputs;
mod launches;
mod machine;
pub(crate) mod memory;
mod model;
mod modules;
mod packed;
mod pages;
mod plan;
mod staging;
mod step;
mod weights;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use smelt_backend::sampling::Chooser;
use smelt_backend::{
    Answer, Decoder, DecoderFacts, KvBlock, KvOptions, KvType, KvUsage, Limits, MemoryPlace,
    MemoryReport, OpenError, RunError, SlotInput, Witness,
};

use crate::CardFacts;
use crate::driver::{Driver, DriverError};
use crate::owned::locked_bytes;
use check::Checker;
pub use described::DescribedDecoder;
use fault::run_error;
use file::DecoderDir;
pub use file::{
    DecoderFile, DecoderWriter, FORMAT, KIND, KernelImage, LAYOUT, TensorEntry, WEIGHTS_FILE,
    weights_bytes,
};
use machine::{Machine, StageError};
use memory::PagePool;
pub use packed::PackedWeights;
use pages::{PAGE_TOKENS, Pages, Taken};
use plan::Held;
use step::{HeadPart, Part, Step};
pub use weights::WeightsPlace;

/// Pages that stay taken behind the last one that is held, so that a slot that grows does not wait for the driver.
const SPARE_BYTES: u64 = memory::CHUNK_BYTES;

/// An opened decoder on a GPU.
#[derive(Debug)]
pub struct CudaDecoder {
    facts: DecoderFacts,
    pages: Pages,
    step: Option<Step>,
    chooser: Chooser,
    /// Why the device does nothing more, if so.
    lost: Option<DriverError>,
    /// What the card took for the last step, where that is timed.
    took: Option<Duration>,
    pool: PagePool,
    machine: Machine,
    dir: DecoderDir,
}

impl CudaDecoder {
    /// Opens the engine in `dir` on the card of `driver`, with keys and values kept as `kv` says.  Weights are uploaded.
    ///
    /// # Errors
    /// When the directory holds no decoder for this card, its parts disagree, or the card has no room for it.
    pub fn open(dir: &Path, driver: &Arc<dyn Driver>, kv: KvOptions) -> Result<Self, OpenError> {
        Self::open_with(dir, driver, kv, WeightsPlace::default())
    }

    /// As [`Self::open`], with the weights where `place` says.
    ///
    /// # Errors
    /// As [`Self::open`], and where the card cannot read memory of the host.
    pub fn open_with(
        dir: &Path,
        driver: &Arc<dyn Driver>,
        kv: KvOptions,
        place: WeightsPlace,
    ) -> Result<Self, OpenError> {
        let dir = DecoderDir::open(dir)?;
        check_card(&dir, driver.card())?;
        let facts = facts(&dir, kv)?;
        let machine = Machine::open(&dir, driver, &facts, place)?;
        let full = full_pages(facts.limits);
        let pages = Pages::new(facts.limits.max_slots, full);
        let pool = PagePool::new(driver, machine.page_bytes(), full);
        let (step, chooser, lost, took) = (None, Chooser::default(), None, None);
        let mut decoder = Self { facts, pages, step, chooser, lost, took, pool, machine, dir };
        decoder.set_kv_bytes_max(kv.bytes_max.unwrap_or(u64::MAX));
        Ok(decoder)
    }

    fn checker(&self) -> Checker<'_> {
        let has_places = self.dir.engine.has_places;
        Checker { facts: &self.facts, has_places, pages: &self.pages }
    }

    /// Whether the device still works.
    fn check_alive(&self) -> Result<(), RunError> {
        self.lost.clone().map_or(Ok(()), |error| Err(run_error(error)))
    }

    /// Takes note of an error of the device.
    fn fault(&mut self, error: DriverError) -> RunError {
        if error.is_sticky() {
            self.lost.get_or_insert_with(|| error.clone());
        }
        run_error(error)
    }

    /// Begins the step whose pages were taken.
    fn begin(&mut self, runs: &[SlotInput<'_>], step: &mut Step) -> Result<(), StageError> {
        self.pool.back(self.pages.end())?;
        self.machine.mark_begin()?;
        self.machine.prepare_pages(&self.pool, &step.taken)?;
        self.machine.stage(runs, step, &self.pages, self.pool.base())?;
        Ok(self.go_on(step)?)
    }

    /// Puts parts on the stream until the memory for logits is in use, or none is left.
    fn go_on(&mut self, step: &mut Step) -> Result<(), DriverError> {
        let is_put = !step.parts.is_empty();
        while step.pending.is_none()
            && let Some(part) = step.parts.pop_front()
        {
            match part {
                Part::Asked(head) => self.machine.put_asked(head)?,
                Part::Pass(pass) => self.machine.put_pass(pass)?,
                Part::Head(head) => {
                    self.machine.put_head(head, &step.heads[head])?;
                    step.pending = Some(head);
                }
            }
        }
        if is_put { self.machine.mark_end() } else { Ok(()) }
    }

    /// Waits for what is on the stream, takes what it gave, and goes on until nothing is left.
    fn finish(&mut self, step: &mut Step) -> Result<(), DriverError> {
        loop {
            self.machine.synchronize()?;
            let Some(head) = step.pending.take() else {
                // What a clock does not tell spoils no step.
                self.took = self.machine.step_time().ok().flatten();
                return Ok(());
            };
            self.take(step, head)?;
            self.go_on(step)?;
        }
    }

    /// Takes what the device told of a part of logits.
    fn take(&mut self, step: &mut Step, head: usize) -> Result<(), DriverError> {
        let HeadPart { pass, wanted } = step.heads[head].clone();
        let wanted = &step.plan.passes[pass].wanted[wanted];
        let results = self.machine.results(head)?;
        let row = |row| self.machine.logits(row);
        let (vocab, answers) = (self.facts.vocab, &mut step.answers);
        choices::take(wanted, &results, vocab, row, &mut self.chooser, answers)
    }

    /// Gives back what a step has taken that failed, and says why it did.
    fn undo(&mut self, taken: Taken, error: DriverError) -> RunError {
        let told = self.fault(error);
        self.give_back(taken);
        told
    }

    /// Gives back what a step has taken.  Work of it may be on the stream, and must not meet its memory given to others.
    fn give_back(&mut self, taken: Taken) {
        if let Err(later) = self.machine.settle()
            && later.is_sticky()
        {
            self.lost.get_or_insert(later);
        }
        self.pages.give_back(taken);
        self.trim();
    }

    /// Gives pieces of memory back to the device in which no page is held, but for some.
    fn trim(&mut self) {
        let spare = (SPARE_BYTES / self.pool.page_bytes().max(1)) as usize;
        if let Err(error) = self.pool.trim(self.pages.end() + spare) {
            self.fault(error);
        }
    }
}

/// Whether an engine's kernels are for this card.
fn check_card(dir: &DecoderDir, card: &CardFacts) -> Result<(), OpenError> {
    let wanted = dir.target.sm();
    if wanted == card.sm {
        return Ok(());
    }
    let problem = format!("its kernels are for {wanted}, and {} is {}", card.name, card.sm);
    Err(dir.unfit("this card", problem))
}

/// What the engine in `dir` says of itself when it is opened so.
fn facts(dir: &DecoderDir, kv: KvOptions) -> Result<DecoderFacts, OpenError> {
    let sizes = &dir.engine;
    let unfit = |purpose, problem| dir.unfit(purpose, problem);
    let limits = kv.limits(sizes.limits, sizes.positions, unfit)?;
    let is_kept = match kv.form() {
        KvType::F16 => true,
        KvType::Int8 => dir.kernels_int8.is_some(),
        KvType::F32 => false,
    };
    if !is_kept {
        let int8 = if dir.kernels_int8.is_some() { " or int8" } else { "" };
        let problem = format!("it keeps keys and values as f16{int8}, not {}", kv.form().word());
        return Err(dir.unfit("this form of keys and values", problem));
    }
    Ok(DecoderFacts {
        limits,
        built_for: sizes.limits,
        positions: sizes.positions,
        vocab: sizes.vocab,
        kv: kv.form(),
        hidden: sizes.hidden,
        deepstack: sizes.deepstack,
        scheme: sizes.scheme.clone(),
        adapters: Vec::new(),
    })
}

/// Pages that full slots hold.
fn full_pages(limits: Limits) -> usize {
    limits.max_slots * limits.max_seq_len.div_ceil(PAGE_TOKENS)
}

impl Decoder for CudaDecoder {
    fn facts(&self) -> &DecoderFacts {
        &self.facts
    }

    fn memory(&self) -> MemoryReport {
        let card = self.machine.card();
        let place = if card.unified { MemoryPlace::Unified } else { MemoryPlace::Device };
        let info = self.machine.memory_info();
        let total = info.as_ref().map_or(card.memory_bytes, |info| info.total_bytes);
        // A device that does not answer has nothing to give.
        let free = info.map_or(0, |info| info.free_bytes.min(total));
        MemoryReport {
            place,
            total_bytes: Some(total),
            free_bytes: Some(free),
            largest_bytes: None,
            own_bytes: self.machine.held_bytes().saturating_sub(self.pool.mapped_bytes()),
            locked_bytes: locked_bytes(),
        }
    }

    fn kv_usage(&self) -> KvUsage {
        KvUsage {
            block_tokens: PAGE_TOKENS,
            block_bytes: self.pool.page_bytes() as usize,
            blocks_held: self.pages.held(),
            blocks_total: self.pages.total(),
        }
    }

    fn set_kv_bytes_max(&mut self, bytes: u64) {
        let fit = usize::try_from(bytes / self.pool.page_bytes()).unwrap_or(usize::MAX);
        self.pages.set_total(fit.min(self.pool.capacity()));
    }

    fn held(&self, slot: usize) -> usize {
        if slot < self.pages.slots() { self.pages.len(slot) } else { 0 }
    }

    fn submit(&mut self, runs: &[SlotInput<'_>]) -> Result<(), RunError> {
        if self.step.is_some() {
            return Err(RunError::OutOfTurn);
        }
        self.check_alive()?;
        self.checker().check_all(runs)?;
        let held = |run: &SlotInput<'_>| Held {
            tokens: self.pages.len(run.slot),
            next_place: self.pages.next_place(run.slot),
        };
        let held: Vec<Held> = runs.iter().map(held).collect();
        let (has_places, rows_max) = (self.dir.engine.has_places, self.machine.rows_max());
        let plan = plan::plan(runs, &held, has_places, rows_max);
        let more: Vec<(usize, usize)> =
            runs.iter().map(|run| (run.slot, run.tokens.len())).collect();
        let taken = self.pages.take(&more)?;
        let mut step = Step::new(plan, taken, self.machine.head_rows());
        match self.begin(runs, &mut step) {
            Ok(()) => {}
            Err(StageError::Driver(error)) => return Err(self.undo(step.taken, error)),
            Err(StageError::Run(error)) => {
                self.give_back(step.taken);
                return Err(error);
            }
        }
        for (run, places) in runs.iter().zip(&step.plan.places) {
            self.pages.advance(run.slot, places);
        }
        self.step = Some(step);
        Ok(())
    }

    fn wait(&mut self) -> Result<Vec<Answer>, RunError> {
        let mut step = self.step.take().ok_or(RunError::OutOfTurn)?;
        match self.finish(&mut step) {
            Ok(()) => Ok(step.answers),
            Err(error) => Err(self.undo(step.taken, error)),
        }
    }

    fn truncate(&mut self, slot: usize, len: usize) {
        if slot < self.pages.slots() {
            self.pages.truncate(slot, len);
            self.trim();
        }
    }

    fn fork(&mut self, from: usize, to: usize, len: usize) -> Result<(), RunError> {
        self.facts.check_fork(from, to, self.held(from), len)?;
        self.pages.fork(from, to, len);
        self.trim();
        Ok(())
    }

    fn block(&self, slot: usize, index: usize) -> Result<Option<KvBlock<'_>>, RunError> {
        self.check_alive()?;
        if slot >= self.pages.slots() {
            return Ok(None);
        }
        let Some(ends) = self.pages.ends(slot, index) else { return Ok(None) };
        let address = self.pool.address(self.pages.of(slot)[index]);
        let bytes = self.machine.read(address, self.pool.page_bytes()).map_err(run_error)?;
        Ok(Some(KvBlock { ends: Cow::Borrowed(ends), bytes: Cow::Owned(bytes) }))
    }

    fn put_block(&mut self, slot: usize, block: &KvBlock<'_>) -> Result<(), RunError> {
        self.check_alive()?;
        self.facts.check_slot(slot)?;
        let (held, next) = (self.pages.len(slot), self.pages.next_place(slot));
        self.kv_usage().check_block(slot, held, next, block)?;
        self.facts.check_room(slot, held, block.ends.len())?;
        let taken = self.pages.take(&[(slot, block.ends.len())])?;
        match self.write_block(slot, block) {
            Ok(()) => {
                self.pages.advance_to(slot, &block.ends);
                Ok(())
            }
            Err(error) => Err(self.undo(taken, error)),
        }
    }

    fn time_steps(&mut self) {
        // A card that gives no event has no time to tell.
        _ = self.machine.time_steps();
    }

    fn step_time(&self) -> Option<Duration> {
        self.took
    }

    fn lost(&self) -> Option<String> {
        self.lost.as_ref().map(ToString::to_string)
    }

    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.dir.verify_digest(told)
    }

    fn untuned(&self) -> Option<&str> {
        self.machine.untuned()
    }
}

impl CudaDecoder {
    /// Writes a block into the last page of `slot`, which was taken for it.
    fn write_block(&mut self, slot: usize, block: &KvBlock<'_>) -> Result<(), DriverError> {
        self.pool.back(self.pages.end())?;
        let page = self.pages.of(slot)[self.pages.len(slot) / PAGE_TOKENS];
        self.machine.write(self.pool.address(page), &block.bytes)
    }
}

impl Drop for CudaDecoder {
    fn drop(&mut self) {
        // A step that nobody waits for must not meet its memory given back; a device that is lost does nothing.
        let _ = self.machine.settle();
    }
}
