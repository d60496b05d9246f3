//! Brings the constants of graphs to a card: as they are stored, or packed as products take weights.
//!
//! What lies in the file is brought once, for all plans and all graphs over the same weights; small ones that lie in memory
//! are a plan's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use smelt_engine::graph::GraphEngine;
use smelt_engine::graph::plan::Plan;
use smelt_tensor::dtype::Dtype;

use super::GraphFault;
use super::lower::WeightKey;
use crate::DeviceAddress;
use crate::decoder::memory::Arena;
use crate::driver::Driver;
use crate::kernels::graph::{self, Numbers, Pack, packed_halves};
use crate::kernels::rows::NumberKind;
use crate::owned::{DeviceBuffer, OwnedModule, OwnedStream};

/// Constants on a card.
#[derive(Debug)]
pub(super) struct Constants {
    arena: Arena,
    numbers: BTreeMap<usize, Numbers>,
    weights: BTreeMap<WeightKey, DeviceAddress>,
}

/// What constants are brought with.
#[derive(Clone, Copy)]
pub(super) struct Bringing<'a> {
    pub(super) driver: &'a Arc<dyn Driver>,
    pub(super) stream: &'a OwnedStream,
    pub(super) module: &'a OwnedModule,
    pub(super) engine: &'a GraphEngine,
    pub(super) plan: &'a Plan,
}

/// How the kernels read a constant, if they can.
pub(super) fn kind_of(engine: &GraphEngine, plan: &Plan, place: usize) -> Option<NumberKind> {
    match engine.stored(plan, place)?.0 {
        Dtype::F32 => Some(NumberKind::F32),
        Dtype::F16 => Some(NumberKind::F16),
        Dtype::BF16 => Some(NumberKind::Bf16),
        _ => None,
    }
}

impl Constants {
    /// None yet, of which so many bytes are expected.
    pub(super) fn new(driver: &Arc<dyn Driver>, expected: u64) -> Self {
        let (numbers, weights) = (BTreeMap::new(), BTreeMap::new());
        Self { arena: Arena::new(driver, expected), numbers, weights }
    }

    /// The constant that is known by `key` here, as it is stored.
    pub(super) fn numbers(
        &mut self,
        bringing: Bringing<'_>,
        key: usize,
        place: usize,
    ) -> Result<Numbers, GraphFault> {
        if let Some(numbers) = self.numbers.get(&key) {
            return Ok(*numbers);
        }
        let (kind, bytes) = bringing.stored(place)?;
        let at = self.arena.take(bytes.len() as u64)?;
        bringing.driver.copy_to_device(bringing.stream.id(), at, &bytes)?;
        let numbers = Numbers { at, kind };
        self.numbers.insert(key, numbers);
        Ok(numbers)
    }

    /// The weight that is known by `key` here, packed.
    pub(super) fn weight(
        &mut self,
        bringing: Bringing<'_>,
        key: WeightKey,
        place: usize,
    ) -> Result<DeviceAddress, GraphFault> {
        if let Some(at) = self.weights.get(&key) {
            return Ok(*at);
        }
        let (kind, bytes) = bringing.stored(place)?;
        let at = self.arena.take(packed_halves(key.shape) * 2)?;
        let raw = DeviceBuffer::new(bringing.driver, bytes.len().max(1) as u64)?;
        let stream = bringing.stream;
        bringing.driver.copy_to_device(stream.id(), raw.address(), &bytes)?;
        let first = raw.address().offset((key.start * kind.bytes()) as u64);
        let from = Numbers { at: first, kind };
        let pack = graph::pack(Pack { out: at, from, shape: key.shape, steps: key.steps });
        let did = bringing.module.launch(stream.id(), &pack);
        // What was stored goes once nothing reads it, whatever came of that.
        let settled = super::card::settle(stream);
        did.and(settled)?;
        self.weights.insert(key, at);
        Ok(at)
    }
}

impl Bringing<'_> {
    fn stored(&self, place: usize) -> Result<(NumberKind, std::borrow::Cow<'_, [u8]>), GraphFault> {
        let missing = || GraphFault::Graph("it reads a constant that is no floats".to_owned());
        let kind = kind_of(self.engine, self.plan, place).ok_or_else(missing)?;
        let (_, bytes) = self.engine.stored(self.plan, place).ok_or_else(missing)?;
        Ok((kind, bytes))
    }
}
